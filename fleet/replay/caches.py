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

DIGEST_KERNELS = "FLEET_DIGEST_KERNELS"
"""Variable for the folder of the tensor digests' own kernels: no contract pins those, a replay may
add to them, and each proves itself in every process (``gpu/digests/compiled.py``)."""

PRIVATE_FOLDERS = {"XDG_CACHE_HOME": "xdg", "HF_MODULES_CACHE": "hf_modules"}


BOOKKEEPING = (".ninja_log", ".ninja_deps", ".lock", "lock")
"""Ends of the names of files that a build system rewrites whenever it looks whether there is work;
they hold no kernel."""


def environment(contract: Contract, scratch: Path, attempt: str) -> dict[str, str]:
    """Variables to give the process."""
    private = scratch / attempt
    folders = {name: private / sub for name, sub in PRIVATE_FOLDERS.items()}
    folders[DIGEST_KERNELS] = scratch / "digest_kernels"
    return {name: str(path) for name, path in folders.items()} | kernel_folders(
        _root(contract, scratch, attempt)
    )


def kernel_folders(root: Path) -> dict[str, str]:
    """Variables that keep every compiled kernel below one folder."""
    return {name: str(root / sub) for name, sub in KERNEL_FOLDERS.items()}


def pinned_kernels(scratch: Path) -> Path:
    """The one snapshot that all replays with ``kernel_cache = "pinned"`` share."""
    return scratch / "kernels"


def _root(contract: Contract, scratch: Path, attempt: str) -> Path:
    pinned = contract.determinism.kernel_cache == "pinned"
    return pinned_kernels(scratch) if pinned else scratch / attempt / "kernels"


def kernels_digest(contract: Contract, scratch: Path, attempt: str) -> bytes:
    """Digest over names and bytes of every compiled-kernel file; 32 bytes."""
    return digest_json(kernel_files(_root(contract, scratch, attempt)))


def kernel_files(root: Path) -> dict[str, str]:
    """Name -> digest of every compiled-kernel file: shared objects, their sources, binaries."""
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.exists() else []
    kept = (p for p in files if not p.name.endswith(BOOKKEEPING))
    return {str(p.relative_to(root)): file_sha256(p) for p in kept}
