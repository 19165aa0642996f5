"""The sweep: how a recorded computation is differentiated.

One loop: take the newest tensor whose gradient has come in, ask its op's rules for the gradients by
its inputs, add them up, go on. An op's inputs are older than its result, so when a tensor's turn
comes, everything that used it has already given its share. Nothing recurses along the graph, and
what has been used is let go at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from . import misuse
from .context import everywhere, local
from .graph import Variable, array_of, tensor_of, tracked
from .op import clone
from .quick import equation
from .released import Released


@equation  # a quicker sweep may be put in its place; in plain mode this one runs
def sweep(
    roots: Sequence[Variable],
    seeds: Sequence[Any],
    *,
    wanted: Sequence[Variable] | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    stop: bool = False,
) -> dict[Variable, Any]:
    """{tensor: the gradient of sum(seed * root) by it}, for every leaf, or for the tensors in
    `wanted`.

    With `stop` nothing goes on behind a wanted tensor, as behind the inputs of a checkpoint, which
    have a graph of their own.
    """
    goal = set(wanted or ())
    # The tensors on a way to a wanted one (None: all are), and the others, at which the pass ends.
    through, aside = (None, None) if wanted is None else leading_to(wanted, roots, stop)
    gradients: dict[Variable, Any] = {}  # what has come in so far
    complete: dict[Variable, Any] = {}  # of tensors that are no leaves, but wanted or retained
    newest: list[tuple[int, Variable]] = []  # a heap, by time
    watchers = (*everywhere, *local.context.watchers)
    released = None if retain_graph or create_graph else Released()
    leads = lambda x: through is None or x in through

    def add(x: Variable, share: Any) -> None:
        if x in gradients:
            gradients[x] = gradients[x] + share
        else:
            gradients[x] = share
            if x._record is not None and leads(x):
                heappush(newest, (-x._record.time, x))

    def undo(y: Variable, g: Any) -> None:
        # The chain rule: each share is g times a partial derivative, and `add` sums the shares up.
        record: Any = y._record
        needs = [tracked(x) and (leads(x) or x in goal) for x in record.inputs]
        for i, share in shares_of(g, y, needs, create_graph).items():
            x = record.inputs[i]
            share = fit(share, x, record.op, i)
            add(x, tensor_of(share) if create_graph and not isinstance(share, Variable) else share)
            for watcher in watchers:
                watcher.pulled(y, record, g, i, x, share, gradients[x])

    for root, seed in zip(roots, seeds, strict=True):
        if leads(root) or root in goal:
            add(root, seed)
    while newest:
        y = heappop(newest)[1]
        if y._record.retained or y in goal:  # type: ignore[union-attr]
            complete[y] = gradients[y]
        for watcher in watchers:
            watcher.pulling(y, gradients[y])
        undo(y, gradients.pop(y))
        if released is not None:
            released.let_go(y._record)
    if released is not None:
        released.end_at(gradients if wanted is None else aside)
    return {x: apart(g, x) for x, g in (complete | gradients).items()}


def shares_of(g: Any, y: Variable, needs: list[bool], create_graph: bool) -> dict[int, Any]:
    """{i: the gradient by input i}: in an ordinary pass from arrays, in one that is recorded from
    tensors.
    """
    record: Any = y._record
    if not create_graph:
        return record.op.pull(g, y._data, record, [array_of(x) for x in record.inputs], needs)
    op = record.op.stands_for
    if op.twin is None:
        return op.pull(g, y, record, list(record.inputs), needs)
    inputs = [clone(x) if need else x for x, need in zip(record.inputs, needs, strict=True)]
    wanted = {i: x for i, (x, need) in enumerate(zip(inputs, needs, strict=True)) if need}
    twin = op.twin(*inputs, **record.settings)
    found = sweep([twin], [g], wanted=list(wanted.values()), create_graph=True)
    return {i: found[x] for i, x in wanted.items() if x in found}


def fit(share: Any, x: Variable, op: Any, index: int) -> Any:
    """The share in the shape and dtype of x. Where broadcasting repeated x, the gradients by its
    copies add up.
    """
    if not isinstance(share, (np.ndarray, np.generic, Variable)):
        share = misuse.share_as_array(share, op, index)
    if share.shape != x._data.shape and op.broadcasts:
        share = sum_to(share, x._data.shape)
    if share.shape != x._data.shape or share.dtype.kind != "f":
        share = misuse.check_share(share, x, op, index)
    return share if share.dtype == x._data.dtype else share.astype(x._data.dtype)


@equation
def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """The derivative of broadcasting: g summed over the axes along which an input of this shape was
    repeated.
    """
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


def apart(g: Any, x: Variable) -> Any:
    """The gradient by x in memory of its own."""
    if isinstance(g, np.generic):  # a single number, which cannot change
        return g
    return clone(g) if isinstance(g, Variable) else g.astype(x._data.dtype)


def leading_to(
    wanted: Iterable[Variable], roots: Sequence[Variable], stop: bool
) -> tuple[set[Variable], list[Variable] | None]:
    """Two groups of the tensors behind the roots: those computed from a wanted one, through which
    alone a sweep need go, and all others.

    None for the others where a part of the graph has been released, for nobody knows what was
    behind it.
    """
    goal, found, seen = set(wanted), list(dict.fromkeys(roots)), set(roots)
    for y in found:  # the list grows
        inputs = () if y._record is None or stop and y in goal else y._record.inputs
        new = [x for x in dict.fromkeys(filter(tracked, inputs)) if x not in seen]
        seen.update(new)
        found += new
    made = [y for y in found if y._record is not None and not (stop and y in goal)]
    through: set[Variable] = set()
    for y in sorted(made, key=lambda y: y._record.time):  # type: ignore[union-attr]
        record: Any = y._record
        if isinstance(record.op, Released):
            leads = record.op.may_hide(goal, record.time)
        else:
            leads = any(x in goal or x in through for x in filter(tracked, record.inputs))
        if leads:
            through.add(y)
    records: list[Any] = [y._record for y in made]
    known = not stop and not any(isinstance(record.op, Released) for record in records)
    return through, [x for x in found if x not in through] if known else None
