"""What a replay in a container image sees of its node, and how an image is frozen."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import fleet
from fleet.contract.stack import LoadedStack, Stack, load_stack
from fleet.errors import StackError, UsageError
from fleet.replay.task import ReplayTask
from fleet.schedule import containers
from fleet.schedule.actors import runtime_env
from fleet.schedule.containers import SOURCE, container
from fleet.schedule.launcher import Surroundings
from fleet.schedule.stacks import freeze_image, own_python, surroundings, write
from tests.two_stacks import OTHER


def tasks(root: Path) -> list[ReplayTask]:
    """One task whose files are where a user may have them."""
    for folder in ("my configs/contracts", "my configs/datasets", "snapshot", "blobs"):
        (root / folder).mkdir(parents=True)
    (root / "blobs" / "a1").touch()
    (root / "snapshot" / "model.safetensors").symlink_to(root / "blobs" / "a1")
    return [
        ReplayTask(
            attempt="ab" * 8,
            campaign="c",
            slot=0,
            purpose="certify",
            contract_name="a",
            contract_file=str(root / "my configs/contracts/a.toml"),
            contract={"arms": {"x": {"parser": "file:../p/b.py"}, "y": {"parser": "letter"}}},
            execution_id="sha256:0",
            digests={},
            checkpoint=str(root / "snapshot"),
            dataset_file=str(root / "my configs/datasets/d.jsonl"),
            sample_ids=("s",),
            arms=("x", "y"),
            landing=str(root / "landing"),
            scratch=str(root / "scratch"),
            node_label="n",
        )
    ]


def mounted(options: list[str]) -> list[str]:
    assert options[0] == "--user $(id -u):$(id -g)"  # whoever started Ray, whatever the image says
    words = [shlex.split(option) for option in options[1:]]
    assert all(len(each) == 2 and each[0] == "-v" for each in words)
    return [each[1] for each in words]


def test_what_a_task_names_is_mounted_and_only_what_it_writes_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machine-id").touch()
    monkeypatch.setattr(containers, "MACHINE_ID", tmp_path / "machine-id")
    found = container("image:1", tasks(tmp_path))
    assert found["image"] == "image:1"
    seen = [x.replace(f"{tmp_path}/", "") for x in mounted(found["run_options"])]
    assert seen[0] == f"{Path(fleet.__file__).resolve().parent}:{SOURCE}/fleet:ro"
    assert seen[1:4] == ["machine-id:machine-id:ro", "landing:landing", "scratch:scratch"]
    assert {x.partition(":")[0] for x in seen[4:]} == {
        "my configs/contracts", "my configs/p", "my configs/datasets", "snapshot", "blobs",
    }  # fmt: skip
    assert all(x.endswith(":ro") for x in seen[4:])
    assert (tmp_path / "landing").is_dir() and (tmp_path / "scratch").is_dir()


def test_a_machine_without_an_id_is_named_by_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "MACHINE_ID", tmp_path / "none")
    assert not any("none" in x for x in mounted(container("a", tasks(tmp_path))["run_options"]))


def test_a_process_in_a_container_keeps_the_variables_that_it_was_given(tmp_path: Path) -> None:
    stack = Stack.model_validate(
        {
            "image": "image:1",
            "facts": {"python": "3.11.7"},
            "packages": {"numpy": {"version": "1", "record_sha256": OTHER}},
        }
    )
    around = surroundings(LoadedStack("a", Path("a.toml"), stack), tmp_path)
    given = runtime_env({"OMP_NUM_THREADS": "1"}, around, tasks(tmp_path))
    assert given is not None and given["container"]["image"] == "image:1"
    # a title written over them would take some away: they are evidence
    assert given["env_vars"] == {
        "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE, "SPT_NOENV": "1",
    }  # fmt: skip
    assert runtime_env({}, Surroundings()) is None


def put_podman(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of podman: the image is this environment."""
    program = folder / "bin" / "podman"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != image:1 ]; do\n'
        '[ "$1" = image:2 ] && { echo "Error: no such image" >&2; exit 125; }\n'
        "shift; done; shift\n"
        f'PYTHONPATH={Path(fleet.__file__).resolve().parents[1]} exec {own_python()} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_an_image_is_frozen_by_asking_its_own_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_podman(tmp_path, monkeypatch)
    write(tmp_path / "stacks" / "a.toml", freeze_image("image:1", "stack freeze"))
    found = load_stack("a", [tmp_path])
    assert (found.stack.image, found.python) == ("image:1", None)
    assert "torch" in found.stack.packages
    with pytest.raises(StackError, match="no such image") as refused:
        freeze_image("image:2", "stack freeze")
    assert refused.value.key == "image"


def test_without_podman_no_image_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.schedule.containers.shutil.which", lambda name: None)
    with pytest.raises(UsageError, match="podman"):
        freeze_image("image:1", "stack freeze")
