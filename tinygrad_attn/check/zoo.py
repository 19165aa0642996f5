# mypy: allow-untyped-defs, allow-incomplete-defs
"""The bug zoo: published bugs of small engines, each one line to switch on in ours.

    from tinygrad_attn.check import zoo
    with zoo.bug("softmax-twice"):
        ta.gradcheck(F.softmax, x)               # what do you see?
    print(zoo.list())

Each bug replaces a VJP, a function or the sweep by what was published, in our spelling, and is
taken back afterwards. They are exercises, and tests must catch every one. Sources were read in
their public repositories; later versions may have mended them.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from .. import functional, ops
from ..engine import Op, history, op, tracked
from . import slopes
from .trace import array_of, pull

Patches = list[tuple[Any, str, Any]]
"""(object, attribute, new value)"""


class Bug(NamedTuple):
    """One entry of the zoo."""

    name: str
    what: str  # the mistake
    where: str  # the project and place it was found in
    symptom: str  # what a user would see
    patches: Callable[[], Patches]

    def __str__(self) -> str:
        return f"{self.name}: {self.what}\n    found in {self.where}\n    symptom: {self.symptom}"


class Bugs(tuple[Bug, ...]):
    """A tuple of bugs that prints as a catalogue."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self))


bugs: dict[str, Bug] = {}


def list() -> Bugs:
    """Every bug there is: name, what it is, where it was found, its symptom."""
    return Bugs(bugs.values())


@contextmanager
def bug(name: str) -> Iterator[Bug]:
    """Switch one bug on inside the `with` block, for the whole process.

    Raises ValueError for an unknown name.
    """
    if name not in bugs:
        raise ValueError(f"there is no bug {name!r} in the zoo; there are {', '.join(bugs)}.")
    with ExitStack() as stack:
        for change in bugs[name].patches():
            stack.enter_context(patch.object(*change))
        yield bugs[name]


def published(what: str, where: str, symptom: str) -> Callable[[Callable], Callable]:
    """Put a bug into the zoo: a decorator of the function that returns what to replace."""

    def enter(patches: Callable[[], Patches]) -> Callable:
        name = patches.__name__.replace("_", "-")
        bugs[name] = Bug(name, what, where, symptom, patches)
        return patches

    return enter


def vjps(of: Op, *new: Callable | None, **more: Any) -> Patches:
    """Other VJPs for the first operands."""
    changes = {"vjps": (*new, *of.vjps[len(new) :]), "kernel": None, "adds_in_place": None, **more}
    return [(of, attribute, value) for attribute, value in changes.items()]


def in_place_of(function: str, forward: Callable, vjp: Callable, call: Callable) -> Patches:
    """An op with another VJP in place of a function of F; `call` calls it with F's arguments."""
    new = op(forward)
    new.__name__ = function
    (new.vjp if function in ("softmax", "log_softmax", "embedding") else new.vjp_all)(vjp)
    return [(functional, function, lambda *args, **settings: call(new, *args, **settings))]


def along_rows(function: str, vjp: Callable) -> Patches:
    """Softmax or log_softmax with another VJP."""
    right = getattr(functional, function)
    call = lambda new, x, axis=-1: new(x, axis=axis)
    return in_place_of(function, lambda x, *, axis: right(x, axis), vjp, call)


# ---- single ops


@published(
    "the backward function is hung on an attribute that nobody calls",
    "smolgrad (nn/_activations.py, tanh)",
    "everything below a tanh has a zero gradient and never learns",
)
def tanh_zero():
    return vjps(ops.tanh, lambda g, y, x: g * 0)


@published(
    "`if axis:` takes axis 0 for no axis, so the gradient of sum(axis=0) is not put back along it",
    "smolgrad (core/engine.py, sum) and SmallPebble (core/ops.py, sum)",
    "x.sum(axis=1) is right; axis=0 with square shapes is silently transposed",
)
def sum_axis_zero():
    def wrong(g, y, x, *, axis, keepdims):
        if axis == 0 and np.ndim(g) == 1 and not keepdims:
            g = g[:, None]
        elif axis and not keepdims:
            g = np.expand_dims(g, axis)
        return np.ones_like(x) * g

    return vjps(ops.sum, wrong)


