"""Canonical JSON, digest text, and the tree of errors that speaks for both."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from fleet import errors
from fleet.contract.canonical import canonical_json, digest_json, from_text, sha256, to_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "é"]}, '{"a":[true,null,"é"],"b":1}'),
        ({}, "{}"),
        ("\u2028\n", '"\u2028\\n"'),
        (1e22, "1e+22"),
        (-0.0, "-0.0"),
        ((1, 2), "[1,2]"),
    ],
)
def test_the_form_is_utf8_sorted_and_without_spaces(value: Any, text: str) -> None:
    assert canonical_json(value) == text.encode("utf-8")


def test_one_and_one_point_zero_and_true_are_three_values() -> None:
    assert len({digest_json(value) for value in (1, 1.0, True, "1")}) == 4


def test_the_order_of_keys_is_no_difference_and_that_of_a_list_is_one() -> None:
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    assert digest_json([1, 2]) != digest_json([2, 1])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_no_nan_and_no_infinity_can_enter_an_identity(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


@pytest.mark.parametrize("value", [{1: "a"}, {"a": {None: 1}}, [{True: 1}], {"a": b"raw"}, {1, 2}])
def test_what_json_would_coerce_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


def test_canonical_json_reads_back_as_itself() -> None:
    value = {"z": [1, 2.5, "x", None, False], "a": {"k": "\u00e9\U0001f600"}}
    assert json.loads(canonical_json(value)) == value
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


def test_digest_text_is_sha256_colon_and_64_digits() -> None:
    text = to_text(sha256(b""))
    assert text == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert from_text(text) == sha256(b"")


@pytest.mark.parametrize("text", ["", "sha256:", "md5:" + "0" * 64, "sha256:" + "0" * 63, "0" * 71])
def test_other_text_is_no_digest(text: str) -> None:
    with pytest.raises(ValueError, match="expected sha256:"):
        from_text(text)


def test_a_digest_of_another_length_has_no_text() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        to_text(b"\x00" * 20)


def leaves(kind: type[errors.FleetError]) -> list[type[errors.FleetError]]:
    return [kind] + [leaf for sub in kind.__subclasses__() for leaf in leaves(sub)]


def made(kind: type[errors.FleetError]) -> errors.FleetError:
    if issubclass(kind, errors.UsageError):
        return kind("file.toml", "a.b", "an integer", "'x'", "write a = 1")
    if issubclass(kind, errors.AttemptEnded):
        return kind("killed", "signal 9", {"pid": 7})
    if issubclass(kind, errors.EvidenceError):
        return kind("ledger-gap", "entry 3 is missing")
    return kind("x")


@pytest.mark.parametrize("kind", leaves(errors.FleetError), ids=lambda k: k.__name__)
def test_every_error_crosses_a_process_border_whole(kind: type[errors.FleetError]) -> None:
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again), again.args) == (str(error), vars(error), error.args)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    assert [k for k in leaves(errors.FleetError) if k.__name__ not in drawn] == []


def test_a_usage_error_says_file_key_expected_got_and_next() -> None:
    error = errors.ContractError("a.toml", "model.dtype", "one of x, y", "'z'", "write x")
    assert str(error) == "a.toml: model.dtype: expected one of x, y, got 'z'\n  next: write x"
    assert str(errors.StoreError("s", "", "a", "b", "c")) == "s: expected a, got b\n  next: c"
