"""The checker finds planted bugs and says which kind each is; what is right passes, to second order."""

import copy
import pickle
from html import unescape

import numpy as np
import pytest
from support import unquoted

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, no_grad, op
from tinygrad_attn.check import GradcheckError, compare, gradcheck, gradgradcheck


def rand(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


def custom(forward, *rules, **flags):
    made = op(forward, **flags)
    made.vjp(*rules)
    return made


def square(rule):
    return custom(lambda x: x * x, rule)


def softmax_values(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def standardised(x):
    return (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)


def overwrite(g, y, x):
    out = np.zeros_like(x)
    out[INDEX] = g
    return out


def added(x, index, g):
    out = np.zeros_like(x)
    np.add.at(out, index, g)
    return out


def picks(index, rule):
    pick = custom(lambda x, i: x[i], rule, None)
    return lambda x: pick(x, np.array(index))


def zeroes_its_operand(g, y, x):
    x[x < 0] = 0
    return g * (x > 0)


def under_no_grad(x):
    with no_grad():
        e = np.exp(x)
    return x * e


def changes_its_input(x):
    x.data[0] += 1
    return x * 2


GENERATOR = np.random.default_rng(0)


def drawing(x):
    return x * GENERATOR.standard_normal()


def keeps_state():
    state = {}

    def forward(x):
        state["x"] = x
        return x * x

    return custom(forward, lambda g, y, x: 2 * g * state["x"])


def counts_its_calls():
    calls = []

    def rule(g, y, x):
        calls.append(1)
        return 2 * g * x * (1 if len(calls) == 1 else 1.5)

    return square(rule)


@op
def scaled(x, *, by):
    return x * by


scaled.vjp(lambda g, y, x, *, by: g * by)


def at_zero():
    return Tensor(np.array([1.0, 0.0, -2.0]), requires_grad=True)


INDEX = np.array([0, 1, 1, 3])
S44, S34, S5 = (4, 4), (3, 4), (5,)

PLANTED = [  # name, function, shapes, kind, a word of the text
    ("half", square(lambda g, y, x: g * x), [S34], "constant factor", "0.5 times"),
    ("double", square(lambda g, y, x: 4 * g * x), [S34], "constant factor", "2 times"),
    (
        "exponent",
        custom(lambda x: x**3, lambda g, y, x: g * x * x),
        [S34],
        "constant factor",
        "or a number of the formula",
    ),
    ("sign", square(lambda g, y, x: -2 * g * x), [S34], "sign", "wrong sign"),
    (
        "mean without 1/N",
        custom(lambda x: x.mean(axis=0), lambda g, y, x: np.broadcast_to(g, x.shape)),
        [(5, 3)],
        "constant factor",
        "multiplied by 5, which is the size of axis 0",
    ),
    (
        "sum with 1/N",
        custom(lambda x: x.sum(axis=0), lambda g, y, x: np.broadcast_to(g / len(x), x.shape)),
        [(5, 3)],
        "constant factor",
        "divided by 5",
    ),
    ("scalar factor", square(lambda g, y, x: 1.7 * g * x), [()], "constant factor", "0.85"),
    (
        "g forgotten",
        square(lambda g, y, x: 2 * x),
        [S34],
        "incoming gradient ignored",
        "multiply the op's own derivative by g",
    ),
    ("g squared", square(lambda g, y, x: 2 * g * g * x), [S34], "incoming gradient", "g squared"),
    ("zero", square(lambda g, y, x: g * 0), [S34], "zero", "zero everywhere"),
    (
        "constant",
        square(lambda g, y, x: np.full_like(x, g.sum())),
        [S34],
        "constant",
        "at every element",
    ),
    (
        "factor too many",
        square(lambda g, y, x: 2 * g * x * x),
        [S34],
        "extra factor",
        "factor x too many",
    ),
    (
        "tanh without its square",
        custom(np.tanh, lambda g, y, x: g * (1 - y)),
        [S5],
        "missing factor",
        "(1 + y)",
    ),
    (
        "x for y",
        custom(lambda x: np.exp(x), lambda g, y, x: g * x),
        [S5],
        "exchanged",
        "where the result y belongs",
    ),
    (
        "rules exchanged",
        custom(lambda a, b: a * b, lambda g, y, a, b: g * a, lambda g, y, a, b: g * b),
        [S5, S5],
        "exchanged",
        "wrong order",
    ),
    (
        "transposed result",
        square(lambda g, y, x: (2 * g * x).T),
        [S44],
        "transposed",
        "right once its answer is transposed",
    ),
    (
        "product, operand not transposed",
        custom(lambda a, b: a @ b, lambda g, y, a, b: g @ b, lambda g, y, a, b: a.T @ g),
        [S44, S44],
        "transposed",
        "operand 1 is transposed",
    ),
    (
        "product, result transposed",
        custom(lambda a, b: a @ b, lambda g, y, a, b: g @ b.T, lambda g, y, a, b: g.T @ a),
        [S44, S44],
        "transposed",
        "(its rule for operand 1): the rule is right once its answer is transposed",
    ),
    (
        "spread along the wrong axis",
        custom(lambda x: x.sum(axis=1), lambda g, y, x: np.broadcast_to(g, x.shape)),
        [S44],
        "wrong axis",
        "axis 1",
    ),
    (
        "spread along the wrong axis, a batch of one",
        custom(lambda x: x.sum(axis=2), lambda g, y, x: np.broadcast_to(g, x.shape)),
        [(1, 4, 4)],
        "wrong axis",
        "spread (broadcast) along axis 1",
    ),
    (
        "summed over the wrong axis",
        custom(lambda x, b: x + b, lambda g, y, x, b: g, lambda g, y, x, b: g.sum(axis=1)),
        [S44, (4,)],
        "wrong axis",
        "summed over axis 1",
    ),
    (
        "not summed",
        custom(lambda x, b: x + b, lambda g, y, x, b: g, lambda g, y, x, b: g[0]),
        [S44, (4,)],
        "missing sum",
        "first element along axis 0",
    ),
    (
        "softmax, wrong axis",
        custom(softmax_values, lambda g, y, x: y * (g - (g * y).sum(axis=0))),
        [S44],
        "wrong axis",
        "sums over axis 0",
    ),
    (
        "softmax, all axes",
        custom(softmax_values, lambda g, y, x: y * (g - (g * y).sum())),
        [S44],
        "wrong axis",
        "0, 1",
    ),
    (
        "softmax, only the diagonal",
        custom(softmax_values, lambda g, y, x: g * y * (1 - y)),
        [S34],
        "missing sum",
        "axis 1",
    ),
    (
        "layer norm without the variance",
        custom(
            standardised,
            lambda g, y, x: (g - g.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True),
        ),
        [S34],
        "missed use",
        "the use in std",
    ),
    (
        "half of the product rule",
        custom(lambda x: x**2 * np.exp(x), lambda g, y, x: g * y),
        [S5],
        "missed use",
        "1 of these uses",
    ),
    (
        "repeated index overwritten",
        custom(lambda x: x[INDEX], overwrite),
        [(5, 3)],
        "repeated use",
        "only the last",
    ),
    (
        "repeated index, one use left out",
        picks([0, 1, 1, 1], lambda g, y, x, i: added(x, i[:3], g[:3])),
        [(5, 3)],
        "missed use",
        "the last is left out",
    ),
    (
        "repeated index, averaged",
        picks(INDEX, lambda g, y, x, i: added(x, i, g) / [[1], [2], [1], [1], [1]]),
        [(5, 3)],
        "some elements",
        "0.5 times what it should be only at index 1",
    ),
    (
        "only the first of a batch",
        custom(
            lambda a, b: a @ b, lambda g, y, a, b: g @ b.T, lambda g, y, a, b: a[0][:, None] * g[0]
        ),
        [S34, S44],
        "repeated use",
        "or a sum is missing",
    ),
    (
        "a slice put at the start",
        custom(lambda x: x[1:3], lambda g, y, x: added(x, [0, 1], g)),
        [(4, 3)],
        "shifted",
        "by -1 along axis 0",
    ),
    (
        "others picked",
        custom(
            lambda x: x[[0, 1, 2], [2, 0, 3]], lambda g, y, x: added(x, ([0, 1, 2], [0, 3, 1]), g)
        ),
        [S34],
        "another mask",
        "other indices, than the forward pass",
    ),
    (
        "logsumexp without its softmax",
        custom(
            lambda x: np.log(np.exp(x).sum(axis=-1)), lambda g, y, x: np.repeat(g[:, None], 4, 1)
        ),
        [S34],
        "wrong axis",
        "sums to 1 (a softmax)",
    ),
    (
        "None for a rule",
        custom(lambda a, b: a * b, lambda g, y, a, b: g * b, None),
        [S5, S5],
        "zero",
        "None in its place",
    ),
    (
        "only the first element",
        square(lambda g, y, x: np.where(np.arange(5) == 0, 2 * g * x, 0)),
        [S5],
        "first element only",
        "first element",
    ),
    (
        "one row left out",
        square(lambda g, y, x: np.where(np.arange(4)[:, None] == 2, 0, 2 * g * x)),
        [(4, 3)],
        "some elements",
        "index 2 along axis 0",
    ),
    (
        "NaN in the rule",
        custom(lambda x: np.maximum(x, 0), lambda g, y, x: g * (y / y)),
        [S5],
        "nan",
        "0/0",
    ),
    (
        "wrong shape",
        custom(lambda x: x.sum(axis=0), lambda g, y, x: g),
        [S34],
        "wrong shape",
        "gradient of shape (4,)",
    ),
    (
        "rule in place",
        custom(lambda x: x * 3.0, lambda g, y, x: np.multiply(g, 3, out=g)),
        [S5],
        "rule changes its operands",
        "in place",
    ),
    (
        "rule in place, the same if done twice",
        lambda x: custom(lambda x: np.maximum(x, 0), zeroes_its_operand)(x * 2),
        [S5],
        "rule changes its operands",
        "operand 0 in place",
    ),
    (
        "a rule that draws",
        square(lambda g, y, x: 2 * g * x * GENERATOR.uniform(0.9, 1.1)),
        [S5],
        "rule changes its operands",
        "draws random numbers",
    ),
    (
        "calls counted",
        counts_its_calls(),
        [S5],
        "rule changes its operands",
        "a second backward pass",
    ),
    ("state kept outside", keeps_state(), [S5], "shared state", "second call overwrites"),
    (
        "one use detached",
        lambda x: x * x.detach(),
        [S34],
        "missed use",
        "operand 1 of op 'multiply'",
    ),
    (
        "one use through numpy",
        lambda x: x * np.exp(x.numpy()),
        [S34],
        "missed use",
        "constant to the graph",
    ),
    (
        "one use in a setting",
        lambda x: scaled(x, by=x.numpy() * 2),
        [S34],
        "missed use",
        "the setting 'by' of op 'scaled'",
    ),
    (
        "one use through item",
        lambda x: x.sum() * x.sum().item(),
        [S34],
        "missed use",
        "constant to the graph",
    ),
    ("under no_grad", under_no_grad, [S34], "missed use", "op 'exp'"),
    ("all detached", lambda x: x.detach() * 2, [S5], "gradient missing", "detach()"),
    (
        "a new leaf",
        lambda x: Tensor(x.numpy() * 2, requires_grad=True),
        [S5],
        "gradient missing",
        "Tensor(...)",
    ),
    ("not deterministic", drawing, [S5], "not deterministic", "dropout"),
    ("changes its input", changes_its_input, [S5], "input modified", "input 0"),
    (
        "float32 inside",
        lambda x: x.astype(np.float32) * 3.0,
        [S5],
        "precision",
        "precision too low",
    ),
    (
        "float32 hidden in an op",
        custom(
            lambda x: np.sin(x.astype(np.float32)).astype(np.float64), lambda g, y, x: g * np.cos(x)
        ),
        [S5],
        "precision",
        "float32",
    ),
]


@pytest.mark.parametrize("name, f, shapes, kind, word", PLANTED, ids=[p[0] for p in PLANTED])
def test_a_planted_bug_is_found_and_named(name, f, shapes, kind, word):
    report = gradcheck(f, [rand(*s, seed=i) for i, s in enumerate(shapes)], raise_exception=False)
    assert not report and not report.ok
    assert report.diagnosis.kind == kind, report
    assert word in str(report.diagnosis), report
    assert word in unquoted(str(report)), report
    assert "FAILED" in report._repr_html_()


def test_the_notebook_shows_the_errors_that_the_text_tells():
    @op
    def double(x):
        return x * 2

    double.vjp(lambda g, y, x: g * np.where(x > 1, np.nan, 2.0))
    report = gradcheck(double, [np.array([0.5, 2.0])], raise_exception=False)
    assert "error nan" in str(report) and "<td>nan</td><td>(1,)</td>" in report._repr_html_()
    report = gradcheck(np.tanh, [np.random.default_rng(0).normal(size=(200, 200))])
    (entry,) = report.entries
    assert entry.projections and f"error {entry.projected_error:.1e}" in str(report)
    assert f"<td>{entry.projected_error:.2e}</td><td></td>" in report._repr_html_(), (
        "no element was measured by itself"
    )
    report = gradcheck(square(lambda g, y, x: g * x), [rand(60, 60)], raise_exception=False)
    worst, html = report.worst, report._repr_html_()
    assert worst.projected_error > worst.error.max(), "which is no element's, and one is shown"
    assert (
        f"error {worst.error.max():.3g};" in str(report)
        and f"<td>{worst.error.max():.2e}</td><td>{worst.index}</td>" in html
    )


def test_the_notebook_tells_what_the_text_does():
    """A notebook shows the HTML alone: the second op that is wrong, and the two numbers to compare, would be seen by nobody."""

    @op
    def triple(x):
        return x * 3

    triple.vjp(lambda g, y, x: g * 4)
    wrong = square(lambda g, y, x: g * x)
    report = gradcheck(lambda x: triple(wrong(x)), [rand(2)], raise_exception=False)
    html = unescape(report._repr_html_())
    assert len(report.culprits) == 2 and report.place
    for told in (str(report.worst), ", ".join(report.culprits), f", called at {report.place}"):
        assert told in str(report) and told in html, told
    second = gradgradcheck(np.tanh, [rand(2)])
    assert "gradcheck of order 2" in str(second) and "gradcheck of order 2" in second._repr_html_()


def test_kinks_and_steps_are_told_from_bugs():
    assert gradcheck(lambda x: x.relu(), at_zero(), raise_exception=False).diagnosis.kind == "kink"
    ramp = custom(lambda x: np.maximum(x, 0) * [1, 1, 2], lambda g, y, x: g * (x > 0) * [1, 1, 5])
    both = gradcheck(ramp, np.array([0.0, 1.0, 2.0]), raise_exception=False)
    assert (
        both.diagnosis.kind == "some elements"
        and "some of the elements that are off lie at a kink" in both.notes[0]
    )
    coarse = gradcheck(lambda x: np.sin(x * 30), rand(5), eps=0.1, raise_exception=False)
    assert (
        coarse.diagnosis.kind == "eps"
        and "too large" in coarse.diagnosis
        and len(coarse.curve) == 12
    )
    assert (
        "error of the worst element against eps" in str(coarse) and "<svg" in coarse._repr_html_()
    )
    level = str(gradcheck(square(lambda g, y, x: 3 * g * x), rand(5), raise_exception=False))
    assert (
        "with every eps from 1e-01 to 1e-12, so the step is not to blame" in level
        and "against eps" not in level
    )
    assert "too small" in gradcheck(np.sin, rand(5), eps=1e-14, raise_exception=False).diagnosis
    edge = gradcheck(
        np.sqrt, Tensor(np.array([0.0, 1.0]), requires_grad=True), raise_exception=False
    )
    assert edge.diagnosis.kind == "domain" and "index 0" in edge.diagnosis
    overflow = gradcheck(
        lambda x: np.exp(x) / np.exp(x).sum(), [np.array([1000.0, 1.0])], raise_exception=False
    )
    assert (
        overflow.diagnosis.kind == "domain"
        and "the result itself is NaN or Inf" in overflow.diagnosis
    )


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_report_comes_back_from_another_process(copied):
    f, x = square(lambda g, y, x: g * x), rand(3)
    for report in (gradcheck(f, [x], raise_exception=False), gradcheck(np.sin, [x])):
        again = copied(report)
        assert str(again) == str(report) and bool(again) is bool(report)
        assert again.diagnosis == report.diagnosis and again.diagnosis.kind == report.diagnosis.kind
    with pytest.raises(GradcheckError) as failed:
        gradcheck(f, [x])
    assert str(copied(failed.value)) == str(failed.value) and str(
        copied(failed.value).report
    ) == str(failed.value.report)


def test_at_a_prompt_a_report_shows_as_its_text_and_not_as_arrays():
    report = gradcheck(square(lambda g, y, x: g * x), [rand(5)], raise_exception=False)
    compared = compare({"weights": np.ones(3)}, {"weights": np.zeros(3)})
    assert (
        repr(report) == str(report)
        and "FAILED" in repr([report])
        and repr(compared) == str(compared)
    )


def test_the_report_names_input_element_numbers_op_and_line():
    wrong = square(lambda g, y, x: np.where(np.arange(5) == 2, 3 * g * x, 2 * g * x))
    wrong.__name__ = "my_square"
    x = rand(5)
    x.name = "points"
    report = gradcheck(lambda t: np.tanh(wrong(t)), [x], raise_exception=False)
    assert (
        report.worst.index == (2,)
        and int(report.worst.wrong.sum()) == 1
        and report.worst.measured == 5
    )
    assert (
        "input 0 'points'" in str(report)
        and "1 of 5" in str(report)
        and "\n  op: my_square, called at" in str(report)
    )
    assert report.op == "my_square" and report.culprits == ["my_square"]
    assert report.place.file == __file__ and "np.tanh(wrong(t))" in str(report.place)
    with pytest.raises(GradcheckError, match="my_square") as caught:
        gradcheck(wrong, [x])
    assert caught.value.report.worst.index == (2,)


def test_the_line_quoted_is_that_of_the_file_as_it_is_now(tmp_path):
    """As where a module is edited and loaded anew while Python runs on, and the text of an older one has been quoted."""
    page, first = tmp_path / "edited.py", "def f(x):\n    return np.tanh(wrong(x))\n"
    names = {"np": np, "wrong": square(lambda g, y, x: g * x)}
    for text in (first, "# a new first line\n" + first.replace("tanh", "sinh")):
        page.write_text(text)
        exec(compile(text, str(page), "exec"), names)
        place = gradcheck(names["f"], [rand(3)], raise_exception=False).place
        assert str(place) == f"{page}:{place.line} `{text.splitlines()[-1].strip()}`"


def test_the_op_is_named_also_where_no_number_is_wrong():
    in_place = custom(lambda x: x * 3.0, lambda g, y, x: np.multiply(g, 3, out=g))
    unsummed = custom(lambda x, b: x + b, lambda g, y, x, b: g, lambda g, y, x, b: g)
    for made, name in ((in_place, "in_place"), (unsummed, "unsummed")):
        made.__name__ = name
    assert gradcheck(lambda x: np.exp(in_place(x)), rand(4), raise_exception=False).op == "in_place"
    report = gradcheck(unsummed, [rand(3, 4), rand(4)], raise_exception=False)
    assert report.op == "unsummed" and "sum over a broadcast axis missing" in report.diagnosis
    report = gradcheck(lambda x: np.tanh(drawing(x)), rand(4), raise_exception=False)
    assert report.op == "multiply" and "GENERATOR" in str(report.place)


def test_a_bug_inside_a_model_is_found_in_its_module():
    my_tanh = custom(lambda x: np.tanh(x), lambda g, y, x: g * (1 - y))
    my_tanh.__name__ = "my_tanh"

    class Activation(nn.Module):
        def forward(self, x):
            return my_tanh(x)  # this line

    model = nn.Sequential(
        nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 3), Activation()), nn.Linear(3, 2)
    ).astype(np.float64)
    report = gradcheck(model, rand(2, 4), raise_exception=False)
    assert report.op == "my_tanh" and report.scope == "1.1" and "this line" in str(report.place)
    assert [e.name for e in report.entries if e.ok] == [
        "parameter '2.weight'",
        "parameter '2.bias'",
    ]
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, activation="gelu").astype(np.float64)
    assert gradcheck(layer, rand(3, 2, 4)) and gradcheck(
        nn.Linear(2, 2).astype(np.float64), rand(3, 2), order=2
    )
    assert (
        gradcheck(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5).astype(np.float64),
            rand(3, 2, 4),
            raise_exception=False,
        ).diagnosis.kind
        == "not deterministic"
    )


