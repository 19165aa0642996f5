"""Chapter 4: the backward rule of broadcasting is a sum.

An operand of shape `shape` was broadcast to the shape of g. Each of its elements was used several
times, so its gradient is the sum of g over these uses. Write `unbroadcast(g, shape)`:

    (3, 4) -> (4,)        sums over axis 0, which broadcasting added
    (3, 4) -> (3, 1)      sums over axis 1, and keeps it with length 1
    (3, 4) -> ()          sums over everything

Hint: axes are matched from the right. First sum over the axes that `shape` does not have, then over the axes where `shape` is 1.
"""

import numpy as np


def unbroadcast(g, shape):
    """Sum g so that its shape becomes `shape`. g has any shape that `shape` broadcasts to."""
    g = np.asarray(g)
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    return g.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)
