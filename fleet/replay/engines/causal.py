"""A causal language model run by transformers' ``generate``: all that its engines share.

An engine loads a model and says how its tensors map to the checkpoint; preparing, generating,
observing and reading back happen here, the same for unquantised and quantised models. Knows no
other replay. Nothing is echoed from the contract into what is reported as in force.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import random
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from safetensors import SafetensorError
from torch import nn

from fleet.contract.canonical import digest_json, sha256, to_text
from fleet.contract.model import Contract
from fleet.errors import AttemptFailed
from fleet.evidence.records import length_prefixed
from fleet.replay import determinism
from fleet.replay.engines import decoding, weights
from fleet.replay.engines.cached_steps import CachedSteps
from fleet.replay.engines.logits import StepLog
from fleet.replay.engines.protocol import Census, Generation, Prepared, Settings
from fleet.replay.engines.tokenization import Tokenization
from fleet.replay.inject import inject
from fleet.replay.objects import built_here

if TYPE_CHECKING:  # it brings Pillow and the processors, which a text model does without
    from fleet.replay.engines.pictures import Pictures


def _pictures(contract: Contract, checkpoint: Path, dataset: Path | None) -> Pictures | None:
    """The input side of a vision contract; torchvision, Pillow and processors for it alone."""
    if contract.model.kind != "vision":
        return None
    from fleet.replay.engines.pictures import Pictures

    if dataset is None:
        raise ValueError("a vision contract needs its dataset: the images lie there")
    return Pictures(contract, checkpoint, dataset)


def slot_device() -> torch.device:
    """The slot's one device: the first CUDA device visible to this process, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@contextlib.contextmanager
def _memory_errors() -> Iterator[None]:
    """Memory that ran out is a cause of its own, on the device and on the host."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        on_device = isinstance(error, torch.OutOfMemoryError)
        if not on_device and "can't allocate memory" not in str(error):
            raise
        raise AttemptFailed("out-of-memory", str(error).splitlines()[0]) from error


@contextlib.contextmanager
def _load_errors(engine: str) -> Iterator[None]:
    """What a loader says when it cannot load; full disks and other system errors pass."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        text = f"{engine} could not load the model: {error}"
        raise AttemptFailed("load-error", text) from error


