"""vjp, jvp, value_and_grad, jacobian, hessian, hvp and checkpoint: against PyTorch, closed forms and each other."""

import functools
import gc
import math
import sys
import threading
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, op
from tinygrad_attn.check import gradgradcheck
from tinygrad_attn.transforms import checkpoint, hessian, hvp, jacobian, jvp, value_and_grad, vjp
from tinygrad_attn.tree import tree_leaves

checkpointing = sys.modules["tinygrad_attn.transforms.checkpointing"]

rng = np.random.default_rng(0)
X, Y, V, W = (rng.standard_normal(s) for s in ((3,), (2, 3), (3,), (3, 4)))


def f(x):
    return np.tanh(x @ W) * np.sum(x * x)


def scalar(x):
    return np.sum(np.exp(x) * np.sin(x)) + np.prod(x)


def torchs(torch, name):
    t = torch.tensor
    return {
        "f": lambda x: torch.tanh(x @ t(W)) * (x * x).sum(),
        "scalar": lambda x: (torch.exp(x) * torch.sin(x)).sum() + x.prod(),
    }[name]


def values(x):
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def assert_close(a, b, **tolerance):
    np.testing.assert_allclose(values(a), values(b), **({"rtol": 1e-10, "atol": 1e-12} | tolerance))


def test_everything_agrees_with_torch():
    torch = require("torch")
    from torch.autograd import functional as their

    x, v, g = torch.tensor(X), torch.tensor(V), rng.standard_normal(4)
    y, pullback = vjp(f, X)
    assert_close(y, torchs(torch, "f")(x))
    assert_close(pullback(g)[0], their.vjp(torchs(torch, "f"), x, torch.tensor(g))[1])
    assert_close(
        pullback(2 * g)[0], 2 * their.vjp(torchs(torch, "f"), x, torch.tensor(g))[1]
    )  # it may be called again
    assert_close(jvp(f, X, V)[1], their.jvp(torchs(torch, "f"), x, v)[1])
    assert_close(jacobian(f, X), their.jacobian(torchs(torch, "f"), x))
    assert_close(hessian(scalar, X), their.hessian(torchs(torch, "scalar"), x))
    assert_close(hvp(scalar, X, V), their.hvp(torchs(torch, "scalar"), x, v)[1])
    value, slope = value_and_grad(scalar)(X)
    assert_close(value, torchs(torch, "scalar")(x))
    assert_close(slope, their.jacobian(torchs(torch, "scalar"), x))


INNER = {
    "vjp": lambda x: vjp(scalar, x)[1](1.0)[0],
    "jvp": lambda x: jvp(scalar, x, V[:2])[1],
    "value_and_grad": lambda x: value_and_grad(scalar)(x)[1],
    "jacobian": lambda x: jacobian(scalar, x),
    "hessian": lambda x: hessian(scalar, x),
    "hvp": lambda x: hvp(scalar, x, V[:2]),
}


@functools.cache
def differentiated_alone(name):
    """The jacobian of one transform, and the jacobian of that."""
    return jacobian(INNER[name], X[:2]), jacobian(lambda x: jacobian(INNER[name], x), X[:2])


@pytest.mark.parametrize("second", INNER)
@pytest.mark.parametrize("first", INNER)
def test_a_transform_inside_another_is_recorded_however_many_came_before_it(first, second):
    """What the first has left behind must not tell the second that nobody differentiates it."""
    once, twice = differentiated_alone(second)
    both = lambda x: (INNER[first](x), INNER[second](x))[1]
    assert_close(jacobian(both, X[:2]), once)
    assert_close(jacobian(lambda x: jacobian(both, x), X[:2]), twice)
    assert np.abs(once).max() > 0


@pytest.mark.parametrize("name", ["value_and_grad", "jacobian", "hessian", "hvp"])
def test_a_transform_that_is_done_with_the_graph_has_let_go_of_it(name):
    """Whoever keeps a result from inside the function does not keep all that it was made of."""
    kept = []

    def noted(x):
        kept.append(np.exp(np.sin(x)))
        return np.sum(kept[-1])

    function = (lambda x: noted(x) * np.ones(2)) if name == "jacobian" else noted
    {
        "value_and_grad": lambda: value_and_grad(function)(X),
        "jacobian": lambda: jacobian(function, X),
        "hessian": lambda: hessian(function, X),
        "hvp": lambda: hvp(function, X, V),
    }[name]()
    with pytest.raises(RuntimeError, match="released"):
        kept[-1].sum().backward()


def test_several_inputs_and_argnums():
    product = lambda a, b, power=1: np.sum((a * b) ** power)
    y, pullback = vjp(lambda a, b: a * b, X, V)
    assert_close(pullback(np.ones(3))[0], V)
    assert_close(pullback(np.ones(3))[1], X)
    assert_close(jvp(lambda a, b: a * b, (X, V), (V, X))[1], V * V + X * X)
    value, (da, db) = value_and_grad(product, argnums=(0, 1))(X, V, power=2)
    assert_close(da, 2 * X * V * V)
    assert_close(db, 2 * X * X * V)
    value, slope = value_and_grad(product, argnums=1)(X, V)
    assert_close(slope, X)
    assert all(isinstance(x, (np.ndarray, np.generic)) for x in (value, da, db, slope))


def test_an_argument_that_is_listed_twice_has_the_same_gradient_twice():
    for argnums in ((0, 0), (0, -2)):
        value, found = value_and_grad(lambda a, b: np.sum(a * a * b), argnums)(X, V)
        assert_close(value, np.sum(X * X * V))
        for g in found:
            assert_close(g, 2 * X * V)


def test_inputs_may_be_tensors_arrays_and_numbers():
    assert value_and_grad(lambda x: x**3)(2.0)[1].item() == 12.0
    assert (
        value_and_grad(lambda x: x**3)(2.0)[0].dtype == np.float32
    )  # a Python number takes the default dtype
    t = Tensor(X, requires_grad=True)
    value, slope = value_and_grad(lambda x: np.sum(x**3))(t)
    assert_close(slope, 3 * X**2)
    assert t.grad is None and not value.requires_grad
    assert_close(value_and_grad(lambda x: np.sum(x * t))(X)[1], X * 0 + t.numpy())
    assert_close(vjp(np.square, X)[1]([1, 0, 2])[0], 2 * X * [1, 0, 2])
    with pytest.raises(TypeError, match="only floating-point tensors can require a gradient"):
        value_and_grad(lambda x: x * 1.0)(np.array(3))


