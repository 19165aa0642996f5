"""Finding what the user names: `FILE.py:FUNCTION` or `MODULE:FUNCTION`, and what it takes."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..engine import Op, tracked
from ..errors import nearest


class UsageError(ValueError):
    """The command line cannot be carried out; the text says what to write instead."""


def find(target: str) -> Any:
    """Return what `FILE.py`, `FILE.py:FUNCTION` or `MODULE:FUNCTION` names."""
    place, _, name = target.rpartition(":")
    if not place or name.endswith(".py"):  # no colon, or that of a drive letter
        place, name = target, ""
    if place.endswith(".py"):
        module = load(Path(place))
    else:
        sys.path.insert(0, os.getcwd())
        try:
            module = import_module(place)
        except ModuleNotFoundError as error:
            if error.name not in (place, place.partition(".")[0]):
                raise  # the module exists, and imports one that does not
            raise UsageError(
                f"there is no module {place!r}; write FILE.py:FUNCTION or MODULE:FUNCTION."
            ) from error
    own = [key for key, x in vars(module).items() if _defined_in(module, x) and key[0] != "_"]
    if not name:
        name = own[0] if len(own) == 1 else "main"
    if not hasattr(module, name):
        listed = f" Functions in this file: {', '.join(own) or 'none'}."
        raise UsageError(f"{place} has no {name!r}.{nearest(name, own)}{listed}")
    found = getattr(module, name)
    if isinstance(found, type):
        raise UsageError(f"{target} is a class; name a function, or an object of that class.")
    return found


def _defined_in(module: Any, x: Any) -> bool:
    """Whether x is a function, an op or a callable object that this module defines."""
    made_in = getattr(x.forward if isinstance(x, Op) else x, "__module__", None)
    return callable(x) and not isinstance(x, type) and made_in == module.__name__


def load(path: Path) -> Any:
    """Run a Python file as a module; its folder can be imported from, as when the file is run."""
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r} (looked in {os.getcwd()!r})")
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType(path.stem)
    module.__file__ = os.path.abspath(path)
    sys.modules[path.stem] = module  # dataclasses of the file look themselves up there
    # Python's cache of compiled files would miss a change within the same second.
    exec(compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True), vars(module))
    return module


def number_of_inputs(function: Any) -> tuple[int, int]:
    """How many positional arguments a function, op or module needs, and how many it may have."""
    parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is p.empty for p in positional)
    return needed, sys.maxsize if any_number else len(positional)


def parameters_of(function: Any) -> Any:
    """The modules and trained tensors of its file that a function uses, as parameters by name."""
    if not hasattr(function, "__code__"):
        return None  # a module or an op
    used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    modules = {name: x for name, x in used.items() if hasattr(x, "named_parameters")}
    tensors = {name: x for name, x in used.items() if tracked(x)}
    if len(modules) == 1 and not tensors:
        return next(iter(modules.values()))
    for name, module in modules.items():
        tensors |= {f"{name}.{inner}": p for inner, p in module.named_parameters()}
    return tensors or None
