"""What `gradcheck` was called with: which tensors are checked, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..engine import Variable
from ..messages.errors import describe, is_number
from .measuring import leaves


def check_settings(eps: Any, atol: Any, rtol: Any, order: Any, seed: Any) -> None:
    """Refuse steps, tolerances, orders and seeds that make no sense."""
    allowed = "is the error that is allowed, a number that is 0 or more, such as"
    step = "is the step by which an element is moved, a positive number such as 1e-06"
    for value, least, told in (
        (eps, np.finfo(float).tiny, f"eps {step}"),
        (atol, 0, f"atol {allowed} 1e-5"),
        (rtol, 0, f"rtol {allowed} 1e-3"),
    ):
        if not is_number(value) or not least <= value < np.inf:
            raise ValueError(f"{told}; got {describe(value)}.")
    if order not in (1, 2):
        raise ValueError(
            "order must be 1 (the gradient) or 2 (also the gradient of the gradient), got "
            f"{order!r}."
        )
    if not (isinstance(seed, (int, np.integer)) and seed >= 0):
        raise ValueError(
            "seed is a whole number, 0 or more, from which the random weights are drawn; got "
            f"{describe(seed)}."
        )


def collect(
    f: Callable[..., Any], inputs: Any, params: Any
) -> tuple[list[Any], list[Any], list[str]]:
    """The arguments for f, the tensors to check, and what to call them."""
    _check_function(f)
    if not isinstance(inputs, (Variable, np.ndarray, Sequence)) or isinstance(inputs, str):
        raise TypeError(
            f"inputs is a Tensor, an array, or a list of what f takes, got {describe(inputs)}. "
            "Write gradcheck(f, [x, y])."
        )
    given = [inputs] if isinstance(inputs, (Variable, np.ndarray)) else list(inputs)
    floating = lambda a: isinstance(a, np.ndarray) and a.dtype.kind == "f"
    arguments = [Variable._kind(a) if floating(a) else a for a in given]
    found: dict[int, tuple[str, Any]] = {}
    for name, t in [*_inputs(arguments, given), *_parameters(f, params)]:
        found.setdefault(id(t), (name, t))  # listed twice, it is checked once
    if not found:
        raise ValueError(
            "there is nothing to check: give gradcheck at least one floating-point Tensor or "
            "array in inputs, or tensors in params=."
        )
    for name, t in found.values():
        _check_dtype(name, t)
    return arguments, [t for _, t in found.values()], [name for name, _ in found.values()]


def _check_function(f: Any) -> None:
    takes = "gradcheck(f, inputs) takes a function or a Module first, got"
    if isinstance(f, type):
        raise TypeError(f"{takes} the class {f.__name__}: make an object of it first.")
    if not callable(f):
        raise TypeError(
            f"{takes} {describe(f)}. Write gradcheck(lambda x: ..., [x]); the result itself does "
            "not tell how it was computed."
        )


def _inputs(arguments: list[Any], given: list[Any]) -> list[tuple[str, Any]]:
    """The arrays and the tensors that want a gradient, or all floating ones if no tensor does."""
    numbers = [isinstance(a, Variable) and a._data.dtype.kind == "f" for a in arguments]
    wanting = [n and (a._tracked or a is not b) for n, a, b in zip(numbers, arguments, given)]
    found: list[tuple[str, Any]] = []
    for i, a in enumerate(arguments):
        if (wanting if any(wanting) else numbers)[i]:
            name = getattr(a, "name", None)
            found.append((f"input {i} {name!r}" if name else f"input {i}", a))
        elif isinstance(a, (dict, tuple, list)):
            # Whatever else lies in there may be anything, so only tensors that say so.
            found += [
                (f"input {i}, leaf {k}", t)
                for k, t in enumerate(leaves(a))
                if isinstance(t, Variable) and t._tracked
            ]
    return found


def _parameters(f: Any, params: Any) -> list[tuple[str, Any]]:
    if params is None:
        named = f.named_parameters() if hasattr(f, "named_parameters") else []
        return [(f"parameter {name!r}", p) for name, p in named if p._tracked]
    if isinstance(params, Variable):
        params = [params]
    if not hasattr(params, "__iter__"):
        raise TypeError(
            "params is a list of Tensors, or a mapping from names to Tensors, got "
            f"{describe(params)}."
        )
    pairs = params.items() if isinstance(params, dict) else enumerate(params)
    listed = [p if isinstance(p, tuple) else (key, p) for key, p in pairs]
    return [(f"parameter {getattr(p, 'name', None) or name!r}", p) for name, p in listed]


def _check_dtype(name: str, t: Any) -> None:
    if not isinstance(t, Variable):
        raise TypeError(f"{name} must be a Tensor, got {describe(t)}.")
    dtype = t._data.dtype
    if dtype.newbyteorder("=") == np.float64:
        return
    why = f"{name} is {describe(t)}. The steps and limits of gradcheck are set for float64."
    if dtype.itemsize < 8:
        why = (
            f"precision too low: {name} is {describe(t)}. Central differences need float64: in "
            f"{dtype} rounding leaves only two or three digits, and a wrong gradient passes."
        )
    of_module = "module.astype(np.float64)"
    of_tensor = "Tensor(data, dtype=np.float64) or x.astype(np.float64)"
    raise TypeError(f"{why} Write {of_module if name.startswith('parameter') else of_tensor}.")
