"""Chapter 12: sinusoidal positions (Vaswani et al., 2017, section 3.5).

    table[t, 2i]     = sin(t / 10000^(2i / d_model))
    table[t, 2i + 1] = cos(t / 10000^(2i / d_model))

Write `sinusoidal`, if possible without a loop. Hint: table[:, 0::2] = ... sets every second column.
"""

import numpy as np


def sinusoidal(length, d_model):
    """Return the table (length, d_model), with t from 0. d_model is even."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table
