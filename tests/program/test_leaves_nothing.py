"""`ta.source` leaves nothing behind: what it runs, it undoes, for this thread and for all others."""

import copy
import logging
import pickle
import sys
import threading
from argparse import Namespace
from collections import Counter, OrderedDict, UserDict, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn
from tinygrad_attn.functional import softmax
from tinygrad_attn.program.restore import reachable, snapshot

X = np.random.default_rng(0).standard_normal((4, 3))
KEPT: list = []


class Norm(nn.Module):
    """Changes all that a module can change while it runs, its buffers only in training mode."""

    def __init__(self):
        self.linear = nn.Linear(3, 3).astype(np.float64)
        self.register_buffer("mean", np.zeros(3))
        self.register_buffer("count", np.zeros(2))
        self.calls, self.outputs, self.by_name = 0, [], {"nested": []}
        self.eval()

    def forward(self, x):
        y = self.linear(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
            self.count.data[0] += 1
        self.calls += 1
        self.last = y
        self.outputs.append(y)
        self.by_name["nested"].append(y)
        self.by_name["new"] = y
        KEPT.append(y)
        self.register_forward_hook(lambda *_: None)
        return y * 2.0


def state(x):
    """All that can be read of a module, a Tensor or nested values: numbers, names and identities."""
    if isinstance(x, nn.Module):
        return {name: state(value) for name, value in vars(x).items()}
    if isinstance(x, Tensor):
        hooks = list(getattr(x._tracked, "functions", ()))
        return type(x), x.numpy().tolist(), x.requires_grad, hooks, x._node, state(x.grad)
    if isinstance(x, dict):
        return {key: state(value) for key, value in x.items()}
    return [state(v) for v in x] if isinstance(x, (list, tuple)) else x


def squares(model):
    return lambda x: (model(x) ** 2).sum()


def raising(error):
    def hook(*_):
        raise error

    return hook


def interrupted(model, kept):
    model.linear.register_forward_hook(raising(KeyboardInterrupt()))
    return squares(model)


def refused(model, kept):
    return lambda x: model(x).sum() * float(x.sum())


def in_training(model, kept):
    model.train()
    return squares(model)


def with_lists(model, kept):
    model.linear.register_forward_hook(lambda module, args, output: kept.append(output))
    model.register_full_backward_hook(lambda module, gx, gy: kept.append(gy))
    return lambda x: kept.append(x) or squares(model)(x)


def with_hooks_of_tensors(model, kept):
    weight = model.linear.weight
    weight.register_hook(kept.append)

    def f(x):
        weight.register_hook(lambda g: None)
        x.register_hook(lambda g: kept.append(g))
        return squares(model)(x)

    return f


def with_its_own_backward(model, kept):
    def f(x):
        (model(x) ** 2).sum().backward()
        return (model(x) ** 2).sum()

    return f


WAYS = {
    "a closure": lambda model, kept: squares(model),
    "a method": lambda model, kept: model.forward,
    "lists of hooks": with_lists,
    "hooks of tensors": with_hooks_of_tensors,
    "an interrupt": interrupted,
    "a refusal": refused,
    "buffers that change": in_training,
    "a backward pass inside": with_its_own_backward,
}


@pytest.mark.parametrize("mapping", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_all_is_as_before(name, mapping):
    model, kept = Norm(), []
    f, refusals = WAYS[name](model, kept), ("an interrupt", "a refusal", "buffers that change")
    before, hooks = state(model), model._hooks
    params = dict(model.named_parameters()) if mapping else model
    hooked = Tensor(X, requires_grad=True)
    hooked.register_hook(kept.append)
    arguments = state(hooked)
    for array in (X, Tensor(X, requires_grad=True), hooked):
        try:
            ta.source(f, array, params=params)
        except (TypeError, KeyboardInterrupt):
            assert name in refusals
        else:
            assert name not in refusals
        assert state(model) == before and model._hooks is hooks and state(hooked) == arguments
        assert kept == [] and KEPT == []


class Frozen(dict):
    """A dict whose methods do something else than those of a dict."""

    def refuse(self, *_):
        raise AssertionError("called while it is restored")

    copy = update = clear = __delitem__ = refuse

    def __setitem__(self, key, value):
        super().__setitem__(key, self.get(key, 0) + value)


@pytest.mark.parametrize(
    "kind", [dict, Counter, OrderedDict, Frozen, lambda d: defaultdict(int, d)]
)
def test_dicts_of_all_kinds_are_as_before(kind):
    counts = kind({"calls": 10, "left": 1})

    def f(x):
        counts["calls"] += 1
        counts["new"] = 2
        return x.sum()

    before, content = type(counts), dict.copy(counts)
    ta.source(f, X)
    assert type(counts) is before and [*dict.items(counts)] == [*content.items()]
    assert [*counts] == [*content]


@pytest.mark.parametrize("kind", [Namespace, SimpleNamespace, UserDict])
def test_attributes_of_namespaces_are_as_before(kind):
    """Their classes are of the standard library, whose other objects are left alone."""
    holder = kind()
    holder.calls = 10

    def f(x):
        holder.calls += 1
        return x.sum()

    ta.source(f, X)
    assert holder.calls == 10


def test_no_variable_of_a_library_is_restored():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.5))
    names = ("tinygrad_attn", "numpy", "sys", "logging")
    modules = [m for name, m in [*sys.modules.items()] if name.partition(".")[0] in names]
    theirs = {id(x) for m in modules for x in vars(m).values() if isinstance(x, (list, dict))}
    found, _ = snapshot(model, lambda x: np.sum(model(x)), softmax, logging.getLogger(), KEPT)
    assert theirs.isdisjoint(map(id, found)) and any(x is KEPT for x in found)


