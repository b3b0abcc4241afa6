"""The datasets that are shipped: counts, balance, uniqueness, and arithmetic that is right."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.dataset import LoadedDataset, list_datasets, load_dataset
from fleet.contract.parsers import load_parser

CONFIGS = Path(__file__).parents[2] / "configs"
SIZES = {"choices-24": 24, "choices-191": 191}
OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


@pytest.fixture(params=sorted(SIZES))
def dataset(request: pytest.FixtureRequest) -> LoadedDataset:
    return load_dataset(request.param, [CONFIGS])


def choices(record: Mapping[str, Any]) -> dict[str, str]:
    return dict(line.split(". ", 1) for line in record["choices"].split("\n"))


def computed(text: str) -> int:
    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant) and isinstance(node.value, int)
        return node.value

    return value(ast.parse(text, mode="eval").body)


def test_every_shipped_dataset_is_checked_here() -> None:
    assert list_datasets([CONFIGS]) == sorted([*SIZES, "shapes-24", "shapes-191"])


def test_the_count_is_the_one_in_the_name(dataset: LoadedDataset) -> None:
    size = SIZES[dataset.name]
    assert dataset.ids == tuple(f"q{number:03d}" for number in range(1, size + 1))


def test_gold_letters_are_balanced_and_not_periodic(dataset: LoadedDataset) -> None:
    gold = [record["answer"] for record in dataset.records]
    counts = Counter(gold)
    assert set(counts) == set("ABCD")
    assert max(counts.values()) - min(counts.values()) <= 1
    assert all(gold[:-period] != gold[period:] for period in range(1, 9))


def test_no_question_is_asked_twice(dataset: LoadedDataset) -> None:
    questions = [record["question"].casefold() for record in dataset.records]
    assert len(set(questions)) == len(questions)


def test_the_two_sets_share_no_question() -> None:
    small, large = (load_dataset(name, [CONFIGS]) for name in ("choices-24", "choices-191"))
    assert not {r["question"] for r in small.records} & {r["question"] for r in large.records}


def test_every_record_has_four_different_choices_and_only_ascii(dataset: LoadedDataset) -> None:
    for record, line in zip(dataset.records, dataset.raw, strict=True):
        assert record["options"] == list("ABCD")
        assert list(choices(record)) == list("ABCD"), record["id"]
        assert len(set(choices(record).values())) == 4, record["id"]
        assert line.isascii()
        assert set(record) <= {"id", "question", "choices", "options", "answer", "check"}


def test_every_expression_gives_its_gold_choice(dataset: LoadedDataset) -> None:
    checked = [record for record in dataset.records if "check" in record]
    assert len(checked) >= 4
    for record in checked:
        assert choices(record)[record["answer"]] == str(computed(record["check"])), record["id"]


def test_lengths_are_short_in_the_quick_set_and_varied_in_the_large_one() -> None:
    small, large = (
        sorted(len(record["question"]) for record in load_dataset(name, [CONFIGS]).records)
        for name in ("choices-24", "choices-191")
    )
    assert small[-1] < 90
    assert (large[0] >= 20, 300 < large[-1] <= 400) == (True, True)
    assert sum(length > 150 for length in large) >= 20


def test_the_letter_parser_reads_every_gold_answer(dataset: LoadedDataset) -> None:
    parser = load_parser("letter", CONFIGS)
    for record in dataset.records:
        parsed = parser.parse(f"The answer is {record['answer']}.", record)
        assert parsed is not None and parser.is_correct(parsed, record)
