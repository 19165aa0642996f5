"""Ops with a derivative worked out by hand: what a Transformer spends its time in, each as one node of the graph.

A composite such as softmax leaves a node, and an array as large as its input, for every step.  These ops do the same in
one step, on the kernels in `kernels/`, which also say how.  The rules here work on arrays alone; where a derivative is to
be differentiated again, the engine goes through the `twin`, the composite in `reference.py` that says what each op means.
Every gradient is an array of its own (`fresh`), so the engine need not copy it.  All inputs of a call have one dtype,
float32 or float64: `fits` tells, and for anything else there is the composite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray

from .. import ops
from ..engine import Variable, local, op
from ..functional import equations as reference
from .kernels import attention as attention_kernel
from .kernels import dropout as dropout_kernel
from .kernels import gelu as gelu_kernel
from .kernels import linear as linear_kernel
from .kernels import norm as norm_kernel
from .kernels import sigmoid as sigmoid_kernel
from .kernels import softmax as softmax_kernel
from .kernels.memory import contiguous
from .kernels.rows import FAST
from .kernels.scores import QUIET, ones

LONG = 128  # numbers in a row, from where NumPy's sums over rows are fast


def fits(x: Any, *others: Any) -> bool:
    """Can the fused ops take these operands: arrays of one fast dtype, and none of them empty?"""
    array = x._data if isinstance(x, Variable) else x
    dtype = array.dtype
    if dtype not in FAST or not array.size:
        return False
    for other in others:
        array = other._data if isinstance(other, Variable) else other
        if other is not None and (array.dtype != dtype or not array.size):
            return False
    return True


def fits_linear(x: Any, weight: Any, bias: Any) -> bool:
    """Does `fits` hold, and have they the shapes (..., I), (O, I) and (O,)? A linear layer is called so often that one look must do."""
    a = x._data if isinstance(x, Variable) else x
    w = weight._data if isinstance(weight, Variable) else weight
    b = bias._data if isinstance(bias, Variable) else bias
    if not (
        a.__class__ is w.__class__ is ndarray
        and a.dtype == w.dtype
        and a.dtype in FAST
        and a.size
        and w.size
    ):
        return False
    if w.ndim != 2 or a.shape[-1:] != w.shape[1:]:
        return False
    return b is None or b.__class__ is ndarray and b.dtype == a.dtype and b.shape == w.shape[:1]


def fits_norm(x: Any, shape: Any, *parameters: Any) -> bool:
    """Does `fits` hold, and is the shape a tuple that x's shape ends with and that the parameters have? Likewise one look."""
    a = x._data if isinstance(x, Variable) else x
    if not (
        a.__class__ is ndarray and a.dtype in FAST and a.size and shape.__class__ is tuple and shape
    ):
        return False
    if a.shape[-len(shape) :] != shape:
        return False
    for parameter in parameters:
        p = parameter._data if isinstance(parameter, Variable) else parameter
        if p is not None and not (
            p.__class__ is ndarray and p.dtype == a.dtype and p.shape == shape
        ):
            return False
    return True


def _matrix(x: ndarray) -> ndarray:
    """x as a contiguous matrix of its last axis. A cotangent may be one number, broadcast; products with that are slow."""
    x = contiguous(x)
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


# ---- activations and softmax


@op(saves=True, fresh=True, twin=reference.gelu_reference)
def gelu(x, *, approximate="none"):
    """gelu(x) = x P(n <= x), n standard normal"""
    return gelu_kernel.gelu(x, tanh=approximate == "tanh")


@gelu.vjp_all
def _gelu(g, y, x, *, approximate, saved):
    return (gelu_kernel.gelu_backward(g, x, saved, tanh=approximate == "tanh"),)


@op(saves=True, fresh=True, twin=reference.silu_reference)
def silu(x):
    """silu(x) = x / (1 + e^-x)"""
    return sigmoid_kernel.silu(x)


@silu.vjp_all
def _silu(g, y, x, *, saved):
    return (sigmoid_kernel.silu_backward(g, x, saved),)


