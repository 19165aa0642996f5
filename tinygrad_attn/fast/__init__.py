"""All that exists for speed alone, in a room that can be deleted: everything works without it, slower.

It registers itself from outside. `ops` and `indexing` put quicker ways of ops in place, `equations` of the functions of
F, `sweep` of the backward pass, `calls` of the call of an op; each names what it replaces and when it fits. What they
compute stands in `kernels/`; `threads` and `allocator` look after the machine. In plain mode nothing of this runs.
"""

from . import calls, equations, indexing, ops, sweep

__all__ = ["calls", "equations", "indexing", "ops", "sweep"]
