"""A policy's TOML: found like a contract, strict like one; and where its rules must hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.contract.load import BUILTIN
from fleet.contract.policy import LoadedPolicy, list_policies, load_policy
from fleet.errors import PolicyError
from fleet.schedule.gating import read_policy

GOOD = """schema = 1
mode = "warn"
[[rules]]
name = "a rule"
contracts = ["smollm2-*", "tiny-awq-torch"]
platforms = [{ gpu_model = "NVIDIA H200", packages.torch = "2.13.0" }]
grade = "logits"
scope = "same-class"
vary = ["none", "batch,order"]
min_units = 2
min_n = 48
max_age_days = 14
max_record_bound = 0.02
max_process_bound = 0.4
[[rules]]
contracts = ["tiny-awq-aten"]
fleet = "one-machine"
grade = "tokens"
"""


def load(tmp_path: Path, text: str) -> LoadedPolicy:
    path = tmp_path / "policies" / "mine.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return load_policy("mine", [tmp_path])


def test_a_policy_says_what_must_hold_where(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    first, second = found.policy.rules
    assert (found.name, found.policy.mode) == ("mine", "warn")
    assert first.claims() == ((), ("batch", "order"))
    assert first.platforms[0].flat() == {"gpu_model": "NVIDIA H200", "packages.torch": "2.13.0"}
    assert (second.name, second.scope, second.claims(), second.max_age_days) == (
        "rule 2", "same-unit", ((),), None,
    )  # fmt: skip


@pytest.mark.parametrize("name", list_policies([BUILTIN]))
def test_every_shipped_policy_loads_with_its_fleets(name: str) -> None:
    assert read_policy(name, [BUILTIN]).policy.rules


BAD = {
    "unknown key": ("min_n = 48", "min_n = 48\nmin_m = 1", "min_m", 'did you mean "min_n"'),
    "no rule": (GOOD, "rules = []", "rules", "at least"),
    "no contract": ('["tiny-awq-aten"]', "[]", "contracts", "list"),
    "a path": ('"tiny-awq-aten"', '"../x"', "contracts", "wildcards"),
    "grade": ('grade = "tokens"', 'grade = "bits"', "grade", "tokens"),
    "no grade": ('grade = "tokens"', "", "grade", "add it"),
    "scope": ("same-class", "anywhere", "scope", "same-unit"),
    "mode": ('"warn"', '"loud"', "mode", "block"),
    "claim": ('"batch,order"', '"weather"', "vary", "weather"),
    "claim twice": ('"batch,order"', '"none"', "vary", "once"),
    "both": ('fleet = "one-machine"', 'fleet = "x"\nplatforms = [{ os = "x" }]', "rules", "both"),
    "neither": ('fleet = "one-machine"', "", "rules[1]", "neither"),
    "no fact": ('gpu_model = "NVIDIA H200", packages.torch = "2.13.0"', "", "rules[0]", "fact"),
    "a fact that is none": ("gpu_model =", "gpu =", "platforms", "gpu_model"),
    "a number": ("min_units = 2", 'min_units = "2"', "min_units", "quotation"),
    "zero": ("min_units = 2", "min_units = 0", "min_units", "1"),
    "a share": ("0.02", "2.0", "max_record_bound", "1"),
    "not a number": ("max_age_days = 14", "max_age_days = nan", "max_age_days", "finite"),
    "a name twice": ('contracts = ["tiny', 'name = "a rule"\ncontracts = ["tiny', "name", "twice"),
    "newer": ("schema = 1", "schema = 2", "schema", "newer"),
    "no TOML": ("[[rules]]", "[[rules", "line", "TOML"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "words"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_understood_is_refused_with_its_key(
    tmp_path: Path, old: str, new: str, key: str, words: str
) -> None:
    assert old in GOOD
    with pytest.raises(PolicyError) as refused:
        load(tmp_path, GOOD.replace(old, new))
    assert refused.value.where.endswith("mine.toml")
    assert key in refused.value.key and words in str(refused.value)


def test_a_policy_or_a_fleet_that_is_not_there_says_which_are(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="example"):
        load_policy("exampel", [BUILTIN])
    with pytest.raises(PolicyError, match="no such file"):
        load_policy("./nowhere.toml", [])
    load(tmp_path, GOOD.replace('"one-machine"', '"one-machin"'))
    with pytest.raises(PolicyError, match=r"rules\[1\]\.fleet.*one-machine"):
        read_policy("mine", [tmp_path, BUILTIN])