KINDS = {  # each transform, given x, and how many arrays or Tensors it returns
    "vjp": lambda x: [vjp(f, x)[0], *vjp(f, x)[1](np.ones(4))],
    "jvp": lambda x: jvp(f, x, V),
    "value_and_grad": lambda x: value_and_grad(scalar)(x),
    "jacobian": lambda x: [jacobian(f, x)],
    "hessian": lambda x: [hessian(scalar, x)],
    "hvp": lambda x: [hvp(scalar, x, V)],
}


@pytest.mark.parametrize("name", KINDS)
def test_arrays_in_arrays_out_and_tensors_in_tensors_out(name):
    arrays, tensors = KINDS[name](X), KINDS[name](Tensor(X))
    assert set(KINDS) == set(ta.transforms.__all__) - {"checkpoint"}
    for array, tensor in zip(arrays, tensors, strict=True):
        assert isinstance(array, (np.ndarray, np.float64)) and array.dtype == np.float64
        assert isinstance(tensor, Tensor) and not tensor.requires_grad
        assert_close(tensor, array, rtol=0, atol=0)
    for inside in (lambda: KINDS[name](Tensor(X, requires_grad=True)), lambda: KINDS[name](X)):
        found = []
        jvp(lambda x: (found.extend(inside()), x)[1], X, V)
        assert all(isinstance(result, Tensor) for result in found)  # it may be differentiated again


def test_each_gradient_is_of_the_kind_of_its_own_argument():
    product = lambda a, b: np.sum(a * b)
    value, (da, db) = value_and_grad(product, (0, 1))(X, Tensor(V))
    assert isinstance(value, Tensor) and isinstance(da, np.ndarray) and isinstance(db, Tensor)
    value, da = value_and_grad(product)(X, Tensor(V))  # what is not differentiated does not count
    assert isinstance(value, np.float64) and isinstance(da, np.ndarray)
    value, da = value_and_grad(product, create_graph=True)(X, V)
    assert isinstance(value, Tensor) and isinstance(da, Tensor)


def test_an_array_that_a_pullback_needs_is_watched():
    y, pullback = vjp(np.exp, X)
    y += 1
    with pytest.raises(ValueError, match="changed in place"):
        pullback(np.ones(3))


@pytest.mark.parametrize(
    "method", ["BFGS", "CG", "L-BFGS-B", "TNC", "SLSQP", "Newton-CG", "trust-exact"]
)
def test_scipy_minimises_with_our_derivatives(method):
    optimize = require("scipy.optimize")
    loss = lambda x: np.sum((x - 3) ** 2 * (1 + x**2))
    settings = (
        {"hess": lambda x: hessian(loss, x)} if method in ("Newton-CG", "trust-exact") else {}
    )
    found = optimize.minimize(
        value_and_grad(loss), np.full(3, 2.0), jac=True, method=method, **settings
    )
    assert type(found.x) is np.ndarray and np.allclose(found.x, 3, atol=1e-3)


def test_scipy_solves_with_our_jacobian():
    optimize = require("scipy.optimize")
    residuals = lambda x: np.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])
    found = optimize.least_squares(
        lambda x: residuals(x), np.array([-1.0, 2.0]), jac=lambda x: jacobian(residuals, x)
    )
    assert np.allclose(found.x, 1)


def test_a_function_that_ignores_its_input_has_zero_derivatives():
    constant = lambda x: Tensor(np.ones(2))
    assert_close(vjp(constant, X)[1](np.ones(2))[0], np.zeros(3))
    assert_close(jvp(constant, X, V)[1], np.zeros(2))
    assert_close(jacobian(constant, X), np.zeros((2, 3)))
    assert_close(jacobian(lambda x: x[:0], X), np.zeros((0, 3)))
    assert_close(hvp(lambda x: np.sum(x), X, V), np.zeros(3))
    assert_close(hessian(lambda x: np.sum(x), X), np.zeros((3, 3)))


@pytest.mark.parametrize("several", [[Tensor(X), Tensor(V)], (Tensor(X), 1.0), {"w": X}])
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: value_and_grad(f)(x),
        lambda f, x: vjp(f, x),
        lambda f, x: jvp(f, [x], [x]),
        jacobian,
        hessian,
        lambda f, x: hvp(f, x, x),
    ],
)
def test_several_inputs_at_once_are_told_to_come_one_by_one(call, several):
    with pytest.raises(
        TypeError,
        match=r"an argument must be one Tensor.*got .*argnums=\(0, 1\).*vjp\(f, \*xs\).*ta\.grad\(loss, xs\)",
    ):
        call(lambda x: 1.0, several)


@pytest.mark.parametrize(
    "one, kind, told",
    [
        ([[1.0, 2.0], [3.0]], ValueError, "the rows of this list differ in length"),
        ([True, False], TypeError, r"only floating-point tensors .*astype\(np.float32\)"),
        (("1", "2"), TypeError, r"hold only real numbers or booleans; got \('1', '2'\)"),
        ([1.0, None], TypeError, "hold only real numbers or booleans"),
    ],
)
def test_a_list_of_numbers_is_one_array_and_told_what_is_wrong_with_it(one, kind, told):
    """Who forgot a number in a row was told to pass several tensors one by one."""
    with pytest.raises(kind, match=told):
        value_and_grad(lambda x: x.sum())(one)
    assert np.array_equal(value_and_grad(lambda x: (x * x).sum())([1.0, 2.0])[1], [2, 4])


@pytest.mark.parametrize(
    "call",
    [
        lambda v: jvp(np.sin, 1.0, v),
        lambda v: hvp(np.sin, 1.0, v),
        lambda v: vjp(np.sin, 1.0)[1](v),
        lambda v: vjp(lambda x: Tensor(2.0), X)[1](v),
    ],
)
@pytest.mark.parametrize("v", ["a", 1j, [None]])
def test_a_direction_is_of_real_numbers(call, v):
    with pytest.raises(TypeError, match="a Tensor can hold only real numbers or booleans; got"):
        call(v)


