"""What is computed, as a list of expressions: each call of NumPy's once, and of what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

FORWARD, BACKWARD = "forward", "backward"

VIEWS = ("T", "mT", "swapaxes", "transpose", "reshape", "broadcast_to", "item")
"""What NumPy answers with a view of its operand, at no cost."""


class Expression:
    """One value of the program, and how it is computed.

    `kind` is input, constant, number, operator, call (of a function of NumPy's), method, attribute,
    item (an indexing), part (of a result of several arrays) or update (a write into the operand).
    `value` is what it was for the arguments that the program is written for; of these numbers only
    shape and dtype are used, and those of constants. `operands` are the expressions in `args` and
    `settings`; one that is used twice comes twice.
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
        self.operands = tuple(inside((args, tuple(settings.values()))))
        self.phase, self.scope = FORWARD, ""
        self.hint: Any = None  # (priority, a name), or (0, the expression that this differentiates)

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
        """Of this kind and, if one is given, of this name?"""
        return self.kind == kind and (name is None or self.name == name)


class Listing:
    """All expressions, in the order in which they were first computed; equal ones are one."""

    def __init__(self) -> None:
        self.expressions: list[Expression] = []
        self.known: dict[Any, Expression] = {}
        self.phase, self.scope = FORWARD, ""

    def make(
        self,
        kind: str,
        name: Any,
        args: Iterable[Any],
        settings: dict[str, Any],
        value: Any,
        key: Any = None,
    ) -> Expression:
        """The expression of this form, a new one if there is none yet."""
        args = tuple(replaced(a, self.constant_of) for a in args)
        settings = {k: replaced(v, self.constant_of) for k, v in settings.items()}
        key = key or (kind, name, key_of(args), key_of(tuple(sorted(settings.items()))))
        found = self.known.get(key)
        if found is None:
            found = Expression(len(self.expressions), kind, name, args, settings, value)
            found.phase, found.scope = self.phase, self.scope
            self.expressions.append(found)
            self.known[key] = found
        return found

    def constant_of(self, a: Any) -> Any:
        """An array as a constant of the program; anything else as it is."""
        return self.constant(a) if type(a) is not Expression and is_array(a) else a

    def constant(self, array: Any) -> Expression:
        """An array that the program is written with."""
        content = np.ascontiguousarray(array).tobytes()
        if len(content) > 64:
            content = blake2b(content).digest()
        key = ("constant", array.shape, array.dtype.str, content)
        return self.make("constant", None, (), {}, np.array(array), key)

    def number(self, text: str, value: Any) -> Expression:
        """A single number, written like this."""
        key = ("number", text, value.dtype.str)
        return self.make("number", text, (), {}, value, key)


def is_array(a: Any) -> bool:
    """An array of NumPy's itself, and nothing that stands for one."""
    return issubclass(type(a), np.ndarray)


def replaced(a: Any, f: Callable[[Any], Any]) -> Any:
    """f of each value in nested tuples, lists and slices."""
    if issubclass(type(a), (tuple, list)):
        return (list if type(a) is list else tuple)(replaced(x, f) for x in a)
    if isinstance(a, slice):
        return slice(replaced(a.start, f), replaced(a.stop, f), replaced(a.step, f))
    return f(a)


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


def inside(a: Any) -> Iterator[Expression]:
    """The expressions in nested tuples, lists and slices."""
    if isinstance(a, Expression):
        yield a
    elif isinstance(a, (tuple, list)):
        for x in a:
            yield from inside(x)
    elif isinstance(a, slice):
        yield from inside((a.start, a.stop, a.step))


def reached(outputs: Iterable[Any]) -> list[Expression]:
    """All that these outputs need, in an order in which it can be computed."""
    seen: dict[int, Expression] = {}
    waiting = list(inside(list(outputs)))
    while waiting:
        e = waiting.pop()
        if e.id not in seen:
            seen[e.id] = e
            waiting.extend(e.operands)
    return [seen[i] for i in sorted(seen)]
