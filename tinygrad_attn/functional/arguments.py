"""What the functions of `functional` ask of their arguments, and the errors that say so."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from ..engine import Symbolic, Variable, array_of, tracked
from ..messages.errors import (
    describe,
    is_integer,
    is_module,
    is_number,
    nearest,
    numbers_of,
    refuse_mask,
    warn,
)
from ..tensor import Tensor, get_default_dtype
from ..tensor.convert import ragged

REDUCTIONS = ("none", "mean", "sum")


def operand(x: Any, function: str, dtype: Any = None) -> Any:
    """A Tensor or an array as it is; numbers and lists as a Tensor, of this dtype if one is named.

    Another library's tensor is refused, as by operators and layers: its gradient would be lost.
    """
    if isinstance(x, (Variable, np.ndarray)):
        return x
    if hasattr(x, "dtype") and not isinstance(x, (np.generic, type)):
        raise TypeError(
            f"{function} takes Tensors, arrays and numbers, got {describe(x)}; write Tensor(x) "
            "first. No gradient flows back through that into the other library."
        )
    try:
        return Tensor(x, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{function}: {error}") from None


def values(x: Any, function: str) -> Any:
    """What is no Tensor as an array: a mask, or the classes; another library's tensor only if no
    gradient by it is wanted.
    """
    if isinstance(x, (Variable, np.ndarray, Symbolic)):
        return x
    if getattr(x, "requires_grad", False):
        return operand(x, function)  # which refuses it
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{function}: {ragged(error)}") from None


def real(x: Any, function: str, dtype: Any = None) -> Any:
    """A Tensor or array of real numbers; integers become this dtype (None: the default one), lists
    a Tensor.
    """
    x = operand(x, function)
    kind = array_of(x).dtype.kind
    if kind == "f":
        return x
    if kind in "iub":
        return x.astype(dtype or get_default_dtype())
    raise TypeError(f"{function} takes real numbers, got {describe(x)}.{numbers_of(x)}")


def integers(x: Any, function: str, what: str) -> np.ndarray:
    """A plain array of integers: a copy, for the caller may change theirs before backward()."""
    refuse_mask(function, x)
    array = np.copy(array_of(values(x, function)))
    if array.size == 0 and not hasattr(x, "dtype"):
        array = array.astype(np.int64)  # an empty list is a list of no integers
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function} needs integers as {what}, got {describe(x)}; "
            f"write {what}.astype(np.int64) if they are whole numbers."
        )
    return array


def padding_row(padding_idx: Any, rows: int, function: str) -> int | None:
    """The row of a table that gets no gradient, counted from the start."""
    if padding_idx is None:
        return None
    try:  # False, which would be row 0, was meant for no row or for another argument
        row = rows if isinstance(padding_idx, (bool, np.bool_)) else index(padding_idx)
    except TypeError:
        row = rows
    if not -rows <= row < rows:
        raise ValueError(
            f"{function}: padding_idx={padding_idx!r} is not one of the {rows} rows of the table."
        )
    return row % rows


def check_array(x: Any, function: str, name: str) -> None:
    """A Tensor or an array, which has a shape and a dtype."""
    if not isinstance(x, (Variable, np.ndarray, np.generic)):
        hint = f"; write Tensor({name})" if isinstance(x, (list, tuple, int, float)) else ""
        hint = f"; write layer.{name}" if is_module(x) and hasattr(x, name) else hint
        raise TypeError(f"{function}: {name} is a Tensor or an array, got {describe(x)}{hint}.")


def first_outside(values: np.ndarray, outside: np.ndarray) -> str:
    """`7 at position (0, 2)`: the first of the values for which `outside` holds."""
    where = tuple(int(i) for i in np.argwhere(outside)[0])
    return f"{values[where]} at position {where}" if where else f"{values[()]}"


def check_axis(x: Any, axis: Any, function: str, several: bool = False) -> None:
    """An existing axis, or a tuple of them if there may be several.

    An array without axes counts as a row of one number, as in PyTorch.
    """
    ndim = max(x.ndim, 1)
    for a in axis if several and isinstance(axis, tuple) else (axis,):
        if not is_integer(a):
            hint = (
                " Several are a tuple: axis=tuple(range(x.ndim)) for all."
                if several
                else " Join several into one first, with x.reshape."
                if axis is None or isinstance(axis, (tuple, list))
                else ""
            )
            raise TypeError(f"{function} needs an integer axis, got {describe(a)}.{hint}")
        if not -ndim <= a < ndim:
            raise ValueError(
                f"{function}: axis {a} does not exist in {describe(x)}; it lies in "
                f"[{-ndim}, {ndim})."
            )


def check_choice(value: str, known: Sequence[str], name: str, function: str) -> None:
    """One of a few words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{function}: {name} is one of {', '.join(map(repr, known))}, got {describe(value)}."
            + nearest(str(value), known)
        )


