"""A small exact language model without torch: for controls, tests and rehearsals of a fleet.

Logits are float32 values cut from SHA-256 of the context, so they are equal on every machine; bytes
are tokens. It goes through the same replay, evidence, store and judge as a real engine. With
``[control] inject = "racy_linear:..."`` it draws from the operating system's entropy and must FAIL.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fleet.contract.model import Contract
from fleet.errors import ContractError
from fleet.evidence.digests import tensor_digest
from fleet.replay.engines.protocol import Census, Generation, Prepared, Settings, Step

BOS, EOS, VOCABULARY = 256, 257, 258
LIKELY = b"ABCD .()"
TOP = 8


class SyntheticEngine:
    """The synthetic engine for one contract."""

    name = "synthetic"

    def __init__(self, contract: Contract) -> None:
        if contract.model.dtype != "float32" or contract.decoding.do_sample:
            raise ContractError(
                "contract",
                "model.engine",
                'dtype = "float32" and do_sample = false for the synthetic engine',
                f"dtype {contract.model.dtype!r}, do_sample {contract.decoding.do_sample}",
                "change them, or choose another engine",
            )
        self._contract = contract
        self._key = b"fleet-synthetic-1"
        inject = contract.control.inject if contract.control else ""
        self._racy = inject.startswith("racy_linear:")

    def prepare(
        self,
        arm: str,
        records: Sequence[Mapping[str, Any]],
        prompts: Sequence[str],
        now: datetime,
    ) -> list[Prepared]:
        """Bytes behind one BOS."""
        ids = [(BOS, *prompt.encode("utf-8")) for prompt in prompts]
        return [
            Prepared(str(record["id"]), prompt, row, (1,) * len(row))
            for record, prompt, row in zip(records, prompts, ids, strict=True)
        ]

    def load(self, on_disk: Mapping[str, bytes], nonce: str = "") -> Census:
        """One weight: the key, which is on no disk."""
        return Census(classes={"SyntheticModel": 1}, num_parameters=len(self._key))

    def settings(self) -> Settings:
        """The hash seed is the one setting that a process without torch has."""
        effective: dict[str, Any] = {
            "python_hash_seed": os.environ.get("PYTHONHASHSEED"),
            "decoding.generation_config": {"do_sample": False},
            "synthetic": 1,
        }
        wanted = str(self._contract.determinism.python_hash_seed)
        return Settings(effective, {"python_hash_seed": wanted})

    def weights(self) -> bytes:
        """Digest of the key."""
        return hashlib.sha256(self._key).digest()

    def rng(self) -> bytes:
        """Digest of Python's generator state."""
        return hashlib.sha256(repr(random.getstate()).encode()).digest()

    def executed(self, sample: Prepared) -> Mapping[str, Mapping[str, int]]:
        """None: no device."""
        return {}

    def decode_steps(self) -> Mapping[str, int]:
        """None: no key-value cache."""
        return {}

    def warnings(self) -> list[str]:
        """None."""
        return []

    def generate(self, batch: Sequence[Prepared]) -> list[Generation]:
        """Greedy, row by row: batch-mates never touch each other."""
        return [self._generate_one(prepared) for prepared in batch]

    def _generate_one(self, prepared: Prepared) -> Generation:
        context, made, steps = list(prepared.prompt_ids), [], []
        for _ in range(self._contract.decoding.max_new_tokens):
            logits = self._logits(context)
            step = observe(logits)
            steps.append(step)
            made.append(step.top_ids[0])
            context.append(step.top_ids[0])
            if made[-1] == EOS:
                break
        text = bytes(i for i in made if i < BOS).decode("utf-8", errors="replace")
        return Generation(tuple(made), text, tuple(steps), "eos" if made[-1] == EOS else "length")

    def _logits(self, context: Sequence[int]) -> list[float]:
        """258 float32 values in [-8, 8), unlikely bytes moved down by 16; all exact."""
        seed = self._key + struct.pack(f"<{len(context)}q", *context)
        blocks = (hashlib.sha256(seed + bytes([i])).digest() for i in range(33))
        words = struct.unpack("<264I", b"".join(blocks))[:VOCABULARY]
        noise = struct.unpack("<264B", os.urandom(264)) if self._racy else (0,) * 264
        likely = set(LIKELY) | {EOS}
        return [
            (word >> 8) / 2**20 - 8.0 - (0.0 if i in likely else 16.0) + noise[i] / 2**12
            for i, word in enumerate(words)
        ]


def observe(logits: Sequence[float]) -> Step:
    """The evidence of one step from finite float32 logits."""
    packed = struct.pack(f"<{len(logits)}f", *logits)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:TOP]
    bits = [struct.unpack("<I", struct.pack("<f", logits[i]))[0] for i in order]
    return Step(
        logits_sha256=tensor_digest("float32", (len(logits),), packed),
        top_ids=tuple(order),
        top_bits=tuple(bits),
        margin_logits=logits[order[0]] - logits[order[1]],
        margin_ulps=_monotone(bits[0]) - _monotone(bits[1]),
        nonfinite=0,
    )


def _monotone(bits: int) -> int:
    """Float32 bits as an integer that grows with the value."""
    return bits if bits < 2**31 else 2**31 - bits
