"""`ta.source`: the program is right, reads well, runs without the package, and freezes nothing in silence."""

import ast
import dataclasses
import enum
import functools
import inspect
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from optable import TABLE

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, transforms
from tinygrad_attn.program.file import FRESH
from tinygrad_attn.program.symbol import METHODS, Symbol
from tinygrad_attn.program.text import SIGNS
from tinygrad_attn.tree import tree_leaves

pytestmark = pytest.mark.usefixtures("in_float64")
rng = np.random.default_rng(0)


def assert_close(mine, expected, tolerance=1e-12):
    mine, expected = np.asarray(mine), np.asarray(expected)
    assert mine.shape == expected.shape and mine.dtype == expected.dtype
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance * max(1, size))


def assert_right(program, f, args, params=None, tolerance=1e-12):
    """The program's value and gradients are ours, at these arguments."""
    named = dict(params.named_parameters()) if isinstance(params, nn.Module) else params or {}
    floating = lambda x: isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "f"
    tensors = [Tensor(x, requires_grad=True) if floating(x) else x for x in args]
    y = f(*tensors)
    cotangent = (np.random.default_rng(3).standard_normal(y.shape),) if y.shape else ()
    value, gradients = program(*args, *cotangent)
    assert_close(value, y.numpy(), tolerance)
    given = {**dict(zip(program._arguments, tensors)), **named}
    leaves = {n: t for n, t in given.items() if isinstance(t, Tensor) and t.requires_grad}
    assert gradients.keys() <= leaves.keys()
    found = ta.grad(y, [*leaves.values()], *cotangent, allow_unused=True)
    for (name, x), g in zip(leaves.items(), found, strict=True):
        zero = np.zeros(x.shape, x.dtype)
        assert_close(gradients.get(name, zero), zero if g is None else g.numpy(), tolerance)


# ---- every op

FACTORISED = ("logabsdet", "eigvalsh", "singular_values", "eigh", "svd", "qr")
"""Ops that compute with functions of NumPy that return several arrays."""


@pytest.mark.parametrize("name", TABLE)
def test_every_entry_of_the_table_of_ops(name):
    """At the numbers it is written for, and at others: the same as ours, or an error that says so."""

    @settings(
        max_examples=6,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate],
    )
    @given(data=st.data())
    def run(data):
        sample = TABLE[name](data.draw)
        args = [x.astype(np.float64) for x in sample.inputs]
        y = sample.ours(*[Tensor(x, requires_grad=True) for x in args])
        if not isinstance(y, Tensor) or not y.requires_grad:
            return
        if name in FACTORISED:
            with pytest.raises(TypeError, match="calls linalg.*that return one array"):
                ta.source(sample.ours, *args)
            return
        program = ta.source(sample.ours, *args)
        assert_tidy(program.text)
        assert_right(program, sample.ours, args)
        others = [x + 0.01 * np.arange(x.size).reshape(x.shape) for x in args]
        try:
            program(*others, *([np.ones(y.shape)] if y.shape else []))
        except (ValueError, np.linalg.LinAlgError):
            return
        assert_right(program, sample.ours, others)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()


# ---- how it reads


