"""Mistakes as students make them, other than those the checker was written on: each is found, and named rightly."""

import math
import re

import numpy as np
import pytest
from support import require, unquoted

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, op
from tinygrad_attn.check import compare_with_torch, detect_anomaly, gradcheck

torch = require("torch")


def rand(*shape, seed=0, scale=1.0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape) * scale, requires_grad=True)


def custom(forward, *rules, **flags):
    made = op(forward, **flags)
    made.vjp(*rules)
    return made


def total(x):
    return x.sum(axis=-1, keepdims=True)


def average(x):
    return x.mean(axis=-1, keepdims=True)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / total(e)


def spread(x):
    return np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


def standard(x):
    return (x - average(x)) / spread(x)


def attend(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v


def attention(twice=False, turned=False):
    def rule(g, y, q, k, v):
        scale = 1 / math.sqrt(q.shape[-1])
        p = softmax(q @ k.swapaxes(-1, -2) * scale)
        dp = g @ v.swapaxes(-1, -2)
        ds = p * (dp - total(dp * p)) * scale * (scale if twice else 1)
        return ds @ k, ds.swapaxes(-1, -2) @ q, (p if turned else p.swapaxes(-1, -2)) @ g

    made = op(attend)
    made.vjp_all(rule)
    return made


def rotate(x):
    a, b = x[..., :2], x[..., 2:]
    return np.concatenate([a * 0.8 - b * 0.6, a * 0.6 + b * 0.8], axis=-1)


def written(index):
    def rule(g, y, x):
        out = np.zeros_like(x)
        np.add.at(out, index, g)
        return out

    return rule


def stale():
    kept = {}

    def forward(x):
        kept.setdefault("x", x.copy())
        return x**2

    return custom(forward, lambda g, y, x: 2 * g * kept["x"])


def changes_a_result(x):
    y = x * 2
    y.data[0] = 0
    return y * y.detach().numpy().mean() * 0 + y


def first_wins(g, y, x):
    out = np.zeros_like(x)
    out[AGAIN[::-1]] = g[::-1]
    return out


def product_that_saves():
    made = op(lambda a, b: (a @ b, b), saves=True, reference=lambda a, b: a @ b)
    made.vjp_all(lambda g, y, a, b, *, saved: [g.T @ saved.T, a.T @ g])
    return made


def softmax_along(axis_of_sum):
    def forward(x, *, axis):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)

    made = custom(
        forward,
        lambda g, y, x, *, axis: y * (g - (g * y).sum(axis=axis_of_sum(axis), keepdims=True)),
    )
    return lambda x: made(x, axis=0)


def square(rule):
    return custom(lambda x: x * x, rule)


AGAIN = np.array([0, 1, 1, 3])
ROWS, PICKED = np.arange(3), np.array([1, 0, 2])
UPPER = ~np.tri(4, dtype=bool)
KEPT, OTHER = (np.random.default_rng(s).random((4, 5)) > 0.5 for s in (5, 6))
S34, S35, S44, S5 = (3, 4), (3, 5), (4, 4), (5,)

