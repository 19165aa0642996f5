"""General ideas of mistakes, each with realistic VJPs: the sentence names the cause, and right VJPs pass."""

import math

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.check import gradcheck
from tinygrad_attn.check.kernel import Kernel

rng = np.random.default_rng(42)
N = lambda *shape: rng.standard_normal(shape)
total = lambda a: a.sum(-1, keepdims=True)
mean = lambda a: a.mean(-1, keepdims=True)
sigmoid = lambda x: 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalised(x):
    return (x - mean(x)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def layer_norm(x, w, b):
    return normalised(x) * w + b


def layer_norm_back(dx=None, dw=None):
    """The VJP of a layer norm, with other formulas for two of the gradients."""

    def vjp(g, y, x, w, b):
        h, gw, r = normalised(x), g * w, 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        e = dict(g=g, y=y, x=x, w=w, h=h, gw=gw, r=r)
        right = r * (gw - mean(gw) - h * mean(gw * h)), (g * h).sum(0)
        return dx(**e) if dx else right[0], dw(**e) if dw else right[1], g.sum(0)

    return vjp


def attention(q, k, v):
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v


def attention_back(dscores=None, dk=None):
    def vjp(g, y, q, k, v):
        p, dp, scale = softmax(q @ k.T / np.sqrt(q.shape[-1])), g @ v.T, 1 / np.sqrt(q.shape[-1])
        d = (dscores(p, dp) if dscores else p * (dp - total(dp * p))) * scale
        return d @ k, dk(d, q) if dk else d.T @ q, p.T @ g

    return vjp


def gelu(x):
    return x * 0.5 * (1 + np.tanh(0.8 * (x + 0.045 * x * x * x)))


def gelu_back(inner=1.0, second=1.0, squared=True):
    def vjp(g, y, x):
        t = np.tanh(0.8 * (x + 0.045 * x * x * x))
        slope = 0.8 * (1 + inner * 3 * 0.045 * x * x) * (1 - (t * t if squared else t))
        return g * (0.5 * (1 + t) + second * 0.5 * x * slope)

    return vjp


def scan(x, a):
    rows, h = [], 0.0
    for row in x:
        h = a * h + row
        rows.append(h)
    return np.stack(rows)


def scan_back(carry=1.0, state=1):
    def vjp(g, y, x, a):
        d, da, rows = 0 * a, 0 * a, []
        for t in range(len(x))[::-1]:
            d = g[t] + carry * a * d
            da = da + d * (y[t - state] if t >= state else 0 * a)
            rows.insert(0, d)
        return np.stack(rows), da

    return vjp


def convolution(x, w):
    return sum(x[k : k + len(x) - len(w) + 1] * w[k] for k in range(len(w)))


def convolution_back(turn=1):
    def vjp(g, y, x, w):
        dx, dw = np.zeros_like(x), np.zeros_like(w)
        for k in range(len(w)):
            dx[k : k + len(g)] += g * w[::turn][k]
            dw[k] = (g * x[k : k + len(g)]).sum()
        return dx, dw

    return vjp


def residual(x, w):
    return x + np.tanh(x @ w)


def residual_back(skip):
    return lambda g, y, x, w: (
        skip * g + (g * (1 - np.tanh(x @ w) ** 2)) @ w.T,
        x.T @ (g * (1 - np.tanh(x @ w) ** 2)),
    )


def by_means(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True))


def scaled_rows(x, s):
    return x * (s / np.sqrt((x * x).sum(1)))[:, None]


def scaled_rows_back(g, y, x, s):
    norm = np.sqrt((x * x).sum(1, keepdims=True))
    right = s[:, None] / norm * (g - x * total(g * x) / norm**2)
    return right, (g * x).sum(1)


def mean_loss(x, t):
    return ((x - t) ** 2).mean()


def pinball(p, t):
    return np.where(t > p, 0.9 * (t - p), 0.1 * (p - t)).mean(-1)


def causal(q, k, v):
    return np.tril(q @ k.T) @ v


