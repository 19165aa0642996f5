"""gradcheck on rules that mishandle memory, leave the graph, or are wrong at one element of many; and each is told by name."""

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor, op
from tinygrad_attn.check import gradcheck, gradgradcheck

INSIDE = np.random.default_rng(0).uniform(0.5, 2, (3, 4))


def named(name, forward, *rules, **flags):
    made = op(forward, **flags)
    made.__name__ = name
    made.vjp(*rules)
    return made


def check(f, *inputs, **options):
    return gradcheck(f, list(inputs), raise_exception=False, **options)


BUFFER = np.zeros((3, 4))
MEMORY = [
    (
        named("reuses", lambda a: a * a, lambda g, y, a: np.multiply(g, 2 * a, out=BUFFER)),
        "reused memory",
        "the rule of op 'reuses'",
    ),
    (
        named("hands_out", lambda a: np.multiply(a, a, out=BUFFER), lambda g, y, a: 2 * g * a),
        "reused memory",
        "the result of op 'hands_out' changes",
    ),
]


@pytest.mark.parametrize("made, kind, words", MEMORY, ids=[made.__name__ for made, _, _ in MEMORY])
def test_memory_that_is_not_new_is_found_however_often_the_op_is_used(made, kind, words):
    for f in (
        made,
        lambda x: np.sin(made(x)),
        lambda x: np.exp(made(x)) * made(x * 2),
        lambda x: np.sin(made(x) + made(x)) + x.sum(),
    ):
        report = check(f, INSIDE)
        assert (
            report.diagnosis.kind == kind
            and words in report.diagnosis
            and report.op == made.__name__
        ), report


def both_of_one(g, y, a, b):
    part = g * 1.0
    return part, part


def halves(g, y, a, b):
    joined = np.concatenate([g * b, g * a], axis=-1)
    return joined[:, :4], joined[:, 4:]


@pytest.mark.parametrize(
    "f",
    [
        named("passes_on", lambda a: a * 1.0, lambda g, y, a: g),
        named("a_view", lambda a: a.T * 1.0, lambda g, y, a: g.T),
    ],
    ids=lambda made: made.__name__,
)
def test_a_rule_may_pass_on_the_gradient_that_it_was_given(f):
    assert check(lambda x: np.exp(f(x)) * f(x * 2) + (f(x) + f(x)), INSIDE)


@pytest.mark.parametrize("rule", [both_of_one, halves])
def test_a_rule_may_give_two_inputs_one_array_or_two_halves_of_one(rule):
    made = op((lambda a, b: a + b) if rule is both_of_one else (lambda a, b: a * b))
    made.vjp_all(rule)
    assert check(lambda x, y: made(x, y) * x + made(x, x), INSIDE, INSIDE + 1)


# ---- second order


def fills(g, y, x):
    out = np.zeros(x.shape)
    out[:] = 2 * g * x
    return out


def loops(g, y, x):
    out = np.zeros(x.shape)
    for i in range(len(x)):
        out[i] = float(2 * g[i] * x[i])
    return out


LEAVING = [
    named("full", lambda x: x.sum(), lambda g, y, x: np.full(x.shape, g)),
    named("fills", lambda x: x * x, fills),
    named("item", lambda x: x.sum(), lambda g, y, x: np.full(x.shape, g.item())),
    named("loops", lambda x: x * x, loops),
    named("data", lambda x: x**3, lambda g, y, x: 3 * g * getattr(x, "_data", x) ** 2),
]


@pytest.mark.parametrize("made", LEAVING, ids=[made.__name__ for made in LEAVING])
def test_the_op_whose_rule_leaves_the_graph_is_named(made):
    for f in (made, lambda x: np.sin(made(np.sin(x))) * x.sum()):
        assert check(f, np.array([0.3, 1.2, 0.9]))
        report = gradgradcheck(f, [np.array([0.3, 1.2, 0.9])], raise_exception=False)
        assert (
            report.order == 2
            and report.diagnosis.kind == "second order"
            and report.op == made.__name__
        ), report
        assert (
            f"the rule of op '{made.__name__}' cannot be differentiated again" in report.diagnosis
        )


