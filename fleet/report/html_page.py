"""A report as one HTML page that needs nothing else: no network, no other file.

The matrix stands in the page; what a cell opens is made by its script from the data that lies in
it, a line for each cell, read when that is opened. Whatever comes from models and data sets is
escaped by the template, or put in as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fleet.report.markdown_report import MARKS

NOT_SHOWN = ("attempts", "roots", "differing_samples", "stages", "units", "layers", "rule_version")
"""Of a cell: what the page says in another way, or not at all."""


def html_page(document: Mapping[str, Any]) -> str:
    """The page of a report's document."""
    style, template = _file("page.css"), _file("page.html")
    script = _file("cell.js") + _file("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    words = Counter(cell["word"] for cell in document["cells"])
    return environment.from_string(template).render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(_data(document)),
        made_at=document["made_at"],
        version=document["fleet"],
        rule_version=document["rule_version"],
        counts=[
            {"word": word, "slug": _slug(word), "count": words[word]}
            for word in MARKS
            if words[word]
        ],
        platforms=[platform["label"] for platform in document["platforms"]],
        rows=[_row(document, line) for line in document["matrix"]],
        untested=document["untested"],
    )


def _data(document: Mapping[str, Any]) -> str:
    """What all cells share, then each cell, a line each."""
    shared = {name: document[name] for name in ("platforms", "predecessors")}
    cells = [
        {name: value for name, value in cell.items() if name not in NOT_SHOWN}
        for cell in document["cells"]
    ]
    lines = (json.dumps(x, allow_nan=False, separators=(",", ":")) for x in (shared, *cells))
    # so that no text of the evidence can end the element that it lies in
    text = "\n".join(lines).replace("<", "\\u003c").replace(">", "\\u003e")
    return text.replace("&", "\\u0026")


def _row(document: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    shown = [_cell(document["cells"], indices) for indices in line["cells"]]
    words = {document["cells"][i]["word"] for indices in line["cells"] for i in indices}
    return {
        "contract": line["contract"],
        "claim": line["claim"],
        "search": f"{line['contract']} {line['claim']}".lower(),
        "states": "|".join(sorted(words)),
        "cells": shown,
    }


def _cell(cells: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> dict[str, Any] | None:
    if not indices:
        return None
    first = cells[indices[0]]
    word = first["word"]
    return {
        "indices": indices,
        "word": word,
        "slug": _slug(word),
        "mark": MARKS[word],
        "words": first["words"],
    }


def _slug(word: str) -> str:
    return word.replace(" ", "-")


def _file(name: str) -> str:
    return resources.files("fleet.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
