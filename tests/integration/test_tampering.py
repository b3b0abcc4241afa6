"""A landing or store that was tampered with never yields a PASS, and the file is named.

By command line, over real campaigns. Two stores look at each tampered landing: one that saw it
before (and keeps how far each chain went), and a new one, which knows nothing. What only the first
can see is said where it is asked; for the second there are certificates.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from fleet.contract.canonical import from_text, sha256, to_text
from fleet.evidence import decisions
from fleet.evidence.issued import log_revocation
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import campaigns, chain_folder, landing_head
from fleet.replay.engines.synthetic import LIKELY
from fleet.store.seal import TABLES, seal
from tests import tampering
from tests.campaigns import FakeLauncher, certified, write_configs
from tests.sites import Site, new_site, with_key
from tests.tampering import HARMLESS, Tampering, files_of, of_bytes, undone
from tests.unit.test_decisions import OUT as DECISION
from tests.unit.test_metrics import another_alphabet

SEED = 8
SHARES = 10
"""Of the files that are tried, so that no test takes minutes."""
POLICY = """[[rules]]
contracts = ["toy"]
platforms = [{ os = "Linux" }]
grade = "logits"
"""


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One campaign over ``toy``, which PASSes."""
    root = tmp_path_factory.mktemp("alone")
    write_configs(root / "configs")
    (root / "policy.toml").write_text(POLICY)
    assert certified(root, "toy").exit_code() == 0
    return root


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another landing of the same contract."""
    root = tmp_path_factory.mktemp("elsewhere")
    write_configs(root / "configs")
    assert certified(root, "toy").exit_code() == 0
    return root / "var" / "landing"


def copy_of(
    root: Path, to: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
) -> Site:
    shutil.copytree(root, to)
    site = new_site(to, patch, capture, "var/landing")
    os_name = json.loads(site.fleet("query", "SELECT facts FROM platforms", "--json")[1])
    name = json.loads(os_name["rows"][0][0])["facts"]["os"]
    (to / "policy.toml").write_text(POLICY.replace("Linux", name))
    return site


@pytest.fixture
def site(
    alone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Site:
    """A copy, in which ``toy`` PASSes."""
    found = copy_of(alone, tmp_path / "site", monkeypatch, capfd)
    assert says_pass(found) == (True, True)
    return found


@pytest.fixture
def failing(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A later campaign found two roots: ``toy`` FAILs, and the first campaign still agrees."""
    launcher = FakeLauncher(script=another_alphabet(monkeypatch))
    assert certified(site.root, "toy", launcher=launcher).exit_code() == 1
    monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", LIKELY)
    assert site.fleet("store", "ingest")[0] == 0
    return site


def landing_of(site: Site) -> Landing:
    return Landing(site.root / "var" / "landing")


def says_pass(site: Site) -> tuple[bool, bool]:
    """Of ``status`` and of ``gate``."""
    gate = site.fleet("gate", "--policy", "policy.toml")
    return is_pass(site.fleet("status", "toy")), gate[0] == 0


def is_pass(status: tuple[int, str, str]) -> bool:
    return status[0] == 0 or "PASS" in status[1].split()


def rebuilt(site: Site, forget: bool = False) -> str:
    """All that a rebuild says; ``forget``: by a store that never saw the landing."""
    if forget:
        for path in (site.root / "var").glob("fleet.duckdb*"):
            path.unlink()
    _, out, err = site.fleet("store", "rebuild")
    return out + err


def refuted(site: Site, found: Tampering, forget: bool = False) -> str | None:
    """Why a tampering is none that was noticed and named; None when it was."""
    with undone(landing_of(site).root):
        found.do(landing_of(site).root)
        told = rebuilt(site, forget)
        status = site.fleet("status", "toy")
    if is_pass(status):
        return f"{found}: PASS"
    told += status[1] + status[2]
    return None if found.is_named_in(told) else f"{found}: not named in {told}"


