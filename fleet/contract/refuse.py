"""Refuses what the contract format can say and this version cannot yet do.

A requirement that is read and not checked would be a promise without evidence, so it is an error
before any process starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.contract.model import Contract
from fleet.contract.vary import VARIES
from fleet.errors import ContractError


def refuse_unavailable(contract: Contract, where: str) -> None:
    """Raise for the first key whose value asks for something this version does not have.

    Raises:
        ContractError: with the key and a value that is supported.
    """
    require = contract.require
    if contract.model.kind == "vision" and contract.model.engine == "synthetic":
        text = '"text" (the engine sees no image)'
        raise _unsupported(where, "model.kind", text, '"vision"', 'write kind = "text"')
    if require.grade == "modules" and contract.model.engine == "synthetic":
        grades = 'one of "metric", "prediction", "tokens", "logits" (the engine has no modules)'
        raise _unsupported(where, "require.grade", grades, '"modules"', 'write grade = "logits"')
    refuse_vary(contract, require.vary, where)
    _refuse_synthetic(contract, where)


def refuse_vary(contract: Contract, vary: Sequence[str], where: str) -> None:
    """Raise for a set of replays that cannot be varied so; for an exact repeat there is nothing.

    Raises:
        ContractError: an unknown or repeated name, or one that this contract cannot vary.
    """
    known = f"some of {', '.join(VARIES)}"
    for name in vary:
        if name not in VARIES:
            raise ContractError(where, "require.vary", known, f'"{name}"', f"name {known}")
        if vary.count(name) > 1:
            raise ContractError(
                where, "require.vary", "each name once", f'"{name}" twice', "drop one"
            )
    if vary:
        _refuse_varied(contract, vary, where)


def _refuse_varied(contract: Contract, vary: Sequence[str], where: str) -> None:
    """What a varied set cannot be asked beside its variation."""
    fix = "write vary = [] (on the command line: --vary none)"
    if contract.expect is not None:
        exact = "nothing varied in a control: what it expects is said of exact repeats"
        raise ContractError(where, "require.vary", exact, f"{list(vary)}", fix)
    if contract.require.scope == "same-class":
        fix = 'write scope = "same-unit", or vary = []'
        raise _unsupported(where, "require.scope", '"same-unit" beside vary', '"same-class"', fix)
    if contract.require.grade == "modules":
        grades = "a grade up to logits beside vary"
        raise _unsupported(where, "require.grade", grades, '"modules"', 'write grade = "logits"')
    for name, lacks in _SYNTHETIC_LACKS.items():
        if contract.model.engine == "synthetic" and name in vary:
            others = f"nothing but batch, load, memory and order (the engine has no {lacks})"
            raise _unsupported(where, "require.vary", others, f'"{name}"', fix)
    if contract.decoding.max_new_tokens < 2 and "cache" in vary:
        second = "a second new token beside cache: the first is made without one"
        raise ContractError(where, "decoding.max_new_tokens", second, "1", "write more, or " + fix)


_SYNTHETIC_LACKS = {
    "threads": "threads",
    "cache": "key-value cache",
    "kernel_cache": "compiled kernels",
}


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
    inject = contract.control.inject if contract.control else "racy_linear:"
    if own and not inject.startswith(("racy_linear:", "ordered_linear:")):
        fix = "inject racy_linear or ordered_linear, or use an engine with modules"
        linears = "racy_linear or ordered_linear (the engine has no linears)"
        raise _unsupported(where, "control.inject", linears, f'"{inject}"', fix)


def _unsupported(where: str, key: str, expected: str, got: str, fix: str) -> ContractError:
    return ContractError(where, key, expected, f"{got}: not supported by this version", fix)
