"""The array that writes down what is done with it.

It stands in a Tensor in place of the array. The package's own functions and rules run on it as they
run on arrays, and each call of NumPy's becomes an expression. With it goes the value for the
arguments at hand, from which shapes and dtypes are known.

A number that Python asks for, to choose a branch, would be frozen into the program. If the package
itself asks, to choose between formulas or to refuse an argument, the program checks that the answer
is the same each time it runs. To the user's own code it is refused.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ...engine import Symbolic, Variable
from ...messages.user_line import quoted
from ...ops import elementwise
from .expressions import Expression, Listing, replaced

HERE = str(Path(__file__).parent)
PACKAGE = str(Path(__file__).parents[2])
NUMPY = str(Path(np.__file__).parent)

OPERATORS: dict[Any, str] = {
    np.add: "+",
    np.subtract: "-",
    np.multiply: "*",
    np.divide: "/",
    np.matmul: "@",
    np.power: "**",
    np.floor_divide: "//",
    np.remainder: "%",
    np.less: "<",
    np.less_equal: "<=",
    np.greater: ">",
    np.greater_equal: ">=",
    np.equal: "==",
    np.not_equal: "!=",
    np.bitwise_and: "&",
    np.bitwise_or: "|",
    np.bitwise_xor: "^",
    np.negative: "-",
    np.invert: "~",
}
NAMES = "sum mean max min prod any all reshape transpose swapaxes copy"
METHODS = {getattr(np, name): name for name in NAMES.split()}
"""The functions that are methods of arrays as well, as which they are written."""
REDUCTIONS = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_or: "any",
    np.logical_and: "all",
}
OF_SHAPES = {
    np.shape,
    np.ndim,
    np.size,
    np.result_type,
    np.can_cast,
    np.iscomplexobj,
    np.isrealobj,
    np.broadcast_shapes,
}
SIZED = (
    "broadcast_to repeat tile resize reshape split array_split hsplit vsplit dsplit pad vander "
    "rot90"
)
TAKES_SIZES = {getattr(np, name): 1 for name in SIZED.split()}
TAKES_SIZES |= {np.linspace: 2, np.logspace: 2, np.geomspace: 2}
"""From which argument on it is decided how large the result is."""
SHAPED_BY_NUMBERS = {
    np.nonzero,
    np.flatnonzero,
    np.argwhere,
    np.unique,
    np.extract,
    np.compress,
    np.repeat,
    np.delete,
    np.bincount,
    np.trim_zeros,
    np.union1d,
    np.intersect1d,
    np.setdiff1d,
}
"""How large their results are depends on the numbers in the arrays."""
WRITTEN_DOWN = (
    "all allclose angle any append argmax argmin argpartition argsort argwhere array_equal "
    "array_equiv array_split astype atleast_1d atleast_2d atleast_3d average bincount block "
    "broadcast_arrays broadcast_to choose clip column_stack compress concatenate convolve copy "
    "corrcoef correlate count_nonzero cov cross cumprod cumsum cumulative_prod cumulative_sum "
    "delete diag diagflat diagonal diff digitize dot dsplit dstack ediff1d einsum expand_dims "
    "extract fix flatnonzero flip fliplr flipud geomspace gradient hsplit hstack i0 imag inner "
    "insert interp intersect1d isclose iscomplex isin isneginf isposinf isreal kron lexsort "
    "linspace logspace matrix_transpose max mean median meshgrid min moveaxis nan_to_num "
    "nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile "
    "nanprod nanquantile nanstd nansum nanvar nonzero outer pad partition percentile polyval "
    "prod ptp quantile ravel ravel_multi_index real repeat reshape resize roll rollaxis rot90 "
    "round searchsorted select setdiff1d sinc sort sort_complex split squeeze stack std sum "
    "swapaxes take take_along_axis tensordot tile trace transpose trapezoid tril trim_zeros "
    "triu union1d unique unravel_index unstack unwrap vander var vdot vsplit vstack where "
    "linalg.cholesky linalg.cond linalg.cross linalg.det linalg.diagonal linalg.eigh "
    "linalg.eigvalsh linalg.inv linalg.matmul linalg.matrix_norm linalg.matrix_power "
    "linalg.matrix_rank linalg.matrix_transpose linalg.multi_dot linalg.norm linalg.outer "
    "linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd linalg.svdvals "
    "linalg.tensordot linalg.tensorinv linalg.tensorsolve linalg.trace linalg.vecdot "
    "linalg.vector_norm fft.fft fft.fft2 fft.fftn fft.fftshift fft.hfft fft.ifft fft.ifft2 "
    "fft.ifftn fft.ifftshift fft.ihfft fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2 "
    "fft.rfftn lib.stride_tricks.sliding_window_view"
)
KNOWN = set(WRITTEN_DOWN.split())
"""The functions of NumPy's, beside ufuncs, whose results depend on nothing but the numbers they are
given, in memory of their own or as views, and have the same shape for all numbers, unless they are
in SHAPED_BY_NUMBERS.
"""
FRESH = {np.zeros_like: 0, np.ones_like: 1, np.empty_like: 0}
ASK = "__float__ __int__ __bool__ __index__ __contains__ __repr__ __str__ __format__ item tolist"
ACCESSORS = set(ASK.split())
ONLY_WARN = ("warn_if_counted", "warn_if_upside_down")
"""What they do with the answer changes no result."""


class Guard:
    """What the package asked, what the answer was, and the function that asked."""

    def __init__(self, asked: Expression, answer: Any, function: str) -> None:
        self.asked, self.answer, self.function = asked, answer, function


class Writing(Listing):
    """A list that is being written, with the questions that were asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.guards: list[Guard] = []
        self.refused: list[Exception] = []  # also what the function has caught
        self.origins: dict[int, tuple[Any, Expression]] = {}  # an array, and its constant
        self.called: dict[int, str] = {}  # by the id of an array: its name
        self.names: Callable[[], None] = lambda: None  # looks for names of what there is
        self.where: Callable[[], str] = lambda: ""  # the module call that runs

    def refusing(self, error: Exception) -> Exception:
        """The error, which is raised again at the end if the function catches it."""
        self.refused.append(error)
        return error

    def constant(self, array: Any) -> Expression:
        """An array that the program is written with, as it is now."""
        found = super().constant(array)
        self.origins[id(array)] = array, found
        for whole in (array, array.base):  # of a buffer, a part may be used
            if id(whole) in self.called:
                found.hint = (2, self.called[id(whole)])
        return found


