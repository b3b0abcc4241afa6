"""What the judge makes of evidence about one call: repeats, operations, weights, classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet.evidence.operations import Operation
from fleet.evidence.trace import WeightRow
from fleet.judge.bounds import record_bound
from fleet.judge.tracing.culprit import Culprit, Source
from fleet.judge.tracing.localise import localise
from fleet.judge.tracing.proof import is_one_operation
from fleet.judge.tracing.verdict import layers_of
from tests.unit.evidence_builders import sha
from tests.unit.trace_builders import layer, step_of, trace


def result(**changes: Any) -> Mapping[str, Any]:
    """What repeating call ``l.a`` of step 0 gave."""
    base: dict[str, Any] = {
        "arm": "a", "batch": 0, "step": 0, "path": "l.a", "occurrence": 0, "repeats": 20,
        "unique": 1, "outputs": {"o": 20}, "in_sha256": "sha256:i", "first": None, "trouble": "",
        "executed": 3, "executed_sha256": "sha256:e", "zoom": None,
    }  # fmt: skip
    return base | changes


def kind_of(*results: Mapping[str, Any], **changes: Any) -> tuple[str, str]:
    odd = trace(layer("i>J", "K", "J>K"), **changes)
    repeated = [trace(layer(), repeats=(r,)) for r in results]
    culprit = localise([trace(layer()), odd], repeated).culprit
    assert culprit is not None and culprit.path == "l.a"
    return culprit.kind, culprit.words


OUT = {"phase": "out", "path": "l.a", "occurrence": 0, "unique": 2}


def test_two_outputs_of_one_frozen_input_are_a_race() -> None:
    assert kind_of(result(), result(unique=2, first=OUT))[0] == "race"


def test_repeats_that_part_elsewhere_prove_nothing_here() -> None:
    elsewhere = {**OUT, "path": "l.a.deep"}
    kind, words = kind_of(result(unique=2, first=elsewhere))
    assert kind == "undecided" and "part first at the end of l.a.deep" in words


def test_repeats_in_trouble_do_not_count() -> None:
    kind, words = kind_of(result(unique=2, first=OUT, trouble="weights changed"))
    assert (kind, words) == ("undecided", "not repeated: race or kernel choice, undecided")


def test_repeats_of_another_call_do_not_count() -> None:
    for other in ({"step": 1}, {"path": "l.b"}, {"occurrence": 1}, {"arm": "b"}, {"batch": 1}):
        assert kind_of(result(unique=2, first=OUT, **other))[0] == "undecided"


def test_clean_repeats_bound_a_race_by_their_sum() -> None:
    kind, words = kind_of(result(), result(repeats=30))
    assert kind == "undecided" and f"{record_bound(50):.2g}" in words


OTHER = {"executed_sha256": "sha256:f", "outputs": {"p": 20}}


def test_a_kernel_choice_takes_one_input_other_operations_and_other_outputs() -> None:
    assert kind_of(result(), result(**OTHER))[0] == "kernel_choice"


@pytest.mark.parametrize(
    "changes",
    [
        OTHER | {"in_sha256": "sha256:other"},
        OTHER | {"outputs": {"o": 20}},
        OTHER | {"executed_sha256": "sha256:e"},
        OTHER | {"executed_sha256": ""},
        OTHER | {"trouble": "cannot be restored"},
    ],
)
def test_without_one_of_them_it_stays_undecided(changes: dict[str, Any]) -> None:
    assert kind_of(result(), result(**changes))[0] == "undecided"


def operation(name: str = "aten.mm", went: str = "i", out: str = "o", **more: Any) -> Any:
    """As a zoomed repeat keeps it."""
    return Operation(name, sha(went), sha(out), "a.py:3 in f: x @ w", **more).to_json()


def inside(mine: Any, theirs: Any, source: Source = "stacks", **changes: Any) -> Culprit:
    """What two steady processes with these operations, and other outputs, are said to show."""
    repeated = [
        trace(layer(), repeats=(result(operations=mine),)),
        trace(layer(), repeats=(result(**{"outputs": {"p": 20}, "operations": theirs} | changes),)),
    ]
    found = localise([trace(layer()), trace(layer("i>J", "K", "J>K"))], repeated, source).culprit
    assert found is not None
    return found


def test_an_operation_of_equal_input_and_other_output_is_shown_across_processes() -> None:
    both = [operation("aten.t"), operation()], [operation("aten.t"), operation(out="p")]
    found = inside(*both)
    assert found.zoom is not None and (found.zoom["index"], found.zoom["how"]) == (1, "output")
    assert is_one_operation(found) and found.kind == "undecided"
    assert found.words == (
        "the same input, another output, each stack's own in 40 repeats; inside it aten.mm has "
        "the same input and another output (a.py:3 in f: x @ w)"
    )
    within = inside(*both, source="later")
    assert "a rare race" in within.words and "inside it aten.mm has" in within.words


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ([operation(went="j", out="p")], "the code before aten.mm differs"),
        ([operation("aten.bmm", out="p")], "other operations ran first at aten.mm or aten.bmm"),
        ([operation(), operation("aten.add")], "other operations ran first at aten.add"),
        ([operation(out="p", hashed=False)], "an input that is not all hashed"),
    ],
)
def test_what_is_no_operation_of_equal_input_is_not_called_one(theirs: Any, words: str) -> None:
    found = inside([operation()], theirs)
    assert words in found.words and not is_one_operation(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"operations": None},
        {"in_sha256": "sha256:other"},
        {"outputs": {"o": 20}},
        {"unique": 2, "first": {**OUT, "path": "l.a.deep"}},
        {"trouble": "cannot be restored"},
    ],
)
def test_processes_that_are_not_steady_or_unlike_show_no_operation(changes: Any) -> None:
    assert inside([operation()], [operation(out="p")], **changes).zoom is None


def test_a_race_on_one_of_two_stacks_is_a_race() -> None:
    found = inside([operation()], None, unique=2, first=OUT)
    assert found.kind == "race" and "outputs of one frozen input" in found.words


def test_across_stacks_what_was_not_repeated_is_no_race() -> None:
    pair = [trace(layer()), trace(layer("i>J", "K", "J>K"))]
    found = localise(pair, source="stacks").culprit
    assert found is not None and found.words == "the same input, another output"


def weight(load: str, end: str) -> dict[str, WeightRow]:
    return {"l.a.w": WeightRow("l.a.w", "l.a", sha(load), sha(end))}


def test_a_weight_accuses_only_when_the_two_replays_end_unlike() -> None:
    a, odd = trace(layer()), trace(layer("i>J", "K", "J>K"))
    found = localise([replace(a, weights=weight("w", "w")), replace(odd, weights=weight("w", "v"))])
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.tensor) == ("weights", "l.a.w")
    assert layers_of(found.culprit) == (5,)
    both = [replace(t, weights=weight("w", "v")) for t in (a, odd)]
    found = localise(both)
    assert found.culprit is not None and found.culprit.kind == "undecided"
    assert any("1 weights changed" in words for words in found.not_localised)


def test_a_weight_of_a_module_of_another_class_is_heterogeneity() -> None:
    a, b = trace(layer(), weights=weight("w", "w")), trace(layer())
    modules = {**b.modules, "l.a": replace(b.modules["l.a"], class_name="N")}
    culprit = localise([a, replace(b, modules=modules)]).culprit
    assert culprit is not None and (culprit.kind, culprit.path) == ("heterogeneity", "l.a")
    plain = localise([a, b]).culprit
    assert plain is not None and (plain.kind, layers_of(plain)) == ("weights", (3,))


def test_other_samples_in_a_batch_are_a_batch_shape() -> None:
    a = trace(layer())
    calls = tuple(replace(c, sample_ids=("s", "t"), shape="2,2") for c in step_of(layer("I>j")))
    changed = [replace(c, args_sha256=sha("X"), in_sha256=sha("X")) for c in calls]
    culprit = localise([a, replace(a, calls=tuple(changed))]).culprit
    assert culprit is not None and (culprit.kind, culprit.path) == ("batch_shape", None)
