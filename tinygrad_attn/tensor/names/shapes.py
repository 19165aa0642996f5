"""NumPy's functions that reshape, join, split, pick and repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ... import ops
from ...engine import clone
from ...messages.errors import describe
from .common import (
    FUNCTIONS,
    axes_of,
    cast,
    plain,
    refuse,
    refuse_among_whole,
    refuse_whole,
    rule,
    tensor,
    together,
)


@rule(np.reshape)
def _reshape(a, /, shape, order="C", *, copy=None):
    refuse("reshape", order=order)
    if copy is False:
        np.reshape(plain(a), shape, copy=False)  # NumPy's error where the memory does not allow it
    y = ops.reshape(a, shape=shape)
    return clone(y) if copy else y


@rule(np.ravel)
def _ravel(a, order="C"):
    refuse("ravel", order=order)
    return ops.reshape(a, shape=(-1,))


@rule(np.transpose)
def _transpose(a, axes=None):
    return ops.transpose(a, axes=None if axes is None else tuple(axes))


@rule(np.moveaxis)
def _moveaxis(a, source, destination):
    return _permuted(a, np.moveaxis, source, destination)


@rule(np.rollaxis)
def _rollaxis(a, axis, start=0):
    return _permuted(a, np.rollaxis, axis, start)


def _permuted(a: Any, function: Callable, *args: Any) -> Any:
    """NumPy checks the axes and says where each goes: of an empty array whose axis i has size i."""
    return ops.transpose(a, axes=function(np.empty(tuple(range(np.ndim(a))), bool), *args).shape)


@rule(np.squeeze)
def _squeeze(a, axis=None):
    return ops.reshape(a, shape=plain(a).squeeze(axis).shape)


@rule(np.expand_dims)
def _expand_dims(a, axis):
    return ops.reshape(a, shape=np.expand_dims(plain(a), axis).shape)


def _at_least(function: Callable) -> Callable:
    def atleast(*arys):
        found = tuple(ops.reshape(tensor(x), shape=function(plain(x)).shape) for x in arys)
        return found[0] if len(found) == 1 else found

    return atleast


_atleast_2d, _atleast_3d = _at_least(np.atleast_2d), _at_least(np.atleast_3d)
FUNCTIONS |= {
    np.atleast_1d: _at_least(np.atleast_1d),
    np.atleast_2d: _atleast_2d,
    np.atleast_3d: _atleast_3d,
}


@rule(np.broadcast_to)
def _broadcast_to(array, shape, subok=False):
    return ops.broadcast_to(
        array, shape=(shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    )


@rule(np.broadcast_arrays)
def _broadcast_arrays(*args, subok=False):
    shape = np.broadcast_shapes(*(np.shape(x) for x in args))
    return tuple(ops.broadcast_to(tensor(x), shape=shape) for x in args)


FUNCTIONS |= {
    np.swapaxes: lambda a, axis1, axis2: ops.swapaxes(a, a=axis1, b=axis2),
    np.matrix_transpose: lambda x, /: ops.swapaxes(x, a=-1, b=-2),
    np.flip: lambda m, axis=None: ops.flip(m, axis=axis),
    np.flipud: lambda m: ops.flip(m, axis=0),
    np.fliplr: lambda m: ops.flip(m, axis=1),
    np.roll: lambda a, shift, axis=None: ops.roll(
        a, shift=shift if isinstance(shift, int) else tuple(np.ravel(shift).tolist()), axis=axis
    ),
    np.fft.fftshift: lambda x, axes=None: _shifted(x, axes, 1),
    np.fft.ifftshift: lambda x, axes=None: _shifted(x, axes, -1),
    np.tril: lambda m, k=0: ops.tril(m, k=k),
    np.triu: lambda m, k=0: ops.triu(m, k=k),
}


def _shifted(x: Any, axes: Any, sign: int) -> Any:
    """Half of each axis goes to its other end; of an odd one the larger half, or back."""
    along = axes_of(x, axes)
    return ops.roll(x, shift=tuple(sign * (x.shape[i] // 2) for i in along), axis=along)


@rule(np.meshgrid)
def _meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    lie = np.meshgrid(
        *(np.empty(np.size(plain(x)), bool) for x in xi), sparse=True, indexing=indexing
    )  # each along an axis of its own
    grids = tuple(ops.reshape(tensor(x), shape=at.shape) for x, at in zip(xi, lie))
    return grids if sparse else _broadcast_arrays(*grids)


@rule(np.lib.stride_tricks.sliding_window_view)
def _sliding_window_view(x, window_shape, axis=None, *, subok=False, writeable=False):
    refuse("lib.stride_tricks.sliding_window_view", writeable=writeable or None)
    x, sizes = tensor(x), np.atleast_1d(plain(window_shape)).tolist()
    np.lib.stride_tricks.sliding_window_view(
        plain(x), sizes, axis
    )  # NumPy's errors for sizes and axes that do not fit
    axes = (
        range(x.ndim)
        if axis is None
        else [normalize_axis_index(a, x.ndim) for a in np.atleast_1d(axis).tolist()]
    )
    return ops.windows(x, sizes=tuple(sizes), axes=tuple(axes))


# ---- joins and splits


def _slice(x: Any, axis: int, *bounds: Any) -> Any:
    return x[(slice(None),) * normalize_axis_index(axis, x.ndim) + (slice(*bounds),)]


def _check_casting(name: str, arrays: Any, dtype: Any, casting: Any) -> None:
    """Each of them must become the common dtype by this rule; the usual ones allow any floating dtype for another."""
    if casting in ("same_kind", "unsafe"):
        return
    dtypes = [np.asarray(plain(x)).dtype for x in arrays]
    target = np.result_type(*dtypes) if dtype is None else np.dtype(dtype)
    for given in dtypes:
        if not np.can_cast(given, target, casting):
            raise TypeError(
                f"np.{name}: {given} does not become {target} by casting={casting!r}. Leave "
                "casting out, or write "
                ".astype(dtype) first."
            )


@rule(np.concatenate)
def _concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    if out is not None:
        refuse("concatenate", out=out)
    if hasattr(axis, "shape"):
        raise TypeError(
            "np.concatenate takes the tensors in a list: np.concatenate([a, b], axis=0)."
        )
    _check_casting("concatenate", arrays, dtype, casting)
    refuse_whole("concatenate", dtype, *arrays)
    joined = ops.concatenate(*(together(arrays) if axis is None else arrays), axis=axis)
    return joined if dtype is None else cast(joined, dtype)


@rule(np.stack)
def _stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    if out is not None:
        refuse("stack", out=out)
    _check_casting("stack", arrays, dtype, casting)
    refuse_whole("stack", dtype, *arrays)
    stacked = ops.stack(*together(arrays), axis=axis)
    return stacked if dtype is None else cast(stacked, dtype)


@rule(np.vstack)
def _vstack(tup, *, dtype=None, casting="same_kind"):
    return _concatenate([_atleast_2d(x) for x in together(tup)], 0, dtype=dtype, casting=casting)


@rule(np.hstack)
def _hstack(tup, *, dtype=None, casting="same_kind"):
    parts = [ops.reshape(x, shape=(-1,)) if x.ndim == 0 else x for x in together(tup)]
    return _concatenate(parts, 0 if parts[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@rule(np.dstack)
def _dstack(tup):
    return _concatenate([_atleast_3d(x) for x in together(tup)], 2)


@rule(np.column_stack)
def _column_stack(tup):
    return _concatenate(
        [ops.reshape(x, shape=(-1, 1)) if x.ndim < 2 else x for x in together(tup)], 1
    )


@rule(np.append)
def _append(arr, values, axis=None):
    return _concatenate(
        [arr, values] if axis is not None else [_ravel(x) for x in together([arr, values])],
        axis or 0,
    )


def _numbered(parts: list[Any]) -> tuple[Any, list[np.ndarray]]:
    """All elements of all arrays in a row, and each array with their places there, for a NumPy function: `ops.arranged` of several."""
    starts = np.cumsum([0, *(x.size for x in parts)]).tolist()
    places = [np.arange(start, start + x.size).reshape(x.shape) for start, x in zip(starts, parts)]
    return _concatenate([_ravel(x) for x in parts]), places


@rule(np.block)
def _block(arrays):
    def leaves(nest):
        return [x for part in nest for x in leaves(part)] if isinstance(nest, list) else [nest]

    def put(nest):
        return list(map(put, nest)) if isinstance(nest, list) else next(places)

    elements, numbered = _numbered(together(leaves(arrays)))
    places = iter(numbered)
    return elements[np.block(put(arrays))]


@rule(np.insert)
def _insert(arr, obj, values, axis=None):
    arr, values = together([arr, values])
    refuse_among_whole("insert", arr, values)
    elements, (old, new) = _numbered([arr, cast(values, arr.dtype)])
    return elements[np.insert(old, plain(obj), new, axis)]


def _splitter(function: Callable, fixed_axis: int | None = None, least: int = 0) -> Callable:
    def split(ary, indices_or_sections, axis=0):
        if ary.ndim < least:
            raise ValueError(
                f"np.{'hvd'[least - 1]}split takes Tensors of {least} "
                f"{'axes' if least > 1 else 'axis'} or more, "
                f"got {describe(ary)}."
            )
        if fixed_axis is not None:
            axis = (
                0 if fixed_axis == ary.ndim == 1 else fixed_axis
            )  # hsplit cuts a vector along its only axis
        cuts = plain(indices_or_sections)
        if (
            np.ndim(cuts) == 0 and cuts == 0
        ):  # by which np.split, unlike np.array_split, would divide
            raise ValueError("number sections must be larger than 0.")
        places = np.arange(ary.shape[normalize_axis_index(axis, ary.ndim)])
        try:
            pieces = function(places, cuts)
        except TypeError:
            raise TypeError(
                f"{describe(ary)} is split into a whole number of parts, or at the places in a "
                "list; got "
                f"{describe(cuts)}."
            ) from None
        return [
            _slice(ary, axis, int(p[0]), int(p[-1]) + 1) if p.size else _slice(ary, axis, 0, 0)
            for p in pieces
        ]

    return split


FUNCTIONS |= {
    np.split: _splitter(np.split),
    np.array_split: _splitter(np.array_split),
    np.vsplit: _splitter(np.split, 0, 2),
    np.hsplit: _splitter(np.split, 1, 1),
    np.dsplit: _splitter(np.split, 2, 3),
}
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
        return ops.pad(array, width=width) + np.pad(
            np.zeros(array.shape, array.dtype), width or 0, constant_values=value
        )
    if mode in ("edge", "reflect", "symmetric", "wrap"):
        if kwargs.get("reflect_type") == "odd":  # its values are sums, not copies
            refuse("pad", **kwargs)
        return ops.arranged(
            np.pad, array, width or 0, mode, **kwargs
        )  # a single number has no axes to widen, and stays as it is
    raise TypeError(
        "np.pad of a Tensor knows the modes constant, edge, reflect, symmetric and wrap, not "
        f"{mode!r}. Join "
        "the parts with np.concatenate instead."
    )


def _margins(array: Any, pad_width: Any) -> tuple[tuple[int, int], ...]:
    """How many numbers go before and after each axis."""
    if isinstance(pad_width, dict):  # axis: how many; NumPy 2.3
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
def _take(a, indices, axis=None, out=None, mode="raise"):
    refuse("take", out=out)
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(
            f"np.take of a Tensor knows the modes 'raise', 'wrap' or 'clip', not {mode!r}."
        )
    if axis is None:
        a, axis = _ravel(a), 0
    axis = normalize_axis_index(axis, a.ndim)
    places, n = np.asarray(plain(indices)), a.shape[axis]
    if places.dtype == bool:  # here True is 1, and no mask
        places = places.astype(np.intp)
    if mode == "wrap":
        places = places % n
    elif mode == "clip":
        places = places.clip(0, n - 1)
    return a[(slice(None),) * axis + (places,)]


@rule(np.take_along_axis)
def _take_along_axis(arr, indices, axis=-1):
    return ops.take_along_axis(arr, indices=np.array(plain(indices)), axis=axis)


@rule(np.sort)
def _sort(a, axis=-1, kind=None, order=None, *, stable=None):
    _refuse_fields("sort", order)
    return ops.sort(a, axis)


@rule(np.partition)
def _partition(a, kth, axis=-1, kind="introselect", order=None):
    _refuse_fields("partition", order)
    return ops.partition(a, kth, axis)


def _refuse_fields(function, order):
    if order is not None:
        raise ValueError(
            f"np.{function} of a Tensor does not take order={describe(order)}, which names the "
            "fields of a record: a Tensor "
            "has none. Leave it out."
        )


@rule(np.diagonal)
def _diagonal(a, offset=0, axis1=0, axis2=1):
    return ops.arranged(np.diagonal, a, offset, axis1, axis2)


@rule(np.trace)
def _trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    refuse("trace", out=out)
    refuse_whole("trace", dtype, a)
    return ops.sum(cast(_diagonal(a, offset, axis1, axis2), dtype), axis=-1)


@rule(np.diag)
def _diag(v, k=0):
    if v.ndim not in (1, 2):
        raise ValueError(
            "np.diag makes a matrix of a vector, or takes the diagonal of a matrix; got "
            f"{describe(v)}. For the last two axes "
            "of several write np.linalg.diagonal(t)."
        )
    if v.ndim == 2:
        return _diagonal(v, k)
    along = np.arange(v.shape[0])
    n = v.shape[0] + abs(k)
    return ops.scatter(v, index=(along + max(-k, 0), along + max(k, 0)), shape=(n, n))


def _copies(function: Callable) -> Callable:
    """The rule of a function that copies elements; its other arguments are plain."""

    def copies(x, *args, **kwargs):
        return ops.arranged(
            function, tensor(x), *plain(args), **{k: plain(v) for k, v in kwargs.items()}
        )

    return copies


FUNCTIONS |= {f: _copies(f) for f in (np.rot90, np.resize, np.delete)}


def _is_count(k):
    """Is k a whole number above 0?"""
    return isinstance(k, (int, np.integer)) and k > 0


@rule(np.tile)
def _tile(A, reps):
    x, times = tensor(A), plain(reps)
    times = tuple(times) if np.ndim(times) else (times,)
    if not all(map(_is_count, times)) or max(times, default=1) == 1:
        return _copies(np.tile)(x, times)
    ndim = max(x.ndim, len(times))
    pairs = list(
        zip((1,) * (ndim - len(times)) + times, (1,) * (ndim - x.ndim) + x.shape, strict=True)
    )
    parted = ops.reshape(
        x, shape=tuple(i for _, n in pairs for i in (1, n))
    )  # (1, n, 1, m, ...), then (k, n, l, m, ...)
    return ops.reshape(
        ops.broadcast_to(parted, shape=tuple(i for pair in pairs for i in pair)),
        shape=tuple(k * n for k, n in pairs),
    )


@rule(np.repeat)
def _repeat(a, repeats, axis=None):
    x, k = tensor(a), plain(repeats)
    if axis is None:
        x, axis = _ravel(x), 0
    if not _is_count(k) or k == 1 or not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
        return _copies(np.repeat)(x, k, axis)
    axis %= x.ndim
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    spread = ops.broadcast_to(
        ops.reshape(x, shape=(*before, n, 1, *after)), shape=(*before, n, k, *after)
    )
    return ops.reshape(spread, shape=(*before, n * k, *after))


@rule(np.diagflat)
def _diagflat(v, k=0):
    return _diag(_ravel(v), k)


@rule(np.extract)
def _extract(condition, arr):
    return _ravel(arr)[np.nonzero(np.ravel(plain(condition)))[0]]


@rule(np.compress)
def _compress(condition, a, axis=None, out=None):
    return _take(a, np.nonzero(plain(condition))[0], axis, out)
