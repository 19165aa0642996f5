"""Numbers at the edge: infinite cotangents, large logits, integer tensors, constants in recorded rules."""

import contextlib
import inspect
import itertools

import numpy as np
import pytest
from enumeration import ops_in
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, ops

torch = require("torch")
WHOLE = {
    "linspace": lambda x: np.linspace(0, x, 4),
    "copysign": lambda x: np.copysign(x, -1),
    "nan_to_num": np.nan_to_num,
    "gradient": lambda x: np.gradient(x),
    "reciprocal": np.reciprocal,
    "sum": lambda x: np.sum(x, axis=0),
    "mean": np.mean,
    "concatenate": lambda x: np.concatenate([x, x]),
    "diff": np.diff,
    "where": lambda x: np.where(x > 3, x, 0),
    "array_split": lambda x: np.array_split(x, 2)[1],
    "degrees": np.degrees,
    "sort": np.sort,
    "dot": lambda x: np.dot(x, x),
    "divmod": lambda x: np.divmod(x, 3)[0],
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int8])
def test_numpy_makes_of_integer_tensors_what_it_makes_of_integers(name, dtype):
    x = np.array([7, 2, 9, 4], dtype)
    with np.errstate(all="ignore"):
        expected, found = WHOLE[name](x), WHOLE[name](Tensor(x))
    assert isinstance(found, Tensor) and found.dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)


def test_the_square_of_truth_values_is_numpys():
    x = np.array([True, False])
    np.testing.assert_array_equal(np.square(Tensor(x)).numpy(), np.square(x), strict=True)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_the_op_of_the_norm_cuts_off_no_fraction(dtype):
    np.testing.assert_allclose(
        ops.l2_norm(Tensor(np.ones(2, dtype))).numpy(), np.sqrt(2), rtol=1e-3
    )


def test_integers_beside_floating_tensors_are_differentiated():
    x, i = Tensor([1.0, 2.0], requires_grad=True), Tensor(np.array([3, 4]))
    np.concatenate([i, x * i]).sum().backward()
    assert x.grad.numpy().tolist() == [3, 4]
    assert np.full_like(i, x[0], dtype=np.float32).requires_grad


INF = (
    np.array([-1.0, 0, 2, -1, 0, 2, -1]),
    np.array([np.inf, -np.inf, np.inf, np.nan, np.nan, 1, 1]),
)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (F.relu, [0, 0, np.inf, 0, 0, 1, 0]),
        (lambda x: np.maximum(x, -0.5), [0, -np.inf, np.inf, 0, np.nan, 1, 0]),
        (lambda x: np.minimum(0.5, x), [np.inf, -np.inf, 0, np.nan, np.nan, 0, 1]),
        (lambda x: np.clip(x, -0.5, 1), [0, -np.inf, 0, 0, np.nan, 0, 0]),
        (lambda x: x**0, [0] * 7),
        (lambda x: x // 0.3, [0] * 7),
    ],
)
def test_what_was_not_chosen_gets_zero_whatever_the_cotangent(f, expected):
    """As PyTorch: 0 times infinity is NaN, so choosing is not multiplying."""
    x = Tensor(INF[0], requires_grad=True)
    for create_graph in (False, True):
        np.testing.assert_array_equal(
            ta.grad(f(x), x, INF[1], create_graph=create_graph)[0].numpy(), expected
        )


