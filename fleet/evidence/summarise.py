"""From landed bytes to one :class:`AttemptSummary`, re-deriving everything.

Each check answers one question and names its cause; the first that fails makes the attempt VOID.
Nothing is repaired, nothing is taken from the manifest that the rows can tell. Knows no other
attempt and no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.contract.canonical import digest_json, sha256, to_text
from fleet.contract.vary import comparable
from fleet.errors import EvidenceError
from fleet.evidence.images import PROCESSOR
from fleet.evidence.landing import Landing, file_sha256
from fleet.evidence.ledger import Entry
from fleet.evidence.manifest import Manifest, Process
from fleet.evidence.modules import Modules, read_modules
from fleet.evidence.retired import Kept, read_kept
from fleet.evidence.rows import batch_places, check_columns, identities
from fleet.evidence.sample_set import check_sample_set
from fleet.evidence.states import IN_LANDING, Cause
from fleet.evidence.stress import check_plan, check_stress
from fleet.evidence.summary import AttemptSummary
from fleet.evidence.tally import tally_rows
from fleet.evidence.trace import require_files


@dataclass(frozen=True)
class _Story:
    """What the ledger says of one attempt; ``before``: when the one before it was started."""

    planned: Entry | None
    started: Entry | None
    go: Entry | None
    gone: Entry | None
    before: Entry | None
    before_gone: Entry | None
    pruned: Entry | None
    ends: tuple[Entry, ...]

    @property
    def end(self) -> Entry | None:
        """Accepted or given up; more than one end is an error, found elsewhere."""
        return self.ends[0] if self.ends else None


def summarise(landing: Landing, attempt: str, entries: Iterable[Entry]) -> AttemptSummary:
    """Check one attempt against the ledger and boil it down.

    Args:
        landing: where its folder is.
        attempt: its id.
        entries: the ledger entries about it and about the one before it (others are ignored), and
            the one that says its rows were pruned.
    """
    story = _story(attempt, entries)
    blank = _nothing_known(attempt)
    try:
        blank = _planned(blank, story)
        manifest = _read_manifest(landing, attempt)
        blank = _with_manifest(blank, manifest)
        if story.planned is None:
            raise EvidenceError("not-accepted", "no ledger entry planned this attempt")
        if story.end is None:
            raise EvidenceError("ledger-gap", "planned, and neither accepted nor given up")
        if len(story.ends) > 1:
            raise EvidenceError("evidence-altered", "the ledger ends this attempt twice")
        if story.end.kind == "given_up":
            _require_parts(landing.attempt(attempt), story.end.body.get("landed", {}))
            return _with_rows(_given_up(blank, story.end), landing, None, strict=False)
        return _accepted(blank, landing, story, manifest)
    except EvidenceError as error:
        return _with_rows(_void(blank, error), landing, None, strict=False)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        odd = EvidenceError("evidence-altered", f"not understood: {type(error).__name__} {error}")
        return _with_rows(_void(blank, odd), landing, None, strict=False)


def _story(attempt: str, entries: Iterable[Entry]) -> _Story:
    everything = tuple(entries)
    mine = [e for e in everything if e.attempt == attempt]
    ends = tuple(e for e in mine if e.kind in ("accepted", "given_up"))
    first = {kind: next((e for e in mine if e.kind == kind), None) for kind in _KINDS}
    after = first["go"].body.get("after") if first["go"] else None
    other = [e for e in everything if e.attempt == after]
    before = next((e for e in other if e.kind == "started"), None)
    before_gone = next((e for e in other if e.kind == "gone"), None)
    return _Story(**first, before=before, before_gone=before_gone, ends=ends)


_KINDS = ("planned", "started", "go", "gone", "pruned")


def _nothing_known(attempt: str) -> AttemptSummary:
    return AttemptSummary(
        attempt=attempt,
        campaign="",
        slot=-1,
        purpose="certify",
        contract="",
        execution_id="",
        platform="",
        unit="",
        state="VOID",
        cause=None,
        accepted_at_s=None,
        traced=False,
        vary=(),
        num_samples=0,
        rows=0,
        arms={},
        roots={},
        stages={},
        process=None,
        power=None,
        envelope={},
    )


def _planned(summary: AttemptSummary, story: _Story) -> AttemptSummary:
    """What the ledger says before the attempt's own folder is looked at."""
    if story.planned is None:
        return summary
    body = story.planned.body
    accepted = story.end if story.end and story.end.kind == "accepted" else None
    return replace(
        summary,
        campaign=story.planned.campaign,
        slot=body.get("slot", -1),
        night=body.get("night", ""),
        purpose=body.get("purpose", "certify"),
        contract=body.get("contract", ""),
        execution_id=body.get("execution_id", ""),
        vary=tuple(body.get("vary", ())),
        stack=str((body.get("stack") or {}).get("sha256", "")),
        varied=dict(body.get("varied", {})),
        num_samples=body.get("num_samples", 0),
        accepted_at_s=accepted.at_s if accepted else None,
        process=Process(**story.started.body["process"]) if story.started else None,
    )