@published(
    "the VJP of transpose permutes with the same axes instead of the inverse ones",
    "smolgrad (core/engine.py, T)",
    "right for every swap of two axes; wrong, or a shape error, for a cycle such as (1, 2, 0)",
)
def transpose_same_axes():
    return vjps(ops.transpose, lambda g, y, x, *, axes: g.transpose(axes))


@published(
    "the VJP of a product transposes all axes of its operand, not the last two",
    "DeZero (functions.py, MatMul)",
    "right for matrices; batched products raise, or are silently wrong where all sizes are equal",
)
def matmul_transpose_all():
    return vjps(ops.matmul, lambda g, y, a, b: g @ b.transpose())


@published(
    "the mean over a tuple of axes divides by the product of the axis numbers, not of their sizes",
    "smolgrad (core/engine.py, mean)",
    "value and gradient agree with each other, so no gradient check sees it; the value is wrong",
)
def mean_tuple():
    def count(x, axis):
        if isinstance(axis, tuple):
            return float(np.prod(axis)) or 1.0
        return x.size if axis is None else x.shape[axis]

    def forward(x, *, axis=None, keepdims=False):
        return x.sum(axis=axis, keepdims=keepdims) / count(x, axis)

    def vjp(g, y, x, *, axis, keepdims):
        right: Any = ops.sum.vjps[0]
        return right(g / count(x, axis), y, x, axis=axis, keepdims=keepdims)

    return vjps(ops.mean, vjp, forward=forward)


@published(
    "`grad[index] += g` adds only once where an index is repeated",
    "smolgrad (core/engine.py, __getitem__)",
    "x[[0, 0]] counts one of its two uses",
)
def getitem_overwrite():
    def wrong(g, y, x, *, index):
        out = np.zeros_like(x)
        out[index] += g
        return out

    return vjps(ops.getitem, wrong)


@published(
    "`out[index] = g` overwrites where an index is repeated",
    "PyTorch 0.1 (issue 1528, indexing with duplicates)",
    "a token that occurs twice in a batch learns from one place only",
)
def embedding_overwrite():
    def wrong(g, y, weight, *, indices):
        out = np.zeros_like(weight)
        out[indices] = g
        return out

    forward = lambda weight, *, indices: weight[indices]
    call = lambda new, indices, weight, **_: new(weight, indices=array_of(indices))
    return in_place_of("embedding", forward, wrong, call)


@published(
    "the pieces of the gradient are cut in the forward pass, when it is still all zeros",
    "smolgrad (core/engine.py, cat)",
    "what is joined gets a zero gradient",
)
def concatenate_zero():
    right: Any = ops.concatenate.joint_vjp
    return vjps(ops.concatenate, joint_vjp=lambda *args, **settings: [
        None if part is None else part * 0 for part in right(*args, **settings)
    ])  # fmt: skip


@published(
    "local gradients are kept in a dict by operand: of x - x the second overwrites the first",
    "minigrad (kennysong, minigrad.py, __sub__ and __truediv__)",
    "x - x has the gradient -2 instead of 0",
)
def minus_same_operand():
    return vjps(ops.subtract, lambda g, y, a, b: -g if a is b else g)


@published(
    "at a tie both operands of maximum get the whole gradient",
    "neunet (autograd.py, maximum: >= and <=)",
    "np.maximum(x, x) has slope 2",
)
def maximum_tie():
    return vjps(ops.maximum, lambda g, y, a, b: g * (a >= b), lambda g, y, a, b: g * (a <= b))


@published(
    "all elements that tie for the maximum get the whole gradient",
    "DeZero (functions.py, Max) and neunet (autograd.py, max)",
    "the gradients of tied elements add up to more than the incoming one",
)
def max_tie():
    def wrong(g, y, x, *, axis, keepdims):
        keep = lambda v: v if keepdims or axis is None else np.expand_dims(v, axis)
        return keep(g) * (x == keep(y))

    return vjps(ops.max, wrong)


