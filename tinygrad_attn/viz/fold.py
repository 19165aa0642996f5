"""Making a picture smaller: module calls become boxes, identical siblings one, and the middle of a long run one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from ..engine import Variable
from . import labels
from .trace import Names, key_of, operands


class Unit:
    """One box to be: an op, a folded module call, or a run of folded ops."""

    def __init__(self, kind: str, chain: tuple[Any, ...], scope: Any = None) -> None:
        self.kind, self.chain, self.scope = (
            kind,
            chain,
            scope,
        )  # chain: the open calls around it, outermost first
        self.ops: list[Variable] = []


def by_module(
    ops: Sequence[Variable], names: Names, depth: int, expand: Sequence[str]
) -> list[Unit]:
    """A unit for each op, except that the calls deeper than `depth` and not to be expanded are one unit each."""
    units: list[Unit] = []
    closed: dict[int, Unit] = {}
    for t in ops:
        chain = names.chain(t)
        lift = names.level(chain) if chain else 0
        opened = 0
        while opened < len(chain) and _is_open(
            opened + lift, names.module(chain[opened]), depth, expand
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


def _is_open(level: int, name: str, depth: int, expand: Sequence[str]) -> bool:
    return level < depth or any(
        not name or inner == name or inner.startswith(name + ".") for inner in expand
    )


def leaf_users(units: Sequence[Unit]) -> dict[Any, list[Unit]]:
    """For each leaf, the units that use it, in the order of first use."""
    users: dict[Any, list[Unit]] = {}
    for unit in units:
        for t in unit.ops:
            for i, x in operands(t):
                if getattr(x, "_node", None) is None:
                    using = users.setdefault(key_of(t, i, x), [])
                    if not using or using[-1] is not unit:
                        using.append(unit)
    return users


def middle(units: list[Unit], boxes: int, limit: int) -> tuple[list[Unit], str]:
    """The first and last units as they are and all between as one, so that about `limit` boxes remain; and a note.

    A run of ops in forward order has no way out of itself and in again, so what is left has no circle either.
    """
    keep = max(1, int(len(units) * limit / boxes) // 2 - 1)
    inside = units[keep : len(units) - keep]
    if len(inside) < 2:
        return units, ""
    run = Unit("folded", common([inside[0].chain, inside[-1].chain]))
    for unit in inside:
        run.ops.extend(unit.ops)
    return [*units[:keep], run, *units[len(units) - keep :]], (
        f"{boxes:,} boxes are more than limit={limit}: {len(run.ops):,} ops in the middle are folded into one box. "
        "limit=None draws all of them."
    )


def common(chains: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The open calls that all of these chains begin with."""
    shared = chains[0]
    for chain in chains[1:]:
        shared = tuple(
            a
            for a, b in takewhile(lambda pair: pair[0] is pair[1], zip(shared, chain, strict=False))
        )
    return shared


def census(ops: Sequence[Variable]) -> str:
    """`add x120, exp x7`: the most frequent ops of a run."""
    counts = Counter(
        t._record.op.__name__ for t in ops if t._record is not None and t._record.op is not None
    ).most_common()
    return ", ".join(f"{name} x{n:,}" for name, n in counts[:3]) + (
        f" and {len(counts) - 3} more kinds" if len(counts) > 3 else ""
    )


class Siblings:
    """Neighbouring calls of alike modules that did the same: each op's twin in the first of them, and how many."""

    def __init__(self, ops: Sequence[Variable], names: Names) -> None:
        self.twin: dict[int, Variable] = {}
        self.times: dict[int, tuple[int, Any]] = {}  # id of the first call -> (how many, the last)
        self.more: dict[
            int, list[tuple[int, Variable]]
        ] = {}  # id of a twin -> its operands from before all of the calls
        place = {id(t): i for i, t in enumerate(ops)}
        spans: dict[int, tuple[Any, int, int]] = {}  # call -> (itself, its first op, its last)
        children: dict[int | None, list[int]] = {}
        for i, t in enumerate(ops):
            outer = None
            for scope in names.chain(t):
                if id(scope) not in spans:
                    children.setdefault(outer, []).append(id(scope))
                    spans[id(scope)] = scope, i, i
                spans[id(scope)] = scope, spans[id(scope)][1], i
                outer = id(scope)
        for calls in children.values():
            runs: list[list[int]] = []
            before = None
            for call in calls:
                scope, start, end = spans[call]
                if id(ops[start]) in self.twin:
                    continue
                now = type(scope.module), self._signature(ops, place, start, end)
                if before == now and spans[runs[-1][-1]][2] + 1 == start:
                    runs[-1].append(call)
                else:
                    runs.append([call])
                before = now
            for first, *others in runs:
                start = spans[first][1]
                for call in others:
                    for i in range(spans[call][1], spans[call][2] + 1):
                        twin = self.twin[id(ops[i])] = ops[start + i - spans[call][1]]
                        drawn = twin._record.inputs  # type: ignore[union-attr]
                        earlier = [
                            (j, x)
                            for j, x in operands(ops[i])
                            if place.get(id(x), start) < start and x is not drawn[j]
                        ]
                        if earlier:
                            self.more[id(ops[i])] = earlier
                    self.times[first] = len(others) + 1, spans[call][0]

    @staticmethod
    def _signature(
        ops: Sequence[Variable], place: dict[int, int], start: int, end: int
    ) -> tuple[Any, ...]:
        """The ops of a call, their settings and shapes, and which operand comes from where inside it."""
        signature: list[Any] = []
        for t in ops[start : end + 1]:
            signature.append((t._record.op, tuple(labels.settings(t._record)), t._data.shape))  # type: ignore[union-attr]
            for j, x in operands(t):
                inside = start <= place.get(id(x), -1) <= end
                signature.append(
                    (j, place[id(x)] - start if inside else labels.shape(getattr(x, "_data", x)))
                )
        return tuple(signature)
