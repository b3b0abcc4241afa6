"""The contract as typed, frozen data. Unknown keys and wrong types are errors.

Knows no files, no digests and no machine. Law 5 starts here: everything that can change a bit is
either a key with a declared value or refused; nothing is filled in from a checkpoint's own
``generation_config.json``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

COMMIT = re.compile(r"[0-9a-f]{40}")

SCHEMA = 1
"""Schema of the contract format. A key added later is hashed only off its introduced default."""

Grade = Literal["metric", "prediction", "tokens", "logits", "modules"]
GRADES: tuple[Grade, ...] = ("metric", "prediction", "tokens", "logits", "modules")
"""Ascending: each grade includes all before it."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


def tuples(data: Any, *keys: str) -> Any:
    """TOML has lists; the frozen model has tuples. Strict mode converts neither by itself."""
    if not isinstance(data, dict):
        return data
    return {k: tuple(v) if k in keys and isinstance(v, list) else v for k, v in data.items()}


class Table(BaseModel):
    """A TOML table: closed, strictly typed, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Model(Table):
    """Which weights, read how."""

    checkpoint: Annotated[str, Field(pattern=r"^(hf|path|demo):.+$")]
    revision: str | None = None
    engine: Literal["transformers", "gptqmodel", "synthetic"] = "transformers"
    dtype: Literal["bfloat16", "float16", "float32"]
    kind: Literal["text", "vision"] = "text"
    processor: Literal["fast", "slow"] | None = None
    trust_remote_code: bool = False
    code_sha256: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _pinned(self) -> Model:
        if self.checkpoint.startswith("hf:") and not COMMIT.fullmatch(self.revision or ""):
            raise ValueError(
                "revision: a hub checkpoint is pinned by a full commit (40 hex digits), "
                f"got {self.revision!r}"
            )
        if self.trust_remote_code != (self.code_sha256 is not None):
            raise ValueError("trust_remote_code = true and code_sha256 go together")
        if (self.kind == "vision") != (self.processor is not None):
            raise ValueError('kind = "vision" and processor go together')
        return self


class Quantization(Table):
    """How the linear layers are stored, and which kernel family executes them."""

    method: Literal["none", "awq", "gptq"] = "none"
    bits: Literal[2, 3, 4, 8] | None = None
    group_size: int | None = None
    backend: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Quantization:
        named = (self.bits, self.group_size, self.backend)
        if self.method == "none" and any(value is not None for value in named):
            raise ValueError('bits, group_size and backend go with method = "awq" or "gptq"')
        if self.method != "none" and any(value is None for value in named):
            raise ValueError(f'method = "{self.method}" needs bits, group_size and backend')
        if self.backend is not None and self.backend.startswith("auto"):
            raise ValueError("the backend is named, never 'auto' (auto differs by machine)")
        return self


class Attention(Table):
    """Which attention code runs."""

    implementation: Literal["sdpa", "eager"] = "sdpa"
    sdpa_kernels: tuple[Literal["math", "flash", "efficient", "cudnn"], ...] = ("math",)

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "sdpa_kernels")

    @model_validator(mode="after")
    def _some_kernel(self) -> Attention:
        if self.implementation == "sdpa" and not self.sdpa_kernels:
            raise ValueError("sdpa needs at least one entry in sdpa_kernels")
        return self


class Decoding(Table):
    """The whole decoding rule. ``None`` for a penalty or temperature means neutral."""

    do_sample: bool
    num_beams: Literal[1]
    max_new_tokens: Positive
    batch_size: Positive
    use_cache: bool
    stop_token_ids: tuple[NonNegative, ...] | None = None
    pad_token_id: NonNegative | None = None
    padding_side: Literal["left", "right"] = "left"
    temperature: Annotated[float, Field(gt=0)] | None = None
    top_k: Positive | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "stop_token_ids")

    @model_validator(mode="after")
    def _sampling_is_declared(self) -> Decoding:
        sampling = (self.temperature, self.top_k, self.top_p)
        if self.do_sample and any(value is None for value in sampling):
            raise ValueError("do_sample = true needs temperature, top_k and top_p, all explicit")
        if not self.do_sample and any(value is not None for value in sampling):
            raise ValueError("temperature, top_k and top_p go with do_sample = true")
        if self.stop_token_ids is not None and len(set(self.stop_token_ids)) != len(
            self.stop_token_ids
        ):
            raise ValueError("stop_token_ids names an id twice")
        return self


class Determinism(Table):
    """Settings that remove known sources of nondeterminism; each is read back in the worker."""

    seed: NonNegative
    python_hash_seed: Annotated[int, Field(ge=0, le=4294967295)]
    deterministic_algorithms: Literal["off", "warn", "strict"]
    fill_uninitialized_memory: bool
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    cublas_workspace: Annotated[str, Field(pattern=r"^(:[0-9]+:[0-9]+)+$")]
    allow_tf32: bool
    num_threads: Positive
    kernel_cache: Literal["pinned", "cold"]


class Dataset(Table):
    """Which questions. ``clock`` is the ISO time that templates read, with its zone."""

    name: Name
    clock: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)$")] | (
        None
    ) = None


class Arm(Table):
    """One experimental path: a Jinja template over the record's fields, and a parser."""

    template: Annotated[str, Field(min_length=1)]
    parser: Annotated[str, Field(pattern=r"^([a-z][a-z0-9_]*|file:.+\.py)$")]
    chat: bool = True
    system: str | None = None


