"""Argument checks of `functional`, and the errors that say what to write."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from ..engine import Symbolic, Variable, array_of
from ..errors import describe, is_integer, is_number, nearest, warn
from ..tensor import Tensor, get_default_dtype

REDUCTIONS = ("none", "mean", "sum")


def operand(x: Any, function: str, dtype: Any = None) -> Any:
    """Return a Tensor or an array as it is, numbers and lists as a Tensor.

    The tensor of another library is refused, because no gradient would flow back to it.
    """
    if isinstance(x, (Variable, np.ndarray)):
        return x
    if hasattr(x, "dtype") and not isinstance(x, np.generic):
        raise TypeError(
            f"{function} takes Tensors, arrays and numbers, got {describe(x)}. Write "
            "Tensor(x) first; no gradient flows back through that into the other library."
        )
    return Tensor(x, dtype=dtype)


def real(x: Any, function: str, dtype: Any = None) -> Any:
    """Return x with floating-point numbers: integers are promoted to `dtype` or the default."""
    x = operand(x, function, dtype)
    kind = array_of(x).dtype.kind
    if kind in "iub":
        return x.astype(dtype or get_default_dtype())
    if kind != "f":
        raise TypeError(f"{function} takes real numbers, got {describe(x)}.")
    return x


def values(x: Any, function: str) -> Any:
    """Return a mask or classes as an array; a Tensor stays one."""
    if isinstance(x, (Variable, np.ndarray, Symbolic)):
        return x
    return operand(x, function) if getattr(x, "requires_grad", False) else np.asarray(x)


def integers(x: Any, function: str, name: str) -> np.ndarray:
    """Return a plain array of integers: a copy, since the caller may change theirs."""
    array = np.copy(array_of(values(x, function)))
    if array.size == 0 and not hasattr(x, "dtype"):
        array = array.astype(np.int64)  # an empty list
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function} needs integers as {name}, got {describe(x)}. Write "
            f"{name}.astype(np.int64) if they are whole numbers."
        )
    return array


def check_array(x: Any, function: str, name: str) -> None:
    """Raise TypeError unless x is a Tensor or an array."""
    if not isinstance(x, (Variable, np.ndarray, np.generic)):
        raise TypeError(f"{function}: {name} is a Tensor or an array, got {describe(x)}.")


def check_choice(value: Any, known: Sequence[str], name: str, function: str) -> None:
    """Raise ValueError unless the value is one of these words."""
    if value not in known:
        raise ValueError(
            f"{function}: {name} is one of {', '.join(map(repr, known))}, got {describe(value)}."
            + nearest(str(value), known)
        )


def check_probability(p: Any, function: str, name: str = "p") -> None:
    """Raise ValueError unless p is a number in [0, 1]."""
    if not is_number(p) or not 0 <= p <= 1:
        raise ValueError(
            f"{function}: {name} is the probability to drop an element and lies in [0, 1], got "
            f"{describe(p)}."
        )


def single(value: Any) -> Any:
    """Return the number in an array without axes, of NumPy or PyTorch; anything else as it is."""
    if isinstance(value, Variable) or getattr(value, "shape", None) != ():
        return value
    return value.item()


def check_number(value: Any, function: str, name: str) -> Any:
    """Return a number that is a plain setting; raise TypeError for anything else."""
    value = single(value)
    if not is_number(value):
        raise TypeError(f"{function}: {name} is a plain number, got {describe(value)}.")
    return value


def sizes_of(normalized_shape: Any) -> tuple[int, ...]:
    """Return the sizes of the axes to normalise, from one whole number or several."""
    sizes = (normalized_shape,) if is_integer(normalized_shape) else normalized_shape
    try:
        return tuple(map(index, sizes))
    except TypeError:
        raise TypeError(
            "normalized_shape is the size of the last axis, or a tuple of the last sizes, such as "
            f"x.shape[-1]; got {describe(normalized_shape)}."
        ) from None


def normalized_axes(
    x: Any, normalized_shape: Any, function: str, **parameters: Any
) -> tuple[int, ...]:
    """Return the axes to normalise; raise unless they and the parameters fit."""
    shape = sizes_of(normalized_shape)
    if not shape or array_of(x).shape[-len(shape) :] != shape:
        raise ValueError(
            f"{function}: normalized_shape {shape} must be the last sizes of the input, which is "
            f"{describe(x)}."
        )
    for name, parameter in parameters.items():
        if parameter is None:
            continue
        check_array(parameter, function, name)
        if parameter.shape != shape:
            raise ValueError(
                f"{function}: {name} must have the shape normalized_shape = {shape}, got "
                f"{describe(parameter)}."
            )
    return tuple(range(-len(shape), 0))


def check_linear(x: Any, weight: Any, bias: Any) -> None:
    """Raise unless x (..., I), weight (O, I) or (I,) and bias (O,) or () fit."""
    if weight.ndim not in (1, 2) or x.ndim == 0 or x.shape[-1] != weight.shape[-1]:
        turned = weight.ndim == 2 and x.ndim and x.shape[-1] == weight.shape[0]
        raise ValueError(
            "linear: the last size of the input must be the last size of the weight, which is "
            f"(out, in); got {describe(x)} and weight {describe(weight)}."
            + (" It fits the other way round: transpose one of them." if turned else "")
        )
    if bias is not None and tuple(bias.shape) not in (tuple(weight.shape[:-1]), ()):
        raise ValueError(
            "linear: the bias must have one number for each row of the weight, "
            f"{tuple(weight.shape[:-1])}; got {describe(bias)}."
        )


def first_outside(values: np.ndarray, outside: np.ndarray) -> str:
    """Return `7 at position (0, 2)`: the first of the values for which `outside` is True."""
    where = tuple(int(i) for i in np.argwhere(outside)[0])
    return f"{values[where]} at position {where}" if where else f"{values[()]}"


def check_rows(indices: np.ndarray, weight: Any) -> None:
    """Raise unless weight is a table (V, E) and the indices are rows of it."""
    check_array(weight, "embedding", "weight")
    if weight.ndim != 2:
        raise ValueError(
            f"embedding: the table has the shape (rows, width), got {describe(weight)}."
        )
    rows = weight.shape[0]
    outside = (indices < 0) | (indices >= rows)
    if outside.any():
        raise ValueError(
            f"embedding: index {first_outside(indices, outside)} is outside the table, whose "
            f"{rows} rows are numbered 0 to {rows - 1}."
        )


def padding_row(padding_idx: Any, rows: int, function: str) -> int | None:
    """Return the row of a table that gets no gradient, counted from the start."""
    if padding_idx is None:
        return None
    padding_idx = single(array_of(padding_idx))
    if not is_integer(padding_idx) or not -rows <= padding_idx < rows:
        raise ValueError(
            f"{function}: padding_idx={padding_idx!r} is not one of the {rows} rows of the table."
        )
    return int(padding_idx) % rows


def check_labels(x: Any, labels: np.ndarray, axis: int, ignore_index: int) -> None:
    """Raise unless labels have the scores' shape without the class axis and name classes."""
    classes, expected = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    if labels.shape != expected:
        hint = ""
        if labels.shape == x.shape:
            hint = " One-hot targets are probabilities: write target.astype(x.dtype)."
        elif labels.shape == (*expected, 1):
            hint = " Drop the last axis: write target[..., 0]."
        elif labels.shape == x.shape[:-1]:
            hint = f" With the classes on the last axis write np.moveaxis(x, -1, {axis})."
        raise ValueError(
            f"cross_entropy: scores {x.shape} (classes on axis {axis}) need class labels of shape "
            f"{expected}, got {labels.shape}.{hint}"
        )
    # As unsigned numbers negative labels are very large, so that one comparison finds both.
    if np.count_nonzero(labels.astype(np.uint64) < classes) == labels.size:
        return
    outside = ((labels < 0) | (labels >= classes)) & (labels != ignore_index)
    if outside.any():
        raise ValueError(
            f"cross_entropy: class {first_outside(labels, outside)} is not one of the {classes} "
            f"classes 0 to {classes - 1} (nor ignore_index, {ignore_index}). Labels start at 0; "
            "for padding pass ignore_index=."
        )


