"""`detect_anomaly`: the first op that makes NaN or Inf, where it was called, and why."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from ..engine import Variable, Watcher, context, tracked, watching
from ..errors import describe
from .report import index_of_largest
from .trace import Array, array_of, module_name, numeric, pull, user_place


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Inside, the first op that makes NaN or Inf of finite numbers raises FloatingPointError.

        with ta.detect_anomaly():
            loss = model(x)
            loss.backward()

    The error names the op, forward or backward, the index and the operands there, the line that
    called the op, its module, and the reason. Infinities that come in as operands, such as the -inf
    of a mask, are not reported. This thread only. As torch.autograd.detect_anomaly.
    """
    with watching(_Detector()), np.errstate(all="ignore"):
        yield


class _Detector(Watcher):
    def __init__(self) -> None:
        # By sequence number; they go with the output, since a whole training may run inside.
        self.places: dict[int, tuple[Any, weakref.ref]] = {}

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        place, value = user_place(), output._data
        if output._node is not None:
            number = output._node.number
            self.places[number] = place, weakref.ref(output, partial(self.places.pop, number))
        if value.dtype.kind != "f" or np.isfinite(value).all():
            return
        is_bad = np.isnan if np.isnan(value).any() else np.isinf
        for i, x in enumerate(filter(numeric, (*inputs, *settings.values()))):
            bad = is_bad(array_of(x)) | np.isnan(array_of(x))
            if bad.any() and is_bad is np.isnan and getattr(x, "_node", None) is None:
                raise FloatingPointError(
                    f"detect_anomaly: operand {i} of op {op.__name__!r}, {describe(x)}, already "
                    f"holds NaN at index {index_of_largest(bad)}{_called(place)}, and no op made "
                    "it. Reason: it came in with the data, or an optimiser step made the weights "
                    "NaN (a learning rate too large); check the file, or replace it with "
                    "np.nan_to_num."
                )
            if bad.any():
                return  # another op made it
        index = index_of_largest(is_bad(value))
        what = f"op {op.__name__!r} made {value[index]} at index {index} of its result "
        compute = lambda: op.forward(*map(_plain, inputs), **settings)
        why = _reason(op.__name__, inputs, value, index, compute)
        raise _error(what + describe(value), place, context.scope, inputs, value, index, why)

    def pulled(
        self, y: Any, node: Any, g: Any, i: int, x: Any, contribution: Any, total: Any
    ) -> None:
        g, contribution, total = array_of(g), array_of(contribution), array_of(total)
        name, place = node.op.__name__, self.places.get(y._node.number, ("unknown",))[0]
        if not np.isfinite(g).all():
            raise FloatingPointError(
                f"the gradient that reaches op {name!r} already holds NaN or Inf at index "
                f"{index_of_largest(~np.isfinite(g))}, and no op made it: it came in as the "
                f"gradient given to backward(){_called(place)}."
            )
        wrong = contribution if not np.isfinite(contribution).all() else total
        if np.isfinite(wrong).all():
            return
        index = index_of_largest(~np.isfinite(wrong))
        if wrong is contribution:
            args, needs = [list(map(f, node.inputs)) for f in (_plain, tracked)]
            again = partial(pull, node.op, g, y._data, node, args, needs)
            why = _reason(name, node.inputs, wrong, index, again, g)
            what = f"op {name!r} made {wrong[index]} at index {index} of the gradient of its "
            what += f"operand {i}, {describe(x)}"
        else:
            why = "overflow of a sum of gradients; scale the loss down."
            what = f"adding up the gradients of {describe(x)} gave {wrong[index]} at index {index} "
            what += f"at the contribution of op {name!r}"
        what = f"in the backward pass, {what}"
        raise _error(what, place, node.scope, node.inputs, wrong, index, why)


def _plain(x: Any) -> Any:
    return x._data if isinstance(x, Variable) else x


def _called(place: Any) -> str:
    if place == "unknown":
        return "; its forward pass ran outside detect_anomaly(), so its line is not known"
    return f", called at {place}" if place else ""


def _there(x: Any, made: Array, at: tuple[int, ...]) -> float:
    """An operand's element at the index, if the op works element by element; else NaN."""
    with suppress(ValueError):
        return float(np.broadcast_to(array_of(x), made.shape)[at])
    return np.nan


