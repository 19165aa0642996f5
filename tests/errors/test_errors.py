"""Error texts: each names what was given and says what to write."""

import warnings

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, errors, nn, optim


def t(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize(
    "call, kind, pattern",
    [
        (lambda: t(2, 3) @ t(2, 3), ValueError, r"matmul of Tensor \(2, 3\).*mean a @ b\.mT"),
        (lambda: t(4, 3) @ t(4, 5), ValueError, r"Did you mean a\.mT @ b"),
        (
            lambda: t(3) @ t(2, 4),
            ValueError,
            r"the second operand's next-to-last axis \(size 2\)\.$",
        ),
        (
            lambda: t(2, 3, 4) @ t(5, 4, 6),
            ValueError,
            r"before the last two are aligned on the right",
        ),
        (lambda: t(2, 3) @ 2.0, ValueError, r"multiply with \* instead of @"),
        (lambda: t(2, 3) + t(2, 4), ValueError, r"add of .*axis -1 the sizes 3 and 4 differ"),
        (lambda: t(3, 2) * t(3), ValueError, r"x\[:, None\]"),
        (lambda: t(2, 3).reshape(4, 2), ValueError, r"reshape of Tensor \(2, 3\).*cannot reshape"),
        (lambda: t(2, 3).sum(axis=2), IndexError, r"sum of Tensor \(2, 3\).*axis 2 is out of"),
        (lambda: t(2, 3).sum(axis=1.0), TypeError, r"sum of .*interpreted as an integer\.$"),
        (lambda: F.rotary(t(4, 3), range(4)), ValueError, r"even D.*x Tensor \(4, 3\)"),
        (lambda: F.rotary(t(4, 2), range(3)), ValueError, r"positions \(T,\).*array \(3,\)"),
        (
            lambda: nn.GroupedQueryAttention(8, 4, 3),
            ValueError,
            r"num_heads=4 must be a multiple of num_kv_heads=3",
        ),
        (
            lambda: nn.GroupedQueryAttention(6, 2, 1, rotary_base=1e4)(t(1, 2, 6)),
            ValueError,
            r"even D; got x|even D, and",
        ),
        (
            lambda: nn.GroupedQueryAttention(8, 4, 2)(t(3, 8)),
            ValueError,
            r"takes \(B, T, 8\), got Tensor \(3, 8\)",
        ),
        (lambda: t(3)[5], IndexError, r"getitem of Tensor \(3,\).*index 5 is out of bounds"),
        (lambda: t(3)[0, 0], IndexError, r"Tensor \(3,\).*too many indices"),
        (lambda: t(3) + None, TypeError, r"check that the function that computed it returns"),
        (lambda: t(3).unsqueeze(0), AttributeError, r"Write np\.expand_dims"),
        (lambda: t(3).conv2d(0), AttributeError, r"Write it as docs/from-pytorch\.md shows"),
        (lambda: t(3).arctan(), AttributeError, r"Write np\.arctan\(t, \.\.\.\)\.$"),
        (lambda: t(3).roots(), AttributeError, r"t\.numpy\(\), .*no derivative here"),
        (lambda: t(3).pi, AttributeError, r"has no attribute 'pi'$"),
        (lambda: ta.gradchek, AttributeError, r"Did you mean 'gradcheck'"),
        (lambda: ta.exp(t(3)), AttributeError, r"tinygrad_attn has no 'exp'\. Write np\.exp"),
        (lambda: ta.Linear, AttributeError, r"Write nn\.Linear"),
        (lambda: nn.linear, AttributeError, r"Did you mean 'Linear'"),
        (lambda: nn.LSTM, AttributeError, r"docs/from-pytorch\.md"),
        (lambda: F.sum(t(3)), AttributeError, r"functional has no 'sum'\. Write np\.sum"),
        (lambda: optim.StepLR, AttributeError, r"docs/from-pytorch\.md"),
    ],
)
def test_a_wrong_call_says_what_to_write(call, kind, pattern):
    with pytest.raises(kind, match=pattern):
        call()


def test_values_are_named():
    named = t(2)
    named.name = "w"
    assert errors.describe(named) == "Tensor (2,) float64 'w'"
    assert errors.describe("x" * 99) == "a str"
    assert errors.is_number(np.float32(1)) and not errors.is_number(True)
    assert errors.is_integer(np.int8(1)) and not errors.is_integer(1.0)


def test_an_error_of_the_users_own_keeps_its_kind():
    class Mine(ValueError):
        pass

    error = Mine("text")
    assert errors.explain("f", [t(2), np.ones(2), None, 3], error) is error
    assert error.__notes__ == ["in f of Tensor (2,) float64, array (2,) float64, 3"]


def test_nearest_names():
    assert errors.nearest("Sofmax", ["softmax", "relu"]) == " Did you mean 'softmax'?"
    assert errors.nearest("onnx", ["nn"]) == ""


@pytest.mark.parametrize("theirs, numpys", errors.KEYWORDS.items())
def test_a_keyword_of_pytorch_is_translated(theirs, numpys):
    for reduce in (
        Tensor([1.0, 2.0]).var,
        lambda **settings: ta.ops.var(Tensor([1.0]), **settings),
    ):
        with pytest.raises(TypeError, match=f"'{theirs}'. Write {numpys}=, as in NumPy"):
            reduce(**{theirs: 0})


def test_a_warning_names_the_users_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors.warn("careful")
    assert caught[0].filename == __file__
