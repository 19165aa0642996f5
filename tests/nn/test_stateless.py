"""A module as a function of its parameters: against torch.func.functional_call, through steps of training, and left as it was."""

from contextlib import nullcontext
from types import MappingProxyType

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn

rng = np.random.default_rng(0)
X = rng.standard_normal((2, 5, 8))


def layer():
    ta.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).astype(np.float64)


def others(module):
    return {
        name: Tensor(rng.standard_normal(p.shape), requires_grad=True)
        for name, p in module.named_parameters()
    }


def test_value_and_gradients_are_pytorchs():
    torch = require("torch")
    ours, theirs = (
        layer(),
        torch.nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64
        ),
    )
    mine = others(ours)
    theirs_given = {name: torch.tensor(t.numpy(), requires_grad=True) for name, t in mine.items()}
    y = ta.functional_call(ours, mine, X)
    wanted = torch.func.functional_call(theirs, theirs_given, torch.tensor(X))
    np.testing.assert_allclose(y.numpy(), wanted.detach().numpy(), atol=1e-12)
    (y * y).sum().backward()
    (wanted * wanted).sum().backward()
    for name, t in mine.items():
        np.testing.assert_allclose(t.grad.numpy(), theirs_given[name].grad.numpy(), atol=1e-9)
    assert all(p.grad is None for p in ours.parameters())


def test_the_module_is_as_before_also_after_an_error():
    module = layer()
    before, state = [id(p) for p in module.parameters()], module(X).numpy()
    ta.functional_call(module, others(module), X)
    with pytest.raises(ValueError):
        ta.functional_call(module, others(module), X[..., :3])
    assert [id(p) for p in module.parameters()] == before
    np.testing.assert_array_equal(module(X).numpy(), state)


def test_the_slope_of_a_step_of_training():
    """As in meta-learning: how the loss after the step depends on the parameters before it."""
    model, target = nn.Linear(3, 1).astype(np.float64), rng.standard_normal((6, 1))
    x = rng.standard_normal((6, 3))
    names, weights = zip(*model.named_parameters(), strict=True)

    def after(*weights):
        loss = F.mse_loss(
            ta.functional_call(model, dict(zip(names, weights, strict=True)), x), target
        )
        slopes = ta.grad(loss, weights, create_graph=True)
        stepped = {name: w - 0.1 * g for name, w, g in zip(names, weights, slopes, strict=True)}
        return F.mse_loss(ta.functional_call(model, stepped, (x,)), target)

    assert ta.gradcheck(after, [w.numpy() for w in weights])


def test_forward_mode_by_parameters():
    model = layer()
    names, weights = zip(*model.named_parameters(), strict=True)
    directions = [rng.standard_normal(w.shape) for w in weights]
    f = lambda *ws: ta.functional_call(model, dict(zip(names, ws, strict=True)), X).sum()
    _, slope = ta.jvp(f, list(weights), directions)
    found = ta.grad(model(X).sum(), weights)
    np.testing.assert_allclose(
        slope.numpy(),
        sum((g.numpy() * v).sum() for g, v in zip(found, directions, strict=True)),
        rtol=1e-9,
    )


def test_arrays_settings_and_buffers():
    class Scaled(nn.Module):
        def __init__(self):
            self.weight, self.shift = nn.Parameter([2.0]), nn.Buffer(np.array([1.0], np.float32))

        def forward(self, x, *, times=1):
            return self.weight * x * times + self.shift

    module = Scaled()
    assert ta.functional_call(module, {"shift": np.array([5.0])}, 3.0, {"times": 2}).tolist() == [
        17
    ]
    assert ta.functional_call(module, {}, (3.0,)).tolist() == [7]
    assert module(3.0).dtype == np.float32 and module(3.0).tolist() == [7]


def test_a_checkpoint_inside_is_computed_again_with_the_same_parameters():
    class Spared(nn.Module):
        def __init__(self):
            self.inner = nn.Linear(8, 8).astype(np.float64)

        def forward(self, x):
            return ta.checkpoint(lambda x: np.tanh(self.inner(x)), x)

    module, x = Spared(), Tensor(X, requires_grad=True)
    for mine in (
        others(module),
        {name: Tensor(p.numpy(), requires_grad=True) for name, p in module.named_parameters()},
    ):
        y = ta.functional_call(module, mine, x)
        wanted = ta.grad(
            np.tanh(F.linear(x, mine["inner.weight"], mine["inner.bias"])).sum(),
            list(mine.values()),
        )
        y.sum().backward()
        for t, g in zip(mine.values(), wanted, strict=True):
            np.testing.assert_allclose(t.grad.numpy(), g.numpy(), rtol=1e-9)
    assert all(p.grad is None and isinstance(p, nn.Parameter) for p in module.parameters())


class Penalised(nn.Module):
    """Looks at its own parameters while it is called."""

    def __init__(self):
        self.inner, self.shift = (
            nn.Linear(2, 2, bias=False).astype(np.float64),
            nn.Buffer(np.zeros(2)),
        )

    def forward(self, x):
        return self.inner(x).sum() + sum((p * p).sum() for p in self.parameters()), [
            *self.state_dict()
        ]


