"""An op called in one step, and its quick way taken where it fits.

The same as `Op.__call__` and `Op.remember`, written for the usual operands: tensors, arrays and
numbers. What is unusual, a list, a string or an error, is left to those. A call of a Python
function costs 50 to 100 ns, and an op on few numbers some 600 ns, so here nothing is called that
need not be.
"""

from __future__ import annotations

from typing import Any

from numpy import dtype, generic, ndarray

from .. import ops
from ..engine import Op, everywhere, local
from ..engine.changes import handed_out
from ..engine.graph import Record, clock
from ..engine.misuse import takes_needs
from ..engine.quick import step_aside
from ..tensor import Tensor

NUMBERS = {float, int, bool, type(None)}
SCALARS = {dtype(code).type for code in "?bhilqBHILQefd"}  # NumPy's, that hold a number of Python's
NOTHING: dict[str, Any] = {}
new: Any = object.__new__


class NewRecord(Record):
    """A record whose slots are filled one by one: that takes half the time of `Record(...)`."""

    __slots__ = ()
    __init__ = object.__init__  # type: ignore[assignment]


new_record: Any = NewRecord


class QuickOp(Op):
    """An op that computes what another op or an equation says, quicker, on arrays for which `fits`
    holds.
    """

    def __init__(self, plain: Any, forward: Any, fits: Any = None, **flags: Any) -> None:
        super().__init__(forward, **flags)
        self.__name__ = plain.__name__
        self.fits = fits
        self.fresh = False  # is what its rules return new, and held by nobody else?
        self.adds: Any = None  # adds the share of its one input to a gradient in place, or refuses
        self.asks_needs = False  # does its joint rule take `needs=`?
        if isinstance(plain, Op):
            self.plain = plain

    def pull(self, g: Any, y: Any, record: Any, inputs: list, needs: list[bool]) -> dict[int, Any]:
        """By its own rules, or by those of the op that it stands for."""
        if self.joint is None:
            pull = super().pull if self.rules else self.plain.pull
            return pull(g, y, record, inputs, needs)
        shares = self.shares(g, y, record, inputs, needs)
        return {i: s for i, s in enumerate(shares) if s is not None and needs[i]}

    def shares(self, g: Any, y: Any, record: Any, inputs: list, needs: Any) -> Any:
        """What the joint rule gives."""
        needs = tuple(needs)
        if self.asks_needs:
            if self.saves:
                return self.joint(  # type: ignore[misc]
                    g, y, *inputs, **record.settings, saved=record.saved, needs=needs
                )
            return self.joint(g, y, *inputs, **record.settings, needs=needs)  # type: ignore[misc]
        if self.saves:
            return self.joint(g, y, *inputs, **record.settings, saved=record.saved)  # type: ignore[misc]
        return self.joint(g, y, *inputs, **record.settings)  # type: ignore[misc]

    def vjp_all(self, rule: Any) -> Any:
        """As `Op.vjp_all`; whether the rule asks for `needs` is looked up once."""
        self.asks_needs = takes_needs(rule)
        return super().vjp_all(rule)


def operator(op: Op) -> Any:
    """The op of two operands as a function of its own, for `a + b`: half the time of a call of the
    op.
    """
    quick = op.quick

    def run(a: Any, b: Any) -> Any:
        here = local.context
        if here.watchers or handed_out or here.plain:
            return op(a, b)
        if isinstance(a, Tensor):
            u = a._data
            if isinstance(b, Tensor):
                v = b._data
                if a._tracked:
                    inputs = (a, b) if b._tracked else (a, v)
                else:
                    inputs = (u, b) if b._tracked else None
            elif b.__class__ in NUMBERS:
                v, inputs = b, (a, b) if a._tracked else None
            else:
                return op(a, b)
        elif isinstance(b, Tensor) and a.__class__ in NUMBERS:
            u, v, inputs = a, b._data, (a, b) if b._tracked else None
        else:
            return op(a, b)
        made = op if quick is None or not quick.fits(u, v) else quick
        try:
            y = made.forward(u, v)
        except RecursionError:  # to try again at each depth would never end
            raise
        except Exception:  # it fails again in Op.__call__, which explains it
            return op(a, b)
        t = new(Tensor)
        t._data = y
        t._grad = t.name = None
        if inputs is not None and here.recording:  # an operand is of floats, so the result is
            t._tracked = True
            t._record = r = new_record()
            r.time = clock()
            r.op = made
            r.inputs = inputs
            r.settings = NOTHING
            r.saved = None
            r.scope = here.scope
            r.retained = False
        else:
            t._record = None
            t._tracked = False
        return t

    return run


