"""The known traps: each has given a wrong gradient in some published small engine.  One test for each."""

import gc
import sys
import weakref

import numpy as np
import pytest

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, op
from tinygrad_attn.check import gradcheck


def rand(*shape, seed=0, dtype=np.float64):
    return Tensor(
        np.random.default_rng(seed).standard_normal(shape).astype(dtype), requires_grad=True
    )


# ---- uses and order


def test_one_layer_called_twice_before_backward():
    layer, a, b = nn.Linear(3, 3).astype(np.float64), rand(2, 3), rand(2, 3, seed=1)
    assert gradcheck(
        lambda a, b: layer(a) * np.tanh(layer(b)), [a, b], params=list(layer.parameters())
    )


def test_gradients_are_not_aliased_between_parents():
    a, b = rand(3), rand(3, seed=1)
    older = a * 3
    ((a + b) + older).sum().backward()
    assert np.array_equal(a.grad.numpy(), [4, 4, 4]) and np.array_equal(b.grad.numpy(), [1, 1, 1])
    assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())


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
    """100,000 ops with the garbage collector off (a million take the same, ten times as long)."""
    n = 100_000
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
        *(x / np.sqrt(8), x * np.float64(2), np.float64(2) * x, 2 * x, x + 1, x**2, np.pi * x),
        *(
            x.mean(),
            x.var(axis=0),
            x.std(),
            x.sum(),
            x.max(axis=0),
            x[0],
            x.cumsum(axis=1),
            x @ x.T,
        ),
        *(np.exp(x), np.where(x.numpy() > 0, x, 0.0), np.maximum(x, 0), np.concatenate([x, x])),
        *(F.softmax(x), F.gelu(x), F.silu(x), F.linear(x, w, b), F.layer_norm(x, 4)),
        *(F.rms_norm(x, 4), F.dropout(x, 0.5, True), F.logsumexp(x, axis=-1)),
        *(F.cross_entropy(x, np.array([0, 1])), F.mse_loss(x, x.numpy())),
        F.scaled_dot_product_attention(q, q, q),
    ]
    for k, y in enumerate(results):
        assert y.dtype == dtype, k
        for t in (x, w, b, q):
            t.grad = None
        y.sum().backward()
        assert all(t.grad is None or t.grad.dtype == dtype for t in (x, w, b, q)), k


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


# ---- numbers


def test_no_hidden_eps():
    x = Tensor(np.array([1e-9, 1e-20]), requires_grad=True)
    assert np.array_equal((1 / x).numpy(), 1 / x.numpy())
    np.log(x).sum().backward()
    assert np.array_equal(x.grad.numpy(), 1 / x.numpy())
    with np.errstate(divide="ignore"):
        assert np.log(Tensor(0.0)).item() == -np.inf and np.isinf((Tensor(1.0) / 0.0).item())


def test_a_checker_with_all_ones_would_pass_what_ours_catches():
    doubled = op(lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True))
    doubled.vjp(lambda g, y, x: 2 * y * (g - (g * y).sum(axis=-1, keepdims=True)))
    x = rand(3, 4)
    assert np.allclose(grad(doubled(x).sum(), x)[0].numpy(), 0, atol=1e-12)  # right by accident
    assert not gradcheck(doubled, x, raise_exception=False)


# ---- recording


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_a_single_number_reduced_along_its_axis(name, axis):
    """NumPy and PyTorch let a single number have axis 0 here; the rule once divided by its number of axes, 0."""
    x = Tensor(3.0, requires_grad=True)
    (getattr(x, name)(axis=axis) * 2).backward()
    assert x.grad.shape == () and x.grad == 2
