"""The sweep in fewer steps: bit for bit what `engine/sweep.py` states.

In a chain of small ops the sweep itself takes longer than the arithmetic. So here

- the newest tensor is kept in hand, out of the heap: in a chain it is always the next one;
- the rules of an op of one or two inputs are called on the spot;
- a sum that was allocated here is added to in place.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from numpy import generic, ndarray

from ..engine import Released, Variable, changes, everywhere, local
from ..engine import sweep as plain_sweep
from ..engine.graph import Record
from ..engine.quick import quick_way
from ..engine.sweep import fit, leading_to
from ..ops import getitem
from .allocator import keep_freed
from .calls import QuickOp
from .indexing import picks_each_once

_new_record: Any = tuple.__new__
NOTHING: dict[str, Any] = {}


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
    due = _Due(set(wanted or ()), through)
    for root, seed in zip(roots, seeds, strict=True):
        if through is None or root in through or root in due.goal:
            due.add(root, seed, None)
    released = None if retain_graph else Released()
    _undo_all(due, released)
    if released is not None:
        released.end_at(due.gradients if wanted is None else aside)
    found = due.complete | due.gradients
    return {x: _apart(g, x, due.own) for x, g in found.items()}


class _Due:
    """Gradients on their way: what has come in, the newest tensor in hand, the others in a heap."""

    __slots__ = (
        "goal",
        "through",
        "gradients",
        "complete",
        "own",
        "newest",
        "hand",
        "hand_gradient",
    )

    def __init__(self, goal: set[Variable], through: set[Variable] | None) -> None:
        self.goal, self.through = goal, through
        self.gradients: dict[Variable, Any] = {}
        self.complete: dict[Variable, Any] = {}
        self.own: set[Variable] = (
            set()
        )  # those whose gradient was allocated here, and nobody else has
        self.newest: list[tuple[int, Variable]] = []
        self.hand: Any = None
        self.hand_gradient: Any = None

    def add(self, x: Variable, share: Any, fresh: Any) -> Any:
        """Add a share to the gradient of x, and return the sum so far."""
        total = self.hand_gradient if x is self.hand else self.gradients.get(x)
        if total is None:  # the first is kept by reference
            if fresh and share.__class__ is ndarray:
                self.own.add(x)
            self._wait(x, share)
            return share
        if x in self.own:
            total += share
            return total
        total = total + share
        if total.__class__ is ndarray:
            self.own.add(x)
        if x is self.hand:
            self.hand_gradient = total
        else:
            self.gradients[x] = total
        return total

    def _wait(self, x: Variable, share: Any) -> None:
        """Let x wait for its turn; the newest of all is kept in hand."""
        hand, record = self.hand, x._record
        if record is None or self.through is not None and x not in self.through:
            self.gradients[x] = share
        elif hand is None:
            self.hand, self.hand_gradient = x, share
        elif record[0] > hand._record[0]:
            self.gradients[hand] = self.hand_gradient
            heappush(self.newest, (-hand._record[0], hand))
            self.hand, self.hand_gradient = x, share
        else:
            self.gradients[x] = share
            heappush(self.newest, (-record[0], x))

    def pop(self) -> tuple[Any, Any]:
        """The newest tensor and its gradient."""
        hand, newest = self.hand, self.newest
        if hand is not None and not (newest and -newest[0][0] > hand._record[0]):
            y, g = hand, self.hand_gradient
        else:
            y = heappop(newest)[1]
            g = self.gradients.pop(y)
            if hand is not None:
                self.gradients[hand] = self.hand_gradient
                heappush(newest, (-hand._record[0], hand))
        self.hand = self.hand_gradient = None
        if self.own:
            self.own.discard(y)  # a rule may pass its gradient on by reference
        return y, g


def _undo_all(due: _Due, released: Released | None) -> None:
    """Take the newest tensor, call its rules, add up, go on."""
    watchers = local.context.watchers
    every = (*everywhere, *watchers)
    selective = due.through is not None
    while due.hand is not None or due.newest:
        y, g = due.pop()
        record = y._record
        time, op, inputs, settings, _, scope, retained = record
        if retained or selective and y in due.goal:
            due.complete[y] = g
        if watchers or changes.handed_out or changes.latest > time:
            for watcher in every:
                watcher.pulling(y, g)
        rules = op.rules
        if len(inputs) <= 2 and rules and not (settings or selective or watchers):
            _undo_small(due, y._data, g, op, inputs, rules)
        else:
            _undo(due, y, g, record, watchers)
        if released is not None:
            y._record = _new_record(Record, (time, released, (), NOTHING, None, scope, retained))
        y = g = record = inputs = None


def _undo_small(due: _Due, y: Any, g: Any, op: Any, inputs: tuple, rules: tuple) -> None:
    """The rules of an op of one or two inputs and no settings."""
    values = [x._data if isinstance(x, Variable) else x for x in inputs]
    fresh = op.__class__ is QuickOp and op.fresh
    for i, x in enumerate(inputs):
        if isinstance(x, Variable) and rules[i] is not None:
            share, data = rules[i](g, y, *values), x._data
            if (
                share.__class__ is not data.__class__
                or share.shape != data.shape
                or share.dtype is not data.dtype
            ):
                share = fit(share, x, op, i)
            due.add(x, share, fresh)


def _undo(due: _Due, y: Variable, g: Any, record: Any, watchers: tuple) -> None:
    """The rules of any op."""
    op, inputs = record.op, record.inputs
    quick = op.__class__ is QuickOp
    if op.plain is getitem and inputs[0] in due.own and not watchers:
        index = record.settings["index"]
        if picks_each_once(
            index
        ):  # a loop over x[0], x[1], ... makes no array of x's size for each
            total = due.hand_gradient if inputs[0] is due.hand else due.gradients[inputs[0]]
            total[index] += g
            return
    values, needs = [], []
    for x in inputs:
        if isinstance(x, Variable):
            values.append(x._data)
            needs.append(due.through is None or x in due.through or x in due.goal)
        else:
            values.append(x)
            needs.append(False)
    for i, share in op.pull(g, y._data, record, values, needs).items():
        x = inputs[i]
        if (
            share.__class__ is not ndarray
            or share.shape != x._data.shape
            or share.dtype is not x._data.dtype
        ):
            share = fit(share, x, op, i)
        total = due.add(x, share, quick and op.fresh)
        for watcher in watchers:
            watcher.pulled(y, record, g, i, x, share, total)


def _apart(g: Any, x: Variable, own: set[Variable]) -> Any:
    """The gradient by x in memory of its own."""
    if isinstance(g, generic) or x in own and g.dtype == x._data.dtype:
        return g
    return g.astype(x._data.dtype)
