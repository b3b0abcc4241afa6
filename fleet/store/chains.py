"""Every attempt that a landing knows of, with the ledger entries that concern it.

An attempt is planned by a chain, or is a folder that no chain planned. A chain that does not check
is read entry by entry for the attempts it names, all of which its fault makes VOID: a gap must not
make an attempt disappear. Knows no DuckDB and no rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.contract.canonical import from_text
from fleet.contract.sample_ids import SampleIds
from fleet.errors import EvidenceError
from fleet.evidence import ledger
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, Heads
from fleet.evidence.mirror import altered
from fleet.evidence.retired import CHAIN
from fleet.evidence.states import IN_LANDING, Cause


@dataclass(frozen=True)
class Chain:
    """One campaign's ledger; ``fault`` says why it does not check, None when it does."""

    campaign: str
    entries: list[Entry]
    head: bytes
    fault: Cause | None

    @property
    def planned(self) -> set[tuple[bytes, str]]:
        """(execution id, name) of every contract that it planned an attempt of."""
        found = {(_digest(e.body), str(e.body.get("contract", ""))) for e in self._of("planned")}
        return {(digest, name) for digest, name in found if digest is not None}

    @property
    def about(self) -> set[bytes] | None:
        """Execution ids that it was opened with or planned; None where its opening is lost."""
        opened = self.first("campaign")
        if opened is None:
            return None
        named = opened.body.get("contracts", [])
        ids = {_digest(item) for item in named if isinstance(item, dict)}
        return {digest for digest in ids if digest is not None} | {d for d, _ in self.planned}

    def _of(self, kind: str) -> list[Entry]:
        return [e for e in self.entries if e.kind == kind]

    def first(self, kind: str) -> Entry | None:
        """Its first entry of a kind."""
        return next(iter(self._of(kind)), None)


def planned(chains: Iterable[Chain]) -> set[tuple[bytes, str]]:
    """(execution id, name) of every contract that anybody planned an attempt of."""
    return {each for chain in chains for each in chain.planned}


def _digest(body: Mapping[str, Any]) -> bytes | None:
    """The execution id in a body; None for what is none."""
    try:
        return from_text(body.get("execution_id", ""))
    except (TypeError, ValueError, AttributeError):
        return None


@dataclass
class Story:
    """One attempt as the ledger tells it, and life and death of the one before it on its unit.
    ``fault`` overrides whatever its rows say."""

    attempt: str
    entries: list[Entry] = field(default_factory=list)
    fault: Cause | None = None

    def accepted(self) -> Entry | None:
        """The entry that accepted it."""
        return next((e for e in self.entries if e.kind == "accepted"), None)

    @property
    def execution_id(self) -> bytes | None:
        """As it was planned."""
        return next((_digest(e.body) for e in self.entries if e.kind == "planned"), None)

    def digest(self) -> str:
        """Changes when anything is said about the attempt that was not said before."""
        hasher = hashlib.sha256(str(self.fault).encode())
        for entry in self.entries:
            for piece in _pieces(entry):
                hasher.update(piece)
        return hasher.hexdigest()


def _pieces(entry: Entry) -> Iterator[bytes | memoryview]:
    """All that an entry says; its samples as they are held, since a million take 25 MB to show."""
    packed = {k: v for k, v in entry.body.items() if isinstance(v, SampleIds)}
    rest = {k: v for k, v in entry.body.items() if k not in packed}
    yield repr((replace(entry, body=rest), sorted(packed))).encode()
    for _, ids in sorted(packed.items()):
        yield from (memoryview(ids.ends), memoryview(ids.text))


def read_chains(landing: Landing, heads: Heads) -> list[Chain]:
    """Every campaign, sorted by name, held against what was seen of it before."""
    found = altered(landing)
    return [_read(landing, campaign, found, heads) for campaign in ledger.campaigns(landing)]


def stories(
    landing: Landing, chains: Sequence[Chain], unfounded: Mapping[bytes, str]
) -> list[Story]:
    """Every planned attempt in the order planned, then every folder that nobody planned.

    ``unfounded``: execution id -> why nobody can say what it stands for.
    """
    told: dict[str, Story] = {}
    for chain in chains:
        _tell(chain, told)
    for story in told.values():
        words = unfounded.get(story.execution_id or b"")
        if words is not None and story.fault is None:
            story.fault = _altered(words)
    for attempt in landing.attempts():
        told.setdefault(attempt, Story(attempt))
    for entry in _pruned(chains):
        if entry.attempt in told:
            told[entry.attempt].entries.append(entry)
    for name, words in altered(landing).items():
        folder, _, file = name.partition("/")
        if folder == "attempts" and (attempt := file.partition("/")[0]) in told:
            told[attempt].fault = told[attempt].fault or _altered(words)
    return list(told.values())


def _pruned(chains: Iterable[Chain]) -> Iterator[Entry]:
    """What chains that check say was pruned; the rows of others are gone without a word."""
    for chain in chains:
        if chain.campaign.startswith(CHAIN) and chain.fault is None:
            yield from (e for e in chain.entries if e.kind == "pruned")


def _altered(words: str) -> Cause:
    """An object changed at its source after it was mirrored, and what was mirrored is kept; or what
    the execution id stands for is lost. The rows themselves are as they were written."""
    return Cause("evidence-altered", words, IN_LANDING | {"original_kept": True})


def _tell(chain: Chain, told: dict[str, Story]) -> None:
    planned = {e.attempt for e in chain.entries if e.kind == "planned"}
    for attempt in planned & told.keys():
        where = f"planned by {told[attempt].entries[0].campaign} and by {chain.campaign}"
        told[attempt].fault = Cause("duplicate-attempt", where, dict(IN_LANDING))
    mine: dict[str, list[Entry]] = {}
    for entry in chain.entries:
        if entry.attempt in planned:
            mine.setdefault(entry.attempt, []).append(entry)
    for attempt in sorted(mine.keys() - told.keys(), key=lambda a: mine[a][0].seq):
        after = {str(e.body.get("after")) for e in mine[attempt] if e.kind == "go"}
        before = [e for a in after for e in mine.get(a, ()) if e.kind in ("started", "gone")]
        told[attempt] = Story(attempt, [*mine[attempt], *before], chain.fault)


def _read(landing: Landing, campaign: str, found: Mapping[str, str], heads: Heads) -> Chain:
    mine = [words for name, words in found.items() if name.startswith(f"ledger/{campaign}/")]
    fault = _altered(mine[0]) if mine else None
    head = from_text(ledger.chain_head(landing, campaign))
    try:
        entries = ledger.read_chain(landing, campaign)
        ledger.require_prefix(landing, campaign, *heads.get(campaign, (0, ledger.START)))
        return Chain(campaign, entries, head, fault)
    except EvidenceError as error:
        entries = ledger.salvage(landing, campaign)
        return Chain(campaign, entries, head, Cause(error.code, error.text, dict(IN_LANDING)))
