"""How a computation is recorded and differentiated.

Read `graph`, `op` and `backward`, in this order: they contain the algorithm. Of the other files,
`run` has what surrounds a computation in its thread, `bundle` makes several tensors one output,
`inplace` detects values that were changed in place, and `kernels` lets fast/ replace functions with
faster ones.
"""

from . import inplace
from .backward import grad, sum_to, sweep
from .graph import (
    Hooks,
    Node,
    Parts,
    Symbolic,
    Variable,
    array_of,
    history,
    read_only,
    tensor_of,
    tracked,
)
from .kernels import FunctionCall, kernel, reference
from .op import Op, op
from .run import Listener, context, enable_grad, heard, is_plain, listening, no_grad, plain
