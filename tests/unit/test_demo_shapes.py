"""Demo checkpoints with parameters: their names, their bits, and one model in two formats.

What is unpacked here is unpacked by shifts of its own, not by the packer's tables.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import fleet.replay.demo as demo
from fleet.contract.model import Model
from fleet.errors import CheckpointError
from fleet.replay.checkpoint import content, existing, resolve
from fleet.replay.demo import EXPECTED, RECORD, find
from fleet.schedule.resolve import resolve_contract
from tests.campaigns import CONTRACT, write_configs, write_contract

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "demo_checkpoints.json").read_text(encoding="utf-8")
)
SHAPED = ("qwen2-7b-shapes-awq", "qwen2-7b-shapes-gptq")
PINNED = sorted(name for name in EXPECTED if name.startswith(SHAPED))
ONE_LAYER = [name for name in PINNED if "layers=1&" in name]
SMALL = "qwen2-7b-shapes-awq?layers=1&vocabulary=512"
MORE_LAYERS = [name for name in PINNED if name not in ONE_LAYER]
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def made(name: str, cache: Path) -> Path:
    folder = resolve(Model(checkpoint=f"demo:{name}", dtype="bfloat16"), cache, cache)
    assert folder is not None
    return folder


# names


def test_one_two_and_four_layers_of_both_formats_are_pinned() -> None:
    assert {f"{n}?layers={k}&vocabulary=4096" for n in SHAPED for k in (1, 2, 4)} == set(PINNED)


def test_every_spelling_of_a_checkpoint_is_one_folder() -> None:
    whole = find("qwen2-7b-shapes-awq?layers=2&vocabulary=4096")
    assert whole.name in EXPECTED
    assert whole.folder == "qwen2-7b-shapes-awq-layers2-vocabulary4096-1"
    for text in ("", "?layers=2", "?vocabulary=4096", "?vocabulary=4096&layers=2"):
        assert find(f"qwen2-7b-shapes-awq{text}").folder == whole.folder
    assert find("qwen2-7b-shapes-gptq").folder != whole.folder
    assert find("tiny-llama-awq").folder == "tiny-llama-awq-1"


@pytest.mark.parametrize("text", ["layers=1", "layers=28", "vocabulary=512", "vocabulary=152064"])
def test_the_ends_of_each_range_are_allowed(text: str) -> None:
    assert text.replace("=", "") in find(f"qwen2-7b-shapes-gptq?{text}").folder


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("layers=0", "layers", "a whole number from 1 to 28"),
        ("layers=29", "layers", "a whole number from 1 to 28"),
        ("layers=2.0", "layers", "a whole number from 1 to 28"),
        ("layers=02", "layers", "a whole number from 1 to 28"),
        ("layers=-1", "layers", "a whole number from 1 to 28"),
        ("layers= 2", "layers", "a whole number from 1 to 28"),
        ("layers=\u0662", "layers", "a whole number from 1 to 28"),
        ("layers=", "layers", "a whole number from 1 to 28"),
        ("layers", "layers", "a whole number from 1 to 28"),
        ("vocabulary=448", "vocabulary", "a multiple of 64 from 512 to 152064"),
        ("vocabulary=4097", "vocabulary", "a multiple of 64 from 512 to 152064"),
        ("vocabulary=152128", "vocabulary", "a multiple of 64 from 512 to 152064"),
        ("layers=2&layers=2", "layers", "each key once"),
        ("hidden=64", "hidden", "layers=NUMBER or vocabulary=NUMBER"),
        ("Layers=2", "Layers", "layers=NUMBER or vocabulary=NUMBER"),
        ("layers=2&", "", "layers=NUMBER or vocabulary=NUMBER"),
        ("", "", "layers=NUMBER or vocabulary=NUMBER"),
    ],
)
def test_a_bad_parameter_is_one_clear_error(
    text: str, key: str, expected: str, tmp_path: Path
) -> None:
    model = Model(checkpoint=f"demo:qwen2-7b-shapes-awq?{text}", dtype="bfloat16")
    for ask in (
        lambda: resolve(model, tmp_path, tmp_path),
        lambda: existing(model, tmp_path, tmp_path),
    ):
        with pytest.raises(CheckpointError) as caught:
            ask()
        error = caught.value
        assert (error.where, error.key) == (model.checkpoint, key)
        assert (error.expected, bool(error.got), bool(error.fix)) == (expected, True, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tiny-llama-bf16?layers=2", "tiny-llama-bf16?"])
def test_a_checkpoint_without_parameters_takes_none(name: str) -> None:
    with pytest.raises(CheckpointError, match="expected no parameter") as caught:
        find(name)
    assert caught.value.fix == "write demo:tiny-llama-bf16"


# bits


def test_the_fast_stream_is_the_golden_one() -> None:
    from fleet.replay.demo.philox import Stream

    whole = Stream("qwen2-7b-shapes/x").take(48).tobytes()
    assert whole.hex() == GOLDEN["philox"]
    parts = Stream("qwen2-7b-shapes/x")
    assert parts.take(16).tobytes() + parts.take(32).tobytes() == whole
    assert Stream("another label").take(48).tobytes() != whole
    with pytest.raises(ValueError, match="multiple of 8"):
        parts.take(12)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", [*ONE_LAYER, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE_LAYERS)]
)
def test_a_pinned_checkpoint_is_the_golden_one(name: str, cache: Path) -> None:
    folder = made(name, cache)
    assert asdict(content(folder)) == GOLDEN["content"][name]
    assert not (folder / RECORD).exists()


@pytest.mark.torch
def test_layers_and_rows_do_not_depend_on_how_many_there_are(cache: Path) -> None:
    import torch

    few, many = made(SMALL, cache), made(ONE_LAYER[0], cache)
    assert equal_tensors(few, many, Q + ".qweight")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(tensor(few, name), tensor(many, name)[:512])


def tensor(folder: Path, name: str) -> Any:
    from safetensors import safe_open

    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    with safe_open(folder / index["weight_map"][name], framework="pt") as opened:
        return opened.get_tensor(name)


def equal_tensors(one: Path, other: Path, name: str) -> bool:
    import torch

    return torch.equal(tensor(one, name), tensor(other, name))


def awq_weight(folder: Path, name: str, rows: int) -> Any:
    """The first rows of (q - z) * s, [rows, N], in float64."""
    import torch

    def columns(words: Any) -> Any:
        nibbles = (words.to(torch.int64).unsqueeze(-1) >> (4 * torch.arange(8))) & 15
        return nibbles[..., [0, 4, 1, 5, 2, 6, 3, 7]].flatten(1)

    q, z = columns(tensor(folder, f"{name}.qweight")[:rows]), tensor(folder, f"{name}.qzeros")
    z = columns(z[: rows // 128]).repeat_interleave(128, 0)
    s = tensor(folder, f"{name}.scales")[: rows // 128].repeat_interleave(128, 0)
    return (q - z) * s.to(torch.float64)


def gptq_weight(folder: Path, name: str, rows: int) -> Any:
    """The same of the other layout: rows packed, zeros less one, a group for each row."""
    import torch

    words = tensor(folder, f"{name}.qweight")[: rows // 8].to(torch.int64)
    q = torch.stack([(words >> 4 * i) & 15 for i in range(8)], dim=1).flatten(0, 1)
    zeros = tensor(folder, f"{name}.qzeros").to(torch.int64)
    z = torch.stack([(zeros >> 4 * i) & 15 for i in range(8)], dim=2).flatten(1) + 1
    group = tensor(folder, f"{name}.g_idx")[:rows].to(torch.int64)
    return (q - z[group]) * tensor(folder, f"{name}.scales")[group].to(torch.float64)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "inputs"), [(Q, 3584), (DOWN, 18944)])
def test_both_formats_hold_the_same_floats(name: str, inputs: int, cache: Path) -> None:
    import torch

    awq, gptq = (made(checkpoint, cache) for checkpoint in ONE_LAYER)
    rows = 1024
    weight = awq_weight(awq, name, rows)
    assert torch.equal(weight, gptq_weight(gptq, name, rows))
    assert tuple(tensor(awq, f"{name}.qweight").shape) == (inputs, 448)
    assert tuple(tensor(gptq, f"{name}.qweight").shape) == (inputs // 8, 3584)
    assert torch.equal(tensor(gptq, f"{name}.g_idx"), torch.arange(inputs).int() // 128)
    assert (weight.to(torch.float16).to(torch.float64) == weight).all()
    assert weight.unique().numel() > 1000


@pytest.mark.torch
def test_the_two_folders_differ_in_the_packing_only(cache: Path) -> None:
    awq, gptq = (made(checkpoint, cache) for checkpoint in ONE_LAYER)
    names = {name for name in weight_map(awq) if not name.endswith((".qweight", ".qzeros"))}
    assert all(equal_tensors(awq, gptq, name) for name in names)
    extra = {name for name in weight_map(gptq) if name not in weight_map(awq)}
    assert {name.rpartition(".")[2] for name in extra} == {"g_idx"}
    assert weight_map(awq) == {n: f for n, f in weight_map(gptq).items() if n not in extra}
    ours, theirs = (json.loads((f / "config.json").read_bytes()) for f in (awq, gptq))
    assert ours.pop("quantization_config") != theirs.pop("quantization_config")
    assert ours == theirs


def weight_map(folder: Path) -> dict[str, str]:
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    found: dict[str, str] = index["weight_map"]
    return found


@pytest.mark.torch
def test_codes_are_balanced_and_everything_is_exact_in_both_16_bit_types(cache: Path) -> None:
    import torch

    folder = made(ONE_LAYER[0], cache)
    words = tensor(folder, f"{Q}.qweight").to(torch.int64)
    codes = (words.unsqueeze(-1) >> (4 * torch.arange(8))) & 15
    counts = codes.flatten().bincount(minlength=16)
    assert int(counts[0]) == 0
    assert int(counts[8]) > 1.9 * int(counts[7])
    for name in (f"{Q}.scales", f"{Q}.bias", "lm_head.weight", "model.embed_tokens.weight"):
        values = tensor(folder, name).to(torch.float64)
        for kind in (torch.float16, torch.bfloat16):
            assert torch.equal(values.to(kind).to(torch.float64), values), name


@pytest.mark.torch
def test_rows_of_the_head_come_in_pairs_that_nearly_agree(cache: Path) -> None:
    head = tensor(made(SMALL, cache), "lm_head.weight").double() * 256 * 8
    within, between = (head[0::2] - head[1::2]).abs(), (head[1:-1:2] - head[2::2]).abs()
    assert 0 < float(within.max()) <= 14
    assert float(between.max()) > 500


@pytest.mark.torch
def test_ids_past_the_tokenizers_entries_are_decoded_to_nothing(cache: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(made(SMALL, cache) / "tokenizer.json"))
    text = "What is 2 + 2?"
    ids = tokenizer.encode(text).ids
    assert tokenizer.get_vocab_size() == 512
    assert tokenizer.decode([*ids, 512, 4095]) == text


# the cache


def contract_over(root: Path, checkpoint: str) -> None:
    """A contract ``toy`` in ``root`` over a demo checkpoint."""
    text = CONTRACT.replace('"demo:synthetic"', f'"demo:{checkpoint}"')
    text = text.replace('engine = "synthetic"', 'engine = "gptqmodel"')
    text = text.replace('dtype = "float32"', 'dtype = "bfloat16"')
    table = 'method = "awq"\nbits = 4\ngroup_size = 128\nbackend = "awq_torch"\n'
    write_configs(root / "configs")
    write_contract(root / "configs", "toy", f"{text}\n[quantization]\n{table}")


def resolve_in(root: Path) -> Path:
    found = resolve_contract("toy", [root / "configs"], root / "cache", lambda _: None).checkpoint
    assert found is not None
    return found


def copied(name: str, cache: Path, root: Path) -> None:
    """The checkpoint in the cache of ``root``, to be damaged."""
    folder = made(name, cache)
    shutil.copytree(folder, root / "cache" / "demo" / folder.name)
    contract_over(root, name)


@pytest.mark.torch
@pytest.mark.parametrize("name", [SMALL, "tiny-llama-awq"])
def test_a_cached_folder_that_was_altered_is_refused(
    name: str, cache: Path, tmp_path: Path
) -> None:
    copied(name, cache, tmp_path)
    folder = resolve_in(tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        resolve_in(tmp_path)
    assert (caught.value.where, caught.value.key) == (str(folder), "checkpoint")
    assert caught.value.fix == f"delete {folder}; it is made anew at the next call"


@pytest.mark.torch
def test_without_the_record_of_what_was_made_a_folder_is_refused(
    cache: Path, tmp_path: Path
) -> None:
    copied(SMALL, cache, tmp_path)
    folder = resolve_in(tmp_path)
    record = json.loads((folder / RECORD).read_bytes())
    assert record == asdict(content(folder))
    for damage in ("{}", json.dumps({**record, "checkpoint": "sha256:" + "0" * 64})):
        (folder / RECORD).write_text(damage)
        with pytest.raises(CheckpointError, match="it is made anew"):
            resolve_in(tmp_path)
    (folder / RECORD).unlink()
    with pytest.raises(CheckpointError, match=RECORD):
        resolve_in(tmp_path)


def test_a_record_beside_a_pinned_checkpoint_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = demo.Content("sha256:a", "sha256:b", "sha256:c")
    monkeypatch.setattr(demo, "EXPECTED", {"tiny-llama-awq": pinned})
    other = {**asdict(pinned), "checkpoint": "sha256:d"}
    (tmp_path / RECORD).write_text(json.dumps(other))
    with pytest.raises(CheckpointError, match="expected sha256:a, got sha256:d"):
        demo.require_as_made("tiny-llama-awq", tmp_path, other)
