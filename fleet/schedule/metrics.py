"""What a fleet exports to be watched: every metric, declared once, and the class that reports them.

Knows no ray: a :class:`Sink` takes the values, and where there is none they go nowhere, so that a
caller never asks whether anybody listens. Metrics are for watching; no verdict is read from one.
Controls that did what they must are no verdict of the fleet's and are not counted as any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from fleet.contract.vary import in_words

if TYPE_CHECKING:  # fresh processes import this module with the cluster's, and need neither
    from fleet.judge.verdict import Verdict
    from fleet.report.answers import CampaignAnswer

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """``bounds`` are the upper ends of a histogram's buckets."""

    name: str
    kind: Kind
    description: str
    tags: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


ATTEMPTS = Metric("fleet_attempts", "counter", "Attempts by how they ended.", ("state",))
REPLAY_S = Metric(
    "fleet_replay_seconds", "histogram", "Seconds that an attempt took, by how it ended.",
    ("state",), (5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0),
)  # fmt: skip
SPENT_S = Metric("fleet_replay_spent_seconds", "counter", "Seconds of all attempts.", ("state",))
VERDICTS = Metric("fleet_verdicts", "counter", "Verdicts by word.", ("word", "contract"))
MISMATCHES = Metric("fleet_mismatches", "counter", "Records of a FAIL that differ.", ("contract",))
REGRESSIONS = Metric(
    "fleet_regressions", "counter", "FAILs of what had PASSed before.", ("contract", "platform")
)
MISBEHAVED = Metric(
    "fleet_controls_misbehaved",
    "counter",
    "Controls that did not behave.",
    ("contract",),
)
PASSED_AT = Metric(
    "fleet_last_pass_timestamp_seconds", "gauge", "When the newest PASS was accepted.",
    ("contract", "platform"),
)  # fmt: skip
PENDING = Metric("fleet_queue_pending", "gauge", "Planned slots that wait for a unit.")
OLDEST_S = Metric("fleet_queue_oldest_seconds", "gauge", "How long the oldest of them has waited.")
BUSY = Metric("fleet_units_busy_share", "gauge", "Share of the usable units that run an attempt.")
QUARANTINED = Metric("fleet_units_quarantined", "gauge", "Units under quarantine.")
STARTED_AT = Metric(
    "fleet_campaign_started_timestamp_seconds", "gauge", "Start of the running campaign; 0 if none."
)
ENDED_AT = Metric("fleet_campaign_ended_timestamp_seconds", "gauge", "End of the last campaign.")

METRICS = (
    ATTEMPTS, REPLAY_S, SPENT_S, VERDICTS, MISMATCHES, REGRESSIONS, MISBEHAVED, PASSED_AT, PENDING,
    OLDEST_S, BUSY, QUARANTINED, STARTED_AT, ENDED_AT,
)  # fmt: skip

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count")}
"""Ray works out a histogram's ``_sum`` from the middles of its buckets, so nothing may rest on it:
seconds are summed by a counter of their own."""


def exported(metric: Metric) -> tuple[str, ...]:
    """The names that Prometheus scrapes from Ray's metrics agent (Ray 2.60)."""
    return tuple(f"ray_{metric.name}{suffix}" for suffix in _SUFFIXES[metric.kind])


class Sink(Protocol):
    """Takes values: the increment of a counter, the level of a gauge, one observation."""

    def record(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Take one; never fails."""


class _Nowhere:
    def record(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Nobody listens."""


NOWHERE = _Nowhere()


@dataclass(frozen=True)
class Meter:
    """One method for each thing that happens."""

    sink: Sink = NOWHERE

    def attempt_ended(self, state: str, seconds: float) -> None:
        """COMPLETE, FAILED, LOST or VOID, after so many seconds on its unit."""
        self.sink.record(ATTEMPTS, 1.0, {"state": state})
        self.sink.record(REPLAY_S, seconds, {"state": state})
        self.sink.record(SPENT_S, seconds, {"state": state})

    def queue(self, pending: int, oldest_s: float) -> None:
        """Slots that wait, and how long the oldest has waited; 0 when none does."""
        self.sink.record(PENDING, float(pending), {})
        self.sink.record(OLDEST_S, oldest_s, {})

    def units(self, busy: int, usable: int) -> None:
        """Units that run an attempt, of those that may be used."""
        self.sink.record(BUSY, busy / usable if usable else 0.0, {})

    def quarantined(self, units: int) -> None:
        """Units that are out."""
        self.sink.record(QUARANTINED, float(units), {})

    def campaign_started(self, at_s: float) -> None:
        """A campaign runs from now on."""
        self.sink.record(STARTED_AT, at_s, {})

    def campaign_ended(self, at_s: float) -> None:
        """It does not run any more, however it ended."""
        self.sink.record(STARTED_AT, 0.0, {})
        self.sink.record(ENDED_AT, at_s, {})

    def regressed(self, contract: str, platform: str) -> None:
        """A FAIL of what had PASSed before."""
        self.sink.record(REGRESSIONS, 1.0, {"contract": contract, "platform": short(platform)})

    def verdict(self, word: str, contract: str, mismatches: int = 0) -> None:
        """One verdict, and how many of its records differ."""
        self.sink.record(VERDICTS, 1.0, {"word": word, "contract": contract})
        if mismatches:
            self.sink.record(MISMATCHES, float(mismatches), {"contract": contract})

    def passed(self, contract: str, platform: str, at_s: float) -> None:
        """Evidence of a PASS was accepted then."""
        self.sink.record(PASSED_AT, at_s, {"contract": contract, "platform": short(platform)})

    def answered(self, answer: CampaignAnswer) -> None:
        """Everything that a campaign's answer says."""
        for verdict in answer.contracts:
            if verdict.contract not in answer.behaved:
                self._verdict(verdict)
        for control in answer.controls:
            if control.mismatches:
                self.sink.record(MISBEHAVED, 1.0, {"contract": control.verdict.contract})

    def _verdict(self, verdict: Verdict) -> None:
        name = claimed(verdict)
        mismatches = verdict.mismatches if verdict.verdict == "FAIL" else 0
        self.verdict(verdict.verdict, name, mismatches)
        if verdict.verdict == "PASS" and verdict.accepted_at_s is not None:
            self.passed(name, verdict.platform, verdict.accepted_at_s)


def claimed(verdict: Verdict) -> str:
    """A contract, and what its replays varied: claims are watched apart."""
    return f"{verdict.contract}, {in_words(verdict.vary)}" if verdict.vary else verdict.contract


def short(platform: str) -> str:
    """Enough of a platform's digest to tell it from others."""
    return platform.removeprefix("sha256:")[:12]


SILENT = Meter()
"""Reports to nobody."""


@runtime_checkable
class Metered(Protocol):
    """A launcher that has somebody who listens."""

    meter: Meter


def meter_of(launcher: object) -> Meter:
    """The launcher's meter, or a silent one."""
    return launcher.meter if isinstance(launcher, Metered) else SILENT
