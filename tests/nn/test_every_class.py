"""Every class of `nn`, from the one table in helpers/moduletable.py: values, slopes, dtypes, copies and states."""

import copy
import itertools

import numpy as np
import pytest
from enumeration import asserted, public, unmet
from moduletable import TABLE
from support import require

from tinygrad_attn import Tensor, functional_call, grad, manual_seed, nn, randn
from tinygrad_attn.nn import Module
from tinygrad_attn.nn.inside import record_attention

torch = require("torch")
for_each = pytest.mark.parametrize("name", TABLE)
ADVICE = "add an Example with the key {name!r} to TABLE in tests/helpers/moduletable.py"


def classes():
    return public(nn, lambda value: isinstance(value, type))


def test_no_class_is_missing_from_the_table():
    asserted(unmet(classes(), TABLE, ADVICE))


def test_a_new_class_is_missed(monkeypatch):
    monkeypatch.setattr(nn, "Surprise", type("Surprise", (nn.Module,), {}), raising=False)
    monkeypatch.setattr(nn, "__all__", [*nn.__all__, "Surprise"])
    (complaint,) = unmet(classes(), TABLE, ADVICE)
    assert "nothing tests 'Surprise': add an Example" in complaint


def made(name, dtype=np.float64):
    """The model of an example, its state as arrays, and the inputs."""
    manual_seed(3)
    module = TABLE[name].make(nn).astype(dtype)
    inputs = [x.astype(dtype) if x.dtype.kind == "f" else x for x in TABLE[name].inputs]
    return module, {key: value.numpy().copy() for key, value in module.state_dict().items()}, inputs


def outputs(y):
    return [one for one in (y if isinstance(y, tuple) else (y,)) if one is not None]


def array(y):
    """A layer without parameters gives arrays for arrays."""
    return y.numpy() if isinstance(y, Tensor) else y


@for_each
def test_the_example_uses_its_class(name, monkeypatch):
    cls, used = getattr(nn, name), []
    before = cls.__init__

    def init(self, *args, **kwargs):
        used.append(type(self))
        before(self, *args, **kwargs)

    monkeypatch.setattr(cls, "__init__", init)
    module, _, inputs = made(name)
    module(*inputs)
    assert used


@for_each
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_values_are_pytorchs_or_the_equations(name, training):
    module, state, inputs = made(name)
    # PyTorch draws the dropout of an attention output in the order (T, B, E), ours need not.
    training = training and not name.startswith("Transformer")
    module.train(training)
    manual_seed(7)
    ours = outputs(module(*inputs))
    if TABLE[name].equation:
        expected = outputs(TABLE[name].equation(state, *inputs))
    else:
        theirs = TABLE[name].make(torch.nn).double().train(training)
        theirs.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
        torch.manual_seed(7)
        found = outputs(theirs(*map(torch.from_numpy, inputs)))
        expected = [y.detach().numpy() for y in found]
    for y, z in zip(ours, expected, strict=True):
        np.testing.assert_allclose(array(y), z, rtol=1e-9, atol=1e-12)


def scalar_of(name, training=True):
    """(f, x): f(x) weighs all outputs at random, x is all that can be differentiated by in one list."""
    module, _, inputs = made(name)
    module.train(training)
    names = [key for key, _ in module.named_parameters()]
    floats = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"]
    start = [p.numpy().copy() for p in module.parameters()] + [inputs[i] for i in floats]

    def f(*x):
        given = list(inputs)
        for i, value in zip(floats, x[len(names) :], strict=True):
            given[i] = value
        manual_seed(7)
        y = outputs(functional_call(module, dict(zip(names, x)), tuple(given)))
        return sum((one * weights(one.shape)).sum() for one in y)

    return f, start


def weights(shape):
    return np.random.default_rng(1).standard_normal(shape)


def leaves(arrays):
    return [Tensor(x, requires_grad=True) for x in arrays]


def moved(start, direction, step):
    return [x + step * d for x, d in zip(start, direction, strict=True)]


def dotted(gradients, direction):
    return sum((g * d).sum() for g, d in zip(gradients, direction, strict=True) if g is not None)