def test_float64_of_another_byte_order_is_float64():
    @op
    def cube(x):
        return x**3

    cube.vjp(lambda g, y, x: g * 2 * x * x)
    a = np.array([[0.5, -1.0], [2.0, 0.3]], ">f8")
    assert gradcheck(lambda x: np.exp(x).sum(), [a], order=2)
    report = gradcheck(
        lambda x: np.exp(cube(x)), [Tensor(a, requires_grad=True)], raise_exception=False
    )
    assert not report and report.op == "cube" and report.diagnosis.kind == "constant factor"


def test_float32_is_refused_with_the_reason():
    with pytest.raises(TypeError, match=r"precision too low.*float64.*x\.astype\(np\.float64\)"):
        gradcheck(np.exp, Tensor([1.0, 2.0], requires_grad=True))


@pytest.mark.skipif(np.longdouble(1).itemsize == 8, reason="longdouble is float64 here")
def test_more_precision_is_refused_with_another_reason():
    with pytest.raises(TypeError, match=r"^input 0 is .*set for float64") as refused:
        gradcheck(np.exp, [np.ones(3, np.longdouble)])
    assert "digits" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda: gradcheck(rand(3), [rand(3)]), "takes a function"),
        (lambda: gradcheck(lambda: rand(3), []), "nothing to check"),
        (lambda: gradcheck(np.exp, [rand(3)], order=3), "order must be 1"),
        (lambda: gradcheck(lambda x: 3.0, [rand(3)]), "must return a floating-point Tensor"),
    ],
)
def test_wrong_calls_say_what_to_write(wrong, text):
    with pytest.raises((TypeError, ValueError), match=text):
        wrong()


