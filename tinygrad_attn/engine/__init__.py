"""How a computation is remembered and differentiated."""

from .graph import Context, Node, Op, Variable, constant, local, op
from .sweep import _fit, clone, sum_to, sweep

__all__ = [
    "Context",
    "Node",
    "Op",
    "Variable",
    "clone",
    "constant",
    "local",
    "op",
    "sum_to",
    "sweep",
]
