"""The backward pass: reverse-mode differentiation of a recorded computation.

`sweep` is the algorithm. A queue holds the computed tensors that have received a contribution to
their gradient, newest first. Each step takes the newest tensor and calls the VJPs of its op, which
return a contribution to the gradient of each input. An op's inputs are older than its output. So
when a tensor is taken from the queue, everything that used it has already contributed.

Users call `backward` and `grad`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy import ndarray

from ..errors import describe
from . import inplace
from .graph import RETAINED, Node, Variable, array_of, history, tensor_of, tracked
from .kernels import reference
from .modes import context
from .op import Op


def sweep(
    roots: Sequence[Variable],
    seeds: Sequence[Any],
    *,
    wanted: Sequence[Variable] | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    stop: bool = False,
) -> dict[Variable, Any]:
    """Return the gradients of sum(seed * root), in a dict from tensor to gradient.

    The keys are the tensors in `wanted` (by default all leaves) and those that retain their .grad.
    With `create_graph`, the pass itself is recorded. Nodes are released after use unless
    `create_graph` or `retain_graph` is set. With `stop`, the pass ends at the wanted tensors.
    """
    goal = frozenset(wanted or ())
    through = needed = None  # tensors computed from the goal, without and with it; None: all
    if wanted is not None:
        through = _leading_to(goal, history(roots, goal if stop else ()))
        needed = through | goal
    gradients: dict[Variable, Any] = {}  # sums of the contributions so far
    complete: dict[Variable, Any] = {}
    own: set[Variable] = set()  # tensors whose sums were allocated here and may change in place
    for root, seed in zip(roots, seeds, strict=True):
        if needed is None or root in needed:
            gradients[root] = gradients[root] + seed if root in gradients else seed
    queue = [(-x._node.number, x) for x in gradients if x._node]
    heapify(queue)
    watchers = context.watchers
    while queue:
        y = heappop(queue)[1]  # the newest; no other reference here keeps it in memory
        node, g = y._node, gradients.pop(y)
        own.discard(y)
        if y._tracked is RETAINED or y in goal:
            complete[y] = g
        if through is not None and y not in through:
            continue
        if inplace.latest > node.number or node.checksums:
            # Differentiating a reference reads all values.
            reads = None if create_graph and node.op.reference else node.op.stands_for.reads
            inplace.check(y, reads)
        for watcher in watchers:
            watcher.pulling(y, g)
        _pull_back(y, g, gradients, queue, own, needed, watchers, create_graph)
        if not (retain_graph or create_graph):
            node.op, node.inputs, node.settings, node.saved = _RELEASED, (), {}, None
    gradients |= complete
    complete.clear()
    y = g = None  # type: ignore[assignment]  # so that `_unshared` counts only other references
    for x in list(gradients):
        gradients[x] = _unshared(gradients.pop(x))
    return gradients


def _pull_back(
    y: Variable,
    g: Any,
    gradients: dict[Variable, Any],
    queue: list[tuple[int, Variable]],
    own: set[Variable],
    needed: set[Variable] | None,
    watchers: tuple[Any, ...],
    create_graph: bool,
) -> None:
    """Compute contributions from y's gradient g, and add them to the gradients of y's inputs."""
    node = y._node
    op, inputs, settings = node.op, node.inputs, node.settings
    out, values = y._data, []
    for x in inputs:
        values.append(x._data if isinstance(x, Variable) else x)
    if create_graph:
        op, out, values = op.stands_for, y, inputs
    vjps, joint = op.vjps, None
    if len(vjps) < len(inputs) or op is _RELEASED or create_graph and op.reference:
        joint = _joint(g, out, node, op, values, needed)
    for i in range(len(inputs)):
        x = inputs[i]
        if not isinstance(x, Variable) or needed is not None and x not in needed:
            continue
        total = gradients.get(x)
        if op.adds_in_place and x in own and op.adds_in_place(total, g, **settings):
            continue
        # The chain rule: a contribution is g times a partial derivative.
        if joint is None:
            if vjps[i] is None:
                continue
            contribution = vjps[i](g, out, *values, **settings)
        else:
            contribution = joint[i]
            if contribution is None:
                continue
        data, kind = x._data, contribution.__class__  # also ndarray for a traced array
        if (
            kind is not data.__class__
            or kind is ndarray
            and (contribution.shape != data.shape or contribution.dtype is not data.dtype)
        ):
            contribution = _fit(contribution, x, op, i, create_graph)
        if total is None:
            total = contribution
            if x._node:
                heappush(queue, (-x._node.number, x))
        elif x in own:
            total += contribution
        else:
            total = total + contribution
            if total.__class__ is ndarray and not watchers:  # a watcher may keep the sum
                own.add(x)
        gradients[x] = total
        for watcher in watchers:
            watcher.pulled(y, node, g, i, x, contribution, total)


def _leading_to(goal: frozenset[Variable], order: Sequence[Variable]) -> set[Variable]:
    """Return the tensors in `order` (oldest first) that were computed from a tensor in `goal`."""
    through: set[Variable] = set()
    oldest = min((0 if x._node is None else x._node.number for x in goal), default=0)
    for y in order:
        if y._node.op is _RELEASED and y._node.number > oldest:
            raise _graph_released()  # a wanted tensor may have been among its inputs
        if any(isinstance(x, Variable) and (x in goal or x in through) for x in y._node.inputs):
            through.add(y)
    return through


def _joint(
    g: Any, y: Any, node: Node, op: Op, inputs: Sequence[Any], needed: set[Variable] | None
) -> Sequence[Any]:
    """Return the contributions of y to all inputs, from the joint VJP or the reference."""
    needs = [isinstance(x, Variable) and (needed is None or x in needed) for x in node.inputs]
    if op.reference is None or not isinstance(y, Variable):
        return op.pull(g, y, node, inputs, needs)
    # Clone the inputs: one may be passed twice, and each position has its own contribution.
    inputs = [x.clone() if need else x for x, need in zip(inputs, needs)]
    wanted = [x for x, need in zip(inputs, needs) if need]
    function = getattr(op.reference, "function", op.reference)
    output = function(*inputs, **node.settings)
    found = sweep([output], [g], wanted=wanted, create_graph=True, stop=True)
    return [found.get(x) if need else None for x, need in zip(inputs, needs)]


def _fit(contribution: Any, x: Variable, op: Op, i: int, create_graph: bool) -> Any:
    """Convert a contribution to the shape and dtype of x, summing over broadcast axes."""
    if contribution is None:
        raise TypeError(
            f"the VJP of op {op.__name__!r} for input {i} returned None. Check that the VJP ends "
            "with a return statement. For an input without a derivative, pass None in place of "
            "the VJP."
        )
    if not isinstance(contribution, (ndarray, np.generic, Variable)):
        contribution = np.asarray(contribution)
    shape, dtype = x._data.shape, x._data.dtype
    if contribution.shape != shape and op.broadcasts:
        contribution = sum_to(contribution, shape)
    if contribution.shape != shape:
        hint = "" if op.broadcasts else "; if the op broadcasts, write @op(broadcasts=True)"
        raise ValueError(
            f"the VJP of op {op.__name__!r} for input {i} returned shape {contribution.shape}, but "
            f"that input has shape {shape}. A gradient must have its input's shape{hint}."
        )
    if contribution.dtype != dtype:
        contribution = contribution.astype(dtype)
    if create_graph and not isinstance(contribution, Variable):
        return tensor_of(contribution)
    is_array = isinstance(contribution, ndarray)
    return contribution[()] if is_array and isinstance(x._data, np.generic) else contribution


def _unshared(g: Any) -> Any:
    """Return g, or a copy if other references to its memory may exist."""
    if not isinstance(g, ndarray):
        return g if isinstance(g, np.generic) else g.copy()
    # Two references: the parameter above and the argument of getrefcount.
    alone = sys.getrefcount(g) <= 2 and (g.base is None or sys.getrefcount(g.base) <= 2)
    return g if alone and g.flags.c_contiguous and g.flags.writeable else g.copy()


@reference
def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum g over the axes that broadcasting added or expanded, to get back to `shape`."""
    lead = g.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(g.shape) if i < lead or shape[i - lead] == 1 != n)
    if lead < 0 or not axes:
        return g
    total: Any
    if isinstance(g, Variable):
        total = g.sum(axis=axes, keepdims=True)  # type: ignore[attr-defined]
    else:  # in float64: float32 loses digits when many rows are added one by one
        total = np.sum(g, axis=axes, keepdims=True, dtype=np.float64).astype(g.dtype)
    return total.reshape(total.shape[lead:])


