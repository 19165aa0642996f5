"""Rewrite rules, written in the language that a program is printed in: `x + -y -> x - y`.

A rule is `pattern -> replacement`, or `pattern -> replacement  if conditions`. In a pattern
    a lower-case letter matches any operand, and `m` and `n` single numbers only;
    a letter that stands twice matches the same expression, or the same number;
    `**s` matches the keyword arguments of a method or of `np.f(...)`;
    `x.T` is the transpose of matrices, whatever the number of axes.
Conditions are functions of letters and of parts of the pattern, such as `u / r`; `here` is the
expression that matches the whole pattern. A part that is not in the pattern is looked up in the
listing: None where it was not computed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from .ir import Expression, Listing, fraction, is_, key_of, number_in

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.USub: "-"}
UFUNCS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "@": np.matmul}


class Pattern:
    """A pattern, or a part of one: a letter, a number, or a kind and name with operands."""

    def __init__(self, tree: Any) -> None:
        self.text = ast.unparse(tree)
        self.letter = tree.id if isinstance(tree, ast.Name) else ""
        self.number: Any = None
        self.head = ("", "")
        self.keywords = isinstance(tree, ast.Call) and bool(tree.keywords)
        operands: list[Any] = []
        f: Any = getattr(tree, "func", None)
        if isinstance(tree, ast.Constant):
            self.number = tree.value
        elif isinstance(tree, ast.UnaryOp) and isinstance(tree.operand, ast.Constant):
            self.number = ast.literal_eval(tree)
        elif isinstance(tree, ast.UnaryOp):
            self.head, operands = ("operator", SIGNS[type(tree.op)]), [tree.operand]
        elif isinstance(tree, ast.BinOp):
            self.head, operands = ("operator", SIGNS[type(tree.op)]), [tree.left, tree.right]
        elif isinstance(tree, ast.Compare):
            self.head, operands = ("operator", "=="), [tree.left, *tree.comparators]
        elif isinstance(tree, ast.Attribute):
            self.head, operands = ("attribute", tree.attr), [tree.value]
        elif isinstance(tree, ast.Call) and ast.unparse(f).startswith("np."):
            self.head, operands = ("call", f.attr), tree.args
        elif isinstance(tree, ast.Call) and isinstance(f, ast.Attribute):
            self.head, operands = ("method", f.attr), [f.value, *tree.args]
        elif isinstance(tree, ast.Call):  # a condition
            self.head, operands = ("condition", f.id), tree.args
        self.operands = [Pattern(part) for part in operands]

    def matches(self, e: Any, found: dict[str, Any]) -> bool:
        """Whether e has this form; what the parts match is added to `found`."""
        if self.number is not None:
            return number_in(e) is not None and bool(number_in(e) == self.number)
        if self.letter:
            if self.letter in "mn" and number_in(e) is None:
                return False
            before = found.setdefault(self.letter, e)
            return before is e or number_in(e) is not None and number_in(e) == number_in(before)
        if not is_(e, *self.head) or len(e.args) != len(self.operands):
            return False
        settings = found.setdefault("s", e.settings) if self.keywords else {}
        found[self.text] = e
        pairs = zip(self.operands, e.args, strict=True)
        return settings == e.settings and all(p.matches(a, found) for p, a in pairs)

    def known(self, listing: Listing, found: dict[str, Any]) -> Any:
        """What this has matched, else what is known in the listing, else None."""
        if self.text in found:
            return found[self.text]
        args = key_of(tuple(p.known(listing, found) for p in self.operands))
        return listing.known.get((*self.head, args, key_of(())))

    def built(self, listing: Rewriting, found: dict[str, Any]) -> Any:
        """The expression of this form, made of what was matched."""
        dtype = found["here"].dtype
        if self.letter:
            return found[self.letter]
        if self.number is not None:
            return listing.number_of(self.number, dtype)
        (kind, name), args = self.head, [p.built(listing, found) for p in self.operands]
        if kind == "operator" and len(args) == 1:
            return listing.minus(*args)
        if kind == "operator" and all(number_in(a) is not None for a in args):
            return listing.number_of(arithmetic(name, *args), dtype)
        if kind == "operator":
            return listing.op(name, *args)
        if kind == "attribute":
            return listing.make(kind, name, args, {}, args[0].value.mT)
        make = listing.call if kind == "call" else listing.method
        return make(name, *args, **(found["s"] if self.keywords else {}))


class Rule:
    """One line of a table."""

    def __init__(self, line: str, conditions: dict[str, Callable[..., Any]]) -> None:
        rule, _, condition = line.partition(" if ")
        self.pattern, self.replacement = (
            Pattern(ast.parse(side.strip(), mode="eval").body) for side in rule.split("->")
        )
        self.conditions = []
        for text in condition.split(" and ") if condition else []:
            tree: Any = ast.parse(text.strip().removeprefix("not "), mode="eval").body
            wanted = not text.strip().startswith("not ")
            self.conditions.append((conditions[tree.func.id], Pattern(tree).operands, wanted))

    def apply(self, listing: Rewriting, e: Expression) -> Expression | None:
        """The replacement of e; None where the rule does not fit."""
        found: dict[str, Any] = {"here": e}
        if not self.pattern.matches(e, found):
            return None
        for condition, parts, wanted in self.conditions:
            if bool(condition(*(p.known(listing, found) for p in parts))) != wanted:
                return None
        result: Expression = self.replacement.built(listing, found)
        return result


Rules = dict[tuple[str, str], list[Rule]]


def table(text: str, *conditions: Callable[..., Any]) -> Rules:
    """The rules in these lines, by the kind and name of what they match."""
    found: Rules = {}
    for line in text.strip().splitlines():
        rule = Rule(line, {f.__name__: f for f in conditions})
        found.setdefault(rule.pattern.head, []).append(rule)
    return found


class Rewriting(Listing):
    """A listing whose `make` applies the rules of a table to what it is given."""

    rules: Rules = {}

    def make(
        self, kind: str, name: Any, args: Any, settings: dict[str, Any], value: Any
    ) -> Expression:
        """The expression, or what the first rule that fits puts in its place."""
        if (kind, name) in self.rules:
            e = Expression(-1, kind, name, tuple(args), settings, value)
            e.phase = self.phase
            for rule in self.rules[kind, name]:
                found = rule.apply(self, e)
                if found is not None:
                    return found
        return super().make(kind, name, args, settings, value)

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

    def op(self, sign: str, a: Any, b: Any) -> Expression:
        """a sign b"""
        with np.errstate(all="ignore"):
            value = UFUNCS[sign](value_of(a), value_of(b))
        return self.make("operator", sign, (a, b), {}, value)

    def minus(self, a: Any) -> Expression:
        """-a"""
        return self.make("operator", "-", (a,), {}, -a.value)

    def method(self, name: str, x: Expression, *args: Any, **settings: Any) -> Expression:
        """x.name(*args)"""
        value = getattr(x.value, name)(*args, **settings)
        return self.make("method", name, (x, *args), settings, value)

    def call(self, name: str, *args: Any, **settings: Any) -> Expression:
        """np.name(*args)"""
        value = getattr(np, name)(*map(value_of, args), **settings)
        return self.make("call", name, args, settings, value)


def arithmetic(sign: str, a: Any, b: Any) -> Any:
    """a sign b for two numbers, exact where both are fractions."""
    x: Any = fraction(a)
    y: Any = fraction(b)
    if x is None or y is None:
        x, y = float(number_in(a)), float(number_in(b))
    return x * y if sign == "*" else x / y


def value_of(a: Any) -> Any:
    """The value of an operand."""
    return a.value if isinstance(a, Expression) else a