def _read_manifest(landing: Landing, attempt: str) -> Manifest | None:
    path = landing.manifest(attempt)
    return Manifest.from_bytes(path.read_bytes()) if path.exists() else None


def _with_manifest(summary: AttemptSummary, manifest: Manifest | None) -> AttemptSummary:
    if manifest is None:
        return summary
    effective = comparable(manifest.effective, summary.vary)
    at_the_end = comparable(manifest.effective_end, summary.vary)
    return replace(
        summary,
        campaign=summary.campaign or manifest.campaign,
        contract=summary.contract or manifest.contract,
        execution_id=summary.execution_id or manifest.execution_id,
        platform=manifest.platform_sha256,
        unit=str(manifest.unit.get("id", "")),
        traced=manifest.traced,
        stages={
            **manifest.stages,
            "effective": to_text(digest_json(effective)),
            "effective_end": to_text(digest_json(at_the_end)),
        },
        effective=effective,
        process=manifest.process,
        envelope=manifest.envelope,
        warnings=manifest.warnings,
    )


def _void(summary: AttemptSummary, error: EvidenceError) -> AttemptSummary:
    details = IN_LANDING if error.code in ("evidence-altered", "not-accepted") else {}
    return replace(summary, state="VOID", cause=Cause(error.code, error.text, dict(details)))


def _given_up(summary: AttemptSummary, end: Entry) -> AttemptSummary:
    return replace(summary, state=end.body["state"], cause=Cause(**end.body["cause"]))


def _accepted(
    summary: AttemptSummary, landing: Landing, story: _Story, manifest: Manifest | None
) -> AttemptSummary:
    """An accepted attempt: the manifest's own state, unless a check turns it into VOID."""
    if manifest is None:
        raise EvidenceError("evidence-altered", "accepted, but its manifest.json is gone")
    assert story.end is not None and story.planned is not None
    _check_identity(manifest, story, landing.manifest(summary.attempt))
    if story.pruned is None:
        _check_parts(landing, manifest)
    _check_platform(manifest)
    if manifest.state != "COMPLETE":
        ended = replace(summary, state=manifest.state, cause=manifest.cause)
        return _with_rows(ended, landing, None, strict=False)
    _check_freshness(manifest, story)
    _check_weights(manifest)
    complete = replace(summary, state="COMPLETE")
    if story.pruned is not None:
        return _with_kept(complete, read_kept(landing, story.pruned, manifest))
    return _with_rows(complete, landing, (story.planned, manifest), strict=True)


def _check_identity(manifest: Manifest, story: _Story, path: Path) -> None:
    assert story.end is not None and story.planned is not None
    if to_text(sha256(path.read_bytes())) != story.end.body["manifest_sha256"]:
        raise EvidenceError("evidence-altered", "manifest.json is not the one the ledger accepted")
    planned = story.planned
    ours = (planned.attempt, planned.campaign, planned.body["slot"], planned.body["execution_id"])
    theirs = (manifest.attempt, manifest.campaign, manifest.slot, manifest.execution_id)
    if ours != theirs:
        raise EvidenceError("evidence-altered", f"manifest.json of {theirs}, planned was {ours}")
    check_plan(planned, manifest)


def _check_parts(landing: Landing, manifest: Manifest) -> None:
    """One that says itself that it is VOID may lie beside parts of another process."""
    on_disk = [p.name for p in landing.parts(manifest.attempt)]
    named = [part.name for part in manifest.parts]
    if on_disk != named and (manifest.state != "VOID" or set(named) - set(on_disk)):
        raise EvidenceError("evidence-altered", f"parts on disk {on_disk}, in the manifest {named}")
    _require_parts(landing.attempt(manifest.attempt), {p.name: p.sha256 for p in manifest.parts})


def _require_parts(folder: Path, named: Mapping[str, str]) -> None:
    """Every part that somebody vouched for is there as it was: name -> digest."""
    for name, digest in named.items():
        path = folder / name
        if not path.exists():
            raise EvidenceError("evidence-altered", f"{name} is gone")
        if file_sha256(path) != digest:
            raise EvidenceError("evidence-altered", f"{name} was edited after the fact")


def _check_platform(manifest: Manifest) -> None:
    if to_text(digest_json(manifest.platform)) != manifest.platform_sha256:
        raise EvidenceError(
            "evidence-altered", "manifest.json: the platform's digest is not that of its facts"
        )


def _check_freshness(manifest: Manifest, story: _Story) -> None:
    """Law 6: the process that the watcher saw is the one that wrote, and it is gone."""
    if story.started is None:
        raise EvidenceError("cannot-observe", "nobody saw the process alive")
    if story.started.body["process"] != vars(manifest.process):
        raise EvidenceError("not-fresh", "the manifest comes from another process")
    if story.gone is None or not story.gone.body["gone"]:
        raise EvidenceError("cannot-observe", "the end of the process was not observed")
    if not story.gone.body["seen_alive"]:
        raise EvidenceError("cannot-observe", "the watcher had not seen the process alive")
    if manifest.freshness.get("nonce") != manifest.attempt:
        raise EvidenceError("not-fresh", "the process did not carry this attempt's nonce")
    if manifest.freshness.get("imported_at_entry"):
        raise EvidenceError("not-fresh", f"imported: {manifest.freshness['imported_at_entry']}")
    if manifest.freshness.get("predecessor_gone") is False:
        raise EvidenceError("not-fresh", "the replay before this one still lived")
    if manifest.freshness.get("landed_before"):
        raise EvidenceError("not-fresh", f"resumed over {manifest.freshness['landed_before']}")
    _check_turn(manifest.freshness, story)


