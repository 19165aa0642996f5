"""The sweep once more, as plainly as it can be said: a second opinion on the engine.

It shares the ops' rules with the engine and nothing else, keeps every gradient, and works to first
order only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine import history
from .records import shares


class Opinion(NamedTuple):
    """What a second sweep found, by tensor."""

    grads: dict[Any, np.ndarray]  # a gradient of one share alone lies in memory as the rule left it
    uses: dict[Any, list[tuple[str, np.ndarray]]]  # (the op that uses it, its share)


def second_opinion(
    roots: Sequence[Any],
    seeds: Sequence[np.ndarray],
    look: Callable[[Any, Any], None] = lambda t, g: None,
) -> Opinion:
    """Sweep the graph of the roots, newest first; `look` sees each result and its gradient."""
    found = Opinion({}, {})

    def add(t: Any, share: Any) -> None:
        before = found.grads.get(t)
        found.grads[t] = share if before is None else before + share

    for t, seed in zip(roots, seeds):
        add(t, seed)
    for t in reversed(history(roots)):
        if t in found.grads:  # else nothing that reaches it asked for its gradient
            name, g = t._node.op.__name__, found.grads[t]
            look(t, g)
            for x, share in shares(t, np.array(g)):
                add(x, share)
                found.uses.setdefault(x, []).append((name, share))
    return found
