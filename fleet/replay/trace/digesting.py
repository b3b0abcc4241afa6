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
from types import NoneType
from typing import Any, Literal

import torch
from torch import nn

from fleet.replay.host_digest import host_digest
from fleet.replay.tensor_digests import Kernels
from fleet.replay.trace.late import Part, Sealed, Slot, Token

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


class TensorDigests:
    """Tensor digests with a memory of what was hashed where. One per traced process.

    Args:
        on_device: digests what lies on a CUDA device; None to bring it to the host. Its digests
            are there after :meth:`settle`; all tensors of one hook go to it in one :meth:`launch`,
            which must come before the hook returns, for nothing is kept by reference.
    """

    def __init__(self, on_device: Kernels | None = None) -> None:
        self._on_device = on_device
        self._tensors: list[torch.Tensor] = []
        self._slots: list[Slot] = []
        self._launched: list[Slot] = []
        self._kept: OrderedDict[tuple[Any, ...], tuple[torch.Tensor, bytes]] = OrderedDict()
        self._kept_bytes = 0

    @property
    def late(self) -> bool:
        """May a digest come later than it is asked for?"""
        return self._on_device is not None

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
            slot = Slot()
            self._tensors.append(tensor)
            self._slots.append(slot)
            return slot
        flat = _flat(tensor)
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = self._kept.get(key)
        if known is not None and _same_bytes(known[0], flat):
            return known[1]
        copy = flat.clone(memory_format=torch.contiguous_format)
        made = host_digest(copy.view(tensor.shape))
        self._keep(key, copy, made)
        return made

    def once(self, tensor: torch.Tensor) -> bytes:
        """The same digest, without a copy kept: for weights, which are hashed twice in all."""
        if self._on_device is not None and tensor.is_cuda:
            return self._on_device.digest(tensor)
        return host_digest(tensor)

    def _keep(self, key: tuple[Any, ...], copy: torch.Tensor, made: bytes) -> None:
        old = self._kept.pop(key, None)
        self._kept_bytes += copy.nbytes - (old[0].nbytes if old else 0)
        self._kept[key] = (copy, made)
        while self._kept_bytes > KEPT_BYTES:
            _, (dropped, _) = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.nbytes


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


_Sort = Literal["tensor", "none", "scalar", "cache", "mapping", "set", "sequence", "object"]
_SCALARS = (
    bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size,
)  # fmt: skip


class _Sorts(dict[type, _Sort]):
    """How values of a type are walked, worked out once: a walk runs at every hook.

    Args:
        keep: caches are set aside, not walked.
    """

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self._keep = keep

    def __missing__(self, kind: type) -> _Sort:
        found = self[kind] = self._of(kind)
        return found

    def _of(self, kind: type) -> _Sort:
        if issubclass(kind, torch.Tensor):
            return "tensor"
        if kind is NoneType:
            return "none"
        if issubclass(kind, _SCALARS):
            return "scalar"
        if self._keep and _ends_in(kind, "Cache"):  # type: ignore[arg-type]  # as in _is_called
            return "cache"
        if issubclass(kind, Mapping):
            return "mapping"
        if issubclass(kind, set | frozenset):
            return "set"
        return "sequence" if issubclass(kind, Sequence | deque) else "object"


_SORTS = {keep: _Sorts(keep) for keep in (False, True)}


