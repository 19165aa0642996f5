"""Expressions as Python text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .ir import Expression, is_

COMPARISON, UNARY, ATOM = 0, 6, 9
PRECEDENCE = {"|": 1, "^": 2, "&": 3, "+": 4, "-": 4, "*": 5, "/": 5, "@": 5, "//": 5, "%": 5}
PRECEDENCE["**"] = 7
"""How tightly an operator binds; a comparison, which is not here, binds least."""
NO_DTYPE = object()
"""The dtype beside a number that has to say its own."""
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


class Sizes:
    """Sizes as letters, where a letter is known and no other has the same size."""

    def __init__(self, letters: Mapping[str, int]) -> None:
        sizes = list(letters.values())
        self.letters = {
            k: n for k, n in letters.items() if n not in (0, 1, 3) and sizes.count(n) == 1
        }

    def one(self, n: int, times: str = "*") -> str:
        """A size: `B`, `3*E`, `B*T`, or the number."""
        found = self.letters
        for letter, size in found.items():
            if size == n:
                return letter
        if found.get("E", 0) * 3 == n > 0:  # queries, keys and values side by side
            return f"3{times}E"
        for a, b in ("BT", "BS", "HD"):
            if found.get(a, 0) * found.get(b, 0) == n > 0:
                return f"{a}*{b}"
        return str(n)

    def several(self, shape: tuple[int, ...], times: str = "*") -> str:
        """Sizes with commas between them."""
        return ", ".join(self.one(n, times) for n in shape)

    def shape(self, shape: tuple[int, ...], times: str = "*") -> str:
        """A shape as a tuple."""
        return f"({self.several(shape, times)}{',' * (len(shape) == 1)})"

    def used(self, lines: Sequence[str]) -> dict[str, int]:
        """The letters that these lines need; those of comments only if there are several."""
        parts = [line.partition("#") for line in lines]
        letters = lambda texts: {*re.findall(r"(?<![A-Za-z_])[A-Z]\b", " ".join(texts))}
        code = letters(part[0] for part in parts) & self.letters.keys()
        shown = (code | letters(part[2] for part in parts)) & self.letters.keys()
        found = shown if code and len(shown) > 1 else code
        return {k: n for k, n in self.letters.items() if k in found}


def dtype_text(dtype: Any) -> str:
    """A dtype: `np.float64`, `bool`."""
    dtype = np.dtype(dtype)
    return "bool" if dtype.kind == "b" else f"np.{dtype.name}"


def number_text(value: Any, dtype: Any = None) -> str:
    """A number, with its dtype unless it is beside an array of this dtype."""
    if isinstance(value, np.generic):
        if value.dtype.kind == "b":
            return repr(bool(value))
        text = number_text(value.item() if value.dtype.kind in "iu" else float(str(value)))
        same = dtype is not None and dtype == value.dtype
        return text if same else f"np.{value.dtype.name}({text})"
    if isinstance(value, float) and not math.isfinite(value):
        return "np.nan" if math.isnan(value) else "np.inf" if value > 0 else "-np.inf"
    return repr(value)


def literal(a: Any) -> str:
    """What is neither an expression nor contains any."""
    if isinstance(a, np.dtype) or isinstance(a, type) and issubclass(a, (np.generic, bool)):
        return dtype_text(a)
    if isinstance(a, type):
        return a.__name__
    return "..." if a is Ellipsis else number_text(a)


def pattern(a: np.ndarray, sizes: Sizes, changes: bool = False) -> str | None:
    """A constant as a call of NumPy, or as a short list; None where it is neither.

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
    usual = a.dtype in (np.float64, np.int64, bool)
    return f"np.full({shape}, {whole}{'' if usual else d})"


def list_text(a: np.ndarray) -> str:
    """A short array as nested lists."""
    return f"[{', '.join(map(list_text, a))}]" if a.ndim else number_text(a[()], a.dtype)


