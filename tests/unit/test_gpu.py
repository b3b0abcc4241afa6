"""A GPU's facts, freedom and faults, told by a stand-in for NVIDIA's management library."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import AttemptVoid, EvidenceError
from fleet.evidence.platform import GPU_FACTS
from fleet.replay import probe
from fleet.replay.gpu import cuda, facts, nvml, watch
from fleet.replay.task import Device, device_environment
from tests.unit.fake_nvml import FakeGpu, FakeNvml

MIB = 1 << 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """One GPU, which is all that NVML and the driver know."""
    device = FakeGpu()
    use(monkeypatch, device)
    return device


def use(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> None:
    library = FakeNvml(*gpus)
    monkeypatch.setattr(nvml, "_nvml", lambda: library)
    seen = [cuda.Visible(gpus[0].uuid.partition("-")[2], 132)]
    monkeypatch.setattr(cuda, "visible", lambda: seen)


@pytest.fixture
def torch_holds(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What torch's allocator says it holds."""
    held = SimpleNamespace(memory_reserved=lambda: 0, max_memory_allocated=lambda: 7)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=held))
    return held


def device_of(gpu: FakeGpu) -> Device:
    return Device(gpu.uuid, gpu.name, gpu.used, gpu.total)


def test_every_gpu_fact_is_read_for_the_device_of_that_uuid(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "cuda_of_torch", lambda: "13.0")
    monkeypatch.setattr(facts, "package_version", lambda name: f"{name}-cu13 1.0")
    seen = probe.read_platform("a1", {}, (), gpu.uuid)
    assert seen.unreadable_facts() == []
    assert {name: seen.facts[name] for name in GPU_FACTS} == {
        "gpu_model": "NVIDIA H200",
        "compute_capability": "9.0",
        "sm_count": 132,
        "mig_profile": "none",
        "ecc_mode": "on",
        "driver": "580.159.04",
        "cuda": {"driver": "13.0", "torch": "13.0"},
        "cublas": "nvidia-cublas-cu13 1.0",
        "cudnn": "nvidia-cudnn-cu13 1.0",
    }
    assert seen.label().startswith("NVIDIA H200, torch")
    assert probe.read_unit("n1", device_of(gpu))["id"] == f"gpu:{gpu.uuid}"


def test_a_gpu_that_cannot_be_read_is_equal_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise EvidenceError("cannot-observe", "NVML: Driver/library version mismatch")

    monkeypatch.setattr(nvml, "_nvml", broken)
    monkeypatch.setattr(cuda, "visible", broken)
    one, two = (probe.read_platform(name, {}, (), "GPU-1") for name in ("a1", "a2"))
    # torch is built without CUDA here, so even what is no question to NVML is not known
    assert one.unreadable_facts() == list(GPU_FACTS)
    assert one.digest != two.digest


@pytest.mark.parametrize("seen", [[], ["other"], ["one", "other"]])
def test_a_process_that_sees_another_device_than_its_slots_has_no_sm_count(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "visible", lambda: [cuda.Visible(name, 132) for name in seen])
    with pytest.raises(EvidenceError, match="the slot's device is GPU-one"):
        facts.sm_count("GPU-one")


def test_without_a_driver_nothing_is_visible() -> None:
    with pytest.raises(EvidenceError, match="CUDA driver library"):
        cuda.visible()


