"""The tracer's tensor digests: the product's own for every dtype and layout, and never stale."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
import torch

from fleet.replay.host_digest import host_digest
from fleet.replay.trace.digesting import (
    TensorDigests,
    cache_digest,
    is_cache,
    walk,
)

PACKED = {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
QUANTISED = {"qint8", "quint8", "qint32", "quint4x2", "quint2x4"}
DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in vars(torch).values()
    if isinstance(kind, torch.dtype)
}
DENSE = sorted(set(DTYPES) - PACKED - QUANTISED)


def of(tensor: torch.Tensor) -> bytes:
    return TensorDigests().of(tensor)


def filled(kind: torch.dtype, count: int) -> torch.Tensor:
    """So many elements of other bytes each, whatever the type makes of them."""
    data = (torch.arange(count * kind.itemsize) * 7 + 1) % 251
    data = data % 2 if kind is torch.bool else data
    return data.to(torch.uint8).view(kind)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DENSE)
def test_every_dtype_of_torch_has_the_tensor_digest(name: str) -> None:
    tensor = filled(DTYPES[name], 24)
    assert of(tensor) == host_digest(tensor) == TensorDigests().once(tensor)
    assert of(tensor.reshape(2, 12)) == host_digest(tensor.reshape(2, 12)) != of(tensor)
    assert of(tensor[5]) == host_digest(tensor[5])
    assert of(tensor[:0]) == host_digest(tensor[:0])


def test_every_dtype_is_either_dense_or_told_as_unhashed() -> None:
    assert set(DENSE) >= {"bool", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "complex64"}
    for name in sorted(PACKED & set(DTYPES)):
        seen = walk(torch.empty(3, dtype=DTYPES[name]), TensorDigests())
        assert seen.hashable == 0 and len(seen.unhashed) == 1 and name in seen.unhashed[0]


X = torch.arange(120, dtype=torch.float32)

LAYOUTS = {
    "transposed": X.view(10, 12).t(),
    "every other": X[::2],
    "offset": X[7:31],
    "expanded": X[:4].expand(5, 4),
    "expanded scalar": torch.tensor(3.0).expand(2, 3),
    "channels last": X.view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "odd stride of a size-1 dimension": X.as_strided((1, 6), (97, 1)),
    "odd stride of a last size-1 dimension": X.as_strided((6, 1), (1, 77)),
    "overlapping": X.as_strided((5, 4), (2, 1)),
    "empty with strides": X.view(10, 12)[:, 3:3],
    "scalar": X[3],
    "conjugate": torch.view_as_complex(X.view(-1, 2)).conj(),
    "lazily negated": torch.view_as_complex(X.view(-1, 2)).conj().imag,
    "parameter": torch.nn.Parameter(X.view(10, 12)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_digest_of_its_values(name: str) -> None:
    tensor = LAYOUTS[name]
    plain = tensor.detach().resolve_conj().resolve_neg()
    copied = plain.clone(memory_format=torch.contiguous_format)
    assert of(tensor) == host_digest(copied) == of(copied) == TensorDigests().once(tensor)


CHANGES = {
    "one element": lambda x: x[3].add_(1),
    "the last bit": lambda x: x.view(torch.int32)[-1].bitwise_xor_(1),
    "a sign of zero": lambda x: x[0].neg_(),
    "two elements exchanged": lambda x: x.copy_(x[[1, 0, *range(2, 120)]]),
    "all": lambda x: x.fill_(7),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_memory_is_never_stale(change: str) -> None:
    digests, tensor = TensorDigests(), X.clone()
    before = digests.of(tensor)
    assert digests.of(tensor) == before
    CHANGES[change](tensor)
    assert digests.of(tensor) == host_digest(tensor) != before


def test_the_memory_tells_views_of_one_address_apart() -> None:
    digests = TensorDigests()
    z = torch.view_as_complex(X.view(-1, 2).clone())
    square = X[:100].view(10, 10)
    views = [z, z.conj(), z.imag, z.conj().imag, square, square.t(), square.view(torch.int32),
             square.view(100), square[:, :5], square[:5]]  # fmt: skip
    for view in views * 2:
        plain = view.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        assert digests.of(view) == host_digest(plain)


def test_an_address_that_is_used_again_is_hashed_again() -> None:
    digests = TensorDigests()
    for value in range(50):
        tensor = torch.full((64,), float(value))
        assert digests.of(tensor) == host_digest(tensor)
        del tensor


def test_the_memory_drops_the_oldest_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.replay.trace.digesting.KEPT_BYTES", 1000)
    digests, tensors = TensorDigests(), [X + i for i in range(9)]
    for tensor in tensors * 2:
        assert digests.of(tensor) == host_digest(tensor)
    assert len(digests._kept) <= 2


def told(value: Any) -> tuple[bytes | None, int]:
    seen = walk(value, TensorDigests())
    return seen.digest(), len(seen.unhashed)


class Opaque:
    """Nothing to look into."""

    __slots__ = ()


class Holds:
    """An object with a tensor and an address."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.where = tensor, object()


def test_a_walk_tells_structures_and_types_apart() -> None:
    values: list[Any] = [
        X, (X,), [[X]], {"a": X}, {"b": X}, (X, None), (None, X), (X, 1), (X, 1.0), (X, True),
        (X, "1"), (X, b"1"), (X, torch.float32), (X, torch.Size([1])), OrderedDict(a=X, b=X),
        Holds(X), Holds(X + 1),
    ]  # fmt: skip
    digests = [told(value)[0] for value in values]
    assert len(set(digests)) == len(values) and None not in digests


def test_a_walk_gives_equal_content_one_digest() -> None:
    assert told(Holds(X)) == told(Holds(X.clone()))
    assert told({3, 1, 2}) == told({1, 2, 3})
    assert told(deque([X])) == told([X])


def test_nothing_hashable_is_no_digest() -> None:
    assert told(()) == (None, 0)
    assert told((None, {"a": None})) == (None, 0)
    assert told(Opaque()) == (None, 1)
    assert told((X, Opaque()))[1] == 1
    with torch.sparse.check_sparse_tensor_invariants():  # torch 2.11 warns if left undecided
        sparse = torch.sparse_coo_tensor([[0]], torch.ones(1), (2,))
    assert told(sparse) == (None, 1)
    assert told(torch.empty(3, device="meta")) == (None, 1)


def test_a_list_that_holds_itself_ends() -> None:
    loop: list[Any] = [X]
    loop.append(loop)
    assert told(loop)[0] is not None


class OddCache:
    """A cache that transformers does not know."""

    def __init__(self, *layers: torch.Tensor) -> None:
        self.layers = list(layers)


def test_a_cache_is_set_aside_and_told_by_layer() -> None:
    digests, cache = TensorDigests(), OddCache(X, X + 1)
    seen = walk((X, cache), digests)
    assert is_cache(cache) and seen.caches == [cache] and seen.unhashed == []
    first, second = (cache_digest([cache], [i], digests) for i in (0, 1))
    cache.layers[1] = X + 2
    assert cache_digest([cache], [0], digests) == first
    assert cache_digest([cache], [1], digests) != second
    assert cache_digest([], None, digests) is None