def assert_tidy(text):
    """No line over a hundred columns, no name that nobody reads, nothing computed twice."""
    assert max(map(len, text.splitlines())) <= 100
    tree = ast.parse(text)
    *helpers, function = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and type(n.ctx) is ast.Load}
    for statement in function.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            assert statement.targets[0].id in read, f"nobody reads {ast.unparse(statement)}"
    for statement in function.body[1:]:
        for line in text.splitlines()[statement.lineno : statement.end_lineno]:
            indent = len(line) - len(line.lstrip())
            fits = indent >= 8 if isinstance(statement, ast.Return) else indent == 8
            assert fits or line == "    )", f"continues a line: {line!r}"
    imports = [ast.unparse(n) for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert imports == ["import numpy as np"]
    assert [h.name for h in helpers] == (["erf"] if "erf(" in ast.unparse(function) else [])


def encoder(**settings):
    settings = {"dropout": 0.0, "batch_first": True, **settings}
    return nn.TransformerEncoderLayer(8, 2, 12, **settings)


def squares(layer, *names, **settings):
    """The mean of the squares of what a layer returns."""

    def loss(*args):
        return np.mean(layer(*args, **settings) ** 2)

    return loss


SRC = rng.standard_normal((5, 7, 8))


def test_letters_that_would_mislead_are_numbers():
    layer = encoder()
    program = ta.source(squares(layer), SRC[:4, :5], params=layer)  # B = D = 4
    assert "T, E, H, F = 5, 8, 2, 12" in program.text and "# (4, H, T, T)" in program.text


def test_what_a_program_is():
    program = ta.source(lambda x: np.sum(np.sin(x) * x), SRC[0])
    assert str(program) == program.text and "np.sin(x)" in program.text
    assert repr(program).startswith("<forward_backward(x), ") and isinstance(program, ta.Program)
    with pytest.raises(ValueError, match=r"takes 1 arguments, x \(7, 8\) float64, got 2"):
        program(SRC[0], SRC[0])
    with pytest.raises(ValueError, match=r"x \(7, 8\) float64, got 1, x \(5, 7, 8\) float64"):
        program(SRC)
    with pytest.raises(ValueError, match="written for other shapes"):
        program.function(SRC)
    with pytest.raises(ValueError, match="float32"):
        program(SRC[0].astype(np.float32))


# ---- models


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def test_an_mlp_with_cross_entropy():
    model = mlp()

    def f(x, target):
        return F.cross_entropy(model(x), target)

    x, target = rng.standard_normal((8, 6)), rng.integers(0, 3, 8)
    program = ta.source(f, x, target, params=model)
    assert_tidy(program.text)
    assert_right(program, f, [x, target], model)
    assert_right(program, f, [x + 1, (target + 1) % 3], model)
    assert program.text.count("# ") and "# 0 (Linear)" in program.text
    for wrong in (np.full(8, 3), np.full(8, -1), np.full(8, -100)):
        with pytest.raises(ValueError, match="cross_entropy: these numbers need another program"):
            program(x, wrong)


class Language(nn.Module):
    """A small language model whose table of embeddings is its last layer as well."""

    def __init__(self):
        self.embed = nn.Embedding(11, 8)
        self.register_buffer("positions", F.sinusoidal_positions(9, 8).numpy())
        self.layer = encoder(norm_first=True)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        return self.out(self.layer(x, is_causal=True))


def test_embedding_tied_weights_and_a_table_of_constants():
    model = Language()

    def f(tokens, targets):
        return F.cross_entropy(model(tokens).reshape(-1, 11), targets.reshape(-1))

    tokens, targets = rng.integers(0, 11, (2, 3, 5))
    program = ta.source(f, tokens, targets, params=model)
    assert_tidy(program.text)
    assert_right(program, f, [tokens, targets], model)
    assert_right(program, f, [targets, tokens], model)
    assert "embed_weight" in program.arrays()
    with pytest.raises(ValueError, match="embedding: these numbers need another program"):
        program(tokens - 11, targets)


def test_an_op_of_the_users_own():
    @ta.op
    def cube(x):
        return x * x * x

    cube.vjp(lambda g, y, x: g * 3 * x * x)

    @ta.op(saves=True)
    def normalise(x):
        size = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))
        return x / size, size

    @normalise.vjp_all
    def _(g, y, x, *, saved):
        return ((g - y * np.sum(g * y, axis=-1, keepdims=True)) / saved,)

    @ta.op
    def running(x):  # a loop over what has a known length, and a write in place
        out = np.zeros_like(x)
        for i in range(len(x)):
            out[i] = x[i] + (out[i - 1] if i else 0.0)
        return out

    running.vjp(lambda g, y, x: np.cumsum(g[::-1], axis=0)[::-1])
    f = lambda x: np.sum(running(normalise(cube(x))) ** 2)
    program = ta.source(f, SRC[0])
    assert_tidy(program.text)
    assert_right(program, f, [SRC[0]])
    assert_right(program, f, [SRC[1]])


def test_float32_stays_float32():
    layer = encoder().astype(np.float32)
    f, x = squares(layer), SRC.astype(np.float32)
    assert_right(ta.source(f, x, params=layer), f, [x], layer, 1e-5)


def test_gradients_by_what():
    f = lambda x, y, n: np.sum(x * y) * n
    program = ta.source(f, Tensor(SRC), SRC, 3.0)
    assert list(program(SRC, SRC, 3.0)[1]) == ["y"]  # not by a Tensor that requires none
    layer = nn.Linear(8, 2)
    layer.bias.requires_grad = False
    assert set(ta.source(lambda x: layer(x).sum(), SRC, params=layer)(SRC)[1]) == {"x", "weight"}
    frozen = layer.weight.numpy().copy()
    assert layer.weight.grad is None and np.array_equal(frozen, layer.weight.numpy())


def test_results_are_the_callers_own():
    f = lambda x, y: np.sum(x + y) + np.sum(x.T)
    x, y = rng.standard_normal((2, 3, 3))
    _, gradients = ta.source(f, x, y)(x, y)
    a, b = gradients["x"], gradients["y"]
    assert a.flags.writeable and b.flags.writeable and not np.shares_memory(a, b)
    same = ta.source(lambda x: x, x, backward=False)(x)
    assert not np.shares_memory(same, x)


# ---- forwards only, and without the package