PLANTED = [  # name, function, shapes, kind, words
    (
        "softmax, mean for sum",
        custom(softmax, lambda g, y, x: y * (g - average(g * y))),
        [S34],
        "missing sum",
        "axis 1",
    ),
    (
        "layer norm, no 1/std",
        custom(standard, lambda g, y, x: g - average(g) - y * average(g * y)),
        [S35],
        "missing factor",
        "1/std(x)",
    ),
    (
        "layer norm, unbiased",
        custom(
            standard,
            lambda g, y, x: (g - average(g) - y * total(g * y) / (x.shape[-1] - 1)) / spread(x),
        ),
        [S35],
        "missing sum",
        "proportional to y",
    ),
    (
        "log-probability for probability",
        custom(lambda x: np.log(softmax(x)), lambda g, y, x: g - y * total(g)),
        [S34],
        "exchanged",
        "np.exp is applied to the result y",
    ),
    (
        "norm, not divided",
        custom(lambda x: np.sqrt((x * x).sum(axis=-1)), lambda g, y, x: g[:, None] * x),
        [S35],
        "missing factor",
        "1/y",
    ),
    (
        "logsumexp, not divided",
        custom(lambda x: np.log(np.exp(x).sum(axis=-1)), lambda g, y, x: g[:, None] * np.exp(x)),
        [S35],
        "missing factor",
        "1/sum(exp(x))",
    ),
    (
        "variance, other divisor",
        custom(
            lambda x: x.var(axis=-1, ddof=1),
            lambda g, y, x: 2 * g[:, None] * (x - average(x)) / x.shape[-1],
        ),
        [S35],
        "constant factor",
        "5 where 4 belongs",
    ),
    (
        "attention, scaled twice",
        attention(twice=True),
        [(4, 3)] * 3,
        "constant factor",
        "square root of 3",
    ),
    (
        "attention, weights not transposed",
        attention(turned=True),
        [(4, 3)] * 3,
        "transposed",
        "its rule for operand 2",
    ),
    (
        "rotation not turned back",
        custom(rotate, lambda g, y, x: rotate(g)),
        [S34],
        "transposed",
        "rotations turn back",
    ),
    (
        "cumsum from the wrong end",
        custom(lambda x: np.cumsum(x), lambda g, y, x: np.cumsum(g)),
        [(6,)],
        "transposed",
        "from the other end",
    ),
    (
        "sort, order kept",
        custom(lambda x: np.sort(x), lambda g, y, x: g),
        [(6,)],
        "permuted",
        "not undone",
    ),
    (
        "heads, reshaped only",
        custom(lambda x: x.reshape(3, 2, 4).swapaxes(0, 1), lambda g, y, x: g.reshape(3, 8)),
        [(3, 8)],
        "permuted",
        "reshape where swapaxes",
    ),
    (
        "padding cut at the wrong place",
        custom(lambda x: np.pad(x, (1, 2)), lambda g, y, x: g[2 : 2 + len(x)]),
        [S5],
        "shifted",
        "off by 1",
    ),
    (
        "shared weight, last batch only",
        custom(
            lambda x, w: x @ w,
            lambda g, y, x, w: g @ w.T,
            lambda g, y, x, w: (x.swapaxes(-1, -2) @ g)[-1],
        ),
        [(5, 3, 4), (4, 2)],
        "missing sum",
        "only the last",
    ),
    (
        "max, given to all",
        custom(lambda x: x.max(axis=-1), lambda g, y, x: np.broadcast_to(g[:, None], x.shape)),
        [S34],
        "mask missing",
        "axis 1",
    ),
    (
        "mask inverted",
        custom(lambda x: np.where(UPPER, 0.0, x), lambda g, y, x: np.where(UPPER, g, 0.0)),
        [S44],
        "mask inverted",
        "condition inverted",
    ),
    (
        "masked positions not zeroed",
        custom(lambda x: np.where(UPPER, -1e9, x), lambda g, y, x: g),
        [S44],
        "some elements",
        "upper triangle",
    ),
    (
        "gather from the wrong column",
        custom(lambda x: x[ROWS, PICKED], written((ROWS, np.array([1, 0, 3])))),
        [S34],
        "another mask",
        "other indices",
    ),
    (
        "dropout, mask drawn anew",
        custom(lambda x: x * KEPT / 0.5, lambda g, y, x: g * OTHER / 0.5),
        [(4, 5)],
        "another mask",
        "drawn once",
    ),
    (
        "size of g",
        custom(lambda x: 3 * x, lambda g, y, x: 3 * np.abs(g)),
        [S5],
        "incoming gradient",
        "without its sign",
    ),
    (
        "both halves the first",
        custom(
            lambda a, b: np.concatenate([a, b]), lambda g, y, a, b: g[:4], lambda g, y, a, b: g[:4]
        ),
        [(4,), (4,)],
        "exchanged",
        "copy of the other's",
    ),
    (
        "small among large",
        custom(lambda x: x * np.array([1e6, 1, 1]), lambda g, y, x: g * np.array([1e6, 1, 2])),
        [(3,)],
        "some elements",
        "only at index 2",
    ),
    ("state of the first call", stale(), [S5], "stale state", "earlier call"),
    ("a result written into", changes_a_result, [(4,)], "result modified", "op 'multiply'"),
    (
        "product that saves, g transposed",
        product_that_saves(),
        [S44, S44],
        "transposed",
        "the incoming gradient is transposed",
    ),
    (
        "unit vectors, not divided and thrice",
        custom(lambda x: x / np.sqrt(total(x * x)), lambda g, y, x: 3 * (g - y * total(g * y))),
        [S34],
        "missing factor",
        "1/norm(x) (and is 3 times too large besides)",
    ),
    (
        "layer norm, divided twice",
        custom(standard, lambda g, y, x: (g - average(g) - y * average(g * y)) / spread(x) ** 2),
        [S35],
        "extra factor",
        "1/std(x) too many",
    ),
    (
        "a factor for each row",
        square(lambda g, y, x: 2 * g * x * np.array([[1.3], [0.7], [2.1]])),
        [S34],
        "missing factor",
        "belongs to the whole row",
    ),
    (
        "summed and spread out",
        square(lambda g, y, x: np.broadcast_to((2 * g * x).sum(axis=0), x.shape)),
        [S34],
        "wrong axis",
        "summed over axis 0 of the input",
    ),
    (
        "averaged and spread out",
        square(lambda g, y, x: np.broadcast_to(average(2 * g * x), x.shape)),
        [S34],
        "wrong axis",
        "averaged over axis 1 of the input",
    ),
    (
        "summed over all axes",
        custom(
            lambda x, b: x + b, lambda g, y, x, b: g, lambda g, y, x, b: np.full(b.shape, g.sum())
        ),
        [(3, 2, 4), (2, 4)],
        "wrong axis",
        "the sum over all axes of the result",
    ),
    (
        "lower triangle doubled",
        square(lambda g, y, x: 2 * g * x * np.where(UPPER, 1, 2)),
        [S44],
        "some elements",
        "the lower triangle",
    ),
    (
        "diagonal doubled",
        square(lambda g, y, x: 2 * g * x * (1 + np.eye(4))),
        [S44],
        "some elements",
        "the diagonal",
    ),
    (
        "repeated index, the first wins",
        custom(lambda x: x[AGAIN], first_wins),
        [(5, 3)],
        "repeated use",
        "only the first",
    ),
    ("reversed", square(lambda g, y, x: (2 * g * x)[::-1]), [S5], "reversed", "along axis 0"),
    ("rolled", square(lambda g, y, x: np.roll(2 * g * x, 1)), [S5], "shifted", "by 1 along axis 0"),
    (
        "reshaped for transposed",
        square(lambda g, y, x: (2 * g * x).T.reshape(x.shape)),
        [S34],
        "transposed",
        "should be transposed to (1, 0)",
    ),
    (
        "a term too many",
        custom(lambda x: np.sin(x), lambda g, y, x: g * np.cos(x) + g * x),
        [S5],
        "missing term",
        "1 times g times x too much",
    ),
    (
        "tanh with a plus",
        custom(np.tanh, lambda g, y, x: g * (1 + y * y)),
        [S34],
        "missing term",
        "2 times g times y^2 too much",
    ),
    (
        "a large tanh with a plus",
        custom(np.tanh, lambda g, y, x: g * (1 + y * y)),
        [(60, 50)],
        "missing term",
        "2 times g times y^2 too much",
    ),
    (
        "a term too few",
        custom(lambda x: np.sin(x) - x, lambda g, y, x: g * np.cos(x) - 3 * g),
        [S5],
        "missing term",
        "2 times g too little at every element: one term of the sum, or of the product rule, is left out, counted too often, or has",
    ),
    (
        "arctan with a minus",
        custom(np.arctan, lambda g, y, x: g / (1 - x * x)),
        [S34],
        "missing term",
        "what the rule divides g by is 2 times x^2 too little",
    ),
    (
        "arccos with a plus",
        custom(lambda x: np.arccos(x / 4), lambda g, y, x: -g / np.sqrt(16 + x * x)),
        [S34],
        "missing term",
        "the square of what the rule divides g by is 2 times x^2 too much",
    ),
    (
        "multiplied, not divided",
        custom(np.arctan, lambda g, y, x: g * (1 + x * x)),
        [S34],
        "inverted",
        "divided by the op's own",
    ),
    (
        "divided, not multiplied",
        custom(np.tanh, lambda g, y, x: g / (1 - y * y)),
        [(60, 50)],
        "inverted",
        "divided by the op's own derivative",
    ),
    (
        "one of two terms",
        custom(
            lambda x: x * np.tanh(x), lambda g, y, x: g * np.tanh(x) + g * (1 + np.tanh(x) ** 2)
        ),
        [S34],
        "rule",
        "by the input's use in multiply",
    ),
    (
        "y for a value on the way",
        custom(lambda x: x * np.tanh(x), lambda g, y, x: g * (np.tanh(x) + x * (1 - y * y))),
        [S34],
        "exchanged",
        "once y in it is what tanh gives on the way",
    ),
    (
        "shared weight, second batch only",
        custom(
            lambda x, w: x @ w,
            lambda g, y, x, w: g @ w.T,
            lambda g, y, x, w: (x.swapaxes(-1, -2) @ g)[1],
        ),
        [(5, 3, 4), (4, 2)],
        "missing sum",
        "only the number 1",
    ),
    (
        "shared weight, all batches but the last",
        custom(
            lambda x, w: x @ w,
            lambda g, y, x, w: g @ w.T,
            lambda g, y, x, w: (x.swapaxes(-1, -2) @ g)[:-1].sum(axis=0),
        ),
        [(5, 3, 4), (4, 2)],
        "missed use",
        "the last is left out",
    ),
    (
        "softmax, the last axis whatever is asked",
        softmax_along(lambda axis: -1),
        [S34],
        "wrong axis",
        "wrong for axis=0 but right for axis=-1",
    ),
    (
        "softmax, axis off by one",
        softmax_along(lambda axis: axis + 1),
        [S44],
        "wrong axis",
        "right for axis=0 when it is told axis=-1",
    ),
    ("a float", lambda x: x * float(x.max()), [(4,)], "missed use", "operand 1 of op 'multiply'"),
]


