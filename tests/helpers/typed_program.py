"""A user's program for mypy to check. `make lint` type-checks it, and a test runs it to verify the type hints.

mypy reports an unnecessary `type: ignore` as an error, so each one here shows that mypy finds the mistake.
"""

from typing import Any, assert_type

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.engine import Op


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        self.inner = nn.Linear(width, width)
        self.layers = nn.ModuleList([nn.ReLU()]).append(nn.Linear(width, 1))

    def forward(self, x: Any) -> Any:
        for layer in (self.inner, *self.layers):
            x = layer(x)
        return x

    @ta.no_grad
    def score(self, x: Tensor, scale: float = 1.0) -> float:
        return float(np.mean(self(x))) * scale


@ta.no_grad()
def evaluate(model: nn.Module, x: Tensor, *, rounds: int = 1) -> float:
    return sum(float(np.mean(model(x))) for _ in range(rounds))


@ta.enable_grad()
def loss(model: Net, x: Tensor) -> Tensor:
    return np.mean((model(x) - 1) ** 2)


@ta.op
def cube(x: Any) -> Any:
    return x * x * x


@ta.op(saves=True)
def scaled(x: Any, *, by: float = 2.0) -> tuple[Any, float]:
    return x * by, by


@scaled.vjp_all
def scaled_rule(g: Any, y: Any, x: Any, *, by: float, saved: float) -> list[Any]:
    return [g * saved]


def right() -> None:
    net, x = Net(3), ta.randn(2, 3)
    assert_type(
        net.train().eval().astype(np.float32).requires_grad_().apply(lambda module: None), Net
    )
    assert_type(net.layers, nn.ModuleList)
    assert_type(net.inner.weight, nn.Parameter)
    assert_type(evaluate(net, x, rounds=2), float)
    assert_type(net.score(x), float)
    assert_type(loss(net, x), Tensor)
    assert_type(ta.no_grad(), ta.no_grad)
    assert_type(cube.vjp(lambda g, y, x: 3 * g * x * x), Op)
    assert_type(scaled, Op)
    assert_type(scaled_rule(1.0, 2.0, 1.0, by=2.0, saved=2.0), list[Any])
    assert_type(ta.checkpoint(lambda: x.sum()), Tensor)
    assert_type(x.squeeze(), Tensor)
    assert_type(x.take([0]), Tensor)
    assert_type(x.repeat(2), Tensor)
    assert_type(x.diagonal(), Tensor)
    assert_type(x.trace(), Tensor)
    w = Tensor(np.ones(3), requires_grad=True)
    assert_type(w * x, Tensor)
    assert_type(2 * w - w / 3, Tensor)
    assert_type((w * w).sum(), Tensor)
    assert_type(w[0], Tensor)
    assert_type(-(w.T**2), Tensor)
    ((x @ w - 1) ** 2).mean().backward()
    F.relu(w).tanh().backward(np.ones(3))
    assert_type(ta.ops.matmul, Op)


def wrong() -> None:
    evaluate(Net(3), 1.0)  # type: ignore[arg-type]
    Net(3).score(1.0, "2")  # type: ignore[arg-type]
    ta.gradchek  # type: ignore[attr-defined]
    nn.Linaer(1, 2)  # type: ignore[attr-defined]
    F.sofmax([1.0])  # type: ignore[attr-defined]
    optim.Adm([])  # type: ignore[attr-defined]
    ta.op(broadcast=True)  # type: ignore[call-overload]