def test_forwards_only():
    model = mlp()
    x = rng.standard_normal((8, 6))
    program = ta.source(model, x, backward=False)
    assert "backward" not in program.text and program.name == "forward"
    assert_close(program(x), model(x).numpy())
    assert ta.source(model.forward, x, backward=False).text == program.text
    both = ta.source(
        lambda x: {"logits": model(x), "twice": (x * 2, 3)}, x, params=model, backward=False
    )
    found = both(x)
    assert_close(found["logits"], model(x).numpy())
    assert_close(found["twice"][0], 2 * x)
    assert found["twice"][1] == 3


ALONE = """
import sys, json
sys.modules["tinygrad_attn"] = None  # an import of it raises
import numpy as np
sys.path.insert(0, sys.argv[1])
import layer
given = dict(np.load(sys.argv[1] + "/arrays.npz"))
src = given.pop("src")
value, gradients = layer.forward_backward(src, **given)
assert not any(name.startswith("tinygrad_attn.") for name in sys.modules)
np.savez(sys.argv[1] + "/found.npz", value=value, **gradients)
"""


def test_it_runs_where_the_package_is_not(tmp_path):
    layer = encoder(activation="gelu")
    program = ta.source(squares(layer), SRC, params=layer)
    program.save(tmp_path / "layer.py")
    (name,) = program._arguments
    np.savez(tmp_path / "arrays.npz", src=SRC, **program.arrays())
    assert name == "args_0" or name == "x0"
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    value, gradients = program(SRC)
    assert found["value"] == value and {*found} == {"value", *gradients}
    assert all(np.array_equal(found[n], g) for n, g in gradients.items())


# ---- what is refused


def dropping(x):
    return np.sum(F.dropout(x, 0.5, True))


def own_stream(x):
    return np.sum(x * rng.standard_normal(x.shape))


def reads_a_number(x):
    loss = np.sum(x)
    if loss > 1:
        loss = loss * 2
    return loss


loose = Tensor(SRC[0], requires_grad=True)
REFUSED = {
    "dropout": (dropping, "draws random numbers .for example, for dropout in training mode"),
    "numpy's random": (lambda x: np.sum(x * np.random.rand(*x.shape)), "draws random numbers"),
    "a stream of one's own": (own_stream, "a different value when it is called again"),
    "if": (reads_a_number, "if loss > 1.*reads a number"),
    "float": (lambda x: x.sum() * float(x[0, 0]), "reads a number"),
    "item": (lambda x: x.sum() * x[0, 0].item(), "reads a number"),
    "int": (lambda x: x[: int(x.sum() > 0)].sum(), "reads a number"),
    "tolist": (lambda x: x.sum() * len(x.tolist()), "reads a number"),
    "another library": (lambda x: np.sum(foreign(x)), "not a NumPy function"),
    "a function as argument": (
        lambda x: np.apply_along_axis(lambda row: row.sum(), 0, x.numpy()),
        "calls apply_along_axis.*call no others",
    ),
    "asarray": (lambda x: x.sum() * np.asarray(x.detach().numpy())[0, 0], "plain array"),
    "a loose parameter": (lambda x: np.sum(x * loose), "neither an argument nor in params="),
    "several results": (lambda x: (x, x), "returns one Tensor"),
    "a number": (lambda x: 3.0, "returns one Tensor"),
    "in place": (lambda x: np.sum(changed(x)), "changes an argument"),
}


@ta.op
def foreign(x):
    return np.frompyfunc(lambda v: v * 2, 1, 1)(x).astype(float)


@ta.op
def changed(x):
    x += 1
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_frozen_in_silence(name):
    f, words = REFUSED[name]
    with pytest.raises(TypeError, match=words):
        ta.source(f, SRC[0])
    assert loose.grad is None and isinstance(loose.numpy(), np.ndarray)


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Output:
    logits: object


@pytest.mark.parametrize("wrap", [Output, lambda y: {Colour.RED: y}, lambda y: (y, len)])
def test_results_that_cannot_be_written(wrap):
    with pytest.raises(TypeError, match="a program cannot contain.*in tuples, lists and dicts"):
        ta.source(lambda x: wrap(x * 2), SRC[0], backward=False)


def test_other_mistakes():
    with pytest.raises(TypeError, match="params= must be a module or a mapping"):
        ta.source(lambda x: x.sum(), SRC, params=[1, 2])
    with pytest.raises(ValueError, match="does not depend on anything that requires a gradient"):
        ta.source(lambda x: x.sum(), Tensor(SRC))


def test_a_branch_of_the_package_is_checked_each_time():
    f = lambda x: np.prod(x)
    program = ta.source(f, np.array([1.0, 2.0, 3.0]))
    assert_right(program, f, [np.array([3.0, 4.0, 5.0])])
    assert_right(program, f, [np.array([1.0, 0.0, 3.0])])  # has no branch
    ties = ta.source(lambda x: np.max(x), np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="to_the_extremes: these numbers need another program"):
        ties(np.array([2.0, 2.0]))


