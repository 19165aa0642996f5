"""Wrong VJPs are found, and the report names the op and a kind of mistake: one table."""

import math

import numpy as np
import pytest

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, no_grad, op
from tinygrad_attn.check import gradcheck, gradgradcheck

S44, S34, S35, S5 = (4, 4), (3, 4), (3, 5), (5,)
INDEX, AGAIN = np.array([0, 1, 1, 3]), np.array([0, 1, 1, 1])
ROWS, PICKED = np.arange(3), np.array([1, 0, 2])
UPPER = ~np.tri(4, dtype=bool)
KEPT, OTHER = (np.random.default_rng(s).random((4, 5)) > 0.5 for s in (5, 6))
GENERATOR, BUFFER = np.random.default_rng(0), np.zeros(5)


def rand(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def custom(forward, *vjps, **flags):
    made = op(forward, **flags)
    made.__name__ = "wrong"
    made.vjp(*vjps)
    return made


def square(vjp):
    return custom(lambda x: x * x, vjp)


def joint(forward, vjp, **flags):
    made = op(forward, **flags)
    made.__name__ = "wrong"
    made.vjp_all(vjp)
    return made


def total(x, axis=-1):
    return x.sum(axis=axis, keepdims=True)


def average(x, axis=-1):
    return x.mean(axis=axis, keepdims=True)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / total(e)


def spread(x):
    return np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


def standard(x):
    return (x - average(x)) / spread(x)


def added(x, index, g):
    out = np.zeros_like(x)
    np.add.at(out, index, g)
    return out


def overwritten(x, index, g):
    out = np.zeros_like(x)
    out[index] = g
    return out


def attention(g, y, q, k, v, *, scale=1.0, turned=False):
    p = softmax(q @ k.T / math.sqrt(q.shape[-1]))
    dp = g @ v.T
    ds = p * (dp - total(dp * p)) / math.sqrt(q.shape[-1]) * scale
    return ds @ k, ds.T @ q, (p if turned else p.T) @ g


def attend(vjp):
    return joint(lambda q, k, v: softmax(q @ k.T / math.sqrt(q.shape[-1])) @ v, vjp)


def causal(x):
    return softmax(np.where(UPPER, -1e9, x))


def rotate(x):
    a, b = x[..., :2], x[..., 2:]
    return np.concatenate([a * 0.8 - b * 0.6, a * 0.6 + b * 0.8], axis=-1)


def stale():
    kept = {}

    def forward(x):
        kept.setdefault("x", x.copy())
        return x**2

    return custom(forward, lambda g, y, x: 2 * g * kept["x"])


def shared():
    state = {}

    def forward(x):
        state["x"] = x
        return x * x

    return custom(forward, lambda g, y, x: 2 * g * state["x"])


def alternates():
    calls = []
    return square(lambda g, y, x: calls.append(1) or 2 * g * x * (1 + 0.5 * (len(calls) % 2)))


def zeroes_its_operand(g, y, x):
    x[x < 0] = 0
    return g * (x > 0)


def lost_in_a_copy(g, y, x):
    out = np.zeros_like(g)
    out.reshape(-1)[:] += (2 * g * x).reshape(-1)
    return out


def along(axis_of_sum):
    def forward(x, *, axis):
        e = np.exp(x)
        return e / e.sum(axis=axis, keepdims=True)

    vjp = lambda g, y, x, *, axis: y * (g - total(g * y, axis_of_sum(axis)))
    made = custom(forward, vjp)
    return lambda x: made(x, axis=0)


def under_no_grad(x):
    with no_grad():
        e = np.exp(x)
    return x * e


def changes_its_input(x):
    x.data[0] += 1
    return x * 2


def logistic(x):
    """Not to be run on Tensors, as scipy's is not."""
    return np.array([1 / (1 + math.exp(-v)) for v in x.ravel()]).reshape(x.shape)


@op
def scaled(x, *, by):
    return x * by


scaled.vjp(lambda g, y, x, *, by: g * by)
FACTORS = 1 + np.arange(12).reshape(3, 4) % 3
matmul, plus = (lambda a, b: a @ b), (lambda x, b: x + b)
right_a, right_b = (lambda g, y, a, b: g @ b.T), (lambda g, y, a, b: a.T @ g)
passes = lambda g, y, x, b: g

WRONG = {  # function, shapes, kinds, of which the first is the best
    "half": (square(lambda g, y, x: g * x), [S34], "constant factor"),
    "scalar": (square(lambda g, y, x: 1.7 * g * x), [()], "constant factor"),
    "sign": (square(lambda g, y, x: -2 * g * x), [S34], "constant factor"),
    "no 1/N": (
        custom(lambda x: x.mean(axis=0), lambda g, y, x: np.broadcast_to(g, x.shape)),
        [(5, 3)],
        "constant factor",
    ),
    "g ignored": (square(lambda g, y, x: 2 * x), [S34], "incoming gradient ignored"),
    "g squared": (square(lambda g, y, x: 2 * g * g * x), [S34], "incoming gradient"),
    "|g|": (square(lambda g, y, x: 2 * x * np.abs(g)), [S34], "incoming gradient"),
    "g normalised": (
        square(lambda g, y, x: 2 * x * g / np.sqrt((g * g).sum())),
        [S34],
        "incoming gradient",
    ),
    "g clipped": (square(lambda g, y, x: 2 * x * np.clip(g, -50, 50)), [S34], "incoming gradient"),
    "zero": (square(lambda g, y, x: g * 0), [S34], "zero"),
    "None": (custom(lambda a, b: a * b, lambda g, y, a, b: g * b, None), [S5, S5], "zero"),
    "constant": (square(lambda g, y, x: np.full_like(x, g.sum())), [S34], "constant | wrong axis"),
    "nan": (
        custom(lambda x: np.maximum(x, 0), lambda g, y, x: g * (y / y)),
        [S5],
        "nan | incoming gradient",
    ),
    "steps": (custom(np.floor, lambda g, y, x: g), [S5], "mask or index"),
    "x too many": (square(lambda g, y, x: 2 * g * x * x), [S34], "wrong factor"),
    "not divided": (
        custom(lambda x: np.sqrt((x * x).sum(axis=-1)), lambda g, y, x: g[:, None] * x),
        [S35],
        "wrong factor",
    ),
    "std left out": (
        custom(standard, lambda g, y, x: g - average(g) - y * average(g * y)),
        [S35],
        "wrong value",
    ),
    "std squared": (
        custom(standard, lambda g, y, x: (g - average(g) - y * average(g * y)) / spread(x) ** 2),
        [S35],
        "wrong value",
    ),
    "g itself": (custom(lambda x: np.sin(x) * 2, lambda g, y, x: g), [S34], "wrong factor"),
    "square left out": (
        custom(np.tanh, lambda g, y, x: g * (1 - y)),
        [S5],
        "wrong factor",
    ),
    "plus": (custom(np.tanh, lambda g, y, x: g * (1 + y * y)), [(60, 50)], "wrong factor"),
    "divisor": (custom(np.arctan, lambda g, y, x: g / (1 - x * x)), [S34], "wrong factor"),
    "hidden eps": (
        custom(lambda x: np.log(x * x), lambda g, y, x: 2 * g * x / (x * x + 0.01)),
        [S5],
        "VJP",
    ),
    "upside down": (custom(np.arctan, lambda g, y, x: g * (1 + x * x)), [S34], "wrong factor"),
    "x for y": (custom(np.exp, lambda g, y, x: g * x), [S5], "wrong factor"),
    "VJPs exchanged": (
        custom(lambda a, b: a * b, lambda g, y, a, b: g * a, lambda g, y, a, b: g * b),
        [S5, S5],
        "wrong factor",
    ),
    "answer transposed": (square(lambda g, y, x: (2 * g * x).T), [S44], "transposed"),
    "operand not transposed": (
        custom(matmul, lambda g, y, a, b: g @ b, right_b),
        [S44, S44],
        "transposed",
    ),
    "product transposed": (
        custom(matmul, right_a, lambda g, y, a, b: g.T @ a),
        [S44, S44],
        "transposed",
    ),
    "g transposed": (
        joint(
            lambda a, b: (a @ b, b),
            lambda g, y, a, b, *, saved: [g.T @ saved.T, a.T @ g],
            saves=True,
            reference=matmul,
        ),
        [S44, S44],
        "transposed",
    ),
    ".T for .mT": (
        custom(lambda x: x.swapaxes(-1, -2) * 1.0, lambda g, y, x: g.T),
        [(4, 4, 4)],
        "transposed",
    ),
    "not flipped back": (
        custom(lambda x: x[::-1] * x[::-1], lambda g, y, x: 2 * g * x[::-1]),
        [S5],
        "reversed",
    ),
    "y for x": (custom(np.sin, lambda g, y, x: g * np.cos(y)), [S34], "wrong value"),
    "rotated on": (custom(rotate, lambda g, y, x: rotate(g)), [S34], "transposed"),
    "cumsum": (custom(lambda x: x.cumsum(), lambda g, y, x: np.cumsum(g)), [(6,)], "transposed"),
    "weights not transposed": (
        attend(lambda *a: attention(*a, turned=True)),
        [(4, 3)] * 3,
        "transposed",
    ),
    "scaled twice": (
        attend(lambda *a: attention(*a, scale=3**-0.5)),
        [(4, 3)] * 3,
        "constant factor",
    ),
    "spread along the wrong axis": (
        custom(lambda x: x.sum(axis=1), lambda g, y, x: np.broadcast_to(g, x.shape)),
        [S44],
        "wrong axis",
    ),
    "summed over the wrong axis": (
        custom(plus, passes, lambda g, y, x, b: g.sum(axis=1)),
        [S44, (4,)],
        "wrong axis",
    ),
    "summed over all": (
        custom(plus, passes, lambda g, y, x, b: np.full(b.shape, g.sum())),
        [(3, 2, 4), (2, 4)],
        "wrong axis",
    ),
    "softmax, axis 0": (
        custom(softmax, lambda g, y, x: y * (g - total(g * y, 0))),
        [S44],
        "wrong axis",
    ),
    "softmax, axis off by one": (along(lambda axis: axis + 1), [S44], "wrong axis"),
    "softmax, diagonal": (custom(softmax, lambda g, y, x: g * y * (1 - y)), [S34], "missing sum"),
    "softmax, sum of g": (
        custom(softmax, lambda g, y, x: y * (g - total(g))),
        [S34],
        "wrong factor",
    ),
    "softmax, no y": (custom(softmax, lambda g, y, x: g - total(g * y)), [S34], "wrong factor"),
    "not summed": (custom(plus, passes, lambda g, y, x, b: g[0]), [S44, (4,)], "missed use"),
    "all but the last": (
        custom(
            matmul,
            lambda g, y, x, w: g @ w.T,
            lambda g, y, x, w: (x.swapaxes(-1, -2) @ g)[:-1].sum(0),
        ),
        [(5, 3, 4), (4, 2)],
        "missed use",
    ),
    "variance left out": (
        custom(
            lambda x: (x - average(x)) / x.std(axis=-1, keepdims=True),
            lambda g, y, x: (g - average(g)) / x.std(axis=-1, keepdims=True),
        ),
        [S34],
        "missing sum",
    ),
    "product rule": (custom(lambda x: x**2 * np.exp(x), lambda g, y, x: g * y), [S5], "wrong term"),
    "overwritten": (
        custom(lambda x: x[INDEX], lambda g, y, x: overwritten(x, INDEX, g)),
        [(5, 3)],
        "missed use",
    ),
    "one use left out": (
        custom(lambda x: x[AGAIN], lambda g, y, x: added(x, AGAIN[:3], g[:3])),
        [(5, 3)],
        "missed use",
    ),
    "slice at the start": (
        custom(lambda x: x[1:3], lambda g, y, x: added(x, [0, 1], g)),
        [(4, 3)],
        "shifted by one",
    ),
    "sort": (custom(lambda x: np.sort(x), lambda g, y, x: g), [(6,)], "mask or index"),
    "heads": (
        custom(lambda x: x.reshape(3, 2, 4).swapaxes(0, 1), lambda g, y, x: g.reshape(3, 8)),
        [(3, 8)],
        "transposed",
    ),
    "maximum to all": (
        custom(lambda x: x.max(axis=-1), lambda g, y, x: np.broadcast_to(g[:, None], x.shape)),
        [S34],
        "mask or index",
    ),
    "mask forgotten": (
        custom(causal, lambda g, y, x: softmax(x) * (g - total(g * softmax(x)))),
        [S44],
        "mask or index",
    ),
    "mask inverted": (
        custom(lambda x: np.where(UPPER, 0.0, x), lambda g, y, x: np.where(UPPER, g, 0.0)),
        [S44],
        "mask or index",
    ),
    "mask drawn anew": (
        custom(lambda x: x * KEPT / 0.5, lambda g, y, x: g * OTHER / 0.5),
        [(4, 5)],
        "mask or index",
    ),
    "branch": (custom(np.abs, lambda g, y, x: g * (x > 0)), [S34], "some elements"),
    "diagonal": (square(lambda g, y, x: 2 * g * x * (1 + np.eye(4))), [S44], "some elements"),
    "one of 5000": (
        square(lambda g, y, x: 2 * g * x * np.where(np.arange(5000) == 1234, 2, 1)),
        [(5000,)],
        "some elements",
    ),
    "small among large": (
        custom(lambda x: x * np.array([1e6, 1, 1]), lambda g, y, x: g * np.array([1e6, 1, 2])),
        [(3,)],
        "some elements",
    ),
    "SiLU": (
        custom(lambda x: x * logistic(x), lambda g, y, x: g * logistic(x)),
        [S34],
        "wrong term",
    ),
    "no pattern": (
        square(lambda g, y, x: 2 * g * x * FACTORS + np.sin(3 * x) * g.sum()),
        [S34],
        "VJP | wrong axis",
    ),
    "wrong shape": (custom(lambda x: x.sum(axis=0), lambda g, y, x: g), [S34], "backward fails"),
    "raises": (custom(lambda x: x * x, lambda g, y, x: {}["k"]), [S34], "backward fails"),
    "in place": (
        custom(lambda x: x * 3.0, lambda g, y, x: np.multiply(g, 3, out=g)),
        [S5],
        "VJP changes its operands",
    ),
    "operand zeroed": (
        lambda x: custom(lambda x: np.maximum(x, 0), zeroes_its_operand)(x * 2),
        [S5],
        "VJP changes its operands",
    ),
    "drawn": (
        square(lambda g, y, x: 2 * g * x * GENERATOR.uniform(0.9, 1.1)),
        [S5],
        "VJP changes its operands",
    ),
    "calls counted": (alternates(), [S5], "VJP changes its operands"),
    "buffer handed out": (
        custom(lambda x: np.multiply(x, x, out=BUFFER), lambda g, y, x: 2 * g * x),
        [S5],
        "shared state",
    ),
    "state outside": (shared(), [S5], "shared state"),
    "state of the first call": (stale(), [S5], "wrong nearby"),
    "layout": (custom(lambda x: x * x, lost_in_a_copy), [S34], "memory layout"),
    "needs": (
        joint(lambda a, b: a * b, lambda g, y, a, b, *, needs: (g * b if needs[1] else g, g * a)),
        [S5, S5],
        "needs",
    ),
}
BETWEEN = {  # the ops are right, and the program is not
    "detached": (lambda x: x * x.detach(), "constant factor", "detach()"),
    "numpy": (lambda x: x * np.exp(x.numpy()), "missed use", "numpy()"),
    "a setting": (lambda x: scaled(x, by=x.numpy() * 2), "constant factor", "0.5 times"),
    "no_grad": (under_no_grad, "missed use", "no_grad()"),
    "one result": (lambda x: (x * 2, Tensor(np.sin(x.data))), "missed use", "the code between the ops"),
    "all detached": (lambda x: x.detach() * 2, "zero", "detach()"),
    "a new leaf": (lambda x: Tensor(x.numpy() * 2, requires_grad=True), "zero", "Tensor("),
    "draws": (lambda x: x * GENERATOR.standard_normal(), "not deterministic", "dropout"),
    "changes its input": (changes_its_input, "input modified", "input 0"),
    "infinite": (lambda x: x + np.array([0, -np.inf, 0]), "infinite result", "input 0"),
    "a part of the loss": (lambda w: 0 * w.sum() + 3.0 + 1e-5 * (w.detach() ** 2).sum(), "zero", ""),
    "a constant": (lambda x: Tensor(np.ones(3)), "gradient missing", "not connected"),
}  # fmt: skip


def check(f, *shapes, **options):
    inputs = [rand(*shape, seed=i) for i, shape in enumerate(shapes)]
    return gradcheck(f, inputs, raise_exception=False, **options)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_vjp_is_found_and_its_kind_named(name):
    f, shapes, kinds = WRONG[name]
    report = check(f, *shapes)
    assert not report and "FAILED" in str(report)
    assert report.diagnosis.kind in kinds.split(" | "), report
    assert report.op in ("wrong", "forward", None), report


@pytest.mark.parametrize("name", [n for n in WRONG if n not in ("buffer handed out", "calls counted", "state of the first call")])  # fmt: skip
def test_among_other_ops_it_is_named(name):
    f, shapes, _ = WRONG[name]
    report = check(lambda *xs: np.sin(f(*(x * 1.5 for x in xs))) * 2, *shapes)
    assert not report and report.op in ("wrong", "forward"), report


@pytest.mark.parametrize("name", BETWEEN)
def test_what_joins_right_ops_wrongly_is_reported(name):
    f, kind, words = BETWEEN[name]
    report = check(f, (3,))
    assert not report and report.diagnosis.kind == kind and words in report.diagnosis, report


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4])
def test_one_wrong_element_of_600_is_found_at_any_size_of_values(explain_no_more, scale):
    """To look for its cause takes seconds, and the tests around this one do."""
    explain_no_more()
    x = np.random.default_rng(3).standard_normal(600) * scale
    off = np.where(np.arange(600) == 77, 1.1, 1)
    for made in (
        custom(lambda x: 1 / x, lambda g, y, x: -g * y * y * off),
        custom(lambda x: (x + 3 * scale).sum(), lambda g, y, x: g * off),
    ):
        assert not gradcheck(made, x, raise_exception=False)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("n", [96, 300, 1500])
