"""What verbs accept in groups, once: where things are, the form of the answer, what is asked.

A verb takes a group as one parameter, and :func:`grouped` shows typer its fields as options of
their own. A new verb is one function: its arguments, ``where: Where``, ``form: Form``. Knows no
verb; imports no room before a verb asks for its places.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console

from fleet.errors import UsageError
from fleet.report.screen import Cells, emit, emit_csv, out

if TYPE_CHECKING:
    from fleet.evidence.landing import Landing
    from fleet.evidence.remote import Remote
    from fleet.report.filters import Filters
    from fleet.schedule.cluster import RayCluster
    from fleet.schedule.driver import Limits
    from fleet.schedule.places import Places

T = TypeVar("T")


def writable_file(path: Path | None) -> Path | None:
    """Asked before the work, not after it."""
    if path is None or (path.parent.is_dir() and not path.is_dir()):
        return path
    raise typer.BadParameter(f"expected a file in an existing folder, got {path}")


def _campaign_id(given: str | None) -> str | None:
    """It becomes the name of a folder."""
    if given is None or re.fullmatch(CAMPAIGN_ID, given):
        return given
    raise typer.BadParameter(f"expected letters, digits, dots and dashes, got {given!r}")


CAMPAIGN_ID = (
    r"(?!(decisions|pruned|planned|retracted|certificates|upgrades)-)"
    r"[A-Za-z0-9][A-Za-z0-9.-]{0,79}"
)
"""Some names are of chains that are no campaigns."""

CampaignId = Annotated[
    str | None,
    typer.Option(
        callback=_campaign_id,
        help="Its name; the same again goes on where an earlier driver ended.",
    ),
]

Contracts = Annotated[
    list[str],
    typer.Argument(help="Names in the config path, or TOML files; NAME@BACKEND for a variant."),
]
Contract = Annotated[
    str, typer.Argument(help="Name in the config path, or a TOML file; NAME@BACKEND for a variant.")
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        callback=writable_file,
        metavar="FILE",
        help="When all is over, write a report of the store there: a page, .md or .json.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]

STORE, LANDING = Path("var/fleet.duckdb"), "var/landing"


@dataclass(frozen=True)
class Where:
    """Where everything is; accepted after every verb, used or not, so that none has to be moved."""

    store: Annotated[Path, typer.Option(envvar="FLEET_STORE", help="DuckDB file.")] = STORE
    landing: Annotated[
        str,
        typer.Option(envvar="FLEET_LANDING", help="Folder of the evidence, or s3://BUCKET/PREFIX."),
    ] = LANDING
    address: Annotated[
        str | None,
        typer.Option(envvar="FLEET_ADDRESS", help="Ray address; a local Ray if left out."),
    ] = None
    configs: Annotated[
        str | None,
        typer.Option(help="Folders with contracts/ and datasets/; else FLEET_CONFIGS."),
    ] = None
    trusted_keys: Annotated[
        Path | None,
        typer.Option(
            envvar="FLEET_TRUSTED_KEYS",
            help="File of the keys whose retractions count; else `keys` in the config path.",
        ),
    ] = None

    def device(self) -> str | None:
        """``FLEET_DEVICE``: ``cpu`` or an NVIDIA device's UUID; None for the first there is."""
        return os.environ.get("FLEET_DEVICE") or None

    def cluster(self) -> RayCluster:
        """The cluster and the device that a verb runs on: the one way there, for all of them."""
        from fleet.schedule.cluster import RayCluster

        return RayCluster(self.address, self.device())

    def places(self) -> Places:
        """Options and the environment as paths.

        Raises:
            UsageError: a folder of ``configs`` is not there, or a trusted key is none.
        """
        from fleet.contract.load import config_path
        from fleet.evidence.trusted import trusted_keys
        from fleet.replay.checkpoint import default_cache
        from fleet.schedule.places import Places

        cache = default_cache(os.environ)
        landing, remote = self.site()
        search = config_path(self.configs, os.environ)
        return Places(
            search=search,
            store=self.store,
            landing=landing,
            cache=cache,
            scratch=cache / "scratch",
            remote=remote,
            trusted=trusted_keys(self.trusted_keys, search),
        )

    def site(self) -> tuple[Path, Remote | None]:
        """The landing's folder, and what it mirrors, None for nothing.

        Raises:
            UsageError: a URL that no landing can be at.
        """
        from fleet.evidence.mirror import site
        from fleet.replay.checkpoint import default_cache

        return site(self.landing, default_cache(os.environ))

    def pulled(self) -> Landing:
        """The landing with all that is new at its source.

        Raises:
            StoreError: there is none, or object storage does not answer.
        """
        from fleet.evidence.landing import Landing
        from fleet.evidence.mirror import pull

        folder, remote = self.site()
        pull(Landing(folder, remote))
        return Landing.open(folder, remote=remote)

    def mirrored(self) -> Landing:
        """The landing as the last pull left it: what the store was made from.

        Raises:
            StoreError: there is none.
        """
        from fleet.evidence.mirror import mirrored

        return mirrored(*self.site())


