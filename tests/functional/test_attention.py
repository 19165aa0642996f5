"""Attention at the sizes and with the masks that people really use, against the formula written out in float64."""

import numpy as np
import pytest

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn
from tinygrad_attn.fast import tuning

LONG = 800  # beyond what is kept whole, and no multiple of a tile


@pytest.fixture(autouse=True, params=["with room for weights", "without"])
def room(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(tuning, "KEPT_SCORES", 0)
        monkeypatch.setattr(tuning, "TILES_BYTES", 0)


def formula(q, k, v, mask, causal, g):
    """Output and gradients (q, k, v, mask) of softmax(q k^T / sqrt(D) + mask) v, every step an array of its own."""
    scale = q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2) * scale
    seen = np.tri(*scores.shape[-2:], dtype=bool) if causal else np.ones(scores.shape[-2:], bool)
    if mask is not None and mask.dtype == bool:
        seen = seen & mask
    elif mask is not None:
        seen = seen & (mask != -np.inf)
        scores = scores + np.where(mask == -np.inf, 0, mask)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    return p @ v, ds @ k * scale, ds.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ g, ds


def check(q, k, v, mask, causal, by_mask, tolerance):
    r = np.random.default_rng(1)
    tensors = [Tensor._of(x, True) for x in (q, k, v)]
    bias = Tensor(mask, requires_grad=True) if by_mask else mask
    y = F.scaled_dot_product_attention(*tensors, bias, is_causal=causal)
    g = r.standard_normal(y.shape).astype(q.dtype)
    y.backward(g)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    out, *grads, dmask = formula(*wide, mask, causal, g.astype(np.float64))
    found = [y, *(t.grad for t in tensors)]
    expected = [out, *grads]
    if by_mask:
        axes = tuple(
            i - 4 for i in range(4) if i < 4 - mask.ndim or mask.shape[i - 4 + mask.ndim] == 1
        )
        found.append(bias.grad)
        expected.append(dmask.sum(axis=axes, keepdims=True).reshape(mask.shape))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == q.dtype and a.shape == b.shape
        np.testing.assert_allclose(
            a.numpy(), b, rtol=0, atol=tolerance * max(1, np.abs(b).max(initial=0))
        )


def heads(dtype, *lengths):
    r = np.random.default_rng(0)
    return [
        r.standard_normal((1, 2, n, width)).astype(dtype)
        for n, width in zip(lengths, (8, 8, 6), strict=True)
    ]


@pytest.mark.parametrize("blocked", [-1e9, "lowest"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [40, LONG])
def test_rows_blocked_by_a_finite_mask(length, dtype, blocked):
    """Beside a row maximum of -1e9 the logarithm of the row sum is rounded away: both must be kept.

    The blocked row's scores are all rounded to the one number, so that its weights are equal; zero queries say the same exactly.
    """
    q, k, v = heads(dtype, length, length, length)
    mask = np.zeros((length, length), dtype)
    mask[3] = np.finfo(dtype).min if blocked == "lowest" else blocked
    q[:, :, 3] = 0
    check(q, k, v, mask, False, True, 2e-4 if dtype == np.float32 else 1e-9)


@pytest.mark.parametrize(("queries", "keys"), [(LONG, 600), (257, 1100), (1, 600), (5, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_and_masks(queries, keys, causal):
    q, k, v = heads(np.float64, queries, keys, keys)
    r = np.random.default_rng(2)
    random = r.random((queries, keys)) < 0.5
    random[queries // 2] = False
    bias = r.standard_normal((queries, keys))
    bias[r.random(bias.shape) < 0.3] = -np.inf
    bias[queries // 3] = -np.inf
    for mask, by_mask in (
        (random, False),
        (bias, True),
        (r.standard_normal(keys), True),
        (np.arange(keys) < keys // 2, False),
        (r.standard_normal((queries, 1)), True),
    ):
        check(q, k, v, mask, causal, by_mask, 1e-10)


def test_memory_in_any_order():
    q, k, v = heads(np.float64, LONG, LONG, LONG)
    check(q[:, :, ::-1], np.asfortranarray(k), v[..., ::-1], None, True, False, 1e-10)
    check(
        np.broadcast_to(q[:, :1], q.shape),
        k[:, ::-1],
        np.moveaxis(np.moveaxis(v, 1, 2).copy(), 2, 1),
        None,
        False,
        False,
        1e-10,
    )


def test_hidden_keys_may_hold_anything_large():
    q, k, v = heads(np.float32, LONG, LONG, LONG)
    seen = np.arange(LONG) < LONG - 3
    k[:, :, -3:] = 1e30
    for causal in (False, True):
        check(q, k[:, :, :-3], v[:, :, :-3], None, causal, False, 1e-4)
        a, b = (
            [Tensor(x, requires_grad=True) for x in (q, k)],
            [Tensor(x, requires_grad=True) for x in (q, k[:, :, :-3])],
        )
        F.scaled_dot_product_attention(*a, v, seen, is_causal=causal).sum().backward()
        F.scaled_dot_product_attention(*b, v[:, :, :-3], is_causal=causal).sum().backward()
        np.testing.assert_allclose(a[0].grad.numpy(), b[0].grad.numpy(), atol=1e-5)
        assert not a[1].grad.numpy()[:, :, -3:].any()


def test_a_float64_mask_leaves_additive_attention_in_float32():
    layer = nn.AdditiveAttention(8, 5, 6)
    one = np.ones((2, 4, 5), np.float32)
    out, weights = layer(np.ones((2, 3, 8), np.float32), one, one, np.zeros((2, 4)))
    assert out.dtype == weights.dtype == np.float32
