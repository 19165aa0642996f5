"""detect_anomaly names the first op that makes NaN or Inf, its index and operands, the line and the reason."""

import contextvars
import sys

import numpy as np
import pytest
from support import unquoted

from tinygrad_attn import Tensor, backward_steps, enable_grad, nn, record_attention, value_and_grad
from tinygrad_attn.check import detect_anomaly
from tinygrad_attn.engine import context
from tinygrad_attn.functional import cross_entropy, scaled_dot_product_attention, softmax


def t(*values, dtype=np.float32):
    return Tensor(np.array(values, dtype), requires_grad=True)


FORWARD = [
    (lambda: np.exp(t(1, 100)), "exp", "(1,)", "overflow in exp"),
    (lambda: t(1, 0) / t(1, 0), "divide", "(1,)", "0/0"),
    (lambda: t(2, 1) / t(0, 1), "divide", "(0,)", "division by zero"),
    (lambda: np.log(t(1, 0)), "log", "(1,)", "log 0"),
    (lambda: np.log(t(-1)), "log", "(0,)", "negative number -1"),
    (lambda: np.sqrt(t(-4)), "sqrt", "(0,)", "sqrt of the negative number -4"),
    (lambda: t(0.0) * np.float32(np.inf), "multiply", "(0,)", "0 x inf"),
    (lambda: t(-8.0) ** 0.5, "power", "(0,)", "not whole"),
    (lambda: t(0.0) ** -1.0, "power", "(0,)", "negative power"),
    (
        lambda: _hand_softmax(
            np.where(
                np.array([[True, True], [True, False]]),
                -np.inf,
                Tensor(np.ones((2, 2)), requires_grad=True),
            )
        ),
        "subtract",
        "(0, 0)",
        "empty softmax row",
    ),
    (lambda: t(1e38, 1) * 1e3, "multiply", "(0,)", "overflow"),
    (lambda: np.arccos(t(2)), "arccos", "(0,)", "domain"),
    (lambda: np.var(t(1e30, 1)), "var", "()", "overflow"),
    (lambda: np.var(t(1, 2), ddof=2), "var", "()", "no degrees of freedom"),
    (lambda: np.arccos(t(2)), "arccos", "(0,)", "outside the edge of its domain"),
    (lambda: np.sqrt(t(0.5) - 1), "sqrt", "(0,)", "sqrt of the negative number -0.5"),
    (lambda: t(np.inf) / np.float32(np.inf), "divide", "(0,)", "inf/inf"),
    (lambda: t(1e38) / np.float32(1e-5), "divide", "(0,)", "by a very small number"),
    (
        lambda: t(1, 2) @ np.array([np.inf, -np.inf], np.float32),
        "matmul",
        "()",
        "an operand holds infinities",
    ),
    (lambda: np.exp2(t(1, 200)), "exp2", "(1,)", "reached at exp2(128.0)"),
    (lambda: np.log1p(t(-2)), "log1p", "(0,)", "log1p of -2, below -1"),
    (lambda: softmax(t(1, np.inf)), "softmax", "(0,)", "on infinities, which an operand holds"),
    (
        lambda: softmax(t(-np.inf, np.inf)),
        "softmax",
        "(0,)",
        "on infinities, which an operand holds",
    ),
    (lambda: softmax(t(-np.inf, -np.inf)), "softmax", "(0,)", "empty softmax row"),
    (
        lambda: softmax(t([-np.inf], [np.inf]), 0),
        "softmax",
        "(0, 0)",
        "on infinities, which an operand holds",
    ),
    (
        lambda: cross_entropy(t([-np.inf, np.inf], [1, 2]), np.array([0, 1])),
        "cross_entropy",
        "()",
        "on infinities, which an operand holds",
    ),
    (
        lambda: cross_entropy(t([-np.inf, -np.inf], [1, 2]), np.array([0, 1])),
        "cross_entropy",
        "()",
        "empty softmax row",
    ),
    (
        lambda: scaled_dot_product_attention(t([-np.inf, -np.inf]), t([0, 1]), t([1, 2])),
        "scaled_dot_product_attention",
        "(0, 0)",
        "on infinities, which an",
    ),
    (lambda: t(np.inf, 1) + t(-np.inf, 1), "add", "(0,)", "0/0, inf - inf"),
    (lambda: t([1], [np.inf]) + t([1], [-np.inf]), "add", "(1, 0)", "0/0, inf - inf"),
    (lambda: t(-np.inf, 1) - t(-np.inf), "subtract", "(0,)", "0/0, inf - inf"),
    (lambda: np.fmod(t(0, np.inf), t(0, 1)), "fmod", "(0,)", "0/0"),
    (lambda: np.square(t(1e30)), "square", "(0,)", "the largest float32 is 3.4e+38."),
]


