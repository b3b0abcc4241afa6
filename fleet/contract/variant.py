"""A contract named with another backend: ``NAME@BACKEND`` or ``NAME@BACKEND:DTYPE``.

The contract NAME with [quantization] backend, and [model] dtype, replaced and all else as its file
has it, so that one checkpoint's backends need no file each. Knows no file, no machine and no list
of backends. Keeps: a reference is refused by the rules that a file is refused by.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fleet.contract.model import Contract, Model
from fleet.errors import ContractError

MARK = "@"
DTYPES: tuple[str, ...] = get_args(Model.model_fields["dtype"].annotation)
_BACKEND = re.compile(r"[A-Za-z0-9_]+")
_FORM = "NAME@BACKEND or NAME@BACKEND:DTYPE"
_NAME_ONE = "name one; `fleet doctor` lists the backends that this machine can run"


@dataclass(frozen=True)
class Variant:
    """``base``: the name or file of the contract. ``dtype``: None for the contract's own."""

    reference: str
    base: str
    backend: str
    dtype: str | None = None

    def replaced(self) -> dict[str, str]:
        """Dotted key -> its value here."""
        dtype = {} if self.dtype is None else {"model.dtype": self.dtype}
        return {"quantization.backend": self.backend} | dtype

    def of(self, contract: Contract, where: str) -> Contract:
        """The contract with these keys replaced.

        Raises:
            ContractError: it has no quantised weights, so it has no backend to replace.
        """
        if contract.quantization.method == "none":
            raise ContractError(
                where,
                "quantization.method",
                f'"awq" or "gptq", because {self.reference!r} replaces the backend',
                '"none"',
                f"name the contract alone: {self.base}",
            )
        return with_backend(contract, self.backend, self.dtype)


def with_backend(contract: Contract, backend: str, dtype: str | None = None) -> Contract:
    """The same with another backend, and another dtype unless None."""
    quantization = contract.quantization.model_copy(update={"backend": backend})
    model = contract.model.model_copy(update={} if dtype is None else {"dtype": dtype})
    return contract.model_copy(update={"quantization": quantization, "model": model})


def is_file(name_or_file: str) -> bool:
    """Whether this is written as a file: with a slash, or ending in ``.toml``."""
    return "/" in name_or_file or os.sep in name_or_file or name_or_file.endswith(".toml")


def reference(base: str, backend: str, dtype: str | None) -> str:
    """How a variant is written."""
    return f"{base}{MARK}{backend}" + ("" if dtype is None else f":{dtype}")


def variant_of(name_or_file: str) -> Variant | None:
    """What the reference replaces; None for a contract as its file has it.

    A file that exists is that file, whatever its path holds.

    Raises:
        ContractError: nothing before the mark, no backend by name, or a dtype that is none.
    """
    base, mark, rest = name_or_file.rpartition(MARK)
    if not mark or is_file(rest) or (is_file(name_or_file) and Path(name_or_file).is_file()):
        return None
    backend, colon, dtype = rest.partition(":")
    _check(name_or_file, base, backend)
    if colon and dtype not in DTYPES:
        got = repr(dtype) if dtype else "nothing after the colon"
        words = ", ".join(f'"{known}"' for known in DTYPES)
        raise _refused(name_or_file, "model.dtype", f"one of {words}", got, f"write {_FORM}")
    return Variant(name_or_file, base, backend, dtype or None)


def _check(given: str, base: str, backend: str) -> None:
    if not base or (MARK in base and not is_file(base)):
        expected = f"one contract name before one {MARK!r}"
        raise _refused(given, "", expected, repr(given), f"write {_FORM}")
    key = "quantization.backend"
    if not backend:
        raise _refused(given, key, f"a backend by name after {MARK!r}", "nothing", _NAME_ONE)
    if backend.startswith("auto"):
        expected = 'a backend by name, such as "awq_torch" (auto chooses differently by machine)'
        raise _refused(given, key, expected, repr(backend), _NAME_ONE)
    if not _BACKEND.fullmatch(backend):
        expected = "a backend's name of letters, digits and underscores"
        raise _refused(given, key, expected, repr(backend), _NAME_ONE)


def _refused(given: str, key: str, expected: str, got: str, fix: str) -> ContractError:
    return ContractError(f"contract {given!r}", key, expected, got, fix)


def with_replaced(origin: Mapping[str, str], variant: Variant) -> dict[str, str]:
    """``origin``, with the reference as the place that the replaced keys came from."""
    return {**origin, **{key: variant.reference for key in variant.replaced()}}