class Text:
    """Writes expressions. `name_of` gives the name of an expression, or None to spell it out."""

    def __init__(self, name_of: Callable[[Expression], str | None], sizes: Sizes) -> None:
        self.name_of, self.sizes = name_of, sizes

    def of(self, a: Any, least: int = -1, dtype: Any = None) -> str:
        """An operand, in brackets if it binds less tightly than `least`.

        `dtype` is that of the array beside it, from which a number takes its own.
        """
        if isinstance(a, Expression):
            name = self.name_of(a)
            if name is not None:
                return name
            text, precedence = self.spelled(a, dtype)
        elif isinstance(a, (list, tuple)):
            inner = ", ".join(self.of(x, -1, dtype) for x in a)
            if isinstance(a, list):
                return f"[{inner}]"
            return f"({inner}{',' * (len(a) == 1)})"
        elif isinstance(a, dict):
            return "{" + ", ".join(self.pairs(a, dtype)) + "}"
        else:
            text = number_text(a, dtype) if isinstance(a, np.generic) else literal(a)
            precedence = UNARY if text.startswith("-") else ATOM
        return f"({text})" if precedence < least else text

    def pairs(self, a: dict[Any, Any], dtype: Any = None) -> list[str]:
        """The items of a dict, a text as key in double quotes."""
        keys = [repr(k) for k in a]
        simple = [k[0] == "'" and '"' not in k and "\\" not in k for k in keys]
        keys = [f'"{k[1:-1]}"' if s else k for k, s in zip(keys, simple)]
        return [f"{k}: {self.of(v, -1, dtype)}" for k, v in zip(keys, a.values())]

    def array(self, x: Any) -> str:
        """The operand of a method: a number, which Python's have not, with its dtype."""
        return self.of(x, ATOM, NO_DTYPE)

    def spelled(self, e: Expression, dtype: Any = None) -> tuple[str, int]:
        """An expression written out, and how tightly it binds."""
        if e.kind == "number":
            if dtype is not None and dtype != e.dtype:
                return f"np.{e.dtype.name}({e.name})", ATOM
            return e.name, 5 if "/" in e.name else UNARY if e.name.startswith("-") else ATOM
        if e.kind == "constant":  # one without a pattern is an argument, which has a name
            text = str(pattern(e.value, self.sizes))
            return text, UNARY if text[0] in "-~" else ATOM
        if e.kind == "operator":
            return self.operator(e)
        if e.kind == "call":
            return self.call(e), ATOM
        if e.kind == "method":
            return self.method(e), ATOM
        if e.kind == "attribute":
            matrix = e.name == "T" and e.ndim > 2
            return f"{self.array(e.args[0])}.{'swapaxes(-1, -2)' if matrix else e.name}", ATOM
        index = self.index(e.args[1]) if e.kind == "item" else str(e.name)
        return f"{self.array(e.args[0])}[{index}]", ATOM

    def operator(self, e: Expression) -> tuple[str, int]:
        """-a, a + b, ..."""
        if len(e.args) == 1:
            return f"{e.name}{self.of(e.args[0], UNARY)}", UNARY
        a, b = e.args
        precedence = PRECEDENCE.get(e.name, COMPARISON)
        left, right = precedence, precedence + 1
        if e.name == "**":
            left, right = ATOM, precedence
        if precedence == COMPARISON:
            left = right = 1
        first = self.of(a, left, beside(a, [b]))
        return f"{first} {e.name} {self.of(b, right, beside(b, [a]))}", precedence

    def method(self, e: Expression) -> str:
        """x.f(...)"""
        x, *args = e.args
        settings = dict(e.settings)
        rest = [self.sizes.several(tuple(args)) or "()"] if e.name == "reshape" else []
        rest = rest or [self.of(a) for a in args]
        if e.name in REDUCTIONS and "axis" in settings:
            rest.append(self.of(settings.pop("axis")))
        rest += [f"{k}={self.of(v)}" for k, v in settings.items()]
        return f"{self.array(x)}.{e.name}({', '.join(rest)})"

    def call(self, e: Expression) -> str:
        """np.f(...)"""
        if e.name == "broadcast_to":
            args = [
                self.of(e.args[0], -1, np.dtype(np.float64)),
                self.sizes.shape(tuple(e.args[1])),
            ]
        else:
            args = [self.of(a, -1, beside(a, e.args)) for a in e.args]
        args += [f"{k}={self.of(v)}" for k, v in e.settings.items()]
        return f"{'' if e.name == 'erf' else 'np.'}{e.name}({', '.join(args)})"

    def index(self, i: Any) -> str:
        """The text between square brackets."""
        return ", ".join(map(self.one_index, i if isinstance(i, tuple) else (i,))) or "()"

    def one_index(self, p: Any) -> str:
        """The index of one axis."""
        if isinstance(p, slice):
            ends = ["" if x is None else self.of(x) for x in (p.start, p.stop)]
            return ":".join(ends) + ("" if p.step is None else f":{self.of(p.step)}")
        return "None" if p is None else self.of(p)


def beside(x: Any, others: Sequence[Any]) -> Any:
    """The dtype that the number x may take from what is beside it; NO_DTYPE where it may not."""
    typed = isinstance(x, np.generic) or is_(x, "number")
    arrays = [o for o in others if isinstance(o, Expression) and o.kind != "number"]
    return next((o.dtype for o in arrays if typed and o.dtype == x.dtype), NO_DTYPE)