def test_writes_in_place_follow_numpy():
    def f(x):
        a = np.zeros_like(x)
        b = a
        b += x
        b[0] += 2 * x[1]
        a[1:] = b[:-1] * x[1:]
        return a.sum() + (b**2).sum()

    array = SRC[0]
    program = ta.source(lambda x: f(x.detach().numpy()), array, backward=False)
    assert_close(program(array), f(array))

    def through_a_view(x):
        a = np.zeros_like(x.numpy())
        row = a[0]
        row += 1.0
        return a * 2

    with pytest.raises(TypeError, match="or change an array through a view"):
        ta.source(through_a_view, array, backward=False)


@pytest.mark.parametrize(
    "copy",
    [
        np.copy,
        np.positive,
        lambda a: a.copy(),
        lambda a: a.flatten(),
        lambda a: a.astype(a.dtype),
        lambda a: a[np.arange(8)],
    ],
)
def test_a_copy_is_written_into_alone(copy):
    def f(x):
        a = np.exp(x)
        b = copy(a)
        b += 1
        return a * b

    program = ta.source(lambda x: f(x.detach().numpy()), SRC[0, 0], backward=False)
    assert_close(program(SRC[0, 0]), f(SRC[0, 0]))


def test_the_methods_of_a_traced_array_are_those_of_an_array():
    given = {"take": ([2, 0],), "swapaxes": (0, 1), "repeat": (2,), "clip": (-1, 1)}
    ways = {
        **{n: lambda a, n=n: getattr(a, n)(*given.get(n, ())) for n in METHODS.split()},
        "dot": lambda a: a.dot(a.T),
        "searchsorted": lambda a: a[0].searchsorted(a[1]),
        "astype": lambda a: a.astype(np.float32),
        "flatten": lambda a: a.flatten(),
        "T": lambda a: a.T,
        "mT": lambda a: a[None].mT,
        "reshape": lambda a: (a.reshape(4, 3), a.reshape((2, 6)), a.reshape(-1)),
        "transpose": lambda a: (a.transpose(), a.transpose(1, 0), a[None].transpose((2, 0, 1))),
    }
    asked = {"item", "tolist", "as_it_is", "erf"}  # of numbers, and of the package
    public = {n for n in vars(Symbol) if n[0] != "_" and n not in Symbol.__slots__}
    assert public - asked - {"base", "value"} <= ways.keys()
    f = lambda a: {name: way(a) for name, way in ways.items()}
    numbers = np.array([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]])  # stay an array
    program, others = ta.source(f, numbers, backward=False), 3 - 2 * numbers
    for found, expected in zip(tree_leaves(program(others)), tree_leaves(f(others)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_constants_are_taken_as_they_are_when_they_are_used():
    def f(x):
        table = np.ones(8)
        y = x * table
        table[:] = np.arange(8)
        return np.sum(y * (x * table))

    program = ta.source(f, SRC[0], backward=False)
    with ta.no_grad():
        assert_close(program(SRC[1]), f(SRC[1]))


def test_with_checkpoint_and_in_plain_mode():
    layer = encoder()
    f = lambda x: np.sum(ta.checkpoint(layer, x) ** 2)
    program = ta.source(f, SRC, params=layer)
    assert_right(program, f, [SRC], layer)
    with ta.plain():
        assert ta.source(f, SRC, params=layer).text == program.text
    with ta.no_grad():
        assert ta.source(f, SRC, params=layer).text == program.text


CUBES = lambda x: (np.sin(x) ** 3).sum()
INSIDE = {
    "checkpoint": lambda x: ta.checkpoint(CUBES, x),
    "hessian": lambda x: ta.hessian(CUBES, x, create_graph=True).sum(),
    "hvp": lambda x: ta.hvp(CUBES, x, x, create_graph=True).sum(),
    "jacobian": lambda x: ta.jacobian(np.sin, x, create_graph=True).sum(),
    "jvp": lambda x: ta.jvp(lambda x: np.sin(x) ** 3, x, x, create_graph=True)[1].sum(),
    "value_and_grad": lambda x: ta.value_and_grad(CUBES, create_graph=True)(x)[1].sum(),
    "vjp": lambda x: ta.vjp(np.sin, x, create_graph=True)[1](x)[0].sum(),
}
"""Functions that call a transform, by its name."""


def test_transforms_inside_a_function():
    assert INSIDE.keys() == {*transforms.__all__}
    for f in INSIDE.values():
        x = SRC[0, 0, :3]
        program = ta.source(f, x)
        assert_tidy(program.text)
        assert_right(program, f, [2 * x])


def test_sizes_that_depend_on_the_numbers_are_checked():
    f = lambda x: np.mean(x[x > 0] ** 2)
    program = ta.source(f, np.array([1.0, -1.0, 2.0]))
    assert_right(program, f, [np.array([-1.0, 3.0, 4.0])])
    with pytest.raises(ValueError, match="these numbers need another program"):
        program(np.array([1.0, 1.0, 2.0]))
    with pytest.raises(TypeError, match="a shape that depends on the values"):
        ta.source(lambda x: x[np.nonzero(x.detach().numpy() > 0)].sum(), np.ones(3))
    first = lambda x, n: x[:n].sum()
    program = ta.source(first, np.ones(3), np.array(2))
    assert_right(program, first, [np.arange(3.0), np.array(2)])
    with pytest.raises(ValueError, match="getitem: these numbers need another program"):
        program(np.ones(3), np.array(1))
    repeat = ta.source(lambda x, n: np.broadcast_to(x, (n, 3)).sum(), np.ones(3), np.array(2))
    with pytest.raises(ValueError, match="these numbers need another program"):
        repeat(np.ones(3), np.array(3))


def test_a_tensors_array_is_not_changed_in_place():
    def f(x):
        y = x * 2
        array = y.detach().numpy()
        array += 1
        return np.sum(y * y)

    with pytest.raises(TypeError, match="a Tensor's array, in place"):
        ta.source(f, SRC[0])

    def later(x):
        array = np.zeros_like(x.detach().numpy())
        y = x * array
        array += 1
        return np.sum(y + x * array)

    with pytest.raises(ValueError, match="changed in place after it was used"):  # as f itself
        ta.source(later, SRC[0])


def test_a_product_of_the_forward_pass_is_not_turned_by_the_backward_pass():
    x, w, v = (np.random.default_rng(0).standard_normal(s) for s in ((4, 6), (4, 5), (5, 3)))

    def f(x, w, v):
        return (((x.T @ w) @ v) ** 2).sum()

    program = ta.source(f, x, w, v)
    assert_right(program, f, (x, w, v))
    assert program.text.count("@") == 6, program.text  # two forwards, and for each two backwards


def test_names_that_are_taken():
    def f(x, E, d_x, loss, np_):
        x = x * E + d_x
        x = x * loss
        output = x * np_
        return output.sum() + x.sum()

    args = [rng.standard_normal((2, 3)) for _ in range(5)]
    program = ta.source(f, *args)
    assert_tidy(program.text)
    assert_right(program, f, args)

    def itself(x):
        x = x * x
        return x

    program = ta.source(itself, args[0])
    assert_right(program, itself, args[:1])
    layer = encoder()

    def with_letters(E, B):
        return np.mean(layer(E + B) ** 2)

    program = ta.source(with_letters, SRC, SRC, params=layer)
    assert_right(program, with_letters, [SRC, SRC], layer)


def copied(x):
    y = np.zeros(2)
    np.copyto(y, x.data)
    return (x * y).sum()


def tried(x):
    try:
        negative = float(x.sum()) < 0
    except Exception:
        negative = False
    return (-x if negative else x * 1.0).sum()


FREEZES = {
    "copyto": copied,
    "try": tried,
    "full": lambda x: (x * np.full(2, x.data.max(), dtype=np.float64)).sum(),
    "nonzero": lambda x: x.sum() * len((x.data > 1.5).nonzero()[0]),
}


@pytest.mark.parametrize("name", FREEZES)
def test_numbers_are_refused_or_read_again(name):
    """A program is refused, or says that it needs another one, or is right at other numbers."""
    f, other = FREEZES[name], np.array([-1.0, -7.0])
    try:
        value, gradients = ta.source(f, np.array([1.0, 2.0]))(other)
    except (TypeError, ValueError, AttributeError):
        return
    x = Tensor(other, requires_grad=True)
    assert np.allclose(value, f(x).numpy())
    assert np.allclose(gradients["x"], ta.grad(f(x), [x])[0].numpy())


# ---- arguments that no gradient is taken by, and several results

WHOLE, NUMBERS = np.array([[2, 0], [1, 2]]), rng.standard_normal((2, 3))
BY_WHOLE = {
    "take_along_axis": lambda x, i: np.take_along_axis(x, i, axis=1),
    "full_like of a Tensor": lambda x, i: x * np.full_like(x, x[0, 0]) + i.sum(),
    "index": lambda x, i: x[0, i],
}


@pytest.mark.parametrize("name", BY_WHOLE)
def test_whole_numbers_are_arguments(name):
    f = BY_WHOLE[name]
    program = ta.source(f, NUMBERS, WHOLE)
    assert_tidy(program.text)
    for i in (WHOLE, WHOLE[::-1]):
        assert_right(program, f, [NUMBERS, i])


def test_a_table_that_is_indexed_by_an_argument_is_refused_with_advice():
    with pytest.raises(TypeError, match=r"pass the array as an argument too"):
        ta.source(lambda x, i: np.eye(3)[i] @ x[0], NUMBERS, WHOLE)
    args = NUMBERS, WHOLE, np.eye(3)
    f = lambda x, i, table: table[i] @ x[0]
    assert_right(ta.source(f, *args), f, args)


RESULTS = {
    "tuple": lambda x: np.gradient(x),
    "dict": lambda x: {"logits": np.sin(x) + 1, "all": [x.sum(), 2 * x, x], 3: x.T, "sum": x.T},
    "the same twice": lambda x: (y := x * 2, y, y[0]),
    "one in a tuple": lambda x: (x * 2,),
    "many": lambda x: tuple(np.sin(k * x).sum(axis=1) for k in range(2, 20)),
    "constants": lambda x: (x * 1.0, np.arange(40.0) ** 0.5, np.zeros((0, 2)), 3, None),
    "none": lambda x: (),
}


def arrays_in(y):
    if isinstance(y, (dict, tuple, list)):
        inner = [arrays_in(v) for v in (y.values() if isinstance(y, dict) else y)]
        return sum(inner, [])
    return [y.numpy() if isinstance(y, Tensor) else y]


@pytest.mark.parametrize("name", RESULTS)
def test_several_results(name):
    f = RESULTS[name]
    program = ta.source(f, NUMBERS, backward=False)
    assert_tidy(program.text)
    for x in (NUMBERS, NUMBERS[::-1] + 0.1):
        found, expected = program(x), f(Tensor(x))
        assert type(found) is type(expected)
        mine = arrays_in(found)
        for a, b in zip(mine, arrays_in(expected), strict=True):
            assert_close(a, b) if isinstance(b, np.ndarray) else pytest.approx(a) == b
        given = [x, *program.arrays().values()]
        own = [a for a in mine if isinstance(a, np.ndarray)]
        assert not any(np.shares_memory(a, b) for a in own for b in given)
        assert not any(np.shares_memory(a, b) for i, a in enumerate(own) for b in own[:i])


def test_a_result_of_which_only_rounding_is_left():
    layer = nn.LayerNorm(6)
    f = lambda x: (layer(x).mean(), (x - x * 1.0).sum())
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((3, 2, 6))
        ta.source(f, x, params=layer, backward=False)
        ta.source(lambda x: f(x)[0] + 0 * x.sum(), x, params=layer)
    x = x.astype(np.float32)  # x . x / (x . x) is 1, whatever x is
    program = ta.source(lambda x: (x / (x * x).sum(-1, keepdims=True) * x).sum(), x)
    value, gradients = program(x)
    assert np.isclose(value, 6) and np.abs(gradients["x"]).max() < 1e-6


def test_names_longer_than_a_line():
    layer = nn.TransformerEncoder(encoder(batch_first=False), 2)
    program = ta.source(squares(layer), SRC, params=layer)
    assert_tidy(program.text)
    assert_right(program, squares(layer), [SRC], layer)


class Outer(nn.Module):
    def __init__(self, inner):
        self.a_module_with_a_name_that_is_really_quite_long = inner

    def forward(self, x):
        return self.a_module_with_a_name_that_is_really_quite_long(x)


def with_long_names(
    the_first_argument_has_a_name_that_is_really_quite_long,
    the_second_argument_has_a_name_that_is_really_quite_long,
):
    the_part_that_has_been_chosen_of_the_first_argument = (
        the_first_argument_has_a_name_that_is_really_quite_long[
            the_second_argument_has_a_name_that_is_really_quite_long
        ]
    )
    return the_part_that_has_been_chosen_of_the_first_argument**2


ONES, LETTERS = np.ones((1,) * 24 + (2,)), "abcdefghijklm"
WIDE = {
    "all indices": (
        lambda x: np.take_along_axis(x, np.zeros((1, 2, 3, 1, 1), int), 1) * 2,
        (np.ones((1, 2, 3, 1, 1)),),
    ),
    "names": (with_long_names, (SRC, np.array([0, 1, 1]))),
    "settings": (
        lambda x: (
            np.einsum(f"{LETTERS},{LETTERS}->{LETTERS[1:]}", x, x)
            + np.pad(x[0], [(0, 1)] * 12).sum()
        ),
        (np.ones((1,) * 12 + (2,)),),
    ),
    "shapes": (lambda x: x * 2, (ONES,)),
}


@pytest.mark.parametrize("name", WIDE)
def test_lines_that_are_hard_to_fit(name):
    f, args = WIDE[name]
    program = ta.source(f, *args)
    assert_tidy(program.text)
    assert_right(program, f, args)


def test_a_sum_of_many_terms():
    f = lambda x: sum(x * float(i) for i in range(400)).sum()
    program = ta.source(f, SRC[0, :2, :2], backward=False)
    assert_tidy(program.text)
    assert_close(program(SRC[1, :2, :2]), f(Tensor(SRC[1, :2, :2])).numpy())


def test_names_and_keys_that_are_hard_to_fit():
    model = Outer(Outer(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))))
    program = ta.source(model, SRC[0], backward=False)
    assert_tidy(program.text)
    assert_close(program(SRC[0]), model(SRC[0]).numpy())
    by_key = lambda x: {f"key, {i} (with 'signs'": np.sin(i * x) for i in range(9)}
    found = ta.source(by_key, SRC[0], backward=False)(SRC[0])
    assert found.keys() == by_key(SRC[0]).keys()


