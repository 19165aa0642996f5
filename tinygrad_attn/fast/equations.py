"""Quick ways of the equations: each one op with a rule of its own, on the kernels in `kernels/`.

The rules here work on arrays alone. Where a derivative is to be differentiated again, the engine
differentiates the equation instead, the op's `twin`. What a rule returns is new memory that nobody
else holds (`fresh`). All inputs of a call have one dtype, float32 or float64, and none is empty;
for anything else there is the equation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from .. import functional as F
from .. import ops
from ..engine import Variable, context, tracked
from ..engine.kernels import kernel
from ..functional import attention as attention_text
from ..functional import basic
from ..messages.errors import is_number
from . import tuning
from .allocator import keep_freed
from .engine import QuickOp, run
from .kernels import attention as attention_kernel
from .kernels import elementwise, products, rows
from .kernels import softmax as softmax_kernel
from .kernels.rows import FAST, ones


def over_last(function: Any) -> Any:
    """The same function with the number of axes as a setting."""

    def reference(x: Any, *parameters: Any, ndim: int, eps: float) -> Any:
        return function.function(x, x.shape[-ndim:], *parameters, eps=eps)

    reference.__name__ = function.__name__
    return reference


def finite_largest(x: Any, axis: Any) -> Any:
    top = basic.largest(x, axis)
    return np.where(np.isfinite(top), top, 0)


def quick_op(equation: Any, **flags: bool) -> Callable[[Any], QuickOp]:
    """A decorator: this function on arrays, an op whose results count as those of the equation."""

    def make(forward: Any) -> QuickOp:
        twin = getattr(equation, "function", equation)
        made = QuickOp(equation, forward, reference=twin, **flags)
        return made

    return make


def fits(x: Any, *others: Any) -> bool:
    """Are these arrays of one dtype, float32 or float64, and none of them empty? None stands for no
    array.
    """
    if x.__class__ is not ndarray or x.dtype not in FAST or not x.size:
        return False
    for other in others:
        if other is not None and (
            other.__class__ is not ndarray or other.dtype != x.dtype or not other.size
        ):
            return False
    return True


def plain_values(inputs: tuple) -> tuple:
    """The arrays of tensors, everything else as it is."""
    return tuple([x._data if isinstance(x, Variable) else x for x in inputs])


def _matrix(x: ndarray) -> ndarray:
    """x as a contiguous matrix of its last axis; products with broadcast numbers are slow."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


# ---- activations and softmax


@quick_op(basic.gelu, saves=True)
def gelu(x, *, approximate="none"):
    """gelu(x) = x P(n <= x), n standard normal"""
    return elementwise.gelu(x, tanh=approximate == "tanh")


@gelu.vjp_all
def _gelu(g, y, x, *, approximate, saved):
    return (elementwise.gelu_backward(g, x, saved, tanh=approximate == "tanh"),)


def _along(kernel: Any, axis: int, g: ndarray, y: ndarray) -> ndarray:
    """A rule on rows, applied along any axis: in which order the others stand does not matter."""
    rows = y.swapaxes(axis, -1)
    dx = kernel(_matrix(g.swapaxes(axis, -1)), _matrix(rows))
    return dx.reshape(rows.shape).swapaxes(axis, -1)


@quick_op(basic.softmax)
def softmax(x, *, axis=-1):
    """softmax(x)_i = e^x_i / sum_j e^x_j"""
    rows = x.swapaxes(axis, -1)
    return softmax_kernel.softmax(_matrix(rows)).reshape(rows.shape).swapaxes(axis, -1)


@softmax.vjp_all
def _softmax(g, y, x, *, axis):
    return (_along(softmax_kernel.softmax_backward, axis, g, y),)


@quick_op(basic.log_softmax)
def log_softmax(x, *, axis=-1):
    """log_softmax(x)_i = x_i - log sum_j e^x_j"""
    rows = x.swapaxes(axis, -1)
    return softmax_kernel.log_softmax(_matrix(rows)).reshape(rows.shape).swapaxes(axis, -1)


@log_softmax.vjp_all
def _log_softmax(g, y, x, *, axis):
    return (_along(softmax_kernel.log_softmax_backward, axis, g, y),)


@quick_op(basic.logsumexp, saves=True)
def logsumexp(x, *, axis, keepdims=False):
    """logsumexp(x) = log sum_j e^x_j over the axis or axes"""
    top = finite_largest(x, axis)
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


