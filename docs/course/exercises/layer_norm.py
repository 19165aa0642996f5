"""Chapter 7: layer normalisation by hand.

Over the last axis of x, with its mean m and variance v = mean of (x - m)^2:

    n = (x - m) / sqrt(v + eps)
    y = n * weight + bias

Write n (`normalized`), y (`layer_norm`), and the backward rules of the three inputs. Try the
derivation on paper before you look it up in chapter 7.

Hints: m and v depend on x too, so x is used three times and its gradient has three terms. weight and
bias have shape (N,). They were broadcast, so their gradients are sums over all other axes. For
broadcasting ops, the engine computes these sums for you, so a result with the shape of x is also
right. Begin with h = g * weight, the gradient with respect to n.
"""

import numpy as np


def normalized(x, eps=1e-5):
    """(..., N) -> (..., N)"""
    return None


def layer_norm(x, weight, bias):
    """x: (..., N); weight, bias: (N,)"""
    return None


def layer_norm_vjp_x(g, y, x, weight, bias):
    """g, y, x: (..., N)"""
    return None


def layer_norm_vjp_weight(g, y, x, weight, bias):
    return None


def layer_norm_vjp_bias(g, y, x, weight, bias):
    return None