@for_each
def test_first_and_second_derivatives_are_the_slopes_of_values(name):
    """Along a random direction through all parameters and inputs at once, each of which it moves."""
    f, start = scalar_of(name)
    x = leaves(start)
    y = f(*x)
    if not y.requires_grad:
        assert name == "KeyValueCache"  # what a cache keeps is recorded by nobody
        return
    rng, h = np.random.default_rng(5), 1e-5
    d, e = ([rng.standard_normal(one.shape) for one in start] for _ in range(2))
    first = grad(y, x, create_graph=True, allow_unused=True)
    assert all(
        g is None or g.dtype == np.float64 and g.shape == one.shape for g, one in zip(first, x)
    )
    ends = [f(*leaves(moved(start, d, step))).item() for step in (h, -h)]
    slope = dotted(first, d)
    np.testing.assert_allclose(slope.item(), (ends[0] - ends[1]) / (2 * h), rtol=2e-6, atol=1e-7)
    if not slope.requires_grad:
        return

    def along(arrays):
        inner = leaves(arrays)
        return dotted(grad(f(*inner), inner, allow_unused=True), d).item()

    second = dotted(grad(slope, x, allow_unused=True), e).item()
    ends = [along(moved(start, e, step)) for step in (h, -h)]
    np.testing.assert_allclose(second, (ends[0] - ends[1]) / (2 * h), rtol=2e-5, atol=1e-6)


@for_each
def test_single_precision_stays_single(name):
    module, _, inputs = made(name, np.float32)
    x = [Tensor(v, requires_grad=True) if v.dtype.kind == "f" else v for v in inputs]
    y = outputs(module(*x))
    assert {one.dtype for one in y} == {np.dtype(np.float32)}
    loss = sum(one.sum() for one in y)
    if loss.requires_grad:
        loss.backward()
    found = [p.grad for p in (*module.parameters(), *x) if isinstance(p, Tensor)]
    assert {g.dtype for g in found if g is not None} <= {np.dtype(np.float32)}


@for_each
def test_a_copy_and_a_loaded_state_give_the_same_numbers(name):
    module, state, inputs = made(name)
    module.eval()
    expected = [array(y) for y in outputs(module(*inputs))]
    manual_seed(99)
    other = TABLE[name].make(nn).astype(np.float64).eval()
    other.load_state_dict(state)
    for same in (copy.deepcopy(module), other):
        assert isinstance(same, Module)
        for y, z in zip(outputs(same(*inputs)), expected, strict=True):
            assert np.array_equal(array(y), z)
        assert not {id(p) for p in same.parameters()} & {id(p) for p in module.parameters()}


# Of classes that PyTorch has not: the first values of the parameters that are the class's own. Layers inside it draw theirs.
FIRST = {"LearnedPositionalEncoding": lambda shape: 0.02 * randn(*shape)}
OURS = [name for name, cls in classes().items() if issubclass(cls, Module)]
OURS = [name for name in OURS if not hasattr(torch.nn, name)]


@pytest.mark.parametrize("name", OURS)
def test_what_pytorch_has_not_begins_with_the_values_that_it_states(name):
    manual_seed(3)
    model = TABLE[name].make(nn)
    manual_seed(3)
    for part in model.modules():
        own = list(part.parameters(recurse=False))
        if type(part) is nn.Linear:
            expected = list(
                nn.Linear(part.in_features, part.out_features, part.bias is not None).parameters()
            )
        else:
            assert not own or type(part).__name__ in FIRST, (
                f"say in FIRST what the parameters of {name} are at first"
            )
            expected = [FIRST[type(part).__name__](p.shape) for p in own]
        for p, q in zip(own, expected, strict=True):
            np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-6)


@for_each
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_who_records_attention_may_write_into_what_is_recorded(name, training):
    f, start = scalar_of(name, training)
    expected = f(*(x := leaves(start)))
    with record_attention() as seen:
        y = f(*(again := leaves(start)))
    assert seen or not ("Attention" in name or "Transformer" in name)
    for found in itertools.chain.from_iterable(seen.values()):
        found[...] = 7
    if y.requires_grad:
        slopes = (grad(one, x, allow_unused=True) for one, x in ((expected, x), (y, again)))
        for one, other in zip(*slopes, strict=True):
            assert (one is None) == (other is None)
            np.testing.assert_array_equal(array(one), array(other))
