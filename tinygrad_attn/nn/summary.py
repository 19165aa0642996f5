"""`model.summary(x)`: a table of the modules, their outputs, parameters and operations."""

from __future__ import annotations

import html
import math
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..engine import Watcher, context, enable_grad, plain, tracked, watching
from ..random import get_rng_state, set_rng_state
from .module import Module


class Row(NamedTuple):
    """One module of a summary."""

    name: str
    kind: str
    output: str
    parameters: int
    trainable: int
    forward: int  # multiplications and additions of the matrix products
    backward: int


HEADINGS = ("module", "class", "output", "parameters", "trainable", "FLOPs", "FLOPs backward")


class Summary:
    """The table that `summary` returns: text in a terminal, a table in a notebook."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the rows as text, nested modules indented."""
        table: list[tuple[str, ...]] = []
        for row in self.rows:
            depth = row.name.count(".") + 1 if row.name else 0
            share = f"{row.trainable / row.parameters:.0%}" if row.parameters else ""
            numbers = (f"{row.parameters:,}", share, f"{row.forward:,}", f"{row.backward:,}")
            label = "  " * depth + row.name.rpartition(".")[2] or row.kind
            table.append((label, row.kind, row.output, *numbers))
        return table

    def __str__(self) -> str:
        table = [HEADINGS, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = []
        for cells in table:
            left = [text.ljust(width) for text, width in zip(cells[:3], widths)]
            right = [text.rjust(width) for text, width in zip(cells[3:], widths[3:])]
            lines.append("  ".join(left + right).rstrip())
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def row(tag: str, cells: tuple[str, ...]) -> str:
            inner = (html.escape(text).replace("  ", "&emsp;") for text in cells)
            return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in inner) + "</tr>"

        body = "".join(row("td", cells) for cells in self._cells())
        return f"<table><thead>{row('th', HEADINGS)}</thead><tbody>{body}</tbody></table>"


class _Products(Watcher):
    """Counts the operations of matrix products, by the module call in which they run."""

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], output: Any) -> None:
        if op.__name__ == "matmul":
            flops = 2 * output.size * inputs[0].shape[-1]
        elif op.__name__ == "einsum":
            sizes = {
                letter: n
                for letters, x in zip(settings["labels"], inputs)
                for letter, n in zip(letters, x.shape)
            }
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

    A row has the dotted name, the class, the output's shape, the number of parameters, the part of
    them that is trained, and FLOPs. A shared parameter counts once. FLOPs are the
    multiplications and additions of matrix products, as in torch.utils.flop_counter. Attention
    computes all T x S scores, whatever the mask. Random numbers and gradients stay as they were.
    """
    shapes: dict[int, str] = {}

    def keep(module: Module, _: tuple, output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        text = ", ".join(str(x.shape) for x in parts if hasattr(x, "shape"))
        shapes[id(module)] = text

    products, generator = _Products(), get_rng_state()
    try:
        with ExitStack() as stack:
            for module in model.modules():
                stack.enter_context(module.register_forward_hook(keep))
            for block in (plain(), enable_grad(), watching(products)):
                stack.enter_context(block)
            model(*inputs, **kwargs)
    finally:
        set_rng_state(generator)
    rows = []
    for name, module in model.named_modules():
        parameters = list(module.parameters())
        trainable = sum(p.size for p in parameters if p.requires_grad)
        counts = products.counts.get(id(module), (0, 0))
        total = sum(p.size for p in parameters)
        kind, shape = type(module).__name__, shapes.get(id(module), "--")
        rows.append(Row(name, kind, shape, total, trainable, *counts))
    return Summary(rows)
