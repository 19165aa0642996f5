"""Transforms: vjp, jvp, value_and_grad, jacobian, hessian and hvp of a function, and checkpoint.

Inputs may be Tensors, arrays or numbers; results are Tensors.  A transform used inside a function that is itself being transformed records
what it does, so `jacobian(lambda x: value_and_grad(f)(x)[1], x)` is a Hessian; elsewhere say `create_graph=True` to differentiate further.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np

from ..engine import Op, Variable, Watcher, changes, clone, constant, local, sweep, tracked
from ..engine.autograd import enable_grad, grad, no_grad
from ..engine.graph import clock
from ..messages.errors import describe
from ..random import get_rng_state, set_rng_state
from ..tensor import Tensor
from ..tensor.convert import as_gradient, holds

__all__ = ["checkpoint", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp"]

Result = TypeVar("Result")


class _Depth(threading.local):
    """How many transforms this thread is inside."""

    value = 0


_depth = _Depth()


def _input(x: Any, create_graph: bool) -> Tensor:
    """A tensor to differentiate by: part of the graph around it if its derivatives are to be differentiated, else a leaf of its own."""
    if not isinstance(x, Variable):
        try:
            return Tensor(x, requires_grad=True)
        except (TypeError, ValueError):
            if not (
                isinstance(x, dict)
                or holds("parameters", x)
                or isinstance(x, (list, tuple))
                and holds("__array__", x)
            ):
                raise  # a list of numbers, say, with something else in it
            raise TypeError(
                f"one argument is one Tensor, array or number, got {describe(x)}. Pass several one by one, as in "
                "value_and_grad(f, argnums=(0, 1))(w, b), vjp(f, *xs) and jvp(f, xs, vs), or write ta.grad(loss, xs) for a "
                "list of Tensors, such as list(model.parameters())."
            ) from None
    if create_graph and x._tracked and local.context.recording:
        return clone(x)
    _tell_checkpoints(x)  # of the ops they see only the leaf
    leaf = Tensor._of(x._data, x._data.dtype.kind == "f")
    leaf.requires_grad = True  # refuses integers
    return leaf


def _direction(v: Any, like: Tensor, rule: str) -> Tensor:
    """What a derivative is multiplied by: real numbers of a tensor's shape."""
    if v is None:
        raise TypeError(
            f"{rule}, and None has none: write np.ones({like.shape}), or other numbers of the shape of {describe(like)}."
        )
    if isinstance(v, Variable):
        _tell_checkpoints(v)  # no op takes it where nothing is recorded
    else:
        v = Tensor._of(as_gradient(v, like.dtype))
    if v.shape != like.shape:
        raise ValueError(f"{rule}: got {v.shape} for {describe(like)}.")
    return v


def _tell_checkpoints(x: Variable) -> None:
    for watcher in local.context.watchers:
        if isinstance(watcher, _Closure):
            watcher.note(x)


def _call(f: Callable, inputs: Sequence[Any], keywords: dict[str, Any] | None = None) -> Tensor:
    """f's one result, as a Tensor."""
    _check_function(f)
    _depth.value += 1
    try:
        with enable_grad():
            y = f(*inputs, **(keywords or {}))
    finally:
        _depth.value -= 1
    if isinstance(y, (tuple, list, dict)) or y is None:
        raise TypeError(
            f"the function to differentiate returned {describe(y)}; it must return one Tensor. Combine several with "
            "np.concatenate or a weighted sum, or differentiate one at a time."
        )
    if not isinstance(y, Tensor) and (
        _computes_with(f, inputs, keywords or {}) or _moves_with(f, y, inputs, keywords or {})
    ):
        raise TypeError(
            f"the function to differentiate returned {describe(y)}, which does not remember how it was computed; it must "
            "return a Tensor. Compute with tensor methods or np.* functions; .numpy(), .item() and .data leave the graph."
        )
    return y if isinstance(y, Tensor) else Tensor(y)


