"""One walk over the graph, for everybody who wants to see what a result was computed from."""

from __future__ import annotations

from collections.abc import Iterable

from .graph import Variable


def history(roots: Iterable[Variable]) -> list[Variable]:
    """Every tensor that an op has made, of the roots and behind them, each once: oldest first.

    An op's inputs are older than its result, so this is a topological order; read backwards, it is
    the order of a backward pass. Nothing recurses: a chain of a million ops is a list like any
    other.
    """
    found = {id(t): t for t in roots}
    waiting = list(found.values())
    while waiting:
        t = waiting.pop()
        for x in () if t._node is None else t._node.inputs:
            if isinstance(x, Variable) and id(x) not in found:
                found[id(x)] = x
                waiting.append(x)
    made = [t for t in found.values() if t._node is not None]
    return sorted(made, key=lambda t: t._node.number)
