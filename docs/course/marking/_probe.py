"""Runs the project's checks on the learner's Tensor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from _marking import Marks, NotWritten, Wrong, written

import tinygrad_attn as ta

COPIES = "Where broadcasting copied an operand, add up the gradients of the copies. Call chapter 4's unbroadcast once, in backward."
OBJECT = (
    "NumPy treated the Tensor as a plain object and applied the operation to each element of the "
    "array. If the class sets `__array_ufunc__ = None`, NumPy leaves the operation to {method}."
)


class Engine:
    """Runs the checks on the learner's class. Raises NotWritten for a missing part, and Wrong for a
    result of the wrong kind.
    """

    def __init__(self, marks: Marks):
        named = getattr(marks.module, "Tensor", None)
        self.marks, self.Tensor = marks, named if isinstance(named, type) else None

    def tensor(self, data: Any, parents: tuple = (), rules: tuple = ()) -> Any:
        if self.Tensor is None:
            raise NotWritten("the file defines no class Tensor; its name must be exactly that")
        return self.Tensor(np.array(data), parents, rules)

    def node(self, *parents: Any, slopes: tuple[float, ...] = ()) -> Any:
        """Make a number with the marker's own rules, so that only the walk is tested."""
        return self.tensor(1.0, parents, tuple(lambda g, s=s: g * s for s in slopes))

    def result(self, text: str, f: Callable, *tensors: Any) -> Any:
        """Apply f to the tensors; `text` is how the formula is written."""
        try:
            y = written(f(*tensors), text)
        except (AttributeError, TypeError) as error:
            absent = isinstance(error, AttributeError) and isinstance(error.obj, self.Tensor or ())
            if absent or "unsupported operand" in str(error) or "NoneType" in str(error):
                raise NotWritten(
                    f"{text}: an operation is missing or returns None ({error})"
                ) from error
            raise
        if not isinstance(y, self.Tensor or ()):
            raise Wrong(
                f"{text} is a {type(y).__name__}; it should be a Tensor, so that the walk "
                "can continue from it."
            )
        return y

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
        self, text: str, f: Callable, g: Any, *arrays: Any, why: str = COPIES
    ) -> list[np.ndarray]:
        """Return the gradients of f with respect to its operands, for the incoming gradient g."""
        tensors = [self.tensor(x) for x in arrays]
        y = self.result(text, f, *tensors)
        y.backward(g)
        return [
            self.gradient(t, f"operand {i} of {text}", (y, *tensors), why)
            for i, t in enumerate(tensors)
        ]

    def check(
        self,
        text: str,
        f: Callable,
        *arrays: np.ndarray,
        name: str = "",
        hint: str = COPIES,
        value: bool = True,
        value_hint: str = "",
        wrong_values: dict[str, Any] | None = None,
        wrong_rules: dict[str, Callable] | None = None,
    ) -> None:
        """Compare the value with the package's (which is NumPy's), and the gradients with central
        differences. Each adds a line. `hint` helps with shapes that do not fit.
        """
        step, _, formula = text.partition(" ")
        name = name or text
        if value:
            self.marks.compare(
                name,
                lambda: self.result(formula, f, *map(self.tensor, arrays)).data,
                f(*map(ta.Tensor, arrays)),
                mistakes=wrong_values,
                hint=value_hint,
            )

        def rule(i: int) -> Callable:
            def gradient(g: Any, y: Any, *arrays: Any) -> Any:
                try:
                    return self.walk(formula, f, g, *arrays, why=hint)[i]
                except ValueError as error:  # shapes that do not fit, in the learner's own rule
                    told = ValueError(f"{error}\n\n{hint}")  # NumPy's AxisError keeps its own text
                    raise told.with_traceback(error.__traceback__) from error

            return gradient

        op = ta.op(
            lambda *arrays: np.asarray(self.result(formula, f, *map(self.tensor, arrays)).data)
        )
        op.__name__ = formula
        self.marks.gradient(
            f"{name}, gradients",
            op.vjp(*map(rule, range(len(arrays)))),
            *arrays,
            mistakes=wrong_rules,
        )

    def on_the_left(
        self, f: Callable, left: Any, array: np.ndarray, text: str, method: str
    ) -> list[Any]:
        """Return the value of f(left, Tensor(array)), where `left` is an array or a number, and the
        gradient of its sum with respect to the tensor.
        """
        t = self.tensor(array)
        try:
            y = f(left, t)
        except TypeError as error:
            if "unsupported operand" not in str(error) and "does not support ufuncs" not in str(
                error
            ):
                raise
            raise Wrong(
                f"{text} raises {error}. The left operand does not support Tensors, so Python calls "
                f"a.{method}."
            ) from error
        if isinstance(y, np.ndarray):
            raise Wrong(f"{text} is an array of {y.dtype}s. {OBJECT.format(method=method)}")
        y = self.result(text, lambda: y)
        y.backward()
        return [y.data, self.gradient(t, f"a in {text}", (y,))]


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
