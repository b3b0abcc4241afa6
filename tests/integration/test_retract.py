"""``fleet retract`` by command line: evidence is withdrawn in the open, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.evidence import retractions, signing
from fleet.evidence.landing import Landing
from fleet.replay.engines.synthetic import LIKELY
from tests.campaigns import FakeLauncher, certified
from tests.object_store import object_store
from tests.sites import Site, new_site, reason
from tests.unit.test_metrics import another_alphabet

ROOT = Path(__file__).parents[2]


def landing_of(site: Site) -> Landing:
    return Landing.open(site.root / "var" / "landing")


def odd_attempts(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A later campaign in which both replays of ``toy`` have other bits."""
    before = set(landing_of(site).attempts())
    script = another_alphabet(monkeypatch, attempt=4)
    launcher = FakeLauncher(script=script)
    assert certified(site.root, "toy", launcher=launcher).exit_code() == 1
    monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", LIKELY)
    assert len(set(landing_of(site).attempts()) - before) == 6
    return [task.attempt for task in launcher.tasks[4:]]


def toy(status: dict[str, Any]) -> dict[str, Any]:
    (row,) = [row for row in status["contracts"] if row["contract"] == "toy"]
    found: dict[str, Any] = row
    return found


def retract(site: Site, attempt: str, *more: str) -> tuple[int, str, str]:
    return site.fleet("retract", attempt, "--reason", "a bad DIMM", "--key", "mine", *more)


