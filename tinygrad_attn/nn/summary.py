"""`model.summary(x)`: a table of modules with output shapes, parameter counts and FLOPs."""

from __future__ import annotations

import html
import math
from typing import Any, NamedTuple

from ..engine import Watcher, context, enable_grad, plain, tracked, watching
from ..random import get_rng_state, set_rng_state
from .inside import hooked
from .module import Module


class Row(NamedTuple):
    """The summary of one module."""

    name: str
    kind: str
    output: str
    parameters: int
    trainable: int
    forward: int  # FLOPs of matrix products
    backward: int

    def cells(self) -> tuple[str, ...]:
        depth = self.name.count(".") + bool(self.name)
        label = "  " * depth + self.name.rpartition(".")[2] or self.kind
        trained = f"{self.trainable / self.parameters:.0%}" if self.parameters else ""
        numbers = f"{self.parameters:,}", trained, f"{self.forward:,}", f"{self.backward:,}"
        return label, self.kind, self.output, *numbers


HEADINGS = ("module", "class", "output", "parameters", "trainable", "FLOPs", "FLOPs backward")


class Summary:
    """The table that `summary` returns: text in a terminal, HTML in a notebook."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._table = [HEADINGS, *(row.cells() for row in rows)]

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._table)]
        aligned = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<<>>>>", widths))
        lines = [aligned.format(*cells).rstrip() for cells in self._table]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = ["<td>".join(["<tr>", *map(html.escape, cells)]) for cells in self._table]
        return f'<table style="white-space: pre">{"".join(rows)}</table>'


class _Products(Watcher):
    """Counts the FLOPs of matrix products in each module."""

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        if op.__name__ == "matmul":
            flops = 2 * output.size * inputs[0].shape[-1]
        elif op.__name__ == "einsum":
            sizes: dict[str, int] = {}
            for labels, x in zip(settings["labels"], inputs):
                sizes |= zip(labels, x.shape)
            flops = 2 * math.prod(sizes.values())
        else:
            return
        scope, operands = context.scope, sum(map(tracked, inputs))
        while scope is not None:
            count = self.counts.setdefault(id(scope.module), [0, 0])
            count[0] += flops
            count[1] += flops * operands
            scope = scope.outer


def summary(model: Module, *inputs: Any, **kwargs: Any) -> Summary:
    """Run the model once and return a table of its modules.

    FLOPs are the additions and multiplications in matrix products, as in torch.utils.flop_counter.
    Each row counts a shared parameter once. The state of the random generator is restored.
    """
    shapes: dict[int, str] = {}

    def keep(module: Module, _: tuple, output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        shapes[id(module)] = ", ".join(str(x.shape) for x in parts if hasattr(x, "shape"))

    products, generator = _Products(), get_rng_state()
    try:
        with hooked(model.modules(), keep), plain(), enable_grad(), watching(products):
            model(*inputs, **kwargs)
    finally:
        set_rng_state(generator)
    rows = []
    for name, module in model.named_modules():
        parameters = list(module.parameters())
        total = sum(p.size for p in parameters)
        trainable = sum(p.size for p in parameters if p.requires_grad)
        shape, flops = shapes.get(id(module), "--"), products.counts.get(id(module), (0, 0))
        rows.append(Row(name, type(module).__name__, shape, total, trainable, *flops))
    return Summary(rows)
