"""From a tensor to a picture: which boxes there are, which frames, and which operand goes where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

from ..engine import Variable
from ..messages.errors import describe, is_module
from . import boxes, fold, labels
from .fold import Unit
from .model import Arrow, Box, Group, Picture
from .trace import Names, forward_order, key_of, operands


def build(
    tensor: Any,
    model: Any = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    *,
    rollup: bool = False,
    limit: int | None = 150,
) -> Picture:
    """The picture behind one tensor or several; the arguments are `viz.graph`'s."""
    roots = list(tensor) if isinstance(tensor, (list, tuple)) else [tensor]
    for root in roots:
        if not isinstance(root, Variable):
            raise TypeError(
                f"graph() draws what lies behind a Tensor, got {describe(root)}."
                + (" Write ta.viz.graph(module(x), model=module)." if is_module(root) else "")
            )
    roots = list(
        {id(root): root for root in roots}.values()
    )  # one that is listed twice is one output
    if not roots:
        raise ValueError("graph() got an empty list of tensors; there is nothing to draw.")
    if depth is not None and (not isinstance(depth, Integral) or depth < 0):
        raise ValueError(
            f"depth counts how many levels of modules are opened, 0 or more (None: 1), got {depth!r}."
        )
    if limit is not None and (not isinstance(limit, Real) or not limit >= 4):
        raise ValueError(
            f"limit= is the greatest number of boxes, 4 or more, or None for no limit; got {describe(limit)}."
        )
    if not isinstance(expand, Iterable):
        raise TypeError(
            f"expand names modules to open, such as ['layers.0.self_attn'], got {describe(expand)}."
        )
    expand = (expand,) if isinstance(expand, str) else tuple(map(str, expand))
    return _Builder(roots, model, depth, expand, rollup, limit).picture()


