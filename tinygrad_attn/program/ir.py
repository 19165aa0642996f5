"""The intermediate form of a program: expressions, each made once, in an order to compute them.

`trace` makes a listing of expressions, `rewrite` makes another one with the same values in fewer
or quicker steps, and `text` (for readers) or `flat` (for speed) writes it as Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import numpy as np

FORWARD, BACKWARD = "forward", "backward"


class Expression:
    """One value of a program, and how it is computed.

    `kind` is one of:
        input      an argument or parameter; `name` is its identifier
        constant   an array that the program contains
        number     a single number; `name` is its text
        operator   a sign of Python's (`+`, `@`, `-` with one operand) as `name`
        call       a function of NumPy (or `erf`), method, attribute (`T`, `size`)
        item       args[0][args[1]]
        part       element `name` of a call that returns several arrays
        update     a changed copy of args[0]: `setitem`, or a ufunc's `add.at`, at index args[1]
    `args` and `settings` (keyword arguments) hold expressions, Python values, and tuples, lists and
    slices of them. `value` is the value for the example arguments: only its shape and dtype are
    used, except for constants and numbers. `phase` is FORWARD or BACKWARD; `scope` is the dotted
    name of the module call. `hint` is (priority, name), or (0, x) for the gradient by x, or None.
    """

    __slots__ = (
        *("id", "kind", "name", "args", "settings", "operands"),
        *("value", "phase", "scope", "hint"),
    )

    def __init__(
        self, id: int, kind: str, name: Any, args: tuple, settings: dict[str, Any], value: Any
    ) -> None:
        self.id, self.kind, self.name, self.args = id, kind, name, args
        self.settings, self.value = settings, value
        self.operands = tuple(inside((args, settings)))  # one that is used twice comes twice
        self.phase, self.scope = FORWARD, ""
        self.hint: Any = None

    def __repr__(self) -> str:
        return f"<{self.id} {self.kind} {self.name} {self.shape}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return () if isinstance(self.value, (tuple, list)) else np.shape(self.value)

    @property
    def dtype(self) -> np.dtype:
        return self.value.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def is_a(self, kind: str, name: Any = None) -> bool:
        """Whether it is of this kind and, if one is given, of this name."""
        return self.kind == kind and (name is None or self.name == name)


class Listing:
    """Expressions in the order in which they were made; equal ones are one object.

    A subclass may override `make` to return a simpler expression with the same value.
    """

    def __init__(self) -> None:
        self.expressions: list[Expression] = []
        self.known: dict[Any, Expression] = {}
        self.phase, self.scope = FORWARD, ""

    def make(
        self, kind: str, name: Any, args: Iterable[Any], settings: dict[str, Any], value: Any
    ) -> Expression:
        """The expression of this form: the known one, or a new one."""
        args = tuple(replaced(a, self.without_array) for a in args)
        settings = {k: replaced(v, self.without_array) for k, v in settings.items()}
        key = (kind, name, key_of(args), key_of(tuple(sorted(settings.items()))))
        return self.once(key, kind, name, args, settings, value)

    def once(
        self, key: Any, kind: str, name: Any, args: tuple, settings: dict[str, Any], value: Any
    ) -> Expression:
        """The expression with this key."""
        found = self.known.get(key)
        if found is None:
            found = Expression(len(self.expressions), kind, name, args, settings, value)
            found.phase, found.scope = self.phase, self.scope
            self.expressions.append(found)
            self.known[key] = found
        return found

    def without_array(self, a: Any) -> Any:
        """An array as a constant; anything else unchanged."""
        return self.constant(a) if type(a) is not Expression and is_array(a) else a

    def constant(self, array: Any) -> Expression:
        """A constant array."""
        content = np.ascontiguousarray(array).tobytes()
        if len(content) > 64:
            content = blake2b(content).digest()
        key = ("constant", array.shape, array.dtype.str, content)
        return self.once(key, "constant", None, (), {}, np.array(array))

    def number(self, text: str, value: Any) -> Expression:
        """A single number, written as this text."""
        return self.once(("number", text, value.dtype.str), "number", text, (), {}, value)

    def input(self, name: str, value: Any) -> Expression:
        """An argument or a parameter."""
        return self.once(("input", name), "input", name, (), {}, value)


def rewrite(outputs: Any, listing: Listing) -> Any:
    """The same outputs, nested as before, made anew in `listing`, operands first.

    `listing.make` sees each expression with operands that are rewritten already.
    """
    new: dict[int, Expression] = {}
    swap = lambda x: new[x.id] if isinstance(x, Expression) else x
    for e in reached(outputs):
        listing.phase, listing.scope = e.phase, e.scope
        if e.kind == "input":
            made = listing.input(e.name, e.value)
        elif e.kind == "constant":
            made = listing.constant(e.value)
        elif e.kind == "number":
            made = listing.number(e.name, e.value)
        else:
            settings = {k: replaced(v, swap) for k, v in e.settings.items()}
            made = listing.make(e.kind, e.name, replaced(e.args, swap), settings, e.value)
        new[e.id] = made
        carry_hint(e, made, new)
    return replaced(outputs, swap)


def carry_hint(old: Expression, made: Expression, new: dict[int, Expression]) -> None:
    """Call the new expression as the old one was called, unless it has a better name."""
    hint = old.hint
    if hint is None or made.kind == "number" or made.kind == "constant" != old.kind:
        return
    if isinstance(hint[1], Expression):
        hint = (0, new.get(hint[1].id, hint[1]))
    if made.hint is None or made.hint[0] < hint[0] or differentiates_earlier(hint, made.hint):
        made.hint = hint


def differentiates_earlier(hint: Any, other: Any) -> bool:
    """Whether a gradient that passes unchanged is named after where it arrives."""
    by, before = hint[1], other[1]
    return hint[0] == 0 and isinstance(before, Expression) and by.id < before.id


def reached(outputs: Any) -> list[Expression]:
    """All expressions that these outputs need, in an order to compute them."""
    seen: dict[int, Expression] = {}
    waiting = list(inside(outputs))
    while waiting:
        e = waiting.pop()
        if e.id not in seen:
            seen[e.id] = e
            waiting.extend(e.operands)
    return [seen[i] for i in sorted(seen)]


# ---- nested values


def is_array(a: Any) -> bool:
    """Whether it is a real array, not a symbol for one."""
    return issubclass(type(a), np.ndarray)


def replaced(a: Any, f: Callable[[Any], Any]) -> Any:
    """f of each value in nested tuples, lists, dicts and slices."""
    if issubclass(type(a), (tuple, list)):
        return (list if type(a) is list else tuple)(replaced(x, f) for x in a)
    if type(a) is dict:
        return {k: replaced(v, f) for k, v in a.items()}
    if isinstance(a, slice):
        return slice(replaced(a.start, f), replaced(a.stop, f), replaced(a.step, f))
    return f(a)


def inside(a: Any) -> Iterator[Expression]:
    """The expressions in nested tuples, lists, dicts and slices."""
    if isinstance(a, Expression):
        yield a
    elif isinstance(a, (tuple, list)):
        for x in a:
            yield from inside(x)
    elif isinstance(a, dict):
        yield from inside(list(a.values()))
    elif isinstance(a, slice):
        yield from inside((a.start, a.stop, a.step))


def key_of(a: Any) -> Any:
    """Equal for what makes equal expressions."""
    if isinstance(a, Expression):
        return ("expression", a.id)
    if type(a) in (tuple, list):
        return (type(a).__name__, *map(key_of, a))
    if isinstance(a, slice):
        return ("slice", key_of(a.start), key_of(a.stop), key_of(a.step))
    if isinstance(a, np.generic):
        return (a.dtype.str, a.tobytes())
    return (type(a).__name__, repr(a))


# ---- questions


def is_(a: Any, kind: str, name: Any = None) -> bool:
    """Whether a is an expression of this kind and name."""
    return isinstance(a, Expression) and a.is_a(kind, name)


def number_in(a: Any) -> Any:
    """The number that this operand is, or None."""
    if isinstance(a, Expression):
        return a.value if a.kind == "number" else None
    if isinstance(a, (int, float)) and not isinstance(a, bool):
        return a
    return a if isinstance(a, np.generic) and a.dtype.kind in "fiu" else None


def fraction(a: Any) -> Fraction | None:
    """The number as a quotient of whole numbers that a reader would write; else None."""
    number = number_in(a)
    if number is None or not math.isfinite(number):
        return None
    value = float(number)
    found = Fraction(value).limit_denominator(1 << 24)
    close = abs(float(found) - value) <= 1e-15 * abs(value)
    if getattr(number, "dtype", None) == np.float32:
        close = np.float32(float(found)) == number
    return found if close and (abs(found.numerator) <= 2 or found.denominator <= 64) else None
