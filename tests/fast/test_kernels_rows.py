"""The row kernels against the equations in float64: erf, GELU, norms, softmax, cross-entropy, linear."""

import importlib.util
import itertools
import math
import re

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor, ops
from tinygrad_attn.fast import ops as R
from tinygrad_attn.fast import threads, tuning
from tinygrad_attn.fast.kernels import elementwise as E
from tinygrad_attn.fast.kernels import products as L
from tinygrad_attn.fast.kernels import rows
from tinygrad_attn.fast.kernels import softmax as S
from tinygrad_attn.fast.kernels.elementwise import erf


@pytest.mark.parametrize("rows", [3, 3000])
@pytest.mark.parametrize("axis", [1.0, True])
@pytest.mark.parametrize("f", [Tensor.sum, Tensor.max])
def test_an_axis_is_a_whole_number_however_large_the_array(f, axis, rows):
    with pytest.raises(TypeError, match="integer"):
        f(Tensor(np.ones((rows, 2), np.float32)), axis)


TOLERANCE = {"f": 2e-6, "d": 1e-13}


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"], autouse=True)
def small_blocks(request, monkeypatch):
    """Blocks of a few rows, and several threads for anything, so that small inputs take every path."""
    before = threads.get_num_threads()
    threads.set_num_threads(request.param)
    for name, value in (
        ("SECOND_THREAD", 40),
        ("BLOCK", 24),
        ("BLOCK_OF_THREADS", 16),
        ("SHARED_PRODUCT", 40),
        ("SHARED_PRODUCT_ROWS", 5),
        ("LIBRARY_THREADS", 30),
        ("TINY_PRODUCT", 10),
        ("SHORT_PRODUCT", 8),
        ("SHARED_STACKS", 40),
    ):
        monkeypatch.setattr(tuning, name, value)
    yield
    threads.set_num_threads(before)


def assert_close(found, expected, dtype, factor=1.0):
    found = np.asarray(found)
    assert found.dtype == dtype and found.shape == np.shape(expected)
    np.testing.assert_allclose(
        found,
        expected,
        rtol=0,
        atol=factor * TOLERANCE[dtype] * (1 + np.abs(expected).max(initial=0)),
    )


def slope(f, x, g, h=1e-6):
    """The gradient of sum(g * f(x)) by central differences in float64."""
    x, out = x.astype("d"), np.empty(x.shape)
    for i in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[i] = h
        out[i] = (g * (f(x + step) - f(x - step))).sum() / (2 * h)
    return out


# ---- erf

NUMBERS = np.concatenate(
    [
        np.linspace(-7, 7, 4001),
        10.0 ** np.linspace(-300, 1, 500),
        [0.0, -0.0, 0.46875, 1, 4, 6, 5.999999],
    ]
)


def test_erf_in_float64_is_right_to_two_units_in_the_last_place():
    true = np.array([math.erf(x) for x in NUMBERS])
    assert (np.abs(erf(NUMBERS) - true) <= 2 * np.spacing(np.abs(true))).all()


@pytest.mark.parametrize("dtype", [np.longdouble, ">f8", int])
def test_erf_of_what_is_no_float64_but_as_long_has_its_precision(dtype):
    x = np.array([-1, 0, 2]).astype(dtype)
    np.testing.assert_allclose(np.float64(erf(x)), [math.erf(v) for v in x.tolist()], rtol=4e-16)


def test_erf_in_float32():
    x = NUMBERS.astype("f")
    y = erf(x)
    assert y.dtype == np.float32
    true = np.array([math.erf(v) for v in x])
    assert np.abs(y - true).max() < 2e-7
    normal = np.abs(true) > np.finfo("f").tiny
    assert np.abs(y[normal] / true[normal] - 1).max() < 3e-7  # near zero too
    assert erf(x.astype(np.float16)).dtype == np.float16


@pytest.mark.parametrize("dtype", "fd")
def test_erf_far_out(dtype):
    with np.errstate(all="raise"):
        far = erf(np.array([[np.inf, -np.inf, 1e30, -1e30, np.nan]], dtype))
    np.testing.assert_array_equal(far, [[1, -1, 1, -1, np.nan]])
    assert np.signbit(erf(np.array([-0.0], dtype)))[0]
    assert erf(np.ones((0, 3), dtype)).shape == (0, 3)


# ---- GELU


def true_gelu(x, tanh):
    if tanh:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes="d")(x / math.sqrt(2)))


