"""An expression as Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .expressions import Expression

COMPARISON, ATOM, UNARY = 0, 9, 6
PRECEDENCE = {
    "|": 1,
    "^": 2,
    "&": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "@": 5,
    "//": 5,
    "%": 5,
    "**": 7,
}
"""How tightly an operator binds; a comparison, which is not here, least."""
NO_DTYPE = object()
"""Stands for the dtype of what is beside a number that has to say its own."""
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


class Sizes:
    """Sizes in letters, where a letter is known and no other has the same size."""

    def __init__(self, letters: Mapping[str, int]) -> None:
        sizes = list(letters.values())
        self.letters = {
            k: n for k, n in letters.items() if n not in (0, 1, 3) and sizes.count(n) == 1
        }
        self.used: set[str] = set()  # in the program, and
        self.shown: set[str] = set()  # in its comments

    def forget(self) -> None:
        """No letter is used yet."""
        self.used, self.shown = set(), set()

    def one(self, n: int, times: str = "*") -> str:
        """A size: `B`, `3*E`, `B*T`, or the number."""
        found = self.letters
        for letter, size in found.items():
            if size == n:
                return self.noted(letter, letter)
        if found.get("E", 0) * 3 == n > 0:  # queries, keys and values side by side
            return self.noted(f"3{times}E", "E")
        for a, b in ("BT", "BS", "HD"):
            if found.get(a, 0) * found.get(b, 0) == n > 0:
                return self.noted(f"{a}*{b}", a, b)
        return str(n)

    def noted(self, text: str, *letters: str) -> str:
        """The text; its letters are needed."""
        self.used.update(letters)
        return text

    def several(self, shape: tuple[int, ...]) -> str:
        """Sizes as arguments of a call."""
        return ", ".join(self.one(n) for n in shape)

    def shape(self, shape: tuple[int, ...]) -> str:
        """A shape as a tuple."""
        return f"({self.several(shape)}{',' * (len(shape) == 1)})"

    def comment(self, shape: tuple[int, ...]) -> str:
        """A shape in a comment."""
        before = set(self.used)
        text = ", ".join(self.one(n, times="") for n in shape)
        self.shown |= self.used
        self.used = before
        return f"({text}{',' * (len(shape) == 1)})"


def dtype_text(dtype: Any) -> str:
    """A dtype: `np.float64`, `bool`."""
    dtype = np.dtype(dtype)
    return "bool" if dtype.kind == "b" else f"np.{dtype.name}"


def number_text(value: Any, dtype: Any = None) -> str:
    """A number, with its dtype unless it is beside an array of this dtype."""
    if isinstance(value, np.generic):
        if value.dtype.kind == "b":
            return repr(bool(value))
        plain = value.item() if value.dtype.kind in "iu" else float(str(value))
        text = number_text(plain)
        same = dtype is not None and dtype == value.dtype
        return text if same else f"np.{value.dtype.name}({text})"
    if isinstance(value, float):
        if math.isinf(value):
            return "np.inf" if value > 0 else "-np.inf"
        if math.isnan(value):
            return "np.nan"
    return repr(value)


def literal(a: Any) -> str:
    """What is neither an expression nor holds any."""
    if isinstance(a, np.dtype) or isinstance(a, type) and issubclass(a, (np.generic, bool)):
        return dtype_text(a)
    if isinstance(a, type):
        return a.__name__
    if a is Ellipsis:
        return "..."
    return number_text(a)


def pattern(a: np.ndarray, sizes: Sizes, changes: bool = False) -> str | None:
    """A constant as a call of NumPy's, or as a short list; None where it is neither.

    A single number is written as such, unless it `changes`: then it has to be an array.
    """
    d = "" if a.dtype == np.float64 else f", {dtype_text(a.dtype)}"
    if a.ndim == 0 and not changes:
        return number_text(a[()])
    if a.size == 0 or (a == a.flat[0]).all():
        return uniform_text(a, sizes, d)
    if a.dtype == bool and a.ndim == 2:
        for k in (0, -1, 1):
            triangle = np.tri(a.shape[0], a.shape[1], k, dtype=bool)
            text = f"np.tri({sizes.several(a.shape)}{f', {k}' if k else ''}, dtype=bool)"
            if (a == triangle).all():
                return text
            if (a == ~triangle).all():
                return f"~{text}"
    if a.ndim == 2 and a.shape[0] == a.shape[1] and (a == np.eye(len(a))).all():
        return f"np.eye({sizes.one(len(a))}" + (f", dtype={dtype_text(a.dtype)})" if d else ")")
    if a.dtype == np.int64 and a.size > 2 and (a.reshape(-1) == np.arange(a.size)).all():
        text = f"np.arange({sizes.one(a.size)})"
        return text if a.ndim == 1 else f"{text}.reshape({sizes.several(a.shape)})"
    if a.size <= 8:
        usual = a.dtype in (np.float64, np.int64, bool)
        text = f"np.array({list_text(a)}{'' if usual else d})"
        return text if len(text) <= 60 else None
    return None


def uniform_text(a: np.ndarray, sizes: Sizes, d: str) -> str:
    """An array of one number again and again."""
    shape = sizes.shape(a.shape)
    if a.size == 0 or a.flat[0] == 0 and not np.signbit(a.flat[0].astype(float)):
        return f"np.zeros({shape}{d})"
    if a.flat[0] == 1:
        return f"np.ones({shape}{d})"
    whole = number_text(a.flat[0], a.dtype)
    same = np.asarray(eval(whole, {"np": np})).dtype == a.dtype
    return f"np.full({shape}, {whole}{'' if same else d})"


def list_text(a: np.ndarray) -> str:
    """A short array as nested lists."""
    if a.ndim:
        return f"[{', '.join(map(list_text, a))}]"
    return number_text(a[()], a.dtype)


class Text:
    """Writes expressions. `name_of` says what an expression is called, or None to spell it out."""

    def __init__(self, name_of: Callable[[Expression], str | None], sizes: Sizes) -> None:
        self.name_of, self.sizes = name_of, sizes

    def of(self, a: Any, least: int = -1, dtype: Any = None) -> str:
        """An operand, in brackets if it binds less tightly than this.

        `dtype` is that of the array beside it, from which a number takes its own.
        """
        if isinstance(a, Expression):
            name = self.name_of(a)
            if name is not None:
                return name
            text, precedence = self.spelled(a, dtype)
        elif isinstance(a, (tuple, list)):
            inner = ", ".join(self.of(x) for x in a)
            if isinstance(a, list):
                return f"[{inner}]"
            return f"({inner}{',' * (len(a) == 1)})"
        else:
            text = number_text(a, dtype) if isinstance(a, np.generic) else literal(a)
            precedence = UNARY if text.startswith("-") else ATOM
        return f"({text})" if precedence < least else text

    def spelled(self, e: Expression, dtype: Any = None) -> tuple[str, int]:
        """An expression written out, and how tightly it binds."""
        return getattr(self, f"_{e.kind}")(e, dtype)

    def _number(self, e: Expression, dtype: Any) -> tuple[str, int]:
        if dtype is not None and dtype != e.dtype:
            return f"np.{e.dtype.name}({e.name})", ATOM
        return e.name, 5 if "/" in e.name else UNARY if e.name.startswith("-") else ATOM

    def _constant(self, e: Expression, dtype: Any) -> tuple[str, int]:
        text = str(pattern(e.value, self.sizes))  # one without a pattern is an argument, named
        return text, UNARY if text[0] in "-~" else ATOM

    def _operator(self, e: Expression, dtype: Any) -> tuple[str, int]:
        if len(e.args) == 1:
            return f"{e.name}{self.of(e.args[0], UNARY)}", UNARY
        a, b = e.args
        precedence = PRECEDENCE.get(e.name, COMPARISON)
        left, right = precedence, precedence + 1
        if e.name == "**":
            left, right = ATOM, precedence
        if precedence == COMPARISON:
            left = right = 1
        texts = [
            self.of(x, least, self.beside(x, [other]))
            for x, other, least in ((a, b, left), (b, a, right))
        ]
        return f"{texts[0]} {e.name} {texts[1]}", precedence

    def beside(self, x: Any, others: Sequence[Any]) -> Any:
        """The dtype that a number may take from what is beside it; no dtype where it may not."""
        arrays = [o for o in others if isinstance(o, Expression) and o.kind != "number"]
        return next((o.dtype for o in arrays if typed(x) and o.dtype == x.dtype), NO_DTYPE)

    def _part(self, e: Expression, dtype: Any) -> tuple[str, int]:
        return f"{self.of(e.args[0], ATOM)}[{e.name}]", ATOM

    def _attribute(self, e: Expression, dtype: Any) -> tuple[str, int]:
        return f"{self.array(e.args[0])}.{e.name}", ATOM

    def _item(self, e: Expression, dtype: Any) -> tuple[str, int]:
        return f"{self.array(e.args[0])}[{self.index(e.args[1])}]", ATOM

    def _method(self, e: Expression, dtype: Any) -> tuple[str, int]:
        x, *args = e.args
        settings = dict(e.settings)
        if e.name == "reshape":
            rest = [self.sizes.several(tuple(args)) or "()"]
        else:
            rest = [self.of(a) for a in args]
        if e.name in REDUCTIONS and "axis" in settings:
            rest.append(self.of(settings.pop("axis")))
        rest += [f"{k}={self.of(v)}" for k, v in settings.items()]
        return f"{self.array(x)}.{e.name}({', '.join(rest)})", ATOM

    def _call(self, e: Expression, dtype: Any) -> tuple[str, int]:
        if e.name == "broadcast_to":
            args = [
                self.of(e.args[0], -1, np.dtype(np.float64)),
                self.sizes.shape(tuple(e.args[1])),
            ]
        else:
            args = [self.of(a, -1, self.beside(a, e.args)) for a in e.args]
        args += [f"{k}={self.of(v)}" for k, v in e.settings.items()]
        prefix = "" if e.name == "erf" else "np."
        return f"{prefix}{e.name}({', '.join(args)})", ATOM

    def array(self, x: Any) -> str:
        """What a method is called of: a number, which Python's have not, with its dtype."""
        return self.of(x, ATOM, NO_DTYPE)

    def index(self, i: Any) -> str:
        """What stands between square brackets."""
        parts = i if isinstance(i, tuple) else (i,)
        return ", ".join(map(self.one_index, parts)) or "()"

    def one_index(self, p: Any) -> str:
        """The index of one axis."""
        if isinstance(p, slice):
            ends = ["" if x is None else self.of(x) for x in (p.start, p.stop)]
            return ":".join(ends) + ("" if p.step is None else f":{self.of(p.step)}")
        return "None" if p is None else self.of(p)


def typed(x: Any) -> bool:
    """A number that has a dtype?"""
    return isinstance(x, np.generic) or isinstance(x, Expression) and x.kind == "number"
