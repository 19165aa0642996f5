"""From a tensor to a picture: which boxes there are, which frames, and which operand goes where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

from ..engine import Variable, history
from ..messages.errors import describe, is_module
from . import boxes, fold, labels
from .fold import Unit
from .model import Arrow, Box, Group, Picture
from .trace import Names, array_of, is_made, key_of, op_name, operands, shown


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
    roots = _roots(tensor)
    if depth is not None and (not isinstance(depth, Integral) or depth < 0):
        raise ValueError(
            "depth counts how many levels of modules are opened, 0 or more (None: 1), "
            f"got {depth!r}."
        )
    if limit is not None and (not isinstance(limit, Real) or not limit >= 4):
        raise ValueError(
            "limit= is the greatest number of boxes, 4 or more, or None for no limit; "
            f"got {describe(limit)}."
        )
    if not isinstance(expand, Iterable):
        raise TypeError(
            f"expand names modules to open, such as ['layers.0.self_attn'], got {describe(expand)}."
        )
    expand = (expand,) if isinstance(expand, str) else tuple(map(str, expand))
    return _Builder(roots, model, depth, expand, rollup, limit).picture()


def _roots(tensor: Any) -> list[Variable]:
    """The tensors to draw, each once."""
    roots = list(tensor) if isinstance(tensor, (list, tuple)) else [tensor]
    for root in roots:
        if not isinstance(root, Variable):
            advice = " Write ta.viz.graph(module(x), model=module)." if is_module(root) else ""
            raise TypeError(
                f"graph() draws what lies behind a Tensor, got {describe(root)}.{advice}"
            )
    if not roots:
        raise ValueError("graph() got an empty list of tensors; there is nothing to draw.")
    return list({id(root): root for root in roots}.values())


class _Builder:
    """Decides which ops share a box (`units`), and then writes the boxes in forward order."""

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
        self.ops = history(roots)
        self.names = Names(model, self.ops)
        self.names.check(expand)
        self.inputs = self.names.inputs(self.ops)
        self.leaf_roots = {id(shown(root)) for root in roots if not is_made(root)}
        siblings = fold.Siblings(self.ops, self.names) if rollup else None
        uses = Counter(id(x) for _, _, x in self._operands())
        self.words = boxes.Words(self.names, uses, self.inputs, siblings)
        twins = siblings.reference if siblings else {}
        self.units = self._units([t for t in self.ops if id(t) not in twins], depth, expand)
        self._find_homes(siblings)
        self.groups: dict[int, int] = {}  # the number of each open call's frame
        self.numbers: dict[Any, int] = {}  # the number of each unit's and leaf's box
        self.room = None if limit is None else max(2, limit - len(self.units))  # for so many leaves
        self.spare: list[Any] = []  # the leaves for which there was no room
        self.inside: dict[int, dict[Any, Any]] = {}  # the leaves in each folded unit

    def _operands(self) -> Iterator[tuple[Variable, int, Any]]:
        """Every operand of every op, with the op and its place there."""
        return ((t, i, x) for t in self.ops for i, x in operands(t))

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
                f"{count:,} boxes are more than limit={self.limit}: modules are folded to "
                f"depth={level}. limit=None draws all of them."
            )
        units, note = fold.middle(units, count, self.limit)
        self.result.notes.extend([note] if note else [])
        self.users = fold.leaf_users(units)
        return units

    def _swallowed(self, key: Any) -> bool:
        """Is this leaf inside a folded box?

        It is if only that box uses it, unless it is an input of the modules or a root.
        """
        using = self.users[key]
        if len(using) > 1 or using[0].kind == "op" or key in self.leaf_roots:
            return False
        return using[0].kind == "folded" or key not in self.inputs

    def _find_homes(self, siblings: fold.Siblings | None) -> None:
        """In which unit each op is drawn, and which results leave their unit."""
        self.home = {id(t): unit for unit in self.units for t in unit.ops}
        # An op that is drawn for its siblings has their operands, too, by place and id.
        self.more: dict[int, dict[Any, Any]] = {}
        twins = siblings.reference if siblings else {}
        drawn: dict[int, int] = {}  # the id of the op that is drawn for an op
        for t in self.ops:
            twin = twins.get(id(t), t)  # older than t, so its home is known
            self.home[id(t)], drawn[id(t)] = self.home[id(twin)], drawn.get(id(twin), id(t))
            for i, x in siblings.more.get(id(t), ()) if siblings else ():
                self.more.setdefault(drawn[id(t)], {})[i, id(x)] = x
        leaving = {
            id(x) for t, _, x in self._operands() if self.home.get(id(x)) is not self.home[id(t)]
        }
        self.leaving = {drawn.get(x) for x in leaving | set(map(id, self.roots))}
        # Calls that took turns in several threads may each use the other's results, so an arrow
        # may come from a box that has no number yet. A negative number stands for it until the end.
        self.ahead = {id(unit): -1 - i for i, unit in enumerate(self.units)}

    def picture(self) -> Picture:
        """Boxes in forward order, each after its operands."""
        for root in self.roots:
            if not is_made(root):
                self._add(id(shown(root)), self.words.leaf(root), (), [root])
        for unit in self.units:
            arrows = list(self._arrows(unit))
            number = self._unit(unit)
            several: Counter[int] = Counter()
            for arrow in arrows:
                arrow.target = number
                if unit.kind == "op" and arrow.source != self.numbers.get("spare"):
                    self.result.arrows.append(arrow)
                else:  # one arrow for all operands that a folded box has from the same box
                    several[arrow.source] += 1
            self.result.arrows += [
                Arrow(source, number, None, f"x{count:,}" if count > 1 else "")
                for source, count in several.items()
            ]
        self._finish()
        return self.result

    def _arrows(self, unit: Unit) -> Iterator[Arrow]:
        """An arrow for each operand from outside the unit; its target is not known yet."""
        for t in unit.ops:
            places = operands(t)
            more = [(i, x) for (i, _), x in self.more.get(id(t), {}).items()]
            for i, x in [*places, *more]:
                source = self._source(unit, t, i, x)
                if source is not None:
                    index = i if len(places) > 1 else None
                    yield Arrow(source, -1, index, boxes.broadcast(t, x))

    def _source(self, unit: Unit, t: Variable, index: int, x: Any) -> int | None:
        """The number of the box an operand comes from, None where it is inside the same box."""
        if is_made(x):
            made = self.home[id(x)]
            return None if made is unit else self.numbers.get(id(made), self.ahead[id(made)])
        key = key_of(t, index, x)
        if self._swallowed(key):
            self.inside.setdefault(id(unit), {})[key] = x
            return None
        if key not in self.numbers:
            self._leaf(key, x)
        return self.numbers[key]

    def _leaf(self, key: Any, x: Any) -> None:
        """A box for a leaf, or a place among the spare ones."""
        if self.room == 0:
            if not self.spare:
                self._add("spare", Box("folded", "more leaves"), (), [])
            self.spare.append(x)
            self.numbers[key] = self.numbers["spare"]
            return
        self.room = None if self.room is None else self.room - 1
        from_outside = key in self.inputs and not self.names.is_parameter(x)
        chains = [()] if from_outside else [using.chain for using in self.users[key]]
        self._add(key, self.words.leaf(x), fold.common(chains), [x])

    def _unit(self, unit: Unit) -> int:
        """The box of a unit; returns its number."""
        inside = list(self.inside.get(id(unit), {}).values())
        results = [t for t in unit.ops if id(t) in self.leaving]
        if unit.kind == "op":
            box = self.words.op(unit.ops[-1])
        elif unit.kind == "module":
            box = self.words.module(unit, results)
        else:
            box = self.words.run(unit, len(inside), results)
        for x in inside:
            # A single number is meant as it is: np.clip(x, 0, np.inf) is no alarm.
            text = None if isinstance(x, (float, int)) else labels.alarm(array_of(x))
            if text and not box.alarm:
                box.alarm = f"{text} in {self.names.leaf(x) or 'a constant'}"
        return self._add(id(unit), box, unit.chain, [*unit.ops, *inside])

    def _add(self, key: Any, box: Box, chain: Sequence[Any], holds: Sequence[Any]) -> int:
        """Give a box its number and its frame; `holds` are the values it stands for."""
        number = self.numbers[key] = box.number = len(self.result.boxes)
        box.group = self._group(chain)
        self.result.boxes.append(box)
        self._is_in(number, holds)
        return number

    def _is_in(self, number: int, values: Iterable[Any]) -> None:
        self.result.where.update((id(x), number) for x in values if isinstance(x, Variable))

    def _group(self, chain: Sequence[Any]) -> int | None:
        """The number of the innermost frame of a chain of open calls, made when first needed."""
        parent = None
        for scope in chain:
            if id(scope) not in self.groups:
                number = self.groups[id(scope)] = len(self.result.groups)
                self.result.groups.append(Group(number, parent, self.words.heading(scope)))
            parent = self.groups[id(scope)]
        return parent

    def _finish(self) -> None:
        """What is known only at the end: numbers of later boxes, alarms, outputs, leaves left out.

        Every op is looked at for NaN and Inf, also one that another is drawn for.
        """
        for arrow in self.result.arrows:
            if arrow.source < 0:
                arrow.source = self.numbers[id(self.units[-1 - arrow.source])]
        for t in self.ops:
            unit = self.home[id(t)]
            box, text = self.result.boxes[self.numbers[id(unit)]], labels.alarm(t._data)
            if text and box.alarm is None:
                box.alarm = text if unit.kind == "op" else f"{text} in {op_name(t)}"
        for root in self.roots:
            key = id(self.home[id(root)] if is_made(root) else shown(root))
            self.result.boxes[self.numbers[key]].output = True
        if self.spare:
            number = self.numbers["spare"]
            self.result.boxes[number].title = f"{len(self.spare):,} more leaves"
            self._is_in(number, self.spare)
            self.result.notes.append(
                f"{len(self.spare):,} leaves are folded into one box to keep to limit={self.limit}."
            )
