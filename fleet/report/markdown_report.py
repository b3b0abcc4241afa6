"""A report as Markdown, and how its cells are laid out: the same for the page.

For a pull request or a wiki: the matrix, then every cell that is no PASS with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fleet.judge.present import DAY_S

MARKS = {
    "PASS": "✓", "FAIL": "✗", "REGRESSED": "✗", "VOID": "?", "STALE": "…", "UNTESTED": "-",
}  # fmt: skip
"""Beside the word, so that neither colour nor a symbol says it alone."""

ORDER = ("REGRESSED", "FAIL", "VOID", "STALE", "PASS", "UNTESTED")


def rows_of_matrix(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, str, list[int | None]]]:
    """(contract, claim, index of the cell on each platform of the document, None for none)."""
    columns = [platform["digest"] for platform in document["platforms"]]
    found: dict[tuple[str, str, bool], dict[str, int]] = {}
    for index, cell in enumerate(document["cells"]):
        traced = bool(cell.get("traced"))
        key = (cell["contract"], cell["claim"], traced)
        found.setdefault(key, {})[cell["platform"] or ""] = index
    for (contract, claim, traced), cells in found.items():
        words = f"{claim}, traced" if traced else claim
        yield contract, words, [cells.get(digest) for digest in columns]


def cell_words(cell: Mapping[str, Any]) -> str:
    """Grade, units and age, as far as there are any."""
    words = [cell["attained_grade"]] if cell["attained_grade"] else []
    if cell["verdict"] == "FAIL" and cell["records"]:
        words = [f"{cell['mismatches']} of {cell['records']} differ"]
    if cell["behaves"]:
        words = ["a control: as expected"]
    if cell["units_tested"]:
        words.append(f"{cell['units_tested']}/{cell['units_known']} units")
    if cell["age_s"] is not None:
        words.append(_age(cell["age_s"]))
    return ", ".join(words)


def _age(seconds: float) -> str:
    for unit, length in (("d", DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def markdown(document: Mapping[str, Any]) -> str:
    """The whole report."""
    heads = [_text(platform["label"]) for platform in document["platforms"]]
    lines = [
        f"# Where inference is bitwise reproducible, {_text(document['made_at'])}",
        "",
        "| contract | " + " | ".join(heads) + " |",
        "|---|" + "---|" * len(heads),
    ]
    for contract, claim, cells in rows_of_matrix(document):
        told = ["-" if i is None else _shown(document["cells"][i]) for i in cells]
        lines.append(f"| {_text(contract)}, {_text(claim)} | " + " | ".join(told) + " |")
    odd = [cell for cell in document["cells"] if cell["state"] != "PASS"]
    if odd:
        lines += ["", "## What does not pass", ""]
    for cell in odd:
        head = f"{cell['contract']}, {cell['claim']}, {cell['platform_label'] or 'unknown'}"
        lines.append(f"- **{cell['state']}** {_text(head)}: {_text(cell['reason'])}")
        lines += [f"  - `{_code(command)}`" for command in cell["commands"]]
    lines += list(_retractions(document))
    if document["untested"]:
        lines += ["", "## Without evidence", ""]
        lines += [f"- {_text(each['contract'])}" for each in document["untested"]]
    lines += ["", f"fleet {_text(document['fleet'])}, rule version {document['rule_version']}."]
    return "\n".join(lines) + "\n"


def _retractions(document: Mapping[str, Any]) -> Iterator[str]:
    """Of what passes too: a FAIL whose evidence was withdrawn is told of."""
    told = [cell for cell in document["cells"] if cell["retractions"]]
    yield from ("", "## Retracted evidence", "") if told else ()
    for cell in told:
        words = [each["words"] for each in cell["retractions"]]
        before = cell["without_retractions"]
        if before is not None:
            words.append(f"with it this would be {before['verdict']}: {before['reason']}")
        place = f"{cell['contract']}, {cell['claim']}, {cell['platform_label'] or 'unknown'}"
        yield f"- {_text(place)}: {_text('; '.join(words))}"


def _shown(cell: Mapping[str, Any]) -> str:
    return f"{MARKS[cell['state']]} **{cell['state']}** {_text(cell_words(cell))}"


def _text(words: str) -> str:
    """Nothing of it is markup, and it stays in its cell."""
    one_line = escape(" ".join(str(words).split()), quote=False)
    for character in "\\`*_[]|#":
        one_line = one_line.replace(character, f"\\{character}")
    return one_line


def _code(words: str) -> str:
    """Inside backquotes: none of its own may end them, and no HTML begins."""
    return escape(" ".join(words.split()).replace("`", "'"), quote=False)
