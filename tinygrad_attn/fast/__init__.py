"""Code that exists only for speed. If you delete this folder, everything still works, but slower.

Each kernel replaces a reference, which is an op or a function of `functional`, and returns the same
numbers up to rounding. Plain mode calls no kernel. `layers`, `attention`, `ops` and `adamw` contain
the kernels; `blocks` and `threads` divide the work; `tuning` has all thresholds.
"""

from importlib import import_module

from ..engine.kernels import with_optim
from . import attention, layers, ops

with_optim.append(lambda: import_module(f"{__name__}.adamw"))
