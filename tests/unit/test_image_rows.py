"""Rows with images: what lands, what is checked again, and which stage a difference names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fleet.errors import EvidenceError
from fleet.evidence.images import DIGEST_COLUMNS, ImageEvidence, Output, Picture
from fleet.evidence.parts import PartWriter
from fleet.evidence.records import IMAGES_SCHEMA, SCHEMA, ImageRecord, Record
from fleet.evidence.rows import check_columns
from fleet.evidence.tally import Tally, tally_rows
from fleet.judge.rowdiff import RowDifference, classify
from fleet.judge.stages import BY_NAME, INPUT_COLUMNS, ORDER
from tests.landing_builder import make_record, rewrite_part
from tests.unit.evidence_builders import Rows, dataset, judged, pair, rederived

PROCESSOR = {"class": "PilProcessor", "backend": "pil", "version": "pillow 13"}


def hexed(text: str) -> str:
    return text.encode().hex().ljust(64, "0")


def evidence(sample: str, **changes: Any) -> ImageEvidence:
    picture = Picture(hexed(f"f{sample}"), "RGB", 6, 4, hexed(f"d{sample}"))
    outputs = {
        "pixel_values": Output("float32", (4, 8), hexed(f"p{sample}")),
        "image_grid_thw": Output("int64", (1, 3), hexed("grid")),
    }
    places = {"mm_token_type_ids": Output("int64", (1, 9), hexed(f"k{sample}"))}
    return replace(ImageEvidence(PROCESSOR, (picture,), outputs, places), **changes)


def row(sample: str = "s0", position: int = 0, **changes: Any) -> ImageRecord:
    plain = make_record("a" * 16, "current", position, sample)
    values = {f.name: getattr(plain, f.name) for f in fields(Record)}
    return ImageRecord(**values, images=evidence(sample, **changes))


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return land(tmp_path, [row(f"s{n}", n) for n in range(3)])


def land(folder: Path, records: list[Any]) -> Path:
    writer = PartWriter(folder)
    writer.add(records)
    writer.flush()
    return folder / writer.parts[0].name


def tally(part: Path) -> Tally:
    return tally_rows([part], ["current"], in_order=True)


def test_rows_with_images_land_in_a_format_of_their_own(part: Path, tmp_path: Path) -> None:
    assert pq.read_schema(part).metadata[b"fleet.record_format"] == b"2"
    check_columns([part], with_images=True)
    check_columns([part])
    assert set(IMAGES_SCHEMA.names) - set(SCHEMA.names) == {*DIGEST_COLUMNS, "images"}
    plain = land(tmp_path / "plain", [make_record("a" * 16, "current", 0, "s0")])
    check_columns([plain])
    with pytest.raises(EvidenceError, match="no column image_decoded_sha256"):
        check_columns([plain], with_images=True)


def test_a_part_that_says_another_format_than_it_has_is_altered(part: Path) -> None:
    table = pq.read_table(part)
    pq.write_table(table.replace_schema_metadata({"fleet.record_format": "1"}), part)
    with pytest.raises(EvidenceError, match="record format '1'"):
        check_columns([part])


def test_column_digests_of_images_are_there_for_images_only(part: Path, tmp_path: Path) -> None:
    assert set(DIGEST_COLUMNS) <= tally(part).arms["current"].columns.keys()
    plain = land(tmp_path / "plain", [make_record("a" * 16, "current", 0, "s0")])
    assert not set(DIGEST_COLUMNS) & tally(plain).arms["current"].columns.keys()


@pytest.mark.parametrize("column", [*DIGEST_COLUMNS, "images", "input_sha256"])
def test_a_row_whose_images_do_not_give_its_digests_is_altered(part: Path, column: str) -> None:
    def edit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        other = row("other").to_row()
        return [rows[0] | {column: other[column]}, *rows[1:]]

    rewrite_part(part, edit)
    with pytest.raises(EvidenceError, match="does not match the row"):
        tally(part)


def test_evidence_of_images_that_is_none_is_altered(part: Path) -> None:
    rewrite_part(part, lambda rows: [rows[0] | {"images": "{}"}, *rows[1:]])
    with pytest.raises(EvidenceError, match="not the evidence of images"):
        tally(part)


def test_the_same_prompt_over_other_images_is_another_input(tmp_path: Path) -> None:
    one = [replace(row(f"s{n}", n), prompt_ids=row().prompt_ids) for n in range(2)]
    same = row()
    texts = {"prompt_text", "prompt_sha256", "prompt_ids", "prompt_ids_sha256"}
    one = [replace(each, **{name: getattr(same, name) for name in texts}) for each in one]
    one = [replace(each, full_sequence_sha256=_sequence(each)) for each in one]
    assert tally(land(tmp_path, one)).power.distinct_inputs == 2


def _sequence(each: Record) -> bytes:
    from fleet.evidence.digests import token_sequence_digest

    return token_sequence_digest(each.prompt_ids, each.generated_token_ids)


# Which stage


def other_file(images: ImageEvidence) -> ImageEvidence:
    return with_picture(images, sha256=hexed("x"), decoded_sha256=hexed("y"))


def other_pixels(images: ImageEvidence) -> ImageEvidence:
    return with_picture(images, decoded_sha256=hexed("y"))


def other_mode(images: ImageEvidence) -> ImageEvidence:
    return with_picture(images, mode="L", decoded_sha256=hexed("y"))


def with_picture(images: ImageEvidence, **changes: Any) -> ImageEvidence:
    return replace(images, pictures=(replace(images.pictures[0], **changes),))


def two_pictures(images: ImageEvidence) -> ImageEvidence:
    return replace(images, pictures=(*images.pictures, *images.pictures))


def other_processor(images: ImageEvidence) -> ImageEvidence:
    fast = PROCESSOR | {"class": "TorchvisionProcessor", "version": "torchvision 0.28"}
    outputs = images.outputs | {"pixel_values": Output("float32", (4, 8), hexed("z"))}
    return replace(images, processor=fast, outputs=outputs)


def other_size(images: ImageEvidence) -> ImageEvidence:
    outputs = images.outputs | {"pixel_values": Output("float32", (9, 8), hexed("z"))}
    return replace(images, outputs=outputs)


def other_places(images: ImageEvidence) -> ImageEvidence:
    return replace(images, places={"mm_token_type_ids": Output("int64", (1, 9), hexed("k"))})


def found(change: Callable[[ImageEvidence], ImageEvidence], **changes: Any) -> RowDifference:
    record = row()
    ours = record.to_row()
    theirs = replace(record, images=change(record.images), **changes).to_row()
    difference = classify(ours, theirs)
    assert difference is not None
    return difference


CLASSES = "processors PilProcessor pillow 13 and TorchvisionProcessor torchvision 0.28"
BOTH = "processors PilProcessor pillow 13 and PilProcessor pillow 13"


@pytest.mark.parametrize(
    ("change", "stage", "words"),
    [
        (other_file, "image_file", "image 1: the bytes of the file differ"),
        (two_pictures, "image_file", "1 and 2 images"),
        (other_pixels, "image_decoded", "image 1: the pixels differ, files equal"),
        (other_mode, "image_decoded", "image 1: RGB 6x4 and L 6x4"),
        (
            other_processor,
            "image_processed",
            f"decoded images equal, pixel_values differs; {CLASSES}",
        ),
        (
            other_size,
            "image_processed",
            f"decoded images equal, pixel_values differs; pixel_values [4, 8] and [9, 8]; {BOTH}",
        ),
        (other_places, "image_places", "kinds of tokens differ, prompt ids equal"),
    ],
)
def test_the_stage_of_an_image_that_differs_first_is_named(
    change: Callable[[ImageEvidence], ImageEvidence], stage: str, words: str
) -> None:
    difference = found(change, step_logits_sha256=(b"x" * 32, b"y" * 32))
    assert (difference.stage, difference.words) == (stage, words)
    assert not difference.same_input
    assert BY_NAME[stage].layers == (1,)


def test_pixels_come_before_the_ids_that_follow_from_their_size() -> None:
    ids = {"prompt_ids": (9,), "prompt_ids_sha256": b"i" * 32}
    assert found(other_size, **ids).stage == "image_processed"
    assert found(other_file, raw_record_sha256=b"r" * 32).stage == "image_file"
    assert found(lambda images: images, **ids).stage == "prompt_ids"
    stages = list(INPUT_COLUMNS.values())
    assert stages == sorted(stages, key=ORDER.__getitem__)


def test_equal_images_leave_a_difference_of_logits_to_what_follows() -> None:
    difference = found(lambda images: images, step_logits_sha256=(b"x" * 32, b"y" * 32))
    assert (difference.stage, difference.same_input) == ("logits", True)


def test_rows_with_and_without_images_have_no_input_in_common() -> None:
    plain = make_record("b" * 16, "current", 0, "s0", logits="x").to_row()
    difference = classify(row().to_row(), plain)
    assert difference is not None
    assert not difference.same_input


def test_the_text_of_the_evidence_says_all_there_is() -> None:
    text = row().to_row()["images"]
    picture = asdict(evidence("s0").pictures[0])
    assert all(f'"{key}"' in text for key in (*picture, "pixel_values", "mm_token_type_ids"))


# The verdict


def pictured(change: Callable[[ImageEvidence], ImageEvidence] | None = None) -> Rows:
    """All rows of a replay, in one of which the images are others."""
    found = []
    for each in dataset():
        images = evidence(each["sample_id"])
        if change is not None and (each["sample_id"], each["arm"]) == ("q2", "current"):
            images = change(images)
        found.append(rederived(each | images.columns()))
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_file, "image file"),
        (other_pixels, "decoded image"),
        (other_processor, "image resized and normalised"),
        (other_places, "places of the images among the tokens"),
    ],
)
def test_images_that_differ_between_two_replays_are_a_fail_of_layer_1(
    change: Callable[[ImageEvidence], ImageEvidence], words: str
) -> None:
    verdict = judged(pair(pictured(), pictured(change)))
    assert (verdict.verdict, verdict.layer) == ("FAIL", 1)
    assert words in verdict.reason
    assert [s["sample_id"] for s in verdict.differing_samples] == ["q2"]
    assert judged(pair(pictured(), pictured())).verdict == "PASS"
