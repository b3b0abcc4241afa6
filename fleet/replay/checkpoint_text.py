"""What a checkpoint folder holds beside its tensors: configuration, tokenizer, template, code.

Refuses what would let unpinned content in: code that the contract did not pin, adapters that a
loader would apply unasked, a configuration or a tokenizer that is not there. Knows no tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.contract.canonical import digest_json, sha256, to_text
from fleet.contract.model import Model
from fleet.errors import CheckpointError

TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""Hashed when present. The chat template's own file is not among them: it has its own digest."""

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
"""One of these makes a tokenizer."""

TEMPLATE_FILE = "chat_template.jinja"


def require_usable(model: Model, folder: Path) -> None:
    """Refuse a folder that no engine could load, or that brings unpinned code or weights.

    Raises:
        CheckpointError: with what is missing and what to do.
    """
    if not folder.is_dir():
        got = "a file" if folder.exists() else "no such folder"
        raise _error(folder, "", "a checkpoint folder", got, "correct [model] checkpoint")
    if not any(folder.iterdir()):
        raise _error(folder, "", "a checkpoint", "an empty folder", "put the checkpoint there")
    _require_config(folder)
    if not any((folder / name).is_file() for name in VOCABULARIES):
        fix = "save the tokenizer into the folder too"
        raise _error(folder, "", f"one of {', '.join(VOCABULARIES)}", "no tokenizer", fix)
    if (folder / "adapter_config.json").exists():
        fix = "merge the adapter into the weights, or remove its files"
        raise _error(folder, "adapter_config.json", "plain weights", "an adapter", fix)
    _require_pinned_code(model, folder)


def tokenizer_digest(folder: Path) -> bytes:
    """SHA-256 of canonical JSON {file name: digest of its bytes}; 32 bytes."""
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return digest_json({file.name: to_text(sha256(file.read_bytes())) for file in files})


def chat_template(folder: Path) -> str | None:
    """The template's text: its own file first, as transformers does, else tokenizer_config.json.

    Raises:
        CheckpointError: several named templates and none called "default".
    """
    own = folder / TEMPLATE_FILE
    if own.is_file():
        return _text(own)
    match read_json(folder / "tokenizer_config.json").get("chat_template"):
        case None:
            return None
        case str(text):
            return text
        case [*named]:
            return _default_template(folder, named)
        case other:
            got = type(other).__name__
            raise _error(folder, "chat_template", "text", got, "correct tokenizer_config.json")


def chat_template_digest(folder: Path) -> bytes:
    """SHA-256 of the template's text in UTF-8, of "" when there is none; 32 bytes."""
    return sha256((chat_template(folder) or "").encode("utf-8"))


CONFIG_FILES = ("config.json", "quantize_config.json", "quant_config.json")
"""What decides how the tensors are used. ``generation_config.json`` is never applied."""

_WHERE_FROM = ("_name_or_path", "_commit_hash", "transformers_version")


def config_digest(folder: Path) -> bytes:
    """SHA-256 of canonical JSON {file: its content}, without where it came from; 32 bytes."""
    found: dict[str, Any] = {}
    for path in (folder / name for name in CONFIG_FILES):
        if path.is_file():
            read_json(path)  # refuses what is no table
            body = json.loads(path.read_bytes(), parse_constant=str)  # Infinity becomes a word
            found[path.name] = {k: v for k, v in body.items() if k not in _WHERE_FROM}
    return digest_json(found)


PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""What decides how images become pixels, and which tokens stand for them. Videos are never read."""


def processor_digest(folder: Path) -> bytes:
    """SHA-256 of canonical JSON {file: digest of its bytes}; 32 bytes."""
    files = [folder / name for name in PROCESSOR_FILES if (folder / name).is_file()]
    return digest_json({file.name: to_text(sha256(file.read_bytes())) for file in files})


def code_digest(folder: Path) -> bytes:
    """SHA-256 of canonical JSON {path in the folder: digest} over its .py files; 32 bytes."""
    files = sorted(folder.rglob("*.py"))
    return digest_json(
        {file.relative_to(folder).as_posix(): to_text(sha256(file.read_bytes())) for file in files}
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON table; an absent file is an empty one.

    Raises:
        CheckpointError: when the file is no JSON table.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _error(path, "", "JSON", str(error), "fetch the file again") from error
    if not isinstance(content, dict):
        got = type(content).__name__
        raise _error(path, "", "a JSON table", got, "fetch the file again")
    return content


def _require_config(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        fix = "name a folder in the transformers layout (config.json beside the weights)"
        raise _error(folder, "config.json", "the model's configuration", "no such file", fix)
    read_json(folder / "config.json")


def _require_pinned_code(model: Model, folder: Path) -> None:
    """Code comes from the folder and is pinned by its digest, or is not wanted at all."""
    references = list(_code_references(folder))
    if not references and not model.trust_remote_code:
        return
    found = to_text(code_digest(folder))
    if not model.trust_remote_code:
        fix = (
            "read the code, then set trust_remote_code = true and "
            f'code_sha256 = "{found}"; or remove auto_map if the architecture is built in'
        )
        raise _error(folder, "auto_map", "no code of its own", references[0], fix)
    if foreign := [text for text in references if "--" in text]:
        fix = "copy that code into the folder and correct auto_map"
        raise _error(folder, "auto_map", "code in this folder", foreign[0], fix)
    if found != model.code_sha256:
        fix = "read what changed, then pin the new digest"
        raise _error(folder, "code_sha256", str(model.code_sha256), found, fix)


def _code_references(folder: Path) -> Iterator[str]:
    """Every class that a loader would import from the folder or from another repository."""
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        auto_map = read_json(folder / name).get("auto_map")
        values = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
        for value in values:
            for reference in value if isinstance(value, list) else [value]:
                if reference is not None:
                    yield str(reference)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _error(path, "", "UTF-8 text", str(error), "fetch the file again") from error


def _default_template(folder: Path, named: list[Any]) -> str:
    for item in named:
        match item:
            case {"name": "default", "template": str(text)}:
                return text
    fix = f"write the wanted one to {TEMPLATE_FILE}"
    raise _error(folder, "chat_template", 'one template named "default"', "none", fix)


def _error(where: Path, key: str, expected: str, got: str, fix: str) -> CheckpointError:
    return CheckpointError(str(where), key, expected, got, fix)
