"""The specification: every function of `functional` as a composite of ops, with no derivative rule
of its own.

These are the equations as a textbook has them, right in the corner cases (rows of -inf, rows with
nothing to look at, ignored targets, axes of size 0), and differentiable to any order because the
ops are. The fused ops are held equal to them by tests, and take their higher derivatives from them.
Arguments are already checked: `functional` does that. Given arrays they return arrays, given a
Tensor anywhere they return a Tensor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops
from ..engine import array_of, reference
from ..ops.shapes import float16_in_float32

Axis = int | tuple[int, ...]


# ---- activations


@float16_in_float32
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """gelu(x) = x P(n <= x), n standard normal: x (1 + erf(x / sqrt 2)) / 2, or its tanh
    approximation.
    """
    if approximate == "tanh":
        return 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))


@float16_in_float32
def silu(x: Any) -> Any:
    """silu(x) = x / (1 + e^-x)"""
    return x * ops.sigmoid(x)


# ---- softmax and its logarithms


def _largest(x: Any, axis: Axis | None) -> Any:
    """The maximum along the axis, a constant to the derivative: it keeps exp in range and cancels
    in the result.
    """
    array = array_of(x)
    return (
        ops.max(array, axis=axis, keepdims=True)
        if array.size
        else array.max(axis=axis, keepdims=True, initial=-math.inf)
    )


def finite_largest(x: Any, axis: Axis | None) -> Any:
    """The same where it is finite, else 0: inf - inf would be NaN."""
    top = _largest(x, axis)
    return np.where(np.isfinite(top), top, 0)


def _as_row(function: Any, x: Any) -> Any:
    """A single number counts as a row of one, as in PyTorch."""
    return ops.reshape(function(ops.reshape(x, shape=(1,)), axis=0), shape=())


@float16_in_float32
def softmax(x: Any, *, axis: int = -1) -> Any:
    """softmax(x)_i = e^x_i / sum_j e^x_j"""
    if x.ndim == 0:
        return _as_row(softmax, x)
    e = ops.exp(x - _largest(x, axis))
    totals = e.sum(axis=axis, keepdims=True)
    return e / totals


@float16_in_float32
def log_softmax(x: Any, *, axis: int = -1) -> Any:
    """log_softmax(x)_i = x_i - log sum_j e^x_j"""
    if x.ndim == 0:
        return _as_row(log_softmax, x)
    shifted = x - _largest(x, axis)
    return shifted - ops.log(ops.exp(shifted).sum(axis=axis, keepdims=True))


@float16_in_float32
def logsumexp(x: Any, *, axis: Axis | None = None, keepdims: bool = False) -> Any:
    """logsumexp(x) = log sum_j e^x_j; -inf for nothing or for nothing but -inf."""
    if x.ndim == 0:
        return _as_row(logsumexp, x)
    top = finite_largest(x, axis)
    with np.errstate(divide="ignore"):
        y = ops.log(ops.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return y if keepdims else ops.reshape(y, shape=array_of(x).sum(axis=axis).shape)


# ---- normalisation


def _root_mean_square(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    """sqrt(mean(x^2) + eps)"""
    return ops.sqrt((x * x).mean(axis=axes, keepdims=True) + eps)


@float16_in_float32
def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, ndim: int = 1, eps: float = 1e-5
) -> Any:
    """y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over the last `ndim`
    axes.
    """
    axes = tuple(range(-ndim, 0))
    centred = x - x.mean(axis=axes, keepdims=True)
    centred = centred - centred.mean(axis=axes, keepdims=True)  # what rounding left of the mean
    deviation = _root_mean_square(centred, axes, eps)
    normalised = centred / deviation
    y = normalised if weight is None else normalised * weight
    return y if bias is None else y + bias


@float16_in_float32
def rms_norm(x: Any, weight: Any = None, *, ndim: int = 1, eps: float = 1e-5) -> Any:
    """y = x / sqrt(mean(x^2) + eps) * weight, the mean over the last `ndim` axes."""
    axes = tuple(range(-ndim, 0))
    size = _root_mean_square(x, axes, eps)
    normalised = x / size
    return normalised if weight is None else normalised * weight


# ---- tables and products


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x weight^T + bias: (..., I), (O, I), (O,) -> (..., O)"""
    y = ops.matmul(x, weight.T)
    return y if bias is None else y + bias


def embedding(weight: Any, *, indices: np.ndarray, padding_idx: int | None = None) -> Any:
    """y = weight[indices]; no gradient flows to the row `padding_idx`."""
    y = ops.embedding(weight, indices=indices)
    if padding_idx is None:
        return y
    return ops.where((indices == padding_idx)[..., None], array_of(weight)[padding_idx], y)


@reference
def dropout(x: Any, *, keep: np.ndarray, p: float) -> Any:
    """y = x keep / (1 - p), where each element of `keep` was drawn to be True with probability 1 -
    p.
    """
    return x * (keep / array_of(x).dtype.type(1 - p)) if p < 1 else x * 0.0


# ---- losses


def reduce(losses: Any, reduction: str) -> Any:
    """The mean or the sum of the losses, or with "none" the losses themselves."""
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def mse_loss(x: Any, y: Any, *, reduction: str = "mean") -> Any:
    """(x - y)^2, reduced"""
    return reduce(ops.square(x - y), reduction)


