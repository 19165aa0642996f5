"""The functions of `torch.nn.functional` on Tensors, with `axis` for `dim`.

Arguments are checked (`arguments`), then the mathematics is called. Given plain arrays they return
plain arrays.

Shape letters: B batch, H heads, T queries, S keys, E embedding, D head, C classes.

Masks, said once: in `scaled_dot_product_attention` a boolean mask is True where a query *may* look;
`causal_mask` and `padding_mask` make masks for `nn`, where True means *blocked* (`~mask` turns one
into the other). A float mask is added to the scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ops, random
from ..engine import Variable, array_of, reference
from ..messages.errors import describe, is_integer, missing_names, no_setting, refuse_mask, warn
from ..messages.signatures import check_flags, own_names
from ..tensor import Tensor, get_default_dtype
from ..tensor.convert import floating_dtype
from . import arguments, equations
from .arguments import REDUCTIONS, integers, real
from .masks import causal_mask, padding_mask, refuse_blocked

__all__ = [
    "causal_mask",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "merge_heads",
    "mse_loss",
    "padding_mask",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "sinusoidal_positions",
    "softmax",
    "split_heads",
    "tanh",
]

# ---- activations


@own_names
def relu(x: Any, inplace: bool = False) -> Any:
    """relu(x) = max(x, 0), with slope 0 at 0. Any shape. `inplace` is accepted for PyTorch's sake;
    the result is a new one.
    """
    if inplace.__class__ is not bool:
        check_flags("relu", inplace=inplace)
    return ops.relu(x if isinstance(x, Variable) else arguments.operand(x, "relu"))


@own_names
def sigmoid(x: Any) -> Any:
    """sigmoid(x) = 1 / (1 + e^-x).  Any shape."""
    return ops.sigmoid(real(x, "sigmoid"))


@own_names
def tanh(x: Any) -> Any:
    """tanh(x) = (e^x - e^-x) / (e^x + e^-x).  Any shape."""
    return ops.tanh(real(x, "tanh"))


@reference
def silu(x: Any, inplace: bool = False) -> Any:
    """silu(x) = x sigmoid(x). Any shape. `inplace` is accepted, as in relu. (Elfwing et al. 2017,
    arXiv:1702.03118)
    """
    check_flags("silu", inplace=inplace)
    return equations.silu(real(x, "silu"))


@reference
def gelu(x: Any, approximate: str = "none") -> Any:
    """gelu(x) = x (1 + erf(x / sqrt 2)) / 2

    With approximate="tanh" it is x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. Any shape. Raises
    ValueError for another `approximate`. (Hendrycks and Gimpel 2016, arXiv:1606.08415)
    """
    arguments.check_choice(approximate, ("none", "tanh"), "approximate", "gelu")
    return equations.gelu(real(x, "gelu"), approximate=approximate)


# ---- softmax


@reference
def softmax(x: Any, axis: int = -1) -> Any:
    """softmax(x)_i = e^x_i / sum_j e^x_j along the axis; same shape. A row that is all -inf gives
    NaN, as in PyTorch.

    Raises ValueError for an axis that does not exist, TypeError for one that is no integer.
    """
    x = real(x, "softmax")
    arguments.check_axis(x, axis, "softmax")
    return equations.softmax(x, axis=axis)


@reference
def log_softmax(x: Any, axis: int = -1) -> Any:
    """log_softmax(x)_i = x_i - log sum_j e^x_j along the axis, without overflow or log 0; same
    shape.

    Raises ValueError for an axis that does not exist, TypeError for one that is no integer.
    """
    x = real(x, "log_softmax")
    arguments.check_axis(x, axis, "log_softmax")
    return equations.log_softmax(x, axis=axis)


@reference
def logsumexp(x: Any, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
    """logsumexp(x) = log sum_j e^x_j over the axis or axes, without overflow.

    Raises ValueError for an axis that does not exist, TypeError for one that is no integer.
    """
    x = real(x, "logsumexp")
    arguments.check_axis(x, axis, "logsumexp", several=True)
    check_flags("logsumexp", keepdims=keepdims)
    return equations.logsumexp(x, axis=axis, keepdims=keepdims)


# ---- normalisation


@reference
def layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over the trailing axes `normalized_shape`.

    The variance divides by n. x (..., *normalized_shape), weight and bias normalized_shape; result
    as x. Raises ValueError where they do not fit, TypeError for weights that are no arrays and an
    eps that is no number. (Ba et al. 2016, arXiv:1607.06450)
    """
    if isinstance(eps, Variable):
        raise no_setting("layer_norm", "eps", eps)
    eps, x = arguments.check_number(eps, "layer_norm", "eps"), real(x, "layer_norm")
    ndim = arguments.normalized_axes(x, normalized_shape, "layer_norm", weight=weight, bias=bias)
    return equations.layer_norm(x, weight, bias, ndim=ndim, eps=eps)


