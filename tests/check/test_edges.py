"""gradcheck at the edge: functions that mind their domain, steep slopes, jumps, derivatives that are zero, settings that make no sense."""

from types import MappingProxyType

import numpy as np
import pytest

from tinygrad_attn import Tensor, no_grad, op
from tinygrad_attn.check import compare, detect_anomaly, gradcheck

INSIDE = np.random.default_rng(0).uniform(0.5, 2, (3, 4))


def check(f, *inputs, **options):
    return gradcheck(f, list(inputs), raise_exception=False, **options)


def positive(failure):
    """log for those who ask politely."""

    def f(x):
        if not (x > 0).all():
            raise failure
        return np.log(x)

    return f


def loud(x):
    with np.errstate(all="raise"):
        return np.log(x)


def watched(x):
    with detect_anomaly():
        return np.log(x)


MINDING = [
    positive(AssertionError("positive please")),
    positive(RuntimeError()),
    positive(ZeroDivisionError()),
    positive(KeyError("x")),
    positive(TypeError()),
    loud,
    watched,
]


@pytest.mark.parametrize("f", MINDING, ids=range(len(MINDING)))
def test_a_function_that_minds_its_domain_is_not_broken_by_the_probing(f):
    assert check(f, INSIDE) and check(f, INSIDE, order=2)
    assert check(f, np.array([0.01, 1.0]))  # the curve of the error goes as far as 0.1
    report = check(f, np.array([1e-9, 1.0]), eps=1e-6)
    assert report or report.diagnosis.kind in ("eps", "domain"), report


UPPER = np.triu(np.ones((3, 4), bool), 1)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.where(UPPER, -np.inf, x**2),
        lambda x: (np.where(UPPER[:, 0], x[:, 0], np.inf), x**2),
    ],
)
@pytest.mark.parametrize("options", [{}, {"order": 2}, {"fast_mode": True}], ids=str)
def test_what_is_infinite_whatever_the_inputs_is_left_out(f, options):
    """The scores of a mask once were "the edge of the domain"."""
    report = check(f, INSIDE, **options)
    assert report and "left out" in str(report)


@pytest.mark.parametrize(
    "rule, kind",
    [
        (lambda g, y, x: np.where(UPPER, 0, g), ""),
        (lambda g, y, x: g, "infinite result"),
        (lambda g, y, x: np.where(UPPER, 0, 2 * g), "constant factor"),
        (lambda g, y, x: 0 * g, "zero"),
    ],
)
def test_a_rule_that_fills_in_infinities_is_told_right_from_wrong(rule, kind):
    fill = op(lambda x: np.where(UPPER, -np.inf, x))
    fill.vjp(rule)
    assert check(fill, INSIDE).diagnosis.kind == kind


def test_finite_results_that_stand_still_beside_infinite_ones_are_not_left_out():
    fill = op(lambda x: np.where(UPPER, -np.inf, np.floor(x)))
    fill.vjp(lambda g, y, x: np.where(UPPER, 0, g))
    report = check(fill, INSIDE)
    assert report.diagnosis.kind == "numeric zero", report


@pytest.mark.filterwarnings("error")
def test_infinite_results_are_looked_at_with_a_graph_and_without_numpys_warnings():
    with no_grad():
        assert (
            check(lambda x: x + np.where(UPPER, -np.inf, 0), INSIDE).diagnosis.kind
            == "infinite result"
        )
    assert check(lambda x: np.log(np.maximum(x, 0)), np.array([-1.0, 2.0]))


def test_what_overflows_lies_on_the_edge_of_the_domain_as_before():
    assert (
        check(np.exp, np.array([800.0, 1])).diagnosis.kind
        == check(np.log, np.array([0.0, 1])).diagnosis.kind
        == "domain"
    )


