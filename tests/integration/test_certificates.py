"""Certificates by command line: issued over real campaigns, verified with more and less at hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.evidence.issued import read_log
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import chain_folder, landing_head
from fleet.replay.engines.synthetic import LIKELY
from tests.campaigns import CONTRACT, RACY, FakeLauncher, certified, write_contract
from tests.sites import Site
from tests.unit.test_metrics import another_alphabet
from tests.unit.test_nightly import night_run, write_fleet

LATER = "2099-01-01T00:00:00Z"


def landing_of(site: Site) -> Landing:
    return Landing.open(site.root / "var" / "landing")


def issued(site: Site, *more: str, contract: str = "toy", code: int = 0) -> Path:
    """A certificate's file."""
    path = site.root / f"{contract}.json"
    argv = ("certificate", "issue", contract, "--key", "mine", "--output", str(path), *more)
    got, out, err = site.fleet(*argv)
    assert got == code, out + err
    return path


def verified(site: Site, path: Path, *more: str, key: str = "mine.pub") -> tuple[int, str, str]:
    """Exit code, result and what settled it."""
    code, out, err = site.fleet("certificate", "verify", str(path), "--key", key, "--json", *more)
    assert out, err
    found = json.loads(out)
    assert found["exit_code"] == code
    return code, found["result"], found["words"]


def alone(site: Site, path: Path, *more: str) -> tuple[int, str]:
    """Verified where there is no landing: exit code and output."""
    (site.root / "elsewhere").mkdir(exist_ok=True)
    site.landing = "var/landing"
    shutil.copy(path, site.root / "elsewhere" / "c.json")
    shutil.copy(site.root / "mine.pub", site.root / "elsewhere" / "mine.pub")
    root, site.root = site.root, site.root / "elsewhere"
    try:
        code, out, _ = site.fleet("certificate", "verify", "c.json", "--key", "mine.pub", *more)
    finally:
        site.root = root
    return code, out


