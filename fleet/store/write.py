"""Put one attempt, or one campaign, into the store's tables; forget it again.

Digests go in as bytes. A text that is no digest becomes NULL, which equals nothing. Knows no
landing: it is handed everything that it writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.contract.canonical import digest_json, from_text, to_text
from fleet.evidence.ledger import Heads
from fleet.evidence.manifest import Manifest
from fleet.evidence.retractions import Retraction
from fleet.evidence.statement import seconds
from fleet.evidence.summary import AttemptSummary
from fleet.store.chains import Chain, planned
from fleet.store.hashes import StoredPart
from fleet.store.open import Connection


def blob(text: str) -> bytes | None:
    """Bytes of a digest's text, None when it is not one."""
    try:
        return from_text(text)
    except ValueError:
        return None


def as_json(value: Any) -> str:
    """JSON text of facts, for columns that people read; identities are hashed elsewhere."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def next_key(con: Connection) -> int:
    """A number that no attempt of the store has had."""
    row = con.execute("SELECT coalesce(max(key), 0) + 1 FROM attempts").fetchone()
    assert row is not None
    return int(row[0])


def insert_attempt(
    con: Connection, key: int, summary: AttemptSummary, manifest_sha256: bytes | None, seen: str
) -> None:
    """The attempt's row, with its whole summary as JSON."""
    s = summary
    values = [
        *(key, s.attempt, s.campaign, s.slot, s.contract, blob(s.execution_id), blob(s.platform)),
        *(s.unit, s.purpose, s.state),
        *((s.cause.code, s.cause.text) if s.cause else (None, None)),
        *(s.accepted_at_s, s.traced, as_json(s.vary), s.num_samples, s.rows, manifest_sha256),
        *(seen, as_json(s.to_json())),
    ]
    marks = ", ".join("?" * len(values))
    con.execute(f"INSERT INTO attempts SELECT {marks}, NULL, NULL", values)


def insert_summaries(con: Connection, key: int, summary: AttemptSummary) -> None:
    """One row per arm and grade."""
    effective = blob(summary.stages.get("effective", ""))
    rows = [
        [key, name, grade, from_text(root), arm.rows, arm.correct, arm.unparsed, effective]
        for name, arm in summary.arms.items()
        for grade, root in arm.roots.items()
    ]
    if rows:
        con.executemany("INSERT INTO summaries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def insert_parts(con: Connection, key: int, parts: Sequence[StoredPart]) -> None:
    """Which parts the attempt has, and whether their rows count."""
    con.execute(
        "INSERT INTO parts SELECT ?, unnest(?::INTEGER[]), unnest(?::VARCHAR[]), "
        "unnest(?::VARCHAR[])",
        [
            key,
            [part.number for part in parts],
            [part.path.name for part in parts],
            [part.state for part in parts],
        ],
    )


def insert_trace(con: Connection, key: int, manifest: Manifest) -> None:
    """What the manifest says of the attempt's trace; the calls themselves stay in Parquet."""
    if manifest.trace:
        body = json.dumps(manifest.trace, sort_keys=True)
        con.execute("INSERT INTO traces VALUES (?, ?)", [key, body])


def insert_facts(con: Connection, manifest: Manifest) -> None:
    """The platform and the unit that the attempt saw; a platform only under its own digest."""
    digest = digest_json(manifest.platform)
    if digest == blob(manifest.platform_sha256):
        con.execute(
            "INSERT OR IGNORE INTO platforms VALUES (?, ?)", [digest, as_json(manifest.platform)]
        )
    unit = manifest.unit
    if unit.get("id"):
        values = [str(unit["id"]), str(unit.get("node_label", "")), as_json(unit)]
        con.execute("INSERT OR IGNORE INTO units VALUES (?, ?, ?)", values)


def forget_attempt(con: Connection, attempt: str) -> None:
    """Remove everything that was stored of one attempt."""
    row = con.execute("SELECT key FROM attempts WHERE attempt = ?", [attempt]).fetchone()
    if row is None:
        return
    for table in ("summaries", "hashes", "parts", "traces"):
        con.execute(f"DELETE FROM {table} WHERE attempt = ?", [row[0]])
    con.execute("DELETE FROM attempts WHERE attempt = ?", [attempt])


def replace_campaigns(con: Connection, chains: Sequence[Chain]) -> None:
    """All campaigns and their controls; small, so written anew."""
    con.execute("DELETE FROM campaigns; DELETE FROM controls")
    for chain in chains:
        opened, closed = chain.first("campaign"), chain.first("closed")
        con.execute(
            "INSERT INTO campaigns VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                chain.campaign,
                opened.at_s if opened else None,
                closed.at_s if closed else None,
                as_json(opened.body.get("argv", [])) if opened else None,
                chain.head,
                str(chain.fault) if chain.fault else None,
                None if chain.about is None else as_json(sorted(map(to_text, chain.about))),
            ],
        )
        for name in _controls(chain):
            con.execute("INSERT INTO controls VALUES (?, ?)", [chain.campaign, name])


