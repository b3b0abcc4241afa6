"""Read pinned content again inside the worker, and hold it against the digests of the task.

A worker that finds other content than the execution id names is VOID before it loads anything; it
is never compared with one that found the right content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.contract.canonical import from_text, sha256, to_text
from fleet.contract.dataset import parse_records
from fleet.contract.execution_id import PARSER, Digests, execution_id
from fleet.contract.images import in_parquet
from fleet.contract.model import Contract
from fleet.contract.parquet import parquet_lines
from fleet.contract.parsers import Parser, load_parser
from fleet.errors import AttemptVoid
from fleet.evidence.landing import file_sha256
from fleet.replay.checkpoint import (
    chat_template_digest,
    checkpoint_digest,
    config_digest,
    processor_digest,
    tensor_digests,
    tokenizer_digest,
    weights_stat,
)
from fleet.replay.task import ReplayTask


@dataclass(frozen=True)
class Samples:
    """The planned samples in dataset order: parsed records, and each one's raw line by id."""

    records: tuple[dict[str, Any], ...]
    raw: dict[str, bytes]


@dataclass(frozen=True)
class Weights:
    """The checkpoint's tensors on disk, read before any is loaded: digests by name, and what the
    files' sizes, times and inodes were before that."""

    digests: Mapping[str, bytes]
    files: str


def _changed(what: str, expected: str, got: str) -> AttemptVoid:
    return AttemptVoid("pinned-content-changed", f"{what}: pinned {expected}, found {got}")


def execution(task: ReplayTask, contract: Contract) -> None:
    """The contract and digests of the task are those that its execution id stands for.

    Raises:
        AttemptVoid: they are not.
    """
    parsers = {arm: from_text(task.digests[f"{PARSER}{arm}"]) for arm in contract.arms}
    names = ["checkpoint", "config", "dataset", "tokenizer", "chat_template"]
    if contract.model.kind == "vision":
        names.append("processor")
    digests = Digests(**{name: from_text(task.digests[name]) for name in names}, parsers=parsers)
    got = to_text(execution_id(contract, digests))
    if got != task.execution_id:
        raise _changed("execution id", task.execution_id, got)


def samples(task: ReplayTask) -> Samples:
    """The dataset's planned samples.

    Raises:
        AttemptVoid: the file is not the pinned one.
    """
    data = _lines(task)
    records, raw = parse_records(data, task.dataset_file)
    by_id = {str(r["id"]): (dict(r), line) for r, line in zip(records, raw, strict=True)}
    chosen = [by_id[sample] for sample in task.sample_ids]
    return Samples(tuple(r for r, _ in chosen), {str(r["id"]): line for r, line in chosen})


def _lines(task: ReplayTask) -> bytes:
    """The records as JSON Lines; a Parquet's images stay in it, each named by its digest."""
    file = Path(task.dataset_file)
    data = None if in_parquet(file) else file.read_bytes()
    got = file_sha256(file) if data is None else to_text(sha256(data))
    if got != task.digests["dataset"]:
        raise _changed("dataset", task.digests["dataset"], got)
    return b"\n".join(parquet_lines(file)) if data is None else data


def parsers(task: ReplayTask, contract: Contract) -> dict[str, Parser]:
    """Each arm's parser, from the one file that holds it."""
    found = {}
    for arm in task.arms:
        parser = load_parser(contract.arms[arm].parser, Path(task.contract_file).parent)
        if (got := to_text(parser.digest)) != task.digests[f"{PARSER}{arm}"]:
            raise _changed(f"parser of arm {arm}", task.digests[f"{PARSER}{arm}"], got)
        found[arm] = parser
    return found


def folder_of(task: ReplayTask) -> Path | None:
    """The checkpoint folder, once its configuration, tokenizer and template are the pinned ones."""
    if task.checkpoint is None:
        return None
    folder = Path(task.checkpoint)
    for what, digest in (
        ("config", config_digest(folder)),
        ("tokenizer", tokenizer_digest(folder)),
        ("chat_template", chat_template_digest(folder)),
        *([("processor", processor_digest(folder))] if "processor" in task.digests else []),
    ):
        if to_text(digest) != task.digests[what]:
            raise _changed(what, task.digests[what], to_text(digest))
    return folder


def weights(task: ReplayTask, folder: Path | None) -> Weights:
    """Read every tensor from disk again: another shard is found before any weight is loaded.

    Raises:
        AttemptVoid: they are not the pinned ones.
    """
    if folder is None:
        return Weights({}, "")
    files = weights_stat(folder)
    digests = tensor_digests(folder)
    if (got := to_text(checkpoint_digest(digests))) != task.digests["checkpoint"]:
        raise _changed("checkpoint tensors", task.digests["checkpoint"], got)
    return Weights(digests, files)


def require_untouched(folder: Path | None, weights: Weights) -> None:
    """Nobody wrote to the weight files from before their digest until after the load, so that
    what a kernel repacked for itself, and no digest can be compared with, came from them too.

    Raises:
        AttemptVoid: somebody did.
    """
    if folder is not None and (got := weights_stat(folder)) != weights.files:
        raise _changed("weight files, touched while they were loaded", weights.files, got)
