"""Random models: written out by `ta.source`, they give the numbers that they give themselves.

    MODELS_FUZZ_N=300 python -m pytest tests/program/test_models_fuzz.py     # many
    MODELS_FUZZ_SEED=37 MODELS_FUZZ_N=1 python -m pytest tests/program/test_models_fuzz.py     # one again

Layers with buffers, masks, whole numbers, keyword arguments, quotients by rows, numbers and empty arrays, several results.
"""

import functools
import os

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn

SEED = int(os.environ.get("MODELS_FUZZ_SEED", "0"))
N = int(os.environ.get("MODELS_FUZZ_N", "36"))


class Scaled(nn.Module):
    """Has buffers, a number, a Tensor in a dict of lists, and a keyword."""

    def __init__(self, n, r):
        super().__init__()
        self.linear, self.factor = nn.Linear(n, n), float(r.random())
        self.register_buffer("mean", Tensor(r.standard_normal(n)))
        self.table = {"shift": [Tensor(r.standard_normal(n))]}

    def forward(self, x, *, times=1.0):
        return (self.linear(x) - self.mean) * self.factor + times * self.table["shift"][0]


class Tied(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(9, n), nn.LayerNorm(n)

    def forward(self, ids):
        return self.norm(self.embedding(ids)) @ self.embedding.weight.T


QUOTIENTS = (
    lambda x: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-3),
    lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
    lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.01),
    lambda x: x / (1 + np.abs(x).sum(axis=-1, keepdims=True)),
    lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    lambda x: F.rms_norm(x, x.shape[-1]) / (1 + np.exp(x).mean(axis=0, keepdims=True)),
)


def scaled(r, x):
    layer = Scaled(x.shape[-1], r)
    return functools.partial(layer.forward, times=0.7), (x,), layer


def encoder(r, x):
    norm_first, gelu, padded, masked = r.integers(0, 2, 4).astype(bool)
    layer = nn.TransformerEncoderLayer(
        x.shape[-1],
        2,
        7,
        activation="gelu" if gelu else "relu",
        norm_first=norm_first,
        batch_first=True,
    ).eval()
    padding = r.random(x.shape[:2]) < 0.4 if padded else None
    mask = np.where(r.random((x.shape[1],) * 2) < 0.4, -np.inf, 0.0) if masked else None
    f = lambda x: layer(x, src_mask=mask, src_key_padding_mask=padding)
    return f, (x,), layer


def decoder(r, x):
    layer = nn.TransformerDecoderLayer(x.shape[-1], 2, 7, dropout=0.0, batch_first=True)
    memory, causal = r.standard_normal((len(x), 3, x.shape[-1])), bool(r.integers(2))
    for p in layer.parameters():
        p.requires_grad = bool(r.integers(4))
    return lambda x, memory: layer(x, memory, tgt_is_causal=causal), (x, memory), layer


def tied(r, x):
    model = Tied(x.shape[-1])
    ids, labels = r.integers(0, 9, (2, *x.shape[:2]))
    labels[r.random(labels.shape) < 0.2] = -100
    return lambda ids, y: F.cross_entropy(model(ids).mT, y), (ids, labels), model


def heads(r, x):
    q, k, v = (r.standard_normal((2, 2, n, 3)) for n in (4, 5, 5))
    mask = r.random((2, 1, 4, 5)) < 0.6
    return lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (q, k, v, mask), None


def quotients(r, x):
    a, b = (QUOTIENTS[i] for i in r.integers(0, len(QUOTIENTS), 2))
    return lambda x: a(b(x)) * x, (x,), None


def small(r, x):
    a, b = np.asarray(r.standard_normal(shape := [(), (0, 3), (1,)][r.integers(3)])), np.ones(shape)
    return lambda a, b: np.where(a > b, np.sin(a), 2 * b) * a, (a, b), None


KINDS = (scaled, encoder, decoder, tied, heads, quotients, small)
RETURNS = (
    lambda y: y,
    lambda y: (y, (y * y).sum()),
    lambda y: {"y": y, "all": [y.sum(), 2 * y]},
)


def flat(y):
    y = y.values() if isinstance(y, dict) else y
    return [v for part in y for v in flat(part)] if not hasattr(y, "shape") else [y]


def own(f, args, model):
    """Results and gradients as usual, by the names of parameters and the places of arguments."""
    floating = lambda a: getattr(a, "dtype", None) == np.float64
    args = [Tensor(a, requires_grad=True) if floating(a) else a for a in args]
    ys = flat(f(*args))
    leaves = {i: a for i, a in enumerate(args) if isinstance(a, Tensor)}
    if model is not None:
        leaves |= {n: p for n, p in model.named_parameters() if p.requires_grad}
    seeds = [np.random.default_rng(y.ndim).standard_normal(y.shape) for y in ys]
    total = sum((y * g).sum() for y, g in zip(ys, seeds))
    found = ta.grad(total, list(leaves.values()), allow_unused=True)
    zero = lambda g, leaf: np.zeros(leaf.shape) if g is None else g.numpy()
    by = {n: zero(g, leaves[n]) for n, g in zip(leaves, found)}
    return [y.numpy() for y in ys], by, seeds


def assert_close(mine, expected, size=1.0):
    assert np.shape(mine) == expected.shape
    size = max(size, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(mine, expected, rtol=1e-10, atol=1e-10 * size)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("seed", range(SEED, SEED + N))
def test_random_models(seed):
    r = np.random.default_rng([seed, 30_000])
    x = r.standard_normal((r.integers(1, 4), r.integers(1, 5), r.choice([4, 6])))
    f, args, model = KINDS[seed % len(KINDS)](r, x)
    several = lambda *args: RETURNS[seed % len(RETURNS)](f(*args))
    others = [a + 0.1 * r.standard_normal(a.shape) if a.dtype == np.float64 else a for a in args]
    program = ta.source(f, *args, params=model)
    forward = ta.source(several, *args, params=model, backward=False)
    assert max(map(len, (program.text + forward.text).splitlines())) <= 100
    for arrays in (args, [np.asarray(a) for a in others]):
        values, _, _ = own(several, arrays, model)
        for a, b in zip(flat(forward(*arrays)), values, strict=True):
            assert_close(a, b)
        (value,), gradients, (seed_,) = own(f, arrays, model)
        size = max((np.abs(g).max(initial=0) for g in gradients.values()), default=1.0)
        given, shares = program(*arrays, *([seed_] if value.shape else []))
        assert_close(given, value)
        names = [n for n in program._arguments if n != "d_output"]
        for n, g in gradients.items():
            factor = 1.0 if value.shape else float(seed_)
            share = shares.get(names[n] if isinstance(n, int) else n, np.zeros(g.shape))
            assert_close(factor * share, g, size)
