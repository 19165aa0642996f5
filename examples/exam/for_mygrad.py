"""The adapter for MyGrad."""

import mygrad
from mygrad.nnet import activations

tensor = mygrad.tensor
functions = (mygrad, activations)


def no_grad():
    return mygrad.no_autodiff


def zero(t):
    t.null_grad()


def cross_entropy(x, target):
    return mygrad.nnet.losses.softmax_crossentropy(x, target)
