"""A report as one HTML page that needs nothing else: no network, no other file.

The matrix stands in the page; what a cell opens is made by its script from the document that lies
in it. Whatever comes from models and data sets is escaped by the template, or put in as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fleet.report.markdown_report import MARKS, ORDER, cell_words, rows_of_matrix


def html_page(document: Mapping[str, Any]) -> str:
    """The page of a report's document."""
    style, script, template = (_file(name) for name in ("page.css", "page.js", "page.html"))
    data = json.dumps(document, allow_nan=False, separators=(",", ":"))
    # so that no text of the evidence can end the element that it lies in
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    states = Counter(cell["state"] for cell in document["cells"])
    return environment.from_string(template).render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(data),
        made_at=document["made_at"],
        version=document["fleet"],
        rule_version=document["rule_version"],
        counts=[(state, states[state]) for state in ORDER if states[state]],
        platforms=[platform["label"] for platform in document["platforms"]],
        rows=[_row(document, *row) for row in rows_of_matrix(document)],
        untested=document["untested"],
    )


def _row(
    document: Mapping[str, Any], contract: str, claim: str, cells: list[int | None]
) -> dict[str, Any]:
    shown = [None if i is None else _cell(document, i) for i in cells]
    states = sorted({cell["state"] for cell in shown if cell is not None})
    return {
        "contract": contract,
        "claim": claim,
        "words": f"{contract} {claim}".lower(),
        "states": " ".join(states),
        "cells": shown,
    }


def _cell(document: Mapping[str, Any], index: int) -> dict[str, Any]:
    cell = document["cells"][index]
    state = cell["state"]
    return {"index": index, "state": state, "mark": MARKS[state], "words": cell_words(cell)}


def _file(name: str) -> str:
    return resources.files("fleet.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
