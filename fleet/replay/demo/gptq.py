"""Round-to-nearest symmetric GPTQ, version 1 of the format: the other layout of 4-bit weights.

Layout, for a linear of K inputs and N outputs and groups of G inputs: ``qweight`` int32 [K/8, N],
eight rows to a word, lowest nibble first; ``qzeros`` int32 [K/G, N/8] of zero points minus one;
``scales`` float16 [K/G, N]; ``g_idx`` int32 [K], the group of each row. The zero point is 8
everywhere, the weight is (q - 8) * s. Scales are rounded as in :mod:`fleet.replay.demo.awq`.

Knows no calibration, no order by activation: it is no method to judge accuracy by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet.replay.demo.awq import BITS, GROUP_SIZE, MIN_SCALE, ORDER, packable
from fleet.replay.demo.rounding import round_to_bfloat16

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

ZERO = 2 ** (BITS - 1)
_MAX = 2**BITS - 1


def quantization_config(group_size: int = GROUP_SIZE) -> dict[str, Any]:
    """The ``quantization_config`` of a packed checkpoint's config.json."""
    return {
        "quant_method": "gptq",
        "bits": BITS,
        "group_size": group_size,
        "sym": True,
        "desc_act": False,
        "checkpoint_format": "gptq",
    }


def pack_linear(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """``qweight``, ``qzeros``, ``scales`` and ``g_idx`` of one weight [N, K].

    Raises:
        ValueError: when K is no multiple of the group size or N no multiple of 8.
    """
    import torch

    outputs, inputs = weight.shape
    codes, scales = quantise(packable(weight))
    arrays = {"qweight": pack_rows(codes), **beside(inputs, outputs, GROUP_SIZE), "scales": scales}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def quantise(
    weight: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float16]]:
    """Codes [K, N] and scales [K/G, N] of a weight [N, K]."""
    import numpy as np

    groups = np.ascontiguousarray(weight.T).reshape(-1, GROUP_SIZE, weight.shape[0])
    spread = np.abs(groups).max(axis=1) * np.float32(2) / np.float32(_MAX)
    scales = np.maximum(round_to_bfloat16(spread), np.float32(MIN_SCALE))
    codes = np.clip(np.rint(groups / scales[:, None]) + np.float32(ZERO), 0, _MAX)
    return codes.reshape(-1, weight.shape[0]).astype(np.uint32), scales.astype(np.float16)


def beside(inputs: int, outputs: int, group_size: int) -> dict[str, npt.NDArray[np.int32]]:
    """``qzeros`` and ``g_idx``: the same for every symmetric weight of this size."""
    import numpy as np

    sevens = np.uint32(sum((ZERO - 1) << BITS * nibble for nibble in range(8)))
    words = np.full((inputs // group_size, outputs // 8), sevens, dtype=np.uint32)
    groups = np.arange(inputs, dtype=np.int32) // np.int32(group_size)
    return {"qzeros": words.view(np.int32), "g_idx": groups}


def pack_rows(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Eight 4-bit rows to one int32 word: [K, N] to [K/8, N]."""
    import numpy as np

    blocks = codes.reshape(-1, 8, codes.shape[1])
    words = np.zeros((blocks.shape[0], codes.shape[1]), dtype=np.uint32)
    for row in range(8):
        words |= blocks[:, row] << np.uint32(BITS * row)
    return words.view(np.int32)


def from_awq(words: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The same codes out of AWQ's ``qweight``: [K, N/8] to [K/8, N], no array of codes between."""
    import numpy as np

    blocks = words.view(np.uint32).reshape(-1, 8, words.shape[1])
    packed = np.zeros((blocks.shape[0], words.shape[1], 8), dtype=np.uint32)
    for nibble, column in enumerate(ORDER):
        for row in range(8):
            code = (blocks[:, row] >> np.uint32(BITS * nibble)) & np.uint32(_MAX)
            packed[:, :, column] |= code << np.uint32(BITS * row)
    return packed.reshape(packed.shape[0], -1).view(np.int32)
