"""What exists for speed alone. The folder can be deleted: everything works without it, slower.

Each kernel is registered over a function of `functional` or an op, its reference, and returns the
same numbers up to rounding. In plain mode no kernel is called. `layers`, `attention`, `ops` and
`adamw` hold the kernels; `blocks` and `threads` share out the work; all thresholds are in `tuning`.
"""

from importlib import import_module

from ..engine.kernels import when_loaded
from . import attention, layers, ops

when_loaded["optim"] = lambda: import_module(f"{__name__}.adamw")

__all__ = ["attention", "layers", "ops"]
