"""Properties that hold for every op and every function of `functional`, run from the one table in optable.py.

Derivatives are checked twice: against PyTorch, and, to second order, against differences of values taken here, by code
that shares nothing with the package's own checker.  Cotangents and directions are random: softmax and layer norm would
pass a test with ones.
"""

import math
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optable import BY_CONVENTION, TABLE, torch

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, manual_seed, ops, rand

for_each = pytest.mark.parametrize("name", TABLE)
quick = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
TOLERANCE = {np.float64: 1e-9, np.float32: 3e-4}


def layouts(array):
    """The same numbers, differently placed in memory."""
    return [
        array,
        array.T.copy().T,
        np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
        array[..., ::-1].copy()[..., ::-1] if array.ndim else array,
    ]


def leaf(array):
    return Tensor._of(array, requires_grad=True)  # without the copy that would put it in order


def gradients(y, inputs, cotangent, **settings):
    """All gradients as arrays; zeros where there is none."""
    found = (
        grad(y, inputs, cotangent, allow_unused=True, **settings)
        if y.requires_grad
        else [None] * len(inputs)
    )
    return [
        np.zeros(x.shape, x.dtype) if g is None else g.numpy()
        for g, x in zip(found, inputs, strict=True)
    ]


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
        theirs = [
            torch.from_numpy(x if min(x.strides, default=0) >= 0 else x.copy()).requires_grad_()
            for x in arrays
        ]
        y, expected = sample.ours(*mine), sample.theirs(*theirs)
        value = y.numpy()
        cotangent = random_like(value.shape, 1, dtype)
        assert_close(value, expected.detach().numpy(), dtype, tolerance, "value")
        if not y.requires_grad:
            continue
        if expected.requires_grad:  # else the slope is 0 everywhere, in the shape of each input
            expected.backward(torch.from_numpy(np.array(cotangent)))
        for i, (g, x) in enumerate(zip(gradients(y, mine, cotangent), theirs, strict=True)):
            assert_close(
                g,
                np.zeros(x.shape, dtype) if x.grad is None else x.grad.numpy(),
                dtype,
                tolerance,
                f"gradient {i}",
            )


def assert_close(a, b, dtype, tolerance, what):
    assert a.dtype == dtype and a.shape == b.shape, (
        f"{what}: {a.shape} {a.dtype}, not {b.shape} {np.dtype(dtype)}"
    )
    np.testing.assert_allclose(
        a,
        b,
        rtol=tolerance,
        atol=tolerance * max(1, np.abs(b[np.isfinite(b)]).max(initial=0)),
        err_msg=what,
    )


# ---- against differences of values


STEP = 1e-5


def slope(f, inputs, direction):
    """The derivative of the number f(*inputs) along a direction, from values to either side."""
    ahead, behind = (
        [x + sign * STEP * v for x, v in zip(inputs, direction, strict=True)] for sign in (1, -1)
    )
    return (f(*ahead) - f(*behind)) / (2 * STEP)


def assert_agree(gradient, direction, measured, what):
    predicted = sum(float((g * v).sum()) for g, v in zip(gradient, direction, strict=True))
    size = 1 + sum(float(np.abs(g * v).sum()) for g, v in zip(gradient, direction, strict=True))
    assert abs(predicted - measured) <= 1e-6 * size, (
        f"{what}: the rule says {predicted}, differences of values say {measured}"
    )


