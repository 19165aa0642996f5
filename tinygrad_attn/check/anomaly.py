"""`detect_anomaly`: the first op that makes NaN or Inf, where it was called, and why.

Nothing looks on unless it is switched on: it is one of the engine's observers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from ..engine import Variable, local
from ..messages.errors import describe
from ..nn.scopes import watching
from .records import array_of, as_given, shares
from .trace import Place, origin, scope_name


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Inside, the first op that makes NaN or Inf of finite numbers raises FloatingPointError.

        with ta.detect_anomaly():
            loss = model(x)
            loss.backward()

    The error names the op, forward or backward, the index and the operands there, the line that
    called the op, its module, and the reason (overflow in exp, 0/0, log 0, sqrt 0 in the backward
    pass, 0 x inf behind a mask, a softmax row with every key blocked ...).  Infinities that come in
    as operands, such as the -inf of a mask, are not reported.  This thread only. As
    torch.autograd.detect_anomaly.
    """
    with watching(_Detector()), np.errstate(all="ignore"):
        yield


class _Detector:
    def __init__(self) -> None:
        # By the tick of the record; they go with its result, since a whole training may run inside.
        self.places: dict[int, tuple[Place | None, ref]] = {}

    def forward(self, op: Any, inputs: tuple, static: dict[str, Any], result: Any) -> None:
        place = origin()
        if result._record is not None:
            tick, places = result._record[0], self.places
            # Called with the reference, pop's default. In a function of Python's Ctrl-C would be
            # printed and forgotten there.
            places[tick] = place, ref(result, partial(places.pop, tick))
        value = result._data
        if value.dtype.kind != "f" or np.isfinite(value).all():
            return
        operands = [array_of(x) for x in inputs if _numeric(x)]
        given = [*operands, *(array_of(v) for v in static.values() if _numeric(v))]
        nan = bool(np.isnan(value).any())
        if any(np.isnan(a).any() if nan else not np.isfinite(a).all() for a in given):
            if nan:
                _came_in(op, inputs, place)
            return  # somebody else made it
        index = _first(np.isnan(value) if nan else np.isinf(value))
        what = f"op {op.__name__!r} made {value[index]} at index {index} of its result {describe(value)}"
        reason = forward_reason(
            op.__name__,
            [_at(a, index, value.shape) for a in operands],
            operands,
            value,
            index,
            static,
        )
        if reason.startswith(VAGUE):
            reason = complaint(lambda: op.forward(*as_given(inputs), **static)) or reason
        raise FloatingPointError(
            _text(
                what,
                inputs,
                operands,
                index,
                value.shape,
                place,
                scope_name(local.context.scope),
                reason,
            )
        )

    def backward(
        self, t: Any, node: Any, g: Any, number: int, x: Any, part: Any, running_sum: Any
    ) -> None:
        g, part, total = array_of(g), array_of(part), array_of(running_sum)
        place = self.places.get(node.tick, ("unknown",))[0]
        if not np.isfinite(g).all():
            raise FloatingPointError(
                f"the gradient that reaches op {node.op.__name__!r} already holds NaN or Inf at "
                f"index {_first(~np.isfinite(g))}, and no op made it: it came in as the gradient "
                f"given to backward(){_called(place)}."
            )
        if np.isfinite(part).all() and np.isfinite(total).all():
            return
        operands, scope = [array_of(v) for v in node.inputs if _numeric(v)], scope_name(node.scope)
        if not np.isfinite(part).all():
            index = _first(~np.isfinite(part))
            what = (
                f"in the backward pass, op {node.op.__name__!r} made {part[index]} at index "
                f"{index} of the gradient of its operand {number}, {describe(x)}"
            )
            here = [_at(a, index, part.shape) for a in operands]
            reason = backward_reason(
                node.op.__name__,
                here,
                _at(g, index, part.shape),
                operands,
                part[index],
                number,
                node.static,
            )
            if reason.startswith(VAGUE) and node.op.partials:
                reason = (
                    complaint(
                        lambda: node.op.partials[number](
                            g, t._data, *as_given(node.inputs), **node.static
                        )
                    )
                    or reason
                )
            elif reason.startswith(VAGUE):  # one rule for all operands
                reason = complaint(lambda: list(shares(t, g))) or reason
            raise FloatingPointError(
                _text(what, node.inputs, operands, index, part.shape, place, scope, reason)
            )
        index = _first(~np.isfinite(total))
        what = (
            f"in the backward pass, adding up the gradients of {describe(x)} gave {total[index]} "
            f"at index {index}, at the contribution of op {node.op.__name__!r}"
        )
        raise FloatingPointError(
            _text(
                what,
                node.inputs,
                operands,
                index,
                part.shape,
                place,
                scope,
                "overflow of a sum of gradients; scale the loss down.",
            )
        )


