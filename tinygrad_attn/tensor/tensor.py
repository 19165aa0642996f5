"""class Tensor: an array that remembers how it was made.

Operators and methods are NumPy's, each one line onto an op.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import ops
from ..engine import Op, Variable, backward, context, inplace, tracked
from ..messages.errors import MissingName, describe, only_renamed
from ..messages.missing_names import not_for_torch
from ..messages.signatures import own_names
from . import names as interop
from .comparisons import compared, comparison, no_operator
from .convert import (
    as_array,
    as_data,
    as_dtype,
    as_flag,
    as_gradient,
    as_index,
    as_sizes,
    get_default_dtype,
    put,
    set_default_dtype,
)
from .names import CALLS, FUNCTIONS, PLAIN_FUNCTIONS, PLAIN_UFUNCS, UFUNCS, in_terms_of
from .pytorch_habits import (
    ElementCount,
    check_unpacking,
    times_and_axis,
    values_alone,
    warn_of_no_transpose,
)
from .row_swaps import check_swap, took

__all__ = ["Axis", "Tensor", "get_default_dtype", "set_default_dtype"]

Axis = int | tuple[int, ...] | None
_np: Any = np  # NumPy's type hints promise an array where it returns a Tensor.


def operators(op: Op) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The methods for `a + b` and for its reflection, where a stands on the right."""
    return lambda a, b: op(a, b), lambda b, a: op(a, b)


