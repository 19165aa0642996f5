"""What a function keeps for itself is as it was after a trace, whether the trace succeeds or not, and holds no symbol."""

import collections
import contextlib
import functools
import gc
import types

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn
from tinygrad_attn.engine import Symbolic

pytestmark = pytest.mark.usefixtures("in_float64")
X = np.random.default_rng(0).standard_normal((2, 3, 4))
LOG, TABLE, SEEN, LAST = [], {}, set(), None
QUEUE, BY_NAME = collections.deque(maxlen=3), collections.defaultdict(list)
HELD = types.ModuleType("held_elsewhere")
HELD.log = []


class Slotted:
    __slots__ = ("last",)


class Keeps:
    every = []
    last = None

    def forward(self, x):
        self.here = x * 2
        return self.here


class Layer(nn.Module):
    """Has a buffer, and an attribute that a call fills, as layers have that show their weights."""

    def __init__(self):
        super().__init__()
        self.linear, self.shown = nn.Linear(4, 4), None
        self.register_buffer("mean", Tensor(np.zeros(4)))

    def forward(self, x):
        self.shown = self.linear(x)
        return self.shown


class Norm(Layer):
    """Reads the running mean that it changes."""

    def forward(self, x):
        y = self.linear(x)
        self.mean = 0.9 * self.mean.detach() + 0.1 * y.detach().mean((0, 1))
        return y - self.mean


def in_global(x):
    global LAST
    LAST = x * 2


def in_nonlocal():
    before = None

    def f(x):
        nonlocal before
        before = x * 2

    return f


@functools.lru_cache
def doubled(x):
    return x * 2


def in_default(x, memo={}):  # noqa: B006 (this is what is tested)
    memo["last"] = x * 2


def of_class(x):
    Keeps.last = x * 2
    Keeps.every.append(x * 3)


SLOTTED, KEEPS, ATTENTION = Slotted(), Keeps(), nn.MultiheadAttention(4, 2, batch_first=True)
CACHE, OTHER = nn.KeyValueCache(), nn.KeyValueCache()
ATTEND = functools.partial(ATTENTION, need_weights=False)
KEPT = {
    "a list": lambda x: LOG.append(x * 2),
    "a dict": lambda x: TABLE.update(last=[x * 2]),
    "a set": lambda x: SEEN.add(x * 2),
    "a deque": lambda x: QUEUE.append(x * 2),
    "a default dict": lambda x: BY_NAME["x"].append(x * 2),
    "a global": in_global,
    "a variable of another function": in_nonlocal(),
    "a default": in_default,
    "a slot": lambda x: setattr(SLOTTED, "last", x * 2),
    "an attribute": lambda x: KEEPS.forward(x),
    "a class": of_class,
    "another module": lambda x: HELD.log.append(x * 2),
    "an lru_cache": lambda x: doubled(x),
    "a partial": functools.partial(lambda held, x: held.append(x * 2), []),
    "a cache": lambda x: ATTEND(x, x, x, cache=CACHE),
    "a memory": lambda x: ATTEND(x * 2, x, x, cache=OTHER),
}


@pytest.fixture(autouse=True)
def from_here_on():
    """What is there before a test is left out of what `symbols` looks at, which would take a second."""
    gc.freeze()
    yield
    gc.unfreeze()


def symbols():
    """How many symbols this test has left."""
    gc.collect()
    return sum(issubclass(type(x), Symbolic) for x in gc.get_objects())


def state():
    """What is in all those places."""
    cells = [f.__closure__[0].cell_contents for f in (KEPT["a variable of another function"],)]
    held = [LOG, TABLE, SEEN, QUEUE, BY_NAME, LAST, in_default.__defaults__, vars(KEEPS)]
    held += [hasattr(SLOTTED, "last"), Keeps.last, Keeps.every, HELD.log, cells]
    held += [KEPT["a partial"].args]
    return repr(held), *(len(cache._kept) for cache in (CACHE, OTHER))


