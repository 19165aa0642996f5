"""The backward pass: reverse-mode differentiation of a recorded computation.

`sweep` is the algorithm. A queue holds the computed tensors that have received a contribution to
their gradient, newest first. Each step takes the newest tensor and calls the VJPs of its op, which
return a contribution to the gradient of each input. An op's inputs are older than its output. So
when a tensor is taken from the queue, everything that used it has already contributed.

Users call `backward` and `grad`.
"""

import threading
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy import ndarray

from ..errors import describe
from ..tree import tree_map
from . import inplace
from .graph import Parts, Symbolic, Variable, array_of, history, read_only, tensor_of, tracked
from .kernels import reference
from .op import KINDS, Gone, Op, released
from .run import context, heard

NO_SETTINGS: dict[str, Any] = {}


def sweep(roots, seeds, *, wanted=None, create_graph=False, retain_graph=False, inner=False):
    """Return the gradients of sum(seed * root) by tensor: those in `wanted`, or all leaves.

    `create_graph` records the pass itself. It or `retain_graph` keeps the nodes. With `inner`, the
    pass ends at the wanted tensors, and leaves their hooks to the pass that it is a part of.
    """
    goal, through, needed = _paths(roots, wanted, inner)
    gradients, queue = _seeded(roots, seeds, needed)  # sums of the contributions so far
    complete: dict[Variable, Any] = {}  # of wanted tensors that are not leaves
    own: set[Variable] = set()  # tensors whose sums no one else can see, so they change in place
    pulling, pulled = heard("pulling"), heard("pulled")
    while queue:
        y = heappop(queue)[1]  # the newest; no other reference here keeps it in memory
        node, g = y._node, gradients.pop(y)
        own.discard(y)
        if y._tracked is not True and not (inner and y in goal):
            g = _hooked(y, g)
        if y in goal:
            complete[y] = g if inner else _copied(g)
        if through is not None and y not in through:
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
                contribution = _fit(contribution, x, op, i, create_graph)
            total = gradients.get(x)
            if total is None:
                total = contribution
                if x._node:
                    heappush(queue, (-x._node.number, x))
                elif op.returns_new and type(contribution) is ndarray and _apart(contribution, g):
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
            node.op, node.inputs, node.settings, node.saved = released, (), NO_SETTINGS, None
    return gradients | complete if inner else _finished(gradients, complete, own)


def _paths(roots, wanted, inner):
    """Return the wanted tensors, those computed from them (None: all), and both together."""
    if wanted is None:
        return frozenset(), None, None
    goal, through = frozenset(wanted), set()
    needed = set(goal)
    oldest = min((0 if x._node is None else x._node.number for x in goal), default=0)
    for y in history(roots, goal if inner else ()):
        if isinstance(y._node.op, Gone) and y._node.number > oldest:
            y._node.op.pull()  # raises: a wanted tensor may have been among its inputs
        if any(isinstance(x, Variable) and x in needed for x in y._node.inputs):
            through.add(y)
            needed.add(y)
    return goal, through, needed


def _seeded(roots, seeds, needed):
    """Return the gradients of the roots, one of which may be given twice, and the queue."""
    gradients: dict[Variable, Any] = {}
    for root, seed in zip(roots, seeds, strict=True):
        if needed is None or root in needed:
            gradients[root] = gradients[root] + seed if root in gradients else seed
    queue = [(-x._node.number, x) for x in gradients if x._node]
    heapify(queue)
    return gradients, queue


def _hooked(x, g):
    """Return x's complete gradient after the hooks on it, and add it to .grad if x retains it."""
    hooks = x._tracked
    if not hooks:  # frozen after the forward pass
        return g
    for function in tuple(hooks.functions):
        new = function(tree_map(_for_a_hook, g))
        if new is None:
            continue
        new = new if context.recording else tree_map(array_of, new)
        new = _fit(new, x, function, None, bool(context.recording))
        for hear in heard("replaced"):
            hear(x, g, new)
        g = new
    this = context.backward_pass
    if this is not None and this.wanted is None:
        keepers = [x, *hooks.others] if hooks.retains else hooks.others
        accumulate({t: _copied(g) for t in keepers})
    return g


