"""The adapter for needle, the engine of the course Deep Learning Systems, with NumPy below it."""

import needle
import numpy as np

functions = (needle, needle.ops)


def tensor(x):
    return needle.Tensor(x, dtype=np.asarray(x).dtype.name)


def value(t):
    return t.numpy()


def transpose(x, axes):
    if axes != (1, 0):
        raise NotImplementedError("transpose swaps two axes")
    return needle.transpose(x, (0, 1))


def overwrite(t, x):
    t.cached_data[...] = x


def zero(t):
    t.grad = None