def test_one_element_that_is_off_by_ten_percent_is_found_at_any_size(n, seed):
    rng = np.random.default_rng(seed)
    index, x = int(rng.integers(n)), rng.standard_normal(n)
    off = square(lambda g, y, x: 2 * g * x * np.where(np.arange(n) == index, 1.1, 1))
    report = gradcheck(lambda x: np.tanh(off(x) * np.exp(-x * x)), x, raise_exception=False)
    assert report.op == "wrong" and report.worst.index == (index,), report
    large = gradcheck(
        square(lambda g, y, x: 2.01 * g * x),
        np.resize(x, 3000),
        fast_mode=True,
        raise_exception=False,
    )
    assert not large


def test_a_vjp_that_is_right_for_a_weight_of_ones_is_found_at_ones():
    vjp = lambda g, y, x, w: w * (g - average(g))
    made = custom(
        lambda x, w: (x - average(x)) * w,
        vjp,
        lambda g, y, x, w: (g * (x - average(x))).sum(axis=0),
    )
    for weight in (np.ones(4), np.arange(1.0, 5)):
        report = gradcheck(made, [rand(*S34), weight], raise_exception=False)
        assert "operand misplaced" in report.diagnosis and report.op == "wrong", report


def test_a_small_result_is_looked_at_alone():
    for result in (lambda x: (1e6 * x, square(lambda g, y, x: -2 * g * x)(x) * 1e-3),):
        report = check(result, S34)
        assert "much smaller" in report.diagnosis and report.op == "wrong", report
    assert "much smaller" in check(lambda x: (1e6 * x, x * Tensor(x.data)), S34).diagnosis


