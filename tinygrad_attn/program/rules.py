"""Rewrite rules in Python notation, such as `x + -y -> x - y`.

A rule is `pattern -> replacement`, or `pattern -> replacement  if conditions`. In a pattern
    a lower-case letter matches any operand, except that `n` matches only a number;
    a letter that occurs twice matches equal operands;
    `**s` matches the keyword arguments of a method or of `np.f(...)`;
    `x.T` is the transpose of a matrix or of a stack of matrices.
In a condition, `here` is the expression that matches the pattern. A term such as `u / r` stands for
the expression of that form in the listing, or for None if there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .ir import Expression, Listing, form, is_, number_in

UFUNCS: dict[str, Any] = {
    **{"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "@": np.matmul},
    **{"**": np.power, "//": np.floor_divide, "%": np.remainder, "~": np.invert},
    **{"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal},
    **{"==": np.equal, "!=": np.not_equal},
    **{"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor},
}
OPERATORS: dict[Any, str] = {f: sign for sign, f in UFUNCS.items()} | {np.negative: "-"}

Rules = dict[tuple[str, str], list[tuple["Pattern", Any, list[Any]]]]
"""Rules as (pattern, replacement, conditions), by the kind and name of the expression."""


class Pattern(NDArrayOperatorsMixin):
    """A letter, or an operation on patterns and numbers."""

    def __init__(self, kind: str, name: str, *args: Any, **settings: Any) -> None:
        self.kind, self.name, self.args, self.settings = kind, name, args, settings

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any) -> Pattern:
        return Pattern("operator", OPERATORS[ufunc], *args)

    def keys(self) -> list[str]:
        """Return the letter of the settings, so that `f(**pattern)` works."""
        return [self.name]

    def __getitem__(self, name: str) -> Pattern:
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "T":
            return Pattern("method", "T", self)
        kind, first = ("call", ()) if self.name == "np" else ("method", (self,))
        return lambda *args, **settings: Pattern(kind, name, *first, *args, **settings)


def table(text: str, **functions: Callable[..., Any]) -> Rules:
    """Parse rules, one per line. `functions` are the conditions, by name."""
    letters = {name: Pattern("letter", name) for name in (*ascii_lowercase, "np", "here")}
    asked = {n: lambda *args, f=f: (f, args) for n, f in functions.items()} | letters
    found: Rules = {}
    for line in text.strip().splitlines():
        sides, _, conditions = line.partition(" if ")
        pattern, replacement = (eval(side.strip(), letters) for side in sides.split("->"))
        rule = pattern, replacement, eval(f"[{conditions}]", asked)
        found.setdefault((pattern.kind, pattern.name), []).append(rule)
    return found


def matches(p: Any, e: Any, found: dict[str, Any]) -> bool:
    """Return whether the pattern p matches e, and add the operand of each letter to `found`."""
    if isinstance(p, Pattern) and p.kind != "letter":
        if not is_(e, p.kind, p.name) or len(e.args) != len(p.args):
            return False
        settings = found.setdefault("s", e.settings) if p.settings else {}
        pairs = zip(p.args, e.args, strict=True)
        return settings == e.settings and all(matches(q, a, found) for q, a in pairs)
    n = number_in(e)
    if not isinstance(p, Pattern):
        return bool(n == p)
    before = found.setdefault(p.name, e) if p.name != "n" or n is not None else None
    return before is e or n is not None and n == number_in(before)


class Rewriting(Listing):
    """A listing whose `make` tries `shorter`, the method `<kind>_<name>`, and a table of rules.

    Each of these returns a replacement or None, and the first replacement is used.
    """

    rules: Rules = {}
    shorter: Callable[[Any], Any]

    def make(self, kind: str, name: Any, value: Any, /, *args: Any, **settings: Any) -> Expression:
        e = Expression(-1, kind, name, args, settings, value, self.backward)
        rule = getattr(self, f"{kind}_{name}", lambda _: None)
        tried = (way(e) for way in (self.shorter, rule, self.ruled))
        found = next((x for x in tried if x is not None), None)
        return super().make(kind, name, value, *args, **settings) if found is None else found

    def ruled(self, e: Expression) -> Expression | None:
        """Return the replacement from the first rule that matches e, or None."""
        known = lambda kind, name, *args, **s: self.known.get(form(kind, name, args, s))
        for pattern, replacement, conditions in self.rules.get((e.kind, e.name), ()):
            found: dict[str, Any] = {"here": e}
            if matches(pattern, e, found):
                of = lambda p: self.instance(p, found, known)  # noqa: B023
                if all(condition(*map(of, args)) for condition, args in conditions):
                    return self.instance(replacement, found, self.of)
        return None

    def instance(self, p: Any, found: dict[str, Any], make: Callable[..., Any]) -> Any:
        """Replace the letters of a pattern with their operands."""
        if not isinstance(p, Pattern):
            return found["here"].dtype.type(p)
        if p.kind == "letter":
            return found[p.name]
        args = tuple(self.instance(a, found, make) for a in p.args)
        return make(p.kind, p.name, *args, **(found["s"] if p.settings else {}))

    def of(self, kind: str, name: str, /, *args: Any, **settings: Any) -> Expression:
        """Make an expression and compute its value."""
        x, *rest = [a.value if isinstance(a, Expression) else a for a in args]
        with np.errstate(all="ignore"):
            if kind == "operator":
                value = UFUNCS[name](x, *rest) if rest else -x
            elif name == "T":
                value = x.mT
            else:
                function = getattr(np if kind == "call" else type(x), name)
                value = function(x, *rest, **settings)
        return self.make(kind, name, value, *args, **settings)
