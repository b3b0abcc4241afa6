"""The execution id: SHA-256 over everything of a contract that can change a bit, and nothing else.

Takes content digests from its caller; reads no file and no machine. Names and paths stay outside,
so a copy of a model in another folder keeps its id; what is required of the evidence stays outside
too. Keeps: a key added to the format later changes no existing id (see :data:`INTRODUCED`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fleet.contract.canonical import canonical_json, digest_json, to_text
from fleet.contract.model import Contract

PAYLOAD_SCHEMA = 1
"""Schema in which the hashed form was first defined. It does not follow the format's schema."""

INTRODUCED: Mapping[str, Any] = MappingProxyType({"model.processor": None})
"""Keys added after schema 1, dotted (``arms.*.key`` for a key of every arm), with the default each
was introduced with. Such a key is hashed only when it differs from that default."""

_OUTSIDE = frozenset({"require", "expect"})
_OUTSIDE_MODEL = frozenset({"checkpoint", "revision"})
_OUTSIDE_DATASET = frozenset({"name"})
_OUTSIDE_ARM = frozenset({"parser"})


@dataclass(frozen=True)
class Digests:
    """Content digests, 32 bytes each.

    ``checkpoint``: of canonical JSON {tensor name: tensor digest}. ``config``: of the model's
    configuration, where a rotary base or a norm's epsilon lives and in no tensor. ``dataset``: of
    the bytes of its one file, whose records name every image by digest. ``chat_template``: SHA-256
    of nothing when there is none. ``parsers``: arm -> digest of the parser's one file.
    ``processor``: of what turns images into pixels; None, and then not hashed, for a text model.
    """

    checkpoint: bytes
    config: bytes
    dataset: bytes
    tokenizer: bytes
    chat_template: bytes
    parsers: Mapping[str, bytes]
    processor: bytes | None = None

    def as_text(self) -> dict[str, Any]:
        """JSON form, digests as ``sha256:`` text."""
        return {
            **({"processor": to_text(self.processor)} if self.processor is not None else {}),
            "checkpoint": to_text(self.checkpoint),
            "config": to_text(self.config),
            "dataset": to_text(self.dataset),
            "tokenizer": to_text(self.tokenizer),
            "chat_template": to_text(self.chat_template),
            "parsers": {arm: to_text(digest) for arm, digest in self.parsers.items()},
        }


def execution_part(
    contract: Contract, introduced: Mapping[str, Any] = INTRODUCED
) -> dict[str, Any]:
    """The hashed part of a contract as typed JSON, defaults filled in.

    Args:
        contract: the whole contract, ``extends`` resolved.
        introduced: keys that are left out while they have the value given here.
    """
    part: dict[str, Any] = contract.model_dump(mode="json", exclude=set(_OUTSIDE))
    part["model"] = _without(part["model"], _OUTSIDE_MODEL)
    part["dataset"] = _without(part["dataset"], _OUTSIDE_DATASET)
    part["arms"] = {name: _without(arm, _OUTSIDE_ARM) for name, arm in part["arms"].items()}
    for key in sorted(introduced, key=lambda key: (-key.count("."), key)):
        _drop_default(part, key.split("."), canonical_json(introduced[key]))
    return part


def execution_id(
    contract: Contract, digests: Digests, introduced: Mapping[str, Any] = INTRODUCED
) -> bytes:
    """The id of ``contract`` over this content; 32 bytes.

    Raises:
        ValueError: the parser digests are not those of the contract's arms.
    """
    if set(digests.parsers) != set(contract.arms):
        raise ValueError(
            f"parser digests of {sorted(digests.parsers)}, arms {sorted(contract.arms)}"
        )
    return id_of(execution_part(contract, introduced), digests.as_text())


def id_of(part: Mapping[str, Any], digests: Mapping[str, Any]) -> bytes:
    """The id of an execution part over content digests in their JSON form."""
    return digest_json({"schema": PAYLOAD_SCHEMA, "contract": part, "digests": digests})


PARSER = "parser."
"""Before an arm's name in flat digests."""


def flat(digests: Mapping[str, Any]) -> dict[str, str]:
    """Digests in their JSON form without the table of parsers: ``parser.<arm>`` in its place."""
    plain = {name: text for name, text in digests.items() if name != "parsers"}
    return plain | {f"{PARSER}{arm}": text for arm, text in digests["parsers"].items()}


def unflat(found: Mapping[str, str]) -> dict[str, Any]:
    """The inverse of :func:`flat`."""
    plain = {name: text for name, text in found.items() if not name.startswith(PARSER)}
    parsers = {n.removeprefix(PARSER): t for n, t in found.items() if n.startswith(PARSER)}
    return plain | {"parsers": parsers}


def _without(table: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _drop_default(table: Any, path: list[str], default: bytes) -> None:
    """Compared as canonical JSON, because in Python 1 == 1.0 == True. Deeper keys go first."""
    if not isinstance(table, dict):
        return
    head, *rest = path
    for key in list(table) if head == "*" else [head]:
        if rest:
            _drop_default(table.get(key), rest, default)
        elif key in table and canonical_json(table[key]) == default:
            del table[key]
