"""Common slips in hand-written derivatives, each called by its name; rules wrong only as asked."""

import math

import numpy as np
import pytest

from tinygrad_attn import Tensor, op
from tinygrad_attn.check import gradcheck, gradgradcheck

NORMAL = np.random.default_rng(0).standard_normal((3, 4))
POSITIVE = np.abs(NORMAL) + 0.3
erf = np.vectorize(math.erf)


def made(name, forward, *rules, **flags):
    new = op(forward, **flags)
    new.__name__ = name
    new.vjp(*rules)
    return new


def check(f, *inputs, **options):
    return gradcheck(f, list(inputs), raise_exception=False, **options)


def total(x, axis=-1):
    return x.sum(axis=axis, keepdims=True)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / total(e)


def logistic(x):
    """Not to be run on Tensors, as scipy's is not."""
    return np.array([1 / (1 + math.exp(-v)) for v in x.ravel()]).reshape(x.shape)


def pdf(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def cdf(x):
    return (1 + erf(x / math.sqrt(2))) / 2


def standard(ddof):
    return lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, ddof=ddof, keepdims=True)


def standard_rule(ddof, inside):
    def rule(g, y, x):
        n, std = x.shape[-1], x.std(-1, ddof=ddof, keepdims=True)
        return (g - g.mean(-1, keepdims=True) - y * total(g * y) / (n - inside)) / std

    return rule


SLIPS = [  # name, forward, rule, kind, words
    (
        "y (g - y sum g)",
        softmax,
        lambda g, y, x: y * (g - y * total(g)),
        "known slip",
        "the function is softmax, and of its derivative y sum(g) stands where sum(g y) belongs",
    ),
    (
        "y (g - sum g)",
        softmax,
        lambda g, y, x: y * (g - total(g)),
        "known slip",
        "the sum is over g alone",
    ),
    (
        "softmax, no outer y",
        softmax,
        lambda g, y, x: g - y * total(g * y),
        "known slip",
        "the outer factor y",
    ),
    (
        "sigmoid with a plus",
        lambda x: 1 / (1 + np.exp(-x)),
        lambda g, y, x: g * y * (1 + y),
        "known slip",
        "the function is sigmoid, and of its derivative 1 + y stands where 1 - y belongs",
    ),
    (
        "SiLU without its first term",
        lambda x: x * logistic(x),
        lambda g, y, x: g * y * (1 - logistic(x)),
        "known slip",
        "the function is SiLU, and of its derivative the first term, g sigmoid(x), is missing",
    ),
    (
        "SiLU without its second term",
        lambda x: x * logistic(x),
        lambda g, y, x: g * logistic(x),
        "known slip",
        "the second term, g y (1 - sigmoid(x)), is missing",
    ),
    (
        "SiLU with sigmoid's derivative",
        lambda x: x * logistic(x),
        lambda g, y, x: g * logistic(x) * (1 - logistic(x)),
        "known slip",
        "it is the derivative of sigmoid alone",
    ),
    (
        "GELU, pdf without x",
        lambda x: x * cdf(x),
        lambda g, y, x: g * (cdf(x) + pdf(x)),
        "known slip",
        "pdf(x) is not multiplied by x",
    ),
    (
        "GELU without x pdf",
        lambda x: x * cdf(x),
        lambda g, y, x: g * cdf(x),
        "known slip",
        "the function is GELU, and of its derivative the second term, g x pdf(x), is missing",
    ),
    (
        "GELU without cdf",
        lambda x: x * cdf(x),
        lambda g, y, x: g * x * pdf(x),
        "known slip",
        "the first term, g cdf(x), is missing",
    ),
    (
        "log-softmax, sum of g y",
        lambda x: np.log(softmax(x)),
        lambda g, y, x: g - np.exp(y) * total(g * y),
        "known slip",
        "the function is log_softmax, and of its derivative the sum is over g y, not over g",
    ),
    (
        "n where n - 1 belongs",
        standard(1),
        standard_rule(1, 0),
        "missing sum",
        "divided by 4 where the forward pass has 3 (ddof)",
    ),
    (
        "n - 1 where n belongs",
        standard(0),
        standard_rule(0, 1),
        "missing sum",
        "divided by 3 where the forward pass has 4 (ddof)",
    ),
    (
        "a mask over softmax, forgotten",
        lambda x: softmax(np.where(~np.tri(4, dtype=bool), -1e9, x)),
        lambda g, y, x: softmax(x) * (g - total(g * softmax(x))),
        "mask missing",
        "the slope is zero at the upper triangle, as behind a mask",
    ),
]


