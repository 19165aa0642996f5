"""A right VJP is never accused: at all sizes of values, near edges and kinks, with masks; and what gradcheck takes."""

import copy
import pickle

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, op
from tinygrad_attn.check import GradcheckError, detect_anomaly, gradcheck, gradgradcheck

INSIDE = np.random.default_rng(0).uniform(0.5, 2, (3, 4))
NORMAL = np.random.default_rng(1).standard_normal((3, 4))
BUFFER = np.zeros(NORMAL.shape)
UPPER, LOWER = np.triu(np.ones((3, 4), bool), 1), ~np.tri(4, dtype=bool)


def made(forward, *vjps):
    new = op(lambda *inputs: forward(*inputs)) if len(vjps) != 1 else op(lambda x: forward(x))
    new.vjp(*vjps)
    return new


def polite(x):
    """log for those who ask politely."""
    if not (x > 0).all():
        raise KeyError("positive please")
    return np.log(x)


def watched(x):
    with detect_anomaly():
        return np.log(x)


inverse = made(lambda x: 1 / x, lambda g, y, x: -g * y * y)
steep = made(lambda x: np.sin(1e7 * x), lambda g, y, x: 1e7 * g * np.cos(1e7 * x))
far = made(lambda x: 1 - 1 / (1 + np.exp(-x)), lambda g, y, x: -g / (np.exp(x) + 2 + np.exp(-x)))
fill = made(lambda x: np.where(UPPER, -np.inf, x), lambda g, y, x: np.where(UPPER, 0, g))
passing = made(lambda x: x.T * 1.0, lambda g, y, x: g.T)
total = made(lambda x: x.sum(), lambda g, y, x: np.ones(x.shape) * g.reshape(()))
buffered = made(lambda x: x * x, lambda g, y, x: np.multiply(g, 2 * x, out=BUFFER))
RIGHT = {
    "one array for every gradient": (lambda x: buffered(x * 1.5) - buffered(buffered(x)), NORMAL),
    "a single number": (total, NORMAL),
    "softmax of small numbers": (lambda x: F.softmax(x / 1e-6), NORMAL * 1e-6),
    "of large ones": (lambda x: F.softmax(x / 1e6) * 1e6, NORMAL * 1e6),
    "an offset": (lambda x: (x**2).sum() + 1e6, NORMAL),
    "a large offset": (lambda x: np.sin(x) + 1e9, NORMAL),
    "a float32 inside": (made(lambda x: np.exp(x.astype(np.float32)).astype(float), lambda g, y, x: g * y), NORMAL),
    "a mask": (lambda x: np.where(UPPER, -1e9, x), NORMAL),
    "a mask of infinities": (fill, NORMAL),
    "and softmax": (lambda x: F.softmax(np.where(LOWER, -np.inf, x)), np.arange(16.0).reshape(4, 4) % 5),
    "a gradient inside": (lambda x: ta.grad((x**3).sum(), x, create_graph=True)[0], NORMAL),
    "steps": (lambda x: np.floor(x) + x**2, NORMAL),
    "sizes": (lambda x: (x * np.array([1e6, 1, 1e-6, 1])).sum(), NORMAL),
    "an edge": (np.arcsin, np.array([0.995, -0.5])),
    "an order": (lambda x: x[np.argsort(x.numpy()[:, 0])] * np.arange(4.0), NORMAL),
    "a power": (lambda x, n: x**n, INSIDE, 3),
    "nothing": (np.exp, np.zeros((0, 3))),
    "a constant": (lambda x: F.softmax(x).sum(), NORMAL),
    "tiny": (inverse, INSIDE * 1e-20),
    "logarithm of tiny": (np.log, INSIDE * 1e-10),
    "huge": (lambda x: x * x, INSIDE * 1e100),
    "huge and small": (lambda x: (3 * x).sum(), np.array([1e20, -2e20, 1.0])),
    "steep": (steep, NORMAL),
    "log near 0": (np.log, np.array([1e-6, 0.3, 0.7])),
    "sqrt near 0": (np.sqrt, np.array([1e-6, 0.3, 0.7])),
    "arccos near 1": (np.arccos, np.array([1 - 1e-6, 0.3])),
    "1/x near 0": (lambda x: 1 / x, np.array([1e-8, 1.0])),
    "relu near 0": (lambda x: np.maximum(x, 0), np.array([1e-9, 1.0])),
    "flat near a kink": (lambda x: np.maximum(x, 1), np.array([1 - 1e-8, 0.5])),
    "clipped near a kink": (lambda x: np.clip(x, -1, 1), np.array([1 + 1e-8, 0.5])),
    "cubed zeros": (lambda x: x**3, np.zeros((2, 3))),
    "exp at zeros": (np.exp, np.zeros((2, 3))),
    "cancelling": (lambda a, b: (a * a).sum(-1) + (b * b).sum(-1) - 2 * (a * b).sum(-1), NORMAL + 1e5, NORMAL * 1.1 + 1e5),
    "sine of large numbers": (np.sin, np.array([1e6, 1e9, 1.37e11])),
    "far out": (far, np.array([25.0])),
    "sigmoid, far out": (lambda x: x.sigmoid(), np.array([30.0])),
    "gelu, far out": (F.gelu, np.array([-7.33])),
    "softmax, far out": (F.softmax, np.array([-32.86, -20.0, 0.3])),
    "norm of equals": (lambda a: F.layer_norm(np.repeat(1e3 * a, 2), [2]), np.array([0.7])),
    "a domain": (polite, INSIDE),
    "a watched domain": (watched, np.array([0.01, 1.0])),
    "a view": (lambda x: np.exp(passing(x)) * passing(x * 2) + (passing(x) + passing(x)), INSIDE),
    "overflow beside it": (lambda x: x * 1e-306 * 1e306, NORMAL),
    "several results": (lambda x: {"y": x * 2, "more": {"h": [np.sin(x)]}}, NORMAL),
    "a result of rounding errors": (lambda x: (np.sin(x), (x + 1e3 - 1e3) - x), NORMAL),
    "a constant result": (lambda x: (x**2, Tensor(np.ones(2))), NORMAL),
    "projections": (lambda x: x * x, np.random.default_rng(0).standard_normal((60, 50))),
    "indices": (lambda i, x: x[i], np.array([0, 0, 2]), NORMAL),
    "leaves of a dict": (lambda x, d: x * d["w"], NORMAL, {"w": Tensor(INSIDE, requires_grad=True)}),
    "another byte order": (lambda x: np.exp(x).sum(), NORMAL.astype(">f8")),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_vjp_passes(name):
    f, *inputs = RIGHT[name]
    assert gradcheck(f, inputs)


def batch_norm(x, w, b):
    h = x @ w * 1e-3 + b
    return (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-12)


NO_EFFECT = {  # functions with an input on which the result does not depend, but for rounding
    "bias of keys": (lambda q, k, v, b: F.scaled_dot_product_attention(q, k + b, v), [(2, 3, 4)] * 3 + [(4,)]),
    "bias before softmax": (lambda x, b: F.softmax(x + b), [(3, 4), (3, 1)]),
    "bias before a norm": (batch_norm, [(5, 4), (4, 3), (3,)]),
    "scale before a norm": (lambda x, s: x * s / np.sqrt(((x * s) ** 2).sum()), [(3, 4), ()]),
    "sum of softmax": (lambda x, w: F.softmax(x).sum(-1) * w, [(3, 4), (3,)]),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_EFFECT)
def test_a_gradient_that_is_zero_but_for_rounding_passes(name):
    f, shapes = NO_EFFECT[name]
    for seed in (0, 1, 21):  # of which 21 makes large rounding errors in a norm
        rng = np.random.default_rng(seed)
        inputs = [rng.standard_normal(shape) for shape in shapes]
        for fast_mode in (False, True):
            assert gradcheck(f, inputs, fast_mode=fast_mode)


def test_so_do_layers_whose_biases_have_no_effect():
    for seed in range(2):
        ta.manual_seed(seed)
        layer = nn.SelfAttention(5, 4, qkv_bias=True).astype(np.float64)
        x = np.random.default_rng(seed).standard_normal((1, 3, 5))
        for fast_mode in (False, True):
            assert gradcheck(layer, [x], fast_mode=fast_mode)


@pytest.mark.parametrize("factor", [2.0, 1.5, -1.0])
def test_and_a_wrong_one_is_accused_there_all_the_same(factor):
    for f, x in (
        (made(lambda x: 1e-12 * np.sin(x), lambda g, y, x: factor * 1e-12 * g * np.cos(x)), NORMAL),
        (
            made(far.forward, lambda g, y, x: -factor * g / (np.exp(x) + 2 + np.exp(-x))),
            np.array([25.0]),
        ),
        (made(lambda x: x**3, lambda g, y, x: factor * 3 * g * x * x), 1e-8 * NORMAL),
        (made(lambda x: 1 / x, lambda g, y, x: -factor * g * y * y), 1e-4 * NORMAL),
        (made(lambda x: 3 + 1e-5 * np.sin(x), lambda g, y, x: (factor - 2) * g), INSIDE),
        (made(lambda x: 1e10 + np.sin(x), lambda g, y, x: factor * g * np.cos(x)), NORMAL),
        (
            made(
                lambda x: 1e7 + x.mean(),
                lambda g, y, x: g * factor * np.ones(12).reshape(x.shape) / 12,
            ),
            NORMAL,
        ),
    ):
        report = gradcheck(f, x, raise_exception=False)
        assert not report and report.op == "<lambda>", report


def test_what_cannot_be_measured_is_said():
    zero = made(lambda x: 1e9 + 1e-3 * np.sin(x), lambda g, y, x: 0 * g)
    for f, x, kind in ((zero, NORMAL, "precision"), (np.exp, 1e4 * NORMAL, "domain")):
        report = gradcheck(f, x, raise_exception=False)
        assert not report and report.diagnosis.kind == kind and report.op is None, report


@pytest.mark.parametrize("name", ["steps", "a power", "exp at zeros", "sigmoid, far out", "softmax, far out", "a domain", "a mask of infinities", "several results"])  # fmt: skip
def test_to_second_order_too(name):
    f, *inputs = RIGHT[name]
    assert gradgradcheck(f, inputs)
    if name == "a mask of infinities":
        assert "left out" in str(gradcheck(f, inputs))


@pytest.mark.parametrize("layer", ["Linear", "LayerNorm", "TransformerEncoderLayer"])
def test_layers_pass_and_are_left_as_they_were(layer):
    sizes = {"Linear": (4, 3), "LayerNorm": (4,), "TransformerEncoderLayer": (4, 2, 8, 0.0)}
    module = getattr(nn, layer)(*sizes[layer]).astype(np.float64)
    before = {name: p.numpy().copy() for name, p in module.named_parameters()}
    x = Tensor(np.random.default_rng(0).standard_normal((3, 2, 4)), requires_grad=True)
    report = gradcheck(module, x, order=1 + (layer == "Linear"))
    assert report and x.grad is None
    assert [e.name for e in report.entries][1:][: len(before)] == [
        f"parameter {name!r}" for name in before
    ]
    for name, p in module.named_parameters():
        assert np.array_equal(p.numpy(), before[name]) and p.grad is None


def test_what_is_checked():
    w, x = Tensor(INSIDE, requires_grad=True), Tensor(INSIDE.T.copy(), requires_grad=True)
    report = gradcheck(lambda t: t @ w, [x], params={"w": w})
    assert [e.name for e in report.entries] == ["input 0", "parameter 'w'"]
    assert "pass these Tensors in params=[...]" in str(gradcheck(lambda t: t @ w, [x]))
    assert gradcheck(lambda x, y: x * 2, [INSIDE, INSIDE]).notes == [
        "input 1: no result depends on this input."
    ]
    assert not gradcheck(lambda t: t @ (w * w.detach()), [x], params=[w], raise_exception=False)
    first, again = (gradcheck(lambda x: x**2, INSIDE).entries[0].analytic for _ in range(2))
    assert np.array_equal(first, again), "the random weights are the same each time"
    assert not np.array_equal(first, gradcheck(lambda x: x**2, INSIDE, seed=1).entries[0].analytic)
    (entry,) = gradcheck(lambda x: x * x, np.ones((60, 50)) + 1, fast_mode=True).entries
    assert entry.projections == 2


def test_a_report_comes_back_from_another_process_and_shows_as_its_text():
    wrong = made(lambda x: x * x, lambda g, y, x: g * x)
    with pytest.raises(GradcheckError, match="constant factor") as failed:
        gradcheck(wrong, NORMAL)
    for report in (failed.value.report, gradcheck(np.sin, NORMAL)):
        for copied in (copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
            assert str(copied) == str(report) == repr(report) and bool(copied) is bool(report)
            assert copied.diagnosis.kind == report.diagnosis.kind


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda: gradcheck(lambda: Tensor(INSIDE), []), "nothing to check"),
        (lambda: gradcheck(np.exp, INSIDE, order=3), "order must be 1"),
        (lambda: gradcheck(np.exp, INSIDE, seed=1.5), "seed must be integer"),
        (lambda: gradcheck(lambda x: 3.0, INSIDE), "must return a floating-point tensor"),
        (lambda: gradcheck(np.exp, INSIDE.astype(np.float32)), r"precision too low.*x\.astype"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_to_write(wrong, text):
    with pytest.raises((TypeError, ValueError), match=text):
        wrong()
