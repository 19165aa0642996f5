"""Symbols, which stand for arrays while a function is traced.

A Symbol replaces a Tensor's array. Each NumPy call on it becomes an expression, with a shape and
dtype from the example arguments. If this package reads a number in Python, the program checks that
the number is the same in each call. If any other code reads a number, tracing raises TypeError.
"""

import operator
import os
import sys
from functools import partial
from itertools import dropwhile, takewhile
from threading import get_ident
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .. import functional
from ..engine import Symbolic, Variable
from ..errors import INNER, describe
from ..ops import error_function
from ..tensor.numpy_dispatch import CONSTANTS
from ..tree import tree_leaves, tree_map
from .simplify import REDUCTIONS, plainest

PACKAGE, NUMPY, _ = INNER
HERE, FUNCTIONS = (f"{PACKAGE}{room}{os.sep}" for room in ("program", "functional"))

RESHAPING = ("reshape", "squeeze", "ravel")
MOVING = ("transpose", "swapaxes", "moveaxis", "matrix_transpose")
OTHERS = ("copy", "cumsum", "cumprod")
"""More functions that are written as methods, in addition to reductions and those above."""
OF_SHAPES = (np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.iscomplexobj)
SHAPED_BY_NUMBERS = (
    "nonzero flatnonzero argwhere unique unique_all unique_counts unique_inverse unique_values "
    "extract compress delete trim_zeros union1d intersect1d setdiff1d setxor1d bincount"
)
ATTRIBUTES = ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "flags")
METHODS = (
    "sum mean max min prod any all var std argmax argmin argsort cumsum cumprod take dot diagonal "
    "swapaxes copy repeat clip round trace searchsorted squeeze ravel"
)
"""Methods that have the name and arguments of a NumPy function."""
ACCESSORS = "__bool__ __float__ __int__ __index__ __contains__ item tolist"
"""Tensor methods that read numbers on behalf of their caller."""


def concrete(a):
    """Replace symbols by their values for the example arguments."""
    return tree_map(lambda x: x.value if isinstance(x, Symbol) else x, a)


def frames():
    """Yield the frames of the traced function, innermost first."""
    frame: Any = sys._getframe(1)
    while is_in(frame, HERE, NUMPY):
        frame = frame.f_back
    while frame is not None and not is_in(frame, HERE):
        if not is_in(frame, NUMPY):
            yield frame
        frame = frame.f_back


def is_in(frame, *prefixes):
    """Return whether the path of the frame's file begins with one of these prefixes."""
    return frame.f_code.co_filename.startswith(prefixes)


def reads(convert):
    """Return a method that reads the number in an array with `convert`."""
    return lambda self: self._read(convert(self.value))


