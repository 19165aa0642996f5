"""`detect_anomaly`: the first op that makes NaN or Inf, where it was called, and why.

Nothing looks on unless it is switched on: it is one of the engine's watchers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from ..engine import Variable, Watcher, context, watching
from ..messages.errors import describe
from .reasons import BACKWARD, FORWARD, Case, element, reason
from .records import array_of, as_given, made_at, shares
from .report import index_of_largest
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
    as operands, such as the -inf of a mask, are not reported.  This thread only.  As
    torch.autograd.detect_anomaly.
    """
    with watching(_Detector()), np.errstate(all="ignore"):
        yield


class _Detector(Watcher):
    def __init__(self) -> None:
        # By the record's time; they go with its result, since a whole training may run inside.
        self.places: dict[int, tuple[Place | None, ref]] = {}

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        place = origin()
        if (time := made_at(result)) is not None:
            # `pop` is called with the reference as its default.  A function of Python's could be
            # interrupted by Ctrl-C, which would be printed and forgotten there.
            self.places[time] = place, ref(result, partial(self.places.pop, time))
        value = result._data
        if value.dtype.kind != "f" or np.isfinite(value).all():
            return
        nan = bool(np.isnan(value).any())
        given = [array_of(x) for x in (*inputs, *settings.values()) if _numeric(x)]
        if any(np.isnan(a).any() if nan else not np.isfinite(a).all() for a in given):
            if nan:
                _came_in(op, inputs, place)
            return  # somebody else made it
        index = index_of_largest(np.isnan(value) if nan else np.isinf(value))
        case = Case(op.__name__, _numbers(inputs), value, index, settings)
        why = reason(FORWARD, case, lambda: op.forward(*as_given(inputs), **settings))
        what = (
            f"op {op.__name__!r} made {case.value} at index {index} of its result {describe(value)}"
        )
        raise _anomaly(what, inputs, case, place, context.scope, why)

    def pulled(
        self, result: Any, record: Any, g: Any, i: int, x: Any, share: Any, total: Any
    ) -> None:
        g, share, total = array_of(g), array_of(share), array_of(total)
        place = self.places.get(made_at(result), ("unknown",))[0]  # type: ignore[arg-type]
        name = record.op.__name__
        if not np.isfinite(g).all():
            raise FloatingPointError(
                f"the gradient that reaches op {name!r} already holds NaN or Inf at index "
                f"{index_of_largest(~np.isfinite(g))}, and no op made it: it came in as the "
                f"gradient given to backward(){_called(place)}."
            )
        wrong = share if not np.isfinite(share).all() else total
        if np.isfinite(wrong).all():
            return
        index, operands = index_of_largest(~np.isfinite(wrong)), _numbers(record.inputs)
        here = element(g, index, share.shape)
        case = Case(name, operands, wrong, index, record.settings, here, i)
        if wrong is share:
            what = (
                f"in the backward pass, op {name!r} made {case.value} at index {index} of the "
                f"gradient of its operand {i}, {describe(x)}"
            )
            why = reason(BACKWARD, case, lambda: list(shares(result, g)))
        else:
            what = (
                f"in the backward pass, adding up the gradients of {describe(x)} gave "
                f"{case.value} at index {index}, at the contribution of op {name!r}"
            )
            why = "overflow of a sum of gradients; scale the loss down."
        raise _anomaly(what, record.inputs, case, place, record.scope, why)


def _came_in(op: Any, inputs: tuple, place: Any) -> None:
    """NaN in data or weights, which no op has made."""
    for number, x in enumerate(inputs):
        value = array_of(x) if _numeric(x) else np.zeros(())
        if made_at(x) is None and np.isnan(value).any():
            raise FloatingPointError(
                f"detect_anomaly: operand {number} of op {op.__name__!r}, {describe(x)}, already "
                f"holds NaN at index {index_of_largest(np.isnan(value))}{_called(place)}, and no "
                "op made it. Reason: it came in with the data, or an optimiser step made the "
                "weights NaN (a learning rate too large); check the file, or replace it with "
                "np.nan_to_num."
            )


def _numeric(x: Any) -> bool:
    return isinstance(x, (Variable, np.ndarray, float, int)) and array_of(x).dtype.kind in "fiub"


def _numbers(inputs: Any) -> list[np.ndarray]:
    return [array_of(x) for x in inputs if _numeric(x)]


def _called(place: Any) -> str:
    if place == "unknown":
        return "; its forward pass ran outside detect_anomaly(), so its line is not known"
    return f", called at {place}" if place else ""


def _anomaly(
    what: str, inputs: Any, case: Case, place: Any, scope: Any, why: str
) -> FloatingPointError:
    operands = []
    for k, x in enumerate(x for x in inputs if _numeric(x)):
        v = case.operand(k)
        there = "" if v is None else f" with {v:.6g} there"
        operands.append(describe(x) + there if v is None or np.ndim(array_of(x)) else f"{v:.6g}")
    inside = f" in the module {scope_name(scope)!r}" if scope_name(scope) else ""
    return FloatingPointError(
        f"detect_anomaly: {what}{inside}{_called(place)}. Operands: {', '.join(operands)}. Reason: "
        f"{why}"
    )
