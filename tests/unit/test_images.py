"""Images of a dataset: pinned through the records, read where they lie, refused where they are not
what the records say."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fleet.contract.canonical import sha256, to_text
from fleet.contract.dataset import load_dataset
from fleet.contract.images import check_images, images_of
from fleet.contract.load import load_contract
from fleet.contract.model import Contract
from fleet.errors import ContractError, DatasetError
from fleet.evidence.images import image_digests
from fleet.replay import pinned
from fleet.replay.images import Images, decode

CONFIGS = Path(__file__).parents[2] / "configs"


def contract(name: str) -> Contract:
    return load_contract(name, [CONFIGS]).contract


VISION, TEXT = "tiny-qwen2-vl", "tiny-awq-torch"


def png(shade: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (6, 4), shade if mode in ("L", "P") else (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


PICTURES = [png(10), png(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``datasets/d.jsonl`` with two records, and their images in ``datasets/pictures``."""
    pictures = tmp_path / "datasets" / "pictures"
    pictures.mkdir(parents=True)
    for number, data in enumerate(PICTURES):
        (pictures / f"{number}.png").write_bytes(data)
    write(tmp_path, [record(0), record(1)])
    return tmp_path


def record(number: int, **image: Any) -> dict[str, Any]:
    named = {"file": f"pictures/{number}.png", "sha256": to_text(sha256(PICTURES[number]))} | image
    return {"id": f"r{number}", "answer": "A", "images": [named]}


def write(folder: Path, records: list[dict[str, Any]]) -> None:
    data = "".join(json.dumps(each) + "\n" for each in records).encode()
    pin(folder, "d.jsonl", data)


def pin(folder: Path, name: str, data: bytes) -> None:
    (folder / "datasets" / name).write_bytes(data)
    toml = f'file = "{name}"\nsha256 = "{to_text(sha256(data))}"\n'
    (folder / "datasets" / "d.toml").write_text(toml)


def checked(folder: Path, name: str = VISION) -> list[str]:
    dataset = load_dataset("d", [folder])
    records = (each for each, _ in dataset.stream())
    found: Iterator[Any] = check_images(contract(name), "c.toml", dataset.file, records)
    return [each["id"] for each in found]


def test_a_record_names_its_images_and_the_dataset_is_pinned_with_them(folder: Path) -> None:
    assert checked(folder) == ["r0", "r1"]
    dataset = load_dataset("d", [folder])
    source = Images(dataset.file)
    assert [source.read(each) for each in dataset.records] == [[data] for data in PICTURES]
    before = dataset.digest
    (folder / "datasets" / "pictures" / "0.png").write_bytes(png(11))
    write(folder, [record(0, sha256=to_text(sha256(png(11)))), record(1)])
    assert checked(folder) == ["r0", "r1"]
    assert load_dataset("d", [folder]).digest != before


def swap(folder: Path) -> None:
    (folder / "datasets" / "pictures" / "1.png").write_bytes(png(21))


def remove(folder: Path) -> None:
    (folder / "datasets" / "pictures" / "1.png").unlink()


def outside(folder: Path) -> None:
    (folder / "1.png").write_bytes(PICTURES[1])
    write(folder, [record(0), record(1, file="../1.png")])


def linked(folder: Path) -> None:
    path = folder / "datasets" / "pictures" / "1.png"
    shutil.move(path, folder / "1.png")
    path.symlink_to(folder / "1.png")


def absolute(folder: Path) -> None:
    write(folder, [record(0), record(1, file=str(folder / "datasets" / "pictures" / "1.png"))])


def a_folder(folder: Path) -> None:
    write(folder, [record(0), record(1, file="pictures")])


def misspelt(folder: Path) -> None:
    write(folder, [record(0), record(1, path="x")])


def no_digest(folder: Path) -> None:
    write(folder, [record(0), record(1, sha256="abc")])


def not_a_list(folder: Path) -> None:
    write(folder, [record(0), record(1) | {"images": "pictures/1.png"}])


@pytest.mark.parametrize(
    ("break_it", "expected", "got"),
    [
        (swap, to_text(sha256(PICTURES[1])), to_text(sha256(png(21)))),
        (remove, "a readable image file", "No such file"),
        (a_folder, "a readable image file", "Is a directory"),
        (outside, "inside the dataset's folder", "'../1.png'"),
        (linked, "inside the dataset's folder", "pictures/1.png"),
        (misspelt, '"file":', '"path": "x"'),
        (no_digest, "64 hexadecimal digits", "abc"),
        (not_a_list, "a list of", "'pictures/1.png' (string)"),
    ],
)
def test_an_image_that_is_not_what_the_record_says_is_one_clear_error(
    folder: Path, break_it: Callable[[Path], None], expected: str, got: str
) -> None:
    break_it(folder)
    with pytest.raises(DatasetError) as caught:
        checked(folder)
    error = caught.value
    assert error.key == "record r1: images"
    assert expected in error.expected
    assert got in error.got
    assert error.fix


