"""A program that is called: current parameters, arrays and Tensors, and what it refuses."""

import copy
import pickle
import threading
from collections import deque

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim

pytestmark = pytest.mark.usefixtures("in_float64")
X = np.random.default_rng(0).standard_normal((4, 3))


class Tied(nn.Module):
    """One weight under two names, a bias, a buffer, and a module in a list."""

    def __init__(self):
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.list = nn.ModuleList([nn.Linear(3, 3), nn.LayerNorm(3)])
        self.register_buffer("shift", np.ones(3))

    def forward(self, x):
        for layer in (self.first, *self.list, self.last):
            x = layer(x)
        return x + self.shift


def loss(model):
    return lambda x: (model(x) ** 2).sum()


def assert_right(program, f, params):
    x = Tensor(X, requires_grad=True)
    y = f(x)
    names, leaves = zip(*params.items())
    expected = ta.grad(y, [x, *leaves], allow_unused=True)
    for argument in (X, x, Tensor(X), Tensor(X, requires_grad=True) * 1.0):
        value, gradients = program(argument)
        assert type(value) is np.float64 and np.isclose(value, y.item(), rtol=1e-12)
        for name, g in zip(("x", *names), expected, strict=True):
            assert type(gradients[name]) is np.ndarray
            np.testing.assert_allclose(gradients[name], g.numpy(), rtol=1e-9, atol=1e-9)


def new_parameter(shape, dtype=np.float64):
    return nn.Parameter(np.random.default_rng(1).standard_normal(shape).astype(dtype))


def other_values(model):
    model.first.weight.data = model.first.weight.numpy() * 2


def in_place(model):
    model.first.weight.data += 1.0


def a_step(model):
    loss(model)(Tensor(X)).backward()
    optim.AdamW(model.parameters(), lr=0.1).step()


def loaded(model):
    model.load_state_dict(
        {k: v.numpy() * 2 for k, v in model.state_dict().items() if k != "shift"}, strict=False
    )


def another_parameter(model):
    model.list[0].weight = new_parameter((3, 3))


def another_module(model):
    model.list[1] = nn.LayerNorm(3)
    model.list[1].weight.data *= 3.0


def another_tied(model):
    model.first.weight = model.last.weight = new_parameter((3, 3))


RIGHT = (other_values, in_place, a_step, loaded, another_parameter, another_module, another_tied)


@pytest.mark.parametrize("change", RIGHT)
def test_a_program_reads_the_parameters_of_now(change):
    model = Tied()
    program = ta.source(loss(model), X, params=model)
    change(model)
    assert_right(program, loss(model), dict(model.named_parameters()))


def resized(model):
    model.list[0] = nn.Linear(3, 5)


def of_another_dtype(model):
    model.astype(np.float32)


def one_of_another_dtype(model):
    model.list[0].bias = new_parameter(3, np.float32)


def untied(model):
    model.last.weight = new_parameter((3, 3))


def tied(model):
    model.list[0].weight = model.first.weight


def removed(model):
    model.list[0].bias = None


def deleted(model):
    del model.list[0].bias


def frozen(model):
    model.first.bias.requires_grad = False


OF_OTHERS = (resized, of_another_dtype, one_of_another_dtype)
STALE = (*OF_OTHERS, untied, tied, removed, deleted, frozen)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("change", STALE)
def test_a_program_refuses_other_parameters(change, backward):
    model = Tied()
    program = ta.source(loss(model), X, params=model, backward=backward)
    change(model)
    with pytest.raises((ValueError, AttributeError), match="was written when|no attribute 'bias'"):
        program(X)


def test_parameters_in_a_mapping():
    params = {"w": Tensor(X.T.copy(), requires_grad=True), "again": None}
    params["again"] = params["w"]
    f = lambda x: (x @ params["w"] * np.sum(params["again"])).sum()
    program = ta.source(f, X, params=params)
    params["w"] = params["again"] = Tensor(X.T * 2, requires_grad=True)
    assert np.isclose(program(X)[0], f(Tensor(X)).item())
    params["again"] = Tensor(X.T * 2, requires_grad=True)
    with pytest.raises(ValueError, match="'again'.*shared or not"):
        program(X)
    del params["again"]
    with pytest.raises(KeyError):
        program(X)


