"""`ta.compile`: the numbers of the function itself, at every call."""

import copy
import functools
import inspect
import itertools
import pickle
import tracemalloc
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from optable import TABLE

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, optim
from tinygrad_attn.program import flat

pytestmark = pytest.mark.usefixtures("in_float64")
rng = np.random.default_rng(0)
SCALE = 2.0


def close(mine, expected, tolerance=1e-12):
    mine, expected = (
        x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (mine, expected)
    )
    assert mine.shape == expected.shape and mine.dtype == expected.dtype
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance * max(1, size))


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


def entries(c):
    return c.report.__self__.entries


def runs(c, programs=1):
    """There are so many programs, and each kind of call has one."""
    assert len(c.report()) == programs
    assert all(line.endswith("lines of NumPy") for line in c.report()), c.report()


def reasons(c):
    return [line.partition("not compiled: ")[2] for line in c.report()]


def leaf(*shape):
    return Tensor(rng.standard_normal(shape), requires_grad=True)


def encoder(**flags):
    return nn.TransformerEncoderLayer(8, 2, 12, **{"dropout": 0.0, "batch_first": True, **flags})


# ---- every op, and layers


@pytest.mark.parametrize("name", TABLE)
def test_every_entry_of_the_table_of_ops(name):
    """At calls with different numbers: values and gradients are the function's own."""

    @settings(max_examples=4, deadline=None, database=None,
              suppress_health_check=[*HealthCheck], phases=[Phase.generate])  # fmt: skip
    @given(data=st.data())
    def run(data):
        sample = TABLE[name](data.draw)
        args = [Tensor(x.astype(np.float64), requires_grad=True) for x in sample.inputs]
        if not isinstance(sample.ours(*args), Tensor):
            return
        c = ta.compile(sample.ours)
        beside = lambda one, *args: [
            sample.ours(*(x * one for x in args)),
            *(-x * one for x in args),
        ]
        several = ta.compile(beside)
        with ta.no_grad():
            for _ in range(2):
                given = np.array(1.0), *(x.numpy() for x in args)
                for mine, expected in zip(several(*given), beside(*given), strict=True):
                    close(mine, expected)
        others = [
            Tensor(x.numpy() + 0.01 * np.arange(x.size).reshape(x.shape), requires_grad=True)
            for x in args
        ]
        check(c, sample.ours, *args)
        try:
            sample.ours(*others)
        except (ValueError, np.linalg.LinAlgError):
            return
        check(c, sample.ours, *others)
        check(c, sample.ours, *args)
        REASONS.setdefault(name, []).extend(reasons(c))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()


REASONS: dict[str, list[str]] = {}


def test_nearly_all_of_the_table_runs_compiled():
    if len(REASONS) < len(TABLE) // 2:
        pytest.skip("the test above was not run")
    without = {name: set(found) for name, found in REASONS.items() if all(found)}
    assert len(without) <= 8, without


@pytest.mark.parametrize("flags", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=str)
def test_encoder_layers(flags):
    layer = encoder(**flags)
    c = ta.compile(layer)
    for _ in range(3):
        check(c, layer, leaf(5, 7, 8), params=list(layer.parameters()))
    runs(c)


def test_a_decoder_layer_and_masks_that_change():
    layer = nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True)

    def f(tgt, memory, padded):
        return layer(tgt, memory, tgt_is_causal=True, memory_key_padding_mask=padded)

    c = ta.compile(f)
    for lengths in ([6, 3, 4, 1, 5], [1, 2, 3, 4, 6], [6, 6, 6, 6, 6]):
        padded = np.arange(6) >= np.array(lengths)[:, None]
        check(c, f, leaf(5, 7, 8), leaf(5, 6, 8), padded, params=list(layer.parameters()))
    runs(c)


