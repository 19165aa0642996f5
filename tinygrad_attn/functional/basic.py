"""Activations, softmax, normalisation, embedding, dropout and losses, as in a textbook.

Each function is composed of ops, so it needs no VJP of its own and has derivatives of every order.
`fast/` may register a kernel, with its own VJP, for a function marked `@reference`.
"""

import math
from collections.abc import Sequence

import numpy as np

from .. import ops, random
from ..engine import array_of, reference
from ..errors import describe
from ..tensor import Tensor, get_default_dtype
from . import checks
from .checks import real

Axis = int | tuple[int, ...]

# ---- activations


def relu(x, inplace: bool = False) -> Tensor:
    """relu(x) = max(x, 0), with slope 0 at 0, for any shape. `inplace` is accepted but ignored."""
    return ops.relu(x)


def sigmoid(x) -> Tensor:
    """sigmoid(x) = 1 / (1 + e^-x), for any shape."""
    return ops.sigmoid(real(x, "sigmoid"))


def tanh(x) -> Tensor:
    """tanh(x) = (e^x - e^-x) / (e^x + e^-x), for any shape."""
    return ops.tanh(real(x, "tanh"))


def silu(x, inplace: bool = False) -> Tensor:
    """silu(x) = x sigmoid(x), for any shape. (Elfwing et al. 2017, arXiv:1702.03118)"""
    x = real(x, "silu")
    return x * ops.sigmoid(x)


@reference
def gelu(x, approximate: str = "none") -> Tensor:
    """gelu(x) = x P(n <= x) = x (1 + erf(x / sqrt 2)) / 2, where n is standard normal.

    With approximate="tanh", it is x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. Raises
    ValueError for an unknown `approximate`. (Hendrycks and Gimpel 2016, arXiv:1606.08415)
    """
    checks.check_choice(approximate, ("none", "tanh"), "approximate", "gelu")
    x = real(x, "gelu")
    if approximate == "tanh":
        return 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))


# ---- softmax and its logarithms


def largest(x, axis):
    """Return the maximum along the axis: a constant that keeps exp in range and cancels out."""
    array = array_of(x)
    if array.size:
        return ops.max(array, axis=axis, keepdims=True)
    return array.max(axis=axis, keepdims=True, initial=-math.inf)


@reference
def softmax(x, axis: int = -1) -> Tensor:
    """softmax(x)_i = e^x_i / sum_j e^x_j along the axis; the shape stays the same.

    Its VJP is y * (g - (g * y).sum(axis)): see `softmax` in fast/layers.py. A row that is all -inf
    gives NaN, as in PyTorch. Raises IndexError for an axis that does not exist.
    """
    x = real(x, "softmax")
    e = ops.exp(x - largest(x, axis))
    totals = e.sum(axis=axis, keepdims=True)
    return e / totals


@reference
def log_softmax(x, axis: int = -1) -> Tensor:
    """log_softmax(x)_i = x_i - log sum_j e^x_j along the axis, without overflow or log 0."""
    x = real(x, "log_softmax")
    shifted = x - largest(x, axis)
    return shifted - ops.log(ops.exp(shifted).sum(axis=axis, keepdims=True))


@reference
def logsumexp(x, axis: Axis, keepdims: bool = False) -> Tensor:
    """logsumexp(x) = log sum_j e^x_j over the axis or axes, without overflow."""
    x = real(x, "logsumexp")
    if x.ndim == 0:
        return x
    top = largest(x, axis)
    top = np.where(np.isfinite(top), top, 0)  # inf - inf would be NaN
    with np.errstate(divide="ignore"):
        y = ops.log(ops.exp(x - top).sum(axis=axis, keepdims=keepdims))
    return y + top.reshape(y.shape)


# ---- normalisation


def _root_mean_square(x, axes, eps):
    """sqrt(mean(x^2) + eps)"""
    return ops.sqrt((x * x).mean(axis=axes, keepdims=True) + eps)


