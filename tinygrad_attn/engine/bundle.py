"""Several tensors as one: a function of the graph with several outputs.

An op has one output. A **bundle** is a tensor that stands for several: its VJP gets all of their
gradients at once, in a `Parts`, where a tensor that was not used has none. A checkpoint with
several outputs is a bundle, and so are the inputs of a module with backward hooks.

    token = bundle(a, b)                    # in the graph, a number
    a2, b2 = members(token, [a._data, b._data])
    (a2 * 3).sum().backward()               # the VJP of `bundle` gets Parts({0: [3, 3, ...]})
"""

import numpy as np

from .graph import Hooks, Parts
from .op import Op


class Bundling(Op):
    """An op that makes a bundle, or takes a member out of it; their gradient is a `Parts`."""


@Bundling
def bundle(*tensors):
    """Return a number that stands for the tensors in the graph."""
    return np.zeros(())


@bundle.vjp_all
def _unbundled(g, _y, *_tensors):
    return tuple(g.get(i) for i in range(len(_tensors)))


@Bundling
def member(of, *, position, values):
    """Return one of the arrays for which a bundle stands: values(position)."""
    return values(position)


member.vjp(lambda g, _y, _of, *, position, values: Parts({position: g}))


def members(of, values):
    """Return tensors with these arrays as values, whose gradients go to the bundle together."""
    return [member(of, position=i, values=values.__getitem__) for i in range(len(values))]


def bundled(tensors, hook):
    """Return tensors that stand for the given ones, and call hook(gradients) on the way back."""
    together = bundle(*tensors)
    together._tracked = hooks = Hooks()
    hooks.functions.append(hook)
    return members(together, [x._data for x in tensors])
