"""The sweep: how a recorded computation is differentiated backwards.

One loop: take the newest tensor whose gradient is known, ask its op's rule for the gradients of its inputs, add them up, go on.
Newest first is a topological order, since an op's inputs are always older than its result; so when a tensor's turn comes, everything that
used it has already given its share.  Nothing recurses, and what has been used is let go at once.  This module names no op but `clone`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any
from weakref import ref

import numpy as np
from numpy import asarray, ndarray

from ..messages.errors import describe
from . import changes as guard
from .graph import (
    NO_SETTINGS,
    RETAINED,
    SPECIAL,
    WATCHED,
    Context,
    Node,
    Op,
    Variable,
    constant,
    local,
    op,
)

__all__ = [
    "Context",
    "Node",
    "Op",
    "Variable",
    "clone",
    "constant",
    "local",
    "op",
    "sum_to",
    "sweep",
]

MANY = 1 << 14  # numbers added up into one, from where the rounding of a plain sum shows


def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """The adjoint of broadcasting: sum g over the axes along which an input of this shape was repeated.  A 1 of g's stays a 1."""
    lead, kind = g.ndim - len(shape), g.dtype.char if g.__class__ is ndarray else ""
    if kind == "e":  # in float16 2,048 + 1 is 2,048
        return sum_to(g.astype(np.float32), shape).astype(g.dtype)
    if (
        g.size > MANY
        and kind
        and shape
        and g.size > MANY * math.prod(shape)
        and (lead or shape[0] == 1)
        and len(g) > 1
    ):
        half = len(g) // 2  # one row after another, a million of float32 lose three digits of seven
        return sum_to(g[:half], shape) + sum_to(g[half:], shape)
    if g.size > 2048 and shape and lead and g.shape[lead:] == shape and kind in ("f", "d"):
        rows = math.prod(
            g.shape[:lead]
        )  # a product with ones is up to twenty times as fast as NumPy's sum over rows
        return np.ones(rows, g.dtype).dot(g.reshape(rows, -1)).reshape(shape)
    axes = (*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1 != g.shape[i + lead]))
    if g.size > 2048 and axes == (g.ndim - 1,) and g.shape[-1] <= 128 and kind in ("f", "d"):
        return (
            g.reshape(-1, g.shape[-1]).dot(np.ones(g.shape[-1], g.dtype)).reshape(shape)
        )  # and so for short rows
    if axes:
        g = g.sum(axis=axes, keepdims=True)
        g = g.reshape(g.shape[lead:])
    return g


def _fit(part: Any, x: Variable, op: Op, index: int) -> Any:
    """Bring a partial to its input's shape and dtype, or say that the rule is wrong."""
    if not isinstance(part, (ndarray, Variable)):
        part = asarray(part)
    shape, dtype = x._data.shape, x._data.dtype
    if part.shape != shape and op.broadcasts:
        if part.ndim >= len(shape):
            part = sum_to(part, shape)
        if part.shape != shape and _reaches(part.shape, shape):
            part = part * np.ones(
                shape, dtype
            )  # a rule may leave out axes along which its result is constant
    if part.shape != shape:
        raise ValueError(
            f"the rule of op {op.__name__!r} for input {index} gave a gradient of shape {part.shape}, but that input has "
            f"shape {shape}. A partial has its input's shape"
            + (
                ", or the broadcast shape."
                if op.broadcasts
                else "; if the op broadcasts, write @op(broadcasts=True)."
            )
        )
    if part.dtype.kind == "c":
        raise TypeError(
            f"the rule of op {op.__name__!r} for input {index} gave complex numbers, {describe(part)}, for an input of real "
            "ones. Take the part that is meant, as in np.real(...) around what np.fft returns."
        )
    return part if part.dtype == dtype else part.astype(dtype)


