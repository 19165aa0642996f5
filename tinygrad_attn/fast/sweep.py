"""The sweep in fewer steps: bit for bit what `engine/sweep.py` states.

In a chain of small ops the sweep itself takes longer than the arithmetic. So here

- the newest tensor is kept in hand, out of the heap: in a chain it is always the next one;
- the rules of an op of one or two inputs are called on the spot;
- what the rules of an element-wise op return is not asked for its shape, see `OfOne`;
- a sum that was allocated here is added to in place, and so is what an op like x[0] gives a sum;
- nothing is called that need not be, since a call of a Python function costs as much as the sum of
  few numbers.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from numpy import generic, ndarray

from ..engine import Released, Variable, changes, everywhere, local
from ..engine import sweep as plain_sweep
from ..engine.quick import quick_way
from ..engine.sweep import fit, leading_to
from .allocator import keep_freed
from .calls import NOTHING, NUMBERS, QuickOp


class OfOne(tuple):
    """The rules of an op that takes the elements of one input by themselves, and has no settings:
    the share has the shape and dtype of the input.
    """

    __slots__ = ()


class OfTwo(tuple):
    """The same for two inputs, if these are of one shape and dtype, or one of them is a number."""

    __slots__ = ()


@quick_way(plain_sweep)
def sweep(
    roots: Any,
    seeds: Any,
    *,
    wanted: Any = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    stop: bool = False,
) -> Any:
    """As `engine.sweep`, for a pass that is not itself recorded."""
    if create_graph:
        return NotImplemented
    keep_freed()
    through, aside = (None, None) if wanted is None else leading_to(wanted, roots, stop)
    goal = set(wanted or ())
    own: set[Variable] = set()
    released = None if retain_graph else Released()
    start: dict[Variable, Any] = {}
    for root, seed in zip(roots, seeds, strict=True):
        if through is None or root in through or root in goal:
            start[root] = start[root] + seed if root in start else seed
    gradients, complete = _undo_all(start, own, goal, through, released)
    if released is not None:
        released.end_at(gradients if wanted is None else aside)
    found = complete | gradients if complete else gradients
    for x, g in found.items():  # each in memory of its own
        if not (x in own or isinstance(g, generic)) or g.dtype != x._data.dtype:
            found[x] = g.astype(x._data.dtype)
    return found


def _undo_all(
    gradients: dict[Variable, Any],
    own: set[Variable],
    goal: set[Variable],
    through: set[Variable] | None,
    released: Released | None,
) -> tuple[dict[Variable, Any], dict[Variable, Any]]:
    """The loop of the sweep. It is longer than a screen because it calls nothing.

    `own` has the tensors whose gradient was allocated here, and which nobody else holds.
    """
    newest: list[tuple[int, Variable]] = []
    complete: dict[Variable, Any] = {}
    for root in gradients:
        if root._record is not None and (through is None or root in through):
            heappush(newest, (-root._record.time, root))
    hand: Any = None  # a tensor in neither of the two, newer than all in the heap or equal,
    hand_gradient: Any = None  # and its gradient
    watchers = local.context.watchers
    handed_out, latest = changes.handed_out, changes.latest
    while newest or hand is not None:
        if hand is not None and not (newest and -newest[0][0] > hand._record.time):
            y, g = hand, hand_gradient
        else:
            y = heappop(newest)[1]
            g = gradients.pop(y)
            if hand is not None:
                gradients[hand] = hand_gradient
                heappush(newest, (-hand._record.time, hand))
        hand = hand_gradient = None
        if own:
            own.discard(y)  # a rule may pass its gradient on by reference
        record: Any = y._record
        op, inputs = record.op, record.inputs
        if record.retained or goal and y in goal:
            complete[y] = g
        if watchers or handed_out or latest > record.time:
            for watcher in (*everywhere, *watchers):
                watcher.pulling(y, g)
        rules, shares = op.rules, ()
        if rules.__class__ is OfTwo and through is None:
            a, b = inputs
            u = a._data if isinstance(a, Variable) else a
            v = b._data if isinstance(b, Variable) else b
            alike = u.__class__ is ndarray and (
                v.__class__ in NUMBERS
                or (v.__class__ is ndarray and u.shape == v.shape and u.dtype is v.dtype)
            )
            first, second = rules
            shares = (
                None if a is u else first(g, y._data, u, v),
                None if b is v else second(g, y._data, u, v),
            )
            a = b = u = v = None
        elif rules.__class__ is OfOne and through is None:
            alike = True
            shares = (rules[0](g, y._data, inputs[0]._data),)
        else:
            alike = False
            adds = op.__class__ is QuickOp and op.adds is not None and not watchers
            if not (adds and inputs[0] in own and op.adds(gradients[inputs[0]], g, **record.settings)):
                shares = _shares(y, g, record, through, goal)
        i = -1
        for share in shares:
            i += 1
            if share is None:
                continue
            x = inputs[i]
            data = x._data
            kind = share.__class__
            if kind is not data.__class__ or (
                kind is ndarray
                and not alike
                and (share.shape != data.shape or share.dtype is not data.dtype)
            ):
                share = fit(share, x, op, i)
            total = hand_gradient if x is hand else gradients.get(x)
            if total is None:  # the first share is kept by reference
                total = share
                if op.__class__ is QuickOp and op.fresh and share.__class__ is ndarray:
                    own.add(x)
                made = x._record
                if made is None or through is not None and x not in through:
                    gradients[x] = share
                elif hand is None:
                    hand, hand_gradient = x, share
                elif made.time > hand._record.time:  # the newer of the two stays in hand
                    gradients[hand] = hand_gradient
                    heappush(newest, (-hand._record.time, hand))
                    hand, hand_gradient = x, share
                else:
                    gradients[x] = share
                    heappush(newest, (-made.time, x))
            elif x in own:
                total += share
            else:
                total = total + share
                if total.__class__ is ndarray:
                    own.add(x)
                if x is hand:
                    hand_gradient = total
                else:
                    gradients[x] = total
            for watcher in watchers:
                watcher.pulled(y, record, g, i, x, share, total)
        if released is not None:
            record.op = released
            record.inputs = ()
            record.settings = NOTHING
            record.saved = None
        y = g = record = inputs = shares = share = total = data = None
    return gradients, complete


def _shares(
    y: Variable, g: Any, record: Any, through: set[Variable] | None, goal: set[Variable]
) -> Any:
    """The gradient by each input, None where there is none, by whatever rules the op has."""
    op, inputs, settings = record.op, record.inputs, record.settings
    values, needs = [], []
    for x in inputs:
        tracked = isinstance(x, Variable)
        values.append(x._data if tracked else x)
        needs.append(tracked and (through is None or x in through or x in goal))
    if op.__class__ is QuickOp and op.joint is not None:
        shares = op.shares(g, y._data, record, values, needs)
        if False not in needs:
            return shares
        return [share if need else None for share, need in zip(shares, needs, strict=False)]
    shares = [None] * len(values)
    if op.rules and len(op.rules) == len(values):
        found = {}
        for i, rule in enumerate(op.rules):
            if needs[i] and rule is not None:
                found[i] = rule(g, y._data, *values, **settings)
    else:
        found = op.pull(g, y._data, record, values, needs)
    for i, share in found.items():
        shares[i] = share if share is not None else fit(None, inputs[i], op, i)
    return shares
