"""From a contract to its engine; imports only the one that is named."""

from __future__ import annotations

from pathlib import Path

from fleet.contract.model import Contract
from fleet.replay.engines.protocol import Engine


def make_engine(contract: Contract, checkpoint: Path | None, dataset: Path | None = None) -> Engine:
    """The engine that the contract names.

    Args:
        contract: decides engine, dtype, backend, decoding.
        checkpoint: the local checkpoint folder; None for the synthetic engine.
        dataset: the file whose records name images, for a vision contract.
    """
    match contract.model.engine:
        case "synthetic":
            from fleet.replay.engines.synthetic import SyntheticEngine

            return SyntheticEngine(contract)
        case "transformers":
            from fleet.replay.engines.transformers import TransformersEngine

            return TransformersEngine(contract, _folder(checkpoint), dataset)
        case "gptqmodel":
            from fleet.replay.engines.gptqmodel import GPTQModelEngine

            return GPTQModelEngine(contract, _folder(checkpoint), dataset)


def _folder(checkpoint: Path | None) -> Path:
    if checkpoint is None:
        raise ValueError("this engine needs a checkpoint folder")
    return checkpoint
