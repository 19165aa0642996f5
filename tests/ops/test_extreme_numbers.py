"""Numbers at the edge: infinite cotangents, large logits, integer tensors, constants in recorded rules."""

import contextlib
import itertools

import numpy as np
import pytest
from enumeration import ops_in
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, ops

torch = require("torch")
WAYS = (contextlib.nullcontext, ta.plain)
WHOLE = {
    "linspace": lambda x: np.linspace(0, x, 4),
    "copysign": lambda x: np.copysign(x, -1),
    "nan_to_num": np.nan_to_num,
    "gradient": lambda x: np.gradient(x),
    "reciprocal": np.reciprocal,
    "square": np.square,
    "norm": np.linalg.norm,
    "sum": lambda x: np.sum(x, axis=0),
    "mean": np.mean,
    "concatenate": lambda x: np.concatenate([x, x]),
    "diff": np.diff,
    "where": lambda x: np.where(x > 3, x, 0),
    "array_split": lambda x: np.array_split(x, 2)[1],
    "degrees": np.degrees,
    "sort": np.sort,
    "dot": lambda x: np.dot(x, x),
}


@pytest.mark.parametrize("name", WHOLE)
def test_numpy_makes_of_integer_tensors_what_it_makes_of_integers(name):
    for dtype in (np.int64, np.uint8, np.int8):
        x = np.array([7, 2, 9, 4], dtype)
        with np.errstate(all="ignore"):
            expected, found = WHOLE[name](x), WHOLE[name](Tensor(x))
        assert isinstance(found, Tensor) and found.dtype == expected.dtype
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3 if name == "norm" else 0)


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
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
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
def test_what_was_not_chosen_gets_zero_whatever_the_cotangent(f, expected, dtype):
    """As PyTorch: 0 times infinity is NaN, so choosing is not multiplying."""
    x, g = Tensor(INF[0].astype(dtype), requires_grad=True), INF[1].astype(dtype)
    for create_graph in (False, True):
        (found,) = ta.grad(f(x), x, g, create_graph=create_graph)
        np.testing.assert_array_equal(found.numpy(), expected)


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
    for settings in ({}, {"label_smoothing": 0.3}, {"label_smoothing": 0.3, "weight": weight}):
        a, b = (F.cross_entropy(t, np.array([0, 2]), **settings) for t in (far, x))
        assert a.item() == pytest.approx(b.item(), rel=1e-6)
        (da,), (db,) = ta.grad(a, far), ta.grad(b, x)
        np.testing.assert_allclose(da.numpy(), db.numpy(), rtol=1e-5, atol=1e-7)


# ---- slopes of a divisor


@pytest.mark.parametrize(
    "g, a, b", [(100, 1e4, 10), (1e-3, 0.1, 1e-3), (0, 1, 1e-4), (-2, 0.5, 200)]
)
def test_the_slope_of_a_divisor_is_finite_where_either_factor_alone_is_not(g, a, b):
    """-g / b y: a small divisor makes y / b infinite, and a zero gradient, as np.where gives it, would make NaN of that."""
    g, a, b = g * abs(g) ** 6, a**7, b**7  # at the ends of float32
    b = Tensor(np.array([b], np.float32), requires_grad=True)
    (np.array([a], np.float32) / b).backward(np.array([g], np.float32))
    exact = -float(np.array(g, np.float32)) * float(np.array(a, np.float32)) / float(b.item()) ** 2
    np.testing.assert_allclose(b.grad.numpy(), [exact], rtol=5e-3)


# ---- sums of powers


# ---- ties, kinks and edges


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


def at_edges(name, edges=EDGES):
    """An op's operands, by their number every combination of edges."""
    one = ELEMENTWISE[name]
    inputs = one.input_names or range(one.count)  # a ufunc has no names
    edges = edges if len(inputs) < 3 else edges[2::2]
    grid = np.array(list(itertools.product(edges, repeat=len(inputs)))).T
    return [x > 0 if name == "condition" else x for name, x in zip(inputs, grid)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_no_element_is_told_by_what_stands_beside_it(name):
    """A special case for one element (0 to a power, a tie, infinity) is none for those beside it."""
    arrays = at_edges(name, EDGES[::2] if len(ELEMENTWISE[name].vjps) > 1 else EDGES)
    for ways in WAYS:
        with ways():
            together = slopes_at(ELEMENTWISE[name], arrays)
            places = range(len(arrays[0]))
            alone = [slopes_at(ELEMENTWISE[name], [x[i : i + 1] for x in arrays]) for i in places]
        for x, parts in zip(together, zip(*alone), strict=True):
            np.testing.assert_allclose(x, np.concatenate(parts), rtol=1e-12, atol=1e-300)


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
    arrays = at_edges(name, EDGES[1:-2] if name in APART else EDGES)
    leaves = [torch.tensor(x, requires_grad=x.dtype != bool) for x in arrays]
    y = getattr(torch, NAMES.get(name, name))(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    found = torch.autograd.grad(y, wanted, torch.full_like(y, 2), allow_unused=True)
    expected = [np.zeros(y.shape) if g is None else g.numpy() for g in found]
    for ways in WAYS:
        with ways():
            mine = slopes_at(ELEMENTWISE[name], arrays)
        for a, b in zip(mine[1:], 2 * expected):  # the gradients, and again recorded
            np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, one in ELEMENTWISE.items() if len(one.vjps) == 2])
def test_an_operand_that_is_a_number_is_an_array_of_it(name):
    one, x = ELEMENTWISE[name], np.array(EDGES[1:-2])
    for n in (-2, -0.0, 0, 0.5, 1, 2, 3.0, 1 / 3):
        repeated = np.full(x.shape, float(n))
        for ways in WAYS:
            with ways():
                for f in (lambda x, n: one(x, n), lambda x, n: one(n, x)):
                    pair = [slopes_at(lambda x, n=n: f(x, n), [x]) for n in (n, repeated)]
                    for a, b in zip(*pair, strict=True):
                        np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=f"{n}")


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3)])
@pytest.mark.parametrize("name", ops_in(ops.linalg))
def test_the_slopes_of_what_is_made_of_empty_matrices_are_empty(name, shape):
    one = ops_in(ops.linalg)[name]
    arrays = [np.zeros(shape)] * len(one.vjps)
    try:
        one.forward(*arrays)
    except ValueError:  # NumPy makes nothing of them
        return
    for ways in WAYS:
        with ways():
            leaves = [Tensor(x, requires_grad=True) for x in arrays]
            y = one(*leaves)
            found = [*ta.grad(y, leaves, np.zeros(y.shape), create_graph=True)]
            total = sum((g * g).sum() for g in found)
            if total.requires_grad:  # not that of a triangle
                found += ta.grad(total, leaves, allow_unused=True)
            for g in found:
                assert g is None or (g.shape == shape and not g.numpy().any())
