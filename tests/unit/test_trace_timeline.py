"""Where hand-made traces part, who heals, and which departure is looked into."""

from __future__ import annotations

from dataclasses import replace

from fleet.evidence.trace import Trace
from fleet.judge.tracing.calls import Aligned, ancestors, place_of
from fleet.judge.tracing.localise import MAX_DEPARTURES, localise
from fleet.judge.tracing.timeline import departures, groups_of, timeline
from tests.unit.trace_builders import Script, layer, trace


def parted(*traces: Trace) -> list[tuple[str, str, str, tuple[tuple[int, ...], ...]]]:
    (group,) = groups_of(traces)
    found = departures([timeline(t, group) for t in traces], group)
    return [(d.what, d.phase, d.call.path, d.classes) for d in found]


def test_equal_traces_never_part() -> None:
    assert parted(trace(layer(), layer()), trace(layer(), layer())) == []


def test_observations_come_in_the_order_of_time() -> None:
    seen = [(o.phase, o.call.path) for o in timeline(trace(layer()), ("a", 0))]
    assert seen == [
        ("in", ""), ("in", "l"), ("in", "l.a"), ("out", "l.a"), ("in", "l.b"), ("out", "l.b"),
        ("out", "l"), ("out", ""),
    ]  # fmt: skip


def test_the_first_observation_that_differs_decides() -> None:
    odd = layer("i>J", "K", "J>K")
    assert parted(trace(layer()), trace(odd)) == [("out", "out", "l.a", ((0,), (1,)))]
    gap = layer("i>j", "K", "J>K")
    assert parted(trace(layer()), trace(gap)) == [("args", "in", "l.b", ((0,), (1,)))]


def test_the_larger_class_stays_and_of_equal_ones_the_first() -> None:
    odd = layer("i>J", "K", "J>K")
    assert parted(trace(odd), trace(layer()), trace(layer()))[0][3] == ((1, 2), (0,))
    assert parted(trace(odd), trace(layer()))[0][3] == ((0,), (1,))


def test_who_heals_is_compared_again() -> None:
    healed = layer("i>J", "k", "J>k")
    later = layer("i>j", "K", "j>K")
    assert parted(trace(layer(), layer()), trace(healed, later)) == [
        ("out", "out", "l.a", ((0,), (1,))),
        ("out", "out", "l.b", ((0,), (1,))),
    ]


def test_who_does_not_heal_is_not_looked_at_again() -> None:
    odd = layer("i>J", "K", "J>K")
    assert len(parted(trace(layer(), layer()), trace(odd, odd))) == 1


def test_nothing_heals_at_a_call_whose_input_is_not_known() -> None:
    def unknown(inner: str, second: str) -> Script:
        return [("", "x>z", [("l", "?>k", [("l.a", inner, []), ("l.b", second, [])])])]

    a, b = trace(unknown("i>j", "j>k")), trace(unknown("i>J", "J>k"))
    (d,) = localise([a, b]).departures
    assert d.healed == (1,), "the model around it is known, and ends the same"
    blind = [replace(t, calls=tuple(replace(c, unhashed=1) for c in t.calls)) for t in (a, b)]
    assert localise(blind).departures[0].healed == ()


def test_a_skipped_call_that_changes_nothing_heals() -> None:
    skips: Script = [("", "x>k", [("l", "x>k", [("l.b", "j>k", [])])])]
    later = layer("i>j", "K", "j>K")
    assert parted(trace(layer(), layer()), trace(skips, later)) == [
        ("structure", "in", "l.a", ((0,), (1,))),
        ("out", "out", "l.b", ((0,), (1,))),
    ]


def test_calls_in_another_order_are_not_called_skipped() -> None:
    other: Script = [("", "x>k", [("l", "x>k", [("l.b", "j>k", []), ("l.a", "i>j", [])])])]
    culprit = localise([trace(layer()), trace(other)]).culprit
    assert culprit is not None
    assert (culprit.kind, culprit.path) == ("structure", "l")
    assert culprit.words == "l.b comes before l.a in replays 1"
    assert not culprit.survives_to_logits


def test_a_call_that_never_returned_has_no_end_to_compare() -> None:
    first, second = trace(layer()), trace(layer())
    calls = tuple(
        replace(c, end=-1, out_sha256=None) if c.path in ("", "l", "l.b") else c
        for c in second.calls
    )
    found = localise([first, replace(second, calls=calls)])
    assert found.culprit is not None and found.culprit.kind == "structure"
    assert found.coverage[1]["never_returned"] == 3


def test_ancestors_are_the_callers_innermost_first() -> None:
    calls = trace(layer()).calls
    begun = {place_of(c): c for c in calls}
    inner = next(c for c in calls if c.path == "l.b")
    assert [c.path for c in ancestors(inner, begun)] == ["l", ""]


def test_every_call_has_one_word() -> None:
    a = trace([("", "x>z", [("s", "i>j", []), ("d", "i>j", []), ("c", "i>j", []), ("h", "i>j", []),
                            ("u", "?>j", []), ("n", "i>j", [])])])  # fmt: skip
    b = trace([("", "x>z", [("s", "i>j", []), ("d", "i>J", []), ("c", "I>J", []), ("h", "I>j", []),
                            ("u", "?>J", [])])])  # fmt: skip
    assert Aligned([a, b]).counts() == {
        "SAME->SAME": 2, "SAME->DIFF": 1, "DIFF->DIFF": 1, "DIFF->SAME": 1, "UNKNOWN": 1,
        "UNALIGNED": 1,
    }  # fmt: skip
    assert [c.path for c in Aligned([a, b]).candidates()] == ["d"]


def test_what_reaches_the_logits_comes_before_what_heals() -> None:
    healed, odd = layer("i>J", "k", "J>k"), layer("i>j", "K", "j>K")
    a = trace(layer(), layer(), logits="p q")
    found = localise([a, trace(healed, odd, logits="p Q")])
    assert found.culprit is not None
    assert (found.culprit.path, found.culprit.step) == ("l.b", 1)
    assert found.culprit.survives_to_logits and [a["path"] for a in found.also] == ["l.a"]


def test_many_healed_departures_are_cut_and_the_chosen_one_kept() -> None:
    n = MAX_DEPARTURES + 5
    healed, odd = layer("i>J", "k", "J>k"), layer("i>j", "K", "j>K")
    a = trace(*[layer()] * (n + 1), logits="p " * n + "q")
    b = trace(*[healed] * n, odd, logits="p " * n + "Q")
    found = localise([a, b])
    assert len(found.departures) == MAX_DEPARTURES + 1
    assert found.culprit is not None and found.culprit.step == n
