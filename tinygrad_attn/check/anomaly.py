"""`detect_anomaly`: the first op that makes NaN or Inf, where it was called, and why."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

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
        nan = bool(np.isnan(value).any())
        for i, x in enumerate((*inputs, *settings.values())):
            a = array_of(x) if numeric(x) else np.zeros(())
            if nan and np.isnan(a).any() and getattr(x, "_node", None) is None:
                raise FloatingPointError(
                    f"detect_anomaly: operand {i} of op {op.__name__!r}, {describe(x)}, already "
                    f"holds NaN at index {index_of_largest(np.isnan(a))}{_called(place)}, and no "
                    "op made it. Reason: it came in with the data, or an optimiser step made the "
                    "weights NaN (a learning rate too large); check the file, or replace it with "
                    "np.nan_to_num."
                )
            if np.isnan(a).any() if nan else not np.isfinite(a).all():
                return  # another op made it
        index = index_of_largest(np.isnan(value) if nan else np.isinf(value))
        given = [x._data if isinstance(x, Variable) else x for x in inputs]
        case = Case(
            op.__name__, inputs, value, index, settings, lambda: op.forward(*given, **settings)
        )
        what = f"op {op.__name__!r} made {value[index]} at index {index} of its result "
        what += describe(value)
        raise case.error(what, place, context.scope, forward_reason(case))

    def pulled(self, y: Any, node: Any, g: Any, i: int, x: Any, share: Any, total: Any) -> None:
        g, share, total = array_of(g), array_of(share), array_of(total)
        name, place = node.op.__name__, self.places.get(y._node.number, ("unknown",))[0]
        if not np.isfinite(g).all():
            raise FloatingPointError(
                f"the gradient that reaches op {name!r} already holds NaN or Inf at index "
                f"{index_of_largest(~np.isfinite(g))}, and no op made it: it came in as the "
                f"gradient given to backward(){_called(place)}."
            )
        wrong = share if not np.isfinite(share).all() else total
        if np.isfinite(wrong).all():
            return
        index = index_of_largest(~np.isfinite(wrong))
        given = [v._data if isinstance(v, Variable) else v for v in node.inputs]
        needs = [tracked(v) for v in node.inputs]
        again = lambda: pull(node.op, g, y._data, given, node.settings, node.saved, needs)
        case = Case(name, node.inputs, wrong, index, node.settings, again)
        if wrong is share:
            what, why = f"op {name!r} made {wrong[index]} at", backward_reason(case, g)
            where = f"of the gradient of its operand {i}, {describe(x)}"
        else:
            what = f"adding up the gradients of {describe(x)} gave {wrong[index]} at"
            where = f"at the contribution of op {name!r}"
            why = "overflow of a sum of gradients; scale the loss down."
        what = f"in the backward pass, {what} index {index} {where}"
        raise case.error(what, place, node.scope, why)


def _called(place: Any) -> str:
    if place == "unknown":
        return "; its forward pass ran outside detect_anomaly(), so its line is not known"
    return f", called at {place}" if place else ""


class Case(NamedTuple):
    """An op that made NaN or Inf at one element of its result, or of an operand's gradient."""

    name: str
    inputs: tuple
    made: Array
    at: tuple[int, ...]
    settings: dict[str, Any]
    compute: Callable[[], Any]  # does it again

    @property
    def operands(self) -> list[Array]:
        return [array_of(x) for x in self.inputs if numeric(x)]

    def there(self, a: Array) -> float:
        """An operand's element at the index, if the op works element by element; else NaN."""
        with suppress(ValueError):
            return float(np.broadcast_to(a, self.made.shape)[self.at])
        return np.nan

    @property
    def elements(self) -> list[float]:
        """Those of the first two operands."""
        return [*map(self.there, self.operands), np.nan, np.nan][:2]

    def error(self, what: str, place: Any, scope: Any, why: str) -> FloatingPointError:
        told = []
        for x in filter(numeric, self.inputs):
            v = self.there(array_of(x))
            there = "" if np.isnan(v) else f" with {v:.6g} there"
            told.append(f"{v:.6g}" if there and not np.ndim(array_of(x)) else describe(x) + there)
        name = module_name(scope)
        inside = f" in the module {name!r}" if name else ""
        return FloatingPointError(
            f"detect_anomaly: {what}{inside}{_called(place)}. Operands: {', '.join(told)}. "
            f"Reason: {why}"
        )


LOGS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
EDGES = {**LOGS, "sqrt": 0.0, "power": 0.0, "cbrt": 0.0, "reciprocal": 0.0, "hypot": 0.0,
         "arctan2": 0.0, "arcsin": 1.0, "arccos": 1.0, "arccosh": 1.0}  # fmt: skip
"""Where, up to the sign, ops have no finite slope."""

EMPTY_ROW = (
    "empty softmax row (inf - inf): every score of the row is -inf, as when every key is blocked. "
    "Leave one key open, or use F.scaled_dot_product_attention, which gives zeros for such a row."
)