@reference
def layer_norm(
    x, normalized_shape: int | Sequence[int], weight=None, bias=None, eps: float = 1e-5
) -> Tensor:
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over the trailing axes `normalized_shape`.

    The variance divides by n. x and y have shape (..., *normalized_shape); weight and bias have
    normalized_shape. Raises ValueError for other shapes. (Ba et al. 2016, arXiv:1607.06450)
    """
    x = real(x, "layer_norm", None if weight is None else weight.dtype)
    axes = checks.normalized_axes(x, normalized_shape, "layer_norm", weight=weight, bias=bias)
    centred = x - x.mean(axis=axes, keepdims=True)
    centred = centred - centred.mean(axis=axes, keepdims=True)  # what rounding left of the mean
    deviation = _root_mean_square(centred, axes, eps)
    normalised = centred / deviation
    y = normalised if weight is None else normalised * weight
    return y if bias is None else y + bias


@reference
def rms_norm(
    x, normalized_shape: int | Sequence[int], weight=None, eps: float | None = None
) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * weight, over the trailing axes `normalized_shape`.

    x and y have shape (..., *normalized_shape); weight has shape normalized_shape. By default, eps
    is the machine epsilon of the dtype. (Zhang and Sennrich 2019, arXiv:1910.07467)
    """
    x = real(x, "rms_norm", None if weight is None else weight.dtype)
    axes = checks.normalized_axes(x, normalized_shape, "rms_norm", weight=weight)
    eps = float(np.finfo(x.dtype).eps) if eps is None else eps
    size = _root_mean_square(x, axes, eps)
    normalised = x / size
    return normalised if weight is None else normalised * weight


# ---- products, tables, dropout


@reference
def linear(x, weight, bias=None) -> Tensor:
    """y = x weight^T + bias: x (..., I), weight (O, I), bias (O,) -> (..., O).

    With weight (I,) and bias (), y has shape (...). Raises ValueError if the shapes do not fit.
    Like torch.nn.functional.linear.
    """
    x = real(x, "linear", weight.dtype)
    if weight.ndim > 2 or x.shape[-1:] != weight.shape[-1:]:
        raise ValueError(
            "linear: the last axis of the input must have the same size as that of the weight "
            f"(out, in); got input {describe(x)} and weight {describe(weight)}."
        )
    y = ops.matmul(x, weight.T)
    if bias is None:
        return y
    bias = real(bias, "linear")
    if bias.shape not in (weight.shape[:-1], ()):
        raise ValueError(f"linear: bias must have shape {weight.shape[:-1]}, got {describe(bias)}.")
    return y + bias


def embedding(indices, weight, padding_idx: int | None = None) -> Tensor:
    """y = weight[indices]: one row of the table for each index; (...), (V, E) -> (..., E).

    The row `padding_idx` gets no gradient; a negative `padding_idx` counts from the end. Raises
    TypeError for indices that are not integers, and ValueError for indices outside the table.
    """
    indices, rows = checks.integers(indices, "embedding", "indices"), weight.shape[0]
    outside = (indices < 0) | (indices >= rows)
    if outside.any():
        raise ValueError(
            f"embedding: index {indices[outside][0]} is out of range for a table with {rows} rows."
        )
    padding_idx = checks.padding_row(padding_idx, rows, "embedding")
    y = ops.embedding(weight, indices=indices)
    if padding_idx is None:
        return y
    return ops.where((indices == padding_idx)[..., None], array_of(weight)[padding_idx], y)


