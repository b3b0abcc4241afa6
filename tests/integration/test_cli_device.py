"""Every verb that starts replays runs them where ``--address`` and ``FLEET_DEVICE`` say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli import run
from fleet.errors import CannotRunError

VERBS = {
    "certify": ["certify", "toy"],
    "replay": ["replay", "toy", "--sample", "s0", "--arm", "current"],
    "trace": ["trace", "tiny-awq-torch"],
    "screen": ["screen", "toy"],
    "sweep": ["sweep", "tiny-awq-torch", "--dry-run"],
    "doctor": ["doctor", "--prewarm", "toy"],
    "doctor of a fleet": ["doctor", "--fleet", "one-machine"],
    "doctor of a cluster": ["doctor"],
    "campaign": ["campaign", "one-machine"],
}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_asks_for_the_device_that_was_named(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str | None, str | None]] = []

    def cluster(address: str | None, device: str | None) -> None:
        asked.append((address, device))
        raise CannotRunError("the test", "", "no cluster", "one", "nothing")

    monkeypatch.setattr("fleet.schedule.cluster.RayCluster", cluster)
    monkeypatch.setenv("FLEET_DEVICE", "GPU-1")
    assert run([*VERBS[verb], "--address", "there:1"]) == 2, capsys.readouterr().err
    assert asked == [("there:1", "GPU-1")]


def test_no_verb_makes_a_cluster_of_its_own() -> None:
    """What a verb would have to repeat, one of them forgets."""
    for name in ("cli.py", "fleet_verbs.py"):
        source = (Path(__file__).parents[2] / "fleet" / name).read_text()
        assert "RayCluster" not in source
