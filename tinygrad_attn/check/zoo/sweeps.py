"""Wrong ways to sweep a graph, as published: each gets some graph wrong."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...engine import backward, history, tracked
from ..records import shares
from .bug import Patches, keep


class _Sums:
    """The gradients so far, and how the flawed sweep adds to them."""

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self.grads: dict[Any, Any] = {}
        self.add = add

    def give(self, x: Any, share: Any) -> None:
        self.grads[x] = self.add(self.grads[x], share) if x in self.grads else share

    def pass_on(self, t: Any, g: Any) -> Iterator[tuple[Any, Any]]:
        """Give the inputs of t's op their shares; yields those from which the sweep goes on."""
        for x, share in shares(t, g):
            self.give(x, share)
            if x._node is not None:
                yield x, share


def _sweep(
    run: Callable[[_Sums, Any], None], add: Callable[[Any, Any], Any] = operator.add
) -> Patches:
    """A stand-in for `engine.sweep` with one flaw.  First order only."""

    def sweep(roots: Any, seeds: Any, *, wanted: Any = None, **_: Any) -> dict[Any, Any]:
        sums = _Sums(add)
        for t, seed in zip(roots, seeds):
            sums.give(t, np.array(seed))
        run(sums, roots)
        goal = {x for x in sums.grads if x._node is None} if wanted is None else set(wanted)
        return {x: np.array(g) for x, g in sums.grads.items() if x in goal}

    return [(backward, "sweep", sweep)]


def _in_order(order: Callable[[Any], list[Any]], kept: dict[Any, Any] | None = None) -> Callable:
    """Tensor by tensor; `kept` are gradients of the last backward pass that nobody has cleared."""

    def run(sums: _Sums, roots: Any) -> None:
        ends = set(roots)
        for t in order(roots):
            if kept is not None and t not in ends:
                sums.give(t, kept.get(t, 0))
                kept[t] = sums.grads[t]
            list(sums.pass_on(t, sums.grads[t]))

    return run


def _newest_first(roots: Any) -> list[Any]:
    return history(roots)[::-1]


@keep(
    "gradient-overwritten",
    "a gradient is assigned where it must be added",
    "micrograd's lecture, as its first version, before += is put in",
    "a + a has slope 1",
)
def _() -> Patches:
    return _sweep(_in_order(_newest_first), lambda old, new: new)


@keep(
    "depth-first",
    "a tensor passes its gradient on as soon as it is first reached",
    "minigrad (kennysong; its source tells of it)",
    "right for chains; a tensor used at two depths passes on half of its gradient",
)
def _() -> Patches:
    def run(sums: _Sums, roots: Any) -> None:
        visited: set[Any] = set()

        def go(t: Any) -> None:
            visited.add(t)
            for x, _ in sums.pass_on(t, sums.grads[t]):
                if x not in visited:
                    go(x)

        for t in roots:
            go(t)

    return _sweep(run)


@keep(
    "once-for-each-path",
    "the sweep follows every path instead of every node",
    "SmallPebble (core/ops.py, get_gradients)",
    "right, but 2^n steps for n doublings: sixty of them never end",
)
def _() -> Patches:
    def run(sums: _Sums, roots: Any) -> None:
        def follow(t: Any, g: Any) -> None:
            for x, share in sums.pass_on(t, g):
                follow(x, share)

        for t in roots:
            follow(t, sums.grads[t])

    return _sweep(run)


@keep(
    "recursive",
    "the order is found by recursion",
    "micrograd (engine.py, build_topo), smolgrad (core/engine.py, _tsort)",
    "RecursionError on a chain of a thousand ops",
)
def _() -> Patches:
    def order(roots: Any) -> list[Any]:
        """Inputs first; then reversed."""
        found: list[Any] = []
        seen: set[Any] = set()

        def visit(t: Any) -> None:
            if t not in seen and t._node is not None:
                seen.add(t)
                for x in filter(tracked, t._node.inputs):
                    visit(x)
                found.append(t)

        for t in roots:
            visit(t)
        return found[::-1]

    return _sweep(_in_order(order))


@keep(
    "gradient-aliased",
    "the first gradient is kept by reference and the second added to it in place",
    "neunet (autograd.py; its source marks the repair)",
    "a + b shares one gradient array, and what is added for a reaches b",
)
def _() -> Patches:
    return _sweep(_in_order(_newest_first), operator.iadd)


@keep(
    "second-backward-stale",
    "gradients between the leaves are kept from one backward pass to the next",
    "micrograd (issue 53)",
    "two passes over one graph give three times the gradient instead of two",
)
def _() -> Patches:
    return _sweep(_in_order(_newest_first, {}))