def check_probability(p: float, function: str, name: str = "p") -> None:
    """A number from 0 to 1."""
    # True is no probability: it was meant for the next argument, `training`.
    if not is_number(p) or not 0 <= p <= 1:
        raise ValueError(
            f"{function}: {name} is the probability to drop an element and lies in [0, 1], got "
            f"{describe(p)}."
        )


def single(value: Any) -> Any:
    """The number in an array without axes, of NumPy or PyTorch; anything else as it is."""
    alone = (
        not isinstance(value, Variable)
        and getattr(value, "shape", None) == ()
        and hasattr(value, "item")
    )
    return value.item() if alone else value


def check_number(value: Any, function: str, name: str) -> Any:
    """The number; of a Tensor the op itself says that no derivative reaches it."""
    value = single(value)
    if not (is_number(value) or isinstance(value, Variable)):
        raise TypeError(f"{function}: {name} is a number, got {describe(value)}.")
    return value


def sizes_of(normalized_shape: Any) -> tuple[int, ...]:
    """The sizes of the axes to normalise, from one whole number or several."""
    try:
        return tuple(
            map(index, (normalized_shape,) if is_integer(normalized_shape) else normalized_shape)
        )
    except TypeError:
        raise TypeError(
            "normalized_shape is the size of the last axis, or a tuple of the last sizes, such as "
            f"x.shape[-1]; got {describe(normalized_shape)}."
        ) from None


def normalized_axes(
    x: Any, normalized_shape: int | Sequence[int], function: str, **parameters: Any
) -> int:
    """How many trailing axes are normalised; raises unless they and the parameters fit."""
    shape = sizes_of(normalized_shape)
    if not shape or array_of(x).shape[-len(shape) :] != shape:
        hint = f" Write normalized_shape={x.shape[-1]} for its last axis." if x.ndim else ""
        raise ValueError(
            f"{function}: normalized_shape {shape} must be the last sizes of the input, "
            f"which is {describe(x)}.{hint}"
        )
    for name, parameter in parameters.items():
        if parameter is None:
            continue
        check_array(parameter, function, name)
        if parameter.shape != shape:
            raise ValueError(
                f"{function}: {name} must have the shape normalized_shape = {shape}, "
                f"got {describe(parameter)}."
            )
    return len(shape)


def check_linear(x: Any, weight: Any, bias: Any) -> None:
    """x (..., I), weight (O, I) or (I,), bias (O,) or ()."""
    if weight.ndim not in (1, 2):
        raise ValueError(
            f"linear: the weight is one matrix (out, in), or (in,), got {describe(weight)}. For a "
            "matrix to each of a batch write x @ weight.mT."
        )
    if x.ndim == 0 or x.shape[-1] != weight.shape[-1]:
        turned = weight.ndim == 2 and x.ndim and x.shape[-1] == weight.shape[0]
        raise ValueError(
            "linear: the last size of the input must be the last size of the weight (out, in); got "
            f"{describe(x)} and weight {describe(weight)}."
            + (" It fits the other way round: pass weight.T." if turned else "")
        )
    if bias is not None and tuple(bias.shape) not in (tuple(weight.shape[:-1]), ()):
        raise ValueError(
            "linear: the bias must have one number for each row of the weight, "
            f"{tuple(weight.shape[:-1])}; got {describe(bias)}."
        )


def check_smoothing(label_smoothing: Any) -> Any:
    """A number from 0 to 1."""
    e = single(label_smoothing)
    if not is_number(e) or not 0 <= e <= 1:
        raise ValueError(f"cross_entropy: label_smoothing lies in [0, 1], got {describe(e)}.")
    return e


def class_weights(weight: Any, classes: int) -> Any:
    """One number for each class."""
    weight = real(weight, "cross_entropy's weight")
    if weight.shape != (classes,):
        raise ValueError(
            f"cross_entropy: weight has one number for each of the {classes} classes, "
            f"got {describe(weight)}."
        )
    return weight


