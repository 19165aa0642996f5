"""The adapter for tinygrad."""

import os

os.environ["DEV"] = "CPU"
import numpy as np
from tinygrad import Tensor


def constant(x):
    return Tensor(np.atleast_1d(x)).reshape(np.shape(x))


def tensor(x):
    return constant(x).is_param_()


def where(mask, x, y):
    return Tensor(np.asarray(mask)).where(x, y)


def concatenate(xs, axis):
    return xs[0].cat(*xs[1:], dim=axis)


def stack(xs, axis):
    return xs[0].stack(*xs[1:], dim=axis)


def layer_norm(x, w):
    return x.layernorm() * w


def rms_norm(x, w):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w


def embedding(indices, w):
    return w[Tensor(indices)]


def cross_entropy(x, target):
    return x.cross_entropy(Tensor(target))


def attention(q, k, v, allowed):
    return q.scaled_dot_product_attention(k, v, attn_mask=Tensor(allowed))


def overwrite(t, x):
    t.assign(Tensor(np.full(t.shape, x, t.numpy().dtype)).realize()).realize()


def zero(t):
    t.grad = None


def derivative(f, x):
    return f(x).gradient(x)[0]
