"""Gradient checkpointing: keep only the inputs of a call, and rerun it in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np

from ..engine.backward import sweep
from ..engine.graph import Symbolic, Variable, array_of, next_number, tensor_of, tracked
from ..engine.modes import Watcher, context, enable_grad, no_grad, watching
from ..engine.op import Op
from ..errors import describe
from ..random import get_rng_state, set_rng_state
from ..tensor import Tensor
from .derivatives import Closure, depth

Result = TypeVar("Result")


class _Run:
    """The state needed to repeat a call of f."""

    def __init__(self, f: Callable, args: tuple, keywords: dict[str, Any]) -> None:
        self.f, self.keywords = f, keywords
        self.places = [i for i, x in enumerate(args) if isinstance(x, Variable)]
        self.args = [None if i in self.places else x for i, x in enumerate(args)]
        self.random_state = get_rng_state()
        self.scope = context.scope
        self.depth = depth.value
        # An enclosing functional_call must replace the parameters again.
        self.around = [o for o in context.watchers if hasattr(o, "in_place")]

    def call(self, tensors: Sequence[Any]) -> Any:
        args = list(self.args)
        for i, x in zip(self.places, tensors, strict=True):
            args[i] = x
        return self.f(*args, **self.keywords)

    def first(self, tensors: Sequence[Tensor]) -> list[Variable]:
        """Run f without a graph, store its value, and return the outside tensors that it uses."""
        stand_ins = [Tensor._of(x._data, x.requires_grad) for x in tensors]
        closure, start = Closure(stand_ins), next_number()
        with watching(closure), no_grad():
            y = self.call(stand_ins)
        if not isinstance(y, Variable):
            raise TypeError(
                "checkpoint() needs a function that returns one Tensor, but the function returned "
                f"{describe(y)}. Checkpoint each part of the function separately, or join the "
                "outputs with np.concatenate."
            )
        closure.note(y)
        self.value: Any = y._data
        older = lambda x: x._node is None or x._node.number < start
        self.outside = list(filter(older, closure.found.values()))
        return self.outside

    def again(self, tensors: Sequence[Any]) -> Any:
        """Run f again with a graph, the same random numbers, and no watchers."""
        here, state = context, get_rng_state()
        watchers, scope, within = here.watchers, here.scope, depth.value
        here.watchers, here.scope, depth.value = (), self.scope, self.depth
        try:
            set_rng_state(self.random_state)
            with enable_grad(), ExitStack() as stack:
                for others in self.around:
                    stack.enter_context(others.in_place())
                return self.call(tensors)
        finally:
            here.watchers, here.scope, depth.value = watchers, scope, within
            set_rng_state(state)


def _value(*inputs: Any, run: _Run) -> Any:
    """Return the value of a checkpointed call; the VJP runs the call again."""
    value, run.value = run.value, None
    return value, next_number()


def _run_again(
    g: Any, y: Any, *inputs: Any, run: _Run, needs: tuple[bool, ...], saved: int
) -> list[Any]:
    """The VJP of a checkpoint, which repeats the call and runs a backward pass through it."""
    create_graph = isinstance(g, Variable)
    given = inputs[: len(run.places)]
    fresh = [
        x.clone() if create_graph and tracked(x) else Tensor._of(array_of(x), needed)
        for x, needed in zip(given, needs, strict=False)
    ]
    result = run.again(fresh)
    if not isinstance(result, Tensor) or result.shape != y.shape:
        raise ValueError(
            "a checkpointed function must return the same output when it runs again, but the "
            f"second run returned {describe(result)} instead of a Tensor of shape {y.shape}."
        )
    first = array_of(y)
    if _differs(result._data, first):
        raise ValueError(
            "a checkpointed function must return the same output when it runs again, but the "
            "numbers differ. Between the two runs, do not change arrays that the function uses, "
            "and do not call train() or eval(). Draw random numbers with ta.rand and similar "
            "functions."
        )
    sources = [*fresh, *run.outside]
    wanted = [x for x, needed in zip(sources, needs, strict=True) if needed]
    here = context
    quiet = Watcher()  # with a watcher nothing is added in place; a traced program would copy it
    watchers, here.watchers = here.watchers, (quiet,) if isinstance(first, Symbolic) else ()
    found: dict[Any, Any] = {}
    try:
        if result._tracked:
            found = sweep([result], [g], wanted=wanted, create_graph=create_graph, stop=True)
    finally:
        here.watchers = watchers
    return [found.get(x) for x in sources]


def _differs(again: Any, first: Any) -> bool:
    """Return whether the outputs differ by more than rounding, which may depend on threads."""
    if isinstance(first, Symbolic):
        return False
    size = np.max(np.abs(first), initial=0, where=np.isfinite(first))
    tolerance = math.sqrt(np.finfo(first.dtype).eps) * float(size)
    return not np.allclose(again, first, rtol=0, atol=tolerance, equal_nan=True)


recomputed = Op(_value, saves=True)
recomputed.__name__ = "checkpoint"
recomputed.vjp_all(_run_again)


def checkpoint(f: Callable[..., Result], *xs: Any, **keywords: Any) -> Result:
    """Return f(*xs) but keep only its inputs in memory; the backward pass computes f again.

    This saves memory but takes one more forward pass. Gradients reach the Tensors among xs and
    those that f uses from outside, such as parameters. Both runs draw the same random numbers, for
    example in dropout. Checkpoints can be nested and differentiated more than once. Inside f, take
    gradients with value_and_grad or vjp. Raises TypeError unless f returns one Tensor, and
    ValueError if the second run returns a different output. Like torch.utils.checkpoint. Source: T.
    Chen et al., "Training deep nets with sublinear memory cost" (2016).
    """
    if not context.recording:
        return f(*xs, **keywords)
    run = _Run(f, xs, keywords)
    tensors = [xs[i] for i in run.places]
    outside = run.first(tensors)
    return recomputed(*tensors, *outside, run=run) if tensors or outside else tensor_of(run.value)
