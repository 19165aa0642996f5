"""Runs checks on a class of the learner's: the project's Tensor, or chapter 3b's Dual."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from types import MappingProxyType
from typing import Any

import numpy as np
from _marking import Marks, NotWritten, Wrong, written
from _right import OPERATORS, backward, right_methods, tensor_call

import tinygrad_attn as ta

SIGNS = {"+": "add", "*": "mul", "-": "sub", "/": "truediv", "@": "matmul"}
"""The names of the operators in those of their methods."""
COPIES = "Where broadcasting copied an operand, add up the gradients of the copies. Call chapter 4's unbroadcast once, in backward."


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


class Engine(Probe):
    """Runs the checks on the learner's Tensor."""

    name = "Tensor"
    plain = "Every operation must first turn an operand that is a number or an array into a Tensor."
    leaves = "__array_ufunc__ = None"

    def tensor(self, data: Any, parents: tuple = (), rules: tuple = ()) -> Any:
        return self.made(np.array(data), parents, rules)

    def right(self, kind: type, own: tuple[str, ...]) -> Any:
        return right_methods(kind, tensor_call(kind), own, backward=backward)

    def outcome(self, text: str, f: Callable, own: Any, *others: Any) -> list[Any]:
        y = self.result(text, f, own, *others)
        with self.only():
            y.backward()
        return [y.data, self.gradient(own, f"a in {text}", (y,))]

    def node(self, *parents: Any, slopes: tuple[float, ...] = ()) -> Any:
        """Make a number with the marker's own rules, so that only the walk is tested."""
        return self.tensor(1.0, parents, tuple(lambda g, s=s: g * s for s in slopes))

    @staticmethod
    def gradient(tensor: Any, called: str, whole: tuple = (), why: str = COPIES) -> np.ndarray:
        """Return the tensor's .grad, which must be an array of the tensor's shape. `whole` contains all
        tensors of the walk; if none has a gradient, there was no walk.
        """
        if all(t.grad is None for t in (tensor, *whole)):
            raise NotWritten("backward() leaves every .grad None")
        if tensor.grad is None:
            raise Wrong(
                f".grad of {called} is still None after backward(), although the result depends on it."
            )
        if not isinstance(tensor.grad, (np.ndarray, np.generic, float)):
            raise Wrong(
                f".grad of {called} is a {type(tensor.grad).__name__}; it should be an array."
            )
        if np.shape(tensor.grad) != np.shape(tensor.data):
            raise Wrong(
                f".grad of {called} has the shape {np.shape(tensor.grad)}, but .data has the shape "
                f"{np.shape(tensor.data)}. {why}"
            )
        return np.asarray(tensor.grad)

    def walk(
        self, text: str, f: Callable, g: Any, right: Any, *arrays: Any, which: int, why: str
    ) -> np.ndarray:
        """Return the gradient of f with respect to one operand, for the incoming gradient g, if the
        value is right.
        """
        tensors = [self.tensor(x) for x in arrays]
        y = self.result(text, f, *tensors)
        if not np.allclose(y.data, right):
            raise Wrong(f"The value of {text} is not right yet.")
        y.backward(g)
        name = list(signature(f).parameters)[which]
        return self.gradient(tensors[which], f"{name} in {text}", (y, *tensors), why)

    def check(
        self,
        text: str,
        f: Callable,
        *arrays: np.ndarray,
        own: str,
        right: Callable | None = None,
        name: str = "",
        hint: str = COPIES,
        value: bool = True,
        value_hint: str = "",
        wrong_values: dict[str, Any] | None = None,
        wrong_rules: dict[str, Callable] | None = None,
    ) -> None:
        """Compare the value with the package's (which is NumPy's) or with that of `right`, and each
        gradient with central differences. `own` is the method that is judged. `hint` helps with
        shapes that do not fit.
        """
        right = right or (lambda *arrays: f(*map(ta.Tensor, arrays)).numpy())
        step, _, formula = text.partition(" ")
        name = name or text
        if value:

            def found() -> Any:
                with self.only(own):
                    return self.result(formula, f, *map(self.tensor, arrays)).data

            self.marks.compare(
                name,
                found,
                right(*arrays),
                mistakes=wrong_values,
                hint=value_hint,
            )

        def rule(i: int) -> Callable:
            def gradient(g: Any, y: Any, *arrays: Any) -> Any:
                with self.only(own):
                    return self.walk(formula, f, g, y, *arrays, which=i, why=hint)

            return gradient

        op = ta.op(lambda *arrays: np.asarray(right(*arrays)))
        op.__name__ = formula
        self.marks.gradient(
            f"{name}, gradients",
            op.vjp(*map(rule, range(len(arrays)))),
            *arrays,
            mistakes=wrong_rules,
            names=tuple(signature(f).parameters),
            hint=hint,
        )


@contextmanager
def at_most(steps: int, text: str) -> Iterator[None]:
    """Raise Wrong with this text once the code inside has run `steps` lines, because a walk along
    2^60 paths would never end.
    """
    left, before = steps, sys.gettrace()

    def count(*_: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Wrong(text)
        return count

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
