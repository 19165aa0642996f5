"""A check restores what the function can change: buffers, attributes, random streams; also when it raises."""

import argparse
import copy
import random
import types
from collections import UserDict

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn
from tinygrad_attn.check import gradcheck

torch = require("torch")
GENERATOR = np.random.default_rng(3)


class Counter(nn.Module):
    """Changes a buffer by assignment, one in place, an attribute, a list and a dict."""

    def __init__(self):
        self.mean, self.calls = nn.Buffer(np.zeros(2)), nn.Buffer(np.zeros(1))
        self.total, self.log, self.seen = 0, [], {"last": None}

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(axis=0)
        self.calls.data[...] += 1
        self.total += 1
        self.log.append(x)
        self.seen["last"] = x
        return x * 2


class TorchCounter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.total, self.log = torch.nn.BatchNorm1d(2), 0, []
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.calls = self.calls + 1
        self.total += 1
        self.log.append(x)
        return self.norm(x)


def ours():
    return Counter(), Tensor(np.random.default_rng(0).standard_normal((4, 2)), requires_grad=True)


def theirs():
    return TorchCounter().double(), torch.randn(4, 2, dtype=torch.float64, requires_grad=True)


def state_of(module):
    values = {k: np.array(v.detach().numpy()) for k, v in module.state_dict().items()}
    return values, module.total, list(module.log), dict(getattr(module, "seen", {}))


def streams():
    """The states of all streams, as something that can be compared."""
    arrays = *ta.random.get_rng_state().values(), torch.get_rng_state(), *np.random.get_state()[1:3]
    others = random.getstate(), GENERATOR.bit_generator.state
    return [np.asarray(x).tobytes() for x in arrays], repr(others)


def drawing(module):
    """A function that draws from every stream, and changes nothing else."""

    def f(x):
        noise = ta.rand(1).numpy(), torch.rand(1), np.random.rand(), random.random()
        return module(x) + 0.0 * (GENERATOR.random() + noise[2] + noise[3])

    return f


class Holder:
    """An object that holds a module, outside every nn.Module."""

    def __init__(self, module):
        self.module = module

    def call(self, x):
        return self.module(x)


REACHED = {  # how the check gets at the module
    "itself": lambda module: module,
    "a closure": lambda module: lambda x: module(x),
    "a method": lambda module: Holder(module).call,
    "inside another": lambda module: (nn if isinstance(module, nn.Module) else torch.nn).Sequential(module),
    "a list": lambda module: (lambda parts: lambda x: parts[0](x))([module]),
    "streams": drawing,
}  # fmt: skip


@pytest.mark.parametrize("way", REACHED)
@pytest.mark.parametrize("make", [ours, theirs])
@pytest.mark.parametrize("order", [1, 2])
def test_modules_and_streams_are_left_as_they_were(make, way, order):
    module, x = make()
    before, numbers, drawn = state_of(module), np.array(x.detach().numpy()), streams()
    assert gradcheck(REACHED[way](module), [x], order=order)
    after = state_of(module)
    assert all(np.array_equal(after[0][k], v) for k, v in before[0].items())
    assert after[1:] == before[1:]
    assert (
        np.array_equal(np.array(x.detach().numpy()), numbers) and x.requires_grad and x.grad is None
    )
    assert streams() == drawn


@pytest.mark.parametrize("make", [ours, theirs])
def test_also_after_an_error_and_for_gradients_that_the_function_leaves(make):
    module, x = make()
    weight = copy.deepcopy(x)

    def f(x):
        module(x)
        (weight * 2).sum().backward()
        if module.total > 3:
            raise KeyError("enough")
        return x * 2

    before, drawn = state_of(module), streams()
    with pytest.raises(Exception, match="enough"):
        gradcheck(f, [x])
    assert state_of(module)[1] == before[1] == 0 and not module.log
    assert all(np.array_equal(state_of(module)[0][k], v) for k, v in before[0].items())
    assert weight.grad is None and x.grad is None and streams() == drawn


def test_what_a_check_leaves_does_not_depend_on_requires_grad():
    frozen = Tensor(np.ones(3))
    assert gradcheck(np.exp, [frozen]) and not frozen.requires_grad
    frozen = torch.ones(3, dtype=torch.float64)
    assert gradcheck(torch.exp, [frozen]) and not frozen.requires_grad


class Odd:
    """Has a property that raises."""

    words, scale = np.array(["a", "b"]), np.array([2.0])

    @property
    def args(self):
        raise RuntimeError("not to be read")


def test_whatever_a_function_refers_to_can_be_saved():
    odd, later = Odd(), []
    fields = np.zeros(2, [("name", "U3"), ("size", "f8")])
    frozen = np.ones(3)
    frozen.flags.writeable = False

    def f(x):
        later.append(odd.words[0])
        fields["size"][0] += 1
        return x * (frozen + 0.0 * len(odd.words))

    assert gradcheck(f, [np.ones(3)]) and not later and not fields["size"].any()

    def unbound(x):
        return x * missing

    with pytest.raises(NameError):
        gradcheck(unbound, [np.ones(3)])
    missing = 2.0
    assert gradcheck(unbound, [np.ones(3)]) and missing


@pytest.mark.parametrize("make", [types.SimpleNamespace, argparse.Namespace, UserDict])
def test_namespaces_and_the_order_of_keys_are_left_as_they_were(make):
    space, counts = make(n=0), {"a": 1, "b": 2}

    def f(x):
        if make is UserDict:
            space["n"] += 1
        else:
            space.n += 1
        counts["a"] = counts.pop("a")
        return (x * x).sum()

    gradcheck(f, [np.ones(3)])
    assert (space["n"] if make is UserDict else space.n) == 0 and [*counts] == ["a", "b"]