def forward_reason(c: Case) -> str:
    name, (a, b), value = c.name, c.elements, c.made[c.at]
    opposite = name in ("subtract", "add") and np.isinf(a) and np.isinf(b)
    if empty_row(c, any_axis=bool(opposite)):
        return EMPTY_ROW
    if "cross_entropy" in name and np.isnan(value) and _no_targets(c.settings):
        return (
            "0/0: every target is ignore_index, so the mean is taken over no targets. Leave such a "
            "batch out, or use reduction='sum'."
        )
    if "norm" in name and np.isnan(value) and c.settings.get("eps") == 0:
        return (
            "0/0: all elements of the row are equal, so their variance is 0, and eps=0 leaves "
            "nothing to divide by. Give eps, as 1e-5."
        )
    divisor = b if name == "divide" else a if name == "reciprocal" else np.nan
    if divisor == 0:
        if a == b == 0:
            return "0/0. Where both vanish, choose a value with np.where before dividing."
        return (
            "division by zero. Add a small eps to the divisor, or exclude these elements before "
            "dividing."
        )
    if name in LOGS and a <= LOGS[name]:
        what = f"{name} {a:g}" if a == LOGS[name] else f"{name} of the negative number {a:.6g}"
        return f"{what}. Clip the argument, or compute with log_softmax instead of log(softmax)."
    if name == "sqrt" and a < 0:
        return (
            f"sqrt of the negative number {a:.6g}, which rounding makes of a small variance, say; "
            "np.maximum(x, 0) first."
        )
    if name == "power" and (a == 0 or a < 0 and np.isnan(value)):
        how = "negative power, a division by zero" if a == 0 else "power that is not whole"
        return f"the number {a:.6g} to a {how}."
    if name in ("exp", "exp2", "expm1") and np.isinf(value):
        log = np.log2 if name == "exp2" else np.log
        top = f"{name.removesuffix('m1')}({log(np.finfo(c.made.dtype).max):.1f})"
        return (
            f"overflow in {name}, at {top} in {c.made.dtype}. Subtract the maximum first, as "
            "softmax and logsumexp do."
        )
    if name == "multiply" and np.isnan(value):
        return (
            "0 x inf. A masked (zero) factor does not undo an infinite one: replace it with "
            "np.where(mask, x, 0) instead of multiplying by the mask."
        )
    return complaint(c)


def backward_reason(c: Case, g: Array) -> str:
    name, (a, b) = c.name, c.elements
    edge = name in EDGES and abs(a) == abs(EDGES[name]) or name == "divide" and b == 0
    if c.there(g) == 0 and (edge or np.isnan(c.made[c.at])):
        return (
            "0 x inf behind a mask: the incoming gradient is 0 there (np.where or a mask chose the "
            f"other branch), but the slope of {name} is infinite, and 0 x inf is NaN. Make the "
            "argument safe first: safe = np.where(mask, x, 1); np.where(mask, f(safe), 0)."
        )
    if edge:
        return (
            f"{name} {a:g} in the backward pass: its slope is infinite there. Add a small eps, as "
            "in sqrt(x + eps), or keep the argument away with np.clip."
        )
    if name == "power" and a < 0:
        return (
            f"the slope by an exponent is y log x, and x is the negative number {a:.6g} here. Keep "
            "the base positive, or detach the exponent."
        )
    if empty_row(c):
        return EMPTY_ROW
    return complaint(c)


def empty_row(c: Case, any_axis: bool = False) -> bool:
    """Whether a row of scores is all -inf: the one of this element, for an op of rows."""
    ours = ("scaled_dot_product_attention", "packed_attention", "attention_weights")
    of_rows = any(k in c.name for k in ("softmax", "logsumexp", "attention", "cross_entropy"))
    if not any_axis and (not of_rows or c.name in ours):
        return False  # this package's own attention gives zeros for such a row
    axis = c.settings.get("axis", 1 if "cross_entropy" in c.name else -1)
    for o in (o for o in c.operands if o.ndim):
        # row - row.max() may go along any axis
        for d in range(o.ndim) if any_axis else [axis if isinstance(axis, int) else -1]:
            row = np.isneginf(o).all(axis=d, keepdims=True) & (o.shape[d] > 1)
            if o.shape != c.made.shape and not any_axis:
                if row.any():
                    return True
            elif o.shape == c.made.shape and np.broadcast_to(row, o.shape)[c.at]:
                return True
    return False


def _no_targets(settings: dict[str, Any]) -> bool:
    target, ignored = settings.get("target", 0), settings.get("ignore_index", -100)
    return bool((np.asarray(target) == ignored).all())


def complaint(c: Case) -> str:
    """What NumPy complains of while it computes this again, in words."""
    heard: list[str] = []
    hear = lambda kind, _: heard.append(kind)
    with suppress(Exception), np.errstate(all="call", under="ignore", call=hear):
        c.compute()
    if any(np.isinf(o).any() for o in c.operands) and "overflow" not in heard:
        return (
            "inf - inf, inf/inf or 0 x inf: an operand holds infinities. Replace them with "
            "np.where before the op."
        )
    if "divide by zero" in heard:
        return (
            "a division by zero (or log 0) inside it. Add a small eps to the divisor, or choose a "
            "safe value with np.where before dividing."
        )
    if "overflow" in heard or np.isinf(c.made[c.at]):
        return (
            f"overflow: a number is larger than the largest {c.made.dtype}. Lower the learning "
            "rate, scale the loss, or normalise."
        )
    return (
        "0/0, a sum or a variance over no elements, or an argument outside the domain, as of a "
        "root or a logarithm of a negative number."
    )
