"""The call tree of a step: opened along the path to the culprit, bounded whatever the model."""

from __future__ import annotations

from typing import Any

from fleet.evidence.trace import Trace
from fleet.judge.tracing.localise import localise
from fleet.judge.tracing.tree import MOST_LINES, Branch, CallTree
from tests.unit.trace_builders import Script, layer, trace


def tree_of(*traces: Trace) -> CallTree:
    found = localise(traces).tree
    assert found is not None
    return found


def lines(branch: Branch) -> list[tuple[str, str, int, str]]:
    return [(each.path, each.last, each.calls, each.word) for each in branch.lines]


def path(branch: Branch) -> list[tuple[str, str]]:
    """From the model to the innermost call on the path."""
    below = [each for each in branch.lines if each.on_path]
    return [(branch.path, branch.word), *(path(below[0]) if below else [])]


def culprit() -> CallTree:
    good, bad = layer(), layer(inner="i>J", out="K", second="J>K")
    return tree_of(trace(good, good), trace(good, bad, logits="same other"))


def test_the_path_leads_from_the_model_to_the_culprit() -> None:
    tree = culprit()
    assert (tree.arm, tree.step, tree.sample_ids, tree.replays) == ("a", 1, ("s",), 2)
    assert path(tree.root) == [("", "SAME->DIFF"), ("l", "SAME->DIFF"), ("l.a", "SAME->DIFF")]
    (below,) = tree.root.lines
    assert lines(below)[1] == ("l.b", "l.b", 1, "DIFF->DIFF")
    assert tree.root.inside == {"SAME->DIFF": 2, "DIFF->DIFF": 1}


def test_steps_that_show_the_same_are_one_line() -> None:
    good, bad = layer(), layer(inner="i>J", out="K", second="J>K")
    tree = tree_of(trace(good, good, bad), trace(good, good, good, logits="same same other"))
    first, last = tree.steps
    assert (first.first, first.last, first.words) == (0, 1, {"SAME->SAME": 8})
    assert (last.first, last.last) == (2, 2)


def wide(count: int, odd: int, out: str) -> Script:
    """A model of many layers, of which one differs and all behind it carry that on."""
    children = []
    for i in range(count):
        went_in, came_out = (f"{i}{out * (i > odd)}", f"{i + 1}{out * (i >= odd)}")
        inner = [(f"h.{i}.{j}", f"{went_in}>{came_out}", []) for j in range(6)]
        children.append((f"h.{i}", f"{went_in}>{came_out}", inner))
    return [("", f"0>{count}{out}", children)]


def test_a_deep_model_is_a_few_lines_beside_the_path() -> None:
    tree = tree_of(trace(wide(300, 150, "")), trace(wide(300, 150, "x"), logits="other"))
    assert path(tree.root)[1] == ("h.150", "SAME->DIFF")
    assert lines(tree.root) == [
        ("h.0", "h.149", 150, "SAME->SAME"),
        ("h.150", "h.150", 1, "SAME->DIFF"),
        ("h.151", "h.299", 149, "DIFF->DIFF"),
    ]
    assert tree.root.lines[0].inside == {"SAME->SAME": 900}
    assert sum(tree.root.inside.values()) == 300 * 7


def healing(count: int, out: str) -> Script:
    """Every second module differs, and the next one gets the same again."""
    return [("", f"x>y{out}", [(f"m{i}", f"{i}>{i}{out * (i % 2)}", []) for i in range(count)])]


def test_siblings_that_alternate_are_bounded_too() -> None:
    tree = tree_of(trace(healing(400, "")), trace(healing(400, "!"), logits="other"))
    shown = tree.root.lines
    assert len(shown) <= MOST_LINES + 2
    assert sum(each.calls for each in shown) == 400
    assert [each.word for each in shown if each.calls > 1] == [""]
    assert [each.path for each in shown if each.on_path] == ["m1"]


def test_a_call_that_only_another_replay_made_is_counted_and_not_shown() -> None:
    one: list[Any] = [("", "x>y", [("a", "x>b", []), ("b", "b>y", [])])]
    two: list[Any] = [("", "x>y", [("a", "x>b", []), ("b", "b>c", []), ("c", "c>y", [])])]
    tree = tree_of(trace(one), trace(two))
    assert tree.elsewhere + sum(each.calls for each in tree.root.lines) == 3


def test_replays_that_agree_have_no_tree() -> None:
    assert localise([trace(layer()), trace(layer())]).tree is None


def test_a_tree_is_json() -> None:
    told = culprit().to_json()
    assert told["root"]["lines"][0]["path"] == "l"
