"""`ta.compile`: the numbers of the function itself, at every call, whatever has changed since the last."""

import abc
import collections
import contextlib
import copy
import datetime
import functools
import importlib.util
import itertools
import math
import operator
import random
import threading
import time
import warnings
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from optable import TABLE
from support import ROOT

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.fast.compiling import flat
from tinygrad_attn.fast.kernels import elementwise

pytestmark = pytest.mark.usefixtures("in_float64")
rng = np.random.default_rng(0)
SCALE = 2.0
MASK = np.tri(7, dtype=bool)


def close(mine, expected, tolerance=1e-12):
    mine, expected = (
        x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (mine, expected)
    )
    assert mine.shape == expected.shape and mine.dtype == expected.dtype
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance * max(1, size))


def compiled(f, **flags):
    return ta.compile(f, measure=False, **flags)


def gradients(y, leaves):
    """The gradients of a weighted sum of y, zeros where there is none."""
    g = np.random.default_rng(3).standard_normal(y.shape)
    found = ta.grad(y, leaves, g[()], allow_unused=True)
    return [np.zeros(x.shape) if s is None else s.numpy() for x, s in zip(leaves, found)]


def check(c, f, *args, params=(), tolerance=1e-12):
    """The compiled function gives what the function gives, and its gradients."""
    leaves = [*(x for x in args if isinstance(x, Tensor) and x.requires_grad), *params]
    expected = f(*args)
    mine = c(*args)
    assert type(mine) is type(expected)
    close(mine, expected, tolerance)
    if isinstance(expected, Tensor):
        assert mine.requires_grad == expected.requires_grad
        if leaves and expected.requires_grad:
            for a, b in zip(gradients(mine, leaves), gradients(expected, leaves)):
                close(a, b, tolerance)


def runs(c, programs=1):
    """Are there so many programs, and no kind of call without one?"""
    assert [line.reason for line in c.report()] == [""] * programs
    assert all(line.compiled and line.lines for line in c.report())


def leaf(*shape):
    return Tensor(rng.standard_normal(shape), requires_grad=True)


# ---- every op, and random programs


@pytest.mark.parametrize("name", TABLE)
def test_every_entry_of_the_table_of_ops(name):
    """At two calls with different numbers: values and gradients are the function's own."""

    @settings(max_examples=4, deadline=None, database=None,
              suppress_health_check=[*HealthCheck], phases=[Phase.generate])  # fmt: skip
    @given(data=st.data())
    def run(data):
        sample = TABLE[name](data.draw)
        args = [Tensor(x.astype(np.float64), requires_grad=True) for x in sample.inputs]
        if not isinstance(sample.ours(*args), Tensor):
            return
        c = compiled(sample.ours)
        check(c, sample.ours, *args)
        others = [
            Tensor(x.numpy() + 0.01 * np.arange(x.size).reshape(x.shape), requires_grad=True)
            for x in args
        ]
        try:
            sample.ours(*others)
        except (ValueError, np.linalg.LinAlgError):
            return
        check(c, sample.ours, *others)
        check(c, sample.ours, *args)
        if "torch" not in c.report()[0].reason:  # the sample calls PyTorch's function to compare
            COMPILED.setdefault(name, []).extend(line.reason for line in c.report())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()


COMPILED = {}


def test_nearly_all_of_the_table_runs_compiled():
    if len(COMPILED) < len(TABLE) // 2:
        pytest.skip("the test above was not run")
    without = {name: set(found) for name, found in COMPILED.items() if all(found)}
    assert len(without) <= 4, without


def test_random_programs():
    spec = importlib.util.spec_from_file_location(
        "source_fuzz", ROOT / "tests" / "transforms" / "test_source_fuzz.py"
    )
    source_fuzz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source_fuzz)
    drawn = source_fuzz.drawn

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(40):
            f, arrays = drawn(seed)
            c = compiled(f)
            noise = np.random.default_rng(seed)
            for _ in range(3):
                args = [
                    Tensor(a + 0.1 * noise.standard_normal(a.shape), requires_grad=True)
                    for a in arrays
                ]
                check(c, f, *args, tolerance=1e-10)


# ---- layers


def encoder(**flags):
    flags = {"dropout": 0.0, "batch_first": True, **flags}
    return nn.TransformerEncoderLayer(8, 2, 12, **flags)


@pytest.mark.parametrize("flags", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=str)
def test_encoder_layers(flags):
    layer = encoder(**flags)
    c = compiled(layer)
    params = list(layer.parameters())
    for _ in range(3):
        check(c, layer, leaf(5, 7, 8), params=params)
    runs(c)


def test_a_decoder_layer_and_masks_that_change():
    layer = nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True)

    def f(tgt, memory, padded):
        return layer(tgt, memory, tgt_is_causal=True, memory_key_padding_mask=padded)

    c = compiled(f)
    for lengths in ([6, 3, 4, 1, 5], [1, 2, 3, 4, 6], [6, 6, 6, 6, 6]):
        padded = np.arange(6) >= np.array(lengths)[:, None]
        check(c, f, leaf(5, 7, 8), leaf(5, 6, 8), padded, params=list(layer.parameters()))
    runs(c)


