"""Gradient checkpointing: keep only the inputs of a call, and rerun it in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np

from ..engine.backward import sweep
from ..engine.graph import Symbolic, Variable, array_of, next_number, tensor_of, tracked
from ..engine.modes import Watcher, context, enable_grad
from ..engine.op import Op
from ..errors import describe
from ..random import get_rng_state, set_rng_state
from ..tensor import Tensor

Result = TypeVar("Result")


class _Run:
    """A call of f, and the state needed to repeat it."""

    def __init__(self, f: Callable, args: tuple, keywords: dict[str, Any]) -> None:
        self.f, self.args, self.keywords = f, args, keywords
        self.places = [i for i, x in enumerate(args) if isinstance(x, Variable)]
        self.random_state = get_rng_state()
        self.scope = context.scope
        self.depth = context.depth
        # An enclosing functional_call must replace the parameters again.
        self.around = [o for o in context.watchers if hasattr(o, "in_place")]

    def call(self, tensors: Sequence[Any]) -> Tensor:
        """Run f with these Tensors in place of the Tensors among its arguments."""
        args = list(self.args)
        for i, x in zip(self.places, tensors, strict=True):
            args[i] = x
        y = self.f(*args, **self.keywords)
        if not isinstance(y, Tensor):
            raise TypeError(
                "checkpoint() needs a function that returns one Tensor, but the function returned "
                f"{describe(y)}. Checkpoint each part of the function separately, or join the "
                "outputs with np.concatenate."
            )
        return y

    def first(self) -> list[Any]:
        """Run f, store its value, and return the Tensors that it uses, its arguments first.

        The others existed before the call and are used in its graph, which is not kept.
        """
        given = [self.args[i] for i in self.places]
        stand_ins = [Tensor._of(x._data, x.requires_grad) for x in given]
        start = next_number()
        y = self.call(stand_ins)
        self.value: Any = y._data
        self.outside: list[Any] = []
        seen, waiting = set[Any](stand_ins), [y]
        while waiting:
            x = waiting.pop()
            if not tracked(x) or x in seen:
                continue
            seen.add(x)
            if x._node is None or x._node.number < start:
                self.outside.append(x)
            else:
                waiting.extend(x._node.inputs)
        self.outside.reverse()  # what is used first comes first
        return given + self.outside

    @contextmanager
    def restored(self, traced: bool) -> Iterator[None]:
        """Restore the settings and random numbers of the first run, without its watchers."""
        state, before = get_rng_state(), (context.watchers, context.scope, context.depth)
        # With a watcher, nothing is added in place; a traced program would copy it.
        context.watchers = (Watcher(),) if traced else ()
        context.scope, context.depth = self.scope, self.depth
        try:
            set_rng_state(self.random_state)
            with enable_grad(), ExitStack() as stack:
                for others in self.around:
                    stack.enter_context(others.in_place())
                yield
        finally:
            context.watchers, context.scope, context.depth = before
            set_rng_state(state)


def _run_again(g: Any, y: Any, *inputs: Any, run: _Run, needs: tuple[bool, ...]) -> list[Any]:
    """The VJP of a checkpoint, which repeats the call and runs a backward pass through it."""
    create_graph, first = isinstance(g, Variable), array_of(y)
    fresh = [
        x.clone() if create_graph and tracked(x) else Tensor._of(array_of(x), needed)
        for _, x, needed in zip(run.places, inputs, needs)
    ]
    sources = [*fresh, *run.outside]
    wanted = [x for x, needed in zip(sources, needs, strict=True) if needed]
    with run.restored(isinstance(first, Symbolic)):
        again = run.call(fresh)
        if again.shape != first.shape or _differs(again._data, first):
            raise ValueError(
                "a checkpointed function must return the same output when it runs again, but the "
                "outputs differ. Between the two runs, do not change arrays that the function "
                "uses, and do not call train() or eval(). Draw random numbers with ta.rand and "
                "similar functions."
            )
        roots = [again] if again._tracked else []
        found = sweep(roots, [g] * len(roots), wanted=wanted, create_graph=create_graph, stop=True)
    return [found.get(x) for x in sources]


def _differs(again: Any, first: Any) -> bool:
    """Return whether the outputs differ by more than rounding, which may depend on threads."""
    if isinstance(first, Symbolic):
        return False
    size = np.max(np.abs(first), initial=0, where=np.isfinite(first))
    tolerance = math.sqrt(np.finfo(first.dtype).eps) * float(size)
    return not np.allclose(again, first, rtol=0, atol=tolerance, equal_nan=True)


recomputed = Op(lambda *inputs, run: run.value)  # the VJP runs the call again
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
    inputs = run.first()
    return recomputed(*inputs, run=run) if inputs else tensor_of(run.value)
