"""Pinned weights are read once: other bytes, and files that were touched since, are VOID."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fleet.contract.canonical import to_text
from fleet.errors import AttemptVoid
from fleet.replay import pinned
from fleet.replay.checkpoint_tensors import checkpoint_digest, tensor_digests
from fleet.replay.task import ReplayTask

FILE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({"a": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}, tmp_path / FILE)
    return tmp_path


def task(folder: Path) -> ReplayTask:
    digests = {"checkpoint": to_text(checkpoint_digest(tensor_digests(folder)))}
    return ReplayTask(
        "a" * 16, "c", 0, "certify", "toy", "toy.toml", {}, "", digests, str(folder), "", (), (),
        str(folder), str(folder), "node",
    )  # fmt: skip


def test_the_digests_that_pin_the_checkpoint_are_handed_on(folder: Path) -> None:
    found = pinned.weights(task(folder), folder)
    assert found.digests == tensor_digests(folder)
    pinned.require_untouched(folder, found)


def test_other_bytes_than_the_pinned_ones_are_found_before_the_load(folder: Path) -> None:
    planned = task(folder)
    save_file({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)}, folder / FILE)
    with pytest.raises(AttemptVoid, match="pinned-content-changed: checkpoint tensors"):
        pinned.weights(planned, folder)


@pytest.mark.parametrize("how", ["written over", "replaced by a copy"])
def test_weight_files_that_were_touched_meanwhile_are_void_though_their_bytes_are_back(
    folder: Path, how: str
) -> None:
    found = pinned.weights(task(folder), folder)
    path, data = folder / FILE, (folder / FILE).read_bytes()
    if how == "written over":
        path.write_bytes(data)
    else:
        times = path.stat()
        (folder / "copy").write_bytes(data)
        os.utime(folder / "copy", ns=(times.st_atime_ns, times.st_mtime_ns))
        (folder / "copy").rename(path)
    with pytest.raises(AttemptVoid, match="touched while they were loaded"):
        pinned.require_untouched(folder, found)


def test_other_files_beside_the_weights_may_come_and_go(folder: Path) -> None:
    found = pinned.weights(task(folder), folder)
    (folder / "notes.txt").write_text("mine")
    pinned.require_untouched(folder, found)


def test_an_engine_without_a_checkpoint_has_no_weights_on_disk(folder: Path) -> None:
    found = pinned.weights(task(folder), None)
    assert found.digests == {}
    pinned.require_untouched(None, found)
