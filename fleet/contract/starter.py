"""A new contract file: complete, valid, commented, and meant to be edited.

Every key is written out, because in a contract nothing is implied. Never overwrites a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TextIO

from fleet.contract.source import NAME
from fleet.errors import ContractError

_TEXT = """\
# {name}: an execution contract. Its name is the name of this file.
#   fleet contract check {name}     is it well formed?
#   fleet certify {name}            does it give the same bits twice?
schema = 1

[model]
# hf:REPO (then revision = "<40 hex digits>" is required), path:FOLDER, or demo:NAME
checkpoint = "{checkpoint}"
engine = "transformers"                   # gptqmodel for quantised weights
dtype = "bfloat16"                        # float16 | float32
{kind}
# For quantised weights: method, bits, group_size and backend together, engine = "gptqmodel".
# [quantization]
# method = "awq"                          # or "gptq"
# bits = 4
# group_size = 128
# backend = "awq_torch"                   # by name; `fleet doctor` lists those that run here

[attention]
implementation = "sdpa"                   # or "eager"
sdpa_kernels = ["math"]                   # math | flash | efficient | cudnn

[decoding]                                # the whole rule: generation_config.json fills no gap
do_sample = false
num_beams = 1
max_new_tokens = 8
batch_size = 1                            # another batch size may round differently
use_cache = true

[determinism]
seed = 0
python_hash_seed = 0
deterministic_algorithms = "strict"       # off | warn | strict
fill_uninitialized_memory = true
cudnn_benchmark = false
cudnn_deterministic = true
cublas_workspace = ":4096:8"
allow_tf32 = false
num_threads = 1
kernel_cache = "cold"                     # private and empty; or pinned

[dataset]
{dataset}

# Every arm runs over the whole dataset. Templates read the record's fields.
[arms.current]
template = "{{{{ question }}}}\\n{{{{ choices }}}}\\nAnswer with one letter."
parser = "letter"                         # letter | number | text | file:PATH.py
{chat}

[require]                                 # what is asked of the evidence; not part of the id
grade = "logits"                          # metric | prediction | tokens | logits
scope = "same-unit"
replays = 2
vary = []                                 # [] exact repeat | batch, cache, kernel_cache, ...
valid_days = 30
"""


Kind = Literal["text", "vision"]

_OWN: Mapping[Kind, Mapping[str, str]] = {
    "text": {
        "checkpoint": "demo:smollm2-135m",
        "kind": "",
        "dataset": 'name = "choices-24"                       '
        "# ../datasets/choices-24.toml, or in the search path",
        "chat": "chat = true                               "
        "# wrap the prompt in the model's chat template",
    },
    "vision": {
        "checkpoint": "demo:tiny-qwen2-vl-bf16",
        "kind": 'kind = "vision"\n'
        'processor = "slow"                        '
        '# Pillow and NumPy; "fast" is torchvision: other pixels\n',
        "dataset": 'name = "shapes-24"                        '
        "# its records name images; configs/README.md says how",
        "chat": "chat = true                               "
        "# the template puts the images before the prompt",
    },
}
"""What differs between the kinds of models."""


def starter(name: str, kind: Kind = "text") -> str:
    """A contract file for ``name``.

    Raises:
        ContractError: ``name`` cannot be a contract's name.
    """
    if not NAME.fullmatch(name):
        raise ContractError(
            "fleet contract new",
            "NAME",
            "letters, digits, dots, dashes and underscores, starting with a letter or digit",
            repr(name),
            "choose another name, without .toml",
        )
    return _TEXT.format(name=name, **_OWN[kind])


def write_starter(name: str, search: Sequence[Path], kind: Kind = "text") -> Path:
    """Write ``contracts/NAME.toml`` into the first folder of the search path.

    Raises:
        ContractError: the name is no name, the file exists, or it cannot be written.
    """
    text = starter(name, kind)
    path = search[0] / "contracts" / f"{name}.toml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            _write_whole(path, file, text)
    except FileExistsError:
        fix = "choose another name, or edit that file"
        raise ContractError(str(path), "", "no such file yet", "an existing file", fix) from None
    except OSError as error:
        got = error.strerror or type(error).__name__
        fix = "name a writable folder by --configs or FLEET_CONFIGS"
        raise ContractError(str(path), "", "a file that can be written", got, fix) from error
    return path


def _write_whole(path: Path, file: TextIO, text: str) -> None:
    """All of it or nothing: a full disk leaves no half contract."""
    try:
        file.write(text)
        file.flush()
    except OSError:
        path.unlink()
        raise
