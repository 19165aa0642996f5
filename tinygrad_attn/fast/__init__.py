"""All that exists for speed alone, in a room that can be deleted: everything works without it,
slower.

It registers itself from outside. `ops` and `indexing` put quicker ways of ops in place, `equations`
of the functions of F, `sweep` of the backward pass, `calls` of the call of an op; each names what
it replaces and when it fits. What they compute stands in `kernels/`; `threads` and `allocator` look
after the machine. In plain mode nothing of this runs.
"""

from importlib import import_module

from ..engine.quick import when_loaded
from . import calls, equations, indexing, ops, sweep

when_loaded["optim"] = lambda: import_module(f"{__name__}.optimizers")

__all__ = ["calls", "equations", "indexing", "ops", "sweep"]
