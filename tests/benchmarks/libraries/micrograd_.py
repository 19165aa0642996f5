"""micrograd: single numbers."""

import numpy as np
from micrograd.engine import Value

from .ours import scalar_network


class Library:
    """micrograd"""

    def scalars(self, arrays):
        t = {
            k: [[Value(float(u)) for u in row] for row in np.atleast_2d(v)]
            for k, v in arrays.items()
        }
        everything = [u for rows in t.values() for row in rows for u in row]

        def step():
            for u in everything:
                u.grad = 0
            scalar_network(t, lambda u: u.relu()).backward()

        return step, lambda: {
            k: np.array([[u.grad for u in row] for row in rows]).reshape(arrays[k].shape)
            for k, rows in t.items()
        }