def test_an_instance_under_mig_is_a_device_and_the_whole_gpu_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = FakeGpu(uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", used=5)
    use(monkeypatch, FakeGpu(instances=[instance]))
    assert nvml.devices() == [Device("MIG-1", "NVIDIA H200 MIG 1g.18gb", 5, 140 << 30)]
    seen = nvml.gpu("MIG-1")
    assert (seen.mig_profile(), seen.model()) == ("1g.18gb", "NVIDIA H200")


def test_a_gpu_without_ecc_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(ecc=None)
    use(monkeypatch, gpu)
    assert nvml.gpu(gpu.uuid).ecc_mode() == nvml.NOT_SUPPORTED
    watch.require_healthy(watch.DeviceWatch(device_of(gpu)).close())


def test_an_unknown_device_cannot_be_observed(gpu: FakeGpu) -> None:
    with pytest.raises(EvidenceError, match="GPU-nowhere"):
        watch.open_watch(Device("GPU-nowhere", "", 0, 0))


def test_a_free_device_is_free_at_once(gpu: FakeGpu) -> None:
    seen = watch.DeviceWatch(device_of(gpu)).wait_free(0)
    assert (seen["not_free"], seen["uuid"], seen["processes"]) == (None, gpu.uuid, [])


def test_a_device_is_not_free_while_a_process_or_its_memory_is_there(gpu: FakeGpu) -> None:
    looked = watch.DeviceWatch(device_of(gpu))
    gpu.pids = [1]
    assert "processes [1]" in looked.wait_free(0)["not_free"]
    gpu.pids, gpu.used = [], 600 * MIB  # a process that this PID namespace does not see
    assert "bytes in use" in looked.wait_free(0)["not_free"]


def test_what_the_campaign_found_full_is_not_idle(gpu: FakeGpu) -> None:
    gpu.used = 20 << 30
    assert watch.DeviceWatch(device_of(gpu)).wait_free(0)["not_free"]


def test_memory_that_comes_back_a_little_later_is_waited_for(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = watch.DeviceWatch(device_of(gpu))
    gpu.used = 600 * MIB

    def later(_: float) -> None:
        gpu.used = MIB

    monkeypatch.setattr(watch.time, "sleep", later)
    assert looked.wait_free(5)["not_free"] is None


@pytest.mark.usefixtures("torch_holds")
def test_a_neighbour_that_comes_during_the_replay_voids_it(gpu: FakeGpu) -> None:
    gpu.pids = [os.getpid()]
    looked = watch.DeviceWatch(device_of(gpu))
    looked.sample()
    assert looked.close()["processes_visible"]
    gpu.pids = [os.getpid(), 1]
    looked._sampled_at = -watch.EVERY_S
    with pytest.raises(AttemptVoid, match=r"processes \[1\] compute beside"):
        looked.sample()


def test_a_neighbour_in_another_container_is_told_by_its_memory(
    gpu: FakeGpu, torch_holds: SimpleNamespace
) -> None:
    looked = watch.DeviceWatch(device_of(gpu))
    torch_holds.memory_reserved = lambda: 50 << 30
    gpu.used = 52 << 30
    looked.sample()  # this process's own context
    gpu.used = 60 << 30
    looked._sampled_at = -watch.EVERY_S
    with pytest.raises(AttemptVoid, match="not this replay's"):
        looked.sample()


@pytest.mark.usefixtures("torch_holds")
def test_what_happened_to_the_device_is_told_in_ranges(gpu: FakeGpu) -> None:
    gpu.throttle = 0x4 | 0x1
    looked = watch.DeviceWatch(device_of(gpu))
    looked.sample()
    looked.sample()  # at once: the first is fresh enough
    seen = looked.close()
    assert (seen["samples"], seen["throttle"]) == (1, ["power cap"])
    assert seen["clocks"] == {
        "sm_mhz": [1980, 1980], "memory_mhz": [1980, 1980], "temperature_c": [40, 40],
    }  # fmt: skip
    assert (seen["ecc_new"], seen["xids"]) == ({"corrected": 0, "uncorrected": 0}, [])


def test_an_uncorrected_error_during_the_replay_is_a_device_fault(gpu: FakeGpu) -> None:
    gpu.uncorrected = 3  # before it: somebody else's
    looked = watch.DeviceWatch(device_of(gpu))
    watch.require_healthy(looked.close())
    gpu.uncorrected = 4
    with pytest.raises(AttemptVoid, match="1 uncorrected") as ended:
        watch.require_healthy(looked.close())
    assert ended.value.code == "device-fault"


def test_an_xid_during_the_replay_is_a_device_fault(gpu: FakeGpu) -> None:
    looked = watch.DeviceWatch(device_of(gpu))
    gpu.xids = [79]
    with pytest.raises(AttemptVoid, match="XID 79"):
        watch.require_healthy(looked.close())


def test_a_replay_on_the_cpu_has_no_device_to_watch() -> None:
    host = watch.open_watch(None)
    host.sample()
    assert (host.wait_free(), host.close()) == (None, {})
    assert host.peak_bytes() > MIB
    watch.require_healthy({})


def test_a_slot_shows_its_process_one_device_or_none() -> None:
    assert device_environment(Device("GPU-1", "", 0, 0)) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert device_environment(None) == {"CUDA_VISIBLE_DEVICES": ""}


def test_the_cuda_of_torch_is_read_from_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = str(tmp_path / "__init__.py")
    spec = SimpleNamespace(origin=origin)
    monkeypatch.setattr(facts.importlib.util, "find_spec", lambda name: spec)
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '13.0'\nhip = None\n")
    assert facts.cuda_of_torch() == "13.0"
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    with pytest.raises(LookupError, match="without CUDA"):
        facts.cuda_of_torch()


class FakeDriver:
    """The CUDA driver, with a device whose primary context is in use or not."""

    def __init__(self, code: int = 0, active: int = 0) -> None:
        self.code, self.active = code, active

    def cuDeviceGet(self, device: object, ordinal: int) -> int:
        return self.code

    def cuDevicePrimaryCtxGetState(self, device: object, flags: object, active: Any) -> int:
        active._obj.value = self.active
        return 0


@pytest.mark.parametrize(
    ("driver", "wanted"),
    [(FakeDriver(code=3), False), (FakeDriver(), False), (FakeDriver(active=1), True)],
    ids=["nobody initialised the driver", "initialised", "in use"],
)
def test_a_process_uses_its_device_once_it_has_a_context_there(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, wanted: bool
) -> None:
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    assert cuda.context_exists() is wanted


def test_a_driver_that_does_not_tell_cannot_be_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_driver", lambda: FakeDriver(code=999))
    with pytest.raises(EvidenceError, match="cuDeviceGet: CUDA error 999"):
        cuda.context_exists()