def test_the_module_finds_the_other_tensors_among_its_parameters():
    model, x = Penalised(), np.ones((1, 2))
    weight = Tensor(2 * np.eye(2), requires_grad=True)
    y, names = ta.functional_call(model, {"inner.weight": weight, "shift": np.ones(2)}, x)
    assert y.item() == 12 and names == ["shift", "inner.weight"] == [*model.state_dict()]
    y.backward()
    np.testing.assert_array_equal(weight.grad.numpy(), 1 + 4 * np.eye(2))
    assert model(x)[0].item() != 12


def test_a_call_inside_a_call_replaces_what_was_replaced():
    inner = nn.Linear(1, 1).astype(np.float64)

    class Twice(nn.Module):
        def __init__(self):
            self.inner = inner

        def forward(self, x):
            return ta.functional_call(inner, {"weight": inner.weight * 3}, x) + inner(x)

    weight, own = Tensor([[2.0]], requires_grad=True, dtype=np.float64), [inner.weight, inner.bias]
    y = ta.functional_call(
        Twice(), {"inner.weight": weight, "inner.bias": np.zeros(1)}, np.ones((1, 1))
    )
    y.backward()
    assert y.item() == 8 and weight.grad.item() == 4
    assert inner.weight is own[0] and inner.bias is own[1] and list(inner.parameters()) == own


def tied():
    model = nn.Module()
    model.a, model.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    model.b.weight = model.a.weight
    model.forward = lambda x: model.b(model.a(x))
    return model


def test_a_shared_parameter_is_replaced_under_all_its_names():
    model, x = tied(), np.ones((1, 2), np.float32)
    double = Tensor(2 * np.eye(2, dtype=np.float32))
    for given in (
        {"a.weight": double},
        {"b.weight": double},
        dict.fromkeys(["a.weight", "b.weight"], double),
    ):
        assert ta.functional_call(model, given, x).tolist() == [[4, 4]]
    same_values = {"a.weight": double.numpy(), "b.weight": double.numpy().copy()}
    assert ta.functional_call(model, same_values, x).tolist() == [[4, 4]]
    assert np.array_equal(ta.functional_call(model, model.state_dict(), x), model(x))
    trained = nn.Parameter(double)  # Its gradient would lack the part through the other name.
    for other in (double + 1, trained):
        with pytest.raises(ValueError, match="'b.weight' is a shared parameter and was given two"):
            ta.functional_call(model, {"a.weight": double, "b.weight": other}, x)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"norm1.wieght": 1.0}, "no parameter or buffer 'norm1.wieght'. Did you mean"),
        ({"norm1.weight": np.ones(3)}, r"must have the shape \(8,\), got array \(3,\) float64"),
    ],
)
def test_what_does_not_fit_is_said(given, message):
    with pytest.raises(ValueError, match=message):
        ta.functional_call(layer(), given, X)


def test_the_arguments_may_be_named():
    model, x = nn.Linear(2, 2), np.ones((1, 2), np.float32)
    given = {"weight": 2 * np.eye(2), "bias": np.ones(2)}
    assert ta.functional_call(model, given, None, {"input": x}).tolist() == [[3, 3]]


class Running(nn.Module):
    def __init__(self):
        self.part = nn.Identity()
        self.part.mean = nn.Buffer(np.zeros(2))
        self.weight, self.fails = nn.Parameter(np.ones(2)), False

    def forward(self, x):
        self.part.mean = 0.5 * self.part.mean + 0.5 * x.mean(0)
        if self.fails:
            raise ZeroDivisionError
        return x * self.weight - self.part.mean


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", [Tensor, np.array])
def test_a_buffer_that_forward_assigns_is_in_the_mapping(kind, fails):
    """As in torch.func.functional_call; the module stays as it was."""
    model, x = Running(), Tensor(np.ones((3, 2)), requires_grad=True)
    model.fails = fails
    before = dict(vars(model)), dict(vars(model.part))
    weight, state = kind([2.0, 2.0]), {"part.mean": kind([4.0, 4.0])}
    state["weight"] = weight
    for mean in ([2.5, 2.5], [1.75, 1.75]):
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            ta.functional_call(model, state, x)
        assert state["part.mean"].tolist() == mean and state["weight"] is weight
        assert (vars(model), vars(model.part)) == before and list(state) == ["part.mean", "weight"]
    model.fails = False
    y = ta.functional_call(model, MappingProxyType(state), x)
    assert y.tolist() == [[2 - 1.375] * 2] * 3 and state["part.mean"].tolist() == [1.75, 1.75]


def test_a_checkpoint_assigns_a_buffer_once():
    """Its second run changes no buffer."""
    model, x = Running(), Tensor(np.ones((3, 2)), requires_grad=True)
    state = {"part.mean": Tensor([4.0, 4.0])}
    y = ta.checkpoint(lambda x: ta.functional_call(model, state, x).detach() * x, x)
    assert state["part.mean"].tolist() == [2.5, 2.5]
    with pytest.raises(ValueError, match="runs again"):  # The mapping is no longer what it was.
        y.sum().backward()
    assert state["part.mean"].tolist() == [2.5, 2.5]


def test_a_module_is_as_before_although_it_hides_a_part_now():
    class Hiding(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            self.used = [self.linear]
            return self.linear(x)

    model = Hiding()
    weight = model.linear.weight
    ta.functional_call(model, {"linear.weight": np.ones((2, 2))}, np.ones((1, 2), np.float32))
    assert model.linear.weight is weight
