"""Code for speed alone. You can delete the folder: everything still works, only slower.

Each kernel replaces a function of `functional` or an op, its reference, and returns the same
numbers up to rounding. Plain mode calls no kernel. `layers`, `attention`, `ops` and `adamw` hold
the kernels; `blocks` and `threads` divide the work; `tuning` has all thresholds.
"""

from importlib import import_module

from ..engine.kernels import when_loaded
from . import attention, layers, ops

when_loaded["optim"] = lambda: import_module(f"{__name__}.adamw")

__all__ = ["attention", "layers", "ops"]
