"""Every fused op equals its twin, the composite: value, gradients, and the gradients of those; and F hands over to it."""

import gc
import pickle
import tracemalloc
from itertools import count

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor
from tinygrad_attn.fast import equations as fused
from tinygrad_attn.fast.kernels import tiled
from tinygrad_attn.fast.tuning import KEPT_VECTOR, SECOND_THREAD
from tinygrad_attn.functional import equations as reference

TOLERANCE = {"f": 3e-4, "d": 1e-10}


def orders(f, arrays, seed):
    """f's value, its gradients by the arrays, and the gradients of a random combination of those (by the cotangent too)."""
    rng = np.random.default_rng(seed)
    first, second = ([Tensor(x, requires_grad=True) for x in arrays] for _ in range(2))
    y = f(*first)
    g = rng.standard_normal(y.shape).astype(y.dtype)
    gradients = ta.grad([y], first, [Tensor(g)])
    cotangent = Tensor(g, requires_grad=True)
    recorded = ta.grad([f(*second)], second, [cotangent], create_graph=True)
    mixed = sum((d * rng.standard_normal(d.shape).astype(d.dtype)).sum() for d in recorded)
    return [y, *gradients, *ta.grad([mixed], [*second, cotangent], allow_unused=True)]


def assert_same(op, *arrays, dtype, **static):
    """The op and its twin agree to second order, in value, shape and dtype. Arrays that are None or boolean are constants."""
    free = [i for i, x in enumerate(arrays) if x is not None and x.dtype != bool]

    def call(f):
        def run(*tensors):
            inputs = list(arrays)
            for i, t in zip(free, tensors, strict=True):
                inputs[i] = t
            return f(*inputs, **static)

        return run

    fast, slow = (orders(call(f), [arrays[i] for i in free], 7) for f in (op, op.reference))
    for i, (a, b) in enumerate(zip(fast, slow, strict=True)):
        if b is None or a is None:
            assert a is b is None or not np.any((a or b).data), f"order of things: {i}"
            continue
        assert a.dtype == b.dtype == np.dtype(dtype) and a.shape == b.shape
        scale = 0.1 + np.abs(b.data).max(initial=0)
        np.testing.assert_allclose(
            a.data,
            b.data,
            rtol=0,
            atol=TOLERANCE[dtype] * scale,
            err_msg=f"{op.__name__}, result {i}, {static}",
        )


@pytest.fixture(params="fd")
def dtype(request):
    return request.param


@pytest.fixture
def normal(dtype):
    rng = np.random.default_rng(3)
    return lambda *shape: np.asarray(rng.standard_normal(shape), dtype)


@pytest.mark.parametrize("shape", [(), (1,), (3, 7), (2, 1, 5)])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(shape, approximate, dtype, normal):
    assert_same(fused.gelu, normal(*shape), dtype=dtype, approximate=approximate)
    assert_same(fused.gelu, normal(3, 4).T, dtype=dtype, approximate=approximate)


@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 1, 5), (3, 100_003)])
def test_silu(shape, dtype, normal):
    x, g = (Tensor(3 * normal(*shape), requires_grad=True) for _ in range(2))
    y = F.silu(x)
    np.testing.assert_allclose(y.numpy(), x.numpy() / (1 + np.exp(-x.numpy())), rtol=1e-6)
    slope = 1 / (1 + np.exp(-x.numpy().astype("d")))
    slope = slope * (1 + x.numpy() * (1 - slope))
    np.testing.assert_allclose(ta.grad(y, x, g)[0].numpy(), g.numpy() * slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [5, SECOND_THREAD // 8 + 1])
def test_sigmoid_and_silu_far_out(n, dtype):
    x = np.tile(np.array([0, 1e4, -1e4, 700, -700, np.inf, -np.inf, np.nan], dtype), (n, 1))
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(F.sigmoid(x)[-1], [0.5, 1, 0, 1, 0, 1, 0, np.nan], atol=1e-300)
        np.testing.assert_allclose(
            F.silu(np.tile(x[:, :5], 2))[-1, :5], [0, 1e4, 0, 700, 0], atol=1e-300
        )
        t = Tensor(x, requires_grad=True)
        slope = ta.grad(F.sigmoid(t), t, np.full_like(x, 3))[0].numpy()[-1]
        np.testing.assert_allclose(slope, [0.75, 0, 0, 0, 0, 0, 0, np.nan], atol=1e-300)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(), (1,), (3, 7), (2, 1, 5)])