@pytest.fixture(params=["tanh and 2^x", "e^x"])
def processor(request, monkeypatch):
    """With AVX-512 and without."""
    by_e = request.param == "e^x"
    for name, value in (
        ("BY_EXP", by_e),
        ("EXP", np.exp if by_e else np.exp2),
        ("UNIT", 1.0 if by_e else 1 / math.log(2)),
    ):
        monkeypatch.setattr(E, name, value)


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("shape", [(), (1,), (37,), (5, 3, 2), (0, 4)])
def test_gelu(processor, shape, dtype, tanh):
    rng = np.random.default_rng(0)
    x, g = (np.asarray(3 * rng.standard_normal(shape), dtype) for _ in range(2))
    y, phi = E.gelu(x, tanh=tanh)
    assert_close(y, true_gelu(x.astype("d"), tanh), dtype)
    dx = E.gelu_backward(g, x, phi, tanh=tanh)
    assert dx.dtype == dtype
    np.testing.assert_allclose(
        dx, slope(lambda x: true_gelu(x, tanh), x, g), atol=1e-5 if dtype == "f" else 1e-8
    )


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", "fd")
def test_gelu_far_out(processor, dtype, tanh):
    far, vast = (
        (1e15, 1e25) if dtype == "f" else (1e110, 1e200)
    )  # the cubes overflow, and the squares
    x = np.array([1e4, -1e4, 30, -30, 0, far, -far, vast, -vast], dtype)
    with np.errstate(all="raise"):
        y, phi = E.gelu(x, tanh=tanh)
        dx = E.gelu_backward(np.ones_like(x), x, phi, tanh=tanh)
    np.testing.assert_allclose(y, [1e4, 0, 30, 0, 0, far, 0, vast, 0])
    slopes = [np.nan, np.nan] if tanh else [1, 0]  # by the tanh formula NaN, as PyTorch's
    np.testing.assert_allclose(dx, [1, 0, 1, 0, 0.5, 1, 0, *slopes], atol=1e-7)


# ---- exponentials


@pytest.mark.parametrize(
    "loops, exponential, log1p",
    [
        ({"exp": "X86_V4", "exp2": "X86_V4", "log": "X86_V4", "log1p": "X86_V4"}, np.exp2, True),
        (
            {
                "exp": "FMA3__AVX2",
                "exp2": "baseline(SSE SSE2)",
                "log": "FMA3__AVX2",
                "log1p": "baseline(SSE SSE2)",
            },
            np.exp,
            False,
        ),
        ({"exp": "baseline(NEON)", "exp2": "baseline(NEON)"}, np.exp2, True),
        ({}, np.exp2, True),
    ],
)
def test_what_is_taken_is_what_numpy_takes_of_many_numbers_at_once(
    monkeypatch, loops, exponential, log1p
):
    def told(func_name, signature):
        return {
            name: {"ff": {"current": loop}}
            for name, loop in loops.items()
            if re.search(func_name, name)
        }

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.introspect, "opt_func_info", told)
        spec = importlib.util.find_spec(E.__name__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    played = vars(module)
    assert played["EXP"] is exponential and played["LOG1P"] is log1p
    assert played["UNIT"] == (1.0 if exponential is np.exp else np.log2(np.e))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("dtype", "fd")
def test_log1p(monkeypatch, dtype, at_once):
    monkeypatch.setattr(E, "LOG1P", at_once)
    x = np.concatenate(
        [np.linspace(0, 1, 10_001), np.geomspace(1e-30, 1, 10_001), [np.nan]]
    ).astype(dtype)
    expected = np.log1p(x.astype(np.longdouble)).astype("d")
    found = E.log1p(x)
    assert found is x and found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=3 * np.finfo(dtype).eps)


# ---- ReLU


