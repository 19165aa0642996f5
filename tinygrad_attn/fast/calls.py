"""An op called in one step, and its quick way taken where it fits.

The same as `Op.__call__` and `Op.remember`, written for the usual operands: tensors, arrays and
numbers. What is unusual, a list, a string or an error, is left to those: NotImplemented. A call of
a Python function costs 50 to 100 ns, and an op on few numbers some 600 ns, so here nothing is
called that need not be.
"""

from __future__ import annotations

from typing import Any

from numpy import dtype, generic, ndarray

from .. import ops
from ..engine import Op, Variable, everywhere, local
from ..engine.changes import handed_out
from ..engine.graph import Record, clock
from ..engine.misuse import takes_needs
from ..engine.quick import step_aside
from ..tensor import Tensor

NUMBERS = {float, int, bool, type(None)}
SCALARS = {dtype(code).type for code in "?bhilqBHILQefd"}  # NumPy's, that hold a number of Python's
_new_tensor: Any = object.__new__
NOTHING: dict[str, Any] = {}
_new_record: Any = object.__new__


class QuickOp(Op):
    """An op that computes what another op or an equation says, quicker, on arrays for which `fits`
    holds.
    """

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
            shares = self.joint(g, y, *inputs, **record.settings, saved=record.saved)
        elif extra == "needs":
            shares = self.joint(g, y, *inputs, **record.settings, needs=tuple(needs))
        elif extra == "both":
            shares = self.joint(
                g, y, *inputs, **record.settings, saved=record.saved, needs=tuple(needs)
            )
        else:
            shares = self.joint(g, y, *inputs, **record.settings)
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


def between(op: Op) -> Any:
    """The op of two operands as a function of its own, for `a + b`: half the time of a call of the
    op.
    """
    quick = op.quick

    def operator(a: Any, b: Any) -> Any:
        here = local.context
        if here.watchers or handed_out or here.plain:
            return op(a, b)
        if isinstance(b, Variable) and isinstance(a, Variable):
            u, v, wanted = a._data, b._data, a._tracked or b._tracked
        elif b.__class__ in NUMBERS and isinstance(a, Variable):
            u, v, wanted = a._data, b, a._tracked
        elif a.__class__ in NUMBERS and isinstance(b, Variable):
            u, v, wanted = a, b._data, b._tracked
        else:
            return op(a, b)
        made = op if quick is None or not quick.fits(u, v) else quick
        try:
            y = made.forward(u, v)
        except RecursionError:  # to try again at each depth would never end
            raise
        except Exception:  # it fails again in Op.__call__, which explains it
            return op(a, b)
        t = _new_tensor(Variable._kind)
        t._data = y
        t._grad = t.name = None
        if wanted and here.recording:  # so one of them is of floats, and then the result is
            inputs = (
                a if a is u or a._tracked else u,
                b if b is v or b._tracked else v,
            )
            t._record = r = _new_record(Record)
            r.time, r.op, r.inputs, r.settings = clock(), made, inputs, NOTHING
            r.saved, r.scope, r.retained = None, here.scope, False
            t._tracked = True
        else:
            t._record, t._tracked = None, False
        return t

    return operator


def call(op: Any, inputs: tuple, settings: dict[str, Any]) -> Any:
    """op(*inputs, **settings), or NotImplemented for what is unusual."""
    here, any_tensor, wanted, reachable = local.context, False, False, bool(handed_out)
    parameters = op.parameters
    if len(inputs) == 1 and isinstance(inputs[0], Variable) and not (reachable or here.watchers):
        if not (settings or parameters.defaults or op.saves):  # the usual case, spelled out
            x, made = inputs[0], op
            a = x._data
            if op.quick is not None and op.quick.fits(a):
                made = op.quick
            try:
                y = made.forward(a)
            except RecursionError:  # to try again at each depth would never end
                raise
            except Exception:  # it fails again in Op.__call__, which explains it
                return NotImplemented
            if y.__class__ is not ndarray and not isinstance(y, generic):
                return NotImplemented
            t = _new_tensor(Variable._kind)
            t._data = y
            t._grad = t.name = None
            if x._tracked and here.recording and y.dtype.kind == "f":
                t._record = r = _new_record(Record)
                r.time, r.op, r.inputs, r.settings = clock(), made, inputs, NOTHING
                r.saved, r.scope, r.retained = None, here.scope, False
                t._tracked = True
            elif y.dtype.kind in "fiub":
                t._record, t._tracked = None, False
            else:
                return NotImplemented
            return t
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
    except RecursionError:  # to try again at each depth would never end
        raise
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
        t._record = r = _new_record(Record)
        r.time, r.op, r.inputs, r.settings = clock(), op, tuple(kept), settings
        r.saved, r.scope, r.retained = saved, here.scope, False
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
    """As `Op.remember`: the tensor around y, made of these inputs."""
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
        t._record = r = _new_record(Record)
        r.time, r.op, r.inputs, r.settings = clock(), op, tuple(kept), settings
        r.saved, r.scope, r.retained = saved, here.scope, False
    else:
        t._record, t._tracked = None, False
    if here.watchers or reachable:
        for watcher in (*everywhere, *here.watchers):
            watcher.computed(op, inputs, settings, t)
    return t


Op.quick_call = call


# ---- shortcuts past the methods that lead here

_written = Op.__call__


def _direct(op: Any, *inputs: Any, **settings: Any) -> Any:
    """Op.__call__, without the question whether there is something quicker."""
    if not local.context.plain:
        y = call(op, inputs, settings)
        if y is not NotImplemented:
            return y
    return _written(op, *inputs, **settings)


SIGNS = {
    "add": ops.add,
    "sub": ops.subtract,
    "mul": ops.multiply,
    "truediv": ops.divide,
    "pow": ops.power,
    "matmul": ops.matmul,
}
_methods = {f"__{side}{sign}__" for sign in SIGNS for side in ("", "r")}
_as_written: dict[str, Any] = {name: vars(Tensor)[name] for name in _methods}
_shortcuts: dict[str, Any] = {}
_in_plain_mode = 0


def make_shortcuts() -> None:
    """Let `a + b` and a call of an op come here at once, which saves each a call of a function."""
    for sign, op in SIGNS.items():
        operator = between(op)
        _shortcuts[f"__{sign}__"] = operator
        _shortcuts[f"__r{sign}__"] = lambda b, a, operator=operator: operator(a, b)
    if not local.context.plain:
        step_aside_or_back(False)
        step_aside.append(step_aside_or_back)


def step_aside_or_back(plain: bool) -> None:
    """Put the methods back as they are written while a thread is in plain mode, so that a debugger
    enters those.
    """
    global _in_plain_mode
    _in_plain_mode = max(0, _in_plain_mode + (1 if plain else -1))
    shortcuts = _as_written if _in_plain_mode else _shortcuts
    for name, method in shortcuts.items():
        setattr(Tensor, name, method)
    Op.__call__ = _written if _in_plain_mode else _direct  # type: ignore
