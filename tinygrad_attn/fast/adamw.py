"""A kernel for Adam and AdamW steps on flat arrays, in blocks that stay in the cache.

A layer has many small parameters, and a NumPy call on eight numbers costs as much as one on a
thousand. So the small parameters of a group and their state are copied to flat arrays, updated
together and copied back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial

import numpy as np

from ..engine import kernel
from ..engine.inplace import owner
from ..optim import Adam
from ..optim.optimizer import apply_updates
from . import tuning
from .threads import tasks


def _rule(optimizer, group, step, dtype):
    """Return the update rule of `optim`, rewritten for fewer passes over the arrays."""
    kind, (beta1, beta2) = dtype.type, map(float, group["betas"])
    decay, lr = float(group["weight_decay"]), float(group["lr"])
    root = math.sqrt(1 - beta2**step)  # rate and eps include both bias corrections
    rate, eps = kind(lr * root / (1 - beta1**step)), kind(float(group["eps"]) * root)

    def rule(p, g, m, v, *largest):
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


@kernel(apply_updates)
def update(optimizer, work):
    """Update all parameters in blocks."""
    values = [p for w in work for p in w.values]
    owners = {id(owner(p)) for p in values}
    if type(optimizer)._update is not Adam._update or len(owners) < len(values):
        return NotImplemented  # parameters that share memory need each other's updates
    blocks = []  # functions without arguments
    copied = []  # pairs of a flat array and the arrays in it

    def add(w, step, flat):
        rule, size = _rule(optimizer, w.group, step, flat[0].dtype), tuning.UPDATED_BLOCK
        for i in range(0, flat[0].size, size):
            blocks.append(partial(rule, *[x[i : i + size] for x in flat]))

    for w in work:
        together = defaultdict(list)
        for step, p, g, *state in zip(w.steps, w.values, w.gradients, *w.states):
            if p.size >= tuning.GATHERED and all([x.flags.c_contiguous for x in (p, *state)]):
                add(w, step, [x.reshape(-1) for x in (p, g, *state)])
            else:
                together[p.dtype, step].append((p, g, *state))
        for (_, step), members in together.items():
            columns = list(zip(*members))
            flat = [np.concatenate(arrays, axis=None) for arrays in columns]
            add(w, step, flat)
            copied += [pair for i, pair in enumerate(zip(flat, columns)) if i != 1]  # no gradients

    tasks(lambda n: blocks[n](), len(blocks), sum(p.size for p in values) >= tuning.SECOND_THREAD)
    for updated, arrays in copied:
        start = 0
        for x in arrays:
            x[...] = updated[start : start + x.size].reshape(x.shape)
            start += x.size
    return None
