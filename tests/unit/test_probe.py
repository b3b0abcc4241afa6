"""The platform: a closed list of facts, what counts as one, and what an unreadable one is worth."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from fleet.evidence.platform import (
    FACTS,
    GPU_FACTS,
    NOT_APPLICABLE,
    Platform,
    numerics_environment,
    record_digest_lines,
    unreadable,
)
from fleet.replay import probe

FLAGS_512 = ["avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"]


def facts(**changes: object) -> dict[str, object]:
    return {name: NOT_APPLICABLE for name in FACTS} | changes


def test_the_list_of_facts_is_closed() -> None:
    Platform(facts())
    for wrong in (facts(hostname="x"), {k: v for k, v in facts().items() if k != "glibc"}):
        with pytest.raises(ValueError, match="closed list"):
            Platform(wrong)


def test_not_applicable_is_a_value_and_an_unreadable_fact_equals_no_other() -> None:
    assert Platform(facts()).digest == Platform(facts()).digest
    one = Platform(facts(glibc=unreadable("a1", "no such file")))
    two = Platform(facts(glibc=unreadable("a2", "no such file")))
    assert one.digest != two.digest
    assert (one.unreadable_facts(), Platform(facts()).unreadable_facts()) == (["glibc"], [])


def test_absent_empty_and_zero_are_three_environments() -> None:
    seen = [numerics_environment(e, ()) for e in ({}, {"MKL_CBWR": ""}, {"MKL_CBWR": "0"})]
    assert len({str(e) for e in seen}) == 3


def test_what_the_contract_sets_device_selectors_and_paths_are_left_out() -> None:
    environ = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "TRITON_CACHE_DIR": "/x",
        "TORCH_HOME": "/x",
        "CUDA_CACHE_PATH": "/x",
        "HOME": "/root",
        "ATEN_CPU_CAPABILITY": "default",
        "GLIBC_TUNABLES": "x",
    }
    kept = numerics_environment(environ, ["OMP_NUM_THREADS"])
    assert kept == {"ATEN_CPU_CAPABILITY": "default", "GLIBC_TUNABLES": "x"}


def test_a_package_is_its_files_with_a_hash_and_nothing_that_an_installer_leaves() -> None:
    record = "\n".join(
        [
            "torch/a.py,sha256=x,10",
            '"torch/odd,name.py",sha256=y,11',
            "torch/__pycache__/a.cpython-311.pyc,sha256=z,12",
            "torch/b.pyc,,",
            "torch-2.dist-info/RECORD,,",
            "torch-2.dist-info/INSTALLER,sha256=q,4",
            "torch-2.dist-info/REQUESTED,sha256=q,0",
            "torch-2.dist-info/direct_url.json,sha256=q,9",
            "../../../bin/torchrun,sha256=w,200",
        ]
    )
    assert record_digest_lines(record) == [
        '"torch/odd,name.py",sha256=y,11',
        "torch/a.py,sha256=x,10",
    ]


@pytest.mark.parametrize(
    ("flags", "asked", "level"),
    [
        (FLAGS_512, "", "avx512"),
        (FLAGS_512[:-1], "", "avx2"),
        (["avx2"], "", "default"),
        ([], "", "default"),
        (FLAGS_512, "default", "default"),
        (FLAGS_512, "AVX2", "avx2"),
        (FLAGS_512, "nonsense", "avx512"),
    ],
)
def test_the_isa_in_force_follows_atens_own_rule(flags: list[str], asked: str, level: str) -> None:
    environment = {"ATEN_CPU_CAPABILITY": asked} if asked else {}
    assert probe.cpu_isa(flags, environment)["aten"] == level


def test_the_order_of_cpu_flags_is_no_difference() -> None:
    assert probe.cpu_isa(["a", "b"], {}) == probe.cpu_isa(["b", "a"], {})
    assert probe.cpu_isa(["a", "b"], {}) != probe.cpu_isa(["a"], {})


def test_this_machine_reads_every_fact_twice_alike() -> None:
    one, two = probe.read_platform("a1", {}, ()), probe.read_platform("a2", {}, ())
    assert one.facts == two.facts
    assert one.unreadable_facts() == []
    assert {one.facts[name] for name in GPU_FACTS} == {NOT_APPLICABLE}
    assert {"torch", "transformers", "gptqmodel"} <= set(one.facts["packages"])
    assert not {"fleet", "ray", "duckdb"} & set(one.facts["packages"])
    assert f"torch {metadata.version('torch')}" in one.label()


@pytest.mark.parametrize("text", [None, "", "processor : 0\n"])
def test_a_cpu_that_does_not_say_what_it_is_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(probe, "CPUINFO", tmp_path / "cpuinfo")
    assert probe.read_platform("a1", {}, ()).unreadable_facts() == ["cpu_model", "cpu_isa"]


def test_of_two_installed_copies_the_one_that_would_be_imported_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in (("first", "1.0"), ("second", "2.0")):
        info = tmp_path / folder / f"numpy-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: NumPy\nVersion: {version}\n")
        (info / "RECORD").write_text(f"numpy/{version}.py,sha256=x,1\n")
    monkeypatch.setattr("sys.path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert probe.packages()["numpy"]["version"] == "1.0"


def test_a_unit_is_the_machine_and_its_node_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machine-id").write_text("m1\n")
    monkeypatch.setattr(probe, "MACHINE_ID", tmp_path / "machine-id")
    assert probe.read_unit("n1")["id"] == "cpu:m1:n1"
    monkeypatch.setattr(probe, "MACHINE_ID", tmp_path / "none")
    assert probe.read_unit("n1")["id"].startswith("cpu:host:")
