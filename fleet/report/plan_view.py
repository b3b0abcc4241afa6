"""What a campaign would run, for a person. Knows no planning."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from fleet.contract.vary import in_words


def print_plan(console: Console, document: dict[str, Any]) -> None:
    """One line per replay."""
    for row in document["plan"]:
        name = row["contract"]
        line = f"{row['slot']:3} {row['role']:8} {name} replay {row['replay']}"
        line += f", {in_words(row['vary'])}" if row["vary"] else ""
        work = row.get("work")
        if work:
            samples, arms = work["samples"] or ["all samples"], work["arms"] or ["all arms"]
            line += f", {work['purpose']} of {samples[0]}"
            line += f" and {len(samples) - 1} more" if len(samples) > 1 else ""
            line += f" in {', '.join(arms)}"
        console.print(f"{line} {document['execution_ids'][name]}", soft_wrap=True)
