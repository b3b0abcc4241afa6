"""One differing record in lines that a person can read, and what to type next.

The JSON has the same fields whole. Commands are quoted for a shell: names come from datasets.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from fleet.judge.verdict import Verdict


def look_again(verdict: Verdict) -> dict[str, str]:
    """What it is for -> the command, for whoever wants to see the first difference of a FAIL."""
    first: Mapping[str, Any] = verdict.first_difference or {}
    name = verdict.contract
    if verdict.verdict != "FAIL" or not first.get("sample_id") or not first.get("arm"):
        return {}
    if verdict.vary:
        claims = ["--vary", ",".join(verdict.vary), "--vary", "none"]
        return {"look again": shlex.join(["fleet", "certify", name, *claims])}
    where = [name, "--sample", first["sample_id"], "--arm", first["arm"]]
    found = {"look again": shlex.join(["fleet", "replay", *where])}
    cause = {"its cause": shlex.join(["fleet", "trace", *where])}
    return found if verdict.culprit else found | cause


def difference_lines(first: Mapping[str, Any]) -> list[str]:
    """Where two records part: the stage, the tokens, the largest logits of both sides.

    Args:
        first: as the judge shows it (sample_id, arm, stage, words, step, tokens, a, b, contested,
            excerpts); what is absent is left out.
    """
    lines = [
        f"sample {first.get('sample_id')}, arm {first.get('arm')}, "
        f"position {first.get('position')}: {first.get('words')}"
    ]
    excerpts = first.get("excerpts")
    if excerpts:
        lines += [f"  {side}: {text!r}" for side, text in zip("AB", excerpts, strict=True)]
    lines += _contested(first.get("contested"))
    step = first.get("step") if first.get("step") is not None else first.get("token_step")
    for side in ("a", "b"):
        body = first.get(side)
        if body and body.get("top_ids"):
            lines.append(f"  {side.upper()}, step {step}: {_logits(body)}")
    return lines


def _contested(contested: Mapping[str, Any] | None) -> list[str]:
    if not contested:
        return []
    a, b = contested["tokens"]
    changes = contested["changes_sign"]
    word = {True: "their order changes", False: "their order stays"}.get(
        changes, "whether their order changes is unknown"
    )
    return [
        f"  contested at step {contested['step']}: token {a} against {b}: "
        f"A {contested['order_a']}, B {contested['order_b']}; {word}"
    ]


def _logits(side: Mapping[str, Any]) -> str:
    """The chosen token, the margin, and up to eight logits as id:value (raw bits if undecoded)."""
    shown = side.get("top_values") or [f"0x{bits:x}" for bits in side.get("top_bits", ())]
    pairs = " ".join(f"{i}:{value}" for i, value in zip(side["top_ids"], shown, strict=True))
    margin = f"{side.get('margin_logits')} ({side.get('margin_ulps')} ulps)"
    return f"token {side.get('token')}, margin {margin}, top {pairs}"
