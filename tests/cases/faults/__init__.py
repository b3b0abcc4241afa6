"""Faults, each in one process: a function changes one thing and the replay goes on as ever.

Called in the child before the replay starts, as ``name(task, entry)``; may return other entry
facts. Names are looked up over all modules of this package.
"""

from __future__ import annotations

from typing import Any

from tests.cases.faults import framework, generation, inputs, process, rows, stress

MODULES = (inputs, framework, generation, rows, process, stress)


def __getattr__(name: str) -> Any:
    found = [vars(module)[name] for module in MODULES if name in vars(module)]
    if not found:
        raise AttributeError(name)
    if any(other is not found[0] for other in found):
        raise NameError(f"two faults are called {name}")
    return found[0]