def test_an_absolute_path_into_the_folder_is_inside_it(folder: Path) -> None:
    absolute(folder)
    assert checked(folder) == ["r0", "r1"]


def test_a_vision_contract_needs_images_and_a_text_contract_none(folder: Path) -> None:
    with pytest.raises(ContractError) as caught:
        checked(folder, TEXT)
    assert (caught.value.key, caught.value.fix) == ("model.kind", 'write kind = "vision"')
    write(folder, [record(0), record(1) | {"images": []}])
    with pytest.raises(ContractError) as caught:
        checked(folder)
    assert (caught.value.key, caught.value.got) == ("dataset.name", "record r1 without images")


def test_a_text_dataset_may_call_any_other_field_images(folder: Path) -> None:
    write(folder, [{"id": "a", "answer": "A", "images": "two cats"}])
    assert checked(folder, TEXT) == ["a"]


def test_bytes_that_are_no_image_or_half_of_one_are_named(folder: Path) -> None:
    for data in (b"no image", PICTURES[0][:-30], b""):
        with pytest.raises(DatasetError) as caught:
            decode(data, "d.jsonl", "r7")
        assert caught.value.key == "record r7: images"
        assert "Pillow can decode" in caught.value.expected


def test_decoded_pixels_are_known_by_mode_size_and_every_byte() -> None:
    first = decode(png(10), "d", "r")[1]
    assert (first.mode, first.width, first.height) == ("RGB", 6, 4)
    assert first.sha256 == sha256(png(10)).hex()
    found = {decode(data, "d", "r")[1].decoded_sha256 for data in (png(10), png(11), png(10, "L"))}
    assert len(found) == 3


def test_the_palette_of_an_indexed_image_counts_as_pixels() -> None:
    files = []
    for shade in (1, 2):
        image = Image.new("P", (6, 4), 0)
        image.putpalette([shade, 0, 0])
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        files.append(decode(buffer.getvalue(), "d", "r")[1])
    assert files[0].decoded_sha256 != files[1].decoded_sha256


# Parquet


def parquet(folder: Path, images: list[Any], rows: int = 1, **columns: list[Any]) -> Path:
    table = pa.table({"id": ["r0", "r1"], "answer": ["A", "B"], "images": images, **columns})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=rows)
    pin(folder, "d.parquet", buffer.getvalue())
    return folder / "datasets" / "d.parquet"


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: {"bytes": data, "path": None}])
@pytest.mark.parametrize("rows", [1, 2])
def test_parquet_holds_the_same_records_with_the_bytes_inside(
    folder: Path, wrap: Callable[[bytes], Any], rows: int
) -> None:
    file = parquet(folder, [[wrap(data)] for data in PICTURES], rows)
    assert checked(folder) == ["r0", "r1"]
    dataset = load_dataset("d", [folder])
    digests = [images_of(each, "d")[0].sha256 for each in dataset.records]
    assert digests == [sha256(data) for data in PICTURES]
    source = Images(file)
    for number in (1, 0, 1):
        assert source.read(dataset.records[number]) == [PICTURES[number]]
    assert all(b'"images":[{"sha256":"sha256:' in line for line in dataset.raw)


def test_parquet_is_streamed_as_it_is_pinned(folder: Path) -> None:
    file = parquet(folder, [[data] for data in PICTURES])
    dataset = load_dataset("d", [folder])
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(DatasetError, match=r"d\.toml: sha256"):
        load_dataset("d", [folder])
    with pytest.raises(DatasetError):
        list(dataset.stream())


def test_a_parquet_that_is_none_or_holds_no_bytes_is_refused(folder: Path) -> None:
    pin(folder, "d.parquet", b"PAR1 not really")
    with pytest.raises(DatasetError, match="a Parquet file"):
        checked(folder)
    parquet(folder, [["a.png"], ["b.png"]])
    with pytest.raises(DatasetError, match="a list of byte strings"):
        checked(folder)
    parquet(folder, [[data] for data in PICTURES], scores=[float("nan"), 1.0])
    with pytest.raises(DatasetError, match="leave the column out"):
        checked(folder)


def test_a_worker_reads_parquet_records_as_the_driver_does(folder: Path) -> None:
    file = parquet(folder, [[data] for data in PICTURES])
    dataset = load_dataset("d", [folder])

    class Task:
        dataset_file = str(file)
        digests = {"dataset": to_text(dataset.digest)}  # noqa: RUF012
        sample_ids = ("r1",)

    found = pinned.samples(Task())  # type: ignore[arg-type]
    assert found.records == (dict(dataset.records[1]),)
    assert found.raw == {"r1": dataset.raw[1]}


def test_evidence_that_is_none_is_refused() -> None:
    for text in ("{}", "[]", '{"images": [{}], "outputs": {}, "places": {}}', "no json"):
        with pytest.raises(ValueError):
            image_digests(text)
