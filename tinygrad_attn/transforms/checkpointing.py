"""Gradient checkpointing: keep only the inputs of a call, and rerun it in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from ..engine import (
    Listener,
    Symbolic,
    Variable,
    array_of,
    context,
    inplace,
    tracked,
)
from ..engine.backward import sweep
from ..engine.bundle import Bundling, members
from ..engine.graph import Node, next_number, tensor_of
from ..engine.op import in_checkpoint
from ..engine.run import VALUES_ONLY
from ..random import Generator, noting, repeating
from ..tensor import Tensor
from ..tree import tree_leaves, tree_map

Result = TypeVar("Result")


class _Uses(Listener):
    """Notes the tensors that the ops of a call use and that existed before it."""

    def __init__(self, stand_ins):
        self.start, self.stand_ins = next_number(), frozenset(stand_ins)
        self.tensors: dict[Any, None] = {}

    def is_outside(self, x):
        """Return whether gradients flow to a Tensor that the call did not make."""
        older = tracked(x) and (x._node is None or x._node.number < self.start)
        return older and x not in self.stand_ins

    def computed(self, op, inputs, settings, output):
        self.tensors.update((x, None) for x in inputs if self.is_outside(x))


ABSENT = object()


class _Attributes(Listener):
    """The attributes of modules in the first run of a checkpoint, before it called or changed them.

    They include parameters and buffers, which others may replace, hooks and `training`.
    """

    def __init__(self):
        self.noted: dict[int, tuple[Any, dict[str, Any]]] = {}  # by id of the module in the value
        for module in context.replaced:
            self.calling(module)
        scope = context.scope
        while scope is not None:
            if scope.module is not None:
                self.calling(scope.module)
            scope = scope.outer

    def calling(self, module):
        self.noted.setdefault(id(module), (module, dict(vars(module))))

    def changing(self, module, name):
        self.calling(module)

    @contextmanager
    def restored(self):
        """Give all modules these attributes inside the block, and undo what the block changes."""
        from ..nn.module import Buffer  # nn is built on transforms

        before = [(vars(module), dict(vars(module))) for module, _ in self.noted.values()]
        buffers: list[tuple[Any, Any]] = []
        try:
            for module, noted in self.noted.values():
                _replace(vars(module), noted)
                buffers += [(x, x._data) for x in noted.values() if isinstance(x, Buffer)]
            for buffer, array in buffers:
                buffer._data = array.copy()  # The function may change it in place.
            yield
        finally:
            for buffer, array in reversed(buffers):  # The first pair of a shared one counts.
                buffer._data = array
            for attributes, old in before:
                _replace(attributes, old)


def _replace(attributes, new):
    """Replace the attributes that differ; other threads may use the others."""
    for name in attributes.keys() - new.keys():
        del attributes[name]
    attributes.update((n, x) for n, x in new.items() if attributes.get(n, ABSENT) is not x)


class _Call:
    """A call of f, with what is needed to repeat it: the run in which it began."""

    def __init__(self, f, args, keywords):
        self.f, self.args, self.keywords = f, args, keywords
        self.places = [i for i, x in enumerate(args) if isinstance(x, Variable)]
        self.run = context.captured()
        self.modules = _Attributes()
        self.listeners = [new for x in context.listeners if (new := x.repeated())]

    def call(self, tensors):
        """Run f with these Tensors in place of the Tensors among its arguments."""
        args = list(self.args)
        for i, x in zip(self.places, tensors, strict=True):
            args[i] = x
        return self.f(*args, **self.keywords)

    def first(self):
        """Run f without keeping its graph, and return its output.

        Afterwards, `values` has the arrays of the outputs that need a gradient, by their positions
        among the leaves of the output. `inputs` has the Tensors that f uses, its arguments first.
        """
        arguments = [self.args[i] for i in self.places]
        # Like other tensors of the first run, they have no graph, in case the function keeps them.
        stand_ins = [
            tensor_of(x._data, Node(in_checkpoint, (), {}, None, None) if x._tracked else None)
            for x in arguments
        ]
        uses = _Uses(stand_ins)
        self.generators: list[Generator] = []  # one for each draw of random numbers
        listeners = (*context.listeners, self.modules, uses)
        draws = noting(self.generators)
        with context.entered(recording=VALUES_ONLY, noted_draws=draws, listeners=listeners):
            output = self.call(stand_ins)
        leaves = enumerate(tree_leaves(output))
        self.values = {i: y._data for i, y in leaves if tracked(y) and not uses.is_outside(y)}
        self.inputs = [*arguments, *uses.tensors]
        self.returned = next_number()  # the user may change the outputs from now on
        return output

    @contextmanager
    def again(self, uses):
        """Enter the run of the first call again, with its modules, patches and random numbers."""
        present = [x for x in context.listeners if x.hears_repeats]
        settings = self.run | {
            "recording": True,
            "noted_draws": repeating(self.generators),
            "listeners": (*[new() for new in self.listeners], *present, uses),
            "before_recording": context.before_recording,
            "before_plain": context.before_plain,
        }
        with context.entered(**settings), self.modules.restored():
            yield

    def pull(self, g, inputs, needs):
        """Repeat the call, and run a backward pass through it."""
        recorded = any(isinstance(part, Variable) for part in g.values())
        count = len(self.places)
        arguments = zip(inputs[:count], self.inputs)
        fresh = [
            x.clone() if recorded and tracked(x) else Tensor._of(array_of(x), bool(t._tracked))
            for x, t in arguments
        ]
        sources, uses = [*fresh, *self.inputs[count:]], _Uses(fresh)
        wanted = [x for x, needed in zip(sources, needs, strict=True) if needed]
        with self.again(uses):
            leaves = tree_leaves(self.call(fresh))
        outputs = [leaves[i] for i in self.values if i < len(leaves) and tracked(leaves[i])]
        self.compare(outputs, uses)
        roots, seeds = [outputs[i] for i in g], list(g.values())
        with context.entered(recording=recorded):
            found = sweep(roots, seeds, wanted=wanted, create_graph=recorded, inner=True)
        return [found.get(x) for x in sources]

    def compare(self, outputs, uses):
        """Raise ValueError if the second run returned other values or used other tensors."""
        # A leaf may be one that the function makes anew in each run.
        outside = [x for x in self.inputs[len(self.places) :] if x._node]
        if (
            len(outputs) != len(self.values)
            or any(
                y.shape != first.shape or _differs(y._data, first)
                for y, first in zip(outputs, self.values.values())
                if not inplace.was_changed(first, self.returned)
            )
            or any(x not in uses.tensors for x in outside)
        ):
            raise ValueError(
                "a checkpointed function must return the same output when it runs again, but the "
                "outputs differ. Between the two runs, do not change arrays or replace parameters "
                "that the function uses. Draw random numbers with ta.rand and similar functions."
            )


def _differs(again, first):
    """Return whether the outputs differ by more than rounding, which may depend on threads."""
    if isinstance(first, Symbolic):
        return False
    eps = float(np.finfo(first.dtype).eps)
    size = np.max(np.abs(first), initial=0, where=np.isfinite(first))
    few_roundings = 64 * eps * float(size)
    return not np.allclose(again, first, math.sqrt(eps), few_roundings, equal_nan=True)


recomputed = Bundling(lambda *inputs, call: np.zeros(()))
"""The bundle of a checkpoint's outputs. Its VJP runs the call again."""
recomputed.__name__ = "checkpoint"


