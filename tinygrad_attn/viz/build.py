"""Build a picture from tensors: boxes, frames, and an arrow for each operand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engine import Variable, array_of, history
from ..errors import describe
from ..nn import Module, Parameter
from . import values
from .nodes import Names, computed, gradient_of, op_name, operands, settings_of, shown
from .opened import FunctionCall, run_plainly
from .picture import Arrow, Box, Frame, Picture

RELEASED = "released by backward(): draw before it, or pass retain_graph=True"


class Source:
    """The outputs to draw, the ops that computed them, and their names."""

    def __init__(self, tensor: Any, model: Any, plain: bool) -> None:
        function = callable(tensor) and not isinstance(tensor, Module)
        if plain and not function:
            raise TypeError(
                f"plain=True needs a function, got {describe(tensor)}. Write lambda: before the "
                "expression, as in ta.viz.graph(lambda: model(x), plain=True)."
            )
        run = run_plainly(tensor) if plain else None
        result = run.result if run else tensor() if function else tensor
        self.roots = [*result] if isinstance(result, (list, tuple)) else [result]
        for root in self.roots:
            if not isinstance(root, Variable):
                raise TypeError(
                    "a picture shows how a Tensor was computed, so pass a Tensor or a function "
                    f"that returns one; got {describe(root)}. For a module, write "
                    "ta.viz.graph(module(x), model=module)."
                )
        self.ops = history(self.roots)
        self.names = Names(model, self.ops, run)
        self.deepest = max(map(len, self.names.chains.values()), default=0)
        self.opened = self.deepest if plain else 1  # the default depth

    def picture(self, depth: int | None, expand: Sequence[str], limit: int | None) -> Picture:
        expand = (expand,) if isinstance(expand, str) else tuple(expand)
        self.names.check(expand)
        level = self.opened if depth is None else depth

        def is_open(place: int, scope: Any) -> bool:
            name = self.names.module(scope)
            inside = (f"{path}.".startswith(f"{name}.") or not name for path in expand)
            return place < level or any(inside)

        notes = []
        for level in range(min(level, self.deepest), -1, -1):  # noqa: B020
            picture = Builder(self, is_open).result
            count = len(picture.boxes)
            if limit is None or count <= limit:
                break
            then = f": folded to depth={level - 1}" if level else ", and no module is left to fold"
            notes.append(f"{count:,} boxes, more than limit={limit}{then}.")
        picture.notes = notes
        return picture


@dataclass
class Unit:
    """The ops that share a box: a single op, or all ops of a folded call."""

    chain: tuple[Any, ...]  # the open module calls around it
    scope: Any = None  # the call that is folded
    ops: list[Variable] = field(default_factory=list)
    # Op, index of the operand, operand, and the key of the operand's box.
    edges: list[tuple[Variable, int, Any, Any]] = field(default_factory=list)


class Builder:
    """Draws boxes and arrows. A call becomes a frame if `is_open(level, call)`, else a box."""

    def __init__(self, source: Source, is_open: Callable[[int, Any], bool]) -> None:
        self.names, self.result = source.names, Picture()
        self.numbers: dict[Any, int] = {}  # the box of each tensor, leaf and unit, by id
        self.frames: dict[Any, int] = {}  # the frame of each open call, by its chain of calls
        self.folded: dict[Any, int] = {}  # the box of each folded call
        self.uses: Counter[Any] = Counter()  # of each operand
        self.user: dict[Any, Unit | None] = {}  # of each leaf; None for several
        roots = [shown(root) for root in source.roots]
        self.leaving = {id(root) for root in roots}  # outputs that other units use
        self.visible = self.names.inputs(source.ops) | self.leaving
        units = self._units(source.ops, is_open)
        for root in roots:
            if not computed(root):
                self._add(self._leaf(root), (), [id(root)])
        for unit in units:
            self._draw(unit)
        self._draw_arrows(units)
        for root in roots:
            self.result.boxes[self.numbers[id(root)]].output = True

    def _units(self, ops: Iterable[Variable], is_open: Callable[[int, Any], bool]) -> list[Unit]:
        """Return one unit for each op, and one for each call that is not open."""
        units: list[Unit] = []
        folded: dict[int, Unit] = {}
        home: dict[int, Unit] = {}
        for t in ops:
            chain = self.names.chain(t._node.scope)
            level = next((i for i, scope in enumerate(chain) if not is_open(i, scope)), len(chain))
            scope = chain[level] if level < len(chain) else None
            if scope is None or id(scope) not in folded:
                units.append(Unit(chain[:level], scope))
                folded[id(scope)] = units[-1]
            unit = home[id(t)] = folded[id(scope)]
            unit.ops.append(t)
            for i, x in operands(t):  # a tensor has one box; a number has one for each use
                key: Any = (id(t), i) if isinstance(x, (float, int)) else id(x)
                unit.edges.append((t, i, x, key))
                self.uses[key] += 1
                if not computed(x):
                    self.user[key] = unit if self.user.get(key, unit) is unit else None
                elif home[key] is not unit:
                    self.leaving.add(key)
        return units

    def _draw(self, unit: Unit) -> None:
        """Draw the box of a unit, and any of its leaves that are not drawn yet."""
        hidden = []  # leaves inside a folded call
        for _, _, x, key in unit.edges:
            if computed(x) or key in self.numbers:
                continue
            if unit.scope is not None and self.user[key] and key not in self.visible:
                hidden.append(key)
            else:  # an input of the modules is outside them
                self._add(self._leaf(x), () if key in self.visible else unit.chain, [key])
        box = self._op(unit.ops[0]) if unit.scope is None else self._module(unit)
        self._add(box, unit.chain, [id(unit), *map(id, unit.ops), *hidden])
        if unit.scope is not None:
            self.folded[*unit.chain, unit.scope] = box.number

    def _add(self, box: Box, chain: tuple[Any, ...], keys: Iterable[Any]) -> None:
        for i, scope in enumerate(chain, 1):
            if chain[:i] not in self.frames:
                self.frames[chain[:i]] = len(self.result.frames)
                title = " ".join(self.names.heading(scope))
                self.result.frames.append(Frame(box.frame, title, self.names.equation(scope)))
            box.frame = self.frames[chain[:i]]
        box.number = len(self.result.boxes)
        self.result.boxes.append(box)
        self.numbers.update(dict.fromkeys(keys, box.number))

    def _draw_arrows(self, units: list[Unit]) -> None:
        """Draw an arrow for each operand of an op, and for each source of a folded box."""
        merged: Counter[tuple[int, int]] = Counter()
        for unit in units:
            for t, i, x, key in unit.edges:
                source, target = self.numbers[key], self.numbers[id(unit)]
                if unit.scope is None:
                    index = [str(i)] if len(unit.edges) > 1 else []
                    label = ": ".join(index + _broadcast(t, x))
                    self.result.arrows.append(Arrow(source, target, i, label))
                elif source != target:
                    merged[source, target] += 1
        for (source, target), k in merged.items():
            self.result.arrows.append(Arrow(source, target, label=f"x{k:,}" if k > 1 else ""))

    def _op(self, t: Variable) -> Box:
        """Return the box of an op and its output, with a title such as `y = sum(axis=-1)`."""
        name, op, settings = t.name or self.names.run.names.get(id(t)), op_name(t), settings_of(t)
        title = f"{name} = {op}" if name else op
        lines = [RELEASED] if op == "released" else settings
        if lines and sum(map(len, lines)) <= 40:
            title, lines = f"{title}({', '.join(lines)})", []
        shown = values.value(t._data, gradient_of(t))
        if blocked := self._blocked(t):
            shown[1:] = [f"{blocked:,} of {t._data.size:,} blocked (-inf)"]
        return Box("op", title, [*lines, *shown, *self._times_used(t)], self._bad(t))

    def _blocked(self, t: Variable) -> int:
        """Return the number of attention scores that a mask has set to -inf."""
        calls = [getattr(scope, "title", "") for scope in self.names.chain(t._node.scope)]
        masked = "attention_weights" in calls and np.all(t._data < np.inf)
        return int(np.sum(t._data == -np.inf)) if masked else 0

    def _bad(self, t: Variable) -> str:
        return "" if self._blocked(t) else values.not_finite(t._data)

    def _leaf(self, x: Any) -> Box:
        if isinstance(x, (float, int)):
            return Box("constant", f"{x:.8g}")
        array, grad = array_of(x), gradient_of(x)
        lines, bad = values.value(array, grad) + self._times_used(x), values.not_finite(array)
        if grad is not None and not bad and (bad := values.not_finite(grad)):
            bad += " in the gradient"
        if isinstance(x, Parameter) or id(x) in self.names.parameters:
            kind = "parameter"
        elif isinstance(x, Variable):
            kind = "leaf"
        else:
            kind = "input" if id(x) in self.visible else "constant"
        return Box(kind, self.names.leaf(x) or kind.replace("leaf", "input"), lines, bad)

    def _module(self, unit: Unit) -> Box:
        """Return the box of a folded call, with its output shapes and number of parameters."""
        title, *lines = self.names.heading(unit.scope)
        outputs = [t for t in unit.ops if id(t) in self.leaving]
        if not isinstance(unit.scope, FunctionCall):
            count = sum(p.size for p in unit.scope.module.parameters())
            lines += [f"{count:,} parameter{'s' * (count != 1)}"] if count else []
        lines += ["-> " + ", ".join(str(t._data.shape) for t in outputs)]
        lines += self._times_used(outputs[0]) if len(outputs) == 1 else []
        bad = next((f"{bad} in {op_name(t)}" for t in unit.ops if (bad := self._bad(t))), "")
        return Box("module", title, lines, bad)

    def _times_used(self, x: Any) -> list[str]:
        """Return a line with the number of uses of a tensor, if there are several."""
        k = self.uses[id(x)] if isinstance(x, Variable) else 0
        return [f"used {k:,} times: grad = sum of {k:,}"] if k > 1 else []


def _broadcast(t: Any, x: Any) -> list[str]:
    """Return a label such as `(D,) -> (B, T, D)` if an operand is broadcast."""
    own, full = np.shape(array_of(x)), np.shape(t._data)
    if not getattr(t._node.op, "broadcasts", False) or isinstance(x, (int, float)):
        return []
    if op_name(t) == "matmul":  # the last two axes are not broadcast
        if len(own) < 2 or len(full) < len(own):
            return []
        full = full[:-2] + own[-2:]
    return [f"{own} -> {full}"] if own != full else []