def test_square_root_of_relu():
    for f in (
        lambda x: np.sqrt(F.relu(x)),
        lambda x: np.sqrt(np.maximum(x, 0)),
        lambda x: np.sqrt(np.clip(x, 0, None)),
    ):
        for value in ([-1.0, 4.0], -1.0):
            x = Tensor(value, requires_grad=True)
            with np.errstate(all="ignore"):
                f(x).sum().backward()
            assert np.array_equal(x.grad.numpy(), [0, 0.25] if x.ndim else 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_slope_of_a_power_changes_with_its_exponent_at_zero_however_small_the_base(dtype):
    """d/db of b a^(b - 1) at b = 0 is 1 / a, for each a whose inverse is a number."""
    a = Tensor(np.finfo(dtype).tiny * np.array([1, 2, 10, 99, 1e10], dtype), requires_grad=True)
    b = Tensor(np.zeros(5, dtype), requires_grad=True)
    (slope,) = ta.grad((a**b).sum(), [a], create_graph=True)
    (mixed,) = ta.grad(slope.sum(), [b])
    np.testing.assert_allclose(mixed.numpy(), 1 / a.numpy(), rtol=1e-5)


@pytest.mark.parametrize("offset", [0, 1e3, -1e5, 1e7])
def test_log_softmax_and_cross_entropy_far_from_zero(offset):
    """The logarithm of the row sum must not be added to a large maximum: float32 has seven digits."""
    base = np.array([[0.0, 1, 3], [2, 2, -4]], np.float32)
    x, far = Tensor(base, requires_grad=True), Tensor(base + np.float32(offset), requires_grad=True)
    np.testing.assert_allclose(F.log_softmax(far).numpy(), F.log_softmax(x).numpy(), rtol=1e-6)
    weight = Tensor([1.0, 2.0, 3.0])
    for settings in (
        {},
        {"label_smoothing": 0.3},
        {"weight": weight},
        {"label_smoothing": 0.3, "weight": weight},
    ):
        a, b = (F.cross_entropy(t, np.array([0, 2]), **settings) for t in (far, x))
        assert a.item() == pytest.approx(b.item(), rel=1e-6)
        (da,), (db,) = ta.grad(a, far), ta.grad(b, x)
        np.testing.assert_allclose(da.numpy(), db.numpy(), rtol=1e-5, atol=1e-7)


def test_floor_division_has_the_derivative_zero():
    x = Tensor([1.0, 5.0], requires_grad=True)
    assert ta.grad((x // 2).sum(), x)[0].numpy().tolist() == [0, 0]
    assert ta.grad((7 // x).sum(), x)[0].numpy().tolist() == [0, 0]


@pytest.mark.parametrize("f", [np.tril, np.triu])
def test_a_triangle_of_a_vector_repeats_it_as_rows(f):
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True, dtype=np.float64)
    assert np.array_equal(f(x).numpy(), f(x.numpy()))
    assert ta.gradcheck(f, [x]) and ta.gradgradcheck(lambda t: f(t) ** 2, [x])


def test_a_rule_may_return_a_numpy_number_when_it_is_recorded():
    step = ta.op(lambda x: np.floor(x))
    step.vjp(lambda g, y, x: np.float32(0))
    x = Tensor(1.5, requires_grad=True)
    assert isinstance(ta.grad(step(x), x, create_graph=True)[0], Tensor)
    (slope,) = ta.grad(step(x) * x, x, create_graph=True)
    assert slope.item() == 1
    assert ta.grad(slope, x)[0].item() == 0


def layouts(x):
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    strided = wide[(*(slice(None, None, 2) for _ in x.shape), ...)]
    strided[...] = x
    return {
        "fortran": np.asarray(x, order="F"),
        "backwards": x[::-1].copy()[::-1] if x.ndim else x,
        "strided": strided,
        "big-endian": x.astype(x.dtype.newbyteorder(">")),
    }


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 3), (1, 3), (0, 3), (2, 3, 4)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of means of nothing
@pytest.mark.parametrize(
    "f",
    [
        np.exp,
        np.sum,
        np.cumsum,
        F.softmax,
        F.log_softmax,
        F.gelu,
        F.relu,
        np.ravel,
        np.std,
        np.transpose,
        ops.sigmoid,
    ],
    ids=lambda f: f.__name__,
)
def test_memory_layout_changes_nothing(f, shape):
    x = np.asarray(np.random.default_rng(3).standard_normal(shape))
    results = []
    for array in (x, *layouts(x).values()):
        t = Tensor._of(array, True)
        y = f(t)
        y.backward(np.linspace(1, 2, y.size).reshape(y.shape))
        results.append((y.numpy(), t.grad.numpy()))
        assert t.grad.shape == shape
    for y, g in results[1:]:
        np.testing.assert_allclose(y, results[0][0], rtol=1e-13)
        np.testing.assert_allclose(g, results[0][1], rtol=1e-13)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "?"])
@pytest.mark.parametrize("n", [3, 100])
def test_logaddexp_of_many_numbers_is_numpys(n, dtype):
    rng = np.random.default_rng(0)
    values = np.array(
        [0, 1, -1, 88, -88, 1e-4, 6e4, -6e4, np.inf, -np.inf, np.nan]
        if dtype[0] == "f"
        else [0, 1, -1, 88]
    )
    a, b = (
        np.concatenate([values.astype(dtype), (9 * rng.standard_normal(n * 7)).astype(dtype)])
        for _ in range(2)
    )
    b = rng.permutation(b)
    for x, y in ((a, b), (a[:, None], b[:7]), (a, 0), (0.5, a), (a[np.isfinite(a)], b[:1])):
        for _ in range(2):
            with np.errstate(
                all="raise", under="ignore", invalid="ignore"
            ):  # NumPy itself calls NaN invalid here
                found, expected = ops.logaddexp(x, y), np.logaddexp(x, y)
            np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(found.dtype).eps)
            assert found.dtype == expected.dtype
            x, y = y, x


