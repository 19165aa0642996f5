"""A kernel for Adam and AdamW steps on flat arrays, in blocks that stay in the cache.

A layer has many small parameters, and a NumPy call on eight numbers costs as much as one on a
thousand. So the small parameters of a group are copied to one flat array, updated together and
copied back. Their state stays in flat arrays; the optimiser's histories hold views of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy import ndarray

from ..engine import kernel
from ..optim import Adam, Optimizer
from ..optim.optimizer import Work, apply_updates
from . import tuning
from .threads import tasks


def _rule(
    optimizer: Adam, group: Mapping[str, Any], step: int, dtype: np.dtype
) -> Callable[..., None]:
    """Return the update rule of `optim`, rewritten for fewer passes over the arrays."""
    kind, (beta1, beta2) = dtype.type, map(float, group["betas"])
    decay, lr = float(group["weight_decay"]), float(group["lr"])
    root = math.sqrt(1 - beta2**step)  # rate and eps include both bias corrections
    rate, eps = kind(lr * root / (1 - beta1**step)), kind(float(group["eps"]) * root)

    def rule(p: ndarray, g: ndarray, m: ndarray, v: ndarray, *largest: ndarray) -> None:
        if group["maximize"]:
            g = -g
        if decay and optimizer.decoupled:
            p *= kind(1 - lr * decay)
        elif decay:
            g = g + p * kind(decay)
        a = g * kind(1 - beta1)
        m *= kind(beta1)
        m += a
        a *= kind((1 - beta2) / (1 - beta1))
        a *= g  # (1 - beta2) g^2
        v *= kind(beta2)
        v += a
        for top in largest:
            v = np.maximum(top, v, out=top)
        np.sqrt(v, out=a)
        a += eps
        np.divide(m, a, out=a)
        a *= rate
        p -= a

    return rule


class _Gathered:
    """Flat arrays for some parameters of a group. The histories contain views of the state."""

    def __init__(self, names: tuple[str, ...], work: Work, members: list[int]) -> None:
        like = [work.values[i] for i in members]
        ends = np.cumsum([p.size for p in like])
        self.values, *self.state = (np.empty(ends[-1], like[0].dtype) for _ in ("", *names))
        self.updated, *states = (
            [part.reshape(p.shape) for part, p in zip(np.split(flat, ends[:-1]), like)]
            for flat in (self.values, *self.state)
        )
        self.views = [view for views in states for view in views]
        for name, arrays, views in zip(names, work.states, states):
            for i, view in zip(members, views):
                view[...] = arrays[i]
                work.histories[i][name] = arrays[i] = view

    def holds(self, work: Work, members: list[int]) -> bool:
        """Return whether the histories of these parameters still contain the views."""
        arrays = [arrays[i] for arrays in work.states for i in members]
        return len(arrays) == len(self.views) and all([a is b for a, b in zip(arrays, self.views)])


_gathered: WeakKeyDictionary[Optimizer, dict[Any, _Gathered]] = WeakKeyDictionary()


@kernel(apply_updates)
def update(optimizer: Any, work: list[Work]) -> Any:
    """Update all parameters in blocks."""
    values = [p for w in work for p in w.values]
    owners = {id(p if p.base is None else p.base) for p in values}
    if type(optimizer)._update is not Adam._update or len(owners) < len(values):
        return NotImplemented  # parameters that share memory need each other's updates
    known = _gathered.setdefault(optimizer, {})
    blocks: list[tuple[Callable[..., None], list[ndarray]]] = []
    copies: list[tuple[ndarray, ndarray]] = []

    def add(w: Work, step: int, *flat: ndarray) -> None:
        rule, size = _rule(optimizer, w.group, step, flat[0].dtype), tuning.UPDATED_BLOCK
        for i in range(0, flat[0].size, size):
            blocks.append((rule, [x[i : i + size] for x in flat]))

    for number, w in enumerate(work):
        together = defaultdict(list)
        for i, (p, g, step) in enumerate(zip(w.values, w.gradients, w.steps)):
            state = [] if p.size < tuning.GATHERED else [arrays[i] for arrays in w.states]
            if state and all([x.flags.c_contiguous for x in (p, *state)]):
                add(w, step, *[x.reshape(-1) for x in (p, g, *state)])
            else:
                together[p.dtype, step].append(i)
        for (dtype, step), members in together.items():
            flat = known.get((number, dtype))
            if flat is None or not flat.holds(w, members):
                names = optimizer._state_names(w.group)
                flat = known[number, dtype] = _Gathered(names, w, members)
            values, gradients = ([arrays[i] for i in members] for arrays in (w.values, w.gradients))
            np.concatenate(values, axis=None, out=flat.values)
            add(w, step, flat.values, np.concatenate(gradients, axis=None), *flat.state)
            copies += zip(values, flat.updated)

    def run(n: int) -> None:
        rule, arrays = blocks[n]
        rule(*arrays)

    tasks(run, len(blocks), sum([arrays[0].size for _, arrays in blocks]) >= tuning.SECOND_THREAD)
    for p, updated in copies:
        p[...] = updated
    return None