def check_probabilities(x: Any, target: Any, axis: int, ignore_index: int | None) -> None:
    """Raise unless target probabilities have the shape of the scores."""
    if target.shape == x.shape:
        if ignore_index is not None and ignore_index >= 0:
            raise ValueError(
                f"cross_entropy: ignore_index={ignore_index} is for class labels, and the target "
                "holds probabilities. Pick the samples that count: x[keep], target[keep]."
            )
        return
    text = (
        "cross_entropy: a float target holds probabilities and has the shape of the scores, "
        f"{x.shape}; got {describe(target)}."
    )
    if target.shape == x.shape[:axis] + x.shape[axis + 1 :]:
        raise TypeError(f"{text} Class labels are integers: write target.astype(np.int64).")
    raise ValueError(f"{text} The scores come first: cross_entropy(scores, target).")


def check_attention(q: Any, k: Any, v: Any, mask: Any) -> tuple[int, ...]:
    """Return the shape of the scores, (..., T, S); raise unless all arguments fit together."""
    given = f"got q {describe(q)}, k {describe(k)} and v {describe(v)}"
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "attention needs q (..., T, D), k (..., S, D) and v (..., S, V): one value for each "
            f"key; {given}."
        )
    try:
        lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        raise ValueError(
            f"attention: the axes before the last two must be equal or 1; {given}. For fewer key "
            "than query heads pass enable_gqa=True."
        ) from None
    scores = (*lead, q.shape[-2], k.shape[-2])
    if mask is None:
        return scores
    if mask.dtype.kind not in "bf" or not mask.ndim:
        raise TypeError(
            "attn_mask is boolean (True = may look) or float (added to the scores) and broadcasts "
            f"to the scores (..., T, S), got {describe(mask)}. Write mask.astype(bool) for a mask "
            "of integers, is_causal=True for a causal one."
        )
    try:
        if np.broadcast_shapes(mask.shape, scores)[-2:] != scores[-2:]:
            raise ValueError
    except ValueError:
        rows = f"mask[:, {'None, ' * (len(scores) - 2)}:]"
        raise ValueError(
            f"attn_mask {describe(mask)} does not broadcast to the scores {scores} = (..., T, S): "
            f"rows are queries, columns are keys. For a mask (B, S) over keys write {rows}."
        ) from None
    warn_of_a_doubtful_mask(mask, "attn_mask", blocked=False)
    return np.broadcast_shapes(scores, mask.shape)


def warn_of_a_doubtful_mask(mask: Any, name: str, blocked: bool) -> None:
    """Warn of a causal mask in the other convention, and of zeros and ones that are added.

    `blocked` is the value that stands for a blocked key.
    """
    if isinstance(mask, Variable) and mask._tracked:
        return  # a learned mask may be at zero or one by chance
    mask = array_of(mask)
    if mask.dtype == bool:
        square = mask.ndim == 2 and mask.shape[0] == mask.shape[1] > 1
        if square and mask[0, -1] != blocked == mask[-1, 0]:
            if np.array_equal(mask, np.tri(len(mask), dtype=bool) == blocked):
                warn(
                    "this attn_mask blocks every earlier position, so each query sees only later "
                    "ones. In nn True means blocked, in F.scaled_dot_product_attention True means "
                    "may look: write ~mask, or is_causal=True."
                )
    elif mask.size and mask.min() == 0 and mask.max() == 1 and np.isin(mask, (0, 1)).all():
        warn(
            f"this {name} holds zeros and ones of dtype {mask.dtype}, which are added to the "
            "scores and block nothing. Write mask.astype(bool) where 1 stands for True, mask == 0 "
            "where it stands for False."
        )
