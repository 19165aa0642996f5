"""NumPy's functions at their edges: NaN and infinity, zeros, empty arrays, axes that are not there, and calls that NumPy refuses."""

import math
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor, ops
from tinygrad_attn.check import gradcheck, gradgradcheck

NAN, INF = math.nan, math.inf
A = np.arange(6.0).reshape(2, 3)
CUBE = np.arange(24.0).reshape(2, 3, 4)


def tensor(x):
    return Tensor(
        np.array(x, np.float64) if not isinstance(x, np.ndarray) else x, requires_grad=True
    )


def gradients(f, *inputs):
    """The slopes of the sum of f by each input."""
    inputs = [tensor(x) for x in inputs]
    return [g.numpy() for g in ta.grad(f(*inputs).sum(), inputs)]


# ---- values


@pytest.mark.parametrize(
    "x", [np.array([True, False]), [True, False], [1.0, 0.0], np.array([3, 0], np.uint8)]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_heaviside_of_what_is_no_tensor_is_numpys(x, dtype):
    h = np.array([0.5, 0.25], dtype)
    y, expected = np.heaviside(x, Tensor(h)), np.heaviside(x, h)
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("f", [np.sort, lambda t, **k: np.partition(t, 1, **k)])
def test_an_order_of_fields_is_refused_as_by_numpy(f):
    assert f(tensor([3.0, 1.0]), order=None).tolist() == [1.0, 3.0]
    for order in ("F", "C", ["x"]):
        with pytest.raises(
            ValueError, match="order=.* names the fields of a record.* Leave it out"
        ):
            f(tensor([3.0, 1.0]), order=order)


VALUES = [
    # Medians and quantiles: NaN spreads, an infinite middle is infinite, single numbers and empty arrays are taken.
    (np.median, [1, NAN, 3]),
    (lambda x: np.median(x, axis=1), [[1, NAN, 3], [1, 2, 3]]),
    (lambda x: np.quantile(x, [0.1, 0.5], axis=1), [[1, NAN, 3], [1, 2, 3]]),
    (lambda x: np.quantile(x, [[0.1, 0.5]], axis=1, keepdims=True), [[1, NAN, 3], [1, 2, 3]]),
    (np.median, [1, INF, INF]),
    (np.median, [-INF, 1, 2, INF]),
    (np.median, 3.0),
    (lambda x: np.quantile(x, [0.5, 0.2]), 3.0),
    (lambda x: np.median(x, axis=0), np.zeros((2, 0))),
    (lambda x: np.quantile(x, 1), [1, 2, 5]),
    (lambda x: np.percentile(x, [0, 30, 100]), [1, 2, 5]),
    (lambda x: np.median(x, axis=np.int64(-1), keepdims=True), A),
    # What is infinite, or NaN throughout.
    (lambda x: np.nanmax(x, axis=1), [[NAN, NAN], [1, NAN], [-INF, NAN]]),
    (lambda x: np.nanmin(x, axis=1, keepdims=True), [[NAN, NAN], [1, NAN], [INF, NAN]]),
    (np.nanmax, [NAN, NAN]),
    (lambda x: np.nansum(x, axis=1), [[NAN, NAN], [1, NAN]]),
    (np.angle, [0.0, -0.0, 1, -1, INF, -INF, NAN]),
    (np.imag, [INF, NAN, 1]),
    (lambda x: np.modf(x)[0], [INF, -INF, 1.5, -2.5]),
    (lambda x: np.modf(x)[1], [INF, -INF, 1.5, -2.5]),
    (lambda x: np.linalg.norm(x, -1), [0, 2, 3]),
    (lambda x: np.linalg.norm(x, 0.5), [0, 2, 3]),
    # NumPy's own integers.
    (lambda x: np.linalg.norm(x, axis=np.int64(1)), A),
    (lambda x: np.broadcast_to(x, np.int64(3)), 2.0),
    (lambda x: np.tensordot(x, x, (np.int64(1), np.int64(1))), A),
    (lambda x: np.linalg.vecdot(x, x[:, 0], axis=0), A),
    (lambda x: np.diff(x, axis=np.int64(0)), A),
    # Arguments that NumPy knows.
    (lambda x: np.pad(x, ((1, 2), (0, 1)), constant_values=((1, 2), (3, 4))), A),
    (lambda x: np.pad(x, 1, constant_values=(5, 6)), A),
    *[
        (lambda x, mode=mode: np.pad(x, 1, mode), 2.0)
        for mode in ("constant", "edge", "reflect", "symmetric", "wrap")
    ],
    (lambda x: np.pad(x, 1, constant_values=(5, 6)), 2.0),
    (lambda x: np.average(x, axis=1, weights=[1, 2, 3]), A),
    (lambda x: np.convolve(2.0, x), [1, 2, 3]),
    (lambda x: np.diff(x, n=0), A),
    (lambda x: np.rollaxis(x, -1, -2), CUBE),
    (lambda x: np.take(x, [True, False, True]), [5, 6, 7]),  # numbers to np.take, and no mask
    (lambda x: np.take(x, np.array(True), axis=1), A),
    (lambda x: np.linspace(x, 1.5, 4, dtype=int), -1.5),  # rounded down, as -1 for -0.5
    (lambda x: np.einsum("...i->i", x), [1, 2, 3]),
    (lambda x: np.einsum("ii,i->i", np.full((1, 1), 2.0), x), [1, 2, 3]),
    (lambda x: np.copysign(2, x), [-1, 3]),
    (lambda x: np.diff(x, n=0, prepend=0.0), [1, 2]),
    (lambda x: np.broadcast_arrays(x, [[1], [2]])[0], [1, 2, 3]),
    (lambda x: np.broadcast_arrays(2.0, x)[1], [1, 2, 3]),
    (lambda x: np.linalg.matrix_power(x, 0), [[INF, 1], [NAN, 2]]),
    (lambda x: np.linalg.norm(x, 0), [NAN, 0, 2]),
    (lambda x: np.float_power(x, 30), [200, 3]),  # in float64, whatever the dtype of x
    (lambda x: np.float_power(200, x), [30, 2]),
]


@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:divide by zero")
@pytest.mark.parametrize("f, x", VALUES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_are_numpys(f, x, dtype):
    x = np.array(x, dtype)
    y, expected = f(Tensor(x, requires_grad=True)), f(x)
    assert isinstance(y, Tensor) and y.dtype in (dtype, expected.dtype)  # weights of float64 count
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    assert y.shape == np.shape(expected)


@pytest.mark.parametrize(
    "shape, ord, axis",
    [
        ((0, 3), INF, None),
        ((3, 0), 1, None),
        ((2, 0), 2, None),
        ((0,), INF, 0),
        ((2, 0, 0), INF, (1, 2)),
    ],
)
def test_the_norm_of_nothing_is_zero(shape, ord, axis):
    y = np.linalg.norm(tensor(np.zeros(shape)), ord, axis)
    np.testing.assert_array_equal(y.numpy(), np.zeros(2 if len(shape) == 3 else ()))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_the_median_of_nothing_is_nan():
    with pytest.warns(RuntimeWarning, match="Mean of empty slice"):
        y = np.median(tensor(np.zeros((2, 0))), axis=1)
    assert y.shape == (2,) and np.isnan(y.numpy()).all()


@pytest.mark.parametrize("f", [np.rint, np.fabs])
@pytest.mark.parametrize("x", [[1, -2], [True, False]])
def test_whole_numbers_become_floats_where_numpy_makes_them_so(f, x):
    x = np.array(x)
    y = f(Tensor(x)).numpy()
    assert y.dtype == f(x).dtype
    np.testing.assert_array_equal(y, f(x))


def test_averages_over_several_axes_with_a_weight_for_each_place():
    """As NumPy 2.1; 2.0 takes weights for one axis or all."""
    t, w = tensor(CUBE), np.arange(1.0, 7)
    expected = np.einsum("ijk,ij->k", CUBE, w.reshape(2, 3)) / 21
    np.testing.assert_allclose(
        np.average(t, axis=(0, 1), weights=w.reshape(2, 3)).numpy(), expected
    )
    np.testing.assert_allclose(
        np.average(t, axis=(1, -3), weights=w.reshape(2, 3).T, keepdims=True).numpy(),
        expected[None, None],
    )


def test_pad_takes_a_dictionary_of_axes():
    t = tensor(A)
    np.testing.assert_array_equal(np.pad(t, {0: (1, 2)}).numpy(), np.pad(A, ((1, 2), (0, 0))))
    np.testing.assert_array_equal(
        np.pad(t, {-1: 1}, "edge").numpy(), np.pad(A, ((0, 0), (1, 1)), "edge")
    )


def test_select_keeps_float32():
    t = Tensor(np.ones(3, np.float32), requires_grad=True)
    mask = np.array([True, False, True])
    for y in (
        np.select([mask], [t]),
        np.select([mask, ~mask], [t, 2.5]),
        np.select([mask, ~mask], [2.5, t]),
    ):
        assert y.dtype == np.float32


def test_sigmoid_of_whole_numbers():
    for dtype in (np.uint8, np.int8, np.int64, bool):
        np.testing.assert_allclose(
            Tensor(np.array([0, 1], dtype)).sigmoid().numpy(), [0.5, 1 / (1 + math.exp(-1))]
        )


def test_relu_of_a_single_number_has_memory_of_its_own():
    x = np.array(2.0)
    y = ops.relu(x)
    x[...] = 5.0
    assert y == 2.0


def test_one_number_shown_many_times_cannot_be_written_to():
    assert not ops.broadcast_to(np.array(2.0), shape=(3,)).flags.writeable


def test_a_mean_in_half_precision_does_not_overflow_on_the_way():
    x = np.full(40_000, 2, np.float16)
    assert Tensor(x).mean().item() == x.mean() == 2
    assert np.average(Tensor(x)).item() == np.average(x) == 2
    t = Tensor(np.full((80_000, 2), 2, np.float16), requires_grad=True)
    np.average(t, axis=0).backward(np.array([1.0, 0.5]))
    np.testing.assert_allclose(t.grad.numpy()[0], [1 / 80_000, 0.5 / 80_000], rtol=2e-2)
    assert np.average(t[:8], axis=0, returned=True)[1].tolist() == [8, 8]


def test_what_is_not_nan_is_counted_in_more_than_half_precision():
    x = np.float16([0.5, 1.5, np.nan] * 40_000)  # 80,000 numbers, more than a float16 holds
    t = Tensor(x, requires_grad=True)
    for f, expected in ((np.nanmean, 1), (np.nanvar, 0.25), (np.nanstd, 0.5)):
        assert f(t).item() == expected and f(t).dtype == np.float16
    np.nanmean(t).backward()
    np.testing.assert_allclose(t.grad.numpy()[:3], [1 / 80_000, 1 / 80_000, 0], rtol=2e-2)


@pytest.mark.parametrize("weights", [np.float16, np.float32, np.int64, bool])
@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.float64])
def test_the_weights_of_an_average_are_added_up_in_the_dtype_of_the_result(dtype, weights):
    a, w = (
        (np.cos(np.arange(900)) * 9).astype(dtype),
        (100 + np.arange(900) % 7).astype(weights),
    )  # too many for a float16
    expected = np.average(a, weights=w, returned=True)
    for t, u in ((Tensor(a), w), (a, Tensor(w)), (Tensor(a), Tensor(w))):
        for x, y in zip(np.average(t, weights=u, returned=True), expected, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(np.asarray(x), y, rtol=10 * np.finfo(y.dtype).eps)


@pytest.mark.parametrize("q", [np.array([0.1, 0.5]), np.array(0.3), Tensor(np.array([0.1, 0.5]))])
def test_an_array_of_shares_has_a_dtype_and_plain_numbers_have_none(q):
    x = np.float32([3, 1, 2, 7])
    found = np.quantile(Tensor(x), q)
    assert found.dtype == np.float64 and np.quantile(Tensor(x), [0.1, 0.5]).dtype == np.float32
    np.testing.assert_allclose(
        found.numpy(), np.quantile(x.astype(np.float64), np.asarray(q)), rtol=1e-14
    )


# ---- slopes

SLOPES = [
    # The largest of numbers with a NaN among them is that NaN.
    (lambda x: x.max(), [[NAN, 1, 2, NAN]], [[0.5, 0, 0, 0.5]]),
    (lambda x: x.min(axis=1), [[[NAN, 1], [2, 2], [3, 4]]], [[[1, 0], [0.5, 0.5], [1, 0]]]),
    (np.maximum, [[NAN, 0, 1], [0, NAN, 1]], [[1, 1, 0.5], [1, 1, 0.5]]),
    (np.minimum, [[NAN, 0, 1], [0, NAN, 1]], [[1, 1, 0.5], [1, 1, 0.5]]),
    (np.median, [[1, NAN, 3]], [[0, 1, 0]]),
    (
        lambda x: np.quantile(x, [0.1, 0.5], axis=1),
        [[[1, NAN, 3], [1, 2, 3]]],
        [[[0, 2, 0], [0.8, 1.2, 0]]],
    ),
    (np.median, [[1, INF, INF]], [[0, 1, 0]]),
    (lambda x, q: np.quantile(x, q), [[1, 2, 5], 0.3], [[0.4, 0.6, 0], 2]),
    (lambda x, q: np.percentile(x, q), [[1, 2, 5], 30], [[0.4, 0.6, 0], 0.02]),
    (lambda x: np.nanmax(x, axis=1), [[[NAN, 2, 1], [NAN, 3, 3]]], [[[0, 1, 0], [0, 0.5, 0.5]]]),
    (
        lambda x: np.nanmax(x, axis=1),
        [[[NAN, -INF], [-INF, -INF], [NAN, 2]]],
        [[[0, 1], [0.5, 0.5], [0, 1]]],
    ),
    (lambda x: np.nanmin(x), [[INF, NAN, INF, NAN]], [[0.5, 0, 0.5, 0]]),
    # At 0, and where squares overflow.
    (lambda x: np.linalg.norm(x, 3, axis=1), [[[0, 0], [0, 2]]], [[[0, 0], [0, 1]]]),
    (lambda x: np.linalg.norm(x, 1.5), [[0, 0]], [[0, 0]]),
    (lambda x: np.linalg.norm(x, 0.5), [[1, 0]], [[1, 0]]),
    (lambda x: np.linalg.norm(x, -1), [[1, 0]], [[0, 0]]),
    (
        np.arctan2,
        [[0, 0, 1e-200, 1e200], [0, -1, 1e-200, 1e200]],
        [[0, -1, 5e199, 5e-201], [0, 0, -5e199, -5e-201]],
    ),
    (np.logaddexp, [[INF, 0, -INF, 1000], [0, INF, 0, -1000]], [[1, 0, 0, 1], [0, 1, 1, 0]]),
    (np.angle, [[0, INF, -1]], [[0, 0, 0]]),
    (lambda x: x ** np.array([0, 0, 2], np.uint8), [[2e9, -3, 4]], [[0, 0, 8]]),
    (lambda x: x ** np.array([0.0, 1]), [[1e-310, 3]], [[0, 1]]),
    (lambda x: x ** np.array([0.0, 0, -0.0, 1]), [[INF, -INF, NAN, INF]], [[0, 0, 0, 1]]),
    (lambda x, b: x**b, [[INF, -INF], [0, 1.0]], [[0, 1], [INF, NAN]]),
    (lambda x, b: x**b, [[1e-310, 3], [0, 1.0]], [[0, 1], [math.log(1e-310), 3 * math.log(3)]]),
    (lambda b: np.power([0.0, 0, 0, -0.0], b), [[-1, 0, 2, -2]], [[-INF, 0, 0, -INF]]),
    (np.copysign, [[0, 2, -2, 3], [1, -1, -1, -0.0]], [[0, -1, 1, -1], [0, 0, 0, 0]]),
    (lambda x: np.copysign([2, 3], x), [[1, -1]], [[0, 0]]),
    (np.imag, [[INF, 1]], [[0, 0]]),
    (lambda x: np.modf(x)[0], [[INF, 1.5]], [[0, 1]]),
    (lambda x: x.clip(), [[1, 2]], [[1, 1]]),
    (lambda x: np.clip(x, None, None), [[1, 2]], [[1, 1]]),
    (lambda a, b: np.einsum("ii,i->i", a, b), [[[2.0]], [1, 2, 3]], [[[6]], [2, 2, 2]]),
    (lambda a, b: np.einsum("ii,i->", a, b), [[[2.0]], [1, 2, 3]], [[[6]], [2, 2, 2]]),
    # Products and determinants with zeros.
    (lambda x: x.prod(), [[0, 2, 3]], [[6, 0, 0]]),
    (
        lambda x: x.prod(axis=1),
        [[[0, 2, 0], [0, 2, 3], [1, 2, 3]]],
        [[[0, 0, 0], [6, 0, 0], [6, 3, 2]]],
    ),
    (
        lambda x: x.prod(axis=(0, -1)),
        [[[[0, 2], [3, 4]], [[5, 6], [7, 8]]]],
        [[[[60, 0], [168 * 4 / 3, 56 * 3]], [[0, 0], [96, 84]]]],
    ),
    (np.linalg.det, [[[1, 2], [2, 4]]], [[[4, -2], [-2, 1]]]),
    (
        np.linalg.det,
        [[[[1, 2], [2, 4]], [[1, 2], [3, 4]]]],
        [[[[4, -2], [-2, 1]], [[4, -3], [-2, 1]]]],
    ),
    (np.linalg.det, [np.zeros((3, 3))], [np.zeros((3, 3))]),
    (np.linalg.det, [np.diag([0.0, 2.0, -3.0])], [np.diag([-6.0, 0.0, 0.0])]),
    (np.linalg.det, [[[0.0]]], [[[1.0]]]),
    # Eigenvalues and singular values that are equal, or 0.
    (lambda a: np.linalg.eigh(a)[0] ** 2, [np.eye(3)], [2 * np.eye(3)]),
    (lambda a: np.linalg.svd(a)[1] ** 2, [np.eye(3)], [2 * np.eye(3)]),
    (
        lambda a: np.linalg.svd(a, full_matrices=False)[1] ** 2,
        [np.ones((3, 2))],
        [np.full((3, 2), 2)],
    ),
    (lambda a: np.linalg.norm(a, 2), [np.eye(2)], [np.eye(2) / 2]),
    (lambda a: np.linalg.norm(a, -2), [np.eye(2)], [np.eye(2) / 2]),
]


@pytest.mark.parametrize("f, inputs, expected", SLOPES)
def test_slopes(f, inputs, expected):
    for found, known in zip(gradients(f, *inputs), expected, strict=True):
        np.testing.assert_allclose(
            found, known, rtol=1e-12, atol=1e-300 if f is np.arctan2 else 1e-12
        )


def test_the_angle_of_tiny_and_huge_float32_numbers():
    a, b = (Tensor(np.array([1e-23, 1e20], np.float32), requires_grad=True) for _ in range(2))
    with np.errstate(over="raise"):
        slopes = ta.grad(np.arctan2(a, b).sum(), [a, b])
    for g in slopes:
        assert g.dtype == np.float32
        np.testing.assert_allclose(np.abs(g.numpy()), [5e22, 5e-21], rtol=1e-6)


def test_these_slopes_have_slopes():
    singular, zeros = (
        np.array([[1.0, 2, 0], [2, 4, 0], [1, 1, 1]]),
        np.array([[0, 2.0, 3], [1, 2, 3], [0, 0, 2]]),
    )
    assert gradgradcheck(np.linalg.det, [singular])
    for n in (3, 6):
        almost = np.random.default_rng(0).standard_normal((2, n, n))
        almost[0, -1] = 3 * almost[0, 0] + 1e-15
        assert gradgradcheck(np.linalg.det, [almost])
    assert gradgradcheck(lambda x: np.linalg.norm(x, 2), [np.diag([0.0, 1, 3])])
    assert gradgradcheck(lambda x: x.prod(axis=1), [zeros])
    assert gradgradcheck(lambda x: x.prod(axis=0), [np.array([[1e-17, 2], [2, 3e-17], [3, 4]])])
    x = tensor(np.zeros((0, 3)))
    assert ta.grad(x.prod(axis=1), [x], np.zeros(0), create_graph=True)[0].shape == (0, 3)
    assert gradgradcheck(
        lambda x, q: np.quantile(x, q), [np.array([1.0, 5, 2]), np.array([0.3, 0.6])]
    )
    assert gradgradcheck(np.arctan2, [np.array([3.0, -1]), np.array([0.0, 2])])
    x = tensor([0.0, 2.0])
    (slope,) = ta.grad(np.angle(x).sum(), [x], create_graph=True)
    assert ta.grad((slope + x).sum(), [x])[0].numpy().tolist() == [1, 1]
    assert gradgradcheck(lambda x: np.linalg.norm(x, 3, axis=1), [np.array([[0, 2.0], [1, -1]])])
    assert gradgradcheck(np.logaddexp, [np.array([1.0, -40]), np.array([2.0, 30])])
    assert gradcheck(
        lambda x: np.average(x, axis=(1, 0), weights=np.arange(1.0, 7).reshape(3, 2)), [CUBE]
    )
    assert gradcheck(
        lambda x, w: np.average(x, axis=(1, 0), weights=w), [CUBE, np.arange(1.0, 7).reshape(3, 2)]
    )
    assert gradcheck(lambda x: np.pad(x, 1, constant_values=(5, 6)), [A])
    assert gradgradcheck(np.power, [np.array([2.0, 0.5, 3]), np.array([[0.0], [2]])])


def test_the_second_derivative_of_the_det_of_a_large_matrix_needs_no_minors():
    almost = np.random.default_rng(0).standard_normal((40, 40))
    almost[-1] = (
        3 * almost[0] + 1e-9
    )  # so nearly singular that a smaller one would take its minors: 40^4 numbers here
    a = tensor(almost)
    ta.grad(
        np.linalg.det(a), [a]
    )  # the first backward pass of a process frees an array, so that memory is kept
    tracemalloc.start()
    (slope,) = ta.grad(np.linalg.det(a), [a], create_graph=True)
    ta.grad(slope.sum(), [a])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2e6


@pytest.mark.parametrize("bad", [NAN, INF])  # which LAPACK's singular values refuse, or never find
def test_a_matrix_that_is_not_finite_leaves_the_others_their_second_derivative_of_det(bad):
    matrices = np.random.default_rng(0).standard_normal((2, 6, 6))
    slopes = []
    for matrices[1, 0, 0] in (1.0, bad):
        a = tensor(matrices)
        (slope,) = ta.grad(np.linalg.det(a).sum(), [a], create_graph=True)
        slopes.append(ta.grad((slope[0] * matrices[0].T).sum(), [a])[0].numpy()[0])
    np.testing.assert_allclose(slopes[1], slopes[0])


def test_eigh_takes_the_infinite_matrices_that_numpys_takes():
    matrix = np.diag([1, INF, 2])
    try:
        expected = np.linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        pytest.skip("not with this LAPACK")
    for a, b in zip(np.linalg.eigh(tensor(matrix)), expected, strict=True):
        np.testing.assert_array_equal(a.detach(), b)


@pytest.mark.parametrize("x", [0.0, 2.0])
def test_a_product_along_the_axis_of_a_single_number_has_slopes(x):
    assert gradgradcheck(lambda x: x.prod(axis=-1) * x, [np.array(x)])


@pytest.mark.parametrize(
    "f, inputs",
    [
        (np.linalg.norm, [[0, 0]]),
        (lambda x: np.std(x, axis=1), [[[2, 2], [3, 3]]]),
        (np.arctan2, [[0, 0], [0.0, -0.0]]),
    ],
)
def test_where_a_slope_is_taken_for_zero_so_is_the_next(f, inputs):
    inputs = [tensor(x) for x in inputs]
    slopes = ta.grad(f(*inputs).sum(), inputs, create_graph=True)
    for weights in np.eye(slopes[0].size):
        for slope in slopes:
            for g in ta.grad(
                slope, inputs, weights.reshape(slope.shape), retain_graph=True, create_graph=True
            ):
                assert not g.numpy().any()


def test_einsum_takes_three_operands_two_at_a_time(monkeypatch):
    """Though the first product is larger than they are; all at once it is ten times as slow, forwards and backwards."""
    steps, einsum = [], np.einsum

    def watched(labels, *operands, optimize, **keywords):
        steps.append(len(np.einsum_path(labels, *operands, optimize=optimize)[0]) - 1)
        return einsum(labels, *operands, optimize=optimize, **keywords)

    monkeypatch.setattr(np, "einsum", watched)
    rng = np.random.default_rng(0)
    operands = [
        Tensor(rng.standard_normal(shape), requires_grad=True)
        for shape in ((256, 32), (256, 32), (32, 32, 4))
    ]
    y = ops.einsum(*operands, labels=("bi", "bj", "ijk"), result="bk")
    y.sum().backward()
    assert steps == [2] * 4
    a, b, w = (x.numpy() for x in operands)
    np.testing.assert_allclose(
        y.numpy(), (a[:, :, None] * b[:, None]).reshape(256, -1) @ w.reshape(-1, 4)
    )
    np.testing.assert_allclose(operands[2].grad.numpy(), np.repeat((a.T @ b)[:, :, None], 4, 2))


@pytest.mark.parametrize(
    "labels, shapes",
    [
        ("b,dbd->", [(1,), (3, 2, 3)]),
        ("b,dbd->d", [(1,), (3, 2, 3)]),
        ("dd,d->", [(3, 3), (1,)]),
        ("ddb,b->d", [(2, 2, 3), (1,)]),
        ("bc,bc->", [(1, 2), (2, 1)]),
        ("b...,b...", [(1, 1, 2), (2, 1)]),
    ],
)
def test_einsum_repeats_one_element_along_an_axis_of_another_operand(labels, shapes):
    rng = np.random.default_rng(0)
    assert gradgradcheck(
        lambda *xs: np.einsum(labels, *xs), [rng.standard_normal(s) for s in shapes]
    )


def test_a_long_product_with_one_zero_takes_little_memory():
    x = tensor(np.r_[0.0, np.ones(30_000)])
    y = x.prod()
    tracemalloc.start()
    (g,) = ta.grad(y, [x])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 5e6 and g.numpy()[0] == 1 and not g.numpy()[1:].any()


# ---- what NumPy refuses is refused

T = tensor(A)
V = tensor([1.0, 2, 3])
S = tensor(1.0)

REFUSED = [
    (
        lambda: np.vecdot(tensor(A), A[:, :1]),
        ValueError,
        r"sums over one axis of both, of the same size.*\(2, 3\).*\(2, 1\)",
    ),
    (lambda: np.linalg.vecdot(tensor(A), A[0], axis=0), ValueError, "sums over one axis of both"),
    (lambda: np.vecdot(tensor(A), 2.0), ValueError, "sums over one axis of both"),
    (lambda: np.quantile(V, 1.5), ValueError, r"quantile.*0 to 1.*1\.5"),
    (lambda: np.quantile(V, [0.5, -0.1]), ValueError, r"quantile.*0 to 1"),
    (lambda: np.quantile(V, NAN), ValueError, r"quantile.*0 to 1"),
    (lambda: np.percentile(V, 101), ValueError, r"percentile.*0 to 100.*101"),
    (
        lambda: np.quantile(V, 0.5, weights=np.ones(3)),
        TypeError,
        r"np\.quantile of a Tensor does not take weights=",
    ),
    (
        lambda: np.percentile(V, 50, weights=np.ones(3)),
        TypeError,
        r"np\.percentile of a Tensor does not take weights=",
    ),
    (
        lambda: np.percentile(V, 50, method="hazen"),
        ValueError,
        r"np\.percentile of a Tensor knows the methods 'linear', 'lower'",
    ),
    (lambda: np.quantile(tensor([]), 0.5), ValueError, "quantile of nothing"),
    # axes that are not there
    (lambda: np.median(T, axis=2), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.quantile(T, 0.5, axis=(0, 3)), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.median(S, axis=0), IndexError, "A single number has no axes"),
    (lambda: np.diff(T, axis=2), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.diff(T, axis=5, prepend=0.0), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.diff(S), ValueError, "at least one axis"),
    (lambda: np.rollaxis(T, 2), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.rollaxis(T, 0, -3), IndexError, "start"),
    (lambda: np.rollaxis(S, 0), IndexError, "A single number has no axes"),
    (lambda: np.tensordot(T, V[:2], 1), ValueError, "their sizes must be the same"),
    (lambda: np.cross(T, V[:2]), ValueError, "vectors of three numbers, got 3 and 2"),
    (lambda: np.tensordot(T, T, (2, 1)), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.tensordot(T, T, 1), ValueError, r"their sizes must be the same\.$"),
    (lambda: np.tensordot(T, T, ([0, 0], [0, 0])), ValueError, "repeated axis"),
    (lambda: np.tensordot(S, T, ([0], [0])), IndexError, "axis 0 is out of bounds"),
    (lambda: np.trapezoid(T, axis=-3), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.trapezoid(S), IndexError, "A single number has no axes"),
    (lambda: np.gradient(T, axis=2), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.take(T, [0], axis=2), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.split(T, 2, axis=2), IndexError, r"lies in \[-2, 2\)"),
    (
        lambda: np.split(T, 0),
        ValueError,
        r"np\.split of Tensor \(2, 3\) float64.*number sections must be larger than 0",
    ),
    (
        lambda: np.hsplit(T, 0),
        ValueError,
        r"np\.hsplit of Tensor \(2, 3\) float64.*number sections must be larger than 0",
    ),
    *[
        (
            lambda split=split, parts=parts: split(T, parts),
            TypeError,
            r"Tensor \(2, 3\) float64 is split into a whole number of parts",
        )
        for split in (np.split, np.hsplit, np.array_split)
        for parts in (None, "2", 1j, ["a"], [1.5])
    ],
    (lambda: np.vsplit(V, 1), ValueError, r"np\.vsplit.*2 axes or more, got Tensor \(3,\)"),
    (lambda: np.dsplit(T, 1), ValueError, r"np\.dsplit.*3 axes or more, got Tensor \(2, 3\)"),
    (lambda: np.average(T, axis=2, weights=[1, 2, 3]), IndexError, r"lies in \[-2, 2\)"),
    (lambda: np.linalg.norm(T, axis=2), IndexError, r"lies in \[-2, 2\)"),
    # other arguments
    (
        lambda: np.pad(V, 1, "reflect", reflect_type="odd"),
        TypeError,
        r"np\.pad of a Tensor does not take reflect_type='odd'",
    ),
    (lambda: np.pad(T, {5: 1}), IndexError, "axis 5"),
    (lambda: np.pad(V, 1.5), TypeError, "whole numbers"),
    (lambda: np.pad(V, 1, constant_values=V[:2]), TypeError, "requires a gradient"),
    (lambda: np.average(T, weights=[1, 2, 3]), TypeError, "average.*say axis="),
    (lambda: np.average(T, axis=1, weights=[1, 2]), ValueError, r"average.*\(2,\).*\(3,\)"),
    (lambda: np.average(V, weights=[1, 1, -2]), ZeroDivisionError, "average.*weights.*sum to zero"),
    (lambda: np.convolve(T, V), ValueError, r"convolve.*one axis.*\(2, 3\)"),
    (lambda: np.convolve(V, np.zeros(0)), ValueError, "convolve.*empty"),
    (
        lambda: np.convolve(V, V, "sam"),
        ValueError,
        "convolve.*'full', 'same' or 'valid', not 'sam'",
    ),
    (lambda: np.gradient(V[:1]), ValueError, "gradient.*two"),
    (lambda: np.gradient(T, 1.0, 2.0, 3.0), TypeError, "gradient.*3 spacings for 2 axes"),
    (
        lambda: np.gradient(V, np.array([0.0, 1])),
        ValueError,
        "gradient: the places along axis 0 are a vector of 3, got array",
    ),
    (
        lambda: np.gradient(T, np.array([0.0, 1, 3])),
        TypeError,
        "gradient.*1 spacings for 2 axes; pass one number for all",
    ),
    (
        lambda: np.gradient(V, edge_order=3),
        ValueError,
        "^np.gradient knows edge_order 1 and 2, got 3",
    ),
    (
        lambda: np.piecewise(V, [V.data > 1], [1, 2, 3]),
        ValueError,
        "^np.piecewise takes a function or a value for each.*got 3",
    ),
    (lambda: np.vander(T), ValueError, r"vander takes a vector.*\(2, 3\)"),
    (
        lambda: np.apply_along_axis(np.sum, 0, T[:, :0]),
        ValueError,
        r"apply_along_axis has no vector.*\(2, 0\)",
    ),
    (lambda: np.cov(tensor(CUBE)), ValueError, r"cov takes vectors or matrices.*\(2, 3, 4\)"),
    *[(lambda: np.cumulative_sum(T), ValueError, r"cumulative_sum runs along one axis.*\(2, 3\)")]
    * hasattr(np, "cumulative_sum"),
    (lambda: np.linalg.qr(V), ValueError, r"qr takes matrices.*\(3,\)"),
    (lambda: np.linalg.lstsq(V, V), ValueError, r"lstsq takes a matrix.*\(3,\)"),
    (lambda: np.gradient(V[:2], edge_order=2), ValueError, "gradient.*three elements"),
    (lambda: np.diff(V, n=-1), ValueError, "n=-1"),
    (lambda: np.take(V, [0], mode="zzz"), ValueError, "'raise', 'wrap' or 'clip', not 'zzz'"),
    (lambda: np.diag(tensor(CUBE)), ValueError, r"diag.*\(2, 3, 4\)"),
    (lambda: np.diag(S), ValueError, r"diag.*\(\)"),
    (lambda: np.linalg.matrix_power(V, 2), ValueError, r"matrix_power.*square.*\(3,\)"),
    (lambda: np.linalg.matrix_power(T, 2), ValueError, r"matrix_power.*square.*\(2, 3\)"),
    (lambda: np.linalg.matrix_power(tensor(np.eye(2)), 2.5), TypeError, "matrix_power.*whole.*2.5"),
    (
        lambda: np.linalg.multi_dot([T]),
        ValueError,
        r"multi_dot.*two or more matrices.*got Tensor \(2, 3\)",
    ),
    (
        lambda: np.linalg.multi_dot([T, V, T]),
        ValueError,
        r"multi_dot.*the first and the last may be vectors.*\(3,\)",
    ),
    (
        lambda: np.linalg.multi_dot([S, T]),
        ValueError,
        r"multi_dot.*the first and the last may be vectors.*\(\)",
    ),
    (lambda: np.linalg.norm(tensor(CUBE), 1), ValueError, r"norm.*axis=.*\(2, 3, 4\)"),
    (lambda: np.linalg.norm(S, 1), ValueError, "norm.*axis="),
    (lambda: np.linalg.norm(tensor(CUBE), axis=(0, 1, 2)), ValueError, "norm.*one axis or two"),
    (lambda: np.linalg.norm(V, "fro"), ValueError, "norm of vectors.*'fro'"),
    (lambda: np.linalg.norm(T, "abc"), ValueError, "matrix norm.*'abc'"),
    (lambda: np.linalg.norm(T, axis=(1, -1)), ValueError, "repeated axis"),
    (lambda: np.einsum("...i->i", T), ValueError, r"einsum.*result.*\.\.\."),
    (lambda: np.sum(V, dtype=complex), TypeError, "a Tensor holds real numbers"),
    (lambda: np.exp(V, dtype=complex), TypeError, "a Tensor holds real numbers"),
    (lambda: np.astype(V, object), TypeError, "a Tensor holds real numbers"),
    (lambda: np.astype(V, "M8[s]"), TypeError, "a Tensor holds real numbers"),
    (lambda: np.sum(Tensor(np.arange(3)), dtype=complex), TypeError, "a Tensor holds real numbers"),
    # texts that once said the opposite of themselves
    (lambda: np.emath.sqrt(V), TypeError, r"np\.emath\.sqrt has no derivative rule"),
    (lambda: np.ones(3).clip(V, 2), TypeError, r"write np\.clip\(a, \.\.\.\)"),
]


@pytest.mark.parametrize(
    "call",
    [
        lambda: np.linalg.cholesky(tensor(-np.eye(2))),
        lambda: np.linalg.inv(tensor(np.zeros((2, 2)))),
        lambda: np.linalg.solve(tensor(np.zeros((2, 2))), tensor([1, 2])),
        lambda: np.linalg.matrix_power(tensor(np.zeros((2, 2))), -1),
    ],
)
def test_code_that_catches_numpys_own_error_of_a_matrix_goes_on(call):
    """As that which adds jitter until there is a Cholesky factor."""
    with pytest.raises(np.linalg.LinAlgError, match=r"of Tensor \(2, 2\) float64.*: "):
        call()


@pytest.mark.parametrize("call, kind, message", REFUSED)
def test_what_numpy_refuses_is_refused(call, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        call()


@pytest.mark.parametrize("f", [Tensor.var, Tensor.std])
def test_ddof_is_given_by_name(f):
    x = tensor(A)
    with pytest.raises(TypeError, match="by name|positional"):
        f(x, None, 1.0)
    assert f(x, None, ddof=1).item() == pytest.approx(getattr(A, f.__name__)(ddof=1))


# ---- what a stricter rule must still allow


def test_rules_for_the_first_inputs_suffice_where_the_others_are_constants():
    @ta.op
    def doubled(a, *rest):
        return a * 2

    doubled.vjp(lambda g, y, a, *rest: 2 * g)
    x = Tensor(np.ones(2), requires_grad=True)
    doubled(x, np.ones(2), 3).sum().backward()
    assert np.array_equal(x.grad.numpy(), [2, 2])
    with pytest.raises(TypeError, match="has 1 rules, but was called with 2 inputs"):
        doubled(x, x).sum().backward()


def test_real_numbers_of_any_kind_can_be_put_into_a_tensor():
    t = Tensor(np.zeros(3, np.float32))
    t[0], t[1:] = Fraction(1, 2), np.array([1, 2**70], object)
    assert np.array_equal(t.data, np.array([0.5, 1, 2.0**70], np.float32))
    for refused in (1j, np.array([None, 1], object)):
        with pytest.raises(TypeError):
            t[:2] = refused


def test_what_makes_an_array_of_itself_is_asked_once():
    class Lazy:
        asked = 0

        def __array__(self, dtype=None, copy=None):
            Lazy.asked += 1
            return np.ones(2, dtype or float)

    assert Tensor(Lazy(), dtype=np.float32).dtype == np.float32 and Lazy.asked == 1


def test_a_large_contraction_may_hold_as_much_as_its_largest_operand_or_result(monkeypatch):
    module, asked, einsum = sys.modules["tinygrad_attn.ops.einsum"], [], np.einsum
    monkeypatch.setattr(module, "_BETWEEN", 1)
    monkeypatch.setattr(
        np,
        "einsum",
        lambda *args, optimize, **kwargs: asked.append(optimize) or einsum(*args, **kwargs),
    )
    a, b = np.ones((70, 60)), np.ones(90)
    module.einsum(a, b, b, labels=("ij", "k", "k"), result="ik")
    module.einsum(a, b, b, labels=("ij", "k", "k"), result="i")
    assert asked == [("greedy", 6300), ("greedy", 4200)]


def test_a_casting_that_changes_nothing_is_allowed():
    x = Tensor(np.ones(2, np.float32))
    assert (
        np.hstack([x, x], casting="no").dtype == np.float32
        and np.stack([x, x], dtype=np.float64, casting="safe").dtype == np.float64
    )
    assert np.concatenate([x, [1.0]], casting="safe").shape == (3,)
    with pytest.raises(TypeError, match="float64 does not become float32 by casting='safe'"):
        np.concatenate([x.astype(np.float64), x], dtype=np.float32, casting="safe")
