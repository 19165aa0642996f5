"""Chapter 0: the slope of any function by nudging.

Write `slope`. It knows nothing about f; it only calls it. For each element of x, move that element by eps up and down:

    (f(x + eps) - f(x - eps)) / (2 eps)

Hints: np.ndindex(x.shape) goes through all indices of an array of any shape. Leave x as you found it.
"""

import numpy as np


def slope(f, x, eps=1e-6):
    """The gradient of f at x by central differences.

    f takes an array of x's shape and returns one number; x is a float64 array of any shape. Returns an array of x's shape.
    """
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = eps
        gradient[index] = (f(x + step) - f(x - step)) / (2 * eps)
    return gradient