def dropout(x, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """y = x keep / (1 - p), where each element of `keep` is 1 with probability 1 - p, else 0.

    x may have any shape, and is returned unchanged if p = 0 or if `training` is False. Otherwise,
    raises ValueError for p outside [0, 1]. After `ta.manual_seed`, contiguous arrays get the same
    masks as in PyTorch. (Srivastava et al. 2014)
    """
    x = real(x, "dropout")
    if not training or p == 0:
        return x
    return apply_dropout(x, keep=draw_keep(x.shape, p), p=float(p))


def draw_keep(shape, p):
    """Draw a boolean mask of the elements that dropout keeps, each with probability 1 - p."""
    checks.check_probability(p, "dropout")
    return random.default_generator().bernoulli(shape, 1 - p) if p < 1 else np.zeros(shape, bool)


@reference
def apply_dropout(x, *, keep, p):
    """y = x keep / (1 - p)"""
    return x * (keep / array_of(x).dtype.type(1 - p)) if p < 1 else x * 0.0


# ---- losses


def reduce(losses, reduction):
    """Return the mean or the sum of the losses, or the losses themselves for "none"."""
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def mse_loss(x, y, reduction: str = "mean") -> Tensor:
    """(x - y)^2, reduced by "mean", "sum" or "none"; x and y have the same shape.

    Raises ValueError if the shapes differ: (N, 1) and (N,) would broadcast to all pairs.
    """
    checks.check_choice(reduction, checks.REDUCTIONS, "reduction", "mse_loss")
    x, y = real(x, "mse_loss"), real(y, "mse_loss")
    if x.shape != y.shape:
        raise ValueError(
            f"mse_loss: the shapes differ, {describe(x)} and {describe(y)}; broadcasting would "
            "compare each element with several others. Write y.reshape(x.shape) or x[:, 0]."
        )
    return reduce(ops.square(x - y), reduction)


def cross_entropy(
    x,
    target,
    weight=None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(x)_target, weighted by class and reduced; classes are on axis 1.

    x is (N, C), (C,) or (N, C, d1, ...); weight is (C,). target contains either class indices
    (integers of shape (N,), () or (N, d1, ...)) or probabilities (floats with the shape of x). For
    indices, "mean" divides by the total weight of the targets other than `ignore_index` (NaN if no
    such target exists). For probabilities, "mean" divides by the number of samples. Label smoothing
    e replaces a target by (1 - e) target + e / C. Raises ValueError for labels out of range and
    shapes that do not fit.
    """
    checks.check_choice(reduction, checks.REDUCTIONS, "reduction", "cross_entropy")
    checks.check_probability(label_smoothing, "cross_entropy", "label_smoothing")
    x = real(x, "cross_entropy")
    axis = min(1, x.ndim - 1)
    if weight is not None:
        weight = real(weight, "cross_entropy")
        if weight.shape != (x.shape[axis],):
            expected = f"({x.shape[axis]},), one number per class"
            raise ValueError(f"cross_entropy: weight must be {expected}, got {describe(weight)}.")
    target = checks.values(target)
    if target.dtype.kind == "f":
        checks.check_probabilities(x, target, ignore_index)
        return _soft_cross_entropy(x, target, weight, reduction, label_smoothing)
    labels = checks.integers(target, "cross_entropy", "target").astype(np.int64)
    checks.check_labels(x, labels, axis, ignore_index)
    return label_cross_entropy(
        x,
        weight,
        target=labels,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def _weighed_logarithms(x, weight, axis):
    """weight_c log_softmax(x)_c"""
    log_p = log_softmax(x, axis=axis)
    return log_p if weight is None else log_p * weight.reshape(-1, *(1,) * (x.ndim - 1 - axis))


@reference
def label_cross_entropy(
    x, weight=None, *, target, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    """-weight_t log_softmax(x)_t for class indices t, without argument checks."""
    axis = min(1, x.ndim - 1)
    ignored = target == ignore_index
    # Scores of ignored samples do not matter, but 0 times the slope at an infinite one is NaN.
    if np.any(ignored):
        x = ops.where(np.expand_dims(ignored, axis), 0.0, x)
    log_p = _weighed_logarithms(x, weight, axis)
    index = np.where(ignored, 0, target)
    column = np.expand_dims(index, axis)  # one class per sample: (N, 1, ...)
    loss = -ops.take_along_axis(log_p, indices=column, axis=axis).reshape(target.shape)
    if label_smoothing:
        loss = loss * (1 - label_smoothing) - log_p.mean(axis=axis) * label_smoothing
    loss = ops.where(ignored, 0.0, loss)
    if reduction != "mean":
        return reduce(loss, reduction)
    counted = (~ignored).astype(array_of(x).dtype)
    with np.errstate(invalid="ignore"):  # all ignored: 0 / 0 = NaN, as in PyTorch
        return loss.sum() / (counted.sum() if weight is None else (weight[index] * counted).sum())


def _soft_cross_entropy(x, target, weight, reduction, label_smoothing):
    """-sum_c target_c weight_c log_softmax(x)_c; the mean is over samples."""
    axis = min(1, x.ndim - 1)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / max(x.shape[axis], 1)
    return reduce(-(_weighed_logarithms(x, weight, axis) * target).sum(axis=axis), reduction)


# ---- positions


def sinusoidal_positions(length: int, d_model: int, dtype=None) -> Tensor:
    """P[t, 2i] = sin(t / 10000^(2i/E)), P[t, 2i+1] = cos(t / 10000^(2i/E)), a constant Tensor.

    The shape is (length, d_model). There is no last cosine if d_model is odd. (Vaswani et al. 2017)
    """
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : d_model // 2])
    return Tensor(table, dtype=dtype or get_default_dtype())
