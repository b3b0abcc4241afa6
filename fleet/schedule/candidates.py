"""What a sweep is about: the contract, and every backend of its method as the node answers.

Resolves the contract once; its variants share the files, so nothing is digested again. Starts one
process that loads no weight, and writes nothing. Keeps: what was asked for wrongly is a usage error
before any replay; a backend that cannot run is not one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.contract.keys import nearest
from fleet.contract.load import load_contract
from fleet.contract.variant import reference, variant_of
from fleet.errors import ContractError, UsageError
from fleet.evidence.landing import Landing
from fleet.replay.backends import Backend
from fleet.replay.capability import disagreements
from fleet.schedule.asking import backends
from fleet.schedule.certify import Say
from fleet.schedule.driver import Campaign, Limits
from fleet.schedule.launcher import Launcher
from fleet.schedule.places import Places
from fleet.schedule.resolve import Resolved, resolve_contract, same_content


@dataclass(frozen=True)
class SweepRequest:
    """What to sweep. ``backends``: None for all that the method has."""

    contract: str
    backends: tuple[str, ...] | None = None
    screen: bool = True
    limits: Limits = field(default_factory=Limits)
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """One backend, and the contract under it when it can run."""

    name: str
    backend: Backend
    resolved: Resolved | None


def base_of(asked: SweepRequest, places: Places, say: Say) -> Resolved:
    """The contract whose backends are swept; nothing is started.

    Raises:
        UsageError: it has no quantised weights, is itself a variant, or contradicts its checkpoint.
    """
    variant = variant_of(asked.contract)
    if variant is not None:
        expected = "the contract itself: a sweep replaces the backend"
        fix = f"fleet sweep {variant.base}"
        raise ContractError("fleet sweep", "CONTRACT", expected, repr(asked.contract), fix)
    base = resolve_contract(asked.contract, places.search, places.cache, say)
    where, contract = str(base.loaded.path), base.loaded.contract
    if contract.quantization.method == "none" or base.checkpoint is None:
        raise ContractError(
            where, "quantization.method", '"awq" or "gptq": only quantised weights have backends',
            '"none"', "sweep a contract of a quantised checkpoint, such as tiny-awq-torch",
        )  # fmt: skip
    if different := disagreements(contract, base.checkpoint):
        fix = f"compare with quantization_config in {base.checkpoint / 'config.json'}"
        raise ContractError(
            where, "quantization", "what the checkpoint declares", "; ".join(different), fix
        )
    return base


def candidates_of(
    asked: SweepRequest, base: Resolved, places: Places, launcher: Launcher
) -> list[Candidate]:
    """Every backend that is asked about, as the node answers; nothing is written.

    Raises:
        UsageError: a named backend is none of the method's, or no process could tell.
    """
    campaign = Campaign(Landing(places.landing), launcher, {base.name: base}, places.scratch)
    found = {b.name: b for b in backends(campaign, base.name, asked.backends)}
    for name in asked.backends or ():
        if name not in found:
            close = nearest(name, found)
            method = base.loaded.contract.quantization.method
            raise UsageError(
                "command line", "--backends", f"backends of {method}: {', '.join(found)}",
                repr(name), f"did you mean {close}?" if close else "name some of those",
            )  # fmt: skip
    chosen = [b for b in found.values() if asked.backends is None or b.name in asked.backends]
    return [_candidate(asked.contract, backend, base, places) for backend in chosen]


def _candidate(given: str, backend: Backend, base: Resolved, places: Places) -> Candidate:
    own = base.loaded.contract.model.dtype
    name = reference(given, backend.name, None if backend.dtype in (None, own) else backend.dtype)
    if backend.dtype is None:
        return Candidate(name, backend, None)
    return Candidate(name, backend, same_content(base, load_contract(name, places.search)))


def split_backends(text: str | None) -> tuple[str, ...] | None:
    """The value of ``--backends``.

    Raises:
        UsageError: it names none.
    """
    if text is None:
        return None
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise UsageError(
            "command line", "--backends", "names joined by commas", repr(text), "name some"
        )
    return names
