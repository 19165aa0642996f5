"""Chapter 6: softmax, log-sum-exp, cross-entropy.

Along the last axis of x:

    softmax(x)_i = e^x_i / sum_j e^x_j
    logsumexp(x) = log sum_j e^x_j
    cross_entropy(x, target) = mean over the rows of  logsumexp(row) - row[target]

Write the three functions so that x = 1000 does not overflow. Then write their backward rules, which
take g = dL/dy. Do not use loops or Jacobians.

Hints: subtracting a row's maximum does not change softmax; in log-sum-exp, add the maximum back at the end.
The derivative of logsumexp is softmax. The derivative of cross_entropy is softmax minus the one-hot
target, divided by the number of rows.
"""

import numpy as np


def softmax(x):
    """(..., N) -> (..., N)"""
    return None


def softmax_vjp(g, y, x):
    """g, y, x: (..., N)"""
    return None


def logsumexp(x):
    """(..., N) -> (...)"""
    return None


def logsumexp_vjp(g, y, x):
    """g, y: (...), x: (..., N)"""
    return None


def cross_entropy(x, *, target):
    """x: scores (B, N); target: class numbers (B,), integers. Returns one number."""
    return None


def cross_entropy_vjp(g, y, x, *, target):
    """g, y: one number, x: (B, N)"""
    return None