@pytest.mark.parametrize("name, forward, rule, kind, words", SLIPS, ids=[s[0] for s in SLIPS])
def test_a_common_slip_is_called_by_its_name(name, forward, rule, kind, words):
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((4, 4))
        report = check(made("wrong", lambda x: forward(x), rule), x, seed=seed)
        assert report.op == "wrong", report
        assert report.diagnosis.kind == kind and words in report.diagnosis, report


def entropy(reduce):
    return lambda p, t: reduce(-(t * np.log(p) + (1 - t) * np.log(1 - p)))


INSIDE = np.random.default_rng(1).uniform(0.1, 0.9, (3, 4))


@pytest.mark.parametrize("reduce, n", [(lambda v: v, 1), (np.sum, 1), (np.mean, 12)])
def test_binary_cross_entropy_divided_where_it_is_multiplied_and_of_the_complement(reduce, n):
    forward = entropy(reduce)
    by_target = lambda g, y, p, t: g * (np.log(1 - p) - np.log(p)) / n
    upside_down = lambda g, y, p, t: g * p * (1 - p) / (p - t) / n
    complement = lambda g, y, p, t: g * (p - (1 - t)) / (p * (1 - p)) / n
    report = check(made("bce", forward, upside_down, by_target), INSIDE, 0.9 * INSIDE[::-1])
    assert report.diagnosis.kind == "inverted" and report.op == "bce", report
    report = check(made("bce", forward, complement, by_target), INSIDE, 0.9 * INSIDE[::-1])
    assert report.diagnosis.kind == "exchanged", report
    assert "operand 1 is replaced by 1 - operand 1" in report.diagnosis, report


# ---- attention

BLOCKED = ~np.tri(4, dtype=bool)


def attention(rule, causal=False):
    def weights(q, k, masked=causal):
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        return softmax(np.where(BLOCKED, -1e9, scores) if masked else scores)

    made = op(lambda q, k, v: weights(q, k) @ v)
    made.__name__ = "attention"

    @made.vjp_all
    def _(g, y, q, k, v):
        p = weights(q, k, causal and rule != "mask")
        dp = g @ v.swapaxes(-1, -2)
        ds = p * (dp - total(dp * p)) / math.sqrt(q.shape[-1])
        return (
            (ds.swapaxes(-1, -2) if rule == "dq" else ds) @ k,
            (ds if rule == "dk" else ds.swapaxes(-1, -2)) @ q,
            p.swapaxes(-1, -2) @ g,
        )

    return made


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 4)])
@pytest.mark.parametrize(
    "rule, kind, words",
    [
        ("dk", "transposed", "as in attention's dk = ds.mT @ q"),
        ("dq", "transposed", "a transpose (.mT) is missing there"),
        ("mask", "mask missing", "forgets the causal mask"),
    ],
)
def test_slips_of_attention(shape, rule, kind, words):
    for seed in range(3):
        q, k, v = np.random.default_rng(seed).standard_normal((3, *shape))
        assert check(attention("", rule == "mask"), q, k, v)
        report = check(attention(rule, causal=rule == "mask"), q, k, v, seed=seed)
        assert report.diagnosis.kind == kind and words in report.diagnosis, report
        assert report.op == "attention"


# ---- what was told misleadingly


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, y, x: 2 * x * g / np.sqrt((g * g).sum()),
        lambda g, y, x: 2 * x * np.sign(g),
        lambda g, y, x: 2 * x * g / np.abs(g).max(),
    ],
)
def test_a_rule_that_normalises_g_is_not_told_that_it_ignores_it(rule):
    report = check(made("normalises", lambda x: x * x, rule), NORMAL)
    assert report.diagnosis.kind == "incoming gradient", report
    assert "normalises g" in report.diagnosis, report
    ignores = made("ignores", lambda x: x * x, lambda g, y, x: 2 * x)
    assert check(ignores, NORMAL).diagnosis.kind == "incoming gradient ignored"


@pytest.mark.parametrize("axes", [(1, 2, 0), (2, 0, 1)])
def test_a_permutation_reused_for_its_inverse_is_told_so(axes):
    turn = made("turn", lambda x: x.transpose(axes), lambda g, y, x: g.transpose(axes))
    cube = np.random.default_rng(0).standard_normal((3, 3, 3))
    for f in (turn, lambda x: np.sin(turn(x))):
        report = check(f, cube)
        assert report.diagnosis.kind == "transposed" and "np.argsort(axes)" in report.diagnosis
        assert ".mT" not in report.diagnosis, report


# ---- the op is named also where no slope is wrong