def test_rows_that_may_see_nothing_and_scores_that_overflow():
    def f(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    c = compiled(f)
    open_, blind = np.ones((4, 5), bool), np.ones((4, 5), bool)
    blind[1] = False
    for size, mask in ((1, open_), (1, blind), (60, open_), (60, blind), (1, open_)):
        q, k, v = leaf(2, 4, 3), leaf(2, 5, 3), leaf(2, 5, 3)
        q = Tensor(size * q.numpy(), requires_grad=True)
        check(c, f, q, k, v, mask)
    runs(c)


def test_float32_stays_float32():
    layer = encoder().astype(np.float32)
    c = compiled(layer)
    x = Tensor(rng.standard_normal((5, 7, 8)).astype(np.float32), requires_grad=True)
    for _ in range(2):
        check(c, layer, x, tolerance=1e-5)
        c(x).sum().backward()
    assert x.grad.dtype == np.float32 and layer.linear1.weight.grad.dtype == np.float32
    runs(c)


# ---- what changes between calls


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_gelu_is_computed_by_the_kernel(dtype, tolerance):
    c, x = compiled(F.gelu), ta.Tensor(np.linspace(-7, 7, 60, dtype=dtype), requires_grad=True)
    check(c, F.gelu, x, tolerance=tolerance)
    with ta.no_grad():
        check(c, F.gelu, x[30], tolerance=tolerance)
    runs(c, 2)


def test_shapes_and_dtypes():
    f = lambda x: np.sum(np.sin(x) * x, axis=-1)
    c = compiled(f)
    for x in (leaf(3, 4), leaf(4, 3), leaf(3, 4), Tensor([1, 2]), leaf(3, 4).astype(np.float32)):
        check(c, f, x, tolerance=1e-12 if x.dtype != np.float32 else 1e-6)
    assert len(c.report()) == 4


def test_optimiser_steps_in_place_are_seen():
    def train(compile):
        ta.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        step = lambda x, t: F.cross_entropy(model(x), t)
        step = compile(step)
        optimiser = optim.AdamW(model.parameters(), lr=0.05)
        draw, losses = np.random.default_rng(0), []
        for _ in range(12):
            x, target = Tensor(draw.standard_normal((8, 6))), draw.integers(0, 3, 8)
            optimiser.zero_grad()
            loss = step(x, target)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        if compile is compiled:
            runs(step)
        return losses

    close(train(compiled), train(lambda f: f), 1e-10)


def test_parameters_replaced():
    layer = nn.Linear(3, 2)
    c = compiled(layer)
    x = leaf(4, 3)
    check(c, layer, x, params=[layer.weight])
    layer.weight = nn.Parameter(rng.standard_normal((2, 3)))
    check(c, layer, x, params=[layer.weight])
    layer.weight.data = rng.standard_normal((2, 3))
    check(c, layer, x, params=[layer.weight])
    layer.weight.requires_grad = False
    check(c, layer, x, params=[layer.bias])
    layer.bias = None
    check(c, layer, x)


def test_train_eval_and_dropout():
    layer = encoder(dropout=0.5)
    c = compiled(layer)
    x = leaf(5, 7, 8)
    for _ in range(2):
        layer.train()
        ta.manual_seed(5)
        mine = c(x)
        ta.manual_seed(5)
        close(mine, layer(x))
        layer.eval()
        check(c, layer, x, params=list(layer.parameters()))
    layer.dropout.p = 0.1
    check(c, layer, x)
    reasons = [line.reason for line in c.report()]
    assert any("random" in reason for reason in reasons) and "" in reasons


def test_no_grad():
    layer = encoder()
    c = compiled(layer)
    x = leaf(5, 7, 8)
    for _ in range(2):
        check(c, layer, x)
        with ta.no_grad():
            check(c, layer, x)
            assert not c(x).requires_grad
    runs(c, 2)


def test_globals_closures_and_attributes(monkeypatch):
    shift, weights, table = 1.0, [1.0, 2.0], {"a": 3.0}
    inner = leaf(7)
    array = np.ones(7)

    class Settings:
        factor = 4.0

        def __init__(self):
            self.power = 2

    kept = Settings()

    def helper(x):
        return x * SCALE

    def f(x):
        y = helper(x) + shift + weights[1] + table["a"] + kept.power + Settings.factor
        return np.where(MASK[3], y, 0.0) * inner + array

    c = compiled(f)
    x = leaf(2, 7)

    def both():
        check(c, f, x, params=[inner])
        check(c, f, x, params=[inner])

    both()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    both()
    shift = 5.0
    both()
    weights[1] = 7.0
    both()
    weights.append(1)
    table["a"] = -1.0
    both()
    kept.power = 5
    both()
    Settings.factor = 0.5
    both()
    array[2] = 9.0
    both()
    monkeypatch.setitem(globals(), "MASK", ~MASK)
    both()
    inner = leaf(7)
    both()
    helper = lambda x: x + SCALE  # noqa: E731, F811, F841
    both()
    assert {line.reason for line in c.report()} == {""}


def test_arguments_that_are_no_arrays():
    def f(x, power, *, pair=(1.0, 2.0), flag=False):
        return (x**power * pair[0] + pair[1]) if flag else -x * pair[1]

    c = compiled(f)
    x = leaf(3)
    for args, kwargs in [((2,), {}), ((2.0,), {"flag": True}), ((3,), {"flag": True}),
                         ((2,), {"pair": (3.0, 4.0)}), ((2,), {"pair": (x, 4.0), "flag": True}),
                         ((True,), {"flag": True}), ((2,), {"pair": [x, leaf(3)]})]:  # fmt: skip
        close(c(x, *args, **kwargs), f(x, *args, **kwargs))
        close(c(x, *args, **kwargs), f(x, *args, **kwargs))
    assert {line.reason for line in c.report()} == {""}


def test_one_tensor_in_several_places():
    w = leaf(3)

    def f(a, b):
        return a * b + w * a

    c = compiled(f)
    x, y = leaf(3), leaf(3)
    for args in ((x, y), (x, x), (w, x), (w, w), (x, y)):
        check(c, f, *args, params=[w])


# ---- what is refused, with the reason


def reason_of(f, *args):
    c = compiled(f)
    for _ in range(2):
        c(*args)
    (line,) = {line.reason for line in c.report()}
    with pytest.raises(TypeError, match="fullgraph"):
        compiled(f, fullgraph=True)(*args)
    return line


def test_what_cannot_be_compiled_says_why():
    own = np.random.default_rng(0)
    seen = []
    counter = {"calls": 0}

    def counted(x):
        counter["calls"] += 1
        return x * counter["calls"]

    def collecting(x):
        y = x * 2
        seen.append(y)
        return y

    def printing(x):
        print("here")
        return x

    x = leaf(3)
    assert "reads a number" in reason_of(lambda x: x if x.sum() > 0 else -x, x)
    assert "Generator" in reason_of(lambda x: x * own.random(), x)
    assert "draws random" in reason_of(lambda x: x * np.random.rand(), x)
    assert "random" in reason_of(lambda x: F.dropout(x, 0.5), x)
    assert "print" in reason_of(printing, x)
    assert ".grad" in reason_of(lambda x: x * (1 if x.grad is None else 2), x)
    c = compiled(counted)
    for n in (1, 2, 3):
        close(c(x), x.numpy() * n)
    c = compiled(collecting)
    for n in (1, 2, 3):
        c(x)
        assert len(seen) == n and isinstance(seen[-1].numpy(), np.ndarray)
    assert "changes something" in c.report()[0].reason


def test_clocks_caches_and_generators_are_not_frozen():
    x = leaf(3)
    numbers, turns = itertools.count(), random.Random(0)

    @functools.lru_cache
    def cached():
        return SCALE

    refused = {
        "time": lambda x: x * time.time(),
        "datetime": lambda x: x * datetime.datetime.now().second,
        "random": lambda x: x * random.random(),
        "a Random": lambda x: x * turns.random(),
        "count": lambda x: x * next(numbers),
        "lru_cache": lambda x: x * cached(),
        "own ufunc": lambda x: x * OWN(2.0),
    }
    for name, f in refused.items():
        c = compiled(f)
        c(x)
        assert "watched" in c.report()[0].reason, (name, c.report())


OWN = np.frompyfunc(lambda x: x * SCALE, 1, 1)


def test_functions_inside_functions_are_looked_into(monkeypatch):
    inner = lambda x: np.sum(x**2) * SCALE
    both = ta.value_and_grad(inner)
    again = ta.compile(inner)
    partial = functools.partial(lambda n, x: np.sum(x) * n * SCALE, 3)

    class Held:
        def __getattr__(self, name):
            return SCALE

        def __call__(self, x):
            return x * self.anything

    class Own(nn.TransformerEncoderLayer):
        pass

    layer = Own(8, 2, 12, 0.0, batch_first=True)
    functions = [lambda x: both(x)[0], lambda x: again(x), partial, Held(), layer,
                 lambda x: nn.Linear and inner(x)]  # fmt: skip
    made = [compiled(f) for f in functions]
    x = leaf(2, 3, 8)
    for scale in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        layer.norm_first = scale == 3.0
        for c, f in zip(made, functions):
            close(c(x), f(x))
            close(c(x), f(x))
    assert [c.report()[0].reason for c in made[1:5]] == [""] * 4


def test_a_refused_function_draws_what_it_would_have_drawn():
    c = compiled(lambda x: F.dropout(x, 0.5))
    x = leaf(30)
    ta.manual_seed(3)
    mine = [c(x).numpy() for _ in range(3)]
    ta.manual_seed(3)
    for a in mine:
        close(a, F.dropout(x, 0.5))


def test_values_on_which_the_package_branches():
    f = lambda x: np.prod(x)
    c = compiled(f)
    for numbers in ([1.0, 2.0, 3.0], [2.0, 0.0, 5.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]):
        check(c, f, Tensor(numbers, requires_grad=True))


# ---- as without it


def test_results_are_the_callers_own():
    layer = encoder()
    c = compiled(layer)
    one, two = leaf(5, 7, 8), leaf(5, 7, 8)
    y = c(one)
    kept = y.numpy().copy()
    z = c(two)
    assert not np.shares_memory(y.numpy(), z.numpy())
    close(y, kept)
    first = gradients(y, [one])
    close(first[0], gradients(layer(one), [one])[0])
    f = compiled(lambda x: x)
    f(one)
    runs(f)
    assert not np.shares_memory(f(one).numpy(), one.numpy())
    (g1,), (g2,) = ta.grad(z.sum(), [two], retain_graph=True), ta.grad(z.sum(), [two])
    assert not np.shares_memory(g1.numpy(), g2.numpy())


def test_what_a_caller_does_to_a_result_does_not_reach_the_gradient():
    f = lambda x: np.exp(x)
    c = compiled(f)
    x = leaf(4)
    for _ in range(2):
        y = c(x)
        try:
            y.numpy()[:] = 0
            y.sum().backward()
        except ValueError:
            continue
        close(x.grad, np.exp(x.numpy()))
        x.grad = None


def test_only_the_gradients_that_are_wanted_are_computed():
    layer = encoder()
    c, x = compiled(lambda x: (layer(x) ** 2).sum()), leaf(2, 5, 8)
    whole = ta.grad(c(x), [x, layer.linear2.bias])
    (alone,), (bias,) = ta.grad(c(x), [x]), ta.grad(c(x), [layer.linear2.bias])
    close(alone, whole[0])
    close(bias, whole[1])
    ((entry,),) = c._programs.entries.values()
    (passes,) = entry.flat.passes
    lines = sorted(text.count("\n") for text, _ in passes.written.values())
    assert lines[0] < 0.3 * lines[-1] and lines[1] < 0.9 * lines[-1], lines  # bias, x, ..., all


def test_retain_graph_and_a_second_pass():
    c = compiled(lambda x: np.sum(np.tanh(x) ** 2))
    x = leaf(4)
    for _ in range(2):
        y = c(x)
        (once,) = ta.grad(y, [x], retain_graph=True)
        (twice,) = ta.grad(y, [x])
        close(once, twice)
        with pytest.raises(RuntimeError, match="released"):
            ta.grad(y, [x])


def test_second_order():
    w = leaf(4, 4)
    f = lambda x: np.sum(np.tanh(x @ w) ** 2)
    c = compiled(f)
    x = leaf(3, 4)

    def second(function):
        y = function(x * 2)
        gx, gw = ta.grad(y, [x, w], create_graph=True)
        loss = (gx**2).sum() + (gw**3).sum()
        return [g.numpy() for g in ta.grad(loss, [x, w])]

    for _ in range(2):
        for a, b in zip(second(c), second(f)):
            close(a, b)
    close(ta.hessian(c, x), ta.hessian(f, x))


def test_a_parameter_changed_before_backward_is_an_error():
    layer = nn.Linear(3, 2)
    c = compiled(layer)
    x = leaf(4, 3)
    for _ in range(2):
        y = c(x)
        layer.weight.data += 1
        with pytest.raises(ValueError, match="changed in place"):
            y.sum().backward()


def test_something_outside_changed_before_a_second_derivative_is_an_error(monkeypatch):
    c = compiled(lambda x: np.sum(x**3) * SCALE)
    x = leaf(3)
    y = c(x)
    monkeypatch.setitem(globals(), "SCALE", 10.0)
    with pytest.raises(RuntimeError, match="changed"):
        ta.grad(y, [x], create_graph=True)


def test_several_results():
    def f(x, n):
        return {"sum": x.sum(), "rows": (x * 2, x[0]), "index": n + 1, "n": 3}

    c = compiled(f)
    for _ in range(2):
        x, n = leaf(3, 4), np.arange(3)
        mine, expected = c(x, n), f(x, n)
        assert mine["n"] == 3 and type(mine["index"]) is np.ndarray
        close(mine["index"], expected["index"])
        total = lambda y: y["sum"] * 2 + (y["rows"][0] ** 2).sum() + y["rows"][1].sum()
        close(ta.grad(total(mine), [x])[0], ta.grad(total(expected), [x])[0])
        assert mine["rows"][1].shape == (4,)
    runs(c)


def test_as_a_decorator_and_of_a_method():
    @ta.compile
    def f(x):
        """Twice x."""
        return 2 * x

    assert f.__doc__ == "Twice x." and f.__name__ == "f"
    close(f(leaf(2)).shape, (2,))

    class Model(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(3, 3)
            self.factor = 2.0

        @ta.compile(measure=False)
        def forward(self, x):
            return self.linear(x) * self.factor

    one, two = Model(), Model()
    x = leaf(2, 3)
    for model in (one, two, one):
        close(model(x), (model.linear(x) * 2.0))
    one.factor = 3.0
    close(one(x), one.linear(x) * 3.0)
    with pytest.raises(TypeError, match="a function or a module, got"):
        ta.compile(3)


def test_in_plain_mode_the_function_itself_runs():
    c = compiled(lambda x: np.sum(np.exp(x)))
    x = leaf(3)
    c(x)
    with ta.plain():
        assert c(x)._record.op.__name__ == "sum"
    assert "compiled" in c(x)._record.op.__name__


def test_an_error_of_the_functions_own():
    c = compiled(lambda x: x @ np.ones((5, 2)))
    for _ in range(2):
        with pytest.raises(ValueError):
            c(leaf(3, 4))


def test_many_kinds_of_call():
    c = compiled(lambda x, n: x * n)
    x = leaf(3)
    for n in range(40):
        close(c(x, n), x.numpy() * n)
    assert len(c.report()) <= 8
    close(c(x, 3), x.numpy() * 3)


def test_threads():
    layer = encoder()
    c = compiled(layer)
    params = list(layer.parameters())
    wrong = []
    inputs = [[leaf(2 + i % 2, 7, 8) for _ in range(8)] for i in range(4)]
    expected = [[gradients(layer(x), [x, *params]) for x in xs] for xs in inputs]

    def work(i):
        try:
            for x, grads in zip(inputs[i], expected[i]):
                for a, b in zip(gradients(c(x), [x, *params]), grads):
                    close(a, b)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong


def test_a_program_that_fails_where_the_function_does_not_is_told_and_used_no_more(monkeypatch):
    c = compiled(lambda x: np.sum(x * x))
    x = leaf(3)
    c(x)
    (entry,) = next(iter(c._programs.entries.values()))

    def fails(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(entry.flat, "forward", fails)
    close(c(x), (x * x).sum())
    assert c.report()[0].reason == "the program failed where the function did not: out of order"
    close(c(x), (x * x).sum())


# ---- programs that try to be frozen wrongly


def unfrozen(f, *calls, params=()):
    """The compiled function gives what the function gives at each of these calls: a tuple of
    arguments, or a change to be made between calls.
    """
    c = compiled(f)
    for call in calls:
        if callable(call):
            call()
        else:
            check(c, f, *call, params=params)


class Plain:
    """An object with some attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


@pytest.mark.parametrize("labels", ["ij->ji", "ii->i", "ij->ij"])
def test_an_einsum_that_is_a_view_leaves_what_it_is_given_as_it_was(labels):
    w = nn.Parameter(rng.standard_normal((3, 3)))
    f = lambda x: np.einsum(labels, x) * 2.0 + np.exp(np.einsum(labels, w)).sum()
    x = leaf(3, 3)
    before = x.numpy().copy(), w.numpy().copy()
    c = compiled(f)
    for _ in range(2):
        check(c, f, x, params=[w])
        close(x, before[0])
        close(w, before[1])


def test_what_is_written_into_was_never_a_view():
    """Each function whose result counts as memory of its own, on many kinds of array."""
    arrays = (np.ones(4), np.ones((3, 3)), np.ones((1, 1, 2), int), np.ones((2, 2), bool), np.ones((2, 3), "f4").T)  # fmt: skip
    for name in flat.FRESH | flat.FRESH_CALLS:
        method, answered = name in flat.FRESH, 0
        function = getattr(np.ndarray, name) if method else getattr(elementwise if name == "erf" else np, name)
        count = getattr(function, "nin", 1)
        for x in arrays:
            ways = [((x, x)[:count], {}), ((x,), {"axis": ()}), ((x, x.dtype), {}), (([x],), {}), ((x, 0), {}), (("...->...", x), {})]
            ways += [((x > 0, x, x), {}), ((x, x.astype(int), 0), {})]
            for args, settings in ways:
                if isinstance(function, np.ufunc) and len(args) > count:
                    continue  # it would be the place for the result
                with contextlib.suppress(TypeError, ValueError, IndexError, AttributeError), np.errstate(all="ignore"):
                    y = function(*args, **settings)
                    answered += isinstance(y, np.ndarray)
                    assert not np.shares_memory(y, x), (name, args)
        assert answered, name


def test_a_refusal_that_the_function_catches_is_a_refusal():
    def signed(x):
        try:
            negative = float(x.sum()) < 0
        except Exception:
            negative = False
        return -x if negative else x * 1.0

    def scaled(x):
        largest = 1.0
        with contextlib.suppress(TypeError):
            largest = max(1.0, x.max().item())
        return x / largest

    flat = lambda x, a: x * next(iter(getattr(a, "flat", [1.0])))
    real = lambda x, a: x * getattr(a, "real", np.ones(2))
    small, large = Tensor([0.1, 0.2], requires_grad=True), Tensor([-9.0, 7.0], requires_grad=True)
    unfrozen(signed, (small,), (large,))
    unfrozen(scaled, (small,), (large,))
    unfrozen(flat, (small, np.ones(2)), (small, np.full(2, 3.0)))
    unfrozen(real, (small, np.ones(2)), (small, np.full(2, 3.0)))


def test_a_refusal_that_a_rule_catches_is_a_refusal():
    @ta.op
    def size(x):
        return np.abs(x)

    def rule(g, y, x):
        try:
            return g if float(x.min()) > 0 else g * np.sign(x)
        except TypeError:
            return g

    size.vjp(rule)
    f = lambda x: size(x) * 1.0
    unfrozen(f, (Tensor([1.0, 2.0], requires_grad=True),), (Tensor([-1.0, 2.0], requires_grad=True),))


def put_one(x, i):
    y = np.zeros((3, 4))
    np.put_along_axis(y, i[:, None], 1.0, axis=1)
    return y


def written(write, size=3):
    def f(x, a):
        buffer = np.zeros(size)
        write(buffer, a)
        return x * buffer

    return f


WRITES = {
    "copyto": written(np.copyto),
    "copyto of a Tensor's array": lambda x, a: written(np.copyto)(x, x.data),
    "put": written(lambda b, a: np.put(b, a.astype(np.int64) % 3, 1.0)),
    "place": written(lambda b, a: np.place(b, a > 1, [1.0, 2.0])),
    "putmask": written(lambda b, a: np.putmask(b, a > 1, 1.0)),
    "put_along_axis": lambda x, a: x @ put_one(x, a.astype(np.int64) % 4),
    "full": lambda x, a: x * np.full(3, a.max(), dtype=np.float64),
    "full_like": lambda x, a: x * np.full_like(np.zeros(3), a.max()),
    "dot": written(lambda b, a: np.dot(a, np.eye(3), b)),
    "cumsum": written(lambda b, a: np.cumsum(a, None, None, b)),
    "clip": written(lambda b, a: np.clip(a, 0, 10, b)),
    "take": written(lambda b, a: np.take(a, [0, 1, 2], None, b)),
    "concatenate": written(lambda b, a: np.concatenate((a[:1], a[1:]), 0, b)),
    "a.cumsum": written(lambda b, a: a.cumsum(0, None, b)),
    "a.sum": written(lambda b, a: a.sum(out=b), ()),
    "a.dot": written(lambda b, a: a.dot(np.eye(3), b)),
    "a.take": written(lambda b, a: a.take([0, 1, 2], out=b)),
    "a.clip": written(lambda b, a: a.clip(0, 10, b)),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_numpy_writes_into_a_plain_array_is_not_frozen(name):
    a = np.array([0.0, 1.0, 2.0])
    unfrozen(WRITES[name], (leaf(3), a), (leaf(3), a[::-1] * 3), (leaf(3), a + 1))


def test_what_numpy_writes_inside_an_op_is_not_frozen():
    @ta.op
    def twice(x):
        y = np.zeros(x.shape)
        np.copyto(y, x)
        return y * 2

    twice.vjp(lambda g, y, x: g * 2)
    unfrozen(lambda x: twice(x) * x, (leaf(3),), (leaf(3),))


@pytest.mark.parametrize("text", [str, repr, lambda a: f"{a}", np.array2string, np.array_str], ids=str)
def test_numbers_read_as_text_are_not_frozen(text):
    plus, minus = np.array([1.0, 2.0]), np.array([-1.0, 2.0])
    f = lambda x, a: -x if "-" in text(a) else x * 1.0
    unfrozen(f, (leaf(2), plus), (leaf(2), minus))
    g = lambda x: -x if "-" in text(x.data) else x * 1.0
    h = lambda x: -x if "-" in str(x) else x * 1.0
    for function in (g, h):
        unfrozen(function, (Tensor(plus, requires_grad=True),), (Tensor(minus, requires_grad=True),))


@pytest.mark.parametrize("flat", [
    lambda a: a.ravel(order="F"), lambda a: a.flatten("F"), lambda a: a.reshape(4, order="F"),
    lambda a: np.reshape(a, 4, order="F"), lambda a: a.ravel("K"), lambda a: np.reshape(a, -1, order="A"),
], ids=["ravel", "flatten", "reshape", "np.reshape", "ravel-K", "reshape-A"])  # fmt: skip
def test_an_order_of_memory_is_not_passed_over(flat):
    symmetric, other = np.array([[1.0, 2.0], [2.0, 1.0]]), np.arange(4.0).reshape(2, 2)
    f = lambda x, a: x * flat(a)
    unfrozen(f, (leaf(4), symmetric), (leaf(4), other), (leaf(4), np.asfortranarray(other)))


@pytest.mark.parametrize("size", [
    lambda a: len(a.nonzero()[0]), lambda a: np.setxor1d(a, [2, 3]).size, lambda a: np.unique_values(a).size,
    lambda a: np.unique_counts(a).counts.size, lambda a: np.unique_inverse(a).values.size,
    lambda a: np.min_scalar_type(a[0].reshape(())).itemsize,
], ids=["nonzero", "setxor1d", "unique_values", "unique_counts", "unique_inverse", "min_scalar_type"])  # fmt: skip
def test_sizes_that_depend_on_numbers_are_not_frozen(size):
    f = lambda x, a: x * size(a)
    unfrozen(f, (leaf(2), np.array([1, 2])), (leaf(2), np.array([3000, 0])), (leaf(2), np.array([5, 5])))


def test_the_order_of_keyword_arguments_is_seen():
    def f(**named):
        first, second = named.values()
        return first * 2 + second

    c, x, y = compiled(f), leaf(3), leaf(3)
    for named in ({"a": x, "b": y}, {"b": x, "a": y}):
        close(c(**named), f(**named))


def test_whether_two_arguments_are_one_is_seen():
    f = lambda x, a, b: x * 2 if a is b else x * 3
    for one, two in ((np.ones(2), np.ones(2)), ([1], [1])):
        unfrozen(f, (leaf(3), one, two), (leaf(3), one, one))
    w = leaf(3)
    unfrozen(lambda x: x * 2 if x is w else x * 3, (leaf(3),), (w,))
    held = [w]
    unfrozen(lambda x: x * 2 if any(x is h for h in held) else x * 3, (leaf(3),), (w,))
    shared = np.arange(6.0)
    f = lambda x, a, b: x * 2 if np.shares_memory(a, b) else x * 3
    unfrozen(f, (leaf(3), shared[:3], shared[3:]), (leaf(3), shared[:3], shared[1:4]))


def test_what_is_asked_of_an_argument_beside_its_shape():
    named = lambda x: x * 2 if x.name == "big" else x * 3
    one, two = leaf(3), leaf(3)
    one.name, two.name = "small", "big"
    unfrozen(named, (one,), (two,))
    unfrozen(lambda x: x * 2 if one.name == "big" else x * 3, (two,),
             lambda: setattr(one, "name", "big"), (two,))  # fmt: skip
    unfrozen(lambda x: x * 2 if x.is_leaf else x * 3, (leaf(3),), (leaf(3) * 1.5,))
    numbers = np.arange(6.0)
    unfrozen(lambda x, a: x * (a.strides[0] // 8), (leaf(3), numbers[:3]), (leaf(3), numbers[::2]))
    fixed = np.ones(3)
    fixed.flags.writeable = False
    asked = lambda x, a: x * 2 if a.flags.writeable else x * 3
    unfrozen(asked, (leaf(3), np.ones(3)), (leaf(3), fixed))
    turned = Tensor(np.asfortranarray(rng.standard_normal((3, 4))), requires_grad=True)
    asked = lambda x: x * 2 if x.data.flags.c_contiguous else x * 3
    unfrozen(asked, (leaf(3, 4),), (turned,))
    asked = lambda x, a: x * 2 if a.base is None else x * 3
    unfrozen(asked, (leaf(3), np.ones(3)), (leaf(3), numbers[:3]))


def test_a_result_that_is_not_used_gives_no_gradient():
    f = lambda x: (np.sum(x * 2.0), np.sum(np.log(x)))
    c = compiled(f)
    for _ in range(2):
        x = Tensor([1.0, 2.0, 0.0], requires_grad=True)
        close(ta.grad(c(x)[0], [x])[0], [2.0, 2.0, 2.0])


def test_a_parameter_of_a_result_that_is_not_used_is_left_as_it_was():
    one, two = nn.Parameter(np.ones(3)), nn.Parameter(np.ones(3))
    c = compiled(lambda x: (np.sum(x * one), np.sum(x * two)))
    optimiser = optim.AdamW([one, two], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        c(leaf(3))[0].backward()
        assert two.grad is None
        optimiser.step()
    close(two, np.ones(3))


def test_each_of_several_results_is_differentiated_by_itself():
    c = compiled(lambda x: (np.sum(np.sin(x)), np.sum(x**2)))
    for _ in range(2):
        x = leaf(3)
        one, two = c(x)
        one.backward()
        two.backward()
        close(x.grad, np.cos(x.numpy()) + 2 * x.numpy())


@pytest.mark.parametrize("f", [np.exp, np.tanh, lambda x: x**3], ids=["exp", "tanh", "cube"])
def test_numbers_that_were_changed_before_a_recorded_pass(f):
    c = compiled(lambda x: np.sum(f(x)))
    for change in (lambda x: x.data.fill(9.0), lambda x: optim.SGD([x], lr=1.0).step()):
        x = leaf(3)
        (expected,) = ta.grad(np.sum(f(x)), [x])
        y = c(x)
        x.grad = Tensor(np.ones(3))
        change(x)
        with contextlib.suppress(ValueError):  # "was changed in place"
            close(ta.grad(y, [x], create_graph=True)[0], expected)


def test_a_list_that_was_changed_before_a_recorded_pass():
    f = lambda xs: np.sum(xs[0] ** 3) + np.sum(xs[-1])
    c, x, y = compiled(f), leaf(3), leaf(3)
    given = [x, y]
    loss = c(given)
    given.pop()
    close(ta.grad(loss, [x], create_graph=True)[0], 3 * x.numpy() ** 2)


def test_attributes_of_classes_that_appear_later():
    class Base:
        factor = 1.0

        def scaled(self, x):
            return x * 2

    class Sub(Base):
        pass

    class Other(Base):
        factor = 7.0

    one, two, three = Sub(), Sub(), Sub()
    x = leaf(3)
    for f in (
        lambda x: x * one.factor,
        lambda x: x * Sub.factor,
        lambda x: one.scaled(x),
        lambda x: x * getattr(one, "later", 1.0),
        lambda x: x * 2 if hasattr(one, "later") else x * 3,
    ):
        def change():
            Sub.factor, Sub.later, Sub.scaled = 3.0, 5.0, lambda self, x: x * 9

        unfrozen(f, (x,), change, (x,))
        del Sub.factor, Sub.later, Sub.scaled
    unfrozen(lambda x: x * two.factor, (x,), lambda: setattr(two, "__class__", Other), (x,))
    unfrozen(lambda x: x * three.factor, (x,), lambda: setattr(Sub, "__bases__", (Other,)), (x,))

    class Layer(nn.Linear):
        pass

    layer = Layer(3, 3)
    change = lambda: setattr(Layer, "forward", lambda self, x: x * 5)
    unfrozen(lambda x: layer(x), (x,), change, (x,))


def test_an_attribute_in_place_of_another():
    kept = Plain(other=1)

    def change():
        del kept.other
        kept.flag = True

    unfrozen(lambda x: x * 2 if hasattr(kept, "flag") else x * 3, (leaf(3),), change, (leaf(3),))


def test_what_is_read_of_a_class_by_other_ways(monkeypatch):
    class Meta(type):
        factor = 2.0

        @property
        def scale(cls):
            return SCALE

        def __getitem__(cls, n):
            return SCALE * n

        def __instancecheck__(cls, x):
            return SCALE > 4

    class Made(metaclass=Meta):
        pass

    class Own:
        __scale__ = 2.0

        def __class_getitem__(cls, n):
            return SCALE * n

        def __repr__(self):
            return str(SCALE)

        def __format__(self, how):
            return str(SCALE)

        def __copy__(self):
            return SCALE

    own = Own()
    made = {
        "property": lambda x: x * Made.scale,
        "item": lambda x: x * Made[2],
        "isinstance": lambda x: x * 2 if isinstance(3, Made) else x * 3,
        "class_getitem": lambda x: x * Own[2],
        "repr": lambda x: x * float(repr(own)),
        "str": lambda x: x * float(str(own)),
        "format": lambda x: x * float(f"{own}"),
        "copy": lambda x: x * copy.copy(own),
        "attribute": lambda x: x * Made.factor,
        "dunder": lambda x: x * Own.__scale__,
        "dunder of an object": lambda x: x * own.__scale__,
    }

    def change():
        Meta.factor, Own.__scale__ = 5.0, 5.0
        monkeypatch.setitem(globals(), "SCALE", 5.0)

    wrong = []
    for name, f in made.items():
        Meta.factor, Own.__scale__ = 2.0, 2.0
        monkeypatch.setitem(globals(), "SCALE", 2.0)
        try:
            unfrozen(f, (leaf(3),), change, (leaf(3),))
        except AssertionError:
            wrong.append(name)
    assert not wrong


def test_names_and_documents_and_registered_classes():
    class Named:
        "2"

    def helper():
        "2"

    class Kind(abc.ABC):  # noqa: B024
        pass

    class Member:
        pass

    member, wrong = Member(), []
    for name, f, change in (
        ("doc", lambda x: x * float(Named.__doc__), lambda: setattr(Named, "__doc__", "5")),
        ("name", lambda x: x * len(Named.__name__), lambda: setattr(Named, "__name__", "N")),
        ("f.doc", lambda x: x * float(helper.__doc__), lambda: setattr(helper, "__doc__", "5")),
        ("f.name", lambda x: x * len(helper.__name__), lambda: setattr(helper, "__name__", "h")),
        ("register", lambda x: x * (2 if isinstance(member, Kind) else 3), lambda: Kind.register(Member)),
    ):
        try:
            unfrozen(f, (leaf(3),), change, (leaf(3),))
        except AssertionError:
            wrong.append(name)
    assert not wrong


def test_what_is_replaced_in_modules_that_only_compute(monkeypatch):
    layer, x = nn.Linear(3, 3), leaf(3)
    changes = {
        "a layer's forward": (lambda x: layer(x), nn.Linear, "forward", lambda self, x: x * 5),
        "a function of F": (lambda x: F.softmax(x, -1), F, "softmax", lambda x, axis: x * 5),
        "a number of NumPy's": (lambda x: x * np.pi, np, "pi", 3.0),
        "a number of math's": (lambda x: x * math.tau, math, "tau", 3.0),
        "an attribute of the package": (lambda x: x * ta.shift, ta, "shift", 3.0),
        "an attribute of a layer's class": (lambda x: x * nn.Linear.shift, nn.Linear, "shift", 3.0),
    }
    monkeypatch.setattr(ta, "shift", 2.0, raising=False)
    monkeypatch.setattr(nn.Linear, "shift", 2.0, raising=False)
    wrong = []
    for name, (f, where, what, new) in changes.items():
        with monkeypatch.context() as patch:
            try:
                unfrozen(f, (x,), lambda: patch.setattr(where, what, new), (x,))
            except AssertionError:
                wrong.append(name)
    assert not wrong


def test_what_is_exchanged_in_functions_and_ops(monkeypatch):
    def helper(x, n=2.0, *, m=1.0):
        return x * n * m

    other = lambda x, n=2.0, *, m=1.0: x * 9

    @ta.op
    def square(x):
        return x * x

    square.vjp(lambda g, y, x: g * 2 * x)
    called, attribute = (lambda x: helper(x)), (lambda x: x * getattr(helper, "k", 2.0))
    spelled = lambda x: x * helper.__globals__["SCALE"]
    partial = functools.partial(lambda n, x: x * n, 2.0)
    seven = lambda x: x * 7
    changes = {
        "code": (called, lambda: setattr(helper, "__code__", other.__code__)),
        "defaults": (called, lambda: setattr(helper, "__defaults__", (5.0,))),
        "its own defaults": (helper, lambda: setattr(helper, "__defaults__", (6.0,))),
        "keyword defaults": (called, lambda: setattr(helper, "__kwdefaults__", {"m": 5.0})),
        "an attribute": (attribute, lambda: setattr(helper, "k", 5.0)),
        "globals": (spelled, lambda: monkeypatch.setitem(globals(), "SCALE", 5.0)),
        "a partial": (lambda x: partial(x), lambda: partial.__setstate__((seven, (), {}, {}))),
        "a rule": (lambda x: square(x), lambda: square.vjp(lambda g, y, x: g * 7 * x)),
        "an op": (lambda x: square(x), lambda: setattr(square, "forward", lambda x: x * 3)),
    }
    wrong = []
    for name, (f, change) in changes.items():
        try:
            unfrozen(f, (leaf(3),), change, (leaf(3),))
        except AssertionError:
            wrong.append(name)
    assert not wrong


def test_attributes_of_a_compiled_function():
    def step(x):
        return x * step.scale

    step = compiled(step)
    for step.scale in (2.0, 5.0):
        close(step(Tensor([1.0])), [step.scale])


def test_attributes_of_a_compiled_module():
    layer, x = nn.Linear(3, 3), leaf(3)
    c = compiled(layer)
    c(x)
    c.weight = nn.Parameter(np.ones((3, 3)))
    close(c(x), x @ np.ones((3, 3)) + layer.bias)
    drop = nn.Dropout(0.5)
    c = compiled(drop)
    c.training = False
    close(c(x), x)


def test_a_compiled_module_in_a_module_keeps_its_parameters():
    class Net(nn.Module):
        def __init__(self):
            self.one = nn.Linear(3, 3)
            self.two = compiled(nn.Linear(3, 3))

        def forward(self, x):
            return self.two(self.one(x))

    assert len(list(Net().parameters())) == 4


def test_the_order_of_a_dict():
    numbers = {"a": 2.0, "b": 3.0}
    kept = Plain(a=2.0, b=3.0)
    layers = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})

    class Net(nn.Module):
        def __init__(self):
            self.a, self.b = nn.Linear(3, 3), nn.ReLU()

        def forward(self, x):
            for layer in self.children():
                x = layer(x)
            return x

    net = Net()

    def through(x):
        for layer in layers.values():
            x = layer(x)
        return x

    def last(d, name):
        value = d.pop(name)
        d[name] = value

    def in_order(d):
        def f(x):
            first, second = d.values()
            return x * first + second

        return f

    wrong = []
    for name, f, change in (
        ("dict", in_order(numbers), lambda: last(numbers, "a")),
        ("__dict__", lambda x: x + [*kept.__dict__.values()][0], lambda: last(kept.__dict__, "a")),
        ("ModuleDict", through, lambda: last(layers, "a")),
        ("children", net, lambda: last(net.__dict__, "a")),
    ):
        try:
            unfrozen(f, (leaf(3),), change, (leaf(3),))
        except AssertionError:
            wrong.append(name)
    assert not wrong


def test_ranges_that_are_equal_and_not_the_same():
    f = lambda x, r: x * r.stop
    unfrozen(f, (leaf(3), range(0, 3, 2)), (leaf(3), range(0, 4, 2)))


def test_keys_that_are_equal_and_not_the_same():
    d = {1: 2.0}
    value = d[1]

    def change():
        d.clear()
        d[True] = value

    f = lambda x: x * 3 if any(k is True for k in d) else x * 2
    unfrozen(f, (leaf(3),), change, (leaf(3),))


def test_slots_with_private_names_and_slots_that_are_filled_later():
    class Private:
        __slots__ = ("__n", "later")

        def __init__(self):
            self.__n = 2.0

        def value(self):
            return self.__n

        def change(self):
            self.__n = 5.0

    one = Private()
    unfrozen(lambda x: x * one.value(), (leaf(3),), one.change, (leaf(3),))
    f = lambda x: x * getattr(one, "later", 2.0)
    unfrozen(f, (leaf(3),), lambda: setattr(one, "later", 5.0), (leaf(3),))


def test_attributes_that_are_read_by_other_names(monkeypatch):
    class Kept:
        def scale(self):
            return SCALE

    kept, n, wrong = Kept(), operator.attrgetter("n"), []
    called, read = operator.methodcaller("scale"), getattr
    some = functools.partial(getattr, kept)
    for name, f in (
        ("attrgetter outside", lambda x: x * n(kept)),
        ("attrgetter inside", lambda x: x * attrgetter("n")(kept)),
        ("methodcaller outside", lambda x: x * called(kept)),
        ("methodcaller inside", lambda x: x * operator.methodcaller("scale")(kept)),
        ("getattr", lambda x: x * read(kept, "n")),
        ("partial", lambda x: x * some("n")),
    ):
        kept.n = 2.0
        monkeypatch.setitem(globals(), "SCALE", 2.0)

        def change():
            kept.n = 5.0
            monkeypatch.setitem(globals(), "SCALE", 5.0)

        try:
            unfrozen(f, (leaf(3),), change, (leaf(3),))
        except AssertionError:
            wrong.append(name)
    assert not wrong


def test_arguments_of_classes_made_from_tuple_and_list(monkeypatch):
    class Pair(NamedTuple):
        x: object

        def scaled(self):
            return self.x * SCALE

    class Listed(list):
        pass

    class Tupled(tuple):
        factor = 2.0

    x = leaf(3)
    change = lambda: monkeypatch.setitem(globals(), "SCALE", 5.0)
    unfrozen(lambda p: p.scaled(), (Pair(x),), change, (Pair(x),))
    given = Listed([x])
    given.n = 2.0
    unfrozen(lambda p: p[0] * p.n, (given,), lambda: setattr(given, "n", 5.0), (given,))
    f = lambda p: p[0] * p.factor
    unfrozen(f, (Tupled([x]),), lambda: setattr(Tupled, "factor", 5.0), (Tupled([x]),))
    ones = np.ones(3)
    f = lambda x, p, a: x * p[0] + a * 2
    unfrozen(f, (x, Listed([ones]), ones.copy()), (x, Listed([ones * 2]), ones * 3))


def test_objects_whose_attributes_are_read_by_others():
    pair, user = collections.UserDict(n=2.0), collections.UserList([2.0])
    below = {"n": 2.0}
    chain = collections.ChainMap(below)
    poly, powers = np.poly1d([2.0, 1.0]), np.polynomial.Polynomial([2.0, 1.0])
    error = ValueError(2.0)
    record = np.zeros(1, [("n", float)])[0]
    masked = np.ma.array([2.0, 3.0, 4.0], mask=[0, 1, 0], fill_value=2.0)

    class Kept:
        n = 2.0

        def scale(self, v):
            return v * self.n

    class Array(np.ndarray):
        n = 2.0

    array = np.ones(3).view(Array)
    each = np.vectorize(Kept().scale)
    wrong = []
    for name, f, change in (
        ("UserDict", lambda x: x * pair["n"], lambda: pair.update(n=5.0)),
        ("UserList", lambda x: x * user[0], lambda: user.__setitem__(0, 5.0)),
        ("ChainMap", lambda x: x * chain["n"], lambda: below.update(n=5.0)),
        ("poly1d", lambda x: x * poly(3.0), lambda: poly.coeffs.__setitem__(0, 5.0)),
        ("Polynomial", lambda x: x * powers(3.0), lambda: powers.coef.__setitem__(0, 5.0)),
        ("vectorize", lambda x: x * each(np.arange(3.0)), lambda: setattr(Kept, "n", 5.0)),
        ("an exception", lambda x: x * error.args[0], lambda: setattr(error, "args", (5.0,))),
        ("a record", lambda x: x * record["n"], lambda: record.__setitem__("n", 5.0)),
        ("masked", lambda x: x * masked.filled(), lambda: setattr(masked, "fill_value", 5.0)),
        ("an array's class", lambda x: x * array.n, lambda: setattr(array, "n", 5.0)),
    ):
        try:
            unfrozen(f, (leaf(3),), change, (leaf(3),))
        except AssertionError:
            wrong.append(name)
    assert not wrong


def test_partial_methods_are_looked_into(monkeypatch):
    class Kept:
        def scaled(self, n, x):
            return x * n * SCALE

        twice = functools.partialmethod(scaled, 2.0)

    kept = Kept()
    change = lambda: monkeypatch.setitem(globals(), "SCALE", 5.0)
    unfrozen(lambda x: kept.twice(x), (leaf(3),), change, (leaf(3),))


def test_what_another_thread_has_of_its_own():
    local, x, found = threading.local(), leaf(3), []
    local.n = 2.0
    c = compiled(lambda x: x * local.n)
    close(c(x), x * 2.0)

    def work():
        local.n = 5.0
        found.append(c(x))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    close(found[0], x * 5.0)


def test_files_clocks_and_settings_are_not_frozen(tmp_path):
    path, x, wrong = tmp_path / "numbers", leaf(3), []

    def write(n):
        np.save(tmp_path / "numbers.npy", np.full(3, n))
        np.savetxt(tmp_path / "numbers.txt", np.full(3, n))
        np.full(3, n).tofile(path)
        np.set_printoptions(precision=int(n))
        np.seterr(over="warn" if n == 2.0 else "ignore")
        ta.set_num_threads(1 if n == 2.0 else 2)

    settings, errors, threads = np.get_printoptions(), np.geterr(), ta.get_num_threads()
    try:
        for name, f in (
            ("load", lambda x: x * np.load(tmp_path / "numbers.npy")),
            ("loadtxt", lambda x: x * np.loadtxt(tmp_path / "numbers.txt")),
            ("fromfile", lambda x: x * np.fromfile(path)),
            ("memmap", lambda x: x * np.memmap(path, np.float64, "r")),
            ("printoptions", lambda x: x * np.get_printoptions()["precision"]),
            ("geterr", lambda x: x * (2 if np.geterr()["over"] == "warn" else 3)),
            ("threads", lambda x: x * ta.get_num_threads()),
        ):
            write(2.0)
            try:
                unfrozen(f, (x,), lambda: write(5.0), (x,))
            except AssertionError:
                wrong.append(name)
    finally:
        np.set_printoptions(**settings)
        np.seterr(**errors)
        ta.set_num_threads(threads)
    c = compiled(lambda x: x * (np.datetime64("now", "s").astype(np.int64) % 1000))
    if c(x) is not None and c.report()[0].compiled:
        wrong.append("datetime64")
    assert not wrong


def test_what_a_refused_function_changes_is_changed_once_a_call():
    def counting():
        n = 0

        def f(x):
            nonlocal n
            n += 1
            return x * n

        return f

    def in_an_array():
        n = np.zeros(1)

        def f(x):
            n[0] += 1
            return x * n[0]

        return f

    def in_a_queue():
        turns = np.arange(5.0)

        def f(x):
            turns[:] = np.roll(turns, 1)
            return x * turns[0]

        return f

    def in_a_class():
        class Kept:
            n = 0

        def f(x):
            type.__setattr__(Kept, "n", Kept.n + 1)
            return x * Kept.n

        return f

    x, wrong = leaf(3), []
    for make in (counting, in_an_array, in_a_queue, in_a_class):
        c, f = compiled(make()), make()
        if not all(np.allclose(c(x).numpy(), f(x).numpy()) for _ in range(3)):
            wrong.append(make.__name__)
    assert not wrong


def test_a_refused_function_beside_a_thread_that_traces():
    w, x, draw = leaf(4), leaf(4), np.random.default_rng(0)
    refused = compiled(lambda x: x * w + 0.0 * draw.random())
    refused(x)
    over, kinds = threading.Event(), set()

    def work():
        while not over.is_set():
            kinds.add(type(refused(x)._data))

    def long(x):
        for _ in range(400):
            x = np.tanh(x * w) + 0.001
        return x

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            compiled(long)(x)
    finally:
        over.set()
        thread.join()
    assert kinds == {np.ndarray}


def test_after_many_kinds_of_call_beside_a_thread_that_traces():
    w, x = leaf(4), leaf(4)
    c = compiled(lambda x, n: np.tanh(x * w) * n)
    for n in range(20):
        c(x, float(n))
    over, kinds = threading.Event(), set()

    def work():
        while not over.is_set():
            kinds.add(type(c(x, time.perf_counter())._data))

    def long(x):
        for _ in range(400):
            x = np.tanh(x * w) + 0.001
        return x

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            compiled(long)(x)
    finally:
        over.set()
        thread.join()
    assert kinds == {np.ndarray}


def test_an_error_of_the_first_call_is_the_callers():
    calls = np.zeros(1)

    def f(x):
        calls[0] += 1
        if calls[0] == 1:
            raise ValueError("the first call")
        return x * 2

    with pytest.raises(ValueError, match="the first call"):
        compiled(f)(leaf(3))
    close(calls, [1.0])
