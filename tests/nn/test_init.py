"""Initial values are PyTorch's, drawn in PyTorch's order."""

import math

import numpy as np
import pytest
from support import each, require

from tinygrad_attn import Tensor, random
from tinygrad_attn.nn import init

torch = require("torch")
theirs = torch.nn.init

FILLS = {
    "uniform plain": lambda i, t: i.uniform_(t),
    "normal plain": lambda i, t: i.normal_(t),
    "uniform": lambda i, t: i.uniform_(t, -0.3, 0.5),
    "normal": lambda i, t: i.normal_(t, 1.0, 0.02),
    "constant": lambda i, t: i.constant_(t, 0.3),
    "zeros": lambda i, t: i.zeros_(t),
    "ones": lambda i, t: i.ones_(t),
    "xavier uniform": lambda i, t: i.xavier_uniform_(t),
    "xavier uniform gain": lambda i, t: i.xavier_uniform_(t, gain=i.calculate_gain("relu")),
    "xavier normal": lambda i, t: i.xavier_normal_(t),
    "xavier normal gain": lambda i, t: i.xavier_normal_(t, gain=0.7),
    "kaiming uniform": lambda i, t: i.kaiming_uniform_(t, a=math.sqrt(5)),
    "kaiming uniform out": lambda i, t: i.kaiming_uniform_(t, mode="fan_out", nonlinearity="relu"),
    "kaiming normal": lambda i, t: i.kaiming_normal_(t, 0.2),
    "kaiming normal plain": lambda i, t: i.kaiming_normal_(t),
}


@pytest.mark.parametrize("fill", FILLS)
@each("shape", [(2, 3), (1, 5), (30, 20), (4, 3, 5)])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float64", 1e-14)])
def test_numbers_and_draws(fill, shape, dtype, tolerance):
    torch.manual_seed(42)
    random.manual_seed(42)
    expected = torch.empty(shape, dtype=getattr(torch, dtype))
    ours = Tensor(np.full(shape, np.nan, dtype), requires_grad=True)
    FILLS[fill](theirs, expected)
    assert FILLS[fill](init, ours) is ours
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours._data, expected.numpy(), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(random.rand(5)._data, torch.rand(5).numpy())


@pytest.mark.parametrize("name", ["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"])
def test_gains(name):
    assert init.calculate_gain(name) == theirs.calculate_gain(name)
    assert init.calculate_gain("leaky_relu", 0.3) == theirs.calculate_gain("leaky_relu", 0.3)


@pytest.mark.parametrize("fill", [init.zeros_, init.normal_, init.xavier_uniform_])
def test_an_array_is_no_parameter(fill):
    """PyTorch's `normal_(p.data)` comes here as an array: the parameter itself is meant."""
    with pytest.raises(TypeError, match=r"pass a Tensor .* not its data array \(2, 2\) float64"):
        fill(Tensor(np.ones((2, 2))).data)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda t: init.xavier_uniform_(Tensor(np.ones(3))), "at least 2, got 1"),
        (lambda t: init.kaiming_uniform_(t, mode="fan"), "'fan_in', 'fan_out', got 'fan'"),
        (lambda t: init.calculate_gain("swish"), "'selu', got 'swish'"),
        (lambda t: init.uniform_(t, 2.0, 1.0), "low <= high"),
    ],
)
def test_wrong_calls_are_explained(call, text):
    with pytest.raises(ValueError, match=text):
        call(Tensor(np.ones((2, 2))))