@reference
@float16_in_float32
def cross_entropy(
    x: Any,
    weight: Any = None,
    *,
    target: np.ndarray,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """-weight_t log_softmax(x)_t for class indices t; the mean divides by the weights of the
    targets that count.

    x (N, C, ...) or (C,), target (N, ...) or (). Label smoothing mixes in the average of the same
    loss over all classes.
    """
    axis = min(1, x.ndim - 1)
    classes = x.shape[axis]
    ignored = target == ignore_index
    # The scores of ignored samples do not matter; of infinite ones, 0 times the slope would be NaN.
    if np.any(ignored):
        x = ops.where(np.expand_dims(ignored, axis), 0.0, x)
    log_p = log_softmax(x, axis=axis)
    index = np.where(ignored, 0, target)
    column = np.expand_dims(index, axis)  # one class a sample: (N, 1, ...)
    loss = -ops.take_along_axis(log_p, indices=column, axis=axis).reshape(target.shape)
    spread = -log_p
    if weight is not None:
        loss = loss * weight[index]
        spread = spread * weight.reshape(classes, *(1,) * (x.ndim - 1 - axis))
    if label_smoothing:
        loss = loss * (1 - label_smoothing) + spread.sum(axis=axis) * (
            label_smoothing / max(classes, 1)
        )
    loss = ops.where(ignored, 0.0, loss)
    if reduction != "mean":
        return reduce(loss, reduction)
    counted = (~ignored).astype(array_of(x).dtype)
    with np.errstate(invalid="ignore"):  # all ignored: 0 / 0 = NaN, as in PyTorch
        return loss.sum() / (counted.sum() if weight is None else (weight[index] * counted).sum())


@float16_in_float32
def soft_cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """-sum_c target_c weight_c log_softmax(x)_c, the targets being probabilities, of the shape of
    x.

    The mean is over samples.
    """
    axis = min(1, x.ndim - 1)
    classes = x.shape[axis]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / max(classes, 1)
    terms = log_softmax(x, axis=axis) * target
    if weight is not None:
        terms = terms * weight.reshape(classes, *(1,) * (x.ndim - 1 - axis))
    return reduce(-terms.sum(axis=axis), reduction)


# ---- attention


def repeat_heads(x: Any, times: int) -> Any:
    """Each head `times` times in a row: (..., H, S, D) -> (..., H times, S, D)"""
    *lead, h, s, d = x.shape
    x = ops.broadcast_to(ops.reshape(x, shape=(*lead, h, 1, s, d)), shape=(*lead, h, times, s, d))
    return ops.reshape(x, shape=(*lead, h * times, s, d))


@reference
@float16_in_float32
def attention_weights(
    q: Any, k: Any, mask: Any = None, *, scale: float, is_causal: bool = False
) -> Any:
    """softmax(q k^T scale + mask) over the keys; a row with no key to look at is all zeros.

    q (..., T, D), k (..., S, D), mask broadcastable to (..., T, S): boolean, True where a query may
    look, or float, added. `is_causal` lets query t look at keys 0 .. t. Returns (..., T, S).
    """
    scores = ops.matmul(q, ops.swapaxes(k, a=-1, b=-2)) * scale
    may_look = array_of(mask)  # None: at everything
    if mask is not None and may_look.dtype != bool:
        scores, may_look = scores + mask, may_look != -math.inf
    if is_causal:
        causal = np.tri(*scores.shape[-2:]).astype(bool)
        may_look = causal if mask is None else causal & may_look
    if may_look is not None:
        scores = ops.where(may_look, scores, -math.inf)
    if mask is None:  # then every query sees a key, the first one at least
        return softmax(scores, axis=-1)
    top = _largest(scores, -1)
    blind = top == -math.inf  # rows with nothing to look at: every exponential below is 0
    e = ops.exp(scores - np.where(blind, 0, top))
    totals = e.sum(axis=-1, keepdims=True) + blind  # 0 / 1 = 0
    return e / totals


@reference
@float16_in_float32
def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    scale: float,
    is_causal: bool = False,
    keep: np.ndarray | None = None,
    keep_scale: float = 1.0,
) -> Any:
    """(softmax(q k^T scale + mask) keep keep_scale) v: (..., T, D), (..., S, D), (..., S, V) ->
    (..., T, V)

    `keep` (..., T, S) says which weights dropout keeps, and `keep_scale` is 1 / (1 - p).
    """
    weights = attention_weights(q, k, mask, scale=scale, is_causal=is_causal)
    if keep is not None:
        weights = weights * (keep * array_of(weights).dtype.type(keep_scale))
    return ops.matmul(weights, v)


def unpack_heads(packed: Any, num_heads: int) -> Any:
    """Queries, keys and values side by side, (B, T, 3 H D), by heads: (3, B, H, T, D), a view."""
    b, t, width = packed.shape
    return packed.reshape(b, t, 3, num_heads, width // (3 * num_heads)).transpose(2, 0, 3, 1, 4)


@reference
def packed_attention(
    packed: Any,
    mask: Any = None,
    *,
    num_heads: int,
    scale: float,
    is_causal: bool = False,
    keep: np.ndarray | None = None,
    keep_scale: float = 1.0,
) -> Any:
    """Attention of queries, keys and values side by side as one projection made them: (B, T, 3 H D)
    -> (B, T, H D)
    """
    b, t, width = packed.shape
    heads = unpack_heads(packed, num_heads)
    out = scaled_dot_product_attention(
        heads[0],
        heads[1],
        heads[2],
        mask,
        scale=scale,
        is_causal=is_causal,
        keep=keep,
        keep_scale=keep_scale,
    )
    return out.swapaxes(1, 2).reshape(b, t, width // 3)