def test_what_is_right_passes_to_second_order():
    assert gradcheck(lambda a, b: np.exp(a @ b).sum(axis=0), [rand(3, 4), rand(4, 2)])
    assert gradgradcheck(lambda a, b: np.tanh(a @ b) * b.sum(axis=0), [rand(3, 4), rand(4, 2)])
    assert gradgradcheck(lambda x: x * 2, [rand(3)])
    assert gradgradcheck(lambda x: (np.sin(x), x**3), rand(4))
    assert gradgradcheck(
        lambda x: (x**2, Tensor(np.ones(2))), rand(4)
    )  # the second result is a constant
    assert gradcheck(lambda i, x: x[i], [np.array([0, 0, 2]), rand(4)])
    assert gradcheck(lambda x: x * x, np.array([1.0, 2.0]))  # an array counts as an input


def test_second_order_finds_what_first_order_cannot_see():
    detached = custom(lambda x: x**3, lambda g, y, x: 3 * g * getattr(x, "_data", x) ** 2)
    assert gradcheck(detached, [rand(4)])
    report = gradgradcheck(detached, [rand(4)], raise_exception=False)
    assert not report and report.order == 2 and "order 2" in str(report)
    two_faced = custom(
        lambda x: x**2, lambda g, y, x: 2 * g * x if isinstance(x, np.ndarray) else 3 * g * x
    )
    assert (
        gradgradcheck(two_faced, [rand(4)], raise_exception=False).diagnosis.kind == "two answers"
    )
    beside_one_that_is_not_used = gradgradcheck(
        lambda unused, x: two_faced(x), [rand(4), rand(4)], raise_exception=False
    )
    assert beside_one_that_is_not_used.diagnosis.startswith("two answers: input 1")