@pytest.mark.parametrize(
    "call",
    [
        lambda: value_and_grad(math.sin)(0.5),
        lambda: hessian(math.sin, 0.5),
        lambda: jvp(math.sin, 0.5, 1.0),
        lambda: vjp(math.sin, 0.5),
        lambda: hvp(math.sin, 0.5, 1.0),
        lambda: jacobian(lambda x: x.numpy(), X),
        lambda: jacobian(lambda x: x.numpy() * 0 + x.numpy()[0], X),
        lambda: value_and_grad(lambda a, b: float(b) * 2, argnums=1)(X, -1.0),
        lambda: value_and_grad(math.sqrt)(0.0),
        lambda: value_and_grad(math.asin)(1.0),
        lambda: value_and_grad(lambda x: round(np.sum(x).item()))(np.array([1.0, 2.0])),
    ],
)
def test_a_result_that_left_the_graph_is_no_constant(call):
    with pytest.raises(
        TypeError, match="must return one Tensor, but it returned .* Compute with tensor methods"
    ):
        call()


@pytest.mark.parametrize("argnums", [X, 1.0, (0, X), "x"])
def test_arguments_in_place_of_argnums_are_refused(argnums):
    with pytest.raises(TypeError, match=r"argnums must be .*value_and_grad\(f\)\(x\); got"):
        value_and_grad(scalar, argnums)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: jvp(np.multiply, [X, X], [V]), "shorter than argument 1"),
        (lambda: jvp(f, X, V[:2]), "a tangent must have its input's shape"),
        (lambda: hvp(scalar, X, V[:2]), "v must have x's shape"),
        (lambda: hvp(f, X, V), "a single number"),
        (lambda: hessian(f, X), "a single number"),
    ],
)
def test_wrong_shapes_are_value_errors_and_the_docstrings_say_so(call, words):
    with pytest.raises(ValueError, match=words):
        call()
    assert all("ValueError" in t.__doc__ for t in (jvp, hvp, hessian, value_and_grad))


def test_third_derivative_has_its_closed_form():
    slope = lambda f: lambda x: value_and_grad(f)(x)[1]
    x = np.array(0.7)
    assert_close(slope(slope(slope(np.sin)))(x), -np.cos(x))
    assert_close(slope(slope(slope(lambda x: x**5)))(x), 60 * x**2)
    assert_close(slope(slope(slope(lambda x: np.exp(2 * x))))(x), 8 * np.exp(2 * x))
    assert_close(
        jacobian(lambda x: jacobian(lambda x: jacobian(np.tanh, x), x), x),
        -2 * (1 - np.tanh(x) ** 2) * (1 - 3 * np.tanh(x) ** 2),
    )


def test_third_order_tensor_of_softmax_has_its_closed_form():
    """d^3 logsumexp: the third cumulants of a categorical distribution."""
    p = np.exp(X) / np.exp(X).sum()
    eye = np.eye(3)
    centred = eye - p  # row k: e_k - p
    cumulants = np.einsum("k,ka,kb,kc->abc", p, centred, centred, centred)
    assert_close(jacobian(lambda x: hessian(lambda x: F.logsumexp(x, -1), x), X), cumulants)


def test_third_order_through_attention_and_layer_norm():
    q, k, v = (rng.standard_normal((1, 2, 3, 2)) for _ in range(3))
    direction = [rng.standard_normal(a.shape) for a in (q, k, v)]

    def slope(function, inputs):
        """The gradient of the curvature along a direction: a third derivative."""

        def along(*xs):
            tangent = jvp(
                lambda *x: jvp(lambda *x: np.sum(np.sin(function(*x))), x, direction)[1],
                xs,
                direction,
            )[1]
            return tangent * 1.0

        return value_and_grad(along, argnums=tuple(range(len(inputs))))(*inputs)[1]

    def written_out(q, k, v):
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(2.0)
        weights = np.exp(scores)
        return weights / np.sum(weights, axis=-1, keepdims=True) @ v

    for mine, reference in zip(
        slope(F.scaled_dot_product_attention, (q, k, v)), slope(written_out, (q, k, v)), strict=True
    ):
        assert_close(mine, reference, rtol=1e-8)
    x, w, b = rng.standard_normal((2, 4)), rng.standard_normal(4), rng.standard_normal(4)
    direction = [rng.standard_normal(a.shape) for a in (x, w, b)]
    normalized = lambda x, w, b: (
        (x - np.mean(x, -1, keepdims=True)) / np.sqrt(np.var(x, -1, keepdims=True) + 1e-5) * w + b
    )
    for mine, reference in zip(
        slope(lambda x, w, b: F.layer_norm(x, 4, w, b), (x, w, b)),
        slope(normalized, (x, w, b)),
        strict=True,
    ):
        assert_close(mine, reference, rtol=1e-8)


def test_transforms_can_be_nested_and_differentiated():
    gradgradcheck(lambda x: jvp(f, x, V, create_graph=True)[1], [X])
    gradgradcheck(lambda x, g: vjp(f, x, create_graph=True)[1](g)[0], [X, np.ones(4)])
    gradgradcheck(lambda x, v: hvp(scalar, x, v, create_graph=True), [X[:2], V[:2]])
    gradgradcheck(lambda x: hessian(scalar, x, create_graph=True), [X[:2]])
    assert_close(jacobian(lambda x: value_and_grad(scalar)(x)[1], X), hessian(scalar, X))
    assert_close(jvp(lambda x: value_and_grad(scalar)(x)[1], X, V)[1], hvp(scalar, X, V))
    inner = lambda x: value_and_grad(lambda y: x * y * y)(3.0)[
        1
    ]  # a variable of the outer function inside: 6 x
    assert value_and_grad(lambda x: x * inner(x))(2.0)[1].item() == 24.0


def test_a_pullback_is_differentiated_by_g_alone():
    """It was made outside, where nothing was to be differentiated again."""
    jac = jacobian(f, X)
    _, pullback = vjp(f, X)
    g = np.ones(4)
    assert_close(jacobian(lambda g: pullback(g)[0], g), jac.T)
    assert_close(jvp(lambda g: pullback(g)[0], g, g)[1], jac.T @ g)
    assert_close(hessian(lambda g: np.sum(pullback(g)[0] ** 2), g), 2 * jac @ jac.T)
    assert not pullback(Tensor(g, requires_grad=True))[0].requires_grad
    _, pullback = vjp(f, X, create_graph=False)
    assert_close(jacobian(lambda g: pullback(g)[0], g), np.zeros((3, 4)))