@pytest.mark.parametrize("name, f, shapes, kind, words", PLANTED, ids=[p[0] for p in PLANTED])
def test_a_fresh_bug_is_found_and_named(name, f, shapes, kind, words):
    report = gradcheck(f, [rand(*s, seed=i) for i, s in enumerate(shapes)], raise_exception=False)
    assert not report
    assert report.diagnosis.kind == kind and words in str(report.diagnosis), (
        report
    )  # not in the line that the report quotes
    assert report.diagnosis.kind == kind and words in unquoted(str(report)), report


RIGHT = [
    (lambda x: F.softmax(x / 1e-6), [rand(3, 4, scale=1e-6)]),
    (lambda x: F.softmax(x / 1e6) * 1e6, [rand(3, 4, scale=1e6)]),
    (lambda a, b: np.tanh(a + b / 1e-6).sum(), [rand(4), rand(4, scale=1e-6)]),
    (lambda x: (x**2).sum() + 1e6, [rand(4)]),
    (lambda x: np.where(UPPER, -1e9, x), [rand(4, 4)]),
    (lambda x: F.softmax(np.where(UPPER, -np.inf, x)), [rand(4, 4)]),
    (lambda x: ta.grad((x**3).sum(), x, create_graph=True)[0], [rand(3)]),
    (lambda x: np.floor(x) + x**2, [rand(5)]),
    (lambda x: (x * np.array([1e6, 1, 1e-6])).sum(), [rand(3)]),
    (np.arcsin, [Tensor(np.array([0.995, -0.5]), requires_grad=True)]),
    (lambda x: x[np.argsort(x.numpy())] * np.arange(5.0), [rand(5)]),
    (lambda x, n: x**n, [rand(3), 3]),
    (np.exp, [rand(0, 3)]),
    (lambda x: x[x.numpy() > 0] ** 2, [rand(6)]),
]


