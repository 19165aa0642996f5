"""Rewrite rules, written in the language that a program is printed in: `x + -y -> x - y`.

A rule is `pattern -> replacement`, or `pattern -> replacement  if condition`. In a pattern
    a lower-case letter matches any operand, and `m` and `n` single numbers only;
    a letter that stands twice matches the same expression, or the same number;
    `**s` matches the keyword arguments of a method or of `np.f(...)`;
    `x.T` is the transpose of matrices, whatever the number of axes.
In a condition `here` is the expression that matches the pattern. What is made of letters, such as
`u / r`, is the expression of that form in the listing, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np

from .ir import Expression, Listing, fraction, is_, key_of, number_in

SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@", "eq": "=="}
UFUNCS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "@": np.matmul}


class Term:
    """An operand in a rule: what Python computes with terms is made by `make`."""

    def __init__(self, operand: Any, make: Callable[..., Any]) -> None:
        self.operand, self.make = operand, make

    def made(self, kind: str, name: str, *args: Any, **settings: Any) -> Term:
        """The term for an expression of terms and numbers."""
        return Term(self.make(kind, name, args, settings), self.make)

    def __neg__(self) -> Term:
        return self.made("operator", "-", self)

    def __rmul__(self, number: Any) -> Term:
        return self.made("operator", "*", number, self)

    def __getattr__(self, name: str) -> Any:
        if name == "T":
            return self.made("attribute", "T", self)
        kind, first = ("call", ()) if self.operand is np else ("method", (self,))
        return lambda *args, **settings: self.made(kind, name, *first, *args, **settings)


for _name, _sign in SIGNS.items():
    setattr(Term, f"__{_name}__", lambda a, b, sign=_sign: a.made("operator", sign, a, b))


def terms(operands: dict[str, Any], make: Callable[..., Any]) -> dict[str, Any]:
    """The names in a rule."""
    names = {k: v if k == "s" else Term(v, make) for k, v in operands.items()}
    return {**names, "np": Term(np, make)}


def operand_of(a: Any) -> Any:
    """The operand in a term; anything else unchanged."""
    return a.operand if isinstance(a, Term) else a


class Rule(NamedTuple):
    """One line of a table."""

    pattern: Expression  # of letters, as texts, and numbers
    replacement: Any  # code, and so is the condition
    condition: Any
    functions: dict[str, Callable[..., bool]]  # that the condition calls


def table(text: str, **functions: Callable[..., Any]) -> dict[tuple[str, str], list[Rule]]:
    """The rules in these lines, by the kind and name of what they match."""
    unwrapped = {
        name: lambda *args, f=f: f(*map(operand_of, args)) for name, f in functions.items()
    }
    letters = terms({k: k for k in ascii_lowercase} | {"s": {"**": None}}, part_of_pattern)
    found: dict[tuple[str, str], list[Rule]] = {}
    for line in text.strip().splitlines():
        rule, _, condition = line.partition(" if ")
        pattern, replacement = (compile(side.strip(), line, "eval") for side in rule.split("->"))
        code = compile(condition.strip() or "True", line, "eval")
        e = eval(pattern, letters).operand
        found.setdefault((e.kind, e.name), []).append(Rule(e, replacement, code, unwrapped))
    return found


def part_of_pattern(kind: str, name: str, args: Any, settings: Any) -> Expression:
    """An expression of letters and numbers."""
    return Expression(-1, kind, name, tuple(map(operand_of, args)), settings, None)


def matches(p: Any, e: Any, found: dict[str, Any]) -> bool:
    """Whether e has the form p; what the letters match is added to `found`."""
    if isinstance(p, Expression):
        if not is_(e, p.kind, p.name) or len(e.args) != len(p.args):
            return False
        settings = found.setdefault("s", e.settings) if p.settings else {}
        pairs = zip(p.args, e.args, strict=True)
        return settings == e.settings and all(matches(q, a, found) for q, a in pairs)
    n = number_in(e)
    if isinstance(p, str):
        if p in "mn" and n is None:
            return False
        before = found.setdefault(p, e)
        return before is e or n is not None and n == number_in(before)
    return n is not None and bool(n == p)


class Rewriting(Listing):
    """A listing whose `make` applies the rules of a table."""

    rules: dict[tuple[str, str], list[Rule]] = {}

    def make(
        self, kind: str, name: Any, args: Any, settings: dict[str, Any], value: Any
    ) -> Expression:
        """The expression, or what the first rule that fits puts in its place."""
        e = Expression(-1, kind, name, tuple(args), settings, value)
        e.phase = self.phase
        found = self.shorter(e) or self.ruled(e)
        return super().make(kind, name, args, settings, value) if found is None else found

    def shorter(self, e: Expression) -> Expression | None:
        """What a subclass puts in the place of e where a rule cannot say it."""
        return None

    def ruled(self, e: Expression) -> Expression | None:
        """What the first rule that fits puts in the place of e."""
        for rule in self.rules.get((e.kind, e.name), ()):
            found: dict[str, Any] = {}
            if matches(rule.pattern, e, found):
                names = terms(found | {"here": e}, self.known_form)
                if eval(rule.condition, rule.functions | names):
                    build = lambda *form: self.built(e.dtype, *form)
                    made: Expression = operand_of(eval(rule.replacement, terms(found, build)))
                    return made
        return None

    def known_form(self, kind: str, name: str, args: Any, settings: Any) -> Any:
        """The expression of this form that was made already, or None."""
        args = key_of(tuple(map(operand_of, args)))
        return self.known.get((kind, name, args, key_of(tuple(sorted(settings.items())))))

    def built(self, dtype: np.dtype, kind: str, name: str, args: Any, settings: Any) -> Any:
        """The expression of terms and of numbers, which get this dtype."""
        args = [a.operand if isinstance(a, Term) else self.number_of(a, dtype) for a in args]
        if kind == "operator" and len(args) == 2 and None not in map(number_in, args):
            return self.number_of(arithmetic(name, *args), dtype)
        return self.of(kind, name, *args, **settings)

    def of(self, kind: str, name: str, *args: Any, **settings: Any) -> Expression:
        """The expression of these operands, with its value."""
        x, *rest = [a.value if isinstance(a, Expression) else a for a in args]
        with np.errstate(all="ignore"):
            if kind == "operator":
                value = UFUNCS[name](x, *rest) if rest else -x
            elif kind == "attribute":
                value = x.mT
            elif kind == "call":
                value = getattr(np, name)(x, *rest, **settings)
            else:
                value = getattr(x, name)(*rest, **settings)
        return self.make(kind, name, args, settings, value)

    def number_of(self, n: Any, dtype: np.dtype) -> Expression:
        """A number of this dtype, written as a reader would: whole, a quotient, or as it is."""
        f = fraction(n)
        if f is None:
            text = repr(float(n))
        elif f.denominator == 1:
            text = f"{f.numerator}.0" if dtype.kind == "f" else str(f.numerator)
        else:
            short = 64 % f.denominator == 0
            text = repr(float(f)) if short else f"{f.numerator} / {f.denominator}"
        return self.number(text, dtype.type(float(n)))


def arithmetic(sign: str, a: Any, b: Any) -> Any:
    """a sign b for two numbers, exact where both are fractions."""
    x: Any = fraction(a)
    y: Any = fraction(b)
    if x is None or y is None:
        x, y = float(number_in(a)), float(number_in(b))
    return x * y if sign == "*" else x / y
