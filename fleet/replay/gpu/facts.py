"""The GPU facts of the platform, each from the one place that knows it.

Everything is read without torch and without a CUDA context. What cannot be read raises; the caller
turns that into a value that equals no other attempt's.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fleet.errors import EvidenceError
from fleet.replay.gpu import cuda, nvml

_TORCH_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([0-9.]+)['\"]", re.MULTILINE)


def readers(uuid: str) -> Mapping[str, Callable[[], Any]]:
    """Fact -> how to read it, for the device of that UUID."""
    return {
        "gpu_model": lambda: nvml.gpu(uuid).model(),
        "compute_capability": lambda: nvml.gpu(uuid).compute_capability(),
        "sm_count": lambda: sm_count(uuid),
        "mig_profile": lambda: nvml.gpu(uuid).mig_profile(),
        "ecc_mode": lambda: nvml.gpu(uuid).ecc_mode(),
        "driver": nvml.driver,
        "cuda": lambda: {"driver": nvml.cuda_of_driver(), "torch": cuda_of_torch()},
        "cublas": lambda: package_version("nvidia-cublas"),
        "cudnn": lambda: package_version("nvidia-cudnn"),
    }


def sm_count(uuid: str) -> int:
    """Streaming multiprocessors of the device, which must be the only one this process sees.

    Raises:
        EvidenceError: placement, when the process sees another device or several.
    """
    seen = cuda.visible()
    bare = uuid.partition("-")[2].partition("/")[0]
    if [each.bare_uuid for each in seen] != [bare]:
        found = ", ".join(each.bare_uuid for each in seen) or "none"
        raise EvidenceError("placement", f"the slot's device is {uuid}; the process sees {found}")
    return seen[0].sm_count


def cuda_of_torch() -> str:
    """The CUDA that the installed torch was built for, from its version file; torch stays out.

    Raises:
        LookupError: torch is not installed, or built without CUDA.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise LookupError("torch is not installed")
    found = _TORCH_CUDA.search((Path(spec.origin).parent / "version.py").read_text())
    if found is None:
        raise LookupError("torch is built without CUDA")
    return found[1]


def package_version(name: str) -> str:
    """Version of NVIDIA's package, whose name may end in the CUDA it is for.

    Raises:
        LookupError: not installed as a package, so its version cannot be read.
    """
    pattern = re.compile(rf"{name}(-cu\d+)?")
    for dist in metadata.distributions():
        found = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if pattern.fullmatch(found):
            return f"{found} {dist.version}"
    raise LookupError(f"no package {name}")
