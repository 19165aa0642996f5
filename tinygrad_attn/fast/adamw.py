"""A kernel that runs the steps of Adam and AdamW on flat arrays, in blocks that stay in the cache.

A layer has many small parameters, and a NumPy call on eight numbers costs as much as one on a
thousand. So the small parameters of a group and their state are copied to flat arrays, updated
together and copied back.
"""

from functools import partial

import numpy as np

from ..engine import kernel
from ..engine.inplace import owner
from ..optim import Adam
from ..optim.optimizer import apply_updates
from . import tuning
from .threads import tasks


@kernel(apply_updates)
def update(optimizer, updates):
    """Update all parameters in blocks."""
    values = [arrays[0] for _, _, arrays in updates]
    owners = {id(owner(p)) for p in values}
    if type(optimizer)._update is not Adam._update or len(owners) < len(values):
        return NotImplemented  # parameters that share memory need each other's updates
    blocks = []  # functions without arguments
    copied = []  # pairs of a flat array and the arrays in it
    together = {}  # small parameters, with their group and step

    def add(group, step, flat):
        for i in range(0, flat[0].size, tuning.UPDATED_BLOCK):
            block = [x[i : i + tuning.UPDATED_BLOCK] for x in flat]
            blocks.append(partial(optimizer._update, group, step, *block))

    for group, history, arrays in updates:
        p, step = arrays[0], history["step"]
        if p.size >= tuning.GATHERED and all([x.flags.c_contiguous for x in (p, *arrays[2:])]):
            add(group, step, [x.reshape(-1) for x in arrays])
        else:
            key = id(group), p.dtype, step
            together.setdefault(key, (group, step, []))[2].append(arrays)
    for group, step, members in together.values():
        columns = list(zip(*members))
        flat = [np.concatenate(arrays, axis=None) for arrays in columns]
        add(group, step, flat)
        copied += [pair for i, pair in enumerate(zip(flat, columns)) if i != 1]  # no gradients

    tasks(lambda n: blocks[n](), len(blocks), sum(p.size for p in values) >= tuning.SECOND_THREAD)
    for updated, arrays in copied:
        start = 0
        for x in arrays:
            x[...] = updated[start : start + x.size].reshape(x.shape)
            start += x.size
    return None
