"""The engine for unquantised checkpoints: transformers, one device, safetensors only.

Knows how to load; everything else is :class:`~fleet.replay.engines.causal.CausalEngine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from fleet.contract.model import Contract
from fleet.errors import CheckpointError, ContractError
from fleet.replay.engines import weights
from fleet.replay.engines.causal import CausalEngine

LOADERS = {"text": "AutoModelForCausalLM", "vision": "AutoModelForImageTextToText"}
"""``model.kind`` -> the class of transformers that loads it."""


class TransformersEngine(CausalEngine):
    """See the engine protocol."""

    name = "transformers"

    def __init__(self, contract: Contract, checkpoint: Path, dataset: Path | None = None) -> None:
        super().__init__(contract, checkpoint, dataset)
        self._refuse_quantised()

    def _refuse_quantised(self) -> None:
        config = self._config()
        quantised = getattr(config, "quantization_config", None)
        if quantised is not None:
            method = dict(quantised).get("quant_method", "unknown")
            raise ContractError(
                "contract",
                "quantization.method",
                "the method of a quantised checkpoint",
                f'"none" for a checkpoint quantised with {method}',
                f'set [model] engine = "gptqmodel" and [quantization] method = "{method}"',
            )

    def _config(self) -> Any:
        try:
            return transformers.AutoConfig.from_pretrained(
                self._checkpoint,
                local_files_only=True,
                trust_remote_code=self._contract.model.trust_remote_code,
            )
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(
                str(self._checkpoint),
                "config.json",
                "a configuration that transformers knows",
                str(error).splitlines()[0] if str(error) else type(error).__name__,
                "check the checkpoint folder, and the version of transformers",
            ) from error

    def _load_model(self) -> tuple[Any, Sequence[str]]:
        transformers.utils.logging.disable_progress_bar()
        loader = getattr(transformers, LOADERS[self._contract.model.kind])
        model, info = loader.from_pretrained(
            self._checkpoint,
            dtype=getattr(torch, self._contract.model.dtype),
            attn_implementation=self._contract.attention.implementation,
            local_files_only=True,
            # Pickled weights run code when they are read.
            use_safetensors=True,
            trust_remote_code=self._contract.model.trust_remote_code,
            output_loading_info=True,
        )
        mismatched = [entry[0] for entry in info["mismatched_keys"]]
        return model.to(self._device), sorted({*info["missing_keys"], *mismatched})

    def _map(
        self, model: Any, on_disk: Mapping[str, bytes], reinitialised: Sequence[str]
    ) -> weights.Mapped:
        return weights.map_to_checkpoint(model, self._checkpoint, on_disk, reinitialised)
