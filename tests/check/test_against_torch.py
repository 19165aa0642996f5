"""compare_with_torch: the shipped layers agree; planted differences are found, at the right module, with the right explanation."""

import gc
import math
import re
import weakref

import numpy as np
import pytest
from support import require

torch = require("torch")

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn
from tinygrad_attn.check import compare_with_torch


def rand(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


X = rand(5, 3, 8)
CAUSAL = np.triu(np.ones((5, 5), bool), 1)
LAYER = dict(d_model=8, nhead=2, dim_feedforward=16, dropout=0.0)


def compare(ours, theirs, *inputs, **keywords):
    return compare_with_torch(ours, theirs, *inputs, verbose=False, **keywords)


def test_at_a_prompt_the_comparison_shows_as_its_table():
    result = compare(nn.Linear(8, 4), torch.nn.Linear(8, 4), X)
    assert repr(result) == str(result) and "the same as torch" in repr(result)


@pytest.mark.parametrize(
    "make, inputs, keywords",
    [
        (lambda n: n.Linear(8, 4), (X,), {}),
        (lambda n: n.LayerNorm(8), (X,), {}),
        (lambda n: n.Embedding(7, 4), (np.array([[1, 2], [2, 6]]),), {}),
        (lambda n: n.Sequential(n.Linear(8, 16), n.GELU(), n.Linear(16, 2)), (X,), {}),
        (lambda n: n.MultiheadAttention(8, 2), (X, X, X), dict(attn_mask=CAUSAL)),
        (lambda n: n.TransformerEncoderLayer(**LAYER, norm_first=True, batch_first=True), (X,), {}),
        (lambda n: n.TransformerDecoderLayer(**LAYER), (X, X), dict(tgt_mask=CAUSAL)),
    ],
    ids=["linear", "layer norm", "embedding", "sequential", "attention", "encoder", "decoder"],
)
def test_our_layers_are_torch_layers(make, inputs, keywords):
    report = compare(make(nn), make(torch.nn), *inputs, **keywords)
    assert report and report.explanation == "", report
    assert max(max(row.value, row.gradient) for row in report.rows) < 1e-12
    assert str(report).endswith("the same as torch")


class TransposedLinear(nn.Linear):
    def forward(self, x):
        return x @ self.weight + self.bias


class UnbiasedNorm(nn.LayerNorm):
    def forward(self, x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(
            x.var(-1, ddof=1, keepdims=True) + self.eps
        ) * self.weight + self.bias


class HomeMadeAttention(nn.MultiheadAttention):
    """Scores divided by `divisor`; a boolean mask blocks where it is True, or where it is False with `inverted`."""

    divisor, inverted, turn = math.sqrt(4), False, staticmethod(np.transpose)
    split, merge = staticmethod(lambda x: F.split_heads(x, 2)), staticmethod(F.merge_heads)

    def forward(self, query, key, value, attn_mask=None, added=None):
        weights, biases = self.in_proj_weight.reshape(3, 8, 8), self.in_proj_bias.reshape(3, 8)
        q, k, v = (
            self.split(np.swapaxes(x @ self.turn(w) + b, 0, 1))
            for x, w, b in zip((query, key, value), weights, biases)
        )
        scores = q @ k.mT / self.divisor
        if added is not None:
            scores = scores + added.astype(np.float64)
        if attn_mask is not None:
            blocked = attn_mask.numpy() if isinstance(attn_mask, Tensor) else attn_mask
            scores = np.where(~blocked if self.inverted else blocked, -1e30, scores)
        heads = np.swapaxes(self.merge(F.softmax(scores) @ v), 0, 1)
        return self.out_proj(heads), None


class ByEmbed(HomeMadeAttention):
    divisor = math.sqrt(8)


class Unscaled(HomeMadeAttention):
    divisor = 1.0


class NotTurned(HomeMadeAttention):
    turn = staticmethod(lambda w: w)


class Inverted(HomeMadeAttention):
    inverted = True


class Unmasked(HomeMadeAttention):
    def forward(self, query, key, value, attn_mask=None):
        return super().forward(query, key, value)


class MaskAdded(HomeMadeAttention):
    def forward(self, query, key, value, attn_mask=None):
        return super().forward(query, key, value, added=attn_mask)


class InsideOut(HomeMadeAttention):
    split = staticmethod(lambda x: np.transpose(x.reshape(*x.shape[:2], 4, 2), (0, 3, 1, 2)))
    merge = staticmethod(lambda x: np.transpose(x, (0, 2, 3, 1)).reshape(x.shape[0], x.shape[2], 8))


class MaskInside(HomeMadeAttention):
    inverted = True

    def forward(self, x):
        return super().forward(x, x, x, CAUSAL)[0]


class TorchMaskInside(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2)

    def forward(self, x):
        return self.attention(x, x, x, attn_mask=torch.tensor(CAUSAL))[0]


class OfTheirOwn(torch.nn.MultiheadAttention):
    """A subclass is a MultiheadAttention too."""


class AlwaysDropping(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, True)


class Remembered(nn.Linear):
    called = weakref.WeakSet()

    def forward(self, x):
        self.called.add(self)
        return super().forward(x)


def test_the_copies_that_were_compared_go_at_once():
    gc.disable()
    try:
        assert compare(Remembered(8, 4), torch.nn.Linear(8, 4), X)
        assert not Remembered.called
    finally:
        gc.enable()


def sequence(ours):
    return nn.Sequential(nn.Linear(8, 8), ours, nn.Linear(8, 2))


def torch_sequence(theirs):
    return torch.nn.Sequential(torch.nn.Linear(8, 8), theirs, torch.nn.Linear(8, 2))


def non_trivial(module):
    """Norms with weights that are not 1, so that nothing hides."""
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    return module


DIFFERENCES = [
    (
        "weight transposed",
        sequence(TransposedLinear(8, 8)),
        torch_sequence(torch.nn.Linear(8, 8)),
        (X,),
        {},
        "1",
    ),
    (
        "eps",
        sequence(nn.LayerNorm(8, eps=1e-12)),
        torch_sequence(torch.nn.LayerNorm(8)),
        (X,),
        {},
        "1",
    ),
    (
        "eps=0.001",
        sequence(nn.LayerNorm(8)),
        torch_sequence(torch.nn.LayerNorm(8, eps=1e-6)),
        (X,),
        {},
        "1",
    ),
    (
        "biased variance",
        sequence(UnbiasedNorm(8)),
        torch_sequence(torch.nn.LayerNorm(8)),
        (X,),
        {},
        "1",
    ),
    (
        "GELU variant",
        sequence(nn.GELU(approximate="tanh")),
        torch_sequence(torch.nn.GELU()),
        (X,),
        {},
        "1",
    ),
    (
        "GELU variant",
        sequence(nn.GELU()),
        torch_sequence(torch.nn.GELU(approximate="tanh")),
        (X,),
        {},
        "1",
    ),
    (
        "another activation: ours is relu",
        sequence(nn.ReLU()),
        torch_sequence(torch.nn.GELU()),
        (X,),
        {},
        "1",
    ),
    (
        "scale by embed instead of head",
        ByEmbed(8, 2),
        torch.nn.MultiheadAttention(8, 2),
        (X, X, X),
        {},
        "(whole)",
    ),
    (
        "uses 'in_proj_weight' transposed",
        NotTurned(8, 2),
        torch.nn.MultiheadAttention(8, 2),
        (X, X, X),
        {},
        "(whole)",
    ),
    ("no scale", Unscaled(8, 2), torch.nn.MultiheadAttention(8, 2), (X, X, X), {}, "(whole)"),
    (
        "mask inverted",
        Inverted(8, 2),
        torch.nn.MultiheadAttention(8, 2),
        (X, X, X),
        dict(attn_mask=CAUSAL),
        "(whole)",
    ),
    (
        "mask is not applied",
        Unmasked(8, 2),
        torch.nn.MultiheadAttention(8, 2),
        (X, X, X),
        dict(attn_mask=CAUSAL),
        "(whole)",
    ),
    (
        "mask is added to the scores as 0 and 1",
        MaskAdded(8, 2),
        torch.nn.MultiheadAttention(8, 2),
        (X, X, X),
        dict(attn_mask=CAUSAL),
        "(whole)",
    ),
    (
        "heads split in the other order",
        InsideOut(8, 2),
        torch.nn.MultiheadAttention(8, 2),
        (X, X, X),
        {},
        "(whole)",
    ),
    (
        "batch and sequence swapped",
        nn.TransformerEncoderLayer(**LAYER, batch_first=True),
        torch.nn.TransformerEncoderLayer(**LAYER),
        (X,),
        {},
        "self_attn",
    ),
    (
        "dropout left on",
        nn.TransformerEncoderLayer(8, 2, 16, 0.5),
        torch.nn.TransformerEncoderLayer(8, 2, 16, 0.5),
        (X,),
        {},
        "self_attn",
    ),
    (
        "agree. Call",
        nn.TransformerEncoderLayer(8, 2, 16, 0.5),
        torch.nn.TransformerEncoderLayer(8, 2, 16, 0.5),
        (X,),
        {},
        "self_attn",
    ),
    (
        "What is left: GELU variant",
        nn.TransformerEncoderLayer(8, 2, 16, activation="gelu"),
        torch.nn.TransformerEncoderLayer(8, 2, 16),
        (X,),
        {},
        "self_attn",
    ),
    ("even in evaluation mode", AlwaysDropping(8, 8), torch.nn.Linear(8, 8), (X,), {}, "(whole)"),
    ("masks of its attention", MaskInside(8, 2), TorchMaskInside(), (X,), {}, "(whole)"),
    ("scale by embed instead of head", ByEmbed(8, 2), OfTheirOwn(8, 2), (X, X, X), {}, "(whole)"),
    (
        "dropout left on in our module:",
        nn.Dropout(0.5),
        torch.nn.Dropout(0.5).eval(),
        (X,),
        {},
        "(whole)",
    ),
    (
        "norm_first differs",
        nn.TransformerEncoderLayer(**LAYER, norm_first=True),
        torch.nn.TransformerEncoderLayer(**LAYER),
        (X,),
        {},
        "norm1",
    ),
]


@pytest.mark.parametrize(
    "text, ours, theirs, inputs, keywords, first", DIFFERENCES, ids=[d[0] for d in DIFFERENCES]
)
def test_a_planted_difference_is_explained(text, ours, theirs, inputs, keywords, first):
    if text == "eps=0.001":
        ours[1].eps, text = 1e-3, "eps=0.001"
    report = compare(ours, non_trivial(theirs), *inputs, **keywords)
    assert not report and text in report.explanation, report
    if "norm_first" not in text:
        assert report.first == first, report


def test_the_home_made_layer_without_a_mistake_agrees():
    assert compare(
        HomeMadeAttention(8, 2), torch.nn.MultiheadAttention(8, 2), X, X, X, attn_mask=CAUSAL
    )


def test_a_wrong_rule_shows_in_the_gradients_alone():
    from tinygrad_attn import op

    halved = op(lambda x: x * 1.0)
    halved.vjp(lambda g, y, x: g * 0.5)

    class Halving(nn.Linear):
        def forward(self, x):
            return halved(super().forward(x))

    report = compare(Halving(8, 8), torch.nn.Linear(8, 8), X)
    assert (
        not report
        and "run gradcheck" in report.explanation
        and all(row.value < 1e-12 for row in report.rows)
    )


def test_where_one_use_of_two_leaves_the_graph_no_rule_is_accused():
    class Ours(nn.Linear):
        def forward(self, x):
            return x.detach() + super().forward(x)

    class Theirs(torch.nn.Linear):
        def forward(self, x):
            return x + super().forward(x)

    report = compare(Ours(8, 8), Theirs(8, 8), X)
    assert report.first == "input 0" and "or the use that leaves the graph" in report.explanation


def test_weights_are_copied_and_names_and_shapes_that_differ_are_said():
    class Mine(nn.Module):
        def __init__(self):
            self.w = nn.Parameter(np.zeros((8, 4), np.float32))
            self.b = nn.Parameter(np.zeros(4, np.float32))

        def forward(self, x):
            return x @ self.w + self.b

    mine, theirs = Mine(), torch.nn.Linear(8, 4)
    report = compare(mine, theirs, X)
    assert np.array_equal(mine.w.numpy(), theirs.weight.detach().numpy().T)
    assert "weight transposed: 'w'" in str(report) and "'bias' was copied into 'b'" in str(report)
    assert all(row.value < 1e-12 for row in report.rows)


class Mine(nn.Module):
    """A Linear under names of its own, whose weight is (in, out); `f` is its forward."""

    def __init__(self, f):
        self.w, self.b, self.f = (
            nn.Parameter(np.zeros((8, 4), np.float32)),
            nn.Parameter(np.zeros(4, np.float32)),
            f,
        )

    def forward(self, x):
        return self.f(x, self.w, self.b)


def test_gradients_of_weights_with_other_names_are_compared():
    report = compare(Mine(lambda x, w, b: x @ w + b), torch.nn.Linear(8, 4), X)
    assert report and [row.name for row in report.rows] == ["(whole)", "w", "b", "input 0"]
    report = compare(
        Mine(lambda x, w, b: x @ w + b.detach() + (b - b.detach()) * 2), torch.nn.Linear(8, 4), X
    )
    assert [row.name for row in report.rows if not row.ok] == ["b"], report


def test_a_difference_that_nothing_explains_where_only_torch_has_the_submodule():
    report = compare(
        Mine(lambda x, w, b: np.sin(x @ w + b)), torch.nn.Sequential(torch.nn.Linear(8, 4)), X
    )
    assert not report and report.first == "(whole)" and report.explanation == "", report


def test_a_weight_or_an_input_that_leaves_the_graph_is_said_to_leave_it():
    for f, lost in (
        (lambda x, w, b: x @ w.detach() + b, "w"),
        (lambda x, w, b: x.detach() @ w + b, "input 0"),
        (lambda x, w, b: x.detach() @ w.detach() + b.detach(), "w, b, input 0"),
    ):
        report = compare(Mine(f), torch.nn.Linear(8, 4), X)
        assert f"none reaches {lost}," in report.explanation and "detach()" in report.explanation, (
            report
        )


class Both(nn.Module):
    def __init__(self, make):
        self.make = make

    def forward(self, x):
        return self.make(x * 2, x * 3)


class TorchBoth(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x * 2, x * 4)


MAKERS = [
    (lambda a, b: (a, b), "[1]"),
    (lambda a, b: [a, (b, None)], "[1][0]"),
    (lambda a, b: {"a": a, "b": b}, "['b']"),
]


@pytest.mark.parametrize("make, place", MAKERS, ids=[place for _, place in MAKERS])
def test_every_tensor_of_a_result_is_compared(make, place):
    report = compare(Both(make), TorchBoth(make), X)
    assert not report and report.first == f"(whole){place}", report
    assert [row.name for row in report.rows if not row.ok] == [f"(whole){place}", "input 0"]
    assert compare(Both(lambda a, b: make(a, a)), TorchBoth(lambda a, b: make(a, a)), X)


def test_what_only_one_side_returns_is_noted():
    report = compare(Both(lambda a, b: a), TorchBoth(lambda a, b: (a, b)), X)
    assert report and "torch returns a tensor at [1] where ours returns none" in str(report)
    report = compare(Both(lambda a, b: {"a": a}), TorchBoth(lambda a, b: (a, b)), X)
    assert not report and "no tensor stands at the same place" in report.failure


def test_inputs_may_be_tensors_of_either_side():
    for given in (Tensor(X), torch.tensor(X, requires_grad=True)):
        assert compare(nn.Linear(8, 4), torch.nn.Linear(8, 4), given)


def test_nan_on_both_sides_is_no_agreement():
    report = compare(nn.Linear(8, 4), torch.nn.Linear(8, 4), X * np.nan)
    assert not report and "nothing was compared" in str(report)
    half = X.copy()
    half[0] = np.nan
    report = compare(nn.Linear(8, 4), torch.nn.Linear(8, 4), half)
    assert report and "12 of 60 elements of the result are NaN" in str(report)


@pytest.mark.parametrize(
    "f, words",
    [
        (lambda x, w, b: None, "returned None, and no Tensor"),
        (lambda x, w, b: (x @ w + b).numpy(), r"returned array \(5, 3, 4\) float64, and no Tensor"),
    ],
)
def test_a_forward_that_returns_no_tensor_is_told_so(f, words):
    report = compare(Mine(f), torch.nn.Linear(8, 4), X)
    assert re.search(words, report.failure), report


def test_what_cannot_be_compared_is_said(capsys):
    report = compare_with_torch(nn.Linear(8, 4), torch.nn.Linear(8, 4), rand(3, 7))
    assert not report and "torch module raised" in capsys.readouterr().out
    with pytest.raises(TypeError, match="one of our modules and then a torch"):
        compare(torch.nn.Linear(2, 2), nn.Linear(2, 2), X)


def test_the_callers_modules_stay_as_they_are():
    ours, theirs = nn.Linear(8, 4), torch.nn.Linear(8, 4)
    compare(ours, theirs, X)
    assert ours.weight.dtype == np.float32 and theirs.weight.dtype == torch.float32
    assert ours.weight.grad is None and theirs.weight.grad is None
    assert np.array_equal(ours.weight.numpy(), theirs.weight.detach().numpy())