def test_of_two_answers_the_op_is_named():
    doubled = op(lambda x: (x * x, None), saves=True, twin=lambda x: x * x * 1.5)
    doubled.__name__ = "doubled"
    doubled.vjp_all(lambda g, y, x, *, saved: (2 * g * x,))
    report = gradgradcheck(lambda x: np.tanh(doubled(np.sin(x))), [NORMAL], raise_exception=False)
    assert report.diagnosis.kind == "two answers" and report.op == "doubled", report


def test_of_a_rule_that_is_wrong_for_some_needs_the_op_is_named():
    times = op(lambda a, b: a * b)
    times.__name__ = "times"
    times.vjp_all(lambda g, y, a, b, *, needs: (g * b if needs[1] else g, g * a))
    report = check(lambda a, b: np.tanh(times(np.sin(a), b)), NORMAL, NORMAL + 1)
    assert report.diagnosis.kind == "needs" and report.op == "times", report


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, y, x: 2 * x * g * (g / g),
        lambda g, y, x: 2 * x * (g**2 / g),
    ],
)
def test_of_a_rule_that_gives_nan_where_g_is_zero_the_op_is_named(rule):
    nan = made("nan_at_zero", lambda x: x * x, rule)
    report = check(lambda x: np.tanh(nan(x)) + x, NORMAL)
    assert report.diagnosis.kind == "incoming gradient" and report.op == "nan_at_zero", report
    assert "NaN" in report.diagnosis, report


def test_one_result_of_several_that_left_the_graph_is_numbered():
    report = check(lambda x: (x * 2, Tensor(np.sin(x.data))), NORMAL)
    assert report.diagnosis.kind == "missed use", report
    assert "result 1 depends on input 0, but is a constant" in report.diagnosis, report
    assert check(lambda x: (x * 2, Tensor(np.ones(3))), NORMAL)


# ---- "every op's own rule is right" is said only where each was asked what the program asked


def lost(x, g):
    """Right for a g that lies row by row; what reshape copies of another is written to in vain."""
    out = np.zeros_like(g)
    out.reshape(-1)[:] += (2 * g * x).reshape(-1)
    return out


def by_strides(g, y, x):
    return (
        2
        * x
        * np.lib.stride_tricks.as_strided(g, g.shape, np.empty(g.shape).strides, writeable=False)
    )


@pytest.mark.parametrize(
    "after",
    [
        lambda y: y.T * np.arange(16.0).reshape(4, 4),
        lambda y: np.exp(y.T),
        lambda y: y.swapaxes(0, 1) ** 3,
    ],
)
def test_a_rule_that_is_wrong_for_a_transposed_g_is_named(after):
    for rule in (lambda g, y, x: lost(x, g), by_strides):
        wrong = made("minds_layout", lambda x: x * x, rule)
        square = np.random.default_rng(0).standard_normal((4, 4))
        report = check(lambda x, wrong=wrong: after(wrong(x)), square)
        assert not report and "own rule is right" not in str(report), report
        assert report.op == "minds_layout" and report.diagnosis.kind == "memory layout", report


def test_a_rule_that_is_wrong_for_a_broadcast_g_is_named():
    """The g of a sum is one number in the memory of one, with strides of zero."""

    def rule(g, y, x):
        return 2 * x * (g if any(g.strides) else 0.5 * g)

    wrong = made("minds_layout", lambda x: x * x, rule)
    total = made("total", lambda x: x.sum(), lambda g, y, x: np.broadcast_to(g, x.shape))
    report = check(lambda x: total(wrong(x)), NORMAL)
    assert not report and "own rule is right" not in str(report), report
    assert report.op == "minds_layout", report


@pytest.mark.parametrize("n", [96, 97, 300])
@pytest.mark.parametrize("off", [1.003, 1.01])
def test_one_element_that_is_off_by_a_little_is_found_at_any_size(n, off):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, index = rng.uniform(0.3, 2, n), int(rng.integers(n))
        factors = np.where(np.arange(n) == index, off, 1)
        sine = made("sine", np.sin, lambda g, y, x: g * np.cos(x) * factors)  # noqa: B023
        report = check(lambda x: np.exp(sine(x * x)) * x, x, seed=seed)  # noqa: B023
        assert "own rule is right" not in str(report), report
        assert report or report.op == "sine", report


WRONG = {
    "no pattern": lambda g, y, x: 2 * g * x + np.sin(3 * x) * g.sum(),
    "inverted": lambda g, y, x: g / (2 * x),
    "noise": lambda g, y, x: 2 * g * x * np.linspace(0.5, 3, x.size).reshape(x.shape) ** 2,
    "size of g": lambda g, y, x: np.abs(2 * g * x),
    "direction of g": lambda g, y, x: 2 * x * g / np.sqrt((g * g).sum()),
    "constant": lambda g, y, x: np.full(x.shape, np.mean(2 * g * x)) + 0.1 * x * g,
}


