"""Find the function that a command runs, its inputs and its parameters."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..engine import tracked
from ..errors import nearest


def find(target: str) -> Any:
    """Return the function for `FILE.py`, `FILE.py:FUNCTION` or `MODULE:FUNCTION`."""
    place, _, name = target.rpartition(":")
    if not place or name.endswith(".py"):  # no colon, or only the one after a drive letter
        place, name = target, ""
    sys.path.insert(0, os.getcwd())
    module = load(Path(place)) if place.endswith(".py") else import_module(place)
    own = [
        key for key, x in vars(module).items()
        if callable(x) and not isinstance(x, type)
        and getattr(getattr(x, "forward", x), "__module__", None) == module.__name__
    ]  # fmt: skip
    name = name or (own[0] if len(own) == 1 else "main")
    if not hasattr(module, name):
        raise ValueError(
            f"{place} has no {name!r}.{nearest(name, own)} Functions in this file: "
            f"{', '.join(own) or 'none'}."
        )
    return getattr(module, name)


def load(path: Path) -> Any:
    """Run a Python file as a module that can import from its folder."""
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module  # dataclasses need it
    # Python's cache of compiled files misses a change within the same second.
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))
    return module


def number_of_inputs(function: Any) -> int:
    """Return the number of required arguments of a function, op or module, but at least 1."""
    parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    needed = [p for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    return max(1, len(needed))


def parameters_of(function: Any) -> Any:
    """Return the parameters that a function uses from modules and tensors in its file, by name."""
    if not hasattr(function, "__code__"):
        return None  # a module or an op
    found: dict[str, Any] = {}
    for name in function.__code__.co_names:
        x = function.__globals__.get(name)
        if hasattr(x, "named_parameters"):
            found |= {f"{name}.{inner}": p for inner, p in x.named_parameters()}
        elif tracked(x):
            found[name] = x
    return found or None