def _for_a_hook(g):
    """Return a gradient as a Tensor that cannot be written to: another one may share its memory."""
    if not isinstance(g, Variable):
        return tensor_of(read_only(g))
    g = g.clone()  # type: ignore[attr-defined]
    g._data = read_only(g._data)
    return g


def _apart(contribution, g):
    """Return whether a contribution is neither g nor a view of it."""
    return contribution is not g and contribution.base is None


def _one_of(g):
    """Return the gradient of a tensor, or of one that a bundle stands for."""
    return next(iter(g.values())) if isinstance(g, Parts) else g


def _finished(gradients, complete, own):
    """Return all gradients in memory of their own, after the hooks on leaves."""
    while gradients:
        x, g = gradients.popitem()
        if x._tracked is not True:
            g = _hooked(x, g)
            own.discard(x)
        complete[x] = g if x in own and g.flags.c_contiguous else _copied(g)
    return complete


def _copied(g):
    """Return a gradient in memory of its own."""
    return g if isinstance(g, (np.generic, Symbolic)) else g.copy()


def _fit(gradient, x, source, i, create_graph):
    """Convert what a VJP or hook returned to the shape and dtype of x, and undo broadcasting."""
    if isinstance(gradient, Parts):
        return gradient
    if gradient is None:
        raise TypeError(
            f"the VJP of op {source.__name__!r} for input {i} returned None. Check that the VJP "
            "ends with a return statement. For an input without a derivative, pass None in place "
            "of the VJP."
        )
    if not isinstance(gradient, (ndarray, np.generic, Variable)):
        gradient = np.asarray(gradient)
    shape, dtype, is_op = x._data.shape, x._data.dtype, isinstance(source, Op)
    if gradient.shape != shape and is_op and source.broadcasts:
        gradient = sum_to(gradient, shape)
    if gradient.shape != shape or gradient.dtype.kind not in KINDS:
        place = f"VJP of op {source.__name__!r} for input {i}" if is_op else f"hook {source!r}"
        hint = ". If the op broadcasts, write @op(broadcasts=True)" if is_op else ""
        raise ValueError(
            f"the {place} returned shape {gradient.shape} {gradient.dtype}, but a gradient of "
            f"{describe(x)} must have the same shape, and real numbers{hint}."
        )
    if gradient.dtype != dtype:
        gradient = gradient.astype(dtype)
    if create_graph and not isinstance(gradient, Variable):
        return tensor_of(gradient)
    is_array = isinstance(gradient, ndarray)
    return gradient[()] if is_array and isinstance(x._data, np.generic) else gradient


@reference
def sum_to(g, shape: tuple[int, ...]):
    """Sum g over the axes that broadcasting added or expanded, to get back to `shape`."""
    lead = g.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(g.shape) if i < lead or shape[i - lead] == 1 != n)
    if lead < 0 or not axes:
        return g
    total: Any
    if isinstance(g, Variable):
        total = g.sum(axis=axes, keepdims=True)  # type: ignore[attr-defined]
    else:  # in float64: float32 loses digits when many rows are added one by one
        total = np.sum(g, axis=axes, keepdims=True, dtype=np.float64).astype(g.dtype)
    return total.reshape(total.shape[lead:])


# ---- what users call


class Pass:
    """A backward pass that is running."""

    def __init__(self, wanted=None):
        self.wanted = wanted  # the inputs of grad(), or None in backward(), which fills .grad
        self.at_end: dict[Callable[[], None], None] = {}  # called once, after .grad is filled


_accumulating = threading.Lock()


def accumulate(gradients):
    """Add each gradient, an array or a tensor, to the .grad of its tensor."""
    with _accumulating:
        for t, g in gradients.items():
            if not t._tracked:  # frozen after the forward pass
                continue
            if not isinstance(g, Variable):
                g = tensor_of(g)
            if (held := t._grad) is not None:
                if held._data.shape != g._data.shape:
                    raise ValueError(
                        f"the new gradient of {describe(t)} cannot be added to its .grad, "
                        f"{describe(held)}. After a change of shape, call zero_grad()."
                    )
                if held._tracked or g._tracked or context.listeners:
                    # After create_graph, a .grad has a graph; and listeners hear of each sum.
                    with context.entered(recording=True):
                        g = held + g
                else:
                    g = tensor_of(held._data + g._data)
            t._grad = g


