"""The known traps: each has given a wrong gradient in some published small engine.  One test for each."""

import array
import gc
import sys
import weakref
from collections import deque

import numpy as np
import pytest

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, no_grad, op, ops, plain
from tinygrad_attn.check import gradcheck


def rand(*shape, seed=0, dtype=np.float64):
    return Tensor(
        np.random.default_rng(seed).standard_normal(shape).astype(dtype), requires_grad=True
    )


# ---- uses and order


def test_a_tensor_used_twice_adds_up():
    x = rand(3)
    (x + x).sum().backward()
    assert np.array_equal(x.grad.numpy(), [2, 2, 2])
    x.grad = None
    (x * x - x).sum().backward()
    assert np.allclose(x.grad.numpy(), 2 * x.numpy() - 1)


def test_a_tensor_used_at_two_depths():
    x = rand(3)
    a = x * 2
    b = np.exp(a)
    (a * b).sum().backward()
    assert np.allclose(x.grad.numpy(), 2 * (1 + a.numpy()) * b.numpy())


def test_one_layer_called_twice_before_backward():
    layer, a, b = nn.Linear(3, 3).astype(np.float64), rand(2, 3), rand(2, 3, seed=1)
    assert gradcheck(
        lambda a, b: layer(a) * np.tanh(layer(b)), [a, b], params=list(layer.parameters())
    )


def test_a_layer_applied_to_its_own_result():
    layer = nn.Linear(3, 3).astype(np.float64)
    assert gradcheck(
        lambda x: layer(np.tanh(layer(np.tanh(layer(x))))),
        [rand(2, 3)],
        params=list(layer.parameters()),
    )


def test_gradients_are_not_aliased_between_parents():
    a, b = rand(3), rand(3, seed=1)
    older = a * 3
    ((a + b) + older).sum().backward()
    assert np.array_equal(a.grad.numpy(), [4, 4, 4]) and np.array_equal(b.grad.numpy(), [1, 1, 1])
    assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())


def test_a_leafs_gradient_shares_memory_with_nothing():
    x, seed = rand(3), np.ones(3)
    (x + 0.0).backward(seed)
    x.grad.data[:] = 7
    assert np.array_equal(seed, [1, 1, 1])
    a, b = grad((x + x * 0).sum(), [x, x])
    assert not np.shares_memory(a.numpy(), b.numpy())


def test_sixty_doublings_are_instant():
    """One visit to each node: by paths it would be 2^60 of them."""
    calls = []
    double = op(lambda x: x + x)
    double.vjp(lambda g, y, x: calls.append(1) or g + g)
    x = y = rand(1)
    for _ in range(60):
        y = double(y)
    y.backward(np.ones(1))
    assert len(calls) == 60 and x.grad.item() == 2.0**60
    x = y = Tensor([1.0], requires_grad=True, dtype=np.float64)
    for _ in range(60):
        y = y + y
    y.backward()
    assert x.grad.item() == 2.0**60


def test_a_long_chain_needs_no_recursion_and_its_memory_returns():
    """200,000 ops with the garbage collector off (a million take the same, five times as long)."""
    n = 200_000
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        x = y = Tensor(1.0, requires_grad=True, dtype=np.float64)
        for _ in range(n):
            y = y + 1.0
        grown = sys.getallocatedblocks() - before
        y.backward()
        assert x.grad.item() == 1.0 and y.item() == n + 1
        del y
        left = sys.getallocatedblocks() - before
        assert grown > n and left < 20_000, (
            grown,
            left,
        )  # Python itself keeps some thousands of small tuples and floats for later
        y = x
        for _ in range(n):
            y = y * 1.0
        repr(y)
        del y  # never differentiated: must not recurse either
        assert sys.getallocatedblocks() - before < 20_000
    finally:
        gc.enable()


def test_no_cycle_keeps_a_graph_alive():
    gc.collect()
    gc.disable()
    try:
        model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)
        out = model(rand(4, 2, 8, dtype=np.float32))
        seen = [weakref.ref(out), weakref.ref(out._node.inputs[0])]
        out.sum().backward()
        del out
        assert all(r() is None for r in seen)
        out = model(rand(4, 2, 8, dtype=np.float32))
        loss = (out * out).sum()
        gradients = grad(loss, list(model.parameters()), create_graph=True)
        seen = [weakref.ref(out), weakref.ref(loss), weakref.ref(gradients[0])]
        del out, loss, gradients
        assert all(r() is None for r in seen)
    finally:
        gc.enable()


