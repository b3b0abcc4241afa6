"""What a trace answers, as a document and on the screen."""

from __future__ import annotations

from typing import Any

from fleet.evidence.trace import Trace
from fleet.judge.tracing.localise import localise
from fleet.report.trace_view import place_of, print_trace
from fleet.report.traces import Traced, result_of, trace_document
from tests.unit.hand_traces import trace_of
from tests.unit.screens import shown

HEAD = {
    "execution_id": "sha256:00", "platform": "p", "samples": ["s0"], "chosen": "as asked",
    "arms": ["current"], "steps": "all",
}  # fmt: skip


def about(*traces: Trace, repeated: tuple[Trace, ...] = ()) -> Traced:
    found = localise(traces, repeated) if len(traces) > 1 else None
    return Traced(found, traces, repeated)


def entry_of(*traces: Trace, repeated: tuple[Trace, ...] = ()) -> dict[str, Any]:
    return trace_document("mine", about(*traces, repeated=repeated), HEAD)


def text_of(entry: dict[str, Any]) -> str:
    return shown(print_trace, {"contracts": [entry]})


def test_equal_traces_are_no_difference_and_no_verdict() -> None:
    entry = entry_of(trace_of("a", b"o"), trace_of("b", b"o"))
    assert (entry["result"], entry["culprit"]) == ("NO_DIFFERENCE_SEEN", None)
    assert "no difference seen (no verdict)" in text_of(entry)


def test_one_trace_and_traces_without_a_call_are_no_evidence() -> None:
    assert result_of(about(trace_of("a", b"o"))) == "NO_EVIDENCE"
    assert result_of(about(trace_of("a"), trace_of("b"))) == "NO_EVIDENCE"


def test_a_race_is_told_with_its_counts() -> None:
    pair = (trace_of("a", b"o", logits=b"l"), trace_of("b", b"p", logits=b"m"))
    entry = entry_of(*pair, repeated=(trace_of("c", b"o", unique=7),))
    culprit = entry["culprit"]
    asked = {"path", "class", "backend", "mode", "dtype", "shape", "kind", "unique", "repeats",
             "bound", "source", "survives_to_logits"}  # fmt: skip
    assert asked <= set(culprit)
    assert (culprit["path"], culprit["kind"], culprit["unique"]) == ("layer", "race", 7)
    text = text_of(entry)
    assert "first divergence: layer (Linear)" in text
    assert "repeated: 7 distinct outputs of 9" in text
    assert "reaches the logits: yes" in text


def test_clean_repeats_leave_it_undecided_with_a_bound() -> None:
    pair = (trace_of("a", b"o"), trace_of("b", b"p"))
    clean = tuple(trace_of(name, b"o", unique=1) for name in "cd")
    culprit = entry_of(*pair, repeated=clean)["culprit"]
    assert (culprit["kind"], culprit["unique"], culprit["repeats"]) == ("undecided", 1, 18)
    assert culprit["bound"] == 1 - 0.05 ** (1 / 18)


def test_of_many_replays_the_one_that_departs_is_named_with_its_step() -> None:
    same = [trace_of(name, b"o", b"o") for name in "abcdef"]
    odd = trace_of("g", b"o", b"x")
    entry = entry_of(*same[:4], odd, *same[4:])
    assert entry["departures"][0]["classes"] == [[0, 1, 2, 3, 5, 6], [4]]
    assert "6 agree, replay 4 departs at current/s0 step 1, layer" in text_of(entry)


def test_logits_that_differ_outside_the_trace_are_said_so() -> None:
    pair = (trace_of("a", b"o", logits=b"l"), trace_of("b", b"o", logits=b"m"))
    entry = entry_of(*pair)
    assert (entry["result"], entry["culprit"]) == ("DIFFERENT", None)
    assert "raw logits differ and no traced call does" in text_of(entry)


def test_what_accuses_no_module_is_called_what_it_is() -> None:
    words = {
        kind: place_of({"path": None, "kind": kind})
        for kind in ("input", "batch_shape", "cache", "structure")
    }
    assert words["input"] == "the model's input, no module"
    assert words["cache"] == "the cache, no layer known"
    assert words["structure"] == "no module"