def _check_turn(freshness: Mapping[str, Any], story: _Story) -> None:
    """Predecessor gone < token < device free < first use. Evidence from before there were tokens
    has its order from the ledger alone: nothing was planned while another replay lived."""
    token = freshness.get("token")
    if (story.go.body["token"] if story.go else None) != token:
        raise EvidenceError("not-fresh", "the process ran on another token than the ledger's")
    device = freshness.get("device")
    if device and device["not_free"]:
        raise EvidenceError("device-not-free", f"{device['uuid']}: {device['not_free']}")
    if story.go is None:
        return
    if freshness["predecessor"] != (story.before.body["process"] if story.before else None):
        raise EvidenceError("not-fresh", "its token came after the end of another replay")
    if story.before and not (story.before_gone and story.before_gone.seq < story.go.seq):
        raise EvidenceError("not-fresh", "its token came while the replay before it lived")
    if freshness["device_in_use_before_token"]:
        raise EvidenceError("not-fresh", "the device was in use before the token for it")
    used_at_s = freshness["device_first_used_after_s"]
    if device and not freshness["token_at_s"] <= device["seen_at_s"] <= used_at_s:
        raise EvidenceError("not-fresh", "the device was used before it was seen free")


def _check_weights(manifest: Manifest) -> None:
    """The three weight digests are there, and the last two are one."""
    for name in ("checkpoint", "post_init_weights", "end_weights"):
        if not manifest.stages.get(name):
            raise EvidenceError("missing-evidence", f"no digest of the stage {name}")
    if manifest.stages["post_init_weights"] != manifest.stages["end_weights"]:
        raise EvidenceError("weights-changed", "weights after load and at the end differ")


def _with_rows(
    summary: AttemptSummary,
    landing: Landing,
    complete: tuple[Entry, Manifest] | None,
    strict: bool,
) -> AttemptSummary:
    """Add what the rows say. A COMPLETE attempt must pass every check; others only count rows."""
    parts = landing.parts(summary.attempt)
    if not strict:
        return replace(summary, rows=_readable_rows(parts))
    assert complete is not None
    planned, manifest = complete
    check_columns(parts, with_images=PROCESSOR in manifest.effective)
    arms = planned.body["arms"]
    in_order = check_sample_set(summary.attempt, parts, planned.body["sample_ids"], arms)
    modules = _modules(landing, planned, manifest)
    tally = tally_rows(parts, arms, in_order, modules.digests if modules else None)
    if tally.roots != manifest.roots or tally.arm_roots != manifest.arm_roots:
        raise EvidenceError("evidence-altered", "the rows do not give the manifest's roots")
    if manifest.vary:
        check_stress(planned, manifest, parts)
    else:
        _check_batches(parts, planned.body.get("batch_size"))
    power, trace = tally.power, {}
    if modules is not None:
        covered = modules.coverage
        trace = vars(covered) | {"gap": covered.gap(), "doubt": covered.doubt()}
    return replace(
        summary, rows=power.records, arms=tally.arms, roots=tally.roots, power=power, trace=trace
    )


def _with_kept(summary: AttemptSummary, kept: Kept) -> AttemptSummary:
    """What the rows said before they were pruned."""
    return replace(
        summary, rows=kept.rows, arms=kept.arms, roots=kept.roots, power=kept.power,
        trace=kept.trace, pruned=True,
    )  # fmt: skip


def _modules(landing: Landing, planned: Entry, manifest: Manifest) -> Modules | None:
    """The calls of a replay that was planned to be traced throughout while it certifies."""
    order = planned.body.get("trace")
    if planned.body.get("purpose") != "certify" or not order or order.get("steps") != "all":
        return None
    if not manifest.trace:
        raise EvidenceError("missing-evidence", "planned to be traced, and no trace landed")
    require_files(landing.attempt(manifest.attempt), manifest)
    files, hooks = manifest.trace["files"], str(manifest.trace.get("hooks", ""))
    return read_modules(landing.attempt(manifest.attempt), files, hooks)


def _check_batches(parts: list[Path], size: int | None) -> None:
    """Requested is not effective: each row ran in the batch that the plan puts it in."""
    if size is None:
        return
    for arm, position, sample, ordinal in batch_places(parts):
        if ordinal != position // size:
            raise EvidenceError(
                "setting-not-in-force",
                f"batch plan of {size} rows: {arm}/{sample} planned in batch {position // size}, "
                f"ran in batch {ordinal}",
            )


def _readable_rows(parts: list[Path]) -> int:
    total = 0
    for part in parts:
        try:
            total += len(identities([part]))
        except (OSError, ValueError, KeyError):
            continue
    return total