def test_backward_releases_what_it_has_used():
    x = rand(1000)
    y = np.exp(x)
    inner = weakref.ref(y)
    loss = (y * 2).sum()
    del y
    assert inner() is not None
    loss.backward()
    assert inner() is None


def test_a_second_backward_is_refused_and_doubles_only_if_asked():
    x = rand(3)
    loss = (x**2).sum()
    loss.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    loss.backward()
    assert np.allclose(x.grad.numpy(), 2 * first)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()
    assert np.allclose(x.grad.numpy(), 2 * first)


# ---- axes and shapes


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -3, (0, 1), (2, 0), (-1, 0), (0, 1, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "var"])
def test_axes_of_a_reduction(name, axis, keepdims):
    """On a cube, so that no shape error can come to the rescue."""
    x = rand(3, 3, 3)
    assert np.allclose(
        getattr(x, name)(axis=axis, keepdims=keepdims).numpy(),
        getattr(np, name)(x.numpy(), axis=axis, keepdims=keepdims),
    )
    if not (name == "var" and axis == ()):  # one element varies by nothing
        assert gradcheck(lambda x: getattr(x, name)(axis=axis, keepdims=keepdims) ** 2, x)


@pytest.mark.parametrize("axes", [(1, 2, 0), (2, 0, 1), (0, 2, 1), (-1, 0, 1), None])
def test_transpose_by_any_order(axes):
    weight = np.arange(27.0).reshape(3, 3, 3)
    assert gradcheck(lambda x: np.transpose(x, axes) * weight, rand(3, 3, 3))


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (4, 1), (4, 4), (3, 1, 1), (3, 1, 4)])
def test_broadcasting_sums_over_the_right_axes(shape):
    assert gradcheck(lambda x, b: x * b + b, [rand(3, 4, 4), rand(*shape, seed=1)])


@pytest.mark.parametrize(
    "a, b",
    [
        ((3,), (3,)),
        ((3,), (3, 3)),
        ((3, 3), (3,)),
        ((2, 3, 3), (3,)),
        ((3,), (2, 3, 3)),
        ((3, 3), (2, 3, 3)),
        ((2, 3, 3), (3, 3)),
        ((1, 3, 3), (2, 3, 3)),
        ((2, 1, 3, 3), (4, 3, 3)),
    ],
)
def test_products_of_all_ranks(a, b):
    assert gradcheck(lambda x, y: x @ y, [rand(*a), rand(*b, seed=1)])


# ---- picking elements


def test_repeated_indices_add_up():
    x = rand(4)
    x[np.array([0, 0, 2])].sum().backward()
    assert np.array_equal(x.grad.numpy(), [2, 0, 1, 0])
    table = rand(5, 2)
    F.embedding(np.array([[1, 1], [3, 1]]), table).sum().backward()
    assert np.array_equal(table.grad.numpy()[:, 0], [0, 3, 0, 1, 0])


def test_picking_and_masking_have_a_gradient():
    for f in (
        lambda x: x[1:],
        lambda x: x[..., 0],
        lambda x: x[x.numpy() > 0],
        lambda x: x[None, :, [0, 0]],
        lambda x: np.where(x.numpy() > 0, x, 5.0),
        lambda x: np.take_along_axis(x, np.array([[0, 0, 1, 1]]), 0),
    ):
        assert gradcheck(f, rand(3, 4)).entries[0].analytic.any()


def test_an_index_changed_afterwards_does_not_reach_the_rule():
    x, index = rand(4), np.array([0, 1])
    y = x[index]
    index[:] = 3
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), [1, 1, 0, 0])


class Lending:
    """An array of a library that lends its memory even where a copy is asked for."""

    def __init__(self, places):
        self.places = np.array(places)

    def __setitem__(self, i, value):
        self.places[i] = value

    def __array__(self, dtype=None, copy=None):
        return self.places


