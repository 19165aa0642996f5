"""Which module call are we in, and what did its attention look at: `record_attention`.

Each running module call is a `Scope` on a small stack (see nn/module.py). Names are worked out only
when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..engine import Watcher, context, watching


class Scope:
    """One call of a module, and the call it happened in."""

    __slots__ = ("module", "outer")
    module: Any
    outer: Scope | None


def dotted_name(scope: Scope | None, root: Any = None) -> str:
    """What the module of this call is called, seen from `root`: `layers.0.self_attn`.

    Without a root it is seen from the outermost module that was called. The root itself gets its
    class name. A module that is not an attribute of the one that calls it gets its class name,
    under the name of its caller.
    """
    chain: list[Any] = []  # from the inside out
    while scope is not None:
        chain.append(scope.module)
        scope = scope.outer
    if not chain:
        return "attention"
    names = {
        id(module): name for name, module in (chain[-1] if root is None else root).named_modules()
    }
    tail: list[str] = []
    for module in chain:
        if id(module) in names:
            head = names[id(module)]
            return ".".join([head, *tail] if head else tail) or type(module).__name__
        tail.insert(0, type(module).__name__)
    return ".".join(tail)


class _Recorder(Watcher):
    """Sits among the thread's watchers while `record_attention` is open; ops mean nothing to it."""

    def __init__(self, root: Any) -> None:
        self.root, self.weights = root, dict[str, list[np.ndarray]]()


@contextmanager
def record_attention(root: Any = None) -> Iterator[dict[str, list[np.ndarray]]]:
    """Collect softmax(q k^T / sqrt(D)) of every attention module called in the block, by its name.

        with ta.record_attention() as seen:
            model(x)
        seen["layers.0.self_attn"][0]    # the first call's weights, an array (B, H, T, S)

    Names are seen from the outermost module that is called, or from `root`. A module called several
    times has several entries in its list, in order. An unbatched call counts as a batch of one.
    Weights are those that were applied, after dropout if there was any. It does not matter whether
    the call asked for weights, and the outputs are the same numbers with and without recording.
    Only calls of this thread are seen, and none that goes to `F.scaled_dot_product_attention`
    itself, which returns its weights with need_weights=True. Raises TypeError for a `root` that is
    no module.
    """
    if root is not None and not hasattr(root, "named_modules"):
        raise TypeError(
            "record_attention() takes the module that names are seen from, or nothing, got "
            f"{root!r}."
        )
    with watching(_Recorder(root)) as recorder:
        yield recorder.weights


def weights_wanted() -> bool:
    """Does anybody in this thread want attention weights?"""
    watchers = context.watchers
    return bool(watchers) and any(isinstance(o, _Recorder) for o in watchers)


def leave(weights: Any) -> None:
    """A copy of the weights (B, H, T, S) of the running module's attention for all who record."""
    here = context
    for o in here.watchers:
        if isinstance(o, _Recorder):
            o.weights.setdefault(dotted_name(here.scope, o.root), []).append(weights._data.copy())
