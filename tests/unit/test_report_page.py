"""A report: one document, and the page and the Markdown that are made of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import run
from fleet.evidence.landing import Landing
from fleet.report.answers import Answers
from fleet.report.cell import BINS
from fleet.report.html_page import html_page
from fleet.report.markdown_report import MARKS, markdown
from fleet.report.report_data import report_document
from fleet.report.status import status_rows
from fleet.store.open import open_reader
from tests.campaigns import certified, places_in
from tests.unit.test_successors import other_bits, upgraded

HOSTILE = "</script><img src=x onerror=alert(1)> & <b>\"'|`*"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def document(campaigned: Path) -> dict[str, Any]:
    return document_of(campaigned)


def document_of(root: Path) -> dict[str, Any]:
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        rows = status_rows(answers, [], places.search, places.cache, time.time())
        made = report_document(answers, rows, time.time())
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def cell_of(document: dict[str, Any], contract: str) -> dict[str, Any]:
    (found,) = [cell for cell in document["cells"] if cell["contract"] == contract]
    return found  # type: ignore[no-any-return]


def test_a_cell_holds_what_qualifies_its_verdict(document: dict[str, Any]) -> None:
    toy = cell_of(document, "toy")
    assert (toy["state"], toy["claim"], toy["word"]) == ("PASS", "exact repeat", "PASS")
    (campaign,) = toy["history"]
    assert (campaign["after"], campaign["events"]) == ("PASS", ["first PASS"])
    (shared,) = toy["classes"]
    assert (shared["replays"], shared["num_units"]) == (2, 1)
    assert {a["root"] for a in campaign["attempts"]} == {shared["root"]}
    assert toy["expires_at"] > toy["accepted_at"]
    assert toy["commands"] == {
        "certify anew": "fleet certify toy", "over time": "fleet history toy"
    }  # fmt: skip
    assert len(toy["margins"]["bins"]) == BINS
    assert sum(each["records"] for each in toy["margins"]["bins"]) == toy["margins"]["records"]
    racy = cell_of(document, "control-racy-synthetic")
    assert (racy["state"], racy["word"], len(racy["classes"])) == ("FAIL", "behaves", 2)
    sample, arm = (racy["first_difference"][key] for key in ("sample_id", "arm"))
    where = f"control-racy-synthetic --sample {sample} --arm {arm}"
    assert racy["commands"]["look again"] == f"fleet replay {where}"
    assert racy["commands"]["its cause"] == f"fleet trace {where}"
    (platform,) = document["platforms"]
    assert "version" in platform["facts"]["packages.torch"]


def test_the_page_needs_nothing_else_and_says_so_to_the_browser(document: dict[str, Any]) -> None:
    page = html_page(document)
    assert re.findall(r"""(?:src|href)=["'](?!#)""", page) == []
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page) == []
    policy = re.search(r'content="(default-src [^"]*)"', page)
    assert policy is not None
    allowed = set(re.findall(r"sha256-[A-Za-z0-9+/=]+", policy[1].replace("&#43;", "+")))
    inline = re.findall(r"<style>(.*?)</style>|<script>(.*?)</script>", page, re.DOTALL)
    for style, script in inline:
        digest = hashlib.sha256((style or script).encode()).digest()
        assert f"sha256-{base64.b64encode(digest).decode()}" in allowed
    assert len(inline) == len(allowed) == 2


