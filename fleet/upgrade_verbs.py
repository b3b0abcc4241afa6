"""Verbs about software stacks: ``stack freeze|show`` and ``upgrade-check``. Thin as the others."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fleet.errors import UsageError
from fleet.options import Form, Json, Running, Where, grouped
from fleet.query_verbs import Mode
from fleet.report.screen import emit, out, progress, verbatim

stack_app = typer.Typer(help="Freeze or show a software stack.", no_args_is_help=True)

Stack = Annotated[str, typer.Argument(help="Name in the config path, or a TOML file.")]


@stack_app.command("freeze")
@grouped
def freeze(
    where: Where,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="A new file, such as configs/stacks/NAME.toml.")
    ],
    python: Annotated[
        str | None, typer.Option(help="Another environment's Python; this one's if left out.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="A container image, started by podman, instead.")
    ] = None,
) -> None:
    """Write what this environment is: versions, content digests, CUDA libraries, driver."""
    from fleet.schedule.stacks import freeze as frozen
    from fleet.schedule.stacks import freeze_image, own_python, write

    if python is not None and image is not None:
        raise UsageError("command line", "--image", "one environment", "--python too", "drop one")
    chosen = own_python() if python is None else os.path.abspath(Path(python).expanduser())
    with progress("reading the environment"):
        if image is not None:
            text = freeze_image(image, "stack freeze")
        else:
            text = frozen(chosen, "stack freeze", where.places().cache)
    print(f"{write(output, text)}\n  next: fleet upgrade-check BASE {output.stem}")


@stack_app.command("show")
@grouped
def show(stack: Stack, where: Where, as_json: Json = False) -> None:
    """Print a stack: where it is, and everything that was frozen."""
    from fleet.contract.stack import load_stack

    loaded = load_stack(stack, where.places().search, None)
    if as_json:
        head = {"schema": 1, "stack": loaded.name, "sha256": loaded.digest}
        place = loaded.stack.model_dump(mode="json", include={"python", "image", "labels"})
        return emit(head | place | loaded.stack.frozen())
    with out() as console:
        verbatim(console, f"{loaded.name}: {loaded.digest}")
        verbatim(console, loaded.path.read_text(encoding="utf-8").rstrip())


class Format(StrEnum):
    """How the answer is written; ``--json`` beside it is a document."""

    text = "text"
    markdown = "markdown"


@grouped
def upgrade_check(
    base: Annotated[str, typer.Argument(help="The stack there is: a name, or a TOML file.")],
    new: Annotated[str, typer.Argument(help="The stack to go to.")],
    where: Where,
    form: Form,
    running: Running,
    contract: Annotated[
        list[str] | None,
        typer.Option(help="Only this one, repeatable; else all that the store has evidence of."),
    ] = None,
    bisect: Annotated[
        bool, typer.Option(help="Find the package that brings a change, on stacks between the two.")
    ] = False,
    trace: Annotated[bool, typer.Option(help="Trace what changed across both stacks.")] = True,
    reuse: Annotated[
        bool, typer.Option(help="Take a stack's valid PASS of all of them, instead of replays.")
    ] = False,
    mode: Annotated[Mode, typer.Option(help="info, warn: the same, and exit 0.")] = Mode.block,
    format: Annotated[Format, typer.Option(help="markdown: for a comment.")] = Format.text,
    dry_run: Annotated[bool, typer.Option(help="Print what would run, and how long.")] = False,
) -> None:
    """Two software stacks: which contracts keep their bits, which change, where, and why."""
    from fleet.report.upgrade_view import print_markdown, print_upgrade, print_upgrade_plan
    from fleet.schedule.certify import require_usable
    from fleet.schedule.upgrade import UpgradeRequest, plan_document, plan_upgrade, run_upgrade

    if form.as_json and format is Format.markdown:
        raise UsageError("command line", "--format", "one form", "--json too", "drop one")
    places = where.places()
    asked = UpgradeRequest(
        base, new, tuple(contract or ()), trace, bisect, reuse, mode.value, running.limits(),
        tuple(sys.argv[1:]),
    )  # fmt: skip
    with progress("loading both stacks") as say:
        plan = plan_upgrade(asked, places, say)
        if dry_run:
            document = plan_document(asked, plan, places)
            return form.show(document, print_upgrade_plan, document)
        require_usable(places)
        with where.cluster() as launcher:
            answer = run_upgrade(asked, plan, places, launcher, say)
    shown = print_markdown if format is Format.markdown else print_upgrade
    form.show(answer.to_json(), shown, answer)
    raise typer.Exit(answer.exit_code())
