"""Which loaded tensor is which checkpoint tensor, and the digest of all of them.

Every loaded tensor bears a checkpoint tensor's bytes (or that tensor cast to the dtype it was
loaded in), or is a declared computed buffer, or is reported. Bytes are compared by exact digest.
Knows no engine and no verdict; what a kernel repacks for itself its engine declares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from fleet.contract.canonical import digest_json
from fleet.errors import AttemptVoid
from fleet.replay.checkpoint_tensors import weight_files
from fleet.replay.host_digest import host_digest
from fleet.replay.tensor_digests import digest_each

COMPUTED: dict[str, str] = {
    "rotary_emb.inv_freq": "rotary frequencies, computed from the configuration",
    "rotary_emb.original_inv_freq": "rotary frequencies, computed from the configuration",
    "rotary_pos_emb.inv_freq": "rotary frequencies of a vision tower, computed likewise",
    "rotary_pos_emb.original_inv_freq": "rotary frequencies of a vision tower, computed likewise",
    "rotary_emb.cos_cached": "rotary table, computed from the configuration",
    "rotary_emb.sin_cached": "rotary table, computed from the configuration",
    "embed_tokens.embed_scale": "a constant of the configuration",
    "position_ids": "0, 1, 2, ...",
    "attn.bias": "the causal mask of older checkpoints",
    "attn.masked_bias": "a constant of older checkpoints",
}
"""Buffers that a model computes instead of loading, by the end of their name, with the reason.
Older checkpoints carry some of them; nothing is loaded from those."""


@dataclass
class Mapped:
    """The outcome of :func:`map_to_checkpoint`; names are sorted."""

    computed: list[str] = field(default_factory=list)
    repacked: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name, non-persistent ones and tied names included."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    return {name: t.detach() for name, t in (*parameters, *buffers)}


def digests_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Name -> tensor digest. Tied names share one tensor, which is digested once."""
    places = {name: _place(tensor) for name, tensor in tensors.items()}
    distinct = {place: tensors[name] for name, place in places.items()}
    found = dict(zip(distinct, digest_each(list(distinct.values())), strict=True))
    return {name: found[place] for name, place in places.items()}


def digest_all(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """One digest over the sorted (name, tensor digest) pairs; 32 bytes."""
    return digest_json({name: value.hex() for name, value in digests_of(tensors).items()})


def map_to_checkpoint(
    model: nn.Module,
    folder: Path,
    on_disk: Mapping[str, bytes],
    reinitialised: Collection[str] = (),
    kernels: Mapping[str, str] | None = None,
) -> Mapped:
    """Compare what is loaded with what is on disk.

    Args:
        model: the loaded model, before anything is injected.
        folder: its checkpoint.
        on_disk: digests of the checkpoint's tensors by name, which pin it.
        reinitialised: names that the loader itself says it found no tensor for, or another shape.
        kernels: module path -> class of the modules that may repack their own tensors.

    Raises:
        AttemptVoid: the folder holds other tensors than those pinned.
    """
    loaded = tensors_of(model)
    found = digests_of(loaded)
    disk = _Disk(folder, on_disk)
    owners = _Owners(kernels or {})
    mapped = Mapped()
    left_over = sorted(n for n in loaded if n not in disk.digests or n in reinitialised)
    named = sorted(set(loaded) - set(left_over))
    differing = [n for n in named if disk.digest_as(n, loaded[n].dtype) != found[n]]
    # A class that leaves a kind of tensor as it is in one module does not repack it in another.
    as_on_disk = {owners.kind(n) for n in set(named) - set(differing)}
    for name in differing:
        repacked = owners.of(name) is not None and owners.kind(name) not in as_on_disk
        (mapped.repacked if repacked else mapped.altered).append(name)
    gaps = owners.gaps(disk.digests)
    unused = set(disk.digests) - set(loaded)
    for name in _drop_tied(left_over, loaded, disk.digests):
        if owners.of(name) is not None:
            if name not in gaps:  # the kernel's own: a workspace, a table it made
                mapped.repacked.append(name)
        elif name.endswith(tuple(COMPUTED)):
            mapped.computed.append(name)
        elif name not in reinitialised and (
            renamed := disk.same_bytes(unused, found[name], loaded[name].dtype)
        ):
            unused.discard(renamed)
        else:
            mapped.unmapped.append(name)
    mapped.unmapped.extend(gaps)
    for name in sorted(unused):
        if owners.of(name) is not None:  # taken over into another layout and dropped
            mapped.repacked.append(name)
        elif not name.endswith(tuple(COMPUTED)):
            mapped.missing.append(name)
    return mapped


class _Owners:
    """Which tensors belong to kernels that may repack them."""

    def __init__(self, kernels: Mapping[str, str]) -> None:
        self._kernels = kernels

    def of(self, name: str) -> str | None:
        """The path of the kernel module that this tensor lies in, at any depth."""
        path = name
        while "." in path:
            path = path.rpartition(".")[0]
            if path in self._kernels:
                return path
        return None

    def kind(self, name: str) -> tuple[str, str] | None:
        """(class, name inside the module), or None outside kernels."""
        path = self.of(name)
        return None if path is None else (self._kernels[path], name[len(path) + 1 :])

    def gaps(self, on_disk: Collection[str]) -> list[str]:
        """Names that a kernel module lacks on disk and others of its class have; bias is free."""
        kinds = {kind for name in on_disk if (kind := self.kind(name)) and kind[1] != "bias"}
        wanted = (
            f"{path}.{tensor}"
            for path, owner in self._kernels.items()
            for of_class, tensor in kinds
            if of_class == owner
        )
        return sorted(name for name in wanted if name not in on_disk)


def _drop_tied(
    names: list[str], loaded: Mapping[str, torch.Tensor], on_disk: Collection[str]
) -> list[str]:
    """Without the names that share their storage with a tensor that is on disk."""
    anchors = {_place(loaded[n]) for n in loaded if n in on_disk}
    return [n for n in names if _place(loaded[n]) not in anchors]


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


class _Disk:
    """The checkpoint's tensors: pinned digests, bytes only where a cast must be compared."""

    def __init__(self, folder: Path, digests: Mapping[str, bytes]) -> None:
        self.digests = digests
        self._files: dict[str, Path] = {}
        self._dtypes: dict[str, torch.dtype | None] = {}
        self._cast: dict[tuple[str, torch.dtype], bytes] = {}
        for path in weight_files(folder):
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (safe_open is no mapping)
                    self._files[name] = path
                    self._dtypes[name] = _DTYPES.get(opened.get_slice(name).get_dtype())
        if differing := sorted(self._files.keys() ^ digests.keys()):
            raise _changed(differing[0])

    def digest_as(self, name: str, dtype: torch.dtype) -> bytes:
        """The digest of a tensor on disk once it is cast to ``dtype``."""
        if self._dtypes[name] == dtype:
            return self.digests[name]
        if (name, dtype) not in self._cast:
            with safe_open(self._files[name], framework="pt") as opened:
                tensor = opened.get_tensor(name)
            if host_digest(tensor) != self.digests[name]:
                raise _changed(name)
            self._cast[name, dtype] = host_digest(tensor.to(dtype))
        return self._cast[name, dtype]

    def same_bytes(self, names: Iterable[str], wanted: bytes, dtype: torch.dtype) -> str | None:
        """An unused tensor with these bytes: a renamed one."""
        return next((n for n in sorted(names) if self.digest_as(n, dtype) == wanted), None)


def _changed(name: str) -> AttemptVoid:
    text = f"checkpoint tensor {name}: not the pinned one any more"
    return AttemptVoid("pinned-content-changed", text)


_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