def toy_attempts(site: Site) -> list[str]:
    """Of ``toy``, in the order planned, in all campaigns."""
    landing = landing_of(site)
    chains = [tampering.salvage(landing, name) for name in campaigns(landing)]
    entries = sorted((e for chain in chains for e in chain), key=lambda e: e.at_s)
    return [e.attempt for e in entries if e.kind == "planned" and e.body["contract"] == "toy"]


def evidence(site: Site) -> list[str]:
    """Files that a verdict may depend on."""
    return [f for f in files_of(landing_of(site).root) if Path(f).name not in HARMLESS]


def is_last(site: Site, file: str) -> bool:
    """The last entry of a chain: no later one holds its digest."""
    path = landing_of(site).root / file
    return path.parent.parent.name == "ledger" and path == max(path.parent.iterdir())


def one_of_each(site: Site) -> Iterator[str]:
    """A file of every kind that ``toy`` rests on."""
    attempt = toy_attempts(site)[0]
    (chain,) = campaigns(landing_of(site))
    (toy,) = {
        e.body["execution_id"]
        for e in tampering.salvage(landing_of(site), chain)
        if e.kind == "planned" and e.attempt == attempt
    }
    yield from (f"attempts/{attempt}/{name}" for name in ("manifest.json", "part-00000.parquet"))
    yield from (f"ledger/{chain}/{seq:06d}.json" for seq in (0, 24))
    yield next(f for f in evidence(site) if is_last(site, f))
    yield f"contracts/{from_text(toy).hex()}.json"
    yield "FORMAT.json"


def test_a_file_of_each_kind_with_one_byte_changed_or_dropped(site: Site) -> None:
    chance = random.Random(SEED)
    for number, file in enumerate(one_of_each(site)):
        flip, *_, dropped = of_bytes(landing_of(site).root, file, chance, 1)
        assert refuted(site, (flip, dropped)[number % 2]) is None
    rebuilt(site)
    assert says_pass(site) == (True, True), "all is back"


@pytest.mark.slow
@pytest.mark.parametrize("forget", [False, True], ids=["a store that saw it", "a new store"])
@pytest.mark.parametrize("share", range(SHARES))
def test_every_file_with_its_bytes_changed_cut_dropped_or_replaced(
    site: Site, elsewhere: Path, share: int, forget: bool
) -> None:
    """What a store that never saw the landing cannot know of the last entry of a chain is what a
    certificate finds, below."""
    chance, root = random.Random(SEED + share), landing_of(site).root
    files = evidence(site)[share::SHARES]
    files = [file for file in files if not (forget and is_last(site, file))]
    tried = [t for file in files for t in of_bytes(root, file, chance, 3, elsewhere)]
    assert len(tried) >= 7 * len(files) > 0
    odd = [refuted(site, t, forget) for t in tried]
    assert "\n\n".join(words for words in odd if words) == ""


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_a_fail_is_not_tampered_away(failing: Site, elsewhere: Path, share: int) -> None:
    """An older campaign agrees, and must not carry a PASS when the evidence of the difference, or
    the ledger of its campaign, is touched."""
    chance, root = random.Random(SEED + share), landing_of(failing).root
    newest = toy_attempts(failing)[2:]
    chain = tampering.campaign_of(landing_of(failing), newest[0])
    files = [f for f in evidence(failing) if Path(f).parent.name in (*newest, chain)]
    shared = files[share::SHARES]
    tried = [t for file in shared for t in of_bytes(root, file, chance, 2, elsewhere)]
    for found in tried:
        with undone(root):
            found.do(root)
            rebuilt(failing)
            assert not is_pass(failing.fleet("status", "toy")), found


