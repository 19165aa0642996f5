"""Chapter 3: vector-Jacobian products.

Write the backward rule of each function. It takes g, the gradient of the loss with respect to the
output y, and returns the gradient of the loss with respect to x. g has the shape of y, and the
answer has the shape of x. Never build the Jacobian.

    softplus(x) = log(1 + e^x), element by element
    running_sum(x)[..., i] = x[..., 0] + ... + x[..., i]

Derive each rule on paper first, with the steps of chapter 3: indices, partial derivative, multiply
by g and sum, read the sum as an array expression, check.

Hints: which y_i contain x_j? Write down all nine partial derivatives of a running sum of three
numbers. x[..., ::-1] reverses the last axis.
"""

import numpy as np


def softplus(x):
    return np.logaddexp(x, 0)


def softplus_vjp(g, y, x):
    """g, y, x: all of the same shape."""
    return g / (1 + np.exp(-x))


def running_sum(x):
    return np.cumsum(x, axis=-1)


def running_sum_vjp(g, y, x):
    """g, y, x: (..., N)"""
    return np.cumsum(g[..., ::-1], axis=-1)[..., ::-1]
