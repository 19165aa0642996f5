"""Chapter 4: broadcasting backwards is summing.

An operand of shape `shape` was broadcast to the shape of g. Each of its elements was used several times, so its gradient is the
sum of g over these uses. Write `unbroadcast(g, shape)`:

    (3, 4) -> (4,)        sums over axis 0: it was put in front
    (3, 4) -> (3, 1)      sums over axis 1, which stays, with length 1
    (3, 4) -> ()          sums over everything

Hint: axes are matched from the right. First sum away the axes that `shape` does not have, then those where it has 1.
"""

import numpy as np


def unbroadcast(g, shape):
    """g, of any shape that `shape` broadcasts to, summed down to `shape`."""
    return None
