"""From records to prompts: what a template may say, and what it must not depend on."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from typing import Any

import pytest

from fleet.contract.model import Contract
from fleet.errors import ContractError
from fleet.replay.inputs import clocks, render, render_arm
from tests.campaigns import CONTRACT

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "question": "<b>1 & 2</b>", "n": 2, "self": "me", "items": [1]},
    {"id": "b", "question": "tail\n", "n": 0, "self": "you", "items": []},
]


def rendered(template: str) -> list[str]:
    return render("toy.toml", "current", template, RECORDS, NOW)


def contract(template: str, clock: str | None = None) -> Contract:
    raw = tomllib.loads(CONTRACT)
    raw.pop("schema")
    raw["arms"] = {"current": {"template": template, "parser": "letter"}}
    raw["dataset"]["clock"] = clock
    return Contract.model_validate(raw)


def test_a_prompt_is_the_template_over_the_records_fields_byte_for_byte() -> None:
    assert rendered("{{ question }}\n") == ["<b>1 & 2</b>\n", "tail\n\n"]
    assert rendered("{{ n }}{% for i in items %}.{% endfor %}") == ["2.", "0"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ quesiton }}", "'quesiton' is undefined at record a"),
        ("{{ question", "unexpected end of template"),
        ("{{ 1 / n }}", "ZeroDivisionError division by zero at record b"),
        ("{{ question + 1 }}", "TypeError"),
        ("{{ items[3].x }}", "UndefinedError"),
        ("{{ n.__class__.__mro__ }}", "SecurityError"),
        ("{{ items.append(2) }}", "SecurityError"),
        ("{% include 'x' %}", "at record a"),
        ("{{ items | random }}", "No filter named 'random'"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{{ range(10 ** 9) | list }}", "OverflowError"),
    ],
)
def test_a_faulty_template_is_one_message_with_the_record(template: str, words: str) -> None:
    with pytest.raises(ContractError) as raised:
        rendered(template)
    error = raised.value
    assert (error.where, error.key) == ("toy.toml", "arms.current.template")
    assert words in error.got
    assert "id, items, n, question, self" in error.fix


def test_two_frozen_clocks_differ_in_day_hour_and_zone() -> None:
    first, second = clocks(contract("x"))
    for form in ("%Y", "%m", "%d", "%H", "%M", "%S", "%A", "%B", "%z"):
        assert first.strftime(form) != second.strftime(form), form


@pytest.mark.parametrize("form", ["%Y", "%B", "%H:%M", "%z", "%A"])
def test_a_template_that_reads_the_clock_is_refused_unless_it_is_pinned(form: str) -> None:
    template = f"Today is {{{{ strftime_now('{form}') }}}}."
    with pytest.raises(ContractError, match="time of day") as raised:
        render_arm(contract(template), "toy.toml", "current", RECORDS)
    assert raised.value.got == "record a rendered differently under two clocks"
    assert "clock =" in raised.value.fix
    pinned = contract(template, "2026-01-02T03:04:05+02:00")
    expected = datetime.fromisoformat("2026-01-02T03:04:05+02:00").strftime(form)
    assert render_arm(pinned, "toy.toml", "current", RECORDS) == [f"Today is {expected}."] * 2


def test_a_template_that_asks_the_clock_and_shows_nothing_of_it_is_fine() -> None:
    template = "{% set t = strftime_now('%Y') %}{{ question }}"
    assert len(render_arm(contract(template), "toy.toml", "current", RECORDS)) == 2


def test_a_prompt_that_shows_an_address_is_refused_and_no_clock_is_blamed() -> None:
    with pytest.raises(ContractError, match="same at every rendering") as raised:
        render_arm(contract("{{ question.strip }}"), "toy.toml", "current", RECORDS)
    assert "at one time" in raised.value.got


@pytest.mark.parametrize("template", ['{{ "%c"|format(55296) }}', '{{ "a" * 10**13 }}'])
def test_a_prompt_that_is_no_text_or_does_not_fit_is_refused(template: str) -> None:
    with pytest.raises(ContractError, match="template"):
        render_arm(contract(template), "toy.toml", "current", RECORDS)
