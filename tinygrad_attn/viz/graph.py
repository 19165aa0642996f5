"""Draw the computation graph (`graph`).

A picture has a box for each op, with its output, and for each leaf; a frame around each module that
is open; and an arrow for each operand.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engine import FunctionCall, Variable, array_of
from ..errors import nearest
from ..nn import Parameter
from . import values
from .picture import Arrow, Box, Frame, Graph
from .subject import Subject, computed, gradient_of, op_name, operands, settings_of, shown

RELEASED = "released by backward(): draw before it, or pass retain_graph=True"


def graph(
    tensor, model=None, depth: int | None = None, expand: Sequence[str] = (), *, plain: bool = False
) -> Graph:
    """Draw the ops that computed a tensor, with their operands and a frame around each module.

    `tensor` is a Tensor, a list of Tensors, or a function without arguments that returns one.
    Dotted names are relative to `model`, by default the outermost module that was called. `depth`
    is the number of levels of modules that are opened, by default 1.
    `expand=["layers.0.self_attn"]` opens single modules.

    With `plain=True`, the function runs in plain mode, and all levels are opened. Softmax,
    attention, layer norm and GELU are frames with an equation and the ops of the formula inside.

    Raises TypeError for anything other than Tensors, and ValueError if `expand` names a module that
    was not called.
    """
    subject = Subject(tensor, model, plain)
    expand = (expand,) if isinstance(expand, str) else expand
    expand = tuple(subject.modules.get(id(subject.named.get(name)), name) for name in expand)
    called = {subject.module(scope) for scope in subject.chains if scope} - {""}
    for name in expand:
        if name not in called:
            raise ValueError(
                f"expand={name!r}: no module of this name was called.{nearest(name, called)} "
                f"Modules in this picture: {', '.join(sorted(called)) or 'none'}."
            )
    if depth is None:
        depth = subject.deepest if plain else 1

    def is_open(place, scope):
        name = subject.module(scope)
        inside = (f"{path}.".startswith(f"{name}.") or not name for path in expand)
        return place < depth or any(inside)

    return Builder(subject, is_open).graph


@dataclass(eq=False)
class Unit:
    """The ops that share a box: a single op, or all ops of a folded call."""

    chain: tuple  # the open module calls around it
    scope: Any = None  # the call that is folded
    ops: list[Variable] = field(default_factory=list)
    # Op, index of the operand, operand, and the key of the operand's box.
    edges: list[tuple[Variable, int, Any, Any]] = field(default_factory=list)


class Builder:
    """Draws boxes and arrows. A call becomes a frame if `is_open(level, call)`, else a box."""

    def __init__(self, subject, is_open):
        self.subject, self.graph = subject, Graph()
        self.numbers: dict = {}  # the box of each tensor, leaf and unit, by id
        self.frames: dict = {}  # the frame of each open call, by its chain of calls
        self.users: defaultdict[Any, list[Unit]] = defaultdict(list)  # for each use of an operand
        roots = [shown(root) for root in subject.roots]
        self.roots = {id(root) for root in roots}
        self.visible = subject.inputs() | self.roots
        units = self._units(is_open)
        for root in roots:
            if not computed(root):
                self._add(self._leaf(root), (), [id(root)])
        for unit in units:
            self._draw(unit)
        self._draw_arrows(units)
        for key in self.roots:
            self.graph.boxes[self.numbers[key]].output = True

    def _units(self, is_open):
        """Return one unit for each op, and one for each call that is not open."""
        units: list[Unit] = []
        folded: dict[Any, Unit] = {}
        for t in self.subject.ops:
            chain = self.subject.chains[t._node.scope]
            level = next((i for i, scope in enumerate(chain) if not is_open(i, scope)), len(chain))
            scope = chain[level] if level < len(chain) else None
            if scope is None or scope not in folded:
                folded[scope] = Unit(chain[:level], scope)
                units.append(folded[scope])
            unit = folded[scope]
            unit.ops.append(t)
            for i, x in operands(t):  # a tensor has one box; a number has one for each use
                key = (id(t), i) if isinstance(x, (float, int)) else id(x)
                unit.edges.append((t, i, x, key))
                self.users[key].append(unit)
        return units

    def _draw(self, unit):
        """Draw the box of a unit, and any of its leaves that are not drawn yet."""
        hidden = set()  # leaves inside a folded call
        for _, _, x, key in unit.edges:
            if computed(x) or key in self.numbers or key in hidden:
                continue
            if unit.scope and key not in self.visible and {*self.users[key]} == {unit}:
                hidden.add(key)
            else:  # an input of the modules is outside them
                self._add(self._leaf(x), () if key in self.visible else unit.chain, [key])
        box = self._module(unit) if unit.scope else self._op(unit.ops[0])
        self._add(box, unit.chain, [id(unit), *map(id, unit.ops), *hidden])

    def _add(self, box, chain, keys):
        for i, scope in enumerate(chain, 1):
            if chain[:i] not in self.frames:
                self.frames[chain[:i]] = len(self.graph.frames)
                title = " ".join(self.subject.heading(scope))
                self.graph.frames.append(
                    Frame(box.frame, title, self.subject.equations.get(scope, ""))
                )
            box.frame = self.frames[chain[:i]]
        box.number = len(self.graph.boxes)
        self.graph.boxes.append(box)
        self.numbers.update(dict.fromkeys(keys, box.number))

    def _draw_arrows(self, units):
        """Draw an arrow for each operand of an op, and for each source of a folded box."""
        merged: Counter[tuple[int, int]] = Counter()
        for unit in units:
            for t, i, x, key in unit.edges:
                source, target = self.numbers[key], self.numbers[id(unit)]
                if unit.scope is None:
                    index = [str(i)] if len(unit.edges) > 1 else []
                    label = ": ".join(index + _broadcast(t, x))
                    self.graph.arrows.append(Arrow(source, target, i, label))
                elif source != target:
                    merged[source, target] += 1
        for (source, target), k in merged.items():
            self.graph.arrows.append(Arrow(source, target, label=f"x{k:,}" if k > 1 else ""))

    def _op(self, t):
        """Return the box of an op and its output, with a title such as `y = sum(axis=-1)`."""
        name, op, settings = t.name, op_name(t), settings_of(t)
        title = f"{name} = {op}" if name else op
        lines = [RELEASED] if op == "released" else settings
        if lines and sum(map(len, lines)) <= 40:
            title, lines = f"{title}({', '.join(lines)})", []
        numbers = values.value(t._data, gradient_of(t))
        if masked := _passed_on(t):
            numbers[1:] = [f"{masked:,} of {t._data.size:,} are -inf, as in an operand"]
        return Box("op", title, [*lines, *numbers, *self._times_used(t)], _bad(t))

    def _leaf(self, x):
        if isinstance(x, (float, int)):
            return Box("constant", f"{x:.8g}")
        array, grad = array_of(x), gradient_of(x)
        lines, bad = values.value(array, grad) + self._times_used(x), values.not_finite(array)
        if grad is not None and not bad and (bad := values.not_finite(grad)):
            bad += " in the gradient"
        if isinstance(x, Parameter) or id(x) in self.subject.parameters:
            kind = "parameter"
        elif isinstance(x, Variable):
            kind = "leaf"
        else:
            kind = "input" if id(x) in self.visible else "constant"
        return Box(kind, self.subject.leaf(x) or kind.replace("leaf", "input"), lines, bad)

    def _module(self, unit):
        """Return the box of a folded call, with its output shapes and number of parameters."""
        title, *lines = self.subject.heading(unit.scope)
        leaves = lambda t: any(user is not unit for user in self.users[id(t)])
        outputs = [t for t in unit.ops if id(t) in self.roots or leaves(t)]
        if not isinstance(unit.scope, FunctionCall):
            count = sum(p.size for p in unit.scope.module.parameters())
            lines += [f"{count:,} parameter{'s' * (count != 1)}"] if count else []
        lines += [RELEASED] if any(op_name(t) == "released" for t in unit.ops) else []
        lines += ["-> " + ", ".join(str(t._data.shape) for t in outputs)]
        lines += self._times_used(outputs[0]) if len(outputs) == 1 else []
        bad = next((f"{bad} in {op_name(t)}" for t in unit.ops if (bad := _bad(t))), "")
        return Box("module", title, lines, bad)

    def _times_used(self, x):
        """Return a line with the number of uses of a tensor, if there are several."""
        k = len(self.users[id(x)]) if isinstance(x, Variable) else 0
        return [f"used {k:,} times: grad = sum of {k:,}"] if k > 1 else []


def _passed_on(t):
    """Return the number of -inf, such as masked scores, if an operand has some and it is no NaN."""
    masked = any(np.any(np.isneginf(array_of(x))) for _, x in operands(t))
    return int(np.isneginf(t._data).sum()) if masked and np.all(t._data < np.inf) else 0


def _bad(t):
    return "" if _passed_on(t) else values.not_finite(t._data)


def _broadcast(t, x):
    """Return a label such as `(D,) -> (B, T, D)` if an operand is broadcast."""
    shape, full = np.shape(array_of(x)), t._data.shape
    broadcasts = getattr(t._node.op, "broadcasts", False) and not isinstance(x, (int, float))
    if broadcasts and op_name(t) == "matmul":  # the last two axes are not broadcast
        broadcasts, full = len(full) >= len(shape) > 1, full[:-2] + shape[-2:]
    return [f"{shape} -> {full}"] if broadcasts and shape != full else []
