"""Digests of token sequences and tensors, format 1.

A tensor digest is SHA-256(header || root) over a Merkle tree of 2048-byte leaves: a device can give
each leaf one thread, and the host computes the same value with one thread in all, for hashlib hands
the interpreter over at every leaf and several are slower. Exact by construction: no tolerance, no
XOR, no norm (torch.hash_tensor's XOR misses swapped columns; norms are blind to signs).

Knows no torch: callers hand over ``(dtype, shape, contiguous little-endian buffer)``.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterable, Sequence

Buffer = bytes | bytearray | memoryview
Ids = Sequence[int] | bytes
"""Token ids, as numbers or packed by :func:`ids_bytes`."""

LEAF_BYTES = 2048
TOKENS_HEADER = b"fleet-tokens-1\n"
TENSOR_HEADER = b"fleet-tensor-1\n"

_sha256 = hashlib.sha256


def token_sequence_digest(prompt_ids: Ids, generated_ids: Ids) -> bytes:
    """Digest of one full sequence: unpadded prompt ids, then generated ids; 32 bytes."""
    prompt, generated = ids_bytes(prompt_ids), ids_bytes(generated_ids)
    lengths = struct.pack("<qq", len(prompt) // 8, (len(prompt) + len(generated)) // 8)
    return _sha256(b"".join((TOKENS_HEADER, lengths, prompt, generated))).digest()


def ids_bytes(ids: Ids) -> bytes:
    """Token ids as little-endian int64; bytes are ids that are packed already."""
    return ids if isinstance(ids, bytes) else struct.pack(f"<{len(ids)}q", *ids)


def merkle_root(buffer: Buffer) -> bytes:
    """Root over 2048-byte leaves; an odd last node moves up unchanged; empty = SHA-256(b"")."""
    view = memoryview(buffer).cast("B")
    if len(view) == 0:
        return _sha256(b"").digest()
    nodes = [_sha256(view[i : i + LEAF_BYTES]).digest() for i in range(0, len(view), LEAF_BYTES)]
    while len(nodes) > 1:
        paired = [_sha256(nodes[i] + nodes[i + 1]).digest() for i in range(0, len(nodes) - 1, 2)]
        nodes = paired + nodes[len(nodes) - len(nodes) % 2 :]
    return nodes[0]


def tensor_header(dtype: str, shape: Iterable[int], num_bytes: int) -> bytes:
    """The ASCII header; ``dtype`` is torch's name without ``torch.`` (``bfloat16``)."""
    dims = ",".join(str(int(d)) for d in shape)
    return TENSOR_HEADER + f"{dtype}\n{dims}\n{num_bytes}\n{LEAF_BYTES}\n".encode("ascii")


def tensor_digests(dtype: str, shape: Sequence[int], buffer: Buffer) -> list[bytes]:
    """Digest of every tensor of a stack that lies back to back, each as if alone.

    Args:
        dtype: torch's name without ``torch.``.
        shape: the sizes of the stack; the first is how many tensors there are.
        buffer: all their elements in row-major order, little-endian, contiguous.
    """
    _require_little_endian()
    whole = memoryview(buffer).cast("B")
    size = len(whole) // shape[0] if shape[0] else 0
    header = tensor_header(dtype, shape[1:], size)
    roots = (merkle_root(whole[i * size : (i + 1) * size]) for i in range(shape[0]))
    return [_sha256(header + root).digest() for root in roots]


def tensor_digest(dtype: str, shape: Iterable[int], buffer: Buffer) -> bytes:
    """Digest of one tensor; 32 bytes.

    Args:
        dtype: torch's name without ``torch.``.
        shape: the tensor's sizes; ``()`` for a scalar.
        buffer: its elements in row-major order, little-endian, contiguous.

    Raises:
        RuntimeError: on a big-endian host, where the buffer would not be little-endian.
    """
    _require_little_endian()
    num_bytes = memoryview(buffer).nbytes
    root = merkle_root(buffer)
    return _sha256(tensor_header(dtype, shape, num_bytes) + root).digest()


def _require_little_endian() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("tensor digests are defined over little-endian bytes")