@pytest.mark.parametrize(
    "f", [np.floor, np.ceil, np.sign, lambda x: np.heaviside(x, 0.5), lambda x: np.floor(x) * 2 + x]
)
def test_a_second_derivative_that_is_zero_is_right(f):
    assert gradgradcheck(f, [np.array([0.3, 1.2])])


def test_the_note_of_order_two_speaks_of_the_gradient():
    assert gradgradcheck(lambda x: x * 2, [INSIDE]).notes == [
        "input 0: the gradient does not depend on it."
    ]
    assert check(lambda x, y: x * 2, INSIDE, INSIDE).notes == [
        "input 1: the results do not depend on it."
    ]


# ---- a rule that fails


def test_a_rule_that_raises_is_presented_with_its_op():
    def forgets(g, y, x):
        raise TypeError(
            "the rule of op 'forgets' for input 0 returned None, which is no argument for anything."
        )

    for f in (made := named("forgets", lambda x: x * x, forgets), lambda x: made(x) + x):
        report = check(f, INSIDE)
        assert (
            report.diagnosis.kind == "backward fails"
            and report.op == "forgets"
            and "returned None" in report.diagnosis
        )
        assert "A rule is called as" not in report.diagnosis
    report = check(named("axes", lambda x, *, axis=0: x.sum(axis=axis), lambda g, y, x: g), INSIDE)
    assert "A rule is called as" in report.diagnosis and report.op == "axes"


def test_a_wrong_op_beside_a_checkpoint_is_named_and_one_inside_is_not_explained_away():
    wrong = named("wrong", lambda x: x * x, lambda g, y, x: 3 * g * x)
    assert check(lambda x: ta.checkpoint(np.tanh, x) * wrong(x), INSIDE).op == "wrong"
    report = check(lambda x: ta.checkpoint(wrong, x) * x, INSIDE)
    assert (
        not report
        and "inside checkpoint()" in report.diagnosis
        and "no_grad" not in report.diagnosis
    )


def test_a_rule_that_is_right_for_a_weight_of_ones_only_is_found_at_ones_and_explained():
    average = lambda x: x.mean(axis=-1, keepdims=True)
    scaled = named(
        "scaled",
        lambda x, w: (x - average(x)) * w,
        lambda g, y, x, w: w * (g - average(g)),
        lambda g, y, x, w: (g * (x - average(x))).sum(axis=0),
    )
    for seed in range(8):
        report = check(scaled, INSIDE, np.ones(4), seed=seed)
        assert (
            report.diagnosis.kind == "operand misplaced"
            and report.op == "scaled"
            and all(e.ok for e in report.entries)
        ), report
        assert (
            "wrong a little way off" in report.diagnosis and "left behind" not in report.diagnosis
        )


# ---- one element of many


