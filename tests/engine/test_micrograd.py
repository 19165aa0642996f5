"""What micrograd's two published tests are about, with Tensor for its Value: scalar expressions against PyTorch."""

import numpy as np
import pytest
from support import require

from tinygrad_attn import Tensor

torch = require("torch")


def relu(x):
    return x.relu()


def small_network(x):
    """A tensor used many times, relu, and a number added on either side."""
    z = 2 * x + 2 + x
    q = relu(z) + z * x
    h = relu(z * z)
    return [x], h + q + q * x


def every_operator(a, b):
    """All operators, in place ones included, numbers on either side, negative powers."""
    c = a + b
    d = a * b + b**3
    c += c + 1
    c += 1 + c + (-a)
    d += d * 2 + relu(b + a)
    d += 3 * d + relu(b - a)
    e = c - d
    f = e**2
    g = f / 2.0
    g += 10.0 / f
    return [a, b], g


@pytest.mark.parametrize(
    "expression, numbers",
    [
        (small_network, (-4.0,)),
        (small_network, (3.0,)),
        (every_operator, (-4.0, 2.0)),
        (every_operator, (1.5, -0.25)),
    ],
)
def test_values_and_gradients_are_pytorchs(expression, numbers):
    mine, y = expression(*(Tensor(x, requires_grad=True, dtype=np.float64) for x in numbers))
    theirs, z = expression(
        *(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers)
    )
    y.backward()
    z.backward()
    assert y.item() == pytest.approx(z.item(), rel=1e-12)
    for a, b in zip(mine, theirs, strict=True):
        assert a.grad.item() == pytest.approx(b.grad.item(), rel=1e-12)


def test_the_default_dtype_gives_the_same_in_float32():
    (a, b), g = every_operator(Tensor(-4.0, requires_grad=True), Tensor(2.0, requires_grad=True))
    g.backward()
    assert g.dtype == np.float32
    assert (g.item(), a.grad.item(), b.grad.item()) == pytest.approx(
        (24.7041, 138.8338, 645.5773), abs=2e-3
    )
