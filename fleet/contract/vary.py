"""What the replays of a set may deliberately differ in, and which values each of them takes.

Replay 0 of a varied set takes the contract's own values: it is the reference. Every later replay
takes values drawn from its own attempt id, so that nobody chooses them and anybody can draw them
again. Pure: knows no process, no engine and no verdict. Keeps: a drawn value is never the
contract's own, and with nothing varied nothing here changes anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.contract.canonical import sha256
from fleet.contract.model import Contract
from fleet.errors import UsageError

VARIES: tuple[str, ...] = ("batch", "cache", "kernel_cache", "load", "memory", "order", "threads")
"""What this version can vary; sorted, as a claim is."""

MAX_BATCH = 8
"""Rows of a drawn batch, unless twice the contract's own are more."""

NEIGHBOURS_PER_CORE = 2
"""Busy neighbours on the host, at most. Beside two on each core a replay gets a third of the time
it wants."""

PATTERNS = 254
"""Bytes 1 to 254. glibc fills with the complement of a byte, which for 255 is the zero that fresh
memory holds anyway, and takes 0 for "do not fill"."""

KERNELS_AT_LOAD, KERNELS_AT_END = "kernel_cache_at_load", "kernel_cache_at_end"
"""Effective settings: digests of the folder of compiled kernels."""

EXEMPT: Mapping[str, frozenset[str]] = {
    "kernel_cache": frozenset({KERNELS_AT_LOAD, KERNELS_AT_END}),
    "threads": frozenset(
        {
            "env.OMP_NUM_THREADS",
            "env.MKL_NUM_THREADS",
            "env.OPENBLAS_NUM_THREADS",
            "torch.num_threads",
            "torch.parallel_info",
        }
    ),
}
"""Effective settings that follow from a varied value, so that they cannot be equal."""

RULE, USE_CACHE = "decoding.generation_config", "use_cache"
"""The effective setting, and the one entry of it, that follow from a varied cache."""

WORDS: Mapping[str, str] = {
    "batch": "batch",
    "cache": "key-value cache",
    "kernel_cache": "kernel cache",
    "load": "load of the machine",
    "memory": "memory contents",
    "order": "order",
    "threads": "number of threads",
}

Varied = Mapping[str, Any]
"""Name -> value: ``order`` a seed, ``batch`` ``{size, seed}``, ``threads`` a number, ``memory`` a
byte, ``load`` a number of busy neighbours on the host (a device has its stream beside them),
``cache`` whether there is one, ``kernel_cache`` which one. Empty for a reference and for an exact
repeat."""


@dataclass(frozen=True)
class Own:
    """The contract's own values, and what bounds a draw. ``cores``: of the machine that plans."""

    batch_size: int
    num_threads: int
    num_samples: int
    cores: int
    use_cache: bool = True
    kernel_cache: str = "cold"

    @classmethod
    def of(cls, contract: Contract, num_samples: int, cores: int) -> Own:
        """Those of one contract over so many samples."""
        decoding, settings = contract.decoding, contract.determinism
        bounds = decoding.batch_size, settings.num_threads, num_samples, cores
        return cls(*bounds, decoding.use_cache, settings.kernel_cache)


@dataclass(frozen=True)
class Batch:
    """Samples that run together. ``ordinal``: its number in the plan, whenever it runs."""

    ordinal: int
    positions: tuple[int, ...]


def claim(vary: Iterable[str]) -> tuple[str, ...]:
    """The set as a verdict is keyed by it: each name once, sorted."""
    return tuple(sorted(set(vary)))


def draw(vary: Iterable[str], nonce: str, replay: int, own: Own) -> dict[str, Any]:
    """What a replay takes in place of the contract's own values; nothing for the reference.

    Raises:
        ValueError: there is no other value to take (see :func:`cannot_vary`).
    """
    names = claim(vary)
    why = cannot_vary(names, own)
    if why is not None:
        raise ValueError(why)
    return {name: _drawn(name, names, nonce, own) for name in names} if replay else {}


def _drawn(name: str, names: Sequence[str], nonce: str, own: Own) -> Any:
    entropy = sha256(f"fleet-vary-1\n{name}\n{nonce}\n".encode())
    seed, number = entropy[:8].hex(), int.from_bytes(entropy[8:16])
    if name == "order":
        return seed
    if name == "cache":
        return not own.use_cache
    if name == "kernel_cache":
        return other_kernels(own.kernel_cache)
    if name == "memory":
        return 1 + number % PATTERNS
    if name == "load":
        return 1 + number % (NEIGHBOURS_PER_CORE * max(own.cores, 1))
    if name == "threads":
        others = _thread_counts(own)
        return others[number % len(others)]
    sizes = _batch_sizes(own, names)
    return {"size": sizes[number % len(sizes)], "seed": seed}


def other_kernels(own: str) -> str:
    """``pinned`` for ``cold``, ``cold`` for ``pinned``."""
    return "pinned" if own == "cold" else "cold"


def _thread_counts(own: Own) -> list[int]:
    """From 1 to the cores there are, at least 2: more threads than cores split a sum no less."""
    return [n for n in range(1, max(own.cores, 2) + 1) if n != own.num_threads]


def _batch_sizes(own: Own, names: Sequence[str]) -> list[int]:
    """Sizes that make another plan. A joined order needs two batches that can change places."""
    largest = own.num_samples - 1 if "order" in names else own.num_samples
    sizes = {*range(1, MAX_BATCH + 1), 2 * own.batch_size}
    return sorted(s for s in sizes if s <= largest and s != min(own.batch_size, own.num_samples))