UFUNCS = [(sign, getattr(np, name)) for name, sign in SIGNS.items()]
BINARY = {sign: ufunc for sign, ufunc in UFUNCS if ufunc.nin == 2}
UNARY = {sign: ufunc for sign, ufunc in UFUNCS if ufunc.nin == 1}
OPERANDS = {
    dtype: [(np.array([[3, 2], [1, 4]]) + k).astype(dtype) for k in (0, 1, 3)]
    for dtype in (float, int, bool)
}


def nested():
    """Each operator with the result of each as each operand, and with numbers that have a sign or a fraction."""
    for outer, f in BINARY.items():
        for inner, h in BINARY.items():
            yield f"(a {inner} b) {outer} c", lambda a, b, c, f=f, h=h: f(h(a, b), c)
            yield f"a {outer} (b {inner} c)", lambda a, b, c, f=f, h=h: f(a, h(b, c))
        for inner, h in UNARY.items():
            yield f"({inner}a) {outer} b", lambda a, b, c, f=f, h=h: f(h(a), b)
            yield f"a {outer} ({inner}b)", lambda a, b, c, f=f, h=h: f(a, h(b))
        for n in (-2, 1 / 3):
            yield f"({n}) {outer} a", lambda a, b, c, f=f, n=n: f(n, a)
            yield f"a {outer} ({n})", lambda a, b, c, f=f, n=n: f(a, n)
    for outer, f in UNARY.items():
        for inner, h in (BINARY | UNARY).items():
            yield f"{outer}(a {inner} b)", lambda a, b, c, f=f, h=h: f(h(*(a, b)[: h.nin]))


