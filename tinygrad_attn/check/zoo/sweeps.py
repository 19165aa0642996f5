"""Wrong ways to sweep a graph, as published: each gets some graph wrong."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...engine import tracked
from ...engine.history import history
from ..records import shares


class Flaw(NamedTuple):
    """A way to be wrong."""

    name: str
    what: str
    where: str
    symptom: str


FLAWS = (
    Flaw(
        "gradient-overwritten",
        "a gradient is assigned where it must be added",
        "micrograd's lecture, as its first version, before += is put in",
        "a + a has slope 1",
    ),
    Flaw(
        "depth-first",
        "a tensor passes its gradient on as soon as it is first reached",
        "minigrad (kennysong; its source tells of it)",
        "right for chains; a tensor used at two depths passes on half of its gradient",
    ),
    Flaw(
        "once-for-each-path",
        "the sweep follows every path instead of every node",
        "SmallPebble (core/ops.py, get_gradients)",
        "right, but 2^n steps for n doublings: sixty of them never end",
    ),
    Flaw(
        "recursive",
        "the order is found by recursion",
        "micrograd (engine.py, build_topo), smolgrad (core/engine.py, _tsort)",
        "RecursionError on a chain of a thousand ops",
    ),
    Flaw(
        "gradient-aliased",
        "the first gradient is kept by reference and the second added to it in place",
        "neunet (autograd.py; its source marks the repair)",
        "a + b shares one gradient array, and what is added for a reaches b",
    ),
    Flaw(
        "second-backward-stale",
        "gradients between the leaves are kept from one backward pass to the next",
        "micrograd (issue 53)",
        "two passes over one graph give three times the gradient instead of two",
    ),
)


def _newest_first(roots: Any) -> list[Any]:
    return history(roots)[::-1]


def _by_recursion(roots: Any) -> list[Any]:
    """The order of micrograd: children first, by recursion; then reversed."""
    order: list[Any] = []
    seen: set[int] = set()

    def visit(t: Any) -> None:
        if id(t) not in seen and t._record is not None:
            seen.add(id(t))
            for x in t._record.inputs:
                if tracked(x):
                    visit(x)
            order.append(t)

    for t in roots:
        visit(t)
    return order[::-1]


class _Sums:
    """The gradients so far, by id of tensor, and how the flawed sweep adds to them."""

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self.grads: dict[int, Any] = {}
        self.holders: dict[int, Any] = {}
        self.add = add

    def give(self, x: Any, share: Any) -> None:
        self.grads[id(x)] = self.add(self.grads[id(x)], share) if id(x) in self.grads else share
        self.holders[id(x)] = x

    def pass_on(self, t: Any, g: Any) -> Iterator[tuple[Any, Any]]:
        """Give the inputs of t's op their shares; yields those from which the sweep goes on."""
        for x, share in shares(t, g):
            self.give(x, share)
            if x._record is not None:
                yield x, share


def _every_path(sums: _Sums, roots: Any) -> None:
    def follow(t: Any, g: Any) -> None:
        for x, share in sums.pass_on(t, g):
            follow(x, share)

    for t in roots:
        follow(t, sums.grads[id(t)])


def _depth_first(sums: _Sums, roots: Any) -> None:
    visited: set[int] = set()

    def go(t: Any) -> None:
        visited.add(id(t))
        for x, _ in sums.pass_on(t, sums.grads[id(t)]):
            if id(x) not in visited:
                go(x)

    for t in roots:
        go(t)


def _in_order(order: Callable[[Any], list[Any]], kept: dict[int, Any] | None = None) -> Callable:
    """Tensor by tensor; `kept` are gradients of the last backward pass that nobody has cleared."""

    def run(sums: _Sums, roots: Any) -> None:
        ends = {id(t) for t in roots}
        for t in order(roots):
            if kept is not None and id(t) not in ends:
                sums.give(t, kept[id(t)][1] if id(t) in kept else 0)
                kept[id(t)] = t, sums.grads[id(t)]
            list(sums.pass_on(t, sums.grads[id(t)]))

    return run


def flawed_sweep(name: str) -> Callable[..., dict[Any, Any]]:
    """A stand-in for `engine.sweep` with one flaw.  First order only."""
    add = {
        "gradient-overwritten": lambda old, new: new,
        "gradient-aliased": operator.iadd,
    }.get(name, operator.add)
    run = {
        "once-for-each-path": _every_path,
        "depth-first": _depth_first,
        "recursive": _in_order(_by_recursion),
        "second-backward-stale": _in_order(_newest_first, {}),
    }.get(name, _in_order(_newest_first))

    def sweep(roots: Any, seeds: Any, *, wanted: Any = None, **_: Any) -> dict[Any, Any]:
        sums = _Sums(add)
        for t, seed in zip(roots, seeds):
            sums.give(t, np.array(seed))
        run(sums, roots)
        goal = None if wanted is None else {id(t) for t in wanted}
        found = {
            x: np.array(sums.grads[key])
            for key, x in sums.holders.items()
            if (x._record is None if goal is None else key in goal)
        }
        return found

    return sweep
