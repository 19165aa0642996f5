"""The adapter for HIPS autograd, which differentiates functions."""

import autograd
import autograd.numpy
import autograd.scipy.special

functions = (autograd.numpy, autograd.scipy.special)


def gradients(f, xs):
    return autograd.grad(f, argnum=tuple(range(len(xs))))(*xs)
