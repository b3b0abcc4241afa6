"""Tensors of a checkpoint folder, read from its safetensors files without loading them.

Only headers are parsed; the elements are digested straight from the mapped file, so no copy is
made and torch is not needed. One thread: a leaf takes a microsecond or two, and threads spend more
on handing the interpreter over at each than they gain. What the index promises and what the files
hold must agree exactly: a tensor that is missing, doubled or unlisted is an error, never a warning.

Format: https://github.com/huggingface/safetensors#format (8-byte header length, JSON, elements
without gaps).
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.contract.canonical import digest_json, to_text
from fleet.errors import CheckpointError
from fleet.evidence.digests import tensor_digest

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F4": ("float4_e2m1fn_x2", 4),
}
"""safetensors dtype -> (torch's name without ``torch.``, bits an element)."""

_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
_FETCH = "fetch the checkpoint again, all of it"


@dataclass(frozen=True)
class Entry:
    """One tensor of one file: torch's dtype name and shape; bytes [begin, end) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def tensor_digests(folder: Path) -> dict[str, bytes]:
    """Digest of every tensor of the checkpoint, by name.

    Raises:
        CheckpointError: no safetensors, a shard missing, a tensor missing or doubled, a header
            that is corrupt.
    """
    digests: dict[str, bytes] = {}
    for path, promised in weight_files(folder).items():
        with _mapped(path) as view:
            entries = _entries(path, view)
            _require_promised(path, {entry.name for entry in entries}, promised)
            digests |= {entry.name: _digest(entry, view) for entry in entries}
    return digests


def num_tensors(folder: Path) -> int:
    """How many tensors the checkpoint has, from its headers alone.

    Raises:
        CheckpointError: see :func:`tensor_digests`.
    """
    count = 0
    for path, promised in weight_files(folder).items():
        if promised is None:
            with _mapped(path) as view:
                count += len(_entries(path, view))
        else:
            count += len(promised)
    return count


def checkpoint_digest(digests: Mapping[str, bytes]) -> bytes:
    """The identity of the weights: SHA-256 of canonical JSON {tensor name: digest}; 32 bytes."""
    return digest_json({name: to_text(digest) for name, digest in digests.items()})


def weight_files(folder: Path) -> dict[Path, frozenset[str] | None]:
    """The files that hold the weights, with the tensors the index promises (None: no index)."""
    index, found = folder / INDEX, sorted(folder.glob("*.safetensors"))
    if index.is_file():
        if (folder / SINGLE).is_file():
            raise _error(folder, SINGLE, f"{SINGLE} or {INDEX}", "both", "remove one of them")
        return _indexed(index)
    if not found:
        raise _no_weights(folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise _error(folder, INDEX, "an index beside several safetensors files", names, _FETCH)
    return {found[0]: None}


def _no_weights(folder: Path) -> CheckpointError:
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
    got = f"pickled weights are refused ({', '.join(pickled)})" if pickled else "none"
    return _error(folder, "", "*.safetensors", got, "convert or fetch the weights as safetensors")


def _indexed(index: Path) -> dict[Path, frozenset[str] | None]:
    weight_map = _weight_map(index)
    shards: dict[Path, frozenset[str] | None] = {}
    for shard in sorted(set(weight_map.values())):
        path = index.parent / shard
        if path.name != shard or not path.is_file():
            raise _error(index, "weight_map", f"the shard {shard}", "no such file", _FETCH)
        shards[path] = frozenset(name for name, file in weight_map.items() if file == shard)
    return shards


def _weight_map(index: Path) -> dict[str, str]:
    try:
        content = json.loads(index.read_bytes(), object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise _error(index, "", "JSON without doubled keys", str(error), _FETCH) from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _error(index, "weight_map", "a table of tensor names", repr(weight_map), _FETCH)
    if not all(isinstance(file, str) for file in weight_map.values()):
        raise _error(index, "weight_map", "file names", "another type", _FETCH)
    return weight_map


def _require_promised(path: Path, held: set[str], promised: frozenset[str] | None) -> None:
    if promised is None or held == promised:
        return
    if missing := sorted(promised - held):
        got = f"{missing[0]} missing ({len(missing)} in all)"
    else:
        extra = sorted(held - promised)
        got = f"{extra[0]}, doubled or unlisted ({len(extra)} in all)"
    raise _error(path, "", f"exactly the tensors that {INDEX} names", got, _FETCH)


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    if path.stat().st_size == 0:
        raise _corrupt(path, "an empty file")
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view


def _entries(path: Path, view: memoryview) -> list[Entry]:
    """All tensors of one file, in the order of their bytes, without a gap or a remainder."""
    header, start = _header(path, view)
    entries = [
        _entry(path, name, value, start) for name, value in header.items() if name != "__metadata__"
    ]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    position = start
    for entry in entries:
        if entry.begin != position:
            raise _corrupt(path, f"{entry.name} begins at {entry.begin}, not at {position}")
        position = entry.end
    if position != len(view):
        raise _corrupt(path, f"{len(view)} bytes where the header describes {position}")
    return entries


def _header(path: Path, view: memoryview) -> tuple[dict[str, Any], int]:
    """The header and where the elements start."""
    size = int.from_bytes(view[:8], "little")
    if len(view) < 8 or size > min(len(view) - 8, _MAX_HEADER_BYTES):
        raise _corrupt(path, "a header longer than the file")
    try:
        header = json.loads(bytes(view[8 : 8 + size]), object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"a header that is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _corrupt(path, "a header that is no table")
    return header, 8 + size


def _entry(path: Path, name: str, value: Any, start: int) -> Entry:
    match value:
        case {"dtype": str(kind), "shape": [*sizes], "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise _corrupt(path, f"{name} without dtype, shape and data_offsets")
    if kind not in DTYPES:
        raise _corrupt(path, f"{name} of the unknown dtype {kind}")
    dtype, bits = DTYPES[kind]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise _corrupt(path, f"{name} of shape {sizes}")
    if not 0 <= begin <= end or math.prod(sizes) * bits != (end - begin) * 8:
        raise _corrupt(path, f"{name} of {end - begin} bytes for {kind} {sizes}")
    return Entry(name, dtype, _torch_shape(sizes, bits), start + begin, start + end)


def _torch_shape(sizes: list[int], bits: int) -> tuple[int, ...]:
    """torch holds two 4-bit elements in one: its last size is half the file's."""
    if bits >= 8 or not sizes:
        return tuple(sizes)
    return (*sizes[:-1], sizes[-1] * bits // 8)


def _digest(entry: Entry, view: memoryview) -> bytes:
    with view[entry.begin : entry.end] as elements:
        return tensor_digest(entry.dtype, entry.shape, elements)


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        doubled = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"{doubled} is there twice")
    return table


def _corrupt(path: Path, got: str) -> CheckpointError:
    return _error(path, "", "a complete safetensors file", got, _FETCH)


def _error(where: Path, key: str, expected: str, got: str, fix: str) -> CheckpointError:
    return CheckpointError(str(where), key, expected, got, fix)