@pytest.mark.parametrize("name", [name for name in TABLE if name not in BY_CONVENTION])
@quick
@given(data=st.data())
def test_first_and_second_derivatives_are_the_slopes_of_values(name, data):
    sample = TABLE[name](data.draw)
    inputs = sample.inputs
    directions = [
        np.where(np.isfinite(x), random_like(x.shape, 10 + i), 0) for i, x in enumerate(inputs)
    ]
    weights = [random_like(x.shape, 20 + i) for i, x in enumerate(inputs)]
    mine = [leaf(x) for x in inputs]
    y = sample.ours(*mine)
    cotangent = random_like(y.shape, 2)

    def value(*arrays):
        return float((cotangent * np.asarray(sample.ours(*map(Tensor._of, arrays)).numpy())).sum())

    for i in range(len(inputs)):
        alone = [v if j == i else np.zeros_like(v) for j, v in enumerate(directions)]
        assert_agree(
            gradients(y, mine, cotangent, retain_graph=True),
            alone,
            slope(value, inputs, alone),
            f"gradient {i}",
        )
    if not y.requires_grad:
        return

    def weighed_gradient(*arrays):
        leaves = [leaf(np.asarray(x)) for x in arrays]
        return sum(
            float((w * g).sum())
            for w, g in zip(
                weights, gradients(sample.ours(*leaves), leaves, cotangent), strict=True
            )
        )

    first = grad(y, mine, Tensor(cotangent), create_graph=True, allow_unused=True)
    total = sum(
        ((g * w).sum() for g, w in zip(first, weights, strict=True) if g is not None),
        Tensor(0.0, dtype=np.float64),
    )
    for i in range(len(inputs)):
        alone = [v if j == i else np.zeros_like(v) for j, v in enumerate(directions)]
        second = gradients(total, mine, np.ones(()), retain_graph=True)
        assert_agree(
            second, alone, slope(weighed_gradient, inputs, alone), f"second derivative {i}"
        )


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
            others = [*found[:i], *found[i + 1 :], *arrays, cotangent, y.numpy()]
            assert g.size == 0 or not any(np.shares_memory(g, other) for other in others)
        for x in mine:
            x.zero_grad()
    assert np.array_equal(cotangent, kept)
    assert all(np.array_equal(x, b, equal_nan=True) for x, b in zip(arrays, before, strict=True))


# ---- conventions at single points


def slope_at(f, *points):
    leaves = [Tensor(x, requires_grad=True) for x in points]
    f(*leaves).sum().backward()
    return [x.grad.numpy().tolist() for x in leaves]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_epsilon_that_rms_norm_takes_by_itself_is_pytorchs(dtype):
    x, g = np.array([[1e-3, -2e-4, 5e-4]], dtype), np.array([[1e-4, 2e-4, 0]], dtype)
    ours, theirs = Tensor(x, requires_grad=True), torch.from_numpy(x.copy()).requires_grad_()
    y, expected = F.rms_norm(ours, 3), torch.nn.functional.rms_norm(theirs, (3,))
    y.backward(g)
    expected.backward(torch.from_numpy(g))
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=2e-3)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=5e-3)


@pytest.mark.parametrize("mode", [nullcontext, ta.plain])
def test_kinks_and_ties_are_pytorchs(mode):
    with mode():
        assert (
            slope_at(F.relu, 0.0) == [0]
            and slope_at(abs, 0.0) == [0]
            and slope_at(np.sign, 0.0) == [0]
        )
        assert slope_at(np.maximum, 1.0, 1.0) == [0.5, 0.5] and slope_at(np.minimum, 1.0, 1.0) == [
            0.5,
            0.5,
        ]
        assert slope_at(lambda x: x.max(), [1.0, 3.0, 3.0]) == [[0, 0.5, 0.5]]
        assert slope_at(lambda x: x.min(axis=0), [1.0, 1.0, 3.0]) == [[0.5, 0.5, 0]]
        assert slope_at(lambda x: np.clip(x, 0, 1), [-1.0, 0.0, 0.5, 1.0, 2.0]) == [[0, 1, 1, 1, 0]]
        assert slope_at(lambda x: x**0, 0.0) == [0] and slope_at(lambda x: x**2, 0.0) == [0]
        assert slope_at(lambda x, y: x**y, 0.0, 2.0) == [0, 0]
        assert slope_at(lambda x: x.std(), [2.0, 2.0]) == [[0, 0]]