def classes_or_probabilities(target: Any, dtype: Any) -> Any:
    """A Tensor or an array as it is; numbers and lists as an array, of this dtype where they are
    probabilities.
    """
    if isinstance(target, (Variable, np.ndarray)):
        return target
    target = values(target, "cross_entropy")
    if target.dtype.kind not in "fiub":
        raise TypeError(
            "cross_entropy: the target holds class numbers or probabilities, got "
            f"{describe(target[()])}. Turn names into numbers first, as in "
            "[classes.index(name) for name in names]."
        )
    return target.astype(dtype if target.dtype.kind == "f" and target.size else np.int64)


def check_labels(x: Any, labels: np.ndarray, axis: int, ignore_index: int | None) -> None:
    """Labels have the scores' shape without the class axis; each is a class or `ignore_index`."""
    if ignore_index is not None and not is_integer(ignore_index):
        raise TypeError(
            f"cross_entropy: ignore_index is one class number, got {describe(ignore_index)}. It "
            "says which label does not count; several need a mask: x[keep], target[keep]."
        )
    classes, expected = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    if labels.shape != expected:
        raise ValueError(
            f"cross_entropy: scores {x.shape} (classes on axis {axis}) need class labels of shape "
            f"{expected}, got {labels.shape}.{_labels_hint(x, labels, axis)}"
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
    if not classes:
        raise ValueError(
            f"cross_entropy: {describe(x)} has scores for no class on axis {axis}; a label that is "
            "ignored needs one too."
        )


def _labels_hint(x: Any, labels: np.ndarray, axis: int) -> str:
    """What labels of a wrong shape most likely are, and what to write then."""
    classes, expected = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    if labels.shape == x.shape and x.ndim == 1 and sorted(labels) != [0] * (classes - 1) + [1]:
        return (
            " Scores of several samples have a number for each class, (N, C): give it those from "
            "before argmax."
        )
    if labels.shape == x.shape:
        return " One-hot targets are probabilities: write target.astype(x.dtype)."
    if labels.shape == (*expected, 1):
        return " Drop the last axis: write target[..., 0]."
    if labels.shape == x.shape[:-1]:
        return f" With the classes on the last axis write np.moveaxis(x, -1, {axis})."
    return ""


def check_probabilities(x: Any, target: Any, axis: int, ignore_index: int | None) -> None:
    """Target probabilities have the shape of the scores; float class labels are a common slip."""
    if target.shape == x.shape:
        numbers = array_of(target)
        if isinstance(numbers, np.ndarray) and numbers.min(initial=0) < 0:
            warn(
                "cross_entropy: the target holds numbers below 0, which are no probabilities. The "
                "scores come first: cross_entropy(scores, target)."
            )
        if ignore_index is not None and ignore_index >= 0:
            raise ValueError(
                f"cross_entropy: ignore_index={ignore_index} is for class labels, and the target "
                "holds probabilities. Pick the samples that count instead: x[keep], target[keep]."
            )
        return
    text = (
        "cross_entropy: a float target holds probabilities and has the shape of the scores, "
        f"{x.shape}; got {describe(target)}."
    )
    if target.shape == x.shape[:axis] + x.shape[axis + 1 :]:
        raise TypeError(f"{text} Class labels are integers: write target.astype(np.int64).")
    raise ValueError(
        text
        + (" The scores come first: cross_entropy(scores, target)." if target.ndim > x.ndim else "")
    )


def check_attention(q: Any, k: Any, v: Any, mask: Any) -> tuple[int, ...]:
    """(..., T, D), (..., S, D), (..., S, V) and a mask fit together; returns (..., T, S)."""
    qs, ks, vs = array_of(q).shape, array_of(k).shape, array_of(v).shape
    lead = qs[:-2]
    if not (len(qs) >= 2 and lead == ks[:-2] == vs[:-2] and qs[-1] == ks[-1] and ks[-2] == vs[-2]):
        lead = _broadcast_lead(q, k, v)
    scores = (*lead, qs[-2], ks[-2])
    if mask is None:
        return scores
    _check_mask(mask, scores)
    warn_if_counted(mask, "attn_mask")
    if mask.dtype == bool:
        warn_if_upside_down(mask, blocked=False)
    return np.broadcast_shapes(scores, mask.shape)


def _broadcast_lead(q: Any, k: Any, v: Any) -> tuple[int, ...]:
    """What the axes before the last two broadcast to; raises unless q, k and v fit together."""
    given = f"got q {describe(q)}, k {describe(k)} and v {describe(v)}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ValueError(
            f"attention needs q (..., T, D), k (..., S, D) and v (..., S, V); {given}."
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"attention compares queries with keys, so their last sizes must be equal; {given}."
        )
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"attention needs one value for each key, so k and v must agree at axis -2; {given}."
        )
    try:
        return np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        heads = q.ndim > 2 and k.ndim > 2 and q.shape[-3] != k.shape[-3]
        raise ValueError(
            f"attention: the axes before the last two must be equal or 1; {given}."
            + (" For fewer key than query heads pass enable_gqa=True." if heads else "")
        ) from None