def test_arguments_that_are_no_arrays_are_those_of_the_text():
    f = lambda x, n, how: (x * n).sum() if how == "sum" else (x * n).mean()
    program = ta.source(f, X, 3.0, "sum")
    assert program(X, 3.0, "sum")[0] == (X * 3).sum()
    for wrong in ((X, 2.0, "sum"), (X, 3.0, "mean"), (X, 3.0), (X, X, "sum"), (3.0, 3.0, "sum")):
        with pytest.raises(
            ValueError, match="forward_backward takes 3 arguments, x .4, 3. float64"
        ):
            program(*wrong)
    with pytest.raises(ValueError, match="x .4, 3. float64, n 3.0, how '?sum"):
        program(X, 2.0, "sum")


def test_arguments_that_can_change():
    """Lists and dicts are compared by what was in them; arrays in them are refused."""
    f = lambda x, settings: (x * settings["by"][0]).sum()
    settings = {"by": [2.0, 1]}
    program = ta.source(f, X, settings)
    assert program(X, {"by": [2.0, 1]})[0] == (X * 2).sum()
    settings["by"][0] = 3.0
    with pytest.raises(ValueError, match="takes 2 arguments"):
        program(X, settings)
    for array in (X, Tensor(X), np.float64(2)):
        with pytest.raises(TypeError, match="'settings' is a dict with arrays in it"):
            ta.source(f, X, {"by": [array, 1]})


class Steps(list):
    """A subclass of list."""


@pytest.mark.parametrize(
    "given, other",
    [
        ((1,), (True,)),
        ([1, 2], [1.0, 2.0]),
        ({"k": 0.0}, {"k": -0.0}),
        (0.0, -0.0),
        ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}),
    ],
)
def test_values_that_python_calls_equal(given, other):
    program = ta.source(lambda x, value: x.sum(), X, given)
    program(X, given)
    with pytest.raises(ValueError, match="takes 2 arguments"):
        program(X, other)


@pytest.mark.parametrize("kind", [list, set, deque, bytearray, Steps])
def test_a_container_that_has_changed_is_another_argument(kind):
    container = kind([1, 2])
    program = ta.source(lambda x, container: (x * len(container)).sum(), X, container)
    assert program(X, kind([1, 2]))[0] == (X * 2).sum()
    container.pop()
    with pytest.raises(ValueError, match="takes 2 arguments"):
        program(X, container)


def test_names_that_collide():
    """Each gradient has the name that the user gave; a name for two of them is refused."""
    params = {n: new_parameter(3) for n in ("a.b", "a_b", "a_b_", "0", "layer0", "x²", "class")}
    f = lambda x: sum((x * p).sum() * i for i, p in enumerate(params.values(), 1))
    assert_right(ta.source(f, X, params=params), f, params)
    with pytest.raises(ValueError, match="'a_b' is a parameter and an argument"):
        ta.source(lambda a_b: (a_b * params["a_b"]).sum(), X, params=params)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_reads_its_own_parameters(copied):
    model = Tied()
    program = ta.source(loss(model), X, params=model)
    other, its_program = copied((model, program))
    in_place(other)
    assert_right(program, loss(model), dict(model.named_parameters()))
    assert_right(its_program, loss(other), dict(other.named_parameters()))


def test_the_arrays_of_a_program_are_read_only():
    """Otherwise a write to a parameter's memory would not be noticed."""
    w, table = Tensor(np.ones(3), requires_grad=True), np.arange(12.0).reshape(4, 3) ** 2
    program = ta.source(lambda x: (x * w * table).sum(), X, params={"w": w})
    arrays = program.arrays()
    assert arrays.keys() == {"w", "table"}
    for array in arrays.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    w.data += 1  # the arrays are those of now
    np.testing.assert_array_equal(arrays["w"], w.numpy())
    np.testing.assert_array_equal(program.function(X, **arrays)[0], program(X)[0])


def test_an_optimiser_steps_a_program():
    """The same losses as with backward(), to the last digits."""

    def train(step):
        ta.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        draw, losses = np.random.default_rng(0), []
        f = lambda x, y: F.cross_entropy(model(x), y)
        for _ in range(12):
            batch = draw.standard_normal((8, 6)), draw.integers(0, 3, 8)
            losses.append(step(f, model, batch))
            optimizer.step()
        return losses

    programs = []

    def written(f, model, batch):
        if not programs:
            programs.append(ta.source(f, *batch, params=model))
        value, gradients = programs[0](*batch)
        for name, p in model.named_parameters():
            p.grad = gradients[name]
        return value

    def eager(f, model, batch):
        model.zero_grad()
        y = f(*batch)
        y.backward()
        return y.item()

    np.testing.assert_allclose(train(written), train(eager), rtol=1e-10)


