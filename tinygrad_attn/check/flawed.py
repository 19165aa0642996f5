"""Wrong ways to sweep a graph, as published: each gets some graph wrong that the right one (engine.py) gets right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..engine import Variable
from .byhand import contributions, newest_first


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


def _by_recursion(roots: Any) -> list[Any]:
    """The order of micrograd: children first, by recursion; then reversed."""
    order: list[Any] = []
    seen: set[int] = set()

    def visit(t: Any) -> None:
        if id(t) not in seen and t._record is not None:
            seen.add(id(t))
            for x in t._record.inputs:
                if isinstance(x, Variable) and x._tracked:
                    visit(x)
            order.append(t)

    for t in roots:
        visit(t)
    return order[::-1]


def flawed_sweep(name: str) -> Callable[..., tuple[dict[Any, Any], set[Any]]]:
    """A stand-in for `engine.sweep` with one flaw.  First order only."""
    stale: dict[int, tuple[Any, Any]] = {}

    def sweep(
        roots: Any,
        seeds: Any,
        *,
        wanted: Any = None,
        create_graph: bool = False,
        retain_graph: bool = False,
        stop: bool = False,
    ) -> dict[Any, Any]:
        grads: dict[int, Any] = {}
        holders: dict[int, Any] = {}

        def give(x: Any, part: Any) -> None:
            key = id(x)
            holders[key] = x
            if key not in grads or name == "gradient-overwritten":
                grads[key] = part
            elif name == "gradient-aliased":
                grads[key] += part
            else:
                grads[key] = grads[key] + part

        for t, seed in zip(roots, seeds):
            give(t, np.array(seed))
        if name == "once-for-each-path":

            def follow(t: Any, g: Any) -> None:
                for x, part in contributions(t, g):
                    give(x, part)
                    if x._record is not None:
                        follow(x, part)

            for t, seed in zip(roots, seeds):
                follow(t, seed)
        elif name == "depth-first":
            visited: set[int] = set()

            def go(t: Any) -> None:
                visited.add(id(t))
                for x, part in contributions(t, grads[id(t)]):
                    give(x, part)
                    if x._record is not None and id(x) not in visited:
                        go(x)

            for t in roots:
                go(t)
        else:
            for t in (_by_recursion if name == "recursive" else newest_first)(roots):
                if name == "second-backward-stale" and all(t is not root for root in roots):
                    grads[id(t)] = grads[id(t)] + stale.get(id(t), (t, 0))[1]
                    stale[id(t)] = (t, grads[id(t)])
                for x, part in contributions(t, grads[id(t)]):
                    give(x, part)
        goal = None if wanted is None else {id(t) for t in wanted}
        found = {
            x: np.array(grads[key])
            for key, x in holders.items()
            if (x._record is None if goal is None else key in goal)
        }
        return found

    return sweep
