"""Chapter 6: three relatives of softmax.

Along the last axis of x:

    softmax(x, temperature)_i = e^(x_i / temperature) / sum_j e^(x_j / temperature)
    log_softmax(x, allowed)_i = log(e^x_i / sum of e^x_j over the allowed j)    for an allowed i, and
                                0    for any other i
    shares(x)_i               = x_i / sum_j |x_j|

The temperature is one learned number, so it has a gradient, too. `allowed` is a boolean array.
Write the functions so that x = 1000 does not overflow, then their backward rules, which take g =
dL/dy. Derive each rule on paper first, with the steps of chapter 3. Do not use loops or Jacobians.

Hints: subtracting a row's largest number changes neither softmax nor log-softmax.
np.where(allowed, x, -np.inf) takes numbers out of a row. np.abs(x) has the slope np.sign(x).
"""

import numpy as np


def softmax(x, temperature):
    """x: (..., N), temperature: one number -> (..., N)"""
    e = np.exp((x - x.max(axis=-1, keepdims=True)) / temperature)
    return e / e.sum(axis=-1, keepdims=True)


def softmax_vjp_x(g, y, x, temperature):
    """g, y, x: (..., N). Returns (..., N)."""
    return y * (g - (g * y).sum(axis=-1, keepdims=True)) / temperature


def softmax_vjp_temperature(g, y, x, temperature):
    """g, y, x: (..., N). Returns one number."""
    by_scores = y * (g - (g * y).sum(axis=-1, keepdims=True))
    return -(by_scores * x).sum() / temperature**2


def log_softmax(x, *, allowed):
    """x, allowed: (..., N) -> (..., N). At least one element of each row is allowed."""
    scores = np.where(allowed, x, -np.inf)
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return np.where(allowed, shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), 0)


def log_softmax_vjp(g, y, x, *, allowed):
    """g, y, x, allowed: (..., N)"""
    seen = np.where(allowed, g, 0)
    p = softmax(np.where(allowed, x, -np.inf), 1.0)
    return seen - p * seen.sum(axis=-1, keepdims=True)


def shares(x):
    """(..., N) -> (..., N)"""
    return x / np.abs(x).sum(axis=-1, keepdims=True)


def shares_vjp(g, y, x):
    """g, y, x: (..., N)"""
    total = np.abs(x).sum(axis=-1, keepdims=True)
    return (g - np.sign(x) * (g * y).sum(axis=-1, keepdims=True)) / total
