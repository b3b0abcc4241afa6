"""Lets torchvision be imported beside a torch without CUDA, for processes with this folder on their
path.

The wheels of torchvision on PyPI are linked to CUDA, so beside a CPU torch their compiled operators
(boxes, regions of interest) are not there, and two modules that describe those raise at import. The
image transforms are Python over torch and need neither.
"""

from __future__ import annotations

import sys
from types import ModuleType

for name in ("_meta_registrations", "_autograd_registrations"):
    sys.modules[f"torchvision.{name}"] = ModuleType(f"torchvision.{name}")
