"""Hooks on tensors, compared with PyTorch's."""

import copy
import pickle

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn

torch = require("torch")
X = np.array([1.0, -2.0, 3.0])


def ours():
    return Tensor(X, requires_grad=True), np.tanh


def theirs():
    return torch.tensor(X, requires_grad=True), torch.tanh


def values(g):
    return None if g is None else np.array(g.detach().numpy())


def both(run):
    a, b = (run(*side()) for side in (ours, theirs))
    for mine, other in zip(a, b, strict=True):
        np.testing.assert_allclose(mine, other)


def test_hooks_see_and_replace_complete_gradients_in_order():
    def run(x, tanh):
        seen = []
        h = tanh(x)
        h.retain_grad()
        h.register_hook(lambda g: seen.append(values(g)))
        h.register_hook(lambda g: g * 2)
        h.register_hook(lambda g: seen.append(values(g)))
        x.register_hook(lambda g: g + 1)
        x.register_hook(lambda g: seen.append(values(g)))
        (h * h + 3 * h).sum().backward()
        return [*seen, values(h.grad), values(x.grad)]

    both(run)


def test_a_hook_that_was_removed_is_not_called_and_others_are():
    def run(x, tanh):
        seen, double = [], lambda g: g * 2
        h = tanh(x)
        first, second = h.register_hook(double), h.register_hook(double)
        first.remove()
        first.remove()
        h.sum().backward(retain_graph=True)
        seen.append(values(x.grad))
        second.remove()
        h.sum().backward()
        return [*seen, values(x.grad)]

    both(run)


def test_hooks_in_a_pass_that_is_recorded():
    def run(x, tanh):
        grad = ta.grad if isinstance(x, Tensor) else torch.autograd.grad
        h = tanh(x)
        h.register_hook(lambda g: g * g * x)
        (g,) = grad((h**3).sum(), x, create_graph=True)
        return [values(g), values(grad(g.sum(), x)[0])]

    both(run)


def test_the_gradient_of_a_wanted_tensor_is_hooked_and_grad_is_not_filled():
    def run(x, tanh):
        grad = ta.grad if isinstance(x, Tensor) else torch.autograd.grad
        found = []
        for wanted in (0, 1):  # PyTorch hooks only one of them if both are wanted at once
            h = tanh(x)
            h.register_hook(lambda g: g * 2)
            with x.register_hook(lambda g: g * 5):
                found += grad(h.sum(), [[h, x][wanted]])
        assert x.grad is None
        return [values(g) for g in found]

    both(run)


def test_a_hook_in_a_block_ends_with_it():
    x = Tensor(X, requires_grad=True)
    with x.register_hook(lambda g: g * 2):
        x.sum().backward()
    x.sum().backward()
    assert (x.grad.numpy() == 3).all()


def test_wrong_hooks_say_what_is_wrong():
    x = Tensor(X, requires_grad=True)

    def shorten(g):
        return g[1:]

    with (
        x.register_hook(shorten),
        pytest.raises(ValueError, match=r"the hook 'shorten' .*same shape"),
    ):
        x.sum().backward()
    with pytest.raises(ValueError, match="does not require a gradient"):
        Tensor(X).register_hook(shorten)
    assert x.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("on", ["leaf", "output", "module"])
def test_a_hook_cannot_change_the_gradient_of_another_tensor_in_place(on, create_graph):
    """The gradient of a sum is one array for both of its terms."""
    x, other = Tensor(X, requires_grad=True), Tensor(X, requires_grad=True)
    h, identity = (x if on == "leaf" else x * 1), nn.Identity()

    def double(*gradients):
        g = gradients[0] if on != "module" else gradients[2][0]
        g.data[...] *= 2

    if on == "module":
        identity.register_full_backward_hook(double)
    else:
        h.register_hook(double)
    y = (other + identity(h)) * X
    with pytest.raises(ValueError, match="read-only"):
        y.sum().backward(create_graph=create_graph)
    assert other.grad is None


def test_copies_have_no_hooks():
    x = Tensor(X, requires_grad=True)
    x.register_hook(lambda g: g * 2)
    for new in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
        new.sum().backward()
        assert (new.grad.numpy() == 1).all()
    x.requires_grad_(True).sum().backward()
    assert (x.grad.numpy() == 2).all(), "and the tensor itself keeps them"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_hook_keeps_the_dtype(dtype):
    x = Tensor(X.astype(dtype), requires_grad=True)
    h = x * 2
    h.register_hook(lambda g: g.numpy().astype(np.float64) * 1.5)
    h.sum().backward()
    assert x.grad.dtype == dtype and (x.grad.numpy() == 3).all()