@pytest.mark.parametrize("dtype", "efd")
@pytest.mark.parametrize(
    "shape", [(37,), (5, 3, 7), (0, 4), (256,), (257,), (40, 50), (7, 11, 401), (3, 100_003)]
)
def test_relu(shape, dtype):
    rng = np.random.default_rng(0)
    x, g = (np.asarray(rng.standard_normal(shape), dtype) for _ in range(2))
    x.flat[:1] = 0
    g.flat[-1:] = np.inf
    y = R.relu(x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(R.relu_rule(g, y, x), np.where(x > 0, g, 0))
    np.testing.assert_array_equal(R.relu(x.T), np.maximum(x.T, 0))
    assert y.dtype == R.relu_rule(g, y, x).dtype == dtype


@pytest.mark.parametrize("n", [50, 1_000, 100_003])
def test_relu_of_nan_and_of_negative_zero(n):
    x, g = np.full(n, np.nan, "f"), np.arange(n, dtype="f") + 1
    assert np.isnan(R.relu(x)).all() and np.isnan(R.relu(-x)).all()
    np.testing.assert_array_equal(R.relu_rule(g, R.relu(x), x), g)
    np.testing.assert_array_equal(R.relu_rule(g, R.relu(np.full(n, -0.0, "f")), x), 0)


# ---- where


@pytest.mark.parametrize("dtype", "efd")
def test_where_is_numpys(dtype):
    rng = np.random.default_rng(0)
    a, b = (np.asarray(rng.standard_normal((97, 101)), dtype) for _ in range(2))
    a[0, :5] = b[:5, 0] = np.nan, np.inf, -np.inf, -0.0, 0
    condition = rng.random((97, 101)) < 0.5
    number = a.dtype.type
    for c in (
        condition,
        condition.T.copy().T,
        np.broadcast_to(condition[:1], (97, 101)),
        condition[None],
    ):
        for x, y in (
            (a, b),
            (a, 0),
            (0.0, a),
            (a, -0.0),
            (-np.inf, a),
            (a, 2),
            (a, b[:, :1]),
            (a[:1], b),
            (a[0, 3], b),
            (number(0), b),
            (b, number(7)),
            (a, np.zeros((), dtype)),
            (a, b.astype("d")),
            (a, np.int8(3)),
            (np.arange(101), b),
            (a[None], b),
            (0, b.T.copy().T),
            (True, a),
            (a[::-1, ::-1], b),
            (0, 0),
            (1.5, 2),
            (np.float64(2), a),
            (number(0), np.zeros((), dtype)),
            (rng.standard_normal((2, 97, 101)).astype(dtype), b),
        ):
            expected, found = np.where(c, x, y), ops.where(c, x, y)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
            assert found.dtype == expected.dtype and not any(
                np.shares_memory(found, z) for z in (a, b)
            )
    np.testing.assert_array_equal(ops.where(condition[0], a, b), np.where(condition[0], a, b))
    np.testing.assert_array_equal(ops.where(True, a, b), a)
    thirds = np.arange(97 * 101).reshape(97, 101) % 3
    np.testing.assert_array_equal(ops.where(thirds, a, b), np.where(thirds, a, b))


def test_where_of_many_numbers_is_differentiated_twice():
    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.standard_normal((100, 90)), requires_grad=True) for _ in range(2))
    condition = rng.random((100, 90)) < 0.5
    g = rng.standard_normal((100, 90))
    g[:2, :2] = np.inf
    for create_graph in (False, True):
        dx, dy = ta.grad(np.where(condition, x * x, y), [x, y], g, create_graph=create_graph)
        np.testing.assert_array_equal(dx.numpy(), np.where(condition, g * 2 * x.numpy(), 0))
        np.testing.assert_array_equal(dy.numpy(), np.where(condition, 0, g))
    finite = np.where(np.isinf(g), 0, g)
    (dx,) = ta.grad(np.where(condition, x * x, y), x, finite, create_graph=True)
    np.testing.assert_allclose(
        ta.grad(dx, x, np.ones_like(g))[0].numpy(), np.where(condition, 2 * finite, 0)
    )


# ---- normalisation


def true_norm(x, weight, bias, center, eps=1e-5):
    h = x - x.mean(-1, keepdims=True) if center else x
    h = h / np.sqrt((h * h).mean(-1, keepdims=True) + eps)
    return h * (1 if weight is None else weight) + (0 if bias is None else bias)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (13, 7), (3, 31)])
def test_norm(shape, dtype, center):
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, *shape)).astype(dtype) * 3 + 2
    for weight, bias in ((None, None), tuple(rng.standard_normal((2, shape[1])).astype(dtype))):
        y, saved = rows.norm(x, weight, bias, eps=1e-5, center=center)
        assert_close(y, true_norm(x.astype("d"), weight, bias, center), dtype, 5)
        dx, dweight, dbias = rows.norm_backward(g, x, weight, saved, True, True)
        assert_close(
            dx,
            slope(lambda x, w=weight, b=bias: true_norm(x, w, b, center), x, g),
            dtype,
            20 if dtype == "f" else 1e6,
        )
        assert_close(dweight, (g * true_norm(x.astype("d"), None, None, center)).sum(0), dtype, 10)
        assert_close(dbias, g.astype("d").sum(0), dtype, 10)
    assert rows.norm_backward(g, x, weight, saved)[1:] == (None, None)


