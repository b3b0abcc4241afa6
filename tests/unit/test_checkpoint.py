"""Resolving and digesting checkpoints, on folders written by hand; no torch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fleet.replay.checkpoint as checkpoint
import fleet.replay.demo as demo
from fleet.contract.canonical import digest_json, to_text
from fleet.contract.model import Model
from fleet.errors import CheckpointError
from fleet.evidence.digests import tensor_digest
from fleet.replay.checkpoint import (
    chat_template,
    chat_template_digest,
    checkpoint_digest,
    code_digest,
    default_cache,
    resolve,
    tensor_digests,
    tokenizer_digest,
)
from fleet.replay.demo import Builder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Offer = Callable[[Builder], None]
Tensors = Mapping[str, tuple[str, list[int], bytes]]

TENSORS: Tensors = {
    "a.weight": ("BF16", [2, 3], bytes(range(12))),
    "b.weight": ("F8_E4M3", [5], b"\x01\x02\x03\x04\x05"),
    "c.packed": ("F4", [2, 4], b"\x12\x34\x56\x78"),
    "d.empty": ("F32", [0, 7], b""),
    "e.scalar": ("I64", [], b"\x01" + bytes(7)),
}


def safetensors(tensors: Tensors) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        offsets = [position, position + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        position += len(data)
    return framed(json.dumps(header)) + b"".join(data for _, _, data in tensors.values())


def framed(header: str) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode()


def folder_with(folder: Path, tensors: Tensors = TENSORS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def sharded(folder: Path, shards: Mapping[str, Iterable[str]]) -> Path:
    folder_with(folder)
    (folder / "model.safetensors").unlink()
    for file, names in shards.items():
        (folder / file).write_bytes(safetensors({name: TENSORS[name] for name in names}))
    weight_map = {name: file for file, names in shards.items() for name in names}
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def model(reference: str, **keys: Any) -> Model:
    return Model(checkpoint=reference, dtype="bfloat16", **keys)


def refused(folder: Path, **keys: Any) -> str:
    """The message with which ``path:`` refuses the folder."""
    with pytest.raises(CheckpointError) as caught:
        resolve(model(f"path:{folder}", **keys), folder.parent, folder.parent / "cache")
    assert caught.value.fix
    return str(caught.value)


def test_every_tensor_is_digested_with_torchs_dtype_name_and_shape(tmp_path: Path) -> None:
    assert tensor_digests(folder_with(tmp_path)) == {
        "a.weight": tensor_digest("bfloat16", (2, 3), TENSORS["a.weight"][2]),
        "b.weight": tensor_digest("float8_e4m3fn", (5,), TENSORS["b.weight"][2]),
        "c.packed": tensor_digest("float4_e2m1fn_x2", (2, 2), TENSORS["c.packed"][2]),
        "d.empty": tensor_digest("float32", (0, 7), b""),
        "e.scalar": tensor_digest("int64", (), TENSORS["e.scalar"][2]),
    }


def test_shards_give_the_same_checkpoint_digest_as_one_file(tmp_path: Path) -> None:
    one = tensor_digests(folder_with(tmp_path / "one"))
    names = list(TENSORS)
    shards = {"x-1-of-2.safetensors": names[:2], "x-2-of-2.safetensors": names[2:]}
    many = tensor_digests(sharded(tmp_path / "many", shards))
    assert checkpoint_digest(one) == checkpoint_digest(many)


def test_a_large_tensor_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    data = hashlib.shake_128(b"large").digest(17 * 2**20)
    folder_with(tmp_path, {"large": ("U8", [len(data)], data)})
    assert tensor_digests(tmp_path) == {"large": tensor_digest("uint8", (len(data),), data)}


def test_the_checkpoint_digest_is_that_of_names_and_digest_texts() -> None:
    digests = {"b": b"\x02" * 32, "a": b"\x01" * 32}
    expected = digest_json({"a": "sha256:" + "01" * 32, "b": "sha256:" + "02" * 32})
    assert checkpoint_digest(digests) == expected


def test_one_changed_bit_changes_the_checkpoint_digest(tmp_path: Path) -> None:
    folder_with(tmp_path)
    before = checkpoint_digest(tensor_digests(tmp_path))
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert checkpoint_digest(tensor_digests(tmp_path)) != before


def test_files_that_the_index_does_not_name_are_not_part_of_the_checkpoint(tmp_path: Path) -> None:
    sharded(tmp_path, {"x-1-of-1.safetensors": TENSORS})
    before = tensor_digests(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(safetensors(TENSORS))
    assert tensor_digests(tmp_path) == before


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"x-1.safetensors": ["a.weight"], "x-2.safetensors": []})
    write_index(folder, {"a.weight": "x-1.safetensors", "b.weight": "x-3.safetensors"})
    assert "the shard x-3.safetensors" in refused(folder)


def test_a_tensor_that_the_index_promises_and_no_shard_holds_is_named(tmp_path: Path) -> None:
    sharded(tmp_path, {"x-1.safetensors": ["a.weight"]})
    write_index(tmp_path, dict.fromkeys(("a.weight", "b.weight"), "x-1.safetensors"))
    with pytest.raises(CheckpointError, match=r"b\.weight missing"):
        tensor_digests(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    shards = {"x-1.safetensors": ["a.weight", "b.weight"], "x-2.safetensors": ["a.weight"]}
    sharded(tmp_path, shards)
    with pytest.raises(CheckpointError, match=r"a\.weight, doubled or unlisted"):
        tensor_digests(tmp_path)


def test_a_shard_outside_the_folder_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"x-1.safetensors": ["a.weight"]})
    (tmp_path / "out.safetensors").write_bytes(safetensors(TENSORS))
    write_index(folder, {"a.weight": "../out.safetensors"})
    assert "the shard ../out.safetensors" in refused(folder)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m")
    (folder / "model-00002-of-00002.safetensors").write_bytes(safetensors(TENSORS))
    assert "an index beside several" in refused(folder)


def test_one_file_and_an_index_are_two_sets_of_weights(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"x-1.safetensors": TENSORS})
    (folder / "model.safetensors").write_bytes(safetensors(TENSORS))
    assert "got both" in refused(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {"a": 1}}', '{"a":1,"a":2}'])
def test_a_malformed_index_is_refused(tmp_path: Path, text: str) -> None:
    folder = sharded(tmp_path / "m", {"x-1.safetensors": TENSORS})
    (folder / "model.safetensors.index.json").write_text(text)
    assert "index.json" in refused(folder)


GOOD = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
CORRUPT: dict[str, bytes] = {
    "empty": b"",
    "short": b"\x01\x02",
    "header_longer_than_file": (10**6).to_bytes(8, "little") + b"{}",
    "no_json": framed("{nonsense") + b"ab",
    "deep_json": framed("[" * 100_000) + b"ab",
    "no_table": framed("[1]"),
    "doubled_name": framed(f'{{"a":{GOOD},"a":{GOOD}}}') + b"ab",
    "truncated": framed(f'{{"a":{GOOD}}}') + b"a",
    "a_byte_too_many": framed(f'{{"a":{GOOD}}}') + b"abc",
    "gap": framed('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}') + b"ab",
    "overlap": framed(f'{{"a":{GOOD},"b":{GOOD}}}') + b"ab",
    "wrong_size": framed('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}}') + b"ab",
    "negative_size": framed('{"a":{"dtype":"U8","shape":[-1,-2],"data_offsets":[0,2]}}') + b"ab",
    "unknown_dtype": framed('{"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,2]}}') + b"ab",
    "no_offsets": framed('{"a":{"dtype":"U8","shape":[2]}}') + b"ab",
}


@pytest.mark.parametrize("kind", CORRUPT)
def test_a_corrupt_file_is_refused(tmp_path: Path, kind: str) -> None:
    folder_with(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(CORRUPT[kind])
    with pytest.raises(CheckpointError, match="a complete safetensors file"):
        tensor_digests(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled weights are refused (pytorch_model.bin)" in refused(folder)


def test_the_tokenizer_digest_covers_names_and_bytes_of_the_tokenizer_files(tmp_path: Path) -> None:
    folder_with(tmp_path)
    (tmp_path / "merges.txt").write_bytes(b"a b\n")
    expected = {
        "merges.txt": to_text(hashlib.sha256(b"a b\n").digest()),
        "tokenizer.json": to_text(hashlib.sha256(b"{}").digest()),
    }
    assert tokenizer_digest(tmp_path) == digest_json(expected)


def test_the_template_file_is_not_part_of_the_tokenizer_digest(tmp_path: Path) -> None:
    before = tokenizer_digest(folder_with(tmp_path))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_digest(tmp_path) == before
    assert chat_template_digest(tmp_path) == hashlib.sha256(b"{{ messages }}").digest()


def test_no_template_has_the_digest_of_nothing(tmp_path: Path) -> None:
    assert chat_template(folder_with(tmp_path)) is None
    assert chat_template_digest(tmp_path) == hashlib.sha256(b"").digest()


def test_the_template_is_found_where_transformers_finds_it(tmp_path: Path) -> None:
    folder_with(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "in the config"}')
    assert chat_template(tmp_path) == "in the config"
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert chat_template(tmp_path) == "d"
    (tmp_path / "chat_template.jinja").write_text("own file\n")
    assert chat_template(tmp_path) == "own file\n"


def test_named_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    folder_with(tmp_path)
    named = {"chat_template": [{"name": "rag", "template": "r"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(CheckpointError, match='named "default"'):
        chat_template(tmp_path)


def with_code(folder: Path, reference: str = "modeling.MyModel") -> Path:
    folder_with(folder)
    config = {"model_type": "my", "auto_map": {"AutoModelForCausalLM": reference}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text("class MyModel: ...\n")
    return folder


def test_remote_code_is_refused_unless_trusted_and_the_fix_names_its_digest(tmp_path: Path) -> None:
    folder = with_code(tmp_path / "m")
    message = refused(folder)
    assert "modeling.MyModel" in message
    assert to_text(code_digest(folder)) in message


def test_trusted_code_must_have_the_pinned_digest(tmp_path: Path) -> None:
    folder = with_code(tmp_path / "m")
    pinned = to_text(code_digest(folder))
    trusting = model(f"path:{folder}", trust_remote_code=True, code_sha256=pinned)
    assert resolve(trusting, tmp_path, tmp_path) == folder
    (folder / "modeling.py").write_text("class MyModel: pass\n")
    message = refused(folder, trust_remote_code=True, code_sha256=pinned)
    assert f"expected {pinned}" in message


def test_code_from_another_repository_is_refused_even_when_trusted(tmp_path: Path) -> None:
    folder = with_code(tmp_path / "m", "someone/else--modeling.MyModel")
    pinned = to_text(code_digest(folder))
    message = refused(folder, trust_remote_code=True, code_sha256=pinned)
    assert "someone/else--modeling.MyModel" in message


def test_a_path_is_relative_to_the_contract(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "configs" / "model")
    assert resolve(model("path:model"), tmp_path / "configs", tmp_path) == folder


def test_a_wrong_path_says_where_it_looked(tmp_path: Path) -> None:
    assert f"{tmp_path / 'absent'}: expected a checkpoint folder, got no such folder" in refused(
        tmp_path / "absent"
    )


def test_a_file_is_no_checkpoint_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "got a file" in refused(tmp_path / "file")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert "an empty folder" in refused(tmp_path / "m")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("config.json", "config.json: expected the model's configuration"),
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", "expected *.safetensors, got none"),
    ],
)
def test_each_missing_part_is_named(tmp_path: Path, file: str, words: str) -> None:
    folder = folder_with(tmp_path / "m")
    (folder / file).unlink()
    assert words in refused(folder)


def test_a_configuration_that_is_no_json_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m")
    (folder / "config.json").write_text("{")
    assert "expected JSON" in refused(folder)


def test_an_adapter_is_refused_because_loaders_apply_it_unasked(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m")
    (folder / "adapter_config.json").write_text("{}")
    assert "an adapter" in refused(folder)


def test_the_synthetic_model_has_no_folder(tmp_path: Path) -> None:
    assert resolve(model("demo:synthetic"), tmp_path, tmp_path) is None


def test_an_unknown_demo_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="demo:tiny-llama-bf16"):
        resolve(model("demo:gpt-9"), tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FLEET_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/fleet"),
        ({"HOME": "/h"}, "/h/.cache/fleet"),
    ],
)
def test_the_cache_is_where_the_environment_says(environ: dict[str, str], expected: str) -> None:
    assert default_cache(environ) == Path(expected)


def resolve_from_hub_cache(cache: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub client reads its environment when it is imported."""
    program = (
        "import sys; from pathlib import Path; from fleet.contract.model import Model\n"
        "from fleet.replay.checkpoint import resolve\n"
        "from fleet.errors import CheckpointError\n"
        f"m = Model(checkpoint='hf:some/model', revision='{COMMIT}', dtype='bfloat16')\n"
        "try: print(resolve(m, Path('.'), Path('.')))\n"
        "except CheckpointError as error: print(error); sys.exit(2)\n"
    )
    environ = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_a_hub_checkpoint_comes_from_the_local_hub_cache(tmp_path: Path) -> None:
    snapshot = folder_with(tmp_path / "models--some--model" / "snapshots" / COMMIT)
    done = resolve_from_hub_cache(tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(snapshot), "")


