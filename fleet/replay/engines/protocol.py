"""What an engine must do; everything else in a replay is the same for all engines.

Order of calls in one process: ``prepare`` (inputs, before any weight) for every arm and batch ->
``load`` -> ``settings`` -> ``generate`` per batch -> ``settings``, ``weights`` again at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from fleet.evidence.images import ImageEvidence


@dataclass(frozen=True)
class Prepared:
    """One sample of one arm, ready to run. ``prompt_ids`` and ``attention_mask`` are unpadded.

    A sample with images has the evidence of them, its record, which names them, and whether a chat
    template wrote the prompt: its pixels are made again when it is run.
    """

    sample_id: str
    prompt_text: str
    prompt_ids: tuple[int, ...]
    attention_mask: tuple[int, ...]
    images: ImageEvidence | None = None
    record: Mapping[str, Any] | None = None
    chat: bool = True


@dataclass(frozen=True)
class Step:
    """The raw last-position logits of one step and row, before processors, in the model's dtype.

    ``top_ids``: the 8 largest (fewer when the vocabulary is smaller), largest first, ties by lower
    id. ``top_bits``: their raw bits as unsigned ints. ``margin_logits`` = top-1 minus top-2 in
    float64; ``margin_ulps`` = units in the last place of the dtype between them, 0 for an exact
    tie. ``nonfinite`` counts NaN and infinities of the whole row.
    """

    logits_sha256: bytes
    top_ids: tuple[int, ...]
    top_bits: tuple[int, ...]
    margin_logits: float
    margin_ulps: int
    nonfinite: int


@dataclass(frozen=True)
class Generation:
    """What one sample produced. ``token_ids`` end with the first stop token, if one came."""

    token_ids: tuple[int, ...]
    text: str
    steps: tuple[Step, ...]
    stop: Literal["eos", "length"]


@dataclass(frozen=True)
class Census:
    """What was loaded.

    ``classes``: runtime class -> count. ``kernels``: module path -> {class, mode, ...} for
    quantised linears. ``unmapped``: loaded tensors that are neither the checkpoint's nor a declared
    computed buffer. ``altered``: loaded tensors that bear a checkpoint tensor's name and not its
    bytes (a kernel's own repacking, declared in ``repacked``, left out). ``missing``: checkpoint
    tensors that nothing was loaded from. ``off_device``: tensors placed elsewhere than the slot.
    ``injected``: where a control's fault was put. ``objects``: shared objects that were built on
    this machine and are loaded, with their digests.
    """

    classes: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    computed: Sequence[str] = ()
    repacked: Sequence[str] = ()
    unmapped: Sequence[str] = ()
    altered: Sequence[str] = ()
    missing: Sequence[str] = ()
    off_device: Sequence[str] = ()
    training: Sequence[str] = ()
    requires_grad: Sequence[str] = ()
    num_parameters: int = 0
    injected: str | None = None
    objects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What is in force now, and what the contract asks for.

    ``effective``: every fact worth comparing, JSON-able. ``required``: for those that the contract
    decides, the value it asks for, under the same keys. A required key whose effective value
    differs is VOID(setting-not-in-force), for keys under ``decoding.`` VOID(undeclared-decoding).
    """

    effective: Mapping[str, Any]
    required: Mapping[str, Any]


class Engine(Protocol):
    """One engine, made for one contract and one checkpoint folder."""

    name: str

    def prepare(
        self,
        arm: str,
        records: Sequence[Mapping[str, Any]],
        prompts: Sequence[str],
        now: datetime,
    ) -> list[Prepared]:
        """Apply the chat template and tokenise. Touches no weight and no device.

        Args:
            arm: the arm's name.
            records: raw records with at least ``id``, in dataset order.
            prompts: the arm's template rendered per record.
            now: what ``strftime_now`` reads, in the chat template too.
        """

    def load(self, on_disk: Mapping[str, bytes], nonce: str = "") -> Census:
        """Load the weights and put them on the slot's device, in inference mode.

        Args:
            on_disk: digest of every tensor of the pinned checkpoint, by name; what is loaded is
                held against them.
            nonce: places a control's fault where the contract does not: one nonce, one place.
        """

    def settings(self) -> Settings:
        """Read back, never echo."""

    def weights(self) -> bytes:
        """Digest of all parameters and buffers as they are now; 32 bytes."""

    def rng(self) -> bytes:
        """Digest of the state of every generator the engine could draw from; 32 bytes."""

    def generate(self, batch: Sequence[Prepared]) -> list[Generation]:
        """Run one batch, padded as the contract says."""

    def executed(self, sample: Prepared) -> Mapping[str, Mapping[str, int]]:
        """Phase (prefill, decode) -> kernel name -> launches, on a device; empty on a CPU. Runs the
        sample again, so it is asked for when all samples have run and the settings were read."""

    def decode_steps(self) -> Mapping[str, int]:
        """Steps after the first of each batch that were ``cached``, ``uncached`` or ``unclear``:
        seen in what the model was given. Empty where there is no key-value cache."""

    def warnings(self) -> list[str]:
        """What a person should know and what changes no verdict; after ``load``."""
