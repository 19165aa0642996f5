"""Making a picture smaller.

Module calls become boxes, identical siblings one box, and so does the middle of a long run of ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from ..engine import Variable
from . import labels
from .trace import Names, array_of, is_made, key_of, op_of, operands, settings_of


class Unit:
    """One box to be: an op, a folded module call, or a run of folded ops."""

    def __init__(self, kind: str, chain: tuple[Any, ...], scope: Any = None) -> None:
        self.kind = kind
        self.chain = chain  # the open calls around it, outermost first
        self.scope = scope  # the call that is folded
        self.ops: list[Variable] = []


def by_module(
    ops: Sequence[Variable], names: Names, depth: int, expand: Sequence[str]
) -> list[Unit]:
    """A unit for each op, and one for each call that lies deeper than `depth`.

    The calls of the modules in `expand`, and those around them, are opened at any depth.
    """
    units: list[Unit] = []
    closed: dict[int, Unit] = {}
    for t in ops:
        chain = names.chain(t)
        level = names.level(chain) if chain else 0
        opened = 0
        while opened < len(chain) and (
            level + opened < depth or _leads_to(expand, names.module(chain[opened]))
        ):
            opened += 1
        if opened == len(chain):
            unit = Unit("op", chain)
            units.append(unit)
        else:
            scope = chain[opened]
            if id(scope) not in closed:
                closed[id(scope)] = Unit("module", chain[:opened], scope)
                units.append(closed[id(scope)])
            unit = closed[id(scope)]
        unit.ops.append(t)
    return units


def _leads_to(expand: Sequence[str], name: str) -> bool:
    """Is this the dotted name of a module to open, or of one around it?"""
    return any(not name or inner == name or inner.startswith(name + ".") for inner in expand)


def leaf_users(units: Sequence[Unit]) -> dict[Any, list[Unit]]:
    """For each leaf, the units that use it, in the order of first use."""
    users: dict[Any, list[Unit]] = {}
    for unit in units:
        for t in unit.ops:
            for i, x in operands(t):
                if not is_made(x):
                    using = users.setdefault(key_of(t, i, x), [])
                    if not using or using[-1] is not unit:
                        using.append(unit)
    return users


def middle(units: list[Unit], boxes: int, limit: int) -> tuple[list[Unit], str]:
    """The first and the last units, and all between as one, so that about `limit` boxes remain.

    Returns the units and a note for the reader.
    The units between lie side by side in forward order, so no path leaves them and enters them
    again, and the picture has no circle.
    """
    keep = max(1, int(len(units) * limit / boxes) // 2 - 1)
    inside = units[keep : len(units) - keep]
    if len(inside) < 2:
        return units, ""
    run = Unit("folded", common([inside[0].chain, inside[-1].chain]))
    for unit in inside:
        run.ops.extend(unit.ops)
    return [*units[:keep], run, *units[len(units) - keep :]], (
        f"{boxes:,} boxes are more than limit={limit}: {len(run.ops):,} ops in the middle are "
        "folded into one box. limit=None draws all of them."
    )


def common(chains: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The open calls that all of these chains begin with."""
    shared = takewhile(
        lambda calls: all(call is calls[0] for call in calls), zip(*chains, strict=False)
    )
    return tuple(calls[0] for calls in shared)


class Span(NamedTuple):
    """A module call, and the places of its first and its last op in forward order."""

    scope: Any
    start: int
    end: int


class Siblings:
    """Neighbouring calls of alike modules that did the same: only the first of them is drawn.

    `twin` has, by the id of an op, the op in the first call that is drawn for it; `times`, by the
    id of the first call, how many calls it stands for and the last of them; `more`, by the id of an
    op, its operands from before all of the calls, which the first call did not have.
    """

    def __init__(self, ops: Sequence[Variable], names: Names) -> None:
        self.reference: dict[int, Variable] = {}
        self.times: dict[int, tuple[int, Any]] = {}
        self.more: dict[int, list[tuple[int, Variable]]] = {}
        self._ops = ops
        self._place = {id(t): i for i, t in enumerate(ops)}
        for calls in _calls_in_calls(ops, names):
            for first, *others in self._runs(calls):
                for call in others:
                    self._join(first, call)
                    self.times[id(first.scope)] = len(others) + 1, call.scope

    def _runs(self, calls: Sequence[Span]) -> list[list[Span]]:
        """Calls that follow one another immediately and did the same, together."""
        runs: list[list[Span]] = []
        before = None
        for call in calls:
            if id(self._ops[call.start]) in self.reference:
                continue  # it lies inside a call that is not drawn
            now = type(call.scope.module), self._signature(call)
            if before == now and runs[-1][-1].end + 1 == call.start:
                runs[-1].append(call)
            else:
                runs.append([call])
            before = now
        return runs

    def _join(self, first: Span, call: Span) -> None:
        """The ops of `call` are drawn as those of `first`."""
        for i in range(call.start, call.end + 1):
            t, twin = self._ops[i], self._ops[first.start + i - call.start]
            self.reference[id(t)] = twin
            drawn = dict(operands(twin))
            earlier = [
                (j, x)
                for j, x in operands(t)
                if self._place.get(id(x), first.start) < first.start and x is not drawn.get(j)
            ]
            if earlier:
                self.more[id(t)] = earlier

    def _signature(self, call: Span) -> tuple[Any, ...]:
        """The ops of a call with settings and shapes, and where inside it operands come from."""
        signature: list[Any] = []
        for t in self._ops[call.start : call.end + 1]:
            signature.append((op_of(t), tuple(labels.settings(settings_of(t))), t._data.shape))
            for j, x in operands(t):
                place = self._place.get(id(x), -1)
                inside = call.start <= place <= call.end
                signature.append((j, place - call.start if inside else labels.shape(array_of(x))))
        return tuple(signature)


def _calls_in_calls(ops: Sequence[Variable], names: Names) -> list[list[Span]]:
    """Lists of neighbouring calls, in order.

    The first are those made outside of all modules, the others those that one call has made.
    """
    spans: dict[int, Span] = {}
    inner: dict[int | None, list[int]] = {}
    for i, t in enumerate(ops):
        outer = None
        for scope in names.chain(t):
            if id(scope) not in spans:
                inner.setdefault(outer, []).append(id(scope))
                spans[id(scope)] = Span(scope, i, i)
            spans[id(scope)] = spans[id(scope)]._replace(end=i)
            outer = id(scope)
    return [[spans[call] for call in calls] for calls in inner.values()]