@pytest.mark.parametrize("f", [F.layer_norm, F.rms_norm])
def test_norms_in_half_precision_of_numbers_whose_squares_overflow(f):
    rng = np.random.default_rng(0)
    x, g = (
        (400 * rng.standard_normal((3, 64))).astype("f2"),
        rng.standard_normal((3, 64)).astype("f2"),
    )
    results = []
    for dtype in ("f2", "f8"):
        t = Tensor(x.astype(dtype), requires_grad=True)
        with np.errstate(over="raise"):
            y = f(t, 64)
            (slope,) = ta.grad(y, t, g.astype(dtype))
        assert y.dtype == slope.dtype == dtype
        results.append((y.numpy(), slope.numpy()))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-3 * np.abs(b).max())


@pytest.mark.parametrize("f, base", [(np.logaddexp, np.e), (np.logaddexp2, 2)])
@pytest.mark.parametrize("size", [1, 50, 1e4, 2e7])
def test_the_shares_of_a_sum_of_powers_are_exact_however_large_the_numbers(f, base, size):
    """From y, which is rounded, they would be e^(a - y): 1 and 1 for two equal numbers of 2e7, and not a half each."""
    a, b = (
        Tensor(np.array(x, np.float32), requires_grad=True)
        for x in ([size, -size, size], [size, -size, size - 4])
    )
    y = f(a, b)
    np.testing.assert_allclose(
        y.numpy(), f(a.numpy().astype("f8"), b.numpy().astype("f8")), rtol=2e-7
    )
    shares = 1 / (1 + np.array([1, 1, float(base) ** -4]))
    for create_graph in (False, True):
        da, db = ta.grad(y.sum(), [a, b], retain_graph=True, create_graph=create_graph)
        np.testing.assert_allclose(da.numpy(), shares, rtol=3e-7)
        np.testing.assert_allclose(db.numpy(), 1 - shares, rtol=6e-7)