def test_a_campaign_or_its_entries_that_are_gone_are_missed_by_a_store_that_saw_them(
    failing: Site,
) -> None:
    landing = landing_of(failing)
    chain = tampering.campaign_of(landing, toy_attempts(failing)[-1])
    last = max(p.name for p in chain_folder(landing, chain).iterdir())
    with undone(landing.root):
        tampering.drop_campaign(landing, chain)
        for verb in ("rebuild", "ingest"):
            code, _, err = failing.fleet("store", verb)
            assert code == 2 and f"{chain}/{last}: gone" in err
            code, out, err = failing.fleet("status", "toy")
            assert (code, out) == (2, "") and f"{chain}/{last}: gone" in err and "put it" in err
            assert failing.fleet("gate", "--policy", "policy.toml")[0] == 2
    assert failing.fleet("store", "ingest")[0] == 0
    assert failing.fleet("status", "toy")[0] == 1


Said = Callable[[Landing, list[str], Path], str]


def _row(landing: Landing, attempts: list[str], other: Path) -> str:
    return str(tampering.change_row(landing, attempts[0]))


def _row_and_manifest(landing: Landing, attempts: list[str], other: Path) -> str:
    tampering.change_row(landing, attempts[0])
    return str(tampering.name_the_parts(landing, attempts[0]))


def _row_manifest_and_entry(landing: Landing, attempts: list[str], other: Path) -> str:
    tampering.change_row(landing, attempts[0])
    tampering.name_the_parts(landing, attempts[0])
    return str(tampering.accept_the_manifest(landing, attempts[0]))


def _foreign_manifest(landing: Landing, attempts: list[str], other: Path) -> str:
    theirs = next(iter(Landing(other).attempts()))
    shutil.copy(Landing(other).manifest(theirs), landing.manifest(attempts[0]))
    return str(landing.manifest(attempts[0]))


def _foreign_attempt(landing: Landing, attempts: list[str], other: Path) -> str:
    theirs = tampering_of_toy(Landing(other))
    shutil.copytree(Landing(other).attempt(theirs), landing.attempt(theirs))
    return str(landing.attempt(theirs))


def _foreign_in_place(landing: Landing, attempts: list[str], other: Path) -> str:
    theirs = tampering_of_toy(Landing(other))
    shutil.rmtree(landing.attempt(attempts[0]))
    shutil.copytree(Landing(other).attempt(theirs), landing.attempt(attempts[0]))
    return str(landing.manifest(attempts[0]))


def _copy(landing: Landing, attempts: list[str], other: Path) -> str:
    shutil.copytree(landing.attempt(attempts[0]), landing.attempt("f" * 16))
    return str(landing.attempt("f" * 16))


def _no_attempt(landing: Landing, attempts: list[str], other: Path) -> str:
    shutil.rmtree(landing.attempt(attempts[0]))
    return str(landing.manifest(attempts[0]))


def _copied_chain(landing: Landing, attempts: list[str], other: Path) -> str:
    chain = chain_folder(landing, tampering.campaign_of(landing, attempts[0]))
    shutil.copytree(chain, chain.with_name("another"))
    return str(chain.with_name("another") / "000000.json")


def _another_name(landing: Landing, attempts: list[str], other: Path) -> str:
    """The folder alone: the ledger goes on to speak of the old one."""
    landing.attempt(attempts[0]).rename(landing.attempt("e" * 16))
    return str(landing.manifest(attempts[0]))


def tampering_of_toy(landing: Landing) -> str:
    """An attempt of ``toy``: the last that its one campaign planned."""
    (name,) = campaigns(landing)
    return [e.attempt for e in tampering.salvage(landing, name) if e.kind == "planned"][-1]


@pytest.mark.parametrize(
    "change",
    [
        _row, _row_and_manifest, _row_manifest_and_entry, _foreign_manifest, _foreign_attempt,
        _foreign_in_place, _copy, _no_attempt, _copied_chain, _another_name,
    ],
)  # fmt: skip
@pytest.mark.parametrize("forget", [False, True], ids=["a store that saw it", "a new store"])
@pytest.mark.slow
def test_well_formed_lies_are_found(
    site: Site, elsewhere: Path, change: Said, forget: bool
) -> None:
    root = landing_of(site).root
    named = change(landing_of(site), toy_attempts(site), elsewhere)
    told = rebuilt(site, forget)
    told += site.fleet("status", "toy")[1]
    assert says_pass(site) == (False, False)
    found = Tampering("", str(Path(named).relative_to(root)), lambda _: None)
    assert found.is_named_in(told), told