def test_each_operator_beside_each_is_bracketed_where_and_only_where_it_has_to_be():
    asked = 0
    for text, f in nested():
        for operands in OPERANDS.values():
            with np.errstate(all="ignore"):
                try:
                    expected = f(*operands)
                except (TypeError, ValueError):  # no bits of floats, no powers of negative integers
                    continue
                program = ta.source(f, *operands, backward=False)
                value = program(*operands)
            np.testing.assert_array_equal(value, expected, err_msg=text)
            for line in ast.walk(ast.parse(program.text)):
                if isinstance(line, ast.Assign | ast.Return):
                    written = ast.get_source_segment(program.text, line)
                    assert written.count("(") == ast.unparse(line).count("("), written
            asked += 1
            break
    assert asked > 600


@pytest.mark.parametrize("dtype", OPERANDS)
def test_operators_of_a_value_with_itself(dtype):
    a = OPERANDS[dtype][0]
    for sign, f in BINARY.items():
        try:
            expected = f(a, a)
        except (TypeError, ValueError):
            continue
        program = ta.source(lambda a, f=f: f(a, a), a, backward=False)
        value = program(a)
        np.testing.assert_array_equal(value, expected, err_msg=sign)
        assert value.dtype == expected.dtype, sign
        doubled = "2 * a" in program.text.replace("2.0", "2")
        assert doubled == (sign == "+" and dtype is not bool)


