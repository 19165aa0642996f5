"""Undo what calls of the user's function have changed besides the values that they return."""

import gc
import sys
from contextlib import contextmanager
from functools import partial
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from ..engine import Variable
from ..nn.module import Buffer, Module
from ..tree import copied, refill

HOLDERS = {"argparse", "collections", "types"}  # of namespaces, which hold the user's values
STANDARD = sys.stdlib_module_names - HOLDERS
LIBRARIES = {*STANDARD, *HOLDERS, "numpy", "torch", __name__.partition(".")[0]}
"""Packages whose functions use no global variables of the user's."""
PLAIN = {int, float, complex, bool, str, bytes, type(None)}


def snapshot(*roots):
    """Return what can be reached from the roots and can change, and copies of it.

    These are the elements of lists and dicts, attributes of objects, and arrays in modules.
    """
    found = list[Any]()
    for x in reachable(roots):
        if isinstance(x, (list, dict)):
            found.append(x)
        elif isinstance(x, Module):
            arrays = (v._data if isinstance(v, Buffer) else v for v in vars(x).values())
            found += [a for a in arrays if type(a) is np.ndarray and a.ndim and a.flags.writeable]
    return found, [*map(copied, found)]


@contextmanager
def restored(found, copies):
    """Restore the content of a snapshot when the block ends.

    Raises TypeError if a buffer or an array of a module has changed, which a program would not do.
    """
    try:
        yield
        if any(map(changes_state, found, copies)):
            raise TypeError(
                "ta.source: the function changes a buffer or an array of a module, such as a "
                "running mean, but a program computes outputs and gradients only. Call "
                "model.eval(), or return the new value and assign it after each call."
            )
    finally:
        for x, content in zip(found, copies):
            refill(x, content)


def changes_state(x, content):
    """Return whether a buffer among these attributes, or this array, is another one than before."""
    if isinstance(x, dict):
        return any(isinstance(v, Buffer) and x.get(k) is not v for k, v in content.items())
    return isinstance(x, np.ndarray) and x.tobytes() != content.tobytes()


def reachable(roots):
    """Return all objects that can be reached from the roots, each once."""
    seen: dict[int, Any] = {}  # keeps the objects alive, so that no id is used twice
    wave = list(roots)
    while wave:
        new = {id(x): x for x in wave if id(x) not in seen}
        seen |= new
        held = map(held_by, new.values())  # a text may be lists of millions of numbers
        wave = [x for xs in held if not PLAIN.issuperset(map(type, xs)) for x in xs]
    return list(seen.values())


def held_by(x):
    """Return the objects that x refers to, as far as the user's function can change them."""
    if isinstance(x, dict):  # of an object's attributes, Python 3.13 tells the collector nothing
        return x.values()
    if isinstance(x, (list, tuple, set, CellType, MethodType, BuiltinMethodType, partial)):
        return gc.get_referents(x)
    if isinstance(x, Variable):
        return getattr(x._tracked, "functions", ())  # its hooks
    if isinstance(x, FunctionType):
        used = set() if package_of(x) in LIBRARIES else names_in(x.__code__)
        variables = [x.__globals__[name] for name in used & x.__globals__.keys()]
        return *variables, *(x.__closure__ or ()), *(x.__defaults__ or ())
    if isinstance(x, np.random.Generator):
        return (x.bit_generator,)
    if package_of(type(x)) in STANDARD or not hasattr(x, "__dict__"):
        return ()
    return vars(x), *(m for m in vars(type(x)).values() if isinstance(m, FunctionType))


def package_of(x):
    """Return the name of the package that defines a class or function."""
    return (x.__module__ or "").partition(".")[0]


def names_in(code):
    """Return the global names that a function and the functions inside it may use."""
    inner = (names_in(c) for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names}.union(*inner)
