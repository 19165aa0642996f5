"""The array that a function is traced with.

A Symbol takes the place of a Tensor's array. The package's own functions and backward rules run on
it as they do on arrays, and each call of NumPy becomes an expression. It also holds the value for
the example arguments, which gives shapes and dtypes.

A number that Python reads, to choose a branch, would be frozen into the program. Where the package
itself reads one, the program checks each time that the answer is the same. Elsewhere it raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..engine import Symbolic, Variable
from ..errors import quoted
from .ir import Expression, Listing, replaced

HERE, PACKAGE = str(Path(__file__).parent), str(Path(__file__).parents[1])
NUMPY = str(Path(np.__file__).parent)
FUNCTIONS = str(Path(PACKAGE, "functional"))

OPERATORS: dict[Any, str] = {
    **{np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/", np.matmul: "@"},
    **{np.power: "**", np.floor_divide: "//", np.remainder: "%", np.negative: "-"},
    **{np.less: "<", np.less_equal: "<=", np.greater: ">", np.greater_equal: ">="},
    **{np.equal: "==", np.not_equal: "!=", np.invert: "~"},
    **{np.bitwise_and: "&", np.bitwise_or: "|", np.bitwise_xor: "^"},
}
REDUCING = {np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min"}
REDUCTIONS = (*REDUCING.values(), "mean", "any", "all")
METHODS = (*REDUCTIONS, "reshape", "transpose", "swapaxes", "copy")
"""Functions that are written as methods of arrays."""
FRESH = {np.zeros_like: 0, np.empty_like: 0, np.ones_like: 1}
OF_SHAPES = {np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.iscomplexobj}
SHAPED_BY_NUMBERS = (
    "nonzero flatnonzero argwhere unique unique_all unique_counts unique_inverse unique_values "
    "extract compress delete trim_zeros union1d intersect1d setdiff1d setxor1d bincount"
)
ACCESSORS = "__float__ __int__ __bool__ __index__ __contains__ item tolist"
"""Methods of a Tensor that read numbers for their caller."""
ONLY_WARN = ("warn_if_counted", "warn_if_upside_down")
"""Functions of the package whose questions change no result."""


class Writing(Listing):
    """The listing of a function that is being traced."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[Expression] = []  # the numbers that the package has read
        self.facts: dict[int, Expression] = {}  # arrays whose elements are known since a check
        self.refused: list[Exception] = []  # also those that the function has caught
        self.origins: dict[int, tuple[Any, Expression]] = {}  # an array, and its constant
        self.called: dict[int, str] = {}  # by the id of an array: its name
        self.names: Callable[[], None] = lambda: None  # looks for names in the running frames
        self.where: Callable[[], str] = lambda: ""  # the name of the running module call

    def refusal(self, what: str, instead: str) -> Exception:
        """A TypeError that quotes the user's line; raised at the end if the function catches it."""
        theirs = (f for f in frames() if not is_in(f, PACKAGE, NUMPY))
        frame = next(theirs, sys._getframe())
        line = quoted(frame.f_code.co_filename, frame.f_lineno)
        self.refused.append(TypeError(f"ta.source cannot write {line}, which {what}. {instead}"))
        return self.refused[-1]

    def constant(self, array: Any) -> Expression:
        """A constant array, as it is now."""
        found = super().constant(array)
        self.origins[id(array)] = array, found
        for whole in (array, array.base):  # a part of a buffer is named after it
            if id(whole) in self.called:
                found.hint = (2, self.called[id(whole)])
        return found

    def check(self, asked: Expression, answer: Any, function: str) -> None:
        """Let the program check that this has the same value as here."""
        self.checks.append(self.make("check", function, (asked, answer), {}, asked.value))
        of_all = asked.name in ("any", "all") and not asked.settings
        if of_all and answer is (asked.name == "all") and asked.args[0].dtype == bool:
            array = asked.args[0]
            self.facts[array.id] = self.constant(np.full(array.shape, answer))


def is_symbol(x: Any) -> bool:
    """Whether x is a Symbol, whatever its `__class__` says."""
    return issubclass(type(x), Symbol)


def concrete(a: Any) -> Any:
    """The value in place of each symbol."""
    return replaced(a, lambda x: x.value if is_symbol(x) else x)


