"""The class Tensor: an array that remembers how it was computed.

Operators and methods follow NumPy; most are a single line that calls an op.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import numpy as np

from .. import ops
from ..engine import Hooks, Op, Variable, array_of, backward, context, inplace, tracked
from ..errors import MissingName, describe, explain, warn, written_here
from .convert import as_array, as_index, as_sizes, get_default_dtype, is_trainable, new_array
from .numpy_dispatch import call_function, call_ufunc
from .numpy_functions import FUNCTIONS, UFUNCS, transpose

Axis = int | tuple[int, ...] | None
_np: Any = np  # NumPy's type hints promise an array, but here it returns a Tensor.


_Operator = Callable[[Any, Any], "Tensor"]


def _operators(op: Op) -> tuple[_Operator, _Operator]:
    """Return the methods for `a + b` and for `b + a`, with a as self."""
    call = op.__call__
    return lambda a, b: call(a, b), lambda b, a: call(a, b)


def _comparison(function: Callable[[Any, Any], Any]):
    """Return the method of an operator that has no derivative and returns a plain array."""
    return lambda a, b: function(a._data, array_of(b))


def _elementwise(op: Op) -> Callable[[Any], Tensor]:
    """Return the method `t.f()` for an op of one input."""
    call = op.__call__
    return functools.wraps(op, updated=())(lambda x: call(x))


def _reduction(op: Op) -> Callable[..., Tensor]:
    """Return the method `t.f(axis, keepdims)` for an op that reduces axes."""

    @functools.wraps(op, updated=())
    def method(x, axis: Axis = None, keepdims: bool = False, **settings):
        return op(x, axis=axis, keepdims=keepdims, **settings)

    return method


def _like_numpys(function) -> Callable[..., Tensor]:
    """Return the method `t.f(...)`, which is np.f(t, ...)."""

    def method(x, *args, **settings):
        return function(x, *args, **settings)

    method.__name__ = function.__name__
    method.__doc__ = f"Return np.{function.__name__}(t, ...) of this tensor t."
    return method


class TensorHook(AbstractContextManager["TensorHook"]):
    """A function that sees a tensor's gradient, until `remove()` or the end of a `with` block."""

    def __init__(self, hooks: Hooks, function: Callable[[Any], Any]):
        self._hooks, self._function = hooks, function
        hooks.functions.append(self)

    def __repr__(self):
        return repr(getattr(self._function, "__name__", self._function))

    def __call__(self, gradient) -> Any:
        return self._function(gradient)

    def remove(self) -> None:
        """Remove the hook. A second call has no effect."""
        self._hooks.functions[:] = [hook for hook in self._hooks.functions if hook is not self]

    def __exit__(self, *_: object) -> None:
        self.remove()