def _along(kernel: Any, axis: int, *arrays: ndarray) -> ndarray:
    """A kernel on rows, applied along any axis."""
    if axis in (-1, arrays[0].ndim - 1):  # moveaxis takes as long as the softmax of a short row
        return kernel(*map(_matrix, arrays)).reshape(arrays[0].shape)
    moved = [np.moveaxis(a, axis, -1) for a in arrays]
    return np.moveaxis(kernel(*map(_matrix, moved)).reshape(moved[0].shape), -1, axis)


def _side_by_side(x: ndarray, axis: int) -> bool:
    """Do long rows lie beside each other, of which the axis counts the rows? NumPy adds those up sooner than they could be turned."""
    return axis not in (-1, x.ndim - 1) and math.prod(x.shape[axis % x.ndim + 1 :]) >= LONG


@op(fresh=True, twin=reference.softmax_reference)
def softmax(x, *, axis=-1):
    """softmax(x)_i = e^x_i / sum_j e^x_j"""
    if not _side_by_side(x, axis):
        return _along(softmax_kernel.softmax, axis, x)
    with np.errstate(**QUIET):
        return reference.softmax_reference(x, axis=axis)


@softmax.vjp_all
def _softmax(g, y, x, *, axis):
    if not _side_by_side(x, axis):
        return (_along(softmax_kernel.softmax_backward, axis, g, y),)
    return (y * (g - (g * y).sum(axis, keepdims=True)),)


@op(fresh=True, twin=reference.log_softmax_reference)
def log_softmax(x, *, axis=-1):
    """log_softmax(x)_i = x_i - log sum_j e^x_j"""
    if not _side_by_side(x, axis):
        return _along(softmax_kernel.log_softmax, axis, x)
    with np.errstate(**QUIET):
        return reference.log_softmax_reference(x, axis=axis)


@log_softmax.vjp_all
def _log_softmax(g, y, x, *, axis):
    if not _side_by_side(x, axis):
        return (_along(softmax_kernel.log_softmax_backward, axis, g, y),)
    return (g - np.exp(y) * g.sum(axis, keepdims=True),)


@op(saves=True, fresh=True, twin=reference.logsumexp_reference)
def logsumexp(x, *, axis, keepdims=False):
    """logsumexp(x) = log sum_j e^x_j over the axis or axes"""
    top = reference.finite_largest(x, axis)
    e = np.exp(x - top)
    total = ops.sum(e, axis=axis, keepdims=True)
    with np.errstate(divide="ignore"):
        y = np.log(total) + top
    return y if keepdims else y.squeeze(axis), (e, total)


@logsumexp.vjp_all
def _logsumexp(g, y, x, *, axis, keepdims, saved):
    e, total = saved
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 in a row of nothing but -inf
        return (e * ((g if keepdims else np.expand_dims(g, axis)) / total),)


# ---- cross-entropy