@pytest.mark.parametrize("f, base", [(np.logaddexp, np.e), (np.logaddexp2, 2)])
def test_both_shares_of_a_sum_of_powers_keep_their_digits_and_their_slopes_in_the_tails(f, base):
    """The slope of a share near 1, share (1 - share), would be 0 from a difference of 17 on in float32, and of 37 in float64."""
    gap = np.array([-60, -37.3, -9, 0, 8, 17, 40, 60.1])
    for dtype, rtol in ((np.float32, 1e-6), (np.float64, 2e-15)):
        a, b = (Tensor(x.astype(dtype), requires_grad=True) for x in (gap, 0 * gap))
        power = np.longdouble(base if base == 2 else np.exp(np.longdouble(1))) ** -np.abs(
            a.numpy().astype(np.longdouble)
        )
        share = np.where(gap > 0, 1, power) / (1 + power)
        slope = (np.log(base) * power / (1 + power) ** 2).astype(float)
        np.testing.assert_allclose(
            ta.grad(f(a, b).sum(), a)[0].numpy(), share.astype(float), rtol=rtol
        )
        da, db = ta.grad(f(a, b).sum(), [a, b], create_graph=True)
        for y, signs in ((da, (1, -1)), (db, (-1, 1))):
            for found, sign in zip(ta.grad(y.sum(), [a, b], retain_graph=True), signs, strict=True):
                np.testing.assert_allclose(found.numpy(), sign * slope, rtol=rtol)


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), np.array([3, -1, 3, 0])),
        (slice(None), slice(None), np.array([[1, 1, -4], [0, 2, 2]], "i1")),
        (slice(None), np.array([[2, 2], [0, 1]], "u8"), slice(None)),
        (np.array([1, 1, 1]), slice(None)),
        (slice(None), np.array([], int)),
        (slice(None), np.int64(2)),
        (slice(None), np.array(2)),
        (np.array([1, 0]), slice(None), np.array([1, 1])),
        (slice(1, None), np.array([1, 1])),
        (slice(None), np.array([True, False, True, True, False])),
    ],
)
def test_columns_by_number_and_their_adjoint(index):
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((19, 5, 23)), requires_grad=True)
    y = x[index]
    np.testing.assert_array_equal(y.numpy(), x.numpy()[index])
    assert not np.shares_memory(y.numpy(), x.numpy()) or isinstance(index[1], np.integer)
    g, expected = rng.standard_normal(y.shape), np.zeros(x.shape)
    np.add.at(expected, index, g)
    for create_graph in (False, True):
        (dx,) = ta.grad(x[index], x, g, create_graph=create_graph)
        np.testing.assert_allclose(dx.numpy(), expected, rtol=1e-12, atol=1e-12)
    v = Tensor(g, requires_grad=True)
    np.testing.assert_array_equal(
        ta.grad(ops.scatter(v, index=index, shape=x.shape), v, expected)[0].numpy(), expected[index]
    )


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("dtype", ["i8", "u1", "i2"])
def test_take_along_axis_of_many(axis, dtype):
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((7, 11, 13)).swapaxes(0, 1), requires_grad=True)
    shape = (400,) if axis is None else [60 if i == axis % 3 else n for i, n in enumerate(x.shape)]
    n = x.size if axis is None else x.shape[axis]
    indices = rng.integers(0 if dtype[0] == "u" else -min(n, 100), min(n, 100), shape).astype(dtype)
    for which in (
        indices,
        indices if axis is None else indices[:, :1] if axis != 1 else indices[:1],
    ):
        y = np.take_along_axis(x, which, axis)
        np.testing.assert_array_equal(y.numpy(), np.take_along_axis(x.numpy(), which, axis))
        g = rng.standard_normal(y.shape)
        for create_graph in (False, True):
            (dx,) = ta.grad(np.take_along_axis(x, which, axis), x, g, create_graph=create_graph)
            assert np.isclose(
                np.vdot(dx.numpy(), x.numpy()), np.vdot(g, y.numpy())
            )  # the op is linear
            assert dx.shape == x.shape
    if axis is not None:
        for wrong in (n, -n - 1) if dtype[0] == "i" else (n,):
            indices.flat[-1] = wrong
            with pytest.raises(
                IndexError,
                match=f"index {wrong} is out of bounds for axis {axis % 3} with size {n}",
            ):
                np.take_along_axis(x, indices, axis)
        with pytest.raises(ValueError, match="same number of dimensions"):
            np.take_along_axis(x, indices[None], axis)


