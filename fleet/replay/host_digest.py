"""The tensor digest of a torch tensor, computed on the host; what a device must give too."""

from __future__ import annotations

import torch

from fleet.evidence.digests import tensor_digest


def host_digest(tensor: torch.Tensor) -> bytes:
    """The tensor digest of any tensor of any device, on the host; 32 bytes.

    A CPU tensor whose values lie in order is read where it is. A lazy conjugate or negation has the
    address of its base and other values; a lone element may keep an odd stride, which
    ``view(uint8)`` refuses.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if plain.stride() != (1,):
        plain = plain.clone(memory_format=torch.contiguous_format)
    data = plain.view(torch.uint8).numpy().data if plain.numel() else b""
    return tensor_digest(str(tensor.dtype).removeprefix("torch."), tensor.shape, data)
