"""The sweep: how a recorded computation is differentiated.

One loop over the recorded tensors, the newest first: ask its op's rules for the gradients by its
inputs, add them up, go on. An op's inputs are older than its result, so when a tensor's turn comes,
everything that used it has already given its share. Nothing recurses along the graph, and a record
that is used once is let go at once. "The gradient by x" is short for the derivative of the sum of
seed * root with respect to x: the seed of a loss is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import misuse
from .graph import Variable, array_of, tensor_of, tracked
from .kernels import reference
from .modes import context, everywhere
from .released import Released


@reference  # a quicker sweep may be put in its place; in plain mode this one runs
def sweep(
    roots: Sequence[Variable],
    seeds: Sequence[Any],
    *,
    wanted: Sequence[Variable] | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    stop: bool = False,
) -> dict[Variable, Any]:
    """{tensor: the gradient by it}, for the tensors in `wanted`, or for every leaf where none is
    named, and for those on the way whose `.grad` is retained.

    With `stop` nothing goes on behind a wanted tensor, as behind the inputs of a checkpoint, which
    have a graph of their own.
    """
    order, aside = leading_to(wanted, roots, stop)
    goal = set(aside if wanted is None else wanted)
    needed = goal.union(order)
    gradients: dict[Variable, Any] = {}  # what has come in so far
    watchers = (*everywhere, *context.watchers)
    released = None if retain_graph or create_graph else Released()

    def add(x: Variable, share: Any) -> None:
        gradients[x] = gradients[x] + share if x in gradients else share

    for root, seed in zip(roots, seeds, strict=True):
        if root in needed:
            add(root, seed)
    while order:
        y = order.pop()
        needed.remove(y)  # so that nothing here keeps y in memory
        if y not in gradients:
            continue
        g, record = gradients[y], y._node
        if not record.retained and y not in goal:
            del gradients[y]
        for watcher in watchers:
            watcher.pulling(y, g)
        # The chain rule: each share is g times a partial derivative, and the shares are summed up.
        needs = [tracked(x) and x in needed for x in record.inputs]
        for i, share in shares_of(g, y, needs, create_graph).items():
            x = record.inputs[i]
            share = fit(share, x, record.op, i)
            add(x, tensor_of(share) if create_graph and not isinstance(share, Variable) else share)
            for watcher in watchers:
                watcher.pulled(y, record, g, i, x, share, gradients[x])
        if released is not None:
            released.let_go(record)
    if released is not None and not stop:  # with `stop` nobody has looked behind the wanted ones
        released.end_at(aside)
    return {x: g.copy() for x, g in gradients.items()}  # in memory of its own


def shares_of(g: Any, y: Variable, needs: list[bool], create_graph: bool) -> dict[int, Any]:
    """{i: the gradient by input i}, by rules on arrays; on tensors if this pass is recorded."""
    record = y._node
    if not create_graph:
        return record.op.pull(g, y._data, record, [array_of(x) for x in record.inputs], needs)
    op = record.op.stands_for
    if op.reference is None:
        misuse.check_saved(op, record.saved if op.saves else None)
        return op.pull(g, y, record, list(record.inputs), needs)
    # Clones, since an input may be given twice and each place has a share of its own.
    inputs = [x.clone() if need else x for x, need in zip(record.inputs, needs, strict=True)]
    wanted = {i: x for i, (x, need) in enumerate(zip(inputs, needs, strict=True)) if need}
    twin = op.reference(*inputs, **record.settings)
    found = sweep([twin], [g], wanted=list(wanted.values()), create_graph=True, stop=True)
    return {i: found[x] for i, x in wanted.items() if x in found}


def fit(share: Any, x: Variable, op: Any, index: int) -> Any:
    """The share in the shape and dtype of x; where broadcasting repeated x, it is summed up."""
    share = misuse.as_array(share, op, index)
    if op.broadcasts:
        share = sum_to(share, x._data.shape)
    return misuse.as_gradient(share, x, op, index)


@reference
def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """The derivative of broadcasting from this shape: g summed over the repeated axes."""
    lead = g.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(g.shape) if i < lead or shape[i - lead] == 1 != n)
    if lead < 0 or not axes:
        return g
    total: Any
    if isinstance(g, Variable):
        total = g.sum(axis=axes, keepdims=True)  # type: ignore[attr-defined]
    else:  # in float64, since float32 loses digits where many rows are added one after the other
        total = np.sum(g, axis=axes, keepdims=True, dtype=np.float64).astype(g.dtype)
    return total.reshape(total.shape[lead:])


def leading_to(wanted: Sequence | None, roots: Sequence, stop: bool) -> tuple[list, list]:
    """The roots and what they were computed from, in two groups: what a sweep goes through, the
    newest last, and all others. It goes through what was computed from a wanted tensor, or where
    none is named through all that has a record.
    """
    goal, pending = set(wanted or ()), list(roots)
    inputs: dict[Variable, list[Any]] = {}  # of each tensor found, the tracked ones
    while pending:
        y = pending.pop()
        if y not in inputs:
            known = y._node is not None and not (stop and y in goal)
            inputs[y] = list(filter(tracked, y._node.inputs)) if known else []
            pending += inputs[y]
    made = [y for y in inputs if y._node is not None and not (stop and y in goal)]
    through: dict[Variable, None] = {}
    for y in sorted(made, key=lambda y: y._node.number):
        op = y._node.op
        hidden = isinstance(op, Released) and op.may_hide(goal, y._node.number)
        if wanted is None or hidden or any(x in goal or x in through for x in inputs[y]):
            through[y] = None
    return list(through), [x for x in inputs if x not in through]
