"""compare_with_torch: the shipped layers agree; planted differences are found at the right module and explained."""

import numpy as np
import pytest
from support import require

torch = require("torch")

import tinygrad_attn.functional as F
from tinygrad_attn import nn, op
from tinygrad_attn.check import compare_with_torch


def rand(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


X, CAUSAL = rand(5, 3, 8), np.triu(np.ones((5, 5), bool), 1)
LAYER = dict(d_model=8, nhead=2, dim_feedforward=16, dropout=0.0)


def compare(ours, theirs, *inputs, **keywords):
    return compare_with_torch(ours, theirs, *inputs, verbose=False, **keywords)


SAME = {
    "linear": (lambda n: n.Linear(8, 4), (X,), {}),
    "embedding": (lambda n: n.Embedding(7, 4), (np.array([[1, 2], [2, 6]]),), {}),
    "sequential": (lambda n: n.Sequential(n.Linear(8, 16), n.GELU(), n.LayerNorm(16)), (X,), {}),
    "attention": (lambda n: n.MultiheadAttention(8, 2), (X, X, X), dict(attn_mask=CAUSAL)),
    "encoder": (
        lambda n: n.TransformerEncoderLayer(**LAYER, norm_first=True, batch_first=True),
        (X,),
        {},
    ),
    "decoder": (lambda n: n.TransformerDecoderLayer(**LAYER), (X, X), dict(tgt_mask=CAUSAL)),
}


@pytest.mark.parametrize("name", SAME)
def test_our_layers_are_torch_layers(name):
    make, inputs, keywords = SAME[name]
    ours, theirs = make(nn), make(torch.nn)
    before = [p.detach().clone() for p in theirs.parameters()]
    report = compare(ours, theirs, *inputs, **keywords)
    assert report and report.explanation == "" and str(report).endswith("the same as torch"), report
    assert max([*report.values.values(), *report.gradients.values()]) < 1e-12
    assert all(torch.equal(a, b) for a, b in zip(before, theirs.parameters(), strict=True))
    assert all(p.grad is None and p.dtype == np.float32 for p in ours.parameters())


class Attention(nn.Module):
    """Attention by hand; `mask` applies the mask to the scores."""

    def __init__(self, mask):
        self.in_proj_weight = nn.Parameter(np.zeros((24, 8), np.float32))
        self.in_proj_bias = nn.Parameter(np.zeros(24, np.float32))
        self.out_proj, self.mask = nn.Linear(8, 8), mask

    def forward(self, query, key, value, attn_mask):
        weights, biases = self.in_proj_weight.reshape(3, 8, 8), self.in_proj_bias.reshape(3, 8)
        q, k, v = (
            F.split_heads(np.swapaxes(x @ w.T + b, 0, 1), 2)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        scores = self.mask(attn_mask.numpy(), q @ k.mT / 2)
        return self.out_proj(np.swapaxes(F.merge_heads(F.softmax(scores) @ v), 0, 1)), None


class Layer(nn.Module):
    """A Linear or LayerNorm under the usual names; `f` is its forward."""

    def __init__(self, f, *shape):
        self.weight, self.bias = (
            nn.Parameter(np.ones(shape, np.float32)),
            nn.Parameter(np.zeros(8, np.float32)),
        )
        self.f = f

    def forward(self, x):
        return self.f(x, self.weight, self.bias)


half = op(lambda x: x * 1.0)
half.vjp(lambda g, y, x: g * 0.5)
attention = lambda: torch.nn.MultiheadAttention(8, 2)
MASK, QKV = dict(attn_mask=CAUSAL), (X, X, X)
between = lambda n, layer: n.Sequential(n.Linear(8, 8), layer, n.Linear(8, 2))
DIFFERENT = {  # ours, torch's, inputs, keywords, the first tensor that differs, words of the explanation
    "weight transposed": (Layer(lambda x, w, b: x @ w + b, 8, 8), torch.nn.Linear(8, 8), (X,), {}, "(whole)", ""),
    "VJP": (Layer(lambda x, w, b: half(x @ w.T + b), 8, 8), torch.nn.Linear(8, 8), (X,), {}, "weight", "to find the op whose VJP is wrong"),
    "detached": (Layer(lambda x, w, b: x @ w.detach().T + b, 8, 8), torch.nn.Linear(8, 8), (X,), {}, "weight", "leaves the graph"),
    "eps": (between(nn, nn.LayerNorm(8, eps=1e-12)), between(torch.nn, torch.nn.LayerNorm(8)), (X,), {}, "1", ""),
    "GELU": (between(nn, nn.GELU("tanh")), between(torch.nn, torch.nn.GELU()), (X,), {}, "1", ""),
    "mask inverted": (Attention(lambda m, s: np.where(m, s, -1e30)), attention(), QKV, MASK, "(whole)", ""),
    "mask left out": (Attention(lambda m, s: s), attention(), QKV, MASK, "(whole)", ""),
    "triu 2": (Attention(lambda m, s: np.where(np.triu(m, 2), -1e30, s)), attention(), QKV, MASK, "(whole)", ""),
    "norm_first": (nn.TransformerEncoderLayer(**LAYER, norm_first=True), torch.nn.TransformerEncoderLayer(**LAYER), (X,), {}, None, ""),
    "batch_first": (nn.TransformerEncoderLayer(**LAYER, batch_first=True), torch.nn.TransformerEncoderLayer(**LAYER), (X,), {}, None, ""),
    "dropout": (nn.TransformerEncoderLayer(8, 2, 16, 0.5), torch.nn.TransformerEncoderLayer(8, 2, 16, 0.5), (X,), {}, None, "two calls to the same module give different results"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_planted_difference_is_found(name):
    ours, theirs, inputs, keywords, first, words = DIFFERENT[name]
    with torch.no_grad():  # norms with weights of ones would hide mistakes
        for p in theirs.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    report = compare(ours, theirs, *inputs, **keywords)
    assert not report and (words in report.explanation if words else not report.explanation), report
    assert first is None or report.first == first, report


def test_weights_of_other_names_are_refused():
    with pytest.raises(ValueError, match="missing: 'weight'"):
        compare(nn.LayerNorm(8), torch.nn.Sequential(torch.nn.LayerNorm(8)), X)


class Both(nn.Module):
    def __init__(self, make, factor):
        self.make, self.factor = make, factor

    def forward(self, x):
        return self.make(x * 2, x * self.factor)


class TorchBoth(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x * 2, x * 4)


@pytest.mark.parametrize(
    "make, place",
    [(lambda a, b: [a, (b, None)], "[1]"), (lambda a, b: {"a": a, "b": b}, "[1]")],
)
def test_every_tensor_of_a_result_is_compared(make, place):
    report = compare(Both(make, 3), TorchBoth(make), X)
    assert not report and report.first == f"(whole){place}", report
    assert compare(Both(make, 4), TorchBoth(make), X)


def test_what_cannot_be_compared_is_said(capsys):
    linear = nn.Linear(8, 4), torch.nn.Linear(8, 4)
    with pytest.raises(ValueError, match="nothing was compared"):
        compare(*linear, X * np.nan)
    with pytest.raises(TypeError, match="must return a floating-point tensor"):
        compare(Both(lambda a, b: a.numpy(), 4), TorchBoth(lambda a, b: a), X)
    assert compare_with_torch(*linear, X) and "the same as torch" in capsys.readouterr().out
    with pytest.raises(TypeError, match="needs a module of this package and then a torch"):
        compare(*reversed(linear), X)
