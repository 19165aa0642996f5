"""The functions of `torch.nn.functional` on Tensors, with `axis` for `dim`: arguments are checked here, the mathematics is in `reference`.

Shape letters: B batch, H heads, T queries, S keys, E embedding, D head, C classes.

Masks, said once: in `scaled_dot_product_attention` a boolean mask is True where a query *may* look; `causal_mask` and `padding_mask`
make masks for `nn`, where True means *blocked* (`~mask` turns one into the other).  A float mask is added to the scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import ops, random, reference
from .engine import Variable
from .errors import describe, nearest
from .reference import plain
from .tensor import Tensor, get_default_dtype

REDUCTIONS = ("none", "mean", "sum")


# ---- checking arguments


def _real(x: Any, function: str) -> Any:
    """A Tensor or array of real numbers; integers become the default dtype, lists a Tensor."""
    if not isinstance(x, (Variable, np.ndarray)):
        x = Tensor(x)
    kind = x.dtype.kind
    if kind in "iub":
        return x.astype(get_default_dtype())
    if kind != "f":
        raise TypeError(f"{function} needs real numbers, got {describe(x)}.")
    return x


def _integers(x: Any, function: str, what: str) -> np.ndarray:
    """A plain array of integers."""
    array = np.asarray(plain(x))
    if array.size == 0 and not hasattr(x, "dtype"):
        array = array.astype(np.int64)               # an empty list is a list of no integers
    if array.dtype.kind not in "iu":
        raise TypeError(f"{function} needs integers as {what}, got {describe(x)}; write {what}.astype(np.int64) if they are whole numbers.")
    return array


def _check_axis(x: Any, axis: Any, function: str) -> None:
    ndim = max(x.ndim, 1)                            # a single number counts as a row of one, as in PyTorch
    for a in axis if isinstance(axis, tuple) else (axis,):
        if not isinstance(a, (int, np.integer)):
            raise TypeError(f"{function} needs an integer axis, got {a!r}.")
        if not -ndim <= a < ndim:
            raise ValueError(f"{function}: axis {a} does not exist in {describe(x)}; it lies in [{-ndim}, {ndim}).")


def _check_reduction(reduction: str, function: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"{function}: reduction is one of {REDUCTIONS}, got {reduction!r}.{nearest(str(reduction), REDUCTIONS)}")


def _check_probability(p: float, function: str, name: str = "p") -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"{function}: {name} is the probability to drop an element and lies in [0, 1], got {p}.")


def _normalized(x: Any, normalized_shape: int | Sequence[int], function: str, **parameters: Any) -> int:
    """How many trailing axes are normalised, after checking that they and the parameters have the shape said."""
    shape = (normalized_shape,) if isinstance(normalized_shape, (int, np.integer)) else tuple(normalized_shape)
    if not shape or tuple(x.shape[-len(shape):]) != shape:
        raise ValueError(f"{function}: normalized_shape {shape} must be the last sizes of the input, which is {describe(x)}."
                         + (f" Write normalized_shape={x.shape[-1]} for its last axis." if x.ndim else ""))
    for name, parameter in parameters.items():
        if parameter is not None and tuple(parameter.shape) != shape:
            raise ValueError(f"{function}: {name} must have the shape normalized_shape = {shape}, got {describe(parameter)}.")
    return len(shape)


# ---- activations


def relu(x: Any) -> Any:
    """relu(x) = max(x, 0), with slope 0 at 0.  Any shape."""
    return ops.relu(x if isinstance(x, (Variable, np.ndarray)) else Tensor(x))


def sigmoid(x: Any) -> Any:
    """sigmoid(x) = 1 / (1 + e^-x).  Any shape."""
    return ops.sigmoid(_real(x, "sigmoid"))


def tanh(x: Any) -> Any:
    """tanh(x) = (e^x - e^-x) / (e^x + e^-x).  Any shape."""
    return ops.tanh(_real(x, "tanh"))


def silu(x: Any) -> Any:
    """silu(x) = x sigmoid(x).  Any shape.  (Elfwing et al. 2017, arXiv:1702.03118)"""
    return reference.silu_reference(_real(x, "silu"))


def gelu(x: Any, approximate: str = "none") -> Any:
    """gelu(x) = x (1 + erf(x / sqrt 2)) / 2, or with approximate="tanh" x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2.

    Any shape.  Raises ValueError for another `approximate`.  (Hendrycks and Gimpel 2016, arXiv:1606.08415)
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu: approximate is "none" or "tanh", got {approximate!r}.{nearest(str(approximate), ("none", "tanh"))}')
    return reference.gelu_reference(_real(x, "gelu"), approximate=approximate)


