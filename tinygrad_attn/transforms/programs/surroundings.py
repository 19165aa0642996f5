"""What a function could change while it is traced, and what was in it before.

A function may keep what it computes: in an attribute, a list, a global variable, a cache. While it
is traced that would be symbols, which are of no use to anybody afterwards. So everything that it
can reach is put back, whether the trace succeeds or not.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...engine import Variable
from ...messages.errors import is_module

MOST = 50_000
"""Objects that are looked at: more than any model has, but a library's insides end somewhere."""
PACKAGE = __name__.partition(".")[0]
PACKAGE_FILES = str(Path(__file__).parents[2])
STANDARD = str(Path(types.__file__).parent) + os.sep
HEAP = 1 << 9
"""The flag of a class that was written in Python."""
SIMPLE = {type(None), bool, int, float, complex, str, bytes, type(Ellipsis), np.dtype}
MISSING = object()
FIELDS = ("_data", "_grad", "_node", "_tracked")
"""What of a Tensor changes."""
WRAPPERS = (staticmethod, classmethod, property, functools.cached_property)
CACHED = functools._lru_cache_wrapper
Named = Iterator[tuple[Any, str]]


class Kept(NamedTuple):
    """What can change, its name, what was in it, and how that is read and put back."""

    thing: Any
    name: str
    before: Any
    read: Callable[[Any], Any]
    put: Callable[[Any, Any], None]

    def changed(self) -> str | None:
        """The name of what is not as it was."""
        before, now = self.before, self.read(self.thing)
        if isinstance(before, np.ndarray):
            alike = before.shape == now.shape and before.tobytes() == now.tobytes()
            return None if alike else self.name
        if isinstance(before, dict):
            for k in before.keys() | now.keys():
                if before.get(k, MISSING) is not now.get(k, MISSING):
                    return f"{self.name}.{k}".strip(".") if isinstance(k, str) else self.name
            return None
        alike = len(before) == len(now) and all(a is b for a, b in zip(before, now))
        return None if alike else self.name


class Surroundings:
    """All that can change of what these functions and objects, by name, refer to.

    `but` are Tensors and arrays in whose place symbols stand: these are seen to elsewhere.
    """

    def __init__(self, roots: dict[str, Any], but: list[Any]) -> None:
        self.kept: list[Kept] = []
        arrays = [x._data for x in but if isinstance(x, Variable)]
        self.seen: dict[int, Any] = {id(x): x for x in (*but, *arrays)}
        waiting = deque((x, name) for name, x in roots.items())
        while waiting and len(self.seen) < MOST:
            x, name = waiting.popleft()
            if type(x) not in SIMPLE and id(x) not in self.seen:
                self.seen[id(x)] = x
                waiting.extend(self.look(x, name))

    def changed(self) -> list[str]:
        """The names of what is not as it was."""
        return [name for kept in self.kept if (name := kept.changed()) is not None]

    def put_back(self) -> None:
        """Everything as it was."""
        for kept in self.kept:
            if kept.changed() is not None:
                kept.put(kept.thing, kept.before)

    # ---- what there is

    def look(self, x: Any, name: str) -> Named:
        """Keep what can change of x; what it refers to, with names."""
        if isinstance(x, types.FunctionType):
            return self.function(x)
        if isinstance(x, CACHED):
            self.kept.append(Kept(x, x.__name__, size_of(x), size_of, forget))
            return iter([(x.__wrapped__, x.__name__)])
        if isinstance(x, types.MethodType):
            return iter([(x.__self__, name), (x.__func__, name)])
        if isinstance(x, functools.partial):
            return iter([(x.func, name), (x.args, name), (x.keywords, name)])
        if isinstance(x, WRAPPERS):
            parts = [getattr(x, part, None) for part in ("__func__", "func", "fget")]
            return ((part, name) for part in parts)
        if isinstance(x, type):
            return self.keep(x, x.__name__, attributes, put_attributes) if theirs(x) else iter([])
        if isinstance(x, types.CellType):
            return self.keep(x, name, in_cell, put_in_cell)
        return iter([]) if isinstance(x, types.ModuleType) else self.value(x, name)

    def value(self, x: Any, name: str) -> Named:
        """A container, an array, a Tensor or another object."""
        if isinstance(x, Variable):
            yield from self.keep(x, name, fields, put_fields)
        elif isinstance(x, np.ndarray):
            self.kept.append(Kept(x, name, x.copy(), np.asarray, put_numbers))
        elif isinstance(x, (dict, list, deque, set)):
            yield from self.keep(x, name, dict if isinstance(x, dict) else list, refill)
        elif isinstance(x, (tuple, frozenset)):
            yield from ((v, name) for v in x)
        if isinstance(getattr(x, "__dict__", None), dict):
            title = type(x).__name__ if is_module(x) else name
            yield from self.keep(x.__dict__, title, dict, refill)
        if hasattr(type(x), "__wrapped__"):  # made by ta.compile, say
            yield x.__wrapped__, name
        for base in type(x).__mro__ if theirs(type(x)) else ():
            yield base, base.__name__
            slots = frozenset(k for k, v in vars(base).items() if isinstance(v, SLOT))
            if slots and theirs(base):
                named = functools.partial(attributes, names=slots)
                put = functools.partial(put_attributes, names=slots)
                yield from self.keep(x, name, named, put)

    def function(self, f: Any) -> Named:
        """The variables around a function, its defaults, and the globals that it names."""
        if theirs(f):
            yield from zip(f.__closure__ or (), f.__code__.co_freevars)
            yield from ((x, f.__name__) for x in (f.__defaults__, f.__kwdefaults__, vars(f)))
            yield from self.names(f.__globals__, names_in(f.__code__))

    def names(self, space: dict[str, Any], names: frozenset[str]) -> Named:
        """The variables of a module that have such a name, and those of modules among them."""
        read = functools.partial(items, names=names)
        for x, name in self.keep(space, "", read, functools.partial(put_items, names=names)):
            yield x, name
            if isinstance(x, types.ModuleType) and id(x) not in self.seen and theirs(x):
                self.seen[id(x)] = x
                yield from self.names(vars(x), names)

    def keep(self, x: Any, name: str, read: Any, put: Any) -> Named:
        """Keep what `read` finds in x, and go on to that."""
        before = read(x)
        self.kept.append(Kept(x, name, before, read, put))
        pairs = list(before.items()) if isinstance(before, dict) else [("", v) for v in before]
        for k, v in pairs:
            yield k, name
            yield v, f"{name}.{k}".strip(".") if isinstance(k, str) else name