def test_a_hub_checkpoint_that_cannot_be_had_says_what_to_do(tmp_path: Path) -> None:
    done = resolve_from_hub_cache(tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"hf download some/model --revision {COMMIT}" in done.stdout


DEMO = "cache/demo/small-1"


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Puts one small checkpoint on offer, pinned to what ``folder_with`` writes."""
    pinned = checkpoint.content(folder_with(tmp_path / "pinned"))
    monkeypatch.setattr(demo, "EXPECTED", {"small": pinned})
    return lambda build: monkeypatch.setattr(demo, "DEMOS", {"small": build})


def get(tmp_path: Path) -> Path | None:
    return resolve(model("demo:small"), tmp_path, tmp_path / "cache")


def left_behind(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "demo").iterdir())


def test_a_demo_folder_is_made_once(tmp_path: Path, offer: Offer) -> None:
    made = []
    offer(lambda folder, report: made.append(folder_with(folder)))
    assert get(tmp_path) == get(tmp_path) == tmp_path / DEMO
    assert (len(made), left_behind(tmp_path)) == (1, ["small-1"])


def test_a_maker_that_dies_leaves_no_folder(tmp_path: Path, offer: Offer) -> None:
    def half(folder: Path, report: Any) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    offer(half)
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path)
    assert left_behind(tmp_path) == []


def test_a_full_disk_is_an_error_with_a_fix(tmp_path: Path, offer: Offer) -> None:
    def full(folder: Path, report: Any) -> None:
        raise OSError(28, "No space left on device")

    offer(full)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        get(tmp_path)
    assert "FLEET_CACHE" in caught.value.fix
    assert left_behind(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_an_error_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CheckpointError, match="a folder that can be written") as caught:
        resolve(model("demo:tiny-llama-bf16"), tmp_path, tmp_path / "cache")
    assert "FLEET_CACHE" in caught.value.fix


def test_other_bits_than_the_pinned_ones_are_never_published(tmp_path: Path, offer: Offer) -> None:
    other = {"a.weight": ("BF16", [1], b"\x00\x00")}
    offer(lambda folder, report: folder_with(folder, other))
    with pytest.raises(CheckpointError, match=r"demo:small: checkpoint: expected sha256"):
        get(tmp_path)
    assert left_behind(tmp_path) == []


def test_two_makers_at_once_get_one_whole_folder(tmp_path: Path, offer: Offer) -> None:
    together = threading.Barrier(2, timeout=30)

    def build(folder: Path, report: Any) -> None:
        folder_with(folder)
        together.wait()

    offer(build)
    found: list[Path | None] = []
    makers = [threading.Thread(target=lambda: found.append(get(tmp_path))) for _ in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert found == [tmp_path / DEMO] * 2
    assert left_behind(tmp_path) == ["small-1"]


def test_resolving_and_digesting_import_no_torch() -> None:
    program = "import sys, fleet.replay.checkpoint; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
