"""Finding what the user names: `FILE.py:FUNCTION` or `MODULE:FUNCTION`, and what it takes."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..engine import Op, Variable
from ..messages.errors import is_module, nearest


class UsageError(ValueError):
    """The command cannot do what it was asked to; the text says why, and what to do instead."""


def find(target: str) -> Any:
    """What `FILE.py`, `FILE.py:FUNCTION` or `MODULE:FUNCTION` names."""
    place, colon, name = target.rpartition(":")
    if not colon or name.endswith(".py") or os.sep in name:  # a colon may be a drive letter
        place, name = target, ""
    if not place:
        raise UsageError(
            f"{target!r} names no file and no module; write FILE.py:FUNCTION or MODULE:FUNCTION."
        )
    if place.endswith(".py"):
        module = load(Path(place))
    elif Path(place).is_file():
        raise UsageError(f"{place!r} is no Python file; its name should end in .py")
    else:
        module = imported(place)
    own = functions_of(module)
    if not name:
        name = own[0] if len(own) == 1 else "main"
        if not own:
            raise UsageError(f"{place} defines no function")
        if name not in own:
            some = ", ".join(own[:12]) + (f" and {len(own) - 12} more" if len(own) > 12 else "")
            raise UsageError(f"{place} has several functions, {some}: say which, as {place}:NAME")
    if not hasattr(module, name):
        raise UsageError(f"{place} has no {name!r}.{nearest(name, own)}")
    return getattr(module, name)


def load(path: Path) -> Any:
    """A Python file as a module; its folder can be imported from, as when the file is run."""
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r} (looked in {os.getcwd()!r})")
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType(path.stem)
    module.__file__ = os.path.abspath(path)
    sys.modules[path.stem] = module  # dataclasses and pickles of the file look for themselves there
    # Compiled from its text. Python's cache of compiled files misses a change within the same
    # second, and a notebook writes and checks a file that fast.
    exec(compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True), vars(module))
    return module


def imported(place: str) -> Any:
    """The module of this name, which may lie in the folder the command runs in."""
    sys.path.insert(0, os.getcwd())
    try:
        if place.startswith("."):  # for Python an import within a package
            raise ModuleNotFoundError(name=place)
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in (place, place.partition(".")[0]):
            raise  # the module is there, and imports one that is not
        raise UsageError(
            f"there is no module {place!r}, nor is it a file that ends in .py; "
            "write FILE.py:FUNCTION or MODULE:FUNCTION."
        ) from error


def functions_of(module: Any) -> list[str]:
    """The names of the ops, functions and callable objects that a module makes itself.

    Not its classes, and not what it imports.
    """
    found = []
    for name, value in vars(module).items():
        made_in = getattr(value.forward if isinstance(value, Op) else value, "__module__", None)
        is_function = callable(value) and not isinstance(value, type)
        if is_function and made_in == module.__name__ and not name.startswith("_"):
            found.append(name)
    return found


def refuse_class(target: str, found: Any) -> None:
    """A class computes nothing; an object of it does."""
    if isinstance(found, type):
        raise UsageError(
            f"{target} is a class; name a function, or an object of that class, such as model in "
            f"model = {found.__name__}(...)."
        )


def inputs_of(function: Any) -> tuple[int, int]:
    """How many positional arguments a function, op or module needs, and how many it may have."""
    parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is p.empty for p in positional)
    return needed, sys.maxsize if any_number else len(positional)


def parameters_used_by(function: Any) -> Any:
    """The modules and trained Tensors of its file that a function uses, as parameters by name."""
    if is_module(function) or not hasattr(function, "__code__"):
        return None
    used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    modules = {name: value for name, value in used.items() if is_module(value)}
    tensors = {
        name: value
        for name, value in used.items()
        if isinstance(value, Variable) and value._tracked
    }
    if len(modules) == 1 and not tensors:
        return next(iter(modules.values()))
    for name, module in modules.items():
        tensors.update({f"{name}.{inner}": p for inner, p in module.named_parameters()})
    return tensors or None


def shape_of(text: str) -> tuple[int, ...]:
    """`2,3` or `2x3` as a shape; nothing at all is a single number's."""
    lengths = text.strip().removesuffix(",").replace("x", ",").split(",") if text.strip() else []
    try:
        shape = tuple(map(int, lengths))
    except ValueError:
        shape = (-1,)
    if any(n < 0 for n in shape):
        raise UsageError(f"--shape {text!r} is no shape; write it as 2,3.")
    return shape