@pytest.mark.parametrize(
    "shape", [(), (1,), (2,), (1, 3), (3, 1), (2, 3, 4), (97,), (9, 12)], ids=str
)
@pytest.mark.parametrize("name", WRONG)
def test_whatever_the_shape_the_op_is_named_and_no_explanation_fails(name, shape):
    """Of a single number nothing is known but that it is wrong, and that must be said too."""
    square = made("square", lambda x: x * x, WRONG[name])
    x = np.asarray(np.random.default_rng(3).uniform(0.5, 2, shape))
    for f in (square, lambda x: np.tanh(square(1.5 * x)), lambda x: (square(x) * 2).sum()):
        report = check(f, x)
        assert not report and report.op == "square" and report.diagnosis.kind, report


# ---- of a rule that a program asks rightly, too, it is told where it would go wrong


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, y, x: lost(x, g),
        lambda g, y, x: 2 * x * g.ravel("K").reshape(g.shape),
        lambda g, y, x: 2 * x * (g if g.flags.owndata else 1.003 * g),
        lambda g, y, x: 2 * x * (1.01 * g if 0 in g.strides else g),
        lambda g, y, x: (
            2 * x * (g if g.base is None else g.base.ravel()[: g.size].reshape(g.shape))
        ),
    ],
    ids=["written in vain", "memory order", "a view", "broadcast", "the base"],
)
@pytest.mark.parametrize("after", [lambda y: y, np.exp, lambda y: y.sum(0), lambda y: y[:, ::2]])
def test_a_rule_that_minds_layouts_which_the_program_does_not_bring_is_named(rule, after):
    wrong = made("minds_layout", lambda x: x * x, rule)
    report = check(lambda x: after(wrong(x)), NORMAL)
    assert report.diagnosis.kind == "memory layout" and report.op == "minds_layout", report


def test_a_rule_that_is_cut_off_above_the_gs_of_the_program_is_named():
    cut = made("cut", np.sin, lambda g, y, x: np.clip(g, -50, 50) * np.cos(x))
    report = check(lambda x: np.tanh(cut(x)), NORMAL)
    assert report.diagnosis.kind == "incoming gradient" and report.op == "cut", report


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_rule_that_answers_in_fewer_digits_is_named(dtype):
    short = made("short", np.sin, lambda g, y, x: (g * np.cos(x)).astype(dtype))
    report = check(lambda x: np.exp(short(x)), NORMAL)
    assert report.diagnosis.kind == "precision" and report.op == "short", report


def test_of_an_operand_that_is_used_twice_each_rule_is_looked_at_alone():
    right = lambda g, y, a, b: g @ b.T
    wrong = made("product", lambda a, b: a @ b, right, lambda g, y, a, b: g @ a.T)
    square = np.random.default_rng(0).standard_normal((4, 4))
    report = check(lambda x: wrong(x, x), square)
    assert "rule for operand 1" in report.diagnosis and report.diagnosis.kind == "exchanged", report


TARGETS = (np.arange(12).reshape(3, 4) % 2).astype(float)


def binary(p, *, t):
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


@pytest.mark.parametrize(
    "rule, kind, words",
    [
        (lambda g, y, p, *, t: g * (p - t), "extra factor", "x (1 - x)"),
        (lambda g, y, p, *, t: g * (p - 1 + t) / (p * (1 - p)), "exchanged", "replaced by 1 - "),
    ],
)
def test_slips_of_a_loss_whose_targets_are_a_setting(rule, kind, words):
    loss = made("bce", binary, rule)
    p = np.random.default_rng(0).uniform(0.1, 0.9, (3, 4))
    report = check(lambda p: loss(p, t=TARGETS), p)
    assert report.diagnosis.kind == kind and words in report.diagnosis, report


@pytest.mark.parametrize(
    "forward, rule, words",
    [
        (
            lambda x: np.where(x > 0, x, 0.1 * x),
            lambda g, y, x: g * np.where(x > 0, 0.1, 1),
            "the wrong way round",
        ),
        (
            lambda x: np.sqrt((x * x).sum(-1)),
            lambda g, y, x: (g / (y + 0.01))[:, None] * x,
            "a hidden eps",
        ),
        (
            standard(0),
            lambda g, y, x: (
                (g - g.mean(-1, keepdims=True) - y * (g * y).mean(-1, keepdims=True))
                / x.std(-1, ddof=1, keepdims=True)
            ),
            "ddof",
        ),
    ],
    ids=["leaky relu", "norm", "layer norm"],
)
def test_more_slips_are_called_by_their_names(forward, rule, words):
    report = check(made("slip", forward, rule), NORMAL)
    assert words in report.diagnosis, report