EDITS = {
    "attempts": "UPDATE attempts SET summary = replace(summary, 'COMPLETE', 'LOST')",
    "attempts gone": "DELETE FROM attempts WHERE slot = 5",
    "summaries": "UPDATE summaries SET correct = correct + 1",
    "parts": "UPDATE parts SET state = 'altered'",
    "campaigns": "UPDATE campaigns SET fault = 'evidence-altered: x'",
    "controls": "DELETE FROM controls",
    "contracts": "UPDATE contracts SET body = '{}'",
    "platforms": "UPDATE platforms SET facts = replace(facts, 'x86', 'y86')",
    "units": "DELETE FROM units",
    "retractions": "INSERT INTO retractions VALUES ('x', 0, 'x', '{}')",
    "heads": "DELETE FROM heads",
}


def edit(site: Site, sql: str, name: str = "fleet.duckdb.snapshot") -> None:
    """By somebody with DuckDB at hand."""
    with duckdb.connect(str(site.root / "var" / name)) as con:
        con.execute(sql)


def test_a_table_that_was_edited_is_refused_and_named(site: Site) -> None:
    snapshot = site.root / "var" / "fleet.duckdb.snapshot"
    whole = snapshot.read_bytes()
    for table, sql in EDITS.items():
        edit(site, sql)
        code, out, err = site.fleet("status", "toy")
        assert (code, out) == (2, "")
        sealed = "attempts" if table in ("attempts gone", "summaries", "parts") else table
        assert f"fleet.duckdb.snapshot: {sealed}: expected" in err and "store rebuild" in err
        snapshot.write_bytes(whole)
    edit(site, EDITS["controls"], "fleet.duckdb")
    code, _, err = site.fleet("store", "ingest")
    assert code == 2 and "fleet.duckdb: controls: expected" in err
    assert site.fleet("store", "rebuild")[0] == 0
    assert says_pass(site) == (True, True)


def test_narrow_rows_that_were_edited_are_refused_where_they_are_compared(failing: Site) -> None:
    edit(failing, "UPDATE hashes SET logits = (SELECT min(logits) FROM hashes)")
    code, out, err = failing.fleet("status", "toy")
    assert (code, out) == (2, "") and "hashes of attempt" in err


def test_an_edit_that_was_sealed_anew_is_found_against_the_landing(failing: Site) -> None:
    assert failing.fleet("store", "verify")[:2] == (0, "the store says what the landing says\n")
    gone = toy_attempts(failing)[2:]
    with duckdb.connect(str(failing.root / "var" / "fleet.duckdb.snapshot")) as con:
        for table in ("summaries", "parts", "hashes"):
            con.execute(
                f"DELETE FROM {table} WHERE attempt IN "
                "(SELECT key FROM attempts WHERE attempt IN (SELECT unnest(?)))", [gone],
            )  # fmt: skip
        con.execute("DELETE FROM attempts WHERE attempt IN (SELECT unnest(?))", [gone])
        seal(con, TABLES)
    assert says_pass(failing)[0], "a seal is no signature"
    code, out, _ = failing.fleet("store", "verify")
    assert code == 3 and all(f"attempts: {attempt}: not what" in out for attempt in gone)
    found = json.loads(failing.fleet("store", "verify", "--json")[1])["differences"]
    assert {"table": "hashes", "about": gone[0]} in found
    assert failing.fleet("store", "ingest")[0] == 0, "the store itself was not edited"
    assert failing.fleet("status", "toy")[0] == 1