@published(
    "the VJP sets elements of the incoming gradient to zero in place",
    "SmallPebble (core/ops.py, setat)",
    "another operand that shares this gradient array finds it changed",
)
def where_in_place():
    def wrong(g, y, condition, a, b):
        g = g if g.flags.writeable else g.copy()
        g[np.broadcast_to(np.logical_not(condition), g.shape)] = 0
        return g

    return vjps(ops.where, ops.where.vjps[0], wrong)


# ---- layers


@published(
    "the gradient of softmax is doubled",
    "fromscratchtoml (issue 65: softmax off by a factor of two)",
    "trains, only with another learning rate; a check with all-ones cotangents sees 0 = 0",
)
def softmax_twice():
    wrong = lambda g, y, x, *, axis: 2 * y * (g - (g * y).sum(axis, keepdims=True))
    return along_rows("softmax", wrong)


@published(
    "the gradient of log_softmax is divided by the batch size",
    "numpy-transformer (activations.py, LogSoftmax.backward)",
    "the loss already has its 1/N: it is counted twice",
)
def log_softmax_batch():
    wrong = lambda g, y, x, *, axis: (g - np.exp(y) * g.sum(axis, keepdims=True)) / len(x)
    return along_rows("log_softmax", wrong)


@published(
    "the weight is multiplied outside the means of the VJP",
    "numpy-transformer (layer_norm.py, backward)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def layer_norm_weight():
    right = functional.layer_norm

    def wrong(g, y, x, weight, bias, *, eps):
        h, mean = right(x, x.shape[-1], eps=eps), lambda v: v.mean(axis=-1, keepdims=True)
        dx = weight * (g - mean(g) - h * mean(g * h)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        rows = tuple(range(x.ndim - 1))
        return dx, (g * h).sum(rows), g.sum(rows)

    def call(new, x, normalized_shape, weight=None, bias=None, eps=1e-5):
        weight = np.ones(x.shape[-1]) if weight is None else weight
        return new(x, weight, np.zeros(x.shape[-1]) if bias is None else bias, eps=eps)

    forward = lambda x, weight, bias, *, eps: right(x, x.shape[-1], weight, bias, eps)
    return in_place_of("layer_norm", forward, wrong, call)


@published(
    "the weight is multiplied outside the mean of the VJP",
    "Tricycle (layers.py, RMSNorm.back_fn)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def rms_norm_weight():
    scale = lambda x: 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)

    def wrong(g, y, x, weight):
        r = scale(x)
        dx = r * (g - x * r * r * (x * g).mean(axis=-1, keepdims=True))
        return dx * weight, (g * x * r).sum(axis=tuple(range(x.ndim - 1)))

    call = lambda new, x, normalized_shape, weight=1.0, eps=None: new(x, weight)
    return in_place_of("rms_norm", lambda x, weight: x * scale(x) * weight, wrong, call)


@published(
    "blocked scores are -inf, so a row with every key blocked is -inf - (-inf)",
    "numpy-transformer (self_attention.py, forward)",
    "one sequence of padding alone turns the loss into NaN",
)
def masked_row_nan():
    right = functional.scaled_dot_product_attention

    def attention(q, k, v, attn_mask=None, *args, **settings):
        out, seen = right(q, k, v, attn_mask, *args, **settings), array_of(attn_mask)
        if attn_mask is None:
            return out
        blocked = (~seen if seen.dtype == bool else np.isneginf(seen)).all(-1, keepdims=True)
        return np.where(blocked, np.nan, out)

    return [(functional, "scaled_dot_product_attention", attention)]


@published(
    "one ReLU object for the whole program remembers its last input",
    "numpy-transformer (activations.py, the dict of instances)",
    "two layers with the same activation differentiate the second one's input twice",
)
def activation_singleton():
    last: dict[str, Any] = {}

    def forward(x):
        last["x"] = x
        return np.maximum(x, 0)

    def wrong(g, y, x):
        return g * ((last["x"] if last["x"].shape == x.shape else x) > 0)

    return vjps(ops.relu, wrong, forward=forward)


# ---- the sweep; these go to first order only


def sweep_by(run: Callable[[Callable, dict, Any], None], add=operator.add) -> Patches:
    """A stand-in for the engine's sweep, with one flaw."""

    def sweep(roots, seeds, *, wanted=None, **_):
        grads: dict[Any, Any] = {}

        def give(x, contribution):
            grads[x] = add(grads[x], contribution) if x in grads else contribution

        for t, seed in zip(roots, seeds):
            give(t, np.array(seed))
        run(give, grads, roots)
        goal = {x for x in grads if x._node is None} if wanted is None else set(wanted)
        return {x: np.array(g) for x, g in grads.items() if x in goal}

    return [(sys.modules[f"{Op.__module__.rpartition('.')[0]}.backward"], "sweep", sweep)]


def contributions(t, g) -> Iterator[tuple[Any, Any]]:
    """(input, contribution) for each use by the op that computed t."""
    node, args = t._node, [getattr(x, "_data", x) for x in t._node.inputs]
    needs = [tracked(x) for x in node.inputs]
    for i, contribution in pull(node.op, np.array(g), t._data, node, args, needs).items():
        yield node.inputs[i], contribution


def newest_first(give, grads, roots) -> None:
    """Go through the graph as the engine does."""
    for t in history(roots)[::-1]:
        for x, contribution in contributions(t, grads[t]):
            give(x, contribution)


@published(
    "a gradient is assigned where it must be added",
    "micrograd's lecture, as its first version, before += is put in",
    "a + a has slope 1",
)
def gradient_overwritten():
    return sweep_by(newest_first, lambda old, new: new)


@published(
    "the first gradient is kept by reference and the second added to it in place",
    "neunet (autograd.py; its source marks the repair)",
    "a + b shares one gradient array, and what is added for a reaches b",
)
def gradient_aliased():
    return sweep_by(newest_first, operator.iadd)


@published(
    "a tensor passes its gradient on as soon as it is first reached",
    "minigrad (kennysong; its source tells of it)",
    "right for chains; a tensor used at two depths passes on half of its gradient",
)
def depth_first():
    def run(give, grads, roots):
        visited = set()

        def go(t):
            visited.add(t)
            for x, contribution in contributions(t, grads[t]):
                give(x, contribution)
                if x._node is not None and x not in visited:
                    go(x)

        for t in roots:
            go(t)

    return sweep_by(run)


@published(
    "the order is found by recursion",
    "micrograd (engine.py, build_topo), smolgrad (core/engine.py, _tsort)",
    "RecursionError on a chain of a thousand ops",
)
def recursive():
    def run(give, grads, roots):
        seen = set()

        def visit(t):
            if t not in seen and t._node is not None:
                seen.add(t)
                for x in filter(tracked, t._node.inputs):
                    visit(x)

        for t in roots:
            visit(t)
        newest_first(give, grads, roots)

    return sweep_by(run)


@published(
    "gradients between the leaves are kept from one backward pass to the next",
    "micrograd (issue 53)",
    "two passes over one graph give three times the gradient instead of two",
)
def second_backward_stale():
    kept: dict[Any, Any] = {}

    def run(give, grads, roots):
        for t in history(roots)[::-1]:
            if all(t is not root for root in roots):
                give(t, kept.get(t, 0))
                kept[t] = grads[t]
            for x, contribution in contributions(t, grads[t]):
                give(x, contribution)

    return sweep_by(run)


@published(
    "the gradient check weighs all results with 1",
    "most small checkers; SmallPebble sums the output, for one",
    "the results of softmax sum to 1 and those of layer norm to 0, so their gradients are checked "
    "as 0 = 0, right or wrong",
)
def checker_all_ones():
    return [(slopes, "of_both_signs", np.ones_like)]
