"""Private cache folders of one attempt, so that nothing an earlier process compiled is picked up.

The folders are named by the nonce. With ``kernel_cache = "pinned"`` the compiled-kernel folders
point at one shared snapshot instead; it is digested before and after, and must not change. These
variables are paths, so they are no part of the platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def _roots(scratch: Path, attempt: str) -> dict[str, Path]:
    return {"pinned": pinned_kernels(scratch), "cold": scratch / attempt / "kernels"}


def _root(contract: Contract, scratch: Path, attempt: str) -> Path:
    return _roots(scratch, attempt)[contract.determinism.kernel_cache]


def kernels(contract: Contract, scratch: Path, attempt: str) -> dict[str, str]:
    """The compiled-kernel files of one attempt."""
    return kernel_files(_root(contract, scratch, attempt))


def kernel_files(root: Path) -> dict[str, str]:
    """Name -> digest of every compiled-kernel file: shared objects, their sources, binaries."""
    return {str(p.relative_to(root)): file_sha256(p) for p in _files(root)}


def counted(scratch: Path, attempt: str, given: Mapping[str, str]) -> dict[str, Any]:
    """What lies where a process keeps its kernels.

    Args:
        given: the environment of the process, which says where that is.

    Returns:
        ``in_force``: which of the two caches, or ``neither``; ``files`` in it; ``compiled``: those
        of them that are machine code.
    """
    named = {name: given.get(name) for name in KERNEL_FOLDERS}
    for kind, root in _roots(scratch, attempt).items():
        if named == kernel_folders(root):
            files = _files(root)
            compiled = sum(_is_code(path, root) for path in files)
            return {"in_force": kind, "files": len(files), "compiled": compiled}
    return {"in_force": "neither", "files": 0, "compiled": 0}


def _files(root: Path) -> list[Path]:
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.exists() else []
    return [p for p in files if not p.name.endswith(BOOKKEEPING)]


HELPERS = ("cuda_utils.", "__triton_launcher.")
"""How shared objects begin that Triton builds for itself, whatever kernel it launches
(triton/backends/nvidia/driver.py)."""


def _is_code(path: Path, root: Path) -> bool:
    """Shared objects and cubins are ELF files; what CUDA's driver compiles has a form of its own,
    and an index beside it."""
    if path.is_relative_to(root / KERNEL_FOLDERS["CUDA_CACHE_PATH"]):
        return path.name != "index"
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF" and not path.name.startswith(HELPERS)