@pytest.mark.parametrize("f", [lambda x: x * x, lambda x: (3 * x).sum()])
@pytest.mark.parametrize("size", [1e12, 1e20, 1e100])
def test_a_step_that_is_lost_beside_large_values_accuses_no_rule(f, size):
    x = np.array([1.0, -2.0, 0.5]) * size
    assert check(f, x)  # another step is found
    report = check(f, np.array([*x, 1.0]))  # and none suits all of these
    assert report or report.op is None and report.diagnosis.kind == "eps", report


@pytest.mark.parametrize("size", [1e8, 1e20])
def test_a_log_of_large_negative_values_has_no_step_that_suits_it(size):
    report = check(np.log, np.array([-1.0, 2.0, -1.5]) * size)
    assert report.diagnosis.kind == "domain" and "result itself is NaN" in report.diagnosis


def test_state_is_found_in_a_function_that_minds_its_domain_too():
    state = {}

    def forward(x):
        assert (x > 0).all()
        state["x"] = x
        return np.log(x)

    log = op(forward)
    log.vjp(lambda g, y, x: g / state["x"])
    assert check(log, INSIDE).diagnosis.kind == "shared state"


def test_a_wrong_rule_in_a_function_that_minds_its_domain_is_found():
    log = op(positive(AssertionError("positive please")))
    log.vjp(lambda g, y, x: 2 * g / x)
    for values in (INSIDE, np.array([0.01, 0.5, 1.5])):
        assert check(log, values).diagnosis.kind == "constant factor"


@pytest.mark.parametrize(
    "f, values",
    [
        (np.log, [1e-6, 0.3, 0.7]),
        (np.sqrt, [1e-6, 0.3, 0.7]),
        (lambda x: x**1.5, [1e-6, 0.3, 0.7]),
        (np.log, [1e-7, 0.3]),
        (lambda x: x * np.log(x), [1e-6, 0.3, 0.7]),
        (np.arccos, [1 - 1e-6, 0.3, 0.7]),
        (np.arctanh, [1 - 1e-6, 0.3, 0.7]),
        (lambda x: x * np.log(x), [1e-6, 0.3678794]),
        (np.log, [1e-6, 1e3, 1e6]),
        (lambda x: 1 / x, [1e-8, 1.0]),
        (np.cbrt, [1e-9, 1.0]),
        (lambda x: np.maximum(x, 0), [1e-9, 1.0]),
        (np.abs, [1e-9, 1.0]),
    ],
)
def test_near_the_edge_a_smaller_step_is_found(f, values):
    assert check(f, np.array(values))
    assert "precision" not in check(f, np.array(values), eps=1e-6).diagnosis


@pytest.mark.parametrize(
    "f, distance",
    [
        (lambda x: np.maximum(x, 1), -1e-8),
        (lambda x: np.clip(x, -1, 1), 1e-8),
        (lambda x: 10 + np.maximum(x - 1, 0), -1e-7),
    ],
)
def test_on_the_flat_side_of_a_near_kink_a_smaller_step_is_found(f, distance):
    """The rule of `maximum` once was told that its function never moves: a result of 1 left no step quiet enough."""
    assert check(f, np.array([1 + distance, 0.5]))
    zeros = op(f)
    zeros.vjp(lambda g, y, x: 0 * g)
    assert not check(zeros, np.array([1 + distance, 0.5, 2.0, -0.5]) + 1e-3)


def test_the_step_that_is_advised_lies_among_those_that_agree():
    report = check(lambda x: np.maximum(x, 0) ** 2, np.array([0, 1e-8, -1.0]))
    text = str(report.diagnosis)
    assert "agrees from eps=3e-12 to 3e-12; write eps=3e-12" in text, report


