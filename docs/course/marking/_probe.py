"""Runs checks on a class of the learner's: the Scalar, the Dual, or the project's Tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
from _marking import Marks, NotWritten, Wrong, written
from _right import OPERATORS

SIGNS = {"+": "add", "*": "mul", "-": "sub", "/": "truediv", "@": "matmul"}
"""The names of the operators in those of their methods."""


class Probe:
    """Runs checks on the learner's class of this `name`. Raises NotWritten for a missing part, and
    Wrong for a result of the wrong kind.
    """

    name = plain = leaves = ""

    def __init__(self, marks: Marks):
        named = getattr(marks.module, self.name, None)
        self.marks, self.kind = marks, named if isinstance(named, type) else None

    def made(self, *fields: Any) -> Any:
        """Make an instance of the learner's class."""
        if self.kind is None:
            raise NotWritten(
                f"the file defines no class {self.name}; its name must be exactly that"
            )
        return self.kind(*fields)

    def right(self, kind: type, own: tuple[str, ...]) -> Any:
        """Return a context in which a class has right methods, except for its own of these names."""
        raise NotImplementedError

    @contextmanager
    def only(self, *own: str) -> Iterator[None]:
        """Replace the learner's methods with right ones, except for those named."""
        if self.kind is None:
            yield
            return
        with self.right(self.kind, own):
            yield

    def result(self, text: str, f: Callable, *operands: Any) -> Any:
        """Apply f to the operands; `text` is how the formula is written."""
        try:
            with self.marks.watching(text):
                y = written(f(*operands), text)
        except (AttributeError, TypeError) as error:
            absent = isinstance(error, AttributeError) and isinstance(error.obj, self.kind or ())
            if absent or re.search("unsupported operand|NoneType|no callable", str(error)):
                raise NotWritten(
                    f"{text}: an operation is missing or returns None ({error})"
                ) from error
            raise
        if not isinstance(y, self.kind or ()):
            raise Wrong(
                f"{text} is a {type(y).__name__}; it should be a {self.name}, so that the "
                "computation can continue from it."
            )
        return y

    def outcome(self, text: str, f: Callable, own: Any, *others: Any) -> list[Any]:
        """Return the value of f, and its derivative by an instance, as the class computes it."""
        raise NotImplementedError

    def beside(
        self,
        sign: str,
        a: tuple[Any, ...],
        other: Any,
        full: tuple[Any, ...],
        left: bool,
        mistakes: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    ) -> bool:
        """Raise Wrong unless a number or an array on one side of `a` does the same as an instance.

        `a` and `full` are the fields of instances, `full` those of one that stands for `other`;
        `mistakes` maps texts to the fields of wrong ones.
        """
        f, method = OPERATORS[SIGNS[sign]], f"__{'r' * left}{SIGNS[sign]}__"
        name = "array" if np.ndim(other) else "2"
        texts = f"a {sign} {name}", f"{name} {sign} a"
        text = texts[left]
        ordered = lambda x, y: f(y, x) if left else f(x, y)
        instance = lambda fields: self.made(*map(np.array, fields))
        with_instance = lambda fields: self.outcome(text, ordered, instance(a), instance(fields))
        wanted = with_instance(full)
        if not np.allclose(wanted[0], ordered(a[0], other)):
            raise Wrong(f"a {sign} b is not right yet for two {self.name}s.")
        own = instance(a)
        try:
            y = ordered(own, other)
        except TypeError as error:
            if not re.search("unsupported operand|support ufuncs", str(error)):
                raise
            called = f"The left operand does not support {self.name}s, so Python calls a.{method}."
            raise Wrong(f"{text} raises {error}. {called if left else self.plain}") from error
        except AttributeError as error:
            if isinstance(error.obj, self.kind or ()):
                raise
            raise Wrong(f"{text}: {error}. {self.plain}") from error
        if isinstance(y, np.ndarray):
            raise Wrong(
                f"{text} is an array of {y.dtype}s. NumPy treated the {self.name} as a plain object and "
                "applied the operation to each element of the array. If the class sets "
                f"`{self.leaves}`, NumPy leaves the operation to {method}."
            )
        found = self.outcome(text, lambda *_: y, own)
        if all(map(np.allclose, found, wanted)):
            return True
        for said, fields in mistakes.items():
            if all(map(np.allclose, found, with_instance(fields))):
                raise Wrong(said)
        if left and sign in "-/" and np.allclose(found[0], f(a[0], other)):
            raise Wrong(
                f"The operands are swapped: {text} calls a.{method}({name}), which must return {text}, "
                f"not {texts[0]}."
            )
        raise Wrong(
            f"{text} is not the same as with a {self.name} in place of the {name}. {self.plain}"
        )
