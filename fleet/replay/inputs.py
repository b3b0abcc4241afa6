"""From raw records to prompts: arm templates, rendered under frozen clocks.

Jinja's sandbox with strict undefined names, over the record's fields and ``strftime_now``. Knows no
tokenizer and no engine. A prompt that depends on the wall clock would differ between two nights
without any kernel being at fault, so every template is rendered at two far-apart times in two time
zones, and a difference is an error unless the contract pins ``dataset.clock``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fleet.contract.model import Contract
from fleet.errors import ContractError

CLOCKS = (
    datetime(2001, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=14))),
    datetime(2033, 11, 29, 20, 17, 58, tzinfo=timezone(timedelta(hours=-12))),
)


TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an expression of a template can raise: ``{{ 1 / 0 }}`` is the template's fault, not ours."""


def clocks(contract: Contract) -> tuple[datetime, ...]:
    """The pinned clock alone, or the two frozen ones whose outputs must agree."""
    if contract.dataset.clock is None:
        return CLOCKS
    return (datetime.fromisoformat(contract.dataset.clock),)


def render(
    where: str, arm: str, template: str, records: Sequence[Mapping[str, Any]], now: datetime
) -> list[str]:
    """The arm's prompt for each record, in order.

    Raises:
        ContractError: the template does not parse, or names a field a record lacks.
    """
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.globals["strftime_now"] = now.strftime
    for table, name in ((environment.filters, "random"), (environment.globals, "lipsum")):
        table.pop(name)  # they draw from a generator that no contract seeds
    current = "(the template itself)"
    try:
        compiled = environment.from_string(template)
        prompts = []
        for record in records:
            current = str(record["id"])
            prompt = compiled.render(dict(record))
            prompt.encode("utf-8")  # a lone surrogate is no text
            prompts.append(prompt)
        return prompts
    except TEMPLATE_FAULTS as error:
        raise ContractError(
            where,
            f"arms.{arm}.template",
            "a Jinja template over the record's fields",
            f"{type(error).__name__} {error} at record {current}",
            f"fields of the records: {', '.join(sorted(records[0]))}; strftime_now(format)",
        ) from error


def render_arm(
    contract: Contract, where: str, arm: str, records: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The arm's prompts, proven not to read the clock.

    Raises:
        ContractError: the template is wrong, or reads the clock and the contract pins none.
    """
    template = contract.arms[arm].template
    now, *others = clocks(contract)
    first = render(where, arm, template, records, now)
    # Copies lie elsewhere in memory: a prompt that shows an address differs already here.
    again = render(where, arm, template, [_elsewhere(record) for record in records], now)
    _require_equal((where, arm), records, first, again, _NO_RANDOM)
    for other in others:
        moved = render(where, arm, template, records, other)
        _require_equal((where, arm), records, first, moved, _PIN_CLOCK)
    return first


def _elsewhere(record: Mapping[str, Any]) -> dict[str, Any]:
    """An equal record made of other objects; copying would hand out the same strings."""
    made: dict[str, Any] = json.loads(json.dumps(dict(record)))
    return made


_NO_RANDOM = (
    "a prompt that is the same at every rendering",
    "at one time",
    "use no random value and no object's address in a template",
)
_PIN_CLOCK = (
    "a prompt that does not depend on the time of day",
    "under two clocks",
    'pin it: [dataset] clock = "2026-01-01T00:00:00Z"',
)


def _require_equal(
    place: tuple[str, str],
    records: Sequence[Mapping[str, Any]],
    first: Sequence[str],
    other: Sequence[str],
    fault: tuple[str, str, str],
) -> None:
    where, arm = place
    expected, how, fix = fault
    for record, a, b in zip(records, first, other, strict=True):
        if a != b:
            got = f"record {record['id']} rendered differently {how}"
            raise ContractError(where, f"arms.{arm}.template", expected, got, fix)