def test_dropout(shape, p, dtype, normal):
    keep = np.random.default_rng(4).random(shape) >= p
    assert_same(fused.dropout, normal(*shape), dtype=dtype, keep=keep, p=p)
    assert_same(fused.dropout, normal(*shape).T, dtype=dtype, keep=keep.T, p=p)
    assert_same(fused.dropout, normal(*shape[::-1]), dtype=dtype, keep=keep.T, p=p)
    assert F.dropout(Tensor(normal(3, 4), requires_grad=True), 0.5)._node.op is fused.dropout


@pytest.mark.parametrize("op", [fused.softmax, fused.log_softmax])
@pytest.mark.parametrize(
    "shape, axis",
    [
        ((1,), 0),
        ((5,), -1),
        ((3, 7, 5), 0),
        ((3, 7, 5), 1),
        ((3, 7, 5), -1),
        ((2, 1), 1),
        ((5, 131), 0),
        ((1, 130), 0),
        ((2, 3, 129), -2),
        ((2, 3, 64, 2), 1),
    ],
)
def test_softmax(op, shape, axis, dtype, normal):
    assert_same(op, normal(*shape), dtype=dtype, axis=axis)
    assert_same(op, 20 * normal(*shape[::-1]).T, dtype=dtype, axis=axis)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    "shape, axis",
    [
        ((1,), 0),
        ((5,), -1),
        ((3, 7, 5), 1),
        ((3, 7, 5), (0, -1)),
        ((3, 7), (0, 1)),
        ((30, 7, 12), 1),
    ],
)
def test_logsumexp(shape, axis, keepdims, dtype, normal):
    assert_same(fused.logsumexp, normal(*shape), dtype=dtype, axis=axis, keepdims=keepdims)
    assert_same(
        fused.logsumexp, 20 * normal(*shape[::-1]).T, dtype=dtype, axis=axis, keepdims=keepdims
    )


def test_logsumexp_of_extreme_rows(dtype):
    torch = require("torch")
    x = np.array(
        [
            [0, -np.inf, 0],
            [1e30, 0, 1e30],
            [-np.inf] * 3,
            [np.nan, 0, 0],
            [np.inf, 0, 0],
            [-1e30, -2e30, -1e30],
        ],
        dtype,
    )
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y = F.logsumexp(ours, 1)
    np.testing.assert_array_equal(y.numpy(), torch.logsumexp(theirs, 1).detach().numpy())
    torch.logsumexp(theirs, 1).sum().backward()
    y.sum().backward()
    rounded = [1, 5]  # there e^(x - y) is off, in PyTorch 1 in place of a half
    np.testing.assert_allclose(
        np.delete(ours.grad.numpy(), rounded, 0),
        np.delete(theirs.grad.numpy(), rounded, 0),
        rtol=1e-6,
    )
    np.testing.assert_allclose(ours.grad.numpy()[rounded], [[0.5, 0, 0.5]] * 2)


