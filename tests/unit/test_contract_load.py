"""Loading contracts: search, merging, origins, and every kind of bad input with its words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.contract import load, rules, wording
from fleet.contract.fleet_file import Fleet
from fleet.contract.keys import table_of
from fleet.contract.model import Contract, Table
from fleet.contract.policy import Policy
from fleet.contract.stack import Stack
from fleet.contract.starter import starter
from fleet.errors import ContractError
from tests.contract_text import contract_text

CONFIGS = Path(__file__).parents[2] / "configs"
TEXT = starter("base")


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    (tmp_path / "contracts").mkdir()
    return tmp_path


def write(configs: Path, name: str, text: str) -> Path:
    path = configs / "contracts" / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new)


def refused(configs: Path, text: str, name: str = "c") -> ContractError:
    path = write(configs, name, text)
    with pytest.raises(ContractError) as caught:
        load.load_contract(name, [configs])
    assert caught.value.where == str(path.resolve())
    return caught.value


# The search path


def test_a_name_is_looked_up_in_the_search_path_and_the_first_folder_wins(tmp_path: Path) -> None:
    for folder, seed in (("one", 1), ("two", 2)):
        (tmp_path / folder / "contracts").mkdir(parents=True)
        write(tmp_path / folder, "c", changed("seed = 0\npython", f"seed = {seed}\npython"))
    found = load.load_contract("c", [tmp_path / "one", tmp_path / "two"])
    assert (found.name, found.contract.determinism.seed) == ("c", 1)
    assert found.path == (tmp_path / "one" / "contracts" / "c.toml").resolve()


def test_a_slash_or_the_suffix_means_a_file(configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(configs, "c", TEXT)
    monkeypatch.chdir(path.parent)
    assert load.load_contract(str(path), []).name == "c"
    assert load.load_contract("c.toml", []).path == path.resolve()
    assert load.load_contract("./c.toml", []).path.is_absolute()


def test_an_unknown_name_lists_what_exists_and_suggests_the_nearest(configs: Path) -> None:
    write(configs, "smollm2-bf16", TEXT)
    with pytest.raises(ContractError) as caught:
        load.load_contract("smollm2-bf61", [configs])
    assert "smollm2-bf16" in caught.value.got
    assert 'did you mean "smollm2-bf16"?' in caught.value.fix
    assert "fleet contract show" in caught.value.fix


def test_a_missing_file_a_wrong_suffix_and_a_wrong_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no such file"):
        load.load_contract(str(tmp_path / "no.toml"), [])
    for name in ("c.json", "two words.toml"):
        (tmp_path / name).write_text(TEXT)
        with pytest.raises(ContractError, match=r"expected a file NAME\.toml"):
            load.load_contract(str(tmp_path / name), [])


def test_a_name_cannot_climb_out_of_the_search_path(configs: Path) -> None:
    with pytest.raises(ContractError, match="a contract named"):
        load.load_contract("..", [configs])


def test_the_search_path_comes_from_the_option_then_the_environment_then_the_default(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    both = os.pathsep.join((str(a), str(b)))
    last = load.BUILTIN
    assert load.config_path(both, {"FLEET_CONFIGS": str(b)}) == (a, b, last)
    assert load.config_path(None, {"FLEET_CONFIGS": str(b)}) == (b, last)
    assert load.config_path(str(last), {}) == (last,)
    for environ in ({}, {"FLEET_CONFIGS": ""}):
        default, *rest = load.config_path(None, environ)
        assert (default, [r for r in rest if r != last]) == (Path("configs"), [])


def test_a_folder_that_was_named_must_exist(tmp_path: Path) -> None:
    for option, environ, where in (
        (str(tmp_path / "no"), {}, "--configs"),
        (None, {"FLEET_CONFIGS": str(tmp_path / "no")}, "FLEET_CONFIGS"),
        ("", {}, "--configs"),
    ):
        with pytest.raises(ContractError, match="existing folders") as caught:
            load.config_path(option, environ)
        assert caught.value.where == where


def test_listing_names_each_contract_once_and_sorted(configs: Path) -> None:
    write(configs, "b", TEXT)
    write(configs, "a", TEXT)
    assert load.list_contracts([configs, configs]) == ["a", "b"]


# Syntax and keys


def test_a_syntax_error_names_its_line(configs: Path) -> None:
    error = refused(configs, "schema = 1\n[model\n")
    assert error.key == "line 2"
    assert error.expected == "valid TOML"
    assert refused(configs, "a = 1\nb =").key in ("line 2", "end of file")


def test_a_duplicate_key_and_a_duplicate_arm_are_refused_with_their_line(configs: Path) -> None:
    twice = "each key, table and arm once"
    assert refused(configs, changed("[decoding] ", "[model]\n[decoding] ")).expected == twice
    error = refused(configs, TEXT + "\n[arms.current]\ntemplate = 'x'\nparser = 'text'\n")
    assert (error.expected, "current" in error.got) == (twice, True)
    assert error.key == f"line {TEXT.count(chr(10)) + 2}"
    assert "remove or rename" in error.fix
    assert refused(configs, changed("batch_size = 1 ", "batch_size = 1\nbatch_size = 2 #")).expected


def test_bytes_that_are_not_utf8_and_a_folder_are_refused(configs: Path) -> None:
    path = configs / "contracts" / "c.toml"
    path.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ContractError, match="not UTF-8"):
        load.load_contract("c", [configs])
    path.unlink()
    path.mkdir()
    with pytest.raises(ContractError, match="no such file"):
        load.load_contract(str(path), [configs])


def test_an_unknown_key_names_the_near_one(configs: Path) -> None:
    error = refused(configs, changed("batch_size", "batchsize"))
    assert (error.key, error.got) == ("decoding.batchsize", "an unknown key")
    assert "batch_size" in error.expected
    assert error.fix == 'did you mean "batch_size"?'


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("[determinism]", "[determinisme]", "determinisme"),
        ('parser = "letter"', 'parser = "letter"\ntemplte = "x"', "arms.current.templte"),
        ("schema = 1", "scheme = 1", "scheme"),
        ("[require] ", "[controls]\nx = 1\n[require] ", "controls"),
        ("[require] ", "[expect]\nverdikt = 'PASS'\n[require] ", "expect.verdikt"),
    ],
)
def test_unknown_keys_are_found_in_every_table(configs: Path, old: str, new: str, key: str) -> None:
    error = refused(configs, changed(old, new))
    assert (error.key, error.got) == (key, "an unknown key")


def test_all_unknown_keys_of_a_file_are_named_at_once(configs: Path) -> None:
    error = refused(configs, TEXT.replace("seed = 0\np", "sed = 0\nzzz = 1\np"))
    assert "determinism.zzz" in error.got


def test_unknown_keys_are_reported_before_the_base_is_looked_for(configs: Path) -> None:
    error = refused(configs, 'extends = "nowhere"\n[decoding]\nbatchsize = 1\n')
    assert error.key == "decoding.batchsize"


def test_an_unknown_key_of_the_base_is_reported_with_the_bases_file(configs: Path) -> None:
    base = write(configs, "base", changed("use_cache", "use_cash"))
    write(configs, "c", 'extends = "base"\n')
    with pytest.raises(ContractError) as caught:
        load.load_contract("c", [configs])
    assert (caught.value.where, caught.value.key) == (str(base.resolve()), "decoding.use_cash")


# Values


@pytest.mark.parametrize(
    ("old", "new", "key", "expected", "got", "fix"),
    [
        (
            "batch_size = 1 ",
            'batch_size = "8" ',
            "decoding.batch_size",
            "an integer >= 1",
            "'8' (string)",
            "write batch_size without quotation marks",
        ),
        ("batch_size = 1 ", "batch_size = 0 ", "decoding.batch_size", "an integer >= 1", "0", ""),
        ("batch_size = 1 ", "batch_size = 1.0 ", "decoding.batch_size", "an integer", "float", ""),
        ("batch_size = 1 ", "batch_size = true ", "decoding.batch_size", "an integer", "true", ""),
        ("use_cache = true", "use_cache = 1", "decoding.use_cache", "true or false", "1 (int", ""),
        ("num_beams = 1", "num_beams = 4", "decoding.num_beams", "1", "4 (integer)", ""),
        (
            'dtype = "bfloat16" ',
            'dtype = "bf16" ',
            "model.dtype",
            'one of "bfloat16", "float16", "float32"',
            "'bf16' (string)",
            "correct model.dtype",
        ),
        ("demo:smollm2-135m", "smollm2", "model.checkpoint", '"hf:REPO", "path:FOLDER"', "", ""),
        ('":4096:8"', '"4096"', "determinism.cublas_workspace", 'like ":4096:8"', "'4096'", ""),
        ('"letter"', '"Letter"', "arms.current.parser", '"file:PATH.py"', "'Letter'", ""),
        ("[arms.current]", '[arms."a b"]', "arms.a b", "a name of letters", "'a b'", "rename"),
        ('["math"]', '["maths"]', "attention.sdpa_kernels[0]", '"math"', "'maths'", ""),
        ('["math"]', '"math"', "attention.sdpa_kernels", "a list", "'math' (string)", ""),
        ("vary = []", "vary = [1]", "require.vary[0]", "a string", "1 (integer)", ""),
        ("replays = 2", "replays = 1", "require.replays", "an integer >= 2", "1", ""),
    ],
)
def test_a_wrong_value_says_key_expected_and_got(
    configs: Path, old: str, new: str, key: str, expected: str, got: str, fix: str
) -> None:
    error = refused(configs, changed(old, new))
    assert error.key == key
    assert expected in error.expected
    assert got in error.got
    assert fix in error.fix
    assert "pydantic" not in str(error) and "Input should" not in str(error)


def test_a_missing_key_and_a_missing_table_are_named(configs: Path) -> None:
    error = refused(configs, changed("use_cache = true\n", ""))
    assert (error.key, error.expected) == ("decoding.use_cache", "true or false")
    assert error.got == "no such key"
    assert "[decoding]" in error.fix
    assert refused(configs, '[model]\ncheckpoint = "demo:x"\ndtype = "float32"\n').key == "decoding"


def test_several_faults_are_all_named(configs: Path) -> None:
    error = refused(configs, TEXT.replace("use_cache = true\n", "").replace("allow_tf32", "#"))
    assert error.key == "decoding.use_cache"
    assert "determinism.allow_tf32" in error.got


def test_a_contract_without_arms_is_refused(configs: Path) -> None:
    start, end = TEXT.index("[arms.current]"), TEXT.index("[require]")
    error = refused(configs, TEXT[:start] + "[arms]\n" + TEXT[end:])
    assert (error.key, error.expected) == ("arms", "at least one table [arms.NAME]")


def test_a_date_without_quotation_marks_is_explained(configs: Path) -> None:
    error = refused(configs, changed('"choices-24" ', '"x"\nclock = 2026-01-01T00:00:00Z #'))
    assert error.key == "dataset.clock"
    assert "put it in quotation marks" in error.got


def test_nan_and_infinity_are_refused_before_they_reach_an_identity(configs: Path) -> None:
    for value in ("inf", "nan"):
        error = refused(configs, changed("use_cache = true", f"temperature = {value}"))
        assert (error.key, error.expected) == ("decoding.temperature", "a finite number")


QUANTIZED = '[quantization]\nmethod = "awq"\n'
SAMPLED = "temperature = 0.5\ntop_k = 5\ntop_p = 0.9\n"
RULE_BREAKERS: dict[str, tuple[str, str, str]] = {
    "revision: a hub checkpoint is pinned": (
        '"demo:smollm2-135m"',
        '"hf:o/r"\nrevision = "main"',
        "'main' (string)",
    ),
    "trust_remote_code = true and code_sha256 go together": (
        "[attention]",
        "trust_remote_code = true\n[attention]",
        "code_sha256 = (not given)",
    ),
    "bits, group_size and backend go with": (
        "[attention]",
        "[quantization]\nbits = 4\n[attention]",
        "method = (not given)",
    ),
    "needs bits, group_size and backend": ("[attention]", QUANTIZED + "[attention]", "bits = (not"),
    "the backend is named, never 'auto'": (
        "[attention]",
        QUANTIZED + 'bits = 4\ngroup_size = 64\nbackend = "auto"\n[attention]',
        "backend = 'auto' (string)",
    ),
    "sdpa needs at least one entry": ('["math"]', "[]", "[] (list)"),
    'kind = "vision" and processor go together': (
        "[attention]",
        'kind = "vision"\n[attention]',
        "processor = (not given)",
    ),
    "do_sample = true needs": ("do_sample = false", "do_sample = true", "top_p = (not given)"),
    "temperature, top_k and top_p go with": (
        "do_sample = false",
        "do_sample = false\n" + SAMPLED,
        "do_sample = false (boolean)",
    ),
    "stop_token_ids names an id twice": (
        "use_cache = true",
        "use_cache = true\nstop_token_ids = [2, 2]",
        "[2, 2] (list)",
    ),
    "[expect] is for controls": (
        "[require] ",
        '[expect]\nverdict = "PASS"\n[require] ',
        "control = (not given)",
    ),
    'a quantised contract runs under [model] engine = "gptqmodel"': (
        "[attention]",
        QUANTIZED + 'bits = 4\ngroup_size = 64\nbackend = "awq_torch"\n[attention]',
        "engine = 'transformers' (string)",
    ),
    'engine = "gptqmodel" needs [quantization] method': (
        'engine = "transformers"',
        'engine = "gptqmodel"',
        "method = (not given)",
    ),
}


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.key)
def test_every_rule_over_several_keys_is_explained(configs: Path, rule: rules.Rule) -> None:
    old, new, got = RULE_BREAKERS[rule.raised]
    error = refused(configs, changed(old, new))
    assert (error.key, error.expected, error.fix) == (rule.key, rule.expected, rule.fix)
    assert got in error.got


def test_every_rule_of_the_model_has_its_explanation() -> None:
    source = (CONFIGS.parent / "fleet" / "contract" / "model.py").read_text()
    assert source.count("raise ValueError(") == len(rules.RULES) == len(RULE_BREAKERS)


def test_every_string_form_of_the_model_has_words() -> None:
    def patterned(table: type[Table], prefix: str) -> list[str]:
        found = []
        for name, field in table.model_fields.items():
            inner = table_of(field.annotation)
            if inner is not None:
                star = "*." if name in ("arms", "packages") else ""
                found += patterned(inner, f"{prefix}{name}.{star}")
            elif "pattern=" in repr(field):
                items = any(kind in repr(field.annotation) for kind in ("tuple[", "dict["))
                found.append(prefix + name + (".*" if items else ""))
        return found

    every = [*patterned(Contract, ""), *patterned(Fleet, ""), *patterned(Policy, "")]
    every += patterned(Stack, "")
    claims = {"rules.vary.*"}  # whose form is no pattern: it is read as the command line's is
    assert sorted({*every, *claims}) == sorted(wording.PATTERNS)


# extends


def test_tables_and_arms_merge_by_key_and_scalars_and_lists_are_replaced(configs: Path) -> None:
    write(configs, "base", TEXT)
    write(
        configs,
        "c",
        'extends = "base"\n[decoding]\nmax_new_tokens = 99\n[attention]\nsdpa_kernels = ["flash"]\n'
        '[arms.current]\nparser = "number"\n[arms.other]\ntemplate = "x"\nparser = "text"\n',
    )
    found = load.load_contract("c", [configs])
    contract = found.contract
    assert (contract.decoding.max_new_tokens, contract.decoding.batch_size) == (99, 1)
    assert contract.attention.sdpa_kernels == ("flash",)
    assert sorted(contract.arms) == ["current", "other"]
    assert contract.arms["current"].parser == "number"
    assert "question" in contract.arms["current"].template


def test_every_key_knows_the_file_it_came_from(configs: Path) -> None:
    write(configs, "base", TEXT)
    write(configs, "c", 'extends = "base"\n[decoding]\nmax_new_tokens = 99\n')
    origin = load.load_contract("c", [configs]).origin
    assert origin["decoding.max_new_tokens"] == "c.toml"
    assert origin["decoding.batch_size"] == "base.toml"
    assert origin["arms.current.template"] == "base.toml"
    assert origin["quantization.method"] == "default"
    assert origin["control"] == "default"


def test_an_arm_name_may_hold_a_dot_and_still_knows_its_file(configs: Path) -> None:
    write(configs, "c", changed("[arms.current]", '[arms."v1.2"]'))
    assert load.load_contract("c", [configs]).origin["arms.v1.2.template"] == "c.toml"


def test_the_base_is_looked_up_beside_the_file_first(configs: Path, tmp_path: Path) -> None:
    write(configs, "base", TEXT)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "c.toml").write_text('extends = "base"\n')
    assert load.load_contract(str(mine / "c.toml"), [configs]).contract.determinism.seed == 0
    (mine / "base.toml").write_text(changed("seed = 0\npython", "seed = 7\npython"))
    assert load.load_contract(str(mine / "c.toml"), [configs]).contract.determinism.seed == 7


def test_a_second_level_of_extends_is_refused(configs: Path) -> None:
    write(configs, "base", TEXT)
    write(configs, "middle", 'extends = "base"\n')
    error = refused(configs, 'extends = "middle"\n')
    assert (error.key, "one level only" in error.expected) == ("extends", True)
    assert "itself extends 'base'" in error.got
    assert 'extends = "base"' in error.fix


def test_a_base_that_is_missing_is_itself_or_is_no_name_is_refused(configs: Path) -> None:
    write(configs, "base", TEXT)
    missing = refused(configs, 'extends = "bass"\n')
    assert (missing.key, missing.fix) == ("extends", 'did you mean "base"?')
    assert "this file" in refused(configs, 'extends = "c"\n').got
    assert refused(configs, "extends = 3\n").got == "3 (integer)"
    assert "without .toml" in refused(configs, 'extends = "../base.toml"\n').fix


def test_a_fault_is_charged_to_the_file_that_holds_the_key(configs: Path) -> None:
    base = write(configs, "base", changed("batch_size = 1 ", "batch_size = 0 "))
    write(configs, "c", 'extends = "base"\n[decoding]\nmax_new_tokens = 9\n')
    with pytest.raises(ContractError) as caught:
        load.load_contract("c", [configs])
    assert (caught.value.where, caught.value.key) == (str(base.resolve()), "decoding.batch_size")


def test_relative_paths_of_the_base_stay_beside_the_base(configs: Path, tmp_path: Path) -> None:
    text = changed('"letter"', '"file:parsers/p.py"')
    write(configs, "base", text.replace("demo:smollm2-135m", "path:models/m"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "c.toml").write_text('extends = "base"\n')
    contract = load.load_contract(str(mine / "c.toml"), [configs]).contract
    assert contract.arms["current"].parser == "file:../contracts/parsers/p.py"
    assert contract.model.checkpoint == "path:../contracts/models/m"
    write(configs, "c", 'extends = "base"\n')
    beside = load.load_contract("c", [configs]).contract
    assert beside.arms["current"].parser == "file:parsers/p.py"


def test_an_absolute_path_of_the_base_reaches_the_same_folder(
    configs: Path, tmp_path: Path
) -> None:
    write(configs, "base", changed("demo:smollm2-135m", f"path:{tmp_path}/m"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "c.toml").write_text('extends = "base"\n')
    checkpoint = load.load_contract(str(mine / "c.toml"), [configs]).contract.model.checkpoint
    assert (mine / checkpoint.removeprefix("path:")).resolve() == (tmp_path / "m").resolve()


# Versions


def test_a_newer_schema_is_refused_before_its_unknown_keys(configs: Path) -> None:
    error = refused(configs, "schema = 2\n[hologram]\nx = 1\n")
    assert (error.key, error.expected) == ("schema", "1 or lower")
    assert "newer than the code" in error.got
    for text in ('schema = "1"\n', "schema = true\n", "schema = 0\n"):
        assert refused(configs, text).expected == "an integer >= 1"


def test_what_this_version_cannot_do_is_refused_plainly(configs: Path) -> None:
    text = contract_text("five").replace("[model]", '[model]\nkind = "vision"\nprocessor = "slow"')
    error = refused(configs, text)
    assert error.key == "model.kind"
    assert "not supported by this version" in error.got
    assert error.fix.startswith("write ")


def test_a_contract_says_what_its_replays_vary(configs: Path) -> None:
    write(configs, "mine", changed("vary = []", 'vary = ["order", "memory"]'))
    assert load.load_contract("mine", [configs]).contract.require.vary == ("order", "memory")


def test_modules_can_be_required_of_an_engine_that_has_some(configs: Path) -> None:
    write(configs, "mine", changed('grade = "logits"', 'grade = "modules"'))
    assert load.load_contract("mine", [configs]).contract.require.grade == "modules"
    text = contract_text("five", grade="modules")
    error = refused(configs, text)
    assert (error.key, error.fix) == ("require.grade", 'write grade = "logits"')
    assert "the engine has no modules" in error.expected
