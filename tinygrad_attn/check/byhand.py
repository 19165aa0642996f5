"""The sweep once more, as plainly as it can be said: a second opinion on the engine.

It shares the ops' rules with engine.py and nothing else, keeps every gradient, and works to first order only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine import Variable, _fit


def contributions(t: Any, g: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """(input, its share of the gradient) for each use by the op that made t."""
    node = t._node
    op, needs = node.op, tuple(isinstance(x, Variable) and x._tracked for x in node.inputs)
    args = [x._data if isinstance(x, Variable) else x for x in node.inputs]
    together = None
    if op.joint is not None:
        extra = ({"saved": node.saved} if op.saves else {}) | ({"needs": needs} if op._joint_asks_needs else {})
        together = op.joint(g, t._data, *args, **node.static, **extra)
    for i, x in enumerate(node.inputs):
        if needs[i]:
            rule = op.partials[i] if together is None else None
            part = together[i] if together is not None else None if rule is None else rule(g, t._data, *args, **node.static)
            if part is not None:
                yield x, _fit(part, x, op, i)


def newest_first(roots: Iterable[Any]) -> list[Any]:
    """Every recorded tensor that leads to the roots; an op's inputs are older than its result, so this is a topological order."""
    waiting, found = list(roots), dict[int, Any]()
    while waiting:
        t = waiting.pop()
        if id(t) not in found and t._record is not None:
            found[id(t)] = t
            waiting += [x for x in t._node.inputs if isinstance(x, Variable) and x._tracked]
    return sorted(found.values(), key=lambda t: -t._node.tick)


class Opinion(NamedTuple):
    """What a sweep by hand found, by id of tensor."""

    grads: dict[int, np.ndarray]
    uses: dict[int, list[str]]    # the ops that use it
    spoiled: list[Any]            # results of ops whose rule wrote into g, into the result or into an operand


def second_opinion(roots: Sequence[Any], seeds: Sequence[np.ndarray]) -> Opinion:
    """Sweep the graph of the roots by hand."""
    found = Opinion({}, {}, [])
    for t, seed in zip(roots, seeds):
        found.grads[id(t)] = found.grads.get(id(t), 0) + seed
    for t in newest_first(roots):
        g = np.array(found.grads[id(t)])
        given = [g, t._data, *(x._data if isinstance(x, Variable) else x for x in t._node.inputs)]
        before = [np.array(a) if isinstance(a, np.ndarray) else a for a in given]
        with np.errstate(all="ignore"):
            shares = list(contributions(t, g))
        for x, part in shares:
            found.grads[id(x)] = found.grads.get(id(x), 0) + part
            found.uses.setdefault(id(x), []).append(t._node.op.__name__)
        if any(isinstance(a, np.ndarray) and a.tobytes() != b.tobytes() for a, b in zip(given, before)):
            found.spoiled.append(t)
    return found
