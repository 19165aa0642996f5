"""How `fast/` replaces a function or an op by a faster kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .modes import context

Function = TypeVar("Function", bound=Callable[..., Any])

kernels: list[tuple[Any, Any]] = []
"""All that are registered, as (reference, kernel)."""


def reference(function: Function) -> Function:
    """Let a kernel replace this function outside plain mode.

    The function states what is computed. Its kernel has the same signature and returns the same,
    or NotImplemented for arguments that it does not handle: then the function itself runs.
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
    """Register a kernel of this reference or op."""

    def register(function: Function) -> Function:
        replaces.kernel = function
        kernels.append((replaces, function))
        return function

    return register


when_loaded: dict[str, Callable[[], Any]] = {}
"""What registers the kernels of a module that is loaded late, by the module's name."""


def loaded(module: str) -> None:
    """Register the kernels of this module, which has just been loaded."""
    if module in when_loaded:
        when_loaded[module]()
