"""Round-to-nearest AWQ in the GEMM layout: enough to run real kernels on real layer shapes.

Layout, for a linear of K inputs and N outputs and groups of G inputs: ``qweight`` int32 [K, N/8],
``qzeros`` int32 [K/G, N/8], ``scales`` float16 [K/G, N]; nibble i of a word holds column
``ORDER[i]`` of its block of 8; the weight is (q - z) * s. Scales are rounded to values that
bfloat16 holds too, so that a kernel's cast between the two 16-bit types loses nothing.

All arithmetic is elementwise IEEE float32 in numpy (no reduction but min and max): the packed
bits are the same on every CPU. Knows no calibration: it is no method to judge accuracy by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fleet.replay.demo.rounding import round_to_bfloat16

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Pack = Callable[[torch.Tensor], dict[str, torch.Tensor]]

BITS = 4
GROUP_SIZE = 64
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

_MAX = 2**BITS - 1
MIN_SCALE = 2.0**-14  # the smallest normal float16

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def quantization_config(group_size: int = GROUP_SIZE) -> dict[str, Any]:
    """The ``quantization_config`` of a packed checkpoint's config.json."""
    return {
        "quant_method": "awq",
        "version": "gemm",
        "bits": BITS,
        "group_size": group_size,
        "zero_point": True,
        "modules_to_not_convert": ["lm_head"],
    }


def pack_checkpoint(
    tensors: Mapping[str, torch.Tensor], pack: Pack | None = None
) -> dict[str, torch.Tensor]:
    """Pack every decoder linear; embeddings, norms and lm_head stay as they are.

    Args:
        tensors: the whole checkpoint.
        pack: how one weight is packed; :func:`pack_linear` if left out.
    """
    one = pack or pack_linear
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in LINEARS:
            parts = one(tensor)
            packed.update({f"{module}.{part}": value for part, value in parts.items()})
        else:
            packed[name] = tensor
    return packed


def pack_linear(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """``qweight``, ``qzeros`` and ``scales`` of one weight [N, K].

    Raises:
        ValueError: when K is no multiple of the group size or N no multiple of 8.
    """
    import torch

    codes, zeros, scales = quantise(packable(weight))
    arrays = {"qweight": pack_words(codes), "qzeros": pack_words(zeros), "scales": scales}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def packable(weight: torch.Tensor) -> npt.NDArray[np.float32]:
    """The weight [N, K] in float32.

    Raises:
        ValueError: when K is no multiple of the group size or N no multiple of 8.
    """
    import torch

    outputs, inputs = weight.shape
    if inputs % GROUP_SIZE or outputs % 8:
        raise ValueError(f"cannot pack [{outputs}, {inputs}]: need N % 8 == 0, K % 64 == 0")
    array: npt.NDArray[np.float32] = weight.detach().to(torch.float32).numpy()
    return array


def quantise(
    weight: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.float16]]:
    """Codes [K, N], zeros [K/G, N], scales [K/G, N] of a weight [N, K]."""
    import numpy as np

    groups = np.ascontiguousarray(weight.T).reshape(-1, GROUP_SIZE, weight.shape[0])
    low = np.minimum(groups.min(axis=1), np.float32(0))
    high = np.maximum(groups.max(axis=1), np.float32(0))
    spread = (high - low) / np.float32(_MAX)
    scales = np.maximum(round_to_bfloat16(spread), np.float32(MIN_SCALE))
    zeros = np.clip(np.rint(-low / scales), 0, _MAX)
    codes = np.clip(np.rint(groups / scales[:, None]) + zeros[:, None], 0, _MAX)
    flat = codes.reshape(-1, weight.shape[0])
    return flat.astype(np.uint32), zeros.astype(np.uint32), scales.astype(np.float16)


def pack_words(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Eight 4-bit columns to one int32 word: [R, N] to [R, N/8]."""
    import numpy as np

    blocks = codes.reshape(codes.shape[0], -1, 8)
    words = np.zeros(blocks.shape[:2], dtype=np.uint32)
    for nibble, column in enumerate(ORDER):
        words |= blocks[:, :, column] << np.uint32(BITS * nibble)
    return words.view(np.int32)