@op(saves=True, fresh=True, twin=reference.cross_entropy_reference)
def cross_entropy(
    x, weight=None, *, target, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    """-weight_t log_softmax(x)_t for class indices t. The class weights are constants: no gradient reaches them."""
    labels, seen = softmax_kernel.usable(target.reshape(-1), ignore_index)
    loss, sums = softmax_kernel.cross_entropy(
        _classes_last(x), labels, weight, seen=seen, smoothing=label_smoothing
    )
    if reduction == "none":
        return loss.reshape(target.shape), (labels, seen, sums, None)
    y, total = loss.sum(), None
    if reduction == "mean":
        counted = labels if seen is None else labels[seen]
        total = x.dtype.type(
            (counted.size if weight is None else weight[counted].sum()) or np.nan
        )  # all ignored: NaN, as in PyTorch
        y = y / total
    return y, (labels, seen, sums, total)


@cross_entropy.vjp_all
def _cross_entropy(
    g, y, x, weight=None, *, target, ignore_index, reduction, label_smoothing, saved
):
    labels, seen, sums, total = saved
    if total is not None:
        g = g / total
    each = g.reshape(-1) if reduction == "none" else ones(labels.size, x.dtype) * g
    dx = softmax_kernel.cross_entropy_backward(
        each, _classes_last(x), labels, sums, weight, seen=seen, smoothing=label_smoothing
    )
    if x.ndim > 2:
        dx = np.moveaxis(dx.reshape(x.shape[0], *x.shape[2:], x.shape[1]), -1, 1)
    return dx.reshape(x.shape), None


def _classes_last(x: ndarray) -> ndarray:
    """(C,) or (N, C) or (N, C, d1, ...) -> (N d1 ..., C)"""
    return _matrix(x if x.ndim <= 2 else x.reshape(*x.shape[:2], -1).swapaxes(1, 2))


# ---- normalisation


def _rows_of(x: ndarray, ndim: int) -> ndarray:
    """The last `ndim` axes as one row."""
    return _matrix(x if ndim == 1 else x.reshape(*x.shape[:-ndim], -1))


def _flat(x: ndarray | None) -> ndarray | None:
    return x if x is None or x.ndim == 1 else x.reshape(-1)


@op(saves=True, fresh=True, twin=reference.layer_norm_reference)
def layer_norm(x, weight=None, bias=None, *, ndim=1, eps=1e-5):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last `ndim` axes"""
    y, saved = norm_kernel.norm(_rows_of(x, ndim), _flat(weight), _flat(bias), eps=eps)
    return y.reshape(x.shape), saved


@layer_norm.vjp_all
def _layer_norm(g, y, x, weight=None, bias=None, *, ndim, eps, saved, needs):
    dx, dweight, dbias = norm_kernel.norm_backward(
        _rows_of(g, ndim), _rows_of(x, ndim), _flat(weight), saved, *needs[1:]
    )
    if ndim > 1:
        dweight, dbias = (
            None if d is None else d.reshape(x.shape[-ndim:]) for d in (dweight, dbias)
        )
    return dx.reshape(x.shape), dweight, dbias


@op(saves=True, fresh=True, twin=reference.rms_norm_reference)
def rms_norm(x, weight=None, *, ndim=1, eps=1e-5):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last `ndim` axes"""
    y, saved = norm_kernel.norm(_rows_of(x, ndim), _flat(weight), None, eps=eps, center=False)
    return y.reshape(x.shape), saved


@rms_norm.vjp_all
def _rms_norm(g, y, x, weight=None, *, ndim, eps, saved, needs):
    dx, dweight, _ = norm_kernel.norm_backward(
        _rows_of(g, ndim), _rows_of(x, ndim), _flat(weight), saved, *needs[1:]
    )
    return dx.reshape(x.shape), None if dweight is None else dweight.reshape(weight.shape)


# ---- dropout


@op(fresh=True, twin=reference.dropout_reference)
def dropout(x, *, keep, p):
    """y = x keep / (1 - p), where `keep`, booleans of x's shape, was drawn before"""
    return dropout_kernel.dropout(x, keep, p)


@dropout.vjp_all
def _dropout(g, y, x, *, keep, p):
    return (dropout_kernel.dropout(g, keep, p),)


# ---- linear


@op(fresh=True, twin=reference.linear_reference)
def linear(x, weight, bias=None):
    """y = x weight^T + bias: (..., I), (O, I), (O,) -> (..., O)"""
    y = linear_kernel.linear(_matrix(x), weight, bias)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], len(weight))


@linear.vjp_all
def _linear(g, y, x, weight, bias=None, *, needs):
    dx, dweight, dbias = linear_kernel.linear_backward(_matrix(g), _matrix(x), weight, *needs)
    return dx if dx is None or x.ndim == 2 else dx.reshape(x.shape), dweight, dbias


# ---- attention


def _heads_inside(shape: tuple[int, ...], dtype: Any) -> ndarray:
    """An empty (..., H, T, D) that lies in memory as (..., T, H, D), so that merging the heads copies nothing."""
    if len(shape) < 3:
        return np.empty(shape, dtype)
    *lead, h, t, d = shape
    return np.empty((*lead, t, h, d), dtype).swapaxes(-2, -3)


def _broadcast_heads(q: ndarray, k: ndarray, v: ndarray, mask: ndarray | None) -> list[ndarray]:
    """Views of q, k and v with equal leading axes."""
    if q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and (mask is None or mask.ndim <= 2):
        return [q, k, v]
    lead = np.broadcast_shapes(
        *(x.shape[:-2] for x in (q, k, v)), () if mask is None else mask.shape[:-2]
    )
    return [
        x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v)
    ]