def backward(
    outputs,
    gradients,
    retain_graph=False,
    create_graph=False,
):
    """Add the gradients of the outputs to the .grad of every leaf; see `Tensor.backward`."""
    if context.repeated is not None:
        raise RuntimeError(
            "backward() in a checkpointed function would add to .grad twice, because the function "
            "runs twice. Inside the function, take gradients with value_and_grad or vjp."
        )
    seeds = [_seed(t, g, create_graph, "gradient") for t, g in zip(outputs, gradients, strict=True)]
    this = Pass()
    with context.entered(recording=bool(create_graph), backward_pass=this):
        found = sweep(outputs, seeds, create_graph=create_graph, retain_graph=retain_graph)
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
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    inputs = _inputs(inputs)
    weights = [None] * len(outputs) if grad_outputs is None else grad_outputs
    weights = list(weights) if isinstance(weights, (list, tuple)) else [weights]
    if len(weights) != len(outputs):
        raise ValueError(
            f"grad() got {len(outputs)} outputs but {len(weights)} grad_outputs; pass one for each "
            "output."
        )
    seeds = [_seed(t, g, create_graph, "grad_outputs") for t, g in zip(outputs, weights)]
    retain = create_graph if retain_graph is None else retain_graph
    with context.entered(recording=bool(create_graph), backward_pass=Pass(inputs)):
        found = sweep(outputs, seeds, wanted=inputs, create_graph=create_graph, retain_graph=retain)
    results = []
    for i, x in enumerate(inputs):
        g = found.get(x)
        if g is None and not allow_unused:
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, was not used to compute the outputs. Pass "
                "allow_unused=True to get None as its gradient."
            )
        results.append(g if g is None or isinstance(g, Variable) else tensor_of(g))
    return tuple(results)


def _inputs(inputs):
    """Return the inputs of `grad` as a list; raise ValueError if one requires no gradient."""
    several = isinstance(inputs, Iterable) and not isinstance(inputs, (Variable, ndarray, str))
    inputs = list(inputs) if several else [inputs]
    for i, x in enumerate(inputs):
        if not tracked(x):
            raise ValueError(
                f"input {i} of grad(), {describe(x)}, does not require a gradient. Create the "
                "input with requires_grad=True; for a model, pass list(model.parameters())."
            )
    return inputs


def _seed(output, gradient, create_graph, keyword):
    """Return the seed in the output's shape and dtype, by default 1 for a single number."""
    if not tracked(output):
        raise _no_graph(output)
    shape, dtype = output._data.shape, output._data.dtype
    if gradient is None:
        if output._data.size != 1:
            raise ValueError(
                f"without {keyword}=, a backward pass must start from a single number, but this is "
                f"{describe(output)}. Reduce the output first, for example with .sum() or .mean(), "
                f"or pass {keyword}= with shape {shape}."
            )
        gradient = np.ones(shape, dtype)
    elif not isinstance(gradient, Variable):
        gradient = np.asarray(gradient)
        if gradient.dtype.kind not in "fiub":
            raise TypeError(f"a gradient must have real numbers, got {describe(gradient)}.")
    if gradient.shape != shape:
        raise ValueError(
            f"the gradient has shape {gradient.shape} but the output has shape {shape}; the two "
            "shapes must be equal. To pass several inputs to grad(), use a list: grad(y, [a, b])."
        )
    if gradient.dtype != dtype:
        gradient = gradient.astype(dtype)
    if create_graph:
        return gradient if isinstance(gradient, Variable) else tensor_of(np.array(gradient))
    return array_of(gradient) if shape else array_of(gradient)[()]


def _no_graph(output):
    """Return the error for an output that cannot be differentiated."""
    if not isinstance(output, Variable):
        return TypeError(
            f"only a Tensor can be differentiated, got {describe(output)}. Call the function "
            "first: grad(f(x), x), or write ta.value_and_grad(f)(x)."
        )
    return ValueError(
        f"{describe(output)} does not depend on anything that requires a gradient. Create the "
        "inputs with requires_grad=True, and check for no_grad(), detach() or .numpy() in the "
        "computation. A gradient can be differentiated again only if create_graph=True was "
        "passed where it was computed."
        + ("" if context.recording else " Recording is off here: see no_grad().")
    )
