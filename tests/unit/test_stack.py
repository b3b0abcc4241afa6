"""A stack's TOML: strict like a contract, exactly one place, and held against what is in effect."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.load import BUILTIN
from fleet.contract.stack import (
    LoadedStack,
    Stack,
    changes,
    differences,
    list_stacks,
    load_stack,
)
from fleet.errors import AttemptVoid, StackError
from fleet.replay.probe import read_platform
from fleet.replay.software import others, require_frozen, software
from fleet.schedule import stacks
from fleet.schedule.stacks import (
    own_python,
    require_usable,
    source_folder,
    surroundings,
    to_toml,
    write,
)

ONE, TWO = "1" * 64, "2" * 64
GOOD = f"""schema = 1
python = "../venv/bin/python"
[facts]
python = "3.11.7"
os = "Linux x86_64"
[packages]
torch = {{ version = "2.13.0+cpu", record_sha256 = "{ONE}" }}
[others]
accelerate = "1.15.0"
"jaraco.text" = "4.0"
"""


def load(tmp_path: Path, text: str, **environ: str) -> LoadedStack:
    path = tmp_path / "stacks" / "mine.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return load_stack("mine", [tmp_path], environ)


def test_a_stack_says_where_it_is_and_what_was_frozen(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    assert (found.name, found.python) == ("mine", str(tmp_path / "venv/bin/python"))
    assert found.stack.versions() == {
        "accelerate": "1.15.0", "jaraco.text": "4.0", "torch": "2.13.0+cpu",
    }  # fmt: skip
    assert list_stacks([tmp_path]) == ["mine"]


def test_a_link_to_a_python_stays_one_for_it_makes_the_environment(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to("/usr/bin/env")
    assert load(tmp_path, GOOD).python == str(tmp_path / "venv/bin/python")


def test_a_path_may_name_variables_that_are_set(tmp_path: Path) -> None:
    text = GOOD.replace("../venv", "${VENVS}/a")
    assert load(tmp_path, text, VENVS="/srv").python == "/srv/a/bin/python"
    with pytest.raises(StackError, match=r"\$VENVS set, got it is not set"):
        load(tmp_path, text)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    again = load(tmp_path, to_toml(found.stack))
    assert again.stack == found.stack and again.digest == found.digest
    pool = GOOD.replace('python = "../venv/bin/python"', 'labels = { "fleet.dev/stack" = "a" }')
    assert load(tmp_path, to_toml(load(tmp_path, pool).stack)).stack.labels == {
        "fleet.dev/stack": "a"
    }


def test_the_digest_is_of_the_software_and_not_of_its_place(tmp_path: Path) -> None:
    one = load(tmp_path, GOOD).digest
    assert load(tmp_path, GOOD.replace("../venv", "/opt")).digest == one
    for old, new in (("2.13.0", "2.14.0"), (ONE, TWO), ("1.15.0", "1.16.0"), ("3.11.7", "3.11.8")):
        assert load(tmp_path, GOOD.replace(old, new)).digest != one


BAD = {
    "unknown key": ("[others]", "[other]", "other", 'did you mean "others"'),
    "wrong type": ('"1.15.0"', "1.15", "others.accelerate", "a version"),
    "no place": ('python = "../venv/bin/python"', "", "", "one of python, image and labels"),
    "two places": ("[facts]", 'image = "a"\n[facts]', "", "python and image"),
    "no such digest": (ONE, "abc", "packages.torch.record_sha256", "64 hexadecimal digits"),
    "no version": ('version = "2.13.0+cpu", ', "", "packages.torch.version", "no such key"),
    "in both tables": ("accelerate", "torch", "others", "torch in both"),
    "nothing frozen": ('python = "3.11.7"', "", "facts.python", "no such key"),
    "newer": ("schema = 1", "schema = 9", "schema", "update fleet"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_understood_is_refused_with_its_key(tmp_path: Path, name: str) -> None:
    old, new, key, words = BAD[name]
    with pytest.raises(StackError) as refused:
        load(tmp_path, GOOD.replace(old, new))
    assert refused.value.key == key and words in str(refused.value), refused.value
    assert "mine.toml" in refused.value.where


def test_a_stack_that_is_nowhere_is_refused_with_those_there_are(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    with pytest.raises(StackError, match='did you mean "mine"'):
        load_stack("mien", [tmp_path])


def stack(**changed: Any) -> Stack:
    base = {
        "python": "/a",
        "facts": {"python": "3.11.7"},
        "packages": {"torch": {"version": "2.13.0", "record_sha256": ONE}},
        "others": {"accelerate": "1.0"},
    }
    return Stack.model_validate(base | changed)


def test_changes_name_what_two_stacks_have_otherwise() -> None:
    new = stack(
        packages={
            "torch": {"version": "2.13.0", "record_sha256": TWO},
            "triton": {"version": "3.0", "record_sha256": ONE},
        },
        others={},
        facts={"python": "3.11.7", "driver": "570"},
    )
    told = [change.in_words() for change in changes(stack(), new)]
    assert told == [
        f"torch 2.13.0 ({ONE[:12]}) -> 2.13.0 ({TWO[:12]})",
        "triton absent -> 3.0",
        "accelerate 1.0 -> absent",
        "driver absent -> 570",
    ]
    assert changes(stack(), stack()) == []


def test_every_difference_from_what_was_frozen_is_named() -> None:
    frozen = stack().frozen()
    found: dict[str, Any] = {
        "facts": {"python": "3.11.8", "driver": "570"},
        "packages": {"torch": {"version": "2.14.0", "record_sha256": ONE}, "triton": None},
        "others": {"accelerate": "1.0", "extra": "2"},
    }
    del found["packages"]["triton"]
    told = differences(frozen, found)
    assert [line.split()[0] for line in told] == ["python", "torch", "extra"]
    assert "frozen absent" in told[2]


def test_a_replay_finds_what_was_frozen_here_and_nothing_else() -> None:
    facts = read_platform("a", {}, ()).facts
    found = software(facts)
    frozen = {"name": "here", "digest": "", "frozen": found}
    require_frozen(frozen, facts)
    other = {**found, "others": found["others"] | {"ray": "0.1"}}
    with pytest.raises(AttemptVoid) as ended:
        require_frozen(frozen | {"frozen": other}, facts)
    assert ended.value.code == "stack-differs"
    assert ended.value.text == f"stack here: in effect ray {found['others']['ray']}, frozen 0.1"


def test_fleet_reaches_another_environment_by_a_folder_that_holds_nothing_else(
    tmp_path: Path,
) -> None:
    folder = source_folder(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["fleet"]
    assert source_folder(tmp_path) == folder
    loaded = LoadedStack("a", Path("a.toml"), stack(), "/a")
    around = surroundings(loaded, tmp_path)
    assert (around.python, around.variables) == ("/a", {"PYTHONPATH": str(folder)})


def tells(*answers: dict[str, Any]) -> str:
    """A program that answers so, whatever it is asked."""
    lines = [f"echo '{json.dumps(answer)}'" for answer in answers]
    return "\n".join(["#!/bin/sh", *lines, ""])


PYTHON, RAY = platform.python_version(), metadata.version("ray")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("", "no such file or directory"),
        ("#!/bin/sh\nexit 3\n", "a python that answers"),
        (tells({"python": "3.9.1"}), "got 3.9.1 in"),
        (tells({"python": PYTHON, "ray": None}), "got none in"),
        (tells({"python": PYTHON, "ray": "2.0"}), "got 2.0 in"),
        (tells({"python": PYTHON, "ray": RAY}, {"faults": ["No module named x"]}), "named x"),
    ],
)
def test_an_environment_that_no_replay_could_run_in_is_refused(
    tmp_path: Path, program: str, words: str
) -> None:
    python = tmp_path / "python"
    if program:
        python.write_text(program)
        python.chmod(0o755)
    loaded = LoadedStack("a", Path("a.toml"), stack(), str(python))
    with pytest.raises(StackError) as refused:
        require_usable(loaded, tmp_path)
    assert words in str(refused.value).lower() and refused.value.where == "a.toml"


def test_this_environment_is_frozen_from_a_process_of_its_own(tmp_path: Path) -> None:
    text = stacks.freeze(own_python(), "here", tmp_path)
    file = write(tmp_path / "stacks" / "here.toml", text)
    loaded = load_stack("here", [tmp_path])
    assert loaded.stack.packages["torch"].version == metadata.version("torch")
    assert loaded.stack.others["ray"] == metadata.version("ray")
    assert not {"fleet", "pip"} & loaded.stack.versions().keys()
    with pytest.raises(StackError, match="File exists"):
        write(file, text)


@pytest.mark.parametrize("name", list_stacks([BUILTIN]))
def test_every_shipped_stack_loads_and_is_of_one_python(name: str) -> None:
    found = load_stack(name, [BUILTIN], {"FLEET_STACKS": "/srv"})
    assert found.python == f"/srv/{name}/bin/python"
    assert found.stack.facts.python == "3.11.7" and "ray" in found.stack.others


def test_what_a_package_carries_inside_itself_is_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is on the path depends on what was imported before."""
    for folder in ("carrier/_vendor", "beside"):
        info = tmp_path / folder / f"{folder.partition('/')[0]}_dist-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {folder.partition('/')[0]}-dist\nVersion: 1.0\n")
    (tmp_path / "carrier" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "carrier/_vendor"), str(tmp_path / "beside")])
    assert others(()) == {"beside-dist": "1.0"}


def test_a_path_that_nobody_may_look_into_holds_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray puts the driver's path behind a worker's; in a container it may be another user's."""

    def refused(path: str) -> bool:
        raise AssertionError("os.path.exists says no instead of raising")

    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(closed / "bin")])
    closed.chmod(0)
    monkeypatch.setattr(Path, "exists", refused)
    try:
        assert others(()) == {}
    finally:
        closed.chmod(0o700)