def _computes_with(f: Callable, inputs: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Does f apply ops to its inputs?  Then a plain result is no constant, but has left the graph."""
    here, watcher = local.context, _Closure(())
    before, here.watchers = here.watchers, (*here.watchers, watcher)
    try:
        f(*inputs, **keywords)
    finally:
        here.watchers = before
    return any(id(x) in watcher.found for x in inputs)


def _moves_with(f: Callable, y: Any, inputs: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Does a plain result change with the inputs, as that of math.sin does?  Then it is no constant either."""
    moved = [
        Tensor._of(x._data + 1e-3 * (1 + abs(x._data)))
        if isinstance(x, Variable) and x._tracked
        else x
        for x in inputs
    ]
    try:
        return not np.array_equal(f(*moved, **keywords), y, equal_nan=True)
    except Exception:  # a constant would not mind
        return True


def _check_function(f: Any) -> None:
    if isinstance(f, Variable) or not callable(f):
        raise TypeError(
            f"a transform takes a function and then the values, as in jacobian(f, x), got {describe(f)}; a result does not "
            "tell how it depends on other values."
        )


def _gradients(
    y: Tensor, inputs: Sequence[Tensor], g: Any, create_graph: bool, retain_graph: bool
) -> tuple[Tensor, ...]:
    """d<g, y> / d(inputs), zeros where y does not depend on one."""
    if not y._tracked:
        return tuple(map(_zeros, inputs))
    found = grad(
        y,
        inputs,
        [g],
        create_graph=create_graph,
        retain_graph=retain_graph or create_graph,
        allow_unused=True,
    )
    return tuple(_zeros(x) if d is None else d for x, d in zip(inputs, found, strict=True))


def _zeros(like: Tensor) -> Tensor:
    return Tensor._of(np.zeros(like.shape, like.dtype))


def _recorded(create_graph: bool | None) -> bool:
    """Are the derivatives to be differentiated?  Where the caller does not say, they are inside a function that is being transformed."""
    return _depth.value > 0 and local.context.recording if create_graph is None else create_graph


def _outcome(y: Tensor, create_graph: bool) -> Tensor:
    """f's result as the caller gets it: cut from its graph unless that is to be differentiated."""
    _tell_checkpoints(y)  # it may be a tensor from outside, which f has only handed on
    return y if create_graph else Tensor._of(y._data)


def vjp(
    f: Callable[..., Any], *xs: Any, create_graph: bool | None = None
) -> tuple[Tensor, Callable[[Any], tuple[Tensor, ...]]]:
    """`(y, pullback)`: y = f(*xs), and `pullback(g)` = the tuple of g^T dy/dx, one for each x.  As jax.vjp.

    g has y's shape (ValueError otherwise).  The pullback may be called several times.  Raises TypeError if f returns several
    tensors.
    """
    recorded = _recorded(create_graph)
    inputs = [_input(x, recorded) for x in xs]
    y = _call(f, inputs)

    def pullback(g: Any) -> tuple[Tensor, ...]:
        g = _direction(g, y, "g has y's shape")
        again = (
            recorded or g._tracked and _recorded(create_graph)
        )  # g may be a variable of a function around this call alone
        return _gradients(y, inputs, g, again, True)

    return _outcome(y, recorded), pullback


def jvp(
    f: Callable[..., Any], xs: Any, vs: Any, *, create_graph: bool | None = None
) -> tuple[Tensor, Tensor]:
    """`(y, tangent)`: y = f(*xs) and sum of (dy/dx) v, the change of y as the xs move along the vs.  As jax.jvp.

    `xs` and `vs` are sequences, or one Tensor, array or number each; each v has its x's shape, and there is one for each
    x (ValueError otherwise).

    The pullback g -> g^T J is linear in g, so its own pullback applied to v is J v: two backward passes and no second
    set of rules.  A forward pass of its own that pushes the tangents op by op, finding each op's J v in the same way,
    was measured too: 1.1 times slower on an MLP and on attention, 3 to 6 times on a chain of small ops.  To be faster
    than that it would need one more rule under every op.
    """
    recorded = _recorded(create_graph)
    single = not isinstance(xs, (tuple, list))
    xs, vs = ([xs], [vs]) if single else (xs, vs)
    if len(xs) != len(vs):
        raise ValueError(f"jvp() got {len(xs)} inputs but {len(vs)} tangents; give one for each.")
    inputs = [_input(x, recorded) for x in xs]
    y = _call(f, inputs)
    vs = [
        _direction(v, x, "a tangent has its input's shape") for x, v in zip(inputs, vs, strict=True)
    ]
    tangent = None
    if y._tracked:
        seed = Tensor(np.zeros(y.shape, y.dtype), requires_grad=True)
        pulled = [
            (p, v)
            for p, v in zip(_gradients(y, inputs, seed, True, True), vs, strict=True)
            if p._tracked
        ]
        if pulled:
            (tangent,) = grad(
                [p for p, _ in pulled],
                [seed],
                [v for _, v in pulled],
                create_graph=recorded,
                allow_unused=True,
            )
    return _outcome(y, recorded), _zeros(y) if tangent is None else tangent


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, *, create_graph: bool | None = None
) -> Callable[..., tuple[Tensor, Any]]:
    """A function that returns `(f(*args), df/d(args[argnums]))`: one gradient, or a tuple for several argnums.  As
    jax.value_and_grad.

    f returns a single number (ValueError otherwise).  Arguments that are not in `argnums`, and keywords, are passed
    on as they are.  Raises TypeError if those in `argnums` are not given by place.
    """
    _check_function(f)
    several = hasattr(argnums, "__iter__")
    chosen: tuple[Any, ...] = tuple(argnums) if several else (argnums,)  # type: ignore[arg-type]
    if not all(isinstance(i, (int, np.integer)) for i in chosen):
        raise TypeError(
            f"argnums counts the arguments to differentiate by, as 0 or (0, 1), got {describe(argnums)}. The values come in a "
            "second call: value_and_grad(f)(x)."
        )

    def both(*args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        if any(not -len(args) <= i < len(args) for i in chosen):
            raise TypeError(
                f"argnums={argnums} counts from 0, but {len(args)} arguments came by place. Pass the value to differentiate by "
                "without its name."
            )
        recorded = _recorded(create_graph)
        places = [i % len(args) for i in chosen]
        taken = {i: _input(args[i], recorded) for i in places}  # once, if it is listed twice
        inputs, given = [taken[i] for i in places], [taken.get(i, x) for i, x in enumerate(args)]
        y = _call(f, given, kwargs)
        if y.size != 1:
            raise ValueError(
                f"this transform needs a function with a single number as its result, but that is {describe(y)}. Reduce it "
                "first, for example with .sum() or .mean(), or use vjp or jacobian."
            )
        found = _gradients(y, inputs, None, recorded, False)
        return _outcome(y, recorded), found if several else found[0]

    return both


def jacobian(f: Callable[..., Any], x: Any, *, create_graph: bool | None = None) -> Tensor:
    """dy_i / dx_j for all i and j: shape y.shape + x.shape.  One backward pass for each element of y."""
    recorded = _recorded(create_graph)
    x = _input(x, recorded)
    y = _call(f, [x])
    rows: list[Any] = []
    for i in range(y.size):
        one_hot = np.zeros(y.size, y.dtype)
        one_hot[i] = 1
        rows.append(
            _gradients(y, [x], one_hot.reshape(y.shape), recorded, i < y.size - 1)[0].reshape(-1)
        )
    if not rows:
        return Tensor._of(np.zeros(y.shape + x.shape, x.dtype))
    stacked: Any = np.stack(rows)
    return stacked.reshape(*y.shape, *x.shape)


def hessian(f: Callable[..., Any], x: Any, *, create_graph: bool | None = None) -> Tensor:
    """d^2 f / (dx_i dx_j) of a function with a single number as its result (ValueError otherwise): shape x.shape + x.shape."""
    return jacobian(lambda x: value_and_grad(f)(x)[1], x, create_graph=create_graph)


def hvp(f: Callable[..., Any], x: Any, v: Any, *, create_graph: bool | None = None) -> Tensor:
    """H v, the Hessian of f at x times v, without building H: the gradient of <grad f, v>.

    v has x's shape, and f returns a single number (ValueError otherwise).
    """
    recorded = _recorded(create_graph)
    x = _input(x, recorded)
    v = _direction(v, x, "v has x's shape")
    slope = _call(lambda x: value_and_grad(f)(x)[1], [x])
    return _gradients(slope, [x], v, recorded, False)[0]


# ---- checkpoint


class _Closure(Watcher):
    """A watcher that notes the tracked tensors which ops take in from outside the function."""

    def __init__(self, own: Sequence[Any]) -> None:
        self.own = {id(x) for x in own}
        self.found: dict[int, Variable] = {}

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        """Note the inputs."""
        for x in inputs:
            self.note(x)

    def note(self, x: Any) -> None:
        if isinstance(x, Variable) and x._tracked and id(x) not in self.own:
            self.found[id(x)] = x


class _Run:
    """A call of f: what it takes to repeat it."""

    __slots__ = (
        "f",
        "args",
        "keywords",
        "places",
        "outside",
        "random_state",
        "scope",
        "depth",
        "value",
        "around",
    )

    def __init__(self, f: Callable, args: tuple, keywords: dict[str, Any]) -> None:
        self.f, self.keywords = f, keywords
        self.places = [i for i, x in enumerate(args) if isinstance(x, Variable)]
        self.args = [None if i in self.places else x for i, x in enumerate(args)]
        self.random_state = get_rng_state()
        self.scope = local.context.scope
        self.depth = _depth.value
        self.around = [
            o for o in local.context.watchers if hasattr(o, "in_place")
        ]  # functional_call's other parameters

    def call(self, tensors: Sequence[Any]) -> Any:
        args = list(self.args)
        for i, x in zip(self.places, tensors, strict=True):
            args[i] = x
        return self.f(*args, **self.keywords)

    def first(self, tensors: Sequence[Tensor]) -> list[Variable]:
        """Run f without recording, keep its value, and return the tensors it draws in from outside."""
        stand_ins = [Tensor._of(x._data, x._tracked) for x in tensors]
        closure, here = _Closure(stand_ins), local.context
        before, here.watchers = here.watchers, (*here.watchers, closure)
        around, block = here.rehearsal, no_grad()
        try:
            with block:
                here.rehearsal = block  # what is not recorded now will be when it comes again
                y = self.call(stand_ins)
        finally:
            here.watchers, here.rehearsal = before, around
        if not isinstance(y, Variable):
            raise TypeError(
                f"checkpoint() needs a function that returns one Tensor, but it returned {describe(y)}. Checkpoint each "
                "part by itself, or join them with np.concatenate."
            )
        closure.note(y)
        self.value: Any = y._data
        self.outside = list(closure.found.values())
        return self.outside

    def again(self, tensors: Sequence[Any]) -> Any:
        """Run f as before, recorded, with the same random numbers; nobody looks on, since it has been seen already."""
        here, state = local.context, get_rng_state()
        watchers, scope, depth = here.watchers, here.scope, _depth.value
        here.watchers, here.scope, _depth.value = (
            (),
            self.scope,
            self.depth,
        )  # a transform in f is recorded if it was in one
        try:
            set_rng_state(self.random_state)
            with enable_grad(), ExitStack() as stack:
                for others in self.around:
                    stack.enter_context(others.in_place())
                return self.call(tensors)
        finally:
            here.watchers, here.scope, _depth.value = watchers, scope, depth
            set_rng_state(state)  # last, since Ctrl-C may come in it


def _value(*inputs: Any, run: _Run) -> Any:
    """The value of a checkpointed call; its derivative runs the call again."""
    value, run.value = run.value, None
    return value, clock()


def _run_again(
    g: Any, y: Any, *inputs: Any, run: _Run, needs: tuple[bool, ...], saved: int
) -> list[Any]:
    create_graph = isinstance(g, Variable)
    given = inputs[: len(run.places)]
    fresh = [
        clone(x) if create_graph and tracked(x) else Tensor._of(getattr(x, "_data", x), needed)
        for x, needed in zip(given, needs, strict=False)
    ]
    result = run.again(fresh)
    if not isinstance(result, Tensor) or result.shape != y.shape:
        raise ValueError(
            f"a checkpointed function must do the same when it is run again, but returned {describe(result)} "
            f"instead of shape {y.shape}."
        )
    first = getattr(y, "_data", y)
    if changes.last_change(first) <= saved and _differs(
        result._data, first
    ):  # what the user has put into y since, f need not repeat
        raise ValueError(
            "a checkpointed function must do the same when it is run again, but its result is another one. Was an array "
            "changed in place that it uses, or train() or eval() called in between? Random numbers come from ta.rand and "
            "the like, which are repeated; where several threads draw, each calls ta.manual_seed for a stream of its own."
        )
    sources = [*fresh, *run.outside]
    wanted = [x for x, needed in zip(sources, needs, strict=True) if needed]
    here = local.context
    watchers, here.watchers = here.watchers, ()
    try:
        found = (
            sweep([result], [g], wanted=wanted, create_graph=create_graph, stop=True)
            if result._tracked
            else {}
        )
    finally:
        here.watchers = watchers
    return [found.get(x) for x in sources]


def _differs(again: Any, first: Any) -> bool:
    """By more than rounding, which may depend on the number of threads?"""
    size = np.max(np.abs(first), initial=0, where=np.isfinite(first))
    return not np.allclose(
        again,
        first,
        rtol=0,
        atol=math.sqrt(np.finfo(first.dtype).eps) * float(size),
        equal_nan=True,
    )


# The rule computes with the inputs alone; the result is only compared.
recomputed = Op(_value, saves=True)
changes.reads_inputs.add(recomputed)
recomputed.__name__ = "checkpoint"
recomputed.vjp_all(_run_again)


def checkpoint(f: Callable[..., Result], *xs: Any, **keywords: Any) -> Result:
    """f(*xs), remembering only its inputs: what happens inside is computed again in the backward pass.  Less memory for one forward more.

    Gradients reach the tensors among xs and those that f takes from outside, such as a layer's parameters; random numbers (dropout) come
    out the same both times, if no other thread draws from the same stream meanwhile: each that draws calls ta.manual_seed for one of its
    own.  Checkpoints may be nested and differentiated further.  Gradients inside f are taken with value_and_grad or vjp (by grad or
    backward() a ValueError).  f returns one Tensor (TypeError otherwise), and the same when it is run again (ValueError otherwise).  As
    torch.utils.checkpoint.  Source: T. Chen et al., "Training deep nets with sublinear memory cost" (2016).
    """
    if not callable(f):
        raise TypeError(
            f"checkpoint(f, *xs) takes the function first, and calls it; got {describe(f)}. Write checkpoint(layer, x), not "
            "checkpoint(layer(x))."
        )
    if "use_reentrant" in keywords:
        raise TypeError(
            "checkpoint() has one way to work, and hands its keywords on to f: leave use_reentrant= out."
        )
    if not local.context.recording:
        return f(*xs, **keywords)
    run = _Run(f, xs, keywords)
    tensors = [xs[i] for i in run.places]
    outside = run.first(tensors)
    # given no tensor, an op gives an array, but f gave a Tensor
    return recomputed(*tensors, *outside, run=run) if tensors or outside else constant(run.value)
