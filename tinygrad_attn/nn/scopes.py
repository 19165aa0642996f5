"""The module call that is running, its name, and what its attention looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..engine import Watcher, context, watching


class Scope:
    """One call of a module, and the call in which it happened."""

    __slots__ = ("module", "outer")

    def __init__(self, module: Any, outer: Scope | None) -> None:
        self.module, self.outer = module, outer


def dotted_name(scope: Scope | None, root: Any = None) -> str:
    """Return the name of a called module as seen from `root`: `layers.0.self_attn`.

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
    root = chain[-1] if root is None else root
    names = {id(module): name for name, module in root.named_modules()}
    tail: list[str] = []
    for module in chain:
        if id(module) in names:
            return ".".join(filter(None, [names[id(module)], *tail])) or type(module).__name__
        tail.insert(0, type(module).__name__)
    return ".".join(tail)


class _Recorder(Watcher):
    """Is among the thread's watchers while `record_attention` is open."""

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
    itself, which returns its weights with need_weights=True.
    """
    with watching(_Recorder(root)) as recorder:
        yield recorder.weights


def recorders() -> list[Any]:
    """Those in this thread that collect attention weights."""
    return [watcher for watcher in context.watchers if isinstance(watcher, _Recorder)]


def record(weights: Any) -> None:
    """Give a copy of the running module's attention weights (B, H, T, S) to all who collect."""
    for recorder in recorders():
        name = dotted_name(context.scope, recorder.root)
        recorder.weights.setdefault(name, []).append(weights._data.copy())