def _hand_softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def why(text):
    """The reason alone: the text also quotes the line of the call, which holds the expected words here."""
    return text.rpartition("Reason: ")[2]


@pytest.mark.parametrize(
    "f, op, index, reason", FORWARD, ids=[f"{op}, {reason}" for _, op, _, reason in FORWARD]
)
def test_forward(f, op, index, reason):
    with pytest.raises(FloatingPointError) as caught, detect_anomaly():
        f()
    text = str(caught.value)
    assert f"op {op!r} made" in text and f"at index {index}" in text and reason in why(text), text
    text = unquoted(str(caught.value))
    assert f"op {op!r} made" in text and f"at index {index}" in text and reason in text, text
    assert __file__ in text


BACKWARD = [
    (lambda: np.sqrt(t(0, 4)).sum(), "sqrt", "sqrt 0 in the backward pass"),
    (
        lambda: np.where(np.array([False, True]), np.sqrt(t(0, 4)), 0).sum(),
        "sqrt",
        "0 x inf behind a mask",
    ),
    (lambda: np.hypot(t(0.0), t(0.0)).sum(), "hypot", "hypot 0"),
    (
        lambda: np.arccos(t(0, -1)).sum(),
        "arccos",
        "arccos -1 in the backward pass: its slope is infinite",
    ),
    (
        lambda: np.arccosh(t(2, 1)).sum(),
        "arccosh",
        "arccosh 1 in the backward pass: its slope is infinite",
    ),
    (lambda: (t(0.0) ** 0.5).sum(), "power", "power 0"),
    (lambda: (t(1, 2) * t(np.inf, 1)).sum(), "multiply", "an operand is infinite"),
    (lambda: (t([1, np.inf]) @ t([1], [2])).sum(), "matmul", "an operand is infinite"),
    (lambda: (softmax(t(-np.inf, 1)) * t(3e38, -3e38)).sum(), "softmax", "overflow inside it"),
    (lambda: ((t(1e-30) ** 2.0 + 1) * 1e30).sum() * 1e30, None, "overflow"),
]


@pytest.mark.parametrize("f, op, reason", BACKWARD, ids=[reason for _, _, reason in BACKWARD])
def test_backward(f, op, reason):
    with pytest.raises(FloatingPointError) as caught, detect_anomaly():
        f().backward()
    text = str(caught.value)
    assert reason in why(text) and __file__ in text, text
    text = unquoted(str(caught.value))
    assert reason in text and __file__ in text, text
    if op:
        assert f"in the backward pass, op {op!r} made" in text


def test_the_line_is_that_of_the_forward_call_and_the_module_is_named():
    class Net(nn.Module):
        def __init__(self):
            self.scale = Scale()

        def forward(self, x):
            return self.scale(x)

    class Scale(nn.Module):
        def forward(self, x):
            return np.sqrt(x)  # this line

    with (
        pytest.raises(
            FloatingPointError, match=r"module 'scale', called at .*np\.sqrt\(x\).*this line"
        ) as caught,
        detect_anomaly(),
    ):
        Net()(t(0, 1)).sum().backward()
    assert "with 0 there" in str(caught.value)