class _Builder:
    def __init__(
        self,
        roots: list[Variable],
        model: Any,
        depth: int | None,
        expand: Sequence[str],
        rollup: bool,
        limit: int | None,
    ) -> None:
        self.result = Picture()
        self.roots, self.limit = roots, limit
        self.ops = forward_order(roots)
        self.names = Names(model, self.ops)
        self.names.check(expand)
        siblings = fold.Siblings(self.ops, self.names) if rollup else None
        twins = siblings.twin if siblings else {}
        leaves = [x for t in self.ops for _, x in operands(t) if getattr(x, "_node", None) is None]
        self.inputs = {id(x) for x in leaves if isinstance(x, Variable) and not self.names.leaf(x)}
        self.leaf_roots = {id(root) for root in roots if root._record is None}
        self.words = boxes.Words(
            self.names, Counter(id(x) for t in self.ops for _, x in operands(t)), siblings
        )
        self.units = self._units([t for t in self.ops if id(t) not in twins], depth, expand)
        # Calls that took turns in several threads may each use the other's results, so a box may use one that comes after it.
        self.ahead = {
            id(unit): -1 - i for i, unit in enumerate(self.units)
        }  # stands for its number, which is not known yet
        self.home = {id(t): unit for unit in self.units for t in unit.ops}
        self.more: dict[
            int, dict[Any, Any]
        ] = {}  # id of an op that stands for others too -> (place, id) -> their operands
        drawn: dict[int, int] = {}  # id of an op -> id of the one that is drawn for it
        for t in self.ops:
            twin = twins.get(id(t), t)  # older, so its home is known
            self.home[id(t)], drawn[id(t)] = self.home[id(twin)], drawn.get(id(twin), id(t))
            for i, x in siblings.more.get(id(t), ()) if siblings else ():
                self.more.setdefault(drawn[id(t)], {})[i, id(x)] = x
        leaving = [
            x
            for t in self.ops
            for _, x in operands(t)
            if self.home.get(id(x)) is not self.home[id(t)]
        ]
        self.leaving = {drawn.get(id(x)) for x in (*leaving, *roots)}
        self.groups: dict[int, int] = {}  # id of a call -> number
        self.numbers: dict[Any, int] = {}  # id of a unit, or key of a leaf -> number of its box
        self.room = None if limit is None else max(2, limit - len(self.units))  # for so many leaves
        self.spare: list[Any] = []  # the leaves there was no room for
        self.inside: dict[int, dict[Any, Any]] = {}  # id of a folded unit -> the leaves in it

    def _units(self, ops: list[Variable], depth: int | None, expand: Sequence[str]) -> list[Unit]:
        """Fold by module first, then, past the limit, deeper, and then the middle of the run."""
        level = 1 if depth is None else depth
        while True:
            units = fold.by_module(ops, self.names, level, expand)
            self.users = fold.leaf_users(units)
            count = len(units) + sum(not self._swallowed(key) for key in self.users)
            if self.limit is None or count <= self.limit:
                return units
            if depth is not None or level == 0 or not self.names.chains:
                break
            level -= 1
            self.result.notes.append(
                f"{count:,} boxes are more than limit={self.limit}: modules are folded to depth={level}. "
                "limit=None draws all of them."
            )
        units, note = fold.middle(units, count, self.limit)
        self.result.notes.extend([note] if note else [])
        self.users = fold.leaf_users(units)
        return units

    def _swallowed(self, key: Any) -> bool:
        """A leaf that only one folded box uses is inside that box, unless it comes from outside: an input; or is asked for."""
        using = self.users[key]
        if len(using) > 1 or using[0].kind == "op" or key in self.leaf_roots:
            return False
        return using[0].kind == "folded" or key not in self.inputs

    def picture(self) -> Picture:
        """Boxes in forward order, each after its operands."""
        for root in self.roots:
            if root._record is None:
                self._add(id(root), self.words.leaf(root), (), [root])
        for unit in self.units:
            operand_arrows = []
            for t in unit.ops:
                places = operands(t)
                for i, x in [*places, *((i, x) for (i, _), x in self.more.get(id(t), {}).items())]:
                    source = self._source(unit, t, i, x)
                    if source is not None:
                        operand_arrows.append(
                            Arrow(source, -1, i if len(places) > 1 else None, boxes.broadcast(t, x))
                        )
            number = self._unit(unit)
            merged: dict[int, list[Arrow]] = {}
            for arrow in operand_arrows:
                arrow.target = number
                if unit.kind == "op" and arrow.source != self.numbers.get("spare"):
                    self.result.arrows.append(arrow)
                else:
                    merged.setdefault(arrow.source, []).append(arrow)
            for source, several in merged.items():
                self.result.arrows.append(
                    Arrow(source, number, None, f"x{len(several):,}" if len(several) > 1 else "")
                )
        self._finish()
        return self.result

    def _source(self, unit: Unit, t: Variable, index: int, x: Any) -> int | None:
        """The number of the box an operand comes from, None where it is inside the same box."""
        if getattr(x, "_node", None) is not None:
            made = self.home[id(x)]
            return None if made is unit else self.numbers.get(id(made), self.ahead[id(made)])
        key = key_of(t, index, x)
        if self._swallowed(key):
            self.inside.setdefault(id(unit), {})[key] = x
            return None
        if key not in self.numbers:
            if self.room == 0:
                if not self.spare:
                    self._add("spare", Box("folded", "more leaves"), (), [])
                self.spare.append(x)
                self.numbers[key] = self.numbers["spare"]
            else:
                self.room = None if self.room is None else self.room - 1
                from_outside = (
                    isinstance(x, Variable)
                    and not self.names.leaf(x)
                    and not self.words.is_parameter(x)
                )
                chains = [()] if from_outside else [using.chain for using in self.users[key]]
                self._add(key, self.words.leaf(x), fold.common(chains), [x])
        return self.numbers[key]

    def _unit(self, unit: Unit) -> int:
        inside = list(self.inside.get(id(unit), {}).values())
        results = [t for t in unit.ops if id(t) in self.leaving]
        if unit.kind == "op":
            box = self.words.op(unit.ops[-1])
        elif unit.kind == "module":
            box = self.words.module(unit, results)
        else:
            box = self.words.run(unit, len(inside), results)
        for x in inside:
            text = (
                None if isinstance(x, (float, int)) else labels.alarm(getattr(x, "_data", x))
            )  # np.clip(x, 0, np.inf) is meant so
            box.alarm = box.alarm or (
                f"{text} in {self.names.leaf(x) or 'a constant'}" if text else None
            )
        return self._add(id(unit), box, unit.chain, [*unit.ops, *inside])

    def _add(self, key: Any, box: Box, chain: Sequence[Any], holds: Sequence[Any]) -> int:
        """Give a box its number and its frame; `holds` are the values it stands for."""
        number = self.numbers[key] = box.number = len(self.result.boxes)
        box.group = self._group(chain)
        self.result.boxes.append(box)
        self.result.where.update((id(x), number) for x in holds if isinstance(x, Variable))
        return number

    def _group(self, chain: Sequence[Any]) -> int | None:
        """The number of the innermost frame of a chain of open calls; frames are made when first needed."""
        parent = None
        for scope in chain:
            if id(scope) not in self.groups:
                self.groups[id(scope)] = len(self.result.groups)
                self.result.groups.append(
                    Group(len(self.result.groups), parent, self.words.heading(scope))
                )
            parent = self.groups[id(scope)]
        return parent

    def _finish(self) -> None:
        """What is known only at the end: numbers of boxes further on, alarms of all ops, also of those not drawn, outputs, and leaves
        left out.
        """
        for arrow in self.result.arrows:
            if arrow.source < 0:
                arrow.source = self.numbers[id(self.units[-1 - arrow.source])]
        for t in self.ops:
            unit = self.home[id(t)]
            box = self.result.boxes[self.numbers[id(unit)]]
            text = labels.alarm(t._data)
            if text and box.alarm is None:
                box.alarm = text if unit.kind == "op" else f"{text} in {boxes.op_name(t)}"
        for root in self.roots:
            number = self.numbers[id(root) if root._record is None else id(self.home[id(root)])]
            self.result.boxes[number].output = True
        if self.spare:
            number = self.numbers["spare"]
            self.result.boxes[number].title = f"{len(self.spare):,} more leaves"
            self.result.where.update((id(x), number) for x in self.spare)
            note = (
                f"{len(self.spare):,} leaves are folded into one box to keep to limit={self.limit}."
            )
            self.result.notes.append(note)
