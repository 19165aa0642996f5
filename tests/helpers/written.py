"""Lists of expressions as the tracer writes them down, for the tests of what is made of them."""

import ast
import inspect
import math
import sys
from operator import attrgetter

import numpy as np

from tinygrad_attn.transforms.programs.expressions import BACKWARD, Expression, replaced
from tinygrad_attn.transforms.programs.symbol import OPERATORS, Symbol, Writing
from tinygrad_attn.transforms.programs.text import Sizes, Text

SHAPES = {
    **dict.fromkeys("xyz", (3, 4)),
    **{"r": (4,), "c": (3, 1), "n": (), "w": (4, 5), "v": (5, 3), "q": (3, 3), "e": (0, 4)},
    **dict.fromkeys("tuh", (2, 3, 4)),
    "tokens": (3, 1009),
    "wide": (3, 1025),
    "none": (0, 3, 4),
    "heads": (2, 3, 1),
    **{"k": (2, 4, 5), "p": (2, 2, 3, 4), "o": (1, 3), "long": (1025,), "rows": (3, 1024)},
}
SINGLE = {"f": (3, 4), "g": (3, 4), "single": (3, 1024), "longer": (3, 1025)}
WHOLE = {"i": (3, 4)}
BOOLEAN = {"b": (3, 4)}
BINARY = {sign: ufunc for ufunc, sign in OPERATORS.items() if ufunc.nin == 2}
UNARY = {sign: ufunc for ufunc, sign in OPERATORS.items() if ufunc.nin == 1}


def numbers(seed):
    """An array for each name. Those called zero and same are by chance of one number while a program is written."""
    r = np.random.default_rng(seed)
    chance = {
        "zero": np.full((2, 4), float(seed)),
        "same": np.full((3, 4), 2.0) + seed * r.random((3, 4)),
    }
    found = chance | {k: np.asarray(r.standard_normal(shape)) for k, shape in SHAPES.items()}
    found |= {k: r.standard_normal(shape).astype(np.float32) for k, shape in SINGLE.items()}
    found |= {k: r.integers(1, 9, shape) for k, shape in WHOLE.items()}
    return found | {k: r.random(shape) < 0.5 for k, shape in BOOLEAN.items()}


def written_down(f, backward=False):
    """What the tracer makes of f, a function of arrays that are called as its arguments are."""
    listing, given = Writing(), numbers(0)
    symbols = {
        name: Symbol(
            listing.make("input", name, (), {}, given[name], ("input", name)), given[name], listing
        )
        for name in inspect.signature(f).parameters
    }
    listing.phase = BACKWARD if backward else listing.phase
    made = f(**symbols)
    return made.expression if isinstance(made, Symbol) else [part.expression for part in made]


def computed(e, given):
    """The value of an expression, step by step."""
    if not isinstance(e, Expression):
        return e
    if e.kind in ("constant", "number"):
        return e.value
    if e.kind == "input":
        return given[e.name]
    args = [replaced(a, lambda x: computed(x, given)) for a in e.args]
    settings = {k: replaced(v, lambda x: computed(x, given)) for k, v in e.settings.items()}
    if e.kind == "operator":
        return (BINARY if len(args) == 2 else UNARY)[e.name](*args)
    if e.kind == "dot":
        return args[0].dot(args[1])
    if e.is_a("call", "erf"):
        return np.vectorize(math.erf, otypes=[np.float64])(args[0]).astype(e.dtype)
    if e.kind == "call":
        return attrgetter(e.name)(np)(*args, **settings)
    if e.kind == "method" and e.name == "reshape":
        return args[0].reshape(tuple(args[1:]))
    if e.kind == "method":
        return getattr(args[0], e.name)(*args[1:], **settings)
    if e.kind == "update":
        array = args[0].copy()
        np.add.at(array, *args[1:])
        return array
    return (
        args[0][args[1] if e.kind == "item" else e.name]
        if e.kind != "attribute"
        else getattr(args[0], e.name)
    )


def spelled(e):
    """The expression as Python."""
    text = Text(
        lambda e: e.name if e.kind == "input" else "..." if e.kind == "update" else None, Sizes({})
    )
    return text.of(e)


def assert_equal(mine, expected, digits=1e-12):
    mine, expected = np.asarray(mine), np.asarray(expected)
    assert mine.shape == expected.shape and mine.dtype == expected.dtype
    digits = 1e-4 if expected.dtype == np.float32 else digits
    np.testing.assert_allclose(mine, expected, rtol=digits, atol=digits)


def lines_run(module, run):
    """The lines of the module that run() comes through."""
    lines = set()

    def each_line(frame, event, _):
        lines.add(frame.f_lineno)
        return each_line

    def of_the_module(frame, event, _):
        return each_line if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    sys.settrace(of_the_module)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines


def statements_but(module, lines):
    """The statements in the module's functions that begin and end outside of these lines."""
    source = inspect.getsource(module)
    written, found = source.splitlines(), set()
    for function in [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]:
        for node in ast.walk(function):
            simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if simple and not text and lines.isdisjoint(range(node.lineno, node.end_lineno + 1)):
                found.add(f"line {node.lineno}: {written[node.lineno - 1].strip()}")
    return found


def constant(x, array):
    """An array that is written down beside x as a constant."""
    array = np.asarray(array)
    return Symbol(x.listing.constant(array), array if array.ndim else array[()], x.listing)


def one_at(x, at, shape):
    """Zeros beside x of this shape, and 1 at this place."""
    array = np.zeros_like(x, shape=shape)
    np.add.at(array, at, 1.0)
    return array