def test_parameters_and_closures_are_checked_and_left_as_they_were():
    w, x = rand(3, 2), rand(4, 3)
    before = w.numpy().copy()
    report = gradcheck(lambda t: t @ w, [x], params={"w": w})
    assert [e.name for e in report.entries] == ["input 0", "parameter 'w'"]
    assert np.array_equal(w.numpy(), before) and w.grad is None and x.grad is None
    assert not gradcheck(lambda t: t @ (w * w.detach()), [x], params=[w], raise_exception=False)


def test_large_inputs_are_projected_and_one_wrong_element_is_still_found():
    right = gradcheck(lambda x: x * x, rand(60, 50))
    assert right.entries[0].projections == 512 and right.entries[0].error.max() < 1e-6
    wrong = square(lambda g, y, x: 2 * g * x + g * (np.arange(x.size).reshape(x.shape) == 1234))
    report = gradcheck(wrong, rand(60, 50), raise_exception=False)
    assert report.worst.index == (24, 34)
    assert gradcheck(lambda x: x * x, rand(60, 50), fast_mode=True).entries[0].projections == 2
    assert not gradcheck(
        square(lambda g, y, x: 2.01 * g * x), rand(60, 50), fast_mode=True, raise_exception=False
    )


def test_a_small_gradient_is_not_waved_through():
    tiny = custom(lambda x: 1e-7 * x * x, lambda g, y, x: g * 4e-7 * x)
    assert not gradcheck(tiny, rand(4), raise_exception=False)
    assert gradcheck(lambda x: 1e-7 * x * x, rand(4))


