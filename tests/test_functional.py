"""Properties that hold for every op and every function of `functional`, run from the one table in optable.py.

Derivatives are checked twice: against PyTorch, and, to second order, against differences of values taken here, by code that shares nothing with
the package's own checker.  Cotangents and directions are random: softmax and layer norm would pass a test with ones.
"""

import inspect
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optable import TABLE, torch

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, manual_seed, ops, reference
from tinygrad_attn.engine import Op

for_each = pytest.mark.parametrize("name", TABLE)
quick = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
TOLERANCE = {np.float64: 1e-9, np.float32: 3e-4}


def layouts(array):
    """The same numbers, differently placed in memory."""
    return [array, array.T.copy().T, np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
            array[..., ::-1].copy()[..., ::-1] if array.ndim else array]


def leaf(array):
    return Tensor._of(array, requires_grad=True)     # without the copy that would put it in order


def gradients(y, inputs, cotangent, **settings):
    """All gradients as arrays; zeros where there is none."""
    found = grad(y, inputs, cotangent, allow_unused=True, **settings) if y.requires_grad else [None] * len(inputs)
    return [np.zeros(x.shape, x.dtype) if g is None else g.numpy() for g, x in zip(found, inputs, strict=True)]


def random_like(shape, seed, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- against PyTorch


@for_each
@quick
@given(data=st.data())
def test_values_and_gradients_are_pytorchs_in_both_precisions(name, data):
    sample = TABLE[name](data.draw)
    where = data.draw(st.integers(0, 3), label="layout")
    for dtype, tolerance in TOLERANCE.items():
        arrays = [layouts(x.astype(dtype))[where] for x in sample.inputs]
        mine = [leaf(x) for x in arrays]
        theirs = [torch.from_numpy(x if min(x.strides, default=0) >= 0 else x.copy()).requires_grad_() for x in arrays]
        y, expected = sample.ours(*mine), sample.theirs(*theirs)
        value = y.numpy()
        cotangent = random_like(value.shape, 1, dtype)
        close(value, expected.detach().numpy(), dtype, tolerance, "value")
        if not expected.requires_grad:
            continue
        expected.backward(torch.from_numpy(np.array(cotangent)))
        for i, (g, x) in enumerate(zip(gradients(y, mine, cotangent), theirs, strict=True)):
            close(g, np.zeros(x.shape, dtype) if x.grad is None else x.grad.numpy(), dtype, tolerance, f"gradient {i}")


def close(a, b, dtype, tolerance, what):
    assert a.dtype == dtype and a.shape == b.shape, f"{what}: {a.shape} {a.dtype}, not {b.shape} {np.dtype(dtype)}"
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b[np.isfinite(b)]).max(initial=0)), err_msg=what)


# ---- against differences of values


STEP = 1e-5


def slope(f, inputs, direction):
    """The derivative of the number f(*inputs) along a direction, from values to either side."""
    ahead, behind = ([x + sign * STEP * v for x, v in zip(inputs, direction, strict=True)] for sign in (1, -1))
    return (f(*ahead) - f(*behind)) / (2 * STEP)


def agree(gradient, direction, measured, what):
    predicted = sum(float((g * v).sum()) for g, v in zip(gradient, direction, strict=True))
    size = 1 + sum(float(np.abs(g * v).sum()) for g, v in zip(gradient, direction, strict=True))
    assert abs(predicted - measured) <= 1e-6 * size, f"{what}: the rule says {predicted}, differences of values say {measured}"


@for_each
@quick
@given(data=st.data())
def test_first_and_second_derivatives_are_the_slopes_of_values(name, data):
    sample = TABLE[name](data.draw)
    inputs = sample.inputs
    directions = [np.where(np.isfinite(x), random_like(x.shape, 10 + i), 0) for i, x in enumerate(inputs)]
    weights = [random_like(x.shape, 20 + i) for i, x in enumerate(inputs)]
    mine = [leaf(x) for x in inputs]
    y = sample.ours(*mine)
    cotangent = random_like(y.shape, 2)

    def value(*arrays):
        return float((cotangent * np.asarray(sample.ours(*map(Tensor._of, arrays)).numpy())).sum())

    for i in range(len(inputs)):
        alone = [v if j == i else np.zeros_like(v) for j, v in enumerate(directions)]
        agree(gradients(y, mine, cotangent, retain_graph=True), alone, slope(value, inputs, alone), f"gradient {i}")
    if not y.requires_grad:
        return

    def weighed_gradient(*arrays):
        leaves = [leaf(np.asarray(x)) for x in arrays]
        return sum(float((w * g).sum()) for w, g in zip(weights, gradients(sample.ours(*leaves), leaves, cotangent), strict=True))

    first = grad(y, mine, Tensor(cotangent), create_graph=True, allow_unused=True)
    total = sum(((g * w).sum() for g, w in zip(first, weights, strict=True) if g is not None), Tensor(0.0, dtype=np.float64))
    for i in range(len(inputs)):
        alone = [v if j == i else np.zeros_like(v) for j, v in enumerate(directions)]
        second = gradients(total, mine, np.ones(()), retain_graph=True)
        agree(second, alone, slope(weighed_gradient, inputs, alone), f"second derivative {i}")


# ---- good manners


@for_each
@quick
@given(data=st.data())
def test_nothing_given_is_changed_and_gradients_share_no_memory(name, data):
    sample = TABLE[name](data.draw)
    arrays = [layouts(x.astype(np.float32))[data.draw(st.integers(0, 3))] for x in sample.inputs]
    before = [x.copy() for x in arrays]
    mine = [leaf(x) for x in arrays]
    y = sample.ours(*mine)
    if not y.requires_grad:
        return
    cotangent = random_like(y.shape, 3, np.float32)
    kept = cotangent.copy()
    for create_graph in (False, True):
        y = sample.ours(*mine)
        y.backward(cotangent, create_graph=create_graph)
        found = [x.grad.numpy() for x in mine if x.grad is not None]
        assert all(g.dtype == np.float32 for g in found)
        for i, g in enumerate(found):
            others = [*found[:i], *found[i + 1:], *arrays, cotangent, y.numpy()]
            assert g.size == 0 or not any(np.shares_memory(g, other) for other in others)
        for x in mine:
            x.zero_grad()
    assert np.array_equal(cotangent, kept)
    assert all(np.array_equal(x, b, equal_nan=True) for x, b in zip(arrays, before, strict=True))


def test_no_op_and_no_function_is_missing_from_the_table():
    tested = {name.split()[0].removeprefix("F.") for name in TABLE}
    named = {name for name, value in vars(ops).items() if isinstance(value, Op)}
    assert named - tested == set()
    public = {name for name, value in vars(F).items() if inspect.isfunction(value) and value.__module__ == F.__name__ and name[0] != "_"}
    constant = {"sinusoidal_positions", "causal_mask", "padding_mask", "draw_keep"}     # no derivative; tested below
    assert public - tested - constant == set()
    twins = {name for name in vars(reference) if name.endswith("_reference")}
    through_their_function = {"attention_weights_reference", "scaled_dot_product_attention_reference", "dropout_reference", "embedding_reference",
                              "cross_entropy_reference", "soft_cross_entropy_reference"}
    assert twins - tested - through_their_function == set()