# ---- softmax


def softmax(x: Any, axis: int = -1) -> Any:
    """softmax(x)_i = e^x_i / sum_j e^x_j along the axis; same shape.  A row that is all -inf gives NaN, as in PyTorch.

    Raises ValueError for an axis that does not exist.
    """
    x = _real(x, "softmax")
    _check_axis(x, axis, "softmax")
    return reference.softmax_reference(x, axis=axis)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """log_softmax(x)_i = x_i - log sum_j e^x_j along the axis, without overflow or log 0; same shape.

    Raises ValueError for an axis that does not exist.
    """
    x = _real(x, "log_softmax")
    _check_axis(x, axis, "log_softmax")
    return reference.log_softmax_reference(x, axis=axis)


def logsumexp(x: Any, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
    """logsumexp(x) = log sum_j e^x_j over the axis or axes, without overflow.

    Raises ValueError for an axis that does not exist.
    """
    x = _real(x, "logsumexp")
    _check_axis(x, axis, "logsumexp")
    return reference.logsumexp_reference(x, axis=axis, keepdims=keepdims)


# ---- normalisation


def layer_norm(x: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance (of all n) over the trailing axes `normalized_shape`.

    x (..., *normalized_shape), weight and bias normalized_shape; result as x.  Raises ValueError where they do not fit.
    (Ba et al. 2016, arXiv:1607.06450)
    """
    x = _real(x, "layer_norm")
    ndim = _normalized(x, normalized_shape, "layer_norm", weight=weight, bias=bias)
    return reference.layer_norm_reference(x, weight, bias, ndim=ndim, eps=eps)


def rms_norm(x: Any, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    """y = x / sqrt(mean(x^2) + eps) * weight, the mean over the trailing axes `normalized_shape`.

    x (..., *normalized_shape), weight normalized_shape; result as x.  Without eps it is the dtype's machine epsilon.
    Raises ValueError where shapes do not fit.  (Zhang and Sennrich 2019, arXiv:1910.07467)
    """
    x = _real(x, "rms_norm")
    ndim = _normalized(x, normalized_shape, "rms_norm", weight=weight)
    eps = float(np.finfo(x.dtype).eps) if eps is None else eps
    return reference.rms_norm_reference(x, weight, ndim=ndim, eps=eps)


# ---- tables, products, dropout


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x weight^T + bias: x (..., I), weight (O, I), bias (O,) -> (..., O).  Raises ValueError where shapes do not fit."""
    if not isinstance(x, (Variable, np.ndarray)) or x.dtype.kind in "iub":
        x = Tensor(x, dtype=weight.dtype)
    if x.ndim == 0 or weight.ndim not in (1, 2) or x.shape[-1] != weight.shape[-1]:
        turned = " It fits the other way round: pass weight.T." if weight.ndim == 2 and x.ndim and x.shape[-1] == weight.shape[0] else ""
        raise ValueError(f"linear: the last size of the input must be the last size of the weight (out, in); got {describe(x)} and "
                         f"weight {describe(weight)}.{turned}")
    if bias is not None and tuple(bias.shape) not in (tuple(weight.shape[:-1]), ()):
        raise ValueError(f"linear: the bias must have one number for each row of the weight, {tuple(weight.shape[:-1])}; got {describe(bias)}.")
    return reference.linear_reference(x, weight, bias)


def embedding(indices: Any, weight: Any, padding_idx: int | None = None) -> Any:
    """y = weight[indices]: a row of the table for each index.  indices (...) integers, weight (V, E) -> (..., E)

    The row `padding_idx` (negative counts from the end) gets no gradient.  Raises TypeError for indices that are no integers,
    ValueError for one outside the table.
    """
    indices = _integers(indices, "embedding", "indices")
    if weight.ndim != 2:
        raise ValueError(f"embedding: the table has the shape (rows, width), got {describe(weight)}.")
    rows = weight.shape[0]
    outside = (indices < 0) | (indices >= rows)
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(f"embedding: index {indices[where]} at position {where} is outside the table, whose {rows} rows are numbered "
                         f"0 to {rows - 1}. A larger vocabulary needs a larger table.")
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise ValueError(f"embedding: padding_idx {padding_idx} is outside the table of {rows} rows.")
        padding_idx %= rows
    return reference.embedding_reference(weight, indices=indices, padding_idx=padding_idx)


def draw_keep(x: Any, p: float) -> np.ndarray:
    """Which elements of x dropout keeps, each with probability 1 - p, drawn in the order of memory, as PyTorch does."""
    array = plain(x)
    order = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]) if array.shape[i] > 1 else 0) if array.size else []
    if order == list(range(array.ndim)) or array.flags.c_contiguous or not array.size:
        return random.default_generator().bernoulli(array.shape, 1 - p)
    drawn = random.default_generator().bernoulli([array.shape[i] for i in order], 1 - p)
    return drawn.transpose(np.argsort(order))


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """y = x keep / (1 - p) with keep drawn anew from Bernoulli(1 - p) for each element; x itself where not training or p = 0.

    Any shape.  p = 1 gives zeros.  Raises ValueError for p outside [0, 1].  Draws PyTorch's masks after `ta.manual_seed`.
    """
    _check_probability(p, "dropout")
    if not training or p == 0:
        return x
    x = _real(x, "dropout")
    keep = draw_keep(x, p) if p < 1 else np.zeros(x.shape, bool)
    return reference.dropout_reference(x, keep=keep, p=p)