BY_NONCE = "@nonce"
"""A place that the contract leaves to the campaign."""


FAULTS = (
    "racy_linear",
    "ordered_linear",
    "batch_linear",
    "carrying_linear",
    "threaded_linear",
    "crowded_linear",
    "uninitialized_linear",
    "compiled_linear",
    "recompiled_linear",
)
"""Kinds of injected linears: what they do is said where they are."""

COMPILED = ("compiled_linear:", "recompiled_linear:")
"""How the injected linears begin that put something into the kernel cache."""


class Control(Table):
    """A fault that the contract asks for, so that the instrument can be tested."""

    inject: Annotated[str, Field(pattern=rf"^({'|'.join(FAULTS)}):(@nonce|[A-Za-z0-9_.]+)$")]


class Require(Table):
    """What is asked of the evidence. Outside the execution id.

    ``process_bound``: the largest share of processes of another kind that a PASS may leave open;
    None asks for no more than ``replays``.
    """

    grade: Grade = "logits"
    scope: Literal["same-unit", "same-class"] = "same-unit"
    replays: Annotated[int, Field(ge=2)] = 2
    process_bound: Annotated[float, Field(ge=0.001, lt=0.5)] | None = None
    vary: tuple[str, ...] = ()
    valid_days: Positive = 30

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "vary")


class Expect(Table):
    """What a control must show. Outside the execution id."""

    verdict: Literal["PASS", "FAIL"]
    layer: Annotated[int, Field(ge=1, le=5)] | None = None
    first_broken_grade: Grade | None = None
    culprit: str | None = None
    fault: str | None = None


class Contract(Table):
    """One execution contract. ``name`` and ``source`` come from the file, not from a key."""

    model: Model
    quantization: Quantization = Quantization()
    attention: Attention = Attention()
    decoding: Decoding
    determinism: Determinism
    dataset: Dataset
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    control: Control | None = None
    require: Require = Require()
    expect: Expect | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Contract:
        if self.expect is not None and self.control is None:
            raise ValueError("[expect] is for controls: it goes with [control]")
        if self.quantization.method != "none" and self.model.engine == "transformers":
            raise ValueError(
                'a quantised contract runs under [model] engine = "gptqmodel" '
                "(it selects the backend by name; transformers does not)"
            )
        if self.quantization.method == "none" and self.model.engine == "gptqmodel":
            raise ValueError('[model] engine = "gptqmodel" needs [quantization] method')
        return self
