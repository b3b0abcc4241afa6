"""The kernels' binary for one kind of device: compiled once per machine, and kept in a file.

Compiling takes NVRTC two seconds. Its own cache is the folder of the kernels that a contract pins,
which must not change in a replay, so that is left alone (NVRTC, "--no-cache"). A file is told by
what it was made of and holds its own digest; whatever is wrong with one, the kernels are compiled
again. NVRTC comes through cuda-bindings, which CUDA builds of torch bring along. Knows no device.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet.contract.canonical import sha256
from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.whole import replaced
from fleet.replay.caches import DIGEST_KERNELS

SOURCE = Path(__file__).with_name("sha256.cu")
_NO_CACHE = "--no-cache"
_DIGEST_BYTES = 32


@functools.cache
def cubin(architecture: str) -> bytes:
    """The kernels for ``sm_NN``; needs no device.

    Raises:
        DeviceDigestsUnavailable: no NVRTC here, or it refuses, with its log.
    """
    nvrtc, version = _nvrtc()
    source = _source()
    folder = os.environ.get(DIGEST_KERNELS)  # without it every process compiles
    if not folder:
        return _compiled(nvrtc, source, architecture)
    key = sha256(b"\0".join([source, architecture.encode(), repr(version).encode()]))
    path = Path(folder) / f"{architecture}-{key.hex()[:32]}.cubin"
    image = _kept(path)
    if image is None:
        image = _compiled(nvrtc, source, architecture)
        _keep(path, image)
    return image


def _nvrtc() -> tuple[Any, Any]:
    try:
        from cuda.bindings import nvrtc

        return nvrtc, nvrtc.nvrtcVersion()[1:]
    except (ImportError, RuntimeError, OSError) as error:  # cuda-bindings, libnvrtc
        raise DeviceDigestsUnavailable(f"NVRTC: {error}") from error


def _source() -> bytes:
    try:
        return SOURCE.read_bytes()
    except OSError as error:
        raise DeviceDigestsUnavailable(f"the kernels' source: {error}") from error


def _kept(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, image = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return image if image and sha256(image) == digest else None


def _keep(path: Path, image: bytes) -> None:
    """Whole or not at all, for several replays may write it; where it cannot be written nothing is
    lost."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as unfinished:
            unfinished.write_bytes(sha256(image) + image)


def _compiled(nvrtc: Any, source: bytes, architecture: str) -> bytes:
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    code, text, image = _run(nvrtc, source, [*options, _NO_CACHE.encode()])
    if code == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:  # so old that it has no cache
        code, text, image = _run(nvrtc, source, options)
    if image is None:
        raise DeviceDigestsUnavailable(f"NVRTC for {architecture}: {code}: {text}")
    return image


def _run(nvrtc: Any, source: bytes, options: list[bytes]) -> tuple[Any, str, bytes | None]:
    """(result, log, binary)."""
    _, program = nvrtc.nvrtcCreateProgram(source, b"sha256.cu", 0, [], [])
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    image = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1] if int(code) == 0 else 0)
    if image:
        nvrtc.nvrtcGetCUBIN(program, image)
    nvrtc.nvrtcDestroyProgram(program)
    return code, log.decode(errors="replace").strip("\0 \n"), bytes(image) or None