def test_kinks_and_edges_are_told_from_bugs():
    kink = gradcheck(F.relu, np.array([1.0, 0.0]), raise_exception=False)
    assert kink.diagnosis.kind == "kink" and kink.op is None
    clip = gradcheck(lambda x: np.clip(x, -1, 1), np.array([1.0, 0.3]), raise_exception=False)
    assert clip.diagnosis.kind == "kink", "a gradient that jumps there is not a rounding error"
    for jump in (np.sign, np.floor):
        assert gradcheck(jump, np.array([0.0, 1.5]), raise_exception=False).diagnosis.kind == "kink"
    edge = gradcheck(np.sqrt, np.array([0.0, 1.0]), raise_exception=False)
    assert edge.diagnosis.kind == "domain" and "index [0]" in edge.diagnosis
    overflow = gradcheck(
        lambda x: np.exp(x) / np.exp(x).sum(), np.array([1000.0, 1]), raise_exception=False
    )
    assert overflow.diagnosis.kind == "domain"


def test_the_report_names_module_and_line():
    wrong = custom(np.tanh, lambda g, y, x: g * (1 - y))

    class Activation(nn.Module):
        def forward(self, x):
            return wrong(x)  # this line

    inner = nn.Sequential(nn.Linear(4, 3), Activation())
    model = nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(3, 2)).astype(np.float64)
    report = gradcheck(model, rand(2, 4), raise_exception=False)
    assert report.op == "wrong" and report.scope == "1.1" and "this line" in str(report.place)
    assert [e.name for e in report.entries if e.ok] == [
        "parameter '2.weight'",
        "parameter '2.bias'",
    ]


