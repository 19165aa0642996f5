"""From a tensor to a picture: which boxes there are, what they say, and which operand goes where."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from ..engine import Variable
from ..errors import describe
from ..nn.module import Parameter
from . import fold, labels
from .fold import Unit
from .model import Arrow, Box, Group, Picture
from .trace import Names, forward_order, key_of, operands

RELEASED = "backward() released this graph; draw before it, or call backward(retain_graph=True)"


def build(
    tensor: Any,
    model: Any = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    *,
    rollup: bool = False,
    legend: bool = False,
    limit: int | None = 150,
) -> Picture:
    """The picture behind one tensor or several; the arguments are `viz.graph`'s."""
    roots = list(tensor) if isinstance(tensor, (list, tuple)) else [tensor]
    for root in roots:
        if not isinstance(root, Variable):
            raise TypeError(f"graph() draws what lies behind a Tensor, got {describe(root)}.")
    if not roots:
        raise ValueError("graph() got an empty list of tensors; there is nothing to draw.")
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise ValueError(f"depth counts how many levels of modules are opened, 0 or more (None: 1), got {depth!r}.")
    if limit is not None and limit < 4:
        raise ValueError(f"limit= is the greatest number of boxes, 4 or more, or None for no limit; got {limit!r}.")
    expand = (expand,) if isinstance(expand, str) else tuple(expand)
    return _Builder(roots, model, depth, expand, rollup, limit).picture(legend)