@pytest.mark.parametrize("n", [2000, 2048, 3000, 5000])
def test_of_a_large_input_one_element_or_half_of_them(n):
    x = np.random.default_rng(0).uniform(0.5, 2, n)
    for index in (7, 1234):
        one = named(
            "one",
            lambda x: x * x,
            lambda g, y, x: 2 * g * x * np.where(np.arange(n) == index, 2, 1),
        )  # noqa: B023
        report = check(one, x)
        assert (
            report.op == "one"
            and report.diagnosis.kind == "some elements"
            and f"only at index {index};" in report.diagnosis
        ), report
    half = named(
        "half", lambda x: x * x, lambda g, y, x: 2 * g * x * np.where(np.arange(n) < n // 2, 2, 1)
    )
    report = check(half, x)
    assert (
        report.diagnosis.kind == "some elements"
        and "2 times what it should be only at" in report.diagnosis
    ), report
    report = check(named("all", lambda x: x * x, lambda g, y, x: 4 * g * x), x)
    assert (
        report.diagnosis.kind == "constant factor"
        and "elements that were measured" in report.diagnosis
    ), report


def test_indices_of_a_large_input_are_its_own():
    mask = np.zeros((60, 50), bool)
    mask[41, 17] = True
    one = named("one", lambda x: x * x, lambda g, y, x: 2 * g * x * np.where(mask, 2, 1))
    assert (
        "only at index (41, 17);"
        in check(one, np.random.default_rng(0).uniform(0.5, 2, (60, 50))).diagnosis
    )


@pytest.mark.parametrize("n", [600, 1500])
def test_ten_percent_at_one_small_element_is_found_and_its_op_named(n):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        index, x = int(rng.integers(n)), rng.standard_normal(n)
        off = named(
            "off",
            lambda x: x * x,
            lambda g, y, x: 2 * g * x * np.where(np.arange(n) == index, 1.1, 1),
        )  # noqa: B023
        report = check(lambda x: np.tanh(off(x) * np.exp(-x * x)), x)  # noqa: B023
        assert report.op == "off" and report.worst.index == (index,), report


def test_one_element_of_a_large_group_is_found():
    index = 16_543
    one = named(
        "one", lambda x: x * 2.0, lambda g, y, x: 2 * g * np.where(np.arange(x.size) == index, 2, 1)
    )
    report = check(one, np.random.default_rng(0).uniform(0.5, 2, 20_000), fast_mode=True)
    assert report.worst.index == (index,)


def test_small_slopes_beside_a_large_one_are_judged_by_their_own_size():
    x = np.array([0.007, 1.05, -0.74, 0.72, 1.62, -1.2])
    report = check(named("inverse", lambda x: 1 / x, lambda g, y, x: -g / x), x)
    assert report.diagnosis.kind == "extra factor" and "a factor x too many" in report.diagnosis, (
        report
    )
    report = check(
        named(
            "inverse", lambda x: 1 / x, lambda g, y, x: -g * y * y * np.array([2, 2, 2, 1, 2, 2])
        ),
        x,
    )
    assert "everywhere" not in report.diagnosis, report


def spoilt(name, forward, rule, factors):
    """A right rule, but for these factors."""
    return named(name, forward, lambda g, y, x: rule(g, y, x) * factors)


def ones_but(index, factor, shape=(4, 4)):
    factors = np.ones(shape)
    factors[index] = factor
    return factors


@pytest.mark.parametrize("index", [(1, 1), (0, 2), (3, 1)])
def test_one_element_of_a_square_matrix_is_no_triangle(index):
    sine = spoilt("sine", np.sin, lambda g, y, x: g * np.cos(x), ones_but(index, 1.3))
    assert (
        f"only at index {index};"
        in check(sine, np.random.default_rng(0).standard_normal((4, 4))).diagnosis
    )


def test_one_element_among_hundreds_is_not_permuted():
    sine = spoilt("sine", np.sin, lambda g, y, x: g * np.cos(x), ones_but(599, 1.05, 600))
    assert (
        "only at index 599;"
        in check(sine, np.random.default_rng(9).standard_normal(600), seed=9).diagnosis
    )


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_rule(g, y, x):
    return y * (g - (g * y).sum(axis=-1, keepdims=True))


def test_one_element_that_is_zero_is_not_one_use_of_many():
    zero = spoilt("zero", softmax, softmax_rule, ones_but(10, 0, 30))
    report = check(zero, np.random.default_rng(7).standard_normal(30), seed=7)
    assert report.diagnosis.kind == "some elements" and "only at index 10;" in report.diagnosis, (
        report
    )


def test_where_no_element_is_clearly_off_no_place_is_named():
    steep = spoilt(
        "steep",
        lambda x: np.sqrt(x * x + 1),
        lambda g, y, x: g * x / y,
        ones_but((1, 3), 1.3, (3, 4)),
    )
    report = check(steep, np.random.default_rng(2).standard_normal((3, 4)) * 1e-4, seed=2)
    assert "at indices  is" not in report.diagnosis and "repeated index" not in report.diagnosis, (
        report
    )


def exp_rule(g, y, x):
    return g * y


def relu(x):
    return np.maximum(x, 0)


def total_rule(g, y, x):
    return np.repeat(g[:, None], x.shape[1], axis=1)


FEW = [  # a right rule spoilt at few places, the values, which the diagnosis names
    ("exp", np.exp, exp_rule, ones_but((1, 2, 1), 1.02, (2, 3, 4)), 8, "only at index (1, 2, 1);"),
    (
        "relu",
        relu,
        lambda g, y, x: g * (x > 0),
        ones_but((1, 3), 2, (3, 4)),
        2,
        "only at index (1, 3);",
    ),
    (
        "sine",
        np.sin,
        lambda g, y, x: g * np.cos(x),
        ones_but(0, 2, (3, 4)),
        0,
        "2 times what it should be only at index 0 along axis 0;",
    ),
    (
        "total",
        lambda x: x.sum(axis=1),
        total_rule,
        ones_but(1, 1.3, (3, 4)),
        0,
        "1.3 times what it should be only at index 1 along",
    ),
    (
        "total",
        lambda x: x.sum(axis=1),
        total_rule,
        ones_but((2, 0), 1.5, (3, 4)),
        2,
        "only at index (2, 0);",
    ),
]


@pytest.mark.parametrize(
    "name, forward, rule, factors, seed, words", FEW, ids=[f"{f[0]}, {f[-1]}" for f in FEW]
)
def test_a_few_wrong_elements_are_no_missing_sum_or_factor_and_no_shift(
    name, forward, rule, factors, seed, words
):
    report = check(
        spoilt(name, forward, rule, factors),
        np.random.default_rng(seed).standard_normal(factors.shape),
        seed=seed,
    )
    assert report.diagnosis.kind == "some elements" and words in report.diagnosis, report


@pytest.mark.parametrize(
    "name, forward, rule, words",
    [
        (
            "power",
            lambda x: x**1.5,
            lambda g, y, x: g * x**0.5,
            "0.666667 times what it should be, everywhere (constant factor).",
        ),
        (
            "cosine",
            np.cos,
            lambda g, y, x: 2 * g * np.sin(x),
            "-2 times what it should be, everywhere (constant factor): x2: counted twice",
        ),
        (
            "half",
            lambda x: x / 2,
            lambda g, y, x: g / np.sqrt(12),
            "a scale that is missing or applied twice; 3 is the size of axis 0 of the "
            "input, or a number of the formula",
        ),
    ],
    ids=["exponent", "minus two", "root"],
)
def test_a_number_of_a_formula_that_mixes_no_elements_is_no_count(name, forward, rule, words):
    report = check(named(name, forward, rule), INSIDE)
    assert report.diagnosis.kind == "constant factor" and words in report.diagnosis, report


def test_a_mean_over_the_wrong_axis_is_no_missing_transpose():
    centre = named(
        "centre",
        lambda x: x - x.mean(axis=1, keepdims=True),
        lambda g, y, x: g - g.mean(axis=0, keepdims=True),
    )
    report = check(centre, INSIDE)
    assert (
        report.diagnosis.kind == "wrong axis" and "the rule sums over axis 0" in report.diagnosis
    ), report


def test_a_sum_is_called_missing_for_certain_only_where_the_rest_of_the_rule_is_right():
    root = named("root", lambda a: np.linalg.cholesky(a @ a.T + np.eye(3)), lambda g, y, a: g @ a)
    assert "perhaps a sum over that axis is missing" in check(root, INSIDE[:, :3]).diagnosis
    diagonal = named("diagonal", softmax, lambda g, y, x: g * y * (1 - y))
    assert "separately: a sum over that axis is missing" in check(diagonal, INSIDE).diagnosis


def test_what_fits_all_but_the_element_that_is_wrong_explains_nothing():
    for at, n in ((14, 600), (155, 400)):
        sine = spoilt("sine", np.sin, lambda g, y, x: g * np.cos(x), ones_but(at, 1.005, n))
        report = check(sine, np.random.default_rng(4).uniform(-1, 1, n))
        assert (
            report.diagnosis.kind == "some elements" and f"only at index {at};" in report.diagnosis
        ), report


# ---- what is told of a wrong number, of wrong places, and of values that hide it

NORMAL = np.random.default_rng(0).standard_normal((3, 4))


@pytest.mark.parametrize(
    "forward, rule, words",
    [
        (
            lambda x: np.repeat(x, 7),
            lambda g, y, x: g.reshape(*x.shape, 7).mean(-1),
            "divided by 7, which is how often each element is used; a mean where a sum belongs.",
        ),
        (
            np.sum,
            lambda g, y, x: np.full(x.shape, g / 12),
            "divided by 12, which is the number of elements of the input; a mean where",
        ),
        (
            np.sum,
            lambda g, y, x: np.full(x.shape, -4 * g),
            "multiplied by 4, which is the size of axis 1 of the input; the 1/N of a mean is "
            "missing, or a number of the formula, such as an exponent; and the sign is wrong.",
        ),
        (
            lambda x: x**3,
            lambda g, y, x: g * x * x,
            "divided by 3, which is the size of axis 0 of the input, or a number of the formula",
        ),
        (
            lambda x: x @ x.T,
            lambda g, y, x: (g + g.T) @ x * 3**0.5,
            "multiplied by the square root of 3",
        ),
        (
            lambda x: x @ x.T,
            lambda g, y, x: (g + g.T) @ x / 3**0.5,
            "divided by the square root of 3",
        ),
        (
            lambda x: np.var(x, ddof=1),
            lambda g, y, x: g / 6 * (x - x.mean()),
            "12 where 11 belongs, or the reverse",
        ),
        (
            np.var,
            lambda g, y, x: g * 2 / 11 * (x - x.mean()),
            "12 where 11 belongs, or the reverse",
        ),
    ],
)
def test_what_a_constant_factor_may_be(forward, rule, words):
    assert words in check(named("op", lambda x: forward(x), rule), NORMAL).diagnosis


@pytest.mark.parametrize(
    "factor, of",
    [
        ("x", lambda x: x),
        ("x^2", np.square),
        ("(1 - x)", lambda x: 1 - x),
        ("(1 + x)", lambda x: 1 + x),
        ("(1 - x^2)", lambda x: 1 - x * x),
        ("(1 + x^2)", lambda x: 1 + x * x),
        ("cos x", np.cos),
        ("sin x", np.sin),
        ("exp x", np.exp),
        ("sqrt x", np.sqrt),
    ],
)
def test_a_factor_too_many_or_too_few_is_named_with_a_constant_and_without(factor, of):
    for times in (1, 3):
        extra = named("extra", lambda x: np.log(x + 5), lambda g, y, x: times * g * of(x) / (x + 5))  # noqa: B023
        lacks = named("lacks", lambda x: np.log(x + 5), lambda g, y, x: times * g / of(x) / (x + 5))  # noqa: B023
        assert f"has a factor {factor} too many (x is" in check(extra, INSIDE).diagnosis
        assert f"lacks a factor {factor} (x is" in check(lacks, INSIDE).diagnosis


def test_a_factor_that_is_a_constant_operand_is_named_whatever_its_place():
    c = INSIDE[::-1] + 0.3
    for rule, words in [
        (lambda g, y, c, x: g * np.exp(x), "lacks a factor operand 0"),
        (lambda g, y, c, x: g * c * c * np.exp(x), "has a factor operand 0 too many"),
    ]:
        scale = named("scale", lambda c, x: c * np.exp(x), None, rule)
        assert words in check(lambda x: scale(c, x), INSIDE).diagnosis  # noqa: B023


@pytest.mark.parametrize(
    "times, words",
    [
        (1, "a transpose (.mT) is missing"),
        (-1, "transposed (and is -1 times"),
        (3, "(and is 3 times"),
    ],
)
def test_a_gradient_that_is_transposed_and_multiplied_is_told_with_both(times, words):
    report = check(
        named("turns", lambda x: x * x, lambda g, y, x: times * (2 * g * x).T),
        np.random.default_rng(0).standard_normal((4, 4)),
    )
    assert report.diagnosis.kind == "transposed" and words in report.diagnosis, report


@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 3), (3, 3)])
def test_at_equal_elements_nothing_is_told_that_does_not_show_there(shape):
    """Of a single number it was said to be transposed, and of nine equal ones that they should differ."""
    for forward, rule in [
        (lambda x: (x * x).sum(), lambda g, y, x: 4 * g * x * x),
        (lambda x: (x**3).sum(), lambda g, y, x: 5 * g * x),
    ]:
        report = check(named("wrong", forward, rule), np.ones(shape))
        assert report.diagnosis.kind == "rule", report
        assert ("random ones tell more" in str(report)) == (shape != (1, 1))
    report = check(
        named("wrong", lambda x: (x**3).sum(), lambda g, y, x: np.full(x.shape, 5 * g)),
        np.ones((3, 3)),
    )
    assert report.diagnosis.kind == "constant", (
        report
    )  # and so it is a little way off, where the slope is not