def fills(g, y, x):
    out = np.zeros(x.shape)
    out[:] = 2 * g * x
    return out


@pytest.mark.parametrize(
    "made, kind",
    [
        (custom(lambda x: x.sum(), lambda g, y, x: np.full(x.shape, g)), "second order"),
        (square(fills), "second order"),
        (
            custom(lambda x: x**3, lambda g, y, x: 3 * g * getattr(x, "_data", x) ** 2),
            "second order",
        ),
        (square(lambda g, y, x: (2 if isinstance(x, np.ndarray) else 3) * g * x), "two answers"),
    ],
)
def test_the_second_order_finds_what_the_first_cannot_see(made, kind):
    for f in (made, lambda x: np.sin(made(np.sin(x))) * x.sum()):
        x = np.array([0.3, 1.2, 0.9])
        assert gradcheck(f, x)
        report = gradgradcheck(f, x, raise_exception=False)
        assert report.order == 2 and report.diagnosis.kind == kind, report


def caches():
    """A VJP that keeps the gradient of its first call."""
    kept = {}
    return square(lambda g, y, x: kept.setdefault(x.shape, 2 * g * x))


def every_other():
    calls = []
    return square(lambda g, y, x: calls.append(1) or 2 * g * x * (1 + (len(calls) % 2)))


