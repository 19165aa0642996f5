"""NumPy's functions that reshape, join, split, pick and repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ... import ops
from ...messages.errors import describe, is_integer
from ..pytorch_habits import warn_of_no_transpose
from .common import (
    FUNCTIONS,
    as_array,
    cast,
    converted,
    plain,
    refuse,
    refuse_among_whole,
    refuse_whole,
    rule,
    tensor,
    together,
)

# ---- other shapes and orders of the axes


def _reshape(a, /, shape=None, order="C", *, newshape=None, copy=None):
    shape = newshape if shape is None else shape
    refuse("reshape", order=order)
    if copy is False:
        np.reshape(plain(a), shape, copy=False)  # NumPy's error where memory does not allow it.
    y = ops.reshape(a, shape=shape)
    return ops.clone(y) if copy else y


@rule(np.ravel)
def _ravel(a):
    return ops.reshape(a, shape=(-1,))


@rule(np.transpose)
def _transpose(a, axes=None):
    if axes is not None:
        axes = tuple(axes)
        warn_of_no_transpose(a, axes)
    return ops.transpose(a, axes=axes)


def _shaped(function: Callable) -> Callable:
    """The rule of a function that only changes the shape: NumPy says to which one."""
    return lambda x, *args, **kwargs: ops.reshape(
        tensor(x), shape=function(plain(x), *args, **kwargs).shape
    )


def _permuted(function: Callable) -> Callable:
    """The rule of a function that only changes the order of the axes.

    NumPy checks its arguments and says where each axis goes, for an array whose axis i has size i.
    """

    def permuted(a, *args, **kwargs):
        sizes = np.empty(tuple(range(np.ndim(a))), bool)
        return ops.transpose(a, axes=function(sizes, *args, **kwargs).shape)

    return permuted


def _of_each(reshaped: Callable) -> Callable:
    """The rule for any number of arrays, of which several give a tuple."""
    return lambda *arys: reshaped(arys[0]) if len(arys) == 1 else tuple(map(reshaped, arys))


def _copies(function: Callable) -> Callable:
    """The rule of a function that copies elements to other places."""

    def copies(x, *args, **kwargs):
        settings = {k: plain(v) for k, v in kwargs.items()}
        return ops.arranged(function, tensor(x), *plain(args), **settings)

    return copies


_squeeze, _moveaxis, _diagonal = _shaped(np.squeeze), _permuted(np.moveaxis), _copies(np.diagonal)
_atleast_2d, _atleast_3d = _shaped(np.atleast_2d), _shaped(np.atleast_3d)
_swap_last = lambda x, /: ops.swapaxes(x, a=-1, b=-2)

FUNCTIONS |= {
    np.reshape: _reshape,
    np.squeeze: _squeeze,
    np.expand_dims: _shaped(np.expand_dims),
    np.atleast_1d: _of_each(_shaped(np.atleast_1d)),
    np.atleast_2d: _of_each(_atleast_2d),
    np.atleast_3d: _of_each(_atleast_3d),
    np.moveaxis: _moveaxis,
    np.rollaxis: _permuted(np.rollaxis),
    np.swapaxes: lambda a, axis1, axis2: ops.swapaxes(a, a=axis1, b=axis2),
    np.matrix_transpose: _swap_last,
    np.linalg.matrix_transpose: _swap_last,
    np.flip: lambda m, axis=None: ops.flip(m, axis=axis),
    np.flipud: lambda m: ops.flip(m, axis=0),
    np.fliplr: lambda m: ops.flip(m, axis=1),
    np.roll: lambda a, shift, axis=None: ops.roll(
        a, shift=shift if isinstance(shift, int) else tuple(np.ravel(shift).tolist()), axis=axis
    ),
    np.tril: lambda m, k=0: ops.tril(m, k=k),
    np.triu: lambda m, k=0: ops.triu(m, k=k),
    np.diagonal: _diagonal,
    np.linalg.diagonal: lambda x, /, *, offset=0: _diagonal(x, offset, -2, -1),
}
for _function in (np.rot90, np.resize, np.delete, np.fft.fftshift, np.fft.ifftshift):
    FUNCTIONS[_function] = _copies(_function)


@rule(np.broadcast_to)
def _broadcast_to(array, shape):
    return ops.broadcast_to(array, shape=tuple(np.atleast_1d(shape).tolist()))


@rule(np.broadcast_arrays)
def _broadcast_arrays(*args, subok=False):
    shape = np.broadcast_shapes(*(np.shape(x) for x in args))
    return tuple(ops.broadcast_to(tensor(x), shape=shape) for x in args)


@rule(np.meshgrid)
def _meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    # NumPy says along which axis each of them lies.
    flat = [np.empty(np.size(plain(x)), bool) for x in xi]
    lying = np.meshgrid(*flat, sparse=True, indexing=indexing)
    grids = tuple(ops.reshape(tensor(x), shape=at.shape) for x, at in zip(xi, lying, strict=True))
    return grids if sparse else _broadcast_arrays(*grids)


@rule(np.lib.stride_tricks.sliding_window_view)
def _sliding_window_view(x, window_shape, axis=None):
    x, sizes = tensor(x), np.atleast_1d(plain(window_shape)).tolist()
    # NumPy raises its errors for sizes and axes that do not fit.
    np.lib.stride_tricks.sliding_window_view(plain(x), sizes, axis)
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis).tolist()
    axes = tuple(normalize_axis_index(i, x.ndim) for i in axes)  # An axis may come twice.
    return ops.windows(x, sizes=tuple(sizes), axes=axes)


# ---- joins and splits


def _slice(x: Any, axis: int, *bounds: Any) -> Any:
    return x[(slice(None),) * normalize_axis_index(axis, x.ndim) + (slice(*bounds),)]


def _join(numpys: Callable, op: Callable) -> Callable:
    """The rule of np.concatenate or np.stack."""
    name = numpys.__name__

    def joined(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
        refuse(name, out=out)
        if hasattr(axis, "shape"):
            raise TypeError(f"np.{name} takes the tensors in a list: np.{name}([a, b], axis=0).")
        _check_casting(name, arrays, dtype, casting)
        refuse_whole(name, dtype, *arrays)
        return cast(op(*together(arrays), axis=axis), dtype)

    FUNCTIONS[numpys] = joined
    return joined


def _check_casting(name: str, arrays: Any, dtype: Any, casting: Any) -> None:
    """Each part must become the common dtype by this rule of NumPy's.

    The usual rules allow any floating dtype to become any other one.
    """
    if casting in ("same_kind", "unsafe"):
        return
    dtypes = [np.asarray(plain(x)).dtype for x in arrays]
    target = np.result_type(*dtypes) if dtype is None else np.dtype(dtype)
    for given in dtypes:
        if not np.can_cast(given, target, casting):
            raise TypeError(
                f"np.{name}: {given} does not become {target} by casting={casting!r}. Leave "
                "casting out, or write .astype(dtype) first."
            )


_concatenate, _stack = _join(np.concatenate, ops.concatenate), _join(np.stack, ops.stack)


@rule(np.vstack)
def _vstack(tup, dtype=None, casting="same_kind"):
    return _concatenate([_atleast_2d(x) for x in together(tup)], 0, dtype=dtype, casting=casting)


@rule(np.hstack)
def _hstack(tup, dtype=None, casting="same_kind"):
    parts = [x if x.ndim else _ravel(x) for x in together(tup)]
    return _concatenate(parts, int(parts[0].ndim > 1), dtype=dtype, casting=casting)


@rule(np.dstack)
def _dstack(tup):
    return _concatenate([_atleast_3d(x) for x in together(tup)], 2)


@rule(np.column_stack)
def _column_stack(tup):
    columns = [x if x.ndim > 1 else ops.reshape(x, shape=(-1, 1)) for x in together(tup)]
    return _concatenate(columns, 1)


@rule(np.append)
def _append(arr, values, axis=None):
    return _concatenate([arr, values], axis)


def _numbered(parts: list[Any]) -> tuple[Any, list[np.ndarray]]:
    """All elements of all arrays in a row, and for each array the places of its elements there.

    A NumPy function of several arrays that copies elements is applied to these places.
    """
    starts = np.cumsum([0, *(x.size for x in parts)]).tolist()
    places = [np.arange(start, start + x.size).reshape(x.shape) for start, x in zip(starts, parts)]
    return _concatenate(parts, None), places


def _leaves(nest: Any) -> list[Any]:
    return [x for part in nest for x in _leaves(part)] if isinstance(nest, list) else [nest]


def _nested_as(nest: Any, leaves: Any) -> Any:
    return [_nested_as(x, leaves) for x in nest] if isinstance(nest, list) else next(leaves)


@rule(np.block)
def _block(arrays):
    elements, places = _numbered(together(_leaves(arrays)))
    return elements[np.block(_nested_as(arrays, iter(places)))]


@rule(np.insert)
def _insert(arr, obj, values, axis=None):
    arr, values = together([arr, values])
    refuse_among_whole("insert", arr, values)
    elements, (old, new) = _numbered([arr, cast(values, arr.dtype)])
    return elements[np.insert(old, plain(obj), new, axis)]


def _split(numpys: Callable, along: int | None, least: int) -> None:
    """Enters np.split or a kin of it, which cuts along an axis of its own and asks for `least`
    axes.
    """
    name = numpys.__name__
    cut = np.array_split if numpys is np.array_split else np.split

    def split(ary, indices_or_sections, axis=0):
        if ary.ndim < least:
            raise ValueError(
                f"np.{name} takes Tensors of {least} {'axes' if least > 1 else 'axis'} or more, "
                f"got {describe(ary)}."
            )
        if along is not None:
            axis = min(along, ary.ndim - 1)  # np.hsplit cuts a vector along its only axis.
        cuts = plain(indices_or_sections)
        if np.ndim(cuts) == 0 and cuts == 0:  # np.split would divide by it.
            raise ValueError("number sections must be larger than 0.")
        places = np.arange(ary.shape[normalize_axis_index(axis, ary.ndim)])
        try:
            parts = cut(places, cuts)
        except TypeError:
            raise TypeError(
                f"{describe(ary)} is split into a whole number of parts, or at the places in a "
                f"list; got {describe(cuts)}."
            ) from None
        bounds = [(int(p[0]), int(p[-1]) + 1) if p.size else (0, 0) for p in parts]
        return [_slice(ary, axis, *pair) for pair in bounds]

    FUNCTIONS[numpys] = split


for _numpys, _along, _least in (
    (np.split, None, 0),
    (np.array_split, None, 0),
    (np.vsplit, 0, 2),
    (np.hsplit, 1, 1),
    (np.dsplit, 2, 3),
):
    _split(_numpys, _along, _least)
if hasattr(np, "unstack"):  # NumPy 2.1
    FUNCTIONS[np.unstack] = lambda x, /, *, axis=0: tuple(_moveaxis(x, axis, 0))


@rule(np.pad)
def _pad(array, pad_width, mode="constant", **kwargs):
    array = tensor(array)
    width = _margins(array, pad_width)
    if mode == "constant":
        value = kwargs.pop("constant_values", 0)
        refuse("pad", **kwargs)
        if np.ndim(plain(value)) == 0:
            return ops.pad(array, width=width, value=value)
        frame = np.zeros(array.shape, array.dtype)
        return ops.pad(array, width=width) + np.pad(frame, width or 0, constant_values=value)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise TypeError(
            "np.pad of a Tensor knows the modes constant, edge, reflect, symmetric and wrap, not "
            f"{mode!r}. Join the parts with np.concatenate instead."
        )
    if kwargs.get("reflect_type") == "odd":  # Its values are sums, not copies.
        refuse("pad", **kwargs)
    # A single number has no axes to widen, and stays as it is.
    return ops.arranged(np.pad, array, width or 0, mode, **kwargs)


def _margins(array: Any, pad_width: Any) -> tuple[tuple[int, int], ...]:
    """How many numbers go before and after each axis."""
    if isinstance(pad_width, dict):  # From axis to width: NumPy 2.3.
        by_axis = [(0, 0)] * array.ndim
        for axis, width in pad_width.items():
            by_axis[normalize_axis_index(axis, array.ndim)] = tuple(np.broadcast_to(width, 2))
        pad_width = by_axis
    margins = np.broadcast_to(np.asarray(plain(pad_width)), (array.ndim, 2))
    if margins.dtype.kind not in "iu":
        raise TypeError(f"np.pad takes whole numbers as pad_width, not {margins.dtype}.")
    return tuple((int(before), int(after)) for before, after in margins)


# ---- picking and repeating elements


@rule(np.take)
def _take(a, indices, axis=None, mode="raise"):
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(
            f"np.take of a Tensor knows the modes 'raise', 'wrap' or 'clip', not {mode!r}."
        )
    if axis is None:
        a, axis = _ravel(a), 0
    axis = normalize_axis_index(axis, a.ndim)
    places, n = as_array(plain(indices)), a.shape[axis]
    if places.dtype == bool:  # Here True is 1, and no mask.
        places = places.astype(np.intp)
    if mode != "raise":
        places = places % n if mode == "wrap" else places.clip(0, n - 1)
    return a[(slice(None),) * axis + (places,)]


@rule(np.compress)
def _compress(condition, a, axis=None):
    return _take(a, np.nonzero(plain(condition))[0], axis)


@rule(np.extract)
def _extract(condition, arr):
    return _compress(np.ravel(plain(condition)), arr)


@rule(np.take_along_axis)
def _take_along_axis(arr, indices, axis=-1):
    return ops.take_along_axis(arr, indices=as_array(plain(indices)).copy(), axis=axis)


@rule(np.sort)
def _sort(a, axis=-1, order=None):
    _refuse_fields("sort", order)
    return ops.sort(a, axis)


@rule(np.partition)
def _partition(a, kth, axis=-1, order=None):
    _refuse_fields("partition", order)
    return ops.partition(a, kth, axis)


def _refuse_fields(function, order):
    if order is not None:
        raise ValueError(
            f"np.{function} of a Tensor does not take order={describe(order)}, which names the "
            "fields of a record: a Tensor has none. Leave it out."
        )


@rule(np.trace)
def _trace(a, offset=0, axis1=0, axis2=1):
    return ops.sum(_diagonal(a, offset, axis1, axis2), axis=-1)


FUNCTIONS[np.linalg.trace] = lambda x, /, *, offset=0, dtype=None: _trace(
    converted("trace", x, dtype), offset, -2, -1
)


@rule(np.diag)
def _diag(v, k=0):
    if v.ndim not in (1, 2):
        raise ValueError(
            "np.diag makes a matrix of a vector, or takes the diagonal of a matrix; got "
            f"{describe(v)}. For the last two axes of several write np.linalg.diagonal(t)."
        )
    if v.ndim == 2:
        return _diagonal(v, k)
    along, n = np.arange(v.shape[0]), v.shape[0] + abs(k)
    return ops.scatter(v, index=(along + max(-k, 0), along + max(k, 0)), shape=(n, n))


@rule(np.diagflat)
def _diagflat(v, k=0):
    return _diag(_ravel(v), k)


def _is_count(k: Any) -> bool:
    """Is k a whole number above 0?"""
    return is_integer(k) and bool(k > 0)


def _spread(x: Any, before: list[int], after: list[int], shape: list[int]) -> Any:
    """x with new axes of size 1, repeated along these, with axes joined: its shape in each step."""
    parted = ops.reshape(x, shape=tuple(before))
    return ops.reshape(ops.broadcast_to(parted, shape=tuple(after)), shape=tuple(shape))


@rule(np.tile)
def _tile(A, reps):
    x, times = tensor(A), plain(reps)
    times = tuple(times) if np.ndim(times) else (times,)
    if not all(map(_is_count, times)) or max(times, default=1) == 1:
        return _copies(np.tile)(x, times)
    ndim = max(x.ndim, len(times))
    counts, shape = ((1,) * (ndim - len(sizes)) + sizes for sizes in (times, x.shape))
    pairs = list(zip(counts, shape, strict=True))
    before, after = [i for _, n in pairs for i in (1, n)], [i for pair in pairs for i in pair]
    return _spread(x, before, after, [k * n for k, n in pairs])


@rule(np.repeat)
def _repeat(a, repeats, axis=None):
    x, k = tensor(a), plain(repeats)
    if axis is None:
        x, axis = _ravel(x), 0
    if not _is_count(k) or k == 1 or not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
        return _copies(np.repeat)(x, k, axis)
    axis %= x.ndim
    *lead, n = x.shape[: axis + 1]
    rest = x.shape[axis + 1 :]
    return _spread(x, [*lead, n, 1, *rest], [*lead, n, k, *rest], [*lead, n * k, *rest])
