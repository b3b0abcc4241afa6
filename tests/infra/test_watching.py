"""Alerts and panels read nothing but what is exported, and alerts fire when they must."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from fleet.schedule.metrics import METRICS, exported

INFRA = Path(__file__).parents[2] / "infra"
RULES = yaml.safe_load((INFRA / "prometheus" / "rules.yaml").read_text())
BOARD = json.loads((INFRA / "grafana" / "dashboard.json").read_text())
TAGS = {name: {*metric.tags, "le"} for metric in METRICS for name in exported(metric)}
RANGE = "1h"
"""In place of Grafana's ``$__range``."""


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def queries() -> dict[str, str]:
    """Where it stands -> the expression."""
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Every metric that a query reads, with the labels that it picks by."""
    text = expression.replace("$__range", RANGE)
    promql_parser.parse(text)  # it is a query at all
    quoted = re.sub(r'"[^"]*"', '""', text)
    for name, labels in re.findall(r"\b(ray_\w+)(?:\{([^}]*)\})?", quoted):
        yield name, set(re.findall(r"(\w+)\s*[=!]", labels))


@pytest.mark.parametrize("where", queries())
def test_a_query_reads_what_is_exported(where: str) -> None:
    found = list(selectors(queries()[where]))
    assert found
    for name, labels in found:
        assert name in TAGS, name
        assert labels <= TAGS[name], labels


@pytest.mark.parametrize("where", queries())
def test_a_query_groups_by_labels_that_there_are(where: str) -> None:
    expression = queries()[where]
    have = set().union(*(TAGS[name] for name, _ in selectors(expression)))
    by = {label.strip() for found in re.findall(r"by \(([^)]*)\)", expression)
          for label in found.split(",")}  # fmt: skip
    assert by <= have


def test_every_metric_is_shown_or_alerted_on() -> None:
    read = {name for expression in queries().values() for name, _ in selectors(expression)}
    assert read == set(TAGS)


def test_a_wrong_query_would_be_found() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        list(selectors("sum by (ray_fleet_x"))
    ((name, labels),) = selectors('ray_fleet_x{state="LOST", zone!~"ray_a"}')
    assert (name, labels) == ("ray_fleet_x", {"state", "zone"})


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "action"}
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        grouped = re.search(r"by \(([^)]*)\)", rule["expr"])
        assert used <= {x.strip() for x in grouped[1].split(",")} if grouped else not used


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt install prometheus")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "rules.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "rules.test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=INFRA / "prometheus", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_that_fires_it() -> None:
    tests = yaml.safe_load((INFRA / "prometheus" / "rules.test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    names = {rule["alert"] for rule in rules()}
    assert fired == names
    assert names - silent == {"FleetRegressed", "FleetControlMisbehaved"}


def test_panels_have_their_place_and_their_source() -> None:
    assert BOARD["schemaVersion"] >= 39 and BOARD["uid"] == "fleet"
    (variable,) = BOARD["templating"]["list"]
    ids, taken = [], set()
    for panel in BOARD["panels"]:
        ids.append(panel["id"])
        assert panel["type"] in ("stat", "table", "timeseries")
        assert panel["title"] and panel["description"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        for source in (panel["datasource"], *(t["datasource"] for t in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${" + variable["name"] + "}"}
    assert len(set(ids)) == len(ids)
