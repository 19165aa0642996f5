"""A kernel of the steps of Adam and AdamW: flat arrays, in blocks that stay in the cache.

A layer has many small parameters, and a NumPy call on eight numbers costs as much as one on a
thousand. So the small parameters of a group are copied to one flat array, updated together and
copied back. Their state is kept in flat arrays, of which the optimiser's histories hold views.
"""

from __future__ import annotations

import math
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

Rule = Callable[..., None]  # of (parameter, gradient, *state), all flat


def _rule(optimizer: Adam, group: Mapping[str, Any], step: int, dtype: np.dtype) -> Rule:
    """Return the update that `optim` states, in fewer passes over the arrays."""
    kind, (beta1, beta2) = dtype.type, map(float, group["betas"])
    decay, lr = float(group["weight_decay"]), float(group["lr"])
    root = math.sqrt(1 - beta2**step)  # both corrections are in the rate and eps
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


class _Together:
    """Flat arrays for some parameters of a group that have had equally many updates."""

    def __init__(self, work: Work, members: list[int]) -> None:
        self.members, arrays = members, [work.values[i] for i in members]
        self.shapes = [a.shape for a in arrays]
        ends = np.cumsum([0, *(a.size for a in arrays)]).tolist()
        self.parts = [slice(*pair) for pair in zip(ends[:-1], ends[1:])]
        self.values, self.gradients, *self.state = (
            np.empty(ends[-1], arrays[0].dtype) for _ in range(2 + len(work.states))
        )
        self.views = self._views(self.values)
        for flat, arrays in zip(self.state, work.states):
            for i, view in zip(members, self._views(flat)):
                history = work.histories[i]
                name = next(name for name, array in history.items() if array is arrays[i])
                view[...] = arrays[i]
                history[name] = arrays[i] = view

    def _views(self, flat: ndarray) -> list[ndarray]:
        return [flat[part].reshape(shape) for part, shape in zip(self.parts, self.shapes)]

    def gather(self, work: Work) -> None:
        """Copy today's parameters and gradients."""
        for flat, arrays in ((self.values, work.values), (self.gradients, work.gradients)):
            np.concatenate([arrays[i] for i in self.members], axis=None, out=flat)


class _Plan:
    """Which parameters of a group are updated together, and which alone."""

    def __init__(self, work: Work) -> None:
        self.histories, self.arrays = work.histories, len(work.states)
        places: dict[Any, list[int]] = {}
        for i, (a, step) in enumerate(zip(work.values, work.steps)):
            key = (a.dtype, step) if a.size < tuning.GATHERED else i
            places.setdefault(key, []).append(i)
        self.alone = [members[0] for members in places.values() if len(members) == 1]
        self.together = [_Together(work, ms) for ms in places.values() if len(ms) > 1]

    def fits(self, work: Work) -> bool:
        """Whether the parameters, their state and their steps belong together as before."""
        same = len(work.histories) == len(self.histories) and len(work.states) == self.arrays
        return (
            same
            and all([a is b for a, b in zip(work.histories, self.histories)])
            and all([len({work.steps[i] for i in flat.members}) == 1 for flat in self.together])
        )


_plans: WeakKeyDictionary[Optimizer, list[_Plan]] = WeakKeyDictionary()


@kernel(apply_updates)
def update(optimizer: Any, work: list[Work]) -> Any:
    """Update all parameters in blocks."""
    arrays = [a for w in work for a in w.values]
    owners = {id(a if a.base is None else a.base) for a in arrays}
    if type(optimizer)._update is not Adam._update or len(owners) < len(arrays):
        return NotImplemented  # parameters that share memory must see each other's updates
    work = [w for w in work if w.parameters]
    plans = _plans.get(optimizer, ())
    if len(plans) != len(work) or not all(map(_Plan.fits, plans, work)):
        plans = _plans[optimizer] = [_Plan(w) for w in work]
    pieces: list[tuple] = []  # (rule, parameter, gradient, *state), flat
    copies: list[tuple[ndarray, ndarray]] = []
    for plan, w in zip(plans, work):
        for flat in plan.together:
            flat.gather(w)
            rule = _rule(optimizer, w.group, w.steps[flat.members[0]], flat.values.dtype)
            pieces.append((rule, flat.values, flat.gradients, *flat.state))
            copies += zip([w.values[i] for i in flat.members], flat.views)
        for i in plan.alone:
            p = w.values[i]
            rule = _rule(optimizer, w.group, w.steps[i], p.dtype)
            arrays = [x.reshape(-1) for x in (p, w.gradients[i], *(s[i] for s in w.states))]
            pieces.append((rule, *arrays))
            if not p.flags.c_contiguous:  # reshape has made a copy
                copies.append((p, arrays[0].reshape(p.shape)))
    size = tuning.UPDATED_BLOCK
    blocks = [
        (*piece, slice(i, i + size)) for piece in pieces for i in range(0, piece[1].size, size)
    ]

    def run(n: int) -> None:
        rule, *arrays, part = blocks[n]
        rule(*[a[part] for a in arrays])

    tasks(run, len(blocks), big=sum([piece[1].size for piece in pieces]) >= tuning.SECOND_THREAD)
    for values, updated in copies:
        values[...] = updated
    return None