def test_rows_that_may_see_nothing_and_scores_that_overflow():
    def f(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    c = ta.compile(f)
    open_, blind = np.ones((4, 5), bool), np.ones((4, 5), bool)
    blind[1] = False
    for size, mask in ((1, open_), (1, blind), (60, open_), (60, blind), (1, open_)):
        q, k, v = leaf(2, 4, 3), leaf(2, 5, 3), leaf(2, 5, 3)
        check(c, f, Tensor(size * q.numpy(), requires_grad=True), k, v, mask)
    runs(c)


def test_float32_stays_float32():
    layer = encoder(activation="gelu").astype(np.float32)
    c = ta.compile(layer)
    x = Tensor(rng.standard_normal((5, 7, 8)).astype(np.float32), requires_grad=True)
    for _ in range(2):
        check(c, layer, x, tolerance=1e-5)
        c(x).sum().backward()
    assert x.grad.dtype == np.float32 and layer.linear1.weight.grad.dtype == np.float32
    runs(c)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_outputs_and_gradients_of_which_only_rounding_is_left(dtype):
    """A row of softmax sums up to 1, and layer norm's mean is 0: programs round it differently."""
    layer = nn.LayerNorm(3).astype(dtype)
    c = ta.compile(lambda x: (F.softmax(x).sum(), layer(x).mean()), check=True)
    for seed in range(10):
        x = Tensor(np.random.default_rng(seed).standard_normal((4, 3)).astype(dtype), True)
        a, b = c(x)
        (a + b).backward()
    runs(c)


def test_numbers_for_which_the_package_chooses_another_formula():
    c = ta.compile(np.prod)
    for numbers in ([1.0, 2.0, 3.0], [2.0, 0.0, 5.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]):
        check(c, np.prod, Tensor(numbers, requires_grad=True))
    c = ta.compile(F.embedding)
    check(c, F.embedding, np.array([0, 1]), leaf(3, 2))
    with pytest.raises(ValueError, match="index 7"):
        c(np.array([0, 7]), leaf(3, 2))
    runs(c)


# ---- the signature of a call


def test_shapes_dtypes_and_no_grad():
    f = lambda x: np.sum(np.sin(x) * x, axis=-1)
    c = ta.compile(f)
    for x in (leaf(3, 4), leaf(4, 3), leaf(3, 4), Tensor([1, 2]), leaf(3, 4).astype(np.float32)):
        check(c, f, x, tolerance=1e-12 if x.dtype != np.float32 else 1e-6)
    with ta.no_grad():
        assert not c(leaf(3, 4)).requires_grad
    runs(c, 5)


def test_arguments_that_are_no_arrays():
    class Pair(NamedTuple):
        a: Tensor
        n: float

    def f(pair, how, *, rest=(), **named):
        y = pair.a * pair.n + sum(named["table"]) if how == "sum" else pair.a
        return Pair(sum(rest, y), pair.n)

    c = ta.compile(f)
    for how, n in (("sum", 2.0), ("sum", 3.0), ("none", 3.0), ("sum", 2.0)):
        given = Pair(leaf(3), n), how
        named = {"rest": [leaf(3)], "table": {1.0: "a"}}
        mine, expected = c(*given, **named), f(*given, **named)
        assert type(mine) is Pair and mine.n == n
        close(mine.a, expected.a)
    runs(c, 3)


def test_one_tensor_in_several_places():
    w, x, y = leaf(3), leaf(3), leaf(3)
    f = lambda a, b: a * b + w * a
    c = ta.compile(f)
    for args in ((x, y), (x, x), (w, x), (w, w), (x, y)):
        check(c, f, *args, params=[w])


def test_parameters_replaced_and_frozen():
    layer = nn.Linear(3, 2)
    c, x = ta.compile(lambda x: layer(x)), leaf(4, 3)
    check(c, layer, x, params=[layer.weight])
    layer.weight = nn.Parameter(rng.standard_normal((2, 3)))
    check(c, layer, x, params=[layer.weight])
    layer.weight.data = rng.standard_normal((2, 3))
    check(c, layer, x, params=[layer.weight])
    layer.weight.requires_grad = False
    check(c, layer, x, params=[layer.bias])
    layer.bias = None
    check(c, layer, x)


def test_training_and_dropout():
    layer = encoder(dropout=0.5)
    c, x = ta.compile(layer), leaf(5, 7, 8)
    for _ in range(2):
        layer.train()
        ta.manual_seed(5)
        mine = [c(x), c(x)]
        ta.manual_seed(5)
        close(mine[0], layer(x))
        close(mine[1], layer(x))
        layer.eval()
        check(c, layer, x, params=list(layer.parameters()))
    first, second = reasons(c)
    assert "draws random numbers" in first and not second


def test_conditions_that_are_numbers_and_products_in_place():
    def f(x, condition):
        y = np.where(condition, np.exp(x), 0) + np.where(condition > 1, x * 2, -0.0)
        for _ in range(3):
            y = y @ (y * 0.5)
        return y

    c = ta.compile(f)
    for n in (1.0, 2.0, 0.5):
        check(c, f, leaf(4, 4), np.arange(16.0).reshape(4, 4) % 3 * n)
    runs(c)


def test_an_optimiser_steps_in_place():
    def train(compile):
        ta.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        step = compile(lambda x, t: F.cross_entropy(model(x), t))
        optimiser = optim.AdamW(model.parameters(), lr=0.05)
        draw, losses = np.random.default_rng(0), []
        for _ in range(12):
            x, target = Tensor(draw.standard_normal((8, 6))), draw.integers(0, 3, 8)
            optimiser.zero_grad()
            loss = step(x, target)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        if compile is ta.compile:
            runs(step)
        return losses

    close(train(ta.compile), train(lambda f: f), 1e-10)


def test_up_to_eight_programs():
    c, x = ta.compile(lambda x, n: x * n), leaf(3)
    for n in [*range(12), 3]:
        close(c(x, n), x.numpy() * n)
    *programs, last = reasons(c)
    assert programs == [""] * 8 and "already has 8 programs" in last


# ---- the contract: what is read once, what is refused


def test_what_is_found_elsewhere_is_read_once_and_check_sees_it(monkeypatch):
    c, checked = (ta.compile(lambda x: x * SCALE, check=check) for check in (False, True))
    x = leaf(3)
    close(c(x), checked(x))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    close(c(x), x.numpy() * 2.0)
    with pytest.raises(RuntimeError, match="the program and the function return different numbers"):
        checked(x)


def reason_of(f, *args):
    c = ta.compile(f)
    for _ in range(2):
        c(*args)
    (reason,) = {*reasons(c)}
    return reason


def test_what_cannot_be_compiled_says_why():
    own, x, calls = np.random.default_rng(0), leaf(3), itertools.count(1)
    assert "reads a number" in reason_of(lambda x: x if x.sum() > 0 else -x, x)
    assert "draws random" in reason_of(lambda x: x * np.random.rand(), x)
    assert "draws random" in reason_of(lambda x: F.dropout(x, 0.5), x)
    assert "different numbers" in reason_of(lambda x: x * own.random(), x)
    assert "different numbers" in reason_of(lambda x: x * next(calls), x)
    assert "returns" in reason_of(lambda x: (x, object()), x)
    assert "plain array" in reason_of(lambda x: x * np.asarray(x.numpy()), x)
    c = ta.compile(lambda x: x @ np.ones((5, 2)))
    for _ in range(2):
        with pytest.raises(ValueError, match="5"):
            c(leaf(3, 4))


def test_a_refused_function_draws_what_it_would_have_drawn():
    f = lambda x: F.dropout(x, 0.5)
    c, x = ta.compile(f), leaf(30)
    ta.manual_seed(3)
    mine = [c(x).numpy() for _ in range(3)]
    ta.manual_seed(3)
    for a in mine:
        close(a, f(x))


def test_a_cache_that_grows_is_left_to_the_function():
    model, x = encoder().eval(), leaf(1, 5, 8)
    c, cache = (
        ta.compile(lambda x, cache: model(x, is_causal=True, cache=cache)),
        nn.KeyValueCache(),
    )
    with ta.no_grad():
        mine = [c(x[:, t : t + 1], cache).numpy() for t in range(5)]
        close(np.concatenate(mine, axis=1), model(x, is_causal=True))
    assert cache.length == 5 and "grows" in reasons(c)[0]


# ---- as without it


def test_results_are_the_callers_own():
    layer, one, two = encoder(), leaf(5, 7, 8), leaf(5, 7, 8)
    c = ta.compile(layer)
    y = c(one)
    kept = y.numpy().copy()
    z = c(two)
    assert not np.shares_memory(y.numpy(), z.numpy())
    close(y, kept)
    close(gradients(y, [one])[0], gradients(layer(one), [one])[0])
    same = ta.compile(lambda x: x)
    for _ in range(2):
        assert not np.shares_memory(same(one).numpy(), one.numpy())
    (g1,), (g2,) = ta.grad(z.sum(), [two], retain_graph=True), ta.grad(z.sum(), [two])
    assert not np.shares_memory(g1.numpy(), g2.numpy())


def test_what_a_caller_does_to_a_result_does_not_reach_the_gradient():
    c, x = ta.compile(np.exp), leaf(4)
    for _ in range(2):
        y = c(x)
        y.numpy()[:] = 0
        with pytest.raises(ValueError, match="changed in place"):
            y.sum().backward()


def test_some_gradients_alone_are_those_of_all():
    layer, x = encoder(), leaf(2, 5, 8)
    c = ta.compile(lambda x: (layer(x) ** 2).sum())
    whole = ta.grad(c(x), [x, layer.linear2.bias])
    close(ta.grad(c(x), [x])[0], whole[0])
    close(ta.grad(c(x), [layer.linear2.bias])[0], whole[1])


def test_a_chain_of_ops_has_the_memory_of_one_array():
    c, x = ta.compile(lambda x: np.tanh(np.exp(-(x * 2)) * 0.5) + 1), np.ones((100, 100))
    with ta.no_grad():
        c(x)
    tracemalloc.start()
    entries(c)[0].flat.forward([x])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1.5 * x.nbytes


def test_the_text_of_a_program():
    """Flat products, sums by ones, `where` by bits, and results in memory that is needed no more."""
    w = nn.Parameter(np.ones((4, 5)))
    c = ta.compile(lambda x: np.mean(F.relu(x @ w) ** 2, axis=-1).sum())
    c(leaf(2, 3, 4))
    assert entries(c)[0].flat.text == TEXT


TEXT = """\
def forward(inputs):
    (x0, x2, ) = inputs
    t2 = x0.reshape(6, 4)
    t3 = t2.dot(x2)
    t4 = t3.reshape(2, 3, 5)
    t5 = np.maximum(t4, 0, out=t4)
    t6 = np.multiply(t5, t5)
    t8 = t6.reshape(6, 5)
    t9 = t8.dot(c7)
    t10 = t9.reshape(2, 3)
    t11 = t10.sum()
    return [t11], (t2, t5, )
def backward(inputs, saved, d_output0):
    (x0, x2, ) = inputs
    (t2, t5, ) = saved
    t13 = np.broadcast_to(d_output0, (2, 3))
    t14 = t13.reshape(2, 3, 1)
    t15 = np.divide(t14, 5)
    t16 = np.broadcast_to(t15, (2, 3, 5))
    t17 = np.multiply(2, t16)
    t18 = np.multiply(t17, t5, out=t17)
    t19 = np.not_equal(t5, 0)
    t20 = t18.view(np.int64)
    t21 = np.multiply(t20, t19, out=t20)
    t22 = t21.view(np.float64)
    t23 = x2.T
    t24 = t22.reshape(6, 5)
    t25 = t24.dot(t23)
    t26 = t25.reshape(2, 3, 4)
    t27 = t2.T
    t28 = t27.dot(t24)
    return [t26, t28]
"""


def test_retain_graph_second_pass_and_second_order():
    w, x = leaf(4, 4), leaf(3, 4)
    f = lambda x: np.sum(np.tanh(x @ w) ** 2)
    c = ta.compile(f)

    def second(function):
        gx, gw = ta.grad(function(x * 2), [x, w], create_graph=True)
        loss = (gx**2).sum() + (gw**3).sum()
        return [g.numpy() for g in ta.grad(loss, [x, w])]

    for _ in range(2):
        y = c(x)
        close(ta.grad(y, [x], retain_graph=True)[0], ta.grad(y, [x])[0])
        with pytest.raises(RuntimeError, match="released"):
            ta.grad(y, [x])
        for a, b in zip(second(c), second(f)):
            close(a, b)
    close(ta.hessian(c, x), ta.hessian(f, x))


def test_what_is_changed_between_the_passes_is_an_error():
    layer, x = nn.Linear(3, 2), leaf(4, 3)
    c = ta.compile(layer)
    for _ in range(2):
        y = c(x)
        layer.weight.data += 1
        with pytest.raises(ValueError, match="changed in place"):
            y.sum().backward()
    y = c(x)
    layer.weight = nn.Parameter(np.ones((2, 3)))
    with pytest.raises(RuntimeError, match="replaced"):
        ta.grad(y.sum(), [x], create_graph=True)
    cube = ta.compile(lambda x: np.sum(x**3))
    y, x.grad = cube(x), Tensor(np.ones((4, 3)))
    optim.SGD([x], lr=1.0).step()
    with pytest.raises(ValueError, match="changed in place"):
        ta.grad(y, [x], create_graph=True)


def test_several_results():
    def f(x, n):
        return {"sum": x.sum(), "rows": (x * 2, x[0]), "index": n + 1, "n": 3}

    c = ta.compile(f)
    for _ in range(2):
        x, n = leaf(3, 4), np.arange(3)
        mine, expected = c(x, n), f(x, n)
        assert mine["n"] == 3 and type(mine["index"]) is np.ndarray
        close(mine["index"], expected["index"])
        total = lambda y: y["sum"] * 2 + (y["rows"][0] ** 2).sum() + y["rows"][1].sum()
        close(ta.grad(total(mine), [x])[0], ta.grad(total(expected), [x])[0])
    runs(c)


def test_each_of_several_results_is_differentiated_by_itself():
    one, two = nn.Parameter(np.ones(3)), nn.Parameter(np.ones(3))
    x = Tensor([1.0, 2.0, 0.0], requires_grad=True)
    c = ta.compile(lambda x: (np.sum(x * 2.0 * one), np.sum(np.log(x) * two)))
    for _ in range(2):
        with np.errstate(all="ignore"):
            first, second = c(x)
            first.backward()
            close(x.grad, [2.0, 2.0, 2.0])
            assert two.grad is None and one.grad is not None
            second.backward()
        close(x.grad, [3.0, 2.5, np.inf])
        x.grad = one.grad = two.grad = None


def test_in_plain_mode_the_function_itself_runs():
    c, x = ta.compile(lambda x: np.sum(np.exp(x))), leaf(3)
    with ta.plain():
        assert c(x)._node.op.__name__ == "sum"
    assert "compiled" in c(x)._node.op.__name__


def test_functions_inside_functions():
    inner = lambda x: np.sum(x**2)
    both, again = ta.value_and_grad(inner), ta.compile(inner)
    partial = functools.partial(lambda layer, x: layer(x).sum(), encoder())
    for f in (lambda x: both(x)[0], lambda x: again(x) * 2, partial):
        c = ta.compile(f)
        for _ in range(2):
            check(c, f, leaf(2, 3, 8))
        runs(c)


@pytest.mark.parametrize("labels", ["ij->ji", "ii->i", "ij->ij"])
def test_an_einsum_that_is_a_view_leaves_what_it_is_given_as_it_was(labels):
    w, x = nn.Parameter(rng.standard_normal((3, 3))), leaf(3, 3)
    f = lambda x: np.einsum(labels, x) * 2.0 + np.exp(np.einsum(labels, w)).sum()
    before = x.numpy().copy(), w.numpy().copy()
    c = ta.compile(f)
    for _ in range(2):
        check(c, f, x, params=[w])
        close(x, before[0])
        close(w, before[1])


def test_what_is_written_into_was_never_a_view():
    """Functions whose result counts as memory of its own."""
    for x in (np.ones(4), np.ones((3, 3)), np.ones((1, 1, 2), int), np.ones((2, 3), "f4").T):
        for name in flat.FRESH["method"].split():
            given = {"dot": [np.ones(x.shape[-1], x.dtype)], "astype": [x.dtype]}.get(name, [])
            ways = [{}, {"axis": ()}] if name in ("sum", "mean", "max", "min", "prod") else [{}]
            for named in ways:
                assert not np.shares_memory(getattr(x, name)(*given, **named), x), name
        assert not np.shares_memory(np.where(x > 0, x, x), x)
        assert not np.shares_memory(np.stack([x]), x)
        assert not np.shares_memory(np.concatenate([x]), x)
    assert {*flat.FRESH["call"].split()} == {"where", "stack", "concatenate", "erf"}


# ---- what is compiled has the attributes of what it was made of


@ta.compile
def stepping(x):
    """Scaled."""
    return x * stepping.scale


def test_a_compiled_function_and_method():
    stepping.scale = 2.0
    close(stepping(Tensor([1.0])), [2.0])
    assert stepping.__doc__ == "Scaled." and not hasattr(stepping.__wrapped__, "scale")
    assert list(inspect.signature(stepping).parameters) == ["x"]
    assert pickle.loads(pickle.dumps(stepping)) is stepping

    class Model(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(3, 3)

        @ta.compile(check=True)
        def forward(self, x):
            return self.linear(x) * 2.0

    one, two, x = Model(), Model(), leaf(2, 3)
    for model in (one, two, one):
        close(model(x), model.linear(x) * 2.0)


def test_a_compiled_method_goes_with_a_copy_of_its_object():
    class Model(nn.Module):
        def __init__(self):
            self.linear, self.drop = nn.Linear(3, 3), nn.Dropout(0.5)
            self.step = ta.compile(self.loss)

        def loss(self, x):
            return (self.linear(self.drop(x)) ** 2).sum()

    one, x = Model().eval(), leaf(2, 3)
    one.step(x)
    two = copy.deepcopy(one)
    two.linear.weight.data *= 2.0
    for model in (one, two, one, two):
        check(model.step, model.loss, x, params=[model.linear.weight])
    runs(one.step, 2)
    one.drop.train()
    assert one.step(x).item() != one.step(x).item()
    assert "draws random numbers" in reasons(one.step)[2]


def test_a_compiled_module_is_a_module():
    layer, x = nn.Linear(3, 3), leaf(3)
    c = ta.compile(layer)
    c(x)
    c.weight = nn.Parameter(np.ones((3, 3)))
    close(c(x), x @ np.ones((3, 3)) + layer.bias)
    assert isinstance(c, nn.Linear) and list(c.state_dict()) == ["weight", "bias"]
    net = nn.Sequential(nn.Linear(3, 3), ta.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU())))
    assert [name for name, _ in net.named_parameters()][2:] == ["1.0.weight", "1.0.bias"]
    check(ta.compile(net), net, x, params=list(net.parameters()))
    assert not net.eval()[1].training and len(net[1]) == 2
    expected = c(x)
    for other in (copy.deepcopy(c), pickle.loads(pickle.dumps(c))):
        close(other(x), expected)
        other.weight.data.fill(0.0)
        close(other(x), other.bias)
    close(c(x), expected)