# ---- losses


def mse_loss(x: Any, y: Any, reduction: str = "mean") -> Any:
    """(x - y)^2, reduced by "mean", "sum" or "none".  x and y of one shape.

    Raises ValueError where the shapes differ: (N, 1) against (N,) would silently compare each with each.
    """
    _check_reduction(reduction, "mse_loss")
    x, y = _real(x, "mse_loss"), _real(y, "mse_loss")
    if x.shape != y.shape:
        raise ValueError(f"mse_loss: the shapes differ, {describe(x)} and {describe(y)}; broadcasting would compare each element with several. "
                         f"Write y.reshape(x.shape), x[:, 0] or np.broadcast_to(y, x.shape), whichever is meant.")
    return reference.mse_loss_reference(x, y, reduction=reduction)


def cross_entropy(x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Any:
    """-log softmax(x)_target, weighed by class and reduced; classes on axis 1.

    x (N, C), (C,) or (N, C, d1, ...).  target: class indices (N,), () or (N, d1, ...), integers; or probabilities of the shape of x, floats.
    weight (C,).  The "mean" over indices divides by the weights of the targets other than `ignore_index` (NaN if there are none), over
    probabilities by the number of samples.  Label smoothing e replaces a target by (1 - e) target + e / C.
    Raises TypeError for float class labels, ValueError for labels out of range and shapes that do not fit.  As PyTorch's.
    """
    _check_reduction(reduction, "cross_entropy")
    x = _real(x, "cross_entropy")
    if x.ndim == 0:
        raise ValueError("cross_entropy needs scores for each class, (C,) or (N, C, ...), got a single number.")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing lies in [0, 1], got {label_smoothing}.")
    if not isinstance(target, (Variable, np.ndarray)):
        target = np.asarray(target)
        if target.dtype.kind == "f" or target.size == 0 and target.shape == x.shape:
            target = target.astype(x.dtype)
    axis = min(1, x.ndim - 1)
    classes, labels_shape = x.shape[axis], x.shape[:axis] + x.shape[axis + 1:]
    if weight is not None:
        weight = _real(weight, "cross_entropy")
        if weight.shape != (classes,):
            raise ValueError(f"cross_entropy: weight has one number for each of the {classes} classes, got {describe(weight)}.")
    if target.dtype.kind == "f":
        if target.shape != x.shape:
            hint = " Class labels are integers: write target.astype(np.int64)." if target.shape == labels_shape else ""
            raise (TypeError if hint else ValueError)(f"cross_entropy: a float target holds probabilities and has the shape of the scores, {x.shape}; "
                                                      f"got {describe(target)}.{hint}")
        return reference.soft_cross_entropy_reference(x, target, weight, reduction=reduction, label_smoothing=label_smoothing)
    labels = _integers(target, "cross_entropy", "target")
    if labels.shape != labels_shape:
        hint = " One-hot targets are probabilities: write target.astype(x.dtype)." if labels.shape == x.shape else ""
        raise ValueError(f"cross_entropy: scores {x.shape} (classes on axis {axis}) need class labels of shape {labels_shape}, got {labels.shape}.{hint}")
    outside = ((labels < 0) | (labels >= classes)) & (labels != ignore_index)
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(f"cross_entropy: class {labels[where]} at position {where} is not one of the {classes} classes 0 to {classes - 1}"
                         f" (nor ignore_index, {ignore_index}). Labels start at 0; for padding pass ignore_index=.")
    return reference.cross_entropy_reference(x, weight, target=labels, ignore_index=ignore_index, reduction=reduction,
                                             label_smoothing=label_smoothing)


# ---- attention


def split_heads(x: Any, num_heads: int) -> Any:
    """(B, T, E) -> (B, H, T, E/H): head h gets the h-th part of the last axis.  Any leading axes.

    Raises ValueError where E does not divide by the number of heads.
    """
    if x.ndim < 2 or num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(f"split_heads: the last axis of {describe(x)} cannot be cut into {num_heads} heads of equal size.")
    *lead, t, e = x.shape
    return x.reshape(*lead, t, num_heads, e // num_heads).swapaxes(-2, -3)


def merge_heads(x: Any) -> Any:
    """(B, H, T, D) -> (B, T, H D): the heads side by side again, undoing split_heads.  Any leading axes."""
    if x.ndim < 3:
        raise ValueError(f"merge_heads needs (..., H, T, D), got {describe(x)}.")
    *lead, h, t, d = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, t, h * d)


def _check_attention(q: Any, k: Any, v: Any, mask: Any) -> None:
    """The shapes (..., T, D), (..., S, D), (..., S, V) and a mask that broadcasts to (..., T, S)."""
    given = f"got q {describe(q)}, k {describe(k)} and v {describe(v)}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ValueError(f"attention needs q (..., T, D), k (..., S, D) and v (..., S, V); {given}.")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"attention compares queries with keys, so their last sizes must be equal; {given}.")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"attention needs one value for each key, so k and v must agree at axis -2; {given}.")
    try:
        lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        hint = " For fewer key than query heads pass enable_gqa=True." if q.ndim > 2 and k.ndim > 2 and q.shape[-3] != k.shape[-3] else ""
        raise ValueError(f"attention: the axes before the last two must be equal or 1; {given}.{hint}") from None
    if mask is not None:
        scores = (*lead, q.shape[-2], k.shape[-2])
        if mask.dtype.kind not in "bf":
            raise TypeError(f"attn_mask is boolean (True = may look) or float (added to the scores), got {describe(mask)}; write mask.astype(bool).")
        try:
            np.broadcast_shapes(mask.shape, scores)
            fits = all(m in (1, n) for m, n in zip(mask.shape[::-1], scores[:-3:-1], strict=False))
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"attn_mask {describe(mask)} does not broadcast to the scores {scores} = (..., T, S). For a mask (B, S) over keys "
                             "write mask[:, None, None, :].")


