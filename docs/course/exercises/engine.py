"""Chapters 1 to 6: an engine of your own.

A Tensor has an array (`data`), the Tensors that it was computed from (`parents`), a backward rule
for each of them (`rules`, stored as `vjps`), and `grad`. `grad` is None until backward() reaches the
Tensor. After that it is an array with the shape of `data`. A rule is a function of one argument: g, the
gradient of the loss with respect to this Tensor. It returns the gradient of the loss with respect
to that parent. For y = a * b:

    parents = (a, b)        rules = (lambda g: g * b.data, lambda g: g * a.data)

The chapter explains these steps. The name of each check begins with the number of its step:

    1  a + b and a * b remember                5  exp, log, tanh
    2  backward                                6  sum, mean, reshape, .T
    3  broadcasting                            7  a @ b, of matrices and of stacks
    4  a - b, a / b, -a, a ** number;          8  a network, its loss and its training
       numbers and arrays as operands

Hints: turn an operand that is not a Tensor into one. A Python number takes the dtype of the other
operand, so that float32 stays float32. For `2 - t` Python calls t.__rsub__(2). In `array + t`, NumPy
comes first unless the class sets `__array_ufunc__ = None`.
"""

import numpy as np


class Tensor:
    """An array that remembers how it was made."""

    def __init__(self, data, parents=(), rules=()):
        self.data, self.parents, self.vjps, self.grad = np.asarray(data), parents, rules, None

    # 1

    def __add__(self, other):
        return None

    def __mul__(self, other):
        return None

    # 2 and 3

    def backward(self, g=None):
        """Add to the .grad of every tensor that leads to this one.

        g is the gradient with respect to this tensor; None means ones.
        """
        return None

    # 4, and the methods that Python calls if the Tensor is on the right

    def __neg__(self):
        return None

    def __sub__(self, other):
        return None

    def __truediv__(self, other):
        return None

    def __pow__(self, power):
        """Raise to the power of a number."""
        return None

    # 5

    def exp(self):
        return None

    def log(self):
        return None

    def tanh(self):
        return None

    # 6

    def sum(self, axis=None, keepdims=False):
        """Sum over one axis, several (a tuple), or all."""
        return None

    def mean(self, axis=None, keepdims=False):
        return None

    def reshape(self, *shape):
        return None

    @property
    def T(self):
        """All axes in reverse order, as in NumPy."""
        return None

    # 7

    def __matmul__(self, other):
        """Multiply two matrices, or stacks of them, or a matrix and a vector."""
        return None


# 8


def network(x, w1, b1, w2, b2):
    """Scores (N, C): tanh(x w1 + b1) w2 + b2.

    x is an array (N, D). The others are Tensors: (D, H), (H,), (H, C), (C,).
    """
    return None


def cross_entropy(scores, onehot):
    """Return the mean over the rows of log(sum(exp(row))) - row[target].

    onehot is an array (N, C): 1 at the target, 0 elsewhere. Scores near 1,000 must not overflow
    (see chapter 6).
    """
    return None


def train(x, onehot, parameters, steps, lr):
    """Take this many steps downhill, each on all of x.

    The list `parameters` holds the four Tensors of the network; their data changes. Returns a list
    of plain numbers: the loss before each step.
    """
    return None