class Seen:
    """What a walk found: tokens in a fixed order, how much of it is content, what is not hashed.

    Args:
        digests: what hashes the tensors.
        keep_caches: caches are set aside in ``caches``.
    """

    __slots__ = (
        "_above", "_depth", "_digests", "_keep", "_sorts",
        "caches", "first", "hashable", "tokens", "unhashed",
    )  # fmt: skip

    def __init__(self, digests: TensorDigests, keep_caches: bool = True) -> None:
        self._digests, self._keep = digests, keep_caches
        self._sorts = _SORTS[keep_caches]
        self._depth = 0
        self._above: set[int] = set()  # the objects and collections that we are in
        self.tokens: list[Token] = []
        self.hashable = 0
        self.unhashed: list[str] = []
        self.caches: list[Any] = []
        self.first: torch.Tensor | None = None

    def digest(self) -> Part:
        """Over the tokens; None when nothing hashable was found."""
        return Sealed(self.tokens) if self.hashable else None

    def take(self, value: Any) -> None:
        """Walk one more value."""
        kind = self._sorts[type(value)]
        if kind == "tensor":
            self._take_tensor(value)
        elif kind == "none":
            self.tokens.append(b"none")
        elif kind == "scalar":
            self.tokens += (type(value).__name__.encode(), repr(value).encode())
            self.hashable += 1
        elif kind == "cache":
            self.tokens.append(b"cache")
            self.caches.append(value)
        elif id(value) in self._above:
            self.tokens.append(b"itself")
        else:
            self._above.add(id(value))
            if kind == "object":
                self._take_object(value)
            elif kind == "mapping":
                self.tokens.append(b"mapping %d" % len(value))
                for key, item in value.items():
                    self.tokens.append(repr(key).encode())
                    self.take(item)
            else:
                self.tokens.append(b"sequence %d" % len(value))
                for item in sorted(value, key=repr) if kind == "set" else value:
                    self.take(item)
            self._above.discard(id(value))

    def _take_tensor(self, tensor: torch.Tensor) -> None:
        if not _has_bytes(tensor):
            self.tokens.append(b"tensor without bytes of its own")
            self.unhashed.append(f"{tensor.dtype} {tensor.layout} tensor on {tensor.device.type}")
            return
        self.tokens += (b"tensor", self._digests.of(tensor))
        self.hashable += 1
        if self.first is None:
            self.first = tensor

    def _take_object(self, value: Any) -> None:
        """The tensors in its attributes, and a cache's counts too. Its other attributes may hold a
        time or an address, which differ without moving a bit, so they are left out."""
        self.tokens.append(b"object " + type(value).__name__.encode())
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, nn.Module) or not attributes or self._depth >= MAX_DEPTH:
            self.unhashed.append(type(value).__name__)
            return
        before = self.hashable
        self._depth += 1
        for name in sorted(attributes):
            item = attributes[name]
            if holds_content(item, cache=not self._keep):
                self.tokens.append(name.encode())
                self.take(item)
        self._depth -= 1
        if self.hashable == before:
            self.unhashed.append(type(value).__name__)


def walk(tree: Any, digests: TensorDigests, keep_caches: bool = True) -> Seen:
    """Everything in ``tree``. Caches are set aside in ``caches`` unless ``keep_caches`` is off."""
    seen = Seen(digests, keep_caches)
    seen.take(tree)
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


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Bytes that can be read: torch has names for packed integers of 1 to 7 bits and no copy."""
    dense = tensor.layout is torch.strided and not tensor.is_meta
    return dense and not tensor.is_quantized and tensor.dtype not in _PACKED_INTEGERS


def holds_content(item: Any, cache: bool = False) -> bool:
    """Is this attribute worth looking into? ``cache``: its numbers say how full it is."""
    kind = type(item)
    if kind is NoneType or kind is float:
        return False
    sort = _SORTS[False][kind]
    if sort == "tensor":
        return True
    if sort == "scalar" and not issubclass(kind, torch.Size):
        return cache and issubclass(kind, bool | int | str)
    if issubclass(kind, list | tuple | deque):
        return any(holds_content(x, cache) for x in item)
    if issubclass(kind, dict):
        return any(holds_content(x, cache) for x in item.values())
    # Modules and classes are callable. A configuration has many attributes, no tensor, and is kept
    # by nearly every module.
    if callable(item) or _is_called(item, "Config"):
        return False
    return any(_has_tensor(x) for x in getattr(item, "__dict__", {}).values())


def _has_tensor(item: Any) -> bool:
    """A tensor, or a collection with one in it."""
    if isinstance(item, list | tuple | deque):
        return any(isinstance(x, torch.Tensor) for x in item)
    if isinstance(item, dict):
        return any(isinstance(x, torch.Tensor) for x in item.values())
    return isinstance(item, torch.Tensor)


def cache_digest(
    caches: Sequence[Any], layers: Sequence[int] | None, digests: TensorDigests
) -> Part:
    """One digest over caches: of some layers, or whole when ``layers`` is None or it has none."""
    if not caches:
        return None
    seen = Seen(digests, keep_caches=False)
    for cache in caches:
        parts = getattr(cache, "layers", None)
        chosen: list[Any] = [cache]
        if layers is not None and isinstance(parts, list):
            chosen = [parts[i] if i < len(parts) else None for i in layers]
        for part in chosen:
            seen.take(part)
    return Sealed(seen.tokens)
