"""Faults of what goes in: records, prompts, ids, masks, the contract itself."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleet.replay import observe
from fleet.replay.engines.protocol import Prepared
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask
from tests.cases.faults.patching import Fault, is_current, wrap


def _prompts(change: Callable[[str], str], *wanted: str) -> Fault:
    """Rendered prompts of some samples of the arm ``current``."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def render_arm(contract: Any, where: str, arm: str, rows: Any) -> list[str]:
                prompts = original(contract, where, arm, rows)
                return [
                    change(p) if arm == "current" and r["id"] in wanted else p
                    for p, r in zip(prompts, rows, strict=True)
                ]

            return render_arm

        wrap(observe, "render_arm", make)

    return fault


trailing_space = _prompts(lambda prompt: prompt + " ", "s07")
decomposed_unicode = _prompts(lambda prompt: unicodedata.normalize("NFD", prompt), "s02")


def _prepared(change: Callable[[Prepared], Prepared]) -> Fault:
    """What the tokenizer makes of a prompt."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def prepare(self: Any, arm: str, *rest: Any) -> list[Prepared]:
                return [change(p) for p in original(self, arm, *rest)]

            return prepare

        wrap(SyntheticEngine, "prepare", make)

    return fault


def _one_id_more(prepared: Prepared) -> Prepared:
    if not is_current(prepared, "s01", "s04", "s08"):
        return prepared
    ids = (prepared.prompt_ids[0], *prepared.prompt_ids)
    return replace(prepared, prompt_ids=ids, attention_mask=(1,) * len(ids))


def _masked_front(prepared: Prepared) -> Prepared:
    if not is_current(prepared, "s05"):
        return prepared
    return replace(prepared, attention_mask=(0, *prepared.attention_mask[1:]))


def other_template(task: ReplayTask, entry: AtEntry) -> None:
    """The process is handed another contract than the one that its execution id stands for."""
    task.contract["arms"]["current"]["template"] += " "


three_longer_prompts = _prepared(_one_id_more)
other_mask = _prepared(_masked_front)
