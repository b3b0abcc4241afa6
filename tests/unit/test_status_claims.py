"""``fleet status`` and the screen where a contract has several claims."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fleet.evidence.landing import Landing
from fleet.replay.engines.protocol import Generation, Prepared
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.report.answers import Answers
from fleet.report.status import StatusRow, exit_code, status_rows
from fleet.report.terminal import print_campaign, print_status
from fleet.store.open import open_reader
from tests.campaigns import (
    CONTRACT,
    FakeLauncher,
    certified,
    places_in,
    write_configs,
    write_contract,
)


def rows(root: Path) -> list[StatusRow]:
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        return status_rows(answers, ["toy"], places.search, places.cache, time.time())


def printed(draw: Any, *args: Any) -> str:
    file = io.StringIO()
    draw(Console(file=file, width=200), *args)
    return file.getvalue()


def test_each_claim_has_a_row_and_the_contracts_own_is_missed_where_it_was_not_tested(
    tmp_path: Path,
) -> None:
    write_configs(tmp_path / "configs")
    certified(tmp_path, "toy", claims=(("order",), ("batch",)))
    found = rows(tmp_path)
    shown = [(r.state, r.verdict.vary if r.verdict else None) for r in found]
    assert shown == [("PASS", ("batch",)), ("PASS", ("order",)), ("UNTESTED", None)]
    assert found[-1].note == "exact repeat: never tested: fleet certify toy"
    assert exit_code(found) == 3
    certified(tmp_path, "toy")
    assert [r.state for r in rows(tmp_path)] == ["PASS"] * 3
    assert exit_code(rows(tmp_path)) == 0
    write_contract(tmp_path / "configs", "toy", CONTRACT + 'vary = ["memory"]\n')
    assert rows(tmp_path)[-1].note.startswith("varied memory contents: never tested")
    assert exit_code(rows(tmp_path)) == 3


def test_a_fail_under_one_claim_leaves_the_others_and_says_what_to_do(tmp_path: Path) -> None:
    """A sample whose answer changes in one process of one claim."""

    def change(_: object) -> None:
        SyntheticEngine._generate_one = other  # type: ignore[method-assign]

    def back(_: object) -> None:
        SyntheticEngine._generate_one = own  # type: ignore[method-assign]

    own = SyntheticEngine._generate_one

    def other(self: SyntheticEngine, prepared: Prepared) -> Generation:
        made = own(self, prepared)
        first = replace(made.steps[0], logits_sha256=b"x" * 32)
        return replace(made, steps=(first, *made.steps[1:]))

    write_configs(tmp_path / "configs")
    # two controls, two exact repeats, then a reference and the varied replay
    launcher = FakeLauncher(at_start={7: change, 8: back})
    try:
        answer = certified(tmp_path, "toy", launcher=launcher, claims=((), ("order",)))
    finally:
        back(None)
    assert [v.verdict for v in answer.contracts] == ["PASS", "FAIL"]
    words = "depends on the order of the samples: all 3 replays in the contract's own order agree"
    found = rows(tmp_path)
    assert [(r.state, r.verdict.vary if r.verdict else None) for r in found] == [
        ("PASS", ()), ("FAIL", ("order",)),
    ]  # fmt: skip
    assert answer.contracts[1].reason.endswith(words)
    assert found[1].verdict is not None and found[1].verdict.reason.endswith(words)
    assert exit_code(rows(tmp_path)) == 1
    text = printed(print_status, found)
    assert "toy, varied order" in text
    text = printed(print_campaign, answer)
    assert "look again: fleet certify toy --vary order --vary none" in text
    assert "fleet trace toy" not in text
