"""Argument checks for `functional`, with errors that say what to write instead."""

import numpy as np

from ..engine import Symbolic, Variable, array_of, tracked
from ..errors import describe, is_integer, is_number, nearest, warn
from ..tensor import Tensor, get_default_dtype
from ..tensor.convert import as_sizes

REDUCTIONS = ("none", "mean", "sum")


def real(x, function, dtype=None):
    """Return a Tensor or an array in floating point; numbers and lists become a Tensor.

    Integers are converted to `dtype`, by default the default dtype.
    """
    if not isinstance(x, (Variable, np.ndarray)):
        if hasattr(x, "dtype") and not isinstance(x, np.generic):
            raise TypeError(
                f"{function} accepts Tensors, arrays and numbers. Write Tensor(x) for "
                f"{describe(x)}; gradients do not flow back into the other library."
            )
        x = Tensor(x, dtype=dtype)
    kind = array_of(x).dtype.kind
    if kind in "iub":
        return x.astype(dtype or get_default_dtype())
    if kind != "f":
        raise TypeError(f"{function} accepts only real numbers, got {describe(x)}.")
    return x


def values(x):
    """Return a mask or class labels as an array; a Tensor stays a Tensor."""
    return x if isinstance(x, (Variable, np.ndarray)) else np.asarray(x)


def integers(x, function, name):
    """Return x as a plain array of integers."""
    array = array_of(values(x))
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function} needs integers as {name}, got {describe(x)}. Write astype(np.int64)."
        )
    return array


def check_choice(value, known, name, function):
    """Raise ValueError unless the value is one of the known values."""
    if value not in known:
        raise ValueError(
            f"{function}: {name} must be one of {', '.join(map(repr, known))}, got "
            f"{describe(value)}." + nearest(str(value), known)
        )


def check_probability(p, function, name="p"):
    """Raise ValueError unless p is a number between 0 and 1."""
    if not is_number(p) or not 0 <= p <= 1:
        raise ValueError(f"{function}: {name} must be a number in [0, 1], got {describe(p)}.")


def normalized_axes(x, normalized_shape, function, **parameters):
    """Return the axes to normalise; raise ValueError if the shapes do not fit."""
    shape = as_sizes((normalized_shape,))
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(f"{function}: normalized_shape={shape} does not fit {describe(x)}.")
    for name, parameter in parameters.items():
        if parameter is not None and real(parameter, function).shape != shape:
            raise ValueError(
                f"{function}: {name} must have shape {shape}, got {describe(parameter)}."
            )
    return tuple(range(-len(shape), 0))


def padding_row(padding_idx, rows, function):
    """Return padding_idx as a nonnegative row index."""
    if padding_idx is None:
        return None
    if not is_integer(padding_idx) or not -rows <= padding_idx < rows:
        raise ValueError(
            f"{function}: padding_idx={padding_idx!r} is out of range for a table with {rows} rows."
        )
    return int(padding_idx) % rows


def check_labels(x, labels, axis, ignore_index):
    """Raise ValueError unless labels are classes and have the shape of x without its class axis."""
    classes, expected = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    if labels.shape != expected:
        hint = ""
        if labels.shape == x.shape:
            hint = " One-hot targets are probabilities: write target.astype(x.dtype)."
        elif labels.shape == x.shape[:-1]:
            hint = f" If the classes are on the last axis, write np.moveaxis(x, -1, {axis})."
        raise ValueError(
            f"cross_entropy: scores {x.shape} (classes on axis {axis}) need class labels of shape "
            f"{expected}, got {labels.shape}.{hint}"
        )
    # Negative labels are very large as unsigned numbers, so one comparison finds both errors.
    if np.count_nonzero(labels.astype(np.uint64) < classes) == labels.size:
        return
    outside = (labels.astype(np.uint64) >= classes) & (labels != ignore_index)
    if outside.any():
        raise ValueError(
            f"cross_entropy: class {labels[outside][0]} is neither between 0 and {classes - 1} nor "
            f"equal to ignore_index ({ignore_index}). Labels start at 0."
        )


def check_probabilities(x, target, ignore_index):
    """Raise ValueError unless target probabilities have the shape of the scores."""
    if target.shape != x.shape:
        raise ValueError(
            "cross_entropy: a float target contains probabilities and must have the shape of the "
            f"scores, {x.shape}; got {describe(target)}. Class labels must be integers: write "
            "target.astype(np.int64)."
        )
    if ignore_index is not None and ignore_index >= 0:
        raise ValueError(
            f"cross_entropy: ignore_index={ignore_index} works only with class labels. For "
            "probabilities, select the samples to keep: x[keep], target[keep]."
        )


def check_attention(q, k, v, mask):
    """Return the shape of the scores, (..., T, S); raise if the arguments do not fit together."""
    given = f"got q {describe(q)}, k {describe(k)} and v {describe(v)}"
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"attention needs q (..., T, D), k (..., S, D) and v (..., S, V); {given}."
        )
    try:
        lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        raise ValueError(
            f"attention: the axes before the last two do not broadcast; {given}. If there are "
            "fewer key heads than query heads, pass enable_gqa=True."
        ) from None
    scores = (*lead, q.shape[-2], k.shape[-2])
    if mask is None:
        return scores
    if mask.dtype.kind not in "bf" or not mask.ndim:
        raise TypeError(
            "attn_mask must be boolean (True = may look) or float (added to the scores), got "
            f"{describe(mask)}. For a mask of integers, write mask.astype(bool)."
        )
    try:
        shape = np.broadcast_shapes(mask.shape, scores)
    except ValueError:
        shape = ()  # reported below
    if shape[-2:] != scores[-2:]:
        rows = f"mask[:, {'None, ' * (len(scores) - 2)}:]"
        raise ValueError(
            f"attn_mask {describe(mask)} does not broadcast to the scores {scores} = (..., T, S). "
            f"For a mask of shape (B, S) over keys, write {rows}."
        )
    warn_of_a_doubtful_mask(mask, blocked=False)
    return shape


def warn_of_a_doubtful_mask(mask, blocked):
    """Warn about a causal mask in the wrong convention or a float mask of zeros and ones.

    `blocked` is the boolean that marks a blocked key.
    """
    learned, mask = tracked(mask), array_of(mask)
    if learned or isinstance(mask, Symbolic):
        return  # a learned mask may be zero or one by chance, and a program gets other masks
    if mask.dtype == bool:
        n = mask.shape[-1]
        late = n > 1 and mask.shape == (n, n) and mask[0, -1] != blocked  # quick in the usual case
        if late and np.array_equal(mask, np.tri(n, dtype=bool) == blocked):
            warn(
                "this attn_mask blocks all earlier keys. True means blocked in nn, but allowed in "
                "F.scaled_dot_product_attention. Write ~mask, or pass is_causal=True."
            )
    elif mask.max(initial=0) == 1 and ((mask == 0) | (mask == 1)).all():
        warn(
            "this attn_mask contains zeros and ones, which are added to the scores and block "
            "nothing. Write mask.astype(bool) if 1 means True, or mask == 0 if 1 means False."
        )
