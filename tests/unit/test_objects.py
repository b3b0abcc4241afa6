"""Which compiled code of a process was built on this machine."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from fleet.evidence.landing import file_sha256
from fleet.replay.objects import built_here


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_built_into_a_kernel_folder_is_named_with_its_digest(tmp_path: Path) -> None:
    source, library = tmp_path / "k.c", tmp_path / "kernels" / "fleet_test_kernel.so"
    library.parent.mkdir()
    source.write_text("int answer(void) { return 42; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    folders = {"TORCH_EXTENSIONS_DIR": str(library.parent)}
    assert library.name not in built_here(folders)  # built, and not loaded
    assert ctypes.CDLL(str(library)).answer() == 42
    assert built_here(folders)[library.name] == file_sha256(library)
    assert library.name not in built_here({})
