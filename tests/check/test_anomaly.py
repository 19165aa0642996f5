"""detect_anomaly names the first op that makes NaN or Inf, its index and operands, the line and the reason."""

import re

import numpy as np
import pytest

from tinygrad_attn import Tensor, checkpoint, nn, op
from tinygrad_attn.check import detect_anomaly
from tinygrad_attn.engine import context
from tinygrad_attn.functional import cross_entropy, layer_norm, softmax


def t(*values, dtype=np.float32):
    return Tensor(np.array(values, dtype), requires_grad=True)


def by_hand(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


BLOCKED, INF = np.array([[True, True], [True, False]]), np.inf
ones = lambda *shape: Tensor(np.ones(shape), requires_grad=True)
halved = op(lambda x: x * 2.0)
halved.vjp(lambda g, y, x: g / (x - x))
FORWARD = [  # what is computed, the op, the index, a word of the reason
    (lambda: np.exp(t(1, 100)), "exp", "(1,)", "subtract the maximum before exp"),
    (lambda: t(1, 0) / t(1, 0), "divide", "(1,)", "0/0"),
    (lambda: t(2, 1) / t(0, 1), "divide", "(0,)", "division by zero"),
    (lambda: np.log(t(1, 0)), "log", "(1,)", "log 0"),
    (lambda: np.log(t(-1)), "log", "(0,)", "logarithm of a negative number"),
    (lambda: np.log1p(t(-1)), "log1p", "(0,)", "division by zero"),
    (lambda: np.sqrt(t(0.5) - 1), "sqrt", "(0,)", "np.maximum(x, 0) first"),
    (lambda: t(0.0) * np.float32(INF), "multiply", "(0,)", "0 x inf"),
    (lambda: t(-8.0) ** 0.5, "power", "(0,)", "outside the domain"),
    (lambda: t(0.0) ** -1.0, "power", "(0,)", "division by zero"),
    (lambda: by_hand(np.where(BLOCKED, -INF, ones(2, 2))), "subtract", "(0, 0)", "empty softmax row"),
    (lambda: softmax(t(-INF, -INF)), "softmax", "(0,)", "empty softmax row"),
    (lambda: softmax(t(1, INF)), "softmax", "(0,)", "an operand contains infinities"),
    (lambda: cross_entropy(ones(2, 3), np.array([-100, -100])), None, "()", "all targets are ignored"),
    (lambda: layer_norm(t(1, 1), 2, eps=0.0), None, "(0,)", "division by zero"),
    (lambda: t(1e38, 1) * 1e3, "multiply", "(0,)", "overflow"),
    (lambda: np.arccos(t(2)), "arccos", "(0,)", "outside the domain"),
    (lambda: np.var(t(1, 2), ddof=2), "var", "()", "division by zero"),
    (lambda: t(INF, 1) + t(-INF, 1), "add", "(0,)", "inf - inf"),
    (lambda: t(1, 2) @ np.array([INF, -INF], np.float32), "matmul", "()", "an operand contains infinities"),
]  # fmt: skip
BACKWARD = [
    (lambda: np.sqrt(t(0, 4)), "sqrt", "infinite slope"),
    (lambda: np.where([False, True], np.sqrt(t(0, 4)), 0), "sqrt", "0 x inf behind a mask"),
    (lambda: np.arccos(t(0, -1)), "arccos", "infinite slope"),
    (lambda: t(-2, 1) ** t(2, 2), "power", "outside the domain"),
    (lambda: t(1, 2) * t(INF, 1), "multiply", "an operand contains infinities"),
    (lambda: halved(t(1, 2)), "<lambda>", "a division by zero"),
    (lambda: ((t(1e-30) ** 2.0 + 1) * 1e30) * 1e30, None, "overflow"),
]


def caught(run):
    with pytest.raises(FloatingPointError) as error, detect_anomaly():
        run()
    before = context.listeners
    assert not before, "nothing is left behind"
    text = str(error.value)
    assert __file__ in text or "ran outside" in text
    return re.sub("`.*?`", "", text)  # the line that is quoted holds the words too


@pytest.mark.parametrize("run, name, index, reason", FORWARD, ids=[f[-1] for f in FORWARD])
def test_forward(run, name, index, reason):
    text = caught(run)
    assert f"at index {index}" in text and reason in text.rpartition("Reason: ")[2], text
    assert name is None or f"op {name!r} made" in text, text


@pytest.mark.parametrize("run, name, reason", BACKWARD, ids=[b[-1] for b in BACKWARD])
def test_backward(run, name, reason):
    text = caught(lambda: run().sum().backward())
    assert reason in text.rpartition("Reason: ")[2], text
    assert name is None or f"in the backward pass, op {name!r} made" in text, text


def test_the_module_and_the_line_of_the_forward_call_are_named():
    class Scale(nn.Module):
        def forward(self, x):
            return np.sqrt(x)

    net = nn.Sequential(Scale())
    text = caught(lambda: net(t(0, 1)).sum().backward())
    assert "in the module '0'" in text and "with 0 there" in text


def test_what_comes_in_is_told_from_what_was_made():
    scores = ones(2, 3)
    with detect_anomaly():
        by_hand(np.where(np.array([[True, False, False]]), -INF, scores)).sum().backward()
    assert np.isfinite(scores.grad.numpy()).all()
    assert "passed to backward() already" in caught(
        lambda: (t(1, 2) * 2).backward(np.array([np.nan, 1]))
    )
    text = caught(lambda: nn.Linear(2, 2)(Tensor(np.array([[np.nan, 1]], np.float32))))
    assert "already contains NaN, at index (0, 0)" in text
    loss = np.sqrt(t(0)).sum()
    assert "ran outside detect_anomaly" in caught(lambda: loss.backward())
    again = caught(lambda: checkpoint(np.sqrt, t(0)).sum().backward())
    assert "outside" not in again and "test_anomaly.py" in again


def test_a_training_inside_remembers_living_results_only():
    w = t(1, 2)
    with detect_anomaly():
        places = context.listeners[-1].places
        for _ in range(3):
            (w * 2.0).sum().backward()
        kept = w * 4.0
        assert len(places) == 1
        del kept
        assert not places


def test_the_sum_of_two_passes_can_overflow_too():
    x = Tensor(np.ones(2, np.float32), requires_grad=True)
    with detect_anomaly():
        (x * 1).backward(np.full(2, 2e38, np.float32))
        with pytest.raises(FloatingPointError, match=r"op 'add' made inf .* with 2e\+38 there"):
            (x * 1).backward(np.full(2, 2e38, np.float32))