def scaled_dot_product_attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
                                 scale: float | None = None, enable_gqa: bool = False) -> Any:
    """softmax(q k^T scale + mask) v: q (..., T, D), k (..., S, D), v (..., S, V) -> (..., T, V); scale is 1 / sqrt(D).

    attn_mask, broadcastable to (..., T, S): boolean, True where a query *may* look, or float, added to the scores.  `is_causal` lets query t
    look at keys 0 .. t only, on top of a mask.  A query with no key to look at gets a zero output and no gradient.  dropout_p drops weights,
    always (pass 0.0 when not training).  enable_gqa shares each of fewer key and value heads (axis -3) among H / H_k query heads.
    Raises ValueError and TypeError for shapes and masks that do not fit.  (Vaswani et al. 2017, arXiv:1706.03762)
    """
    q, k, v = (_real(x, "scaled_dot_product_attention") for x in (q, k, v))
    _check_probability(dropout_p, "scaled_dot_product_attention", "dropout_p")
    mask = attn_mask if attn_mask is None or isinstance(attn_mask, (Variable, np.ndarray)) else np.asarray(attn_mask)
    if enable_gqa:
        k, v = _share_heads(q, k, "k"), _share_heads(q, v, "v")
    _check_attention(q, k, v, mask)
    if mask is not None and mask.dtype.kind == "f" and mask.dtype != q.dtype:
        mask = mask.astype(q.dtype)
    scale = (1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0) if scale is None else scale
    keep, keep_scale = None, 1.0
    if dropout_p:
        shape = np.broadcast_shapes((*q.shape[:-1], k.shape[-2]), (*k.shape[:-2], 1, 1), () if mask is None else mask.shape)
        keep = random.default_generator().bernoulli(shape, 1 - dropout_p) if dropout_p < 1 else np.zeros(shape, bool)
        keep_scale = 1 / (1 - dropout_p) if dropout_p < 1 else 0.0
    return reference.scaled_dot_product_attention_reference(q, k, v, mask, scale=scale, is_causal=is_causal, keep=keep, keep_scale=keep_scale)


