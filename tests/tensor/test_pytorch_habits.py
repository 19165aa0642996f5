"""What PyTorch's users write out of habit is said, not passed over, and the advice that is given is
executed and right; right programs that look alike go through in silence."""

import random
import re
import warnings

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.tensor.names.common import ADVICE, NO_EFFECT

A = np.arange(9.0).reshape(3, 3)
NAMES = dict(np=np, ta=ta, F=F, nn=nn, optim=optim, Tensor=Tensor)


def square(requires_grad=False):
    return Tensor(A, requires_grad=requires_grad)


def advised(pattern, text):
    found = re.search(pattern, text)
    assert found, text
    return found.groups() if len(found.groups()) > 1 else found[1]


# ---- transpose


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.transpose(0, 1),
        lambda t: t.transpose(-2, -1),
        lambda t: t.transpose(0, -1),
        lambda t: t.transpose((0, 1)),
        lambda t: np.transpose(t, (-2, -1)),
        lambda t: np.transpose(t, axes=[0, 1]),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_transpose_that_changes_nothing_is_warned_of(write, recorded):
    t = square(recorded)
    with pytest.warns(UserWarning, match="changes nothing") as seen:
        assert np.array_equal(write(t).numpy(), A)
    assert seen[0].filename == __file__ and len(seen) == 1
    for text in advised(r"Write (\S+) or (\S+ 1\)) to exchange", str(seen[0].message)):
        assert np.array_equal(eval(text, dict(t=t)).numpy(), A.T)


@pytest.mark.filterwarnings("error")
def test_other_permutations_are_silent_also_inside_of_rules():
    t, x = square(), Tensor(np.arange(8.0).reshape(2, 2, 2) + 1, requires_grad=True)
    for y in (t.T, t.mT, t.transpose(), t.transpose(1, 0), np.transpose(t), t.transpose(None)):
        assert np.array_equal(y.numpy(), A.T)
    assert x.transpose(0, 1, 2).shape == x.shape == np.moveaxis(x, 0, 0).shape
    assert np.array_equal(t.swapaxes(0, 1).numpy(), A.T)
    matrix = square(True)
    for f in (np.prod, lambda m: np.prod(m, 1).sum(), lambda m: np.linalg.norm(m)):
        (g,) = ta.grad(f(matrix), matrix, create_graph=True)
        ta.grad(g.sum(), matrix)
    with pytest.raises(ValueError, match="swapaxes exchanges two"):
        x.transpose(0, 1)


# ---- the pair that PyTorch's max returns


def two_names(y):
    values, index = y
    return values, index


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    "write",
    [lambda t: t.max(1), lambda t: t.min(1), lambda t: np.max(t, 1), lambda t: np.amin(t, 0)],
)
def test_a_maximum_is_not_taken_apart_as_if_it_came_with_the_indices(write, recorded):
    with pytest.raises(ValueError, match="gives the values alone") as error:
        values, index = write(square(recorded))
    text = advised(r"Write values = (.*) and index = (.*)\.$", str(error.value))
    values, index = (eval(part, dict(t=square(), axis=1)) for part in text)
    assert values.tolist() == [2, 5, 8] and index.tolist() == [2, 2, 2]
    t = Tensor(A[:2, :2], requires_grad=recorded)
    with pytest.warns(UserWarning, match="two rows are meant") as seen:
        first, second = write(t)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a, b = eval(advised(r"a, b = (.*)\.$", str(seen[0].message)), dict(t=t, axis=1))
    assert [a.item(), b.item()] == [1, 4]


@pytest.mark.filterwarnings("error")
def test_what_else_is_done_with_a_maximum_is_silent():
    t = Tensor(A[:2], requires_grad=True)
    assert [v.item() for v in t.max(1)] == [2, 5] and len(list(t.max(1))) == 2
    (first, *_), (_, _, c) = t.max(1), t.max(0)
    assert first.item() == 2 and c.item() == 5
    pair = t.max(1)
    top = t.max()
    low, high = np.sort(t[0, :2])
    rows = [*pair]
    assert top.item() == 5 and high.item() == 1 and len(rows) == 2
    first, second = t
    first, second = t.sum(1)
    first, second = zip(*[pair, pair], strict=True)
    assert two_names(t.argmax(1)) == (2, 2)


# ---- rows that overwrite each other


def test_shuffling_rows_in_place_is_refused_and_the_advice_shuffles():
    t = square()
    with pytest.raises(ValueError, match=r"one row in both places") as error:
        random.Random(0).shuffle(t)
    assert np.array_equal(t.numpy(), A)  # Nothing was lost.
    names = dict(NAMES, x=t, i=0, j=2)
    exec(advised(r"Write (.*) to swap", str(error.value)), names)
    assert t.tolist() == A[[2, 1, 0]].tolist()
    exec(advised(r"to swap, (.*) to shuffle", str(error.value)), names)
    assert sorted(names["x"].tolist()) == A.tolist()
    x, i, j = square(), 0, 2
    x[i], x[j] = x[j].copy(), x[i].copy()
    assert x.tolist() == A[[2, 1, 0]].tolist()


def test_a_swap_with_a_name_between_is_refused():
    t = square()
    kept = t[0]
    t[0] = t[1]
    with pytest.raises(ValueError, match=r"take the rows with x\[i\]\.copy\(\)"):
        t[1] = kept


def test_rows_that_are_written_one_after_the_other_are_numpys():
    t, a = square(), A.copy()
    for x in (t, a):
        for i in range(2):
            x[i] = x[i + 1]
        x[1:] = x[:-1]
        row = x[0]
        x[1] = row
        x[2] = 7
        x[2] = x[1]
        x[0, 1], x[1, 0] = x[1, 0], x[0, 1]
    assert t.tolist() == a.tolist()
    numbers = Tensor(np.arange(20.0))
    random.Random(1).shuffle(numbers)
    assert sorted(numbers.tolist()) == list(range(20)) != numbers.tolist()