def test_two_elements_that_have_changed_places_are_permuted():
    order = np.arange(12)
    order[[2, 9]] = 9, 2
    swaps = named("swaps", np.sin, lambda g, y, x: (g * np.cos(x)).ravel()[order].reshape(x.shape))
    assert check(swaps, NORMAL).diagnosis.kind == "permuted"


@pytest.mark.parametrize("index", [[0, 1, 1, 2, 3, 4, 0, 0], [0, 1, 2, 3, 4, 1, 5]])
def test_the_first_or_the_last_of_several_contributions_is_told(index):
    def first(g, y, x):
        out = np.zeros(x.shape)
        out[index[::-1]] = g[::-1]
        return out

    def last(g, y, x):
        out = np.zeros(x.shape)
        out[index] = g
        return out

    for rule in (first, last):
        report = check(named("takes", lambda x: x[index] * 1.0, rule), np.arange(6.0))
        assert (
            report.diagnosis.kind == "repeated use"
            and f"only the {rule.__name__} contribution is counted" in report.diagnosis
        ), report


LOWER = np.tri(4, dtype=bool)


@pytest.mark.parametrize(
    "mask, words",
    [
        (np.eye(4, dtype=bool), "the diagonal"),
        (LOWER, "the lower triangle"),
        (LOWER.T, "the upper triangle"),
        (~LOWER, "the upper triangle"),
        (~LOWER.T, "the lower triangle"),
    ],
)
def test_a_triangle_is_told_with_its_diagonal_and_without(mask, words):
    factors = np.where(mask, 1.1 + 0.1 * np.arange(16).reshape(4, 4), 1)
    report = check(
        spoilt("sine", np.sin, lambda g, y, x: g * np.cos(x), factors),
        np.random.default_rng(0).standard_normal((4, 4)),
    )
    assert f"wrong only at {words};" in report.diagnosis, report