class Symbol(NDArrayOperatorsMixin, Symbolic):
    """An array that records how it was computed."""

    __slots__ = ("expression", "listing", "__weakref__")
    __array_priority__ = 900  # below a Tensor's
    # For `isinstance(x, np.ndarray)` in functions that also take numbers and lists.
    __class__ = property(lambda self: np.ndarray)
    base = None
    __hash__ = object.__hash__

    def __init__(self, expression, listing):
        self.expression, self.listing = expression, listing
        self.lent = False  # set by the engine when user code may hold this array
        if isinstance(expression.value, np.ndarray):
            expression.value.flags.writeable = False  # functions must not change their arguments

    @property
    def value(self):
        """The value for the example arguments."""
        if self.listing.thread != get_ident():
            raise RuntimeError(
                "this array has no values here: it stands for an argument of a function while "
                "ta.source traces the function. Use it only in that function and its thread."
            )
        return self.expression.value

    def as_it_is(self):
        """Return a symbol for the current values, which later writes to this one do not affect."""
        return Symbol(self.expression, self.listing)

    def __getattr__(self, name):
        if name in ATTRIBUTES:
            return getattr(self.expression.value, name)
        if name in METHODS.split():
            return partial(getattr(np, name), self)
        raise AttributeError(f"an array that is being traced has no attribute {name!r}")

    def __repr__(self):
        return f"<traced {describe(self)}>"

    def __len__(self):
        return len(self.expression.value)

    # ---- reading numbers

    def _read(self, answer):
        """Add a check if the package reads a number, or raise TypeError if other code reads it."""
        inner = dropwhile(lambda f: f.f_code.co_name in ACCESSORS.split(), frames())
        calls = [*takewhile(lambda f: is_in(f, PACKAGE), inner)]
        if not calls or isinstance(answer, (float, list)):
            raise self.listing.refusal(
                "reads a number in Python, so the program would be correct only for that number",
                "Use np.where(condition, a, b), or choose before the call and pass the choice as "
                "an argument that is not an array.",
            )
        names = [f.f_code.co_name for f in calls]  # a function of F tells the user most
        function = next(filter(functional.__all__.__contains__, names), names[0])
        self.listing.check(self.expression, answer, function.strip("_"))
        return answer

    __bool__, __float__ = reads(bool), reads(float)
    __int__, __index__ = reads(int), reads(operator.index)
    item = reads(operator.methodcaller("item"))
    tolist = reads(operator.methodcaller("tolist"))

    def __array__(self, *_, **__):
        raise self.listing.refusal(
            "turns an argument, or a value computed from one, into a plain array",
            "Use operators, methods and functions of NumPy, without np.asarray, np.array or other "
            "libraries. If the argument indexes a plain array, pass the array as an argument too. "
            "If the argument is written into an array, create the array with np.zeros_like.",
        )

    # ---- calls of NumPy

    def _made(self, kind, name, value, /, *args, **settings):
        if not isinstance(value, (np.ndarray, np.generic, tuple, list)):
            value = np.asarray(value)[()]
        calls = any(callable(x) and not isinstance(x, type) for x in tree_leaves((args, settings)))
        if calls or isinstance(value, (tuple, list)) or value.dtype.kind not in "fiub":
            raise self.listing.refusal(
                f"calls {name}",
                "A program can call only functions that return one array and call no others.",
            )
        made = Symbol(self.listing.make(kind, name, value, *args, **settings), self.listing)
        self.listing.names.look()
        return made

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **settings):
        if any(isinstance(x, Variable) for x in inputs):  # a Tensor handles the operation itself
            return NotImplemented
        if method == "at":
            target, *args = inputs
            if not isinstance(target, Symbol):
                self.__array__()  # raises
            return target._update(f"{ufunc.__name__}.at", ufunc.at, *args)
        value = getattr(ufunc, method)(*concrete(inputs), **concrete(settings))
        name = self._name(ufunc) + f".{method}" * (method != "__call__")
        made = self._made("call", name, value, *inputs, **settings)
        if out is None or not made.ndim:
            return made
        # x += y; for a part of x, Python calls x[i] = ... next
        return out[0]._change(made.astype(out[0].dtype).expression)

    def __array_function__(self, function, types, args, settings):
        if any(issubclass(t, Variable) for t in types):
            return NotImplemented
        if function is np.array2string:
            return repr(self)
        name = self._name(function)
        if name in SHAPED_BY_NUMBERS.split() or function is np.where and len(args) == 1:
            raise self.listing.refusal(
                f"calls np.{name}, whose result has a shape that depends on the values",
                "Use np.where(condition, a, b), or pass the indices as an argument.",
            )
        value = function(*concrete(args), **concrete(settings))
        if function in OF_SHAPES:
            return value
        if function in CONSTANTS:
            value = np.full_like(value, function is np.ones_like)
            return Symbol(self.listing.constant(value), self.listing)
        x, *rest = args or (None,)
        if not isinstance(x, Symbol):
            return self._made("call", name, value, *args, **settings)
        kind = "method"
        if name in MOVING:
            axes = function(np.empty(range(value.ndim)), *rest, **settings).shape
            name, rest, settings = "transpose", axes, {}
        elif name in RESHAPING:
            name, rest, settings = "reshape", value.shape, {}
        elif name in (*REDUCTIONS, "var"):
            rest, settings = [], plainest(x, dict(zip(("axis",), rest)) | settings)
        elif name not in OTHERS:
            kind = "call"
        return self._made(kind, name, value, x, *rest, **settings)

    def _name(self, function):
        """Return the name to write after `np.`."""
        module = getattr(function, "__module__", None) or "numpy"  # a ufunc has none
        name = f"{module}.{function.__name__}".removeprefix("numpy.")
        found: Any = np
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is function:
            return name
        raise self.listing.refusal(
            f"calls {function.__name__}, which is not a NumPy function",
            "A program can use only NumPy; rewrite the function with NumPy's functions.",
        )

    # ---- writing in place (a write through a view is found when program and function are compared)

    def _change(self, expression):
        """Make the symbol stand for the changed array."""
        if self.lent or self.expression.kind == "input":
            raise self.listing.refusal(
                "changes an argument, or a Tensor's array, in place", "Change a copy: x.copy()."
            )
        self.expression = expression
        return self

    def _update(self, name, change, *args):
        value = self.value.copy()
        change(value, *concrete(args))
        self._change(self.listing.make("update", name, value, self.expression, *args))

    def __setitem__(self, index, x):
        self._update("setitem", operator.setitem, index, x)

    # ---- methods whose arguments differ from those of the NumPy function

    def reshape(self, *shape, **settings):
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **settings)

    def transpose(self, *axes):
        return np.transpose(self, axes[0] if len(axes) == 1 else axes or None)

    flatten = property(lambda self: self.ravel)
    T = property(lambda self: np.transpose(self))
    mT = property(lambda self: np.matrix_transpose(self))

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        for x in tree_leaves([p for p in parts if isinstance(p, slice)]):
            if isinstance(x, Symbol):
                operator.index(x)
        for mask in parts:
            if isinstance(mask, Symbol) and mask.dtype == bool:
                int(np.count_nonzero(mask))
        return self._made("item", None, self.value[concrete(index)], self, index)

    def erf(self):
        return self._made("call", "erf", error_function.erf(self.value), self)

    def astype(self, dtype, *, casting="unsafe", copy=True):
        if np.dtype(dtype) == self.dtype:
            return self.as_it_is() if copy else self
        value = self.value.astype(dtype, casting=casting)
        return self._made("method", "astype", value, self, np.dtype(dtype))
