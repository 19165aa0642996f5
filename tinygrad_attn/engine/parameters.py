"""How an op's function is called: which of its arguments are inputs, and which are settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from numpy import ufunc

from ..messages.errors import describe, no_setting
from .graph import Variable


class Parameters:
    """The inputs (positional) and settings (keyword-only) of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"@op stands above a function on arrays, got {describe(function)}.")
        named = function.func if isinstance(function, functools.partial) else function
        self.function: str = getattr(named, "__name__", type(named).__name__)
        # A ufunc's signature, where NumPy tells one, lists settings such as `out` that must not be
        # passed on.
        a_ufunc = isinstance(function, ufunc)
        self.signature = inspect.Signature() if a_ufunc else inspect.signature(function)
        every = tuple(self.signature.parameters.values())
        inputs = [p for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.inputs = tuple(p.name for p in inputs)
        self.optional = tuple(p.name for p in inputs if p.default is not p.empty)
        self.count = function.nin if isinstance(function, ufunc) else len(self.inputs)
        self.takes_any = any(p.kind is p.VAR_POSITIONAL for p in every)
        self.variadic = not every or self.takes_any
        keywords = [p for p in every if p.kind is p.KEYWORD_ONLY]
        self.settings = frozenset(p.name for p in keywords)
        self.defaults = {p.name: p.default for p in keywords if p.default is not p.empty}

    def bind(self, inputs: tuple, settings: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Inputs that were given by keyword in their places, and settings with their defaults."""
        if not settings:
            return inputs, self.defaults
        if not settings.keys().isdisjoint(self.inputs):
            try:
                bound = self.signature.bind(*inputs, **settings)
            except TypeError as error:  # an input is missing, or given twice
                raise TypeError(f"{self.function}: {error}.") from None
            bound.apply_defaults()
            inputs = tuple(bound.arguments[name] for name in self.inputs)
            settings = {k: v for k, v in settings.items() if k not in self.inputs}
        for name, value in settings.items():
            if isinstance(value, Variable):
                raise no_setting(self.function, name, value)
        return inputs, {**self.defaults, **settings} if self.defaults else settings
