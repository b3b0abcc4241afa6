"""Faults of logits, sampler and stop rule: digests are honest, the process produced this."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleet.evidence.digests import tensor_digest
from fleet.replay.engines import synthetic
from fleet.replay.engines.protocol import Generation, Prepared, Step
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask
from tests.cases.faults.patching import Fault, generated, is_current, wrap


def _with_logits(bits: int, at: int, step: int, wanted: str, nonfinite: int = 0) -> Fault:
    """The logit of one unlikely token has other bits at one step of one sample (arm current)."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        rows: list[bytes] = []

        def make_observe(original: Any) -> Any:
            def seen(logits: Sequence[float]) -> Step:
                rows.append(struct.pack(f"<{len(logits)}f", *logits))
                step: Step = original(logits)
                return step

            return seen

        def make_generate(original: Any) -> Any:
            def generate_one(self: Any, prepared: Prepared) -> Generation:
                rows.clear()
                made: Generation = original(self, prepared)
                return _other_bits(made) if is_current(prepared, wanted) else made

            return generate_one

        def _other_bits(made: Generation) -> Generation:
            row = bytearray(rows[step])
            (old,) = struct.unpack_from("<I", row, 4 * at)
            struct.pack_into("<I", row, 4 * at, bits if bits != FLIP else old ^ 1)
            digest = tensor_digest("float32", (len(row) // 4,), bytes(row))
            changed = replace(made.steps[step], logits_sha256=digest, nonfinite=nonfinite)
            steps = (*made.steps[:step], changed, *made.steps[step + 1 :])
            return replace(made, steps=steps)

        wrap(synthetic, "observe", make_observe)
        wrap(SyntheticEngine, "_generate_one", make_generate)

    return fault


FLIP = -1
flipped_bit = _with_logits(FLIP, at=120, step=1, wanted="s03")
nan_payload_1 = _with_logits(0x7FC00001, at=120, step=1, wanted="s03", nonfinite=1)
nan_payload_2 = _with_logits(0x7FC00002, at=120, step=1, wanted="s03", nonfinite=1)
plus_zero = _with_logits(0x00000000, at=120, step=1, wanted="s03")
minus_zero = _with_logits(0x80000000, at=120, step=1, wanted="s03")


def _second_choice(step: int) -> Fault:
    """The sampler takes the runner-up at one step of s06 (arm current); its logits are as ever."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def generate_one(self: Any, prepared: Prepared) -> Generation:
                if not is_current(prepared, "s06"):
                    made: Generation = original(self, prepared)
                    return made
                context, steps = list(prepared.prompt_ids), []
                for n in range(4):
                    steps.append(synthetic.observe(self._logits(context)))
                    context.append(steps[-1].top_ids[n == step])
                tokens = tuple(context[-4:])
                return Generation(tokens, _text(tokens), tuple(steps), "length")

            return generate_one

        wrap(SyntheticEngine, "_generate_one", make)

    return fault


def _text(tokens: Sequence[int]) -> str:
    return bytes(i for i in tokens if i < 256).decode("utf-8", errors="replace")


second_choice_at_the_last_step = _second_choice(3)
second_choice_at_step_1 = _second_choice(1)


def _stopped(prepared: Prepared, made: Generation) -> Generation:
    tokens = made.token_ids[:1]
    return replace(made, token_ids=tokens, text=_text(tokens), steps=made.steps[:1], stop="eos")


stops_at_step_1 = generated(_stopped)
no_decode_step = generated(
    lambda p, made: replace(made, token_ids=(), steps=(), text="") if p.sample_id == "s04" else made
)


def constant_output(task: ReplayTask, entry: AtEntry) -> None:
    """Every context gets the same logits."""
    wrap(SyntheticEngine, "_logits", lambda logits: lambda self, context: logits(self, [65]))


def tame_control(task: ReplayTask, entry: AtEntry) -> None:
    """The control's race is not there any more."""
    os.urandom = bytes  # type: ignore[assignment]
