"""What lies behind a tensor: everything that ops have computed on the way to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .graph import Variable


def history(roots: Iterable[Variable]) -> list[Variable]:
    """All tensors behind the roots that ops have made, and these roots, oldest first, each once.

    A loop with a list of its own, so that a graph may be as deep as it likes.
    """
    found: dict[int, Any] = {}
    ahead: list[Any] = list(roots)
    while ahead:
        t = ahead.pop()
        record = t._node
        if record is not None and id(t) not in found:
            found[id(t)] = t
            ahead += [x for x in record.inputs if isinstance(x, Variable)]
    return sorted(found.values(), key=lambda t: t._node.tick)