def test_norm_of_equal_numbers_is_zero_and_keeps_its_precision_far_from_zero():
    rng = np.random.default_rng(0)
    assert (rows.norm(np.full((2, 8), 3.0), None, None, eps=1e-5)[0] == 0).all()
    x = (1000 + rng.standard_normal((9, 64))).astype("f")
    np.testing.assert_allclose(
        rows.norm(x, None, None, eps=1e-5)[0], true_norm(x.astype("d"), None, None, True), atol=1e-3
    )
    x = (1e4 + rng.standard_normal((2, 300_000))).astype(
        "f"
    )  # a product with 1/n would lose the mean's fifth digit
    np.testing.assert_allclose(
        rows.norm(x, None, None, eps=1e-5)[0], true_norm(x.astype("d"), None, None, True), atol=3e-3
    )


# ---- softmax and cross-entropy


def true_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (13, 7), (3, 31), (0, 4), (3, 701), (0, 701)])
def test_softmax_and_its_logarithm(shape, dtype):
    rng = np.random.default_rng(0)
    for size in (1, 300):
        x, g = rng.standard_normal((2, *shape)).astype(dtype) * dtype_scale(dtype, size)
        p = true_softmax(x.astype("d")) if x.size else x
        with np.errstate(all="raise"):
            y, log = S.softmax(x), S.log_softmax(x)
            dx, dlog = S.softmax_backward(g, y), S.log_softmax_backward(g, log)
        assert_close(y, p, dtype)
        assert_close(dx, p * (g - (g * p).sum(-1, keepdims=True)), dtype, 5 * size)
        with np.errstate(divide="ignore"):
            assert_close(
                log,
                x
                - x.max(-1, keepdims=True, initial=-np.inf)
                - np.log(
                    np.exp(x.astype("d") - x.max(-1, keepdims=True, initial=-np.inf)).sum(
                        -1, keepdims=True
                    )
                ),
                dtype,
            )
        assert_close(dlog, g - p * g.sum(-1, keepdims=True), dtype, 50 * size)


def dtype_scale(dtype, size):
    return np.dtype(dtype).type(size)


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_softmax_of_rows_far_from_zero_and_apart(dtype):
    """What is too small or too large for an exponential has its maximum subtracted, and the rows beside it come out the same."""
    row = np.linspace(-3, 3, 7)
    x = (row + np.array([[0.0], [-8], [-60], [-700], [30], [80], [700], [1e5]])).astype(dtype)
    for part in (x, x[:1], x[1:2], x[2:4], x[4:5], x[5:]):
        assert_close(S.softmax(part), true_softmax(part.astype("d")), dtype)
    apart = np.array([[-30.0, -103.0], [-7.5, -100.0], [30.0, -50.0]], dtype)
    assert np.allclose(np.log(S.softmax(apart)[:, 1]), [-73, -92.5, -80], rtol=1e-3), (
        "what is small is not lost"
    )
    assert (S.softmax(np.linspace(-200, 200, 401, dtype=dtype)[:, None]) == 1).all()


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(dtype, smoothing, weighted):
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((11, 6)).astype(dtype) * 4, rng.standard_normal(11).astype(dtype)
    target = rng.integers(0, 6, 11)
    target[[0, 7]] = -1
    weight = rng.random(6).astype(dtype) if weighted else None
    labels, seen = S.usable(target, -1)
    settings = {"seen": seen, "smoothing": smoothing}

    def true(x):
        minus = -np.log(true_softmax(x)) * (1 if weight is None else weight)
        loss = (1 - smoothing) * minus[np.arange(11), target] + smoothing * minus.mean(-1)
        return np.where(target == -1, 0, loss)

    x[7] = np.inf  # an ignored row may hold anything
    loss, lse = S.cross_entropy(x, labels, weight, **settings)
    dx = S.cross_entropy_backward(g, x, labels, lse, weight, **settings)
    x[7] = 0
    assert_close(loss, true(x.astype("d")), dtype, 10)
    expected = slope(true, x, g)
    assert (dx[7] == 0).all() and (expected[7] == 0).all()
    assert_close(dx, expected, dtype, 10 if dtype == "f" else 1e6)


