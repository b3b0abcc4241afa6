"""The tokenizer of the tiny models: learned here, from a fixed text, by plain counting.

Every byte has a token, so any text can be tokenised and any id decoded. Ties are broken by text,
so the file has the same bytes everywhere.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

from fleet.replay.demo.byte_level import byte_characters, tokenizer_json

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
SPECIALS = (BOS, EOS, PAD)

TEXT = (
    "Question: What is the capital of France? Answer: The capital of France is Paris. "
    "Which planet is the largest in the solar system? The largest planet is Jupiter. "
    "How many days are there in a week? There are 7 days in a week and 12 months in a year. "
    "Choose one of the letters A, B, C or D and answer with the letter only. "
    "Water is made of hydrogen and oxygen; it boils at 100 degrees and freezes at 0 degrees. "
    "The first number is smaller than the second number, and the third number is not given. "
    "Explain in one short sentence why the statement is true or false. "
    "An honest measurement repeats: the same model, the same input and the same machine must "
    "give the same bits twice, otherwise something between them has changed."
)
_WORD = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")

Words = Counter[tuple[str, ...]]


def tiny_tokenizer_json(vocab_size: int) -> dict[str, Any]:
    """Content of tokenizer.json: the specials, the 256 bytes, then as many merges as fit."""
    characters = byte_characters()
    merges = learn_merges(vocab_size - len(SPECIALS) - len(characters))
    tokens = [*SPECIALS, *characters.values(), *(left + right for left, right in merges)]
    return tokenizer_json(tokens, merges, SPECIALS, begin=BOS, split_digits=False)


def tiny_tokenizer_config(max_length: int) -> dict[str, Any]:
    """Content of tokenizer_config.json. No chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }


def learn_merges(num_merges: int) -> list[tuple[str, str]]:
    """The most frequent pair first, ties by text; no two merges make the same token."""
    characters = byte_characters()
    words = Words(tuple(characters[b] for b in word.encode()) for word in _WORD.findall(TEXT))
    known = set(characters.values())
    merges: list[tuple[str, str]] = []
    while len(merges) < num_merges:
        pairs = _pairs(words, known)
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        known.add(best[0] + best[1])
        words = _merge(words, best)
    return merges


def _pairs(words: Words, known: set[str]) -> Counter[tuple[str, str]]:
    pairs: Counter[tuple[str, str]] = Counter()
    for word, count in words.items():
        for left, right in itertools.pairwise(word):
            if left + right not in known:
                pairs[left, right] += count
    return pairs


def _merge(words: Words, pair: tuple[str, str]) -> Words:
    merged: Words = Counter()
    for word, count in words.items():
        parts: list[str] = []
        for part in word:
            if parts and (parts[-1], part) == pair:
                parts[-1] += part
            else:
                parts.append(part)
        merged[tuple(parts)] += count
    return merged