@pytest.mark.parametrize("axis, inner", [(0, 3), (0, 200), (1, 200), (-1, 200)])
def test_softmax_of_extreme_rows(axis, inner, dtype):
    x = np.array(
        [[0, -np.inf, -np.inf], [1e30, 0, -1e30], [-np.inf, 0, 0], [np.nan, 0, 0]], dtype
    )  # each line a row
    expected = np.array([[1, 0, 0], [1, 0, 0], [0, 0.5, 0.5], [np.nan] * 3])
    x, expected = (
        np.moveaxis(np.broadcast_to(a[:, None], (4, inner, 3)), -1, axis) for a in (x, expected)
    )
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_array_equal(fused.softmax(x, axis=axis), expected)
        np.testing.assert_allclose(np.exp(fused.log_softmax(x, axis=axis)), expected, rtol=1e-6)
        for row, op in (
            (-np.inf, fused.softmax),
            (-np.inf, fused.log_softmax),
            (np.inf, fused.softmax),
        ):
            assert np.isnan(op(np.full_like(x, row), axis=axis)).all()


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 2), (7, 13)])
def test_norms(shape, ndim, dtype, normal):
    x, weight, bias = normal(*shape), normal(*shape[-ndim:]), normal(*shape[-ndim:])
    for w, b in ((weight, bias), (weight, None), (None, None)):
        assert_same(fused.layer_norm, x, w, b, dtype=dtype, ndim=ndim)
        assert_same(fused.rms_norm, x, w, dtype=dtype, ndim=ndim)
    assert_same(fused.layer_norm, np.moveaxis(x, 0, -1), dtype=dtype, eps=0.1)


@pytest.mark.parametrize("width", [2, 64])  # 64 x 64 are so many products that threads share them
def test_the_gradient_of_a_bias_over_very_many_rows_keeps_its_digits(width):
    x, g = np.random.default_rng(0).random((2, 2**17, width), np.float32)
    bias = Tensor(np.zeros(width, np.float32), requires_grad=True)
    F.linear(x, Tensor(np.eye(width, dtype=np.float32)), bias).backward(Tensor(g))
    assert bias.grad.dtype == np.float32
    np.testing.assert_allclose(bias.grad.numpy(), g.sum(0, np.float64), rtol=1e-6)


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3)])
def test_linear(lead, dtype, normal):
    for bias in (normal(4), None):
        assert_same(fused.linear, normal(*lead, 5), normal(4, 5), bias, dtype=dtype)
        assert_same(
            fused.linear, normal(5, *lead).swapaxes(0, -1), normal(5, 5)[:, ::-1], None, dtype=dtype
        )