def test_a_constant_function_passes_though_its_gradient_is_rounding():
    """The rows of a softmax sum to one exactly, so differences are zero to the last bit, and the gradient is 1e-17."""
    x = np.random.default_rng(0).standard_normal((2, 3))
    assert gradcheck(lambda x: F.softmax(x).sum(), [x])


def test_the_random_weight_is_its_own():
    """The same numbers each time, and no draw from NumPy's global generator."""
    np.random.seed(0)
    expected = np.random.RandomState(0).rand()
    first, second = (gradcheck(lambda x: x**2, rand(4)).entries[0].analytic for _ in range(2))
    assert np.array_equal(first, second) and np.random.rand() == expected
    assert not np.array_equal(first, gradcheck(lambda x: x**2, rand(4), seed=1).entries[0].analytic)


def test_compare_prints_a_line_for_each_intermediate():
    a = np.arange(6.0).reshape(2, 3)
    result = compare(
        {"scores": a, "weights": a * 2, "out": a.T, "extra": 1},
        {"scores": a, "weights": a, "out": a, "grad": a},
    )
    assert not result
    assert [line.verdict for line in result.lines] == [
        "ok",
        "5 of 6 off: 2 times too large",
        "shape (3, 2), expected (2, 3) (transposed?)",
        "missing",
        "not asked for",
    ]
    assert result.lines[1].index == (1, 2) and result.lines[1].max_abs == 5
    assert "worst index" in str(result) and "weights" in result._repr_html_()
    bare = compare(a, {"weights": a})  # an answer without the names that were asked for
    assert (
        not bare
        and [line.verdict for line in bare.lines] == ["missing", "not asked for"]
        and "weights" in str(bare)
    )
    assert not compare({"weights": a}, a)
    assert (
        compare(Tensor(a), a)
        and compare({"x": a, "more": a}, {"x": a})
        and not compare({}, {"x": a})
    )
    square = a[:, :2] + 1
    words = [
        (a * 0, "5 of 6 off: zero everywhere"),
        (-a, "5 of 6 off: the sign"),
        (a * np.nan, "6 of 6 off: NaN or Inf"),
        (a[::-1], "6 of 6 off"),
    ]
    assert [compare(wrong, a).lines[0].verdict for wrong, _ in words] == [said for _, said in words]
    assert compare(square.T, square).lines[0].verdict == "2 of 4 off: transposed"
    for wrong in (
        [[1], [2, 3]],
        [rand(2), rand(2)],
        "text",
        {1: 2},
    ):  # no numbers, but an answer all the same
        assert [line.verdict for line in compare({"x": wrong}, {"x": a}).lines][0].endswith(
            "expected numbers"
        )
