"""Chapter 0: the slope of any function by nudging.

Write `slope`. All it can do with f is call it. Move each element of x up and down by eps:

    (f(x + eps) - f(x - eps)) / (2 eps)

Hint: np.ndindex(x.shape) iterates over all indices of an array of any shape. Do not change x.
"""

import numpy as np


def slope(f, x, eps=1e-6):
    """Return the gradient of f at x by central differences.

    f takes an array of x's shape and returns one number. x is a float64 array of any shape. Returns
    an array of x's shape.
    """
    return None
