"""Whole programs, as `ta.source` writes them, beside this file in texts/.

SOURCE_TEXTS=write python -m pytest tests/program/test_texts.py     # after a change that is meant
"""

import os
from pathlib import Path

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn

TEXTS = Path(__file__).parent / "texts"
rng = np.random.default_rng(0)
SRC = rng.standard_normal((5, 7, 8))


def encoder(**settings):
    return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, **settings)


def squares(layer, *args, **settings):
    return (lambda *args: np.mean(layer(*args, **settings) ** 2)), args, layer


def decoder():
    layer = nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=True)
    memory, padded = rng.standard_normal((5, 6, 8)), np.arange(6) >= np.arange(1, 6)[:, None]

    def loss(tgt, memory, padded):
        y = layer(tgt, memory, tgt_is_causal=True, memory_key_padding_mask=padded)
        return np.mean(y**2)

    return loss, (SRC, memory, padded), layer


def classifier():
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    loss = lambda x, target: F.cross_entropy(net(x), target)
    return loss, (rng.standard_normal((8, 6)), np.arange(8) % 3), net


def language():
    embed, layer = nn.Embedding(11, 8), encoder(norm_first=True)
    model = nn.ModuleList([embed, layer])

    def loss(tokens, targets):
        logits = layer(embed(tokens), is_causal=True) @ embed.weight.T
        return F.cross_entropy(logits.reshape(-1, 11), targets.reshape(-1))

    tokens = np.arange(10).reshape(2, 5)
    return loss, (tokens, tokens + 1), model


def attention():
    q, k, v = (rng.standard_normal((2, 2, n, 3)) for n in (4, 5, 5))
    mask = rng.random((2, 1, 4, 5)) < 0.6
    return F.scaled_dot_product_attention, (q, k, v, mask), None


def own_op():
    @ta.op
    def cube(x):
        return x * x * x

    cube.vjp(lambda g, y, x: g * 3 * x * x)
    return lambda x: cube(x).sum() + (x[0] * x[1]).sum() + (x[:4] ** 2).mean(), (SRC[0],), None


def single():
    layer = encoder(activation="gelu").astype(np.float32)
    return squares(layer, SRC.astype(np.float32))


def ufuncs():
    def loss(x, y):
        a = np.where(x > 0, x, 0.1 * y) + np.maximum(x, 0.5) + np.abs(x) ** 3
        b = np.log(1 + np.exp(-y)) / np.sqrt(y.var(axis=0) + 1) - np.cumsum(x, axis=1)
        return (np.concatenate([a, b]) * np.stack([x, y]).sum()).sum() + np.max(x)

    return loss, (SRC[0], SRC[1]), None


CASES = {
    "encoder": lambda: squares(encoder(), SRC),
    "encoder_pre_norm_causal": lambda: squares(encoder(norm_first=True), SRC, is_causal=True),
    "two_layers": lambda: squares(nn.TransformerEncoder(encoder(), 2), SRC),
    "rms_norm": lambda: squares(nn.RMSNorm(8), SRC),
    **{f.__name__: f for f in (decoder, classifier, language, attention, own_op, single, ufuncs)},
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", CASES)
def test_whole_texts(name):
    f, args, params = CASES[name]()
    text = ta.source(f, *args, params=params).text
    path = TEXTS / f"{name}.txt"
    if os.environ.get("SOURCE_TEXTS") == "write":
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")