def said(f, *args, **settings):
    """What ta.source says of it, the program or the error."""
    try:
        return ta.source(f, *args, **settings)
    except (TypeError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("ends", ["well", "refused", "in an error"])
@pytest.mark.parametrize("name", KEPT)
def test_everything_is_as_it_was(name, ends, backward):
    def f(x):
        KEPT[name](x)
        if ends == "refused":
            float(x.sum())
        if ends == "in an error":
            raise ValueError("of the user's")
        return (x * x).sum()

    before = state()
    found = said(f, X, params=ATTENTION, backward=backward)
    assert state() == before and not symbols()
    if ends == "refused":
        assert "reads a number" in found
    elif ends == "in an error":
        assert found == "of the user's"
    else:
        assert isinstance(found, ta.Program), found
        assert np.allclose(found(X)[0] if backward else found(X), (X * X).sum())


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("name", KEPT)
def test_compiling_leaves_no_symbol(name, fails):
    keep = KEPT[name]

    def f(x):
        keep(x)
        if fails:
            raise ValueError("of the user's")
        return x * 2

    compiled = ta.compile(f, measure=False)
    with pytest.raises(ValueError, match="of the user's") if fails else contextlib.nullcontext():
        compiled(Tensor(X))
    assert not symbols()


def test_arguments_that_are_changed():
    def f(x, log, counts):
        log.append(x * 2)
        counts += 1
        return (x * x).sum()

    log, counts = [], np.zeros(2)
    program = ta.source(lambda x, log, n: f(x, log, n["seen"]), X, log, {"seen": counts})
    assert log == [] and not counts.any() and not symbols()
    assert np.allclose(program(X, log, None)[1]["x"], 2 * X)


def test_a_layer_that_shows_what_it_computed_is_written():
    layer = Layer()
    program = ta.source(lambda x: layer(x).sum(), X, params=layer)
    assert layer.shown is None and not symbols()
    assert np.allclose(program(X)[0], layer(Tensor(X)).sum().numpy())


@pytest.mark.parametrize("train", [True, False])
def test_a_layer_that_reads_what_it_changes_is_refused(train):
    layer = Norm().train(train)
    with pytest.raises(TypeError, match=r"changes Norm.mean, and returns another value when it is"):
        ta.source(lambda x: layer(x).sum(), X, params=layer)
    assert not layer.mean.numpy().any()


def test_functions_and_classes_of_no_module():
    """As a notebook's or a page's are, that were run by exec in a dict of their own."""
    space = {"np": np}
    text = """
class Counts:
    n = 0

def keeps(x):
    log.append(x * 2)
    return (x * x).sum()

def counts(x):
    Counts.n += 1
    return x.sum() * Counts.n

log = []
"""
    exec(text, space)
    assert np.allclose(ta.source(space["keeps"], X)(X)[0], (X * X).sum())
    with pytest.raises(TypeError, match=r"changes Counts.n"):
        ta.source(space["counts"], X)
    assert space["log"] == [] and space["Counts"].n == 0 and not symbols()


def test_a_number_that_counts_is_refused():
    counts = types.SimpleNamespace(n=0)

    def f(x):
        counts.n += 1
        return (x * counts.n).sum()

    with pytest.raises(TypeError, match=r"the function changes counts.n, and returns another"):
        ta.source(f, X)
    assert counts.n == 0


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("tokens", [0, 2])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_cache_is_refused_by_name(given, tokens, backward, frozen):
    layer, cache = (
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        nn.KeyValueCache(),
    )
    for p in layer.parameters():
        p.requires_grad = not frozen
    if tokens:
        with ta.no_grad():
            layer(Tensor(X[:, :tokens]), is_causal=True, cache=cache)
    before = dict(cache._kept)
    step = lambda x, cache: layer(x, is_causal=True, cache=cache)
    f, args = (step, (X, cache)) if given else (lambda x: step(x, cache), (X,))
    with pytest.raises(TypeError, match=r"changes cache, .* there is ta.compile"):
        ta.source(f, *args, params=layer, backward=backward)
    assert cache.length == tokens and cache._kept == before and not symbols()


@pytest.mark.parametrize("frozen", [True, False])
def test_a_cache_of_the_function_itself_is_written(frozen):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    for p in layer.parameters():
        p.requires_grad = not frozen

    def f(x):
        cache = nn.KeyValueCache()
        return [layer(x[:, i : i + 1], is_causal=True, cache=cache) for i in range(3)][-1]

    with ta.no_grad():
        expected = layer(Tensor(X), is_causal=True).numpy()[:, -1:]
    program = ta.source(f, X, params=layer, backward=False)
    assert np.allclose(program(X), expected, rtol=1e-12, atol=1e-12)
    assert ta.source(f, X, params=layer)(X, np.ones((2, 1, 4)))[1]["x"].shape == X.shape


def test_who_looks_on_sees_no_symbols():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    with ta.record_attention() as seen:
        program = ta.source(lambda x: layer(x).sum(), X, params=layer)
    assert not seen and not symbols()
    assert program.text == ta.source(lambda x: layer(x).sum(), X, params=layer).text