def test_a_linear_layer_is_one_op_wherever_it_can_be(dtype, normal):
    x, weight, bias = (
        normal(2, 5).astype(dtype),
        normal(4, 5).astype(dtype),
        normal(4).astype(dtype),
    )
    unpickled = pickle.loads(pickle.dumps(weight))  # whose dtype is equal but another object
    for w in (weight, unpickled, np.asfortranarray(weight)):
        for b in (bias, pickle.loads(pickle.dumps(bias)), None):
            y = F.linear(x, Tensor._of(w, True), b)
            assert y._node.op is fused.linear
            assert np.allclose(y.numpy(), x @ weight.T + (0 if b is None else bias), atol=1e-5)
    for a, w, b in (
        (x[:0], weight, bias),
        (x, weight, bias.astype("e")),
        (x.astype("e"), weight, bias),
        (x, weight[0], None),
        (x, weight, bias[0]),
    ):
        y = F.linear(a, Tensor._of(w, True), b)
        assert y._node.op is not fused.linear and np.allclose(
            y.numpy(), a @ w.T + (0 if b is None else b), atol=1e-2
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6,), (5, 6), (4, 6, 3), (2, 6, 3, 2)])
def test_cross_entropy(shape, reduction, dtype, normal):
    rng = np.random.default_rng(0)
    target = rng.integers(0, 6, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
    if target.size > 1:
        target.flat[1] = 99
    for weight in (None, rng.random(6).astype(dtype)):
        for smoothing in (0.0, 0.2):
            settings = {
                "target": target,
                "reduction": reduction,
                "label_smoothing": smoothing,
                "ignore_index": 99,
            }

            def loss(x, weight=weight, **static):
                return fused.cross_entropy(x, weight, **static)

            loss.__name__, loss.reference = (
                "cross_entropy",
                lambda x, weight=weight, **static: fused.cross_entropy.reference(
                    x, weight, **static
                ),
            )
            assert_same(loss, 3 * normal(*shape), dtype=dtype, **settings)


def masks(lead, t, s, normal):
    rng = np.random.default_rng(0)
    yield None
    yield rng.random((t, s)) > 0.3
    yield (rng.random((*lead, t, s)) > 0.3) & (np.arange(t) % 2 == 1)[
        :, None
    ]  # some rows may look at nothing
    yield normal(*lead[-1:], t, s)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lead, t, s", [((), 5, 5), ((1,), 1, 3), ((2, 3), 4, 7), ((2, 2), 7, 3)])
def test_attention(lead, t, s, causal, dtype, normal):
    keep = np.random.default_rng(1).random((*lead, t, s)) > 0.3
    for mask in masks(lead, t, s, normal):
        for dropout in ({}, {"keep": keep, "keep_scale": 1.4}):
            assert_same(
                fused.attention,
                normal(*lead, t, 4),
                normal(*lead, s, 4),
                normal(*lead, s, 3),
                mask,
                dtype=dtype,
                scale=0.4,
                is_causal=causal,
                **dropout,
            )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lead, t, s", [((), 5, 5), ((1,), 1, 3), ((2, 3), 4, 7), ((2, 2), 7, 3)])
def test_attention_weights(lead, t, s, causal, dtype, normal):
    for mask in masks(lead, t, s, normal):
        assert_same(
            fused.attention_weights,
            normal(*lead, t, 4),
            normal(*lead, s, 4),
            mask,
            dtype=dtype,
            scale=0.4,
            is_causal=causal,
        )


def test_attention_of_inputs_that_broadcast(dtype, normal):
    assert_same(
        fused.attention_weights,
        normal(2, 3, 4, 5),
        normal(1, 3, 6, 5),
        normal(4, 6),
        dtype=dtype,
        scale=0.4,
    )
    mask = np.arange(12).reshape(2, 1, 1, 6) % 5 > 0
    assert_same(
        fused.attention_weights, normal(3, 4, 5), normal(3, 6, 5), mask, dtype=dtype, scale=0.4
    )
    assert_same(
        fused.attention,
        normal(2, 3, 4, 5),
        normal(1, 3, 6, 5),
        normal(3, 6, 2),
        normal(4, 6),
        dtype=dtype,
        scale=0.4,
    )
    assert_same(
        fused.attention,
        normal(3, 4, 5),
        normal(3, 6, 5),
        normal(3, 6, 2),
        np.ones((2, 1, 1, 6), bool),
        dtype=dtype,
        scale=0.4,
    )
    assert_same(
        fused.attention, normal(3, 4, 6, 4), normal(3, 4), normal(3, 4), dtype=dtype, scale=0.4
    )  # 3 keys of 4 numbers, 3 x 4 heads


@pytest.mark.parametrize("causal", [False, True])
def test_packed_attention(causal, dtype, normal):
    for mask in masks((2, 2), 5, 5, normal):
        assert_same(
            fused.packed_attention,
            normal(2, 5, 24),
            mask,
            dtype=dtype,
            num_heads=2,
            scale=0.4,
            is_causal=causal,
        )
    keep = np.random.default_rng(1).random((2, 3, 5, 5)) > 0.3
    assert_same(
        fused.packed_attention,
        normal(5, 2, 36).swapaxes(0, 1),
        dtype=dtype,
        num_heads=3,
        scale=0.4,
        keep=keep,
        keep_scale=1.4,
    )


def test_heads_merge_without_a_copy():
    x = np.ones((2, 3, 5, 4), "f")
    y = fused.attention(x, x, x, scale=1.0)
    assert np.shares_memory(y, y.swapaxes(1, 2).reshape(2, 5, 12))


def test_a_cotangent_that_is_one_number_broadcast():
    x, w = (
        Tensor(np.random.default_rng(0).standard_normal((3, 4)), requires_grad=True),
        np.arange(8.0).reshape(2, 4),
    )
    for f in (
        lambda x: fused.linear(x, w),
        lambda x: fused.layer_norm(x) * w[1],
        fused.gelu,
        fused.softmax,
        lambda x: fused.attention(x, x, x, scale=1.0),
    ):
        plain, broadcast = (
            ta.grad([f(x)], [x], [Tensor(g)])[0]
            for g in (np.ones(f(x).shape), np.broadcast_to(1.0, f(x).shape))
        )
        np.testing.assert_array_equal(plain.data, broadcast.data)


def test_gradients_are_fresh():
    """The engine adds to what these rules return and hands it out, so it may share memory with nothing else."""
    rng = np.random.default_rng(0)

    def new(*shape):
        return Tensor(rng.standard_normal(shape), requires_grad=True)

    for op, inputs, static in (
        *((op, [new(3, 4)], {}) for op in (fused.gelu, fused.softmax, fused.log_softmax)),
        (fused.logsumexp, [new(3, 4)], {"axis": 0}),
        (fused.cross_entropy, [new(3, 4)], {"target": np.array([0, 1, 2])}),
        (fused.linear, [new(3, 4), new(2, 4), new(2)], {}),
        (fused.dropout, [new(3, 4)], {"keep": rng.random((3, 4)) > 0.5, "p": 0.5}),
        (fused.layer_norm, [new(3, 4), new(4), new(4)], {}),
        (fused.rms_norm, [new(3, 4), new(4)], {}),
        (fused.attention, [new(2, 3, 4), new(2, 5, 4), new(2, 5, 4), new(3, 5)], {"scale": 0.5}),
        (fused.attention_weights, [new(2, 3, 4), new(2, 5, 4), new(2, 3, 5)], {"scale": 0.5}),
        (fused.packed_attention, [new(2, 3, 12), new(3, 3)], {"scale": 0.5, "num_heads": 2}),
    ):
        y = op(*inputs, **static)
        g = Tensor(rng.standard_normal(y.shape))
        y.backward(g, retain_graph=True)
        once = [x.grad.numpy().copy() for x in inputs]
        held = [x._data for x in (y, g, *inputs, *(x.grad for x in inputs))]
        assert not any(np.shares_memory(a, b) for i, a in enumerate(held) for b in held[:i])
        y.backward(g)
        for x, before in zip(inputs, once, strict=True):
            np.testing.assert_allclose(x.grad.numpy(), 2 * before, rtol=1e-12)


def cases():
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s) for s in ((3, 6), (4, 6), 6))
    yield "gelu", lambda x: F.gelu(x), x
    yield "softmax", lambda x: F.softmax(x, 0), x
    yield "log_softmax", lambda x: F.log_softmax(x), x
    yield "logsumexp", lambda x: F.logsumexp(x, 1), x
    yield "layer_norm", lambda x: F.layer_norm(x, 6, b.astype(x.dtype)), x
    yield "rms_norm", lambda x: F.rms_norm(x, 6), x
    yield "linear", lambda x: F.linear(x, w.astype(x.dtype)), x
    yield "cross_entropy", lambda x: F.cross_entropy(x, np.array([0, 5, 2])), x
    yield "attention", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), x