@pytest.mark.parametrize("f, inputs", RIGHT, ids=range(len(RIGHT)))
def test_no_false_alarm(f, inputs):
    assert gradcheck(f, inputs)


def test_an_explicit_step_is_kept_and_the_default_one_may_be_replaced():
    f, x = lambda x: np.sin(x / 1e-6), rand(3, scale=1e-6)
    assert "measured with eps=" in str(gradcheck(f, x))
    assert gradcheck(f, x, eps=2e-6, raise_exception=False).diagnosis.kind == "eps"


# ---- against PyTorch


class Affine(nn.Module):
    def __init__(self, f):
        self.weight, self.bias = (
            nn.Parameter(np.zeros((4, 4), np.float32)),
            nn.Parameter(np.zeros(4, np.float32)),
        )
        self.f = f

    def forward(self, x):
        return self.f(x, self.weight, self.bias)


class Norm(nn.Module):
    def __init__(self, f):
        self.weight, self.bias, self.f = (
            nn.Parameter(np.ones(4, np.float32)),
            nn.Parameter(np.zeros(4, np.float32)),
            f,
        )

    def forward(self, x):
        return self.f(x) * self.weight + self.bias


class Bare(Norm):
    def __init__(self):
        super().__init__(lambda x: (x - average(x)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5))

    def forward(self, x):
        return self.f(x)