def test_a_pullback_of_what_has_one_derivative_only_takes_constants_anywhere():
    once = op(lambda x: np.sinh(x))
    once.vjp(
        lambda g, y, x: g * np.array([math.cosh(i) for i in np.asarray(x)])
    )  # no rule that can be differentiated
    _, pullback = vjp(once, X)
    assert_close(value_and_grad(lambda w: np.sum(pullback(V)[0] * w))(X)[1], V * np.cosh(X))
    with pytest.raises(TypeError, match="would lose"):
        value_and_grad(lambda w: np.sum(pullback(w)[0]))(X)


def test_transforms_work_under_no_grad_and_leave_it_as_it_was():
    with ta.no_grad():
        assert_close(value_and_grad(scalar)(X)[1], jacobian(scalar, X))
        assert_close(hvp(scalar, X, V), hessian(scalar, X) @ V)
        assert not (Tensor(X, requires_grad=True) * 2).requires_grad
        x = Tensor(X, requires_grad=True)
        assert_close(value_and_grad(scalar, create_graph=True)(x)[1], jacobian(scalar, X))


# ---- checkpoint


def both_ways(function, inputs, parameters=(), order=1):
    """Gradients with and without checkpoint, as arrays."""
    found = []
    for run in (function, lambda *xs: checkpoint(function, *xs)):
        ta.manual_seed(0)
        xs = [Tensor(x, requires_grad=True) for x in inputs]
        y = run(*xs)
        grads = ta.grad(np.sum(y * y), [*xs, *parameters], create_graph=order > 1)
        if order > 1:
            grads = ta.grad(sum(np.sum(g * g) for g in grads), [*xs, *parameters])
        found.append(
            [y.detach().numpy(), *(g.detach().numpy() for g in grads), np.array(ta.rand(1).item())]
        )
    return found


@pytest.mark.parametrize("order", [1, 2])
def test_checkpoint_gives_the_same_gradients(order):
    layer = nn.Linear(3, 4).astype(np.float64)
    weight = Tensor(W, requires_grad=True) * 1.0  # not a leaf: its gradient goes on to what made it

    def block(x):
        hidden = F.dropout(np.tanh(layer(x)), 0.5, True)
        return hidden * (x @ weight)

    plain, again = both_ways(block, [Y], [*layer.parameters(), weight], order)
    for a, b in zip(
        plain, again, strict=True
    ):  # the last one: the random numbers drawn afterwards are the same too
        np.testing.assert_allclose(
            a, b, rtol=0 if order == 1 else 1e-12
        )  # the second order adds in another sequence


def test_checkpoint_of_a_whole_layer_with_dropout():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    inputs = rng.standard_normal((2, 5, 8)).astype(np.float32)
    plain, again = both_ways(layer, [inputs], list(layer.parameters()))
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_array_equal(a, b)
    with ta.record_attention() as seen:
        checkpoint(layer, Tensor(inputs, requires_grad=True)).sum().backward()
    assert [len(calls) for calls in seen.values()] == [1]  # what is run again has been seen before


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: ta.vjp(f, x)[0],
        lambda f, x: ta.jvp(f, x, X)[0],
        lambda f, x: ta.value_and_grad(f)(x)[0],
    ],
    ids=["vjp", "jvp", "value_and_grad"],
)
def test_a_checkpoint_finds_what_a_transform_in_it_only_hands_on(transform):
    """At the first run the transform's result is cut from its graph, and no op takes the tensor in."""

    def gradients(run):
        total = lambda x, outside: np.sum(
            np.sin(run(lambda x: x * transform(lambda _: outside, x), x))
        )
        return ta.value_and_grad(total, (0, 1))(X, 2.0)[1]

    for plain, again in zip(gradients(lambda f, x: f(x)), gradients(checkpoint), strict=True):
        assert np.any(values(plain))
        np.testing.assert_array_equal(values(again), values(plain))


def test_a_recorded_transform_may_use_what_was_released_before():
    """What is newer than the released part cannot be among its inputs."""
    x, w = Tensor(np.arange(3.0), requires_grad=True), Tensor(np.ones(3), requires_grad=True)
    c = w * 2
    c.sum().backward()
    f, twos = lambda x: x * x * c, np.full(3, 2.0)
    slopes = (
        ta.jvp(f, x, twos, create_graph=True)[1],
        ta.vjp(f, x, create_graph=True)[1](twos)[0],
        2 * ta.value_and_grad(lambda x: f(x).sum(), create_graph=True)(x)[1],
    )
    for slope in slopes:
        np.testing.assert_array_equal(slope.numpy(), 8 * x.numpy())


def test_checkpoints_nest():
    inner = lambda x: np.tanh(x @ W) @ W.T
    nested = lambda x: inner(checkpoint(inner, checkpoint(inner, x)))
    for order in (1, 2):
        plain, again = both_ways(nested, [Y], order=order)
        reference, _ = both_ways(lambda x: inner(inner(inner(x))), [Y], order=order)
        for a, b, c in zip(plain, again, reference, strict=True):
            np.testing.assert_allclose(a, b, rtol=0 if order == 1 else 1e-12)
            np.testing.assert_allclose(a, c, rtol=0 if order == 1 else 1e-12)


def test_checkpoint_details():
    w = Tensor(W, requires_grad=True)
    checkpoint(lambda x: w, Tensor(X)).sum().backward()  # what it closes over, unchanged
    assert_close(w.grad, np.ones((3, 4)))
    x = Tensor(X, requires_grad=True)
    y = checkpoint(
        lambda a, b, scale: a * b * x * scale, x, x, scale=2.0
    )  # one tensor three times: twice given and once closed over
    assert_close(ta.grad(y.sum(), x)[0], 6 * X**2)
    assert not checkpoint(lambda a: a * 2, Tensor(X)).requires_grad
    mixed = checkpoint(lambda a, mask, n: np.where(mask, a, 0) * n, x, X > 0, 3)
    assert_close(ta.grad(mixed.sum(), x)[0], 3.0 * (X > 0))
    with ta.no_grad():
        assert not checkpoint(lambda a: a * 2, x).requires_grad
    y = checkpoint(lambda a: a.detach() * a, x)
    assert_close(ta.grad(y.sum(), x)[0], X)
    gradgradcheck(
        lambda a: checkpoint(lambda b: np.tanh(b @ W) * np.sum(b @ w), a), [X], params=[w]
    )


