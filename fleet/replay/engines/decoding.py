"""The contract's decoding rule, handed to ``generate`` whole, and what ``generate`` made of it.

Every value is set from the contract or neutral, so that nothing is left for
``generation_config.json`` to fill. The processors and stop rules that ``generate`` builds are
recorded at the two methods that build them: what is in force is observed, not assumed. Knows no
weights and no logits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation import logits_process, stopping_criteria
from transformers.utils.quantization_config import QuantizationConfigMixin

from fleet.contract.canonical import canonical_json, digest_json, to_text
from fleet.contract.model import Contract, Decoding
from fleet.errors import AttemptVoid

_PER_BATCH = {"prompt_ignore_length"}
"""Attributes of processors that follow from the batch, not from the rule."""

_NOT_A_RULE = {"transformers_version", "max_length", "_from_model_config"}
"""Configuration entries left out of the comparison: a version, and ``max_length``, which
``generate`` derives per batch and the stop rules show as ``max_new_tokens``."""

# What leaves a rule out: every value of generation_config.json that means "do nothing".
_NEUTRAL: dict[str, Any] = {
    "min_length": 0,
    "min_new_tokens": None,
    "early_stopping": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_k": 50,  # GenerationConfig's own default; read only when sampling, then always declared
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "remove_invalid_values": False,
    "renormalize_logits": False,
    "token_healing": False,
    "guidance_scale": 1.0,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False,
    "output_logits": False,
    "return_dict_in_generate": False,
    "disable_compile": True,
}

_DECLARED = {*_NEUTRAL, "do_sample", "max_new_tokens", "use_cache", "eos_token_id", "pad_token_id"}

# Entries of generation_config.json that are facts about the tokenizer or the file, not rules.
_HARMLESS = {
    "bos_token_id",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "max_length",
    "max_new_tokens",
    "use_cache",
    "transformers_version",
}


def explicit_config(rule: Decoding, stop_ids: Sequence[int], pad_id: int) -> Any:
    """A fresh ``GenerationConfig`` with every value set."""
    sampling = {
        "temperature": rule.temperature,
        "top_k": rule.top_k,
        "top_p": rule.top_p,
        "repetition_penalty": rule.repetition_penalty,
    }
    values = _NEUTRAL | {name: v for name, v in sampling.items() if v is not None}
    return transformers.GenerationConfig(
        **values
        | {
            "do_sample": rule.do_sample,
            "max_new_tokens": rule.max_new_tokens,
            "use_cache": rule.use_cache,
            "eos_token_id": list(stop_ids) or None,
            "pad_token_id": pad_id,
        }
    )


def required_rule(contract: Contract, stop_ids: Sequence[int], pad_id: int) -> dict[str, Any]:
    """What must have been in force, under the keys of :meth:`Observed.effective`."""
    rule = contract.decoding
    processors: list[Any] = []
    if rule.repetition_penalty not in (None, 1.0):
        processors.append(logits_process.RepetitionPenaltyLogitsProcessor(rule.repetition_penalty))
    if rule.do_sample:
        if rule.temperature != 1.0:
            processors.append(logits_process.TemperatureLogitsWarper(rule.temperature))
        processors.append(logits_process.TopKLogitsWarper(rule.top_k))
        if rule.top_p != 1.0:
            processors.append(logits_process.TopPLogitsWarper(rule.top_p))
    stops: list[dict[str, Any]] = [
        {"class": "MaxLengthCriteria", "max_new_tokens": rule.max_new_tokens}
    ]
    if stop_ids:
        stops.append({"class": "EosTokenCriteria", "eos_token_id": list(stop_ids)})
    return {
        "decoding.processors": [_describe(p) for p in processors],
        "decoding.stop": stops,
        "decoding.generation_config": _rules(explicit_config(rule, stop_ids, pad_id)),
        "decoding.eos": list(stop_ids),
    }


class Observed:
    """Records what ``generate`` builds on one model, from the moment it is attached."""

    def __init__(self, model: Any) -> None:
        self._seen: dict[str, dict[bytes, Any]] = {}
        self._prompt_length = 0
        self._processors = _method(model, "_get_logits_processor")
        self._stops = _method(model, "_get_stopping_criteria")
        model._get_logits_processor = self._on_processors
        model._get_stopping_criteria = self._on_stops

    def effective(self) -> dict[str, Any]:
        """Per key what was in force; nothing before the first ``generate``.

        A rule that changed between two batches is a list of all it was, equal to no requirement.
        """
        return {
            key: values[0] if len(values) == 1 else {"changed_between_batches": values}
            for key, values in ((k, list(v.values())) for k, v in self._seen.items())
        }

    def _on_processors(self, *args: Any, **kwargs: Any) -> Any:
        built = self._processors(*args, **kwargs)
        config = kwargs.get("generation_config") or args[0]
        self._prompt_length = int(kwargs.get("input_ids_seq_length") or 0)
        self._note("decoding.processors", [_describe(p) for p in built])
        self._note("decoding.generation_config", _rules(config))
        return built

    def _on_stops(self, *args: Any, **kwargs: Any) -> Any:
        built = self._stops(*args, **kwargs)
        eos = [c.eos_token_id for c in built if hasattr(c, "eos_token_id")]
        self._note("decoding.stop", [self._stop(c) for c in built])
        self._note("decoding.eos", [int(i) for tensor in eos for i in tensor.flatten().tolist()])
        return built

    def _stop(self, criterion: Any) -> dict[str, Any]:
        if isinstance(criterion, stopping_criteria.MaxLengthCriteria):
            new = int(criterion.max_length) - self._prompt_length
            return {"class": type(criterion).__name__, "max_new_tokens": new}
        return _describe(criterion)

    def _note(self, key: str, value: Any) -> None:
        self._seen.setdefault(key, {})[canonical_json(value)] = value


def _method(model: Any, name: str) -> Any:
    found = getattr(model, name, None)
    if found is None:
        raise AttemptVoid(
            "cannot-observe",
            f"this version of transformers builds its decoding rule without {name}: the processors "
            "and stop rules in force cannot be observed",
            {"transformers": transformers.__version__, "model": type(model).__name__},
        )
    return found


def _describe(part: Any) -> dict[str, Any]:
    """Class and parameters of a processor or stop rule, JSON-able and exact."""
    values = {k: _plain(v) for k, v in vars(part).items() if k not in _PER_BATCH}
    return {"class": type(part).__name__} | values


def _rules(config: Any) -> dict[str, Any]:
    """The declared entries of a generation configuration, and any other that is not the library's
    own default: an entry that came from elsewhere shows."""
    library = getattr(transformers.GenerationConfig, "_get_default_generation_params", dict)
    defaults: dict[str, Any] = library()
    rules = {}
    for key, value in sorted(vars(config).items()):
        undeclared = key not in _DECLARED and value == defaults.get(key)
        if not (undeclared or key in _NOT_A_RULE or key.startswith("_")):
            rules[key] = _plain(value)
    return {key: value for key, value in rules.items() if value is not None}


def config_digest(config: Any) -> str:
    """Digest of the model's whole configuration as it is in memory, without where it came from.

    A rotary base or a norm's epsilon lives here and in no tensor.
    """
    body = {key: _plain(v) for key, v in vars(config).items() if key not in _WHERE_FROM}
    return to_text(digest_json(body))


_WHERE_FROM = {"_name_or_path", "_commit_hash"}


def _plain(value: Any) -> Any:
    """Exact and JSON-able: floats that JSON has no number for become their name."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(str(v) for v in value)
    if isinstance(value, torch.Tensor):
        return _plain(value.tolist())
    if isinstance(value, transformers.PreTrainedConfig | QuantizationConfigMixin):
        return _plain(value.to_dict())
    return str(value)


def ignored_values(folder: Path, contract: Contract, stop_ids: Sequence[int]) -> dict[str, Any]:
    """What ``generation_config.json`` asks for and the contract does not: it is not applied."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    asked = json.loads(path.read_text(encoding="utf-8"))
    applied = _rules(explicit_config(contract.decoding, stop_ids, 0))
    odd = {
        k: v
        for k, v in sorted(asked.items())
        if k not in _HARMLESS and not k.startswith("_") and v is not None and v != applied.get(k)
    }
    if not contract.decoding.do_sample:  # without sampling these decide nothing
        odd = {k: v for k, v in odd.items() if k not in ("temperature", "top_k", "top_p")}
    eos = asked.get("eos_token_id")
    declared = {eos} if isinstance(eos, int) else set(eos or ())
    if declared - set(stop_ids):
        odd["eos_token_id"] = eos
    return odd
