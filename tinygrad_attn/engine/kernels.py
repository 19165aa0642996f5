"""How `fast/` replaces a function or an op with a faster kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .modes import context

Function = TypeVar("Function", bound=Callable[..., Any])

kernels: list[tuple[Any, Any]] = []
"""All registered kernels, as (reference, kernel)."""


def reference(function: Function) -> Function:
    """Let a kernel replace this function outside plain mode.

    The function defines the result. Its kernel has the same signature and returns the same result.
    For arguments that it does not handle, it returns NotImplemented, and the function itself runs.
    """

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        if call.kernel is not None and not context.plain:  # type: ignore[attr-defined]
            y = call.kernel(*args, **settings)  # type: ignore[attr-defined]
            if y is not NotImplemented:
                return y
        return function(*args, **settings)

    call.kernel, call.function = None, function  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def kernel(replaces: Any) -> Callable[[Function], Function]:
    """Register a kernel for this reference or op."""

    def register(function: Function) -> Function:
        replaces.kernel = function
        kernels.append((replaces, function))
        return function

    return register


when_loaded: dict[str, Callable[[], Any]] = {}
"""Functions that register the kernels of modules loaded late, by module name."""


def loaded(module: str) -> None:
    """Register the kernels of this newly loaded module."""
    if module in when_loaded:
        when_loaded[module]()
