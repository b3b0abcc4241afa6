"""Two rows, and two attempts row by row: where do they part first."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from fleet.judge.compare import SWAP_WINDOW, PairComparison, classify, compare_rows
from fleet.judge.rowdiff import RowDifference
from fleet.judge.shown import decode
from tests.unit.evidence_builders import (
    changed,
    compared,
    dataset,
    flipped_logits,
    other_token,
    record,
    rederived,
    sha,
)


def other(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return rederived(row | changes)


def parted(**changes: Any) -> RowDifference:
    row = record(1)
    difference = classify(row, other(row, **changes))
    assert difference is not None
    return difference


def test_equal_rows_have_no_difference() -> None:
    assert classify(record(1), record(1)) is None


def test_a_sample_replayed_alone_has_another_batch_number_and_the_same_settings() -> None:
    """Else one replay of a differing sample would add settings to the causes of its difference."""
    row = record(3)
    assert classify(row, other(row, batch_ordinal=0)) is None
    moved = classify(row, flipped_logits([other(row, batch_ordinal=0)], 3)[0])
    assert moved is not None
    assert (moved.stage, moved.settings_differ) == ("logits", False)


def test_volatile_fields_and_the_attempt_are_not_compared() -> None:
    row = record(1)
    later = row | {"seconds": 9.0, "finished_at_s": 7.0, "attempt": "y"}
    assert classify(row, later) is None


@pytest.mark.parametrize(
    ("column", "stage"),
    [
        ("raw_record_sha256", "raw_record"),
        ("prompt_sha256", "prompt"),
        ("prompt_ids_sha256", "prompt_ids"),
        ("attention_mask_sha256", "attention_mask"),
    ],
)
def test_an_input_that_differs_is_the_stage(column: str, stage: str) -> None:
    difference = parted(**{column: sha("other"), "step_logits_sha256": (sha("x"),) * 3})
    assert difference.stage == stage
    assert not difference.same_input


def test_a_prompt_names_its_first_differing_character() -> None:
    row = record(1, prompt_text="what is it")
    difference = classify(row, other(row, prompt_text="what was it", prompt_sha256=sha("p")))
    assert difference is not None
    assert (difference.stage, difference.step) == ("prompt", 5)


def test_prompts_equal_after_nfc_carry_a_hint() -> None:
    row = record(1, prompt_text="cafe\u0301")
    composed = other(row, prompt_text="caf\u00e9", raw_record_sha256=sha("nfc"))
    difference = classify(row, composed)
    assert difference is not None
    assert difference.stage == "raw_record"
    assert "equal after NFC" in difference.words


def test_one_more_id_at_the_front_is_named() -> None:
    row = record(1, prompt_ids=(5, 6))
    difference = classify(row, other(row, prompt_ids=(1, 5, 6), prompt_ids_sha256=sha("bos")))
    assert difference is not None
    assert difference.step == 0
    assert "id 1 more at the front" in difference.words


def test_logits_that_differ_first_are_logits_though_the_token_differs_too() -> None:
    logits = (record(1)["step_logits_sha256"][0], sha("x"), sha("y"))
    difference = parted(step_logits_sha256=logits, generated_token_ids=(10, 99, 12))
    assert (difference.stage, difference.step) == ("logits", 1)
    assert difference.broken == ("logits", "tokens")


def test_logits_that_differ_after_the_token_are_its_consequence() -> None:
    logits = (*record(1)["step_logits_sha256"][:2], sha("y"))
    difference = parted(step_logits_sha256=logits, generated_token_ids=(10, 99, 12))
    assert (difference.stage, difference.step) == ("sampler", 1)
    assert "sampler: logits equal through step 1" in difference.words


def test_one_logits_bit_with_equal_tokens_breaks_logits_only() -> None:
    difference = parted(step_logits_sha256=(sha("x"), *record(1)["step_logits_sha256"][1:]))
    assert (difference.stage, difference.step, difference.broken) == ("logits", 0, ("logits",))


def test_a_strict_prefix_with_equal_logits_is_the_stop_rule() -> None:
    row = record(1)
    shorter = other(
        row,
        generated_token_ids=row["generated_token_ids"][:2],
        generated_token_count=2,
        step_logits_sha256=row["step_logits_sha256"][:2],
        full_sequence_sha256=sha("short"),
        stop="eos",
    )
    difference = classify(row, shorter)
    assert difference is not None
    assert (difference.stage, difference.step) == ("sampler", 2)
    assert difference.words == "stop rule: strict prefix; the shorter ends on id 11"
    assert "tokens" in difference.broken


def test_an_exact_tie_at_the_sampler_is_said() -> None:
    row = record(1, margin_ulps=(1, 0, 1))
    difference = classify(row, other(row, generated_token_ids=(10, 99, 12)))
    assert difference is not None
    assert "exact tie" in difference.words


def test_another_random_state_at_the_sampler_is_said() -> None:
    difference = parted(generated_token_ids=(10, 99, 12), rng_sha256=sha("later"))
    assert "RNG state at sample start differs" in difference.words


def test_another_random_state_alone_is_no_difference() -> None:
    row = record(1)
    assert classify(row, other(row, rng_sha256=sha("later"))) is None


def test_equal_ids_with_another_text_is_the_output() -> None:
    difference = parted(raw_answer="B")
    assert (difference.stage, difference.broken) == ("output", ("tokens",))


def test_an_equal_raw_answer_parsed_otherwise_is_the_parser() -> None:
    difference = parted(parsed_answer="B")
    assert (difference.stage, difference.broken) == ("parser", ("prediction",))
    assert difference.same_input


def test_is_correct_alone_is_the_parser() -> None:
    assert parted(is_correct=True).stage == "parser"


def test_unparsed_against_an_empty_parsed_answer_differs() -> None:
    row = record(1, parsed_answer="")
    difference = classify(row, other(row, unparsed=True))
    assert difference is not None
    assert difference.stage == "parser"
    assert "UNPARSED" in difference.words


def test_two_unparsed_answers_of_one_text_are_equal_whatever_else_they_say() -> None:
    row = record(1, unparsed=True, parsed_answer="")
    assert classify(row, other(row, parsed_answer="left over")) is None


def test_settings_alone_are_a_stage_that_breaks_nothing() -> None:
    difference = parted(settings_sha256=sha("threads 2"))
    assert (difference.stage, difference.broken) == ("settings", ())
    assert not difference.same_input


def test_settings_beside_logits_leave_the_stage_to_the_logits() -> None:
    difference = parted(settings_sha256=sha("t"), step_logits_sha256=(sha("x"),) * 3)
    assert difference.stage == "logits"
    assert difference.settings_differ
    assert not difference.same_input


def test_null_is_never_compared() -> None:
    row = record(1)
    assert classify(row, row | {"raw_answer": None, "step_logits_sha256": None}) is None


def test_a_null_input_is_not_an_equal_input() -> None:
    row = record(1)
    difference = classify(row, row | {"prompt_sha256": None, "parsed_answer": "B"})
    assert difference is not None
    assert difference.stage == "parser"
    assert not difference.same_input


def test_tokens_that_differ_where_logits_are_missing_do_not_blame_the_sampler() -> None:
    row = record(1)
    difference = classify(
        row, row | {"step_logits_sha256": None, "generated_token_ids": (10, 99, 12)}
    )
    assert difference is not None
    assert difference.stage == "logits"
    assert "missing" in difference.words


def test_margins_and_top_logits_are_diagnostics_and_never_differ() -> None:
    row = record(1)
    assert classify(row, row | {"margin_logits": (float("nan"),) * 3, "top_bits": ()}) is None


def test_lists_and_buffers_of_equal_bytes_are_equal() -> None:
    row = record(1)
    same = row | {
        "generated_token_ids": list(row["generated_token_ids"]),
        "prompt_sha256": memoryview(row["prompt_sha256"]),
    }
    assert classify(row, same) is None


def test_a_comparison_counts_by_kind_and_names_the_samples() -> None:
    rows = dataset()
    found = compared("a", rows, "b", flipped_logits(flipped_logits(rows, 3), 1))
    (kind,) = found.kinds
    assert (kind.stage, kind.rows, kind.arm) == ("logits", 2, "current")
    assert kind.samples == ((1, "current", "q1"), (3, "current", "q3"))
    assert kind.first["sample_id"] == "q1"
    assert kind.sticks
    assert found.counts["current"]["logits"] == (2, 4)
    assert found.counts["current"]["tokens"] == (4, 4)


def test_the_first_row_is_the_first_in_dataset_order_however_rows_arrive() -> None:
    rows = dataset()
    others = flipped_logits(flipped_logits(rows, 3), 1)
    pairs = [(a, b) for a, b in zip(rows, others, strict=True) if a != b]
    assert compare_rows({}, reversed(pairs)).kinds == compare_rows({}, pairs).kinds


def test_no_more_than_twenty_samples_are_listed_and_all_are_counted() -> None:
    rows = [record(i) for i in range(60)]
    others = [other(row, parsed_answer="Z") for row in rows]
    (kind,) = compare_rows({}, zip(rows, others, strict=True)).kinds
    assert kind.rows == 60
    assert [sample for _, _, sample in kind.samples] == [f"q{i}" for i in range(20)]


def test_outputs_that_changed_places_are_a_swap() -> None:
    rows = dataset()
    names = ("generated_token_ids", "step_logits_sha256", "raw_answer", "full_sequence_sha256")
    mine = {r["sample_id"]: r for r in rows if r["arm"] == "current"}
    others = changed(rows, 1, **{n: mine["q2"][n] for n in names})
    others = changed(others, 2, **{n: mine["q1"][n] for n in names})
    found = compared("a", rows, "b", others)
    (kind,) = found.kinds
    assert (kind.stage, kind.rows) == ("sample", 2)
    assert kind.first["words"].startswith("swap: A's output of q1 is B's of q2")
    assert found.swaps == (("current", "q1", "q2"),)


def test_an_exchange_between_equal_prompts_is_no_swap() -> None:
    ids = sha("one prompt")
    rows = [record(i, prompt_ids_sha256=ids) for i in range(2)]
    names = ("generated_token_ids", "step_logits_sha256", "raw_answer")
    others = [other(rows[i], **{n: rows[1 - i][n] for n in names}) for i in range(2)]
    found = compare_rows({}, zip(rows, others, strict=True))
    assert found.swaps == ()
    assert {kind.stage for kind in found.kinds} == {"logits"}


def test_memory_holds_no_more_than_the_window_of_rows() -> None:
    alive = 0
    peak = 0

    class Row(dict[str, Any]):
        def __init__(self, values: dict[str, Any]) -> None:
            super().__init__(values)
            nonlocal alive, peak
            alive += 1
            peak = max(peak, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    base = record(1)
    changes = other(base, parsed_answer="Z")
    pairs = ((Row(base | {"position": i}), Row(changes)) for i in range(3 * SWAP_WINDOW))
    (kind,) = compare_rows({}, pairs).kinds
    assert kind.rows == 3 * SWAP_WINDOW
    assert peak <= 2 * SWAP_WINDOW + 8


def test_a_comparison_survives_json() -> None:
    rows = dataset()
    found = compared("a", rows, "b", other_token(flipped_logits(rows, 1), 2)[:-1])
    text = json.dumps(found.to_json(), allow_nan=False)
    assert PairComparison.from_json(json.loads(text)) == found


def test_rows_of_one_side_only_are_counted_and_named() -> None:
    rows = dataset()
    found = compared("a", rows, "b", rows[:-1])
    assert found.only_in == (1, 0)
    assert found.only_in_first[0] == (("current", "q3"),)


def shown_first(row_a: dict[str, Any], row_b: dict[str, Any]) -> dict[str, Any]:
    (kind,) = compare_rows({}, [(row_a, row_b)], dtype="bfloat16").kinds
    return kind.first


def test_the_first_difference_shows_both_tokens_and_both_top_logits() -> None:
    row = record(1, top_ids=((10, 11),) * 3, top_bits=((16256, 16255),) * 3)
    flipped = other(
        row,
        step_logits_sha256=(row["step_logits_sha256"][0], sha("x"), sha("y")),
        generated_token_ids=(10, 10, 12),
        top_ids=((10, 11),) * 3,
        top_bits=((16256, 16255), (16257, 16256), (16256, 16255)),
    )
    row = other(row, generated_token_ids=(10, 11, 12), top_ids=((11, 10),) * 3)
    first = shown_first(row, flipped)
    assert (first["step"], first["token_step"], first["tokens"]) == (1, 1, [11, 10])
    assert first["a"]["top_ids"] == [11, 10]
    assert first["b"]["top_bits"] == [16257, 16256]
    assert first["b"]["top_values"] == [1.0078125, 1.0]
    assert first["contested"] == {
        "step": 1,
        "tokens": [11, 10],
        "order_a": ">",
        "order_b": "<",
        "changes_sign": True,
    }


def test_a_sampler_fault_leaves_the_contested_pair_in_its_order() -> None:
    row = record(1, top_ids=((10, 11, 12),) * 3, top_bits=((9, 8, 7),) * 3)
    first = shown_first(row, other(row, generated_token_ids=(10, 12, 12)))
    assert first["contested"]["changes_sign"] is False


def test_a_contested_token_outside_the_top_eight_is_unknown() -> None:
    row = record(1)
    first = shown_first(row, other(row, generated_token_ids=(10, 4000, 12)))
    assert first["contested"]["changes_sign"] == "unknown"


def test_equal_bits_are_a_tie() -> None:
    row = record(1, top_ids=((10, 11),) * 3, top_bits=((5, 5),) * 3)
    first = shown_first(row, other(row, generated_token_ids=(11, 11, 12)))
    assert first["contested"]["order_a"] == "="


def test_nan_margins_are_shown_as_text() -> None:
    row = record(1, margin_logits=(float("nan"),) * 3)
    first = shown_first(row, other(row, step_logits_sha256=(sha("x"),) * 3))
    assert first["a"]["margin_logits"] == "nan"
    json.dumps(first, allow_nan=False)


def test_raw_bits_are_decoded_by_dtype_and_only_for_reading() -> None:
    (half,) = struct.unpack("<H", struct.pack("<e", -1.5))
    assert decode(half, "float16") == -1.5
    assert decode(0x3F80, "bfloat16") == 1.0
    assert decode(0x3F800000, "float32") == 1.0
    assert decode(0x7FC0, "bfloat16") == "nan"
    assert str(decode(0x8000, "bfloat16")) == "-0.0"
    assert decode(1, None) is None
