"""Only facts in the documents: commands exist, paths exist, nothing drifts."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from fleet.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")


def verbs() -> set[str]:
    """Every command of the program, sub-commands as two words."""
    found = set()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        subs = getattr(command, "commands", None)
        found |= {f"{name} {sub}" for sub in subs} if subs else {name}
    return found


def mentioned(text: str) -> set[str]:
    """Verbs that a document tells its reader to type; ``a|b`` names both."""
    found = set()
    for first, second in re.findall(r"\bfleet ([a-z-]+)(?: ([a-z|]+))?", text):
        if first in ("certificate", "contract", "stack", "store"):
            found |= {f"{first} {word}" for word in second.split("|") if word}
        else:
            found.add(first)
    return found


def test_every_command_is_in_the_readme() -> None:
    assert verbs() - mentioned(README) == set()


def test_every_command_that_a_document_names_exists() -> None:
    for text in (README, GUIDE):
        assert mentioned(text) - verbs() == set()


def test_every_make_target_that_a_document_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for text in (README, GUIDE):
        assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets


def test_the_tree_in_the_readme_is_the_tree() -> None:
    block = README.split("## The tree\n```\n")[1].split("```")[0]
    for line in block.splitlines():
        name = line.split()[0]
        parent = ROOT / "fleet" if line.startswith("  ") else ROOT
        assert (parent / name).exists(), name


def test_documents_are_short_and_plain() -> None:
    assert len(README.splitlines()) <= 180
    assert len(GUIDE.splitlines()) <= 150
    for path in ROOT.glob("*.md"):
        assert path.read_text(encoding="utf-8").isascii(), path


def test_the_main_job_runs_the_five_contracts_that_the_documents_name() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    quick = re.search(r"^QUICK := (.+)$", makefile, flags=re.MULTILINE)
    assert quick is not None
    for name in quick.group(1).split():
        assert (ROOT / "configs" / "contracts" / f"{name}.toml").exists()
        assert name in README
