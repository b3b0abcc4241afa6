"""Two versions of gptqmodel on a real H200, compared there and judged again: ``h200-upgrade``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.evidence.upgrades import read_upgrades
from fleet.report.answers import Answers, known_contracts
from fleet.report.upgrade import UpgradeAnswer, answer_of
from fleet.report.upgrade_view import print_upgrade
from fleet.store import queries
from fleet.store.open import open_reader, open_writer, publish
from fleet.store.rebuild import rebuild
from tests.golden_summary import unpacked
from tests.unit.screens import shown

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL = "qwen2-7b-shapes-awq"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[UpgradeAnswer, Answers]]:
    root = tmp_path_factory.mktemp("upgrade")
    landing = unpacked(GOLDEN / "h200-upgrade.tar.xz", root)
    rebuild(root / "s.duckdb", landing)
    with open_writer(root / "s.duckdb") as store:
        publish(store)
    with open_reader(root / "s.duckdb") as store:
        answers = Answers(store, landing)
        (compared,) = read_upgrades(landing)
        yield answer_of(answers, compared, known_contracts(store)), answers


def test_two_versions_of_gptqmodel_keep_torch_and_race_in_marlin(
    judged: tuple[UpgradeAnswer, Answers],
) -> None:
    answer, _ = judged
    assert {e.contract: e.moved.in_words() for e in answer.entries} == {
        f"{MODEL}@awq_torch:float16": "KEPT(logits)",
        f"{MODEL}@awq_torch": "KEPT(logits)",
        f"{MODEL}@awq_marlin": "STILL_FAIL",
    }
    assert answer.exit_code() == 1
    assert [c.in_words() for c in answer.candidates] == ["gptqmodel 7.6.0 -> 7.7.0"]


def test_both_versions_ran_on_one_device_and_each_built_its_own_kernels(
    judged: tuple[UpgradeAnswer, Answers],
) -> None:
    answer, answers = judged
    kept, marlin = answer.entries[0], answer.entries[2]
    assert kept.same_unit and kept.base.platform != kept.new.platform
    facts = queries.platforms(answers.store.con)
    for verdict in (kept.base, kept.new):
        assert facts[verdict.platform]["facts"]["cuda"] == {"driver": "13.0", "torch": "13.0"}
    landed = queries.summaries(answers.store.con, execution_id=marlin.execution_id)
    caches = {s.stack: s.effective["kernel_cache_at_load"] for s in landed if s.rows}
    assert len(caches) == len(set(caches.values())) == 2


def test_what_differs_from_itself_on_both_is_not_compared(
    judged: tuple[UpgradeAnswer, Answers],
) -> None:
    answer, _ = judged
    marlin = answer.entries[2]
    assert marlin.replays is None and marlin.start is None
    text = shown(print_upgrade, answer, 200)
    assert "base FAIL" in text and "new FAIL" in text and "starts at" not in text
