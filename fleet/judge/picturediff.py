"""In words: how the images of two rows differ, at the stage that differs first.

Reads the text of the rows' evidence; whether they differ was decided by the digests. Knows no
cause: two classes of processors beside two sets of pixels stay what they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleet.evidence.images import TEXT_COLUMN

Row = Mapping[str, Any]
Evidence = Mapping[str, Any]


def picture_words(stage: str, row_a: Row, row_b: Row) -> str:
    """What differs at an image stage."""
    a, b = _evidence(row_a), _evidence(row_b)
    if a is None or b is None:
        return "only one of the two rows has images"
    match stage:
        case "image_file":
            return _of_images(a, b, ("sha256",), "the bytes of the file differ")
        case "image_decoded":
            return _of_images(a, b, ("mode", "width", "height"), "the pixels differ, files equal")
        case "image_places":
            return "kinds of tokens differ, prompt ids equal"
        case _:
            return _of_outputs(a, b)


def _evidence(row: Row) -> Evidence | None:
    text = row.get(TEXT_COLUMN)
    found: Evidence | None = None if text is None else json.loads(text)
    return found


def _of_images(a: Evidence, b: Evidence, shown: tuple[str, ...], otherwise: str) -> str:
    left, right = a["images"], b["images"]
    if len(left) != len(right):
        return f"{len(left)} and {len(right)} images"
    for number, (x, y) in enumerate(zip(left, right, strict=True), 1):
        if shown != ("sha256",) and any(x[key] != y[key] for key in shown):
            return f"image {number}: {_form(x)} and {_form(y)}"
        if x != y:
            return f"image {number}: {otherwise}"
    return otherwise


def _form(image: Mapping[str, Any]) -> str:
    return f"{image['mode']} {image['width']}x{image['height']}"


def _of_outputs(a: Evidence, b: Evidence) -> str:
    left, right = a["outputs"], b["outputs"]
    names = sorted(n for n in left.keys() | right.keys() if left.get(n) != right.get(n))
    words = f"decoded images equal, {' and '.join(names)} {'differ' if names[1:] else 'differs'}"
    for name in names:
        shapes = [side.get(name, {}).get("shape") for side in (left, right)]
        if shapes[0] != shapes[1]:
            words += f"; {name} {shapes[0]} and {shapes[1]}"
    return words + f"; processors {_processor(a)} and {_processor(b)}"


def _processor(evidence: Evidence) -> str:
    own = evidence["processor"]
    return " ".join(str(own[key]) for key in ("class", "version") if key in own)
