"""The engine in fewer steps: the call of an op, and the sweep, bit for bit as `engine/` has them.

A call of a Python function costs 50 to 100 ns, and an op on few numbers some 600 ns, so here
nothing is called that need not be. What is written for the usual operands (tensors, arrays and
numbers) leaves the unusual ones, a list, a string or an error, to `Op.__call__`.

In a chain of small ops the sweep itself takes longer than the arithmetic. So here

- backward() sorts nothing beforehand: a tensor whose first share has come in goes on a heap, by
  time;
- the newest tensor is kept in hand, out of the heap: in a chain it is always the next one;
- the rules of an element-wise op are called on the spot, and what they return is not asked for its
  shape, see `OfOne`;
- a sum that was allocated here is added to in place, and so is what an op like x[0] gives a sum.
"""

from __future__ import annotations

import operator
from heapq import heappop, heappush
from typing import Any
from weakref import ref

from numpy import dtype, generic, ndarray

from .. import ops
from ..engine import Op, Released, Variable, context, everywhere, inplace
from ..engine import sweep as plain_sweep
from ..engine.graph import Node, clock
from ..engine.inplace import handed_out
from ..engine.kernels import kernel, step_aside
from ..engine.sweep import fit, leading_to
from ..tensor import Tensor
from .allocator import keep_freed

NUMBERS = {float, int, bool, type(None)}
SCALARS = {dtype(code).type for code in "?bhilqBHILQefd"}  # NumPy's, that hold a number of Python's
NOTHING: dict[str, Any] = {}
new: Any = object.__new__


class NewNode(Node):
    """A record whose slots are filled one by one: that takes half the time of `Node(...)`."""

    __slots__ = ()
    __init__ = object.__init__


new_record: Any = NewNode


class OfOne(tuple):
    """The rules of an op that takes each element of its one input by itself, and has no settings:
    the share has the shape and dtype of the input.
    """

    __slots__ = ()


class OfTwo(tuple):
    """The same for two inputs, if these are of one shape and dtype, or one of them is a number."""

    __slots__ = ()


class OfSum(tuple):
    """The rules of a sum, which pass the gradient on: they need not be called."""

    __slots__ = ()


def always(*_: Any) -> bool:
    """Said of a quick way that fits whatever the op takes."""
    return True


class QuickOp(Op):
    """An op that computes what another op or an equation says, quicker, on arrays for which `fits`
    holds.
    """

    __slots__ = ("fits", "fresh", "adds")

    def __init__(self, plain: Any, forward: Any, fits: Any = None, **flags: Any) -> None:
        super().__init__(forward, **flags)
        self.__name__ = plain.__name__
        self.fits = fits
        self.fresh = False  # is what its rules return new, and held by nobody else?
        self.adds: Any = None  # adds the share of its one input to a gradient in place, or refuses
        if isinstance(plain, Op):
            self.stands_for = plain

    def pull(self, *found: Any) -> dict[int, Any]:
        """By its own rules, or by those of the op that it stands for."""
        own = self.vjps or self.joint_vjp is not None
        return super().pull(*found) if own else self.stands_for.pull(*found)


def operation(op: Op, sign: Any) -> Any:
    """The op of two operands as a function of its own, for `a + b`: half the time of a call of the
    op.
    """
    as_written = op.forward

    def operate(a: Any, b: Any) -> Any:
        here = context
        if here.watchers or here.plain:
            return op(a, b)
        inputs: tuple | None
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
        made = op.kernel or op  # of these six a quick way always fits
        forward = made.forward
        try:
            y = sign(u, v) if forward is as_written else forward(u, v)
        except RecursionError:  # to try again at each depth would never end
            raise
        except Exception:  # it fails again in Op.__call__, which explains it
            return op(a, b)
        t = new(Tensor)
        t._data = y
        t._grad = t.name = None
        if inputs is not None and here.recording:  # an operand is of floats, so the result is
            t._tracked = True
            t._node = r = new_record()
            r.number = clock()
            r.op = made
            r.inputs = inputs
            r.settings = NOTHING
            r.saved = None
            r.scope = here.scope
            r.retained = False
            if handed_out:
                for watcher in everywhere:
                    watcher.computed(made, (a, b), NOTHING, t)
        else:
            t._node = None
            t._tracked = False
        return t

    return operate


def call(op: Any, /, *inputs: Any, **settings: Any) -> Any:
    """As `Op.__call__`."""
    here = context
    if here.plain:
        return written(op, *inputs, **settings)
    if op.vjps.__class__ is OfOne and not (settings or here.watchers):
        if len(inputs) == 1 and isinstance(inputs[0], Tensor):  # the usual case, spelled out
            x = inputs[0]
            a = x._data
            quick = op.kernel
            made = op if quick is None or quick.fits is not always and not quick.fits(a) else quick
            forward = made.forward
            try:
                y = forward(a)
            except RecursionError:  # to try again at each depth would never end
                raise
            except Exception:  # it fails again in Op.__call__, which explains it
                return written(op, x)
            t = new(Tensor)
            t._data = y
            t._grad = t.name = None
            if x._tracked and here.recording:  # so it is of floats, and then the result is
                t._tracked = True
                t._node = r = new_record()
                r.number = clock()
                r.op = made
                r.inputs = inputs
                r.settings = NOTHING
                r.saved = None
                r.scope = here.scope
                r.retained = False
                if handed_out:
                    for watcher in everywhere:
                        watcher.computed(made, inputs, NOTHING, t)
            else:
                t._node = None
                t._tracked = False
            return t
    y = general_call(op, inputs, settings)
    return written(op, *inputs, **settings) if y is NotImplemented else y