def _error(
    what: str, place: Any, scope: Any, inputs: Sequence[Any], made: Array, at: Any, why: str
) -> FloatingPointError:
    operands = []
    for x in filter(numeric, inputs):
        v = _there(x, made, at)
        operands.append(describe(x) + ("" if np.isnan(v) else f" with {v:.6g} there"))
    name = module_name(scope)
    inside = f" in the module {name!r}" if name else ""
    return FloatingPointError(
        f"detect_anomaly: {what}{inside}{_called(place)}. Operands: {', '.join(operands)}. "
        f"Reason: {why}"
    )


LOGS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}


def _reason(
    name: str, inputs: tuple, made: Array, at: tuple[int, ...], compute: Callable, g: Any = None
) -> str:
    """Why the element is NaN or Inf; `compute` does it again, from the gradient g if given."""
    operands = [array_of(x) for x in inputs if numeric(x)]
    a = _there(operands[0], made, at) if operands else np.nan
    if np.isnan(made[at]) and any(_empty_row(o, made, at) for o in operands):
        return (
            "empty softmax row (inf - inf): every score of the row is -inf, as when every key is "
            "blocked. Leave one key open, or use F.scaled_dot_product_attention, which gives zeros "
            "for such a row."
        )
    if g is None and name in LOGS and a <= LOGS[name]:
        what = f"{name} {a:g}" if a == LOGS[name] else f"{name} of the negative number {a:.6g}"
        return f"{what}. Clip the argument, or compute with log_softmax instead of log(softmax)."
    if g is None and name == "sqrt" and a < 0:
        return (
            f"sqrt of the negative number {a:.6g}, which rounding makes of a small variance, say; "
            "np.maximum(x, 0) first."
        )
    if g is None and name.startswith("exp") and np.isinf(made[at]):
        top = np.log(np.finfo(made.dtype).max)
        return (
            f"overflow in {name}: the largest {made.dtype} is exp({top:.1f}). Subtract the maximum "
            "first, as softmax and logsumexp do."
        )
    if g is not None and _there(g, made, at) == 0 and np.isnan(made[at]):
        return (
            "0 x inf behind a mask: the incoming gradient is 0 there (np.where or a mask chose the "
            f"other branch), but the slope of {name} is infinite, and 0 x inf is NaN. Make the "
            "argument safe first: safe = np.where(mask, x, 1); np.where(mask, f(safe), 0)."
        )
    return _complaint(compute, operands, made, at)


def _empty_row(o: Array, made: Array, at: tuple[int, ...]) -> bool:
    """Whether a row of scores is all -inf: one through this element, if the shapes agree."""
    for axis in range(o.ndim if o.shape == made.shape or o.ndim > made.ndim else 0):
        row = np.isneginf(o).all(axis, keepdims=True) & (o.shape[axis] > 1)
        if np.broadcast_to(row, o.shape)[at if o.shape == made.shape else ...].any():
            return True
    return False


def _complaint(compute: Callable, operands: list[Array], made: Array, at: Any) -> str:
    """What NumPy complains of while it computes this again, in words."""
    heard = set[str]()
    with suppress(Exception), np.errstate(all="call", call=lambda kind, _: heard.add(kind)):
        compute()
    if any(np.isinf(o).any() for o in operands) and "overflow" not in heard:
        return (
            "inf - inf, inf/inf or 0 x inf: an operand holds infinities. A factor of 0 does not "
            "undo an infinite one: replace it with np.where(mask, x, 0) before the op."
        )
    if "divide by zero" in heard:
        return (
            "a division by zero inside it, or an infinite slope (of a root or logarithm at 0). Add "
            "a small eps, as in sqrt(x + eps), or choose a safe value with np.where before it."
        )
    if "overflow" in heard or np.isinf(made[at]):
        return (
            f"overflow: a number is larger than the largest {made.dtype}. Lower the learning rate, "
            "scale the loss, or normalise."
        )
    return (
        "0/0, a mean or variance over no elements (are all targets ignored?), or an argument "
        "outside the domain, as of a root or a logarithm of a negative number."
    )