def test_a_checkpoint_of_what_needs_no_gradient_is_a_tensor_too():
    frozen, x = nn.Linear(3, 2).requires_grad_(False), np.ones((1, 3), np.float32)
    y = checkpoint(frozen, x)
    assert isinstance(y, Tensor) and not y.requires_grad
    assert np.array_equal(y.numpy(), frozen(x).numpy())


def test_a_transform_in_a_checkpoint_in_a_transform_is_recorded_as_it_is_without_the_checkpoint():
    inner = lambda x: np.sum(value_and_grad(lambda y: np.sum(np.sin(y) * y))(x)[1] * x)
    kept = lambda x: checkpoint(inner, x)
    expected = (2 * np.cos(X) - X * np.sin(X)) * X + np.sin(X) + X * np.cos(X)
    for f in (inner, kept, lambda x: checkpoint(kept, x)):
        np.testing.assert_allclose(value_and_grad(f)(X)[1], expected)
        np.testing.assert_allclose(jvp(f, X, X)[1], np.sum(expected * X))
        np.testing.assert_allclose(vjp(f, X)[1](2.0)[0], 2 * expected)
        np.testing.assert_allclose(hvp(f, X, X), hvp(inner, X, X))


def test_a_checkpoint_sees_what_a_transform_inside_is_taken_at():
    z = Tensor(X, requires_grad=True)
    slope = lambda x, **options: np.sum(value_and_grad(lambda y: np.sum(y**4), **options)(z)[1] * x)
    for run in (lambda f, *xs, **options: f(*xs, **options), checkpoint):
        assert_close(ta.grad(run(slope, Tensor(2 * X), create_graph=True), z)[0], 24 * X**3)
        assert_close(
            ta.grad(vjp(lambda x, run=run: run(slope, x), 2 * X, create_graph=True)[0], z)[0],
            24 * X**3,
        )


@pytest.mark.parametrize(
    "product",
    [
        lambda v: jvp(np.sin, X, v)[1],
        lambda v: vjp(np.sin, X)[1](v)[0],
        lambda v: hvp(lambda x: -np.sum(np.cos(x)), X, v),
    ],
)
def test_a_checkpoint_sees_the_direction_of_a_transform_inside(product):
    for run in (lambda f, x: f(x), checkpoint):
        assert_close(
            value_and_grad(lambda v, run=run: np.sum(run(lambda x: product(v) * x, V)))(Y[0])[1],
            np.cos(X) * V,
        )


@pytest.mark.parametrize("recording", [ta.enable_grad, nullcontext])
def test_backward_inside_a_checkpoint_is_refused(recording):
    """It would add to .grad once in each run."""
    x, w = Tensor(X, requires_grad=True), Tensor(V, requires_grad=True) * 2

    def f(x):
        with recording():
            (w * w).sum().backward()
        return x * w

    with pytest.raises(RuntimeError, match=r"inside|in a checkpointed function.*value_and_grad"):
        checkpoint(f, x)


@pytest.mark.parametrize(
    "slope",
    [
        lambda x: value_and_grad(lambda z: np.sum(z**3))(x)[1],
        lambda x: vjp(lambda z: z**3, x)[1](np.ones(3))[0],
        lambda x: jvp(lambda z: z**3, x, Tensor(V))[1],
        lambda x: np.sum(jacobian(lambda z: z**3, x), axis=0),
        lambda x: hvp(lambda z: np.sum(z**4), x, V),
    ],
    ids=["value_and_grad", "vjp", "jvp", "jacobian", "hvp"],
)
def test_a_derivative_inside_a_checkpoint_is_the_constant_that_it_is_without(slope):
    """Without create_graph and outside another transform, also in the second run."""
    f = lambda x: x * slope(x)
    kept = lambda x: checkpoint(f, x)
    found = []
    for run in (f, kept, lambda x: checkpoint(kept, x)):
        for backward in (lambda y: y.backward(), lambda y: y.backward(create_graph=True)):
            x = Tensor(X, requires_grad=True)
            backward(np.sum(run(x)))
            found.append(x.grad.numpy().copy())
    for g in found:
        np.testing.assert_allclose(g, slope(Tensor(X)).numpy())


def test_a_gradient_inside_a_checkpoint_is_a_transforms():
    w = Tensor(W, requires_grad=True)
    f = lambda v: np.mean((X @ v) ** 2)
    step = lambda v: v - 0.1 * value_and_grad(f, create_graph=True)(v)[1]
    (plain,) = ta.grad(np.sum(step(step(w)) ** 3), w)
    assert_close(ta.grad(checkpoint(lambda v: np.sum(step(step(v)) ** 3), w), w)[0], plain)


def test_checkpoint_says_when_the_function_is_not_repeatable():
    lengths = iter([3, 2])
    y = checkpoint(lambda x: x[: next(lengths)], Tensor(X, requires_grad=True))
    with pytest.raises(ValueError, match="must return the same output when it runs again"):
        y.sum().backward()


def test_checkpoint_says_when_a_tensor_that_it_used_is_another_one():
    """The values are equal, but the gradient of what it was computed from would be missing."""
    x, w = Tensor(X, requires_grad=True), Tensor(V, requires_grad=True)
    used = [w * 2]
    y = checkpoint(lambda x: x * used[0], x)
    used[0] = used[0].detach()
    with pytest.raises(ValueError, match="Between the two runs, do not"):
        np.sum(y).backward()


