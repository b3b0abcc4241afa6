"""The digests' kernels are compiled once per machine, and a file of them is never believed blindly.

A stand-in for NVRTC compiles; with cuda-bindings here the real one does too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet.errors import DeviceDigestsUnavailable
from fleet.replay.caches import DIGEST_KERNELS
from fleet.replay.gpu.digests import compiled
from fleet.replay.gpu.digests.compiled import SOURCE, cubin
from fleet.replay.gpu.digests.driver import KERNELS


class Result(IntEnum):
    """NVRTC's own numbers."""

    NVRTC_SUCCESS = 0
    NVRTC_ERROR_INVALID_OPTION = 5
    NVRTC_ERROR_COMPILATION = 6


class FakeNvrtc:
    """Compiles what is without the word *wrong*. ``knows``: the option that turns its cache off."""

    nvrtcResult = Result  # as NVRTC's bindings call it

    def __init__(self, knows: bool = True) -> None:
        self.knows, self.version, self.options = knows, (13, 0), list[list[bytes]]()

    def nvrtcVersion(self) -> tuple[Result, int, int]:
        return (Result.NVRTC_SUCCESS, *self.version)

    def nvrtcCreateProgram(self, source: bytes, *_: object) -> tuple[Result, SimpleNamespace]:
        return Result.NVRTC_SUCCESS, SimpleNamespace(source=source, image=b"", log=b"")

    def nvrtcCompileProgram(
        self, program: SimpleNamespace, count: int, options: list[bytes]
    ) -> tuple[Result]:
        assert count == len(options)
        self.options.append(options)
        if b"--no-cache" in options and not self.knows:
            return (Result.NVRTC_ERROR_INVALID_OPTION,)
        if b"wrong" in program.source:
            program.log = b"sha256.cu(1): wrong\n\0"
            return (Result.NVRTC_ERROR_COMPILATION,)
        program.image = b"binary of " + program.source[:20] + options[0]
        return (Result.NVRTC_SUCCESS,)

    def nvrtcGetProgramLogSize(self, program: SimpleNamespace) -> tuple[Result, int]:
        return Result.NVRTC_SUCCESS, len(program.log)

    def nvrtcGetProgramLog(self, program: SimpleNamespace, log: bytearray) -> None:
        log[:] = program.log

    def nvrtcGetCUBINSize(self, program: SimpleNamespace) -> tuple[Result, int]:
        return Result.NVRTC_SUCCESS, len(program.image)

    def nvrtcGetCUBIN(self, program: SimpleNamespace, image: bytearray) -> None:
        image[:] = program.image

    def nvrtcDestroyProgram(self, program: SimpleNamespace) -> None:
        pass


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeNvrtc]:
    fake = FakeNvrtc()
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(nvrtc=fake))
    monkeypatch.setenv(DIGEST_KERNELS, str(tmp_path / "kept"))
    cubin.cache_clear()
    yield fake
    cubin.cache_clear()


def again(architecture: str = "sm_90") -> bytes:
    """As another process would ask."""
    cubin.cache_clear()
    return cubin(architecture)


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "kept").iterdir())


def test_a_machine_compiles_once_and_leaves_the_pinned_cache_alone(
    nvrtc: FakeNvrtc, tmp_path: Path
) -> None:
    image = cubin("sm_90")
    assert again() == image
    assert nvrtc.options == [[b"--gpu-architecture=sm_90", b"--std=c++17", b"--no-cache"]]
    assert [path.suffix for path in kept(tmp_path)] == [".cubin"]


def test_another_device_source_or_compiler_is_compiled_for_itself(
    nvrtc: FakeNvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cubin("sm_90")
    assert again("sm_80") != first
    nvrtc.version = (13, 1)
    again()
    other = tmp_path / "other.cu"
    other.write_bytes(b"// another\n" + SOURCE.read_bytes())
    monkeypatch.setattr(compiled, "SOURCE", other)
    assert again() != first
    assert len(nvrtc.options) == len(kept(tmp_path)) == 4


@pytest.mark.parametrize("size", [0, 31, 32, 40])
def test_a_file_that_is_not_whole_is_compiled_again(
    nvrtc: FakeNvrtc, tmp_path: Path, size: int
) -> None:
    image = cubin("sm_90")
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert again() == image
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert again() == image
    assert len(nvrtc.options) == 3


def test_where_nothing_can_be_kept_every_process_compiles(
    nvrtc: FakeNvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    for folder in (str(tmp_path / "file" / "kept"), ""):
        monkeypatch.setenv(DIGEST_KERNELS, folder)
        assert again() == again()
    assert len(nvrtc.options) == 4


def test_a_compiler_without_a_cache_is_asked_without_the_option(nvrtc: FakeNvrtc) -> None:
    nvrtc.knows = False
    assert cubin("sm_90")
    assert nvrtc.options[1] == [b"--gpu-architecture=sm_90", b"--std=c++17"]


def test_a_compile_error_is_said_and_keeps_nothing(
    nvrtc: FakeNvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = tmp_path / "faulty.cu"
    faulty.write_text("wrong")
    monkeypatch.setattr(compiled, "SOURCE", faulty)
    with pytest.raises(DeviceDigestsUnavailable, match=r"for sm_90: .*: sha256\.cu\(1\): wrong$"):
        cubin("sm_90")
    assert not (tmp_path / "kept").exists()


@pytest.mark.usefixtures("nvrtc")
def test_without_a_compiler_or_a_source_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SOURCE", tmp_path / "gone.cu")
    with pytest.raises(DeviceDigestsUnavailable, match="source"):
        cubin("sm_90")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceDigestsUnavailable, match="NVRTC"):
        cubin("sm_90")


def test_nvrtc_compiles_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="no cuda-bindings here")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:
        pytest.skip("no NVRTC here")
    image = again()
    assert all(name.encode() in image for name in KERNELS)
    faulty = tmp_path / "faulty.cu"
    faulty.write_text("typedef wrong wrong;")
    monkeypatch.setattr(compiled, "SOURCE", faulty)
    with pytest.raises(DeviceDigestsUnavailable, match=r"NVRTC for sm_90: .*sha256\.cu"):
        again()