def test_linear_of_integers_and_lists():
    assert F.linear(np.array([[1, 2]]), np.array([[3, 4]])).tolist() == [[11]]
    y = F.linear(np.array([[1, 2]]), np.array([[3.0, 4.0]]))
    assert type(y) is np.ndarray and y.tolist() == [[11.0]]
    for x in ([[1, 2]], np.array([[1, 2]]), Tensor([[1, 2]])):
        y = F.linear(x, Tensor(np.array([[3, 4], [0, 1]], "f")))
        assert y.tolist() == [[11, 2]] and y.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_and_the_softmaxes_are_accurate_where_a_naive_form_overflows(dtype):
    x = np.array([-1e4, -80, -20, 0, 20, 80, 1e4], dtype)
    assert np.allclose(F.sigmoid(x), torch.sigmoid(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=0)
    assert np.array_equal(F.softmax(x), np.array([0, 0, 0, 0, 0, 0, 1], dtype))
    assert np.allclose(F.log_softmax(x), x - 1e4, rtol=1e-6)
    assert F.logsumexp(x, -1) == dtype(1e4) and F.logsumexp(-x, 0) == dtype(1e4)


@pytest.mark.parametrize(
    "f, axis, expected",
    [(F.softmax, 0, 1), (F.log_softmax, -1, 0), (F.logsumexp, 0, 1.5), (F.logsumexp, (0,), 1.5)],
)
def test_a_single_number_is_a_row_of_one(f, axis, expected):
    x = np.array(1.5, np.float32)
    for y in (f(x, axis), f(Tensor(x, requires_grad=True), axis)):
        assert y.shape == () and y.dtype == np.float32 and float(y) == expected
    assert isinstance(f(x, axis), np.ndarray)


def test_rows_of_minus_infinity():
    x = np.array([[-math.inf, -math.inf], [0, -math.inf]])
    with np.errstate(invalid="ignore"):
        assert np.isnan(F.softmax(x)[0]).all() and np.array_equal(F.softmax(x)[1], [1, 0])
        assert np.array_equal(F.logsumexp(x, 1), [-math.inf, 0])
        assert np.array_equal(F.log_softmax(x)[1], [0, -math.inf])
    assert slope_at(lambda x: F.log_softmax(x)[0], [0.0, -math.inf]) == [[0, 0]]


# ---- attention


def attend(mask, s=3, **settings):
    """Output and all gradients of an attention over random numbers, with 2 queries and s keys."""
    q, k, v = (
        Tensor(random_like((2, n, 4), seed), requires_grad=True) for seed, n in enumerate((2, s, s))
    )
    if mask is not None and mask.dtype.kind == "f":
        mask = Tensor(mask, requires_grad=True)
    out = F.scaled_dot_product_attention(q, k, v, mask, **settings)
    out.backward(random_like(out.shape, 9))
    return out.numpy(), [x.grad.numpy() for x in (q, k, v)], mask


@pytest.mark.parametrize(
    "mask",
    [
        np.array([[False, False, False], [True, True, False]]),
        np.array([[-math.inf] * 3, [0.3, -1.0, -math.inf]]),
    ],
    ids=["boolean", "float"],
)
def test_a_query_with_nothing_to_look_at_gets_zeros_and_gives_none(mask):
    with np.errstate(all="raise"):
        out, (dq, dk, dv), given_mask = attend(mask)
    assert not out[:, 0].any() and not dq[:, 0].any() and out[:, 1].any() and dq[:, 1].any()
    assert not dk[:, 2].any() and not dv[:, 2].any() and dk[:, 0].any() and dv[:, 0].any()
    if isinstance(given_mask, Tensor):
        assert not given_mask.grad.numpy()[0].any() and given_mask.grad.numpy()[1, 0] != 0
    everything, gradients, _ = attend(
        np.zeros_like(mask) if mask.dtype == bool else np.full_like(mask, -math.inf)
    )
    assert not everything.any() and not any(g.any() for g in gradients)


@pytest.mark.parametrize(
    "target",
    [np.ones((3, 0)), np.ones((3, 0, 0)), np.ones((0, 0)), np.zeros((3, 0), int), np.zeros(0, int)],
)
def test_no_classes_to_smooth_over(target):
    """Then all there is to add up is nothing, as in PyTorch."""
    shape = target.shape if target.dtype == float else (len(target), 0, *target.shape[1:])
    x = Tensor(np.ones(shape), requires_grad=True)
    loss = F.cross_entropy(x, target, label_smoothing=0.1, reduction="sum")
    loss.backward()
    assert loss.item() == 0 and x.grad.shape == x.shape


def test_a_blocked_key_changes_nothing():
    q, k, v = (random_like((3, 4), seed) for seed in range(3))
    seen = np.array([True, True, False])
    out = F.scaled_dot_product_attention(q, k, v, seen)
    k[2], v[2] = 100, -100
    np.testing.assert_allclose(F.scaled_dot_product_attention(q, k, v, seen), out, rtol=1e-13)
    assert not np.allclose(F.scaled_dot_product_attention(q, k, v), out)


@pytest.mark.parametrize("queries, keys", [(2, 5), (5, 2), (3, 3)])
def test_causal_counts_from_the_top_left_and_joins_a_mask(queries, keys):
    q, k, v = random_like((queries, 4), 0), random_like((keys, 4), 1), random_like((keys, 2), 2)
    triangle = np.tril(np.ones((queries, keys), bool))
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(
        causal, F.scaled_dot_product_attention(q, k, v, triangle), rtol=1e-12
    )
    seen = random_like((queries, keys), 3) > -0.5
    both = F.scaled_dot_product_attention(q, k, v, seen, is_causal=True)
    np.testing.assert_allclose(
        both, F.scaled_dot_product_attention(q, k, v, seen & triangle), rtol=1e-12
    )
    bias = np.where(seen, 0.7, -math.inf)
    np.testing.assert_allclose(
        F.scaled_dot_product_attention(q, k, v, bias, is_causal=True), both, rtol=1e-12
    )


def test_attention_without_keys_is_zero():
    out, (dq, dk, dv), _ = attend(None, s=0)
    assert (
        out.shape == (2, 2, 4)
        and not out.any()
        and not dq.any()
        and dk.shape == dv.shape == (2, 0, 4)
    )


def test_a_mask_may_be_a_list_or_of_another_float_dtype_and_have_axes_of_its_own():
    q, k, v = (random_like((1, 3, 4), seed).astype(np.float32) for seed in range(3))
    seen = np.random.default_rng(0).random((5, 3, 3)) < 0.7
    added = np.where(seen, random_like(seen.shape, 4), -math.inf)
    for mask in (seen, added):
        rows = [
            F.scaled_dot_product_attention(
                q[0], k[0], v[0], m.astype(m.dtype.char.replace("d", "f"))
            )
            for m in mask
        ]
        for form in (mask, mask.tolist()):
            out = F.scaled_dot_product_attention(q, k, v, form)
            assert out.dtype == np.float32
            np.testing.assert_allclose(out, rows, atol=1e-6)
    assert (
        F.scaled_dot_product_attention(*(x.astype(np.float16) for x in (q, k, v)), added).dtype
        == np.float16
    )


@pytest.mark.parametrize(
    "of_q, of_k", [((2, 3), (2, 3)), ((1, 3), (2, 3)), ((2, 3), (2, 1))], ids=str
)
def test_dropout_on_attention_weights_is_pytorchs(of_q, of_k):
    q, k, v = (random_like((*lead, 5, 4), seed) for seed, lead in enumerate((of_q, of_k, of_k)))
    manual_seed(5)
    torch.manual_seed(5)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), dropout_p=0.4
    )
    np.testing.assert_allclose(
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.4),
        expected.numpy(),
        rtol=1e-9,
        atol=1e-12,
    )
    assert not F.scaled_dot_product_attention(q, k, v, dropout_p=1.0).any()