class Attention(nn.Module):
    def __init__(
        self,
        order=(0, 1, 2),
        heads=2,
        axis=-1,
        turned=False,
        change=lambda scores: scores,
        weigh=F.softmax,
        join=F.merge_heads,
    ):
        self.in_proj_weight, self.in_proj_bias = (
            nn.Parameter(np.zeros((24, 8), np.float32)),
            nn.Parameter(np.zeros(24, np.float32)),
        )
        self.out_proj, self.settings = nn.Linear(8, 8), (order, heads, axis, turned)
        self.change, self.weigh, self.join = change, weigh, join

    def forward(self, q, k, v):
        order, heads, axis, turned = self.settings
        part = lambda x, i: F.split_heads(
            x @ self.in_proj_weight[8 * i : 8 * i + 8].T + self.in_proj_bias[8 * i : 8 * i + 8],
            heads,
        )
        q, k, v = (part(x, i) for x, i in zip((q, k, v), order, strict=True))
        a = self.weigh(self.change(q @ k.mT / math.sqrt(8 // heads)), axis=axis)
        return self.out_proj(self.join((a.mT if turned else a) @ v))


def causal(k):
    """Attention that does not look at the positions from `k` places further on."""
    return Attention(
        change=lambda scores: np.where(np.triu(np.ones((5, 5), bool), k), -1e30, scores)
    )


X, Y = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((3, 4), (2, 5, 8)))
DIFFERENT = [
    (Affine(lambda x, w, b: x @ w.T), torch.nn.Linear(4, 4), "bias left out"),
    (Affine(lambda x, w, b: x @ w.T - b), torch.nn.Linear(4, 4), "bias subtracted"),
    (Affine(lambda x, w, b: x @ w.T + 2 * b), torch.nn.Linear(4, 4), "bias added twice"),
    (Affine(lambda x, w, b: x @ w.detach().T + b), torch.nn.Linear(4, 4), "gradients do not"),
    (Norm(lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5)), torch.nn.LayerNorm(4), "wrong axes"),
    (
        Norm(lambda x: x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)),
        torch.nn.LayerNorm(4),
        "without its mean",
    ),
    (
        Norm(lambda x: (x - average(x)) / (x.var(axis=-1, keepdims=True) + 1e-5)),
        torch.nn.LayerNorm(4),
        "square root is missing",
    ),
    (Norm(lambda x: x - average(x)), torch.nn.LayerNorm(4), "subtracts the mean only"),
    (
        Norm(lambda x: (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)),
        torch.nn.LayerNorm(4),
        "along axis 0",
    ),
    (
        Norm(lambda x: (x - average(x)) / (x.std(axis=-1, ddof=1, keepdims=True) + 1e-5)),
        torch.nn.LayerNorm(4),
        "with the unbiased std",
    ),
    (
        Norm(lambda x: (x - average(x)) / (x.std(axis=-1, keepdims=True) + 1e-5)),
        torch.nn.LayerNorm(4),
        "outside the root",
    ),
    (Bare(), torch.nn.LayerNorm(4), "leaves them out"),
    (nn.Sequential(nn.Sigmoid()), torch.nn.Sequential(torch.nn.Tanh()), "ours is sigmoid"),
    (nn.Sequential(nn.Identity()), torch.nn.Sequential(torch.nn.ReLU()), "left out"),
    (Attention(order=(1, 0, 2)), "attention", "query and key"),
    (Attention(heads=4), "attention", "4 heads"),
    (Attention(axis=-2), "attention", "softmax axis"),
    (Attention(turned=True), "attention", "weights transposed"),
    (Attention(heads=1), "attention", "one head"),
    (Attention(change=lambda scores: scores / 2), "attention", "divides the scores by head_dim"),
    (Attention(order=(0, 2, 1)), "attention", "key and value"),
    (Attention(order=(2, 1, 0)), "attention", "query and value"),
    (causal(1), "attention", "earlier positions only"),
    (causal(2), "attention", "also looks at the next"),
    (causal(0), "attention", "does not look at the position itself"),
    (Attention(weigh=lambda scores, axis: scores), "attention", "no softmax"),
    (
        Attention(join=lambda x: x.reshape(2, 5, 8)),
        "attention",
        "without exchanging heads and positions",
    ),
]


