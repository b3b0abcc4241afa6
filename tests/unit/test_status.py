"""``fleet status`` and the answers it rests on: what holds today, from evidence that is older."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.load import BUILTIN
from fleet.errors import ContractError, StoreError
from fleet.evidence.landing import Landing
from fleet.report.answers import Answers, ControlsByCampaign, known_contracts
from fleet.report.status import StatusRow, exit_code, status_rows
from fleet.store.ingest import ingest
from fleet.store.open import open_reader, open_writer, publish
from tests.campaigns import (
    CONTRACT,
    CONTROLS,
    PARSER,
    FakeLauncher,
    certified,
    places_in,
    write_configs,
    write_contract,
)

RACY, CLEAN = CONTROLS
DAY_S = 86400.0


@pytest.fixture
def root(campaigned: Path, tmp_path: Path) -> Path:
    """A copy of one campaign over ``toy`` and ``other``."""
    shutil.copytree(campaigned, tmp_path / "copy")
    return tmp_path / "copy"


def rows(root: Path, *names: str, later_s: float = 0.0) -> list[StatusRow]:
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        return status_rows(answers, names, places.search, places.cache, time.time() + later_s)


def row(root: Path, name: str = "toy", later_s: float = 0.0) -> StatusRow:
    (only,) = rows(root, name, later_s=later_s)
    return only


def code(root: Path, *names: str, later_s: float = 0.0) -> int:
    return exit_code(rows(root, *names, later_s=later_s))


def ingested(root: Path) -> None:
    places = places_in(root)
    with open_writer(places.store) as store:
        ingest(store, Landing.open(places.landing))
        publish(store)


def retext(root: Path, old: str, new: str, name: str = "toy") -> None:
    path = root / "configs" / "contracts" / f"{name}.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_certified_contract_passes_where_it_ran(root: Path) -> None:
    found = row(root)
    assert (found.state, found.note, code(root, "toy")) == ("PASS", "", 0)
    assert found.verdict is not None and found.verdict.attained_grade == "logits"
    assert found.age_s is not None and found.age_s >= 0.0
    assert "torch" in found.platform_label
    assert json.loads(json.dumps(found.to_json()))["state"] == "PASS"


def test_a_control_that_fails_as_it_must_counts_as_a_pass(root: Path) -> None:
    found = row(root, RACY)
    assert (found.state, found.behaves, code(root, RACY, CLEAN, "toy")) == ("FAIL", True, 0)


def test_all_names_are_those_of_the_store_and_of_the_config_path(root: Path) -> None:
    write_contract(root / "configs", "fresh")
    states = {r.contract: r.state for r in rows(root)}
    assert states["fresh"] == states["smollm2-bf16"] == "UNTESTED"
    assert (states["toy"], states["other"], states[RACY]) == ("PASS", "PASS", "FAIL")
    assert code(root) == 3
    assert row(root, "fresh").note == "never tested: fleet certify fresh"


def test_a_name_twice_is_asked_once(root: Path) -> None:
    assert [r.contract for r in rows(root, "toy", "other", "toy")] == ["toy", "other"]


def test_a_name_that_nobody_knows_is_a_usage_error(root: Path) -> None:
    with pytest.raises(ContractError, match="neither has it"):
        rows(root, "tyo")


# the file changed since


CHANGES: list[tuple[str, str]] = [
    ("max_new_tokens = 4", "max_new_tokens = 5"),
    ("seed = 0\npython", "seed = 7\npython"),
    ('template = "{{ question }}"', 'template = "{{ question }} "'),
    ("[arms.controlled]", "[arms.another]"),
    ('parser = "letter"', 'parser = "text"'),
]


@pytest.mark.parametrize(("old", "new"), CHANGES, ids=[new for _, new in CHANGES])
def test_evidence_of_what_the_file_said_before_is_none_of_what_it_says_now(
    root: Path, old: str, new: str
) -> None:
    retext(root, old, new)
    found = row(root)
    assert (found.state, found.verdict, code(root, "toy")) == ("UNTESTED", None, 3)
    assert "changed since it was last certified" in found.note


def test_a_comment_or_another_order_of_keys_is_no_change(root: Path) -> None:
    retext(
        root, "do_sample = false\nnum_beams = 1\n", "num_beams = 1  # greedy\ndo_sample = false\n"
    )
    assert row(root).state == "PASS"


def test_a_changed_dataset_or_a_file_that_no_longer_reads_is_untested_and_says_why(
    root: Path,
) -> None:
    dataset = root / "configs" / "datasets" / "five.jsonl"
    data = dataset.read_bytes()
    dataset.write_bytes(data + b"\n")
    assert (row(root).state, code(root, "toy")) == ("UNTESTED", 3)
    assert "sha256" in row(root).note
    dataset.write_bytes(data)
    retext(root, "[require]", "[requires]")
    assert "requires" in row(root).note and row(root).state == "UNTESTED"


def test_a_changed_parser_file_is_another_contract(root: Path) -> None:
    assert row(root, "own").state == "PASS"
    (root / "configs" / "contracts" / "mine.py").write_text(PARSER + "\n\nX = 1\n")
    assert row(root, "own").state == "UNTESTED"


def test_a_file_that_is_gone_leaves_the_contract_to_its_evidence(root: Path) -> None:
    (root / "configs" / "contracts" / "toy.toml").unlink()
    assert (row(root).state, code(root, "toy")) == ("PASS", 0)


def test_what_is_required_is_what_the_file_says_today(root: Path) -> None:
    """A stricter requirement is no other execution id, and must not pass on older words."""
    retext(root, "replays = 2", "replays = 3")
    found = row(root)
    assert (found.state, code(root, "toy")) == ("VOID", 3)
    assert found.verdict is not None and "3 complete replays required" in found.verdict.reason


def edit_body(root: Path, change: Callable[[dict[str, Any]], None], name: str = "toy") -> None:
    """Change what the landing keeps of a contract, and bring the store up to it."""
    named = row(root, name).execution_id.removeprefix("sha256:")
    path = root / "var" / "landing" / "contracts" / f"{named}.json"
    body = json.loads(path.read_bytes())
    change(body)
    path.write_text(json.dumps(body))
    ingested(root)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("digests"),
        lambda body: body.update(execution_part=3),
    ],
)
def test_a_body_that_cannot_be_read_ends_no_status(root: Path, change: Any) -> None:
    edit_body(root, change)
    assert row(root, "other").state == "PASS"
    assert row(root).state in ("PASS", "UNTESTED")
    (root / "configs" / "contracts" / "toy.toml").unlink()
    assert row(root).verdict is not None


def test_an_unreadable_requirement_is_the_strictest(root: Path) -> None:
    edit_body(root, lambda body: body.pop("execution_part"))
    with open_reader(places_in(root).store) as store:
        (asked,) = [a for a in known_contracts(store) if a.name == "toy"]
    assert (asked.require.grade, asked.require.replays, asked.expect) == ("logits", 2, None)


def test_a_control_whose_expectation_cannot_be_read_proves_nothing(root: Path) -> None:
    assert row(root).state == "PASS"
    edit_body(root, lambda body: body.pop("execution_part"), RACY)
    found = row(root)
    assert found.verdict is not None
    assert (found.state, found.verdict.code) == ("VOID", "control-failed")
    assert code(root, "toy") == 3


# age


def test_a_pass_grows_stale_by_age_alone_and_a_control_with_it(root: Path) -> None:
    assert row(root, later_s=29 * DAY_S).state == "PASS"
    assert row(root, later_s=31 * DAY_S).state == "STALE"
    assert code(root, "toy", later_s=31 * DAY_S) == 3
    assert not row(root, CLEAN, later_s=31 * DAY_S).behaves
    assert code(root, CLEAN, later_s=31 * DAY_S) == 3
    retext(root, "replays = 2", "replays = 2\nvalid_days = 1")
    assert row(root, later_s=2 * DAY_S).state == "STALE"


# controls and regressions


def test_a_control_that_was_named_controls_no_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configs(tmp_path / "configs")
    monkeypatch.setattr(os, "urandom", lambda n: bytes(n))
    answer = certified(tmp_path, RACY, "toy")
    assert [v.verdict for v in answer.contracts] == ["PASS", "VOID"]
    assert answer.exit_code() == 3
    assert (row(tmp_path).state, row(tmp_path, RACY).behaves) == ("VOID", False)


def test_controls_are_looked_for_in_their_own_campaign_only(root: Path) -> None:
    with open_reader(places_in(root).store) as store:
        answers = Answers(store, Landing.open(places_in(root).landing))
        known = known_contracts(store)
        (campaign,) = ControlsByCampaign(answers, known)
        assert ControlsByCampaign(answers, known)[campaign] == ()
        without = [asked for asked in known if asked.name != RACY]
        assert ControlsByCampaign(answers, without)[campaign] == (RACY,)


def test_another_set_of_bits_later_is_a_regression(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(_: object) -> None:
        monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", b"ABCE .()")

    answer = certified(root, launcher=FakeLauncher(script={4: change}))  # the controls came first
    assert [v.verdict for v in answer.contracts] == ["FAIL"]
    found = rows(root, "toy", "other")
    assert [r.state for r in found] == ["REGRESSED", "PASS"]
    assert exit_code(found) == 1


def test_a_row_of_one_platform_does_not_speak_for_another(root: Path) -> None:
    good, bad = row(root, RACY), row(root, "toy")
    assert good.verdict is not None
    stranger = StatusRow(RACY, "", "p2", "", "FAIL", good.verdict, None, behaves=False)
    assert exit_code([good, bad]) == 0
    assert exit_code([good, stranger]) == 1
    assert exit_code([StatusRow("x", "", "", "", "UNTESTED", None, None), stranger]) == 1
    assert exit_code([]) == 3


# where the evidence is


def test_a_landing_that_moved_gives_the_same_answers(root: Path, tmp_path: Path) -> None:
    before = [r.to_json() | {"age_s": 0} for r in rows(root, "toy", RACY)]
    root.rename(tmp_path / "moved")
    after = [r.to_json() | {"age_s": 0} for r in rows(tmp_path / "moved", "toy", RACY)]
    assert json.dumps(after) == json.dumps(before)


def test_a_landing_that_lost_its_attempts_is_one_clear_message(root: Path) -> None:
    shutil.rmtree(root / "var" / "landing" / "attempts")
    with pytest.raises(StoreError, match="the part that was ingested"):
        rows(root, RACY)
    ingested(root)
    assert (row(root).state, row(root, RACY).state) == ("VOID", "VOID")


def test_a_store_without_any_evidence_knows_nothing_and_passes_nothing(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    places = places_in(tmp_path)
    Landing.open(places.landing, create=True)
    ingested(tmp_path)
    assert {r.state for r in rows(tmp_path)} == {"UNTESTED"}
    assert code(tmp_path, "toy") == 3


def test_a_campaign_that_was_interrupted_passes_nothing(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certified(tmp_path, launcher=FakeLauncher(script={5: stop}))
    found = row(tmp_path)
    assert (found.state, exit_code([found])) == ("VOID", 3)
    assert found.verdict is not None and "driver-gone" in found.verdict.reason


# one execution id, two names


def test_a_laxer_contract_of_the_same_execution_id_lends_nothing(tmp_path: Path) -> None:
    """Requirements are outside the id: each name is judged by its own, with its file or without."""
    write_configs(tmp_path / "configs")
    strict = CONTRACT.replace('parser = "letter"', 'parser = "file:parsers/counting.py"')
    folder = tmp_path / "configs" / "contracts" / "parsers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counting.py").write_text(
        "import os\ndef parse(raw, record):\n    return os.urandom(4).hex()\n"
    )
    for name in ("strict", "lax"):
        grade = "logits" if name == "strict" else "metric"
        text = strict.replace('grade = "logits"', f'grade = "{grade}"')
        write_contract(tmp_path / "configs", name, text)
    certified(tmp_path, "lax", "strict")
    assert row(tmp_path, "strict").state == "FAIL"
    assert row(tmp_path, "lax").state == "PASS"
    for name in ("strict", "lax"):
        (tmp_path / "configs" / "contracts" / f"{name}.toml").unlink()
    assert row(tmp_path, "strict").state == "FAIL"
    assert row(tmp_path, "lax").state == "PASS"


def test_a_copy_of_a_control_that_expects_nothing_neither_behaves_nor_voids(
    tmp_path: Path,
) -> None:
    write_configs(tmp_path / "configs")
    text = (BUILTIN / "contracts" / f"{RACY}.toml").read_text(encoding="utf-8")
    write_contract(tmp_path / "configs", "copy", text.split("[expect]")[0])
    certified(tmp_path, "copy", "toy")
    assert row(tmp_path, "toy").state == "PASS"
    assert row(tmp_path, "copy").state == "FAIL"
    assert code(tmp_path, "copy") == 1


def test_evidence_from_the_future_has_no_age_that_could_be_trusted(root: Path) -> None:
    assert row(root, later_s=-3600.0).state == "STALE"
    assert row(root, later_s=-10.0).state == "PASS"
