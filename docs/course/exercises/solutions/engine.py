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

    __array_ufunc__ = None  # array + tensor: NumPy leaves it to __radd__

    def __init__(self, data, parents=(), rules=()):
        self.data, self.parents, self.vjps, self.grad = np.asarray(data), parents, rules, None

    def __add__(self, other):
        other = self._operand(other)
        return Tensor(self.data + other.data, (self, other), (lambda g: g, lambda g: g))

    def __mul__(self, other):
        other = self._operand(other)
        return Tensor(
            self.data * other.data,
            (self, other),
            (lambda g: g * other.data, lambda g: g * self.data),
        )

    def __neg__(self):
        return Tensor(-self.data, (self,), (lambda g: -g,))

    def __sub__(self, other):
        return self + -self._operand(other)

    def __truediv__(self, other):
        return self * self._operand(other) ** -1.0

    def __pow__(self, power):
        """Raise to the power of a number."""
        lower = power - 1 if power else 0  # 0 ** -1 would be infinite
        return Tensor(self.data**power, (self,), (lambda g: g * power * self.data**lower,))

    def __matmul__(self, other):
        """Multiply matrices, stacks of them, or vectors; backward sums over a broadcast stack."""
        other = self._operand(other)
        if 1 in (self.data.ndim, other.data.ndim):  # a vector is a matrix of one row or column
            a = self.reshape(1, -1) if self.data.ndim == 1 else self
            b = other.reshape(-1, 1) if other.data.ndim == 1 else other
            return (a @ b).reshape(np.matmul(self.data, other.data).shape)
        return Tensor(
            self.data @ other.data,
            (self, other),
            (lambda g: g @ other.data.swapaxes(-1, -2), lambda g: self.data.swapaxes(-1, -2) @ g),
        )

    def __radd__(self, other):
        return self._operand(other) + self

    def __rmul__(self, other):
        return self._operand(other) * self

    def __rsub__(self, other):
        return self._operand(other) - self

    def __rtruediv__(self, other):
        return self._operand(other) / self

    def __rmatmul__(self, other):
        return self._operand(other) @ self

    def exp(self):
        y = np.exp(self.data)
        return Tensor(y, (self,), (lambda g: g * y,))

    def log(self):
        return Tensor(np.log(self.data), (self,), (lambda g: g / self.data,))

    def tanh(self):
        y = np.tanh(self.data)
        return Tensor(y, (self,), (lambda g: g * (1 - y * y),))

    def sum(self, axis=None, keepdims=False):
        """Sum over one axis, several (a tuple), or all."""

        def rule(g):
            if axis is not None and not keepdims:
                g = np.expand_dims(g, axis)
            return np.broadcast_to(g, self.data.shape)

        return Tensor(self.data.sum(axis=axis, keepdims=keepdims), (self,), (rule,))

    def mean(self, axis=None, keepdims=False):
        total = self.sum(axis, keepdims)
        return total * (total.data.size / self.data.size)

    def reshape(self, *shape):
        return Tensor(self.data.reshape(*shape), (self,), (lambda g: g.reshape(self.data.shape),))

    @property
    def T(self):
        """All axes in reverse order, as in NumPy."""
        return Tensor(self.data.T, (self,), (lambda g: g.T,))

    def backward(self, g=None):
        """Add to the .grad of every tensor that leads to this one.

        g is the gradient with respect to this tensor; None means ones.
        """
        coming = {id(self): np.ones_like(self.data) if g is None else np.asarray(g)}
        for tensor in users_first(self):
            g = coming.pop(
                id(tensor)
            )  # of this walk alone: .grad may hold an earlier one's as well
            tensor.grad = g.copy() if tensor.grad is None else tensor.grad + g
            for parent, rule in zip(tensor.parents, tensor.vjps):
                share = unbroadcast(rule(g), parent.data.shape)
                coming[id(parent)] = coming[id(parent)] + share if id(parent) in coming else share

    def _operand(self, other):
        """Turn an operand into a Tensor; a number gets this Tensor's dtype."""
        if isinstance(other, Tensor):
            return other
        return Tensor(
            np.asarray(other, self.data.dtype if isinstance(other, (int, float)) else None)
        )


def users_first(last):
    """Every tensor that leads to `last`, each before its parents (chapter 2)."""
    users, waiting = {id(last): 0}, [last]
    while waiting:
        for parent in waiting.pop().parents:
            if id(parent) not in users:
                users[id(parent)] = 0
                waiting.append(parent)
            users[id(parent)] += 1
    ready = [last]
    for tensor in ready:
        for parent in tensor.parents:
            users[id(parent)] -= 1
            if not users[id(parent)]:
                ready.append(parent)
    return ready


def unbroadcast(g, shape):
    """Sum g down to `shape` (chapter 4)."""
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    return g.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


def network(x, w1, b1, w2, b2):
    """Scores (N, C): tanh(x w1 + b1) w2 + b2.

    x is an array (N, D). The others are Tensors: (D, H), (H,), (H, C), (C,).
    """
    return (x @ w1 + b1).tanh() @ w2 + b2


def cross_entropy(scores, onehot):
    """Return the mean over the rows of log(sum(exp(row))) - row[target].

    onehot is an array (N, C): 1 at the target, 0 elsewhere. Scores near 1,000 must not overflow
    (see chapter 6).
    """
    shifted = scores - scores.data.max(
        axis=1, keepdims=True
    )  # by a constant, which changes neither the loss nor its gradient
    return (shifted.exp().sum(axis=1).log() - (shifted * onehot).sum(axis=1)).mean()


def train(x, onehot, parameters, steps, lr):
    """Take this many steps downhill, each on all of x.

    The list `parameters` holds the four Tensors of the network; their data changes. Returns a list
    of plain numbers: the loss before each step.
    """
    losses = []
    for _ in range(steps):
        loss = cross_entropy(network(x, *parameters), onehot)
        for p in parameters:
            p.grad = None  # .grad adds up; begin afresh
        loss.backward()
        for p in parameters:
            p.data = p.data - lr * p.grad
        losses.append(loss.data.item())
    return losses