def test_a_sum_in_the_rule_of_what_mixes_nothing_is_told():
    sums = named("sums", np.sin, lambda g, y, x: (g * np.cos(x)).sum(-1, keepdims=True) * np.cos(x))
    assert "sums over axis 1, but the function mixes no elements" in check(sums, NORMAL).diagnosis


# ---- asked for in another way


def test_a_rule_that_drops_small_gradients_is_found():
    drops = named("drops", np.sin, lambda g, y, x: np.where(np.abs(g) > 1e-3, g, 0) * np.cos(x))
    assert check(drops, INSIDE).diagnosis.kind == "incoming gradient"


def test_a_joint_rule_that_forgets_an_input_asked_for_alone_is_found():
    times = op(lambda a, b: a * b)
    times.vjp_all(lambda g, y, a, b, *, needs: (g * b if needs[1] else None, g * a))
    assert check(times, INSIDE, INSIDE + 1).diagnosis.kind == "needs"


def test_gradients_that_overflow_when_asked_for_a_thousandfold_accuse_no_rule():
    for f in (lambda x: x * 1e306, lambda x: x * 1e-306 * 1e306):
        assert check(f, NORMAL)


# ---- where something else than a rule is wrong, small slopes and kinks accuse no rule


@pytest.mark.parametrize("f, special", [(ta.functional.relu, 0.0), (np.tanh, 14.0)])
def test_what_leaves_the_graph_is_named_and_not_an_op_at_a_kink_or_nearly_flat(f, special):
    x = NORMAL.copy()
    x[1, 2] = special
    report = check(lambda x: f(x) * Tensor(x.data), x)
    assert report.diagnosis.kind == "missed use" and report.op == "multiply", report


def test_a_small_result_that_leaves_the_graph_is_found():
    report = check(lambda x: (1e6 * x, x * Tensor(x.data)), NORMAL)
    assert report.diagnosis.kind == "small result" and "Check it by itself" in report.diagnosis


def test_a_small_negative_result_is_looked_at_alone_as_well():
    wrong = named("wrong", np.sin, lambda g, y, x: -g * np.cos(x))
    for seed in range(4):
        assert (
            check(lambda x: (1e6 * (x * x).sum(), wrong(x).sum()), NORMAL, seed=seed).op == "wrong"
        )


def test_where_all_elements_are_equal_no_term_is_said_to_be_missing():
    cosine = named("cosine", np.cos, lambda g, y, x: g * np.sin(x) ** 2)
    report = check(cosine, np.full((3, 4), 0.7))
    assert report.diagnosis.kind != "missing term" and "all elements of input 0 are equal" in str(
        report
    ), report
