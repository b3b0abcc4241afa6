"""Refuses what the contract format can say and this version cannot yet do.

A requirement that is read and not checked would be a promise without evidence, so it is an error
before any process starts.
"""

from __future__ import annotations

from fleet.contract.model import Contract
from fleet.errors import ContractError


def refuse_unavailable(contract: Contract, where: str) -> None:
    """Raise for the first key whose value asks for something this version does not have.

    Raises:
        ContractError: with the key and a value that is supported.
    """
    require = contract.require
    if contract.model.kind == "vision":
        raise _unsupported(where, "model.kind", '"text"', '"vision"', 'write kind = "text"')
    if require.grade == "modules" and contract.model.engine == "synthetic":
        grades = 'one of "metric", "prediction", "tokens", "logits" (the engine has no modules)'
        raise _unsupported(where, "require.grade", grades, '"modules"', 'write grade = "logits"')
    if require.scope == "same-class":
        fix = 'write scope = "same-unit"'
        raise _unsupported(where, "require.scope", '"same-unit"', '"same-class"', fix)
    if require.vary:
        got = f"{list(require.vary)}"
        raise _unsupported(where, "require.vary", "an empty list", got, "write vary = []")
    _refuse_synthetic(contract, where)


def _refuse_synthetic(contract: Contract, where: str) -> None:
    """The synthetic engine is its own model, in float32 and greedy; no other engine can run it."""
    model = contract.model
    own = model.checkpoint == "demo:synthetic"
    if own != (model.engine == "synthetic"):
        expected = 'engine = "synthetic" together with checkpoint = "demo:synthetic", or neither'
        got = f"engine {model.engine!r}, checkpoint {model.checkpoint!r}"
        raise ContractError(where, "model.engine", expected, got, "change one of the two")
    if own and model.dtype != "float32":
        fix = 'write dtype = "float32"'
        raise _unsupported(where, "model.dtype", '"float32"', f'"{model.dtype}"', fix)
    if own and contract.decoding.do_sample:
        fix = "write do_sample = false"
        raise _unsupported(where, "decoding.do_sample", "false", "true", fix)


def _unsupported(where: str, key: str, expected: str, got: str, fix: str) -> ContractError:
    return ContractError(where, key, expected, f"{got}: not supported by this version", fix)
