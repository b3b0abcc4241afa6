"""A site: a folder with its own configs, cache (so its own mirror) and store, used by command line.

Replays are small and run in the test's process; everything else is the product's.
"""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import run
from tests.campaigns import FakeLauncher, Script, write_configs
from tests.object_store import URL


@dataclass
class Site:
    """One place that reads and writes the landing, with its own mirror and store."""

    root: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    landing: str = URL

    @property
    def mirror(self) -> Path:
        (found,) = (self.root / "cache" / "landings").iterdir()
        return found

    def fleet(self, *argv: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self.patch.setenv("FLEET_CACHE", str(self.root / "cache"))
        self.patch.chdir(self.root)
        self.capture.readouterr()
        code = run([*argv, "--landing", self.landing])
        out, err = self.capture.readouterr()
        return code, out, err

    def certify(self, *more: str, script: Script | None = None) -> tuple[int, str, str]:
        return self.replayed("certify", "toy", *more, script=script)

    def replayed(self, *argv: str, script: Script | None = None) -> tuple[int, str, str]:
        """A verb that starts replays."""
        launcher = FakeLauncher(script=script or {})
        self.patch.setattr(
            "fleet.schedule.cluster.RayCluster", lambda *given: nullcontext(launcher)
        )
        return self.fleet(*argv)

    def status(self) -> dict[str, Any]:
        """All that a status says, but for the time that passed."""
        code, out, err = self.fleet("status", "--json")
        assert err == "", err
        found: dict[str, Any] = json.loads(out)
        return {"code": code} | without(found, "age_s", "age_days", "expires_in_days")

    def ingested(self) -> dict[str, Any]:
        code, out, err = self.fleet("store", "ingest", "--json")
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


def new_site(
    root: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], landing: str = URL
) -> Site:
    """A site with the contract ``toy``; nothing is certified."""
    for name in ("FLEET_STORE", "FLEET_LANDING", "FLEET_CONFIGS"):
        patch.delenv(name, raising=False)
    write_configs(root / "configs")
    return Site(root, patch, capture, landing)


@pytest.fixture
def home(
    campaigned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Site:
    """A site in which ``toy`` PASSes, with the key pair ``mine``, which it trusts."""
    for name in ("FLEET_SIGNING_KEY", "FLEET_TRUSTED_KEYS"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(campaigned, tmp_path / "home")
    site = new_site(tmp_path / "home", monkeypatch, capfd, "var/landing")
    with_key(site)
    return site


def with_key(site: Site) -> None:
    """A new key pair ``mine``, declared in the site's config folder."""
    keygen = ("certificate", "keygen", "--out", "mine", "--name", "release team")
    code, out, err = site.fleet(*keygen)
    assert code == 0, err
    (site.root / "configs" / "keys").write_text(out.splitlines()[-1] + "\n")


def reason(status: dict[str, Any]) -> str:
    """Verdict and reason of ``toy``."""
    (row,) = [row for row in status["contracts"] if row["contract"] == "toy"]
    return f"{row['verdict']} {row['reason']}"


def without(value: Any, *keys: str) -> Any:
    if isinstance(value, list):
        return [without(item, *keys) for item in value]
    if isinstance(value, dict):
        return {k: without(v, *keys) for k, v in value.items() if k not in keys}
    return value