@pytest.mark.parametrize("ours, theirs, words", DIFFERENT, ids=[words for _, _, words in DIFFERENT])
def test_a_fresh_difference_from_torch_is_explained(ours, theirs, words):
    torch.manual_seed(0)
    inputs = (X,)
    if theirs == "attention":
        theirs, inputs = torch.nn.MultiheadAttention(8, 2, batch_first=True), (Y, Y, Y)
        torch.nn.init.normal_(theirs.in_proj_bias)
    elif isinstance(theirs, torch.nn.LayerNorm):
        torch.nn.init.normal_(theirs.weight)
    report = compare_with_torch(ours, theirs, *inputs, verbose=False)
    assert not report and words in report.explanation, report


# ---- NaN at its source


def t(*values):
    return Tensor(np.array(values, np.float32), requires_grad=True)


ANOMALIES = [
    (
        lambda: custom(lambda x: x * 2.0, lambda g, y, x: g / (x - x))(t(1, 2)).sum().backward(),
        "a division by zero",
    ),
    (lambda: custom(lambda x: 1 / (x - x), lambda g, y, x: g)(t(1, 2)), "a division by zero"),
    (
        lambda: F.cross_entropy(
            Tensor(np.ones((2, 3)), requires_grad=True), np.array([-100, -100])
        ),
        "every target is ignore_index",
    ),
    (lambda: F.layer_norm(t(1, 1), 2, eps=0.0), "variance is 0"),
    (lambda: (t(-2, 1) ** t(2, 2)).sum().backward(), "y log x"),
    (
        lambda: nn.Linear(2, 2)(Tensor(np.array([[np.nan, 1]], np.float32))),
        r"already holds NaN at index \(0, 0\)",
    ),
    (lambda: np.log1p(t(-1)), "log1p -1"),
]


@pytest.mark.parametrize("f, words", ANOMALIES, ids=[words for _, words in ANOMALIES])
def test_a_fresh_anomaly_has_its_reason(f, words):
    with pytest.raises(FloatingPointError) as caught, detect_anomaly():
        f()
    text = str(caught.value)
    assert __file__ in text and re.search(words, re.sub("`.*`", "", text)), (
        text
    )  # the line that is quoted holds the words too
    assert re.search(words, unquoted(str(caught.value))) and __file__ in str(caught.value)