def general_call(op: Any, inputs: tuple, settings: dict[str, Any]) -> Any:
    """The same for any op, and operands of all kinds; NotImplemented for what is unusual."""
    if settings.keys() != op.parameters.settings:  # some are left out, or one is misspelt
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
            return NotImplemented
        arrays.append(x)
    for value in settings.values():
        if isinstance(value, Tensor):  # which is an error
            return NotImplemented
    made = op if op.kernel is None or not op.kernel.fits(*arrays, **settings) else op.kernel
    try:
        y = found = made.forward(*arrays, **settings)
    except RecursionError:  # to try again at each depth would never end
        raise
    except Exception:  # it fails again in Op.__call__, which explains it
        return NotImplemented
    if made.saves:
        if found.__class__ is not tuple or len(found) != 2:
            return NotImplemented
        y = found[0]
    if any_tensor and (not isinstance(y, (ndarray, generic)) or y.dtype.kind not in "fiub"):
        return NotImplemented
    return run(made, inputs, arrays, settings, found)


def run(op: Any, inputs: tuple, arrays: Any, settings: dict[str, Any], y: Any = None) -> Any:
    """The op of these arrays, which is y if that is known already; where one of the inputs is a
    tensor, a tensor with a record, as `Op.remember` makes it.
    """
    if y is None:
        y = op.forward(*arrays, **settings)
    here, saved = context, None
    if op.saves:
        y, saved = y
    t = new(Tensor)
    t._data = y
    t._grad = t._node = t.name = None
    t._tracked = False
    if not (here.recording or here.watchers):  # as in generation, nothing is remembered
        for x in inputs:
            if isinstance(x, Tensor):
                return t
        return y
    any_tensor = wanted = False
    reachable = bool(handed_out)
    kept = list(arrays)
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor):
            any_tensor = True
            if x._tracked:
                wanted = True
                kept[i] = x
        elif x.__class__ is ndarray:
            reachable = True
    if not any_tensor:
        return y
    if wanted and here.recording and y.dtype.kind == "f":
        t._tracked = True
        t._node = r = new_record()
        r.number = clock()
        r.op = op
        r.inputs = tuple(kept)
        r.settings = settings
        r.saved = saved
        r.scope = here.scope
        r.retained = False
    if here.watchers or reachable:
        for watcher in (*everywhere, *here.watchers):
            watcher.computed(op, inputs, settings, t)
    return t


# ---- the sweep


@kernel(plain_sweep)
def sweep(
    roots: Any,
    seeds: Any,
    *,
    wanted: Any = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    stop: bool = False,
) -> Any:
    """As `engine.sweep`, for a pass that is not itself recorded."""
    if create_graph:
        return NotImplemented
    keep_freed()
    through, goal = None, set(wanted or ())
    if wanted is not None:
        order, aside = leading_to(wanted, roots, stop)
        through = set(order)
    own: set[Variable] = set()
    released = None if retain_graph else Released()
    start: dict[Variable, Any] = {}
    for root, seed in zip(roots, seeds, strict=True):
        if through is None or root in through or root in goal:
            start[root] = start[root] + seed if root in start else seed
    gradients, complete = _undo_all(start, own, goal, through, released)
    if released is not None and wanted is None:  # it ended at leaves alone, so nothing is asked
        released.ends = dict(zip(map(id, gradients), map(ref, gradients)))
    elif released is not None and not stop:
        released.end_at(aside)
    found = complete | gradients if complete else gradients
    for x, g in found.items():  # each in memory of its own
        if not (x in own or isinstance(g, generic)) or g.dtype != x._data.dtype:
            found[x] = g.astype(x._data.dtype)
    return found