def _share_heads(q: Any, x: Any, name: str) -> Any:
    """Key or value heads repeated until there are as many as query heads."""
    if min(q.ndim, x.ndim) < 3 or x.shape[-3] == 0 or q.shape[-3] % x.shape[-3]:
        raise ValueError(f"enable_gqa needs heads at axis -3, those of q a multiple of those of {name}; got q {describe(q)}, {name} {describe(x)}.")
    times = q.shape[-3] // x.shape[-3]
    return x if times == 1 else reference.repeat_heads(x, times)


# ---- positions and masks


def sinusoidal_positions(length: int, d_model: int, dtype: Any = None) -> Tensor:
    """P[t, 2i] = sin(t / 10000^(2i/E)), P[t, 2i+1] = cos(t / 10000^(2i/E)): a constant Tensor (length, d_model).

    An odd d_model leaves the last cosine out.  Default dtype unless given.  (Vaswani et al. 2017, section 3.5)
    """
    if length < 0 or d_model < 1:
        raise ValueError(f"sinusoidal_positions needs length >= 0 and d_model >= 1, got {length} and {d_model}.")
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, :d_model // 2])
    return Tensor(table, dtype=get_default_dtype() if dtype is None else dtype)


def causal_mask(length: int) -> np.ndarray:
    """mask[t, s] = s > t, a boolean array (length, length) for `nn`: True where a query must not look, at later positions."""
    return ~np.tri(length, dtype=bool)


def padding_mask(lengths: Any, max_length: int | None = None) -> np.ndarray:
    """mask[b, s] = s >= lengths[b], a boolean array (B, max_length) for `nn`: True where there is only padding.

    lengths (...) integers >= 0; max_length is the largest of them unless given.  Raises ValueError for a length beyond it.
    """
    lengths = _integers(lengths, "padding_mask", "lengths")
    longest = int(lengths.max(initial=0))
    max_length = longest if max_length is None else max_length
    if longest > max_length or lengths.min(initial=0) < 0:
        raise ValueError(f"padding_mask: lengths lie in [0, max_length] = [0, {max_length}], got {lengths.tolist()}.")
    return np.arange(max_length) >= lengths[..., None]
