"""An op called in one step, and its quick way taken where it fits.

The same as `Op.__call__` and `Op.remember`, written for the usual operands: tensors, arrays and numbers. What is unusual, a
list, a string or an error, is left to those: NotImplemented. A call of a Python function costs 50 to 100 ns, and an op on
few numbers some 600 ns, so here nothing is called that need not be.
"""

from __future__ import annotations

from typing import Any

from numpy import dtype, generic, ndarray

from ..engine import Op, Variable, everywhere, local
from ..engine.changes import handed_out
from ..engine.graph import Record, clock
from ..engine.misuse import takes_needs

NUMBERS = {float, int, bool, type(None)}
SCALARS = {dtype(code).type for code in "?bhilqBHILQefd"}  # NumPy's, that hold a number of Python's
_new_tensor: Any = object.__new__
_new_record: Any = tuple.__new__  # without the function that a NamedTuple puts before it


class QuickOp(Op):
    """An op that computes what another op or an equation says, quicker, on arrays for which `fits` holds."""

    fits: Any
    fresh = False  # is what its rules return new, and held by nobody else?
    adds: Any = None  # adds the share of its one input to a gradient in place, or returns False

    def __init__(self, plain: Any, forward: Any, fits: Any = None, **flags: Any) -> None:
        super().__init__(forward, **flags)
        self.__name__ = plain.__name__
        self.fits = fits
        if isinstance(plain, Op):
            self.plain = plain

    def pull(self, g: Any, y: Any, record: Any, inputs: list, needs: list[bool]) -> dict[int, Any]:
        """By its own rules, or by those of the op that it stands for."""
        if self.joint is None:
            return (
                self.plain.pull(g, y, record, inputs, needs)
                if not self.rules
                else super().pull(g, y, record, inputs, needs)
            )
        extra = self.extra
        if extra == "saved":
            shares = self.joint(g, y, *inputs, **record[3], saved=record[4])
        elif extra == "needs":
            shares = self.joint(g, y, *inputs, **record[3], needs=tuple(needs))
        elif extra == "both":
            shares = self.joint(g, y, *inputs, **record[3], saved=record[4], needs=tuple(needs))
        else:
            shares = self.joint(g, y, *inputs, **record[3])
        found = {}
        for i, share in enumerate(shares):
            if share is not None and needs[i]:
                found[i] = share
        return found

    def vjp_all(self, rule: Any) -> Any:
        """As `Op.vjp_all`; what the rule asks for is looked up once."""
        needs = takes_needs(rule)
        self.extra = (
            "both" if needs and self.saves else "needs" if needs else "saved" if self.saves else ""
        )
        return super().vjp_all(rule)


def call(op: Any, inputs: tuple, settings: dict[str, Any]) -> Any:
    """op(*inputs, **settings), or NotImplemented for what is unusual."""
    here, any_tensor, wanted, reachable = local.context, False, False, bool(handed_out)
    parameters = op.parameters
    if settings or parameters.defaults:
        inputs, settings = parameters.bind(inputs, settings)
    arrays: list[Any] = []
    kept: list[Any] = []
    for x in inputs:
        if isinstance(x, Variable):
            a = x._data
            any_tensor = True
            if x._tracked:
                wanted = True
                kept.append(x)
            else:
                kept.append(a)
            arrays.append(a)
            continue
        if x.__class__ in NUMBERS:
            pass
        elif x.__class__ is ndarray and x.dtype.kind in "fiub":
            reachable = True
        elif x.__class__ in SCALARS and len(inputs) == 2:  # beside a tensor, a number of Python's
            if isinstance(inputs[0], Variable) or isinstance(inputs[1], Variable):
                x = x.item()
        else:
            return NotImplemented
        arrays.append(x)
        kept.append(x)
    quick = op.quick
    if quick is not None and quick.fits(*arrays, **settings):
        op = quick
    try:
        y = op.forward(*arrays, **settings)
    except Exception:  # it fails again in Op.__call__, which explains it
        return NotImplemented
    saved = None
    if op.saves:
        if y.__class__ is not tuple or len(y) != 2:
            return NotImplemented
        y, saved = y
    if not any_tensor:
        return y
    if y.__class__ is not ndarray and not isinstance(y, generic):
        return NotImplemented
    kind = y.dtype.kind
    t = _new_tensor(Variable._kind)
    t._data = y
    t._grad = t.name = None
    if wanted and here.recording and kind == "f":
        t._tracked = True
        t._record = _new_record(
            Record, (clock(), op, tuple(kept), settings, saved, here.scope, False)
        )
    elif kind in "fiub":
        t._record, t._tracked = None, False
    else:
        return NotImplemented
    if here.watchers or reachable:
        for watcher in (*everywhere, *here.watchers):
            watcher.computed(op, inputs, settings, t)
    return t


def remember(
    op: Any, y: Any, saved: Any, inputs: tuple, arrays: tuple, settings: dict[str, Any]
) -> Any:
    """As `Op.remember`: the tensor around y, of which these are the inputs and their plain values."""
    here, wanted, reachable = local.context, False, bool(handed_out)
    kept = list(arrays)
    for i, x in enumerate(inputs):
        if isinstance(x, Variable):
            if x._tracked:
                wanted = True
                kept[i] = x
        elif x.__class__ is ndarray:
            reachable = True
    t = _new_tensor(Variable._kind)
    t._data = y
    t._grad = t.name = None
    if wanted and here.recording:
        t._tracked = True
        t._record = _new_record(
            Record, (clock(), op, tuple(kept), settings, saved, here.scope, False)
        )
    else:
        t._record, t._tracked = None, False
    if here.watchers or reachable:
        for watcher in (*everywhere, *here.watchers):
            watcher.computed(op, inputs, settings, t)
    return t


Op.quick_call = call