@pytest.mark.parametrize(
    "kind",
    [
        array.array,
        lambda _, places: memoryview(np.array(places)),
        lambda _, places: deque(places),
        lambda _, places: Lending(places),
    ],
    ids=["array.array", "memoryview", "deque", "lending"],
)
def test_an_index_of_another_kind_changed_afterwards_does_not_reach_the_rule(kind):
    x, index = rand(4), kind("q", [0, 1])
    y, z = x[index], x[index, None]
    index[0] = index[1] = 3
    (y.sum() + z.sum()).backward()
    assert np.array_equal(x.grad.numpy(), [2, 2, 0, 0])


def test_ties_are_shared():
    x = Tensor(np.array([2.0, 1.0, 2.0, 2.0]), requires_grad=True)
    x.max().backward()
    assert np.allclose(x.grad.numpy(), [1 / 3, 0, 1 / 3, 1 / 3])
    assert gradcheck(lambda x: np.maximum(x, x), rand(3))


# ---- dtypes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_drift_between_float32_and_float64(dtype):
    x = rand(2, 4, dtype=dtype)
    w, b = (
        Tensor(np.ones((3, 4), dtype), requires_grad=True),
        Tensor(np.zeros(3, dtype), requires_grad=True),
    )
    q = rand(1, 2, 4, dtype=dtype)
    results = [
        x / np.sqrt(8),
        x * np.float64(2),
        np.float64(2) * x,
        2 * x,
        x + 1,
        x**2,
        np.pi * x,
        x.mean(),
        x.var(axis=0),
        x.std(),
        x.sum(),
        np.exp(x),
        np.log(x * x + 1),
        np.where(x.numpy() > 0, x, 0.0),
        np.maximum(x, 0),
        F.softmax(x),
        F.log_softmax(x),
        F.gelu(x),
        F.silu(x),
        F.sigmoid(x),
        F.relu(x),
        F.linear(x, w, b),
        F.layer_norm(x, 4),
        F.rms_norm(x, 4),
        F.cross_entropy(x, np.array([0, 1])),
        F.scaled_dot_product_attention(q, q, q),
        F.dropout(x, 0.5, True),
        F.logsumexp(x, axis=-1),
        F.mse_loss(x, x.numpy()),
        x @ x.T,
        np.concatenate([x, x]),
        x.max(axis=0),
        x[0],
        x.cumsum(axis=1),
    ]
    for k, y in enumerate(results):
        assert y.dtype == dtype, k
        for t in (x, w, b, q):
            t.grad = None
        y.sum().backward()
        assert all(t.grad is None or t.grad.dtype == dtype for t in (x, w, b, q)), k


def test_a_float64_operand_promotes_and_the_gradient_comes_back_in_its_own_dtype():
    x = rand(3, dtype=np.float32)
    y = x * np.ones(3)
    y.sum().backward()
    assert y.dtype == np.float64 and x.grad.dtype == np.float32


def test_an_array_on_the_left_of_a_tensor():
    x, a = rand(3), np.array([1.0, 2.0, 3.0])
    for f in (
        lambda x: a + x,
        lambda x: a - x,
        lambda x: a * x,
        lambda x: a / (x * x + 1),
        lambda x: a**x,
        lambda x: np.ones((2, 3)) @ x,
    ):
        y = f(x)
        assert isinstance(y, Tensor) and y.requires_grad
        assert gradcheck(f, x)


# ---- layers


def test_parameters_come_in_the_order_of_definition():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    assert [name for name, _ in model.named_parameters()] == [
        f"{i}.{n}" for i in range(20) for n in ("weight", "bias")
    ]


def test_a_shared_dropout_keeps_no_state():
    drop, x = nn.Dropout(0.5), Tensor(np.ones(100), requires_grad=True)
    first, second = drop(x), drop(x)
    assert not np.array_equal(first.numpy(), second.numpy())
    first.sum().backward()
    assert np.array_equal(x.grad.numpy(), first.numpy())


def test_layer_norm_with_a_weight_that_is_not_one():
    assert gradcheck(
        lambda x, w, b: F.layer_norm(x, 5, w, b), [rand(3, 5), rand(5, seed=1), rand(5, seed=2)]
    )
    assert gradcheck(lambda x, w: F.rms_norm(x, 5, w), [rand(3, 5), rand(5, seed=1)])


def test_softmax_subtracts_the_maximum_of_each_row():
    x = Tensor(np.array([[1e4, 1e4], [-1e4, -1e4], [0.0, 3e4]]), requires_grad=True)
    y = F.softmax(x)
    assert np.array_equal(y.numpy(), [[0.5, 0.5], [0.5, 0.5], [0, 1]])
    y[0, 0].backward()
    assert np.isfinite(x.grad.numpy()).all()
    assert np.allclose(F.log_softmax(x).numpy()[2], [-3e4, 0])