def _came_in(op: Any, inputs: tuple, place: Any) -> None:
    """NaN in data or weights, which no op has made."""
    for number, x in enumerate(inputs):
        value = array_of(x) if _numeric(x) else np.zeros(())
        if getattr(x, "_record", None) is None and np.isnan(value).any():
            raise FloatingPointError(
                f"detect_anomaly: operand {number} of op {op.__name__!r}, {describe(x)}, already "
                f"holds NaN at index {_first(np.isnan(value))}{_called(place)}, and no op made "
                "it. Reason: it came in with the data, or an optimiser step made the weights NaN "
                "(a learning rate too large); check the file, or replace it with np.nan_to_num."
            )


def complaint(compute: Any) -> str:
    """What NumPy complains of while it computes this, in words."""
    heard: list[str] = []
    try:
        with (
            np.errstate(all="call", under="ignore"),
            np.errstate(call=lambda kind, _: heard.append(kind)),
        ):
            compute()
    except Exception:
        return ""
    words = {
        "divide by zero": "a division by zero (or log 0) inside it. Add a small eps to the divisor, or choose a safe value with "
        "np.where before dividing.",
        "invalid value": "0/0, inf - inf, 0 x inf, or a root or logarithm of a negative number inside it.",
        "overflow": "overflow inside it: numbers too large are multiplied or added there; scale the loss, or normalise.",
    }
    return next(
        (words[kind] for kind in heard if kind in words), ""
    )  # what came first is the cause of the rest


def _numeric(x: Any) -> bool:
    return isinstance(x, (Variable, np.ndarray, float, int)) and array_of(x).dtype.kind in "fiub"


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _at(a: np.ndarray, index: tuple[int, ...], shape: tuple[int, ...]) -> float | None:
    """The element of an operand at an index of the result, if the op works element by element."""
    try:
        return float(np.broadcast_to(a, shape)[index])
    except ValueError:
        return None


def _called(place: Any) -> str:
    if place == "unknown":
        return "; its forward pass ran outside detect_anomaly(), so its line is not known"
    return f", called at {place}" if place else ""


def _text(
    what: str,
    inputs: tuple,
    operands: list[np.ndarray],
    index: tuple[int, ...],
    shape: tuple[int, ...],
    place: Any,
    scope: str,
    reason: str,
) -> str:
    values = [_at(a, index, shape) for a in operands]
    listed = ", ".join(
        describe(x)
        if v is None
        else f"{describe(x)} with {v:.6g} there"
        if np.ndim(array_of(x))
        else f"{v:.6g}"
        for x, v in zip([x for x in inputs if _numeric(x)], values)
    )
    inside = f" in the module {scope!r}" if scope else ""
    return f"detect_anomaly: {what}{inside}{_called(place)}. Operands: {listed}. Reason: {reason}"


OVERFLOWING = {"exp", "exp2", "expm1", "sinh", "cosh", "power", "square", "cube"}
LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
VAGUE = ("overflow: ", "an invalid operation")
"""How reasons begin that the op's name and operands alone did not tell."""

ROW_OPS = {
    "softmax",
    "log_softmax",
    "logsumexp",
    "scaled_dot_product_attention",
    "attention",
    "cross_entropy",
}
"""Parts of the names of ops that have no result for a row of -inf."""


def forward_reason(
    name: str,
    at: list[float | None],
    operands: list[np.ndarray],
    value: np.ndarray,
    index: tuple[int, ...],
    static: dict[str, Any],
) -> str:
    """Why an op gives NaN or Inf, from its name and the operands at that element."""
    a, b = (*at, None, None)[:2]
    made = value[index]
    infinite = any(np.isinf(o).any() for o in operands)
    opposite = (
        name in ("subtract", "add")
        and a is not None
        and b is not None
        and np.isinf(a)
        and np.isinf(b)
    )
    if (opposite or _of_rows(name)) and _empty_row(name, operands, index, value.shape, static):
        return (
            "empty softmax row (inf - inf): every score of the row is -inf, as when every key is "
            "blocked. Leave one key open, or use F.scaled_dot_product_attention, which gives "
            "zeros for such a row."
        )
    if name == "divide" or name == "reciprocal":
        top, bottom = (1.0, a) if name == "reciprocal" else (a, b)
        if bottom == 0:
            return (
                "0/0. Where both vanish, choose a value with np.where before dividing."
                if top == 0
                else "division by zero. Add a small eps to the divisor, or exclude these elements before dividing."
            )
        return "inf/inf." if np.isnan(made) else "overflow in a division by a very small number."
    if (
        "cross_entropy" in name
        and np.isnan(made)
        and (np.asarray(static.get("target", 0)) == static.get("ignore_index", -100)).all()
    ):
        return "0/0: every target is ignore_index, so the mean is taken over no targets. Leave such a batch out, or use reduction='sum'."
    if "norm" in name and np.isnan(made) and static.get("eps") == 0:
        return "0/0: all elements of the row are equal, so their variance is 0, and eps=0 leaves nothing to divide by. Give eps, as 1e-5."
    if name in LOGARITHMS and a is not None:
        edge = LOGARITHMS[name]
        if a == edge:
            return f"{name} {edge:g}. Clip the argument away from it, or compute with log_softmax instead of log(softmax)."
        if a < edge:
            return (
                f"{name} of the negative number {a:.6g}."
                if edge == 0
                else f"{name} of {a:.6g}, below {edge:g}."
            )
    if name == "sqrt" and a is not None and a < 0:
        return f"sqrt of the negative number {a:.6g}, which rounding makes of a small variance, say; np.maximum(x, 0) first."
    if name == "power":
        if a == 0:
            return "0 to a negative power, a division by zero."
        if a is not None and a < 0 and np.isnan(made):
            return f"the negative number {a:.6g} to a power that is not whole."
    if name in OVERFLOWING and np.isinf(made):
        largest = np.finfo(value.dtype).max
        reached = (
            f"exp2({np.log2(largest):.1f})" if name == "exp2" else f"exp({np.log(largest):.1f})"
        )
        return f"overflow in {name}: the largest {value.dtype} is {largest:.3g}" + (
            f", reached at {reached}. Subtract the maximum first, as softmax and logsumexp do."
            if name.startswith("exp")
            else "."
        )
    if name == "multiply" and np.isnan(made):
        return (
            "0 x inf. A masked (zero) factor does not undo an infinite one: replace it with "
            "np.where(mask, x, 0) instead of multiplying by the mask."
        )
    if name in ("matmul", "sum", "mean", "einsum") and np.isnan(made):
        return (
            "inf - inf or 0 x inf inside a sum: an operand holds infinities."
            if infinite
            else "a sum over no elements."
        )
    if name in ("var", "std") and operands[0].size <= value.size * static.get("ddof", 0):
        return "no degrees of freedom: the number of elements is not larger than ddof."
    if name in ("arcsin", "arccos", "arctanh", "arccosh"):
        return f"{name} of {a}, at or outside the edge of its domain."
    if np.isinf(made):
        return f"overflow: the result is larger than the largest {value.dtype}."
    return f"an invalid operation on {'infinities, which an operand holds' if infinite else 'finite numbers'}."


