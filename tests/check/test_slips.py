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
        lambda g, y, x: g - total(g * y),
        "known slip",
        "the outer factor y of y (g - sum(g y)) is missing",
    ),
    (
        "softmax, g for y g",
        softmax,
        lambda g, y, x: g - y * total(g * y),
        "known slip",
        "g stands where y g belongs, in y g - y sum(g y)",
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
    doubled = op(lambda x: (x * x, None), saves=True, reference=lambda x: x * x * 1.5)
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


# ---- slips on the way: what the op's own function computes between its input and its result


def sums(x, axis=-1):
    return x.sum(axis=axis, keepdims=True)


def log_softmax(x):
    return np.log(softmax(x))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * x**3)))


def inner_slip(g, y, x):
    t = np.tanh(0.8 * (x + 0.04 * x**3))
    return g * (0.5 * (1 + t) + 0.4 * x * (1 - t * t) * (1 + 0.04 * x * x))


def covariance(x):
    deviation = x - x.mean(-1, keepdims=True)
    return deviation @ deviation.swapaxes(-1, -2)


ON_THE_WAY = [  # forward, rule, words
    (
        log_softmax,
        lambda g, y, x: g + np.exp(y) * sums(g),
        "the use of what exp gives on the way in sum were counted -1 times",
    ),
    (log_softmax, lambda g, y, x: g - np.exp(y) * g.mean(-1, keepdims=True), "counted 0.25 times"),
    (tanh_gelu, inner_slip, "the use of the input in power were counted 0.3333 times"),
    (
        covariance,
        lambda g, y, x: 2 * g @ (x - x.mean(-1, keepdims=True)),
        "in matmul were counted 2 times, and the use of what subtract gives on the way in swapaxes",
    ),
]


@pytest.mark.parametrize("forward, rule, words", ON_THE_WAY, ids=[w for *_, w in ON_THE_WAY])
def test_a_use_of_a_value_on_the_way_that_is_missed_or_counted_otherwise_is_told(
    forward, rule, words
):
    for seed in range(3):
        x = np.random.default_rng(seed).uniform(0.5, 3, (3, 4))
        report = check(made("wrong", forward, rule), x, seed=seed)
        assert report.diagnosis.kind == "missed use" and words in report.diagnosis, report


@pytest.mark.parametrize(
    "slip, kind, words",
    [
        ("no sum", "known slip", "the sum of y (g - sum(g y)) is missing"),
        ("scores", "exchanged", "in the derivative of matmul what divide gives on the way stood"),
        ("keys", "exchanged", "in the derivative of matmul operand 1 stood for its operand 0"),
    ],
)
def test_a_value_on_the_way_of_attention_that_stands_for_another_is_told(slip, kind, words):
    made_ = op(lambda q, k, v: softmax(q @ k.swapaxes(-1, -2) / 2.0) @ v)
    made_.__name__ = "attention"

    @made_.vjp_all
    def _(g, y, q, k, v):
        turned = lambda a: a.swapaxes(-1, -2)
        scores = q @ turned(k) / 2
        p, dp = softmax(scores), g @ turned(v)
        ds = p * (dp - (0 if slip == "no sum" else sums(dp * p))) / 2
        by_values = turned(scores if slip == "scores" else p) @ g
        return ds @ k, turned(ds) @ (k if slip == "keys" else q), by_values

    for seed in range(3):
        q, k, v = np.random.default_rng(seed).standard_normal((3, 2, 4, 3))
        report = check(made_, q, k, v, seed=seed)
        assert report.op == "attention" and report.diagnosis.kind == kind, report
        assert words in report.diagnosis, report