@dataclass(frozen=True)
class Form:
    """How an answer is given: text or one JSON document, on the screen or in a file."""

    as_json: Json = False
    output: Annotated[
        Path | None,
        typer.Option(callback=writable_file, help="Write there instead of to the screen."),
    ] = None

    def show(
        self, document: dict[str, Any], print_text: Callable[[Console, T], None], answer: T
    ) -> None:
        """The document, or the answer for a person."""
        if self.as_json:
            return emit(document, self.output)
        with out(self.output) as console:
            print_text(console, answer)


@dataclass(frozen=True)
class TableForm:
    """How a table is given: text, one JSON document, or CSV, on the screen or in a file."""

    as_json: Json = False
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Comma-separated values (RFC 4180) instead of text.")
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(callback=writable_file, help="Write there instead of to the screen."),
    ] = None

    def check(self) -> None:
        """Before the work.

        Raises:
            UsageError: two forms at once.
        """
        if self.as_json and self.as_csv:
            raise UsageError("command line", "--csv", "one form", "--json and --csv", "drop one")

    def show(
        self,
        document: Callable[[T], dict[str, Any]],
        cells: Callable[[T], Cells],
        print_text: Callable[[Console, T], None],
        answer: T,
    ) -> None:
        """The document, the cells, or the answer for a person."""
        self.check()
        if self.as_csv:
            return emit_csv(cells(answer), self.output)
        Form(self.as_json, self.output).show(
            document(answer) if self.as_json else {}, print_text, answer
        )


@dataclass(frozen=True)
class Narrow:
    """Which rows of an answer are shown; all of what is given must hold."""

    model: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Checkpoint, such as Qwen2.")
    ] = None
    backend: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Quantisation backend, such as 'awq_*'.")
    ] = None
    gpu: Annotated[str | None, typer.Option(metavar="GLOB", help="GPU model, such as H200.")] = None
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VERSION", help="Library version, such as torch=2.13.*"),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Evidence accepted then or later: a date, or ISO time."),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Evidence accepted before that; of a date, by its end."),
    ] = None
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="PASS, FAIL, REGRESSED, VOID, ...; repeatable."),
    ] = None

    def filters(self) -> Filters:
        """What was asked, understood.

        Raises:
            UsageError: a time, a version or a state that is none.
        """
        from fleet.report.filters import Filters

        return Filters.of(
            self.model, self.backend, self.gpu, self.package or (), self.since, self.until,
            self.state or (),
        )  # fmt: skip


@dataclass(frozen=True)
class Running:
    """How replays are run."""

    retries: Annotated[int, typer.Option(min=0, help="Retries of a FAILED or LOST attempt.")] = 1
    replay_s: Annotated[float, typer.Option(min=1, help="Longest a replay may take.")] = 7200.0
    overlap: Annotated[
        bool, typer.Option(help="On a device, prepare the next replay while one runs.")
    ] = True

    def limits(self) -> Limits:
        """For the driver."""
        from fleet.schedule.driver import Limits

        return Limits(replay_s=self.replay_s, retries=self.retries, overlap=self.overlap)


class Scope(StrEnum):
    """About one device, or about a platform."""

    same_unit = "same-unit"
    same_class = "same-class"


@dataclass(frozen=True)
class Instead:
    """What is asked of all named contracts in place of what each requires."""

    replays: Annotated[
        int | None, typer.Option(min=2, help="Replays of each named contract, not its own number.")
    ] = None
    process_bound: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=0.499,
            metavar="SHARE",
            help="Replay until no larger share of processes can be of another kind, or two differ.",
        ),
    ] = None
    scope: Annotated[
        Scope | None, typer.Option(help="One unit, or two of one platform that must agree.")
    ] = None
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="What replays vary, not the contract's own: batch, cache, kernel_cache, load, "
            "memory, order, threads, joined by commas, or none; repeatable, one claim each."
        ),
    ] = None

    def claims(self) -> tuple[tuple[str, ...], ...]:
        """What sets of replays vary; nothing where each contract's own holds.

        Raises:
            UsageError: a claim that says nothing, or is made twice.
        """
        from fleet.contract.vary import parse_claims

        return parse_claims(self.vary or ())


ExpectedFleet = Annotated[
    str | None,
    typer.Option(
        "--fleet",
        help="Hold it against this fleet: what no unit shows is STALE, what none ran UNTESTED.",
    ),
]


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The same verb, with every parameter that is a group spread into that group's options."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(verb)
    def spread(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        verb(**given)

    shown = list(_parameters(verb, hints, groups))
    spread.__dict__["__signature__"] = inspect.Signature(shown)
    spread.__annotations__ = {p.name: p.annotation for p in shown} | {"return": None}
    return spread


def _parameters(
    verb: Callable[..., None], hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    """The verb's parameters in its own order; a group's options stand where the group stood."""
    for name, parameter in inspect.signature(verb).parameters.items():
        if name not in groups:
            yield _parameter(name, hints[name], parameter.default)
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for f in fields(groups[name]):
            default = inspect.Parameter.empty if f.default is MISSING else f.default
            yield _parameter(f.name, kinds[f.name], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
