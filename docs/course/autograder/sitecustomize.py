"""Shifts the seeds of the marker's random inputs, if an environment variable says so.

Python imports a module of this name by itself at its start.
"""

import os

if shift := os.environ.get("TINYGRAD_ATTN_INPUTS"):
    import numpy as np

    plain = np.random.default_rng

    def default_rng(seed=None):
        """Return NumPy's generator for a seed that is shifted."""
        if isinstance(seed, (int, list, tuple)):
            seed = [int(shift), *np.atleast_1d(seed).tolist()]
        return plain(seed)

    np.random.default_rng = default_rng