class Tensor(Variable):
    """A NumPy array with reverse-mode differentiation.

    `Tensor(data, requires_grad=False, dtype=None)` copies its data. Python numbers and lists of
    numbers get the default dtype (float32); an ndarray keeps its dtype. With `requires_grad=True`,
    ops on the tensor are recorded, and `backward()` on an output fills `.grad`. Integer and boolean
    tensors cannot require a gradient. Methods behave like NumPy's methods of the same name; `relu`,
    `sigmoid`, `view` and `clone` come from PyTorch. Raises TypeError for data that is not numeric.
    """

    __slots__ = ()
    __array_priority__ = 1000
    _of_a_module = False  # whether `t -= x` is a mistake even while ops are recorded

    def __init__(self, data, requires_grad: bool = False, dtype=None):
        array = new_array(data, dtype)
        self._data = array if array.ndim else array[()]
        self._grad = self._node = self.name = None
        self._tracked = False
        if requires_grad is not False:
            self.requires_grad = requires_grad

    @classmethod
    def _of(cls, array, requires_grad=False):
        """Wrap an array without copying it."""
        t: Tensor = object.__new__(cls)
        t._data = array if isinstance(array, (np.ndarray, np.generic)) else np.asarray(array)
        t._grad = t._node = t.name = None
        t._tracked = requires_grad
        return t

    def _array(self):
        """Return the values as an ndarray that can be changed in place."""
        if not isinstance(self._data, np.ndarray):
            self._data = np.asarray(self._data)
        return self._data

    # ---- attributes

    @property
    def data(self) -> np.ndarray:
        """A view of the array, not a copy. Assigning copies, except another tensor's `.data`.

        If you change the array while a graph still needs the old values, backward() raises an
        error.
        """
        return inplace.hand_out(self._array())

    @data.setter
    def data(self, value) -> None:
        array = as_array(value, self._data.dtype)
        if self._tracked and not is_trainable(array.dtype):
            raise TypeError(
                f"{describe(self)} requires a gradient, so its dtype cannot be {array.dtype}."
            )
        if getattr(array.base, "obj", None) is self._data:  # t.data += x, which has changed it
            inplace.changed(self._data)
        else:
            shared = isinstance(value, Variable)
            inplace.replace(self, array if shared else inplace.unshared(array))

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated by backward(), or None."""
        if self._grad is None and self._node and not getattr(self._tracked, "retains", False):
            warnings.warn(
                "a tensor that is not a leaf does not keep its .grad. Call retain_grad() on the "
                "tensor before backward(), or use ta.grad().",
                UserWarning,
                stacklevel=2,
            )
        return self._grad

    @grad.setter
    def grad(self, value) -> None:
        if value is not None:
            value = value if isinstance(value, Tensor) else Tensor(value, dtype=self.dtype)
            if value.shape != self.shape:
                raise ValueError(
                    f"a gradient must have its tensor's shape, but got {value.shape} for "
                    f"{describe(self)}."
                )
        self._grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether ops on this tensor are recorded."""
        return bool(self._tracked)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(
                f"requires_grad must be True or False, got {describe(value)}. To set the dtype, "
                "write Tensor(data, dtype=...); to set the shape, write Tensor(np.zeros((2, 3)))."
            )
        if value and not is_trainable(self._data.dtype):
            raise TypeError(
                "only floating-point tensors can require a gradient, in single precision or more, "
                f"but this is {describe(self)}. Write .astype(np.float32) first."
            )
        if not value and self._node is not None:
            raise ValueError(
                "requires_grad can be switched off only on a leaf; for other tensors, use detach()."
            )
        if isinstance(self._tracked, Hooks):
            self._tracked.wanted = bool(value)
        else:
            self._tracked = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set requires_grad and return the tensor itself."""
        self.requires_grad = requires_grad
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype of the elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._data.size

    @property
    def is_leaf(self) -> bool:
        """Whether this tensor is not the output of a recorded op."""
        return self._node is None

    def __len__(self):
        if not self._data.ndim:
            raise TypeError(
                f"{describe(self)} is a single number, so it has no length and cannot be iterated. "
                "Write t.item() to read the number, t.reshape(1) for a sequence of length 1, or "
                "torch.from_numpy(t.numpy()) for a PyTorch tensor."
            )
        return len(self._data)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        text = np.array2string(self._array(), separator=", ", prefix="Tensor(", threshold=200)
        if self.dtype not in (get_default_dtype(), bool, np.dtype(int)):
            text += f", dtype={self.dtype}"
        if self._node is not None:
            text += f", op={self._node.op.__name__}"
        elif self._tracked:
            text += ", requires_grad=True"
        return f"Tensor({text}{f', name={self.name!r}' if self.name else ''})"

    def __format__(self, spec):
        return format(self.item(), spec) if spec else repr(self)

    def __dir__(self):
        return [name for name in object.__dir__(self) if hasattr(type(self), name)]

    def __bool__(self):
        if self._data.size != 1:
            raise ValueError(
                f"{describe(self)} is neither true nor false as a whole. Write (t > 0).all() or (t "
                "> 0).any(); to choose element by element, write np.where(t > 0, a, b)."
            )
        return bool(self._data)

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __index__(self):
        return operator.index(self._data)

    __hash__ = object.__hash__

    def __contains__(self, value) -> bool:
        return bool(np.any(self == value))

    # ---- the graph

    def backward(
        self, gradient=None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Add d(self)/d(leaf) to the .grad of every leaf that requires a gradient.

        `gradient` has this tensor's shape and weights its elements; it may be omitted for a single
        number. The pass releases the graph unless `retain_graph` is True. With `create_graph`, the
        gradients are recorded too. Each `.grad` then refers to a graph that refers back to its
        tensor, so clear `.grad` with zero_grad(), or use ta.grad. Raises ValueError if `gradient`
        is missing or has the wrong shape, or if a needed value was changed in place. Raises
        RuntimeError if the graph has been released. Like torch.Tensor.backward.
        """
        backward.backward([self], [gradient], retain_graph, create_graph)

    def detach(self) -> Tensor:
        """Return a Tensor that shares this tensor's memory but is outside the graph."""
        return Tensor._of(self._array())

    def numpy(self) -> np.ndarray:
        """Return the underlying array without copying it; the array is outside the graph."""
        return self.data

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self._data.size != 1:
            raise ValueError(
                "item(), float() and math.sin() need exactly one element, but this is "
                f"{describe(self)}. Write np.sin(t) instead of math.sin(t), call .tolist(), or "
                "reduce the tensor first."
            )
        return self._data.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._data.tolist()

    def zero_grad(self) -> None:
        """Set the gradient to None."""
        self._grad = None

    def retain_grad(self) -> None:
        """Keep .grad in the next backward pass even though this tensor is not a leaf."""
        if not self._tracked:
            raise ValueError(
                f"{describe(self)} does not require a gradient, so there is no gradient to keep."
            )
        if self._node is not None:
            self._hooks().retains = True

    def _keep_gradient_for(self, other):
        """Add this tensor's gradient to the .grad of another one, its twin in an earlier run."""
        others = self._hooks().others
        if other is not self and all(t is not other for t in others):
            others.append(other)

    def register_hook(self, hook: Callable[[Any], Any]) -> TensorHook:
        """Call hook(gradient) when the gradient of this tensor is complete in a backward pass.

        A result other than None, of the same shape, replaces the gradient, which is read-only.
        Returns a handle with `remove()`, which is also a context manager. Raises ValueError for a
        tensor without a gradient. Like torch.Tensor.register_hook.
        """
        if not self._tracked:
            raise ValueError(
                f"{describe(self)} does not require a gradient, so a hook would never be called."
            )
        return TensorHook(self._hooks(), hook)

    def _hooks(self):
        if self in (context.repeated or ()):
            return Hooks()  # The first run of a checkpoint has done the same.
        if not isinstance(self._tracked, Hooks):
            self._tracked = Hooks()
        return self._tracked

    def copy(self, order: str = "K") -> Tensor:
        """Return a copy with its own memory, as a recorded op; `order` is ignored."""
        return ops.clone(self)

    clone = copy

    def __getstate__(self):
        """Return what copies and pickles contain: all attributes except the gradient."""
        if self._node is not None:
            raise TypeError(
                "only leaf tensors can be copied by the copy module or pickled. To copy only the "
                "values of an output, call .detach() first; a copy made by .clone() stays in the "
                "graph."
            )
        state: Any = object.__getstate__(self)
        attributes, slots = state
        own = {"_grad": None, "_tracked": self.requires_grad, "_replaced": (0, 0)}  # no hooks
        return attributes, {**slots, **own}

    def __copy__(self):
        return deepcopy(self)  # As copies of arrays, it has its own memory.

    # ---- NumPy and PyTorch

    @property
    def _mask(self):
        # numpy.ma reads _mask, and would otherwise use _data and lose the gradient.
        if self._tracked and context.recording:
            raise TypeError(
                f"{describe(self)} cannot be combined with a masked array a; write a.filled(0)."
            )
        raise AttributeError("_mask")

    def __array__(self, dtype=None, copy=None):
        integers = dtype is not None and np.dtype(dtype).kind in "iub"  # They have no gradient.
        if self._tracked and context.recording and not integers:
            raise TypeError(
                f"{describe(self)} requires a gradient, which a plain array would lose. Write "
                "t.numpy() to leave the graph on purpose, or join tensors with np.stack or "
                "np.concatenate to stay in the graph."
            )
        if integers and self._data.dtype.kind == "f":
            dtype = None  # NumPy casts, or raises if fractions would be lost: np.take(a, t).
        return np.array(inplace.hand_out(self._array()), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        f = UFUNCS.get(ufunc)
        if f is None or kwargs or method != "__call__" or self._data.dtype.kind != "f":
            return call_ufunc(f, ufunc, method, inputs, kwargs)
        return f(*inputs)

    def __array_function__(self, function, types, args, kwargs):
        f = FUNCTIONS.get(function)
        if f is None or self._data.dtype.kind != "f":
            return call_function(f, function, args, kwargs)
        return f(*args, **kwargs)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = function.__name__
        raise TypeError(
            f"PyTorch's {name} accepts only PyTorch tensors, not a {cls.__name__} of this "
            f"package.{written_here(name)} To leave the graph on purpose, pass "
            "torch.from_numpy(t.numpy())."
        )

    # ---- operators

    __add__, __radd__ = _operators(ops.add)
    __sub__, __rsub__ = _operators(ops.subtract)
    __mul__, __rmul__ = _operators(ops.multiply)
    __truediv__, __rtruediv__ = _operators(ops.divide)
    __floordiv__, __rfloordiv__ = _operators(ops.floor_divide)
    __mod__, __rmod__ = _operators(ops.remainder)
    __pow__, __rpow__ = _operators(ops.power)
    __matmul__, __rmatmul__ = _operators(ops.matmul)

    def __pos__(self) -> Tensor:
        return self

    def _assigned(self, other):
        if self._of_a_module or self._tracked and self._node is None and not context.recording:
            raise TypeError(
                f"in-place operators such as p += x and p -= x would leave {describe(self)} "
                "unchanged, because they make a new Tensor. Write p.data -= x.data to change the "
                "tensor, or y = p - x to make a new one."
            )
        return NotImplemented  # Then Python computes p + x and assigns it to p.

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = _assigned
    __imatmul__ = _assigned

    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __and__ = __rand__ = _comparison(operator.and_)
    __or__ = __ror__ = _comparison(operator.or_)
    __xor__ = __rxor__ = _comparison(operator.xor)

    def __invert__(self) -> Any:
        return ~self._data

    def __getitem__(self, index) -> Tensor:
        return ops.getitem(self, index=as_index(index))

    def __setitem__(self, index, value) -> None:
        if context.recording and (self._tracked or tracked(value)):
            raise TypeError(
                "t[index] = value changes a tensor in place, which cannot be differentiated. Write "
                "np.where(mask, value, t) or join parts with np.concatenate; if no gradient is "
                "needed, change the tensor inside ta.no_grad()."
            )
        array = as_array(value, self._data.dtype)
        if isinstance(value, Variable) and np.may_share_memory(array, self._data):
            raise ValueError(
                f"the assigned value is a view of {describe(self)} itself. To exchange elements, "
                "as shuffle does, would copy some of them twice and lose others. Write "
                "t[index] = value.copy(), or t[rng.permutation(len(t))] for a shuffled Tensor."
            )
        try:
            self._array()[as_index(index)] = array
        except (ValueError, IndexError) as error:
            raise explain("setitem", [self, array], error) from None
        inplace.changed(self._data)

    # ---- shapes

    @property
    def T(self) -> Tensor:
        """The tensor with its axes in reverse order."""
        return ops.transpose(self)

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two axes exchanged."""
        if self._data.ndim < 2:
            raise ValueError(f"mT exchanges the last two axes, but this is {describe(self)}.")
        return ops.swapaxes(self, a=-1, b=-2)

    def reshape(self, *shape) -> Tensor:
        """Return the same elements in another shape, in row-major order; a size of -1 is inferred.

        Raises ValueError if the number of elements differs.
        """
        return ops.reshape(self, shape=as_sizes(shape))

    view = reshape

    def flatten(self) -> Tensor:
        """Return all elements along a single axis, in row-major order."""
        return ops.reshape(self, shape=(-1,))

    ravel = flatten

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Exchange two axes: (..., A, ..., B, ...) -> (..., B, ..., A, ...)."""
        return ops.swapaxes(self, a=axis1, b=axis2)

    def transpose(self, *axes) -> Tensor:
        """Permute the axes, or reverse them if none are given; raise ValueError if invalid."""
        return transpose(self, None if not axes or axes == (None,) else as_sizes(axes))

    def repeat(self, repeats, *more, axis: int | None = None) -> Tensor:
        """Repeat each element, or each slice along `axis`; PyTorch's repeat is called np.tile."""
        if axis is None:
            text = (
                f"as in NumPy, t.repeat repeats each element of {describe(self)}. To repeat "
                f"elements, write np.repeat(t, {repeats}, axis); to repeat the whole tensor, as "
                f"PyTorch's repeat does, write np.tile(t, {(repeats, *more)})."
            )
            if more:
                raise TypeError(text)
            warn(text)
        return _np.repeat(self, repeats, axis)

    def astype(self, dtype, copy: bool = True) -> Tensor:
        """Return a copy converted to another dtype, real or boolean."""
        if np.dtype(dtype).kind not in "fiub":
            raise TypeError(
                f"a Tensor can hold only real numbers or booleans, not {np.dtype(dtype)}."
            )
        return ops.astype(self, dtype=np.dtype(dtype))

    # ---- the rest of NumPy's methods, and two of PyTorch's

    sum, mean, prod = map(_reduction, (ops.sum, ops.mean, ops.prod))
    var, std, max, min = map(_reduction, (ops.var, ops.std, ops.max, ops.min))

    exp, log, sqrt, tanh = map(_elementwise, (ops.exp, ops.log, ops.sqrt, ops.tanh))
    relu, sigmoid = map(_elementwise, (ops.relu, ops.sigmoid))
    abs = __abs__ = _elementwise(ops.absolute)
    __neg__ = _elementwise(ops.negative)

    squeeze, take, diagonal = map(_like_numpys, (np.squeeze, np.take, np.diagonal))
    cumsum, cumprod, dot, trace = map(_like_numpys, (np.cumsum, np.cumprod, np.dot, np.trace))
    round = __round__ = _like_numpys(np.round)
    argmax: Any = _like_numpys(np.argmax)  # this and the following return plain arrays
    argmin: Any = _like_numpys(np.argmin)
    argsort: Any = _like_numpys(np.argsort)
    all: Any = _like_numpys(np.all)
    any: Any = _like_numpys(np.any)

    def clip(self, min=None, max=None) -> Tensor:
        """y = x limited to the range [min, max]; None means no bound."""
        return ops.clip(self, min, max)


Variable._kind = Tensor
MissingName.fill(Tensor, (*FUNCTIONS, *UFUNCS))
