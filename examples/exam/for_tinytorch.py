"""The adapter for TinyTorch, whose activations and losses are objects."""

from tinytorch import CrossEntropyLoss, ReLU, Sigmoid, Softmax, Tensor

relu, sigmoid = ReLU(), Sigmoid()


def tensor(x):
    return Tensor(x, requires_grad=True)


def softmax(x, axis):
    return Softmax()(x, dim=axis)


def cross_entropy(x, target):
    return CrossEntropyLoss()(x, Tensor(target))