def batch_rows(own: Own) -> list[int]:
    """Rows that batches of a drawn size can have; the last one of a plan may have fewer."""
    sizes = _batch_sizes(own, ("batch",))
    return sorted({*sizes, *(own.num_samples % size for size in sizes)} - {0})


def cannot_vary(vary: Iterable[str], own: Own) -> str | None:
    """Why a set cannot be varied so; None when it can."""
    names = claim(vary)
    if "batch" in names and not _batch_sizes(own, names):
        return f"batch: {own.num_samples} samples make no other batches"
    if "order" in names and "batch" not in names and own.num_samples <= own.batch_size:
        return f"order: {own.num_samples} samples in batches of {own.batch_size} are one batch"
    return None


def batch_plan(ids: Sequence[str], arm: str, own_size: int, varied: Varied) -> Iterator[Batch]:
    """An arm's batches in the order they run.

    A varied batch holds other samples, of another number; apart from that the plan stays as near to
    the dataset's order as it can. A varied order moves whole batches, so that no sample meets
    another than before.
    """
    members = enumerate(_members(ids, arm, own_size, varied))
    batches = (Batch(ordinal, positions) for ordinal, positions in members)
    return batches if "order" not in varied else _moved(list(batches), ids, arm, varied["order"])


def _moved(batches: list[Batch], ids: Sequence[str], arm: str, seed: str) -> Iterator[Batch]:
    if len(batches) < 2:
        return iter(batches)
    names = [ids[batch.positions[0]] for batch in batches]
    return (batches[i] for i in next(_shuffles(seed, arm, names)))


def _members(
    ids: Sequence[str], arm: str, own_size: int, varied: Varied
) -> Iterator[tuple[int, ...]]:
    batch = varied.get("batch")
    if batch is None:
        return _chunks(range(len(ids)), own_size)
    mixed = next(_shuffles(batch["seed"], arm, ids)) if len(ids) > 1 else [0]
    return iter(sorted(tuple(sorted(chunk)) for chunk in _chunks(mixed, batch["size"])))


def _chunks(positions: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(positions), size):
        yield tuple(positions[first : first + size])


def _shuffles(seed: str, arm: str, names: Sequence[str]) -> Iterator[list[int]]:
    """Orders of ``names`` by SHA-256, round by round; one that moves nothing is left out."""
    for turn in itertools.count():
        keys = [sha256("\n".join(("", seed, arm, str(turn), name)).encode()) for name in names]
        order = sorted(range(len(names)), key=keys.__getitem__)
        if order != list(range(len(names))):
            yield order


def own_mates(position: int, own: Own) -> tuple[int, ...]:
    """The samples that share a batch with this one by the contract's own plan, itself included."""
    first = position // own.batch_size * own.batch_size
    return tuple(range(first, min(first + own.batch_size, own.num_samples)))


def varied_contract(contract: Contract, varied: Varied) -> Contract:
    """The contract that a replay runs under; its execution id stays that of ``contract``."""
    decoding, settings = contract.decoding, contract.determinism
    if "batch" in varied:
        decoding = decoding.model_copy(update={"batch_size": varied["batch"]["size"]})
    if "cache" in varied:
        decoding = decoding.model_copy(update={USE_CACHE: varied["cache"]})
    if "threads" in varied:
        settings = settings.model_copy(update={"num_threads": varied["threads"]})
    if "kernel_cache" in varied:
        settings = settings.model_copy(update={"kernel_cache": varied["kernel_cache"]})
    return contract.model_copy(update={"decoding": decoding, "determinism": settings})


def environment(vary: Iterable[str], varied: Varied) -> dict[str, str]:
    """Variables beside those of the contract that must precede the process.

    Allocated memory is filled with the complement of the byte, 0 fills nothing: mallopt(3),
    "MALLOC_PERTURB_". A reference gets 0, for a node may have a value of its own.
    """
    return {"MALLOC_PERTURB_": str(varied.get("memory", 0))} if "memory" in vary else {}


def comparable(effective: Mapping[str, Any], vary: Iterable[str]) -> dict[str, Any]:
    """Effective settings without those that the variation decides."""
    exempt = frozenset[str]().union(*(EXEMPT.get(name, frozenset()) for name in vary))
    kept = {key: value for key, value in effective.items() if key not in exempt}
    if "cache" in vary and isinstance(rule := kept.get(RULE), Mapping):
        kept[RULE] = {key: value for key, value in rule.items() if key != USE_CACHE}
    return kept


def in_words(vary: Iterable[str]) -> str:
    """``exact repeat``, or ``varied order and memory contents``."""
    names = [WORDS[name] for name in claim(vary)]
    if not names:
        return "exact repeat"
    head, last = ", ".join(names[:-1]), names[-1]
    return f"varied {head} and {last}" if head else f"varied {last}"


def parse_claims(texts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """``order``, ``order,memory`` or ``none``, each a claim of its own.

    Raises:
        UsageError: nothing named, ``none`` beside a name, or one claim twice. Names themselves are
            judged with the contract.
    """
    found: list[tuple[str, ...]] = []
    for text in texts:
        names = [name.strip() for name in text.split(",")]
        if "" in names or ("none" in names and names != ["none"]):
            expected = f"names joined by commas ({', '.join(VARIES)}), or none"
            raise UsageError("command line", "--vary", expected, repr(text), "--vary order")
        named = () if names == ["none"] else tuple(sorted(names))
        if named in found:
            raise UsageError("command line", "--vary", "each claim once", repr(text), "drop one")
        found.append(named)
    return tuple(found)
