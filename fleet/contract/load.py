"""Finds a contract's TOML, checks it, resolves ``extends`` and hands out typed, frozen data.

Knows no dataset, no checkpoint and no machine. Keeps: a contract is refused before any process
starts, with the file, the key, what was expected and the next step; nothing written in it is
ignored, so unknown keys are reported before a base can hide them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fleet.contract.explain import explain
from fleet.contract.keys import nearest
from fleet.contract.model import Contract
from fleet.contract.refuse import refuse_unavailable
from fleet.contract.source import NAME, Source, read_source
from fleet.contract.variant import is_file, variant_of, with_replaced
from fleet.errors import ContractError

DEFAULT_FOLDER = "configs"
BUILTIN = Path(__file__).resolve().parents[2] / "configs"
"""The configs of this repository: searched last, and the only place that controls come from."""


@dataclass(frozen=True)
class LoadedContract:
    """``origin``: dotted key -> name of the file that decides it, or ``"default"``.

    ``name`` of a variant is its reference; ``path`` is the file of its contract.
    """

    name: str
    path: Path
    contract: Contract
    origin: Mapping[str, str]


def config_path(option: str | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders that are searched for contracts and datasets, first wins.

    Args:
        option: the command line's value, folders joined by ``os.pathsep``.
        environ: read for ``FLEET_CONFIGS`` when there is no option.

    Raises:
        ContractError: a folder that was named does not exist.
    """
    given = option if option is not None else environ.get("FLEET_CONFIGS") or None
    if given is None:
        return _with_builtin((Path(DEFAULT_FOLDER),))
    where = "--configs" if option is not None else "FLEET_CONFIGS"
    folders = tuple(Path(part) for part in given.split(os.pathsep) if part)
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing or not folders:
        raise ContractError(
            where,
            "",
            f"existing folders, joined by {os.pathsep!r}",
            f"{missing[0]!r}, which is no folder" if missing else "an empty value",
            "name folders that hold contracts/ and datasets/",
        )
    return _with_builtin(folders)


def _with_builtin(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    known = any(folder.resolve() == BUILTIN for folder in folders)
    return folders if known else (*folders, BUILTIN)


def list_contracts(search: Sequence[Path]) -> list[str]:
    """Names of all contracts in the search path, sorted."""
    return sorted(
        {path.stem for folder in search for path in (folder / "contracts").glob("*.toml")}
    )


def has_contract(name: str, search: Sequence[Path]) -> bool:
    """Whether the search path has this contract, or the one that a variant is made of.

    Raises:
        ContractError: a reference that is none.
    """
    variant = variant_of(name)
    base = name if variant is None else variant.base
    if variant is not None and is_file(base):
        return Path(base).is_file()
    plain = Path(base).name == base
    return plain and any((root / "contracts" / f"{base}.toml").is_file() for root in search)


def load_contract(name_or_file: str, search: Sequence[Path]) -> LoadedContract:
    """Load one contract by name or by file.

    Args:
        name_or_file: a name in the search path; with a ``/``, or ending in ``.toml``, a file;
            either one may be followed by the backend of a variant.
        search: folders that hold ``contracts/``.

    Raises:
        ContractError: it cannot be found, read, understood or run by this version.
    """
    variant = variant_of(name_or_file)
    path = _find(name_or_file if variant is None else variant.base, search)
    own = read_source(path)
    base = _base(own, search) if own.extends is not None else None
    sources = (own,) if base is None else (own, base)
    below = {} if base is None else base.raw_seen_from(own.path.parent)
    merged = _merge(below, own.raw)
    contract = _validated(merged, sources)
    origin = _origins(contract, sources)
    if variant is None:
        refuse_unavailable(contract, str(path))
        return LoadedContract(path.stem, path, contract, origin)
    contract = variant.of(contract, str(path))
    refuse_unavailable(contract, str(path))
    return LoadedContract(variant.reference, path, contract, with_replaced(origin, variant))


def _find(name_or_file: str, search: Sequence[Path]) -> Path:
    if is_file(name_or_file):
        return _file(Path(name_or_file))
    found = _in_search(name_or_file, search)
    if found is None:
        raise _unknown_name(name_or_file, search)
    return found.resolve()


def _file(path: Path) -> Path:
    if not path.is_file():
        raise ContractError(
            str(path), "", "a contract file", "no such file", "check the path, or give a name"
        )
    if path.suffix != ".toml" or not NAME.fullmatch(path.stem):
        raise ContractError(
            str(path),
            "",
            "a file NAME.toml, the name of letters, digits, dots, dashes and underscores",
            f"{path.name!r}",
            "rename the file: a contract is called by its file name",
        )
    return path.resolve()


def _in_search(name: str, search: Sequence[Path]) -> Path | None:
    if not NAME.fullmatch(name):
        return None
    candidates = (folder / "contracts" / f"{name}.toml" for folder in search)
    return next((path for path in candidates if path.is_file()), None)


def _unknown_name(name: str, search: Sequence[Path]) -> ContractError:
    known = list_contracts(search)
    close = nearest(name, known)
    hint = f'did you mean "{close}"? ' if close else ""
    return ContractError(
        os.pathsep.join(str(folder / "contracts") for folder in search),
        "",
        f"a contract named {name!r}",
        f"only these: {', '.join(known) or '(none)'}",
        f"{hint}`fleet contract show NAME` prints one, `fleet contract new NAME` writes one",
    )


def _base(own: Source, search: Sequence[Path]) -> Source:
    """The file that ``own`` extends; beside it first, then in the search path; one level."""
    name = str(own.extends)
    beside = own.path.parent / f"{name}.toml"
    found = beside if beside.is_file() else _in_search(name, search)
    if found is None or found.resolve() == own.path:
        known = sorted({path.stem for path in own.path.parent.glob("*.toml")} - {own.path.stem})
        close = nearest(name, {*known, *list_contracts(search)} - {own.path.stem})
        raise ContractError(
            str(own.path),
            "extends",
            "the name of another contract, beside this file or in the config search path",
            f"{name!r}, which is " + ("this file" if found else "in neither"),
            f'did you mean "{close}"?' if close else "name a contract that exists",
        )
    base = read_source(found.resolve())
    if base.extends is not None:
        raise ContractError(
            str(own.path),
            "extends",
            "a contract that extends nothing (one level only)",
            f"{name!r}, which itself extends {base.extends!r}",
            f'write extends = "{base.extends}" and the keys of {name} that you need',
        )
    return base


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Per key and deep: tables are merged, scalars and lists replaced."""
    merged = dict(base)
    for key, value in own.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged


def _validated(merged: Mapping[str, Any], sources: Sequence[Source]) -> Contract:
    def file_of(key: str) -> str:
        holders = [source for source in sources if source.holds(key)]
        return str((holders or sources)[0].path)

    try:
        return Contract.model_validate(merged)
    except ValidationError as error:
        raise explain(error, merged, file_of) from None


def _origins(contract: Contract, sources: Sequence[Source]) -> dict[str, str]:
    origin = {}
    for key in _leaves(contract.model_dump(), ""):
        holders = [source.path.name for source in sources if source.holds(key)]
        origin[key] = holders[0] if holders else "default"
    return origin


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key
