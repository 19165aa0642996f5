"""All that exists for speed alone, in a room that can be deleted: everything works without it,
slower.

It registers itself from outside. `engine` puts a quicker call of an op and a quicker sweep in
place, `ops` and `indexing` quicker ways of ops, `equations` of the functions of F, `optimizers` of
their steps; each names what it replaces and when it fits. What they compute stands in `kernels/`;
`threads`, `signals` and `allocator` look after the machine, and all thresholds stand in `tuning`.
`compiling` is `ta.compile`, which is loaded when it is first asked for.
In plain mode nothing of this runs.
"""

from importlib import import_module

from ..engine.kernels import when_loaded
from . import engine, equations, indexing, ops

when_loaded["optim"] = lambda: import_module(f"{__name__}.optimizers")

__all__ = ["engine", "equations", "indexing", "ops"]
