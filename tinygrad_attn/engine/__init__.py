"""How a computation is remembered and differentiated.

Read `graph` (records), `op` and `sweep`; that is the algorithm. Beside them: `context`, what holds
in a thread; `released`, what stands in a graph that has been used; `defining`, `recording` and
`autograd`, what a user calls; `quick`, where fast/ hangs quicker ways; `changes`, the watcher that
finds values changed in place, with `reading`, which values a rule reads, and `history`, what was
computed from what; `parameters`, `operands` and `misuse`, which say what is wrong with a call or a
rule.
"""

from . import changes  # it puts its watcher in
from .context import Context, Watcher, everywhere, local, rehearsing, watching
from .defining import op
from .graph import Record, Variable, array_of, tensor_of, tracked
from .op import Op
from .operands import Symbolic
from .quick import equation, quick_way
from .recording import enable_grad, is_plain, no_grad, plain
from .released import Released
from .sweep import sum_to, sweep

__all__ = [
    "Context",
    "Op",
    "Record",
    "Released",
    "Symbolic",
    "Variable",
    "Watcher",
    "array_of",
    "changes",
    "enable_grad",
    "equation",
    "everywhere",
    "is_plain",
    "local",
    "no_grad",
    "op",
    "plain",
    "quick_way",
    "rehearsing",
    "sum_to",
    "sweep",
    "tensor_of",
    "tracked",
    "watching",
]