def _of_rows(name: str) -> bool:
    return any(key in name for key in ROW_OPS) and name not in ("attention", "attention_weights")


def _empty_row(
    name: str,
    operands: list[np.ndarray],
    index: tuple[int, ...],
    shape: tuple[int, ...],
    static: dict[str, Any],
) -> bool:
    """Is a row of scores all -inf?

    The one through this element, of an operand that has the result's shape.
    """
    for o in operands:
        gone, same = np.isneginf(o), o.shape == shape
        if name in ("add", "subtract"):  # no op of rows, but row - row.max(), along any axis
            axes = [d for d, n in enumerate(shape) if n > 1] if same else []
        else:
            axis = static.get("axis", 1 if "cross_entropy" in name else -1)
            axes = (
                [axis if isinstance(axis, int) and -o.ndim <= axis < o.ndim else -1]
                if o.ndim
                else []
            )
        rows = [gone.all(axis=d, keepdims=True) for d in axes]
        if any(np.broadcast_to(row, shape)[index] if same else row.any() for row in rows):
            return True
    return False


def backward_reason(
    name: str,
    at: list[float | None],
    g: float | None,
    operands: list[np.ndarray],
    made: Any,
    number: int,
    static: dict[str, Any],
) -> str:
    """Why a rule gives NaN or Inf."""
    a, b = (*at, None, None)[:2]
    edge = {
        "hypot": a == b == 0,
        "arctan2": a == b == 0,
        "divide": b == 0,
        "log1p": a == -1,
        "arcsin": a in (1, -1),
        "arccos": a in (1, -1),
        "arccosh": a == 1,
    }.get(name, a == 0 and name in ("sqrt", "power", "cbrt", "reciprocal", "log", "log2", "log10"))
    if g == 0 and (edge or np.isnan(made)):
        return (
            "0 x inf behind a mask: the incoming gradient is 0 there (np.where or a mask chose "
            f"the other branch), but the slope of {name} is infinite, and 0 x inf is NaN. Make "
            "the argument safe first: safe = np.where(mask, x, 1); np.where(mask, f(safe), 0)."
        )
    if name == "power" and number == 1 and a is not None and a < 0:
        return (
            f"the slope by an exponent is y log x, and x is the negative number {a:.6g} here. "
            "Keep the base positive, or detach the exponent."
        )
    if edge and a and name != "divide":
        return f"{name} {a:g} in the backward pass: its slope is infinite there. Keep the argument away from it, as np.clip does."
    if edge:
        return f"{name} 0 in the backward pass: its slope is infinite there. Add a small eps inside, as in sqrt(x + eps)."
    if _of_rows(name) and _empty_row(name, operands, (), (), static):
        return "empty softmax row: every score of the row is -inf, so there are no weights to differentiate."
    if not any(key in name for key in ROW_OPS) and any(
        np.isinf(o).any() if v is None else np.isinf(v) for v, o in zip(at, operands)
    ):
        return "an operand is infinite, and the slope infinite or no number. Replace what is infinite with np.where before the op."
    if np.isinf(made):
        return "overflow: the slope times the incoming gradient is too large; lower the learning rate, scale the loss, or normalise."
    return "an invalid operation in the rule."
