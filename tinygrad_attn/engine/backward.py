"""The backward pass: reverse-mode differentiation of a recorded computation.

`sweep` is the algorithm. A queue holds the computed tensors that have received a contribution to
their gradient, newest first. Each step takes the newest tensor and calls the VJPs of its op, which
return a contribution to the gradient of each input. An op's inputs are older than its output. So
when a tensor is taken from the queue, everything that used it has already contributed.

Users call `backward` and `grad`.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy import ndarray

from ..errors import describe
from ..tree import tree_map
from . import inplace
from .bundle import bundle, member
from .graph import (
    Parts,
    Symbolic,
    Variable,
    array_of,
    history,
    is_masked,
    read_only,
    tensor_of,
    tracked,
)
from .kernels import reference
from .op import KINDS, Gone, in_checkpoint, released
from .run import context, heard, new_lock


def sweep(roots, seeds, *, wanted=None, create_graph=False, retain_graph=False, inner=False):
    """Return the gradients of sum(seed * root) by tensor: those in `wanted`, or all leaves.

    `create_graph` records the pass itself. It or `retain_graph` keeps the nodes. With `inner`, the
    pass ends at the wanted tensors, and leaves their hooks to the pass that it is a part of.
    """
    goal, ends, needed = _paths(roots, wanted, inner)
    gradients, queue = _seeded(roots, seeds, needed, ends)  # sums of the contributions so far
    complete = {}  # of wanted tensors that are not leaves
    own = set()  # tensors whose sums no one else can see, so they change in place
    pulling, pulled = heard("pulling"), heard("pulled")
    while queue:
        y = heappop(queue)[1]  # the newest; no other reference here keeps it in memory
        node, g = y._node, gradients.pop(y)
        own.discard(y)
        if y._tracked is not True:
            g = _hooked(y, g)
        if y in goal:
            complete[y] = _copied(g)
            if not _uses_any(node, needed):
                continue
        op, inputs = node.op, node.inputs
        if inplace.latest > node.number or node.checksums:
            inplace.check(y, create_graph)
        for hear in pulling:
            hear(y, _one_of(g))
        contributions = (
            op.adds_in_place(gradients[inputs[0]], g, **node.settings)
            if op.adds_in_place and inputs[0] in own and not pulled  # a slice to a large array
            else op.pull(y, g, needed, create_graph)  # the chain rule
        )
        for i, contribution in contributions:
            x = inputs[i]
            data, kind = x._data, contribution.__class__  # also ndarray for a traced array
            if (
                kind is not data.__class__
                or kind is ndarray
                and (contribution.shape != data.shape or contribution.dtype != data.dtype)
            ):
                contribution = _fit(contribution, x, op, create_graph, i)
            if (total := gradients.get(x)) is None:
                # A user's VJP may return the same array again, with other numbers.
                total = contribution if op.trusted or kind is not ndarray else contribution.copy()
                if x._node and x not in ends:
                    heappush(queue, (-x._node.number, x))
                elif _is_new(total, g):
                    own.add(x)
            elif x in own:
                total += contribution
            else:
                total = total + contribution
                if type(total) is ndarray:
                    own.add(x)
            gradients[x] = total
            for hear in pulled if kind is not Parts else ():
                hear(y, node, _one_of(g), i, x, contribution, total)
        if not (retain_graph or create_graph):
            node.op, node.inputs, node.settings, node.saved = released, (), released.defaults, None
    return gradients if inner else _finished(gradients, own, complete)


def _paths(roots, wanted, inner):
    """Return the wanted tensors, those that end the pass, and those between wanted and roots.

    The last are None if all tensors need a gradient.
    """
    if wanted is None:
        return (), (), None
    goal = frozenset(wanted)
    ends, needed = goal if inner else (), set(goal)
    oldest = min((x._node.number if x._node else 0 for x in goal), default=0)
    computed = history(roots, ends)
    for x in () if inner else goal:
        if x._node:
            needed.update(_together(x, computed))
    for y in computed:
        if isinstance(y._node.op, Gone) and y._node.number > oldest:
            y._node.op.pull()  # raises: a wanted tensor may have been among its inputs
        if _uses_any(y._node, needed):
            needed.add(y)
    return goal, ends, needed


def _together(x, computed):
    """Return the bundle of a checkpoint if x and another of its outputs are used, else nothing.

    The pass then runs the checkpoint again, which raises an error if the other depends on x.
    """
    op, of = x._node.op, x._node.inputs  # the bundle, if x is a member of one
    if op is in_checkpoint and context.repeated is None:
        op.pull()  # raises: somebody may have used x inside, too
    if op is not member or of[0]._node.op is bundle:
        return ()
    others = (y._node for y in computed if y is not x and y._node.op is member)
    return of if any(other.inputs[0] is of[0] for other in others) else ()


def _seeded(roots, seeds, needed, ends):
    """Return the gradients of the roots, one of which may be given twice, and the queue."""
    gradients, queue = {}, []
    for root, seed in zip(roots, seeds, strict=True):
        if root in gradients:
            gradients[root] = gradients[root] + seed
        elif needed is None or root in needed:
            gradients[root] = seed
            if root._node and root not in ends:
                heappush(queue, (-root._node.number, root))
    return gradients, queue


def _uses_any(node, tensors):
    """Return whether any of the tensors is an input of this node's op."""
    return any(isinstance(x, Variable) and x in tensors for x in node.inputs)


