"""Chapters 1 to 6: an engine of your own.

A Tensor holds an array (`data`), the Tensors it was computed from (`parents`), for each of them a rule (`rules`), and `grad`, None
until backward() has come by, an array of the shape of `data` afterwards. A rule is a function of one argument: it takes g, the
gradient of the loss with respect to this tensor, and returns the gradient of the loss with respect to that parent. For y = a * b:

    parents = (a, b)        rules = (lambda g: g * b.data, lambda g: g * a.data)

The page of the course has the steps, and the marker's checks have their numbers:

    1  a + b and a * b remember                5  exp, log, tanh
    2  backward                                6  sum, mean, reshape, .T
    3  broadcasting                            7  a @ b, of matrices and of stacks
    4  a - b, a / b, -a, a ** number;          8  a network, its loss and its training
       numbers and arrays as operands

Hints: an operand that is no Tensor is made one; a Python number takes the dtype of the other operand, so that float32 stays
float32. For `2 - t` Python asks for __rsub__. In `array + t` NumPy comes first, unless the class says `__array_ufunc__ = None`.
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
        """To .grad of every tensor that leads here, add its gradient. g is the gradient of this one; if it is None, ones."""
        return None

    # 4, and what Python asks for where the Tensor stands on the right

    def __neg__(self):
        return None

    def __sub__(self, other):
        return None

    def __truediv__(self, other):
        return None

    def __pow__(self, power):
        """To the power of a number."""
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
        """Over one axis, several (a tuple), or all."""
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
        """Of two matrices, or of stacks of them."""
        return None


# 8


def network(x, w1, b1, w2, b2):
    """Scores (N, C): tanh(x w1 + b1) w2 + b2. x is an array (N, D), the others are Tensors: (D, H), (H,), (H, C), (C,)."""
    return None


def cross_entropy(scores, onehot):
    """The mean over the rows of log(sum(exp(row))) - row[target]. onehot is an array (N, C): 1 at the target, 0 elsewhere.

    Scores near 1,000 must not overflow: chapter 6.
    """
    return None


def train(x, onehot, parameters, steps, lr):
    """So many steps downhill, each on all of x: the list `parameters` holds the four Tensors of the network, and their data changes.

    Returns the loss of each step, measured before it: a list of plain numbers.
    """
    return None
