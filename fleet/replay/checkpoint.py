"""From a contract's ``checkpoint`` to a local folder that is whole, pinned and loadable.

``path:`` is a folder beside the contract, ``hf:`` a pinned revision from the local hub cache or
the hub, ``demo:`` one that is made here, once. Knows no engine and imports no torch. A folder in
the cache is either complete or not there: it is built under another name and renamed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fleet.contract.canonical import digest_json, to_text
from fleet.contract.model import Model
from fleet.errors import CheckpointError
from fleet.replay import demo
from fleet.replay.checkpoint_tensors import checkpoint_digest, tensor_digests, weight_files
from fleet.replay.checkpoint_text import (
    chat_template,
    chat_template_digest,
    code_digest,
    config_digest,
    processor_digest,
    require_usable,
    tokenizer_digest,
)

__all__ = [
    "chat_template",
    "chat_template_digest",
    "checkpoint_digest",
    "code_digest",
    "config_digest",
    "content",
    "default_cache",
    "existing",
    "files_stat",
    "processor_digest",
    "resolve",
    "tensor_digests",
    "tokenizer_digest",
    "weights_stat",
]

Report = Callable[[str], None]

SYNTHETIC = "synthetic"
"""``demo:synthetic`` is the synthetic engine's model: it has no folder."""

HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
HUB_NOT = ("*/*.safetensors", "*/*.json", "*/*.model")  # other formats' copies, in subfolders


def silent(line: str) -> None:
    """Report nothing."""


def default_cache(environ: Mapping[str, str]) -> Path:
    """FLEET_CACHE, else $XDG_CACHE_HOME/fleet, else ~/.cache/fleet."""
    if chosen := environ.get("FLEET_CACHE"):
        return Path(chosen).expanduser()
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")) / ".cache")
    return Path(base).expanduser() / "fleet"


def resolve(model: Model, near: Path, cache: Path, report: Report = silent) -> Path | None:
    """The local folder of a contract's checkpoint; None for ``demo:synthetic``.

    Args:
        model: the contract's [model] table.
        near: the folder of the contract file; ``path:`` is relative to it.
        cache: where demo checkpoints live.
        report: gets one line for each thing that takes time.

    Raises:
        CheckpointError: when there is no usable checkpoint, with what to do.
    """
    scheme, _, name = model.checkpoint.partition(":")
    if (scheme, name) == ("demo", SYNTHETIC):
        return None
    match scheme:
        case "demo":
            folder = _demo(name, cache, report)
        case "hf":
            folder = _hub(model, name, report)
        case _:
            folder = (near / Path(name).expanduser()).resolve()
    require_usable(model, folder)
    weight_files(folder)
    return folder


def existing(model: Model, near: Path, cache: Path) -> Path | None:
    """The folder of a ``path:`` or ``demo:`` checkpoint if it is there; makes nothing."""
    kind, _, name = model.checkpoint.partition(":")
    if kind == "hf" or model.checkpoint == f"demo:{SYNTHETIC}":
        return None
    made = kind == "demo"
    folder = cache / "demo" / demo.find(name).folder if made else near / Path(name).expanduser()
    return folder.resolve() if folder.is_dir() else None


def files_stat(folder: Path | None) -> str:
    """A digest of names, sizes and times of a folder's files: equal means untouched on this
    machine, unequal means nothing (a copy has other times)."""
    if folder is None:
        return ""
    return _stat(folder, (path for path in sorted(folder.rglob("*")) if path.is_file()))


def weights_stat(folder: Path) -> str:
    """The same of the files that hold the weights."""
    return _stat(folder, weight_files(folder))


def _stat(folder: Path, paths: Iterable[Path]) -> str:
    stats = [
        [str(path.relative_to(folder)), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino]
        for path in paths
        if (s := path.stat())
    ]
    return to_text(digest_json(stats))


def _demo(name: str, cache: Path, report: Report) -> Path:
    wanted = demo.find(name)
    folder = cache / "demo" / wanted.folder
    if not folder.is_dir():
        try:
            _make(wanted, folder, report)
        except OSError as error:
            fix = "set FLEET_CACHE to a writable folder with 600 MB of room (28 layers: 6 GB)"
            raise CheckpointError(
                str(folder), "", "a folder that can be written", str(error), fix
            ) from error
    return folder


def _make(wanted: demo.Demo, folder: Path, report: Report) -> None:
    """Build under another name, check, flush to disk, rename. Of two makers the first wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        wanted.build(temporary, report)
        demo.accept(wanted.name, temporary, content(temporary))
        _flush(temporary)
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def content(folder: Path) -> demo.Content:
    """The digests of a folder that a contract's identity is made from."""
    return demo.Content(
        checkpoint=to_text(checkpoint_digest(tensor_digests(folder))),
        tokenizer=to_text(tokenizer_digest(folder)),
        chat_template=to_text(chat_template_digest(folder)),
    )


def _publish(temporary: Path, folder: Path) -> None:
    """Rename; a folder with content there already is another maker's complete one."""
    temporary.chmod(0o755)
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    _sync(folder.parent)


def _flush(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        if path.is_file():
            path.chmod(0o644)
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hub(model: Model, repository: str, report: Report) -> Path:
    """The local hub cache when it has the whole revision, else the hub."""
    local = _snapshot(model, repository, local_files_only=True)
    if isinstance(local, Path) and _is_whole(model, local):
        return local
    report(f"fetching {repository} at {model.revision} from the hub")
    fetched = _snapshot(model, repository, local_files_only=False)
    if isinstance(fetched, Path):
        return fetched
    first_line = (str(fetched).strip() or "no reason given").splitlines()[0]
    raise CheckpointError(
        f"hf:{repository}",
        "revision",
        f"commit {model.revision} in the local hub cache or on the hub",
        f"{type(fetched).__name__}: {first_line}",
        f"check the network and the rights, then: hf download {repository} "
        f"--revision {model.revision}; or copy it here and use path:",
    ) from fetched


def _snapshot(model: Model, repository: str, local_files_only: bool) -> Path | Exception:
    """The snapshot folder, or why there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [*HUB_FILES, "*.py"] if model.trust_remote_code else [*HUB_FILES]
    # Its bases are OSError and the base error of whichever HTTP library the hub client uses.
    known: tuple[type[Exception], ...] = (
        *HfHubHTTPError.__bases__,
        HFValidationError,
        LocalEntryNotFoundError,
    )
    try:
        return Path(
            snapshot_download(
                repository,
                revision=model.revision,
                allow_patterns=patterns,
                ignore_patterns=[*HUB_NOT],
                local_files_only=local_files_only,
            )
        )
    except known as error:
        return error


def _is_whole(model: Model, folder: Path) -> bool:
    """A hub snapshot holds what was asked for at the time, perhaps only a tokenizer."""
    try:
        require_usable(model, folder)
        weight_files(folder)
    except CheckpointError:
        return False
    return True
