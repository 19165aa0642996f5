"""The intermediate representation of a program: distinct expressions in order of computation.

`trace` records a listing of expressions. `rewrite` makes a new listing that computes the same
values in fewer steps. `text` writes it as Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from ..tree import tree_leaves, tree_map

LEAVES = ("input", "constant")


@dataclass(eq=False, repr=False, slots=True)
class Expression:
    """A value of a program, and how it is computed.

    `kind` is one of:
        input      an argument or parameter; `name` is its identifier
        constant   an array that is stored in the program
        call       a call of a NumPy function (also of `add` for `+`, and so on) or of `erf`
        method     a method call on args[0]; also `T`, which swaps its last two axes
        item       the element or part args[0][args[1]]
        update     a copy of args[0] changed at index args[1], by `setitem` or `add.at`
        check      a check that args[0] equals args[1]; `name` is the function that read it
    `args` and `settings` (keyword arguments) contain expressions, numbers, other Python values, and
    tuples, lists and slices of them. `value` is the value for the example arguments. `scope` is the
    dotted name of the module call. `names` are names for the value, by their source. `by` is the
    expression whose gradient this is, or None.
    """

    id: int
    kind: str
    name: Any
    args: tuple
    settings: dict
    value: Any
    backward: bool = False  # whether it belongs to the backward pass
    scope: str = ""
    names: dict[str, str] = field(default_factory=dict)
    by: Expression | None = None
    operands: list[Expression] = field(init=False)  # with repetitions

    def __post_init__(self):
        self.operands = expressions_in((self.args, self.settings))

    def __repr__(self):
        return f"<{self.id} {self.kind} {self.name}>"

    @property
    def nameless(self):
        return not self.names and self.by is None

    @property
    def shape(self):
        return np.shape(self.value)

    @property
    def dtype(self):
        return self.value.dtype

    @property
    def ndim(self):
        return len(self.shape)


class Listing:
    """A list of distinct expressions in order of creation."""

    def __init__(self):
        self.expressions: list[Expression] = []
        self.known: dict[Any, Expression] = {}
        self.backward, self.scope = False, ""

    def make(self, kind, name, value, /, *args, **settings):
        """Return the expression with this form, and create it if it is new."""
        start = kind == "update"  # its first operand stays an array
        rest, settings = tree_map(self.operand, (args[start:], settings))
        operands = (*args[:start], *rest), settings
        return self.once(form(kind, name, *operands), kind, name, *operands, value)

    def once(self, key, *parts):
        """Return the expression with this key, and create it if it is new."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Expression(len(self.expressions), *parts)
            found.backward, found.scope = self.backward, self.scope
            self.expressions.append(found)
        return found

    def operand(self, a):
        """Turn an array into a constant, or into a number if it is 0-d."""
        if issubclass(type(a), np.ndarray):  # and not a symbol
            a = self.constant(a)
        return a.value[()] if is_(a, "constant") and not a.ndim else a

    def constant(self, array):
        return self.leaf("constant", blake2b(array.tobytes()).hexdigest(), np.array(array))

    def leaf(self, kind, name, value):
        return self.once((kind, name, value.shape, value.dtype), kind, name, (), {}, value)


def form(kind, name, args, settings):
    """Return a key that is equal for equal expressions."""
    return kind, name, repr(args), repr(sorted(settings.items()))


def rewrite(outputs, listing):
    """Rebuild nested outputs in another listing, operands first."""
    new: dict[Expression, Any] = {}
    swap = lambda x: new[x] if isinstance(x, Expression) else x
    for e in reached(outputs):
        listing.backward, listing.scope = e.backward, e.scope
        if e.kind in LEAVES:
            made = listing.leaf(e.kind, e.name, e.value)
        else:
            args, settings = tree_map(swap, (e.args, e.settings))
            made = listing.make(e.kind, e.name, e.value, *args, **settings)
        new[e] = made
        if isinstance(made, Expression):
            if e.by:
                made.by = new.get(e.by, e.by)
            made.names = e.names | made.names
    return tree_map(swap, outputs)


def reached(outputs):
    """Return all expressions that these outputs need, in order of computation."""
    seen: set[Expression] = set()
    waiting = expressions_in(outputs)
    while waiting:
        e = waiting.pop()
        if e not in seen:
            seen.add(e)
            waiting.extend(e.operands)
    return sorted(seen, key=lambda e: e.id)


def expressions_in(tree):
    """Return the expressions in nested tuples, lists, dicts and slices."""
    return [x for x in tree_leaves(tree) if isinstance(x, Expression)]


def is_(a, kind, name=None):
    """Return whether a is an expression of this kind and, if given, this name."""
    return isinstance(a, Expression) and a.kind == kind and name in (None, a.name)
