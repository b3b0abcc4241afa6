"""The execution id: golden values, what is inside, what is outside, and later schema keys."""

from __future__ import annotations

import copy
import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.canonical import digest_json, from_text, sha256, to_text
from fleet.contract.execution_id import INTRODUCED, Digests, execution_id, execution_part
from fleet.contract.model import Contract

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "execution_ids.json").read_text(encoding="utf-8")
)
CASES = {case["name"]: case for case in GOLDEN["cases"]}


def contract_of(raw: dict[str, Any]) -> Contract:
    return Contract.model_validate(copy.deepcopy(raw))


def digests_of(case: dict[str, Any]) -> Digests:
    texts = dict(case["digests"])
    parsers = {arm: from_text(text) for arm, text in texts.pop("parsers").items()}
    return Digests(**{name: from_text(text) for name, text in texts.items()}, parsers=parsers)


def id_of(raw: dict[str, Any], case: dict[str, Any] | None = None) -> bytes:
    return execution_id(contract_of(raw), digests_of(case or CASES["everything"]))


def edited(path: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(CASES["everything"]["contract"])
    *tables, key = path.split(".")
    table = raw
    for name in tables:
        table = table.setdefault(name, {})
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
    return raw


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_golden_ids_do_not_move(case: dict[str, Any]) -> None:
    found = execution_id(contract_of(case["contract"]), digests_of(case))
    assert to_text(found) == case["execution_id"]


def test_the_id_is_the_digest_of_schema_contract_and_digests() -> None:
    case = CASES["everything"]
    payload = {
        "schema": 1,
        "contract": execution_part(contract_of(case["contract"])),
        "digests": case["digests"],
    }
    assert to_text(digest_json(payload)) == case["execution_id"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.checkpoint", "path:/somewhere/else"),
        ("model.revision", "f" * 40),
        ("dataset.name", "renamed"),
        ("arms.current.parser", "file:copy_of_letter.py"),
        ("require.grade", "tokens"),
        ("require.replays", 6),
        ("expect.verdict", "PASS"),
    ],
)
def test_names_paths_and_requirements_are_outside(path: str, value: Any) -> None:
    raw = edited(path, value)
    assert raw != CASES["everything"]["contract"]
    assert to_text(id_of(raw)) == CASES["everything"]["execution_id"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.dtype", "float16"),
        ("attention.sdpa_kernels", ["flash"]),
        ("attention.implementation", "eager"),
        ("decoding.batch_size", 2),
        ("decoding.temperature", 0.25),
        ("decoding.stop_token_ids", [3]),
        ("decoding.repetition_penalty", 1.0),
        ("decoding.pad_token_id", None),
        ("determinism.seed", 1),
        ("determinism.deterministic_algorithms", "warn"),
        ("determinism.kernel_cache", "pinned"),
        ("dataset.clock", "2026-01-01T00:00:00Z"),
        ("dataset.clock", None),
        ("arms.current.template", "{{ question }} "),
        ("arms.current.chat", False),
        ("arms.current.system", "Be brief."),
        ("control.inject", "ordered_linear:model.layers.0.mlp"),
    ],
)
def test_whatever_can_change_a_bit_is_inside(path: str, value: Any) -> None:
    assert to_text(id_of(edited(path, value))) != CASES["everything"]["execution_id"]


def test_engine_and_backend_are_inside() -> None:
    case = CASES["quantised"]
    other = copy.deepcopy(case["contract"])
    other["quantization"]["backend"] = "awq_torch"
    assert to_text(id_of(other, case)) != case["execution_id"]
    part = execution_part(contract_of(other))
    assert part["model"]["engine"] == "gptqmodel"


def test_an_arms_name_is_inside() -> None:
    case = CASES["minimal"]
    raw = copy.deepcopy(case["contract"])
    raw["arms"] = {"renamed": raw["arms"]["current"]}
    digests = digests_of(case)
    moved = dataclasses.replace(digests, parsers={"renamed": digests.parsers["current"]})
    assert to_text(execution_id(contract_of(raw), moved)) != case["execution_id"]