@quick_op(basic.label_cross_entropy, saves=True)
def cross_entropy(
    x, weight=None, *, target, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    """-weight_t log_softmax(x)_t for class indices t. The class weights are constants: no gradient
    reaches them.
    """
    labels, seen = softmax_kernel.usable(target.reshape(-1), ignore_index)
    loss, sums = softmax_kernel.cross_entropy(
        _classes_last(x), labels, weight, seen=seen, smoothing=label_smoothing
    )
    if reduction == "none":
        return loss.reshape(target.shape), (labels, seen, sums, None)
    y, total = loss.sum(), None
    if reduction == "mean":
        counted = labels if seen is None else labels[seen]
        total = counted.size if weight is None else weight[counted].sum()
        total = x.dtype.type(total or np.nan)  # all ignored: NaN, as in PyTorch
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
    n = x.shape[-1] if ndim == 1 else math.prod(x.shape[-ndim:])
    return np.ascontiguousarray(x).reshape(-1, n)


@quick_op(over_last(basic.layer_norm), saves=True)
def layer_norm(x, weight=None, bias=None, *, ndim=1, eps=1e-5):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last `ndim` axes"""
    weight = weight if weight is None else weight.reshape(-1)
    bias = bias if bias is None else bias.reshape(-1)
    y, saved = rows.norm(_rows_of(x, ndim), weight, bias, eps=eps)
    return y.reshape(x.shape), saved


@layer_norm.vjp_all
def _layer_norm(g, y, x, weight=None, bias=None, *, ndim, eps, saved, needs):
    flat = weight if weight is None else weight.reshape(-1)
    dx, dweight, dbias = rows.norm_backward(
        _rows_of(g, ndim), _rows_of(x, ndim), flat, saved, *needs[1:]
    )
    if ndim > 1:
        dweight = dweight if dweight is None else dweight.reshape(weight.shape)
        dbias = dbias if dbias is None else dbias.reshape(bias.shape)
    return dx.reshape(x.shape), dweight, dbias


@quick_op(over_last(basic.rms_norm), saves=True)
def rms_norm(x, weight=None, *, ndim=1, eps=1e-5):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last `ndim` axes"""
    weight = weight if weight is None else weight.reshape(-1)
    y, saved = rows.norm(_rows_of(x, ndim), weight, None, eps=eps, center=False)
    return y.reshape(x.shape), saved


@rms_norm.vjp_all
def _rms_norm(g, y, x, weight=None, *, ndim, eps, saved, needs):
    flat = weight if weight is None else weight.reshape(-1)
    dx, dweight, _ = rows.norm_backward(
        _rows_of(g, ndim), _rows_of(x, ndim), flat, saved, *needs[1:]
    )
    return dx.reshape(x.shape), None if dweight is None else dweight.reshape(weight.shape)


# ---- dropout


@quick_op(basic.apply_dropout)
def dropout(x, *, keep, p):
    """y = x keep / (1 - p), where `keep`, booleans of x's shape, was drawn before"""
    return elementwise.dropout(x, keep, p)


@dropout.vjp_all
def _dropout(g, y, x, *, keep, p):
    return (elementwise.dropout(g, keep, p),)


# ---- linear


@quick_op(basic.linear)
def linear(x, weight, bias=None):
    """y = x weight^T + bias: (..., I), (O, I), (O,) -> (..., O)"""
    y = products.linear(np.ascontiguousarray(x).reshape(-1, x.shape[-1]), weight, bias)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], len(weight))


@linear.vjp_all
def _linear(g, y, x, weight, bias=None, *, needs):
    dx, dweight, dbias = products.linear_backward(_matrix(g), _matrix(x), weight, *needs)
    return dx if dx is None or x.ndim == 2 else dx.reshape(x.shape), dweight, dbias


# ---- attention


def _heads_inside(shape: tuple[int, ...], dtype: Any) -> ndarray:
    """An empty (..., H, T, D) that lies in memory as (..., T, H, D), so that merging the heads
    copies nothing.
    """
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


@quick_op(attention_text.attention, broadcasts=True, saves=True)
def attention(q, k, v, mask=None, *, scale, is_causal=False, keep=None, keep_scale=1.0):
    """(softmax(q k^T scale + mask) keep keep_scale) v: (..., T, D), (..., S, D), (..., S, V) ->
    (..., T, V)
    """
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
        recorded=context.recording,
    )


@attention.vjp_all
def _attention(g, y, q, k, v, mask=None, *, scale, is_causal, keep, keep_scale, saved, needs):
    q, k, v = _broadcast_heads(q, k, v, mask)
    dq, dk, dv = (_heads_inside(x.shape, x.dtype) for x in (q, k, v))
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
        mask_shape=mask.shape if needs[3:] == (True,) else None,  # without a mask: three needs
        dq=dq,
        dk=dk,
        dv=dv,
    )


