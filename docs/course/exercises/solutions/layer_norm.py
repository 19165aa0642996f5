"""Chapter 7: two relatives of layer norm.

    unit(x) = x / |x|, with |x| = sqrt(sum of x_i^2), over the last axis

Group norm (Wu and He, 2018) cuts the last axis of x into `groups` groups of neighbouring numbers.
Each group has its own mean m and variance v = mean of (x - m)^2:

    n = (x - m) / sqrt(v + eps)        with the m and v of the element's group
    y = n * weight                     weight has a number for each element of the last axis

Write the rule of unit, then group norm and its backward rules, which take g = dL/dy. Derive the
rule of unit on paper first, with the steps of chapter 3. Then ask which changes of x leave the
output as it is, and check that your gradient has no part in these directions.

Hints: reshape the last axis to (groups, size of a group) and back. weight was broadcast, so its
gradient is a sum over all other axes. For broadcasting ops, the engine computes this sum for you,
so a result with the shape of x is also right.
"""

import numpy as np


def unit(x):
    """(..., N) -> (..., N)"""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True))


def unit_vjp(g, y, x):
    """g, y, x: (..., N)"""
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return (g - y * (g * y).sum(axis=-1, keepdims=True)) / length


def group_norm(x, weight, *, groups, eps=1e-5):
    """x: (..., N); weight: (N,); N is a multiple of groups"""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    centred = parts - parts.mean(axis=-1, keepdims=True)
    n = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return n.reshape(x.shape) * weight


def group_norm_vjp_x(g, y, x, weight, *, groups, eps=1e-5):
    """g, y, x: (..., N)"""
    parts, h = (a.reshape(*x.shape[:-1], groups, -1) for a in (x, g * weight))
    deviation = np.sqrt(parts.var(axis=-1, keepdims=True) + eps)
    n = (parts - parts.mean(axis=-1, keepdims=True)) / deviation
    along = h.mean(axis=-1, keepdims=True) + n * (h * n).mean(axis=-1, keepdims=True)
    return ((h - along) / deviation).reshape(x.shape)


def group_norm_vjp_weight(g, y, x, weight, *, groups, eps=1e-5):
    n = group_norm(x, np.ones_like(weight), groups=groups, eps=eps)
    return g * n