def _undo_all(  # noqa: C901
    gradients: dict[Variable, Any],
    own: set[Variable],
    goal: set[Variable],
    through: set[Variable] | None,
    released: Released | None,
) -> tuple[dict[Variable, Any], dict[Variable, Any]]:
    """The loop of the sweep. It is longer than a screen because it calls nothing.

    `own` has the tensors whose gradient was allocated here, and which nobody else holds.
    """
    newest: list[tuple[int, Variable]] = []
    complete: dict[Variable, Any] = {}
    for root in gradients:
        if root._node is not None and (through is None or root in through):
            heappush(newest, (-root._node.number, root))
    hand: Any = None  # a tensor in neither of the two, newer than all in the heap or equal,
    hand_gradient: Any = None  # and its gradient
    watchers = context.watchers
    latest = inplace.latest
    while newest or hand is not None:
        if hand is not None and not (newest and -newest[0][0] > hand._node.number):
            y, g = hand, hand_gradient
        else:
            y = heappop(newest)[1]
            g = gradients.pop(y)
            if hand is not None:
                gradients[hand] = hand_gradient
                heappush(newest, (-hand._node.number, hand))
        hand = hand_gradient = None
        if own:
            own.discard(y)  # a rule may pass its gradient on by reference
        record: Any = y._node
        op, inputs = record.op, record.inputs
        if record.retained or goal and y in goal:
            complete[y] = g
        if watchers or handed_out or latest > record.number:
            for watcher in (*everywhere, *watchers):
                watcher.pulling(y, g)
        rules = op.vjps
        shares: Any = ()
        kind = rules.__class__ if through is None else None
        if kind is OfTwo or kind is OfSum:
            a, b = inputs
            u = a._data if isinstance(a, Variable) else a
            v = b._data if isinstance(b, Variable) else b
            alike = u.__class__ is ndarray and (
                v.__class__ in NUMBERS
                or (v.__class__ is ndarray and u.shape == v.shape and u.dtype is v.dtype)
            )
            if kind is OfSum:
                shares = None if a is u else g, None if b is v else g
            else:
                first, second = rules
                shares = (
                    None if a is u else first(g, y._data, u, v),
                    None if b is v else second(g, y._data, u, v),
                )
            a = b = u = v = None
        elif kind is OfOne:
            alike = True
            shares = (rules[0](g, y._data, inputs[0]._data),)
        else:
            alike = False
            adds = op.adds if op.__class__ is QuickOp and not watchers else None
            total = None if adds is None or inputs[0] not in own else gradients[inputs[0]]
            if adds is None or total is None or not adds(total, g, **record.settings):
                shares = _shares(y, g, record, through, goal)
        i = -1
        for share in shares:
            i += 1
            if share is None:
                continue
            x = inputs[i]
            data = x._data
            kind = share.__class__
            if kind is not data.__class__ or (
                kind is ndarray
                and not alike
                and (share.shape != data.shape or share.dtype is not data.dtype)
            ):
                share = fit(share, x, op, i)
            total = hand_gradient if x is hand else gradients.get(x)
            if total is None:  # the first share is kept by reference
                total = share
                if share.__class__ is ndarray and op.__class__ is QuickOp and op.fresh:
                    own.add(x)
                made = x._node
                if made is None or through is not None and x not in through:
                    gradients[x] = share
                elif hand is None:
                    hand, hand_gradient = x, share
                elif made.number > hand._node.number:  # the newer of the two stays in hand
                    gradients[hand] = hand_gradient
                    heappush(newest, (-hand._node.number, hand))
                    hand, hand_gradient = x, share
                else:
                    gradients[x] = share
                    heappush(newest, (-made.number, x))
            elif x in own:
                total += share
            else:
                total = total + share
                if total.__class__ is ndarray:
                    own.add(x)
                if x is hand:
                    hand_gradient = total
                else:
                    gradients[x] = total
            for watcher in watchers:
                watcher.pulled(y, record, g, i, x, share, total)
        if released is not None:
            record.op = released
            record.inputs = ()
            record.settings = NOTHING
            record.saved = None
        y = g = record = inputs = shares = share = total = data = None
    return gradients, complete


def _shares(
    y: Variable, g: Any, record: Any, through: set[Variable] | None, goal: set[Variable]
) -> Any:
    """The gradient by each input, None where there is none, by whatever rules the op has."""
    op, inputs, settings = record.op, record.inputs, record.settings
    values, needs = [], []
    for x in inputs:
        tracked = isinstance(x, Variable)
        values.append(x._data if tracked else x)
        needs.append(tracked and (through is None or x in through or x in goal))
    shares: list[Any] = [None] * len(values)
    if op.__class__ is QuickOp and op.joint_vjp is not None:
        if op.saves:
            settings = {**settings, "saved": record.saved}
        if op.asks_needs:
            settings = {**settings, "needs": tuple(needs)}
        found = op.joint_vjp(g, y._data, *values, **settings)
        if False not in needs:
            return found
        for i, need in enumerate(needs):
            if need:
                shares[i] = found[i]
        return shares
    if op.vjps and len(op.vjps) == len(values):
        found = {}
        for i, rule in enumerate(op.vjps):
            if needs[i] and rule is not None:
                found[i] = rule(g, y._data, *values, **settings)
    else:
        found = op.pull(g, y._data, record, values, needs)
    for i, share in found.items():
        shares[i] = share if share is not None else fit(None, inputs[i], op, i)
    return shares


# ---- in the place of the methods as they are written, and back

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


Op.quick_call = general_call


def make_shortcuts() -> None:
    """Let `a + b` and a call of an op come here at once, which saves each a call of a function."""
    for name, op in SIGNS.items():
        operate = operation(op, op.forward if op is ops.power else getattr(operator, name))
        _shortcuts[f"__{name}__"] = operate
        _shortcuts[f"__r{name}__"] = lambda b, a, operate=operate: operate(a, b)
    if not context.plain:
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
