"""The adapter for minitorch, which keeps a reduced axis with length 1."""

import minitorch
import numpy as np

loose = True  # axes of length 1 do not count


def tensor(x):
    t = minitorch.tensor(np.atleast_1d(np.asarray(x, float)).tolist())
    t.requires_grad_(True)
    return t


def value(t):
    return t.to_numpy()


def reshape(x, shape):
    return x.contiguous().view(*shape)


def overwrite(t, x):
    for index in np.ndindex(t.shape):
        t[index] = x


def zero(t):
    t.grad = None
