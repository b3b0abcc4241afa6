"""Draws the 191 images of shapes-191 and writes its questions, and those of shapes-24.

    python configs/datasets/shapes-191/draw.py     # into configs/datasets, over what is there

Counts, colours, places, the tallest bar of a chart, numbers and words; four choices each, as many
gold letters of each kind. Everything follows from one seed. Written here, Apache-2.0.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageDraw

NUMBER, SIDE, SEED = 191, 160, 191
LONGEST = 44  # question and choices, in characters: a template pads prompts to one length

COLOURS = {
    "red": (214, 40, 40),
    "blue": (29, 78, 216),
    "green": (22, 130, 60),
    "gold": (234, 170, 8),
    "black": (20, 20, 20),
    "pink": (236, 110, 170),
}
SHAPES = ("circle", "square", "triangle", "cross")
PLACES = {"top left": (0, 0), "top right": (1, 0), "low left": (0, 1), "low right": (1, 1)}
SEGMENTS = {
    **{"0": "abcdef", "1": "bc", "2": "abdeg", "3": "abcdg", "4": "bcfg", "5": "acdfg"},
    **{"6": "acdefg", "7": "abc", "8": "abcdefg", "9": "abcdfg", "A": "abcefg", "C": "adef"},
    **{"E": "adefg", "F": "aefg", "H": "bcefg", "L": "def", "O": "abcdef", "P": "abefg"},
    **{"S": "acdfg", "U": "bcdef"},
}
"""Letters and digits of seven segments: a to f clockwise from the top, g in the middle."""
ENDS = {
    **{"a": (0, 0, 1, 0), "b": (1, 0, 1, 1), "c": (1, 1, 1, 2), "d": (0, 2, 1, 2)},
    **{"e": (0, 1, 0, 2), "f": (0, 0, 0, 1), "g": (0, 1, 1, 1)},
}
WORDS = (
    "CAFE",
    "LEAF",
    "HALF",
    "PALE",
    "CLAP",
    "HEAL",
    "LACE",
    "FLEA",
    "FACE",
    "HELP",
    "SAFE",
    "SHOP",
    "SOUP",
    "LOSE",
    "HOPE",
    "POLE",
    "SOLE",
    "SEAL",
    "COAL",
    "FOAL",
    "LOAF",
    "CLUE",
    "FUEL",
    "HOLE",
    "HOSE",
    "PULP",
)

Picture = tuple[Image.Image, str, str, list[str]]
"""An image, the question, the right choice and three wrong ones."""


def blank(random: Random) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """A light background."""
    ground = tuple(random.randrange(232, 256) for _ in range(3))
    image = Image.new("RGB", (SIDE, SIDE), ground)
    return image, ImageDraw.Draw(image)


def shape(draw: ImageDraw.ImageDraw, name: str, x: int, y: int, size: int, colour: str) -> None:
    """One filled shape inside the square of ``size`` whose corner is at (x, y)."""
    fill, right, low = COLOURS[colour], x + size, y + size
    third = size // 3
    match name:
        case "circle":
            draw.ellipse((x, y, right, low), fill=fill)
        case "square":
            draw.rectangle((x, y, right, low), fill=fill)
        case "triangle":
            draw.polygon([(x, low), (right, low), (x + size // 2, y)], fill=fill)
        case _:
            draw.rectangle((x + third, y, right - third, low), fill=fill)
            draw.rectangle((x, y + third, right, low - third), fill=fill)


def cells(random: Random, count: int) -> list[tuple[int, int]]:
    """Corners of some of the sixteen cells, moved a little."""
    chosen = random.sample(range(16), count)
    return [
        (40 * (n % 4) + random.randrange(4, 10), 40 * (n // 4) + random.randrange(4, 10))
        for n in chosen
    ]


def others(random: Random, right: str, every: list[str]) -> list[str]:
    """Three other choices."""
    return random.sample([each for each in every if each != right], 3)


def count(random: Random) -> Picture:
    """How many of one shape, among others."""
    image, draw = blank(random)
    name, number = random.choice(SHAPES), random.randrange(1, 8)
    rest = random.randrange(0, 5)
    for index, (x, y) in enumerate(cells(random, number + rest)):
        kind = name if index < number else random.choice([s for s in SHAPES if s != name])
        shape(draw, kind, x, y, random.randrange(18, 29), random.choice(list(COLOURS)))
    plural = "crosses" if name == "cross" else f"{name}s"
    wrong = others(random, str(number), [str(n) for n in range(1, 9)])
    return image, f"How many {plural}?", str(number), wrong


def colour(random: Random) -> Picture:
    """The colour of the largest shape."""
    image, draw = blank(random)
    picked = random.sample(list(COLOURS), 4)
    for (x, y), each in zip([(6, 6), (122, 8), (126, 120)], picked[1:], strict=True):
        shape(draw, random.choice(SHAPES), x, y, random.randrange(16, 28), each)
    shape(draw, random.choice(SHAPES), 34, 40, random.randrange(70, 84), picked[0])
    return image, "Largest?", picked[0], picked[1:]


def place(random: Random) -> Picture:
    """Where one colour is."""
    image, draw = blank(random)
    picked = random.sample(list(COLOURS), 4)
    for each, (across, down) in zip(picked, PLACES.values(), strict=True):
        at = (80 * across + random.randrange(12, 22), 80 * down + random.randrange(12, 22))
        shape(draw, random.choice(SHAPES), *at, random.randrange(34, 46), each)
    right = random.randrange(4)
    kinds = {"top left": "TL", "top right": "TR", "low left": "LL", "low right": "LR"}
    found = list(kinds.values())
    answer = found.pop(right)
    return image, f"Where is {picked[right]}?", answer, found


def chart(random: Random) -> Picture:
    """The tallest or the shortest bar of a chart."""
    image, draw = blank(random)
    picked = random.sample(list(COLOURS), 4)
    heights = random.sample(range(20, 131, 10), 4)
    for index, (each, height) in enumerate(zip(picked, heights, strict=True)):
        left = 18 + 34 * index
        draw.rectangle((left, 146 - height, left + 22, 146), fill=COLOURS[each])
    draw.line((10, 147, 152, 147), fill=COLOURS["black"], width=2)
    draw.line((10, 10, 10, 147), fill=COLOURS["black"], width=2)
    tallest = random.random() < 0.5
    right = heights.index(max(heights) if tallest else min(heights))
    answer = picked.pop(right)
    return image, "Tallest bar?" if tallest else "Lowest bar?", answer, picked


def write(draw: ImageDraw.ImageDraw, text: str, fill: tuple[int, int, int]) -> None:
    """Seven-segment letters across the middle."""
    for index, letter in enumerate(text):
        left, top = 12 + 37 * index, 52
        for segment in SEGMENTS[letter]:
            x0, y0, x1, y1 = ENDS[segment]
            ends = (left + 24 * x0, top + 28 * y0, left + 24 * x1, top + 28 * y1)
            draw.line(ends, fill=fill, width=5)


def word(random: Random) -> Picture:
    """Which word is written."""
    image, draw = blank(random)
    picked = random.sample(WORDS, 4)
    write(draw, picked[0], COLOURS[random.choice(list(COLOURS))])
    return image, "Which word?", picked[0], picked[1:]


def number(random: Random) -> Picture:
    """Which number is written."""
    image, draw = blank(random)
    picked = random.sample(range(1000, 10000), 4)
    write(draw, str(picked[0]), COLOURS[random.choice(list(COLOURS))])
    return image, "Which number?", str(picked[0]), [str(each) for each in picked[1:]]


KINDS: tuple[Callable[[Random], Picture], ...] = (count, colour, place, chart, word, number)


def questions() -> Iterator[tuple[Image.Image, dict[str, Any]]]:
    """Image and record, without the image's digest."""
    random = Random(SEED)
    letters = [*"ABCD"] * (NUMBER // 4 + 1)
    letters = letters[:NUMBER]
    random.shuffle(letters)
    for index, letter in enumerate(letters):
        image, question, right, wrong = KINDS[index % len(KINDS)](random)
        random.shuffle(wrong)
        gold = "ABCD".index(letter)
        texts = [*wrong[:gold], right, *wrong[gold:]]
        choices = " ".join(f"{name} {text}" for name, text in zip("ABCD", texts, strict=True))
        assert len(f"{question} {choices}") <= LONGEST
        yield (
            image,
            {
                "id": f"s{index + 1:03}",
                "question": question,
                "choices": choices,
                "options": list("ABCD"),
                "answer": letter,
            },
        )


def png(image: Image.Image) -> bytes:
    """The bytes of the image file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main(folder: Path) -> None:
    """Write images, records and the TOML of both datasets."""
    lines = []
    for image, record in questions():
        name, data = f"shapes-191/{record['id']}.png", png(image)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        lines.append(json.dumps(record | {"images": [{"file": name, "sha256": digest}]}) + "\n")
    dataset(folder, "shapes-191", lines, "191 questions about drawn images")
    dataset(folder, "shapes-24", lines[:24], "the first 24 questions of shapes-191")


def dataset(folder: Path, name: str, lines: list[str], description: str) -> None:
    """The records, and the TOML that pins them."""
    data = "".join(lines).encode()
    (folder / f"{name}.jsonl").write_bytes(data)
    (folder / f"{name}.toml").write_text(
        f'file = "{name}.jsonl"\n'
        f'sha256 = "sha256:{hashlib.sha256(data).hexdigest()}"\n'
        f'description = "{description}: counts, colours, places, charts, words and numbers, four '
        'choices each; drawn by shapes-191/draw.py for this repository"\n'
        'license = "Apache-2.0"\n'
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