@pytest.mark.parametrize(
    "f",
    [np.sign, lambda x: np.heaviside(x, 0.5), np.floor, np.ceil, lambda x: np.sign(x) * 3 + x * x],
)
def test_a_jump_is_a_kink_and_no_rule_of_zeros(f):
    report = check(f, np.array([0.0, 1.5]))
    assert report.diagnosis.kind == "kink" and "jump" in report.diagnosis and report.op is None


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(atol=-1), "atol is the error that is allowed"),
        (dict(rtol="x"), "rtol .* 1e-3; got 'x'"),
        (dict(atol=np.nan), "atol"),
        (dict(seed=-1), "seed is a whole number, 0 or more"),
        (dict(seed=1.5), "seed .* got 1.5"),
        (dict(eps=np.inf), "eps is the step"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        check(np.exp, INSIDE, **options)


@pytest.mark.parametrize(
    "f, rule",
    [
        (lambda x: 3 + 1e-5 * np.sin(x), lambda g, y, x: 0 * g),
        (lambda x: 1 + 1e-6 * np.sin(x), lambda g, y, x: 0 * g),
        (lambda x: 1 + 5e-5 * np.exp(x), lambda g, y, x: np.where(UPPER, g * (y - 1), 0)),
    ],
)
def test_no_step_makes_a_gradient_of_zeros_right(f, rule):
    """With steps so small that rounding leaves no difference, zeros once counted as right."""
    wrong = op(f)
    wrong.vjp(rule)
    report = check(wrong, INSIDE)
    assert not report and report.diagnosis.kind != "eps", report


@pytest.mark.parametrize(
    "f, x", [(np.sign, 1e-6 * np.linspace(-2.3, 2, 6)), (lambda x: x**3, np.zeros((2, 3)))]
)
def test_a_slope_of_zero_is_right_where_smaller_steps_find_none(f, x):
    """Between jumps closer than the first step, and where only the third derivative is left."""
    assert check(f, x)


def test_a_part_of_the_loss_that_was_detached_is_found_however_small_it_is():
    assert not check(lambda w: 0 * w.sum() + 3.0 + 1e-5 * (w.detach() ** 2).sum(), INSIDE)


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, y, x: np.maximum(g, 0) * 2 * x,
        lambda g, y, x: np.abs(g) * 2 * x,
        lambda g, y, x: np.clip(g, -1, 1) * 2 * x,
        lambda g, y, x: 2 * x * g * (np.abs(g) / np.abs(g)),
    ],
)
def test_a_rule_that_is_not_linear_in_the_incoming_gradient_is_found(rule):
    """One cotangent, which happened to be positive and small, once was all that such a rule ever saw."""
    square = op(lambda x: (x * x).sum())
    square.vjp(rule)
    for seed in range(4):
        assert not check(square, INSIDE, seed=seed)
    assert check(square, INSIDE, seed=0).diagnosis.kind == "incoming gradient"


def picked(rule):
    new = op(lambda x: x.reshape(-1)[[1, 5, 5]])
    new.vjp(rule)
    return new


def added_up(out, g):
    np.add.at(out.reshape(-1), [1, 5, 5], g)
    return out


def test_a_rule_that_minds_how_its_operands_lie_in_memory_is_found():
    """Right for arrays that lie row by row, which is what all checks had; what reshape(-1) copies is written to in vain."""
    right = picked(lambda g, y, x: added_up(np.zeros(x.shape), g))
    lost = picked(lambda g, y, x: added_up(np.zeros_like(x), g))
    fails = op(lambda x: x * x)
    fails.vjp(lambda g, y, x: 2 * g * np.frombuffer(x).reshape(x.shape))
    turns = op(lambda x: x * INSIDE)
    turns.vjp(lambda g, y, x: (g.ravel("K") * INSIDE.ravel()).reshape(x.shape))
    assert check(right, INSIDE)
    for wrong in (lost, fails, turns):
        report = check(lambda x, wrong=wrong: 2 * wrong(x + 1), INSIDE)
        assert report.diagnosis.kind == "memory layout" and report.op == "<lambda>", report
    assert (
        "the rule of op '<lambda>' fails, ValueError: ndarray is not C-contiguous"
        in check(fails, INSIDE).diagnosis
    )