def test_the_order_of_arms_and_keys_is_nothing() -> None:
    raw = CASES["everything"]["contract"]
    turned = {key: raw[key] for key in reversed(raw)}
    turned["arms"] = {name: raw["arms"][name] for name in reversed(raw["arms"])}
    assert to_text(id_of(turned)) == CASES["everything"]["execution_id"]


def test_a_default_written_out_is_the_default_left_out() -> None:
    case = CASES["minimal"]
    raw = copy.deepcopy(case["contract"])
    raw["attention"] = {"implementation": "sdpa", "sdpa_kernels": ["math"]}
    raw["model"]["engine"] = "transformers"
    assert to_text(id_of(raw, case)) == case["execution_id"]


@pytest.mark.parametrize("field", ["checkpoint", "dataset", "tokenizer", "chat_template"])
def test_every_content_digest_is_inside(field: str) -> None:
    case = CASES["minimal"]
    changed = dataclasses.replace(digests_of(case), **{field: sha256(b"other")})
    assert to_text(execution_id(contract_of(case["contract"]), changed)) != case["execution_id"]


def test_a_parsers_digest_is_inside_and_must_be_given_for_each_arm() -> None:
    case = CASES["minimal"]
    contract, digests = contract_of(case["contract"]), digests_of(case)
    changed = dataclasses.replace(digests, parsers={"current": sha256(b"other")})
    assert to_text(execution_id(contract, changed)) != case["execution_id"]
    for parsers in ({}, {"current": sha256(b""), "more": sha256(b"")}):
        with pytest.raises(ValueError, match="parser digests"):
            execution_id(contract, dataclasses.replace(digests, parsers=parsers))


def test_the_keys_introduced_since_schema_1_have_the_defaults_they_came_with() -> None:
    assert dict(INTRODUCED) == {"model.processor": None}


def test_a_text_contract_hashes_no_processor_and_a_vision_contract_does() -> None:
    case = CASES["minimal"]
    raw, digests = copy.deepcopy(case["contract"]), digests_of(case)
    assert "processor" not in execution_part(contract_of(raw))["model"]
    assert "processor" not in digests.as_text()
    ids = set()
    for kind in ("fast", "slow"):
        raw["model"] |= {"kind": "vision", "processor": kind}
        for pixels in (sha256(b"a"), sha256(b"b")):
            ids.add(execution_id(contract_of(raw), replace(digests, processor=pixels)))
    assert len(ids) == 4


def test_an_introduced_key_is_left_out_while_it_has_its_default() -> None:
    contract = contract_of(CASES["minimal"]["contract"])
    later = {"decoding.padding_side": "left", "arms.*.system": None, "control": None}
    part = execution_part(contract, later)
    assert "padding_side" not in part["decoding"]
    assert "system" not in part["arms"]["current"]
    assert "control" not in part


def test_an_introduced_key_is_hashed_once_it_differs_from_its_default() -> None:
    raw = copy.deepcopy(CASES["minimal"]["contract"])
    raw["decoding"]["padding_side"] = "right"
    part = execution_part(contract_of(raw), {"decoding.padding_side": "left"})
    assert part["decoding"]["padding_side"] == "right"


def test_an_introduced_default_is_compared_with_its_type() -> None:
    contract = contract_of(CASES["minimal"]["contract"])
    part = execution_part(contract, {"decoding.use_cache": 1, "decoding.batch_size": True})
    assert part["decoding"]["use_cache"] is True
    assert part["decoding"]["batch_size"] == 1


def test_a_table_introduced_in_two_steps_vanishes_while_all_of_it_is_default() -> None:
    contract = contract_of(CASES["minimal"]["contract"])
    first = {"implementation": "sdpa"}
    part = execution_part(contract, {"attention": first, "attention.sdpa_kernels": ["math"]})
    assert "attention" not in part


def test_the_id_of_an_old_contract_survives_a_key_introduced_later() -> None:
    contract, digests = contract_of(CASES["minimal"]["contract"]), digests_of(CASES["minimal"])
    later = {**INTRODUCED, "decoding.padding_side": "left"}
    before = execution_part(contract)
    del before["decoding"]["padding_side"]
    payload = {"schema": 1, "contract": before, "digests": digests.as_text()}
    assert execution_id(contract, digests, later) == digest_json(payload)
