"""Chapter 5: two products in which an array is used more than once.

    gram(a)         y = a^T a             the dot product of every pair of columns of a
    quadratic(x, A) y_n = x_n A x_n^T     one number for each row x_n of x, all with the same A

Write their three backward rules, which take g = dL/dy. Derive each on paper first, with the steps
of chapter 3. There may be more axes in front: each matrix of a stack has its own a^T a, and A is
shared by all rows of all matrices.

Hints: an element that occurs twice in a product has a partial derivative with two terms. Keep
both. `.mT` swaps the last two axes; `.T` would reverse all of them. Neither g nor A is symmetric.
"""

import numpy as np


def gram(a):
    """(..., N, K) -> (..., K, K)"""
    return a.mT @ a


def gram_vjp(g, y, a):
    """g, y: (..., K, K), a: (..., N, K)"""
    return None


def quadratic(x, A):
    """x: (..., N, D), A: (D, D) -> (..., N)"""
    return np.sum(x @ A * x, axis=-1)


def quadratic_vjp_x(g, y, x, A):
    """g, y: (..., N). Returns (..., N, D)."""
    return None


def quadratic_vjp_A(g, y, x, A):
    """g, y: (..., N). Returns (D, D)."""
    return None