def symbols_in(*args: Any) -> Iterator[Symbol]:
    """The symbols in nested tuples, lists and slices."""
    for a in args:
        if is_symbol(a):
            yield a
        elif isinstance(a, (tuple, list)):
            yield from symbols_in(*a)
        elif isinstance(a, slice):
            yield from symbols_in(a.start, a.stop, a.step)


def frames() -> Iterator[Any]:
    """The running frames, the innermost first, without those of NumPy and of this subpackage."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not is_in(frame, HERE, NUMPY):
            yield frame
        frame = frame.f_back


def is_in(frame: Any, *folders: str) -> bool:
    """Whether a frame is of a file in these folders."""
    return bool(frame.f_code.co_filename.startswith(folders))


def is_public(frame: Any) -> bool:
    """Whether a frame is of a function that users find in F."""
    functional: Any = sys.modules.get(f"{__package__.rpartition('.')[0]}.functional")
    return is_in(frame, FUNCTIONS) and frame.f_code.co_name in getattr(functional, "__all__", ())


class Symbol(NDArrayOperatorsMixin, Symbolic):
    """An array that records how it was computed."""

    __slots__ = ("expression", "value", "listing", "__weakref__")
    __array_priority__ = 900  # below a Tensor's

    def __init__(self, expression: Expression, value: Any, listing: Writing) -> None:
        self.expression, self.value, self.listing = expression, value, listing
        self.lent = False  # set by the engine: the user may have it as a Tensor's array
        if isinstance(value, np.ndarray):
            value.flags.writeable = False  # of functions that change what they are given

    def as_it_is(self) -> Symbol:
        """The same values, whatever is written to this one later."""
        return Symbol(self.expression, self.value, self.listing)

    # For `isinstance(x, np.ndarray)` in functions that also take numbers and lists.
    __class__ = property(lambda self: np.ndarray)
    shape, dtype, ndim, size, itemsize, nbytes, strides, flags = (
        property(attrgetter(f"value.{name}"))
        for name in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "flags")
    )
    base = None
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<array {self.shape} {self.dtype}, traced>"

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self.value)))

    # ---- reading numbers

    def _read(self, answer: Any, what: str) -> Any:
        names = ACCESSORS.split()
        calls = [f for f in frames() if not (is_in(f, PACKAGE) and f.f_code.co_name in names)]
        function = str(calls[0].f_code.co_name)
        if not is_in(calls[0], PACKAGE) or isinstance(answer, float):
            raise self.listing.refusal(
                f"reads a number ({what}): the program would be right for this number only",
                "Choose with np.where(condition, a, b), or choose before the call and pass the "
                "choice as an argument that is no array.",
            )
        if function not in ONLY_WARN:
            theirs = next((i for i, f in enumerate(calls) if not is_in(f, PACKAGE)), len(calls))
            public = [f.f_code.co_name for f in calls[:theirs] if is_public(f)]
            name = public[0] if public else function.strip("_")
            self.listing.check(self.expression, answer, "a rule" if name[0] == "<" else name)
        return answer

    def __bool__(self) -> bool:
        return self._read(bool(self.value), "is it true?")

    def __float__(self) -> float:
        return self._read(float(self.value), "float(...)")

    def __int__(self) -> int:
        return self._read(int(self.value), "int(...)")

    def __index__(self) -> int:
        return self._read(self.value.__index__(), "as an index or a size")

    def item(self, *args: Any) -> Any:
        """The number, for the package."""
        return self._read(self.value.item(*args), "item()")

    def tolist(self) -> Any:
        """Raise TypeError."""
        raise self.listing.refusal("reads numbers (tolist())", "Leave them in the array.")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.listing.refusal(
            "turns an argument, or what was computed from one, into a plain array",
            "Compute with operators, methods and functions of NumPy (np.where, np.sum, ...), "
            "without np.asarray, np.array or functions of other libraries. A plain array that is "
            "indexed by it is to be an argument too; one that it is written into is to be made "
            "by np.zeros_like, and returned.",
        )

    # ---- calls of NumPy

    def _made(self, kind: str, name: Any, args: tuple, settings: dict[str, Any], value: Any) -> Any:
        """The symbol of a new value, or one for each of several."""
        listing = self.listing
        listing.scope = listing.where() if listing.phase == "forward" else listing.scope
        if value is None or isinstance(value, str):
            raise listing.refusal(f"calls {name}", "A program only has calls that return arrays.")
        if isinstance(value, (tuple, list)):
            whole = self._written(kind, name, args, settings, value)
            parts = [
                Symbol(listing.make("part", i, (whole,), {}, v), v, listing)
                for i, v in enumerate(value)
            ]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        value = value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)[()]
        made = Symbol(self._written(kind, name, args, settings, value), value, listing)
        listing.names()
        return made

    def _written(self, kind: str, name: Any, args: tuple, settings: Any, value: Any) -> Expression:
        facts = self.listing.facts
        swap = lambda x: facts.get(x.expression.id, x.expression) if is_symbol(x) else x
        return self.listing.make(kind, name, replaced(args, swap), replaced(settings, swap), value)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **settings: Any
    ) -> Any:
        if any(isinstance(x, Variable) for x in inputs):  # which handles the operation itself
            return NotImplemented
        if method == "at":
            return self._at(ufunc, *inputs)
        value = getattr(ufunc, method)(*map(concrete, inputs), **concrete(settings))
        sign = None if settings else sign_of(ufunc, inputs)
        if ufunc.__name__.startswith("erf "):  # math.erf of each element, as Python's numbers
            value = np.asarray(value, np.float64)[()]
            made = self._made("call", "erf", inputs, {}, value)
        elif method == "reduce" and ufunc in REDUCING:
            made = self._method(REDUCING[ufunc], inputs[0], (), settings, value)
        elif method != "__call__":
            made = self._made("call", f"{ufunc.__name__}.{method}", inputs, settings, value)
        elif sign:
            made = self._made("operator", sign, inputs, {}, value)
        else:
            made = self._made("call", self._name(ufunc), inputs, settings, value)
        if out is None or not made.ndim:
            return made
        if out[0] is not self or inputs[0] is not self:
            raise self.listing.refusal("writes into another array (out=)", "Leave out= away.")
        made = made.astype(self.dtype)  # x += y; of a part of x, Python calls x[i] = ... next
        return self._change(made.expression, made.value)

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        if any(issubclass(t, Variable) for t in types):
            return NotImplemented
        if function is np.array2string:
            return repr(self)
        given = [*symbols_in(*args[1:], *settings.values())]
        if not (function in OF_SHAPES or function in FRESH):
            name = self._name(function)
            if name in SHAPED_BY_NUMBERS.split() or function is np.where and len(args) == 1:
                raise self.listing.refusal(
                    f"calls np.{name}, whose result has another shape for other numbers",
                    "Use np.where(condition, a, b), or pass the indices as an argument.",
                )
            for x in given:
                if x.ndim == 0 and x.dtype.kind in "iu":  # a size, an axis
                    x.__index__()
        value = function(*concrete(args), **concrete(settings))
        if function in OF_SHAPES:
            return value
        if function in FRESH or function is np.full_like and not given:
            value = np.full_like(value, FRESH[function]) if function in FRESH else value
            return Symbol(self.listing.constant(value), value, self.listing)
        if name in METHODS and is_symbol(args[0]):
            return self._method(name, args[0], args[1:], settings, value)
        return self._made("call", name, args, settings, value)

    def _name(self, function: Any) -> str:
        """What stands after `np.`"""
        module = (getattr(function, "__module__", None) or "numpy").split(".")
        path = [*(p for p in module[1:] if not p.startswith("_")), function.__name__]
        for name in (function.__name__, ".".join(path)):
            found: Any = np
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is function:
                return name
        raise self.listing.refusal(
            f"calls {function.__name__}, which is no function of NumPy's",
            "The program has nothing but NumPy: write the function with NumPy's.",
        )

    def _method(self, name: str, x: Any, args: tuple, settings: dict[str, Any], value: Any) -> Any:
        """A method of x, its arguments in one form; settings at their defaults are left out."""
        if name == "reshape":
            args, settings = value.shape, {}
        elif name == "copy":
            args, settings = (), {}
        elif name == "transpose":
            axes = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
            axes = settings.get("axes") or axes or reversed(range(value.ndim))
            args, settings = tuple(a % value.ndim for a in axes), {}
        elif name == "swapaxes":
            args, settings = (*args, *settings.values()), {}
        elif name in REDUCTIONS:
            args, settings = (), {**dict(zip(("axis",), args)), **settings}
        usual = {"axis": None, "keepdims": False, "dtype": None, "where": True}
        left = {
            k: v
            for k, v in settings.items()
            if not (k in usual and v is usual[k]) and v is not np._NoValue
        }
        return self._made("method", name, (x, *args), left, value)

    # ---- writing in place: a wrong alias is found when the program is compared with the function

    def _change(self, expression: Expression, value: Any) -> Symbol:
        """From here on the symbol is the changed array."""
        if self.lent or self.expression.kind == "input":
            raise self.listing.refusal(
                "changes an argument, or a Tensor's array, in place", "Change a copy, x.copy()."
            )
        self.expression, self.value = expression, value
        return self

    def _at(self, ufunc: Any, target: Any, *args: Any) -> None:
        if not is_symbol(target):
            raise self.listing.refusal(
                "adds to a plain array in place", "Make it with np.zeros_like(x, shape=...)."
            )
        value = target.value.copy()
        ufunc.at(value, *map(concrete, args))
        name = f"{ufunc.__name__}.at"
        target._change(self._written("update", name, (target, *args), {}, value), value)

    def __setitem__(self, index: Any, x: Any) -> None:
        value = self.value.copy()
        value[concrete(index)] = concrete(x)
        self._change(self._written("update", "setitem", (self, index, x), {}, value), value)

    def __pos__(self) -> Symbol:
        return self

    # ---- methods

    def _call(self, name: str, *args: Any, **settings: Any) -> Any:
        """A method with the same name and arguments as NumPy's."""
        value = getattr(self.value, name)(*concrete(args), **concrete(settings))
        return self._method(name, self, args, settings, value)

    def reshape(self, *shape: Any, **settings: Any) -> Any:
        """The same elements in another shape."""
        one = len(shape) == 1 and isinstance(shape[0], (tuple, list))
        sizes = tuple(map(int, shape[0] if one else shape))
        return self._method("reshape", self, (), {}, self.value.reshape(sizes, **settings))

    @property
    def mT(self) -> Any:
        """The matrices transposed."""
        return self._made("attribute", "T", (self,), {}, self.value.mT)

    @property
    def T(self) -> Any:
        """All axes in reverse order."""
        return self.mT if self.ndim == 2 else np.transpose(self)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        for x in symbols_in(*(p for p in parts if isinstance(p, slice))):
            x.__index__()
        made = self._made("item", None, (self, index), {}, self.value[concrete(index)])
        for mask in parts:
            if is_symbol(mask) and mask.dtype.kind == "b":
                count: Any = np.count_nonzero(mask)
                self.listing.check(count.expression, int(count.value), "x[mask]")
        return made

    def astype(self, dtype: Any, *, casting: Any = "unsafe", copy: bool = True) -> Any:
        """The same numbers in another dtype."""
        if np.dtype(dtype) == self.dtype:
            return self
        value = self.value.astype(dtype, casting=casting)
        return self._made("method", "astype", (self, np.dtype(dtype)), {}, value)

    def squeeze(self, axis: Any = None) -> Any:
        """Without axes of size 1."""
        return self.reshape(self.value.squeeze(axis).shape)

    def ravel(self, order: str = "C") -> Any:
        """As one row."""
        return self.reshape(-1, order=order)

    flatten = ravel


def sign_of(ufunc: Any, inputs: tuple) -> str | None:
    """The operator that a ufunc is, if these operands can be written with one."""
    if ufunc in (np.logical_and, np.logical_or):
        boolean = all(getattr(getattr(x, "dtype", None), "kind", "") == "b" for x in inputs)
        return ("&" if ufunc is np.logical_and else "|") if boolean else None
    return OPERATORS.get(ufunc)


CALLED = (
    "sum mean max min prod any all var std argmax argmin argsort cumsum cumprod take dot diagonal "
    "transpose swapaxes copy repeat clip round trace searchsorted"
)
"""Methods with the same name and arguments as NumPy's."""
for _name in CALLED.split():
    setattr(Symbol, _name, lambda x, *args, _name=_name, **kw: x._call(_name, *args, **kw))