@pytest.mark.parametrize("kind", ["boolean", "float", "nn"])
def test_a_masked_row_is_zero_and_never_nan(kind):
    q, k, v = (rand(2, 4, 3, seed=s) for s in range(3))
    allowed = np.ones((4, 4), bool)
    allowed[2] = False
    if kind == "nn":
        attention = nn.MultiheadAttention(3, 1, bias=False).astype(np.float64)
        x = rand(4, 2, 3)
        out, weights = attention(x, x, x, attn_mask=~allowed)
        assert np.array_equal(out.numpy()[2], np.zeros((2, 3))) and np.array_equal(
            weights.numpy()[:, 2], np.zeros((2, 4))
        )
        out.sum().backward()
        assert np.isfinite(x.grad.numpy()).all()
        return
    mask = allowed if kind == "boolean" else np.where(allowed, 0.0, -np.inf)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert np.array_equal(out.numpy()[:, 2], np.zeros((2, 3)))
    out.backward(np.random.default_rng(0).standard_normal(out.shape))
    assert all(np.isfinite(t.grad.numpy()).all() for t in (q, k, v)) and np.array_equal(
        q.grad.numpy()[:, 2], np.zeros((2, 3))
    )


# ---- numbers


def test_no_hidden_eps():
    x = Tensor(np.array([1e-9, 1e-20]), requires_grad=True)
    assert np.array_equal((1 / x).numpy(), 1 / x.numpy())
    np.log(x).sum().backward()
    assert np.array_equal(x.grad.numpy(), 1 / x.numpy())
    with np.errstate(divide="ignore"):
        assert np.log(Tensor(0.0)).item() == -np.inf and np.isinf((Tensor(1.0) / 0.0).item())


def test_slopes_at_kinks_are_those_of_pytorch():
    zero = Tensor(np.array([0.0]), requires_grad=True)
    for f, slope in (
        (F.relu, 0),
        (abs, 0),
        (lambda x: np.maximum(x, 0.0), 0.5),
        (lambda x: x.clip(0.0, 1.0), 1),
        (lambda x: x**2, 0),
        (lambda x: x**1.0, 1),
    ):
        assert grad(f(zero).sum(), zero)[0].item() == slope


def test_a_checker_with_all_ones_would_pass_what_ours_catches():
    doubled = op(lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True))
    doubled.vjp(lambda g, y, x: 2 * y * (g - (g * y).sum(axis=-1, keepdims=True)))
    x = rand(3, 4)
    assert np.allclose(grad(doubled(x).sum(), x)[0].numpy(), 0, atol=1e-12)  # right by accident
    assert not gradcheck(doubled, x, raise_exception=False)


# ---- recording


def test_no_grad_records_nothing_and_is_left_on_an_error():
    x = rand(3)
    with pytest.raises(KeyError), no_grad():
        assert (x * 2)._node is None
        raise KeyError
    assert (x * 2)._node is not None