def test_cross_entropy_far_out():
    x = np.array([[1000.0, 0, -1000], [0, -np.inf, 0]])
    loss, lse = S.cross_entropy(x, np.array([1, 0]))
    np.testing.assert_allclose(loss, [1000, math.log(2)])
    np.testing.assert_allclose(
        S.cross_entropy_backward(np.ones(2), x, np.array([1, 0]), lse), [[1, -1, 0], [-0.5, 0, 0.5]]
    )


# ---- linear


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize(
    "a, b",
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((5, 3), (3,)),
        ((1, 1), (1, 1)),
        ((7, 3), (3, 5)),
        ((4, 3), (3, 5)),
        ((2, 3), (3, 1)),
        ((0, 3), (3, 4)),
        ((6, 0), (0, 4)),
        ((9, 3), (3, 0)),
        ((2, 7, 3), (3, 5)),
        ((2, 4, 7, 3), (4, 3, 5)),
        ((3, 1, 7, 3), (4, 3, 5)),
        ((2, 1, 7, 3), (1, 4, 3, 5)),
        ((7, 3), (4, 3, 5)),
        ((1, 1, 7, 3), (1, 1, 3, 5)),
        ((3, 0, 3), (3, 3, 5)),
        ((1, 5, 7, 3), (5, 3, 4)),
        ((5, 1), (1, 4)),
        ((0, 1), (1, 3)),
        ((3, 5, 1), (3, 1, 4)),
        ((2, 1, 5, 1), (3, 1, 4)),
        ((5, 1), (3, 1, 4)),
        ((3, 5, 1), (1, 4)),
    ],
    ids=str,
)
def test_product_is_numpys(a, b, dtype):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(a).astype(dtype), rng.standard_normal(b).astype(dtype)
    assert_close(L.product(x, y), x.astype("d") @ y, dtype)
    if x.ndim > 1:
        turned = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(
            -1, -2
        )  # as x^T in a gradient by weights
        assert_close(L.product(turned, y), x.astype("d") @ y, dtype)
        assert_close(L.product(np.repeat(x, 2, axis=-1)[..., ::2], y), x.astype("d") @ y, dtype)
        assert_close(
            L.product(np.broadcast_to(x[..., :1, :], x.shape), y),
            np.broadcast_to(x[..., :1, :], x.shape).astype("d") @ y,
            dtype,
        )


@pytest.mark.parametrize(
    "a, b",
    [
        ((1, 1), (1, 3)),
        ((3, 1), (1, 1)),
        ((1, 1), (1, 1)),
        ((3, 1), (1, 3)),
        ((1, 3), (3, 1)),
        ((20, 1), (1, 1)),
        ((1, 1), (1, 20)),
    ],
)
@pytest.mark.parametrize("dtype", "fd")
def test_zero_times_nan_is_nan_also_where_one_factor_is_a_single_number(a, b, dtype):
    """NumPy's `dot` returns zeros for a single 0, whatever the other matrix holds."""
    zeros = np.zeros(a, dtype), np.zeros(b, dtype)
    for x, y in ((zeros[0], np.full(b, np.nan, dtype)), (np.full(a, np.nan, dtype), zeros[1])):
        assert np.isnan(L.product(x, y)).all()
        assert np.isnan(L.linear(x, y.T, None)).all()
        assert np.isnan(L.linear_backward(x, np.ones((len(x), y.shape[1]), dtype), y)[0]).all()
        assert np.isnan(
            L.linear_backward(x.T, y, np.ones((len(x), y.shape[1]), dtype), False, True)[1]
        ).all()
    with np.errstate(invalid="ignore"):
        assert np.isnan(L.product(zeros[0], np.full(b, np.inf, dtype))).all()