# ---- masks, positions, heads


def test_masks_are_plain_arrays_true_where_blocked():
    assert isinstance(F.causal_mask(3), np.ndarray)
    assert F.causal_mask(3).tolist() == [[False, True, True], [False, False, True], [False] * 3]
    assert F.padding_mask([2, 0, 3]).tolist() == [[False, False, True], [True] * 3, [False] * 3]
    assert F.padding_mask([1], 3).tolist() == [[False, True, True]] and F.padding_mask(
        [], 2
    ).shape == (0, 2)
    assert F.padding_mask([[1, 2]], 2).shape == (1, 2, 2) and F.causal_mask(0).shape == (0, 0)
    with pytest.raises(
        ValueError, match=r"lengths lie in \[0, max_length\] = \[0, 2\], got \[1, 3\]"
    ):
        F.padding_mask([1, 3], 2)
    with pytest.raises(ValueError, match="lengths lie in"):
        F.padding_mask([-1])
    with pytest.raises(TypeError, match="integers as lengths"):
        F.padding_mask([1.5])


@pytest.mark.parametrize("d_model", [1, 2, 5, 6])
def test_sinusoidal_positions(d_model):
    table = F.sinusoidal_positions(4, d_model)
    expected = [
        [
            (math.sin if j % 2 == 0 else math.cos)(t / 10000 ** ((j - j % 2) / d_model))
            for j in range(d_model)
        ]
        for t in range(4)
    ]
    np.testing.assert_allclose(table.numpy(), expected, atol=1e-7)
    assert (
        table.dtype == np.float32
        and F.sinusoidal_positions(4, d_model, np.float64).dtype == np.float64
    )
    assert F.sinusoidal_positions(0, 3).shape == (0, 3)


def test_heads_split_and_merge():
    x = np.arange(24.0).reshape(2, 3, 4)
    heads = F.split_heads(x, 2)
    assert (
        heads.shape == (2, 2, 3, 2)
        and heads[1, 1, 2].tolist() == [22, 23]
        and np.array_equal(F.merge_heads(heads), x)
    )
    with pytest.raises(ValueError, match="cannot be cut into 3 equal heads"):
        F.split_heads(x, 3)


