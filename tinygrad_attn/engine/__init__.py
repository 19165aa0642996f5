"""How a computation is remembered and differentiated.

Read `graph` (records), `op` and `sweep`; that is the algorithm. Beside them: `context`, what holds
in a thread; `released`, what stands in a graph that has been used; `defining`, `recording` and
`autograd`, what a user calls; `quick`, where fast/ hangs quicker ways; `changes`, the watcher that
finds values changed in place, with `reading`, which values a rule reads, and `history`, what was
computed from what; `parameters`, `operands` and `misuse`, which say what is wrong with a call or a
rule.
"""

from . import inplace  # it puts its watcher in
from .defining import op
from .graph import Node, Variable, array_of, tensor_of, tracked
from .kernels import kernel, reference
from .modes import Watcher, context, everywhere, rehearsing, watching
from .op import Op
from .operands import Symbolic
from .recording import enable_grad, is_plain, no_grad, plain
from .released import Released
from .sweep import sum_to, sweep

__all__ = [
    "Op",
    "Node",
    "Released",
    "Symbolic",
    "Variable",
    "Watcher",
    "array_of",
    "inplace",
    "enable_grad",
    "reference",
    "everywhere",
    "is_plain",
    "context",
    "no_grad",
    "op",
    "plain",
    "kernel",
    "rehearsing",
    "sum_to",
    "sweep",
    "tensor_of",
    "tracked",
    "watching",
]