@quick_op(attention_text.attention_weights, broadcasts=True)
def attention_weights(q, k, mask=None, *, scale, is_causal=False):
    """softmax(q k^T scale + mask): (..., T, D), (..., S, D) -> (..., T, S)"""
    q, k, _ = _broadcast_heads(q, k, k, mask)
    return attention_kernel.attention_weights(q, k, scale=scale, mask=mask, causal=is_causal)


@attention_weights.vjp_all
def _attention_weights(g, y, q, k, mask=None, *, scale, is_causal, needs):
    ds = softmax_kernel.softmax_backward(_matrix(g), _matrix(y)).reshape(y.shape)
    factor = y.dtype.type(scale)
    dq, dk = products.product(ds, k), products.product(ds.mT, q)
    return dq * factor, dk * factor, ds if needs[2:] == (True,) else None


def _heads_of(packed: ndarray, num_heads: int) -> ndarray:
    """(B, T, 3 H D) -> (3, B, H, T, D), a view, as `basic.unpack_heads`."""
    b, t, width = packed.shape
    return packed.reshape(b, t, 3, num_heads, width // (3 * num_heads)).transpose(2, 0, 3, 1, 4)


@quick_op(attention_text.packed_attention, saves=True)
def packed_attention(
    packed, mask=None, *, num_heads, scale, is_causal=False, keep=None, keep_scale=1.0
):
    """Self-attention of queries, keys and values side by side as one projection made them: (B, T, 3
    H D) -> (B, T, H D)
    """
    b, t, width = packed.shape
    y = np.empty((b, t, width // 3), packed.dtype)
    _, saved = attention_kernel.attention(
        *_heads_of(np.ascontiguousarray(packed), num_heads),
        scale=scale,
        mask=mask,
        causal=is_causal,
        keep=keep,
        keep_scale=keep_scale,
        out=y.reshape(b, t, num_heads, -1).swapaxes(1, 2),
        recorded=context.recording,
    )
    return y, saved


@packed_attention.vjp_all
def _packed_attention(
    g, y, packed, mask=None, *, num_heads, scale, is_causal, keep, keep_scale, saved, needs
):
    heads = (*packed.shape[:2], num_heads, -1)
    dpacked = np.empty(packed.shape, packed.dtype)
    dq, dk, dv = _heads_of(dpacked, num_heads)
    *_, dmask = attention_kernel.attention_backward(
        np.ascontiguousarray(g).reshape(heads).swapaxes(1, 2),
        np.ascontiguousarray(y).reshape(heads).swapaxes(1, 2),
        *_heads_of(np.ascontiguousarray(packed), num_heads),
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


# ---- when they fit


@kernel(F.gelu)
def quick_gelu(x: Any, approximate: str = "none") -> Any:
    """Of arrays with axes."""
    a = x._data if isinstance(x, Variable) else x
    if not fits(a) or not a.ndim or approximate not in ("none", "tanh"):
        return NotImplemented
    return run(gelu, (x,), (a,), {"approximate": approximate})


def along_an_axis(fused: QuickOp) -> Callable[..., Any]:
    """The quick way by an op that works along an axis: where that axis is there, and no long rows
    lie beside each other along it, which NumPy adds up sooner than they could be turned.
    """

    def quick(x: Any, axis: int = -1) -> Any:
        a = x._data if isinstance(x, Variable) else x
        if not fits(a) or axis.__class__ is not int or not -a.ndim <= axis < a.ndim:
            return NotImplemented
        if axis != -1 and math.prod(a.shape[axis % a.ndim + 1 :]) >= tuning.SIDE_BY_SIDE:
            return NotImplemented
        return run(fused, (x,), (a,), {"axis": axis})

    return quick


kernel(F.softmax)(along_an_axis(softmax))
kernel(F.log_softmax)(along_an_axis(log_softmax))


@kernel(F.logsumexp)
def quick_logsumexp(x: Any, axis: Any, keepdims: bool = False) -> Any:
    """Over axes that are there, each once."""
    a = x._data if isinstance(x, Variable) else x
    axes = axis if axis.__class__ is tuple else (axis,)
    if not fits(a) or keepdims.__class__ is not bool or not a.ndim:
        return NotImplemented
    if not all([n.__class__ is int and -a.ndim <= n < a.ndim for n in axes]):
        return NotImplemented
    if len({n % a.ndim for n in axes}) < len(axes):
        return NotImplemented
    return run(logsumexp, (x,), (a,), {"axis": axis, "keepdims": keepdims})


def _is_number(eps: Any) -> bool:
    """A real number of Python's or NumPy's; booleans and tensors are left to what complains."""
    if isinstance(eps, ndarray):
        return eps.ndim == 0 and eps.dtype.kind in "fiu"
    return is_number(eps)


def _normalised(op: QuickOp, x: Any, normalized_shape: Any, parameters: tuple, eps: Any) -> Any:
    """Where the shape is that of the last axes and of the parameters."""
    inputs = (x, *parameters)
    arrays = plain_values(inputs)
    shape = (normalized_shape,) if normalized_shape.__class__ is int else normalized_shape
    if not fits(*arrays) or shape.__class__ is not tuple or not shape:
        return NotImplemented
    if eps.__class__ is not float:
        if not (eps is None or _is_number(eps)):
            return NotImplemented
        eps = float(np.finfo(arrays[0].dtype).eps if eps is None else eps)
    if arrays[0].shape[-len(shape) :] != shape:
        return NotImplemented
    for array in arrays[1:]:
        if array is not None and array.shape != shape:
            return NotImplemented
    return run(op, inputs, arrays, {"ndim": len(shape), "eps": eps})


@kernel(F.layer_norm)
def quick_layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> Any:
    """Where eps is a number: F.layer_norm itself refuses None."""
    if eps is None:
        return NotImplemented
    return _normalised(layer_norm, x, normalized_shape, (weight, bias), eps)


@kernel(F.rms_norm)
def quick_rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """Where eps is a number, or None for the eps of the dtype."""
    return _normalised(rms_norm, x, normalized_shape, (weight,), eps)


@kernel(F.linear)
def quick_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Of the shapes (..., I), (O, I) and (O,)."""
    a = x._data if isinstance(x, Variable) else x
    w = weight._data if isinstance(weight, Variable) else weight
    b = bias._data if isinstance(bias, Variable) else bias
    if not (a.__class__ is w.__class__ is ndarray and a.dtype == w.dtype and a.dtype in FAST):
        return NotImplemented
    if w.ndim != 2 or a.shape[-1:] != w.shape[1:] or not (a.size and w.size):
        return NotImplemented
    if b is not None and (
        b.__class__ is not ndarray or b.dtype != a.dtype or b.shape != w.shape[:1]
    ):
        return NotImplemented
    keep_freed()
    return run(linear, (x, weight, bias), (a, w, b), {})


@kernel(basic.apply_dropout)
def quick_dropout(x: Any, *, keep: Any, p: float) -> Any:
    """Of arrays that are not empty."""
    a = x._data if isinstance(x, Variable) else x
    return run(dropout, (x,), (a,), {"keep": keep, "p": p}) if fits(a) else NotImplemented


@kernel(basic.label_cross_entropy)
def quick_cross_entropy(
    x: Any,
    weight: Any = None,
    *,
    target: Any,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Where no gradient by the class weights is wanted."""
    arrays = plain_values((x, weight))
    if tracked(weight) or not fits(*arrays):
        return NotImplemented
    settings = dict(
        target=target,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return run(cross_entropy, (x, weight), arrays, settings)


@kernel(attention_text.attention)
def quick_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    scale: float,
    is_causal: bool = False,
    keep: Any = None,
    keep_scale: float = 1.0,
) -> Any:
    """Of three arrays of one dtype; the mask is boolean or of that dtype."""
    arrays = plain_values((q, k, v, mask))
    if not fits(*arrays[:3]):
        return NotImplemented
    settings = dict(scale=scale, is_causal=is_causal, keep=keep, keep_scale=keep_scale)
    return run(attention, (q, k, v, mask), arrays, settings)


@kernel(attention_text.attention_weights)
def quick_attention_weights(
    q: Any, k: Any, mask: Any = None, *, scale: float, is_causal: bool = False
) -> Any:
    """Of two arrays of one dtype."""
    arrays = plain_values((q, k, mask))
    if not fits(*arrays[:2]):
        return NotImplemented
    return run(attention_weights, (q, k, mask), arrays, {"scale": scale, "is_causal": is_causal})


@kernel(attention_text.packed_attention)
def quick_packed_attention(
    packed: Any,
    mask: Any = None,
    *,
    num_heads: int,
    scale: float,
    is_causal: bool = False,
    keep: Any = None,
    keep_scale: float = 1.0,
) -> Any:
    """Of an array that is not empty."""
    arrays = plain_values((packed, mask))
    if not fits(arrays[0]):
        return NotImplemented
    settings = dict(
        num_heads=num_heads, scale=scale, is_causal=is_causal, keep=keep, keep_scale=keep_scale
    )
    return run(packed_attention, (packed, mask), arrays, settings)
