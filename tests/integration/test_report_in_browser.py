"""The page of a report in a real browser: what a cell opens, and that a keyboard gets everywhere.

Of the evidence of an NVIDIA H200 whose replays were traced throughout.
"""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.load import BUILTIN
from fleet.report.answers import Answers
from fleet.report.html_page import html_page
from fleet.report.report_data import report_document
from fleet.report.status import status_rows
from fleet.store.open import open_reader, open_writer, publish
from fleet.store.rebuild import rebuild
from tests.golden_summary import unpacked
from tests.unit.test_report_page import CHROMIUM, dom_of, hostile

GOLDEN = Path(__file__).parents[1] / "golden" / "h200-always-on.tar.xz"
FAILING = "qwen2-7b-shapes-awq@awq_marlin"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("always-on")
    landing = unpacked(GOLDEN, folder)
    rebuild(folder / "store.duckdb", landing)
    with open_writer(folder / "store.duckdb") as writer:
        publish(writer)
    with open_reader(folder / "store.duckdb") as store:
        answers, now_s = Answers(store, landing), time.time()
        rows = status_rows(answers, [], (BUILTIN,), folder, now_s)
        made = report_document(answers, rows, now_s)
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def number_of(document: dict[str, Any], contract: str) -> int:
    return next(i for i, c in enumerate(document["cells"]) if c["contract"] == contract)


def opened(document: dict[str, Any], contract: str, work: Path) -> str:
    """The page's text with one cell open, as the browser made it."""
    page = work / "page.html"
    page.write_text(html_page(document), encoding="utf-8")
    return dom_of(page, f"#cell-{number_of(document, contract)}", work)


def test_a_fail_opens_the_call_tree_to_its_culprit(
    document: dict[str, Any], tmp_path: Path
) -> None:
    dom = opened(document, FAILING, tmp_path)
    tree = dom[dom.index('<ul class="tree">') :]
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", tree)).split())
    assert text.index("layers.0") < text.index("self_attn") < text.index("k_proj")
    assert '<span class="culprit">k_proj</span>' in tree
    assert re.search(r"SAME → SAME q_proj \(AwqMarlinLinear\)", text)
    assert re.search(r"layers\.1 … norm \(?.*inside: 12 DIFF → DIFF", text)
    for words in ("top 8", "Verdicts over time", "Who shares a root", "ulps from the chosen"):
        assert words in html.unescape(dom)


def test_hostile_names_in_every_part_of_a_cell_stay_text(
    document: dict[str, Any], tmp_path: Path
) -> None:
    odd = hostile(document)
    odd["cells"][number_of(document, FAILING)]["tree"]["root"]["path"] = "<img src=x>"
    dom = opened(odd, odd["cells"][number_of(document, FAILING)]["contract"], tmp_path)
    assert '<ul class="tree">' in dom
    assert "<img" not in dom and "&lt;img src=x" in dom


STEPS = """
const key = (name) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const told = [];
const tell = () => told.push(document.activeElement.id);
const stops = () => document.querySelectorAll(".cell[tabindex='0']").length;
document.querySelector(".cell[tabindex='0']").focus(); tell();
key("ArrowDown"); tell(); key("PageDown"); tell(); key("ArrowUp"); tell();
document.activeElement.click(); tell();
told.push(document.querySelectorAll("[aria-expanded=true]").length, stops());
key("Escape"); tell(); told.push($("detail").hidden, stops());
const list = [...document.querySelectorAll(".cell")].map((cell) =>
  cell.getAttribute("aria-labelledby").split(" ").every((id) => document.getElementById(id)));
told.push(list.every(Boolean));
$("words").value = "marlin"; $("words").dispatchEvent(new Event("input"));
told.push($("shown").textContent, stops());
document.title = JSON.stringify(told);
"""


def test_a_keyboard_gets_to_every_cell_and_back(document: dict[str, Any], tmp_path: Path) -> None:
    """The steps are a script of the test's own: the page's policy would refuse it."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", html_page(document))
    text = text.replace("</body>", f"<script>{STEPS}</script></body>")
    page = tmp_path / "page.html"
    page.write_text(text, encoding="utf-8")
    dom = dom_of(page, "", tmp_path)
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    lines = [line["cells"][0][0] for line in document["matrix"]]
    first, second, *_, before, last = (f"cell-{i}" for i in lines)
    assert json.loads(html.unescape(title[1])) == [
        first, second, last, before, "detail-title", 1, 1, before, True, 1, True, "1 row of 5", 1,
    ]  # fmt: skip


def test_thousands_of_cells_are_shown_and_one_of_them_opened(
    document: dict[str, Any], tmp_path: Path
) -> None:
    cell = document["cells"][number_of(document, FAILING)]
    lines = [
        {"contract": f"c{i}", "claim": "exact repeat", "cells": [[i]]} for i in range(3000)
    ]  # fmt: skip
    many = document | {"cells": [cell | {"contract": f"c{i}"} for i in range(3000)]}
    dom = opened(many | {"matrix": lines}, "c2999", tmp_path)
    assert "3000 rows of 3000" in dom
    assert re.search(r'id="detail-title".*?</span> c2999, exact repeat', dom)
