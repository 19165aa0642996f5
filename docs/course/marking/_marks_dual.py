"""Marker for chapter 3b: dual numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _marking import Marks, Wrong, exercise, several
from _marks_engine import either, random
from _probe import SIGNS, Probe
from _right import dual_call, right_methods

import tinygrad_attn as ta

INTEGERS = "An array of integers cannot store a slope of 0.5. Convert x and v to floats first, and collect the gradient in an array of floats."


def _power(n: float) -> Callable:
    return lambda a, da: n * a ** (n - 1) * da


RULES: list[tuple[str, Callable, Callable, Callable]] = [
    (
        "a + b",
        lambda a, b: a + b,
        lambda a, b, da, db: da + db,
        lambda a, b, da, db: {
            "Both operands move, so their tangents are added. The tangent of b is missing.": da,
            "Both operands move, so their tangents are added. The tangent of a is missing.": db,
        },
    ),
    (
        "-a",
        lambda a: -a,
        lambda a, da: -da,
        lambda a, da: {"The tangent changes sign, just as the value does.": da},
    ),
    (
        "a - b",
        lambda a, b: a - b,
        lambda a, b, da, db: da - db,
        lambda a, b, da, db: {
            "The tangents are subtracted, just as the values are. The sign of b's tangent is wrong.": da
            + db,
            "This is the tangent of b - a.": db - da,
        },
    ),
    (
        "a * b",
        lambda a, b: a * b,
        lambda a, b, da, db: da * b + a * db,
        lambda a, b, da, db: {
            "The product rule has two terms, a' b + a b'. The second is missing, but b moves as well.": da
            * b,
            "The product rule has two terms, a' b + a b'. The first is missing, but a moves as well.": a
            * db,
            "This is a' b', which belongs to eps^2 and vanishes. The product rule is a' b + a b'.": da
            * db,
            "This is a' a + b b'. Multiply each tangent by the value of the other operand.": da * a
            + db * b,
        },
    ),
    (
        "a / b",
        lambda a, b: a / b,
        lambda a, b, da, db: (da * b - a * db) / b**2,
        lambda a, b, da, db: {
            "The quotient rule has a minus sign: (a' b - a b') / b^2.": (da * b + a * db) / b**2,
            "The sign is wrong. The quotient rule is (a' b - a b') / b^2, not (a b' - a' b) / b^2.": (
                a * db - da * b
            )
            / b**2,
            "The divisor is b^2, but here it is b.": (da * b - a * db) / b,
            "This is a' / b, as if b did not move. The quotient rule is (a' b - a b') / b^2.": da
            / b,
            "This is a' / b'. The quotient rule is (a' b - a b') / b^2.": da / db,
            "The divisor is b^2, not a^2.": (da * b - a * db) / a**2,
        },
    ),
    *[
        (
            f"a ** {n:g}",
            lambda a, n=n: a**n,
            _power(n),
            lambda a, da, n=n: {
                "The slope of a^n is n a^(n - 1). The exponent is not reduced by one here.": n
                * a**n
                * da,
                "The slope of a^n is n a^(n - 1). The factor n is missing here.": a ** (n - 1) * da,
                "This is the slope. By the chain rule it is multiplied by a's tangent.": n
                * a ** (n - 1),
                "This is the tangent of a^2.": 2 * a * da,
            },
        )
        for n in (3, -0.5)
    ],
    (
        "a.exp()",
        lambda a: np.exp(a),
        lambda a, da: np.exp(a) * da,
        lambda a, da: {
            "This is the slope. By the chain rule it is multiplied by a's tangent.": np.exp(a),
            "This is e^(tangent). The tangent of the result is e^(value) times the tangent.": np.exp(
                da
            ),
            "The slope of e^a is e^a, the result, not a.": a * da,
        },
    ),
    (
        "a.log()",
        lambda a: np.log(a),
        lambda a, da: da / a,
        lambda a, da: {
            "This is the slope. By the chain rule it is multiplied by a's tangent.": 1 / a,
            "The slope of log(a) is 1 / a, but this is 1 / log(a), times the tangent.": da
            / np.log(a),
        },
    ),
    (
        "a.sin()",
        lambda a: np.sin(a),
        lambda a, da: np.cos(a) * da,
        lambda a, da: {
            "This is the slope. By the chain rule it is multiplied by a's tangent.": np.cos(a),
            "The slope of sin is cos, not -cos.": -np.cos(a) * da,
            "This is the sine of the tangent.": np.sin(da),
            "This is the cosine of the tangent. Multiply the cosine of the value by the tangent.": np.cos(
                da
            ),
            "The slope of sin is cos, not sin.": np.sin(a) * da,
        },
    ),
    (
        "a.sum()",
        lambda a: a.sum(),
        lambda a, da: da.sum(),
        lambda a, da: {"Add up the tangents, just as you add up the values.": a.sum()},
    ),
]
"""For each operation: how it is written, a function for its value, one for its tangent, and one for the
tangents that common mistakes give.
"""
METHODS = {
    "a + b": "__add__",
    "-a": "__neg__",
    "a - b": "__sub__",
    "a * b": "__mul__",
    "a / b": "__truediv__",
}


class Duals(Probe):
    """Runs the checks on the learner's Dual."""

    name, leaves = "Dual", "__array_priority__ = 1"
    plain = "Turn an operand that is not a Dual into one, with a tangent of zeros."

    def right(self, kind: type, own: tuple[str, ...]) -> Any:
        return right_methods(kind, dual_call(kind), own)

    def make(self, value: Any, tangent: Any) -> Any:
        own = self.made(np.array(value), np.array(tangent))
        if not hasattr(own, "value") or not hasattr(own, "tangent"):
            raise Wrong(
                "Dual(value, tangent) has no .value or no .tangent. Use exactly these names."
            )
        return own

    def outcome(self, text: str, f: Callable, own: Any, *others: Any) -> list[np.ndarray]:
        """Return the value and tangent of f(own, *others)."""
        try:
            return self.parts(self.result(text, f, own, *others), text)
        except TypeError as error:
            if "does not support ufuncs" in str(error):
                raise Wrong(
                    "np.exp(a) calls a.exp() only if the class does not set __array_ufunc__. "
                    "Write `__array_priority__ = 1` instead."
                ) from error
            raise
        except RecursionError as error:
            raise Wrong(
                f"{text} calls itself endlessly: np.sin(self) calls self.sin(), and other - self may "
                "call __rsub__ or __sub__. Compute with .value and .tangent."
            ) from error

    def parts(self, y: Any, text: str) -> list[np.ndarray]:
        """Return the value and tangent of a Dual; raise Wrong unless they have the same shape."""
        if isinstance(y.value, self.kind or ()) or isinstance(y.tangent, self.kind or ()):
            raise Wrong(
                f"{text} has a Dual inside a Dual. Compute with the .value and .tangent of each "
                "operand."
            )
        if np.shape(y.value) != np.shape(y.tangent):
            raise Wrong(
                f"{text} has a value of shape {np.shape(y.value)} and a tangent of shape "
                f"{np.shape(y.tangent)}. Each number of the value has its own tangent, so the "
                "tangent of a constant array is an array of zeros of the same shape."
            )
        return [np.asarray(y.value), np.asarray(y.tangent)]

    def constant(self, sign: str, other: Any, a: np.ndarray, da: np.ndarray, left: bool) -> bool:
        """Raise Wrong unless a number or an array does the same as a Dual that does not move."""
        full = np.broadcast_to(
            np.asarray(other, float), np.broadcast_shapes(np.shape(other), a.shape)
        )
        moves = "A constant has a tangent of 1 here. A constant does not move, so its tangent is 0."
        mistakes = {moves: (full, np.ones(full.shape))}
        return self.beside(sign, (a, da), other, (full, np.zeros(full.shape)), left, mistakes)


