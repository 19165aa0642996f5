"""Write expressions as Python code."""

import ast
import json
import math
import re

import numpy as np

from ..errors import describe
from ..ops.shapes import is_basic
from .ir import Expression, is_
from .simplify import REDUCTIONS, is_zero, repeats, uniform

SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@",
    "power": "**", "floor_divide": "//", "remainder": "%", "invert": "~", "negative": "-",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "equal": "==", "not_equal": "!=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
"""Functions that are written as operators."""
UNARY, ATOM = 6, 9
PRECEDENCE = {
    "|": 1, "^": 2, "&": 3, "+": 4, "-": 4, "*": 5, "/": 5, "@": 5, "//": 5, "%": 5, "**": 7,
}  # fmt: skip
"""The precedence of operators. Comparisons, which are not listed, have the lowest."""
PLAIN = {0: "zeros", 1: "ones"}


LETTERS = {"scores": "BHTS", "q": "BHTD", "attended": "BTE", "linear1": "BTF"}
"""The axes of values that the package's attention and Transformer layers compute, by name."""


class Sizes:
    """Writes a size as a letter if exactly one letter has this size, and no other one."""

    def __init__(self, expressions, taken):
        found: dict[str, set[int]] = {letter: set() for letter in "BTSEHDF"}
        for e in expressions:
            for name in {*e.names.values()} & LETTERS.keys():
                if len(LETTERS[name]) == e.ndim:
                    for letter, n in zip(LETTERS[name], e.shape):
                        found[letter].add(n)
        found["S"] -= found["T"]  # in self-attention, S is T
        sizes = {letter: max(known) for letter, known in found.items() if len(known) == 1}
        counted = [*sizes.values()]
        self.letters = {
            letter: n
            for letter, n in sizes.items()
            if counted.count(n) == 1 and n not in (0, 1, 3) and letter not in taken
        }
        self.texts = {n: letter for letter, n in self.letters.items()}
        # For packed queries, keys and values, and for batches that are flattened to rows.
        size = {"3": 3, **self.letters}
        for a, b in ("3E", "BS", "BT"):
            if {a, b} <= size.keys():
                self.texts.setdefault(size[a] * size[b], f"{a}*{b}")

    def one(self, n):
        """Write a size as letters, such as `B`, `3*E` or `B*T`, or as a number."""
        return self.texts.get(n, str(n))

    def several(self, shape):
        return ", ".join(map(self.one, shape))

    def shape(self, shape):
        return f"({self.several(shape)}{',' * (len(shape) == 1)})"

    def used(self, lines):
        """Return the letters that occur in these lines, with their sizes."""
        found = re.findall(r"(?<![A-Za-z_])[A-Z]\b", "\n".join(lines))
        return {k: n for k, n in self.letters.items() if k in found}


def dtype_text(dtype):
    """Write a dtype, such as `np.float64` or `bool`."""
    name = np.dtype(dtype).name
    return name if name == "bool" else f"np.{name}"


def literal(value, dtype=None):
    """Write a value. Omit the dtype of a NumPy number if it equals `dtype`."""
    if isinstance(value, (np.dtype, type)):
        return dtype_text(value)
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        text = literal(value.item() if value.dtype.kind in "iub" else float(str(value)))
        number = float(value)
        n = round(1 / number) if 1e-9 < abs(number) < 1 else 1
        if 64 % n and value.dtype.type(1 / n) == value:  # as in a mean
            text = f"{'-' * (n < 0)}1 / {abs(n)}"
        beside = dtype is not None and dtype == value.dtype
        return text if beside else f"np.{value.dtype.name}({text})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"np.{value}".replace("np.-", "-np.")
    text = "..." if value is Ellipsis else repr(value)
    try:
        ast.literal_eval("..." if isinstance(value, slice) else text)
    except (SyntaxError, ValueError):
        raise TypeError(
            f"ta.source: a program cannot contain {describe(value)}. Return Tensors, numbers and "
            "texts in tuples, lists and dicts."
        ) from None
    return text


def pattern(a, sizes):
    """Write a constant as a NumPy call such as `np.ones((2, 3))`, or return None."""
    d = "" if a.dtype == np.float64 else f", {dtype_text(a.dtype)}"
    if a.size == 0 or repeats(a):
        text = literal(a.flat[0], a.dtype) if a.size else "0"
        shape, name = sizes.shape(a.shape), PLAIN.get(a.flat[0] if a.size else 0)
        name = None if text == "-0.0" else name
        return f"np.{name}({shape}{d})" if name else f"np.full({shape}, {text}{d})"
    if a.dtype == bool and a.ndim == 2 and (a == np.tri(*a.shape)).all():
        return f"np.tri({sizes.several(a.shape)}, dtype=bool)"
    if a.dtype == np.int64 and a.size > 2 and (a.reshape(-1) == np.arange(a.size)).all():
        text = f"np.arange({sizes.one(a.size)})"
        return text if a.ndim == 1 else f"{text}.reshape({sizes.several(a.shape)})"
    return None


