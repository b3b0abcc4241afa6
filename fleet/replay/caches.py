"""Private cache folders of one attempt, so that nothing an earlier process compiled is picked up.

The folders are named by the nonce. With ``kernel_cache = "pinned"`` the compiled-kernel folders
point at one shared snapshot instead; it is digested before and after, and must not change. These
variables are paths, so they are no part of the platform.
"""

from __future__ import annotations

from pathlib import Path

from fleet.contract.canonical import digest_json
from fleet.contract.model import Contract
from fleet.evidence.landing import file_sha256

KERNEL_FOLDERS = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "GPTQMODEL_TORCH_EXTENSIONS_DIR": "gptqmodel_extensions",
    "CUDA_CACHE_PATH": "cuda",
}
"""Variable -> folder, each named by the documentation of its project."""

PRIVATE_FOLDERS = {"XDG_CACHE_HOME": "xdg", "HF_MODULES_CACHE": "hf_modules"}


def environment(contract: Contract, scratch: Path, attempt: str) -> dict[str, str]:
    """Variables to give the process."""
    private = scratch / attempt
    pinned = contract.determinism.kernel_cache == "pinned"
    kernels = scratch / "kernels" if pinned else private / "kernels"
    folders = {name: private / sub for name, sub in PRIVATE_FOLDERS.items()}
    folders |= {name: kernels / sub for name, sub in KERNEL_FOLDERS.items()}
    return {name: str(path) for name, path in folders.items()}


def kernels_digest(contract: Contract, scratch: Path, attempt: str) -> bytes:
    """Digest over names and bytes of every compiled-kernel file; 32 bytes."""
    pinned = contract.determinism.kernel_cache == "pinned"
    root = scratch / "kernels" if pinned else scratch / attempt / "kernels"
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.exists() else []
    return digest_json({str(p.relative_to(root)): file_sha256(p) for p in files})
