"""Tokenizers of the demo vision-language models: one token a byte, and the words for images.

Without merges a text has as many tokens as bytes, so that a template can say how long a prompt is.
Knows no picture and no model; the words for images are those of the families' own checkpoints.
"""

from __future__ import annotations

from typing import Any

from fleet.replay.demo.byte_level import byte_characters, tokenizer_json

QWEN_PAD, QWEN_BEGIN, QWEN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
QWEN_IMAGE, QWEN_VIDEO = "<|image_pad|>", "<|video_pad|>"
QWEN_VISION = ("<|vision_start|>", "<|vision_end|>")
QWEN = (QWEN_PAD, QWEN_BEGIN, QWEN_END, *QWEN_VISION, QWEN_IMAGE, QWEN_VIDEO)

LLAVA_BEGIN, LLAVA_END, LLAVA_PAD, LLAVA_IMAGE = "<s>", "</s>", "<pad>", "<image>"
LLAVA = (LLAVA_BEGIN, LLAVA_END, LLAVA_PAD, LLAVA_IMAGE)

VOCABULARY = 264
"""The words of either family, the 256 bytes, and up to a multiple of 8."""

QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Around a prompt with one image it puts 21 tokens beside those of the image."""

LLAVA_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<image>\n{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def byte_tokenizer_json(specials: tuple[str, ...], begin: str | None) -> dict[str, Any]:
    """Content of tokenizer.json: the specials, then the 256 bytes."""
    tokens = [*specials, *byte_characters().values()]
    return tokenizer_json(tokens, [], specials, begin=begin, split_digits=False)


def byte_tokenizer_config(end: str, pad: str, begin: str | None, context: int) -> dict[str, Any]:
    """Content of tokenizer_config.json; the chat template has a file of its own."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({} if begin is None else {"bos_token": begin}),
        "eos_token": end,
        "pad_token": pad,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
