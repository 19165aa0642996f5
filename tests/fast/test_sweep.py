"""The quick sweep is the plain one, bit for bit: over the table of ops and over random programs.

SWEEP_N=20000 python -m pytest tests/fast/test_sweep.py
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optable import TABLE

import tinygrad_attn as ta
from tinygrad_attn import Tensor, ops
from tinygrad_attn.fast import engine

N = int(os.environ.get("SWEEP_N", "300"))


def both(loss_of, monkeypatch):
    """The gradients by the leaves, from the plain sweep and from the quick one, of the same graph."""
    sweep, results = ta.engine.sweep, []
    for quick in (None, sweep.kernel):
        monkeypatch.setattr(sweep, "quick", quick)
        loss, leaves = loss_of()
        with np.errstate(all="ignore"):
            loss.backward()
        results.append([None if x.grad is None else x.grad.numpy() for x in leaves])
    return results


def same(results, what):
    for plain, quick in zip(*results, strict=True):
        assert (plain is None) == (quick is None), what
        if plain is not None:
            assert plain.dtype == quick.dtype, what
            np.testing.assert_array_equal(plain, quick, err_msg=what)


@pytest.mark.parametrize("key", sorted(TABLE))
def test_over_the_table_of_ops(key, monkeypatch):
    @settings(max_examples=4, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(data=st.data())
    def run(data):
        drawn = TABLE[key](data.draw)

        def loss_of():
            leaves = [Tensor(x, requires_grad=True) for x in drawn.inputs]
            with np.errstate(all="ignore"):
                y = drawn.ours(*leaves)
                both_uses = y * y + y if y.requires_grad else (leaves[0] * 1.0)
                return both_uses.sum(), leaves

        with monkeypatch.context() as patch:
            same(both(loss_of, patch), key)

    run()


STEPS = [
    lambda r, a, b: a + b,
    lambda r, a, b: a * b,
    lambda r, a, b: a - 0.5 * b,
    lambda r, a, b: np.tanh(a),
    lambda r, a, b: a[int(r.integers(0, 3))] + b,
    lambda r, a, b: a[[0, 0, 2]] * 0.5,
    lambda r, a, b: a.sum(axis=0) + b * 0,
    lambda r, a, b: (a @ b.mT) @ b * 0.1,
    lambda r, a, b: np.concatenate([a, b])[1:4],
    lambda r, a, b: np.maximum(a, b),
    lambda r, a, b: ta.functional.softmax(a),
    lambda r, a, b: a.mean() + b,
]


def program(seed):
    """A random graph on (3, 4) leaves, in which results are used several times."""
    r = np.random.default_rng(seed)
    dtype = r.choice([np.float32, np.float64])
    leaves = [Tensor(r.standard_normal((3, 4)).astype(dtype), requires_grad=True) for _ in range(3)]
    values = list(leaves)
    for _ in range(int(r.integers(3, 14))):
        a, b = (values[int(i)] for i in r.integers(0, len(values), 2))
        values.append(STEPS[int(r.integers(len(STEPS)))](r, a, b))
    return sum(v.sum() for v in values[-3:]), leaves


def test_over_random_programs(monkeypatch):
    for seed in range(N):
        with monkeypatch.context() as patch:
            same(both(lambda seed=seed: program(seed), patch), f"program {seed}")


ELEMENTWISE = sorted(
    name
    for name, op in vars(ops).items()
    if getattr(op, "rules", None).__class__ in (engine.OfOne, engine.OfTwo, engine.OfSum)
)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", ELEMENTWISE)
@np.errstate(invalid="ignore")
def test_rules_whose_shares_are_not_asked_for_their_shape_keep_it(name, dtype):
    """The quick sweep takes their word for it: shape and dtype of a share are those of the input."""
    op = vars(ops)[name]
    drawn = np.random.default_rng(0).uniform(0.1, 0.9, (2, 3, 4)).astype(dtype)
    given = [
        [*drawn[: len(op.vjps)]],
        [drawn[0], 2.0][: len(op.vjps)],
        [drawn[0], 3][: len(op.vjps)],
    ]
    for inputs in given:
        for made in (one for one in (op, op.kernel) if one and one.vjps):
            y = made.forward(*inputs)
            for x, rule in zip(inputs, made.vjps, strict=True):
                if isinstance(x, np.ndarray):
                    share = rule(np.ones(y.shape, y.dtype), y, *inputs)
                    assert (share.shape, share.dtype) == (x.shape, x.dtype), (name, inputs)


def test_the_rules_of_a_sum_pass_the_gradient_on():
    g, y = np.ones(3), np.zeros(3)
    assert ops.add.vjps.__class__ is engine.OfSum
    assert all(rule(g, y, y, y) is g for rule in ops.add.vjps)
