"""A report as Markdown, for a pull request or a wiki: the matrix, then why what does not pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from fleet.report.trace_view import place_of

MARKS = {
    "REGRESSED": "✗", "FAIL": "✗", "FAIL on predecessor": "!", "VOID": "?", "STALE": "…",
    "UNTESTED": "-", "PASS": "✓", "behaves": "✓",
}  # fmt: skip
"""Beside the word, so that neither colour nor a symbol says it alone; worst first."""

FINE = ("PASS", "behaves")


def markdown(document: Mapping[str, Any]) -> str:
    """The whole report."""
    heads = [_text(platform["label"]) for platform in document["platforms"]]
    lines = [
        f"# Where inference is bitwise reproducible, {_text(document['made_at'])}",
        "",
        "| contract | " + " | ".join(heads) + " |",
        "|---|" + "---|" * len(heads),
    ]
    cells = document["cells"]
    for line in document["matrix"]:
        told = [_shown(cells, indices) for indices in line["cells"]]
        name = f"{_text(line['contract'])}, {_text(line['claim'])}"
        lines.append(f"| {name} | " + " | ".join(told) + " |")
    odd = [cell for cell in cells if cell["word"] not in FINE]
    if odd:
        lines += ["", "## What does not pass", ""]
    for cell in odd:
        lines += _told(cell)
    lines += list(_retractions(document))
    if document["untested"]:
        lines += ["", "## Without evidence", ""]
        lines += [
            f"- {_text(each['contract'])}, {_text(each['claim'])}" for each in document["untested"]
        ]
    lines += ["", f"fleet {_text(document['fleet'])}, rule version {document['rule_version']}."]
    return "\n".join(lines) + "\n"


def _told(cell: Mapping[str, Any]) -> Iterator[str]:
    words = cell["note"] or cell.get("reason") or ""
    if cell.get("culprit"):
        words += f"; first divergence: {place_of(cell['culprit'])}"
    yield f"- **{cell['word']}** {_text(_place(cell))}: {_text(words)}"
    for purpose, command in cell["commands"].items():
        yield f"  - {_text(purpose)}: `{_code(command)}`"


def _place(cell: Mapping[str, Any]) -> str:
    traced = ", traced" if cell.get("traced") else ""
    return f"{cell['contract']}, {cell['claim']}{traced}, {cell['platform_label'] or 'unknown'}"


def _retractions(document: Mapping[str, Any]) -> Iterator[str]:
    """Of what passes too: a FAIL whose evidence was withdrawn is told of."""
    told = [cell for cell in document["cells"] if cell.get("retractions")]
    yield from ("", "## Retracted evidence", "") if told else ()
    for cell in told:
        words = [each["words"] for each in cell["retractions"]]
        before = cell["without_retractions"]
        if before is not None:
            words.append(f"with it this would be {before['verdict']}: {before['reason']}")
        yield f"- {_text(_place(cell))}: {_text('; '.join(words))}"


def _shown(cells: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> str:
    if not indices:
        return "-"
    cell = cells[indices[0]]
    return f"{MARKS[cell['word']]} **{cell['word']}** {_text(cell['words'])}"


def _text(words: str) -> str:
    """Nothing of it is markup, and it stays in its cell."""
    one_line = escape(" ".join(str(words).split()), quote=False)
    for character in "\\`*_[]|#":
        one_line = one_line.replace(character, f"\\{character}")
    return one_line


def _code(words: str) -> str:
    """Inside backquotes: none of its own may end them, and no HTML begins."""
    return escape(" ".join(words.split()).replace("`", "'"), quote=False)
