"""The text of a small synthetic contract, for all tests that run whole campaigns."""

from __future__ import annotations

TEMPLATES = {"current": "{{ question }}", "controlled": "Choose. {{ question }}"}


def contract_text(
    dataset: str,
    grade: str = "logits",
    batch_size: int = 1,
    parser: str = "letter",
    templates: dict[str, str] = TEMPLATES,
    clock: str | None = None,
    extra: str = "",
) -> str:
    """Greedy, four tokens, two arms, two replays; every key that has no default is there.

    Args:
        dataset: its name.
        grade: what is required.
        batch_size: of the decoding.
        parser: of both arms.
        templates: arm -> template, as it stands between the quotes of the TOML.
        clock: of the dataset, if its templates read one.
        extra: further lines; they follow those of the last table, [require].
    """
    read_clock = f'clock = "{clock}"\n' if clock else ""
    arms = "".join(
        f'[arms.{arm}]\ntemplate = "{template}"\nparser = "{parser}"\nchat = false\n'
        for arm, template in templates.items()
    )
    return f"""schema = 1
[model]
checkpoint = "demo:synthetic"
engine = "synthetic"
dtype = "float32"
[decoding]
do_sample = false
num_beams = 1
max_new_tokens = 4
batch_size = {batch_size}
use_cache = true
[determinism]
seed = 0
python_hash_seed = 0
deterministic_algorithms = "strict"
fill_uninitialized_memory = true
cudnn_benchmark = false
cudnn_deterministic = true
cublas_workspace = ":4096:8"
allow_tf32 = false
num_threads = 1
kernel_cache = "cold"
[dataset]
name = "{dataset}"
{read_clock}{arms}[require]
grade = "{grade}"
{extra}"""
