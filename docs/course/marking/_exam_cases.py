"""The cases of the exam: formulas, which NumPy and the engine both evaluate, and procedures.

A formula is Python text, and its last line is the result. Its small letters are tensors, its capital
letters arrays or numbers, and all other names are words of the engine (`Engine.word`). What is right
comes from finite differences of the same text in NumPy.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from _exam_engine import ACCIDENTS, Crash, Engine, Missing, Refused

Mistakes = Mapping[str, Any]
"""A sentence for each known mistake, and what it gives: the text of the formula that is computed
instead, or a gradient, which is a number or f(*inputs, weights). A tuple has several.
"""


@dataclass(frozen=True)
class Case:
    """A case with its group and its name, which is unique."""

    group: str
    name: str
    mistakes: Mistakes


@dataclass(frozen=True)
class Formula(Case):
    """An expression of `tensors`, perhaps after some statements, and plain `values` by name."""

    text: str
    tensors: dict[str, np.ndarray]
    values: dict[str, Any]
    right: Any = None  # the right gradient, where it is not the slope of NumPy's result
    accepts: Callable[[np.ndarray, np.ndarray], bool] | None = None  # f(gradient, weights)
    words: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict
    )  # that NumPy does not have
    code: tuple[Any, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tree = ast.parse(self.text)
        last: Any = tree.body.pop()
        steps, result = compile(tree, self.name, "exec"), ast.Expression(last.value)
        object.__setattr__(self, "code", (steps, compile(result, self.name, "eval")))

    @property
    def loops(self) -> bool:
        """Whether one evaluation takes many steps, so that gradcheck would take minutes."""
        return "range(" in self.text

    def on(self, word: Callable[[str], Any]) -> Callable[..., Any]:
        """Return the formula as a function of its tensors, in an engine's words."""

        class Names(dict):
            def __missing__(self, name: str) -> Any:
                return word(name)

        def formula(*tensors: Any) -> Any:
            steps, result = self.code
            names = Names(self.values, np=np, range=range, **dict(zip(self.tensors, tensors)))
            nothing: dict[str, Any] = {"__builtins__": {}}
            exec(steps, nothing, names)
            return eval(result, nothing, names)

        return formula


@dataclass(frozen=True)
class Procedure(Case):
    """A function of an engine that returns a number, or a sentence that says what is wrong."""

    run: Callable[[Engine], Any]
    right: tuple[float, ...]  # the accepted numbers


CASES: list[Case] = []


