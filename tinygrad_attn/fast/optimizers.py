"""A quick walk for an optimiser's step: flat arrays, in blocks that fit in the cache, two threads.

A layer has many small parameters (biases, norms), and a NumPy call on eight numbers costs as much
as one on a thousand. So the small parameters of a group are gathered into one flat array, updated
together and written back. Their state lies in flat arrays for good, of which histories hold views.
Large parameters are updated where they are, in blocks: each rule uses the same numbers a dozen
times, and they had better stay in the cache meanwhile. Here the rules work without fresh memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..engine import inplace
from ..optim import Adam, Optimizer, optimizer
from ..optim.optimizer import Array, Work
from . import threads, tuning
from .kernels.rows import Scratch

Rule = Callable[..., None]  # of (parameter, gradient, scratch (2, n), *state), all flat
Piece = tuple[Rule, Array, Array, list[Array]]

_scratch = Scratch(2 * tuning.UPDATED_BLOCK)


# ---- the rule, which says the same as that in optim/


def _adam(optimizer: Adam, group: Mapping[str, Any], step: int, dtype: np.dtype[Any]) -> Rule:
    kind, (beta1, beta2) = dtype.type, map(float, group["betas"])
    decay, lr = float(group["weight_decay"]), float(group["lr"])
    b1, one_minus_b1, b2 = kind(beta1), kind(1 - beta1), kind(beta2)
    ratio = kind((1 - beta2) / (1 - beta1))
    # Both corrections are single numbers: they go into the rate and eps, not over the arrays.
    root = math.sqrt(1 - beta2**step)
    rate, eps = kind(lr * root / (1 - beta1**step)), kind(float(group["eps"]) * root)
    keep, decoupled, maximize = kind(1 - lr * decay), optimizer.decoupled, group["maximize"]

    def rule(p: Array, g: Array, scratch: Array, m: Array, v: Array, *largest: Array) -> None:
        a, signed = scratch
        if maximize:
            g = np.negative(g, out=signed)
        if decay and decoupled:
            p *= keep
        elif decay:
            g = np.add(g, np.multiply(p, kind(decay), out=a), out=signed)
        m *= b1
        m += np.multiply(g, one_minus_b1, out=a)
        v *= b2
        a *= ratio
        a *= g  # now (1 - b2) g^2
        v += a
        for top in largest:
            v = np.maximum(top, v, out=top)
        np.sqrt(v, out=a)
        a += eps
        np.divide(m, a, out=a)
        a *= rate
        p -= a

    return rule


# ---- which parameters are done together, and where


class _Together:
    """Flat arrays for some parameters of one group, which have had equally many updates."""

    def __init__(self, work: Work, members: list[int]) -> None:
        self.members, arrays = members, [work.values[i] for i in members]
        self.bounds = np.cumsum([0, *(a.size for a in arrays)]).tolist()
        self.shapes, self.dtype = [a.shape for a in arrays], arrays[0].dtype
        self.values, self.gradients, *self.state = (
            np.empty(self.bounds[-1], self.dtype) for _ in range(2 + len(work.states))
        )
        self.views = self._parts(self.values)
        for number, flat in enumerate(self.state):
            for i, view in zip(members, self._parts(flat), strict=True):
                history, old = work.histories[i], work.states[number][i]
                name = next(name for name, array in history.items() if array is old)
                view[...] = old
                history[name] = work.states[number][i] = view

    def _parts(self, flat: Array) -> list[Array]:
        """The parameters' places in a flat array, each in its own shape."""
        ends = zip(self.bounds[:-1], self.bounds[1:], self.shapes, strict=True)
        return [flat[i:j].reshape(shape) for i, j, shape in ends]

    def own(self, arrays: list[Array]) -> list[Array]:
        """Those of the members; as a rule these are all that there are."""
        if len(self.members) == len(arrays):
            return arrays
        return [arrays[i] for i in self.members]

    def gather(self, rule: Rule, work: Work) -> Piece:
        """What is to be done, with the numbers of today: another array may be the parameter's."""
        np.concatenate(self.own(work.values), axis=None, out=self.values)
        np.concatenate(self.own(work.gradients), axis=None, out=self.gradients)
        return rule, self.values, self.gradients, self.state


