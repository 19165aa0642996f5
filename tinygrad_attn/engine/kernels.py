"""Registration of kernels, with which `fast/` replaces functions and ops."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .run import context

Function = TypeVar("Function", bound=Callable[..., Any])


class FunctionCall:
    """One call of a reference function: a scope, like the call of a module."""

    __slots__ = ("function", "outer", "module")

    def __init__(self, function, outer):
        self.function, self.outer = function, outer
        self.module = getattr(outer, "module", None)  # the module that called the function


kernels: list[tuple[Any, Any]] = []
"""All registered kernels, as pairs (reference, kernel)."""


def reference(function: Function) -> Function:
    """Allow a kernel to replace this function outside plain mode.

    The function defines the result. Its kernel has the same signature and returns the same result.
    If the kernel cannot handle its arguments, it returns NotImplemented and the function runs. Ops
    that the function calls then have this call as their scope.
    """

    @functools.wraps(function)
    def call(*args, **settings):
        if call.kernel is not None and not context.plain:  # type: ignore[attr-defined]
            y = call.kernel(*args, **settings)  # type: ignore[attr-defined]
            if y is not NotImplemented:
                return y
        outer = context.scope
        context.scope = FunctionCall(function, outer)
        try:
            return function(*args, **settings)
        finally:
            context.scope = outer

    call.kernel, call.function = None, function  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def kernel(replaces) -> Callable[[Function], Function]:
    """Register the decorated function as the kernel of a reference function or an op."""

    def register(function):
        replaces.kernel = function
        kernels.append((replaces, function))
        return function

    return register


with_optim: list[Callable[[], Any]] = []
"""Called when `optim` is loaded, to register its kernels: the package is loaded without it."""
