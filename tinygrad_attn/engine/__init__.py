"""How a computation is recorded and differentiated.

Read `graph`, `op` and `backward`, in this order: they contain the algorithm, exactly as it runs. Of
the other files, `modes` has the per-thread settings, `inplace` detects values that were changed in
place, and `kernels` lets fast/ replace functions with faster ones.
"""

from . import inplace
from .backward import grad, sum_to, sweep
from .graph import RETAINED, Node, Symbolic, Variable, array_of, history, tensor_of, tracked
from .kernels import FunctionCall, kernel, reference
from .modes import Watcher, context, enable_grad, is_plain, no_grad, plain, watching
from .op import Op, op

__all__ = [
    "RETAINED",
    "FunctionCall",
    "Node",
    "Op",
    "Symbolic",
    "Variable",
    "Watcher",
    "array_of",
    "context",
    "enable_grad",
    "grad",
    "history",
    "inplace",
    "is_plain",
    "kernel",
    "no_grad",
    "op",
    "plain",
    "reference",
    "sum_to",
    "sweep",
    "tensor_of",
    "tracked",
    "watching",
]