def test_checkpoint_says_when_what_it_uses_was_changed_in_between():
    """Also where the output stays the same: where it is 0, or changes by less than rounding."""
    w, c, a, i, n = Tensor(X, requires_grad=True), Tensor(X), X.copy(), np.array([0, 1]), [2.0]
    windows, b = np.lib.stride_tricks.sliding_window_view, {}
    scaled = ta.op(lambda x, *, by: x * by).vjp(lambda g, y, x, *, by: g * by)

    def change(array):
        array[...] = 2 * array + 1

    def replace(tensor):
        tensor.data = 2 * tensor.numpy()

    for values in X, np.zeros(3):
        x = Tensor(values, requires_grad=True)
        b["max"] = 9.0
        for f, arguments, between, words in (
            (lambda x: x * w, (), lambda: change(w.data), "changed in place after it was used"),
            (lambda x: x * c, (), lambda: change(c.data), "changed in place after it was used"),
            (
                lambda x: x * c,
                (),
                lambda: replace(c),
                "but the (outputs|Tensors or values .*) differ",
            ),
            (lambda x: x * c[:1], (), lambda: change(c.data), "changed in place after it was used"),
            (lambda x: x * a, (), lambda: change(a), "runs again"),
            (lambda x: x * a[:1], (), lambda: change(a), "runs again"),
            (lambda x: x * windows(a, 1)[:, 0], (), lambda: change(a), "runs again"),
            (lambda x: x * a * 1e-9, (), lambda: change(a), "runs again"),
            (lambda x, i: x[i["rows"]], ({"rows": i},), lambda: np.copyto(i, [2, 0]), "runs again"),
            (lambda x: x[i], (), lambda: np.copyto(i, [1, 2]), "runs again"),
            (lambda x: x * n[0], (), lambda: n.insert(0, n[0] + 1), "runs again"),
            (lambda x: scaled(x, by=a), (), lambda: change(a), "runs again"),
            (lambda x: np.clip(x, -9, b.get("max")), (), b.clear, "runs again"),
        ):
            y = checkpoint(f, x, *arguments)
            between()
            with pytest.raises(ValueError, match=words):
                y.sum().backward()
        assert x.grad is None and w.grad is None
        i[:] = 0, 1


OTHERS = {  # a second run that is another one: its first and its second function, and what differs
    "outputs": (lambda x: x * 2.0, lambda x: x * 3.0, "the outputs"),
    "shapes": (lambda x: x * 2.0, lambda x: x[:2] * 2.0, "the outputs"),
    "values": (
        lambda x: (x - 1) * 2.0,
        lambda x: (x - 1) * 3.0,
        "the Tensors or values that it uses",
    ),
    "values in a checkpoint": (
        lambda x: checkpoint(lambda x: (x - 1) * 2.0, x),
        lambda x: checkpoint(lambda x: (x - 1) * 3.0, x),
        "the Tensors or values that it uses",
    ),
    "floats of its own": (
        lambda x: (x - 1) * np.sin([1.0, 2.0, 3.0]),
        lambda x: (x - 1) * np.sin([2.0, 3.0, 4.0]),
        "the Tensors or values that it uses",
    ),
    "tensors": (
        lambda x: x * ONE,
        lambda x: x * ONE.detach(),
        "the Tensors or values that it uses",
    ),
}
ONE = Tensor(np.ones(3), requires_grad=True)


def test_a_function_may_log_in_one_of_the_two_runs():
    x, seen = Tensor(np.ones(3), requires_grad=True), []

    def f(x):
        h = x * 2
        if not seen:
            seen.append(h.mean().item())
        return h * h

    with np.errstate(all="raise"):
        checkpoint(f, x).sum().backward()
    assert_close(x.grad, np.full(3, 8.0))