@pytest.mark.parametrize(
    "text, f",
    [
        ("x / r - y / r", lambda x, y, r: x / r - y / r),
        ("x / r - y / r * z", lambda x, y, r, z: x / r - y / r * z),
        ("x / r * y", lambda x, y, r: x / r * y),
        ("(x / r * y).sum(-1)", lambda x, y, r: (x / r * y).sum(axis=-1)),
    ],
)
def test_rules_for_gradients_leave_the_forward_pass_as_it_is_written(text, f):
    named = {"x": SRC[0], "y": SRC[1], "z": SRC[2], "r": np.full((7, 1), 2.0)}
    args = [named[name] for name in inspect.signature(f).parameters]
    program = ta.source(f, *args, backward=False)
    assert text in program.text
    assert_close(program(*args), f(*args))


def test_constants_have_different_names_however_few_lines_there_are():
    for f in (
        lambda constant: constant * np.arange(8.0) + np.arange(2.0, 10.0),
        lambda constant: (Tensor(np.arange(8.0)), Tensor(np.arange(2.0, 10.0)), constant),
    ):
        program = ta.source(f, SRC[0, 0], backward=False)
        assert len(program.arrays()) == 2 and "constant" not in program.arrays()
        assert_close(program(SRC[0, 0]), f(SRC[0, 0]))


def test_constants_are_computed_unless_their_elements_are_equal():
    """A constant in the place of a result would have to be passed with the file."""
    places = lambda x: (x * np.cumsum(np.ones_like(x))).sum()
    program = ta.source(places, SRC[0, 0])
    assert not program.arrays() and "cumsum" in program.text
    assert_right(program, places, [SRC[1, 0]])
    halves = lambda x: (x * np.exp2(-np.ones_like(x))).sum()
    assert "0.5 * x" in ta.source(halves, SRC[0, 0]).text