class _Builder:
    def __init__(
        self,
        roots: list[Variable],
        model: Any,
        depth: int | None,
        expand: tuple[str, ...],
        rollup: bool,
        limit: int | None,
    ) -> None:
        self.roots = roots
        self.all_ops = forward_order(roots)
        self.names = Names(model, self.all_ops)
        self.names.check(expand)
        self.siblings = fold.Siblings(self.all_ops, self.names) if rollup else None
        twins = self.siblings.twin if self.siblings else {}
        self.ops = [t for t in self.all_ops if id(t) not in twins]
        self.result = Picture()
        self.uses: dict[int, int] = {}
        for t in self.all_ops:
            for _, x in operands(t):
                self.uses[id(x)] = self.uses.get(id(x), 0) + 1
        self.units = self._units(depth, expand, limit)
        self.home = {id(t): unit for unit in self.units for t in unit.ops}
        for dropped, kept in twins.items():
            self.home[dropped] = self.home[id(kept)]
        self.alarms: dict[int, str] = {}  # unit -> the first op in it whose result is not finite
        for t in self.all_ops:
            text = labels.alarm(t._data)
            if text and id(self.home[id(t)]) not in self.alarms:
                unit = self.home[id(t)]
                self.alarms[id(unit)] = text if unit.kind == "op" else f"{text} in {_op_name(t)}"

    def _units(self, depth: int | None, expand: tuple[str, ...], limit: int | None) -> list[Unit]:
        """Fold by module first, then, past the limit, deeper, and then the middle of the run."""
        level = 1 if depth is None else depth
        while True:
            units = fold.by_module(self.ops, self.names, level, expand)
            self.users = fold.leaf_users(units)
            boxes = len(units) + sum(not self._swallowed(key) for key in self.users)
            if limit is None or boxes <= limit or level == 0 or depth is not None:
                break
            level -= 1
            if any(chain for chain in self.names.chains.values()):
                self.result.notes.append(
                    f"{boxes:,} boxes are more than limit={limit}: modules are folded to depth={level}. "
                    "limit=None draws all of them."
                )
        if limit is not None and boxes > limit:
            units, note = fold.middle(units, boxes, limit)
            self.result.notes.extend([note] if note else [])
            self.users = fold.leaf_users(units)
        self.limit = limit
        return units

    def _swallowed(self, key: Any) -> bool:
        """A leaf that only one folded box uses is inside that box, unless it comes from outside: an input."""
        using = self.users[key]
        if len(using) > 1 or using[0].kind == "op":
            return False
        return using[0].kind == "folded" or key not in self._inputs()

    def _inputs(self) -> set[Any]:
        if not hasattr(self, "_known_inputs"):
            self._known_inputs = {
                id(x)
                for t in self.all_ops
                for _, x in operands(t)
                if isinstance(x, Variable) and x._node is None and not self.names.leaf(x)
            }
        return self._known_inputs

    # ---- groups

    def _group(self, chain: tuple[Any, ...]) -> int | None:
        """The number of the innermost group of a chain of open calls; groups are made when first needed."""
        parent = None
        for scope in chain:
            if id(scope) not in self.groups:
                self.groups[id(scope)] = len(self.result.groups)
                self.result.groups.append(Group(len(self.result.groups), parent, self._heading(scope)))
            parent = self.groups[id(scope)]
        return parent

    def _heading(self, scope: Any) -> str:
        rolled = self.siblings and id(scope) in self.siblings.times
        return " ".join(self._call(scope)) + (", the first is drawn" if rolled else "")

    def _call(self, scope: Any) -> list[str]:
        """A call's dotted name if it has one, its class, and how many alike calls it stands for."""
        kind, name = type(scope.module).__name__, self.names.module(scope)
        if self.siblings and id(scope) in self.siblings.times:
            times, last = self.siblings.times[id(scope)]
            until = self.names.module(last)
            return [f"{name} .. {until}" if name != until else name or kind, *([kind] if name else []), f"x{times}"]
        return [name, kind] if name else [kind]

    # ---- boxes

    def picture(self, legend: bool) -> Picture:
        """Boxes in forward order, each after its operands."""
        self.groups: dict[int, int] = {}
        self.numbers: dict[Any, int] = {}  # id of a unit, or key of a leaf -> number
        self.spare: list[Any] = []  # leaves past the limit
        leaves_left = None if self.limit is None else max(2, self.limit - len(self.units))
        merged: dict[tuple[int, int], tuple[Arrow, int]] = {}
        for root in self.roots:
            if root._node is None:
                self._leaf(id(root), root, [])
        for unit in self.units:
            arrows: list[tuple[int, int | None, str]] = []
            for t in unit.ops:
                places = operands(t)
                for i, x in places:
                    source = self._source(unit, t, i, x, leaves_left)
                    if source is not None:
                        arrows.append((source, i if unit.kind == "op" and len(places) > 1 else None, _broadcast(t, x)))
            number = self._unit(unit)
            for source, index, text in arrows:
                if unit.kind == "op" and source != self.numbers.get("spare"):
                    self.result.arrows.append(Arrow(source, number, index, text))
                    continue
                arrow, times = merged.get((source, number), (None, 0))
                if arrow is None:
                    arrow = Arrow(source, number)
                    self.result.arrows.append(arrow)
                elif times == 1:
                    arrow.index = None
                merged[source, number] = arrow, times + 1
                arrow.text = f"x{times + 1:,}" if times else ""
        self._tell_spare()
        self._mark_outputs()
        self.result.legend = legend
        return self.result

    def _source(self, unit: Unit, t: Variable, index: int, x: Any, leaves_left: int | None) -> int | None:
        """The number of the box an operand comes from, None where it is inside the same box."""
        if getattr(x, "_node", None) is not None:
            made = self.home[id(x)]
            return None if made is unit else self.numbers[id(made)]
        key = key_of(t, index, x)
        if self._swallowed(key):
            self.inside = getattr(self, "inside", {})
            self.inside.setdefault(id(unit), {})[key] = x
            return None
        if key not in self.numbers:
            if (
                leaves_left is not None
                and sum(box.kind in ("parameter", "input") for box in self.result.boxes) >= leaves_left
            ):
                if not self.spare:
                    self.numbers["spare"] = self._add(Box(0, "folded", "more leaves"))
                self.spare.append(x)
                self.numbers[key] = self.numbers["spare"]
            else:
                self._leaf(key, x, self.users[key])
        return self.numbers[key]

    def _add(self, box: Box) -> int:
        box.number = len(self.result.boxes)
        self.result.boxes.append(box)
        return box.number

    def _leaf(self, key: Any, x: Any, users: list[Unit]) -> None:
        tensor = isinstance(x, Variable)
        array = x._data if tensor else np.asarray(x)
        named = self.names.leaf(x)
        learned = isinstance(x, Parameter) or id(x) in self.names.tensors
        title = named or (tensor and x.name) or ("parameter" if learned else "input" if tensor else "constant")
        grad = labels.gradient(x) if tensor else None
        if not tensor and not isinstance(x, np.ndarray):
            title, lines = f"{x:.8g}" if isinstance(x, float) else str(x), []
        elif learned and array.size > labels.SMALL:
            lines = [f"{labels.shape(array)} {array.dtype}", *labels.size_of(grad)]
        else:
            lines = labels.value(array, grad)
        if tensor and x._tracked:
            lines += self._times_used(x)
        chains = [unit.chain for unit in users] if learned or named or not tensor else [()]
        common: tuple[Any, ...] = chains[0] if chains else ()
        for chain in chains[1:]:
            common = tuple(a for a, b in takewhile(lambda pair: pair[0] is pair[1], zip(common, chain, strict=False)))
        self.numbers[key] = self.result.where[id(x)] = self._add(
            Box(
                0,
                "parameter" if learned else "input",
                title,
                lines,
                self._group(common),
                alarm=labels.alarm(array) or (labels.alarm(grad) and f"{labels.alarm(grad)} in the gradient"),
            )
        )

    def _unit(self, unit: Unit) -> int:
        group = self._group(unit.chain)
        last = unit.ops[-1]
        if unit.kind == "op":
            box = Box(0, "op", _title(last), [], group)
            box.lines = [RELEASED] if last._node.op is None else []  # type: ignore[union-attr]
            box.lines += labels.value(last._data, labels.gradient(last)) + (
                self._times_used(last) if last._tracked else []
            )
        elif unit.kind == "module":
            title, *rest = self._call(unit.scope)
            count = sum(p._data.size for _, p in unit.scope.module.named_parameters())
            box = Box(0, "module", title, [" ".join(rest)] if rest else [], group)
            box.lines += [f"{count:,} parameter{'s' * (count != 1)}"] * (count > 0) + [
                f"-> {labels.shape(last._data)}",
                *self._times_used(last),
            ]
        else:
            box = Box(
                0, "folded", f"{len(unit.ops):,} ops", [fold.census(unit.ops), f"-> {labels.shape(last._data)}"], group
            )
        box.alarm = self.alarms.get(id(unit))
        number = self.numbers[id(unit)] = self._add(box)
        self.result.where.update((id(t), number) for t in unit.ops)
        leaves = getattr(self, "inside", {}).get(id(unit), {})
        for x in leaves.values():
            self.result.where[id(x)] = number
            box.alarm = box.alarm or (
                labels.alarm(getattr(x, "_data", x)) and f"{labels.alarm(getattr(x, '_data', x))} in a leaf inside"
            )
        if unit.kind == "folded" and leaves:
            box.lines.insert(1, f"and {len(leaves):,} leaves only they use")
        return number

    def _times_used(self, t: Variable) -> list[str]:
        times = self.uses.get(id(t), 0)
        return [f"used {times:,} times: grad = sum of {times:,}"] if times > 1 and t._tracked else []

    def _tell_spare(self) -> None:
        if self.spare:
            box = self.result.boxes[self.numbers["spare"]]
            box.title = f"{len(self.spare):,} more leaves"
            self.result.where.update((id(x), box.number) for x in self.spare)
            self.result.notes.append(
                f"{len(self.spare):,} leaves are folded into one box to keep to limit={self.limit}."
            )

    def _mark_outputs(self) -> None:
        for root in self.roots:
            number = self.result.where[id(root)] if root._node is None else self.numbers[id(self.home[id(root)])]
            self.result.boxes[number].output = True


def _op_name(t: Variable) -> str:
    op = t._node.op  # type: ignore[union-attr]
    return "released" if op is None else op.__name__


def _title(t: Variable) -> str:
    """`y = sum(axis=-1)`: the tensor's own name if it has one, the op, and its settings."""
    settings = labels.settings(t._node)
    return (f"{t.name} = " if t.name else "") + _op_name(t) + (f"({settings})" if settings else "")


def _broadcast(t: Variable, x: Any) -> str:
    """`(D,) -> (B, T, D)` where an array is repeated along axes, since its gradient is then a sum along them."""
    op, shape = t._node.op, np.shape(getattr(x, "_data", x))  # type: ignore[union-attr]
    if not getattr(op, "broadcasts", False) or isinstance(x, (int, float)):
        return ""
    whole = t._data.shape
    if op.__name__ == "matmul":  # of a product only the axes before the last two are broadcast
        if len(shape) < 2 or len(whole) < len(shape):
            return ""
        whole = whole[:-2] + shape[-2:]
    return f"{shape} -> {whole}" if shape != whole else ""
