"""Leftover names; they go with their last users."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import describe

Function = TypeVar("Function", bound=Callable[..., Any])


def own_names(function: Function) -> Function:
    """Return the function as it is."""
    return function


as_layer = own_names


def called_as(function: Callable[..., Any], title: str) -> str:
    """Return `title(x, axis=-1)`: how a function is called."""
    signature = inspect.signature(function)
    plain = [
        p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"
    ]
    return f"{title}{signature.replace(parameters=plain, return_annotation=signature.empty)}"


def check_flags(function: str, **flags: Any) -> None:
    """Raise for a flag that is a text."""
    for name, value in flags.items():
        if isinstance(value, str):
            raise TypeError(f"{function}: {name} is True or False, got {describe(value)}.")


def not_made_yet(call: str, value: Any, name: str) -> TypeError:
    """Return the error for `nn.ReLU(x)`, where the layer's input is given to its class."""
    return TypeError(f"write {call}(x); got {describe(value)} as {name}.")