@pytest.mark.parametrize("dtype", ["f", "d", "e"])
@pytest.mark.parametrize(
    "shape",
    [
        (700, 3),
        (3, 700),
        (5, 300, 2),
        (60, 5, 9),
        (1, 60, 70),
        (40, 60, 1),
        (4, 7, 9, 5, 2),
        (2, 3, 70, 20),
    ],
)
def test_reductions_over_any_axes_of_large_arrays_are_numpys(shape, dtype):
    """Which go run by run of adjacent axes, rows by a product or a maximum's place, columns by a product or compared with each other."""
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, shape).astype(dtype)  # with ties
    hollow = x.copy()
    (
        hollow[rng.random(shape) < 0.01],
        hollow[rng.random(shape) < 0.01],
        hollow[rng.random(shape) < 0.002],
    ) = np.inf, -np.inf, np.nan
    axes = [
        a for n in range(1, len(shape) + 1) for a in itertools.combinations(range(len(shape)), n)
    ]
    for axis in [
        *axes,
        *(a[::-1] for a in axes),
        *(tuple(i - len(shape) for i in a) for a in axes),
        *range(-len(shape), len(shape)),
        None,
    ]:
        for name, array in itertools.product(
            ("sum", "mean", "max", "min", "var", "std"), (x, hollow, x.T)
        ):
            if array.ndim > 3 and array is not x:
                continue
            wide = array.astype("d")
            for keepdims in (False, True):
                with np.errstate(invalid="ignore"):
                    expected = getattr(wide, name)(axis=axis, keepdims=keepdims)
                    found = getattr(Tensor(array), name)(axis=axis, keepdims=keepdims)
                    dtype_of = getattr(array, name)(axis=axis).dtype
                if (
                    np.isfinite(expected).all() or dtype != "e"
                ):  # float16 is added up in float32 and rounded
                    assert found.shape == expected.shape and found.dtype == dtype_of
                    np.testing.assert_allclose(
                        found.numpy(),
                        expected,
                        rtol={"e": 2e-3, "f": 2e-5}.get(dtype, 1e-12),
                        atol=1e-4,
                    )
    for axis in (len(shape), -len(shape) - 1, (0, 0), (0, -len(shape)), (0, len(shape))):
        for name in ("sum", "mean", "max", "var"):
            with pytest.raises((IndexError, ValueError)):
                getattr(Tensor(x), name)(axis=axis)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 17, 64, 128, 129])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8"])