def fail_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more campaign, in which one replay of ``toy`` has other bits."""
    script = another_alphabet(monkeypatch)
    assert certified(site.root, "toy", launcher=FakeLauncher(script=script)).exit_code() == 1
    monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", LIKELY)


def racy(site: Site) -> None:
    """A contract that FAILs and is no control."""
    write_contract(site.root / "configs", "racy", CONTRACT + RACY)
    assert certified(site.root, "racy").exit_code() == 1


def test_a_pass_holds_against_the_log_and_every_field_is_derived_again(home: Site) -> None:
    path = issued(home)
    code, out, _ = home.fleet("certificate", "verify", str(path), "--key", "mine.pub")
    assert code == 0 and "VALID: PASS" in out
    for words in (
        "within its validity", "not revoked", "2 manifests", "no later FAIL",
        "fields derived again from the evidence, all equal",
    ):  # fmt: skip
        assert words in out


def test_without_a_landing_a_later_fail_is_not_excluded_and_that_is_said(home: Site) -> None:
    code, out = alone(home, issued(home))
    assert code == 3 and "NOT_CHECKED: not checked for later FAIL" in out


@pytest.mark.slow
def test_the_predicate_holds_every_field(home: Site) -> None:
    path = issued(home)
    found = json.loads(home.fleet("certificate", "show", str(path), "--json")[1])
    claim, evidence = found["claim"], found["evidence"]
    assert (claim["verdict"], claim["grade"], claim["scope"]) == ("PASS", "logits", "same-unit")
    assert (claim["records"], claim["vary"], claim["traced"]) == (10, [], False)
    assert claim["bounds"]["record"] > 0 and claim["power"]["distinct_inputs"] > 0
    assert claim["envelope"] and claim["roots"]["logits"] and claim["platform"]["facts"]
    assert set(found["tool"]) == {"name", "version", "rule_version"}
    assert len(evidence["attempts"]) == 2 and all(a["manifest"] for a in evidence["attempts"])
    assert found["expires_at"] > found["issued_at"]
    assert {"root", "landing_head", "log_head"} < set(evidence)


@pytest.mark.slow
def test_a_fail_and_a_void_have_certificates_that_say_so(home: Site) -> None:
    racy(home)
    failed = issued(home, contract="racy", code=1)
    assert verified(home, failed)[:2] == (1, "FAIL")
    assert alone(home, failed)[0] == 1
    text = (home.root / "configs" / "contracts" / "toy.toml").read_text()
    write_contract(home.root / "configs", "toy", text.replace("replays = 2", "replays = 3"))
    void = issued(home, code=3)
    assert verified(home, void)[:2] == (3, "VOID")
    assert "VOID(missing-evidence)" in home.fleet("certificate", "show", str(void))[1]


def test_a_later_fail_revokes_it_once(home: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = issued(home), issued(home, contract="other")
    fail_later(home, monkeypatch)
    assert verified(home, path)[:2] == (1, "REVOKED")
    assert verified(home, other)[:2] == (0, "VALID")
    certified(home.root, "toy")
    counts = {each.digest: len(each.revocations) for each in read_log(landing_of(home))}
    assert sorted(counts.values()) == [0, 1]
    listed = json.loads(home.fleet("certificate", "list", "--json")[1])["certificates"]
    assert [(c["contract"], bool(c["revocations"])) for c in listed] == [
        ("toy", True), ("other", False),
    ]  # fmt: skip
    assert "toy" in home.fleet("certificate", "list")[1]


def test_a_difference_that_a_screen_found_revokes_it_too(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = issued(home)
    home.replayed("screen", "toy", script=another_alphabet(monkeypatch, attempt=1))
    assert verified(home, path)[:2] == (1, "REVOKED")


@pytest.mark.slow
def test_a_revocation_that_was_removed_leaves_the_fail_to_be_derived(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = issued(home)
    before = set((home.root / "var" / "landing" / "ledger").iterdir())
    fail_later(home, monkeypatch)
    for chain in set((home.root / "var" / "landing" / "ledger").iterdir()) - before:
        if chain.name.startswith("certificates-"):
            shutil.rmtree(chain)
    code, result, words = verified(home, path)
    assert (code, result) == (1, "FAIL") and "a later FAIL" in words


@pytest.mark.slow
def test_more_agreeing_campaigns_leave_it_valid(home: Site) -> None:
    path = issued(home)
    assert certified(home.root, "toy").exit_code() == 0
    assert verified(home, path)[:2] == (0, "VALID")


@pytest.mark.slow
def test_pruned_rows_leave_it_valid(home: Site) -> None:
    path = issued(home)
    certified(home.root, "toy")
    assert home.fleet("store", "ingest")[0] == 0
    found = json.loads(home.fleet("store", "prune", "--older-than", "0", "--json")[1])
    assert any(doomed["contract"] == "toy" for doomed in found["attempts"])
    assert verified(home, path)[:2] == (0, "VALID")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def part(landing: Landing, attempts: list[str]) -> None:
    flip(landing.parts(attempts[0])[0])


def manifest(landing: Landing, attempts: list[str]) -> None:
    flip(landing.manifest(attempts[0]))


def campaign(landing: Landing, attempts: list[str]) -> None:
    last = sorted(chain_folder(landing, chain_of(landing)).glob("*.json"))[-1]
    last.unlink()


def log(landing: Landing, attempts: list[str]) -> None:
    for chain in landing.ledger.glob("certificates-*"):
        shutil.rmtree(chain)


def chain_of(landing: Landing) -> str:
    (name,) = [p.name for p in landing.ledger.iterdir() if not p.name.startswith("certificates-")]
    return name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "result"),
    [(part, "NOT_CURRENT"), (manifest, "ALTERED"), (campaign, "ALTERED"), (log, "NOT_CURRENT")],
)
def test_a_landing_that_was_altered_since_proves_nothing(
    home: Site, change: Callable[[Landing, list[str]], None], result: str
) -> None:
    path = issued(home)
    shown = json.loads(home.fleet("certificate", "show", str(path), "--json")[1])
    change(landing_of(home), [a["attempt"] for a in shown["evidence"]["attempts"]])
    assert verified(home, path)[:2] == (3, result)


@pytest.mark.slow
def test_the_head_of_the_log_can_be_demanded(home: Site) -> None:
    path = issued(home)
    head = landing_head(landing_of(home))
    assert verified(home, path, "--log-head", head)[:2] == (0, "VALID")
    issued(home, contract="other")
    assert verified(home, path, "--log-head", head)[:2] == (3, "NOT_CURRENT")


@pytest.mark.slow
def test_expiry_key_and_subject_are_held_against_what_was_asked(home: Site) -> None:
    path = issued(home, "--valid-days", "3")
    execution_id = json.loads(home.fleet("certificate", "show", str(path), "--json")[1])["claim"][
        "execution_id"
    ]
    assert verified(home, path, "--at", LATER)[:2] == (3, "EXPIRED")
    assert verified(home, path, "--at", "2001-01-01T00:00:00Z")[:2] == (3, "EXPIRED")
    assert verified(home, path, "--subject", execution_id)[:2] == (0, "VALID")
    assert verified(home, path, "--contract", "toy")[:2] == (0, "VALID")
    assert verified(home, path, "--contract", "other")[:2] == (3, "WRONG_SUBJECT")
    assert verified(home, path, "--subject", "sha256:" + "0" * 64)[:2] == (3, "WRONG_SUBJECT")
    assert home.fleet("certificate", "keygen", "--out", "other")[0] == 0
    assert verified(home, path, key="other.pub")[:2] == (3, "WRONG_KEY")


@pytest.mark.slow
def test_a_pass_expires_no_later_than_its_evidence(home: Site) -> None:
    path = issued(home, "--valid-days", "3000")
    assert verified(home, path, "--at", "2030-01-01T00:00:00Z")[:2] == (3, "EXPIRED")


@pytest.mark.slow
def test_the_key_may_come_from_the_environment(home: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_SIGNING_KEY", (home.root / "mine").read_text())
    code, out, _ = home.fleet("certificate", "issue", "toy")
    (home.root / "c.json").write_text(out)
    assert (code, verified(home, home.root / "c.json")[0]) == (0, 0)
    monkeypatch.setenv("FLEET_SIGNING_KEY", "mine")
    assert home.fleet("certificate", "issue", "toy")[0] == 0


Bad = tuple[list[str], list[str]]
BAD: dict[str, Bad] = {
    "no key": (["certificate", "issue", "toy"], ["--key", "none, and FLEET_SIGNING_KEY"]),
    "a key that is not there": (["certificate", "issue", "toy", "--key", "nope"], ["nope"]),
    "a public key to sign with": (
        ["certificate", "issue", "toy", "--key", "mine.pub"], ["Ed25519 private key"],
    ),
    "no such contract": (
        ["certificate", "issue", "tyo", "--key", "mine"], ["tyo", "fleet status"],
    ),
    "a control": (
        ["certificate", "issue", "control-racy-synthetic", "--key", "mine"], ["a control"],
    ),
    "another platform": (
        ["certificate", "issue", "toy", "--key", "mine", "--platform", "ffff"], ["--platform"],
    ),
    "a key that exists": (["certificate", "keygen", "--out", "mine"], ["no such file yet"]),
    "no certificate": (
        ["certificate", "verify", "mine.pub", "--key", "mine.pub"], ["a DSSE envelope"],
    ),
    "no file": (["certificate", "verify", "nope", "--key", "mine.pub"], ["nope"]),
    "a private key to verify with": (
        ["certificate", "verify", "c.json", "--key", "mine"], ["public key"],
    ),
    "a time without a zone": (
        ["certificate", "verify", "c.json", "--key", "mine.pub", "--at", "2027-01-01"], ["a zone"],
    ),
    "nothing to show": (["certificate", "show", "mine.pub"], ["a certificate"]),
    "an output that exists": (
        ["certificate", "issue", "toy", "--key", "mine", "--output", "mine"], ["--output"],
    ),
    "no attempt": (["retract", "zz", "--reason", "x", "--key", "mine"], ["0 attempts"]),
    "no reason": (["retract", "ATTEMPT", "--reason", " ", "--key", "mine"], ["--reason"]),
    "keys that are none": (["status", "--trusted-keys", "mine"], ["line 1", "a key id"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_message_and_writes_nothing(home: Site, name: str) -> None:
    argv, words = BAD[name]
    (home.root / "c.json").write_text("{}")
    attempt = next(landing_of(home).attempts())
    before = landing_head(landing_of(home)), sorted(p.name for p in home.root.iterdir())
    code, out, err = home.fleet(*(attempt if word == "ATTEMPT" else word for word in argv))
    assert (code, out) == (2, ""), err
    assert all(word in err for word in words), err
    assert before == (landing_head(landing_of(home)), sorted(p.name for p in home.root.iterdir()))


@pytest.mark.slow
def test_what_is_untested_or_stale_is_not_certified(home: Site) -> None:
    write_contract(home.root / "configs", "toy", CONTRACT.replace("seed = 0", "seed = 1", 1))
    code, _, err = home.fleet("certificate", "issue", "toy", "--key", "mine")
    assert (code, "changed since" in err) == (3, True)
    assert home.fleet("certificate", "issue", "other", "--key", "mine", "--vary", "order")[0] == 3
    assert read_log(landing_of(home)) == []


@pytest.mark.slow
def test_a_night_revokes_too(home: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = issued(home)
    write_fleet(home.root, "another", contracts='"toy"')
    script = another_alphabet(monkeypatch, attempt=5)  # the second replay of toy
    _, answer = night_run(home.root, FakeLauncher(labels=("another",), script=script))
    monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", LIKELY)
    assert answer is not None and [row.verdict.verdict for row in answer.rows if row.verdict] == [
        "FAIL"
    ]
    assert verified(home, path)[:2] == (1, "REVOKED")
    (revocation,) = read_log(landing_of(home))[0].revocations
    assert revocation.campaign == answer.night