@pytest.mark.slow
def test_single_bytes_of_a_store_make_no_pass_of_a_fail(failing: Site) -> None:
    snapshot, chance = failing.root / "var" / "fleet.duckdb.snapshot", random.Random(SEED)
    whole = snapshot.read_bytes()
    for _ in range(100):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        snapshot.write_bytes(data)
        code, _, err = failing.fleet("status", "toy")
        assert code == 1 or (code == 2 and "fleet.duckdb.snapshot" in err), err


# What nobody can see who did not know more: certificates know.


@pytest.fixture
def certified_site(failing: Site) -> Site:
    """With a certificate of ``toy``, a FAIL, and a key."""
    with_key(failing)
    argv = ("certificate", "issue", "toy", "--key", "mine", "--output", "c.json")
    assert failing.fleet(*argv)[0] == 1
    assert failing.fleet("store", "ingest")[0] == 0
    return failing


def drop_the_failing_campaign(landing: Landing, attempts: list[str]) -> None:
    tampering.drop_campaign(landing, tampering.campaign_of(landing, attempts[-1]))


def drop_its_tail(landing: Landing, attempts: list[str]) -> None:
    """Of the campaign that agreed, so that it is nothing but shorter."""
    max(chain_folder(landing, tampering.campaign_of(landing, attempts[0])).iterdir()).unlink()


def forge_a_row(landing: Landing, attempts: list[str]) -> None:
    tampering.forge(landing, attempts[0])


def drop_the_log(landing: Landing, attempts: list[str]) -> None:
    for chain in landing.ledger.glob("certificates-*"):
        shutil.rmtree(chain)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [drop_the_failing_campaign, drop_its_tail, forge_a_row, drop_the_log]
)
def test_what_is_consistent_in_itself_is_found_by_a_certificate(
    certified_site: Site, change: Callable[[Landing, list[str]], None]
) -> None:
    """A new store believes such a landing: nothing in it contradicts anything else."""
    site = certified_site
    verify = ("certificate", "verify", "c.json", "--key", "mine.pub", "--json")
    assert site.fleet(*verify)[0] == 1
    change(landing_of(site), toy_attempts(site))
    assert json.loads(site.fleet(*verify)[1])["result"] in ("ALTERED", "NOT_CURRENT")
    told = rebuilt(site)
    assert not any(says_pass(site)) and "ledger" in told, "the store that saw it"
    rebuilt(site, forget=True)
    passes = change in (drop_the_failing_campaign,)
    assert says_pass(site)[0] == passes


@pytest.mark.slow
def test_decisions_retractions_and_revocations_that_are_gone_are_missed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its retraction the evidence would PASS again."""
    with_key(site)
    landing = landing_of(site)
    assert site.fleet("certificate", "issue", "toy", "--key", "mine", "--output", "c.json")[0] == 0
    retract = ("retract", toy_attempts(site)[0], "--reason", "a bad DIMM", "--key", "mine")
    assert site.fleet(*retract)[0] == 0
    decisions.record(landing, [DECISION])
    log_revocation(landing, to_text(sha256((site.root / "c.json").read_bytes())), "c", "x")
    assert site.fleet("store", "ingest")[0] == 0
    assert says_pass(site) == (False, False)
    verify = ("certificate", "verify", "c.json", "--key", "mine.pub")
    assert site.fleet(*verify)[0] != 0
    head = landing_head(landing)
    for kind in ("decisions-", "retracted-", "certificates-"):
        for chain in landing.ledger.glob(f"{kind}*"):
            with undone(landing.root):
                shutil.rmtree(chain)
                told = rebuilt(site)
                assert says_pass(site) == (False, False) and f"{chain.name}/000000.json" in told
                found = site.fleet(*verify, "--log-head", head)
                assert found[0] != 0, "a head that was learned elsewhere"
            rebuilt(site)
        assert says_pass(site) == (False, False)
