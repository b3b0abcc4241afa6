"""What only the CUDA driver knows: the devices this process sees, and whether it uses one.

``cuInit`` opens the driver and creates no context (CUDA driver API, "Initialization"), so no memory
of a device is taken. The variables that select devices are read by it, once per process.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass

from fleet.errors import EvidenceError

MULTIPROCESSOR_COUNT = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""


NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED: nobody in this process called ``cuInit``."""


@dataclass(frozen=True)
class Visible:
    """A device by the driver's ordinal. ``bare_uuid``: without the ``GPU-`` or ``MIG-``."""

    bare_uuid: str
    sm_count: int


def visible() -> list[Visible]:
    """The devices that this process sees, in the driver's order.

    Raises:
        EvidenceError: cannot-observe, when the driver is not there or answers with an error.
    """
    driver = _driver()
    count = ctypes.c_int()
    if (code := driver.cuInit(0)) == 100:  # CUDA_ERROR_NO_DEVICE
        return []
    _require(code, "cuInit")
    _require(driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return [_visible(driver, ordinal) for ordinal in range(count.value)]


def context_exists() -> bool:
    """Does this process hold a context on the first device it sees? Without one it has computed
    nothing there. CUDA driver API, "Primary Context Management".

    Raises:
        EvidenceError: cannot-observe, when the driver is not there or answers with an error.
    """
    driver, device = _driver(), ctypes.c_int()
    flags, active = ctypes.c_uint(), ctypes.c_int()
    if (code := driver.cuDeviceGet(ctypes.byref(device), 0)) == NOT_INITIALIZED:
        return False
    _require(code, "cuDeviceGet")
    code = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    _require(code, "cuDevicePrimaryCtxGetState")
    return bool(active.value)


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EvidenceError("cannot-observe", f"the CUDA driver library: {error}") from error


def _visible(driver: ctypes.CDLL, ordinal: int) -> Visible:
    device, sms, raw = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    _require(driver.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    _require(driver.cuDeviceGetUuid_v2(ctypes.byref(raw), device), "cuDeviceGetUuid")
    code = driver.cuDeviceGetAttribute(ctypes.byref(sms), MULTIPROCESSOR_COUNT, device)
    _require(code, "cuDeviceGetAttribute")
    return Visible(str(uuid.UUID(bytes=bytes(raw))), sms.value)


def _require(code: int, call: str) -> None:
    if code != 0:
        raise EvidenceError("cannot-observe", f"{call}: CUDA error {code}")
