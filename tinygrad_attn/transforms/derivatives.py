"""Transforms of functions: vjp, jvp, value_and_grad, jacobian, hessian and hvp.

Tensors in, Tensors out; arrays and numbers in, arrays out. A gradient is an array if its argument
was one, and so is the value of f if no differentiated argument is a Tensor. f itself always gets
Tensors. Results that will be differentiated again are always Tensors. Transforms can be nested:
`jacobian(lambda x: value_and_grad(f)(x)[1], x)` is a Hessian. Outside another transform, pass
`create_graph=True` to make derivatives differentiable.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..engine import Variable, context, enable_grad, grad
from ..errors import describe, is_integer
from ..tensor import Tensor


def _input(x, create_graph):
    """Return x as a Tensor, which is a leaf unless its derivatives will be differentiated."""
    if not isinstance(x, Tensor):
        several = isinstance(x, (list, tuple)) and any(isinstance(item, Variable) for item in x)
        if several or isinstance(x, dict):
            raise TypeError(
                f"an argument must be one Tensor, array or number, got {describe(x)}. Pass several "
                "arguments separately, as in value_and_grad(f, argnums=(0, 1))(w, b), vjp(f, *xs) "
                "and jvp(f, xs, vs), or write ta.grad(loss, xs) for a list of Tensors."
            )
        return Tensor(x, requires_grad=True)
    if create_graph and x._tracked and context.recording:
        return x.clone()
    leaf = Tensor._of(x._data)
    leaf.requires_grad = True  # raises for integers
    return leaf


def _direction(v, like, requirement):
    """Return the cotangent or tangent v as a Tensor with the shape of `like`."""
    if not isinstance(v, Variable):
        v = Tensor(v, dtype=like.dtype)
    if v.shape != like.shape:
        raise ValueError(f"{requirement}: got {v.shape} for {describe(like)}.")
    return v


def _call(f, inputs, keywords=None):
    """Call f and return its output, which must be one Tensor."""
    with enable_grad(), context.entered(in_transform=True):
        y = f(*inputs, **(keywords or {}))
    if not isinstance(y, Tensor):
        raise TypeError(
            f"the function to differentiate must return one Tensor, but it returned {describe(y)}. "
            "Compute with tensor methods or np.* functions (.numpy(), .item() and .data leave the "
            "graph). Combine several outputs with np.concatenate or a weighted sum."
        )
    return y


def _evaluated(f, xs, create_graph):
    """Return f(*xs), the Tensors to differentiate it by, and whether this will be recorded."""
    recorded = _recorded(create_graph)
    inputs = [_input(x, recorded) for x in xs]
    return _call(f, inputs), inputs, recorded


def _gradients(ys, inputs, gs, create_graph, retain):
    """Return d(sum of <g, y>) / d(inputs), with zeros for an input that no y depends on."""
    pairs = [(y, g) for y, g in zip(ys, gs, strict=True) if y._tracked]
    found = grad(
        [y for y, _ in pairs],
        inputs,
        [g for _, g in pairs],
        create_graph=create_graph,
        retain_graph=retain,
        allow_unused=True,
    )
    return tuple(
        Tensor._of(np.zeros(x.shape, x.dtype)) if d is None else d for x, d in zip(inputs, found)
    )


def _gradient_of(f):
    """Return the gradient of a function with one argument, as a function."""
    return lambda x: value_and_grad(f)(x)[1]


def _recorded(create_graph):
    """Return `create_graph`, by default True inside another transform or a recorded pass."""
    inside = context.in_transform or context.backward_pass is not None
    return inside and bool(context.recording) if create_graph is None else create_graph


def _returned(result, create_graph, *arguments):
    """Return a result as it is if it will be differentiated, and otherwise outside the graph.

    The result is then an array, unless one of the arguments is a Tensor.
    """
    if create_graph:
        return result
    if any(isinstance(x, Variable) for x in arguments):
        return Tensor._of(result._data)
    return result.numpy()[()]


def vjp(
    f: Callable[..., Any], *xs, create_graph: bool | None = None
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return `(y, pullback)`, where y = f(*xs) and `pullback(g)` is a tuple of g^T dy/dx.

    The tuple has one element for each x. g must have y's shape (else ValueError). The pullback may
    be called several times. Raises TypeError if f does not return one Tensor. Like jax.vjp.
    """
    y, inputs, recorded = _evaluated(f, xs, create_graph)

    def pullback(g):
        cotangent = _direction(g, y, "g must have y's shape")
        # g may come from an enclosing transform although no input does.
        again = recorded or cotangent.requires_grad and _recorded(create_graph)
        slopes = _gradients([y], inputs, [cotangent], again, True)
        return tuple(_returned(slope, again, x, g) for slope, x in zip(slopes, xs))

    return _returned(y, recorded, *xs), pullback


