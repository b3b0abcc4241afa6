"""``fleet store prune``: rows go, verdicts stay, and what is kept cannot be changed unnoticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.canonical import sha256, to_text
from fleet.evidence import remote as room
from fleet.evidence.landing import Landing
from fleet.evidence.mirror import altered, pull
from fleet.evidence.remote import Remote, Stamp
from fleet.evidence.retired import retired
from tests.campaigns import certified, write_configs
from tests.object_store import URL, ObjectStore, object_store
from tests.sites import Site, new_site, reason


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(room, "WAITS_S", (0.01,))
    with object_store(monkeypatch) as store:
        yield store


@pytest.fixture(scope="module")
def thrice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``toy`` was certified three times. To be copied."""
    root = tmp_path_factory.mktemp("thrice")
    write_configs(root / "configs")
    assert [certified(root).exit_code() for _ in range(3)] == [0, 0, 0]
    return root


@pytest.fixture
def home(
    thrice: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Site:
    """A site with a landing folder of three campaigns."""
    shutil.copytree(thrice, tmp_path / "home")
    return new_site(tmp_path / "home", monkeypatch, capfd, "var/landing")


def landing_of(site: Site) -> Landing:
    return Landing.open(site.root / "var" / "landing")


def prune(site: Site, *more: str, days: str = "0") -> dict[str, Any]:
    code, out, err = site.fleet("store", "prune", "--older-than", days, "--json", *more)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def parts(site: Site) -> list[str]:
    root = landing_of(site).root
    return sorted(str(p.relative_to(root)) for p in root.glob("attempts/*/*.parquet"))


def test_old_rows_go_and_every_verdict_stays(home: Site) -> None:
    before, had = home.status(), parts(home)
    assert reason(before).startswith("PASS")
    found = prune(home)
    gone = [file for doomed in found["attempts"] for file in doomed["files"]]
    by_contract = sorted(doomed["contract"] for doomed in found["attempts"])
    assert by_contract == ["control-clean-synthetic"] * 4 + ["toy"] * 4
    assert (sorted(gone), found["leftovers"]) == (sorted(set(had) - set(parts(home))), [])
    assert found["num_bytes"] > 0
    assert home.status() == before
    assert home.fleet("store", "rebuild")[0] == 0
    assert home.status() == before
    (home.root / "var" / "fleet.duckdb").unlink()
    (home.root / "var" / "fleet.duckdb.snapshot").unlink()
    assert home.ingested()["warnings"] == []
    assert home.status() == before
    assert prune(home)["attempts"] == []


def test_evidence_of_a_difference_is_never_pruned(home: Site) -> None:
    prune(home)
    landing = landing_of(home)
    kept = {str(p.parent.name) for p in landing.root.glob("attempts/*/part-*.parquet")}
    assert len(kept) == 2 + 2 + 6, "the newest of toy and control-clean, all of control-racy"


@pytest.mark.slow
def test_a_dry_run_and_a_high_bound_remove_nothing(home: Site) -> None:
    had = parts(home)
    assert len(prune(home, "--dry-run")["attempts"]) == 8
    assert prune(home, days="1")["attempts"] == []
    code, out, _ = home.fleet("store", "prune", "--older-than", "0", "--dry-run")
    assert (code, out.splitlines()[-1].endswith("bytes of 8 attempts may go")) == (0, True)
    assert (parts(home), retired(landing_of(home))) == (had, {})
    assert not list(landing_of(home).root.glob("attempts/*/summary.json"))


@pytest.mark.slow
def test_a_later_campaign_is_held_against_the_pruned_ones(home: Site) -> None:
    prune(home)
    code, _, err = home.certify()
    assert code == 0, err
    assert reason(home.status()).startswith("PASS")
    assert "of 8 fresh replays" in reason(home.status())


@pytest.mark.slow
def test_diff_says_that_rows_were_pruned(home: Site) -> None:
    found = prune(home)["attempts"]
    toys = [doomed for doomed in found if doomed["contract"] == "toy"]
    code, out, _ = home.fleet("diff", toys[0]["attempt"], toys[0]["like"])
    assert (code, "the rows of an attempt were pruned" in out) == (3, True)
    assert home.fleet("logs", toys[0]["attempt"])[0] == 0


# what must not be believed

GONE = "evidence-altered: summary.json: pruned, but its summary is gone"


def test_a_summary_that_was_changed_voids_its_attempt(home: Site) -> None:
    path = summary_of(home)
    raw = json.loads(path.read_bytes())
    raw["power"]["nonfinite"] = 0
    raw["arms"]["current"]["correct"] += 1
    path.write_text(json.dumps(raw))
    assert cause_of(home, path.parent.name) == (
        "evidence-altered: summary.json is not the one the ledger names"
    )


@pytest.mark.slow
def test_a_summary_that_is_gone_voids_its_attempt(home: Site) -> None:
    path = summary_of(home)
    path.unlink()
    assert cause_of(home, path.parent.name) == GONE


@pytest.mark.slow
def test_a_forged_prune_cannot_give_other_roots(home: Site) -> None:
    """Whoever writes summary and chain anew still has the manifest, and its digest, against him."""
    path = summary_of(home)
    raw = json.loads(path.read_bytes())
    raw["roots"]["logits"] = raw["arms"]["current"]["roots"]["logits"] = to_text(sha256(b"mine"))
    data = json.dumps(raw).encode()
    path.write_bytes(data)
    landing = landing_of(home)
    entry = retired(landing)[path.parent.name]
    forge_chain(landing, entry.campaign, path.parent.name, to_text(sha256(data)))
    forget(home)
    assert cause_of(home, path.parent.name) == (
        "evidence-altered: summary.json does not give the manifest's roots"
    )


@pytest.mark.slow
def test_rows_that_are_gone_without_a_word_void_their_attempt(home: Site) -> None:
    path = summary_of(home)
    landing = landing_of(home)
    chain = landing.ledger / retired(landing)[path.parent.name].campaign
    for file in chain.iterdir():
        file.unlink()
    chain.rmdir()
    code, _, err = home.fleet("store", "ingest")
    assert code == 2 and f"{chain.name}/" in err, "the store that saw it"
    forget(home)
    assert cause_of(home, path.parent.name).startswith("evidence-altered: parts on disk []")


@pytest.mark.slow
def test_a_broken_chain_prunes_nothing(home: Site) -> None:
    path = summary_of(home)
    landing = landing_of(home)
    chain = landing.ledger / retired(landing)[path.parent.name].campaign
    first = chain / "000000.json"
    first.write_bytes(first.read_bytes().replace(b"driver", b"drivel"))
    assert retired(landing) == {}
    assert cause_of(home, path.parent.name).startswith("evidence-altered: parts on disk []")


@pytest.mark.slow
def test_a_prune_that_was_killed_half_way_is_finished_by_the_next(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = home.status()
    monkeypatch.setattr("fleet.schedule.pruning._remove", refused)
    code, out, err = home.fleet("store", "prune", "--older-than", "0")
    assert (code, out) == (3, ""), err
    assert home.ingested()["warnings"] == []
    assert home.status() == before
    assert len(retired(landing_of(home))) == 1
    monkeypatch.undo()
    home = new_site(home.root, home.patch, home.capture, home.landing)
    found = prune(home)
    assert (len(found["leftovers"]), len(found["attempts"])) == (1, 7)
    assert home.status() == before


def refused(landing: Landing, names: Any) -> None:
    if names:
        raise OSError(5, "Input/output error")


def forget(site: Site) -> None:
    """What follows is asked of a store that never saw the landing."""
    for store in (site.root / "var").glob("fleet.duckdb*"):
        store.unlink()


def summary_of(site: Site) -> Path:
    """A pruned attempt's summary."""
    attempt = next(d["attempt"] for d in prune(site)["attempts"] if d["contract"] == "toy")
    return landing_of(site).attempt(attempt) / "summary.json"


def cause_of(site: Site, attempt: str) -> str:
    """Why the store says that an attempt is no evidence."""
    from fleet.store import queries
    from fleet.store.open import open_reader

    assert site.fleet("store", "rebuild")[0] == 0
    with open_reader(site.root / "var" / "fleet.duckdb") as store:
        summary = queries.summary(store.con, attempt)
    assert summary is not None
    assert summary.state == "VOID"
    return str(summary.cause)


def forge_chain(landing: Landing, campaign: str, attempt: str, digest: str) -> None:
    """Write a chain anew, consistently, with another digest for one attempt."""
    from fleet.evidence.ledger import Ledger, read_chain

    entries = read_chain(landing, campaign)
    for file in (landing.ledger / campaign).iterdir():
        file.unlink()
    ledger = Ledger(landing, campaign)
    for entry in entries:
        mine = {"summary_sha256": digest} if entry.attempt == attempt else {}
        ledger.append(entry.kind, entry.attempt, **entry.body | mine)


# in object storage


@pytest.mark.slow
def test_a_prune_in_object_storage_is_followed_by_every_mirror(
    there: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home = new_site(tmp_path / "home", monkeypatch, capfd)
    assert [home.certify()[0] for _ in range(2)] == [0, 0]
    away, late = (new_site(tmp_path / name, monkeypatch, capfd) for name in ("away", "late"))
    away.ingested()
    before = home.status()
    assert len(prune(home)["attempts"]) == 4
    rows = [name for name in there.names() if name.endswith(".parquet")]
    assert len(rows) == 2 + 2 + 4
    for site in (home, away, late):
        assert site.ingested()["warnings"] == []
        assert altered(Landing.open(site.mirror)) == {}
        assert site.status() == before
        here = {str(p.relative_to(site.mirror)) for p in site.mirror.glob("attempts/*/*.parquet")}
        assert here == set(rows)


@pytest.mark.slow
def test_a_pull_that_listed_the_ledger_before_a_prune_looks_again(
    there: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home, away = (new_site(tmp_path / name, monkeypatch, capfd) for name in ("home", "away"))
    assert [home.certify()[0] for _ in range(2)] == [0, 0]
    away.ingested()
    asked: list[str] = []
    listing = Remote.listing

    def pruned_in_between(self: Remote, under: str = "") -> dict[str, Stamp]:
        found = listing(self, under)
        asked.append(under)
        if asked == ["ledger/"]:
            monkeypatch.setattr(Remote, "listing", listing)
            prune(home)
            monkeypatch.setenv("FLEET_CACHE", str(away.root / "cache"))
            monkeypatch.chdir(away.root)
        return found

    pull_at = Landing.open(away.mirror, remote=Remote(URL))
    monkeypatch.setattr(Remote, "listing", pruned_in_between)
    assert pull(pull_at).altered == ()
    assert asked == ["ledger/"]
    assert altered(pull_at) == {}
    assert len(retired(pull_at)) == 4


@pytest.mark.slow
def test_rows_that_somebody_else_deletes_are_no_prune(
    there: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home = new_site(tmp_path / "home", monkeypatch, capfd)
    assert home.certify()[0] == 0
    for name in there.names():
        if name.endswith(".parquet"):
            there.delete(name)
    assert len(home.ingested()["warnings"]) == 6
    assert "VOID(evidence-altered)" in reason(home.status())
