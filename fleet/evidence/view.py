"""A landing as it was, for whoever derives a verdict again: links into the landing as it is.

A view holds the chains that plan what a verdict is about, each as far as it went then, with the
attempts that they plan, and those that nobody ever planned. Later entries are not in it. What was
pruned since stays pruned: its summaries stand for its rows. Knows no verdict and no store.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fleet.evidence import ledger
from fleet.evidence.landing import FORMAT, OWN, Landing
from fleet.evidence.ledger import RETRACTIONS, Entry, Heads
from fleet.evidence.retired import CHAIN


def plans(landing: Landing) -> dict[str, list[Entry]]:
    """Campaign -> its *planned* entries, those of a broken chain too."""
    return {
        name: [e for e in ledger.salvage(landing, name) if e.kind == "planned"]
        for name in ledger.campaigns(landing)
    }


def view(landing: Landing, execution_ids: Iterable[str], heads: Heads, folder: Path) -> Landing:
    """A landing in ``folder`` that says of these execution ids what the landing said at ``heads``.

    Raises:
        EvidenceError: the landing does not hold what it held then.
    """
    planned, wanted = plans(landing), set(execution_ids)
    about = {
        e.attempt for own in planned.values() for e in own if e.body.get("execution_id") in wanted
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "FORMAT.json").write_bytes(FORMAT)
    seen: set[str] = set()
    for name, (length, head) in heads.items():
        ledger.require_prefix(landing, name, length, head)
        entries = planned.get(name, [])
        if name.startswith(RETRACTIONS) or any(e.attempt in about for e in entries):
            _link_chain(landing, name, length, folder)
            seen |= {e.attempt for e in entries if e.seq < length}
    for name in planned:
        if name.startswith(CHAIN):
            _link_chain(landing, name, None, folder)
    everything = {e.attempt for own in planned.values() for e in own}
    for attempt in landing.attempts():
        if attempt in seen or attempt not in everything:
            _link(landing.attempt(attempt), folder / "attempts" / attempt)
    for name in ("contracts", f"{OWN}/altered.jsonl"):
        if (landing.root / name).exists():
            _link(landing.root / name, folder / name)
    return Landing.open(folder)


def _link_chain(landing: Landing, name: str, length: int | None, folder: Path) -> None:
    for path in sorted(ledger.chain_folder(landing, name).glob("[0-9]*.json"))[:length]:
        _link(path, folder / "ledger" / name / path.name)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())
