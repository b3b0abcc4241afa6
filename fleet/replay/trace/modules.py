"""What a module is and owns: facts that decide its arithmetic, weights, and what it may change.

Weights are hashed when tracing begins and again at its end; buffers and other tensors that a module
keeps at every call, because code changes those. The packed tensors of a quantised linear count as
weights.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fleet.evidence.trace import WeightRow
from fleet.replay.trace.digesting import TensorDigests, holds_content, walk
from fleet.replay.trace.late import Part, Sealed, Token

FRAMEWORK = frozenset(vars(nn.Module()))
"""Attributes that torch itself gives to every module; hooks and children are among them."""

_HOOKS = ("_forward_", "_backward_", "_state_dict_", "_load_state_dict_", "_non_persistent_")


def facts_of(module: nn.Module) -> dict[str, Any]:
    """Class, dtype of its own parameters, and every attribute that is a plain value."""
    found: dict[str, Any] = {"class": f"{type(module).__module__}.{type(module).__qualname__}"}
    for name, value in sorted(vars(module).items()):
        if name.startswith(_HOOKS):
            continue
        if isinstance(value, enum.Enum):
            found[name] = value.value if isinstance(value.value, bool | int | str) else value.name
        elif isinstance(value, bool | int | str):
            found[name] = value
        elif isinstance(value, float):
            found[name] = {"float": repr(value)}
        elif isinstance(value, torch.dtype | torch.device):
            found[name] = repr(value)
    parameters = [p for p in module._parameters.values() if p is not None]
    if parameters:
        found["dtype"] = str(parameters[0].dtype).removeprefix("torch.")
    return found


def facts_text(module: nn.Module) -> str:
    """:func:`facts_of` as JSON with sorted keys."""
    return json.dumps(facts_of(module), sort_keys=True)


def has_forward(module: nn.Module) -> bool:
    """Containers have none of their own and are never called."""
    return type(module).forward is not nn.Module.forward


def layers_below(module: nn.Module) -> list[int] | None:
    """Indices of the cache layers that this module or what is in it works on; None if unknown."""
    own = getattr(module, "layer_idx", None)
    if isinstance(own, int):
        return [own]
    found = {
        m.layer_idx for m in module.modules() if isinstance(getattr(m, "layer_idx", None), int)
    }
    return sorted(int(i) for i in found) or None  # type: ignore[arg-type]


def plain_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors kept as attributes, neither parameters nor buffers."""
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            yield name, value


def _kept(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attributes with tensors in them: plain tensors, collections, a cache of the module's own."""
    for name, value in vars(module).items():
        if name not in FRAMEWORK and holds_content(value):
            yield name, value


def buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Its own buffers, by name."""
    for name, value in module._buffers.items():
        if value is not None:
            yield name, value


class Owned:
    """Tensors that modules own, and their digests.

    Args:
        modules: path -> module.
        packed: paths whose buffers and plain tensors are weights too.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        packed: Collection[str],
        digests: TensorDigests,
    ) -> None:
        self._modules, self._packed, self._digests = modules, frozenset(packed), digests
        self.at_load = self.weights()
        self._fixed = {path: self._fixed_part(path) for path in modules}

    def weights(self, top: str = "") -> dict[str, tuple[str, bytes]]:
        """Name -> (owner, digest) of every weight of ``top`` and the modules in it, as it is now; a
        tied one is hashed once."""
        paths = [p for p in self._modules if not top or p == top or p.startswith(f"{top}.")]
        owned = [(path, name, t) for path in paths for name, t in self._weights_of(path)]
        distinct = {id(tensor): tensor for _, _, tensor in owned}
        hashed = {key: self._digests.once(tensor) for key, tensor in distinct.items()}
        return {
            f"{path}.{name}" if path else name: (path, hashed[id(tensor)])
            for path, name, tensor in owned
        }

    def _weights_of(self, path: str) -> Iterator[tuple[str, torch.Tensor]]:
        module = self._modules[path]
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield name, parameter
        if path in self._packed:
            yield from buffers(module)
            yield from plain_tensors(module)

    def _fixed_part(self, path: str) -> Part:
        prefix = f"{path}." if path else ""
        names = [name for name, _ in self._weights_of(path)]
        tokens = [t for n in names for t in (n.encode(), self.at_load[prefix + n][1])]
        return Sealed(tokens) if tokens else None

    def digest(self, path: str) -> Part:
        """What the module owns as it is now, weights as they were at load; None if nothing."""
        if path in self._packed:
            return self._fixed[path]
        module = self._modules[path]
        tokens: list[Token] = []
        for name, value in (*buffers(module), *_kept(module)):
            tokens += [name.encode(), *walk(value, self._digests, keep_caches=False).tokens]
        fixed = self._fixed[path]
        if not tokens or fixed is None:
            return Sealed(tokens) if tokens else fixed
        return Sealed([*fixed.tokens(), *tokens])

    def rows(self) -> list[WeightRow]:
        """Every weight at load and now."""
        now = self.weights()
        return [
            WeightRow(name, path, digest, now[name][1] if name in now else None)
            for name, (path, digest) in self.at_load.items()
        ]