# ---- what is refused, and what it says


x23 = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda: F.sofmax(x23),
            AttributeError,
            "tinygrad_attn.functional.*'sofmax'.*mean 'softmax'",
        ),
        (lambda: F.softmax(x23, 2), IndexError, r"axis 2 .* \(2, 3\) lies in \[-2, 2\)"),
        (lambda: F.log_softmax(x23, 1.0), TypeError, "sizes are integers"),
        (lambda: F.softmax(np.array(["a"])), TypeError, "real numbers"),
        (
            lambda: F.gelu(x23, "tan"),
            ValueError,
            "approximate is one of 'none', 'tanh', got 'tan'. Did you mean 'tanh'?",
        ),
        (
            lambda: F.layer_norm(x23, 2),
            ValueError,
            r"normalized_shape \(2,\) must be the last sizes of the input",
        ),
        (
            lambda: F.layer_norm(x23, 3, np.ones(2)),
            ValueError,
            r"weight must have the shape normalized_shape = \(3,\)",
        ),
        (
            lambda: F.layer_norm(x23, 3, None, [1, 1, 1]),
            TypeError,
            r"layer_norm: bias is a Tensor or an array, got \[1, 1, 1\]",
        ),
        (
            lambda: F.linear(x23, [[1, 2, 3]]),
            TypeError,
            r"linear: weight is a Tensor or an array, got \[\[1, 2, 3\]\]",
        ),
        (
            lambda: F.linear([1.0, 2.0], None),
            TypeError,
            "linear: weight is a Tensor or an array, got None",
        ),
        (
            lambda: F.linear(x23, x23, [1.0, 2.0]),
            TypeError,
            r"linear: bias is a Tensor or an array",
        ),
        (
            lambda: F.embedding([0], [[1.0, 2.0]]),
            TypeError,
            "embedding: weight is a Tensor or an array",
        ),
        (lambda: F.rms_norm(x23, ()), ValueError, r"normalized_shape \(\)"),
        (
            lambda: F.rms_norm(x23, 3, np.ones(2)),
            ValueError,
            r"rms_norm: weight must have the shape normalized_shape = \(3,\)",
        ),
        (
            lambda: F.layer_norm(x23, 3, None, np.ones(2)),
            ValueError,
            r"layer_norm: bias must have the shape normalized_shape = \(3,\)",
        ),
        (lambda: F.split_heads(x23, 0), ValueError, "cannot be cut into 0 equal heads"),
        (lambda: F.split_heads(x23, -3), ValueError, "cannot be cut into -3 equal heads"),
        (
            lambda: F.layer_norm(1.0, ()),
            ValueError,
            r"normalized_shape \(\) must be the last sizes",
        ),
        (
            lambda: F.linear(x23, np.ones((3, 4), np.float32)),
            ValueError,
            r"last size of the weight, which is \(out, in\).*transpose one of them",
        ),
        (
            lambda: F.linear(x23[0, 0], np.ones((4, 3))),
            ValueError,
            r"last size of the weight, which is \(out, in\)",
        ),
        (
            lambda: F.linear(x23, np.ones((4, 3)), np.ones(3)),
            ValueError,
            r"one number for each row of the weight, \(4,\)",
        ),
        (
            lambda: F.linear(x23, np.ones(3), np.ones(3)),
            ValueError,
            r"one number for each row of the weight, \(\)",
        ),
        (
            lambda: F.embedding([0, 5, 9], np.ones((4, 2))),
            ValueError,
            r"index 5 at position \(1,\) is outside the table, whose 4 rows",
        ),
        (
            lambda: F.embedding([[0, -1]], np.ones((4, 2))),
            ValueError,
            r"index -1 at position \(0, 1\)",
        ),
        (
            lambda: F.embedding([0.0], np.ones((4, 2))),
            TypeError,
            r"integers as indices.*astype\(np.int64\)",
        ),
        (
            lambda: F.embedding([0], np.ones((4, 2)), 4),
            ValueError,
            "embedding: padding_idx=4 is not one of the 4 rows",
        ),
        (
            lambda: F.embedding([0], np.ones((4, 2)), 1.5),
            ValueError,
            "padding_idx=1.5 is not one of the 4 rows",
        ),
        (
            lambda: F.embedding([0], np.ones((4, 2)), "1"),
            ValueError,
            "padding_idx='1' is not one of the 4 rows",
        ),
        (lambda: F.embedding([0], np.ones(4)), ValueError, r"the shape \(rows, width\)"),
        (lambda: F.dropout(x23, 1.5), ValueError, r"lies in \[0, 1\], got 1.5"),
        (
            lambda: F.mse_loss(np.ones((4, 1)), np.ones(4)),
            ValueError,
            r"the shapes differ, array \(4, 1\) float64 and array \(4,\) float64",
        ),
        (
            lambda: F.mse_loss(x23, x23, "avg"),
            ValueError,
            "reduction is one of 'none', 'mean', 'sum', got 'avg'",
        ),
        (
            lambda: F.cross_entropy(x23, [0, 3]),
            ValueError,
            r"class 3 at position \(1,\) is not one of the 3 classes 0 to 2 .* start at 0",
        ),
        (
            lambda: F.cross_entropy(x23, [-1, 0]),
            ValueError,
            r"class -1 at position \(0,\).*ignore_index, -100",
        ),
        (
            lambda: F.cross_entropy(x23, x23, ignore_index=0),
            ValueError,
            "ignore_index=0 is for class labels",
        ),
        (
            lambda: F.cross_entropy(x23, x23, ignore_index=1),
            ValueError,
            r"ignore_index=1 is for class labels.*x\[keep\], target\[keep\]",
        ),
        (
            lambda: F.cross_entropy(x23, [0.0, 1.0]),
            TypeError,
            r"holds probabilities.*Class labels are integers",
        ),
        (
            lambda: F.cross_entropy(x23, np.ones((3, 3))),
            ValueError,
            r"has the shape of the scores, \(2, 3\)",
        ),
        (
            lambda: F.cross_entropy(x23, np.eye(3, dtype=int)[:2]),
            ValueError,
            r"need class labels of shape \(2,\), got \(2, 3\). One-hot",
        ),
        (
            lambda: F.cross_entropy(x23, [0, 1], np.ones(2)),
            ValueError,
            "one number for each of the 3 classes",
        ),
        (
            lambda: F.cross_entropy(x23, [0, 1], label_smoothing=2),
            ValueError,
            r"label_smoothing .* lies in \[0, 1\]",
        ),
        (lambda: F.cross_entropy(1.0, 0), ValueError, "needs a score for each class"),
        (
            lambda: F.scaled_dot_product_attention(x23, x23[:, :2], x23),
            ValueError,
            r"attention needs q \(..., T, D\), k \(..., S, D\)",
        ),
        (
            lambda: F.scaled_dot_product_attention(*[np.ones((2, 4, w)) for w in (3, 2, 5)]),
            ValueError,
            r"attention needs q \(..., T, D\), k \(..., S, D\)",
        ),
        (
            lambda: F.scaled_dot_product_attention(*[np.ones((3, 4, w)) for w in (3, 2, 5)]),
            ValueError,
            r"attention needs q \(..., T, D\), k \(..., S, D\)",
        ),
        (
            lambda: F.scaled_dot_product_attention(x23, x23, x23[:1]),
            ValueError,
            "one value for each key",
        ),
        (
            lambda: F.scaled_dot_product_attention(x23[0], x23, x23),
            ValueError,
            r"needs q \(..., T, D\)",
        ),
        (
            lambda: F.scaled_dot_product_attention(np.ones((4, 2, 3)), *np.ones((2, 2, 2, 3))),
            ValueError,
            "equal or 1.*enable_gqa=True",
        ),
        (
            lambda: F.scaled_dot_product_attention(x23, np.ones((2, 2, 3)), np.ones((4, 2, 3))),
            ValueError,
            r"equal or 1; got .*enable_gqa=True",
        ),
        (
            lambda: F.scaled_dot_product_attention(x23, x23, x23, np.ones((2, 2), int)),
            TypeError,
            r"may look.*astype\(bool\)",
        ),
        (
            lambda: F.scaled_dot_product_attention(x23, x23, x23, np.ones((2, 3), bool)),
            ValueError,
            r"not broadcast to the scores \(2, 2\)",
        ),
        (
            lambda: F.scaled_dot_product_attention(
                np.ones((2, 2, 3)), *np.ones((2, 0, 2, 3)), enable_gqa=True
            ),
            ValueError,
            "heads at axis -3",
        ),
        (
            lambda: F.scaled_dot_product_attention(x23, x23, x23, dropout_p=-1),
            ValueError,
            r"dropout_p .* lies in \[0, 1\]",
        ),
    ],
)
def test_bad_arguments_are_told(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_integers_are_promoted_and_lists_taken():
    assert (
        F.softmax([0, 0]).numpy().tolist() == [0.5, 0.5]
        and F.softmax(np.array([1, 1])).dtype == np.float32
    )
    assert F.linear([1, 2], Tensor([[1.0, 1.0]])).numpy().tolist() == [3]
    assert F.linear([0.1], np.array([[1.0]])).numpy().tolist() == [0.1]  # in the weight's precision
    assert F.layer_norm(np.array([1, 3]), 2).tolist() == pytest.approx([-1, 1], abs=1e-5)
    assert F.embedding([], np.ones((4, 2))).shape == (0, 2)


def test_dropout_leaves_alone_what_it_must():
    x = Tensor(x23, requires_grad=True)
    assert F.dropout(x, 0.5, False) is x and F.dropout(x, 0.0) is x
    gone = F.dropout(x, 1.0)
    gone.sum().backward()
    assert not gone.numpy().any() and not x.grad.numpy().any()


def test_what_drops_everything_draws_nothing_as_in_pytorch():
    x = torch.ones(1, 2, 3)
    manual_seed(5)
    torch.manual_seed(5)
    for ours, theirs in (
        (F.dropout, torch.nn.functional.dropout),
        (
            lambda a, p: F.scaled_dot_product_attention(a, a, a, dropout_p=p),
            lambda a, p: torch.nn.functional.scaled_dot_product_attention(a, a, a, dropout_p=p),
        ),
    ):
        assert not ours(x.numpy(), 1.0).any() and not theirs(x, 1.0).any()
        assert rand(1).item() == torch.rand(1).item()


def test_a_mean_over_nothing_but_ignored_labels_is_nan():
    with np.errstate(invalid="ignore"):
        assert math.isnan(F.cross_entropy(Tensor(x23), [-100, -100]).item())
    assert F.cross_entropy(Tensor(x23), [-100, -100], reduction="sum").item() == 0
    assert F.cross_entropy(Tensor(x23), [0, 7], ignore_index=7).item() == pytest.approx(math.log(3))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("weight", [None, Tensor(np.ones(3), requires_grad=True)])
@pytest.mark.parametrize("create_graph", [False, True])
def test_an_ignored_row_has_no_gradient_whatever_it_holds(dtype, weight, create_graph):
    rows = [[-math.inf] * 3, [math.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]
    x = Tensor(np.array(rows, dtype), requires_grad=True)
    loss = F.cross_entropy(x, np.array([-100, -100, 1]), weight=weight, label_smoothing=0.1)
    slope = grad(loss, x, create_graph=create_graph)[0].numpy()
    assert math.isfinite(loss.item()) and not slope[:2].any() and np.isfinite(slope).all()


def test_nothing_is_ignored_where_ignore_index_is_none():
    for target in ([0, 1], x23 / 3):
        assert F.cross_entropy(Tensor(x23), target, ignore_index=None).item() == pytest.approx(
            math.log(3)
        )


@pytest.mark.parametrize(
    "indices",
    [
        np.zeros(400, int),
        np.arange(400) % 3,
        np.r_[np.full(300, 7), np.arange(100)],
        np.array([], int),
        np.array([[-1, 9], [9, 0]]),
        np.repeat(np.arange(40), np.arange(40)),
    ],
    ids=["one row", "three rows", "one often", "none", "negative", "once to 39 times"],
)
@pytest.mark.parametrize("width", [0, 5, 200])
def test_the_table_of_an_embedding_sums_all_uses_however_often_a_row_is_used(indices, width):
    g = np.random.default_rng(0).standard_normal((*indices.shape, width))
    expected = np.zeros((100, width))
    np.add.at(expected, indices % 100, g)
    assert np.allclose(
        ops.embedding_backward(g, indices=indices, rows=100), expected, rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "shape, index",
    [
        ((5,), np.array([0, -1, 4, 0])),
        ((5,), np.array([[0, 4], [-5, 0]])),
        ((5,), np.array(3)),
        ((5,), np.zeros((0, 2), int)),
        ((5,), (np.array([1, 1, 1]),)),
        ((4, 3), (np.array([0, -4, 0]), np.array([2, -1, 2]))),
        ((4, 3), (np.array([[0], [3]]), np.array([1, 1, -2]))),
        ((4, 3), (np.array(1), np.array([0, 0]))),
        ((4, 3), (np.array([0, 0]), 1)),
        ((4, 3), (slice(None), np.array([2, 2, -1]))),
        ((4, 3), (np.array([3, 3]), None)),
        ((4, 3), (np.array([True, False, True, True]), np.array([0, 2, 0]))),
        ((4, 3), np.array([1, -3, 1])),
        ((4, 3), [True, False, False, True]),
        ((4, 40), np.array([1, -3, 1])),
        ((4, 40), (slice(None), np.array([2, -38, 2]))),
        ((3, 50, 4), (slice(None), np.array([[7, -1], [7, 0]]))),
        ((4, 5, 8), np.array([[3, 0, -1], [3, 3, 3]])),
        ((4, 40), (np.array([2, 2]),)),
        ((300, 20), np.arange(-300, 300)),
        ((4, 5, 8), (np.array([0, 0]), np.array([4, -1]))),
        ((300,), np.array([255, 0, 255], np.uint8)),
        ((300, 20), np.array([255, 0, 255], np.uint8)),
        ((300, 256), (np.array([255, 7], np.uint64),) * 2),
        ((300, 20), np.array([255, 0, 255], np.uint64)),
        ((300, 20), np.array([-1, 127], np.int8)),
        ((4, 0), np.array([1, 1])),
        ((3, 20), np.array([], int)),
    ],
    ids=str,
)
def test_the_gradient_of_an_index_adds_up_however_often_and_by_whatever_way_an_element_was_picked(
    shape, index, dtype
):
    x = Tensor(np.zeros(shape, dtype), requires_grad=True)
    y = x[index]
    g = (
        np.random.default_rng(0).integers(-4, 5, y.shape).astype(dtype)
    )  # whole numbers, so that no order of adding rounds
    y.backward(g)
    expected = np.zeros(shape, dtype)
    np.add.at(expected, index, g)
    assert np.array_equal(x.grad.numpy(), expected) and x.grad.dtype == dtype


@pytest.mark.parametrize("f, sign", [(np.max, 1), (np.min, -1)])
@pytest.mark.parametrize(
    "rows, expected",
    [
        ([[1, 3, 2], [5, 4, 0]], [[0, 1, 0], [1, 0, 0]]),
        ([[3, 3, 2], [5, 4, 0]], [[0.5, 0.5, 0], [1, 0, 0]]),
        ([[3, 3, 2], [5, np.nan, 0]], [[0.5, 0.5, 0], [0, 1, 0]]),
    ],
    ids=["one each", "a tie", "a tie and as many NaN"],
)
def test_the_largest_takes_the_gradient_and_ties_share_it(f, sign, rows, expected):
    x = Tensor(sign * np.array(rows, float), requires_grad=True)
    f(x, axis=1).backward(np.ones(2))
    assert x.grad.numpy().tolist() == expected


@pytest.mark.parametrize("rows", [3, 1 << 16, (1 << 16) + 1])
def test_the_gradient_of_a_table_adds_up_whatever_its_length(rows):
    """Indices of up to 16 bits are sorted another way than longer ones."""
    indices = np.random.default_rng(0).integers(-2, 2, (4, 25)) % rows
    g, expected = np.random.default_rng(1).standard_normal((4, 25, 3)), np.zeros((rows, 3))
    np.add.at(expected, indices, g)
    np.testing.assert_allclose(
        ops.embedding_backward(g, indices=indices, rows=rows), expected, atol=1e-12
    )


def test_an_einsum_by_numbers_knows_every_number_that_numpy_knows_and_their_order():
    """0 to 51; the axes of a result that is left out come in their order."""
    x = np.arange(6.0).reshape(2, 3)
    for i, j in [*zip(range(51), range(1, 52)), (0, 51), (25, 27)]:
        for labels in ([i, j], [j, i]):
            expected = np.einsum(x, labels)
            np.testing.assert_array_equal(np.einsum(Tensor(x), labels).numpy(), expected)


@pytest.mark.parametrize("dtype", ["u1", "u4", "u8", "i1", "i2", "i4", "i8"])
def test_labels_and_indices_are_whole_numbers_of_any_kind(dtype):
    x, labels = leaf(random_like((4, 3), 0)), np.array([2, 0, 1, 2])
    for f in (
        lambda labels: F.cross_entropy(x, labels),
        lambda labels: F.embedding(labels, x).sum() + x[labels].prod(),
        lambda labels: np.take_along_axis(x, labels[:, None], 1).prod(),
        lambda labels: ops.scatter(x, index=labels, shape=(5, 3)).prod(0).sum(),
    ):
        expected, found = (grad(y, x)[0].numpy() for y in (f(labels), f(labels.astype(dtype))))
        np.testing.assert_array_equal(found, expected)
