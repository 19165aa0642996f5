"""The table of a model: the output, the parameters and the FLOPs of each module."""

import math
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..engine import Listener, array_of, context, enable_grad, listening, plain, tracked
from ..random import get_rng_state, set_rng_state
from ..tree import tree_leaves
from .calls import enclosing
from .inside import functional_call
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

    def cells(self):
        depth = self.name.count(".") + bool(self.name)
        label = "  " * depth + self.name.rpartition(".")[2] or self.kind
        trained = f"{self.trainable / self.parameters:.0%}" if self.parameters else ""
        numbers = f"{self.parameters:,}", trained, f"{self.forward:,}", f"{self.backward:,}"
        return label, self.kind, self.output, *numbers


class Summary:
    """The rows that `summary` returns. repr() aligns them in a table."""

    def __init__(self, rows):
        self.rows = rows

    def __repr__(self):
        headings = "module", "class", "output", "parameters", "trainable", "FLOPs", "FLOPs backward"
        table = [headings, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table)]
        aligned = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<<>>>>", widths))
        lines = [aligned.format(*cells).rstrip() for cells in table]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join(lines)


class _Products(Listener):
    """Counts the FLOPs of matrix products in each module, and notes the shapes of outputs."""

    def __init__(self):
        self.flops = defaultdict[Module, Any](lambda: np.zeros(2, int))  # forward and backward
        self.shapes: dict[Module, str] = {}

    def returned(self, module, output):
        shapes = (x.shape for x in tree_leaves(output) if hasattr(x, "shape"))
        self.shapes[module] = ", ".join(map(str, shapes))

    def computed(self, op, inputs, settings, output):
        if op is ops.matmul:
            forward = 2 * output.size * inputs[0].shape[-1]
            backward = forward * sum(map(tracked, inputs))
        elif op is ops.einsum:
            forward, backward = _einsum_flops(inputs, **settings)
        else:
            return
        for scope in enclosing(context.scope):
            self.flops[scope.module] += forward, backward


def _einsum_flops(operands, labels, result):
    """Return the FLOPs forward and backward, two operands at a time in NumPy's best order."""
    sized = [(n, a) for term, x in zip(labels, operands) for a, n in zip(term, x.shape)]
    sizes = {a: n for n, a in sorted(sized)}  # the largest, because 1 broadcasts
    terms = [(set(term), tracked(x)) for term, x in zip(labels, operands)]
    text, forward, backward = f"{','.join(labels)}->{result}", 0, 0
    for step in np.einsum_path(text, *map(array_of, operands), optimize="optimal")[0][1:]:
        factors = [terms.pop(i) for i in sorted(step, reverse=True)]
        letters = Counter(a for term, _ in factors for a in term)
        kept = letters.keys() & set(result).union(*(term for term, _ in terms))
        shared = {a for a in letters if letters[a] > 1}
        tracked_factors = sum(is_tracked for _, is_tracked in factors)
        if shared - kept:  # a letter of one operand alone is summed over before the product
            flops = 2 * math.prod(sizes[a] for a in shared | kept)
            forward, backward = forward + flops, backward + flops * tracked_factors
        terms.append((kept, tracked_factors > 0))
    return forward, backward


def summary(model, *inputs, **kwargs):
    """Run the model once and return a table of its modules.

    FLOPs are the additions and multiplications in matrix products, as in torch.utils.flop_counter.
    Each row counts a shared parameter once. The state of the random generator and the buffers are
    restored.
    """
    products, generator = _Products(), get_rng_state()
    buffers = {name: buffer._data.copy() for name, buffer in model.named_buffers()}
    try:
        with plain(), enable_grad(), listening(products):
            functional_call(model, buffers, inputs, kwargs)
    finally:
        set_rng_state(generator)
    rows = []
    for name, module in model.named_modules():
        sizes = {p: p.size for p in module.parameters()}
        trainable = sum(n for p, n in sizes.items() if p.requires_grad)
        flops = products.flops[module].tolist()
        output = products.shapes.get(module, "not called")
        rows.append(
            Row(name, type(module).__name__, output, sum(sizes.values()), trainable, *flops)
        )
    return Summary(rows)