class Text:
    """Writes expressions by name, or in full if `name_of` returns None."""

    def __init__(self, name_of, sizes):
        self.name_of, self.sizes = name_of, sizes

    def of(self, a, least=-1, dtype=None):
        """Write an operand, in parentheses if its precedence is below `least`.

        The dtype of a NumPy number is omitted if it equals `dtype`, the other operand's dtype.
        """
        if isinstance(a, Expression):
            name = self.name_of(a)
            text, precedence = (name, ATOM) if name is not None else self.spelled(a)
        elif isinstance(a, (list, tuple)):
            inner = ", ".join(self.of(x, -1, dtype) for x in a)
            return f"[{inner}]" if type(a) is list else f"({inner}{',' * (len(a) == 1)})"
        elif isinstance(a, dict):
            return "{" + ", ".join(self.pairs(a)) + "}"
        else:
            text = literal(a, dtype)
            precedence = PRECEDENCE["/"] if " / " in text else UNARY if text[0] == "-" else ATOM
        return f"({text})" if precedence < least else text

    def pairs(self, a):
        """Write the items of a dict, with string keys in double quotes."""
        key = lambda k: json.dumps(k, ensure_ascii=False) if isinstance(k, str) else self.of(k)
        return [f"{key(k)}: {self.of(v)}" for k, v in a.items()]

    def spelled(self, e):
        """Return the text of an expression, and its precedence."""
        if e.kind == "constant":  # without a pattern it would be an argument, with a name
            return str(pattern(e.value, self.sizes)), ATOM
        if e.kind == "call" and e.name in SIGNS and not e.settings:
            return self.operator(SIGNS[e.name], e.args)
        settings = dict(e.settings)
        if e.kind == "call":
            start = "" if e.name == "erf" else "np."
            words = [self.of(a) for a in e.args]
        else:
            start, args = f"{self.of(e.args[0], ATOM)}.", e.args[1:]
            words = [self.of(a) for a in args]
            if e.kind == "item":
                return f"{start[:-1]}[{self.index(*args)}]", ATOM
            if e.name == "T":
                return start + ("T" if e.ndim == 2 else "swapaxes(-1, -2)"), ATOM
            if e.name == "reshape":
                words = [self.sizes.several(args) or "()"]
            elif e.name in REDUCTIONS and "axis" in settings:
                words = [self.of(settings.pop("axis"))]
        words += [f"{k}={self.of(v)}" for k, v in settings.items()]
        return f"{start}{e.name}({', '.join(words)})", ATOM

    def operator(self, sign, args):
        if len(args) == 1:
            return f"{sign}{self.of(args[0], UNARY)}", UNARY
        a, b = args
        precedence = PRECEDENCE.get(sign, 0)
        left, right = max(precedence, 1), precedence + 1
        if sign == "**":
            left, right = ATOM, precedence  # from right to left
        first = self.of(a, left, beside(a, b))
        return f"{first} {sign} {self.of(b, right, beside(b, a))}", precedence

    def update(self, e, name):
        """Write the statements that change a copy of an array."""
        base, index, *values = e.args
        # A constant with a pattern is created on the spot.
        anew = pattern(base.value, self.sizes) if base.kind == "constant" else None
        start = anew or f"{self.of(base, ATOM)}.copy()"
        words = [self.of(v.value.flat[0].item() if uniform(v) else v, -1, e.dtype) for v in values]
        change = f"np.{e.name}({', '.join([name, self.of(index), *words])})"
        if e.name == "setitem" or is_zero(base) and picks_once(index):
            change = f"{name}[{self.index(index)}] = {words[0]}"
        return [f"{name} = {start}", change]

    def index(self, i):
        """Write an index, without the square brackets."""

        def one(p):
            if not isinstance(p, slice):
                return self.of(p)
            start, stop, step = ("" if x is None else self.of(x) for x in (p.start, p.stop, p.step))
            return f"{start}:{stop}" + f":{step}" * bool(step)

        return ", ".join(map(one, i if isinstance(i, tuple) else (i,))) or "()"


def beside(x, other):
    """Return the dtype of the number x if the other operand has it too, else None."""
    both = isinstance(x, np.generic) and isinstance(other, Expression)
    return x.dtype if both and x.dtype == other.dtype else None


def picks_once(index):
    """Return whether an index is certain to pick no element twice.

    It consists of integers and slices, or one of its parts alone tells all the elements apart.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if is_basic(index):
        return True
    picked = math.prod(np.broadcast_shapes(*map(np.shape, parts)))
    places = [p.value for p in parts if is_(p, "constant") and (p.value >= 0).all()]
    return any(np.unique(array).size == picked for array in places)
