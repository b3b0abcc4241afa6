"""Is the evidence about what the config path says today? (``fleet status``)

A contract that changed since its evidence was made is UNTESTED: the evidence belongs to another
execution id. A checkpoint whose files are untouched since then is not read again; one that was
touched is digested anew. Holds no verdict rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.contract.canonical import canonical_json, to_text
from fleet.contract.dataset import load_dataset
from fleet.contract.execution_id import execution_part
from fleet.contract.load import LoadedContract, has_contract, load_contract
from fleet.contract.parsers import load_parser
from fleet.errors import UsageError
from fleet.replay.checkpoint import config_digest, content, existing, files_stat
from fleet.report.answers import Asked, asked_of

Bodies = Mapping[tuple[str, str], Mapping[str, Any] | None]
"""(name, execution id) -> what the landing keeps of it."""

_CHANGED = "changed since it was last certified; the evidence is of another execution id"


def about_today(
    ours: Sequence[Asked], bodies: Bodies, name: str, search: Sequence[Path], cache: Path
) -> tuple[list[Asked], str]:
    """The evidence that is about what the config path says today, and why there is none.

    A contract that the config path does not have is asked about as it was when it was certified.
    """
    try:
        if not has_contract(name, search):
            return list(ours), ""
        loaded = load_contract(name, search)
        now = _content(loaded, search)
        same = [
            asked
            for asked in ours
            if _content_of(body := bodies[name, asked.execution_id] or {}) == now
            and _same_checkpoint(loaded, body, cache)
        ]
    except UsageError as error:
        return [], f"cannot be certified as it is: {error}"
    again = [asked_of(name, asked.execution_id, loaded.contract) for asked in same]
    return again, _CHANGED if ours else "never tested"


def _content(loaded: LoadedContract, search: Sequence[Path]) -> bytes:
    """All of a contract but its checkpoint, which is named here and read elsewhere."""
    contract, near = loaded.contract, loaded.path.parent
    dataset = load_dataset(contract.dataset.name, search, loaded.path)
    parsers = {arm: to_text(load_parser(a.parser, near).digest) for arm, a in contract.arms.items()}
    return canonical_json(
        {
            "part": execution_part(contract),
            "weights": [contract.model.checkpoint, contract.model.revision],
            "dataset": to_text(dataset.digest),
            "parsers": parsers,
        }
    )


def _content_of(body: Mapping[str, Any]) -> bytes | None:
    """The same of what the landing keeps; None when that is not understood."""
    try:
        asked, digests = body["asked"], body["digests"]
        prefix = "parser."
        parsers = {k.removeprefix(prefix): v for k, v in digests.items() if k.startswith(prefix)}
        return canonical_json(
            {
                "part": body["execution_part"],
                "weights": [asked["checkpoint"], asked["revision"]],
                "dataset": digests["dataset"],
                "parsers": parsers,
            }
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _same_checkpoint(loaded: LoadedContract, body: Mapping[str, Any], cache: Path) -> bool:
    """Untouched files are the same; touched ones are digested. What is not here cannot differ."""
    folder = existing(loaded.contract.model, loaded.path.parent, cache)
    if folder is None or files_stat(folder) == body["asked"].get("files"):
        return True
    found = content(folder)
    now = vars(found) | {"config": to_text(config_digest(folder))}
    return all(body["digests"].get(key) == digest for key, digest in now.items())