def test_activations_are_those_of_the_users_calls():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).astype(np.float64)
    with ta.activations(model) as seen, ta.record_attention() as weights:
        program = ta.source(squares(model), X, params=model)
        assert not any(entry.outputs for entry in seen.values()) and not weights
        model(X)
        assert all(len(entry.outputs) == 1 for entry in seen.values())
    assert np.isclose(program(X)[0], squares(model)(Tensor(X)).item())


def test_random_numbers_are_drawn_as_without_it():
    drop = nn.Dropout(0.5)
    ta.manual_seed(0)
    np.random.seed(0)
    with pytest.raises(TypeError, match="draws random"):
        ta.source(lambda x: drop(x).sum() * np.random.rand(), X)
    mine = ta.rand(3).numpy(), np.random.rand(3)
    ta.manual_seed(0)
    np.random.seed(0)
    np.testing.assert_array_equal(mine, (ta.rand(3).numpy(), np.random.rand(3)))


def running_mean(model):
    model.mean = 0.9 * model.mean + 0.1


def in_place(model):
    model.mean.data[0] += 1


def of_an_array(model):
    model.counts[0] += 1


@pytest.mark.parametrize("change", [running_mean, in_place, of_an_array])
@pytest.mark.parametrize("backward", [True, False])
def test_what_a_program_would_not_change_is_refused(change, backward):
    """Also where the output does not depend on it."""

    class Counts(nn.Linear):
        def forward(self, x):
            if self.training:
                change(self)
            return super().forward(x)

    model = Counts(3, 3).astype(np.float64)
    model.register_buffer("mean", np.zeros(3))
    model.counts = np.zeros(2)
    before = state(model)
    with pytest.raises(TypeError, match="changes a buffer or an array of a module"):
        ta.source(squares(model), X, params=model, backward=backward)
    assert state(model).items() >= before.items() and model.counts[0] == 0
    ta.source(squares(model.eval()), X, params=model, backward=backward)