@exercise(
    3,
    "dual",
    "dual numbers, and gradients in forward mode",
    part="b",
)
def _(marks: Marks) -> None:
    mine = Duals(marks)
    with np.errstate(all="ignore"):  # a mistake may divide by 0
        operations(marks, mine)
        functions(marks, mine)


def operations(marks: Marks, mine: Duals) -> None:
    a, b = np.abs(random(2, 3)) + 0.5, np.abs(random(2, 3, seed=1)) + 0.5
    da, db = random(2, 3, seed=2), random(2, 3, seed=3)
    for text, f, tangent, mistakes in RULES:
        values, tangents = (
            ((a, b), (da, db)) if tangent.__code__.co_argcount == 4 else ((a,), (da,))
        )
        own = METHODS.get(text) or ("__pow__" if "**" in text else text[2:-2])

        def both(text=text, f=f, values=values, tangents=tangents, own=own) -> Any:  # type: ignore[no-untyped-def]
            with mine.only(own):
                return mine.outcome(text, f, *map(mine.make, values, tangents))

        marks.idea(text, 2 if text in ("a * b", "a / b") else 1)
        marks.compare(
            f"{text}: tangent",
            lambda both=both: both()[1],
            tangent(*values, *tangents),
            mistakes=mistakes(*values, *tangents),
            weight=2,
        )
        marks.compare(
            f"{text}: value",
            lambda both=both: both()[0],
            f(*values),
            mistakes={"This is b - a.": b - a, "This is b / a.": b / a},
        )
        if text[2:-2] in SIGNS:
            constants(marks, mine, text[2:-2])

    def left_alone() -> bool:
        for text, f, tangent, _ in RULES:
            own = mine.make(a, da), mine.make(b, db)
            mine.outcome(text, f, *own[: tangent.__code__.co_argcount // 2])
            if not all(
                map(
                    np.array_equal,
                    (own[0].value, own[0].tangent, own[1].value, own[1].tangent),
                    (a, da, b, db),
                )
            ):
                raise Wrong(
                    f"{text} changes an operand, which may be used again. Make new arrays: write "
                    "x = x + y, not x += y."
                )
        return True

    marks.that("the operands do not change", left_alone, "", weight=0)


def constants(marks: Marks, mine: Duals, sign: str) -> None:
    a, da, array = (
        np.abs(random(2, 3)) + 0.5,
        random(2, 3, seed=2),
        np.abs(random(2, 3, seed=1)) + 0.5,
    )
    for left in (False, True):
        cases = [(2.0, a, da), (array, a, da), (array, a[0], da[0]) if left else (array[0], a, da)]
        marks.that(
            f"2 {sign} a, array {sign} a" if left else f"a {sign} 2, a {sign} array",
            lambda left=left, cases=cases: all(mine.constant(sign, *case, left) for case in cases),
            "",
        )


def functions(marks: Marks, mine: Duals) -> None:
    own, own_gradient = marks.function("jvp"), marks.function("gradient")

    def gradient(f: Callable, x: np.ndarray) -> Any:
        with mine.only():
            found = own_gradient(f, x)
        if isinstance(found, mine.kind or ()):
            raise Wrong("gradient returns a Dual, but it should return an array of x's shape.")
        return found

    def jvp(f: Callable, x: np.ndarray, v: np.ndarray) -> Any:
        def given(x: Any) -> Any:
            mine.outcome("the argument that jvp passes to f", lambda x: x, x)
            return f(x)

        with mine.only():
            found = own(given, x, v)
        found = several(found, "jvp", 2, "f(x) and J v")
        if any(isinstance(part, mine.kind or ()) for part in found):
            raise Wrong(
                "jvp returns a Dual, but it should return two arrays, its value and its tangent."
            )
        return found

    def mixed(x: Any) -> Any:
        return np.exp(x) * np.sin(x).sum()  # each result depends on all of x

    def wave(x: Any) -> Any:
        return (np.sin(x) * x**3 / 2 + np.log(2 + x * x)).sum()

    x, v, g = random(4), random(4, seed=1), random(4, seed=2)
    y, pullback = ta.vjp(mixed, x)
    J = ta.jacobian(mixed, x)
    marks.idea("one run of f gives f(x) and J v", 2, main=True)
    marks.compare(
        "jvp: f(x)",
        lambda: jvp(mixed, x, v)[0],
        y,
        mistakes={"This is J v, but f(x) comes first.": J @ v},
    )
    marks.compare(
        "jvp: J v",
        lambda: jvp(mixed, x, v)[1],
        J @ v,
        mistakes={
            "This is J times a vector of ones. The tangent of x is v.": J @ np.ones(4),
            "The result does not move. The tangent of x is v.": np.zeros(4),
            "This is f(x), but J v, the tangent, comes second.": mixed(x),
        },
    )
    marks.compare("g . (J v) is (g J) . v", lambda: g @ jvp(mixed, x, v)[1], pullback(g)[0] @ v)
    marks.idea("one run for each element gives the gradient", 2, main=True)
    for shape in ((3,), (2, 3), ()):
        x = random(*shape)
        right = ta.value_and_grad(wave)(x)[1]
        marks.compare(
            f"gradient with respect to x {shape}",
            lambda x=x: gradient(wave, x),
            right,
            mistakes={
                **either(
                    "This is the sum of all slopes, because v was all ones. Move one element at a time.",
                    right.sum(),
                    np.full(shape, right.sum()),
                ),
                "The slopes of earlier elements are included, because v still has their ones. Start every run with new zeros.": right.cumsum().reshape(
                    shape
                ),
            },
            hint="Move one element of x at a time, each in its own run. np.ndindex(x.shape) works for any shape of x.",
        )
    x, v = np.array([1, 2, 4]), np.array([0, 1, -1])
    inverse = lambda x: x**-1 * 10 + np.sin(x)
    slopes = -10.0 / x**2 + np.cos(x)
    marks.compare(
        "jvp, x and v of integers", lambda: jvp(inverse, x, v)[1], slopes * v, hint=INTEGERS
    )
    marks.compare(
        "gradient, x of integers",
        lambda: gradient(lambda x: inverse(x).sum(), x),
        slopes,
        mistakes={"The slopes have lost their decimal places.": np.trunc(slopes)},
        hint=INTEGERS,
    )