def call(op: Any, *inputs: Any, **settings: Any) -> Any:
    """As `Op.__call__`."""
    here = local.context
    if here.plain:
        return written(op, *inputs, **settings)
    defaults = op.parameters.defaults
    if not (settings or defaults or op.saves or here.watchers or handed_out):
        if len(inputs) == 1 and isinstance(inputs[0], Tensor):  # the usual case, spelled out
            x = inputs[0]
            a = x._data
            made = op if op.quick is None or not op.quick.fits(a) else op.quick
            try:
                y = made.forward(a)
            except RecursionError:  # to try again at each depth would never end
                raise
            except Exception:  # it fails again in Op.__call__, which explains it
                return written(op, x)
            kind = y.__class__
            if kind is not a.__class__ or kind is ndarray and y.dtype is not a.dtype:
                return general_call(op, inputs, settings, defaults)
            t = new(Tensor)
            t._data = y
            t._grad = t.name = None
            if x._tracked and here.recording:
                t._tracked = True
                t._record = r = new_record()
                r.time = clock()
                r.op = made
                r.inputs = inputs
                r.settings = NOTHING
                r.saved = None
                r.scope = here.scope
                r.retained = False
            else:
                t._record = None
                t._tracked = False
            return t
    return general_call(op, inputs, settings, defaults)


def general_call(op: Any, inputs: tuple, settings: dict[str, Any], defaults: dict) -> Any:
    """The same for operands of all kinds, and with settings."""
    if settings.keys() != defaults.keys():
        inputs, settings = op.parameters.bind(inputs, settings)
    arrays: list[Any] = []
    any_tensor = False
    for x in inputs:
        if isinstance(x, Tensor):
            any_tensor = True
            x = x._data
        elif x.__class__ in NUMBERS or x.__class__ is ndarray and x.dtype.kind in "fiub":
            pass
        elif x.__class__ in SCALARS and len(inputs) == 2:  # beside a tensor, a number of Python's
            if isinstance(inputs[0], Tensor) or isinstance(inputs[1], Tensor):
                x = x.item()
        else:
            return written(op, *inputs, **settings)
        arrays.append(x)
    for value in settings.values():
        if isinstance(value, Tensor):  # which is an error
            return written(op, *inputs, **settings)
    made = op if op.quick is None or not op.quick.fits(*arrays, **settings) else op.quick
    try:
        y = made.forward(*arrays, **settings)
    except RecursionError:  # to try again at each depth would never end
        raise
    except Exception:  # it fails again in Op.__call__, which explains it
        return written(op, *inputs, **settings)
    saved = None
    if op.saves:
        if y.__class__ is not tuple or len(y) != 2:
            return written(op, *inputs, **settings)
        y, saved = y
    if not any_tensor:
        return y
    if not isinstance(y, (ndarray, generic)) or y.dtype.kind not in "fiub":
        return written(op, *inputs, **settings)
    return remember(made, y, saved, inputs, arrays, settings)


def remember(
    op: Any, y: Any, saved: Any, inputs: tuple, arrays: Any, settings: dict[str, Any]
) -> Any:
    """As `Op.remember`: the tensor around y, made of these inputs."""
    here, wanted, reachable = local.context, False, bool(handed_out)
    kept = list(arrays)
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor):
            if x._tracked:
                wanted = True
                kept[i] = x
        elif x.__class__ is ndarray:
            reachable = True
    t = new(Tensor)
    t._data = y
    t._grad = t.name = None
    if wanted and here.recording and y.dtype.kind == "f":
        t._tracked = True
        t._record = r = new_record()
        r.time = clock()
        r.op = op
        r.inputs = tuple(kept)
        r.settings = settings
        r.saved = saved
        r.scope = here.scope
        r.retained = False
    else:
        t._record = None
        t._tracked = False
    if here.watchers or reachable:
        for watcher in (*everywhere, *here.watchers):
            watcher.computed(op, inputs, settings, t)
    return t


# ---- in place of the methods as they are written, and back

written: Any = Op.__call__
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
        run = operator(op)
        _shortcuts[f"__{sign}__"] = run
        _shortcuts[f"__r{sign}__"] = lambda b, a, run=run: run(a, b)
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
    Op.__call__ = written if _in_plain_mode else call  # type: ignore