@pytest.mark.parametrize("name, f, x", list(cases()), ids=[name for name, _, _ in cases()])
def test_functional_hands_over_to_the_fused_op_and_for_other_operands_to_the_composite(
    name, f, x, monkeypatch
):
    called = []
    op = getattr(fused, name)
    monkeypatch.setattr(
        op, "forward", lambda *a, before=op.forward, **k: called.append(name) or before(*a, **k)
    )
    expected = f(Tensor(x)).data
    assert called == [name]
    half = f(Tensor(x.astype(np.float16)))  # float16 has no kernel
    assert called == [name] and half.dtype == np.float16
    np.testing.assert_allclose(half.data, expected, atol=0.02, rtol=0.02)


def test_a_learned_class_weight_gets_its_gradient():
    x, weight = (
        Tensor([[1.0, 2.0, 3.0]], dtype=np.float64),
        Tensor([1.0, 2.0, 3.0], requires_grad=True, dtype=np.float64),
    )
    F.cross_entropy(x, np.array([1]), weight, reduction="sum").backward()
    np.testing.assert_allclose(weight.grad.data, [0, 1.4076059644, 0])


@pytest.mark.parametrize("kind", ["causal", "boolean", "float"])
def test_attention_is_torchs(kind, dtype, normal):
    torch = require("torch")
    q, k, v, g = normal(2, 3, 33, 8), normal(2, 3, 33, 8), normal(2, 3, 33, 5), normal(2, 3, 33, 5)
    mask = {
        "causal": None,
        "boolean": np.random.default_rng(0).random((2, 1, 33, 33)) > 0.4,
        "float": normal(33, 33),
    }[kind]
    ours, theirs = (
        [Tensor(x, requires_grad=True) for x in (q, k, v)],
        [torch.tensor(x, requires_grad=True) for x in (q, k, v)],
    )
    y = F.scaled_dot_product_attention(*ours, mask, is_causal=kind == "causal")
    t = torch.nn.functional.scaled_dot_product_attention(
        *theirs, None if mask is None else torch.tensor(mask), is_causal=kind == "causal"
    )
    y.backward(Tensor(g))
    t.backward(torch.tensor(g))
    for a, b in zip(
        (y, *(x.grad for x in ours)), (t.detach(), *(x.grad for x in theirs)), strict=True
    ):
        np.testing.assert_allclose(a.data, b.numpy(), rtol=0, atol=1e-5 if dtype == "f" else 1e-12)