class _Plan:
    """Which parameters of a group are done together, and which by themselves."""

    def __init__(self, work: Work) -> None:
        self.histories, self.arrays = work.histories, len(work.states)
        self.places: dict[Any, list[int]] = {}
        for i, (a, step) in enumerate(zip(work.values, work.steps, strict=True)):
            key = (a.dtype, step) if a.size < tuning.GATHERED else i
            self.places.setdefault(key, []).append(i)
        places = self.places.values()
        self.alone = [members[0] for members in places if len(members) == 1]
        self.together = [_Together(work, members) for members in places if len(members) > 1]

    def fits(self, work: Work) -> bool:
        """Does this go as the last step did?

        The histories are the same, so their state is; and whoever has one has its shape and dtype.
        """
        return bool(
            len(work.histories) == len(self.histories)
            and all(map(is_, work.histories, self.histories))
            and len(work.states) == self.arrays
            and all(len({work.steps[i] for i in flat.members}) == 1 for flat in self.together)
        )


_plans: WeakKeyDictionary[Optimizer, list[_Plan]] = WeakKeyDictionary()


# ---- the walk


def walk(optimizer: Any, work: list[Work]) -> bool:
    """Do what `apply_updates` does; False, and nothing is done, where that has to do it.

    By a.data = b.data two parameters may share memory, and then one must see what the other did.
    """
    arrays = [a for w in work for a in w.values]
    if type(optimizer)._update is not Adam._update or not _lie_apart(arrays):
        return False
    work = [w for w in work if w.parameters]
    plans = _plans.get(optimizer, ())
    if len(plans) != len(work) or not all(map(_Plan.fits, plans, work)):
        plans = _plans[optimizer] = [_Plan(w) for w in work]
    pieces, copies = [], list[tuple[Array, Array]]()
    for plan, w in zip(plans, work, strict=True):
        for flat in plan.together:
            rule = _adam(optimizer, w.group, w.steps[flat.members[0]], flat.dtype)
            pieces.append(flat.gather(rule, w))
            copies += zip(flat.own(w.values), flat.views, strict=True)
        for i in plan.alone:
            p, g = w.values[i], np.ascontiguousarray(w.gradients[i])
            rule = _adam(optimizer, w.group, w.steps[i], p.dtype)
            values = p.reshape(-1)  # a view, if the numbers lie in a row
            state = [of_all[i].reshape(-1) for of_all in w.states]
            pieces.append((rule, values, g.reshape(-1), state))
            if not p.flags.c_contiguous:
                copies.append((p, values.reshape(p.shape)))
    _in_blocks(pieces)
    for p, updated in copies:
        p[...] = updated
    return True


def _lie_apart(arrays: list[Array]) -> bool:
    """Has each of these memory of its own?"""
    return len({id(a if a.base is None else inplace.owner(a)) for a in arrays}) == len(arrays)


def _in_blocks(pieces: list[Piece]) -> None:
    """Do each in stretches that fit in the cache, on several threads if there is enough to do."""
    total, several = sum([len(values) for _, values, *_ in pieces]), threads.get_num_threads()
    if total <= tuning.UPDATED_BLOCK:
        for rule, values, gradients, state in pieces:
            rule(values, gradients, _scratch.of(values.dtype)[:, : len(values)], *state)
        return
    size = tuning.UPDATED_BLOCK
    if several > 1:  # fewer calls queue less for Python's lock
        size = min(max(tuning.UPDATED_BLOCK, -(-total // several)), 2 * tuning.UPDATED_BLOCK)
    blocks = [(piece, i) for piece in pieces for i in range(0, len(piece[1]), size)]

    def run(b: int) -> None:
        (rule, values, gradients, state), i = blocks[b]
        j = min(i + size, len(values))
        scratch = _scratch.of(values.dtype)[:, : j - i]
        rule(values[i:j], gradients[i:j], scratch, *[s[i:j] for s in state])

    threads.tasks(run, len(blocks), big=total >= tuning.SHARED_UPDATE)


optimizer.quick_walk = walk