def _is_new(contribution, g):
    """Return whether a contribution is an array that is neither g nor a part of it."""
    is_array = type(contribution) is ndarray and type(g) is not Parts
    return is_array and contribution is not g and contribution.base is None


def _hooked(x, g):
    """Return x's complete gradient after the hooks on it, and add it to .grad if x retains it."""
    hooks = x._tracked
    if not hooks:  # False if it was frozen after the forward pass
        return g
    for function in tuple(hooks.functions):
        new = function(tree_map(_for_a_hook, g))
        if new is None:
            continue
        new = _fit(new, x, function, bool(context.recording))
        for hear in heard("replaced"):
            hear(x, g, new)
        g = new
    this = context.backward_pass
    if this and this.wanted is None:
        keepers = [x, *hooks.others] if hooks.retains else hooks.others
        with context.entered(recording=True):
            accumulate({t: _copied(g) for t in keepers})
    return g


def _for_a_hook(g):
    """Return a gradient as a Tensor that cannot be written to: another one may share its memory."""
    g = _copied(g) if isinstance(g, Variable) else tensor_of(g)
    g._data = read_only(g._data)
    return g


def _one_of(g):
    """Return the gradient of a tensor, or of one that a bundle stands for."""
    return next(iter(g.values()), None) if isinstance(g, Parts) else g


def _finished(gradients, own, finished):
    """Add the gradients of leaves, in memory of their own and after the hooks on the leaves."""
    while gradients:
        x, g = gradients.popitem()
        if x._tracked is not True:
            g = _copied(_hooked(x, g))
        elif x not in own or not g.flags.c_contiguous:
            g = _copied(g)
        finished[x] = g
    return finished


def _copied(g):
    """Return a gradient in memory of its own."""
    return g if isinstance(g, (np.generic, Symbolic)) else g.copy()


def _fit(gradient, x, source, create_graph, i=None):
    """Return what a hook on x, or the VJP of an op for input i, returned as a gradient of x.

    It gets the shape and dtype of x. Axes that the op has broadcast are summed.
    """
    if isinstance(gradient, Parts):
        return gradient
    fitting = gradient
    if fitting.__class__ is not ndarray and not isinstance(fitting, (np.generic, Variable)):
        fitting = np.asarray(fitting)
    if fitting.shape != x._data.shape and i is not None and source.broadcasts:
        fitting = sum_to(fitting, x._data.shape)
    if fitting.shape != x._data.shape or fitting.dtype.kind not in KINDS or is_masked(gradient):
        place = f"hook {source!r}" if i is None else f"VJP of op {source.__name__!r} for input {i}"
        hint = "" if i is None else ". If the op broadcasts, write @op(broadcasts=True)"
        raise ValueError(
            f"the {place} returned {describe(gradient)}, but a gradient of {describe(x)} must have "
            f"the same shape, and real numbers without a mask{hint}."
        )
    return _converted(fitting, x, create_graph)


def _converted(gradient, x, create_graph):
    """Return a gradient in the dtype of x: a Tensor if the pass is recorded, else an array."""
    if gradient.dtype != x._data.dtype:
        gradient = gradient.astype(x._data.dtype)
    if create_graph:
        return gradient if isinstance(gradient, Variable) else tensor_of(gradient)
    array = array_of(gradient)
    return array[()] if isinstance(x._data, np.generic) else array


@reference
def sum_to(g, shape):
    """Sum g over the axes that broadcasting added or expanded, to get back to `shape`."""
    lead = g.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(g.shape) if i < lead or shape[i - lead] == 1 != n)
    if lead < 0 or not axes:
        return g
    if isinstance(g, Variable):
        total = g.sum(axis=axes, keepdims=True)  # type: ignore[attr-defined]
    else:  # in float64: float32 loses digits when many rows are added one by one
        total = np.sum(g, axis=axes, keepdims=True, dtype=np.float64).astype(g.dtype)
    return total.reshape(total.shape[lead:])


# ---- what users call


class Pass:
    """A backward pass that is running in this thread, until the end of a `with` block."""

    def __init__(self, recorded, wanted=None):
        self.wanted = wanted  # the inputs of grad(), or None in backward(), which fills .grad
        self.at_end = {}  # functions, called once, after .grad is filled
        self.recorded = bool(recorded)

    def __enter__(self):
        here = context.__dict__  # the last call: an interrupt arrives here, or in the block
        self.before = here["recording"], here["backward_pass"]
        here["recording"], here["backward_pass"] = self.recorded, self
        return self

    def __exit__(self, *_):
        here = context.__dict__
        here["recording"], here["backward_pass"] = self.before


_accumulating = new_lock()


