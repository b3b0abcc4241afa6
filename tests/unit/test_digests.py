"""Golden vectors for digest format 1, and a second implementation written from its description.

``python -m tests.unit.test_digests`` prints the golden file's content.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fleet.evidence.digests import (
    LEAF_BYTES,
    ids_bytes,
    merkle_root,
    tensor_digest,
    tensor_digests,
    token_sequence_digest,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "tensor_digests.json"

Case = tuple[str, tuple[int, ...], int]

CASES: dict[str, Case] = {
    "empty": ("float32", (0,), 0),
    "empty_matrix": ("float32", (3, 0), 0),
    "scalar": ("float32", (), 4),
    "one_byte": ("uint8", (1,), 1),
    "bytes_2047": ("uint8", (2047,), 2047),
    "bytes_2048": ("uint8", (2048,), 2048),
    "bytes_2049": ("uint8", (2049,), 2049),
    "leaves_2": ("uint8", (4096,), 4096),
    "leaves_3": ("uint8", (6144,), 6144),
    "leaves_3_short": ("uint8", (4097,), 4097),
    "leaves_5": ("uint8", (5, 2048), 10240),
    "leaves_7_short": ("uint8", (13000,), 13000),
    "bfloat16": ("bfloat16", (3, 5), 30),
    "float16": ("float16", (3, 5), 30),
    "float64": ("float64", (3, 5), 120),
    "float8_e4m3fn": ("float8_e4m3fn", (64, 33), 2112),
    "float8_e5m2": ("float8_e5m2", (64, 33), 2112),
    "bool": ("bool", (7,), 7),
    "int4_in_uint8": ("uint8", (128, 32), 4096),
    "int4_in_int32": ("int32", (128, 8), 4096),
    "int64": ("int64", (2, 3, 4), 192),
    "complex64": ("complex64", (2,), 16),
    "over_4_mib": ("bfloat16", (1025, 2051), 4204550),
}

SEQUENCES: dict[str, tuple[list[int], list[int]]] = {
    "nothing": ([], []),
    "prompt_only": ([1, 2, 3], []),
    "generated_only": ([], [1, 2, 3]),
    "both": ([1, 2], [3]),
    "border_moved": ([1], [2, 3]),
    "large_ids": ([2**31, 2**40], [0, 2**62]),
}


def content(name: str, num_bytes: int) -> bytes:
    """Bytes that depend on the case alone: SHA-256 of name and block number."""
    blocks = range((num_bytes + 31) // 32)
    return b"".join(hashlib.sha256(f"{name} {i}".encode()).digest() for i in blocks)[:num_bytes]


def naive_root(data: bytes) -> bytes:
    """Recursive: the left part is the largest power of two of leaves that leaves a remainder."""
    if len(data) <= 2048:
        return hashlib.sha256(data).digest()
    num_leaves = -(-len(data) // 2048)
    left = 1
    while left * 2 < num_leaves:
        left *= 2
    pair = naive_root(data[: left * 2048]) + naive_root(data[left * 2048 :])
    return hashlib.sha256(pair).digest()


def naive_tensor_digest(dtype: str, shape: tuple[int, ...], data: bytes) -> bytes:
    header = "\n".join(
        ["fleet-tensor-1", dtype, ",".join(map(str, shape)), str(len(data)), "2048", ""]
    )
    return hashlib.sha256(header.encode() + naive_root(data)).digest()


def naive_sequence_digest(prompt: list[int], generated: list[int]) -> bytes:
    numbers = [len(prompt), len(prompt) + len(generated), *prompt, *generated]
    body = b"".join(n.to_bytes(8, "little", signed=True) for n in numbers)
    return hashlib.sha256(b"fleet-tokens-1\n" + body).digest()


def vectors() -> dict[str, dict[str, str]]:
    """The golden file, by the naive implementation."""
    tensors = {
        name: naive_tensor_digest(dtype, shape, content(name, size)).hex()
        for name, (dtype, shape, size) in CASES.items()
    }
    tokens = {name: naive_sequence_digest(*pair).hex() for name, pair in SEQUENCES.items()}
    return {"tensors": tensors, "token_sequences": tokens}


def test_the_naive_implementation_gives_the_golden_vectors() -> None:
    assert vectors() == json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_digest_is_the_golden_one(name: str) -> None:
    dtype, shape, size = CASES[name]
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))["tensors"][name]
    assert tensor_digest(dtype, shape, content(name, size)).hex() == golden


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_token_sequence_digest_is_the_golden_one(name: str) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))["token_sequences"][name]
    assert token_sequence_digest(*SEQUENCES[name]).hex() == golden


@pytest.mark.parametrize("num_leaves", range(1, 36))
def test_an_odd_last_node_moves_up_unchanged(num_leaves: int) -> None:
    data = content("odd", num_leaves * LEAF_BYTES - 1)
    assert merkle_root(data) == naive_root(data)


def test_one_flipped_bit_changes_the_digest() -> None:
    data = bytearray(content("flip", 10_000))
    before = tensor_digest("uint8", (10_000,), data)
    data[7_777] ^= 1
    assert tensor_digest("uint8", (10_000,), data) != before


def test_swapped_leaves_change_the_digest() -> None:
    left, right = content("left", LEAF_BYTES), content("right", LEAF_BYTES)
    assert merkle_root(left + right) != merkle_root(right + left)


def test_equal_bytes_of_another_dtype_or_shape_have_another_digest() -> None:
    data = content("same", 64)
    digests = {
        tensor_digest("bfloat16", (32,), data),
        tensor_digest("float16", (32,), data),
        tensor_digest("bfloat16", (4, 8), data),
        tensor_digest("bfloat16", (8, 4), data),
    }
    assert len(digests) == 4


def test_minus_zero_and_nan_payloads_count() -> None:
    zero, minus_zero = b"\x00\x00", b"\x00\x80"
    quiet, payload = b"\xc0\x7f", b"\xc1\x7f"
    assert len({tensor_digest("bfloat16", (1,), d) for d in (zero, minus_zero)}) == 2
    assert len({tensor_digest("bfloat16", (1,), d) for d in (quiet, payload)}) == 2


def test_a_typed_buffer_is_read_as_its_bytes() -> None:
    data = content("typed", 4096)
    typed = memoryview(data).cast("i")
    assert tensor_digest("int32", (1024,), typed) == tensor_digest("int32", (1024,), data)


def test_ids_are_little_endian_int64() -> None:
    assert ids_bytes([1, 256]) == b"\x01" + b"\x00" * 7 + b"\x00\x01" + b"\x00" * 6


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1))


def test_a_stack_is_digested_as_if_each_tensor_were_alone() -> None:
    data = bytes(range(256)) * 36
    parts = [data[i * 3072 : (i + 1) * 3072] for i in range(3)]
    alone = [tensor_digest("bfloat16", (512, 3), part) for part in parts]
    assert tensor_digests("bfloat16", (3, 512, 3), data) == alone
    assert tensor_digests("float32", (0, 4), b"") == []