def test_a_fail_goes_only_with_all_that_differs_and_stays_told(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = odd_attempts(home, monkeypatch)
    assert toy(home.status())["verdict"] == "FAIL"
    code, out, err = retract(home, first)
    assert (code, "its evidence no longer counts" in out) == (0, True), err
    half = toy(home.status())
    assert (half["verdict"], half["without_retractions"]) == ("FAIL", None)
    retract(home, second)
    row = toy(home.status())
    assert (row["verdict"], len(row["retractions"])) == ("PASS", 2)
    assert row["without_retractions"]["verdict"] == "FAIL"
    past = json.loads(home.fleet("history", "toy", "--json")[1])["history"]
    assert [m["after"] for m in past] == ["PASS", "PASS"]
    assert any("with what was retracted: FAIL (REGRESSED" in words for words in past[1]["events"])
    assert [a["retracted"] for a in past[1]["attempts"]] == [True, True]
    assert "was retracted" in home.fleet("history", "toy")[1]
    text = home.fleet("status", "toy")[1]
    assert "was retracted" in text and "release team" in text and "would be FAIL" in text
    assert home.fleet("store", "rebuild")[0] == 0
    assert toy(home.status()) == row
    report = home.fleet("report", "--format", "md", "--output", "-")[1]
    assert "Retracted evidence" in report and "would be FAIL" in report
    elsewhere = home.fleet("status", "toy", "--trusted-keys", "/dev/null", "--json")
    assert elsewhere[0] == 1 and toy(json.loads(elsewhere[1]))["verdict"] == "FAIL"


@pytest.mark.slow
def test_a_later_campaign_shows_it_and_its_certificate_is_no_pass_any_more(home: Site) -> None:
    path = home.root / "c.json"
    argv = ("certificate", "issue", "toy", "--key", "mine", "--output", str(path))
    assert home.fleet(*argv)[0] == 0
    attempt = toy(home.status())["attempts"][0]["attempt"]
    assert retract(home, attempt[:8])[0] == 0
    assert reason(home.status()).startswith("VOID VOID(retracted)")
    code, out, _ = home.fleet("certificate", "verify", str(path), "--key", "mine.pub")
    assert code == 3 and f"RETRACTED: its evidence was retracted: attempt {attempt}" in out
    code, out, _ = home.certify()
    assert code == 0 and f"attempt {attempt} was retracted" in out
    again = home.root / "d.json"
    assert home.fleet(*argv[:-1], str(again))[0] == 0
    shown = home.fleet("certificate", "show", str(again))[1]
    assert f"attempt {attempt} was retracted" in shown
    assert home.fleet("certificate", "verify", str(again), "--key", "mine.pub")[0] == 0
    code, out, _ = home.fleet("certificate", "verify", str(path), "--key", "mine.pub")
    assert code == 3 and "RETRACTED" in out


@pytest.mark.slow
def test_a_certificate_of_an_issuer_who_trusts_more_keys_is_judged_by_ours(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in odd_attempts(home, monkeypatch):
        retract(home, attempt)
    path = home.root / "c.json"
    assert home.fleet("certificate", "issue", "toy", "--key", "mine", "--output", str(path))[0] == 0
    ours = ("certificate", "verify", str(path), "--key", "mine.pub")
    assert home.fleet(*ours)[0] == 0
    code, out, _ = home.fleet(*ours, "--trusted-keys", "/dev/null")
    assert code == 1 and "FAIL: a later FAIL" in out


def test_a_key_that_is_not_declared_is_recorded_and_told_to_be_ignored(home: Site) -> None:
    (home.root / "configs" / "keys").unlink()
    attempt = toy(home.status())["attempts"][0]["attempt"]
    code, out, _ = retract(home, attempt)
    assert code == 0 and "ignored here: this key is not a trusted one" in out
    row = toy(home.status())
    assert row["verdict"] == "PASS" and "not among the trusted" in row["retractions"][0]["ignored"]
    assert "ignored" in home.fleet("status", "toy")[1]


@pytest.mark.slow
def test_a_landing_with_retractions_is_not_ingested_without_the_library(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    retract(home, toy(home.status())["attempts"][0]["attempt"])
    monkeypatch.setitem(__import__("sys").modules, "securesystemslib.dsse", None)
    code, _, err = home.fleet("store", "ingest")
    assert code == 2 and "fleet[certificates]" in err


def test_everything_that_opens_a_store_says_whose_retractions_count() -> None:
    sources = (ROOT / "fleet").rglob("*.py")
    found = {p.name for p in sources if "open_reader(" in p.read_text(encoding="utf-8")}
    assert found == {"open.py", "places.py", "derived.py"}


@pytest.mark.slow
def test_a_record_made_by_hand_reads_as_the_product_made_it(home: Site) -> None:
    attempt = toy(home.status())["attempts"][0]["attempt"]
    signer = signing.signer_of(home.root / "mine", None)
    made = retractions.record(landing_of(home), attempt, "x", signer, 0.0)
    assert retractions.read(landing_of(home)) == [made]
    assert (made.fault, made.by) == (None, signer.public_key.keyid)


@pytest.mark.slow
def test_a_retraction_in_object_storage_is_one_for_every_site_that_trusts_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with object_store(monkeypatch):
        here = new_site(tmp_path / "here", monkeypatch, capfd)
        assert here.certify()[0] == 0
        _, out, _ = here.fleet("certificate", "keygen", "--out", "mine", "--name", "release team")
        line = out.splitlines()[-1]
        (here.root / "configs" / "keys").write_text(line)
        path = tmp_path / "c.json"
        issue = ("certificate", "issue", "toy", "--key", "mine", "--output", str(path))
        assert here.fleet(*issue)[0] == 0
        there = new_site(tmp_path / "there", monkeypatch, capfd)
        (there.root / "configs" / "keys").write_text(line)
        verify = ("certificate", "verify", str(path), "--key", str(here.root / "mine.pub"))
        assert there.fleet(*verify)[0] == 0
        attempt = toy(here.status())["attempts"][0]["attempt"]
        assert retract(here, attempt)[0] == 0
        there.ingested()
        assert reason(there.status()) == reason(here.status())
        assert reason(there.status()).startswith("VOID VOID(retracted)")
        code, out, _ = there.fleet(*verify)
        assert code == 3 and "RETRACTED" in out
