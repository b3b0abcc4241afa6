"""Digests of what goes into and comes out of a module call: exact, and each content hashed once.

A tree of arguments becomes tokens (structure, typed scalars, tensor digests) and one SHA-256 over
them. A tensor is compared byte by byte with what was last hashed at its place in memory, and hashed
again when it is not the same: comparing is several times as fast as hashing, and as exact. Keeps
copies, never references. Knows no module and no verdict.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from fleet.contract.canonical import sha256
from fleet.evidence.digests import merkle_root, tensor_header
from fleet.replay.trace.late import Digest, Slot, Token, sealed

KEPT_BYTES = 512 << 20
"""Copies held for comparison, the oldest dropped first."""

MAX_DEPTH = 6
"""How deep objects that are no collection are looked into."""

_PACKED_INTEGERS = frozenset(
    kind
    for name, kind in vars(torch).items()
    if re.fullmatch(r"u?int[1-7]", name) and isinstance(kind, torch.dtype)
)

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class OnDevice(Protocol):
    """Whatever digests a device's tensors where they are; the same 32 bytes as the host's."""

    def enqueue(self, tensors: Sequence[torch.Tensor]) -> Sequence[int]:
        """Digest these as they are at this point of the stream; returns at once."""

    def collect(self) -> list[bytes]:
        """Wait; the digests of all that was enqueued since the last call, in that order."""

    def digest(self, tensor: torch.Tensor) -> bytes:
        """One tensor, and wait for it; leaves what was enqueued to be collected."""


class TensorDigests:
    """Tensor digests with a memory of what was hashed where. One per traced process.

    Args:
        on_device: digests what lies on a CUDA device; None to bring it to the host. Its digests
            are there after :meth:`settle`; all tensors of one hook go to it in one :meth:`launch`,
            which must come before the hook returns, for nothing is kept by reference.
    """

    def __init__(self, on_device: OnDevice | None = None) -> None:
        self._on_device = on_device
        self._tensors: list[torch.Tensor] = []
        self._slots: list[Slot] = []
        self._launched: list[Slot] = []
        self._kept: OrderedDict[tuple[Any, ...], tuple[torch.Tensor, bytes]] = OrderedDict()
        self._kept_bytes = 0

    def launch(self) -> None:
        """Let the device digest what the hook has looked at."""
        if self._on_device is not None and self._tensors:
            self._on_device.enqueue(self._tensors)
            self._launched += self._slots
            self._tensors, self._slots = [], []

    def settle(self) -> None:
        """Ask the device for everything that was launched, and wait."""
        self.launch()
        if self._on_device is not None and self._launched:
            for slot, digest in zip(self._launched, self._on_device.collect(), strict=True):
                slot.digest = digest
            self._launched = []

    def of(self, tensor: torch.Tensor) -> Token:
        """The tensor digest (dtype, shape, bytes; strides excluded); 32 bytes, or their place."""
        if self._on_device is not None and tensor.is_cuda:
            self._tensors.append(tensor)
            self._slots.append(Slot())
            return self._slots[-1]
        flat = _flat(tensor)
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = self._kept.get(key)
        if known is not None and _same_bytes(known[0], flat):
            return known[1]
        copy, digest = self._hash(tensor, flat)
        self._keep(key, copy, digest)
        return digest

    def once(self, tensor: torch.Tensor) -> bytes:
        """The same digest, without a copy kept: for weights, which are hashed twice in all."""
        if self._on_device is not None and tensor.is_cuda:
            return self._on_device.digest(tensor)
        return _digest(tensor, _flat(tensor))

    def _hash(self, tensor: torch.Tensor, flat: torch.Tensor) -> tuple[torch.Tensor, bytes]:
        copy = flat.clone(memory_format=torch.contiguous_format)
        return copy, _digest(tensor, copy)

    def _keep(self, key: tuple[Any, ...], copy: torch.Tensor, digest: bytes) -> None:
        old = self._kept.pop(key, None)
        self._kept_bytes += copy.nbytes - (old[0].nbytes if old else 0)
        self._kept[key] = (copy, digest)
        while self._kept_bytes > KEPT_BYTES:
            _, (dropped, _) = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.nbytes


def _digest(tensor: torch.Tensor, flat: torch.Tensor) -> bytes:
    """``flat`` are the values of ``tensor`` in order. One thread: leaves of 2048 bytes are so short
    that two threads spend more on handing the interpreter over than they gain."""
    if flat.stride() != (1,):  # a lone element may keep an odd stride, which ``view`` refuses
        flat = flat.clone(memory_format=torch.contiguous_format)
    data = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    name = str(tensor.dtype).removeprefix("torch.")
    return sha256(tensor_header(name, tensor.shape, len(data)) + merkle_root(data))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its values in order on the CPU. A lazy conjugate or negation has the address of its base and
    other values."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    return plain.contiguous().reshape(-1)


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Two contiguous CPU tensors of one shape and dtype."""
    return bool(_memcmp(a.data_ptr(), b.data_ptr(), a.nbytes) == 0)


@dataclass
class Seen:
    """What a walk found: tokens in a fixed order, how much of it is content, what is not hashed."""

    tokens: list[Token] = field(default_factory=list)
    hashable: int = 0
    unhashed: list[str] = field(default_factory=list)
    caches: list[Any] = field(default_factory=list)
    first: torch.Tensor | None = None

    def digest(self) -> Digest | None:
        """SHA-256 over the tokens; None when nothing hashable was found."""
        return sealed(self.tokens) if self.hashable else None