def _reaches(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Can an array of the first shape be broadcast to the second?"""
    return len(small) <= len(shape) and all(
        n in (1, m) for n, m in zip(small[::-1], shape[::-1], strict=False)
    )


@op
def clone(x: Any) -> Any:
    """y = x, in memory of its own."""
    return x.copy()


clone.vjp(lambda g, y, x: g)


def _parts(t: Variable, g: Any, create_graph: bool, wants: Any) -> Sequence[Any]:
    """The gradients of all inputs of the op that made t, None where none is wanted; as recorded tensors under `create_graph`."""
    record: Any = t._record
    op, static, saved, inputs = record[1], record[2], record[3], record[6:]
    args = inputs if create_graph else [x._data if isinstance(x, Variable) else x for x in inputs]
    needs = [
        isinstance(x, Variable) and x._tracked and (wants is None or id(x) in wants) for x in inputs
    ]
    if create_graph and op.twin is not None:  # differentiate the composite that says the same
        copies = [clone(x) if isinstance(x, Variable) and x._tracked else x for x in inputs]
        leaves = [x for x in copies if isinstance(x, Variable) and x._tracked]
        found, _ = sweep(
            [op.twin(*copies, **static)], [g], wanted=leaves, create_graph=True, stop=True
        )
        parts = [found.get(x) if isinstance(x, Variable) else None for x in copies]
    elif op.joint is not None:
        extra: dict[str, Any] = {"saved": saved} if op.saves else {}
        if op._joint_asks_needs:
            extra["needs"] = tuple(needs)
        parts = op.joint(g, t if create_graph else t._data, *args, **static, **extra)
        if parts.__class__ is not tuple or len(parts) != len(args):
            _check_number(parts, op, len(args))
    elif op.partials and True in needs[len(op.partials) :]:  # of an op with *inputs
        raise TypeError(
            f"op {op.__name__!r} has {len(op.partials)} rules, but was called with {len(args)} inputs. Give .vjp() one for "
            "each, or write one for all, however many they are, with .vjp_all."
        )
    elif op.partials:
        y, parts = t if create_graph else t._data, []
        for i, need in enumerate(needs):
            rule = op.partials[i] if need else None
            parts.append(None if rule is None else rule(g, y, *args, **static))
            if rule is not None and parts[i] is None:
                raise _silent(op, i)
    else:
        raise TypeError(
            f"op {op.__name__!r} has no derivative: give it one with {op.__name__}.vjp(...), one rule for each input, "
            "or detach() its result."
        )
    return (
        parts
        if False not in needs
        else [parts[i] if need else None for i, need in enumerate(needs)]
    )


def _check_number(parts: Any, op: Op, inputs: int) -> None:
    """Raise unless there is a gradient for each input; of an optional one that was not given there may be a None."""
    several = isinstance(parts, (tuple, list))
    if not several or len(parts) < inputs or any(part is not None for part in parts[inputs:]):
        told = (
            f"{len(parts)} gradients"
            if several
            else "nothing"
            if parts is None
            else describe(parts)
        )
        raise TypeError(
            f"the rule of op {op.__name__!r} returned {told}. It returns a tuple of {inputs}, a gradient for each input, None "
            "for one that has none."
        )


def _silent(op: Op, index: int) -> TypeError:
    return TypeError(
        f"the rule of op {op.__name__!r} for input {index} returned None. Does it end with return? For an input that has no "
        f"derivative write None in place of the rule: {op.__name__}.vjp(..., None)."
    )


def _leading_to(
    roots: Iterable[Variable], wanted: Sequence[Variable], stop: bool
) -> tuple[set[int], list[Any]]:
    """The ids of the tensors from which a wanted one can be reached, and weak references to all others.

    Of those none where a released tensor hides what is behind it: then nobody knows them all.
    """
    found, seen, goal = list(roots), {id(t) for t in roots}, {id(t): t._record for t in wanted}
    for t in found:
        if t._record is not None and not (stop and id(t) in goal):
            for x in t._record[6:]:
                if isinstance(x, Variable) and x._tracked and id(x) not in seen:
                    seen.add(id(x))
                    found.append(x)
    leads: set[int] = set()
    ended: dict[
        int, set[int]
    ] = {}  # the ids of each pass's ends, looked up once for all that it released
    for t in sorted((t for t in found if t._record is not None), key=lambda t: t._record[0]):  # type: ignore[index]
        record: Any = t._record
        if stop and id(t) in goal:
            continue
        led = (
            _led_to(goal, record, ended)
            if record[1] is None
            else any(id(x) in goal or id(x) in leads for x in record[6:])
        )
        if led:
            leads.add(id(t))
    hidden = stop or any(t._record is not None and t._record[1] is None for t in found)
    return leads, [] if hidden else [ref(t) for t in found if id(t) not in leads]


def _led_to(goal: dict[int, Any], released: Any, ended: dict[int, set[int]]) -> bool:
    """Can one of these tensors, known by their records, have been behind this released one?  Then its pass ended there or released it."""
    tick, ends = released[0], released[3]
    older = [(i, record) for i, record in goal.items() if record is None or record[0] < tick]
    if not ends:  # where that pass ended is not known
        return bool(older)
    if id(ends) not in ended:
        ended[id(ends)] = {id(end()) for end in ends}
    return any(
        i in ended[id(ends)] or record is not None and record[3] is ends for i, record in older
    )


def sweep(
    roots: Sequence[Variable],
    seeds: Sequence[Any],
    *,
    wanted: Sequence[Variable] | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    stop: bool = False,
) -> tuple[dict[Variable, Any], set[Variable]]:
    """The gradients of `sum(seed * root)` by the leaves, or by the wanted tensors, and those whose gradient was allocated here.

    `stop` treats the wanted tensors as leaves.
    """
    goal = None if wanted is None else {id(t) for t in wanted}
    leads, beside = (set(), None) if wanted is None else _leading_to(roots, wanted, stop)
    wants = (
        None if goal is None else goal | leads
    )  # the ids a gradient is worth computing for; None: all
    heap: list[tuple[int, Variable]] = []  # newest first
    grads: dict[Variable, Any] = {}  # what has come so far,
    done: dict[Variable, Any] = {}  # and what is complete and was asked for
    hand: Any = None  # one stays out of both, with its gradient: in a chain it is always the next
    hand_grad: Any = None
    own: set[Variable] = (
        set()
    )  # those whose gradient was allocated here, so that we may add in place
    ends: list[Any] = []  # weakly, what the pass reached and did not release; empty: not known
    observers, latest = local.context.observers, guard.latest
    selective = create_graph or goal is not None

    for root, seed in zip(roots, seeds, strict=True):
        if wants is None or id(root) in wants:
            if (
                root._record is not None
                and root not in grads
                and (goal is None or id(root) in leads)
            ):
                heappush(heap, (-root._record[0], root))
            grads[root] = grads[root] + seed if root in grads else seed  # it may be listed twice
    while heap or hand is not None:
        if hand is not None and not (heap and -heap[0][0] > hand._record[0]):
            t, g = hand, hand_grad
        else:
            t = heappop(heap)[1]
            g = grads.pop(t)
            if hand is not None:
                grads[hand] = hand_grad
                heappush(heap, (-hand._record[0], hand))
        hand = hand_grad = None
        if own:
            own.discard(
                t
            )  # a rule may pass its gradient on by reference, and nothing else holds t any more
        record: Any = t._record  # its items one by one, since taking it apart with * makes a list
        op, special = record[1], selective or record[5]
        if special:
            if op is None:
                raise RuntimeError(
                    "this graph has been released: backward() was called on it before. "
                    "Pass retain_graph=True to the first call to use it twice, or compute the loss again; detach() the "
                    "part that was released if it is meant as a constant."
                )
            if record[5] & RETAINED or goal is not None and id(t) in goal:
                done[t] = g
        if latest > record[0] or special and record[5] & WATCHED:
            record = guard.check(t, g)
        rules = op.partials
        if special and op.adds is not None and record[6] in own and not (create_graph or observers):
            op.adds(
                grads[record[6]], g, **record[2]
            )  # a loop over x[0], x[1], ... adds no array of x's size for each
            parts: Any = ()
        elif special or not rules:
            parts, fits = _parts(t, g, create_graph, wants), op.exact is op.joint
        elif len(record) == 8:  # the usual cases, spelled out: they decide how fast small ops are
            a, b = record[6], record[7]
            u, v = (
                a._data if isinstance(a, Variable) else a,
                b._data if isinstance(b, Variable) else b,
            )
            first, second = rules[0], rules[1]
            fits = (
                u.__class__ is ndarray is v.__class__
                and op.exact is rules
                and u.shape == v.shape
                and u.dtype is v.dtype
            )
            parts = (
                None if a is u or not a._tracked or first is None else first(g, t._data, u, v),
                None if b is v or not b._tracked or second is None else second(g, t._data, u, v),
            )
        else:
            first, fits = rules[0], op.exact is rules
            parts = (None if first is None else first(g, t._data, record[6]._data),)
        i = 5
        for part in parts:
            i += 1
            if part is None:
                if (
                    rules
                    and not special
                    and rules[i - 6] is not None
                    and isinstance(record[i], Variable)
                    and record[i]._tracked
                ):
                    raise _silent(op, i - 6)
                continue
            x = record[i]
            data, kind = x._data, part.__class__
            if (
                kind is not data.__class__
                or kind is ndarray
                and not fits
                and (part.shape != data.shape or part.dtype is not data.dtype)
            ):
                part = _fit(part, x, op, i - 6)
            if create_graph and not isinstance(part, Variable):
                part = constant(part)  # a rule may return a constant
            total = hand_grad if x is hand else grads.get(x)
            if total is None:  # the first gradient is kept by reference,
                total = part
                if op.fresh and part.__class__ is ndarray:
                    own.add(x)
                if x._record is None or goal is not None and id(x) not in leads:
                    grads[x] = part
                elif hand is None:
                    hand, hand_grad = x, part
                else:  # the newer of the two stays
                    older, its = x, part
                    if x._record[0] > hand._record[0]:
                        older, its, hand, hand_grad = hand, hand_grad, x, part
                    grads[older] = its
                    heappush(heap, (-older._record[0], older))
                    older = its = None
            elif x in own:  # the third and later ones are added in place
                total += part
            else:  # to the sum that the second one made
                total = total + part
                if total.__class__ is ndarray:
                    own.add(x)
                if x is hand:
                    hand_grad = total
                else:
                    grads[x] = total
            if observers:
                for observer in observers:
                    observer.backward(t, t._node, g, i - 6, x, part, total)
        if not (retain_graph or create_graph):
            t._record = (
                record[0],
                None,
                NO_SETTINGS,
                ends,
                None,
                SPECIAL,
            )  # its own tick keeps the order of released ones
        a = b = u = v = part = parts = None  # or this step's arrays would live on
    if not (retain_graph or create_graph):
        ends += map(ref, grads) if beside is None else beside
    return done | grads, own
