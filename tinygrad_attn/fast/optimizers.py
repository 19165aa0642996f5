"""The quick walk of an optimiser's step: flat arrays, in blocks that fit in the cache, by two threads.

A layer has many small parameters (biases, norms), and a NumPy call on eight numbers costs as much
as one on a thousand. So the small parameters of a group are gathered into one flat array, updated
together and written back; their state lies in flat arrays for good, of which each history has views.
Large parameters are updated where they are, in blocks: each rule uses the same numbers a dozen
times, and they had better stay in the cache meanwhile. Here the rules work without fresh memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..engine import changes
from ..optim import Adam, Optimizer, optimizer
from ..optim.optimizer import Array, Update
from ..optim.sgd import SGD
from . import threads
from .kernels.memory import Scratch, contiguous

SMALL = 2**14  # numbers of a parameter, from where it is not worth gathering any more
BLOCK = 2**17  # numbers updated at a time by one thread: with state and scratch some 2.5 MB
SHARED = 2**18  # numbers of all parameters, from where a second thread is worth its hand-off

Rule = Callable[..., None]  # of (parameter, gradient, scratch (2, n), *state), all flat
Piece = tuple[Rule, Array, Array, list[Array]]

_scratch = Scratch(2 * BLOCK)


# ---- the rules, which say the same as those in optim/


def _sgd(optimizer: SGD, group: Mapping[str, Any], step: int, dtype: np.dtype[Any]) -> Rule:
    kind, decay, momentum = dtype.type, float(group["weight_decay"]), float(group["momentum"])
    fresh = kind(1 if step == 1 else 1 - float(group["dampening"]))
    lr, mu, sign = kind(group["lr"]), kind(momentum), kind(-1 if group["maximize"] else 1)

    def rule(p: Array, g: Array, scratch: Array, *state: Array) -> None:
        d, extra = np.multiply(g, sign, out=scratch[0]), scratch[1]
        if decay:
            d += np.multiply(p, kind(decay), out=extra)
        if momentum:
            (b,) = state
            b *= mu
            b += np.multiply(d, fresh, out=extra)
            d = np.add(d, np.multiply(b, mu, out=extra), out=d) if group["nesterov"] else b
        p -= np.multiply(d, lr, out=extra)

    return rule


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


rules: dict[Any, Callable[..., Rule]] = {SGD._update: _sgd, Adam._update: _adam}
"""By the update that it replaces. An update of somebody's own is called as it is."""


# ---- small parameters, gathered


class _Gathered:
    """Flat arrays for the small parameters of one group, which have had equally many updates."""

    def __init__(self, updates: list[Update]) -> None:
        self.shapes = [u.values.shape for u in updates]
        self.bounds = np.cumsum([0, *(u.values.size for u in updates)]).tolist()
        self.values, self.gradients = self._empty(updates), self._empty(updates)
        self.views = self._parts(self.values)
        self.state = [self._empty(updates) for _ in updates[0].state]
        parts = [self._parts(flat) for flat in self.state]
        for u, views in zip(updates, zip(*parts), strict=False):
            self._move(u, views)
        self.known = list(chain.from_iterable(u.state for u in updates))

    def _empty(self, updates: list[Update]) -> Array:
        return np.empty(self.bounds[-1], updates[0].values.dtype)

    def _parts(self, flat: Array) -> list[Array]:
        """The parameters' places in a flat array, each in its own shape."""
        pairs = zip(self.bounds[:-1], self.bounds[1:])
        return [flat[i:j].reshape(s) for (i, j), s in zip(pairs, self.shapes, strict=True)]

    @staticmethod
    def _move(u: Update, views: tuple[Array, ...]) -> None:
        """The same numbers in this memory, in the history too."""
        names = {id(array): name for name, array in u.history.items()}
        for i, view in enumerate(views):
            view[...] = u.state[i]
            u.history[names[id(u.state[i])]] = u.state[i] = view

    def fits(self, updates: list[Update]) -> bool:
        """Are these the parameters, and is their state still where it was put?"""
        found = list(chain.from_iterable(u.state for u in updates))
        return (
            updates[0].values.dtype == self.values.dtype
            and len(found) == len(self.known)
            and all(map(is_, found, self.known))
            and [u.values.shape for u in updates] == self.shapes
        )

    def piece(self, rule: Rule, updates: list[Update]) -> Piece:
        """What is to be done, with the numbers of today: another array may be the parameter's."""
        np.concatenate([u.values for u in updates], axis=None, out=self.values)
        np.concatenate([u.gradient for u in updates], axis=None, out=self.gradients)
        return rule, self.values, self.gradients, self.state


_gathered: WeakKeyDictionary[Optimizer, dict[Any, _Gathered]] = WeakKeyDictionary()


# ---- the walk


def walk(optimizer: Optimizer, updates: list[Update]) -> bool:
    """Do what `apply_updates` does; False, and nothing is done, where that has to do it.

    By a.data = b.data two parameters may share memory, and then one must see what the other did.
    """
    make_rule = rules.get(type(optimizer)._update)
    if make_rule is None or not _lie_apart([u.values for u in updates]):
        return False
    pieces, copies = [], list[tuple[Array, Array]]()
    known, kept = _gathered.get(optimizer, {}), {}
    for key, members in _sorted(updates):
        u = members[0]
        rule = make_rule(optimizer, u.group, u.step, u.values.dtype)
        if len(members) == 1:
            values = u.values.reshape(-1)  # a view, if its numbers lie in a row
            state = [s.reshape(-1) for s in u.state]
            pieces.append((rule, values, contiguous(u.gradient).reshape(-1), state))
            if not u.values.flags.c_contiguous:
                copies.append((u.values, values.reshape(u.values.shape)))
            continue
        flat = known.get(key)
        if flat is None or not flat.fits(members):
            flat = _Gathered(members)
        kept[key] = flat
        pieces.append(flat.piece(rule, members))
        copies += zip([u.values for u in members], flat.views)
    _gathered[optimizer] = kept
    _in_blocks(pieces)
    for values, updated in copies:
        values[...] = updated
    return True


def _sorted(updates: list[Update]) -> Iterator[tuple[Any, list[Update]]]:
    """The updates that are done together: small ones of one group, dtype and number of updates."""
    together: dict[Any, list[Update]] = {}
    for i, u in enumerate(updates):
        small = u.values.size < SMALL
        key = (id(u.group), u.values.dtype, u.step) if small else i
        together.setdefault(key, []).append(u)
    for place, members in enumerate(together.values()):
        yield place, members


def _lie_apart(arrays: list[Array]) -> bool:
    """Has each of these memory of its own?"""
    return len({id(a if a.base is None else changes.owner(a)) for a in arrays}) == len(arrays)


def _in_blocks(pieces: list[Piece]) -> None:
    """Do each in stretches that fit in the cache, on several threads if there is enough to do."""
    total, several = sum(len(values) for _, values, *_ in pieces), threads.get_num_threads()
    size = BLOCK
    if several > 1:  # fewer calls queue less for Python's lock
        size = min(max(BLOCK, -(-total // several)), 2 * BLOCK)
    blocks = [(piece, i) for piece in pieces for i in range(0, len(piece[1]), size)]

    def run(b: int) -> None:
        (rule, values, gradients, state), i = blocks[b]
        j = min(i + size, len(values))
        scratch = _scratch.of(values.dtype)[:, : j - i]
        rule(values[i:j], gradients[i:j], scratch, *[s[i:j] for s in state])

    threads.tasks(run, len(blocks), big=total >= SHARED)


optimizer.quick_walk = walk