def _check_mask(mask: Any, scores: tuple[int, ...]) -> None:
    if not mask.ndim:  # one number for all scores changes nothing, so another argument was meant
        raise TypeError(
            "attn_mask, the fourth argument, is an array that broadcasts to the scores (..., T, S),"
            f" got {describe(array_of(mask).item())}. Write is_causal=True for a causal mask, and "
            "dropout_p= for a probability."
        )
    if mask.dtype.kind not in "bf":
        raise TypeError(
            "attn_mask is boolean (True = may look) or float (added to the scores), "
            f"got {describe(mask)}; write mask.astype(bool)."
        )
    try:
        fits = np.broadcast_shapes(mask.shape, scores)[-2:] == scores[-2:]
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"attn_mask {describe(mask)} does not broadcast to the scores {scores} = (..., T, S)."
            + (
                f" For a mask (B, S) over keys write mask[:, {'None, ' * (len(scores) - 2)}:]."
                if mask.shape == (scores[0], scores[-1])
                else " Transposed? Rows are queries, columns are keys."
                if mask.shape[-2:] == scores[:-3:-1]
                else ""
            )
        )


def warn_if_upside_down(mask: Any, blocked: bool) -> None:
    """Warn of a causal mask in the other convention, which lets each query see later keys only.

    `blocked` is what stands in the mask for a blocked key.
    """
    mask = array_of(mask)
    if (
        mask.ndim == 2
        and mask.shape[0] == mask.shape[1] > 1
        and mask[0, -1] != blocked == mask[-1, -1]
        and np.array_equal(mask, np.tri(len(mask), dtype=bool) == blocked)
    ):
        warn(
            "this attn_mask blocks every earlier position, so each query sees only later ones. In "
            "nn True means blocked, in F.scaled_dot_product_attention True means may look: write "
            "~mask, or is_causal=True."
        )


def warn_if_counted(mask: Any, name: str) -> None:
    """Warn of a float mask of zeros and ones, which would be added to the scores."""
    if tracked(mask):
        return  # a learned mask may be at zero or one by chance
    mask = array_of(mask)
    if (
        mask.dtype.kind == "f"
        and mask.size
        and mask.min() == 0
        and mask.max() == 1
        and np.isin(mask, (0, 1)).all()
    ):
        warn(
            f"this {name} holds zeros and ones of dtype {mask.dtype}, which are added to the "
            "scores and block nothing. Write mask.astype(bool) where 1 stands for True, mask == 0 "
            "where it stands for False."
        )


def check_scale(scale: Any, width: int) -> Any:
    """The number; a warning of sqrt(D), by which the scores were to be divided."""
    scale = check_number(scale, "scaled_dot_product_attention", "scale")
    if isinstance(scale, float) and width > 1 and abs(scale * scale - width) < 1e-6 * width:
        warn(
            f"scaled_dot_product_attention: the scores are multiplied by scale, and {scale:g} is "
            f"the square root of D = {width}. Write 1 / scale, which is the default."
        )
    return scale


def check_grouped(q: Any, x: Any, name: str) -> None:
    """Query heads a multiple of the heads of k or v."""
    if min(q.ndim, x.ndim) < 3 or x.shape[-3] == 0 or q.shape[-3] % x.shape[-3]:
        raise ValueError(
            f"enable_gqa needs heads at axis -3, those of q a multiple of those of {name}; "
            f"got q {describe(q)}, {name} {describe(x)}."
        )
