"""The rules over several keys, in words: what the model raises, where to point, what to do.

Knows texts only; the rules themselves live in the model. A test provokes each of them, so that a
reworded rule cannot lose its explanation unseen.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A rule over several keys: the text the model raises, where to point and what to say."""

    raised: str
    key: str
    expected: str
    shown: tuple[str, ...]
    fix: str


RULES: tuple[Rule, ...] = (
    Rule(
        "revision: a hub checkpoint is pinned",
        "model.revision",
        "a full commit of 40 hexadecimal digits, because a hub checkpoint must be pinned",
        ("model.revision",),
        "look the commit up on the model's page and write it out; branches and tags move",
    ),
    Rule(
        "trust_remote_code = true and code_sha256 go together",
        "model.trust_remote_code",
        "trust_remote_code = true together with code_sha256, or neither",
        ("model.trust_remote_code", "model.code_sha256"),
        "leave both out, or pin the remote code by its digest",
    ),
    Rule(
        'kind = "vision" and processor go together',
        "model.processor",
        'kind = "vision" together with processor = "fast" or "slow", or neither',
        ("model.kind", "model.processor"),
        "name the image processor: the two give other pixels; a text model has none",
    ),
    Rule(
        "bits, group_size and backend go with",
        "quantization.method",
        'method = "awq" or "gptq" beside bits, group_size and backend',
        ("quantization.method",),
        "name the method, or remove bits, group_size and backend",
    ),
    Rule(
        "needs bits, group_size and backend",
        "quantization",
        "bits, group_size and backend beside a quantisation method",
        ("quantization.bits", "quantization.group_size", "quantization.backend"),
        "write all three; `fleet doctor` lists the backends that this machine can run",
    ),
    Rule(
        "the backend is named, never 'auto'",
        "quantization.backend",
        'a backend by name, such as "awq_torch" (auto chooses differently by machine)',
        ("quantization.backend",),
        "name one; `fleet doctor` lists the backends that this machine can run",
    ),
    Rule(
        "sdpa needs at least one entry",
        "attention.sdpa_kernels",
        'at least one of "math", "flash", "efficient", "cudnn"',
        ("attention.sdpa_kernels",),
        'write sdpa_kernels = ["math"], or implementation = "eager"',
    ),
    Rule(
        "do_sample = true needs",
        "decoding",
        "temperature, top_k and top_p, all explicit, beside do_sample = true",
        ("decoding.temperature", "decoding.top_k", "decoding.top_p"),
        "write all three, or do_sample = false",
    ),
    Rule(
        "temperature, top_k and top_p go with",
        "decoding.do_sample",
        "do_sample = true beside temperature, top_k or top_p",
        ("decoding.do_sample",),
        "remove temperature, top_k and top_p: greedy decoding reads none of them",
    ),
    Rule(
        "stop_token_ids names an id twice",
        "decoding.stop_token_ids",
        "each stop token id once",
        ("decoding.stop_token_ids",),
        "remove the repeated id",
    ),
    Rule(
        "[expect] is for controls",
        "expect",
        "[expect] only in a control, together with [control]",
        ("control",),
        "remove [expect]; what a contract must reach is written in [require]",
    ),
    Rule(
        'a quantised contract runs under [model] engine = "gptqmodel"',
        "model.engine",
        '"gptqmodel" for a quantised contract, because it selects the backend by name',
        ("model.engine",),
        'write engine = "gptqmodel" under [model]',
    ),
    Rule(
        'engine = "gptqmodel" needs [quantization] method',
        "quantization.method",
        '"awq" or "gptq", because [model] engine = "gptqmodel" runs quantised weights',
        ("quantization.method",),
        'fill [quantization] in, or write engine = "transformers"',
    ),
)