@pytest.mark.parametrize("dtype, rounding", [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_what_counts_its_calls_is_refused(dtype, rounding):
    """Although what it counts is restored. Differences of rounding are none."""
    model = nn.Linear(3, 3).astype(dtype)

    def f(x):
        model.calls += 1
        return model(x).sum() * (1 + model.calls * model.step)

    for model.step in (1, 1e-3, 1000 * rounding):
        model.calls = 0
        with pytest.raises(TypeError, match="a different value when it is called again"):
            ta.source(f, X.astype(dtype), params=model)
        assert model.calls == 0
    model.step = rounding
    ta.source(f, X.astype(dtype), params=model)


def test_another_thread_may_draw_random_numbers_meanwhile():
    """They are those that it draws without a tracing beside it, and no reason for a refusal."""
    draws, tracing, done = [], threading.Event(), threading.Event()

    def other():
        tracing.wait(10)
        draws.append(ta.rand(3).numpy())
        done.set()

    def f(x):
        tracing.set()
        assert done.wait(10)
        return (x * x).sum()

    thread = threading.Thread(target=other)
    ta.manual_seed(0)
    thread.start()
    program = ta.source(f, X)
    thread.join()
    mine = ta.rand(3).numpy()
    ta.manual_seed(0)
    np.testing.assert_array_equal([*draws, mine], [ta.rand(3).numpy(), ta.rand(3).numpy()])
    assert program(X)[0] == (X * X).sum()


def test_random_numbers_are_refused_even_if_the_function_goes_on():
    def f(x):
        try:
            return (x * ta.rand(3).numpy()).sum()
        except TypeError:
            return x.sum()

    with pytest.raises(TypeError, match="draws random numbers"):
        ta.source(f, X)


def test_other_threads_see_and_change_the_parameters_themselves():
    """Another thread computes, trains and copies while the function is being traced."""
    model = nn.Linear(3, 3).astype(np.float64)
    weight, expected = model.weight, model(X).numpy()
    tracing, done, found = threading.Event(), threading.Event(), {}

    def other():
        tracing.wait(10)
        found["output"] = model(X).numpy()
        model(Tensor(X)).sum().backward()
        found["copy"] = copy.deepcopy(model)
        found["pickled"] = pickle.loads(pickle.dumps(model))
        found["parameter"] = copy.copy(weight)
        weight.data -= 0.5 * weight.grad.numpy()
        done.set()

    def f(x):
        tracing.set()
        assert done.wait(10)
        return (model(x) ** 2).sum()

    thread = threading.Thread(target=other)
    thread.start()
    program = ta.source(f, X, params=model)
    thread.join()
    np.testing.assert_array_equal(found["output"], expected)
    for copied in (found["copy"], found["pickled"]):
        np.testing.assert_array_equal(copied(X).numpy(), expected)
        assert type(copied.weight) is nn.Parameter
    assert type(found["parameter"]) is nn.Parameter
    assert type(weight) is nn.Parameter and weight.grad is not None
    y = (model(Tensor(X)) ** 2).sum()
    assert not np.allclose(model(X).numpy(), expected)
    assert np.isclose(program(X)[0], y.item())
    np.testing.assert_allclose(program(X)[1]["weight"], ta.grad(y, [weight])[0].numpy())


class Slow(nn.Parameter):
    """A parameter whose copy begins and ends when the test says so."""

    begun, end = threading.Event(), threading.Event()

    def __getstate__(self):
        self.begun.set()
        assert self.end.wait(10)
        return super().__getstate__()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("begins_inside", [False, True])
def test_a_copy_of_another_thread_may_begin_or_end_inside(copied, begins_inside):
    model, copies = nn.Linear(3, 3).astype(np.float64), []
    model.weight = Slow(model.weight.numpy())
    Slow.begun.clear(), Slow.end.clear()
    other = threading.Thread(target=lambda: copies.append(copied(model)))
    begin = lambda: (other.start(), Slow.begun.wait(10))
    end = lambda: (Slow.end.set(), other.join())
    inside = iter([begin if begins_inside else end])

    def f(x):
        next(inside, lambda: None)()
        return (model(x) ** 2).sum()

    if not begins_inside:
        begin()
    ta.source(f, X, params=model)
    end()
    np.testing.assert_array_equal(copies[0].weight.numpy(), model.weight.numpy())
    assert type(copies[0].weight) is Slow is type(model.weight)


def test_another_thread_may_step_between_forward_and_backward():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).astype(np.float64)

    def step():
        for p in model.parameters():
            p.data -= 0.1

    def f(x):
        y = (model(x) ** 2).sum()
        other = threading.Thread(target=step)
        other.start(), other.join()
        return y

    before = model[0].weight.numpy().copy()
    program = ta.source(f, X, params=model)
    np.testing.assert_allclose(model[0].weight.numpy(), before - 0.3)
    np.testing.assert_allclose(program(X)[0], squares(model)(X).item())


def test_two_threads_write_programs_of_one_model():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).astype(np.float64)
    found = []
    write = lambda: found.append(ta.source(squares(model), X, params=model))
    threads = [threading.Thread(target=write) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len({program.text for program in found}) == 1 and len(found) == 4


def test_what_is_kept_out_of_reach_is_refused_when_it_is_used():
    class Store:
        __slots__ = ("value",)

    store = Store()

    def f(x):
        store.value = x * 2
        thread = threading.Thread(target=lambda: refusals.append(refusal_of(store)))
        thread.start()
        thread.join()
        return x.sum()

    def refusal_of(store):
        try:
            return (store.value + 1).dtype
        except RuntimeError as error:
            return str(error)

    refusals = []
    within_reach = ta.source(f, X, backward=False)
    assert within_reach(X) == X.sum() and refusals == []
    x = store.value  # of the last run, which is one with numbers
    assert x.shape == (4, 3) and (x + 1).dtype == np.float64
    with pytest.raises(TypeError, match="reads a number"):
        ta.source(lambda x: f(x) * float(x.sum()), X)
    assert "ta.source traces" in refusal_of(store) and "traced" in repr(store.value._data)


# ---- what is active while a program is written belongs to it


def test_hooks_and_patches_are_part_of_the_program():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).astype(np.float64)
    f, x = squares(model), Tensor(X, requires_grad=True)
    double = lambda module, gx, gy: (gx[0] * 2,)
    for around in (
        lambda: ta.patch(model, {"0": lambda y: y * 3}),
        lambda: ta.patch(model, {"1": np.ones((4, 3))}),
        lambda: model[0].register_forward_hook(lambda module, args, output: output - 1),
        lambda: model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        lambda: model[2].register_full_backward_hook(double),
        lambda: model[2].weight.register_hook(lambda g: g * 2),
        lambda: x.register_hook(lambda g: g * 2),
    ):
        plain = ta.source(f, x, params=model)
        with around():
            program = ta.source(f, x, params=model)
            y = f(x)
            expected = ta.grad(y, [x, model[2].weight], allow_unused=True)
        assert program.text != plain.text
        for _ in range(2):  # after the block as well
            value, gradients = program(X)
            assert np.isclose(value, y.item())
            for name, g in zip(("x", "2.weight"), expected):
                np.testing.assert_allclose(
                    gradients.get(name, 0 * X if name == "x" else 0),
                    0 * X if g is None else g.numpy(),
                )
        assert ta.source(f, x, params=model).text == plain.text


def test_numbers_in_long_lists_are_not_visited():
    texts, found = [[1000 + i, 0.5, "a", None] for i in range(3)], {}
    mixed = (texts, [7, {"deeper": [found]}, 8])
    visited = reachable([mixed])
    assert not any(isinstance(x, (int, float, str)) for x in visited[1:] if x not in (7, 8))
    assert all(any(x is y for y in visited) for x in (*texts, found))
