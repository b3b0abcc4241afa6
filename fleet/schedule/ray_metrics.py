"""Metrics through Ray: its agent on each node serves them to Prometheus.

Beside ``cluster`` the only module that imports ray. Seen of Ray 2.60: a gauge is served for some
twenty seconds after it was set, so levels are set again for as long as this sink is open; a counter
is served for as long as Ray runs, also when the process that counted is gone. Whoever leaves a
cluster that is watched waits ``FLEET_METRICS_LINGER_S`` seconds first, 0 if that is not set, so
that the last levels are scraped. Needs ``ray[default]``: without it Ray has no agent, and values go
nowhere.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from fleet.schedule.metrics import Metric

LINGER_S = "FLEET_METRICS_LINGER_S"
LONGEST_S = 600.0

AGAIN_S = 5.0
"""How often levels are set again: well within what Ray serves a gauge for."""


class RaySink:
    """Each metric is made when the first value comes: Ray must be up by then."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._levels: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def record(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Hand one value to Ray."""
        with self._lock:
            made = self._made.get(metric.name)
            if made is None:
                made = self._made[metric.name] = _make(metric)
            if metric.kind == "counter" and value > 0:  # Ray refuses an increment of nothing
                made.inc(value, tags=dict(tags))
            elif metric.kind == "histogram":
                made.observe(value, tags=dict(tags))
            elif metric.kind == "gauge":
                made.set(value, tags=dict(tags))
                self._keep(metric.name, tags, value)

    def _keep(self, name: str, tags: Mapping[str, str], value: float) -> None:
        if not self._levels:
            threading.Thread(target=self._again, name="fleet-levels", daemon=True).start()
        self._levels[name, tuple(sorted(tags.items()))] = value

    def _again(self) -> None:
        """Until this sink is closed: Ray must not be called once it is down."""
        while not self._closed.wait(AGAIN_S):
            with self._lock:
                if self._closed.is_set():
                    return
                for (name, tags), value in self._levels.items():
                    self._made[name].set(value, tags=dict(tags))

    def close(self, linger: bool) -> None:
        """Before Ray is left. Stays until the last values were scraped, where any were reported."""
        if linger and self._made:
            time.sleep(_seconds(os.environ.get(LINGER_S, "")))
        with self._lock:
            self._closed.set()


def _seconds(text: str) -> float:
    """Nothing that is no number of seconds keeps anybody waiting."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if 0.0 < seconds <= LONGEST_S else 0.0


def _make(metric: Metric) -> Any:
    if metric.kind == "histogram":
        bounds = list(metric.bounds)
        return Histogram(metric.name, metric.description, boundaries=bounds, tag_keys=metric.tags)
    kind = Counter if metric.kind == "counter" else Gauge
    return kind(metric.name, description=metric.description, tag_keys=metric.tags)
