"""NumPy's functions on Tensors: the values of arrays, derivatives to second order, and refusals that say what to do."""

from collections import deque, namedtuple
from functools import partial
from inspect import Parameter, signature

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpytable import CASES, FLAT, P, R
from support import each

import tinygrad_attn as ta
from tinygrad_attn import Tensor
from tinygrad_attn.check import gradcheck, gradgradcheck
from tinygrad_attn.tensor.numpy_dispatch import CONSTANTS
from tinygrad_attn.tensor.numpy_functions import FUNCTIONS, IMPLEMENTATIONS, UFUNCS

IDS = [f"{i}-{function.__name__}" for i, (_, function, _, _) in enumerate(CASES)]
pytestmark = pytest.mark.filterwarnings("ignore:numpy.fix is deprecated")


def floats(tree):
    """The floating-point arrays in nested lists, tuples and dicts."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [x for part in tree for x in floats(part)]
    return [tree] if isinstance(tree, np.ndarray) and tree.dtype.kind == "f" else []


def put(tree, values):
    """The tree with the next of the values for each floating-point array."""
    if isinstance(tree, dict):
        return {key: put(part, values) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(put(part, values) for part in tree)
    return next(values) if isinstance(tree, np.ndarray) and tree.dtype.kind == "f" else tree


def call(case, values):
    _, function, args, kwargs = case
    values = iter(values)
    y = function(*put(args, values), **put(kwargs, values))
    return list(y) if isinstance(y, (list, tuple)) else [y]


def plain(x):
    return x.detach().numpy() if isinstance(x, Tensor) else x


# ---- what is differentiated


@each("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_values_shapes_and_dtypes_are_numpys(case, dtype):
    arrays = [x.astype(dtype) for x in floats([case[2], case[3]])]
    inputs = [Tensor(x, requires_grad=True) for x in arrays]
    mine, numpys = call(case, inputs), call(case, arrays)
    for a, b in zip(mine, numpys, strict=True):
        tolerance = 2e-5 if dtype == np.float32 else 1e-12
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(plain(a), b, rtol=tolerance, atol=tolerance)
        assert not isinstance(a, Tensor) or a.dtype in (b.dtype, dtype)
    outputs = [y.sum() for y in mine if isinstance(y, Tensor) and y.requires_grad]
    for g in ta.grad(outputs, inputs, allow_unused=True):
        assert g is None or g.dtype == dtype


@pytest.mark.parametrize(
    "case", [c for c in CASES if c[0] not in FLAT], ids=lambda c: c[1].__name__
)
def test_derivatives_to_second_order(case):
    """The first by the checker, with all that it asks of a rule; the second as slopes of the first."""
    arrays = floats([case[2], case[3]])
    f = lambda *xs: tuple(y for y in call(case, xs) if isinstance(y, Tensor))
    gradcheck(f, arrays)
    rng, h = np.random.default_rng(5), 1e-5
    along, ahead = ([rng.standard_normal(x.shape) for x in arrays] for _ in range(2))
    weights = [rng.standard_normal(y.shape) for y in f(*map(Tensor, arrays))]

    def slope(values, **settings):
        """The slope of the weighted outputs along a direction, and what it is a function of."""
        xs = [Tensor(x, requires_grad=True) for x in values]
        y = sum((y * w).sum() for y, w in zip(f(*xs), weights, strict=True))
        found = ta.grad(y, xs, allow_unused=True, **settings)
        return sum((g * d).sum() for g, d in zip(found, along) if g is not None), xs

    ends = [slope([x + s * v for x, v in zip(arrays, ahead)])[0].item() for s in (h, -h)]
    y, xs = slope(arrays, create_graph=True)
    found = ta.grad(y, xs, allow_unused=True) if y.requires_grad else [None] * len(xs)
    parts = [(g * v).sum().item() for g, v in zip(found, ahead) if g is not None]
    size = 1 + sum(map(abs, parts)) + abs(y.item())
    assert abs(sum(parts) - (ends[0] - ends[1]) / (2 * h)) < 1e-6 * size


@pytest.mark.parametrize("case", [c for c in CASES if c[0] in FLAT], ids=lambda c: c[0].__name__)
def test_what_is_flat_has_zero_gradient(case):
    inputs = [Tensor(x, requires_grad=True) for x in floats([case[2], case[3]])]
    (y,) = call(case, inputs)
    for g in ta.grad((y + inputs[0] * 0).sum(), inputs, allow_unused=True, create_graph=True):
        assert g is None or not g.numpy().any()


SEVERAL = [c for c in CASES if len(floats([c[2], c[3]])) > 1 and c[0] is not np.full_like]


@each("case", SEVERAL)
def test_arrays_may_stand_for_any_of_the_tensors(case):
    arrays = floats([case[2], case[3]])
    together = [Tensor(x, requires_grad=True) for x in arrays]
    weights = [np.arange(1.0, 1 + np.size(y)).reshape(np.shape(y)) for y in call(case, together)]

    def gradient(inputs, wanted):
        pairs = zip(call(case, inputs), weights, strict=True)
        loss = sum((y * w).sum() for y, w in pairs if isinstance(y, Tensor) and y.requires_grad)
        return ta.grad(loss, [wanted], allow_unused=True)[0] if isinstance(loss, Tensor) else None

    for i, x in enumerate(arrays):
        alone = Tensor(x, requires_grad=True)
        expected = gradient(together, together[i])
        if expected is not None:
            found = gradient([*arrays[:i], alone, *arrays[i + 1 :]], alone)
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_the_table_of_cases_covers_every_rule():
    missing = (set(UFUNCS) | set(FUNCTIONS)) - {function for function, *_ in CASES}
    assert not missing, [f.__name__ for f in missing]


# ---- what is not

T = Tensor(R(3), requires_grad=True)
S = Tensor(0.5, requires_grad=True)


def every_function():
    """All functions that NumPy lets a Tensor take over."""
    for module in (np, np.linalg, np.fft):
        for f in map(module.__dict__.get, sorted(vars(module))):
            if isinstance(f, np.ufunc) or hasattr(f, "_implementation"):
                yield f


def test_a_function_without_a_rule_is_refused_by_name():
    others = [
        f for f in dict.fromkeys(every_function()) if f not in {*UFUNCS, *FUNCTIONS, *CONSTANTS}
    ]
    assert len(others) > 150
    for f in others:
        assert_refused(f)


def assert_refused(f):
    for args in ((T,), (T, T), (T, T, T), (T, 1), ([T], T)):
        try:
            y = f(*args)
        except TypeError as error:
            if f"{f.__name__} has no derivative" in str(error):
                assert "t.numpy()" in str(error) and "@ta.op" in str(error), f
                return
        except Exception:  # The arguments are wrong, which the function says before it asks.
            continue
        else:
            assert not isinstance(y, np.ndarray) or y.dtype.kind != "f", f"{f} returned {y!r}"


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda: np.array([T, T]), "np.stack"),
        (lambda: np.asarray(T), "requires a gradient"),
        (lambda: np.mean([S, S]), "np.stack"),
        (lambda: np.r_[T, T], "np.concatenate"),
        (lambda: np.zeros(3).__setitem__(slice(None), T), "requires a gradient"),
        (lambda: np.exp(T, out=np.zeros(3)), "np.exp would write"),
        (lambda: np.zeros(3).__iadd__(T), r"Write a = a \+ t instead of a \+= t"),
        (lambda: np.add.at(np.zeros(3), [0, 1, 1], T), r"np.add.at would .*ta\.ops\.scatter"),
        (lambda: np.copyto(np.zeros(3), T), "requires a gradient"),
        (lambda: np.copyto(dst=np.zeros(3), src=T), "requires a gradient"),
        (lambda: np.place(np.zeros(3), [True] * 3, T), "requires a gradient"),
        (lambda: np.put(np.zeros(3), range(3), T), "requires a gradient"),
        (lambda: np.putmask(np.zeros(3), [True] * 3, T), "requires a gradient"),
        (lambda: np.put_along_axis(np.zeros(3), np.arange(3), T, 0), "requires a gradient"),
        (lambda: np.exp(T, where=np.array([True, False, True])), r"np.where\(mask, a, b\)"),
        (lambda: np.sum(T, where=T > 0), r"np.where\(mask, a, b\)"),
        (lambda: np.add.reduce(T), "np.add.reduce has no derivative"),
        (lambda: np.reshape(T, (3, 1), order="F"), "order='F'"),
        (lambda: np.average(T, returned=True), "np.average has no derivative"),
        (lambda: np.fft.fft(T), "np.fft.fft has no derivative"),
        (lambda: np.linalg.svd(Tensor(R(2, 3), requires_grad=True)), "full_matrices=False"),
        (lambda: np.pad(T, 1, "linear_ramp"), "mode='linear_ramp'"),
        (lambda: np.add(T, 1, dtype=int), "would drop the fractional parts"),
        (lambda: np.sum(T, dtype=int), r"would drop the fractional parts.*\.astype\(int64\)"),
        (lambda: T * 1j, "1j"),
    ],
)
def test_what_would_lose_the_gradient_is_a_type_error_with_advice(write, message):
    with pytest.raises(TypeError, match=message):
        write()


MATRIX, VECTOR = R(2, 3), R(4)


@pytest.mark.parametrize(
    "call",
    [
        lambda t, u: np.add(t, u),
        lambda t, u: np.append(t, u, 0),
        lambda t, u: np.array_split(t, 0),
        lambda t, u: np.broadcast_arrays(t, u),
        lambda t, u: np.broadcast_to(t, (3, 3)),
        lambda t, u: np.clip(t, u, 1.0),
        lambda t, u: np.concatenate([t, u]),
        lambda t, u: np.cross(u, u),
        lambda t, u: np.cumsum(t, axis=2),
        lambda t, u: np.delete(t, 9, axis=0),
        lambda t, u: np.diag(t[None]),
        lambda t, u: np.diff(t, -1),
        lambda t, u: np.diff(t, axis=2),
        lambda t, u: np.diff(t[0, 0]),
        lambda t, u: np.diff(t, prepend=u),
        lambda t, u: np.dot(t, t),
        lambda t, u: np.einsum("ij,jk", t, t),
        lambda t, u: np.expand_dims(t, 5),
        lambda t, u: np.full_like(t, u),
        lambda t, u: np.gradient(t, 1.0, 2.0, 3.0),
        lambda t, u: np.gradient(t, [0.0, 1, 2, 3], axis=0),
        lambda t, u: np.gradient(t, axis=2),
        lambda t, u: np.gradient(t[:1], axis=0),
        lambda t, u: np.inner(t, u),
        lambda t, u: np.linalg.cholesky(t),
        lambda t, u: np.linalg.det(t),
        lambda t, u: np.linalg.eigh(t[:, :2], UPLO="X"),
        lambda t, u: np.linalg.multi_dot([t]),
        lambda t, u: np.linalg.norm(t[None], 2),
        lambda t, u: np.linalg.norm(t, 2, axis=(0, 0)),
        lambda t, u: np.linalg.qr(u),
        lambda t, u: np.linalg.slogdet(t),
        lambda t, u: np.linalg.solve(t, u),
        lambda t, u: np.linalg.svd(u, full_matrices=False),
        lambda t, u: np.linspace(t, 1.0, -1),
        lambda t, u: np.matmul(t, t[0, 0]),
        lambda t, u: np.mean(t, axis=(0, -2)),
        lambda t, u: np.meshgrid(u, u, indexing="zz"),
        lambda t, u: np.moveaxis(t, 0, 2),
        lambda t, u: np.pad(t, -1),
        lambda t, u: np.partition(t, 7),
        lambda t, u: np.repeat(t, -1),
        lambda t, u: np.reshape(t, (4,)),
        lambda t, u: np.select([t > 0, t < 0], [t]),
        lambda t, u: np.split(t, 2, axis=1),
        lambda t, u: np.squeeze(t, 0),
        lambda t, u: np.stack([t, u]),
        lambda t, u: np.swapaxes(t, 0, 2),
        lambda t, u: np.take(t, [9]),
        lambda t, u: np.take(t, [0], axis=2),
        lambda t, u: np.take_along_axis(t, np.array([0]), 0),
        lambda t, u: np.tensordot(t, t, 1),
        lambda t, u: np.tensordot(t, t, ([0, 1], [0])),
        lambda t, u: np.trace(t, 0, 1, 1),
        lambda t, u: np.transpose(t, (0, 0)),
        lambda t, u: np.vdot(t, u),
        lambda t, u: np.vecdot(u, u[:1]),
        lambda t, u: np.where(t > 0, t),
        lambda t, u: sliding_window_view(t, (9, 9)),
        lambda t, u: sliding_window_view(t, -1, axis=0),
    ],
)
def test_what_numpy_refuses_of_arrays_is_refused_of_tensors(call):
    for make in (np.array, partial(Tensor, requires_grad=True)):
        with pytest.raises((ValueError, TypeError, IndexError)):
            call(make(MATRIX), make(VECTOR))


ORDERS = [
    None,
    "fro",
    "f",
    "nuc",
    "two",
    0.5,
    1.5,
    *(sign * n for n in (0, 1, 2, 3, np.inf) for sign in (1, -1)),
]


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (1, -1), (0, 0), (0, 1, 2), 5], ids=str)
@pytest.mark.parametrize("shape", [(), (4,), (3, 2), (2, 3, 2)], ids=str)
def test_a_norm_of_any_order_is_numpys_or_raises_the_same(shape, axis):
    x = np.random.default_rng(0).standard_normal(shape)
    for order in ORDERS:
        for function in (np.linalg.norm, np.linalg.vector_norm):
            try:
                expected = function(x, ord=order, axis=axis)
            except (ValueError, TypeError) as error:
                if function is np.linalg.norm:
                    with pytest.raises(type(error)):
                        function(Tensor(x, requires_grad=True), ord=order, axis=axis)
            else:
                y = function(Tensor(x, requires_grad=True), ord=order, axis=axis)
                np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12)


LEFT_TO_OTHERS = {(np.cross, "axis"), (np.einsum, "optimize")}
"""Arguments with a default of ours: `axisa` and its like are -1, and no value depends on `optimize`."""


def test_arguments_that_are_left_out_are_numpys():
    compared = 0
    for function, implementation in IMPLEMENTATIONS.items():
        try:
            theirs = signature(function).parameters
        except ValueError:  # Functions written in C have no signature in older versions of NumPy.
            continue
        for name, parameter in signature(implementation).parameters.items():
            known = name in theirs and theirs[name].default not in (Parameter.empty, np._NoValue)
            if parameter.default is not Parameter.empty and known:
                alike = parameter.default == theirs[name].default
                assert alike or (function, name) in LEFT_TO_OTHERS, (function.__name__, name)
                compared += 1
    assert compared > 30


# ---- dtypes, and Tensors without a gradient


def test_numbers_and_lists_keep_float32():
    t = Tensor(R(3).astype(np.float32), requires_grad=True)
    for y in (
        np.multiply(2.0, t),
        np.add(t, np.float64(2)),
        np.where([True, False, True], t, 0.0),
        np.stack([t[0], 1.0]),
        np.concatenate([[1.0, 2], t]),
        np.select([t > 0], [t], 0.5),
        np.clip(t, 0.0, 1.0),
        np.linspace(t[0], 1.0, 3),
        np.pad(t, 1),
        np.logaddexp2(t, 1.0),
        np.nan_to_num(t),
        np.sinc(t),
    ):
        assert y.dtype == np.float32, y


def test_dtype_converts_the_operands_first():
    t = Tensor(R(3).astype(np.float32), requires_grad=True)
    for y in (np.sum(t, dtype=np.float64), np.exp(t, dtype="f8"), np.stack([t, t], dtype="f8")):
        assert y.dtype == np.float64 and y.requires_grad


def test_integers_and_booleans_come_back_as_plain_arrays():
    for y in (np.argmax(T), np.isnan(T), np.greater(T, 0), np.nonzero(T)[0], np.where(T > 0)[0]):
        assert not isinstance(y, Tensor)
    assert np.array_equal(T, T.numpy()) and np.shape(T) == (3,) and np.ndim(T) == 1
    assert type(np.zeros_like(T)) is np.ndarray


def test_of_integers_alone_numpy_does_what_it_always_does():
    labels = Tensor(np.array([2, 0, 2]))
    assert np.unique(labels).tolist() == [0, 2] and np.bincount(labels).tolist() == [1, 0, 2]
    for f in (np.sum, np.mean, np.square, np.fabs, np.sort, np.cumsum):
        y, numpys = f(labels), f(labels.numpy())
        assert isinstance(y, Tensor) and y.dtype == numpys.dtype and y.tolist() == numpys.tolist()


@pytest.mark.parametrize("kind", [list, tuple, deque, lambda xs: namedtuple("Two", "a b")(*xs)])
def test_any_sequence_may_hold_the_tensors(kind):
    assert np.stack(kind([T, 2 * T])).requires_grad
    assert np.stack(kind([T.astype(int), T.astype(int)])).shape == (2, 3)


def test_moved_elements_are_added_up_where_they_came_from():
    t, array = Tensor(np.arange(3.0), requires_grad=True), np.array([7.0, 8.0])
    y = np.block([t, array, t])  # An array among Tensors keeps its own numbers.
    assert y.tolist() == [0, 1, 2, 7, 8, 0, 1, 2]
    (y * np.arange(8)).sum().backward()
    assert t.grad.tolist() == [5, 7, 9]
    assert np.diag(Tensor([5.0, 6.0])).tolist() == [[5, 0], [0, 6]]


def test_transpose_that_changes_nothing_warns():
    square = Tensor(R(2, 2))
    for write in (lambda: square.transpose(0, 1), lambda: np.transpose(square, (-2, -1))):
        with pytest.warns(UserWarning, match=r"changes nothing.*t\.mT"):
            write()


# ---- kinks, ties and limits


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    "f, x, expected",
    [
        (lambda x: x.max(), [NAN, 1, 2, NAN], [0.5, 0, 0, 0.5]),
        (lambda x: np.maximum(x, [0, 1.0]), [NAN, 0], [1, 0]),
        (lambda x: np.linalg.norm(x, 3, axis=1), [[0, 0], [0, 2]], [[0, 0], [0, 1]]),
        (lambda x: np.linalg.norm(x, 0.5), [1, 0], [1, 0]),
        (lambda x: x ** np.array([0.0, 0, -0.0, 1]), [INF, -INF, NAN, INF], [0, 0, 0, 1]),
        (lambda x: np.logaddexp(x, 0), [INF, -INF, 1000], [1, 0, 1]),
        (np.imag, [INF, 1], [0, 0]),
        (lambda x: x.prod(), [0, 2, 3], [6, 0, 0]),
        (lambda a: np.linalg.eigh(a)[0] ** 2, np.eye(3), 2 * np.eye(3)),
        (lambda a: np.linalg.svd(a)[1] ** 2, np.eye(3), 2 * np.eye(3)),
        (lambda a: np.linalg.norm(a, "nuc"), np.eye(3), np.eye(3)),
        (lambda a: np.linalg.norm(a, 2), np.eye(2), np.eye(2) / 2),
    ],
)
def test_slopes_at_kinks(f, x, expected):
    t = Tensor(np.array(x, float), requires_grad=True)
    (g,) = ta.grad(f(t).sum(), [t])
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-12, atol=1e-12)


# ---- NumPy code that learns unchanged


def attention(x, w_query, w_key, w_value, w_out):
    q, k, v = (np.einsum("bte,hed->bhtd", x, w) for w in (w_query, w_key, w_value))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(k.shape[-1])
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    heads = np.transpose(weights @ v, (0, 2, 1, 3))
    return np.reshape(heads, (*x.shape[:2], -1)) @ w_out


def test_attention_in_plain_numpy():
    gradgradcheck(attention, [R(1, 2, 3), *(R(2, 3, 2) for _ in range(3)), P(4, 2)])
