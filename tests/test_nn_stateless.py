"""A module as a function of its parameters: against torch.func.functional_call, through steps of training, and left as it was."""

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
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=np.float64)


def others(module):
    return {name: Tensor(rng.standard_normal(p.shape), requires_grad=True) for name, p in module.named_parameters()}


def test_value_and_gradients_are_pytorchs():
    torch = require("torch")
    ours, theirs = layer(), torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
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
    model, target = nn.Linear(3, 1, dtype=np.float64), rng.standard_normal((6, 1))
    x = rng.standard_normal((6, 3))
    names, weights = zip(*model.named_parameters(), strict=True)

    def after(*weights):
        loss = F.mse_loss(ta.functional_call(model, dict(zip(names, weights, strict=True)), x), target)
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
    np.testing.assert_allclose(slope.numpy(), sum((g.numpy() * v).sum() for g, v in zip(found, directions, strict=True)), rtol=1e-9)


def test_arrays_settings_and_buffers():
    class Scaled(nn.Module):
        def __init__(self):
            self.weight, self.shift = nn.Parameter([2.0]), nn.Buffer(np.array([1.0], np.float32))

        def forward(self, x, *, times=1):
            return self.weight * x * times + self.shift

    module = Scaled()
    assert ta.functional_call(module, {"shift": np.array([5.0])}, 3.0, {"times": 2}).tolist() == [17]
    assert ta.functional_call(module, {}, (3.0,)).tolist() == [7]
    assert module(3.0).dtype == np.float32 and module(3.0).tolist() == [7]


def tied():
    model = nn.Module()
    model.a, model.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    model.b.weight = model.a.weight
    model.forward = lambda x: model.b(model.a(x))
    return model


def test_a_shared_parameter_is_replaced_under_all_its_names():
    model, x = tied(), np.ones((1, 2), np.float32)
    double = Tensor(2 * np.eye(2, dtype=np.float32))
    assert ta.functional_call(model, {"a.weight": double}, x).tolist() == [[4, 4]]
    assert ta.functional_call(model, {"a.weight": double, "b.weight": double}, x).tolist() == [[4, 4]]
    own = model.a.weight.numpy()
    np.testing.assert_allclose(ta.functional_call(model, {"b.weight": double}, x, tie_weights=False).numpy(), 2 * x @ own.T)
    with pytest.raises(ValueError, match="'a.weight' and 'b.weight' are one parameter, and got two values"):
        ta.functional_call(model, {"a.weight": double, "b.weight": double + 1}, x)


@pytest.mark.parametrize("given, settings, kind, message", [
    ({"self_attn.in_proj_wieght": 1.0}, {}, ValueError, "no parameter or buffer 'self_attn.in_proj_wieght'. Did you mean"),
    ({"norm1.weight": np.ones(3)}, {}, ValueError, r"'norm1.weight' of TransformerEncoderLayer has the shape \(8,\), but array \(3,\)"),
    ([np.ones(8)], {}, TypeError, r"takes a mapping .* dict\(model.named_parameters\(\)\), got a list"),
    ({"norm1.weight": np.ones(8)}, {"strict": True}, ValueError, "missing: self_attn.in_proj_weight, .*norm2.bias"),
])
def test_what_does_not_fit_is_said(given, settings, kind, message):
    with pytest.raises(kind, match=message):
        ta.functional_call(layer(), given, X, **settings)


def test_a_checkpoint_inside_is_computed_again_with_the_same_parameters():
    class Spared(nn.Module):
        def __init__(self):
            self.inner = nn.Linear(8, 8, dtype=np.float64)

        def forward(self, x):
            return ta.checkpoint(lambda x: np.tanh(self.inner(x)), x)

    module, x = Spared(), Tensor(X, requires_grad=True)
    for mine in (others(module), {name: Tensor(p.numpy(), requires_grad=True) for name, p in module.named_parameters()}):
        y = ta.functional_call(module, mine, x)
        wanted = ta.grad(np.tanh(F.linear(x, mine["inner.weight"], mine["inner.bias"])).sum(), list(mine.values()))
        y.sum().backward()
        for t, g in zip(mine.values(), wanted, strict=True):
            np.testing.assert_allclose(t.grad.numpy(), g.numpy(), rtol=1e-9)
    assert all(p.grad is None and isinstance(p, nn.Parameter) for p in module.parameters())