@recomputed.vjp_all
def _run_again(g, _y, *inputs, call, needs):
    return call.pull(g, inputs, needs)


def checkpoint(f: Callable[..., Result], *xs: Any, **keywords: Any) -> Result:
    """Return f(*xs) but keep only its inputs in memory; the backward pass computes f again.

    This saves memory but takes one more forward pass. Gradients reach the Tensors among xs and
    those that f uses from outside, such as parameters. f may return Tensors in tuples, lists and
    dicts. The second run repeats the first: with its hooks, patches, modes, key/value caches and
    random numbers, for example in dropout. It changes no buffer. `ta.activations` records the first
    run, and gets gradients from the second. Checkpoints can be nested and differentiated more than
    once. Inside f, take gradients with value_and_grad or vjp. Raises ValueError if the second run
    returns a different output, and RuntimeError if a tensor computed in f is used outside without
    being returned. Like torch.utils.checkpoint. Source: T. Chen et al., "Training deep nets with
    sublinear memory cost" (2016).
    """
    if context.recording is not True:  # also inside the first run of another checkpoint
        return f(*xs, **keywords)
    call = _Call(f, xs, keywords)
    output = call.first()
    if not call.values:
        return output
    outputs = members(recomputed(*call.inputs, call=call), list(call.values.values()))
    new, leaves = dict(zip(call.values, outputs)), enumerate(tree_leaves(output))
    results = iter([new.get(i, y) for i, y in leaves])
    return tree_map(lambda _: next(results), output)
