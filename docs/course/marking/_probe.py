"""Runs the project's checks on the learner's Tensor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np
from _marking import Marks, NotWritten, Wrong, written
from _right import backward, right_methods, tensor_call

import tinygrad_attn as ta

METHODS = {"+": "__add__", "*": "__mul__", "-": "__sub__", "/": "__truediv__", "@": "__matmul__"}
PLAIN = "Every operation must first turn an operand that is a number or an array into a Tensor."
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

    @contextmanager
    def only(self, *own: str) -> Iterator[None]:
        """Replace the learner's methods with right ones, except for those named."""
        if self.Tensor is None:
            yield
            return
        with right_methods(self.Tensor, tensor_call(self.Tensor), own, backward=backward):
            yield

    def node(self, *parents: Any, slopes: tuple[float, ...] = ()) -> Any:
        """Make a number with the marker's own rules, so that only the walk is tested."""
        return self.tensor(1.0, parents, tuple(lambda g, s=s: g * s for s in slopes))

    def result(self, text: str, f: Callable, *tensors: Any) -> Any:
        """Apply f to the tensors; `text` is how the formula is written."""
        try:
            with self.marks.watching(text):
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

    def both(self, f: Callable, *operands: Any) -> list[np.ndarray]:
        """Return the value of f, and the gradients of its sum with respect to all Tensors."""
        y = self.result("the result", f, *operands)
        with self.only():
            y.backward()
        moving = [t for t in operands if isinstance(t, self.Tensor or ())]
        return [np.asarray(y.data), *(self.gradient(t, "an operand", (y,)) for t in moving)]

    def as_with_tensors(self, sign: str, f: Callable, array: np.ndarray, other: Any) -> bool:
        """Raise Wrong unless the learner's operation does the same for a number or an array on either
        side as for a Tensor.
        """
        name = "array" if np.ndim(other) else "2"
        fixed = self.tensor(np.broadcast_to(np.asarray(other, float), array.shape))
        wanted = (
            self.both(f, self.tensor(array), fixed)[:2],
            self.both(f, fixed, self.tensor(array)),
        )
        right, left = f"a {sign} {name}", f"{name} {sign} a"
        if not np.allclose(wanted[0][0], f(array, other)):
            raise Wrong(f"a {sign} b is not right yet for two Tensors.")
        method = f"__r{METHODS[sign][2:]}"
        try:
            found = self.both(f, self.tensor(array), other)
        except (AttributeError, TypeError) as error:
            raise Wrong(f"{right}: {error}. {PLAIN}") from error
        if not all(map(np.allclose, found, wanted[0])):
            raise Wrong(f"{right} is not the same as with a Tensor in place of the {name}. {PLAIN}")
        reflected = self.on_the_left(f, other, array, left, method)
        if all(map(np.allclose, reflected, wanted[1][::2])):
            return True
        if np.allclose(reflected[0], wanted[0][0]):
            raise Wrong(
                f"The operands are swapped: {left} calls a.{method}({name}), which must return {left}, not {right}."
            )
        raise Wrong(f"{left} is not the same as with a Tensor in place of the {name}. {PLAIN}")

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
        with self.only():
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