def pairs(x):
    return (x[1:] + x[:-1]) / 2


def rotary(x, cos, sin):
    a, b = x[..., :2], x[..., 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def rotary_back(g, x, cos, sin, by=0):
    c, s = np.roll(cos, by, 0), np.roll(sin, by, 0)
    (ga, gb), (a, b) = (np.split(v, 2, -1) for v in (g, x))
    dx = np.concatenate([ga * c + gb * s, gb * c - ga * s], -1)
    return dx, (ga * a + gb * b).sum(0), (gb * a - ga * b).sum(0)


def log_cumulative(x):
    return np.log(np.cumsum(np.exp(x), -1))


def after(x):
    return x[:, ::-1].cumsum(-1)[:, ::-1]


def solve_back(g, y, a, b):
    db = np.linalg.solve(np.tril(a).T, g)
    return np.tril(-db @ b.T), db


def smoothed(x):
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return -(0.9 * (logs * ONE_HOT).sum(-1) + 0.1 * logs.mean(-1))


def leaky_sum(x):
    z = np.sinh(x)
    return np.where(x > 0, z, 0.1 * z).sum(-1, keepdims=True)


ONE_HOT = np.eye(5)[[1, 3, 3, 0]]
NORM, HEADS, X = [N(4, 6), 1 + N(6) / 3, N(6)], [N(4, 4), N(4, 4), N(4, 4)], [2 * N(4, 5)]
SCAN, CONVOLUTION, SQUARE = [N(6, 3), 0.3 + rng.random(3) / 2], [N(8), N(3)], [N(4, 4), N(4, 4)]
huber = lambda x: np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5)
before_both = "is all ones and input 2 is all zeros"
normal = "input 0 has mean 0 and variance 1 along axis 1"
INDEX = np.array([0, 3, 1, 3, 2])
erf = np.vectorize(math.erf)
bell = lambda x: np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
outside = np.vectorize(lambda x: x * (1 + math.erf(x / 2**0.5)) / 2)  # no step is known
outside_softmax = lambda x: np.array(softmax(np.array(x.tolist())))  # no step is known
POSITIVE = [0.5 + rng.random((4, 5))]
EITHER = {"tanh for erf"}  # of the words
MISTAKES = {  # a function, inputs, a wrong VJP, and words of the diagnosis
    "y where the normalised x belongs": (layer_norm, NORM, layer_norm_back(lambda y, gw, r, **_: r * (gw - mean(gw) - y * mean(gw * y))), before_both),
    "once": (layer_norm, NORM, layer_norm_back(lambda y, gw, r, h, **_: r * (gw - mean(gw) - h * mean(gw * y))), before_both),
    "x where it belongs": (layer_norm, NORM, layer_norm_back(lambda x, gw, r, **_: r * (gw - mean(gw) - x * mean(gw * x))), normal),
    "not divided by the spread": (layer_norm, NORM, layer_norm_back(lambda gw, h, **_: gw - mean(gw) - h * mean(gw * h)), normal),
    "dw by x": (layer_norm, NORM, layer_norm_back(dw=lambda g, x, **_: (g * x).sum(0)), normal),
    "w outside": (layer_norm, NORM, layer_norm_back(lambda g, w, h, r, **_: r * w * (g - mean(g) - h * mean(g * h))), "operand misplaced"),
    "w forgotten": (layer_norm, NORM, layer_norm_back(lambda g, h, r, **_: r * (g - mean(g) - h * mean(g * h))), "the gradient lacks a factor input 1"),
    "mean(g) left out": (layer_norm, NORM, layer_norm_back(lambda gw, r, h, **_: r * (gw - h * mean(gw * h))), "missing sum: the gradient that passes back through 'mean'"),
    "plus": (layer_norm, NORM, layer_norm_back(lambda gw, r, h, **_: r * (gw - mean(gw) + h * mean(gw * h))), "is of the wrong sign"),
    "a sum for a mean": (layer_norm, NORM, layer_norm_back(lambda gw, r, h, **_: r * (gw - mean(gw) - h * total(gw * h))), "is 5 times what it should be"),
    "the mean of x": (lambda x: x.var(-1), X, lambda g, y, x: 2 * g[:, None] * x / x.shape[-1], "has mean 0 along axis 1"),
    "no sum in softmax": (attention, HEADS, attention_back(lambda p, dp: p * dp), "passes back through 'sum', called at"),
    "dk not transposed": (attention, HEADS, attention_back(dk=lambda d, q: d @ q), "g with axes 0 and 1 exchanged"),
    "softmax without y": (softmax, X, lambda g, y, x: y * g - total(g * y), "lacks a factor y, or is divided by y once too often, in the term with the sum over axes [1]"),
    "second term": (gelu, X, gelu_back(second=0.0), "wrong term: the gradient that passes back through 'add'"),
    "twice": (gelu, X, gelu_back(second=2.0), "is counted twice"),
    "inner derivative": (gelu, X, gelu_back(inner=0.0), "through 'multiply', called at"),
    "1 - t": (gelu, X, gelu_back(squared=False), "through 'tanh', called at"),
    "a loop's carry": (scan, SCAN, scan_back(0.0), "through 'multiply'|`h = a * h + row`, is missing"),
    "kernel reversed": (convolution, CONVOLUTION, convolution_back(-1), "reversed: the VJP is right for input 1 reversed"),
    "skip left out": (residual, SQUARE, residual_back(0.0), "through 'add' to its operand 0"),
    "one of two uses": (pairs, [N(6, 2)], lambda g, y, x: np.concatenate([g, 0 * g[:1]]) / 2, "through 'getitem', called at"),
    "target left out": (mean_loss, SQUARE, lambda g, y, x, t: (2 * g * x / x.size, -2 * g * (x - t) / x.size), "right if input 1 is all zeros, and wrong for other values: it leaves out a term"),
    "1 + y": (sigmoid, X, lambda g, y, x: g * y * (1 + y), "(1 + y) where (1 - y) belongs"),
    "not a norm": (huber, X, lambda g, y, x: g * np.where(np.abs(x) < 1, x, 1), "through 'absolute', called at|has y where x belongs"),
    "a running sum from the wrong end": (lambda x: np.cumsum(np.cosh(x), -1), X, lambda g, y, x: np.cumsum(g, -1) * np.sinh(x), "sum from the other end"),
    "an operand of fewer axes": (lambda p, q: (p * np.log(q)).sum(-1), [1 + rng.random((3, 4)), 1 + rng.random((3, 4))], lambda g, y, p, q: (g[:, None] * np.log(q), g[:, None] / q), "the gradient lacks a factor input 0"),
    "rows": (lambda x: x * x, X, lambda g, y, x: np.where(np.arange(4)[:, None] == 1, 3, 2) * g * x, "wrong at index [1, :], and right elsewhere"),
    "all zeros are no threshold": (mean_loss, SQUARE, lambda g, y, x, t: (2 * g * (x - t) / x.size, 0 * g * t), "zero: "),
    "another's, times -1": (lambda x, t: (x * t).sum(), SQUARE, lambda g, y, x, t: (g * t, -g * t), "is that of input 0 times -1"),
    "halves exchanged": (np.sin, X, lambda g, y, x: np.roll(g * np.cos(x), 2, axis=1), "right numbers in another order"),
    "index off by one": (lambda w, i: w[i], [N(5, 3), INDEX], lambda g, y, w, i: (np.stack([g[k == INDEX + 1].sum(0) for k in range(5)]), None), "right for input 1 plus 1"),
    "w of the next channel": (layer_norm, NORM, lambda g, y, x, w, b: layer_norm_back()(g, y, x, np.roll(w, 1), b), "right for input 1 moved by 1"),
    "g of one row for all": (lambda x: (x * x).sum(1), X, lambda g, y, x: 2 * x * g[0], "the incoming gradient is not used at"),
    "x times the density left out": (outside, X, lambda g, y, x: g * (1 + erf(x / 2**0.5)) / 2, "only the term g y / x"),
    "density of another width": (outside, X, lambda g, y, x: g * ((1 + erf(x / 2**0.5)) / 2 + 2.5 * x * bell(x)), "times 2.5"),
    "tanh for erf": (outside, X, lambda g, y, x: g * ((1 + erf(x / 2**0.5)) / 2 + 1.004 * x * bell(x)), "times 1.004|approximation"),
    "tanh for sigmoid": (lambda x: np.log1p(np.exp(x)), X, lambda g, y, x: g * np.tanh(x), "tanh(x) where sigmoid(x) belongs"),
    "divided by y": (np.log, POSITIVE, lambda g, y, x: g / y, "has a factor x / y too many: x where y belongs, or a division by y where one by x belongs"),
    "divided by 1 + y": (np.expm1, POSITIVE, lambda g, y, x: g * y, "y where (1 + y) belongs"),
    "divided twice": (lambda x: x / total(x), POSITIVE, lambda g, y, x: (g - total(g * y)) / total(x) ** 2, "has a factor y / x too many"),
    "a sum with another factor": (softmax, X, lambda g, y, x: y * (g - total(g * y * y)), "has a factor y too many, or lacks a division by y, in the term with the sum over axes [1]"),
    "half of a sum": (outside_softmax, X, lambda g, y, x: y * (g - total(g * y) * mean(x)), "VJP: the error mixes elements along axes [1]"),
    "nor is a row": (lambda w: w[np.array([0, 1, 3, 1])], [N(4, 3)], lambda g, y, w: np.stack([0 * g[0], g[1] + g[3], 0 * g[0], g[2]]), "index [0, :]"),
    "the state before": (scan, SCAN, scan_back(state=2), "reads the values of the one before in the loop"),
    "both means": (by_means, X, lambda g, y, x: (g - 1.5 * mean(g) - y * 1.5 * mean(g * y)) / np.sqrt(x.var(-1, keepdims=True)), "'mean', wherever it is called, is 1.5 times"),
    "a norm left out": (scaled_rows, [N(4, 5), 1 + rng.random(4)], scaled_rows_back, "has a needless factor operand 1"),
    "both of a rotation moved": (rotary, [N(2, 5, 4), N(5, 2), N(5, 2)], lambda g, y, x, cos, sin: rotary_back(g, x, cos, sin, 1), "right for input 1 and input 2 moved by 1 along axis 0"),
    "exclusive": (log_cumulative, X, lambda g, y, x: np.exp(x) * (after(g * np.exp(-y)) - g * np.exp(-y)), "through 'cumsum', called at|is moved by -1 along axis 1"),
    "b for y": (lambda a, b: np.linalg.solve(np.tril(a), b), [np.eye(5) * 2 + N(5, 5) / 3, N(5, 3)], solve_back, "'solve' to its operand 0, called at|has operand 1 where y belongs"),
    "smoothing left out": (smoothed, [N(4, 5)], lambda g, y, x: g[:, None] * (softmax(x) - ONE_HOT), "'add' to its operand 0|is 1.111 times what it should be, and the gradient that passes back through 'add' to its operand 1|is missing"),
    "quantiles exchanged": (pinball, SQUARE, lambda g, y, p, t: (np.where(t > p, -0.1, 0.9) * total(g[:, None]) / 4, np.where(t > p, 0.9, -0.1) * total(g[:, None]) / 4), "through 'where' to its operand 1|is 0.1111 times|through 'where' to its operand 2|is 9 times"),
    "a bias of ones": (lambda x, b: x + b, [N(3, 3), np.ones(3)], lambda g, y, x, b: (g, g.sum(1)), "wrong axis: the gradient is summed over"),
    "an index overwrites": (lambda w: w[np.array([0, 0, 2])], [N(3)], lambda g, y, w: np.array([g[1], 0.0, g[2]]), "at index [0] is missing. Look for a missing sum, a repeated index that overwrites"),
    "a mask without its diagonal": (causal, HEADS, lambda g, y, q, k, v: (np.tril(g @ v.T) @ k, np.tril(g @ v.T).T @ q, np.tril(q @ k.T, -1).T @ g), "missed use: the contribution from the output at the same index is missing"),
    "upside down inside where": (leaky_sum, X, lambda g, y, x: np.where(x > 0, 0.1, 1.0) * total(g) * np.cosh(x), "through 'where'|reads operand 0 upside down"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_cause_is_named(name):
    f, inputs, vjp, words = MISTAKES[name]
    report = gradcheck(f, inputs, vjp=vjp, raise_exception=False)
    some = any if name in EITHER else all
    assert not report and some(w in report.diagnosis for w in words.split("|")), report


def windowed(q, k, v):
    s = np.where(band(q, 2), q @ k.T, -1e9)
    return softmax(s) @ v


def band(q, width):
    before = np.arange(len(q))[:, None] - np.arange(len(q))
    return (before >= 0) & (before < width)


def test_where_one_gradient_says_little_another_one_is_explained():
    def vjp(g, y, q, k, v):
        s = q @ k.T
        weights = softmax(np.where(band(q, 2), s, -1e9))
        wide = weights + np.where(band(q, 3) & ~band(q, 2), np.exp(s), 0)
        d = wide * (g @ v.T - total(g * y))
        return d @ k, d.T @ q, weights.T @ g

    inputs = [N(6, 4) / 5, 2 * N(6, 4), N(6, 4)]
    report = gradcheck(windowed, inputs, vjp=vjp, raise_exception=False)
    assert not report and report.worst.name == "input 0", report
    assert "for input 0. mask or index: the slope is zero" in report.diagnosis, report


def test_two_products_on_a_line_are_no_loop():
    swiglu = lambda a, b: a * b * sigmoid(b)
    vjp = lambda g, y, a, b: (g * b * sigmoid(b), g * a * sigmoid(b) * (1 - sigmoid(b)))
    report = gradcheck(swiglu, [N(3, 8), N(3, 8)], vjp=vjp, raise_exception=False)
    assert not report and "loop" not in report.diagnosis, report


KINDS = {  # of mistakes in a step
    "exclusive": "shifted by one",
    "the state before": "wrong value",
    "a norm left out": "wrong factor",
    "b for y": "wrong value",
    "upside down inside where": "mask or index",
    "dk not transposed": "transposed",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_mistake_of_a_step_has_the_kind_of_such_mistakes(name):
    f, inputs, vjp, _ = MISTAKES[name]
    report = gradcheck(f, inputs, vjp=vjp, raise_exception=False)
    assert report.diagnosis.kind == KINDS[name] and "passes back through" in report.diagnosis


RIGHT = {
    "layer norm": (layer_norm, NORM, layer_norm_back()),
    "attention": (attention, HEADS, attention_back()),
    "gelu": (gelu, X, gelu_back()),
    "scan": (scan, SCAN, scan_back()),
    "convolution": (convolution, CONVOLUTION, convolution_back()),
    "residual": (residual, SQUARE, residual_back(1.0)),
    "huber": (huber, X, lambda g, y, x: g * np.clip(x, -1, 1)),
    "a number": (
        mean_loss,
        SQUARE,
        lambda g, y, x, t: (2 * g * (x - t) / x.size, -2 * g * (x - t) / x.size),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass_in_both_precisions(name):
    f, inputs, vjp = RIGHT[name]
    assert gradcheck(f, inputs, vjp=vjp)
    single = [x.astype(np.float32) for x in inputs]
    assert gradcheck(f, single, vjp=vjp, reference=f, dtype="float32")


def test_the_header_and_the_diagnosis_speak_of_the_same_operand():
    scaled = ta.op(lambda x, w: x * w)
    scaled.vjp(lambda g, y, x, w: 1.5 * g * w, lambda g, y, x, w: 1.1 * g * x)
    for order in (1, -1):
        inputs = [N(3, 4), 100 * N(3, 4)][::order]
        report = gradcheck(lambda a, b: np.sin(scaled(b, a)), inputs, raise_exception=False)
        name = report.worst.name
        other = {"input 0": "input 1", "input 1": "input 0"}[name]
        assert f", which is {name}." in report.diagnosis and other not in report.diagnosis, report
        report = gradcheck(lambda a, b: np.sin(scaled(a, b)), inputs, raise_exception=False)
        name = report.worst.name.replace("input", "operand")
        assert f"Look at its VJP for {name}." in report.diagnosis, report


def test_long_inputs_are_bounded_by_the_size_of_the_results():
    """Axes of the table and of the indices are equally long, so that the result grows with their square."""
    table, indices, sizes = N(7, 16), rng.integers(0, 7, (4, 16)), []

    def rows(w, i):
        sizes.append(w[i].size)
        return w[i]

    def back(g, y, w, i):
        dw = np.zeros_like(w)
        np.add.at(dw, i, g)
        return dw, None

    assert gradcheck(rows, [table, indices], vjp=back)
    assert max(sizes) < 2**16


def test_a_step_must_explain_the_small_errors_too():
    """A row of large errors once hid that a factor fits no other row."""
    from tinygrad_attn.check.steps import everywhere

    error = np.array([40.0, 40.0, 0.2])
    assert everywhere(error, 1.01 * error, 1e-3)
    assert not everywhere(error, np.array([40.0, 40.0, 0.0]), 1e-3)


@pytest.mark.parametrize("seconds", [0.2, 9.0])
def test_what_is_tried_depends_on_sizes_and_not_on_the_load(seconds, monkeypatch):
    """Only a run that takes very long ends the trials, and the report says so."""
    clock, tried = [0.0], {}

    def slow():
        clock[0] += seconds / 2
        return clock[0]

    def square(x):
        tried.setdefault(x.shape)
        return x * x

    check = lambda: gradcheck(square, [N(4, 3)], vjp=lambda g, y, x: 2 * g * x)
    assert not check().notes
    fast, notes = list(tried), []
    tried.clear()
    monkeypatch.setattr("time.process_time", slow)
    notes = check().notes
    assert (list(tried) == fast) == (seconds < 1) == (not notes), notes
    assert seconds < 1 or notes[0].startswith("not tried: axes of more than 12 elements"), notes


def test_all_axes_are_changed_at_once_and_one_by_one_where_that_fails():
    """A library that compiles for each shape takes long for many shapes."""
    tried, multiple, together = {}, 1, False

    def product(a, b):
        if a.shape[0] % multiple:
            raise ValueError("the number of rows must be a multiple of 2")
        tried.setdefault((a.shape, b.shape))
        return a @ b

    def vjp(g, y, a, b):
        da = np.where(a.shape[0] > 9 and b.shape[1] > 9, 0, g @ b.T) if together else g @ b.T
        return da, a.T @ g

    check = lambda: gradcheck(product, [N(6, 5), N(5, 4)], vjp=vjp, raise_exception=False)
    assert check() and 5 < len(tried) < 25, list(tried)
    tried.clear()
    multiple = 2
    assert check() and 20 < len(tried) < 50, list(tried)
    multiple, together = 1, True
    assert "wrong when the axes have 16 elements" in check().diagnosis


def test_maxima_in_a_loop_are_not_tried_one_by_one(monkeypatch):
    """Thousands of gradients of thousands of maxima once took minutes."""
    pulls, pull = [], Kernel.pull
    monkeypatch.setattr(Kernel, "pull", lambda *a, **b: pulls.append(1) or pull(*a, **b))
    running = lambda x: np.stack([x[: k + 1].max(0) for k in range(len(x))])
    back = lambda g, y, x: np.stack([np.where(y == row, g, 0).sum(0) for row in x])
    x = np.sort(rng.random((12, 8)), axis=0).astype(np.float16)
    assert gradcheck(np.maximum.accumulate, [x], vjp=back, reference=running, dtype="float16")
    assert len(pulls) < 250