@functools.lru_cache(maxsize=4096)
def of_a_user(module: str) -> bool:
    """A module that belongs neither to Python, nor to a library, nor to this package?"""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("numpy", PACKAGE):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


@functools.lru_cache(maxsize=4096)
def in_users_file(file: str) -> bool:
    """A file that belongs neither to Python, nor to a library, nor to this package?"""
    known = file.startswith((PACKAGE_FILES, STANDARD, "<frozen "))
    return not known and "site-packages" not in file and "dist-packages" not in file


def theirs(x: Any) -> bool:
    """A class, function or module of a user's?"""
    if isinstance(x, types.FunctionType):
        return in_users_file(x.__code__.co_filename)
    if isinstance(x, types.ModuleType):
        return of_a_user(x.__name__)
    made_by_exec = x.__module__ == "builtins" and bool(x.__flags__ & HEAP)
    return made_by_exec or of_a_user(x.__module__ or "")


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes in a function, and in those inside of it."""
    inner = (names_in(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return frozenset(code.co_names).union(*inner)


# ---- reading, and putting back

SLOT = types.MemberDescriptorType
KEPT_OUT = (SLOT, types.GetSetDescriptorType)


def attributes(x: Any, names: Any = None) -> dict[str, Any]:
    """The attributes with these names; of a class, all that it has itself and may be assigned."""
    if names is None:
        own = {k: v for k, v in vars(x).items() if not isinstance(v, KEPT_OUT)}
        return {k: v for k, v in own.items() if not k.startswith("__") or callable(v)}
    return {k: v for k in names if (v := getattr(x, k, MISSING)) is not MISSING}


def put_attributes(x: Any, before: dict[str, Any], names: Any = None) -> None:
    """The attributes as they were."""
    now = attributes(x, names)
    for k in now.keys() - before.keys():
        delattr(x, k)
    for k, v in before.items():
        if now.get(k, MISSING) is not v:
            setattr(x, k, v)


fields = functools.partial(attributes, names=FIELDS)
put_fields = functools.partial(put_attributes, names=FIELDS)


def items(space: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The items of a dict with these keys."""
    return {k: space[k] for k in names if k in space}


def put_items(space: dict[str, Any], before: dict[str, Any], names: frozenset[str]) -> None:
    """The items with these keys as they were."""
    for k in names - before.keys():
        space.pop(k, None)
    space.update(before)


def in_cell(cell: Any) -> list[Any]:
    """What a variable of an enclosing function holds."""
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing yet
        return []


def put_in_cell(cell: Any, before: list[Any]) -> None:
    """The variable as it was, also where it had no value yet."""
    if before:
        cell.cell_contents = before[0]
    else:
        del cell.cell_contents


def refill(x: Any, before: Any) -> None:
    """A dict, list, deque or set as it was."""
    x.clear()
    (x.update if isinstance(x, (dict, set)) else x.extend)(before)


def put_numbers(x: Any, before: Any) -> None:
    """The array as it was."""
    with suppress(ValueError):  # a view that has become read-only
        x[...] = before


def size_of(x: Any) -> list[None]:
    """As long as the lru_cache has results."""
    return [None] * x.cache_info().currsize


def forget(x: Any, before: Any) -> None:
    """Begin an lru_cache anew, which changes no result."""
    x.cache_clear()