def test_product_of_other_numbers_and_shapes_that_do_not_fit():
    x = np.arange(21).reshape(7, 3)
    assert np.array_equal(L.product(x, x.T), x @ x.T) and L.product(x, x.T).dtype == x.dtype
    assert L.product(x.astype("f"), x.T.astype("d")).dtype == np.float64
    for column, row in (
        (x[:, :1], x[:1]),
        (x[:, :1] > 6, x[:1] > 1),
        (x[:, :1].astype("f"), x[:1].astype("d")),
        (x[None, :, :1], x[:1] > 1),
    ):
        assert (
            np.array_equal(L.product(column, row), column @ row)
            and L.product(column, row).dtype == (column @ row).dtype
        )
    for column in (x[:, :1], x[None, :, :1]):
        with pytest.raises(ValueError):
            L.product(column, x)
    with pytest.raises(ValueError, match="core dimension"):
        L.product(x.astype("f"), x.astype("f"))
    with pytest.raises(ValueError, match="shape mismatch|core dimension|broadcast"):
        L.product(np.ones((2, 7, 3)), np.ones((3, 3, 5)))
    for left, right in ((2, Tensor(x)), (Tensor(x), 2.5), (np.float64(2), Tensor(np.ones((3, 3))))):
        with pytest.raises(
            ValueError, match=r"A number has no rows or columns: multiply with \* instead of @"
        ):
            left @ right


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("m, i, o", [(1, 1, 1), (7, 5, 3), (3, 1, 8), (0, 4, 2)])
def test_linear(m, i, o, dtype):
    rng = np.random.default_rng(0)
    x, w, b, g = (rng.standard_normal(s).astype(dtype) for s in ((m, i), (o, i), o, (m, o)))
    assert_close(L.linear(x, w, b), x.astype("d") @ w.T + b, dtype)
    assert_close(L.linear(x, w, None), x.astype("d") @ w.T, dtype)
    dx, dw, db = L.linear_backward(g, x, w, True, True, True)
    for found, expected in (
        (dx, g.astype("d") @ w),
        (dw, g.astype("d").T @ x),
        (db, g.astype("d").sum(0)),
    ):
        assert_close(found, expected, dtype)
    assert L.linear_backward(g, x, w, False, False, False) == (None, None, None)
    assert L.linear_backward(g, x, w, False, True, False)[1].shape == w.shape


@pytest.mark.parametrize("number", [2, 3, 5])
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_the_gradients_of_linear_laid_end_to_end_and_shared_out(wanted, number):
    rng = np.random.default_rng(
        [number, *wanted]
    )  # other numbers each time: freed memory may still hold the right ones of before
    x, w, g = (rng.standard_normal(s) for s in ((17, 6), (11, 6), (17, 11)))
    threads.set_num_threads(number)
    for want, found, expected in zip(
        wanted, L.linear_backward(g, x, w, *wanted), (g @ w, g.T @ x, g.sum(0)), strict=True
    ):
        if want:
            np.testing.assert_allclose(found, expected, atol=1e-13)
        else:
            assert found is None


def test_results_repeat():
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, 200, 9)).astype("f")
    runs = []
    for _ in range(3):
        y, saved = rows.norm(x, None, None, eps=1e-5)
        runs.append(
            (
                y,
                *rows.norm_backward(g, x, None, saved, True, True),
                *L.linear_backward(g, x, x[:9].copy(), True, True, True),
            )
        )
    for again in runs[1:]:
        for a, b in zip(runs[0], again, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", "fd")
def test_dropout_in_blocks_is_bit_equal_to_the_equation(dtype):
    rng = np.random.default_rng(0)
    x, keep = rng.standard_normal((13, 11)).astype(dtype), rng.random((13, 11)) > 0.3
    expected = np.where(keep, x * (x.dtype.type(1) / x.dtype.type(0.7)), 0)
    for view in (lambda a: a, lambda a: a.T, lambda a: a[::2, ::-1]):
        y = E.dropout(view(x), view(keep), 0.3)
        assert y.dtype == dtype
        assert (
            np.argsort(y.strides).tolist() == np.argsort(np.abs(view(x).strides)).tolist()
        )  # the next dropout draws in that order
        np.testing.assert_array_equal(y, view(expected))
    assert not E.dropout(x, np.zeros_like(keep), 1.0).any()


def test_wide_rows_and_the_buffer_of_numpy_afterwards():
    rng = np.random.default_rng(0)
    for width in (159, 160, 170, 4096, 4097):
        x, seen, few = rng.standard_normal((60, width)), set(), set()
        rows.by_rows(lambda s, seen=seen: seen.add(np.getbufsize()), 60, width)
        rows.by_rows(
            lambda s, seen=few: seen.add(np.getbufsize()), 1, width
        )  # two calls would cost more than they bring
        assert seen == {width // 16 * 16 if 160 <= width <= 4096 else 8192} and few == {
            np.getbufsize()
        } == {8192}
        e = np.exp(x - x.max(-1, keepdims=True))
        assert_close(S.softmax(x), e / e.sum(-1, keepdims=True), "d")
        assert_close(
            rows.norm(x, None, None, eps=0.0)[0],
            (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
            "d",
        )
    with pytest.raises(ZeroDivisionError):
        rows.by_rows(lambda s: 1 / 0, 60, 500)
    assert np.getbufsize() == 8192
