"""gradcheck where slopes are hard to measure: tiny or huge values, steep functions, numbers that cancel, results of all sizes."""

import numpy as np
import pytest

from tinygrad_attn import Tensor, detect_anomaly, op
from tinygrad_attn import functional as F
from tinygrad_attn.check import gradcheck


def made(forward, *rules):
    new = op(lambda *inputs: forward(*inputs))
    new.vjp(*rules)
    return new


def check(f, *inputs, **options):
    return gradcheck(f, list(inputs), raise_exception=False, **options)


def normal(seed=0):
    return np.random.default_rng(seed).standard_normal((3, 4))


ONE_OFF = np.where(np.arange(12).reshape(3, 4) == 7, 1.3, 1)
inverse = made(lambda x: 1 / x, lambda g, y, x: -g * y * y)
logarithm = made(np.log, lambda g, y, x: g / x)


@pytest.mark.parametrize("size", [1e-7, 1e-10, 1e-20, 1e-30])
def test_very_small_values_are_measured_in_steps_of_their_own_size(size):
    """A step of 1e-12, the smallest there was, is large beside 1e-10: right rules were accused."""
    x = np.random.default_rng(0).uniform(0.5, 2, 6) * size
    for right in (inverse, logarithm):
        report = check(right, x)
        assert report and "suits these values better" in str(report)
    wrong = check(made(lambda x: 1 / x, lambda g, y, x: g * y * y), x)
    assert wrong.diagnosis.kind == "sign", wrong


def test_an_op_is_not_accused_where_its_large_operands_cancel():
    """|a - b|^2 = aa + bb - 2ab near 1e5: the last subtraction was told to be wrong, or a kink to be near."""
    for seed in range(10):
        a = normal(seed) + 1e5
        report = check(
            lambda a, b: (a * a).sum(-1) + (b * b).sum(-1) - 2 * (a * b).sum(-1),
            a,
            a + 0.1 * normal(seed + 100),
        )
        assert (
            report.op is None
            and report.diagnosis.kind in ("precision", "eps")
            and "kink" not in str(report)
        ), report
    assert "large numbers cancel" in report.diagnosis and "at index (" in report.diagnosis


@pytest.mark.parametrize(
    "f, slope, x",
    [
        (lambda x: np.sin(1e7 * x), lambda x, y: np.cos(1e7 * x), normal()),
        (lambda x: np.tanh(1e7 * x), lambda x, y: 1 - y * y, normal() * 1e-7),
    ],
)
def test_a_steep_function_has_no_kink(f, slope, x):
    """The rule need not be wrong, it said, of one that forgets the inner derivative."""
    report = check(made(f, lambda g, y, x: g * slope(x, y)), x)
    assert (
        report.diagnosis.kind == "constant factor"
        and "is 1.0000" in report.diagnosis
        and "e-07 times" in report.diagnosis
    )
    assert check(made(f, lambda g, y, x: 1e7 * g * slope(x, y)), x)


def test_a_wrong_rule_is_found_at_the_step_that_suits():
    """The default step does not; the report of the better one was thrown away unless all agreed there."""
    report = check(made(lambda x: x * x, lambda g, y, x: -2 * g * x), 1e8 * normal())
    assert report.diagnosis.kind == "sign" and report.op and "measured with eps=" in str(report)
    report = check(made(lambda x: 1 / x, lambda g, y, x: -g * y * y * ONE_OFF), 1e-4 * normal(7))
    assert "gradient is right" not in report.diagnosis and report.op, report


def test_one_wrong_element_is_told_where_the_step_is_large_beside_the_values():
    report = check(made(lambda x: x**3, lambda g, y, x: 3 * g * x * x * ONE_OFF), 1e-8 * normal())
    assert report.diagnosis.kind == "some elements" and "index (1, 3)" in report.diagnosis, report


def test_results_that_are_small_beside_others_are_looked_at_alone():
    """What was wrong with them was taken for the rounding of the large ones."""
    wrong = made(np.sin, lambda g, y, x: -g * np.cos(x))
    for f in (lambda x: (1e5 * x, wrong(x)), lambda x: (x * 1e6, 1e-3 * wrong(x))):
        report = check(f, normal())
        assert (
            report.diagnosis.kind == "sign"
            and "the gradient of result" in report.diagnosis
            and "much smaller" in report.diagnosis
        )
    assert check(lambda x: (1e5 * x, np.sin(x), 1e-9 * np.cos(x)), normal(), order=2)


def test_slopes_that_are_smaller_than_rounding_are_noted():
    assert "says little" in str(check(lambda x: (1e-9 * x).sum() + 1, np.ones(3)))
    assert "says little" not in str(check(lambda x: (1e-9 * x).sum(), np.ones(3)))


@pytest.mark.parametrize(
    "f, at, order",
    [
        (lambda x: x.sigmoid(), 30.0, 2),
        (np.tanh, -9.55, 2),
        (F.gelu, -7.33, 1),
        (F.gelu, -6.96, 1),
        (lambda x: F.gelu(x, "tanh"), -6.96, 2),
    ],
)
def test_a_rule_is_not_accused_far_out_where_rounding_hides_the_slope(f, at, order):
    """1 - y is a few units of rounding there, which a step of 1e-6 does not move; the gradient was called wrong, and gelu's rule too."""
    report = check(f, np.array([at]), order=order)
    assert report and "with larger steps it agrees" in str(report), report
    report = check(F.softmax, np.array([-32.86, -20.0, 0.3]), order=2)
    assert report, report