def _graph_released() -> RuntimeError:
    return RuntimeError(
        "this graph has been released by an earlier backward pass. To use the graph twice, pass "
        "retain_graph=True to the first pass. Otherwise, compute the loss again, or call detach() "
        "on the released part if it is a constant."
    )


class _Released(Op):
    """A placeholder for the op of a node that a backward pass has released."""

    def pull(self, *_: Any) -> Any:
        raise _graph_released()


_RELEASED = _Released(lambda: None)
_RELEASED.__name__ = "released"  # shown in the repr of tensors and in graph pictures


# ---- what users call

_accumulating = threading.Lock()


def backward(
    outputs: Sequence[Any],
    gradients: Sequence[Any],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Add the gradients of the outputs to the .grad of every leaf; see `Tensor.backward`."""
    seeds = [_seed(t, g, create_graph, "gradient") for t, g in zip(outputs, gradients, strict=True)]
    before = context.recording
    context.recording = create_graph
    try:
        found = sweep(outputs, seeds, create_graph=create_graph, retain_graph=retain_graph)
        context.recording = True  # adding to a .grad that has a graph (create_graph) is recorded
        with _accumulating:
            for t, g in found.items():
                if t._tracked:  # False if it was frozen after the forward pass
                    g = g if isinstance(g, Variable) else tensor_of(g)
                    t._grad = g if t._grad is None else t._grad + g
    finally:
        context.recording = before
    for watcher in context.watchers:
        watcher.finished(found)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """Return d(sum of outputs) / d(inputs) as a tuple with one gradient for each input.

    `outputs`, `inputs` and `grad_outputs` are each a Tensor or a sequence of Tensors.
    `grad_outputs` weights the outputs and may be omitted for single numbers. `retain_graph` keeps
    the graph for another pass (default: the value of `create_graph`). With `create_graph=True`, the
    gradients can be differentiated again. Only VJPs on paths to the inputs are called, and no
    `.grad` changes. If the outputs do not depend on an input, its gradient is None with
    `allow_unused=True`; otherwise ValueError is raised. Raises RuntimeError if the graph has been
    released. Like torch.autograd.grad.
    """
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    inputs = _inputs(inputs)
    weights = [None] * len(outputs) if grad_outputs is None else grad_outputs
    weights = list(weights) if isinstance(weights, (list, tuple)) else [weights]
    if len(weights) != len(outputs):
        raise ValueError(
            f"grad() got {len(outputs)} outputs but {len(weights)} grad_outputs; pass one for each "
            "output."
        )
    seeds = [_seed(t, g, create_graph, "grad_outputs") for t, g in zip(outputs, weights)]
    retain = create_graph if retain_graph is None else retain_graph
    before = context.recording
    context.recording = create_graph
    try:
        found = sweep(outputs, seeds, wanted=inputs, create_graph=create_graph, retain_graph=retain)
    finally:
        context.recording = before
    results = []
    for i, x in enumerate(inputs):
        g = found.get(x)
        if g is None and not allow_unused:
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, was not used to compute the outputs. Pass "
                "allow_unused=True to get None as its gradient."
            )
        results.append(g if g is None or isinstance(g, Variable) else tensor_of(g))
    for watcher in context.watchers:
        watcher.finished(inputs)
    return tuple(results)


def _inputs(inputs: Any) -> list[Variable]:
    """Return the inputs of `grad` as a list; raise ValueError if one requires no gradient."""
    several = isinstance(inputs, Iterable) and not isinstance(inputs, (Variable, ndarray, str))
    inputs = list(inputs) if several else [inputs]
    for i, x in enumerate(inputs):
        if not tracked(x):
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, does not require a gradient. Create the "
                "input with requires_grad=True; for a model, pass list(model.parameters())."
            )
    return inputs


def _seed(output: Any, gradient: Any, create_graph: bool, keyword: str) -> Any:
    """Return the seed in the output's shape and dtype, by default 1 for a single number."""
    if not tracked(output):
        raise _no_graph(output)
    shape, dtype = output._data.shape, output._data.dtype
    if gradient is None:
        if output._data.size != 1:
            raise ValueError(
                f"without {keyword}=, a backward pass must start from a single number, but this is "
                f"{describe(output)}. Reduce the output first, for example with .sum() or .mean(), "
                f"or pass {keyword}= with shape {shape}."
            )
        gradient = np.ones(shape, dtype)
    elif not isinstance(gradient, Variable):
        gradient = np.asarray(gradient)
    if gradient.shape != shape:
        raise ValueError(
            f"the gradient has shape {gradient.shape} but the output has shape {shape}; the two "
            "shapes must be equal. To pass several inputs to grad(), use a list: grad(y, [a, b])."
        )
    if gradient.dtype != dtype:
        gradient = gradient.astype(dtype)
    if create_graph:
        return gradient if isinstance(gradient, Variable) else tensor_of(np.array(gradient))
    return array_of(gradient) if shape else array_of(gradient)[()]


def _no_graph(output: Any) -> Exception:
    """Return the error for an output that cannot be differentiated."""
    if not isinstance(output, Variable):
        return TypeError(
            f"only a Tensor can be differentiated, got {describe(output)}. Call the function "
            "first: grad(f(x), x), or write ta.value_and_grad(f)(x)."
        )
    return ValueError(
        f"{describe(output)} does not depend on anything that requires a gradient. Create the "
        "inputs with requires_grad=True, and check for no_grad(), detach() or .numpy() in the "
        "computation. A gradient can be differentiated again only if create_graph=True was "
        "passed where it was computed."
        + ("" if context.recording else " Recording is off here: see no_grad().")
    )
