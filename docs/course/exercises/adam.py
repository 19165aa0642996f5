"""Chapter 8: one step of Adam (Kingma and Ba, 2015).

With g the gradient and t = 1 at the first step:

    m <- beta1 m + (1 - beta1) g              a running mean of the gradient
    v <- beta2 v + (1 - beta2) g^2            and of its square
    p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

Write `adam_step`. It returns new arrays and does not change the old ones.
"""

import numpy as np


def adam_step(p, g, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    """Return the new (p, m, v). p, g, m and v are arrays of one shape; t is the step number, from 1."""
    return None