def test_an_optimiser_step_leaves_the_graph_alone():
    from tinygrad_attn import optim

    x = rand(3)
    step = optim.SGD([x], lr=0.1)
    for _ in range(3):
        step.zero_grad()
        (x * x).sum().backward()
        step.step()
    assert x.is_leaf and x.requires_grad


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, t: x[t],
        lambda x, t: x[-1 - t],
        lambda x, t: x[t : t + 3, 1:],
        lambda x, t: x[None, t, ..., ::2],
        lambda x, t: x[np.arange(300) % (t + 2) == 0],
        lambda x, t: x[[t, 0, t]],
        lambda x, t: x[:, [0, t, 0]],
        lambda x, t: x[[t, t, 0], [1, 1, 2]],
        lambda x, t: x[np.arange(600) % (17 * t + 100)],
        lambda x, t: x[np.zeros(0, int)],
        lambda x, t: F.embedding(np.array([[t, 0, t]]), x),
        lambda x, t: F.embedding(np.arange(600) % (17 * t + 100), x),
        lambda x, t: np.take_along_axis(x, np.full((1, 64), t), 0),
        lambda x, t: np.take_along_axis(x, np.full((300, 1), t), 1),
    ],
)
def test_a_loop_that_picks_parts_adds_up_in_one_array(pick):
    r = np.random.default_rng(0)
    x = Tensor(r.standard_normal((300, 64)), requires_grad=True)
    alone = [pick(x, t) for t in range(5)]
    weights = [r.standard_normal(y.shape) for y in alone]
    expected = sum(grad((y * w).sum(), x)[0].numpy() for y, w in zip(alone, weights, strict=True))
    with plain():
        loss = sum((pick(x, t) * w).sum() for t, w in enumerate(weights))
        found, again = grad(loss, x, retain_graph=True)[0], grad(loss, x, create_graph=True)[0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(again.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_scatter_is_the_adjoint_of_getitem():
    """<scatter(g), x> = <g, x[index]>"""
    r = np.random.default_rng(0)
    x, index = r.standard_normal(6), np.array([5, 0, 0, -1])
    g = r.standard_normal(4)
    assert np.isclose(ops.scatter(g, index=index, shape=(6,)) @ x, g @ x[index])


@pytest.mark.parametrize(
    "g, index, shape",
    [
        ((2, 2), ([0, 3],), (3, 2)),
        ((2, 2), ([0, -4],), (3, 2)),
        ((2, 100), ([0, 3],), (3, 100)),
        ((2, 20_000), ([0, 9],), (3, 20_000)),
        ((2,), ([0, 3],), (3,)),
        ((2,), ([0, 1], [0, 2]), (3, 2)),
        ((2,), ([0, 1], [0, -3]), (3, 2)),
        ((3, 2), (slice(None), [0, 2]), (3, 2)),
    ],
)
def test_scatter_refuses_a_place_that_is_not_there(g, index, shape):
    """It would have added to another row, as if the first came after the last."""
    index = tuple(np.array(part) if isinstance(part, list) else part for part in index)
    with pytest.raises(IndexError, match="is out of bounds"):
        ops.scatter(Tensor(np.ones(g)), index=index, shape=shape)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_a_single_number_reduced_along_its_axis(name, axis):
    """NumPy and PyTorch let a single number have axis 0 here; the rule once divided by its number of axes, 0."""
    x = Tensor(3.0, requires_grad=True)
    (getattr(x, name)(axis=axis) * 2).backward()
    assert x.grad.shape == () and x.grad == 2


def test_a_single_number_has_no_axis_to_average_over():
    with pytest.raises(IndexError, match="axis 0 is out of bounds"):
        Tensor(3.0).mean(axis=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_infinite_gradient_stops_where_relu_is_flat(dtype):
    x = Tensor(np.array([[-1, 0], [2, 3]], dtype), requires_grad=True)
    F.relu(x).backward(np.array([[np.inf, -np.inf], [-np.inf, 5]], dtype))
    assert x.grad.dtype == dtype and np.array_equal(x.grad.numpy(), [[0, 0], [-np.inf, 5]])


@pytest.mark.parametrize(
    "rows,count,width",
    [
        (27, 2000, 1),
        (27, 2000, 8),
        (3, 5000, 48),
        (3, 5000, 49),
        (100, 300, 64),
        (2, 70_000, 2),
        (7, 3, 1 << 16),
        (9, 40, 0),
        (4, 0, 5),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_picked_many_times_add_up(rows, count, width, dtype):
    """Few numbers one by one, long rows sorted: both add the same whole numbers."""
    rng = np.random.default_rng(0)
    places, g = rng.integers(-rows, rows, count), rng.integers(-3, 4, (count, width)).astype(dtype)
    expected = np.zeros((rows, width), dtype)
    np.add.at(expected, places, g)
    x = Tensor(np.zeros((rows, width), dtype), requires_grad=True)
    x[places].backward(g)
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_columns_picked_many_times_add_up():
    rng, x = np.random.default_rng(0), Tensor(np.zeros((3, 5, 2)), requires_grad=True)
    columns, g = rng.integers(-5, 5, (4, 6)), rng.integers(-3, 4, (3, 4, 6, 2)).astype(float)
    x[:, columns].backward(g)
    expected = np.zeros((3, 5, 2))
    np.add.at(expected, (slice(None), columns), g)
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_more_indices_than_axes_are_refused():
    with pytest.raises(IndexError, match="too many indices"):
        Tensor(np.ones(3))[[0], :]
