"""`@op`: how a user's function on arrays becomes an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from . import misuse
from .op import Op


@overload
def op(forward: Callable[..., Any], **flags: Any) -> Op: ...
@overload
def op(
    *, broadcasts: bool = False, saves: bool = False, reference: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Op]: ...
def op(forward: Callable[..., Any] | None = None, **flags: Any) -> Any:
    """`@op` makes a function on arrays an op; give it its derivative with `.vjp`.

        @op
        def cube(x):
            return x * x * x
        cube.vjp(lambda g, y, x: g * 3 * x * x)

    Positional arguments are differentiable inputs, keyword-only ones are settings. Each rule gets
    `g`, the gradient of the loss by the result `y`, then `y` and the inputs, and returns the
    gradient of its input, of that input's shape. It changes nothing that it was given. Write rules
    with operators, methods and NumPy functions and they can be differentiated again.

    Flags: `broadcasts=True`, the op follows NumPy broadcasting and its gradients are summed back to
    the inputs' shapes; `saves=True`, forward returns `(y, saved)`, and the rule for all inputs, see
    `vjp_all`, gets `saved=`; `reference=f`, a composite of ops that computes the same and is
    differentiated in its place where a derivative is to be differentiated again. What is saved has
    no graph, so an op that saves floating numbers needs a reference for second derivatives.

    Raises TypeError for another flag, and for what is no function.
    """
    misuse.check_flags_of_op(flags)
    return Op(forward, **flags) if forward is not None else lambda f: Op(f, **flags)