def jvp(f: Callable[..., Any], xs, vs, *, create_graph: bool | None = None) -> tuple[Any, Any]:
    """Return `(y, tangent)`, where y = f(*xs) and tangent is the sum of (dy/dx) v over xs and vs.

    `xs` and `vs` are both sequences, or both a single Tensor, array or number. Raises ValueError
    unless each x has a v of the same shape. Like jax.jvp.

    The pullback g -> g^T J is linear in g, so its own pullback applied to v is J v. Therefore, jvp
    takes two backward passes and needs no forward-mode derivatives. Backward hooks run in these
    passes, so a hook that changes a gradient also changes the tangent.
    """
    if not isinstance(xs, (tuple, list)):
        xs, vs = [xs], [vs]
    y, inputs, recorded = _evaluated(f, xs, create_graph)
    rule = "a tangent must have its input's shape"
    vs = [_direction(v, x, rule) for x, v in zip(inputs, vs, strict=True)]
    with enable_grad():  # an output of an op, so that it is newer than y
        seed = Tensor._of(np.zeros_like(y._data), True).clone()
    pulled = _gradients([y], inputs, [seed], True, True)
    (tangent,) = _gradients(pulled, [seed], vs, recorded, False)
    return _returned(y, recorded, *xs), _returned(tangent, recorded, *xs)


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, *, create_graph: bool | None = None
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes f(*args) and its gradient with respect to args[argnums].

    The gradient is a tuple if `argnums` is a sequence. Keyword arguments are passed on to f. f must
    return a single number (else ValueError). Raises IndexError if an argument in `argnums` is not
    positional. Like jax.value_and_grad.
    """
    several = isinstance(argnums, Iterable)
    chosen = tuple(argnums) if several else (argnums,)  # type: ignore[arg-type]
    if not all(map(is_integer, chosen)):
        raise TypeError(
            "argnums must be an index, or indices. Pass values as in value_and_grad(f)(x); got "
            f"{describe(argnums)}."
        )

    def both(*args, **kwargs):
        recorded = _recorded(create_graph)
        # IndexError if f gets fewer arguments
        places = [range(len(args))[i] for i in chosen]  # type: ignore[index]
        inputs = {i: _input(args[i], recorded) for i in places}  # one, even if listed twice
        y = _call(f, [inputs.get(i, x) for i, x in enumerate(args)], kwargs)
        if y.size != 1:
            raise ValueError(
                "this transform needs a function that returns a single number, but the function "
                f"returned {describe(y)}. Reduce the output first, for example with .sum() or "
                ".mean(), or use vjp or jacobian."
            )
        slopes = _gradients([y], [inputs[i] for i in places], [None], recorded, False)
        chosen_args = [args[i] for i in places]
        found = tuple(_returned(d, recorded, x) for d, x in zip(slopes, chosen_args))
        return _returned(y, recorded, *chosen_args), found if several else found[0]

    return both


def jacobian(f: Callable[..., Any], x, *, create_graph: bool | None = None):
    """Return all dy_i / dx_j with shape y.shape + x.shape, using one backward pass for each y_i."""
    y, inputs, recorded = _evaluated(f, [x], create_graph)
    rows = []
    for i in range(y.size):
        one_hot = np.eye(1, y.size, i, y.dtype).reshape(y.shape)
        rows += _gradients([y], inputs, [one_hot], recorded, i < y.size - 1)
    stacked = np.stack(rows) if rows else Tensor._of(np.zeros(0, inputs[0].dtype))
    return _returned(stacked.reshape(*y.shape, *inputs[0].shape), recorded, x)


def hessian(f: Callable[..., Any], x, *, create_graph: bool | None = None):
    """Return d^2 f / (dx_i dx_j) for all i and j, with shape x.shape + x.shape.

    f must return a single number (else ValueError).
    """
    return jacobian(_gradient_of(f), x, create_graph=create_graph)


def hvp(f: Callable[..., Any], x, v, *, create_graph: bool | None = None):
    """Return H v, where H is the Hessian of f at x, without building H.

    The result is the gradient of <grad f, v>. v must have x's shape, and f must return a single
    number (else ValueError).
    """
    slope, inputs, recorded = _evaluated(_gradient_of(f), [x], create_graph)
    v = _direction(v, inputs[0], "v must have x's shape")
    return _returned(_gradients([slope], inputs, [v], recorded, False)[0], recorded, x)
