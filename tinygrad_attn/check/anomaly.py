"""`detect_anomaly`: find the first op that produces NaN or Inf."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from ..engine import Listener, Variable, context, listening
from ..errors import describe, quoted
from ..nn.calls import dotted_name
from .backend import Array, Place, array_of, user_place
from .report import index_of_largest


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Raise FloatingPointError at the first op whose output or gradient contains NaN or Inf.

        with ta.detect_anomaly():
            loss = model(x)
            loss.backward()

    The error names the op, its module, the line that called it, the index and the likely reason.
    An infinity that comes from an operand, such as the -inf of a mask, is not an error. The check
    covers only the current thread. Unlike torch.autograd.detect_anomaly, it includes the forward
    pass.
    """
    detector = _Detector()
    hear = lambda complaint, _: detector.heard.add(complaint)
    with listening(detector), np.errstate(all="call", call=hear):
        yield


class _Detector(Listener):
    hears_repeats = True

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}  # by the sequence number of a living output
        self.heard = set[str]()  # NumPy's warnings about the current op

    def computed(self, op, inputs: tuple, settings, output) -> None:
        place, value = user_place(), output._data
        if output._node is not None:
            self.places[output._node.number] = place
            weakref.finalize(output, self.places.pop, output._node.number, None)
        if np.isfinite(value).all():
            self.heard.clear()
            return
        is_bad = np.isnan if np.isnan(value).any() else np.isinf
        for x in filter(numeric, (*inputs, *settings.values())):
            if is_bad is np.isnan and getattr(x, "_node", None) is None:
                continue  # NaN in the data
            if is_bad(array_of(x)).any():
                return  # an earlier op produced it
        what = f"its output {describe(value)}"
        raise self.error(op, inputs, context.scope, quoted(*place), what, value)

    def pulling(self, y, g) -> None:
        self.heard.clear()

    def pulled(self, y, node, g, i: int, x, contribution, total) -> None:
        made, total = array_of(contribution), array_of(total)
        made = total if np.isfinite(made).all() else made
        if not np.isfinite(made).all():
            known = self.places.get(y._node.number)
            place = quoted(*known) if known else "a line that ran outside detect_anomaly()"
            what = f"the gradient of its operand {i}, {describe(x)}"
            raise self.error(node.op, node.inputs, node.scope, place, what, made, array_of(g))

    def error(
        self, op, inputs: tuple, scope, place: str, what: str, made: Array, g=None
    ) -> FloatingPointError:
        """Return the error for an output, or for a gradient that was computed from g."""
        index = index_of_largest(2 * np.isnan(made) + np.isinf(made))
        operands = [x for x in inputs if numeric(x)]
        backward = "" if g is None else "in the backward pass, "
        name = dotted_name(scope)
        inside = f" in the module {name!r}" if name else ""
        there = [(describe(x), _there(x, made, index)) for x in operands]
        given = ", ".join(x if np.isnan(v) else f"{x} with {v:.6g} there" for x, v in there)
        return FloatingPointError(
            f"detect_anomaly: {backward}op {op.__name__!r} made {made[index]} at index {index} of "
            f"{what}{inside}, called at {place}. Operands: {given}. Reason: "
            + _reason(self.heard, op.__name__, [*map(array_of, operands)], made, index, g)
        )


def numeric(x) -> bool:
    """Return whether x is a tensor, an array or a number."""
    return isinstance(x, (Variable, Array, np.generic, float, int))


def _there(x, made: Array, at: tuple[int, ...]) -> float:
    """Return the element of an operand at an index of `made`, or NaN if the shapes do not fit."""
    with suppress(ValueError):
        return float(np.broadcast_to(array_of(x), made.shape)[at])
    return np.nan


COMPLAINTS = {
    "divide by zero": "a division by zero, log 0, or an infinite slope (of sqrt or log at 0). Add "
    "a small eps, as in sqrt(x + eps), first replace the zeros with np.where, or use log_softmax "
    "instead of log(softmax).",
    "overflow": "overflow: a number is too large for its dtype. Lower the learning rate, scale "
    "the loss or the inputs, or subtract the maximum before exp, as softmax does.",
    "invalid value": "0/0, a mean over no elements (such as when all targets are ignored), or an "
    "argument outside the domain, such as the root or logarithm of a negative number. If rounding "
    "made a variance negative, apply np.maximum(x, 0) first.",
}


def _reason(
    heard: set[str], name: str, operands: list[Array], made: Array, at: tuple[int, ...], g
) -> str:
    """Explain why the element is NaN or Inf."""
    nans = [nan for nan in map(np.isnan, operands) if nan.any()]
    if nans:
        return (
            f"an operand already contains NaN, at index {index_of_largest(nans[0])}. Either the "
            "data contain NaN, or the learning rate was so high that a step made the weights NaN."
        )
    if g is not None and not np.isfinite(g).all():
        return "the gradient passed to backward() already contains NaN or Inf."
    rows = [o for o in operands if o.ndim and o.shape[-1] > 1]
    if np.isnan(made[at]) and any(np.isneginf(row).all(-1).any() for row in rows):
        return (
            "empty softmax row (inf - inf): every score in the row is -inf because every key is "
            "blocked. Allow at least one key, or use F.scaled_dot_product_attention, which returns "
            "zeros for such a row."
        )
    if g is not None and _there(g, made, at) == 0 and np.isnan(made[at]):
        return (
            "0 x inf behind a mask: the incoming gradient is 0 there (np.where chose the other "
            f"branch), but the slope of {name} is infinite. Replace unsafe values in the argument "
            "first: safe = np.where(mask, x, 1); np.where(mask, f(safe), 0)."
        )
    if any(np.isinf(o).any() for o in operands) and "overflow" not in heard:
        return (
            "inf - inf, inf/inf or 0 x inf: an operand contains infinities. Replace them with "
            "np.where(mask, x, 0) before the op."
        )
    heard.add("overflow" if np.isinf(made[at]) else "invalid value")
    return next(text for kind, text in COMPLAINTS.items() if kind in heard)
