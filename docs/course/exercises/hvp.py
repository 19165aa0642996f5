"""Chapter 17: a Hessian times a vector.

The Hessian H of f has n^2 numbers. H v is the gradient of the dot product of v and the gradient of f, and takes only two backward passes.
Write `hvp` with two calls of ta.grad, where the second differentiates the result of the first (ta.hvp does the same).

Hint: use create_graph=True in the first call, so that the gradient is recorded in the graph.
"""

import numpy as np

import tinygrad_attn as ta
from tinygrad_attn import Tensor


def hvp(f, x, v):
    """Return H v. f maps a Tensor to a Tensor of one number; x and v are arrays of one shape."""
    return None
