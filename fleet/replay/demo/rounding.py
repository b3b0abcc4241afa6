"""float32 to bfloat16 by integer arithmetic, so that no CPU's vector unit has a say.

Knows no models. Rounds to nearest, ties to even; for finite values only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The nearest bfloat16 of each value, kept as float32."""
    import numpy as np

    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def bfloat16_tensor(values: npt.NDArray[np.float32]) -> torch.Tensor:
    """The same, as a bfloat16 tensor of the same shape."""
    import numpy as np
    import torch

    upper = round_to_bfloat16(np.ascontiguousarray(values)).view(np.uint32) >> np.uint32(16)
    return torch.from_numpy(upper.astype(np.uint16).view(np.int16)).view(torch.bfloat16)