def walk(tree: Any, digests: TensorDigests, keep_caches: bool = True) -> Seen:
    """Everything in ``tree``. Caches are set aside in ``caches`` unless ``keep_caches`` is off."""
    seen = Seen()
    _walk(tree, digests, seen, keep_caches, 0, set())
    return seen


def is_cache(value: Any) -> bool:
    """A key-value cache, by type: transformers' own, and what calls itself one."""
    return _is_called(value, "Cache")


def _is_called(value: Any, word: str) -> bool:
    # mypy takes the hash of an instance for that of its class.
    return _ends_in(type(value), word)  # type: ignore[arg-type]


@functools.cache
def _ends_in(kind: type, word: str) -> bool:
    return any(each.__name__.endswith(word) for each in kind.__mro__)


def _walk(
    value: Any, digests: TensorDigests, seen: Seen, keep: bool, depth: int, above: set[int]
) -> None:
    if isinstance(value, torch.Tensor) and not _has_bytes(value):
        seen.tokens.append(b"tensor without bytes of its own")
        seen.unhashed.append(f"{value.dtype} {value.layout} tensor on {value.device.type}")
    elif isinstance(value, torch.Tensor):
        seen.tokens += [b"tensor", digests.of(value)]
        seen.hashable += 1
        if seen.first is None:
            seen.first = value
    elif value is None:
        seen.tokens.append(b"none")
    elif isinstance(value, _SCALARS):
        seen.tokens += [type(value).__name__.encode(), repr(value).encode()]
        seen.hashable += 1
    elif is_cache(value) and keep:
        seen.tokens.append(b"cache")
        seen.caches.append(value)
    elif id(value) in above:
        seen.tokens.append(b"itself")
    elif isinstance(value, Mapping):
        above = above | {id(value)}
        seen.tokens.append(b"mapping %d" % len(value))
        for key, item in value.items():
            seen.tokens.append(repr(key).encode())
            _walk(item, digests, seen, keep, depth, above)
    elif isinstance(value, Sequence | deque | set | frozenset):
        above = above | {id(value)}
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        seen.tokens.append(b"sequence %d" % len(items))
        for item in items:
            _walk(item, digests, seen, keep, depth, above)
    else:
        _walk_object(value, digests, seen, keep, depth, above)


_SCALARS = (
    bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size,
)  # fmt: skip


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Bytes that can be read: torch has names for packed integers of 1 to 7 bits and no copy."""
    dense = tensor.layout is torch.strided and tensor.device.type != "meta"
    return dense and not tensor.is_quantized and tensor.dtype not in _PACKED_INTEGERS


def _walk_object(
    value: Any, digests: TensorDigests, seen: Seen, keep: bool, depth: int, above: set[int]
) -> None:
    """An object: the tensors in its attributes, and a cache's counts too. Its other attributes may
    hold a time or an address, which differ without moving a bit, so they are left out."""
    seen.tokens.append(b"object " + type(value).__name__.encode())
    attributes = getattr(value, "__dict__", None)
    if isinstance(value, nn.Module) or not attributes or depth >= MAX_DEPTH:
        seen.unhashed.append(type(value).__name__)
        return
    before = seen.hashable
    for name in sorted(attributes):
        item = attributes[name]
        if holds_content(item, cache=not keep):
            seen.tokens.append(name.encode())
            _walk(item, digests, seen, keep, depth + 1, above | {id(value)})
    if seen.hashable == before:
        seen.unhashed.append(type(value).__name__)


def holds_content(item: Any, cache: bool = False) -> bool:
    """Is this attribute worth looking into? ``cache``: its numbers say how full it is."""
    if isinstance(item, torch.Tensor):
        return True
    if cache and isinstance(item, bool | int | str):
        return True
    if isinstance(item, list | tuple | deque):
        return any(holds_content(x, cache) for x in item)
    if isinstance(item, dict):
        return any(holds_content(x, cache) for x in item.values())
    if item is None or isinstance(item, str | bytes | int | float) or callable(item):
        return False  # modules and classes are callable
    # A configuration has many attributes, no tensor, and is kept by nearly every module.
    return not _is_called(item, "Config") and any(
        _has_tensor(x) for x in getattr(item, "__dict__", {}).values()
    )


def _has_tensor(item: Any) -> bool:
    """A tensor, or a collection with one in it."""
    if isinstance(item, list | tuple | deque):
        return any(isinstance(x, torch.Tensor) for x in item)
    if isinstance(item, dict):
        return any(isinstance(x, torch.Tensor) for x in item.values())
    return isinstance(item, torch.Tensor)


def cache_digest(
    caches: Sequence[Any], layers: Sequence[int] | None, digests: TensorDigests
) -> Digest | None:
    """One digest over caches: of some layers, or whole when ``layers`` is None or it has none."""
    if not caches:
        return None
    seen = Seen()
    for cache in caches:
        parts = getattr(cache, "layers", None)
        chosen: list[Any] = [cache]
        if layers is not None and isinstance(parts, list):
            chosen = [parts[i] if i < len(parts) else None for i in layers]
        for part in chosen:
            _walk(part, digests, seen, False, 0, set())
    return sealed(seen.tokens)
