"""From an arm's prompts to token ids, and from generated ids to text.

The chat template is the checkpoint's own, its clock is the caller's: ``strftime_now`` is replaced
in the template's environment (transformers hands every template the wall clock, and turns
functions among the caller's variables into text).
Knows no weight and no device. Input comes first: a prompt without ids ends the attempt here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import tokenizers
import transformers
from transformers.utils import chat_template_utils

from fleet.contract.model import Arm, Contract
from fleet.errors import AttemptVoid, CheckpointError, ContractError
from fleet.replay.engines.protocol import Prepared

CLOCK = "strftime_now"
"""The one clock that chat templates have."""


class Tokenization:
    """The tokenizer of one checkpoint under one contract."""

    def __init__(self, contract: Contract, checkpoint: Path) -> None:
        self._contract = contract
        self._tokenizer = _load(contract, checkpoint)

    def prepare(
        self,
        arm: str,
        records: Sequence[Mapping[str, Any]],
        prompts: Sequence[str],
        now: datetime,
    ) -> list[Prepared]:
        """One ``Prepared`` per record, in order; unpadded, untruncated."""
        settings = self._contract.arms[arm]
        pairs = zip(records, prompts, strict=True)
        return [self._one(arm, settings, str(r["id"]), prompt, now) for r, prompt in pairs]

    def _one(self, name: str, arm: Arm, sample: str, prompt: str, now: datetime) -> Prepared:
        text = self._chat(name, arm, prompt, now) if arm.chat else prompt
        # A chat template writes its special tokens itself; a plain prompt gets the tokenizer's.
        encoded = self._tokenizer(
            text,
            add_special_tokens=not arm.chat,
            padding=False,
            truncation=False,
            return_attention_mask=True,
        )
        ids = tuple(int(i) for i in encoded["input_ids"])
        if not ids:
            raise AttemptVoid(
                "missing-evidence",
                f"sample {sample}, arm {name}: the prompt has no token at all",
                {"sample": sample, "arm": name, "prompt_text": text},
            )
        return Prepared(sample, text, ids, tuple(int(m) for m in encoded["attention_mask"]))

    def _chat(self, name: str, arm: Arm, prompt: str, now: datetime, images: int = 0) -> str:
        """The prompt in the checkpoint's chat template, behind so many images."""
        if not self._tokenizer.chat_template:
            raise ContractError(
                "contract",
                f"arms.{name}.chat",
                "a checkpoint with a chat template",
                f"a checkpoint without one ({self._contract.model.checkpoint})",
                f"set [arms.{name}] chat = false, or use an instruction-tuned checkpoint",
            )
        system = [] if arm.system is None else [_message("system", arm.system, None)]
        try:
            _freeze_clock(self._tokenizer.get_chat_template(), now)
            rendered: str = self._tokenizer.apply_chat_template(
                [*system, _message("user", prompt, images or None)],
                add_generation_prompt=True,
                tokenize=False,
            )
        except (jinja2.TemplateError, ValueError) as error:
            raise ContractError(
                "contract",
                f"arms.{name}",
                "messages that the checkpoint's chat template accepts",
                str(error),
                f"change [arms.{name}] system or chat",
            ) from error
        return rendered

    def stop_ids(self) -> tuple[int, ...]:
        """The contract's stop tokens, or the tokenizer's one end-of-sequence token."""
        declared = self._contract.decoding.stop_token_ids
        if declared is not None:
            return declared
        eos = self._tokenizer.eos_token_id
        return () if eos is None else (int(eos),)

    def pad_id(self) -> int:
        """The contract's pad token, else the tokenizer's, else the first stop token, else 0."""
        stops = self.stop_ids()
        candidates = (
            self._contract.decoding.pad_token_id,
            self._tokenizer.pad_token_id,
            stops[0] if stops else None,
        )
        return next((int(c) for c in candidates if c is not None), 0)

    def decode(self, ids: Sequence[int]) -> str:
        """Generated ids as text, special tokens left out, spaces as they are."""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def facts(self) -> dict[str, Any]:
        """What tokenises, for the effective settings."""
        return {
            "tokenizer.class": type(self._tokenizer).__name__,
            "tokenizer.is_fast": bool(self._tokenizer.is_fast),
            "tokenizer.library": tokenizers.__version__,
            "tokenizer.length": len(self._tokenizer),
            "tokenizer.eos": self._tokenizer.eos_token_id,
            "tokenizer.pad": self._tokenizer.pad_token_id,
        }


def _message(role: str, text: str, images: int | None) -> dict[str, Any]:
    """Text alone is a string; beside images it is a part, and they come first."""
    if images is None:
        return {"role": role, "content": text}
    parts = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]
    return {"role": role, "content": parts}


def _freeze_clock(template: str, now: datetime) -> None:
    """Let this template read ``now``: compiled templates are cached, each with its environment."""
    if CLOCK not in template:
        return
    compile_template = getattr(chat_template_utils, "_compile_jinja_template", None)
    names = compile_template(template).environment.globals if compile_template else {}
    if CLOCK not in names:
        raise AttemptVoid(
            "cannot-observe",
            "the chat template reads the clock, and this version of transformers offers no place "
            "to freeze it",
            {"transformers": transformers.__version__},
        )
    names[CLOCK] = now.strftime


def _load(contract: Contract, checkpoint: Path) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(
            checkpoint,
            local_files_only=True,
            trust_remote_code=contract.model.trust_remote_code,
        )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            str(checkpoint),
            "",
            "a tokenizer that transformers can load",
            str(error).splitlines()[0] if str(error) else type(error).__name__,
            "add tokenizer.json and tokenizer_config.json to the checkpoint folder",
        ) from error