@pytest.mark.parametrize("factor", [None, 2.0])
def test_second_derivatives_through_a_hook_that_changes_a_gradient_are_refused(factor):
    """The hook would be called with two parts of the gradient. A hook that looks changes nothing."""
    model = nn.Sequential(nn.Tanh())
    model[0].register_full_backward_hook(lambda *gs: factor and (gs[1][0] * factor,))
    x, found = Tensor(np.ones(3), requires_grad=True), []
    for call in (model, lambda x: checkpoint(model, x)):
        (g,) = ta.grad((call(x) ** 2).sum(), x, create_graph=True)
        found.append(g.numpy())
        if factor is None:
            found.append(ta.grad(g.sum(), x)[0].numpy())
    np.testing.assert_array_equal(found[: len(found) // 2], found[len(found) // 2 :])
    if factor:
        with pytest.raises(ValueError, match="differentiated again"):
            ta.grad(g.sum(), x)


def test_a_hook_that_returns_the_gradient_as_it_is_changes_nothing():
    def cube(x):
        y = x * x
        y.register_hook(lambda g: g)
        return y * x

    x = Tensor(np.ones(3), requires_grad=True)
    (g,) = ta.grad(checkpoint(cube, x).sum(), x, create_graph=True)
    assert_close(ta.grad(g.sum(), x)[0], np.full(3, 6.0))


def test_the_gradient_of_a_tensor_between_is_refused():
    """Somebody may see it in ta.activations, but the graph inside is not kept."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), Tensor(np.ones((2, 3), np.float32))
    with ta.activations(model) as seen:
        y = checkpoint(model, x)
    with pytest.raises(RuntimeError, match="computed inside a checkpoint"):
        ta.grad((y * seen["0"].output).sum(), seen["0"].output, allow_unused=True)


def test_floats_of_its_own_may_differ_by_rounding_between_the_two_runs():
    x, small = Tensor(np.ones(3), requires_grad=True), iter((0.0, 1e-15))
    checkpoint(lambda x: x * np.sin(next(small) + np.arange(3)), x).sum().backward()
    assert_close(x.grad, np.sin(np.arange(3)))


@pytest.mark.parametrize("ask", ["hook", "retain", "grad", "grad alone"])
def test_the_gradient_of_an_output_between_outputs_is_refused(ask):
    """Outside, only a part of it is known."""

    def f(x):
        hidden = np.sin(x)
        return hidden, hidden * hidden

    x = Tensor(np.ones(3), requires_grad=True)
    hidden, y = checkpoint(f, x)
    if ask == "hook":
        hidden.register_hook(lambda g: g * 10)
    if ask == "retain":
        hidden.retain_grad()
    with pytest.raises(ValueError, match="another output is computed from it"):
        ta.grad((hidden + y).sum(), {"grad": [x, hidden], "grad alone": hidden}.get(ask, x))
    hidden, _ = checkpoint(f, x)  # the other output is not used, or the hook is gone
    assert_close(ta.grad((hidden * 3).sum(), [x, hidden])[1], np.full(3, 3.0))
    hidden, y = checkpoint(f, x)
    hidden.register_hook(print).remove()
    ta.grad((hidden + y).sum(), x)
    pair = checkpoint(lambda x: (np.sin(x), np.cos(x)), x)
    pair[0].retain_grad()
    (pair[0] + pair[1]).sum().backward()
    assert_close(x.grad, np.cos(1) - np.sin(np.ones(3)))
    assert_close(pair[0].grad, np.ones(3))


def test_a_checkpointed_method_repeats_the_attributes_of_its_module():
    class Encoder(nn.Module):
        stop = False

        def encode(self, x):
            return np.sin(x.detach() if self.stop else x)

    encoder, x = Encoder(), Tensor(np.ones(3), requires_grad=True)
    y = checkpoint(encoder.encode, x)
    encoder.stop = True
    y.sum().backward()
    assert_close(x.grad, np.cos(np.ones(3)))


def test_a_checkpoint_repeats_the_attributes_of_the_modules_that_run_around_it():
    class Encoder(nn.Module):
        def forward(self, x):
            self.factor = 2.0
            y = checkpoint(lambda x: np.sin(x) * self.factor, x)
            self.factor = 3.0
            return y

    x = Tensor(np.ones(3), requires_grad=True)
    Encoder()(x).sum().backward()
    assert_close(x.grad, 2 * np.cos(np.ones(3)))


@pytest.mark.parametrize("first, second, what", OTHERS.values(), ids=OTHERS)
def test_checkpoint_says_what_differs_in_the_second_run(first, second, what):
    """Also where the outputs are equal: the gradients need not be."""
    x, runs = Tensor(np.ones(3), requires_grad=True), iter((first, second, second))
    y = checkpoint(lambda x: next(runs)(x), x)
    with pytest.raises(ValueError, match=f"runs again, but {what} differ"):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("size", [1e-3, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_checkpoint_allows_rounding_of_the_largest_output(dtype, size):
    """Also in an element that is nearly 0, as a difference of large ones."""
    for errors, fits in ((16, True), (1000, False)):
        error = errors * size * float(np.finfo(dtype).eps)
        x, runs = Tensor(np.ones(2, dtype), requires_grad=True), iter((0, error))
        y = checkpoint(lambda x: x * Tensor([size, next(runs)], dtype=dtype), x)  # noqa: B023
        with nullcontext() if fits else pytest.raises(ValueError, match="but the outputs differ"):
            y.sum().backward()


class Lazy(nn.Module):
    """Makes its layer in the first call."""

    layer = None

    def forward(self, x):
        self.layer = self.layer or nn.Linear(3, 3)
        return self.layer(x)


def test_a_leaf_that_gets_no_gradient_in_the_second_run_is_found():
    """It was replaced, or made by the function, which makes another one with the same values."""
    x, used = Tensor(np.ones((2, 3), np.float32), requires_grad=True), [new_leaf(3)]
    y = checkpoint(lambda x: x * used[0], x)
    used[0] = new_leaf(3)
    for result in y, checkpoint(Lazy(), x):
        with pytest.raises(ValueError, match="runs again"):
            result.sum().backward()

    def makes_its_own(x):
        return x * new_leaf(3)

    checkpoint(makes_its_own, x).sum().backward()
    assert np.array_equal(x.grad.numpy(), np.ones((2, 3)))


def new_leaf(n):
    return Tensor(np.ones(n), requires_grad=True)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("mode", [nullcontext, ta.plain])
def test_an_operand_may_be_frozen_or_no_longer_between_the_two_runs(mode, freeze):
    """What is computed from it alone, such as weight.mT in plain mode, is then another constant."""
    layer, x = nn.Linear(3, 3), Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    layer.requires_grad_(freeze)
    with mode():
        y = checkpoint(layer, x).sum()
        layer.requires_grad_(not freeze)
        y.backward()
    np.testing.assert_allclose(x.grad.numpy(), [layer.weight.numpy().sum(0)] * 2, rtol=1e-6)


def test_a_layer_may_be_frozen_between_the_two_runs():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    x = Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    y = checkpoint(model, x).sum()
    (expected,) = ta.grad(y, x, retain_graph=True)
    model[0].requires_grad_(False)
    y.backward()
    assert model[0].weight.grad is None and model[2].weight.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), expected.numpy())


class Statistics(nn.Module):
    def __init__(self):
        self.register_buffer("mean", np.zeros(3))

    def forward(self, x):
        with ta.no_grad():
            self.mean[...] = 0.9 * self.mean + 0.1 * x.mean(axis=0)
        return x * 2


def test_statistics_may_change_in_a_later_call():
    model, x = Statistics(), Tensor(np.ones((2, 3)), requires_grad=True)
    y = checkpoint(model, x) + checkpoint(model, x)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 4)
    np.testing.assert_allclose(model.mean.numpy(), 0.19)


def test_a_checkpoint_keeps_the_lists_and_dicts_among_its_arguments():
    """The second run gets them as they were, whatever the function or the user did with them."""
    x, w, other = (Tensor(a, requires_grad=True) for a in (X, X, X))
    arguments = {"weights": [w], "scale": 2.0}

    def f(x, arguments):
        arguments["weights"].append(arguments["weights"][-1] * arguments["scale"])
        return x * arguments["weights"][-1]

    y = checkpoint(f, x, arguments)
    assert len(arguments["weights"]) == 2
    arguments.update(weights=[other], scale=3.0)
    for _ in range(2):
        found = ta.grad(np.sum(y), (x, w), retain_graph=True)
        np.testing.assert_allclose(np.stack(found), [2 * X, 2 * X])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_checkpoint_sees_a_small_change_beside_a_large_output(dtype):
    x, small = Tensor(np.ones(2, dtype), requires_grad=True), np.array([1e-3, 2e-3], dtype)
    y = checkpoint(lambda x: np.concatenate([x * 1e2, x * np.tile(small, 1)]), x)
    small *= 2
    with pytest.raises(ValueError, match="but the outputs differ"):
        y.sum().backward()


CHANGES = {
    "data": lambda y: y.data.fill(5),
    "held": lambda y: [data := y.data, data.fill(5)],
    "numpy": lambda y: y.numpy().fill(5),
    "setitem": lambda y: ta.no_grad(y.__setitem__)(0, 5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("call", [checkpoint, lambda f, x: f(x)], ids=["checkpoint", "without"])
def test_an_output_that_is_changed_and_not_read_again_is_no_error(call, change):
    x = Tensor(X, requires_grad=True)
    y, z = call(lambda x: (x + 1.0, np.sin(x)), x)
    total = (y + 1.0).sum() + (z + 1.0).sum()
    held = [change(y), change(z)]
    total.backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 + np.cos(X))
    assert len(held) == 2
    y = call(lambda x: x + 1.0, x)
    total = (y * y).sum()
    change(y)
    with pytest.raises(ValueError, match="multiply needs its input 0"):
        total.backward()


def test_a_checkpoint_repeats_what_was_changed_in_its_modules():
    drop = nn.Sequential(nn.Dropout(0.5), nn.Linear(X.size, 2).astype(np.float64))
    x = Tensor(X, requires_grad=True)
    gradients = []
    for run in (lambda f, x: f(x), checkpoint):
        ta.manual_seed(0)
        y = run(drop, x)
        drop.eval()
        weight, drop[1].weight = drop[1].weight, nn.Parameter(np.zeros((2, X.size)))
        gradients.append(ta.grad(y.sum(), [x, weight]))
        assert not drop.training and not drop[1].weight.numpy().any(), "and leaves it changed"
        drop.train()[1].weight = weight
    for plain, repeated in zip(*gradients):
        assert_close(plain, repeated.numpy())


def test_a_transform_in_a_vjp_can_be_differentiated_in_a_recorded_pass():
    @op
    def cube(x):
        return x**3

    cube.vjp(lambda g, y, x: g * value_and_grad(lambda z: (z**3).sum())(x)[1])
    x = Tensor(X, requires_grad=True)
    (slope,) = ta.grad((cube(x) * x).sum(), [x], create_graph=True)  # 4 x^3
    assert_close(ta.grad(slope.sum(), [x])[0], 12 * X**2)
    cube(x).sum().backward()
    assert_close(x.grad, 3 * X**2)


def test_the_second_run_of_a_checkpoint_changes_no_buffer():
    class Counting(nn.Module):
        def __init__(self):
            self.assigned, self.changed = nn.Buffer(np.zeros(1)), nn.Buffer(np.zeros(1))

        def forward(self, x):
            self.assigned = self.assigned + 1
            self.changed.data[...] += 1
            return x * 2

    layer, x = Counting(), Tensor(X, requires_grad=True)
    y = checkpoint(nn.Sequential(layer, layer), x)
    y.sum().backward()
    assert layer.assigned.item() == layer.changed.item() == 2
    assert_close(x.grad, np.full(3, 4.0))


@pytest.mark.parametrize(
    "first",
    [
        np.array([1.0, np.nan, np.inf, -np.inf, 0.0]),
        np.zeros(3),
        np.zeros((0, 2)),
        np.float32([1e30, 1.0]),
    ],
)
def test_numbers_that_repeat_themselves_are_no_change(first):
    f = lambda x: x * first.astype(first.dtype)
    x = Tensor(np.ones_like(first), requires_grad=True)
    checkpoint(f, x).sum().backward()
    assert np.array_equal(x.grad.numpy(), first, equal_nan=True)


def test_checkpoint_leaves_no_observer_and_no_random_state_behind():
    from tinygrad_attn.engine import context

    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda x: 1 / 0, Tensor(X, requires_grad=True))
    assert context.listeners == () and context.recording


# ---- what a checkpointed function does besides computing


def doubles(g):
    return g * 2


def by_a_thread(f):
    found = []
    thread = threading.Thread(target=lambda: found.append(f()))
    thread.start()
    thread.join()
    return found[0]


def backward_in_a_hook(x, w):
    def hook(g):
        with ta.enable_grad():
            (x * w * 5).sum().backward(retain_graph=True)

    h = x * w
    h.register_hook(hook)
    return h * h


EFFECTS = {  # functions of two tensors that do more than compute
    "a hook on an argument": lambda x, w: [x.register_hook(doubles), x * w][1],
    "a hook on a tensor from outside": lambda x, w: [w.register_hook(doubles), x * w][1],
    "a hook on a result": lambda x, w: [h := x * w, h.register_hook(doubles)][0],
    "a gradient that is kept": lambda x, w: [x.retain_grad(), w.retain_grad(), x * w][2],
    "backward in a hook": backward_in_a_hook,
    "another thread": lambda x, w: by_a_thread(lambda: x * w) * x,
    "a result of another thread": lambda x, w: by_a_thread(lambda: x * np.sin(w)),
    "a transform": lambda x, w: value_and_grad(lambda a: np.sum(a * a * w))(x)[1] * x,
    "an argument returned": lambda x, w: x,
    "a tensor from outside returned": lambda x, w: (x * w, w),
    "one result twice": lambda x, w: (h := x * w, {"again": h}),
}


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "outputs"])
@pytest.mark.parametrize("name", EFFECTS)
def test_whatever_a_checkpointed_function_does_is_done_once(name, leaves):
    """The second run repeats the computation, but not what the first one did to others' tensors."""

    def nested(f, x):
        return checkpoint(lambda x: checkpoint(f, x), x)

    found = []
    for run in (lambda f, x: f(x), checkpoint, nested):
        x, w = Tensor(X, requires_grad=True), Tensor(V, requires_grad=True)
        a, b = (x, w) if leaves else (x * 1.0, w * 1.0)
        output = run(lambda a, b=b: EFFECTS[name](a, b), a)
        results = tree_leaves(output)
        results[0].register_hook(lambda g: g * 3)
        sum(np.sum(y * y) for y in results).backward()
        kept = [values(t.grad) for t in (a, b) if "kept" in name]
        same = [y is z for y in (*results, a, b) for z in (*results, a, b)]
        found.append([values(x.grad), values(w.grad), *kept, same])
    for again in found[1:]:
        for mine, plain in zip(again, found[0], strict=True):
            np.testing.assert_array_equal(mine, plain)


def peak(function):
    gc.collect()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_checkpoint_needs_less_memory(capsys):
    depth, inside, x = (
        8,
        6,
        rng.standard_normal((64, 1024)).astype(np.float32),
    )  # an array is 0.25 MB

    def block(a):
        for _ in range(inside):
            a = np.sin(a * 1.1)
        return a

    def train(run):
        t = Tensor(x, requires_grad=True)
        a = t
        for _ in range(depth):
            a = run(a)
        a.sum().backward()
        return t.grad.numpy()

    plain, saved = peak(lambda: train(block)), peak(lambda: train(lambda a: checkpoint(block, a)))
    with capsys.disabled():
        print(
            f"\n{depth} blocks of {2 * inside} ops: {plain:.1f} MB, with checkpoint {saved:.1f} MB"
        )
    np.testing.assert_array_equal(train(block), train(lambda a: checkpoint(block, a)))
    assert saved < 0.4 * plain