# ---- t.size(0), and PyTorch's own functions


def test_the_size_is_a_number_that_says_how_the_shape_is_asked_for():
    t = Tensor(np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"number here, as in NumPy") as error:
        t.size(0)
    whole, one = advised(r"Write (\S+) for t\.size\(\) and (\S+) for", str(error.value))
    assert eval(whole, dict(t=t)) == (2, 3) and eval(one, dict(t=t, axis=0)) == 2
    assert t.size == 6 and isinstance(t.size, int) and repr(t.size) == "6"
    assert type(t.size + 1) is int and (t / t.size).dtype == (t.size * t).dtype == np.float32
    assert np.full(t.size, t.size).dtype == np.int64 and t.reshape(t.size).shape == (6,)
    assert (t.sum() / t.size).item() == 1 and ta.rand(t.size).shape == (6,)
    row = Tensor(np.arange(4, dtype=np.float32), requires_grad=True)
    assert F.layer_norm(row, row.size).dtype == F.rms_norm(row, row.size).dtype == np.float32
    assert nn.LayerNorm(row.size)(row).dtype == nn.Linear(row.size, 2)(row).dtype == np.float32
    assert np.divide(row, row.size).dtype == (row.size - row).dtype == np.float32
    assert row[row.size - 1].item() == 3 and Tensor(row.size).dtype == np.float32
    with ta.plain():
        assert (row * row.size).dtype == F.layer_norm(row, row.size).dtype == np.float32


def test_a_function_of_pytorchs_says_what_it_is_called_here():
    torch = require("torch")
    t = square(True)
    for call, ours in (
        (lambda: torch.softmax(t, -1), F.softmax(t)),
        (lambda: torch.nn.functional.softmax(t, -1), F.softmax(t)),
        (lambda: torch.exp(t), np.exp(t)),
        (lambda: torch.matmul(torch.ones(3, 3), t), t @ t),
        (lambda: torch.mean(t), np.mean(t)),
    ):
        with pytest.raises(TypeError, match="takes PyTorch's tensors") as error:
            call()
        text = advised(r"Write (.*?)\. To leave", str(error.value))
        text = text if text.endswith(")") or " " in text else f"{text}(t)"
        assert np.array_equal(eval(text, dict(NAMES, t=t, other=t)).numpy(), ours.numpy())
    constant = eval(advised(r"give it (.*)\.$", str(error.value)), dict(torch=torch, t=t))
    assert torch.equal(constant, torch.tensor(A))
    with pytest.raises(TypeError, match="Operands are Tensors, NumPy arrays and numbers"):
        torch.ones(3, 3) + t


# ---- advice where an argument of NumPy's has no meaning

CALLS = {
    "out": (lambda t: np.exp(t, out=np.zeros((3, 3))), r"y = (np\.exp\()\.\.\.\)", np.exp(A)),
    "where": (lambda t: np.exp(t, where=A > 3), r"with (.*)\.$", np.where(A > 3, A, -A)),
    "order": (lambda t: np.ravel(t, order="F"), r"(transpose) first", A.ravel("F")),
    "mean": (lambda t: np.var(t, mean=0.0), r"(the mean) is computed again", A.var()),
    "copy": (lambda t: np.nan_to_num(t, copy=False), r"t = (.*)\.$", A),
    "retstep": (
        lambda t: np.linspace(t[0, 0], 6.0, 4, retstep=True),
        r"the step is (.*?), with",
        np.linspace(0, 6, 4, retstep=True)[1],
    ),
}


@pytest.mark.parametrize("name", sorted(ADVICE))
def test_the_advice_for_an_argument_that_is_refused_is_right(name):
    """Add to CALLS a call that is refused, where the advice stands in its text, and the result."""
    call, pattern, wanted = CALLS[name]
    t = square(True)
    with pytest.raises(TypeError, match=f"does not take {name}=") as error:
        call(t)
    text = {"np.exp(": "np.exp(t)", "transpose": "np.ravel(t.T)", "the mean": "np.var(t)"}
    found = advised(pattern, str(error.value))
    names = dict(NAMES, t=t, mask=A > 3, a=t, b=-t, start=t[0, 0], stop=6.0, num=4)
    y = eval(text.get(found, found), names)
    assert y.requires_grad
    np.testing.assert_allclose(y.numpy(), wanted)


def test_what_changes_no_result_is_taken():
    t = square(True)
    assert np.sort(t, kind="stable").requires_grad and np.quantile(t, 0.5, overwrite_input=True)
    assert np.linalg.pinv(t @ t.T + np.eye(3), hermitian=True).requires_grad
    assert np.broadcast_to(t, (2, 3, 3), subok=True).requires_grad and NO_EFFECT


# ---- names


@pytest.mark.parametrize(
    "module, name, says",
    [
        (ta, "onnx", r"It is not here; ta\.save"),
        (ta, "range", r"Write np\.arange\(start, end \+ step, step\)"),
        (ta, "solve", r"Write np\.linalg\.solve\(t, other\)"),
        (ta, "sparse", "It is not here"),
        (nn, "RReLU", r"Write np\.where"),
        (nn, "AlphaDropout", "It is not here; nn.Dropout"),
        (nn, "Softmax2d", r"Write F\.softmax\(t, axis=-3\)"),
    ],
)
def test_a_name_that_is_none_of_ours_is_not_taken_for_a_slip(module, name, says):
    with pytest.raises(AttributeError, match=says) as error:
        getattr(module, name)
    assert "Did you mean" not in str(error.value)