def random(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(0.5, 2, shape)


def formula(
    group: str,
    text: str,
    *,
    called: str = "",
    note: str = "",
    mistakes: Mistakes | None = None,
    right: Any = None,
    accepts: Callable | None = None,
    **inputs: Any,
) -> None:
    """Add a formula, perhaps `called` otherwise than its text.

    A tuple of lengths stands for a random array of this shape.
    """
    made = {k: random(*x, seed=ord(k)) if isinstance(x, tuple) else x for k, x in inputs.items()}
    tensors = {k: np.array(x) for k, x in made.items() if k.islower()}
    values = {k: x for k, x in made.items() if not k.islower()}
    shapes = [f"{k} {x.shape}" for k, x in tensors.items() if x.ndim]
    parts = [f"{group}: {called or '; '.join(text.splitlines())}", *shapes, note]
    name = ", ".join(filter(None, parts))
    CASES.append(Formula(group, name, mistakes or {}, text, tensors, values, right, accepts))


def procedure(group: str, text: str, *right: float, mistakes: Mistakes | None = None) -> Callable:
    """Add the decorated function as a procedure with these right results."""

    def enter(run: Callable[[Engine], Any]) -> None:
        CASES.append(Procedure(group, f"{group}: {text}", mistakes or {}, run, right))

    return enter


# ---- order: each tensor passes its gradient on once, when it is complete

BEGINNING = "the gradient of the result with respect to itself is 1, so the pass begins with 1"
EARLY = "a tensor passes its gradient on before all its users have contributed"
TWICE = "a tensor passes its whole gradient on again with each contribution"
OVERWRITES = "one use overwrites the other: = where += belongs"
EITHER = f"{OVERWRITES}; or {EARLY}"
DIAMOND = {EARLY: 2.0, TWICE: (50.0, 28.0), OVERWRITES: 6.0, EITHER: (12.0, 24.0)}

formula(
    "order",
    "a = x + x\nb = a * a\n(a + b) * (b + a)",
    x=3.0,
    mistakes={
        EARLY: (84.0, 168.0, 504.0),
        TWICE: (9156.0, 10164.0),
        OVERWRITES: 252.0,
        EITHER: 2016.0,
        BEGINNING: 0.0,
    },
)
formula("order", "x + x", x=3.0, mistakes={OVERWRITES: 1.0, BEGINNING: 0.0})
formula(
    "order",
    "x - x",
    x=3.0,
    mistakes={"local slopes are stored by operand": -2.0, OVERWRITES: (-1.0, 1.0)},
)
formula("order", "x * x * x + x", x=3.0, mistakes={"one use is lost": (9.0, 18.0)})
formula("order", "a = x + x\nb = a * a\nb + a", x=3.0, mistakes=DIAMOND)
formula("order", "a = x + x\nb = a * a\na + b", x=3.0, mistakes=DIAMOND)
formula(
    "order",
    "a = x + x\nb = a * a\na * (b * b)",
    x=3.0,
    mistakes={EARLY: 2592.0, EITHER: 10368.0},
)
formula(
    "order",
    "for _ in range(N): x = x + y\nx",
    called="x = x + y, 10,000 times",
    N=10_000,
    x=1.0,
    y=0.5,
    mistakes={"one use overwrites the others": 1.0},
)


@procedure("order", "x = x + x, 60 times", 2.0**60, mistakes={OVERWRITES: 1.0})
def _(engine: Engine) -> Any:
    def pull(times: int) -> Any:
        def doubled(x: Any) -> Any:
            for _ in range(times):
                x = x + x
            return x

        return engine.pull(doubled, [np.array(3.0)], np.ones(()))[0]

    # The first time, an engine may import modules or compile.
    few, many = (min(calls(pull, times) for _ in range(2)) for times in (6, 12))
    if many > 16 * few:
        raise Crash(
            "backward follows every path, and here there are 2 ** 60: remember which tensors have "
            "been seen, and pass on the gradient of each one once"
        )
    return pull(60)


def calls(function: Callable[[int], Any], argument: int) -> int:
    """Return how many functions are called by a call."""
    before, count = sys.getprofile(), 0

    def note(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event.endswith("call")

    sys.setprofile(note)
    try:
        function(argument)
    finally:
        sys.setprofile(before)
    return count


# ---- passes: .grad after several of them; an engine may also replace .grad each time

LEFT_OVER = "the second pass also sends what the first one left in h.grad"
AGAIN = "the second pass also runs the first one again"


def second_pass(engine: Engine, y: Any, leaf: Any) -> Any:
    """Return the leaf's gradient. Raises Refused if the engine says that it makes one pass only."""
    try:
        engine.backward(y)
    except Exception as error:
        accident = isinstance(error, ACCIDENTS) or not isinstance(error, (RuntimeError, ValueError))
        raise (Crash if accident else Refused)(f"{type(error).__name__}: {error}") from error
    return engine.gradient(leaf)


@procedure("passes", "backward of 3 a, then of 5 a", 8, 5, mistakes={AGAIN: 11.0})
def _(engine: Engine) -> Any:
    a = engine.leaf(1.0)
    engine.run_backward(a * 3.0)
    engine.run_backward(a * 5.0)
    return engine.gradient(a)


@procedure(
    "passes",
    "h = 2 a; backward of 3 h, then of 5 h",
    16,
    10,
    mistakes={LEFT_OVER: 22.0, AGAIN: 28.0, "the second pass stops at h": 6.0},
)
def _(engine: Engine) -> Any:
    a = engine.leaf(1.0)
    h = a * 2.0
    engine.run_backward(h * 3.0)
    return second_pass(engine, h * 5.0, a)


@procedure("passes", "y = 3 (2 a); backward of y twice", 12, 6, mistakes={LEFT_OVER: 18.0})
def _(engine: Engine) -> Any:
    a = engine.leaf(1.0)
    y = (a * 2.0) * 3.0
    engine.run_backward(y)
    return second_pass(engine, y, a)


@procedure(
    "passes",
    "backward of 3 a, zero_grad, backward of 5 a",
    5,
    mistakes={f"zero_grad does not clear .grad; or {AGAIN}": 8.0},
)
def _(engine: Engine) -> Any:
    a = engine.leaf(1.0)
    engine.run_backward(a * 3.0)
    engine.zero(a)
    engine.run_backward(a * 5.0)
    return engine.gradient(a)


# ---- elementwise

SWAPPED = "the operands are swapped"

formula("elementwise", "x + y", x=(2, 3), y=(2, 3))
formula("elementwise", "x * y", x=(2, 3), y=(2, 3))
formula("elementwise", "-x", x=(2, 3))
formula("elementwise", "x - y", x=(2, 3), y=(2, 3), mistakes={SWAPPED: "y - x"})
formula("elementwise", "x / y", x=3.0, y=-2.0, mistakes={SWAPPED: "y / x"})
formula("elementwise", "x ** 3", x=-2.0)
formula(
    "elementwise",
    "x ** 0",
    x=0.0,
    mistakes={
        "x ** 0 is 1 everywhere, so its slope is 0, but 0 * 0 ** -1 is 0 times infinity, "
        "which is NaN": np.nan
    },
)
formula("elementwise", "exp(x)", x=(2, 3))
formula("elementwise", "log(x)", x=(2, 3))
formula("elementwise", "tanh(x)", x=(2, 3))
formula("elementwise", "exp(x) * tanh(x)", x=0.5)
formula("elementwise", "log(x) * x", x=2.0)
formula("elementwise", "relu(x)", x=0.0, accepts=lambda g, _: bool(0 <= g <= 1))
formula("elementwise", "relu(x) - 3.0 * relu(2.0 - x)", x=3.0)
formula(
    "elementwise", "relu(x) * relu(y)", x=[[1.0, -2.0], [3.0, 0.5]], y=[[2.0, 1.0], [-1.0, 3.0]]
)
formula("elementwise", "abs(x)", x=0.0, accepts=lambda g, _: bool(-1 <= g <= 1))
formula("elementwise", "sqrt(x) * sin(x)", x=(3,))
formula("elementwise", "x ** y", x=[0.0, 2.0], y=[2.0, 3.0])
formula(
    "elementwise",
    "maximum(x, x) * x",
    x=[1.0, 2.0],
    right=lambda x, weights: 2 * x * weights,
    mistakes={
        "at a tie both operands get the whole gradient": lambda x, weights: 3 * x * weights,
        "at a tie no operand gets a gradient": lambda x, weights: x * weights,
    },
)

# ---- large numbers

LARGE = [[1000.0, 999.0, -1000.0], [0.5, 2.0, 1.0]]

formula("large numbers", "sigmoid(x)", x=-1000.0)
formula("large numbers", "tanh(x)", x=1000.0)
formula("large numbers", "softmax(x, axis=-1)", x=LARGE)
formula("large numbers", "log_softmax(x, axis=-1)", x=LARGE)
formula("large numbers", "logsumexp(x, axis=-1)", x=LARGE)
formula(
    "large numbers",
    "layer_norm(x, w)",
    x=[[1000.0, 1001.0, 1003.0, 1002.5], [1.0, 3.0, 2.0, 0.0]],
    w=(4,),
)

# ---- broadcasting

formula(
    "broadcasting",
    "x * y",
    x=(3, 3),
    y=(3,),
    mistakes={
        "the copies are added up along the wrong axis": lambda x, y, weights: (weights * x).sum(
            axis=1
        )
    },
)
formula("broadcasting", "x + y * y", x=(3, 4), y=(3, 1))
formula("broadcasting", "x / y", x=(3, 1), y=(1, 4))
formula("broadcasting", "x - y * y", x=(2, 3), y=())
formula("broadcasting", "x * y + y", x=(2, 3, 4), y=(3, 1))
formula("broadcasting", "x * y", x=(1, 3), y=(2, 3))

# ---- reductions

formula("reductions", "sum(x) * x", x=(2, 3))
formula("reductions", "sum(x, axis=0)", x=(3, 3))
formula("reductions", "sum(x, axis=-1)", x=(3, 3))
formula("reductions", "sum(x, axis=(0, 2))", x=(2, 3, 2))
formula("reductions", "sum(x, axis=1, keepdims=True)", x=(2, 3))
formula("reductions", "x / sum(x, axis=1, keepdims=True)", x=(2, 3))
NOT_DIVIDED = "g is not divided by the number of elements of the mean"
formula(
    "reductions",
    "mean(x) * x",
    x=(2, 3),
    mistakes={NOT_DIVIDED: lambda x, weights: weights * x.mean() + (weights * x).sum()},
)
formula(
    "reductions",
    "mean(x, axis=0) * x",
    x=(3, 3),
    mistakes={
        NOT_DIVIDED: lambda x, weights: weights * x.mean(axis=0) + (weights * x).sum(axis=0),
        "g is divided by the number of all elements, not of those in one mean": (
            lambda x, weights: weights * x.mean(axis=0) + (weights * x).sum(axis=0) / x.size
        ),
    },
)
formula("reductions", "mean(x, axis=(0, 2))", x=(2, 3, 2))
formula("reductions", "max(x, axis=1)", x=[[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
formula(
    "reductions",
    "max(x, axis=1)",
    x=[[1.0, 3.0, 3.0], [0.0, 2.0, 2.0], [1.0, 0.0, 2.0]],
    accepts=lambda g, weights: (
        np.allclose(g.sum(axis=1), weights, 1e-4) and not g[[0, 1, 2, 2], [0, 0, 0, 1]].any()
    ),
    mistakes={
        "every element that ties gets the whole gradient": lambda x, weights: (
            weights[:, None] * (x == x.max(axis=1, keepdims=True))
        )
    },
)

# ---- products of matrices

formula("products", "matmul(x, y)", x=(2, 3), y=(3, 4))
formula(
    "products",
    "matmul(x, x)",
    x=(3, 3),
    mistakes={
        "only one of the two uses of x counts": lambda x, weights: (weights @ x.T, x.T @ weights)
    },
)
formula("products", "matmul(x, y)", x=(3, 3), y=(3, 3))
formula("products", "matmul(x, y)", x=(2, 3), y=(3,))
formula("products", "matmul(x, y)", x=(3,), y=(3, 2))
formula("products", "matmul(x, y)", x=(3,), y=(3,))
formula("products", "matmul(x, y)", x=(2, 2, 2), y=(2, 2, 2))
formula("products", "matmul(x, y)", x=(2, 3, 4), y=(4, 5))
formula("products", "matmul(x, y)", x=(3, 4), y=(2, 4, 5))

# ---- shapes

formula("shapes", "transpose(x, (1, 2, 0))", x=(2, 2, 2))
formula("shapes", "transpose(x, (1, 0))", x=(3, 3))
formula("shapes", "reshape(x, (3, 2))", x=(2, 3))
formula("shapes", "reshape(transpose(x, (1, 0)), (2, 3)) * y", x=(2, 3), y=(2, 3))
formula("shapes", "x[I] * y", I=np.array([0, 0, 2]), x=(3,), y=(3,))
formula("shapes", "x[::2] * x[1::2]", x=(4,))
formula("shapes", "x[1] * x[0, 1]", x=(2, 3))
formula("shapes", "concatenate([x, y, y], axis=0)", x=(2, 3), y=(1, 3))
formula("shapes", "stack([x, y, y], axis=1)", x=(2, 3), y=(2, 3))
formula("shapes", "where(M, x, y) * x", M=np.array([True, False, True]), x=(3,), y=(3,))

# ---- layers, with weights other than one

WORDS = np.array([[1, 1], [0, 2]])
SEEN = np.array([[True, False, False], [True, True, False], [True, True, True]])

formula("layers", "softmax(x, axis=-1)", x=(2, 3))
formula("layers", "softmax(x, axis=0)", x=(3, 3))
formula("layers", "log_softmax(x, axis=-1)", x=(3, 4))
formula("layers", "layer_norm(x, w)", x=(3, 4), w=(4,))
formula("layers", "rms_norm(x, w)", x=(3, 4), w=(4,))
formula("layers", "cross_entropy(x, I)", I=np.array([2, 0, 3]), x=(3, 4))
formula("layers", "embedding(I, w)", I=WORDS, w=(3, 2))
formula("layers", "attention(q, k, v, M)", M=SEEN, q=(3, 2), k=(3, 2), v=(3, 2))
formula(
    "layers",
    "attention(q, k, v, M)",
    note="the first query sees nothing",
    M=SEEN & np.array([[False], [True], [True]]),
    q=(3, 2),
    k=(3, 2),
    v=(3, 2),
)

# ---- numbers and arrays of NumPy beside tensors

for sign in "+-*/":
    for group, plain, x in (("elementwise", "2.0", 3.0), ("numpy", "A", (3,))):
        for left, right in (("x", plain), (plain, "x")):
            formula(
                group,
                f"{left} {sign} {right}",
                A=np.array([1.0, 2.0, 3.0]),
                x=x,
                mistakes={SWAPPED: f"{right} {sign} {left}"},
            )
formula("numpy", "A @ x", A=random(2, 2), x=(2, 2), mistakes={SWAPPED: "x @ A"})
formula("numpy", "x @ A", A=random(2, 2), x=(2, 2), mistakes={SWAPPED: "A @ x"})
formula("numpy", "S * x", S=np.float64(2.0), x=(3,))
formula("numpy", "np.exp(x) * x", x=(3,))

# ---- state

formula(
    "state",
    "detach(x * x) * x",
    x=3.0,
    right=9.0,
    mistakes={"the gradient goes through detach": 27.0},
)
formula(
    "state",
    "with no_grad(): c = x * 3.0\nc * x",
    x=3.0,
    right=9.0,
    mistakes={"no_grad still records": 18.0},
)
formula("state", "exp(x) + (x + y)", x=(3,), y=(3,))
for text in ("(x + y) + x", "x + (y + x)"):
    formula(
        "state",
        text,
        x=(3,),
        y=(3,),
        mistakes={
            "y received a contribution that was meant for x: both gradients began as one array, "
            "which was changed in place, so write g = g + share, not g += share": (
                lambda x, y, weights: 2 * weights
            )
        },
    )
formula("state", "where(M, x * y, y) + x", M=np.array([True, False, True]), x=(3,), y=(3,))


@procedure(
    "state",
    "y = a * b, a is overwritten, backward of y",
    2,
    mistakes={"the gradient silently uses the new value of a": 0.0},
)
def _(engine: Engine) -> Any:
    a, b = (engine.leaf(x) for x in (2.0, 3.0))
    y = a * b
    engine.overwrite(a, 0.0)
    if not np.allclose(engine.value(y), 6.0):
        raise Missing("a lazy engine computes y from the new value of a")
    try:
        engine.backward(y)
    except Exception as error:
        raise Refused(str(error)) from error
    return engine.gradient(b)


@procedure("state", ".grad of a and of b are two arrays after y = a + b", 1)
def _(engine: Engine) -> Any:
    a, b = (engine.leaf(np.ones(3)) for _ in range(2)) if not engine.scalar else numbers_only()
    engine.run_backward(engine.word("sum")(a + b))
    gradients = [
        g if isinstance(g, np.ndarray) else engine.value(g) for g in map(engine.grad, (a, b))
    ]
    if not all(isinstance(g, np.ndarray) and g.shape == (3,) for g in gradients):
        raise Missing("the gradient is not a NumPy array")
    shared = np.shares_memory(*gradients)
    return "both are one array: clipping one in place changes the other" if shared else 1


def numbers_only() -> Any:
    raise Missing("the engine has numbers only")


def stays_float32(f: Callable[[Engine, Any], Any], *shape: int) -> Callable[[Engine], Any]:
    """Return a procedure that says whether f's value, which has this shape, and its gradient are
    float32 if its input is.
    """

    def run(engine: Engine) -> Any:
        if engine.scalar:
            numbers_only()
        x = np.ones((3, 3), np.float32)
        stored = np.asarray(engine.value(engine.constant(x))).dtype
        if stored != np.float32:
            raise Missing(f"the engine stores {stored}")
        y = engine.value(f(engine, engine.constant(x)))
        if np.shape(y) != shape:
            raise Missing(f"the result has the shape {np.shape(y)}, not {shape}")
        total = lambda x: engine.word("sum")(f(engine, x))
        if engine.functional:
            g = engine.value(engine.adapter.gradients(total, [x])[0])
        else:
            leaf = engine.leaf(x)
            engine.run_backward(total(leaf))
            g = engine.gradient(leaf)
        if g is None:
            return None
        dtypes = {"the value": np.asarray(y).dtype, "the gradient": np.asarray(g).dtype}
        wrong = [f"{name} is {dtype}" for name, dtype in dtypes.items() if dtype != np.float32]
        return f"{', '.join(wrong)}: {WIDER}" if wrong else 1

    return run


WIDER = (
    "unlike Python's numbers, np.asarray(2.0), np.float64(2) and np.prod(shape) turn float32 into "
    "float64, and np.ones(shape) is float64, but np.ones_like(x) has the dtype of x"
)
procedure("state", "(2 x - 0.5) / 3 + x ** 2 of float32 stays float32", 1)(
    stays_float32(lambda engine, x: (x * 2.0 - 0.5) / 3.0 + x**2, 3, 3)
)
procedure("state", "mean(x, axis=0) of float32 stays float32", 1)(
    stays_float32(lambda engine, x: engine.word("mean")(x, axis=0), 3)
)


# ---- memory

STEPS = 50


def tensors_left(engine: Engine, collect: bool) -> int:
    """Return how many tensors of some training steps are still alive."""
    a = engine.leaf(2.0 if engine.scalar else np.full(3, 2.0))

    def count() -> int:
        return sum(type(x) is type(a) for x in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = count()
        for _ in range(STEPS):
            y = a * a
            y = y * y + a
            engine.run_backward(y if engine.scalar else engine.word("sum")(y))
            engine.zero(a)
        del y
        if collect:
            gc.collect()
        return max(0, count() - before - 4)  # one step's results may stay
    finally:
        gc.enable()


@procedure("memory", f"no tensors are left after {STEPS} steps", 1)
def _(engine: Engine) -> Any:
    left = tensors_left(engine, collect=True)
    return f"{left} tensors of {STEPS} steps stay alive: something keeps the graphs" if left else 1


@procedure("memory", "a graph is freed without the garbage collector", 1)
def _(engine: Engine) -> Any:
    left = tensors_left(engine, collect=False)
    text = f"{left} tensors of {STEPS} steps wait for the garbage collector: reference cycles"
    return text if left else 1


# ---- second order


def second_order(engine: Engine, f: Callable, rest: Callable | None = None) -> Any:
    """Return the derivative at 2 of f' (+ rest)."""

    def gradient(x: Any) -> Any:
        g = engine.derivative(f, x)
        return g + rest(x) if rest else g

    if engine.functional:
        return np.asarray(engine.adapter.gradients(gradient, [2.0])[0])
    x = engine.leaf(2.0)
    g = gradient(x)
    try:
        engine.backward(g)
    except Exception as error:
        text = f"the gradient is a tensor, but cannot be differentiated ({error})"
        raise Missing(text) from error
    return engine.gradient(x)


@procedure("second order", "second derivative of x * x * x at 2", 12)
def _(engine: Engine) -> Any:
    return second_order(engine, lambda x: x * x * x)


@procedure("second order", "derivative of f' + f at 2, f = exp(x) / x", np.exp(2) / 2)
def _(engine: Engine) -> Any:
    def f(x: Any) -> Any:
        return engine.word("exp")(x) / x

    return second_order(engine, f, rest=f)


GROUPS = tuple(dict.fromkeys(case.group for case in CASES))