def test_sums_and_extremes_of_short_rows_are_numpys(n, dtype):
    x = (9 * np.random.default_rng(0).standard_normal((4, 2100 // n + 1, n))).astype(dtype)
    special = x.copy()
    if dtype[0] == "f":
        special[0, :5, 0] = np.nan, np.inf, -np.inf, 0, -0.0
        special[1, :5] = np.array([np.nan, np.inf, -np.inf, 0, -0.0])[:, None]
    eps = np.finfo(dtype).eps if dtype[0] == "f" else 0
    for a in (x, special, x[:, ::-1], x.swapaxes(0, 1), x[0]):
        for axis, keepdims in ((-1, False), (a.ndim - 1, True), ((-1,), True), (0, False)):
            for f, g in ((ops.max, np.max), (ops.min, np.min)):
                np.testing.assert_array_equal(
                    f(a, axis=axis, keepdims=keepdims), g(a, axis=axis, keepdims=keepdims)
                )
            size = np.abs(a).sum(axis=axis, keepdims=keepdims, dtype="f8")
            for f, g in ((ops.sum, np.sum), (ops.mean, np.mean)):
                with np.errstate(invalid="ignore"):
                    found, expected = (
                        f(a, axis=axis, keepdims=keepdims),
                        g(a, axis=axis, keepdims=keepdims),
                    )
                    close = np.abs(found.astype("f8") - expected) <= 4 * eps * size
                assert found.dtype == expected.dtype and found.shape == expected.shape
                assert (close | (found == expected) | np.isnan(found) & np.isnan(expected)).all()


@pytest.mark.parametrize("n", [2, 16, 128, 129])
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_what_was_broadcast_along_short_rows_is_summed_back(n, dtype):
    rng = np.random.default_rng(0)
    g, column = (
        rng.standard_normal(shape).astype(dtype)
        for shape in ((30, 2100 // n, n), (30, 2100 // n, 1))
    )
    for c in (column, column[0], column[:, :1], column.reshape(-1)[:1]):
        t = Tensor(c, requires_grad=True)
        (dx,) = ta.grad(np.ones(g.shape, dtype) * t, t, g)
        wide = np.broadcast_to(c, g.shape)
        expected = g.sum(
            axis=tuple(
                i for i in range(3) if i >= c.ndim or wide.strides[i] == 0 and g.shape[i] > 1
            ),
            dtype="f8",
        )
        np.testing.assert_allclose(
            dx.numpy().reshape(expected.shape),
            expected,
            rtol=0,
            atol=n * 30 * np.finfo(dtype).eps * 30,
        )
        assert dx.dtype == dtype and dx.shape == c.shape


WAVE = np.cos(np.arange(9000)).reshape(3000, 3)
HALVES = {  # a function, and numbers at which float16 itself loses the result or its slope
    "sum": (lambda x: np.sum(x, axis=0), np.ones((3000, 2))),
    "var": (lambda x: np.var(x, axis=0), WAVE / 10 + 0.25),
    "std": (lambda x: np.std(x, axis=0), WAVE / 10 + 0.25),
    "cumsum": (lambda x: np.cumsum(x, axis=0), np.ones((3000, 2))),
    "einsum": (lambda x: np.einsum("ij->j", x), np.ones((3000, 2))),
    "norm": (lambda x: np.linalg.norm(x, axis=1), 1e4 * WAVE[:9] + 1),
    "small norm": (lambda x: np.linalg.norm(x, axis=1), 1e-5 * WAVE[:9]),
    "Frobenius": (np.linalg.norm, 1e3 * WAVE[:9]),
    "broadcast": (lambda x: x + np.zeros((5000, 3), "f2"), WAVE[:1]),
    "sigmoid": (F.sigmoid, np.linspace(-12, -11.1, 99)),
    "logaddexp": (lambda x: np.logaddexp(x, 0), np.linspace(-12, -11.1, 99)),
    "logaddexp2": (lambda x: np.logaddexp2(0, x), np.linspace(-17, -16, 99)),
    "silu": (F.silu, np.linspace(-12, -11.1, 99)),
    "gelu": (F.gelu, np.linspace(-5, -3, 99)),
    "tanh gelu": (
        lambda x: F.gelu(x, approximate="tanh"),
        np.array([-3e4, -300, -4, -1, 0, 2, 50, 6e4]),
    ),
    "softmax": (lambda x: F.softmax(x, axis=0), WAVE),
    "long softmax": (F.softmax, WAVE.reshape(2, -1)),
    "log_softmax": (lambda x: F.log_softmax(x, axis=0), WAVE),
    "logsumexp": (lambda x: F.logsumexp(x, axis=0), WAVE),
    "layer_norm": (lambda x: F.layer_norm(x, 3, np.ones(3, "f2")), WAVE),
    "soft": (lambda x: F.cross_entropy(x, np.full((3, 3000), 0.25, "f2")), WAVE.T),
    "weights": (
        lambda x: F.scaled_dot_product_attention(x, x, x, need_weights=True)[1][:3],
        WAVE / 10,
    ),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("name", HALVES)
def test_half_precision_is_rounded_once_and_not_at_every_step(name):
    """As PyTorch: NumPy adds up the rows of a float16 array in float16, where 2,048 + 1 is 2,048."""
    f, x = HALVES[name]
    x, results = x.astype("f2"), []
    for dtype in ("f2", "f8"):
        t = Tensor(x.astype(dtype), requires_grad=True)
        y = f(t)
        (slope,) = ta.grad(
            y, t, (1 + np.cos(np.arange(y.size)) / 2).reshape(y.shape).astype("f2").astype(y.dtype)
        )
        assert y.dtype == slope.dtype == dtype
        results.append((y.numpy(), slope.numpy()))
    for found, exact in zip(*results, strict=True):
        smallest_steps = 1e-7
        np.testing.assert_allclose(
            found,
            exact.astype("f2"),
            rtol=0.01,
            atol=max(2e-3 * np.abs(exact).max(), smallest_steps),
        )


@pytest.mark.parametrize(
    "f", [ops.exp, ops.tanh, ops.sigmoid, ops.erf, ops.sqrt], ids=lambda f: f.__name__
)
def test_an_op_of_a_python_number_is_that_of_an_array(f):
    assert abs(f(0.5) - f(np.array(0.5))) < 1e-15


@pytest.mark.parametrize(
    "f, x",
    [
        (lambda a, b: a / b, [1e4, 10]),
        (np.hypot, [900, 1000]),
        (lambda a, b: np.linalg.norm(np.stack([a, b]), axis=(0, 1)), [900, 1000]),
        (
            lambda a, b: np.std(
                np.concatenate([np.broadcast_to(a, 5000), np.broadcast_to(b, 5000)])
            ),
            [900, 1000],
        ),
    ],
    ids=["divide", "hypot", "norm", "std"],
)
def test_slopes_in_half_precision_do_not_overflow_on_the_way(f, x):
    """g a / y is finite where g a is not, as PyTorch's g (a / y)."""
    slopes = []
    for dtype in ("f2", "f8"):
        leaves = [Tensor(np.array([n], dtype), requires_grad=True) for n in x]
        y = f(*leaves)
        slopes.append([d.item() for d in ta.grad(y, leaves, np.full(y.shape, 100, dtype))])
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=3e-3)


@pytest.mark.parametrize(
    "g, a, b", [(100, 1e4, 10), (1e-3, 0.1, 1e-3), (0, 1, 1e-4), (-2, 0.5, 200)]
)
@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_the_slope_of_a_divisor_is_finite_where_either_factor_alone_is_not(g, a, b, dtype):
    """-g / b y: a small divisor makes y / b infinite, and a zero gradient, as np.where gives it, would make NaN of that."""
    if dtype == "f4":  # the same at the ends of float32
        g, a, b = g * abs(g) ** 6, a**7, b**7
    b = Tensor(np.array([b], dtype), requires_grad=True)
    (np.array([a], dtype) / b).backward(np.array([g], dtype))
    exact = -float(np.array(g, dtype)) * float(np.array(a, dtype)) / float(b.item()) ** 2
    np.testing.assert_allclose(b.grad.numpy(), [exact], rtol=5e-3)


@pytest.mark.parametrize(
    "f",
    [np.mean, np.std, lambda x: F.mse_loss(x, np.zeros(x.shape, x.dtype))],
    ids=["mean", "std", "mse_loss"],
)
def test_half_precision_divides_by_more_than_its_largest_number(f):
    """The slopes of a mean over 70,000 were 0, since 70,000 is infinite in float16."""
    x, slopes = np.tile(np.array([0.5, -1, 2, 1], "f2"), 17_500), []
    for dtype in ("f2", "f8"):
        t = Tensor(x.astype(dtype), requires_grad=True)
        f(t).backward(np.array(100, dtype))
        slopes.append(t.grad.numpy())
    assert slopes[0].dtype == "f2"
    np.testing.assert_allclose(*slopes, rtol=5e-3)


ELEMENTWISE = ops_in(ops.elementwise)
EDGES = [-np.inf, -2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, 3, np.inf, np.nan]


def slopes_at(f, arrays):
    """The value, the gradients, also recorded, and the second-order ones, each of all elements at once."""
    leaves = [Tensor(x, requires_grad=x.dtype != bool) for x in arrays]
    wanted, options = [x for x in leaves if x.requires_grad], {"allow_unused": True}
    y = f(*leaves)
    twos = np.full(y.shape, 2.0)
    first = ta.grad(y, wanted, twos, retain_graph=True, **options)
    again = ta.grad(y, wanted, twos, create_graph=True, **options)
    total = sum(((g * g).sum() for g in again if g is not None), Tensor(0.0))
    none = [None] * len(wanted)
    second = ta.grad(total, wanted, **options) if total.requires_grad else none
    return [np.zeros(y.shape) if g is None else g.numpy() for g in (y, *first, *again, *second)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_no_element_is_told_by_what_stands_beside_it(name):
    """A special case for one element (0 to a power, a tie, infinity) is none for those beside it."""
    one = ELEMENTWISE[name]
    inputs = list(inspect.signature(one.forward).parameters)[: len(one.vjps)]
    edges = EDGES if len(inputs) < 3 else EDGES[2::2]
    grid = np.array(list(itertools.product(edges, repeat=len(inputs)))).T
    arrays = [x > 0 if name == "condition" else x for name, x in zip(inputs, grid)]
    for ways in (contextlib.nullcontext, ta.plain):
        with ways():
            together = slopes_at(one, arrays)
            alone = [slopes_at(one, [x[i : i + 1] for x in arrays]) for i in range(grid.shape[1])]
        for place, (x, parts) in enumerate(zip(together, zip(*alone), strict=True)):
            np.testing.assert_allclose(
                x, np.concatenate(parts), rtol=1e-12, atol=1e-300, err_msg=f"{place}"
            )


NAMES = {"absolute": "abs", "negative": "neg", "clip": "clamp", "power": "pow"}
WITHOUT = {"cbrt": "PyTorch has none", "floor_divide": "PyTorch's has no derivative"}
APART = {
    "copysign": "infinity times 0",
    "absolute": "the slope of a NaN",
    "power": "infinity to the 0",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(ELEMENTWISE.keys() - WITHOUT.keys()))
def test_slopes_at_ties_kinks_and_edges_are_pytorchs(name):
    one, theirs = ELEMENTWISE[name], getattr(torch, NAMES.get(name, name))
    inputs = list(inspect.signature(one.forward).parameters)[: len(one.vjps)]
    edges = EDGES[1:-2] if name in APART else EDGES
    grid = np.array(list(itertools.product(edges, repeat=len(inputs)))).T
    arrays = [x > 0 if name == "condition" else x for name, x in zip(inputs, grid)]
    leaves = [torch.tensor(x, requires_grad=x.dtype != bool) for x in arrays]
    y = theirs(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    found = torch.autograd.grad(y, wanted, torch.full_like(y, 2), allow_unused=True)
    expected = [np.zeros(y.shape) if g is None else g.numpy() for g in found]
    for ways in (contextlib.nullcontext, ta.plain):
        with ways():
            mine = slopes_at(one, arrays)
        for place in range(len(wanted)):  # the gradients, and again recorded
            for a in (mine[1 + place], mine[1 + place + len(wanted)]):
                np.testing.assert_allclose(a, expected[place], rtol=1e-9, err_msg=f"{place}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, one in ELEMENTWISE.items() if len(one.vjps) == 2])
def test_an_operand_that_is_a_number_is_an_array_of_it(name):
    one, x = ELEMENTWISE[name], np.array(EDGES[1:-2])
    for n in (*EDGES[1:-2], 3.0, 1 / 3):
        repeated = np.full(x.shape, float(n))
        pairs = [
            (lambda x, n=n: one(x, n), lambda x, n=repeated: one(x, n)),
            (lambda x, n=n: one(n, x), lambda x, n=repeated: one(n, x)),
        ]
        for ways, pair in itertools.product((contextlib.nullcontext, ta.plain), pairs):
            with ways():
                found = [slopes_at(f, [x]) for f in pair]
            for place, (a, b) in enumerate(zip(*found, strict=True)):
                np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=f"{n}, {place}")


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (0, 2, 2, 2)])
@pytest.mark.parametrize("name", ops_in(ops.linalg))
def test_the_slopes_of_what_is_made_of_empty_matrices_are_empty(name, shape):
    one = ops_in(ops.linalg)[name]
    arrays = [np.zeros(shape)] * len(one.vjps)
    try:
        one.forward(*arrays)
    except ValueError:  # NumPy makes nothing of them
        return
    for ways in (contextlib.nullcontext, ta.plain):
        with ways():
            leaves = [Tensor(x, requires_grad=True) for x in arrays]
            y = one(*leaves)
            found = [*ta.grad(y, leaves, np.zeros(y.shape), create_graph=True)]
            total = sum((g * g).sum() for g in found)
            if total.requires_grad:  # not that of a triangle
                found += ta.grad(total, leaves, allow_unused=True)
            for g in found:
                assert g is None or (g.shape == shape and not g.numpy().any())
