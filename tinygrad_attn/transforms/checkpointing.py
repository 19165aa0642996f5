"""Gradient checkpointing: keep only the inputs of a call, and rerun it in the backward pass."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from ..engine import (
    Listener,
    Parts,
    Symbolic,
    Variable,
    array_of,
    context,
    history,
    inplace,
    tracked,
)
from ..engine.backward import sweep
from ..engine.bundle import Bundling, member, members
from ..engine.graph import next_number
from ..engine.op import KINDS, in_checkpoint
from ..engine.run import VALUES_ONLY
from ..errors import describe
from ..random import noting, repeating
from ..tree import refill, tree_leaves, tree_map

Result = TypeVar("Result")


class _Uses(Listener):
    """Notes what a run uses: tensors from outside, which are inputs of its ops, and constants."""

    def __init__(self, arguments):
        self.start = next_number()
        self.computed_before = {}  # as an ordered set
        self.leaves = {}  # weak references by id: a run may make leaves for itself
        self.heard = set()  # the numbers of nodes whose inputs have been noted
        self.ops = []  # (the op's name, how many operands and settings it has)
        self.values = []  # what `_noted` returns for each of them
        for x in filter(tracked, arguments):
            self.note(x)

    def is_outside(self, x):
        """Return whether the Tensor existed before the run, or is a leaf."""
        return x._node is None or x._node.number < self.start

    def note(self, x):
        """Note a Tensor that was used. Its graph is of another thread if its node is not known."""
        if x._node is None:
            self.leaves[id(x)] = ref(x)
        elif self.is_outside(x):
            self.computed_before[x] = None
        elif x._node.op is not in_checkpoint and x._node.number not in self.heard:
            for y in history([x]):
                if not self.is_outside(y):
                    self.heard.add(y._node.number)
                    for i in filter(tracked, y._node.inputs):
                        if self.is_outside(i):
                            self.note(i)

    def computed(self, op, inputs, settings, output):
        for x in inputs:
            # A constant that is read in no_grad() may be a statistic, which the next call changes.
            if tracked(x) or isinstance(x, Variable) and context.recording:
                self.note(x)
        if output._node and op not in (recomputed, member):  # of an inner checkpoint
            operands = tree_leaves((inputs, settings))
            self.ops.append((op.__name__, len(operands)))
            self.values += map(_noted, operands)
        if output._node and output._node.op is op:
            self.heard.add(output._node.number)

    def results(self, output):
        """Return the Tensors in the output that the run has computed."""
        leaves = [*filter(tracked, tree_leaves(output))]
        for y in leaves:
            self.note(y)
        return [*dict.fromkeys(y for y in leaves if not self.is_outside(y))]

    def tensors(self):
        """Return the Tensors with a gradient, and the constants, that somebody still has."""
        alive = [x for reference in self.leaves.values() if (x := reference()) is not None]
        variables = [*self.computed_before, *filter(tracked, alive)]
        return variables, [x for x in alive if not tracked(x)]


SOME = 16  # elements of each array of floats, which are compared up to rounding


def _noted(x):
    """Return (a number or an array's checksum, some elements of floats, a weak reference to them).

    Floats that a run has computed itself may differ by rounding, and their owner is gone after it.
    """
    if not (inplace.has_memory(x) and x.dtype.kind in KINDS):
        return x if isinstance(x, (int, float)) else None, None, None
    if x.dtype.kind != "f":
        return inplace.checksum_of(x), None, None
    some = x.flat[:: max(1, x.size // SOME)] if x.size else x.ravel()
    return inplace.checksum_of(x), some, ref(inplace.owner(x))


def _agree(first, again):
    """Return whether the same ops used the same numbers and arrays in two runs."""

    def are_alike(a, value, some):
        if isinstance(a, np.ndarray):
            return a.shape == np.shape(some) and np.allclose(a, some, 1e-3, 1e-6, equal_nan=True)
        is_close = type(a) is type(value) is float and np.isclose(a, value, equal_nan=True)
        return is_close or a in (None, value)

    return all(are_alike(a, value, some) for a, (value, some, _) in zip(first, again))


class _Changed(Listener):
    """The tensors whose gradients hooks have changed."""

    def __init__(self):
        self.tensors = {}  # as an ordered set

    def replaced(self, x, before, after):
        if isinstance(before, Parts) or not np.array_equal(array_of(before), array_of(after)):
            self.tensors[x] = None


def _refuse_a_part(_):
    """Raise ValueError, as a hook whose gradient lacks what another run of f contributes."""
    raise ValueError(
        "a hook inside a checkpointed function has changed a gradient that is now differentiated "
        "again, when the hook would get only a part of the gradient. Call the function without "
        "checkpoint()."
    )


class _Attributes(Listener):
    """The attributes of modules in the first run, before it called or changed them.

    They include parameters and buffers, which others may replace, hooks and `training`.
    """

    def __init__(self, f):
        self.noted = {}  # (module, its attributes), by id of the module
        from ..nn.calls import enclosing  # nn is built on transforms
        from ..nn.module import Module

        own = getattr(f, "__self__", None)  # of a method
        running = [call.module for call in enclosing(context.scope)]
        for module in (*context.replaced, *running, *[own] * isinstance(own, Module)):
            self.calling(module)

    def calling(self, module):
        self.noted.setdefault(id(module), (module, dict(vars(module))))

    def changing(self, module, name):
        self.calling(module)

    @contextmanager
    def restored(self):
        """Give all modules these attributes inside the block, and undo what the block changes."""
        from ..nn.module import Buffer  # nn is built on transforms

        before = [(vars(module), dict(vars(module))) for module, _ in self.noted.values()]
        values = [x for _, noted in self.noted.values() for x in noted.values()]
        buffers = {x: x._data for x in values if isinstance(x, Buffer)}
        try:
            for module, noted in self.noted.values():
                refill(vars(module), noted)
            for buffer, array in buffers.items():
                buffer._data = array.copy()  # The function may change it in place.
            yield
        finally:
            for buffer, array in buffers.items():
                buffer._data = array
            for attributes, old in before:
                refill(attributes, old)


class _Call:
    """A call of f, with what is needed to repeat it: the run in which it began."""

    def __init__(self, f, args, keywords):
        self.f, self.args, self.keywords = f, args, keywords
        self.kept = tree_map(lambda x: x, (args, keywords))  # f may change lists and dicts
        self.run = context.captured()
        self.modules = _Attributes(f)
        self.listeners = [new for x in context.listeners if (new := x.repeated())]
        self.generators = []  # one for each draw of random numbers
        self.outputs = []  # weak references to the Tensors that have been returned

    def first(self):
        """Run f without keeping its graph. Return its output, and which Tensors in it are new.

        Afterwards, `arrays` has the values of these, `inputs` has the Tensors that f uses, and
        `constants` the Tensors without a gradient. These and `values` must stay as they are.
        """
        uses = _Uses(self.args)
        with context.entered(
            recording=VALUES_ONLY,
            noted_draws=noting(self.generators),
            listeners=(*context.listeners, self.modules, uses),
            repeated=context.repeated or frozenset(),
        ):
            output = self.f(*self.args, **self.keywords)
        computed = uses.results(output)
        self.arrays = [y._data for y in computed]
        self.inputs, self.constants = uses.tensors()
        self.values = [
            some if owner and owner() is None else value for value, some, owner in uses.values
        ]
        self.ops = uses.ops
        self.returned = next_number()  # the user may change the outputs from now on
        return output, computed

    def again(self):
        """Run f as before, with its modules, patches and random numbers, and keep its graph.

        Return what the first run has returned in `computed`, and the tensors that f uses.
        """
        uses = _Uses(self.args)
        present = [x for x in context.listeners if x.hears_repeats]
        settings = self.run | {
            "recording": True,
            "noted_draws": repeating(self.generators),
            "listeners": (*[new() for new in self.listeners], *present, uses),
            "repeated": frozenset(self.inputs).union(self.run["repeated"] or ()),
            "blocks": context.blocks,
        }
        args, keywords = tree_map(lambda x: x, self.kept)
        with context.entered(**settings), self.modules.restored():
            output = self.f(*args, **keywords)
        computed = uses.results(output)
        self.compare(computed, uses)
        return computed

    def pull(self, g, needs):
        """Repeat the call, and run a backward pass through it."""
        recorded = any(isinstance(part, Variable) for part in g.values())
        outputs = self.again()
        self.refuse_gradients_between(outputs, [outputs[i] for i in g])
        wanted = [x for x, needed in zip(self.inputs, needs) if needed]
        roots = [outputs[i] for i in g]
        changed, present = _Changed(), context.listeners
        listeners = (*present, changed) if recorded else present
        with context.entered(recording=recorded, listeners=listeners):
            found = sweep(roots, [*g.values()], wanted=wanted, create_graph=recorded, inner=True)
        for x in changed.tensors:
            x._tracked.functions.append(_refuse_a_part)
        return [found.get(x) for x in self.inputs] + [None] * len(self.constants)

    def refuse_gradients_between(self, outputs, used):
        """Raise ValueError if somebody sees the gradient of an output that other outputs use.

        Outside of the checkpoint, only a part of this gradient is known.
        """
        wanted = {*(getattr(context.backward_pass, "wanted", None) or ())}
        for first, y in zip(self.outputs, outputs):
            x = first()
            hooks: Any = getattr(x, "_tracked", True)
            if x in wanted or hooks is not True and (hooks.functions or hooks.retains):
                others = [other for other in used if other is not y]
                if y in {*history(others, self.inputs)}:
                    raise ValueError(
                        f"an output of a checkpointed function, {describe(x)}, has a hook, retains "
                        "its gradient or is an input of ta.grad(), but another output is computed "
                        "from it. Use two checkpoints, one for each, or none."
                    )

    @np.errstate(all="ignore")
    def compare(self, outputs, uses):
        """Raise ValueError if the second run did, used or returned something else."""
        if [y.shape for y in outputs] != [first.shape for first in self.arrays] or any(
            _differs(y._data, first)
            for y, first in zip(outputs, self.arrays)
            if not inplace.was_changed(first, self.returned)
        ):
            what = "the outputs"
        elif (
            not set(filter(tracked, self.inputs)).issubset(uses.tensors()[0])
            or self.ops == uses.ops
            and not _agree(self.values, uses.values)
            or any(inplace.replaced(x)[0] > self.returned for x in self.constants)
        ):
            what = "the Tensors or values that it uses"
        else:
            return
        raise ValueError(
            "a checkpointed function must return the same output when it runs again, but "
            f"{what} differ. Between the two runs, do not change arrays or replace parameters "
            "that the function uses. Draw random numbers with ta.rand and similar functions."
        )


def _differs(again, first):
    """Return whether the outputs differ by more than rounding, which may depend on threads."""
    if isinstance(first, Symbolic):
        return False
    eps = float(np.finfo(first.dtype).eps)
    size = float(np.max(np.abs(first), initial=0, where=np.isfinite(first)))
    return not np.allclose(again, first, eps**0.5, 64 * eps * size, equal_nan=True)


recomputed = Bundling(lambda *inputs, call: np.zeros(()))
"""The bundle of a checkpoint's outputs. Its VJP runs the call again."""
recomputed.__name__ = "checkpoint"


@recomputed.vjp_all
def _run_again(g, _y, *inputs, call, needs):
    return call.pull(g, needs)


def checkpoint(f: Callable[..., Result], *xs, **keywords) -> Result:
    """Return f(*xs) but keep only its inputs in memory; the backward pass computes f again.

    This saves memory but takes one more forward pass. Gradients reach the Tensors among xs and
    those that f uses from outside, such as parameters. f may return Tensors in tuples, lists and
    dicts. The second run repeats the first: with its hooks, patches, modes, key/value caches and
    random numbers, for example in dropout. It changes no buffer. `ta.activations` records the first
    run, and gets gradients from the second. Checkpoints can be nested and differentiated more than
    once. Inside f, take gradients with value_and_grad or vjp. The gradient of an output contains
    no contributions of other outputs that f computes from it, so hooks on it are refused. So are
    second derivatives through a hook in f that changes a gradient. Raises ValueError if the second
    run returns a different output, and RuntimeError if a tensor computed in f is used outside
    without being returned. Like torch.utils.checkpoint. Source: T. Chen et al., "Training deep nets
    with sublinear memory cost" (2016).
    """
    if context.recording is not True:  # also inside the first run of another checkpoint
        return f(*xs, **keywords)
    call = _Call(f, xs, keywords)
    output, computed = call.first()
    if not computed:
        return output
    together = recomputed(*call.inputs, *call.constants, call=call)
    new = dict(zip(computed, members(together, call.arrays)))
    call.outputs = [*map(ref, new.values())]
    return tree_map(lambda y: new.get(y, y) if tracked(y) else y, output)