@pytest.mark.parametrize(
    "slip, words",
    [
        (lambda g, p: g - sums(g * p), "the outer factor y of y (g - sum(g y)) is missing"),
        (lambda g, p: p * g, "the sum of y (g - sum(g y)) is missing"),
        (lambda g, p: p * (g - sums(g)), "the sum is over g alone"),
        (lambda g, p: p * (g - p * sums(g)), "y sum(g) stands where sum(g y) belongs"),
        (lambda g, p: p * (g - sums(g * p, -2)), "the sum goes over axis 0"),
        (lambda g, p: p * (1 - p) * g, "only the diagonal is counted"),
    ],
)
def test_a_slip_in_the_softmax_within_attention_is_named(slip, words):
    attend = op(lambda q, k, v: softmax(q @ k.mT / 2.0) @ v)
    attend.__name__ = "attend"

    @attend.vjp_all
    def _(g, y, q, k, v):
        p = softmax(q @ k.mT / 2)
        ds = slip(g @ v.mT, p) / 2
        return ds @ k, ds.mT @ q, p.mT @ g

    for seed in range(3):
        r = np.random.default_rng(seed)
        q, k, v = (r.standard_normal(shape) for shape in [(3, 4), (5, 4), (5, 2)])
        report = check(attend, q, k, v, seed=seed)
        assert report.op == "attend" and report.diagnosis.kind == "known slip", report
        assert "the softmax of what divide gives on the way" in report.diagnosis, report
        assert words in report.diagnosis, report


# ---- large operands: what a part of them tells


@pytest.mark.parametrize(
    "forward, rule, kind",
    [
        (lambda x: softmax(x), lambda g, y, x: y * g, "missing sum"),
        (np.exp, lambda g, y, x: g * x, "exchanged"),
        (lambda x: x.cumsum(-1), lambda g, y, x: g.cumsum(-1), "transposed"),
    ],
)
def test_of_large_operands_a_part_tells_the_pattern(forward, rule, kind):
    large = np.random.default_rng(0).standard_normal((50, 60))
    wrong = made("wrong", forward, rule)
    for f in (wrong, lambda x: np.tanh(wrong(x)) * 2):
        report = check(f, large)
        assert report.diagnosis.kind == kind and report.op == "wrong", report
        assert "cut to the first few elements" in report.diagnosis


# ---- what is asked of the incoming gradient, whatever its size


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, y, x: np.where(np.abs(g) < 1e-12, 0, g) * np.cos(x),
        lambda g, y, x: np.clip(g, -1e12, 1e12) * np.cos(x),
        lambda g, y, x: (g + 1e-14) * np.cos(x),
        lambda g, y, x: g * np.cos(x) * (0 if (g == 1).all() else 1),
    ],
    ids=["flushed", "clipped", "eps", "ones"],
)
def test_a_rule_that_is_not_linear_far_from_the_gs_of_the_program_is_named(rule):
    report = check(lambda x: np.tanh(made_once(rule)(x)), NORMAL)
    assert report.diagnosis.kind == "incoming gradient" and report.op == "sine", report


def made_once(rule):
    return made("sine", np.sin, rule)


def test_state_that_goes_to_and_fro_and_state_outside_are_traced_to_their_op():
    calls = []

    def alternates(g, y, x):
        calls.append(1)
        return g * np.cos(x) * (1 + 0.01 * (len(calls) % 2))

    report = check(lambda x: np.tanh(made_once(alternates)(x)), NORMAL)
    assert "gives another answer each time" in report.diagnosis and report.op == "sine", report
    last = {}

    def square(x):
        last["x"] = x
        return x * x

    keeps = made("keeps", square, lambda g, y, x: 2 * g * last["x"])
    report = check(lambda x: np.tanh(keeps(x)), NORMAL)
    assert report.diagnosis.kind == "shared state" and report.op == "keeps", report


def test_a_rule_that_writes_into_its_operand_is_named():
    writes = made_once(lambda g, y, x: np.multiply(g, np.cos(x), out=x))
    report = check(lambda x: writes(x) * 2, NORMAL)
    assert report.op == "sine" and "writes into operand 0 in place" in report.diagnosis, report


def test_the_op_that_rounds_within_float64_is_named():
    short = made(
        "short", lambda x: np.sin(x.astype(np.float32)).astype(float), lambda g, y, x: g * np.cos(x)
    )
    report = check(lambda x: np.exp(short(x * 1.5)), NORMAL)
    assert report.diagnosis.kind == "precision" and report.op == "short", report


# ---- what passes, but not in silence


@pytest.mark.parametrize(
    "forward, rule",
    [
        (lambda x: np.sin(math.pi * x), lambda g, y, x: 3.14 * g * np.cos(math.pi * x)),
        (np.sqrt, lambda g, y, x: g / (2 * y + 1e-3)),
    ],
    ids=["pi", "eps"],
)
def test_what_the_tolerance_lets_pass_is_noted_if_it_is_no_error_of_measuring(forward, rule):
    report = check(lambda x: made("rounded", forward, rule)(x) * 2, POSITIVE)
    assert report and "the rule of op 'rounded' is" in str(report), report
    assert "is allowed here" not in str(check(lambda x: np.sqrt(x), POSITIVE * 1e-5))


