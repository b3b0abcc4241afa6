"""Is the evidence about what the config path says today? (``fleet status``)

A contract that changed since its evidence was made is UNTESTED: the evidence belongs to another
execution id. A checkpoint whose files are untouched since then is not read again; one that was
touched is digested anew. Holds no verdict rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fleet.contract.canonical import canonical_json, to_text
from fleet.contract.dataset import dataset_digest
from fleet.contract.execution_id import execution_part, unflat
from fleet.contract.load import LoadedContract, has_contract, load_contract
from fleet.contract.parsers import load_parser
from fleet.errors import UsageError
from fleet.replay.checkpoint import (
    config_digest,
    content,
    existing,
    files_stat,
    processor_digest,
)
from fleet.report.answers import Asked, asked_of

Bodies = Mapping[tuple[str, str], Mapping[str, Any] | None]
"""(name, execution id) -> what the landing keeps of it."""

_CHANGED = "changed since it was last certified; the evidence is of another execution id"


class Today:
    """The config path as it is now; each data set and parser of it is digested once."""

    def __init__(self, bodies: Bodies, search: Sequence[Path], cache: Path) -> None:
        self._bodies, self._search, self._cache = bodies, search, cache
        self._digests: dict[tuple[str, str, Path], str] = {}

    def about(self, ours: Sequence[Asked], name: str) -> tuple[list[Asked], str]:
        """The evidence that is about what the config path says of a contract, and why there is
        none.

        A contract that the config path does not have is asked about as it was when certified.

        Args:
            ours: everything the store knows under that name.
            name: the contract's.
        """
        try:
            if not has_contract(name, self._search):
                return list(ours), ""
            loaded = load_contract(name, self._search)
            now = self._content(loaded)
            same = [
                asked
                for asked in ours
                if _content_of(body := self._bodies[name, asked.execution_id] or {}) == now
                and _same_checkpoint(loaded, body, self._cache)
            ]
        except UsageError as error:
            return [], f"cannot be certified as it is: {error}"
        again = [asked_of(name, asked.execution_id, loaded.contract) for asked in same]
        return again, _CHANGED if ours else "never tested"

    def _content(self, loaded: LoadedContract) -> bytes:
        """All of a contract but its checkpoint, which is named here and read elsewhere."""
        contract, near = loaded.contract, loaded.path.parent
        parsers = {arm: self._digest("parser", a.parser, near) for arm, a in contract.arms.items()}
        return canonical_json(
            {
                "part": execution_part(contract),
                "weights": [contract.model.checkpoint, contract.model.revision],
                "dataset": self._digest("dataset", contract.dataset.name, near),
                "parsers": parsers,
            }
        )

    def _digest(self, kind: Literal["parser", "dataset"], name: str, near: Path) -> str:
        key = (kind, name, near)
        if key not in self._digests:
            self._digests[key] = to_text(
                load_parser(name, near).digest
                if kind == "parser"
                else dataset_digest(name, self._search, near)
            )
        return self._digests[key]


def _content_of(body: Mapping[str, Any]) -> bytes | None:
    """The same of what the landing keeps; None when that is not understood."""
    try:
        asked, digests = body["asked"], unflat(body["digests"])
        return canonical_json(
            {
                "part": body["execution_part"],
                "weights": [asked["checkpoint"], asked["revision"]],
                "dataset": digests["dataset"],
                "parsers": digests["parsers"],
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
    if loaded.contract.model.kind == "vision":
        now["processor"] = to_text(processor_digest(folder))
    return all(body["digests"].get(key) == digest for key, digest in now.items())