def _controls(chain: Chain) -> list[str]:
    found = [e.body.get("contracts", []) for e in chain.entries if e.kind == "controls"]
    return sorted({str(name) for names in found for name in names})


def replace_contracts(
    con: Connection, chains: Sequence[Chain], bodies: Mapping[bytes, Mapping[str, Any]]
) -> None:
    """Every name that a plan gave an execution id, with what the id stands for."""
    asked = _asked(chains)
    con.execute("DELETE FROM contracts")
    for digest, name in planned(chains):
        by_campaign = asked.get((digest, name), {})
        newest = next(reversed(by_campaign.values()), None)
        body = dict(bodies.get(digest, {})) | {"asked": newest}
        controlled = {
            chain.campaign: by_campaign[chain.campaign]
            for chain in chains
            if chain.campaign in by_campaign and name in _controls(chain)
        }
        body |= {"asked_as_control": controlled} if controlled else {}
        con.execute("INSERT INTO contracts VALUES (?, ?, ?)", [digest, name, as_json(body)])


def _asked(chains: Sequence[Chain]) -> dict[tuple[bytes, str], dict[str, Any]]:
    """(execution id, name) -> campaign -> what it asked of that, the newest last."""
    opened = [e for chain in chains if (e := chain.first("campaign")) is not None]
    found: dict[tuple[bytes, str], dict[str, Any]] = {}
    for entry in sorted(opened, key=lambda e: (e.at_s, e.campaign)):
        for item in entry.body.get("contracts", []):
            if isinstance(item, dict) and (digest := blob(item.get("execution_id", ""))):
                found.setdefault((digest, str(item.get("name", ""))), {})[entry.campaign] = item
    return found


def replace_retractions(con: Connection, found: Sequence[Retraction]) -> None:
    """Every record, those that are no good too; small, so written anew."""
    con.execute("DELETE FROM retractions")
    for each in found:
        values = [each.attempt, _time_of(each.at), each.reason, as_json(each.to_json())]
        con.execute("INSERT INTO retractions VALUES (?, ?, ?, ?)", values)


def _time_of(text: str) -> float:
    """0 for a record that states none."""
    try:
        return seconds(text)
    except ValueError:
        return 0.0


def replace_heads(con: Connection, heads: Heads) -> None:
    """How far every chain goes, to hold the landing to when it is seen again."""
    con.execute("DELETE FROM heads")
    for name, (length, head) in heads.items():
        con.execute("INSERT INTO heads VALUES (?, ?, ?)", [name, length, head])


def drop_unused_facts(con: Connection) -> None:
    """Platforms and units that no stored attempt has any more."""
    con.execute(
        "DELETE FROM platforms WHERE digest NOT IN "
        "(SELECT platform FROM attempts WHERE platform IS NOT NULL)"
    )
    con.execute("DELETE FROM units WHERE id NOT IN (SELECT unit FROM attempts)")