@op(broadcasts=True, saves=True, fresh=True, twin=reference.scaled_dot_product_attention_reference)
def attention(q, k, v, mask=None, *, scale, is_causal=False, keep=None, keep_scale=1.0):
    """(softmax(q k^T scale + mask) keep keep_scale) v: (..., T, D), (..., S, D), (..., S, V) -> (..., T, V)"""
    q, k, v = _broadcast_heads(q, k, v, mask)
    out = _heads_inside((*q.shape[:-1], v.shape[-1]), q.dtype)
    return attention_kernel.attention(
        q,
        k,
        v,
        scale=scale,
        mask=mask,
        causal=is_causal,
        keep=keep,
        keep_scale=keep_scale,
        out=out,
        recorded=local.context.recording,
    )


@attention.vjp_all
def _attention(g, y, q, k, v, mask=None, *, scale, is_causal, keep, keep_scale, saved, needs):
    q, k, v = _broadcast_heads(q, k, v, mask)
    dq, dk, dv = (_heads_inside(x.shape, x.dtype) for x in (q, k, v))
    mask_shape = (
        mask.shape if needs[3:] == (True,) else None
    )  # without a mask there are three needs
    return attention_kernel.attention_backward(
        g,
        y,
        q,
        k,
        v,
        saved,
        scale=scale,
        keep=keep,
        keep_scale=keep_scale,
        mask_shape=mask_shape,
        dq=dq,
        dk=dk,
        dv=dv,
    )


@op(broadcasts=True, fresh=True, twin=reference.attention_weights_reference)
def attention_weights(q, k, mask=None, *, scale, is_causal=False):
    """softmax(q k^T scale + mask): (..., T, D), (..., S, D) -> (..., T, S)"""
    q, k, _ = _broadcast_heads(q, k, k, mask)
    return attention_kernel.attention_weights(q, k, scale=scale, mask=mask, causal=is_causal)


@attention_weights.vjp_all
def _attention_weights(g, y, q, k, mask=None, *, scale, is_causal, needs):
    ds = softmax_kernel.softmax_backward(_matrix(g), _matrix(y)).reshape(y.shape)
    factor = y.dtype.type(scale)
    dq, dk = linear_kernel.product(ds, k), linear_kernel.product(ds.mT, q)
    return dq * factor, dk * factor, ds if needs[2:] == (True,) else None


@op(saves=True, fresh=True, twin=reference.packed_attention_reference)
def packed_attention(
    packed, mask=None, *, num_heads, scale, is_causal=False, keep=None, keep_scale=1.0
):
    """Self-attention of queries, keys and values side by side as one projection made them: (B, T, 3 H D) -> (B, T, H D)"""
    b, t, width = packed.shape
    packed = np.ascontiguousarray(packed)
    q, k, v = reference.unpack_heads(packed, num_heads)
    y = np.empty((b, t, width // 3), packed.dtype)
    _, saved = attention_kernel.attention(
        q,
        k,
        v,
        scale=scale,
        mask=mask,
        causal=is_causal,
        keep=keep,
        keep_scale=keep_scale,
        out=y.reshape(b, t, num_heads, -1).swapaxes(1, 2),
        recorded=local.context.recording,
    )
    return y, saved


@packed_attention.vjp_all
def _packed_attention(
    g, y, packed, mask=None, *, num_heads, scale, is_causal, keep, keep_scale, saved, needs
):
    b, t, width = packed.shape
    dpacked = np.empty(packed.shape, packed.dtype)
    q, k, v = reference.unpack_heads(np.ascontiguousarray(packed), num_heads)
    dq, dk, dv = reference.unpack_heads(dpacked, num_heads)
    g, y = (np.ascontiguousarray(x).reshape(b, t, num_heads, -1).swapaxes(1, 2) for x in (g, y))
    *_, dmask = attention_kernel.attention_backward(
        g,
        y,
        q,
        k,
        v,
        saved,
        scale=scale,
        keep=keep,
        keep_scale=keep_scale,
        mask_shape=mask.shape if needs[1:] == (True,) else None,
        dq=dq,
        dk=dk,
        dv=dv,
    )
    return dpacked, dmask


# What these rules return has the shape and the dtype of its input, so the sweep does not ask each array.
for _op in (gelu, silu, softmax, log_softmax, layer_norm, rms_norm, linear):
    _op.exact = _op.joint
del _op