def test_a_function_in_a_context_managers_hands_is_called_on_the_users_line():
    with (
        pytest.raises(FloatingPointError, match=r"op 'log'.*called at .*this very line"),
        detect_anomaly(),
    ):
        enable_grad()(np.log)(t(0))  # this very line, not contextlib's


def test_what_comes_in_as_infinite_is_no_anomaly():
    scores = Tensor(np.ones((2, 3)), requires_grad=True)
    with detect_anomaly():
        masked = np.where(np.array([[True, False, False]]), -np.inf, scores)
        _hand_softmax(masked).sum().backward()
    assert np.isfinite(scores.grad.numpy()).all()


def test_a_bad_gradient_that_the_user_gives_is_said_so():
    with pytest.raises(FloatingPointError, match=r"given to backward\(\)"), detect_anomaly():
        (t(1, 2) * 2).backward(np.array([np.nan, 1]))


def test_forward_outside_backward_inside_says_that_the_line_is_unknown():
    loss = np.sqrt(t(0)).sum()
    with pytest.raises(FloatingPointError, match="outside detect_anomaly"), detect_anomaly():
        loss.backward()


def test_off_it_leaves_no_trace():
    before = context.watchers
    with pytest.raises(FloatingPointError), detect_anomaly():
        assert len(context.watchers) == len(before) + 1
        np.log(t(0))
    assert context.watchers == before
    np.log(t(1))


def test_a_training_inside_remembers_the_places_of_living_results_only():
    w = t(1, 2)
    with detect_anomaly():
        places = context.watchers[-1].places
        for _ in range(3):
            (w * 2.0).sum().backward()
        kept = (w * 3.0).sum()
        never = w * 4.0
        assert len(places) == 3
        del kept, never
        assert not places


def look_for_anomalies():
    with detect_anomaly():
        pass


def look_at_attention():
    with record_attention():
        pass


@pytest.mark.parametrize(
    "run",
    [
        look_for_anomalies,
        look_at_attention,
        lambda: backward_steps(t(2) * 3),
        lambda: value_and_grad(lambda x: 3.0)(1.0),
    ],
    ids=["anomalies", "attention", "steps", "transform"],
)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # where it comes while a generator is put away
def test_ctrl_c_at_any_call_leaves_nobody_looking_on(run):
    """One who stays would slow down the rest of a notebook's day, and what `gradcheck` looks on with would keep every result alive."""
    calls = 0

    def count(
        frame, event, _
    ):  # Python looks for Ctrl-C where a function begins and after one of C's has ended
        nonlocal calls
        calls += event in ("call", "c_return")
        if calls == last:
            raise KeyboardInterrupt

    def pressed():
        try:
            sys.setprofile(count)
            run()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)

    context.watchers, last = (), 1
    while contextvars.copy_context().run(
        pressed
    ):  # NumPy's errstate may be left open, but in there
        assert context.watchers == (), f"at call {last}"
        # A `with no_grad():` may be left open as well: Python's limit.
        context.blocks, context.recording = [], True
        calls, last = 0, last + 1
    assert last > 5


def test_ctrl_c_is_not_lost_where_a_result_goes():
    """In a function that a weak reference calls Ctrl-C would be printed and forgotten, and the training would go on."""
    begun = []
    with detect_anomaly():
        result = np.exp(t(1))
        sys.setprofile(
            lambda frame, event, _: begun.append(frame.f_code.co_name) if event == "call" else None
        )
        del result
        sys.setprofile(None)
    assert not begun


@pytest.mark.parametrize("looked", [False, True])
def test_the_sum_of_two_passes_can_overflow_too(looked):
    x = Tensor(np.ones(2, np.float16), requires_grad=True)
    with detect_anomaly():
        (x * 1).backward(np.full(2, 4e4, np.float16))
        assert not looked or x.grad.dtype == np.float16
        with pytest.raises(
            FloatingPointError,
            match="op 'add' made inf .* Tensor .* with 40000 there, Tensor .* with 40000 there",
        ):
            (x * 1).backward(np.full(2, 4e4, np.float16))