@reference
def rms_norm(
    x: Any, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    """y = x / sqrt(mean(x^2) + eps) * weight, the mean over the trailing axes `normalized_shape`.

    x (..., *normalized_shape), weight normalized_shape; result as x. Without eps it is the machine
    epsilon of the dtype in which it is computed: x's, or float32 for float16. Raises ValueError
    where shapes do not fit, TypeError for a weight that is no array and an eps that is no number.
    (Zhang and Sennrich 2019, arXiv:1910.07467)
    """
    if isinstance(eps, Variable):
        raise no_setting("rms_norm", "eps", eps)
    x = real(x, "rms_norm")
    ndim = arguments.normalized_axes(x, normalized_shape, "rms_norm", weight=weight)
    eps = arguments.check_number(
        float(np.finfo(np.result_type(x.dtype, np.float32)).eps) if eps is None else eps,
        "rms_norm",
        "eps",
    )
    return equations.rms_norm(x, weight, ndim=ndim, eps=eps)


# ---- tables, products, dropout


@reference
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x weight^T + bias: x (..., I), weight (O, I), bias (O,) -> (..., O); or weight (I,), bias
    () -> (...)

    Raises ValueError where shapes do not fit, TypeError for a weight that is no array. As
    torch.nn.functional.linear.
    """
    arguments.check_array(weight, "linear", "weight")
    if bias is not None:
        arguments.check_array(bias, "linear", "bias")
    x = arguments.operand(x, "linear", weight.dtype)
    if x.dtype.kind in "iub":
        x = x.astype(weight.dtype)
    arguments.check_linear(x, weight, bias)
    return equations.linear(x, weight, bias)


@own_names
def embedding(indices: Any, weight: Any, padding_idx: int | None = None) -> Any:
    """y = weight[indices]: a row of the table for each index. indices (...) integers, weight (V, E)
    -> (..., E)

    The row `padding_idx` (negative counts from the end) gets no gradient. Raises TypeError for
    indices that are no integers and a weight that is no array, ValueError for an index or
    `padding_idx` outside the table.
    """
    indices = integers(indices, "embedding", "indices")
    arguments.check_array(weight, "embedding", "weight")
    if weight.ndim != 2:
        raise ValueError(
            f"embedding: the table has the shape (rows, width), got {describe(weight)}."
        )
    rows = weight.shape[0]
    outside = (indices < 0) | (indices >= rows)
    if outside.any():
        raise ValueError(
            f"embedding: index {arguments.first_outside(indices, outside)} is outside the table, "
            f"whose {rows} rows are numbered 0 to {rows - 1}. A larger vocabulary needs a larger "
            "table."
        )
    padding_idx = arguments.padding_row(padding_idx, rows, "embedding")
    return equations.embedding(weight, indices=indices, padding_idx=padding_idx)


def draw_keep(x: Any, p: float) -> np.ndarray:
    """Which elements of x dropout keeps, each with probability 1 - p, drawn in the order of memory,
    as PyTorch does.
    """
    array, generator = array_of(x), random.default_generator()
    if array.flags.c_contiguous:
        return generator.bernoulli(array.shape, 1 - p)
    # The axes in the order of memory: the one with the longest steps comes first, and one along
    # which a number is only repeated stays in its place.
    order = list(range(array.ndim))
    stepping = [i for i in order if array.strides[i]]
    for place, axis in zip(stepping, sorted(stepping, key=lambda i: -abs(array.strides[i]))):
        order[place] = axis
    return generator.bernoulli([array.shape[i] for i in order], 1 - p).transpose(np.argsort(order))


@own_names
def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """y = x keep / (1 - p), keep drawn anew from Bernoulli(1 - p); x itself where not training or p
    = 0.

    Any shape. p = 1 gives zeros. `inplace` is accepted, as in relu, and changes nothing. Raises
    ValueError for p outside [0, 1]. After `ta.manual_seed` the masks are PyTorch's. (Srivastava et
    al. 2014)
    """
    arguments.check_probability(p, "dropout")
    check_flags("dropout", training=training, inplace=inplace)
    x = arguments.operand(x, "dropout")
    if not training or p == 0:
        return x
    x = real(x, "dropout")
    p = float(p)  # 1 / (1 - p) in float16 would be rough
    keep = draw_keep(x, p) if p < 1 else np.zeros(x.shape, bool)
    return equations.dropout(x, keep=keep, p=p)


# ---- losses


@own_names
def mse_loss(x: Any, y: Any, reduction: str = "mean") -> Any:
    """(x - y)^2, reduced by "mean", "sum" or "none".  x and y of one shape.

    Raises ValueError where the shapes differ: (N, 1) against (N,) would silently compare each with
    each.
    """
    arguments.check_choice(reduction, REDUCTIONS, "reduction", "mse_loss")
    x, y = real(x, "mse_loss"), real(y, "mse_loss")
    if x.shape != y.shape:
        raise ValueError(
            f"mse_loss: the shapes differ, {describe(x)} and {describe(y)}; broadcasting would "
            "compare each element with several. Write y.reshape(x.shape), x[:, 0] or "
            "np.broadcast_to(y, x.shape), whichever is meant."
        )
    return equations.mse_loss(x, y, reduction=reduction)


@own_names
def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """-log softmax(x)_target, weighed by class and reduced; classes on axis 1.

    x (N, C), (C,) or (N, C, d1, ...), weight (C,). target: class indices, integers (N,), () or (N,
    d1, ...); or probabilities, floats of the shape of x. The "mean" over indices divides by the
    weights of the targets other than `ignore_index` (NaN if there are none), over probabilities by
    the number of samples. Label smoothing e replaces a target by (1 - e) target + e / C. Raises
    TypeError for float class labels and an `ignore_index` that is no whole number, ValueError for
    labels out of range, a label smoothing outside [0, 1], an `ignore_index` >= 0 beside
    probabilities, and shapes that do not fit. As torch.nn.functional.cross_entropy.
    """
    arguments.check_choice(reduction, REDUCTIONS, "reduction", "cross_entropy")
    x = real(x, "cross_entropy")
    if x.ndim == 0:
        raise ValueError(
            "cross_entropy needs a score for each class, (C,) or (N, C, ...), got a single number."
        )
    label_smoothing = arguments.check_smoothing(label_smoothing)
    ignore_index = arguments.single(ignore_index)
    axis = min(1, x.ndim - 1)
    if x.shape[axis] == 1:
        warn(
            f"cross_entropy of one class, as {describe(x)} has it, is 0 whatever the scores. For a "
            "yes or no from one score write np.mean(np.logaddexp(x, 0) - x * target)."
        )
    if weight is not None:
        weight = arguments.class_weights(weight, x.shape[axis])
    target = arguments.classes_or_probabilities(target, x.dtype)
    if target.dtype.kind == "f":
        arguments.check_probabilities(x, target, axis, ignore_index)
        return equations.soft_cross_entropy(
            x, target, weight, reduction=reduction, label_smoothing=label_smoothing
        )
    labels = integers(target, "cross_entropy", "target")
    arguments.check_labels(x, labels, axis, ignore_index)
    return equations.cross_entropy(
        x,
        weight,
        target=labels,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


# ---- attention


@own_names
def split_heads(x: Any, num_heads: int) -> Any:
    """(B, T, E) -> (B, H, T, E/H): head h gets the h-th part of the last axis.  Any leading axes.

    Raises ValueError where E does not divide by the number of heads, TypeError for an x that is no
    array.
    """
    arguments.check_array(x, "split_heads", "x")
    if x.ndim < 2 or not is_integer(num_heads) or num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(
            f"split_heads: the last axis of {describe(x)} cannot be cut into {describe(num_heads)} "
            "equal heads."
        )
    *lead, t, e = x.shape
    return x.reshape(*lead, t, num_heads, e // num_heads).swapaxes(-2, -3)


@own_names
def merge_heads(x: Any) -> Any:
    """(B, H, T, D) -> (B, T, H D): the heads side by side again, undoing split_heads. Any leading
    axes; ValueError without.
    """
    arguments.check_array(x, "merge_heads", "x")
    if x.ndim < 3:
        raise ValueError(f"merge_heads needs (..., H, T, D), got {describe(x)}.")
    *lead, h, t, d = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, t, h * d)


def draw_kept_weights(shape: tuple[int, ...], p: float) -> tuple[np.ndarray | None, float]:
    """Which attention weights (..., T, S) dropout keeps (None for all), and the factor 1 / (1 - p)
    on those.
    """
    if p == 0:
        return None, 1.0
    if p >= 1:
        return np.zeros(shape, bool), 0.0
    return random.default_generator().bernoulli(shape, 1 - p), 1 / (1 - p)


@own_names
def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    need_weights: bool = False,
) -> Any:
    """softmax(q k^T scale + mask) v: q (..., T, D), k (..., S, D), v (..., S, V) -> (..., T, V);
    scale is 1 / sqrt(D).

    attn_mask, broadcastable to (..., T, S): boolean, True where a query *may* look, or float, added
    to the scores. `is_causal` lets query t look at keys 0 .. t only, on top of a mask. A blocked
    key's weight is exactly 0, so whatever finite numbers it and its value hold, no result and no
    gradient depends on them; NaN or inf there is no such number, for 0 times NaN is NaN, so fill
    padding with zeros. A query with no key to look at gets a zero output and no gradient. dropout_p
    drops weights, always (pass 0.0 when not training). enable_gqa shares each of fewer key and
    value heads (axis -3) among H / H_k query heads. With need_weights the result is (output,
    weights (..., T, S)), the weights as applied, after dropout. Raises ValueError and TypeError for
    shapes and masks that do not fit and a scale that is no number. (Vaswani et al. 2017,
    arXiv:1706.03762)
    """
    q, k, v = (real(x, "scaled_dot_product_attention") for x in (q, k, v))
    arguments.check_probability(dropout_p, "scaled_dot_product_attention", "dropout_p")
    check_flags(
        "scaled_dot_product_attention",
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        need_weights=need_weights,
    )
    if enable_gqa:
        k, v = _share_heads(q, k, "k"), _share_heads(q, v, "v")
    mask: Any = attn_mask
    refuse_blocked(mask, "scaled_dot_product_attention", "attn_mask")
    if mask is not None and not isinstance(mask, (Variable, np.ndarray)):
        refuse_mask("attention", mask)
        mask = arguments.values(mask, "scaled_dot_product_attention")
    scores = arguments.check_attention(q, k, v, mask)
    if mask is not None and mask.dtype.kind == "f" and mask.dtype != q.dtype:
        mask = mask.astype(q.dtype)
    scale = (
        1 / math.sqrt(q.shape[-1] or 1)
        if scale is None
        else arguments.check_scale(scale, q.shape[-1])
    )
    keep, keep_scale = draw_kept_weights(scores, dropout_p)
    settings: dict[str, Any] = dict(
        scale=scale, is_causal=is_causal, keep=keep, keep_scale=keep_scale
    )
    out = equations.scaled_dot_product_attention(q, k, v, mask, **settings)
    return (out, weights_as_applied(q, k, mask, **settings)) if need_weights else out


def weights_as_applied(
    q: Any,
    k: Any,
    mask: Any,
    *,
    scale: float,
    is_causal: bool,
    keep: np.ndarray | None,
    keep_scale: float,
) -> Any:
    """softmax(q k^T scale + mask) keep keep_scale, (..., T, S), of arguments that have been
    checked.
    """
    weights = equations.attention_weights(q, k, mask, scale=scale, is_causal=is_causal)
    return weights if keep is None else weights * (keep * weights.dtype.type(keep_scale))


def packed_attention(
    packed: Any,
    num_heads: int,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    need_weights: bool = False,
) -> Any:
    """Attention of queries, keys and values side by side, as one projection makes them.

    packed (B, T, 3 H D) -> (B, T, H D), the heads side by side again; the same numbers as
    `scaled_dot_product_attention` of the three parts, split into heads. The mask is one of that
    function's, already checked; with need_weights the result is (output, weights (B, H, T, T)).
    """
    batch, length, width = packed.shape
    keep, keep_scale = draw_kept_weights((batch, num_heads, length, length), dropout_p)
    settings: dict[str, Any] = dict(
        scale=1 / math.sqrt(width // (3 * num_heads)),
        is_causal=is_causal,
        keep=keep,
        keep_scale=keep_scale,
    )
    out = equations.packed_attention(packed, attn_mask, num_heads=num_heads, **settings)
    if not need_weights:
        return out
    heads = equations.unpack_heads(packed, num_heads)  # (3, B, H, T, D)
    return out, weights_as_applied(heads[0], heads[1], attn_mask, **settings)


def _share_heads(q: Any, x: Any, name: str) -> Any:
    """Key or value heads repeated until there are as many as query heads."""
    arguments.check_grouped(q, x, name)
    times = q.shape[-3] // x.shape[-3]
    return x if times == 1 else equations.repeat_heads(x, times)


# ---- positions


@own_names
def sinusoidal_positions(length: int, d_model: int, dtype: Any = None) -> Tensor:
    """P[t, 2i] = sin(t / 10000^(2i/E)), P[t, 2i+1] = cos(t / 10000^(2i/E)): a constant Tensor
    (length, d_model).

    An odd d_model leaves the last cosine out. Default dtype unless given. Raises ValueError for
    sizes that are none, TypeError for a dtype that is not floating. (Vaswani et al. 2017, section
    3.5)
    """
    if not (is_integer(length) and is_integer(d_model)) or length < 0 or d_model < 1:
        raise ValueError(
            "sinusoidal_positions needs whole numbers length >= 0 and d_model >= 1, got "
            f"{describe(length)} and {describe(d_model)}."
        )
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : d_model // 2])
    return Tensor(
        table,
        dtype=get_default_dtype()
        if dtype is None
        else floating_dtype(dtype, "a table of positions"),
    )


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here
    __getattr__ = missing_names(__name__, globals())
