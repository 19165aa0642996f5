"""An engine under examination, as its adapter describes it. The adapter is the learner's file.

It offers `tensor(x)`, or a class `Tensor` (or `Value`, for engines of single numbers), or
`gradients(f, xs)` for engines that differentiate functions. Everything else has a default here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np

SPELLINGS = {
    "sum": ("sum", "summation"),
    "max": ("amax", "max"),
    "transpose": ("permute", "transpose"),
    "concatenate": ("concatenate", "concat", "cat"),
    "matmul": ("matmul", "dot"),
    "log_softmax": ("log_softmax", "logsoftmax"),
    "zero": ("zero_grad", "cleargrad", "clear_grad", "null_grad"),
}
"""Other names for a word of the cases."""
LAYERS = ("layer_norm", "rms_norm", "cross_entropy", "embedding", "attention")
"""Words with other arguments in each library, so that only the adapter can say them."""
KEYWORDS: tuple[dict[str, str], ...] = (
    {},
    {"keepdims": "keepdim"},
    {"axis": "dim", "keepdims": "keepdim"},
    {"axis": "axes"},
)
"""Other names for the keyword arguments of a word."""
ACCIDENTS = (ArithmeticError, ImportError, MemoryError, NameError, OSError, RecursionError)
"""Errors that are never a refusal. Any other error of a forward pass means "not offered"."""
NUMBERS = (np.ndarray, np.generic, float, int)


class Missing(Exception):
    """The engine does not offer this."""


class Refused(Exception):
    """The engine refuses with an error, which is right here."""


class Crash(Exception):
    """The engine raised this exception where it should compute."""


class Engine:
    """An engine with the defaults for what its adapter leaves out."""

    def __init__(self, adapter: ModuleType) -> None:
        self.adapter = adapter
        self.modules = getattr(adapter, "functions", ())
        self.loose = getattr(adapter, "loose", False)
        self.functional = hasattr(adapter, "gradients")
        numbers = hasattr(adapter, "Value") and not hasattr(adapter, "Tensor")
        self.scalar = getattr(adapter, "scalar", numbers)
        self.tensor = self._choice("tensor", self._tensor)
        self.constant = self._choice("constant", np.asarray if self.functional else self.tensor)
        self._value = self._choice("value", value)
        self.grad = self._choice("grad", lambda tensor: tensor.grad)
        self.backward = self._choice("backward", lambda y: y.backward())
        self.overwrite = self._choice("overwrite", self._overwrite)
        self.derivative = self._choice("derivative", self._derivative)
        self.seed: Callable[[Any], Any] | None = None  # turns weights into an argument of backward
        self.all_axes: dict[str, Any] = {}  # what an engine's sum needs to add up all elements

    def _choice(self, name: str, default: Callable) -> Callable:
        return getattr(self.adapter, name, default)

    def _tensor(self, x: Any) -> Any:
        for name in ("Tensor", "Value"):
            if made := getattr(self.adapter, name, None):
                settings: dict[str, Any] = {}
                with suppress(TypeError, ValueError):  # a class in C tells no signature
                    if "requires_grad" in signature(made).parameters:
                        settings["requires_grad"] = True
                return made(x if self.scalar else np.array(x), **settings)
        if self.functional:
            raise Missing("the engine differentiates functions and has no tensors with a .grad")
        raise Missing("the adapter offers neither tensor(x) nor gradients(f, xs)")

    def value(self, x: Any) -> Any:
        """Return what a tensor holds; a gradient may be an array or a number already."""
        return x if isinstance(x, NUMBERS) else self._value(x)

    def leaf(self, x: Any) -> Any:
        """Return a tensor for an array, or for its only number in an engine of single numbers."""
        return self.tensor(float(x) if self.scalar else np.array(x))

    # ---- words of the cases: exp, sum, ...

    def word(self, name: str) -> Callable[..., Any]:
        """Return the engine's function of this name: the adapter's, a module's or a method."""

        def call(*arguments: Any, **settings: Any) -> Any:
            refusal = None
            for attempt in self._attempts(name, arguments, settings):
                try:
                    result = attempt()
                    if result is not None or name == "zero":
                        return result
                    refusal = refusal or Missing(f"{name} returns None")
                except ACCIDENTS:
                    raise
                except Exception as error:
                    refusal = refusal or error  # the likeliest spelling comes first
            text = f"{name}: {refusal}" if refusal else f"{name} is not offered"
            raise Missing(text) from refusal

        return self._choice(name, call)

    def _attempts(self, name: str, arguments: tuple, settings: dict) -> Iterator[Callable]:
        """Yield the ways to call a word, the likeliest first."""
        stacks = any(len(getattr(x, "shape", ())) > 2 for x in arguments)
        for spelling in () if name in LAYERS else SPELLINGS.get(name, (name,)):
            if spelling == "dot" and stacks:
                continue  # in NumPy, it is another product
            functions = [getattr(module, spelling, None) for module in self.modules]
            functions += [operator.matmul] if name == "matmul" else []
            calls = [(function, arguments) for function in functions if function]
            if arguments and (method := getattr(arguments[0], spelling, None)):
                calls.append((method, arguments[1:]))
            for function, rest in calls:
                unpacked = [(*rest[:-1], *rest[-1])] if rest and type(rest[-1]) is tuple else []
                for renaming in KEYWORDS:
                    renamed = {renaming.get(key, key): x for key, x in settings.items()}
                    for form in (rest, *unpacked):
                        yield lambda function=function, form=form, renamed=renamed: function(
                            *form, **renamed
                        )
        if name == "transpose" and arguments[1] == (1, 0):
            yield lambda: arguments[0].T

    # ---- gradients

    def pull(self, f: Callable, inputs: Sequence[Any], weights: Any) -> list[Any]:
        """Return the gradients of sum(weights * f(*inputs)), as arrays or None."""
        totals = []

        def total(*tensors: Any) -> Any:
            y = f(*tensors)
            if np.ndim(weights):
                y = self.word("sum")(y * self.constant(self.like(y, weights)), **self.all_axes)
            totals.append(y)
            return y

        if self.functional:
            try:
                gradients = self.adapter.gradients(total, list(inputs))
            except Exception as error:
                if not totals:  # the forward pass refuses
                    raise
                raise Crash(f"{type(error).__name__}: {error}") from error
        else:
            leaves = [*map(self.leaf, inputs)]
            if self.seed and np.ndim(weights):
                y = f(*leaves)
                attempted(lambda: y.backward(self.seed(self.like(y, weights))))
            else:
                self.run_backward(total(*leaves))
            gradients = [*map(self.grad, leaves)]
        arrays = [None if g is None else np.asarray(self.value(g)) for g in gradients]
        return arrays if np.ndim(weights) else [g if g is None else g * weights for g in arrays]

    def like(self, y: Any, weights: np.ndarray) -> np.ndarray:
        """Return the weights with the axes that a loose engine keeps."""
        return weights.reshape(np.shape(self.value(y))) if self.loose else weights

    def run_backward(self, y: Any) -> None:
        """Run the engine's backward pass. Raises Crash if it raises."""
        attempted(self.backward, y)

    def gradient(self, tensor: Any) -> Any:
        """Return a tensor's gradient as an array, or None."""
        g = self.grad(tensor)
        return None if g is None else np.asarray(self.value(g))

    def choose_seed(self) -> None:
        """Choose how an array of results is weighted, so that a wrong sum fails only its own cases.

        The first choice is sum(y * weights).backward(), the last ones are y.backward(weights).
        """
        x, weights = np.ones((2, 3)), np.arange(6.0).reshape(2, 3)
        if self.scalar:
            return
        seeds = () if self.functional else (np.array, self.constant)
        for self.seed, self.all_axes in (
            (None, {}),
            (None, {"axis": None}),
            *((s, {}) for s in seeds),
        ):
            with suppress(Exception), np.errstate(all="ignore"):
                if np.allclose(self.pull(lambda x: x + x, [x], weights)[0], 2 * weights, 1e-4):
                    return
        self.seed, self.all_axes = None, {}

    def zero(self, tensor: Any) -> None:
        """Clear the gradient of a tensor."""
        try:
            self.word("zero")(tensor)
        except Missing:
            tensor.grad = self.leaf(self.value(tensor)).grad

    def _overwrite(self, tensor: Any, x: float) -> None:
        if self.scalar:
            tensor.data = x
        elif isinstance(tensor.data, np.ndarray):
            tensor.data[...] = x
        else:
            raise Missing("the adapter has no overwrite(t, x)")

    def _derivative(self, f: Callable, x: Any) -> Any:
        """Return the gradient of f at x as a tensor that can be differentiated."""
        if self.functional:
            return self.adapter.gradients(f, [x])[0]
        y = f(x)
        try:
            y.backward(create_graph=True)
        except TypeError:
            raise Missing("backward has no create_graph") from None
        if not isinstance(x.grad, type(y)):
            raise Missing("the gradient is not a tensor")
        gradient = x.grad
        self.zero(x)
        return gradient


def attempted(function: Callable, *arguments: Any) -> Any:
    """Call the function. Raises Crash if it raises anything but Missing."""
    try:
        return function(*arguments)
    except Missing:
        raise
    except Exception as error:
        raise Crash(f"{type(error).__name__}: {error}") from error


def value(tensor: Any) -> Any:
    """Return what a tensor holds: `.data`, or `.numpy()` where `.data` is a method."""
    data = getattr(tensor, "data", tensor)
    return tensor.numpy() if callable(data) else data
