"""From contract names to everything a campaign needs, before any process starts.

Loads the contract, its dataset, parsers and checkpoint, digests them, renders the templates and
derives the execution id. Every fault found here is a usage error: nothing has been planned yet, so
nothing can be half written. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.contract.canonical import sha256, to_text
from fleet.contract.dataset import LoadedDataset, load_dataset
from fleet.contract.execution_id import Digests, execution_id, execution_part, flat, id_of, unflat
from fleet.contract.images import check_images
from fleet.contract.load import LoadedContract, load_contract
from fleet.contract.model import BY_NONCE, Contract
from fleet.contract.parsers import load_parser
from fleet.errors import ContractError
from fleet.replay.checkpoint import (
    chat_template_digest,
    checkpoint_digest,
    config_digest,
    files_stat,
    processor_digest,
    resolve,
    tensor_digests,
    tokenizer_digest,
)
from fleet.replay.demo import require_as_made
from fleet.replay.inputs import render_arm


@dataclass(frozen=True)
class Resolved:
    """One contract, ready to be planned. ``digests`` as ``sha256:<hex>`` text.

    ``files``: what the checkpoint's files looked like just before they were digested.
    """

    loaded: LoadedContract
    dataset: LoadedDataset
    checkpoint: Path | None
    execution_id: str
    digests: dict[str, str]
    files: str

    @property
    def name(self) -> str:
        """The contract's name."""
        return self.loaded.name

    @property
    def has_modules(self) -> bool:
        """Is there anything to trace? The synthetic engine has no modules."""
        return self.loaded.contract.model.engine != "synthetic"

    def body(self) -> dict[str, Any]:
        """What the execution id stands for, kept in the landing: the same for every name."""
        return {
            "execution_part": execution_part(self.loaded.contract),
            "digests": self.digests,
        }

    def asked(self) -> dict[str, Any]:
        """What this campaign asks of it: outside the id, so it is in the campaign's own entry."""
        contract = self.loaded.contract
        return {
            "name": self.name,
            "execution_id": self.execution_id,
            "require": contract.require.model_dump(mode="json"),
            "expect": contract.expect.model_dump(mode="json") if contract.expect else None,
            "checkpoint": contract.model.checkpoint,
            "revision": contract.model.revision,
            "files": self.files,
        }


def resolve_contract(
    name_or_file: str,
    search: Sequence[Path],
    cache: Path,
    say: Callable[[str], None],
) -> Resolved:
    """Load and digest one contract and all it names.

    Raises:
        ContractError, DatasetError, CheckpointError: with the file, the key and the fix.
    """
    loaded = load_contract(name_or_file, search)
    contract, where = loaded.contract, str(loaded.path)
    dataset = load_dataset(contract.dataset.name, search, loaded.path)
    parsers = {arm: load_parser(a.parser, loaded.path.parent) for arm, a in contract.arms.items()}
    for records in _by_thousands(dataset, contract, where):
        for arm in contract.arms:
            render_arm(contract, where, arm, records)
    folder = resolve(contract.model, loaded.path.parent, cache, say)
    files = files_stat(folder)
    digests = _digests(folder, dataset, {arm: p.digest for arm, p in parsers.items()}, loaded)
    digest, named = to_text(execution_id(contract, digests)), flat(digests.as_text())
    return Resolved(loaded, dataset, folder, digest, named, files)


def same_content(base: Resolved, loaded: LoadedContract) -> Resolved:
    """Another contract over the files of ``base``: nothing is read or digested again."""
    found = id_of(execution_part(loaded.contract), unflat(base.digests))
    return replace(base, loaded=loaded, execution_id=to_text(found))


def _by_thousands(
    dataset: LoadedDataset, contract: Contract, where: str
) -> Iterator[list[Mapping[str, Any]]]:
    """All records, never all at once, their images checked."""
    every = (record for record, _ in dataset.stream())
    records = check_images(contract, where, dataset.file, every)
    while some := list(itertools.islice(records, 1000)):
        yield some


def _digests(
    folder: Path | None,
    dataset: LoadedDataset,
    parsers: Mapping[str, bytes],
    loaded: LoadedContract,
) -> Digests:
    if folder is None:
        none = sha256(b"")
        checkpoint = sha256(loaded.contract.model.checkpoint.encode())
        return Digests(checkpoint, none, dataset.digest, none, none, parsers)
    tensors = tensor_digests(folder)
    _check_injection(loaded, tensors)
    digests = Digests(
        checkpoint_digest(tensors),
        config_digest(folder),
        dataset.digest,
        tokenizer_digest(folder),
        chat_template_digest(folder),
        parsers,
        processor_digest(folder) if loaded.contract.model.kind == "vision" else None,
    )
    _check_demo(loaded, folder, digests)
    return digests


def _check_demo(loaded: LoadedContract, folder: Path, digests: Digests) -> None:
    """A cached demo checkpoint is still the one that was made."""
    kind, _, name = loaded.contract.model.checkpoint.partition(":")
    if kind == "demo":
        require_as_made(name, folder, flat(digests.as_text()))


def _check_injection(loaded: LoadedContract, tensors: Mapping[str, bytes]) -> None:
    """A control's module path must name a module of the checkpoint."""
    control = loaded.contract.control
    if control is None:
        return
    path = control.inject.partition(":")[2]
    modules = {name.rpartition(".")[0] for name in tensors}
    if path not in (BY_NONCE, *modules):
        near = sorted(m for m in modules if m.rpartition(".")[2] == path.rpartition(".")[2])
        raise ContractError(
            str(loaded.path),
            "control.inject",
            "the path of a linear module of the checkpoint",
            repr(path),
            f"for example {', '.join(near[:3] or sorted(modules)[:3])}",
        )