def test_a_line_has_at_most_twenty_values_inside_each_other():
    for n, lines in ((20, 1), (21, 2), (41, 2), (42, 3)):
        f = lambda x, n=n: functools.reduce(lambda _x, _: ~_x, range(n), x)
        program = ta.source(f, np.arange(3), backward=False)
        assert sum("~" in line for line in program.text.splitlines()) == lines, n
        np.testing.assert_array_equal(program(np.arange(3, 6)), f(np.arange(3, 6)))


def test_constants_of_one_element_are_written_as_others_are():
    def f(x):
        z = np.zeros_like(x)
        z[1:2] = np.full(1, 5.0)
        return np.concatenate([x * z, x[:1] * np.full(1, 2.0), np.full(1, 3.0), np.ones(1)])

    program = ta.source(lambda x: f(x.detach().numpy()), SRC[0, 0], backward=False)
    assert_close(program(SRC[0, 1]), f(SRC[0, 1]))
    assert (
        not program.arrays() and "2.0 * x" in program.text and "np.full((1,), 3.0)" in program.text
    )


@pytest.mark.parametrize("example", [np.zeros(8), np.ones(8)])
def test_what_is_equal_in_the_example_is_no_constant(example):
    def f(x):
        y, z, w = np.exp(x), x.copy(), np.sin(x)
        y[0] = 5.0
        z[1:] += y[1:]
        np.add.at(z, [0, 0], y[:2])
        np.add.at(w, [0, 1], y[:2])
        return y * z, np.where(x > 0.5, y, z), np.where(x < 0, w, y), x.sum() * y

    program = ta.source(lambda x: f(x.detach().numpy()), example, backward=False)
    for found, expected in zip(program(SRC[0, 1]), f(SRC[0, 1]), strict=True):
        assert_close(found, expected)


def test_a_constant_that_updates_write_as_a_number_has_no_line():
    first, second = np.array([0, 1, 1]), np.array([2, 3, 3])
    f = lambda x: (x[first] * 0.3).sum() + (x[second] * 0.3).sum()
    program = ta.source(f, SRC[0])
    assert_tidy(program.text)
    assert_right(program, f, [SRC[1]])


def test_a_single_number_is_written_into_as_an_array_is():
    @ta.op
    def counted(x):
        y = np.zeros_like(x)
        y[...] = x
        y[()] += 1
        return y

    counted.vjp(lambda g, y, x: g)
    f = lambda x: counted(x.sum()) * 2 + (x.sum()[None] * 3).sum()
    assert_right(ta.source(f, SRC[0]), f, [SRC[1]])


VIEWS = [
    lambda x: np.broadcast_to(x, (2, 5, 7)),
    lambda x: np.expand_dims(x, 0),
    lambda x: np.flip(x),
    lambda x: np.diagonal(x),
    lambda x: np.rot90(x),
    lambda x: np.atleast_3d(x),
    lambda x: x.reshape(7, 5),
    lambda x: x.T,
    lambda x: x[1:],
]


@pytest.mark.parametrize("dtype", [int, float])
def test_no_result_is_a_view_of_an_argument(dtype):
    x = np.arange(35, dtype=dtype).reshape(5, 7)
    for f in VIEWS:
        found = ta.source(f, x, backward=False)(x)
        np.testing.assert_array_equal(found, f(x))
        assert not np.shares_memory(found, x) and found.flags.writeable


def test_a_sum_into_a_number_makes_another_number():
    def f(x):
        a = b = x.sum()
        b += 1
        b *= x[0]
        return a * b

    program = ta.source(lambda x: f(x.detach().numpy()), SRC[0, 0], backward=False)
    assert_close(program(SRC[0, 1]), f(SRC[0, 1]))


def test_what_is_returned_without_a_copy_was_never_a_view():
    """Functions whose result counts as memory of its own."""
    for x in (np.ones(4), np.ones((3, 3)), np.ones((1, 1, 2), int), np.ones((2, 3), "f4").T):
        for name in FRESH["method"].split():
            given = {"dot": [np.ones(x.shape[-1], x.dtype)], "astype": [x.dtype]}.get(name, [])
            ways = [{}, {"axis": ()}] if name in ("sum", "mean", "max", "min", "prod") else [{}]
            for named in ways:
                assert not np.shares_memory(getattr(x, name)(*given, **named), x), name
        assert not np.shares_memory(np.where(x > 0, x, x), x)
        assert not np.shares_memory(np.stack([x]), x)
        assert not np.shares_memory(np.concatenate([x]), x)
    assert {*FRESH["call"].split()} == {"where", "stack", "concatenate", "erf"}