class CausalEngine(abc.ABC):
    """Base of the engines whose model has transformers' ``generate``."""

    name: str

    def __init__(self, contract: Contract, checkpoint: Path, dataset: Path | None = None) -> None:
        self._contract = contract
        self._checkpoint = checkpoint
        self._device = slot_device()
        self._pictures = _pictures(contract, checkpoint, dataset)
        self._tokens = self._pictures or Tokenization(contract, checkpoint)
        self._model: Any = None
        self._observed: decoding.Observed | None = None
        self._steps: StepLog | None = None
        self._cached = CachedSteps()
        self._inference: set[bool] = set()

    @abc.abstractmethod
    def _load_model(self) -> tuple[Any, Sequence[str]]:
        """The model on the slot's device, and the names its loader had no tensor for."""

    @abc.abstractmethod
    def _map(
        self, model: Any, on_disk: Mapping[str, bytes], reinitialised: Sequence[str]
    ) -> weights.Mapped:
        """Loaded tensors against the checkpoint's."""

    def _settle(self, model: Any) -> None:
        """Let kernels that change their tensors at first use do so now, before any digest."""
        return

    def _kernels(self) -> Mapping[str, Mapping[str, Any]]:
        """Module path -> class, mode, ... of quantised linears, as they are now."""
        return {}

    def _extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """Tensors that count as weights and are neither parameters nor buffers."""
        return {}

    def _engine_state(self) -> dict[str, Any]:
        """Effective facts of this engine alone."""
        return {}

    def _engine_requires(self) -> dict[str, Any]:
        """What the contract asks of them."""
        return {}

    def model(self) -> nn.Module:
        """The loaded model, for hooks."""
        loaded: nn.Module = self._model
        return loaded

    def prepare(
        self,
        arm: str,
        records: Sequence[Mapping[str, Any]],
        prompts: Sequence[str],
        now: datetime,
    ) -> list[Prepared]:
        """See the protocol."""
        return self._tokens.prepare(arm, records, prompts, now)

    def load(self, on_disk: Mapping[str, bytes], nonce: str = "") -> Census:
        """Load, compare with the checkpoint, inject what a control asks for, take the census."""
        with _load_errors(self.name), _memory_errors():
            model, reinitialised = self._load_model()
        model.eval()
        model.requires_grad_(False)
        self._model = model
        tensors = weights.tensors_of(model)
        off_device = sorted(n for n, t in tensors.items() if t.device != self._device)
        mapped = weights.Mapped() if off_device else self._map(model, on_disk, reinitialised)
        with _load_errors(self.name), _memory_errors():
            self._settle(model)
        injected = inject(model, self._contract, nonce)
        model.generation_config = self._explicit_config()
        self._observed = decoding.Observed(model)
        model.register_forward_hook(self._on_forward, with_kwargs=True)
        return Census(
            classes=_leaf_classes(model),
            kernels=self._kernels(),
            computed=mapped.computed,
            repacked=mapped.repacked,
            unmapped=mapped.unmapped,
            altered=mapped.altered,
            missing=mapped.missing,
            off_device=off_device,
            training=[n or "the model" for n, m in model.named_modules() if m.training],
            requires_grad=[n for n, p in model.named_parameters() if p.requires_grad],
            num_parameters=sum(p.numel() for p in model.parameters()),
            injected=injected,
            objects=built_here(os.environ),
        )

    def _explicit_config(self) -> Any:
        stops, pad = self._tokens.stop_ids(), self._tokens.pad_id()
        return decoding.explicit_config(self._contract.decoding, stops, pad)

    def _on_forward(
        self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        """Raw logits are taken here: what ``generate`` hands out is a float32 copy."""
        self._inference.add(torch.is_inference_mode_enabled())
        if self._steps is not None:
            self._steps.add(output.logits[:, -1, :])
            self._cached.add(kwargs)

    def generate(self, batch: Sequence[Prepared]) -> list[Generation]:
        """Run one batch, padded to its longest prompt; rows end with their first stop token."""
        fed = self._fed(batch)
        steps = self._steps = StepLog()
        self._cached.begin()
        with _memory_errors(), torch.inference_mode():
            whole = self._model.generate(**fed, generation_config=self._explicit_config())
            new = whole[:, fed["inputs"].shape[1] :].tolist()
            return [self._generation(t, steps, row) for row, t in enumerate(new)]

    def decode_steps(self) -> Mapping[str, int]:
        """See the protocol."""
        return self._cached.counts()

    def executed(self, sample: Prepared) -> Mapping[str, Mapping[str, int]]:
        """See the protocol. What is generated here is no evidence and is not observed: kernels that
        observe are none of the model's."""
        if self._device.type != "cuda":
            return {}
        from fleet.replay.engines.executed import by_phase

        self._steps = None
        fed = self._fed([sample])

        def generate(num_tokens: int) -> None:
            config = self._explicit_config()
            config.max_new_tokens, config.eos_token_id = num_tokens, None
            self._model.generate(**fed, generation_config=config)

        with _memory_errors(), torch.inference_mode():
            return by_phase(generate)

    def _fed(self, batch: Sequence[Prepared]) -> dict[str, Any]:
        """What ``generate`` is given on the slot's device: ids and mask (rows, longest prompt), and
        for images what the processor makes of them."""
        longest = max(len(p.prompt_ids) for p in batch)
        pad, left = self._tokens.pad_id(), self._contract.decoding.padding_side == "left"
        ids, masks = [], []
        for prepared in batch:
            fill = longest - len(prepared.prompt_ids)
            row, mask = list(prepared.prompt_ids), list(prepared.attention_mask)
            ids.append([pad] * fill + row if left else row + [pad] * fill)
            masks.append([0] * fill + mask if left else mask + [0] * fill)
        fed = {"inputs": torch.tensor(ids), "attention_mask": torch.tensor(masks)}
        if self._pictures is not None:
            fed |= self._pictures.tensors(batch, longest, left)
        return {name: value.to(self._device) for name, value in fed.items()}

    def _generation(self, tokens: Sequence[int], steps: StepLog, row: int) -> Generation:
        """One row, cut through its first stop token; what was computed past it is dropped."""
        stops = set(self._tokens.stop_ids())
        length = next((i + 1 for i, t in enumerate(tokens) if t in stops), len(tokens))
        kept = tuple(int(t) for t in tokens[:length])
        return Generation(
            token_ids=kept,
            text=self._tokens.decode(kept),
            steps=steps.row(row, length),
            stop="eos" if kept and kept[-1] in stops else "length",
        )

    def settings(self) -> Settings:
        """Read back from torch, the model and what ``generate`` built so far."""
        effective, required = determinism.read_back(self._contract)
        effective |= self._model_state() | self._tokens.facts() | self._engine_state()
        rule = self._contract.attention
        required |= {
            "model.dtype": self._contract.model.dtype,
            "model.attention": rule.implementation,
            "model.training": False,
            "model.dropout": [],
            "model.forwards_without_inference_mode": False,
        } | self._engine_requires()
        seen = self._observed.effective() if self._observed else {}
        required |= {key: value for key, value in self._asked.items() if key in seen}
        if self._pictures is not None:
            parts = {"model.attention_of_parts": [rule.implementation]}
            required |= self._pictures.required() | parts
        return Settings(effective=effective | seen, required=required)

    @functools.cached_property
    def _asked(self) -> dict[str, Any]:
        """What the contract asks of decoding; it cannot change, so it is laid out once."""
        stops, pad = self._tokens.stop_ids(), self._tokens.pad_id()
        return decoding.required_rule(self._contract, stops, pad)

    def _model_state(self) -> dict[str, Any]:
        modules = _modules_of(self._model)
        kernels = self._kernels()
        classes = {type(m).__name__ for m in modules}
        training = any(m.training for m in modules)
        return {
            "model.class": type(self._model).__name__,
            "model.config": decoding.config_digest(self._model.config),
            "model.device": self._device.type,
            "model.dtype": str(self._model.dtype).removeprefix("torch."),
            "model.parameter_dtypes": _dtypes(modules),
            "model.attention": self._model.config._attn_implementation,
            "model.attention_classes": sorted(c for c in classes if c.endswith("Attention")),
            "model.training": training,
            "model.dropout": _dropouts(self._model) if training else [],
            "model.forwards_without_inference_mode": False in self._inference,
            "model.kernels": to_text(digest_json(kernels)),
            "model.kernel_counts": _kernel_counts(kernels),
            "torch.parallel_info": to_text(sha256(torch.__config__.parallel_info().encode())),
            "checkpoint.generation_config": self._ignored,
            **self._parts_state(),
        }

    def _parts_state(self) -> dict[str, Any]:
        """The attention of vision tower and language model, each with a configuration of its own;
        nothing where there is one part."""
        if self._pictures is None:
            return {}
        config = self._model.config
        parts = [getattr(config, name) for name in config.sub_configs if hasattr(config, name)]
        return {"model.attention_of_parts": sorted({p._attn_implementation for p in parts})}

    @functools.cached_property
    def _ignored(self) -> dict[str, Any]:
        """Of the file beside the weights, read once: it is never in force."""
        return decoding.ignored_values(self._checkpoint, self._contract, self._tokens.stop_ids())

    def weights(self) -> bytes:
        """Digest of all parameters, buffers and kernel-private tensors as they are now."""
        return weights.digest_all(weights.tensors_of(self._model) | dict(self._extra_tensors()))

    def rng(self) -> bytes:
        """Digest of Python's, NumPy's and torch's generators, CUDA's included."""
        legacy: Any = numpy.random.get_state()
        kind, keys, position, has_gauss, gauss = legacy
        states = [torch.get_rng_state()]
        if torch.cuda.is_available():
            states += torch.cuda.get_rng_state_all()
        version, words, next_gauss = random.getstate()
        rest = repr((version, next_gauss, kind, position, has_gauss, gauss)).encode()
        python = struct.pack(f"<{len(words)}I", *words)
        theirs = [keys.tobytes(), *(state.numpy().tobytes() for state in states)]
        return sha256(length_prefixed([rest, python, *theirs]))

    def warnings(self) -> list[str]:
        """Values of ``generation_config.json`` that are not applied; odd but legal plans."""
        found = [
            f"generation_config.json asks for {key} {value!r}, the contract does not: not applied"
            for key, value in self._ignored.items()
        ]
        rule = self._contract.decoding
        if rule.padding_side == "right" and rule.batch_size > 1:
            found.append(
                "padding_side = right: shorter rows of a batch continue after padding, so their "
                "first step reads the logits of a padded position"
            )
        return found


def _leaf_classes(model: nn.Module) -> dict[str, int]:
    leaves = (m for m in model.modules() if not any(True for _ in m.children()))
    return dict(sorted(Counter(type(m).__name__ for m in leaves).items()))


def _modules_of(model: nn.Module) -> list[nn.Module]:
    """Every module once; ``modules()`` builds all their paths, at every batch."""
    found, waiting = {id(model): model}, [model]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())


def _dropouts(model: nn.Module) -> list[str]:
    """Paths of the dropouts in force."""
    named = model.named_modules()
    return sorted(n for n, m in named if isinstance(m, nn.Dropout) and m.p and m.training)


def _dtypes(modules: Iterable[nn.Module]) -> dict[str, int]:
    """Dtype -> distinct parameters; a tied one counts once."""
    found = {id(p): p.dtype for m in modules for p in m._parameters.values() if p is not None}
    return {str(d).removeprefix("torch."): n for d, n in Counter(found.values()).items()}


def _kernel_counts(kernels: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    return dict(sorted(Counter(f"{k['class']}/{k['mode']}" for k in kernels.values()).items()))
