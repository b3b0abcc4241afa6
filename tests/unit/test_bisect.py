"""``--bisect``: stacks between two stacks, screened, certified where nothing differs, resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.stack import LoadedStack, Stack
from fleet.errors import CampaignStopped, StackError, UsageError
from fleet.report.upgrade import UpgradeAnswer
from fleet.report.upgrade_view import print_markdown, print_upgrade
from fleet.schedule import bisect as room
from fleet.schedule import mixtures, upgrade
from fleet.schedule.mixtures import Refused
from fleet.schedule.stacks import Told
from fleet.schedule.upgrade import UpgradeRequest, plan_upgrade, run_upgrade
from tests.campaigns import QUICK, places_in, write_configs
from tests.two_stacks import OTHER, StackLauncher, World, python_in, write_stack
from tests.unit.screens import shown

MOVED = {"numpy": "99.0", "pillow": "99.0", "safetensors": "99.0", "tokenizers": "99.0"}
GUILTY = "safetensors"

Requires = dict[str, list[str]]


@dataclass
class Registry:
    """In place of the resolver: builds what it is asked for, or refuses; ``worlds`` as replays
    find them. ``refuses``: packages that it does not take as new alone."""

    root: Path
    worlds: dict[str, World]
    refuses: tuple[str, ...] = ()
    fails: str = ""
    requires: Mapping[str, Requires] = field(default_factory=dict)
    built: list[tuple[str, ...]] = field(default_factory=list)

    def build(
        self, versions: Mapping[str, str], unfit: Any, like: LoadedStack, cache: Path
    ) -> LoadedStack | Refused:
        moved = tuple(name for name in MOVED if versions[name] == "99.0")
        self.built.append(moved)
        if self.fails in moved:
            raise CampaignStopped("the registry does not answer")
        if any(name in moved for name in self.refuses) and moved != tuple(MOVED):
            return Refused("No solution found")
        name = f"mixed{len(self.built)}"
        offset = 0.5 if GUILTY in moved else 0.0
        self.worlds[name] = World({n: "99.0" for n in moved}, offset=offset)
        packages = dict(like.stack.packages) | {
            n: like.stack.packages[n].model_copy(update={"version": "99.0", "record_sha256": OTHER})
            for n in moved
        }
        stack = like.stack.model_copy(update={"packages": packages})
        python = str(python_in(self.root, name))
        return LoadedStack(name, self.root / name, stack, python)

    def ask(self, python: str, where: str, cache: Path) -> Told:
        return Told({}, self.requires.get(Path(python).name.removesuffix("-python"), {}))


@pytest.fixture(scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def registry(tmp_path: Path, _cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("FLEET_CACHE", str(_cache))
    write_configs(tmp_path / "configs")
    write_stack(tmp_path, "old")
    write_stack(tmp_path, "new", **MOVED)
    made = Registry(tmp_path, {"new": World(MOVED, offset=0.5)})
    monkeypatch.setattr(upgrade, "require_usable", lambda loaded, cache: None)
    monkeypatch.setattr(room, "build", lambda *args: made.build(*args))
    monkeypatch.setattr(room, "ask", lambda *args: made.ask(*args))
    yield made


def bisected(registry: Registry) -> UpgradeAnswer:
    places = places_in(registry.root)
    request = UpgradeRequest("old", "new", ("toy",), bisect=True, limits=QUICK)
    plan = plan_upgrade(request, places, lambda _: None)
    launcher = StackLauncher(worlds=registry.worlds)
    return run_upgrade(request, plan, places, launcher, lambda _: None)


def test_one_package_of_four_is_shown_to_bring_the_change_by_itself(registry: Registry) -> None:
    answer = bisected(registry)
    found = answer.entries[0].bisection
    assert (found["moves"], found["before"], found["alone"]) == (
        ["safetensors"], ["numpy", "pillow"], True,
    )  # fmt: skip
    assert registry.built == [
        ("numpy", "pillow"), ("numpy", "pillow", "safetensors"), ("safetensors",),
    ]  # fmt: skip
    seen = [(step["seen"], step["words"].split(":")[0]) for step in found["steps"]]
    assert seen == [("base", "certified"), ("changed", "screened"), ("changed", "screened")]
    text = shown(print_upgrade, answer, 200)
    assert "safetensors brings the change, by itself, all else as in the base" in text
    assert "safetensors brings the change" in shown(print_markdown, answer, 200)


def test_packages_that_the_resolver_does_not_part_move_together(registry: Registry) -> None:
    registry.refuses = ("safetensors",)
    answer = bisected(registry)
    found = answer.entries[0].bisection
    assert found["moves"] == ["safetensors", "tokenizers"] and found["alone"] is None
    assert found["undivided"]
    assert "no step parted safetensors, tokenizers: one or more" in shown(
        print_upgrade, answer, 200
    )


def test_where_nothing_could_be_built_nothing_is_said_to_be_shown(registry: Registry) -> None:
    registry.refuses = tuple(MOVED)
    answer = bisected(registry)
    found = answer.entries[0].bisection
    assert found["undivided"] and {step["seen"] for step in found["steps"]} == {"refused"}
    text = shown(print_upgrade, answer, 200)
    assert "not bisected: no step told anything" in text and "shown by replays" not in text


def test_packages_that_take_each_other_only_as_they_are_move_together(registry: Registry) -> None:
    registry.requires = {"new": {"pillow": ["safetensors==99.0"], "safetensors": ["pillow==99.0"]}}
    answer = bisected(registry)
    found = answer.entries[0].bisection
    assert found["moves"] == ["pillow", "safetensors"] and not found["undivided"]
    assert "pillow, safetensors, which move together," in shown(print_upgrade, answer, 200)


@pytest.mark.slow
def test_a_search_that_was_interrupted_goes_on(registry: Registry) -> None:
    registry.fails = "safetensors"
    with pytest.raises(CampaignStopped):
        bisected(registry)
    assert registry.built == [("numpy", "pillow"), ("numpy", "pillow", "safetensors")]
    registry.fails = ""
    registry.built.clear()
    assert bisected(registry).entries[0].bisection["moves"] == ["safetensors"]
    assert registry.built == [("numpy", "pillow", "safetensors"), ("safetensors",)]


def test_stacks_that_nothing_can_be_built_between_are_refused_first(registry: Registry) -> None:
    file = registry.root / "configs" / "stacks" / "new.toml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join('image = "a"' if x.startswith('python = "/') else x for x in lines))
    with pytest.raises(StackError, match="leave --bisect out"):
        bisected(registry)
    assert not (registry.root / "var").exists()


# the resolver


def stack(**versions: str) -> Stack:
    packages = {n: {"version": v, "record_sha256": OTHER} for n, v in versions.items()}
    return Stack.model_validate(
        {"python": "/a", "facts": {"python": "3.11.7"}, "packages": packages}
    )


def test_a_mixture_built_with_other_files_is_said(tmp_path: Path) -> None:
    built, end = stack(numpy="1", pillow="2"), stack(numpy="1", pillow="3")
    assert mixtures.same_content(built, [end]) == []
    other = {"numpy": {"version": "1", "record_sha256": "1" * 64}}
    end = Stack.model_validate(end.model_dump() | {"packages": other})
    assert mixtures.same_content(built, [end]) == ["numpy"]


def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int) -> LoadedStack:
    """A resolver that makes an environment of this Python, or ends so."""
    program, python = tmp_path / "uv", python_in(tmp_path, "made")
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        'if [ "$1" = venv ]; then for folder; do :; done; mkdir -p "$folder/bin"\n'
        f'cp {python} "$folder/bin/python"; exit 0; fi\n'
        f'echo "{says}" >&2; exit {code}\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(mixtures, "uv", lambda: str(program))
    return LoadedStack("old", Path("old.toml"), stack(numpy="1"), "/usr/bin/python3")


def test_what_the_resolver_does_not_take_is_refused_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = fake_uv(tmp_path, monkeypatch, "No solution found: a==1 depends on b==1", 1)
    found = mixtures.build({"numpy": "1"}, ["numpy"], like, tmp_path)
    assert isinstance(found, Refused) and "a==1 depends on b==1" in found.words
    (folder,) = (tmp_path / "stacks").iterdir()
    assert (folder / "set.txt").read_text() == (folder / "unfit.txt").read_text() == "numpy==1\n"


NOT_TO_BE_HAD = {
    "no answer": ("error: connection reset", "connection reset"),
    "no such version": (
        "No solution found: there is no version of torch==2.13.0+cpu and you require it",
        "UV_FIND_LINKS",
    ),
    "no such version for a dependant": (
        "No solution found: there is no version of b==1 and a==1 depends on b==1", "UV_FIND_LINKS",
    ),
    "no such package": ("No solution found: b was not found in the package registry", "UV_INDEX"),
    "no such wheel": ("No solution found: b==1 has no wheels with a matching tag", "UV_INDEX"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_TO_BE_HAD)
def test_what_is_not_to_be_had_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    says, told = NOT_TO_BE_HAD[case]
    like = fake_uv(tmp_path, monkeypatch, says, 2)
    with pytest.raises(CampaignStopped, match=told):
        mixtures.build({"numpy": "1"}, [], like, tmp_path)


def test_what_is_installed_beyond_the_set_is_refused_and_a_finished_set_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = fake_uv(tmp_path, monkeypatch, "", 0)
    found = mixtures.build({"numpy": "1"}, [], like, tmp_path)
    assert isinstance(found, Refused) and "installs more" in found.words
    from fleet.schedule.stacks import ask, own_python

    here = Stack.model_validate({"python": "/a"} | ask(own_python(), "here", tmp_path).frozen)
    made = mixtures.build(here.versions(), [], like, tmp_path)
    assert isinstance(made, LoadedStack) and made.stack.versions() == here.versions()
    asked = (tmp_path / "asked").read_text()
    again = mixtures.build(here.versions(), [], like, tmp_path)
    assert isinstance(again, LoadedStack) and again.digest == made.digest
    assert (tmp_path / "asked").read_text() == asked


def test_without_a_resolver_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixtures.shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(UsageError, match=r"fleet\[stacks\]"):
        mixtures.uv()