def accumulate(gradients):
    """Add each gradient, an array or a tensor, to the .grad of its tensor."""
    with _accumulating:
        for t, g in gradients.items():
            if not t._tracked:  # frozen after the forward pass
                continue
            g = g if isinstance(g, Variable) else tensor_of(g)
            if (held := t._grad) is not None:
                if held._data.shape != g._data.shape:
                    raise ValueError(
                        f"the new gradient of {describe(t)} cannot be added to its .grad, "
                        f"{describe(held)}. After a change of shape, call zero_grad()."
                    )
                # An op is needed if create_graph has recorded a gradient, or for detect_anomaly.
                as_op = held._tracked or g._tracked or context.listeners
                g = held + g if as_op else tensor_of(held._data + g._data)
            t._grad = g


def backward(outputs, gradients, retain_graph, create_graph):
    """Add the gradients of the outputs to the .grad of every leaf; see `Tensor.backward`."""
    if context.repeated is not None:
        raise RuntimeError(
            "backward() in a checkpointed function would add to .grad twice, because the function "
            "runs twice. Inside the function, take gradients with value_and_grad or vjp."
        )
    seeds = [_seed(t, g, create_graph, "gradient") for t, g in zip(outputs, gradients, strict=True)]
    with Pass(create_graph) as this:
        found = sweep(outputs, seeds, create_graph=create_graph, retain_graph=retain_graph)
        context.recording = True  # A .grad that create_graph has made is in a graph.
        accumulate(found)
    for function in this.at_end:
        function()


def grad(
    outputs,
    inputs,
    grad_outputs=None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """Return d(sum of outputs) / d(inputs) as a tuple with one gradient for each input.

    `outputs`, `inputs` and `grad_outputs` are each a Tensor or a sequence of Tensors.
    `grad_outputs` weights the outputs and may be omitted for single numbers. `retain_graph` keeps
    the graph for another pass (default: the value of `create_graph`). With `create_graph=True`, the
    gradients can be differentiated again. Only VJPs on paths to the inputs are called, and no
    `.grad` changes. If the outputs do not depend on an input, its gradient is None with
    `allow_unused=True`; otherwise ValueError is raised. Raises RuntimeError if the graph has been
    released. Like torch.autograd.grad.
    """
    outputs, inputs = _several(outputs), _several(inputs)
    weights = [None] * len(outputs) if grad_outputs is None else _several(grad_outputs)
    for i, x in enumerate(inputs):
        if not tracked(x):
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, does not require a gradient. Create the "
                "input with requires_grad=True; for a model, pass list(model.parameters())."
            )
    pairs = zip(outputs, weights, strict=True)
    seeds = [_seed(t, g, create_graph, "grad_outputs") for t, g in pairs]
    with Pass(create_graph, inputs):
        found = sweep(
            outputs, seeds, wanted=inputs, create_graph=create_graph, retain_graph=retain_graph
        )
    for i, x in enumerate(inputs):
        if x not in found and not allow_unused:
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, was not used to compute the outputs. Pass "
                "allow_unused=True to get None as its gradient."
            )
    tensors = {x: g if isinstance(g, Variable) else tensor_of(g) for x, g in found.items()}
    return tuple(tensors.get(x) for x in inputs)


def _several(values):
    """Return several values as a list, and a single one as a list of one."""
    several = isinstance(values, Iterable) and not isinstance(values, (Variable, ndarray, str))
    return list(values) if several else [values]


def _seed(output, gradient, create_graph, keyword):
    """Return the seed in the output's shape and dtype, by default 1 for a single number."""
    if not isinstance(output, Variable):
        raise TypeError(
            f"only a Tensor can be differentiated, got {describe(output)}. Call the function "
            "first: grad(f(x), x), or write ta.value_and_grad(f)(x)."
        )
    if not output._tracked:
        raise ValueError(
            f"{describe(output)} does not depend on anything that requires a gradient. Create the "
            "inputs with requires_grad=True, and check for no_grad(), detach() or .numpy() in the "
            "computation. A gradient can be differentiated again only if create_graph=True was "
            "passed where it was computed."
            + ("" if context.recording else " Recording is off here: see no_grad().")
        )
    shape = output._data.shape
    if gradient is None:
        if output._data.size != 1:
            raise ValueError(
                f"without {keyword}=, a backward pass must start from a single number, but this is "
                f"{describe(output)}. Reduce the output first, for example with .sum() or .mean(), "
                f"or pass {keyword}= with shape {shape}."
            )
        gradient = np.array(1, output._data.dtype, ndmin=len(shape))  # np.ones is slow
    elif not isinstance(gradient, Variable):
        given, gradient = gradient, np.array(gradient, copy=create_graph or None)
        if gradient.dtype.kind not in KINDS or is_masked(given):
            raise TypeError(f"a gradient must have real numbers, got {describe(given)}.")
    if gradient.shape != shape:
        raise ValueError(
            f"the gradient has shape {gradient.shape} but the output has shape {shape}; the two "
            "shapes must be equal. To pass several inputs to grad(), use a list: grad(y, [a, b])."
        )
    return _converted(gradient, output, create_graph)