def once():
    """A VJP that is wrong the first time."""
    calls = []
    return square(lambda g, y, x: calls.append(1) or 2 * g * x * (1 + (len(calls) < 2)))


@pytest.mark.parametrize("made", [caches, every_other, once, alternates])
def test_a_vjp_that_keeps_state_is_said_to_do_so(made):
    report = check(made(), S34)
    assert not report and "state" in report.diagnosis and report.op == "wrong", report


@pytest.mark.parametrize("place", ["first", "last", "alone", "inside"])
def test_a_hook_that_changes_the_gradient_is_named(place):
    linear = lambda: nn.Linear(4, 4).astype(np.float64)
    hooked, model = linear(), linear()
    parts = {"first": [hooked, model], "last": [model, hooked], "alone": [hooked]}
    model = nn.Sequential(*parts.get(place, [nn.Sequential(linear(), hooked), linear()]))
    assert gradcheck(model, rand(2, 4))
    looking = hooked.register_full_backward_hook(lambda module, g_in, g_out: None)
    assert gradcheck(model, rand(2, 4)), "a hook that looks changes nothing"
    looking.remove()
    hooked.register_full_backward_hook(lambda module, g_in, g_out: (2 * g_in[0],))
    report = gradcheck(model, rand(2, 4), raise_exception=False)
    assert not report and "hook" in report.diagnosis, report


def test_a_hook_of_a_parameter_is_named_and_stays():
    model = nn.Linear(4, 2).astype(np.float64)
    model.weight.register_hook(lambda g: 2 * g)
    report = gradcheck(model, rand(3, 4), raise_exception=False)
    assert not report and "hook" in report.diagnosis and "weight" in report.worst.name, report
    np.sum(model.weight * 1.0).backward()
    assert (model.weight.grad == 2).all()


@pytest.mark.parametrize(
    "f, inputs",
    [
        (lambda x: (x * 2, np.fft.fft(x.data)), [np.ones(3)]),
        (lambda x: (x * 2, 1j), [np.ones(3)]),
        (lambda x, z: x * 2, [np.ones(3), np.array([1j])]),
        (lambda x, d: x * 2, [np.ones(3), {"z": np.array([1j])}]),
        (op(lambda x: x * 1j), [np.ones(3)]),
        (lambda z: np.exp(z), np.array([1j])),
    ],
)
def test_complex_numbers_are_refused_with_that_word(f, inputs):
    with pytest.raises(TypeError, match="complex"):
        gradcheck(f, inputs)