lengths = count(KEPT_VECTOR + 1)  # each its own, or one that is kept would be there for the next


@pytest.mark.parametrize(
    "use",
    [
        lambda x: F.linear(x[:, None], np.ones((1, 1), "f"), Tensor([0.0], requires_grad=True)),
        lambda x: F.linear(
            x[:, None], np.ones((32, 1), "f"), Tensor([0.0] * 32, requires_grad=True)
        ),
        lambda x: F.cross_entropy(np.stack([x, x], 1), np.zeros(x.size, int)),
        lambda x: F.softmax(x),
        lambda x: F.log_softmax(x),
        lambda x: F.layer_norm(x, x.shape),
        lambda x: F.rms_norm(x, x.shape),
    ],
    ids=[
        "linear",
        "linear of much work",
        "cross-entropy",
        "softmax",
        "log-softmax",
        "layer norm",
        "rms norm",
    ],
)
def test_no_vector_as_long_as_a_data_set_is_kept(use):
    gc.collect()
    tracemalloc.start()
    use(Tensor(np.zeros(next(lengths), "f"), requires_grad=True)).sum().backward()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < KEPT_VECTOR


@pytest.mark.parametrize(
    "attend",
    [
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: fused.packed_attention(np.concatenate([x[0]] * 3, -1), num_heads=2, scale=0.5),
    ],
    ids=["attention", "packed"],
)
def test_long_attention_keeps_weights_only_for_a_backward_pass(monkeypatch, attend):
    kept = []
    forward = tiled.forward
    monkeypatch.setattr(
        tiled, "forward", lambda *args: kept.append((state := forward(*args)).kept) or state
    )
    x = Tensor(np.ones((1, 2, 800, 8), "f"), requires_grad=True)
    attend(x)
    with ta.no_grad():
        attend(x)
    ta.checkpoint(attend, x)
    assert [len(tiles) > 0 for tiles in kept] == [True, False, False]


def test_the_composites_are_the_specification_and_have_no_rules():
    for name in (
        "gelu",
        "softmax",
        "log_softmax",
        "logsumexp",
        "cross_entropy",
        "layer_norm",
        "rms_norm",
        "linear",
        "attention",
        "attention_weights",
        "packed_attention",
    ):
        op = getattr(fused, name)
        assert op.reference.__module__ == reference.__name__