def test_a_tensor_that_wants_a_gradient_and_is_not_checked_is_noted():
    weight = Tensor(NORMAL[:, :3], requires_grad=True)
    half = made("half", lambda a, b: a @ b, lambda g, y, a, b: g @ b.T, lambda g, y, a, b: a.T @ g)
    report = check(lambda x: half(x, weight), NORMAL.T)
    assert "of shape (3, 3): give them in params=[...]" in str(report), report
    assert "params=" not in str(check(lambda x: half(x, weight), NORMAL.T, params=[weight]))


def test_a_wrong_small_result_is_found_beside_a_large_one_however_small_it_is():
    sine = made("sine", np.sin, lambda g, y, x: 1.1 * g * np.cos(x))
    report = check(lambda x: (1e6 * x, sine(x) * 1e-3), NORMAL)
    assert report.op == "sine" and "result 1 is wrong" in report.diagnosis, report


# ---- words for places and factors


@pytest.mark.parametrize(
    "forward, rule, words",
    [
        (np.abs, lambda g, y, x: g * (x > 0), "(where x < 0)"),
        (lambda x: np.clip(x, -0.5, 0.5), lambda g, y, x: g, "(where |x| > 0."),
        (lambda x: np.maximum(x, 0) ** 2, lambda g, y, x: 2 * g * x, "(where x < 0)"),
    ],
)
def test_a_branch_that_is_forgotten_is_told_by_its_condition(forward, rule, words):
    x = np.random.default_rng(0).standard_normal((4, 5))
    report = check(made("branch", forward, rule), x)
    assert report.diagnosis.kind == "some elements" and words in report.diagnosis, report


def test_a_running_sum_over_rows_from_the_wrong_end_forgets_no_mask():
    running = made("running", lambda x: x.cumsum(0), lambda g, y, x: g.cumsum(0))
    report = check(running, NORMAL)
    assert report.diagnosis.kind == "transposed" and "mask" not in report.diagnosis, report


def test_factors_of_a_product_in_the_wrong_order_are_told():
    product = made(
        "product", lambda a, b: a @ b, lambda g, y, a, b: b.T @ g, lambda g, y, a, b: a.T @ g
    )
    square = np.random.default_rng(0).standard_normal((2, 4, 4))
    report = check(product, *square)
    assert report.diagnosis.kind == "exchanged" and "from the wrong side" in report.diagnosis


def test_a_gradient_that_goes_to_the_minimum_and_not_the_maximum_has_another_mask():
    rule = lambda g, y, x: g[:, None] * (x == x.min(-1, keepdims=True))
    report = check(made("largest", lambda x: x.max(-1), rule), NORMAL)
    assert report.diagnosis.kind == "another mask", report


def test_a_rule_that_passes_g_on_lacks_the_derivative_of_the_op():
    scale = lambda x, w: x * w
    report = check(
        made("scale", scale, lambda g, y, x, w: g * w, lambda g, y, x, w: g.sum(0)),
        NORMAL,
        NORMAL[0],
    )
    assert report.diagnosis.kind == "missing factor", report
    assert "the gradient is g itself, summed over the axes" in report.diagnosis


def test_a_single_number_is_no_multiple_of_another_by_accident():
    def powers(x):
        return (x**2 + 0.02 * x**3).sum()

    report = check(made("powers", powers, lambda g, y, x: 2 * g * x), np.array([0.17]))
    assert report.op == "powers" and report.diagnosis.kind != "constant factor", report


def test_many_short_axes_are_explained_once():
    """There is nothing to cut short, so the same is not asked again."""
    asked = 0

    @op
    def odd(x):
        nonlocal asked
        asked += 1
        return np.sin(x)

    wave = np.cos(np.arange(6**4)).reshape(6, 6, 6, 6)
    odd.vjp(lambda g, y, x: g * (np.cos(x) + 0.3 * wave))
    x = np.random.default_rng(0).standard_normal((6, 6, 6, 6))
    report = check(odd, x)
    assert not report.ok and report.op == "odd"
    assert asked < 10_000