def test_a_successor_s_cell_and_a_regression_say_what_was_before(
    campaigned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(campaigned, tmp_path / "copy")
    root = tmp_path / "copy"
    certified(root, launcher=other_bits(monkeypatch, at=4))
    upgraded(monkeypatch, "9.0")
    certified(root, "other")
    made = document_of(root)
    (line,) = [each for each in made["matrix"] if each["contract"] == "toy"]
    old, new = (made["cells"][indices[0]] for indices in line["cells"])
    old, new = (old, new) if old["word"] == "REGRESSED" else (new, old)
    assert [step["after"] for step in old["history"]] == ["PASS", "FAIL"]
    assert (new["word"], new["history"], new["classes"]) == ("FAIL on predecessor", [], [])
    assert new["predecessors"] == [old["platform"]]
    versions = {p["digest"]: p["facts"]["packages.torch"] for p in made["platforms"]}
    assert versions[new["platform"]] != versions[old["platform"]]
    page, text = html_page(made), markdown(made)
    assert 'class="cell FAIL-on-predecessor"' in page and 'class="cell REGRESSED"' in page
    assert "**FAIL on predecessor** toy" in text and "**REGRESSED** toy" in text


def hostile(value: Any, key: str = "") -> Any:
    """Every text that is none of the product's own words, made to break out."""
    if isinstance(value, dict):
        return {k: hostile(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v, key) for v in value]
    own = {"state", "verdict", "word", "platform", "digest", "root", "attained_grade", "after"}
    return value if not isinstance(value, str) or key in own else f"{value}{HOSTILE}"


def test_nothing_of_the_evidence_becomes_markup(document: dict[str, Any]) -> None:
    odd = hostile(document)
    page, text = html_page(odd), markdown(odd)
    assert "<img" not in page and '<b>"' not in page
    assert page.count("</script>") == 2
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    shared, *cells = [json.loads(line) for line in data[1].split("\n")]
    assert shared["platforms"] == odd["platforms"]
    assert [c["reason"] for c in cells] == [c["reason"] for c in odd["cells"]]
    assert "<img" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(document["platforms"]) + 2}


def test_markdown_shows_the_matrix_and_why_what_does_not_pass(document: dict[str, Any]) -> None:
    text = markdown(document)
    assert f"| toy, exact repeat | {MARKS['PASS']} **PASS** logits, 1/1 units" in text
    assert "| control-racy-synthetic, exact repeat | ✓ **behaves** FAIL, as it must" in text
    assert "What does not pass" not in text
    failed = [c | {"word": "FAIL"} if c["state"] == "FAIL" else c for c in document["cells"]]
    text = markdown(document | {"cells": failed})
    assert "- **FAIL** control-racy-synthetic, exact repeat" in text
    assert "  - look again: `fleet replay control-racy-synthetic --sample" in text
    assert "`fleet certify toy`" not in text


def test_thousands_of_cells_are_one_page_in_seconds(document: dict[str, Any]) -> None:
    toy = cell_of(document, "toy")
    many = document | {
        "cells": [toy] * 5000,
        "matrix": [
            {"contract": f"contract-{i:04}", "claim": "exact repeat", "cells": [[i]]}
            for i in range(5000)
        ],
    }
    begun = time.monotonic()
    page = html_page(many)
    assert time.monotonic() - begun < 20
    assert page.count('class="cell PASS"') == 5000


@pytest.mark.parametrize("kind", ["html", "md", "json"])
def test_the_verb_writes_one_whole_file(
    campaigned: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ["--store", f"{campaigned}/var/fleet.duckdb", "--landing", f"{campaigned}/var/landing"]
    assert run(["report", "--format", kind, *where, "--configs", f"{campaigned}/configs"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == [f"fleet-report.{kind}"]
    assert "toy" in (tmp_path / f"fleet-report.{kind}").read_text()
    target = tmp_path / "no" / "such" / "folder.html"
    assert run(["report", *where, "--output", str(target)]) == 2
    assert not target.parent.exists()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_the_matrix_and_opens_a_cell(
    document: dict[str, Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(html_page(hostile(document)), encoding="utf-8")
    index = next(i for i, c in enumerate(document["cells"]) if c["state"] == "FAIL")
    dom = dom_of(page, f"#cell-{index}", tmp_path)
    assert 'aria-expanded="true"' in dom
    detail = dom[dom.index('id="detail-title"') :]
    for words in ("Verdicts over time", "First difference", "Commands", "<svg"):
        assert words in detail
    assert "<img" not in dom
    assert re.search(r"id=\"shown\"[^>]*>\d+ rows of \d+<", dom)


def dom_of(page: Path, anchor: str, work: Path) -> str:
    """What a headless browser made of it."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={work / 'profile'}", "--dump-dom",
        page.as_uri() + anchor,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout
