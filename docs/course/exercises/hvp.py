"""Chapter 17: a Hessian times a vector.

The Hessian H of f has n^2 numbers. H v is the gradient of the number <gradient of f, v>, and costs only two backward passes.
Write `hvp` with two calls of ta.grad; the second differentiates what the first returned (ta.hvp does the same).

Hint: the first gradient must be recorded itself: create_graph=True.
"""

import numpy as np

import tinygrad_attn as ta
from tinygrad_attn import Tensor


def hvp(f, x, v):
    """H v, of x's shape. f: from a Tensor to a Tensor of one number; x, v: arrays of one shape."""
    return None