class Tensor(Variable):
    """A NumPy array with reverse-mode differentiation.

    `Tensor(data, requires_grad=False, dtype=None)` copies its data, outside every graph. Python
    numbers and lists of them take the default dtype (float32), an ndarray keeps its own. With
    `requires_grad=True` ops on it are recorded, and `backward()` on a result fills `.grad`; integer
    and boolean tensors cannot require one. Raises TypeError for data that is not numeric, or a flag
    that is not boolean. Methods without a text are NumPy's of that name (`relu`, `sigmoid` and
    `view` PyTorch's), with the same shapes, and IndexError for an axis out of range.
    """

    __slots__ = ()
    __array_priority__ = 1000

    @own_names
    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None) -> None:
        if requires_grad.__class__ is not bool:
            as_flag(requires_grad)
        array = as_array(data, dtype)
        self._data = array if array.ndim else array[()]
        self._grad = self._node = self.name = None
        self._tracked = False
        if requires_grad:
            self.requires_grad = requires_grad

    @classmethod
    def _of(cls, array: np.ndarray, requires_grad: bool = False) -> Tensor:
        """Wrap an array without copying it."""
        t: Tensor = object.__new__(cls)
        t._data = array if isinstance(array, (np.ndarray, np.generic)) else np.asarray(array)
        t._grad = t._node = t.name = None
        t._tracked = requires_grad
        return t

    def _array(self) -> np.ndarray:
        """The values as an ndarray that can be changed in place, also those of a single number."""
        if not isinstance(self._data, np.ndarray):
            self._data = np.asarray(self._data)
        return self._data

    # ---- what it is

    @property
    def data(self) -> np.ndarray:
        """The array itself, not a copy.

        To change it while a graph still needs its old values is an error at backward().
        """
        inplace.hand_out(self._array())
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        array = value._array() if isinstance(value, Tensor) else as_data(value, self._data.dtype)
        if array.dtype.kind not in ("f" if self._tracked else "fiub"):
            raise TypeError(
                f"{describe(self)} {'requires a gradient and ' * self._tracked}cannot hold "
                f"{describe(array)}."
            )
        self._data = array
        inplace.hand_out(array)
        inplace.changed(array)

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward() has added up here, or None."""
        if self._grad is None and self._node is not None and not self._node.retained:
            warnings.warn(
                "the .grad of a tensor that is not a leaf is not kept. Call retain_grad() on it "
                "before backward(), or use ta.grad().",
                UserWarning,
                stacklevel=2,
            )
        return self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            value = value if isinstance(value, Tensor) else Tensor(as_gradient(value, self.dtype))
            if value.shape != self.shape:
                raise ValueError(
                    f"a gradient has its tensor's shape: got {value.shape} for {describe(self)}."
                )
        self._grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether ops on this tensor are recorded; for ops from before that it is a constant."""
        return self._tracked

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if as_flag(value) and self._data.dtype.kind != "f":
            raise TypeError(
                "only floating-point tensors can require a gradient, but this is "
                f"{describe(self)}. Write Tensor(data, requires_grad=True, dtype=np.float64), or "
                ".astype(np.float32) first."
            )
        if not value and self._node is not None:
            raise ValueError(
                "requires_grad can only be switched off on a leaf; use detach() to cut a result "
                "from its graph."
            )
        self._tracked = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set requires_grad and return the tensor itself."""
        self.requires_grad = requires_grad
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._data.shape

    @shape.setter
    def shape(self, value: Any) -> None:
        raise AttributeError("a Tensor keeps its shape. Write t = t.reshape(shape).")

    @property
    def dtype(self) -> np.dtype:
        """NumPy's dtype of the numbers."""
        return self._data.dtype

    @dtype.setter
    def dtype(self, value: Any) -> None:
        raise AttributeError("a Tensor keeps its dtype. Write t = t.astype(dtype).")

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return ElementCount(self._data.size)

    @property
    def is_leaf(self) -> bool:
        """True for a tensor that no recorded op has made."""
        return self._node is None

    def __len__(self) -> int:
        if not self._data.ndim:
            raise TypeError(
                "a 0-d tensor has no length; .item() is its number. For torch.tensor(t) write "
                "torch.tensor(t.numpy())."
            )
        return len(self._data)

    def __iter__(self) -> Iterator[Tensor]:
        if not self._data.ndim:
            raise TypeError("a 0-d tensor cannot be iterated over; use .item() for its number.")
        check_unpacking(self)
        return (self[i] for i in range(len(self._data)))

    def __repr__(self) -> str:
        text = np.array2string(self._array(), separator=", ", prefix="Tensor(", threshold=200)
        marks = (
            ""
            if self.dtype in (get_default_dtype(), bool, np.dtype(int))
            else f", dtype={self.dtype}"
        )
        if self._node is not None:
            marks += f", op={getattr(self._node.op, '__name__', 'released')}"
        elif self._tracked:
            marks += ", requires_grad=True"
        return f"Tensor({text}{marks}{f', name={self.name!r}' if self.name else ''})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if hasattr(type(self), name)]

    def __bool__(self) -> bool:
        if self._data.size != 1:
            raise ValueError(
                f"{describe(self)} is neither true nor false as a whole. Write (t > 0).all() or (t "
                "> 0).any(); to choose element by element write np.where(t > 0, a, b)."
            )
        return bool(self._data)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __round__(self, decimals: int | None = None) -> Tensor:
        return self.round(decimals or 0)

    def __index__(self) -> int:
        if self._data.dtype.kind not in "iu" or self._data.ndim:
            hint = " Write int(t) for its whole part." if self._data.size == 1 else ""
            raise TypeError(f"only a single integer can be an index, got {describe(self)}.{hint}")
        return int(self._data)

    __hash__ = object.__hash__

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(self == value))

    # ---- the graph

    @own_names
    def backward(
        self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Add d(self)/d(leaf) to the .grad of every leaf that requires a gradient.

        `gradient`, of this tensor's shape, weighs its elements and may be left out for a single
        number. The graph is released on the way unless `retain_graph`; with `create_graph` the
        gradients are themselves recorded (a `.grad` then holds the graph that holds its tensor:
        forget it with zero_grad(), or use ta.grad). Raises ValueError for a tensor of several
        elements without a gradient, for one of another shape, and where a value that is needed was
        changed in place; RuntimeError where the graph was already released. As
        torch.Tensor.backward.
        """
        backward.backward([self], [gradient], retain_graph, create_graph)

    def detach(self) -> Tensor:
        """The same array outside the graph: shares memory, requires no gradient."""
        return Tensor._of(self.data)

    def numpy(self) -> np.ndarray:
        """The plain array, sharing memory, outside the graph."""
        return self.data

    def item(self) -> Any:
        """The single number as a Python number."""
        if self._data.size != 1:
            raise ValueError(
                f"item() needs exactly one element, this is {describe(self)}; use .tolist(), or "
                "reduce it first."
            )
        return self._data.item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self._data.tolist()

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self._grad = None

    def retain_grad(self) -> None:
        """Keep .grad here at the next backward pass although this is not a leaf."""
        if not self._tracked:
            raise ValueError(
                f"{describe(self)} does not require a gradient, so there is none to retain."
            )
        if self._node is not None:
            self._node.retained = True

    def copy(self, order: str = "K") -> Tensor:
        """A copy in memory of its own; recorded.  `order` is accepted for NumPy's sake."""
        return ops.clone(self)

    clone = copy

    def __copy__(self) -> Tensor:
        return self

    def __getstate__(self) -> Any:
        if self._node is not None:
            raise TypeError(
                "only leaf tensors can be deep-copied or pickled. Of a result use .detach(); "
                ".clone() stays a result."
            )
        return object.__getstate__(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        self.__getstate__()  # It refuses a result.
        new = type(self)._of(self._data.copy(), self._tracked)
        new.name = self.name
        return new

    @property
    def _mask(self) -> Any:
        # numpy.ma asks for it, and would otherwise take _data and lose the gradient.
        lost = TypeError(
            f"{describe(self)} beside a masked array would lose its gradient; write a.filled(0) "
            "for the array a."
        )
        if self._tracked and context.recording:
            raise lost
        raise AttributeError("_mask")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # No gradient belongs to integers: np.int64(t) gives plain ones.
        whole = dtype is not None and np.dtype(dtype).kind in "iub"
        if self._tracked and context.recording and not whole:
            raise TypeError(
                f"{describe(self)} requires a gradient, which a plain array would lose. Write "
                "t.numpy() to leave the graph on purpose, or join tensors with np.stack / "
                "np.concatenate to stay in it."
            )
        inplace.hand_out(self._array())
        if whole and self._data.dtype.kind == "f":
            dtype = None  # NumPy casts it, or says that fractions must not be lost: np.take(a, t).
        return np.array(self._data, dtype=dtype, copy=copy)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise not_for_torch(function.__name__, cls.__name__)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if not kwargs and method == "__call__" and ufunc in CALLS:
            return CALLS[ufunc](*inputs)
        return interop.array_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        rule = FUNCTIONS.get(function) if self._data.dtype.kind == "f" else None
        try:
            return (
                interop.array_function(function, args, kwargs)
                if rule is None
                else rule(*args, **kwargs)
            )
        except (ValueError, IndexError, TypeError) as error:
            raise in_terms_of(function, args, error) from None

    # ---- operators

    __add__, __radd__ = operators(ops.add)
    __sub__, __rsub__ = operators(ops.subtract)
    __mul__, __rmul__ = operators(ops.multiply)
    __truediv__, __rtruediv__ = operators(ops.divide)
    __floordiv__, __rfloordiv__ = operators(ops.floor_divide)
    __mod__, __rmod__ = operators(ops.remainder)
    __pow__, __rpow__ = operators(ops.power)
    __matmul__, __rmatmul__ = operators(ops.matmul)

    def __neg__(self) -> Tensor:
        return ops.negative(self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return ops.absolute(self)

    def _assigned(self, other: Any) -> Any:
        unrecorded = not context.recording
        if self._tracked and self._node is None and unrecorded:
            raise only_renamed(self)
        return NotImplemented  # Then Python adds, and gives the sum the name.

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = _assigned

    __eq__, __ne__ = comparison("=="), comparison("!=")
    __lt__, __le__ = comparison("<"), comparison("<=")
    __gt__, __ge__ = comparison(">"), comparison(">=")

    def __invert__(self) -> Any:
        return compared("~", self, self)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__ = tuple(map(comparison, "&|^"))
    __divmod__ = __rdivmod__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = no_operator

    def __getitem__(self, index: Any) -> Tensor:
        part = ops.getitem(self, index=as_index(index))
        return part if part._tracked else took(part)

    def __setitem__(self, index: Any, value: Any) -> None:
        if context.recording and (self._tracked or tracked(value)):
            raise TypeError(
                "t[index] = value changes a tensor in place, which cannot be differentiated. Write "
                "np.where(mask, value, t) or join parts with np.concatenate; or change it under "
                "ta.no_grad() if no gradient is meant."
            )
        array = (
            value._data
            if isinstance(value, Variable)
            else as_data(value, self._data.dtype, objects=True)
        )
        if array.dtype.kind not in "fiub":  # Of complex numbers NumPy would keep the real part.
            raise TypeError(f"{describe(self)} cannot hold {describe(array)}.")
        index = as_index(index)
        if isinstance(value, Variable):
            check_swap(self, index, value)
        put(self, index, array)
        inplace.changed(self._data)

    # ---- shape

    @property
    def T(self) -> Tensor:
        """All axes reversed."""
        return ops.transpose(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        if self._data.ndim < 2:
            raise ValueError(f"mT exchanges the last two axes, but this is {describe(self)}.")
        return ops.swapaxes(self, a=-1, b=-2)

    def reshape(self, *shape: Any, order: str = "C") -> Tensor:
        """The same numbers in another shape, row by row; -1 stands for the size that follows.

        Raises ValueError where the number of elements is another.
        """
        if order != "C":
            raise ValueError(
                f"a Tensor knows only order='C', not {order!r}; transpose first. To keep axis 0, "
                "reshape(len(t), -1)."
            )
        return ops.reshape(self, shape=as_sizes(shape))

    view = reshape

    @own_names
    def flatten(self, order: str = "C") -> Tensor:
        """All numbers along one axis, row by row."""
        return self.reshape(-1, order=order)

    ravel = flatten

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two axes exchanged: (..., A, ..., B, ...) -> (..., B, ..., A, ...)."""
        return ops.swapaxes(self, a=axis1, b=axis2)

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in another order, by default reversed; ValueError for what is no permutation."""
        if not axes or axes == (None,):
            return ops.transpose(self)
        order = as_sizes(axes)
        warn_of_no_transpose(self, order)
        return ops.transpose(self, axes=order)

    @own_names
    def squeeze(self, axis: Axis = None) -> Tensor:
        """Without the axes of size 1, or without the named ones, which must have it."""
        return _np.squeeze(self, axis)

    def repeat(self, repeats: Any, *more: Any, axis: int | None = None) -> Tensor:
        """y has each element, or each row along `axis`, `repeats` times in a row."""
        return _np.repeat(self, *times_and_axis(self, (repeats, *more), axis))

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """The elements at these places along `axis`, or of the flattened tensor."""
        return _np.take(self, indices, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The elements at (i, i + offset) of two axes, as the last axis of the result."""
        return _np.diagonal(self, offset, axis1, axis2)

    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """A copy in another dtype of real numbers or booleans, whatever `copy` says."""
        if (asked := as_dtype(dtype)).kind not in "fiub":
            raise TypeError(
                f"a Tensor holds real numbers or booleans, not {asked}; take "
                f"t.numpy().astype({asked})."
            )
        return ops.astype(self, dtype=asked)

    # ---- reductions and the rest of NumPy's methods

    @own_names
    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """y = sum of x over the axes (None: all); IndexError for an axis that is not there."""
        return ops.sum(self, axis=axis, keepdims=keepdims)

    @own_names
    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """y = sum of x / n over the axes (None: all)."""
        return ops.mean(self, axis=axis, keepdims=keepdims)

    @own_names
    def var(self, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Tensor:
        """y = sum of (x - mean)^2 / (n - ddof) over the axes (None: all)."""
        return ops.var(self, axis=axis, ddof=ddof, keepdims=keepdims)

    @own_names
    def std(self, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Tensor:
        """y = sqrt(var) over the axes (None: all), with slope 0 where it is 0."""
        return ops.std(self, axis=axis, ddof=ddof, keepdims=keepdims)

    @own_names
    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The largest element along the axes (None: all); equal ones share the gradient."""
        return values_alone(ops.max(self, axis=axis, keepdims=keepdims), axis)

    @own_names
    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest element along the axes (None: all); equal ones share the gradient."""
        return values_alone(ops.min(self, axis=axis, keepdims=keepdims), axis)

    @own_names
    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """y = product of x over the axes (None: all)."""
        return ops.prod(self, axis=axis, keepdims=keepdims)

    @own_names
    def cumsum(self, axis: int | None = None) -> Tensor:
        """y_i = x_0 + ... + x_i along the axis, or over the flattened tensor."""
        return ops.cumsum(self, axis=axis)

    @own_names
    def cumprod(self, axis: int | None = None) -> Tensor:
        """y_i = x_0 ... x_i along the axis, or over the flattened tensor."""
        return ops.cumprod(self, axis=axis)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        """y = x held between two bounds, None for none."""
        return ops.clip(self, min, max)

    def dot(self, other: Any) -> Tensor:
        """The product of np.dot: of two vectors a number, of matrices their product."""
        return np.dot(self, other)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """y = the sum of the diagonal of two axes."""
        return _np.trace(self, offset, axis1, axis2)

    def round(self, decimals: int = 0) -> Tensor:
        """y = x rounded to so many decimals; its slope is 0."""
        return ops.round(self, decimals=decimals)

    def exp(self) -> Tensor:
        """y = e^x, element by element."""
        return ops.exp(self)

    def log(self) -> Tensor:
        """y = log x, element by element; -inf at 0, NaN below."""
        return ops.log(self)

    def sqrt(self) -> Tensor:
        """y = sqrt(x), element by element; NaN below 0."""
        return ops.sqrt(self)

    def tanh(self) -> Tensor:
        """y = (e^x - e^-x) / (e^x + e^-x), element by element."""
        return ops.tanh(self)

    def relu(self) -> Tensor:
        """y = max(x, 0), element by element, with slope 0 at 0."""
        return ops.relu(self)

    def sigmoid(self) -> Tensor:
        """y = 1 / (1 + e^-x), element by element."""
        return ops.sigmoid(self)

    def abs(self) -> Tensor:
        """y = |x|, element by element, with slope 0 at 0."""
        return ops.absolute(self)

    @own_names
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Where the largest element stands, plain integers without a gradient."""
        return _np.argmax(self, axis, keepdims=keepdims)

    @own_names
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Where the smallest element stands, plain integers without a gradient."""
        return _np.argmin(self, axis, keepdims=keepdims)

    def argsort(self, axis: int = -1) -> np.ndarray:
        """The places of the elements in rising order, plain integers without a gradient."""
        return _np.argsort(self, axis)

    @own_names
    def all(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Is every element true? Plain booleans, without a gradient."""
        return _np.all(self, axis, keepdims=keepdims)

    @own_names
    def any(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Is some element true? Plain booleans, without a gradient."""
        return _np.any(self, axis, keepdims=keepdims)


Variable._kind = Tensor
MissingName.fill(Tensor, (*FUNCTIONS, *UFUNCS, *PLAIN_FUNCTIONS, *PLAIN_UFUNCS))