def test_two_threads_call_one_program():
    model, found = Tied(), []
    program = ta.source(loss(model), X, params=model)
    call = lambda k: found.append(program(X * k)[0] - loss(model)(Tensor(X * k)).item())
    threads = [threading.Thread(target=call, args=(k,)) for k in range(1, 9)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(found) == 8 and np.allclose(found, 0)


def test_gradients_through_einsum_keep_float32():
    for f in (
        lambda x: np.einsum("b,b->", x, x),
        lambda x: np.einsum("b,->b", x, x.sum()).sum(),
        lambda x: np.einsum("b,b->", x, x) * 0.5,
        lambda x: np.einsum(",->", x.sum(), np.einsum("b->", x)),
    ):
        x = np.arange(3, dtype=np.float32)
        value, gradients = ta.source(f, x)(x)
        t = Tensor(x, requires_grad=True)
        y = f(t)
        assert value.dtype == gradients["x"].dtype == np.float32 and value == y.item()
        np.testing.assert_allclose(gradients["x"], ta.grad(y, [t])[0].numpy(), rtol=1e-6)


ALL, CAUSAL = np.ones((3, 3), bool), np.tri(3, dtype=bool)
SEQUENCE = np.random.default_rng(1).standard_normal((2, 3, 4))
MASKED = {  # a function of x and a mask, and masks that make it warn or go another way
    "function": (
        lambda x, mask: F.scaled_dot_product_attention(x, x, x, mask),
        [ALL, CAUSAL, CAUSAL.T, ~ALL],
    ),
    "added to the scores": (
        lambda x, mask: F.scaled_dot_product_attention(x, x, x, mask),
        [Tensor(mask * 1.0) for mask in (ALL, CAUSAL, ~ALL, ALL * 0.5)],
    ),
    "attn_mask": (
        lambda x, mask: ATTENTION(x, x, x, attn_mask=mask)[0],
        [~ALL, ~CAUSAL, CAUSAL, CAUSAL.T],
    ),
    "key_padding_mask": (
        lambda x, mask: ATTENTION(x, x, x, key_padding_mask=mask)[0],
        [ALL[:2] & False, np.array([[True, False, False]] * 2), ALL[:2]],
    ),
    "grouped": (
        lambda x, mask: GROUPED(x, key_padding_mask=mask),
        [ALL[:2] & False, np.array([[False] * 3, [True] * 3])],
    ),
}
ATTENTION, GROUPED = (
    layer.astype(np.float64).requires_grad_(False)
    for layer in (nn.MultiheadAttention(4, 2, batch_first=True), nn.GroupedQueryAttention(4, 2, 1))
)


@pytest.mark.filterwarnings("ignore:this ")
@pytest.mark.parametrize("name", MASKED)
def test_a_program_takes_all_masks(name):
    """What the package reads only to warn of it says nothing about the program."""
    f, masks = MASKED[name]
    for traced in masks:
        program = ta.source(f, SEQUENCE, traced, backward=False)
        for mask in masks:
            np.testing.assert_allclose(program(SEQUENCE, mask), f(Tensor(SEQUENCE), mask).numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("constant", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [0.0, 0.0]])
def test_a_program_keeps_the_sign_of_zeros(constant, dtype):
    constant, x = np.array(constant, dtype), -np.ones(2, dtype)
    for f in (
        lambda x: np.arctan2(constant, x),
        lambda x: np.copysign(1, -(x - x * 1.0)),
        lambda x: np.arctan2(-(x * constant) - x * 0, x),
    ):
        np.testing.assert_array_equal(ta.source(f, x, backward=False)(x), f(x))


def test_what_is_no_number_equals_itself():
    f = lambda x, k: (x * (k["a"][0] if isinstance(k, dict) else k)).sum()
    for make in (lambda: float("nan"), lambda: {"a": [float("nan")]}):
        assert np.isnan(ta.source(f, X, make())(X, make())[0])
    with pytest.raises(ValueError, match="k nan, got 2, x .*, k 1.0"):
        ta.source(f, X, float("nan"))(X, 1.0)


def test_the_order_of_bytes():
    other, f = X.astype(">f8"), lambda x: (x * x).sum()
    assert ta.source(f, other)(other)[0] == f(X)
    with pytest.raises(ValueError, match=r"takes 1 arguments, x .4, 3. float64, .* >f8"):
        ta.source(f, X)(other)
