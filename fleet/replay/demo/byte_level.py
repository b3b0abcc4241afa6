"""The JSON of a byte-level BPE ``tokenizer.json``, given its tokens and merges.

Knows no text and no model. The layout is that of the tokenizers library, format "1.0", in which
every key with an effect is stated, so that no version's default fills a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


def tokenizer_json(
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    specials: Sequence[str],
    begin: str | None,
    split_digits: bool,
) -> Json:
    """The whole file.

    Args:
        tokens: text of each id, in order; bytes as GPT-2's printable characters.
        merges: pairs, most frequent first.
        specials: the tokens that are never split nor made from text; the first ids.
        begin: token put before every sequence, if any.
        split_digits: each digit is a word of its own.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(number, text) for number, text in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": _words(split_digits),
        "post_processor": None if begin is None else _begin_with(begin, tokens.index(begin)),
        "decoder": _byte_level(),
        "model": _bpe(tokens, merges),
    }


def byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte in GPT-2's byte-level BPE."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    table: dict[int, str] = {}
    for byte in range(256):
        table[byte] = chr(byte) if byte in printable else chr(256 + len(table.keys() - printable))
    return table


def _words(split_digits: bool) -> Json:
    if not split_digits:
        return _byte_level()
    digits = {"type": "Digits", "individual_digits": True}
    return {"type": "Sequence", "pretokenizers": [digits, _byte_level()]}


def _byte_level() -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(tokens)},
        "merges": [list(pair) for pair in merges],
    }


def _special(number: int, text: str) -> Json:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": True}


def _begin_with(token: str, number: int) -> Json:
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
