"""Which samples a screening runs."""

from __future__ import annotations

from fleet.schedule.coverage import select

IDS = ["a", "b", "c", "d", "e"]


def test_the_first_sample_is_always_run() -> None:
    chosen = select(IDS, {"current": [7, 7, 7, 7, 7]}, 1, ())
    assert chosen.sample_ids == ("a",)
    assert chosen.shapes == ((1, 7),)


def test_one_sample_of_every_input_shape_of_every_arm_is_run() -> None:
    lengths = {"current": [7, 8, 7, 8, 7], "controlled": [9, 9, 9, 9, 10]}
    chosen = select(IDS, lengths, 1, ())
    assert chosen.sample_ids == ("a", "b", "e")
    assert chosen.shapes == ((1, 7), (1, 8), (1, 9), (1, 10))


def test_whole_batches_are_run_so_that_a_sample_meets_its_own_batch() -> None:
    chosen = select(IDS, {"current": [7, 8, 9, 8, 9]}, 2, ())
    assert chosen.sample_ids == ("a", "b", "c", "d", "e")
    assert chosen.shapes == ((1, 9), (2, 8), (2, 9))


def test_the_record_nearest_to_a_tie_is_run_in_its_dataset_place() -> None:
    chosen = select(IDS, {"current": [7] * 5}, 1, [("current", "d"), ("current", "gone")])
    assert chosen.sample_ids == ("a", "d")
    assert chosen.near == (("current", "d"),)