@pytest.mark.parametrize("factor", [2.0, 1.5, -1.0])
@pytest.mark.parametrize(
    "f, rule, at",
    [
        (lambda x: 1e-12 * np.sin(x), lambda g, y, x: 1e-12 * g * np.cos(x), 0.3),
        (
            lambda x: 1 - 1 / (1 + np.exp(-x)),
            lambda g, y, x: -g / (np.exp(x) + 2 + np.exp(-x)),
            25.0,
        ),
    ],
)
def test_and_a_wrong_one_is_accused_there_all_the_same(f, rule, at, factor):
    x = np.array([at])
    assert check(made(f, rule), x)
    assert not check(made(f, lambda g, y, x: factor * rule(g, y, x)), x)


@pytest.mark.parametrize("seed", range(5))
def test_a_gradient_that_is_nothing_but_rounding_is_not_called_wrong(seed):
    """Layer norm of equal numbers is constant: its gradient is 1e-11 where the slope is 0, which was called wrong."""
    a, b = np.random.default_rng(seed).standard_normal((2, 1))
    report = check(lambda a, b: F.layer_norm(np.repeat(1e3 * (a / (b * b + 1)), 2), [2]), a, b)
    assert report, report
    a, b = 10 * np.random.default_rng(seed).standard_normal((2, 2))
    report = check(lambda a, b: F.layer_norm((a - b) ** 2, [2]), a, b)
    assert report, report


def test_a_negative_factor_says_that_the_sign_is_wrong_too():
    report = check(made(np.cos, lambda g, y, x: 2 * g * np.sin(x)), normal())
    assert (
        "is -2 times" in report.diagnosis
        and "x2: counted twice" in report.diagnosis
        and "the sign is wrong" in report.diagnosis
    )


def test_the_exponent_of_a_sum_is_not_told_as_a_mean_for_certain():
    report = check(made(lambda x: (x**3).sum(), lambda g, y, x: g * x * x), normal())
    assert (
        "the size of axis 0" in report.diagnosis
        and "or a number of the formula" in report.diagnosis
    ), report


@pytest.mark.parametrize(
    "forward, rule, words",
    [
        (
            lambda x: x.T * 1.0,
            lambda g, y, x: g.reshape(x.shape),
            "reshaped where the axes should be transposed",
        ),
        (np.deg2rad, lambda g, y, x: 1.0 * g, "degrees taken for radians"),
        (np.log2, lambda g, y, x: g / x, "log 2, as of a base 2"),
        (lambda x: 10**x, lambda g, y, x: g * y, "1 / log 10"),
    ],
)
def test_well_known_slips_are_called_by_their_names(forward, rule, words):
    report = check(made(forward, rule), np.abs(normal()) + 0.5)
    assert words in report.diagnosis, report


def test_of_a_large_input_a_part_tells_more_and_without_parts_a_small_one_is_recommended():
    def softmax(x):
        e = np.exp(x)
        return e / e.sum(-1, keepdims=True)

    wrong = made(softmax, lambda g, y, x: g * y * (1 - y * y))
    rng = np.random.default_rng(0)
    large = rng.standard_normal((40, 20))
    report = check(wrong, large)
    assert report.diagnosis.kind == "missing sum" and "are cut to the first few" in report.diagnosis
    assert check(wrong, rng.standard_normal((20, 20))).diagnosis.kind == "missing sum"
    whole = made(lambda x: softmax(x + large), lambda g, y, x: g * y * (1 - y * y))
    assert "no more than 512 elements" in check(whole, large / 2).diagnosis


# ---- rules that fail, draw, or keep something


def test_an_error_within_a_rule_is_told_with_its_type():
    def fails(g, y, x):
        return {}["k"]

    assert "KeyError: 'k'" in check(made(np.sin, fails), normal()).diagnosis


def test_the_op_is_named_whose_rule_gives_another_answer_each_time():
    draw = np.random.default_rng(0)
    report = check(
        lambda x: np.exp(
            made(lambda x: x * 1.0, lambda g, y, x: 2 * g * (draw.random(x.shape) < 0.5))(x)
        ),
        normal(),
    )
    assert report.op == "<lambda>" and "draws random numbers" in report.diagnosis


def test_state_kept_outside_shows_at_zeros_too():
    """Between the forward and the backward pass f ran with the values times something, which leaves zeros where they are."""
    kept = {}

    def forward(x):
        kept["x"] = np.array(x)
        return np.exp(x)

    assert (
        check(made(forward, lambda g, y, x: g * np.exp(kept["x"])), np.zeros((2, 3))).diagnosis.kind
        == "shared state"
    )


def test_a_joint_rule_that_divides_by_zero_is_told_so():
    """An overflow, it said; lower the learning rate."""
    add = op(lambda a, b: a + b)
    add.vjp_all(lambda g, y, a, b: (g / a, g))
    a, b = (Tensor([v, 1.0], requires_grad=True) for v in (0.0, 1.0))
    with pytest.raises(FloatingPointError, match="a division by zero"), detect_anomaly():
        add(a, b).sum().backward()


def test_a_gradient_taken_inside_without_create_graph_is_mentioned():
    def slope(x):
        y = Tensor(x.data, requires_grad=True)
        (y**3).sum().backward()
        return y.grad

    assert "create_graph=True" in check(slope, normal()).diagnosis