class Flags:
    """What the package is told of how a symbol lies in memory."""

    c_contiguous = f_contiguous = writeable = owndata = True


def is_symbol(x: Any) -> bool:
    """A symbol, whatever it says of its class."""
    return issubclass(type(x), Symbol)


def concrete(a: Any) -> Any:
    """The value in place of each symbol."""
    if isinstance(a, dict):
        return {k: concrete(v) for k, v in a.items()}
    return replaced(a, lambda x: x.value if is_symbol(x) else x)


def symbols_in(a: Any) -> Iterator[Symbol]:
    """The symbols in nested tuples, lists and slices."""
    if is_symbol(a):
        yield a
    elif isinstance(a, (tuple, list)):
        for x in a:
            yield from symbols_in(x)
    elif isinstance(a, slice):
        yield from symbols_in((a.start, a.stop, a.step))


def asker() -> tuple[Any, bool]:
    """The frame that asks for a number, and whether it is one of the package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        accessor = file.startswith(PACKAGE) and name in ACCESSORS
        if not (file.startswith((HERE, NUMPY)) or accessor):
            break
        frame = frame.f_back
    return frame, frame.f_code.co_filename.startswith(PACKAGE)


def users(frame: Any) -> Any:
    """The user's frame that has called one of the package's, or this one if there is none."""
    here = frame
    while here is not None and not here.f_code.co_filename.startswith(HERE):
        if not here.f_code.co_filename.startswith((PACKAGE, NUMPY)):
            return here
        here = here.f_back
    return frame


def asking_function(frame: Any) -> str:
    """The function of F that asks, by the name a user knows; else the one that asks itself."""
    here, name = frame, frame.f_code.co_name.strip("_")
    while here is not None and here.f_code.co_filename.startswith(PACKAGE):
        if here.f_code.co_filename == str(Path(PACKAGE, "functional", "__init__.py")):
            return str(here.f_code.co_name)
        here = here.f_back
    return "a rule" if name.startswith("<") else str(name)


def refuse(what: str, instead: str) -> Exception:
    """TypeError for what cannot be written down, with the line that did it."""
    frame, by_package = asker()
    if by_package:
        frame = users(frame)
    line = quoted(frame.f_code.co_filename, frame.f_lineno)
    return TypeError(f"ta.source cannot write down {line}, which {what}. {instead}")


class Symbol(NDArrayOperatorsMixin, Symbolic):
    """An array of which it is written down how it was computed."""

    __slots__ = ("expression", "value", "listing", "views", "base_symbol", "owes", "__weakref__")
    __array_priority__ = 900  # below a Tensor's

    def __init__(self, expression: Expression, value: Any, listing: Writing) -> None:
        self.expression, self.value, self.listing = expression, value, listing
        self.views: list[Any] = []  # weak references to the symbols that show this one's memory
        self.base_symbol: Symbol | None = None  # the one whose memory this one shows
        self.owes = False  # was a view of it written to, and the result not put back yet?
        self.lent = False
        if isinstance(value, np.ndarray):
            value.flags.writeable = False  # of functions that change what they are given

    def as_it_is(self) -> Symbol:
        """The same values, whatever is done to this one later."""
        return Symbol(self.expression, self.value, self.listing)

    def __getattr__(self, name: str) -> Any:
        error = AttributeError(f"an array that ta.source writes down has no attribute {name!r}")
        theirs = hasattr(np.ndarray, name) and not name.startswith("__") and not asker()[1]
        raise self.listing.refusing(error) if theirs else error

    def _refuse(self, what: str, instead: str) -> Exception:
        return self.listing.refusing(refuse(what, instead))

    def _in_memory(self, answer: Any) -> Any:
        if asker()[1]:
            return answer
        raise self._refuse("asks how an array lies in memory", "Ask before the call.")

    # For `isinstance(x, np.ndarray)` in functions that also take numbers and lists.
    __class__ = property(lambda self: np.ndarray)
    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    itemsize = property(lambda self: self.value.itemsize)
    nbytes = property(lambda self: self.value.nbytes)
    strides = property(lambda self: self._in_memory(self.value.strides))
    flags = property(lambda self: self._in_memory(Flags))
    base = property(lambda self: self._in_memory(None))
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if not asker()[1]:
            raise self._refuse("turns numbers into text", "Leave them in the array.")
        return f"<an array {self.shape} of {self.dtype} that is written down>"

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self.value)))

    # ---- numbers asked for

    def _asked(self, answer: Any, what: str) -> Any:
        frame, by_package = asker()
        if by_package and frame.f_code.co_name in ONLY_WARN:
            return answer
        if not by_package or isinstance(answer, float):
            raise self._refuse(
                f"reads a number ({what}): the program would be right for this number only",
                "Choose with np.where(condition, a, b), or choose before the call and pass the "
                "choice as an argument that is no array.",
            )
        self.listing.guards.append(Guard(self.expression, answer, asking_function(frame)))
        return answer

    def __bool__(self) -> bool:
        return self._asked(bool(self.value), "is it true?")

    def __float__(self) -> float:
        return self._asked(float(self.value), "float(...)")

    def __int__(self) -> int:
        return self._asked(int(self.value), "int(...)")

    def __index__(self) -> int:
        return self._asked(self.value.__index__(), "as an index or a size")

    def item(self, *args: Any) -> Any:
        """The number, if it may be asked for."""
        return self._asked(self.value.item(*args), "item()")

    def tolist(self) -> Any:
        """The numbers, which may not be asked for."""
        raise self._refuse("reads numbers (tolist())", "Leave them in the array.")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self._refuse(
            "turns an argument, or what was computed from one, into a plain array",
            "Compute with operators, methods and functions of NumPy (np.where, np.sum, ...), "
            "without np.asarray, np.array or functions of other libraries. A plain array that is "
            "indexed by it is to be an argument too; one that it is written into is to be made "
            "by np.zeros_like, and returned.",
        )

    # ---- calls of NumPy's

    def _emit(self, kind: str, name: Any, args: tuple, settings: dict[str, Any], value: Any) -> Any:
        """The symbol of a new value, or as many as there are values."""
        for x in symbols_in((args, list(settings.values()))):
            if x.owes:
                raise self._refuse(
                    "uses an array after a part of it was changed in place",
                    "Write x[index] += y, or compute a new array.",
                )
        listing = self.listing
        listing.scope = listing.where() if listing.phase == "forward" else listing.scope
        if isinstance(value, (tuple, list)):
            whole = self._written(kind, name, args, settings, value)
            parts = [
                Symbol(listing.make("part", i, (whole,), {}, v), v, listing)
                for i, v in enumerate(value)
            ]
            if hasattr(value, "_fields"):
                return type(value)(*parts)
            return type(value)(parts)
        value = value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)[()]
        made = Symbol(self._written(kind, name, args, settings, value), value, listing)
        for x in symbols_in(args):
            if isinstance(value, np.ndarray) and np.may_share_memory(value, x.value):
                x.views.append(weakref.ref(made))
                made.base_symbol = x
        listing.names()
        return made

    def _written(self, kind: str, name: Any, args: tuple, settings: Any, value: Any) -> Expression:
        expressed = lambda x: x.expression if is_symbol(x) else x
        return self.listing.make(
            kind,
            name,
            replaced(args, expressed),
            {k: replaced(v, expressed) for k, v in settings.items()},
            value,
        )

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **settings: Any
    ) -> Any:
        if any(isinstance(x, Variable) for x in inputs):  # which sees to the operation itself
            return NotImplemented
        if method == "at":
            return self._at(ufunc, *inputs)
        value = getattr(ufunc, method)(*map(concrete, inputs), **concrete(settings))
        self._is_new(value, inputs, settings)
        if ufunc is elementwise._erf:  # which has numbers of Python's
            value = np.asarray(value, np.float64)
            return self._emit("call", "erf", inputs, {}, value if value.ndim else value[()])
        if method == "__call__":
            sign = None if settings else sign_of(ufunc, inputs)
            if sign:
                made = self._emit("operator", sign, inputs, {}, value)
            else:
                made = self._emit("call", self._name(ufunc), inputs, settings, value)
        elif method == "reduce" and ufunc in REDUCTIONS:
            made = self._method(REDUCTIONS[ufunc], inputs[0], (), settings, value)
        else:
            made = self._emit("call", f"{ufunc.__name__}.{method}", inputs, settings, value)
        if out is None:
            return made
        return self._in_place(made) if out[0] is self is inputs[0] else self._into(out, made)

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        if any(issubclass(t, Variable) for t in types):
            return NotImplemented
        if function in FRESH or function is np.full_like and by_number(*args, **settings):
            return self._fresh(function, args, settings)
        if function in OF_SHAPES:
            return function(*concrete(args), **concrete(settings))
        if function is np.array2string:
            return repr(self)
        name = self._name(function)
        if name not in KNOWN:
            raise self._refuse(
                f"calls np.{name} of an array", "It is none of the functions that can be written."
            )
        if function in TAKES_SIZES:
            for x in symbols_in((args[TAKES_SIZES[function] :], list(settings.values()))):
                if x.ndim == 0:
                    x.__index__()
                elif function not in SHAPED_BY_NUMBERS:
                    raise self._refuse("takes sizes from an array", "Write them as numbers.")
        out = settings.pop("out", None) if "out" in settings else None
        value = function(*concrete(args), **concrete(settings))
        self._is_new(value, args, settings)
        if function in METHODS and is_symbol(args[0]):
            if function is np.copy:
                return self._emit("method", "copy", args[:1], {}, value)
            made = self._method(METHODS[function], args[0], args[1:], settings, value)
        else:
            made = self._emit("call", name, args, settings, value)
            if function in SHAPED_BY_NUMBERS or function is np.where and len(args) == 1:
                self._size_is_kept(made, function.__name__)
        return made if out is None else self._into(out, made)

    def _name(self, function: Any) -> str:
        name = function_name(function)
        if name is None:
            raise self._refuse(
                f"calls {function.__name__}, which is no function of NumPy's",
                "The program has nothing but NumPy: write the function with NumPy's.",
            )
        return name

    def _is_new(self, value: Any, args: tuple, settings: dict[str, Any]) -> None:
        """Raise if a call has written into an array that it was given, or asks for an order."""
        given = [*args, *settings.values()]
        if isinstance(value, np.ndarray) and any(value is a for a in given):
            raise self._refuse("writes into a plain array", "Leave out= away.")
        if any(isinstance(a, str) and a in ("A", "F", "K") for a in given):
            raise self._refuse("asks for an order of memory", "Transpose the array before.")

    def _method(self, name: str, x: Any, args: tuple, settings: dict[str, Any], value: Any) -> Any:
        """A method of x; settings at their defaults are left out."""
        if name == "reshape":
            return self._emit("method", "reshape", (x, *value.shape), {}, value)
        if name == "transpose":
            axes = args[0] if args and isinstance(args[0], (tuple, list)) else args
            axes = tuple(settings.get("axes") or axes or reversed(range(value.ndim)))
            return self._emit(
                "method", "transpose", (x, *(a % value.ndim for a in axes)), {}, value
            )
        if name == "swapaxes" and not args:
            args = tuple(settings.values())
            settings = {}
        if name in REDUCTIONS.values() or name == "mean":
            settings = {**dict(zip(("axis",), args)), **settings}
            args = ()
        usual = {"axis": None, "keepdims": False, "dtype": None, "where": True}
        left = {
            k: v
            for k, v in settings.items()
            if not (k in usual and v is usual[k]) and v is not np._NoValue
        }
        return self._emit("method", name, (x, *args), left, value)

    def _fresh(self, function: Any, args: tuple, settings: dict[str, Any]) -> Any:
        value = function(*concrete(args), **concrete(settings))
        if function is not np.full_like:
            value = np.full(value.shape, FRESH[function], value.dtype)
        return Symbol(self.listing.constant(value), value, self.listing)

    # ---- in place

    def _write(self, name: str, args: tuple, value: Any) -> None:
        """This array is changed: from here on the symbol is the changed one."""
        if self.lent or self.expression.kind == "input":
            raise self._refuse(
                "changes an argument, or a Tensor's array, in place", "Change a copy, x.copy()."
            )
        if self.base_symbol is not None or any(view() is not None for view in self.views):
            raise self._refuse(
                "changes an array in place that another one shares its memory with",
                "Compute a new array, or change a copy, x.copy().",
            )
        expression = self._written("update", name, (self, *args), {}, value)
        self.expression, self.value, self.owes, self.views = expression, value, False, []

    def _at(self, ufunc: Any, target: Any, index: Any, *values: Any) -> None:
        if not is_symbol(target):
            raise self._refuse(
                "adds to a plain array in place", "Make it with np.zeros_like(x, shape=...)."
            )
        value = target.value.copy()
        ufunc.at(value, concrete(index), *map(concrete, values))
        target._write(f"{ufunc.__name__}.at", (index, *values), value)

    def __setitem__(self, index: Any, x: Any) -> None:
        value = self.value.copy()
        value[concrete(index)] = concrete(x)
        self.owes = False
        self.views = [v for v in self.views if v() is not None and v().base_symbol is self]
        self._write("setitem", (index, x), value)

    def _into(self, out: Any, made: Any) -> Any:
        target = out[0] if isinstance(out, tuple) else out
        if not is_symbol(target):
            raise self._refuse("writes into a plain array (out=)", "Leave out= away.")
        target[...] = made
        return target

    def _in_place(self, made: Any) -> Any:
        """self += y, or another change by an operator."""
        if not self.ndim:
            return made
        made = made.astype(self.dtype)
        if self.base_symbol is not None:  # x[index] += y: Python puts the sum into x next
            self.base_symbol.owes = True
            return made
        refused = self.lent or self.expression.kind == "input"
        if refused or any(view() is not None for view in self.views):
            self._write("setitem", (..., made), made.value)
        self.expression, self.value = made.expression, made.value
        return self

    def __pos__(self) -> Symbol:
        return self

    # ---- methods

    def _m(self, name: str, *args: Any, **settings: Any) -> Any:
        value = getattr(self.value, name)(*concrete(args), **concrete(settings))
        self._is_new(value, args, settings)
        return self._method(name, self, args, settings, value)

    def reshape(self, *shape: Any, **settings: Any) -> Any:
        """The same elements in another shape."""
        shape = (
            tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        )
        self._is_new(None, (), settings)
        return self._method("reshape", self, (), {}, self.value.reshape(shape, **settings))

    def transpose(self, *axes: Any) -> Any:
        """Axes in another order."""
        axes = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        value = self.value.transpose(axes or None)
        return self._method("transpose", self, tuple(axes or ()), {}, value)

    @property
    def T(self) -> Any:
        return self._emit("attribute", "T", (self,), {}, self.value.T)

    @property
    def mT(self) -> Any:
        return self._emit("attribute", "mT", (self,), {}, self.value.mT)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        for x in symbols_in([p for p in parts if isinstance(p, slice)]):
            x.__index__()
        made = self._emit("item", None, (self, index), {}, self.value[concrete(index)])
        for mask in parts:
            if is_symbol(mask) and mask.dtype.kind == "b":
                count: Any = np.count_nonzero(mask)
                self.listing.guards.append(Guard(count.expression, int(count.value), "x[mask]"))
        return made

    def _size_is_kept(self, made: Any, what: str) -> None:
        """Let the program check that as many elements are found as here."""
        first = next(symbols_in(made))
        size = np.intp(first.value.size)
        asked = self.listing.make("attribute", "size", (first.expression,), {}, size)
        self.listing.guards.append(Guard(asked, int(size), what))

    def astype(self, dtype: Any, *, casting: Any = "unsafe", copy: bool = True) -> Any:
        """The same numbers in another dtype."""
        value = self.value.astype(dtype, casting=casting)
        if np.dtype(dtype) == self.dtype:
            return self
        return self._emit("method", "astype", (self, np.dtype(dtype)), {}, value)

    def copy(self, order: str = "C") -> Any:
        """The same numbers in memory of their own."""
        return self._emit("method", "copy", (self,), {}, self.value.copy())

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


def by_number(a: Any, fill_value: Any, *_: Any, **__: Any) -> bool:
    """Does np.full_like repeat a number, and no element of an array that is written down?"""
    return not is_symbol(fill_value) and np.ndim(fill_value) == 0


def function_name(function: Any) -> str | None:
    """What stands after `np.`; None for a function that is not NumPy's."""
    module = (getattr(function, "__module__", None) or "numpy").split(".")
    name = ".".join([*(p for p in module[1:] if not p.startswith("_")), function.__name__])
    for candidate in (function.__name__, name):
        found: Any = np
        for part in candidate.split("."):
            found = getattr(found, part, None)
        if found is function:
            return candidate
    return None


CALLED = (
    "sum mean max min prod any all var std argmax argmin argsort cumsum cumprod take dot diagonal "
    "swapaxes clip round trace searchsorted"
)
for _name in CALLED.split():  # the methods that do nothing but call the array's
    setattr(Symbol, _name, lambda x, *args, _name=_name, **settings: x._m(_name, *args, **settings))
for _function in (np.nonzero, np.repeat):  # whose results may have other sizes
    setattr(Symbol, _function.__name__, lambda x, *a, f=_function, **k: f(x, *a, **k))
