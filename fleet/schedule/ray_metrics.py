"""Metrics through Ray: its agent on each node serves them to Prometheus.

Beside ``cluster`` the only module that imports ray. The process that reports hands its values over
every ten seconds and its series end with it, so whoever leaves a cluster that is watched waits
``FLEET_METRICS_LINGER_S`` seconds first; 0 if that is not set. Needs ``ray[default]``: without it
Ray has no agent, and values go nowhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from fleet.schedule.metrics import Metric

LINGER_S = "FLEET_METRICS_LINGER_S"
LONGEST_S = 600.0


class RaySink:
    """Each metric is made when the first value comes: Ray must be up by then."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def record(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Hand one value to Ray."""
        made = self._made.get(metric.name) or self._made.setdefault(metric.name, _make(metric))
        if metric.kind == "counter" and value > 0:  # Ray refuses an increment of nothing
            made.inc(value, tags=dict(tags))
        elif metric.kind == "gauge":
            made.set(value, tags=dict(tags))
        elif metric.kind == "histogram":
            made.observe(value, tags=dict(tags))

    def linger(self) -> None:
        """Stay until the last values were scraped, where anything was reported."""
        if self._made:
            time.sleep(_seconds(os.environ.get(LINGER_S, "")))


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