@pytest.mark.parametrize(
    "f",
    [
        lambda x: 1e8 * x.sum(0) - (1e8 * x)[::-1].sum(0),
        lambda x: np.max(np.round(x, 1), -1) * x.sum(),
        np.sort,
        lambda x: x @ x.T,
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: (x.T.reshape(-1) * np.arange(12.0)).reshape(4, 3),
        lambda x: np.var(x, 0),
    ],
)
def test_rounding_and_ties_are_not_taken_for_it(f):
    report = check(f, INSIDE)
    assert report.diagnosis.kind != "memory layout", report


def test_an_op_that_makes_float64_of_float32_is_noted():
    """A check in float64 does not see it; everything after it runs at half the speed."""
    scale, right = (
        op(lambda x: x * np.sqrt(x.shape[-1])),
        op(lambda x: x * float(np.sqrt(x.shape[-1]))),
    )
    for new in (scale, right):
        new.vjp(lambda g, y, x: g * float(np.sqrt(x.shape[-1])))
    report = check(lambda x: np.tanh(scale(x)), INSIDE)
    assert (
        report and "given float32, op '<lambda>'" in str(report) and "gives float64" in str(report)
    )
    assert "float64" not in str(
        check(lambda x: np.tanh(right(x)) * np.arange(4.0) + x.astype(np.float64), INSIDE)
    )


def test_a_joint_rule_that_is_wrong_for_one_input_alone_is_found():
    times, over = op(lambda a, b: a * b), op(lambda a, b: a / b)

    @times.vjp_all
    def forgets(g, y, a, b, *, needs):
        return g * b if needs[0] else None, (g * a if needs[0] else g * b) if needs[1] else None

    @over.vjp_all
    def fails(g, y, a, b, *, needs):
        if needs[0]:
            inverse = 1 / b
        return g * inverse if needs[0] else None, -g * a * inverse * inverse if needs[1] else None

    for wrong in (times, over):
        assert check(wrong, INSIDE, INSIDE + 1).diagnosis.kind == "needs"


def test_results_and_inputs_that_lie_deeper_are_checked_too():
    """The (y, (h, c)) of an LSTM: only y was looked at."""
    half = op(lambda x: x * x)
    half.vjp(lambda g, y, x: g * x)
    w = Tensor(INSIDE, requires_grad=True, dtype=np.float64)
    for f, *inputs in [
        (lambda x: (x * 2, (half(x), x)), INSIDE),
        (lambda x: {"y": x * 2, "more": {"h": [half(x)]}}, INSIDE),
        (lambda x, ws: x * 2 + half(ws[0]), INSIDE, [w]),
        (lambda x, d: x * 2 + half(d["w"]), INSIDE, {"w": w}),
    ]:
        assert check(f, *inputs).diagnosis.kind == "constant factor"
    data = w.data
    assert (
        len(check(lambda x, ws: x * ws[0] * ws[1]["w"], INSIDE, [w, {"w": w}]).entries) == 2
        and w.data is data
    )
    assert check(lambda x, sizes: x.reshape(sizes), INSIDE, [4, 3])


@pytest.mark.parametrize("f", [np.tanh, np.exp])
def test_a_rule_that_is_right_only_at_zero_is_found(f):
    """Zeros times anything near one are zeros: a little way off was no way off."""
    forgets = op(lambda x: f(x))
    forgets.vjp(lambda g, y, x: 1 * g)
    assert check(forgets, np.zeros((2, 3))).diagnosis.kind == "stale state"
    assert check(f, np.zeros((2, 3)))


def test_a_comparison_takes_any_mapping_and_says_which_way_a_factor_goes():
    mine = MappingProxyType({"a": np.ones(2)})
    assert compare(mine, mine) and compare(mine, {"a": np.ones(2)})
    assert "0.5 times as large" in str(compare(np.array([1.0, 2.0]), np.array([2.0, 4.0])))
    assert "2 times too large" in str(compare(np.array([2.0, 4.0]), np.array([1.0, 2.0])))
