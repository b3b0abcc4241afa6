"""The engine for AWQ and GPTQ checkpoints: gptqmodel, its backend chosen by name.

gptqmodel's loader is used because it takes a backend and refuses one that cannot run; "auto" would
fall back per module and differ by machine. The class of a kernel does not say how it computes: some
lock a mode at their first forward and repack their tensors then, so one forward is run at load,
and class and mode are read from every module whenever the settings are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from fleet.contract.model import Contract
from fleet.errors import CannotRunError, ContractError
from fleet.evidence.platform import numerics_environment
from fleet.replay import capability
from fleet.replay.engines import weights
from fleet.replay.engines.causal import CausalEngine

MODES_OF_INFERENCE = (None, "inference")
"""``linear_mode`` of a kernel that has no modes, and of one that runs its inference path."""


class GPTQModelEngine(CausalEngine):
    """See the engine protocol."""

    name = "gptqmodel"

    def __init__(self, contract: Contract, checkpoint: Path, dataset: Path | None = None) -> None:
        super().__init__(contract, checkpoint, dataset)
        self._before_import = capability.environment_before_import()
        different = capability.disagreements(contract, checkpoint)
        if different:
            raise ContractError(
                "contract",
                "quantization",
                "what the checkpoint declares",
                "; ".join(different),
                f"compare with quantization_config in {checkpoint / 'config.json'}",
            )

    @functools.cached_property
    def _backend(self) -> Any:
        """The contract's backend, legacy names resolved."""
        from gptqmodel.utils.backend import BACKEND, normalize_backend

        wanted = self._contract.quantization
        try:
            return normalize_backend(BACKEND(wanted.backend), quant_method=wanted.method)
        except ValueError as error:
            known = ", ".join(capability.known_backends(wanted.method))
            raise CannotRunError(
                "contract",
                "quantization.backend",
                f"one of {known}",
                repr(wanted.backend),
                "fleet doctor",
            ) from error

    def _load_model(self) -> tuple[Any, Sequence[str]]:
        from gptqmodel import GPTQModel

        self._require_known_kind()
        wrapper = GPTQModel.load(
            str(self._checkpoint),
            backend=self._backend,
            device=str(self._device),
            dtype=getattr(torch, self._contract.model.dtype),
            attn_implementation=self._contract.attention.implementation,
            trust_remote_code=self._contract.model.trust_remote_code,
        )
        # Made for quantising, and left to the garbage collector otherwise.
        offload = getattr(wrapper.quantize_config, "_offload_temp_dir", None)
        if offload is not None:
            offload.cleanup()
        return wrapper.model, ()

    def _require_known_kind(self) -> None:
        """The loader knows vision-language models by their own classes; a class that also loads a
        processor, for quantising, would need torchvision for its videos: ours is made elsewhere."""
        if self._contract.model.kind != "vision":
            return
        from gptqmodel.models.auto import MODEL_MAP

        name = transformers.AutoConfig.from_pretrained(
            self._checkpoint, local_files_only=True
        ).model_type
        if (owner := MODEL_MAP.get(name)) is None:
            raise CannotRunError(
                "contract",
                "model.checkpoint",
                "a vision-language model that gptqmodel knows, such as Qwen2-VL",
                repr(name),
                'write engine = "transformers" for unquantised weights',
            )
        owner.require_load_processor = False

    def _map(
        self, model: Any, on_disk: Mapping[str, bytes], reinitialised: Sequence[str]
    ) -> weights.Mapped:
        kernels = {path: type(m).__name__ for path, m in self._quantised(model).items()}
        return weights.map_to_checkpoint(model, self._checkpoint, on_disk, reinitialised, kernels)

    def _settle(self, model: Any) -> None:
        """One forward of one token. Gradients must be off: with them a kernel locks its training
        path, same class, other bits."""
        with torch.inference_mode():
            model(torch.zeros((1, 1), dtype=torch.long, device=self._device), use_cache=False)

    def _quantised(self, model: Any) -> dict[str, Any]:
        from gptqmodel.nn_modules.qlinear import BaseQuantLinear

        return {n: m for n, m in model.named_modules() if isinstance(m, BaseQuantLinear)}

    def _kernels(self) -> Mapping[str, Mapping[str, Any]]:
        return {path: _kernel(m) for path, m in self._quantised(self._model).items()}

    def _extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """Tables that kernels keep as plain attributes."""
        return {
            f"{path}.{name}": value
            for path, module in self._quantised(self._model).items()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }

    def _engine_state(self) -> dict[str, Any]:
        kernels = self._kernels().values()
        changed = {k: v for k, v in os.environ.items() if self._before_import.get(k) != v}
        return {
            "quantization.backends": sorted({str(k["backend"]) for k in kernels}),
            "quantization.modes_off_inference": sorted(
                {str(k["mode"]) for k in kernels if k["mode"] not in MODES_OF_INFERENCE}
            ),
            "quantization.bits": sorted({k["bits"] for k in kernels}),
            "quantization.group_sizes": sorted({k["group_size"] for k in kernels}),
            "gptqmodel.environment_names": sorted(changed),
            "gptqmodel.environment": numerics_environment(changed, ()),
        }

    def _engine_requires(self) -> dict[str, Any]:
        wanted = self._contract.quantization
        return {
            "quantization.backends": [self._backend.value],
            "quantization.modes_off_inference": [],
            "quantization.bits": [wanted.bits],
            "quantization.group_sizes": [wanted.group_size],
        }


def _kernel(module: Any) -> dict[str, Any]:
    """What decides the arithmetic of one quantised linear."""
    return {
        "class": type(module).__name__,
        "mode": _word(getattr(module, "linear_mode", None)),
        "quant_type": _word(getattr(module, "QUANT_TYPE", None)),
        "backend": _word(getattr(module, "backend", None)),
        "bits": getattr(module, "bits", None),
        "group_size": getattr(module, "requested_group_size", getattr(module, "group_size", None)),
        "shape": [module.in_features, module.out_features],
        "autotuned": _word(getattr(module, "_autotune_result", None)),
    }


def _word(value: Any) -> str | None:
    """An enum's value, or the text of anything else."""
    return None if value is None else str(getattr(value, "value", value))
