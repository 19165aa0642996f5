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

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from .. import functional, ops, transforms
from ..engine import Op, history, op, sum_to, tracked
from . import slopes
from .trace import Step


class Bug(NamedTuple):
    """One entry of the zoo."""

    name: str
    what: str  # the mistake
    where: str  # the project and place it was found in
    symptom: str  # what a user would see
    switched_on: Any  # the context in which it replaces the right text

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
    with bugs[name].switched_on:
        yield bugs[name]


# ---- what a wrong function replaces

Change = Callable[[Callable], Any]


def published(change: Change, what: str, where: str, symptom: str) -> Callable[..., Any]:
    """Put a wrong function into the zoo, under its own name; `change` says what it replaces."""

    def enter(wrong: Callable) -> Callable:
        name = wrong.__name__.replace("_", "-")
        bugs[name] = Bug(name, what, where, symptom, change(wrong))
        return wrong

    return enter


def replace(target: Any, attribute: str) -> Change:
    """This attribute."""
    return lambda wrong: patch.object(target, attribute, wrong)


def vjp(of: Op, operand: int = 0, **more: Any) -> Change:
    """The VJP of an op for one operand."""
    before, after = of.vjps[:operand], of.vjps[operand + 1 :]
    more |= dict(kernel=None, adds_in_place=None)
    return lambda wrong: patch.multiple(of, vjps=(*before, wrong, *after), **more)


def vjp_all(of: Op) -> Change:
    """The VJPs of an op for all operands."""
    return lambda wrong: patch.multiple(of, joint_vjp=wrong, kernel=None)


def function(name: str, *operands: str) -> Change:
    """A function of F, by an op with this VJP for all these operands."""
    right = getattr(functional, name)

    def change(wrong: Callable) -> Any:
        new = op(lambda *xs, **settings: right(**dict(zip(operands, xs)), **settings))

        def call(*args, **keywords):
            settings = inspect.signature(right).bind(*args, **keywords).arguments
            return new(*[settings.pop(operand, None) for operand in operands], **settings)

        new.__name__ = name
        new.vjp_all(wrong)
        return patch.object(functional, name, call)

    return change


def sweep(run: Callable[..., Any], add: Callable[..., Any] = operator.add) -> Any:
    """The engine's sweep, to first order only."""

    def wrong(roots, seeds, *, wanted=None, **_):
        grads: dict[Any, Any] = {}

        def give(x, contribution):
            grads[x] = add(grads[x], contribution) if x in grads else contribution

        for t, seed in zip(roots, seeds):
            give(t, np.array(seed))
        run(give, grads, roots)
        return {x: np.array(g) for x, g in grads.items() if wanted or x._node is None}

    return patch("tinygrad_attn.engine.backward.sweep", wrong)


def pull_back(give, grads, t) -> None:
    """Give each input its contribution, for each use by the op that computed t."""
    node = t._node
    call = Step(node.op, node.inputs, node.settings, t, None, None).call()
    for i, contribution in call.pull(np.array(grads[t]), [*map(tracked, node.inputs)]).items():
        give(node.inputs[i], contribution)


def newest_first(give, grads, roots) -> None:
    """Go through the graph as the engine does."""
    for t in history(roots)[::-1]:
        pull_back(give, grads, t)


def adding(add: Callable[..., Any]) -> Any:
    """The sum of two contributions."""
    return sweep(newest_first, add)


# ---- single ops


@published(
    vjp(ops.tanh),
    "the backward function is hung on an attribute that nobody calls",
    "smolgrad (nn/_activations.py, tanh)",
    "everything below a tanh has a zero gradient and never learns",
)
def tanh_zero(g, y, x):
    return g * 0


@published(
    vjp(ops.sum),
    "`if axis:` takes axis 0 for no axis, so the gradient of sum(axis=0) is not put back along it",
    "smolgrad (core/engine.py, sum) and SmallPebble (core/ops.py, sum)",
    "x.sum(axis=1) is right; axis=0 with square shapes is silently transposed",
)
def sum_axis_zero(g, y, x, *, axis, keepdims):
    return np.ones_like(x) * (g if keepdims else np.expand_dims(g, axis or -1))


@published(
    vjp(ops.transpose),
    "the VJP of transpose permutes with the same axes instead of the inverse ones",
    "smolgrad (core/engine.py, T)",
    "right for every swap of two axes; wrong, or a shape error, for a cycle such as (1, 2, 0)",
)
def transpose_same_axes(g, y, x, *, axes):
    return g.transpose(axes)


@published(
    vjp(ops.matmul),
    "the VJP of a product transposes all axes of its operand, not the last two",
    "DeZero (functions.py, MatMul)",
    "right for matrices; batched products raise, or are silently wrong where all sizes are equal",
)
def matmul_transpose_all(g, y, a, b):
    return g @ b.transpose()


@published(
    replace(ops, "mean"),
    "the mean over a tuple of axes divides by the product of the axis numbers, not of their sizes",
    "smolgrad (core/engine.py, mean)",
    "value and gradient agree with each other, so no gradient check sees it; the value is wrong",
)
def mean_tuple(x, axis=None, keepdims=False):
    total = ops.sum(x, axis=axis, keepdims=keepdims)
    return total / (float(np.prod(axis) or 1) if axis.__class__ is tuple else x.size / total.size)


@published(
    vjp(ops.getitem),
    "`grad[index] += g` adds only once where an index is repeated",
    "smolgrad (core/engine.py, __getitem__)",
    "x[[0, 0]] counts one of its two uses",
)
def getitem_overwrite(g, y, x, *, index):
    out = np.zeros_like(x)
    out[index] += g
    return out


@published(
    vjp(ops.embedding),
    "`out[index] = g` overwrites where an index is repeated",
    "PyTorch 0.1 (issue 1528, indexing with duplicates)",
    "a token that occurs twice in a batch learns from one place only",
)
def embedding_overwrite(g, y, weight, *, indices):
    out = np.zeros_like(weight)
    out[indices] = g
    return out


@published(
    vjp_all(ops.concatenate),
    "the pieces of the gradient are cut in the forward pass, when it is still all zeros",
    "smolgrad (core/engine.py, cat)",
    "what is joined gets a zero gradient",
)
def concatenate_zero(g, y, *parts, **_):
    return [np.zeros_like(part) for part in parts]


@published(
    vjp(ops.subtract),
    "local gradients are kept in a dict by operand: of x - x the second overwrites the first",
    "minigrad (kennysong, minigrad.py, __sub__ and __truediv__)",
    "x - x has the gradient -2 instead of 0",
)
def minus_same_operand(g, y, a, b):
    return -g if a is b else g


@published(
    vjp_all(ops.maximum),
    "at a tie both operands of maximum get the whole gradient",
    "neunet (autograd.py, maximum: >= and <=)",
    "np.maximum(x, x) has slope 2",
)
def maximum_tie(g, y, a, b):
    return g * (a >= b), g * (a <= b)


@published(
    vjp(ops.max),
    "all elements that tie for the maximum get the whole gradient",
    "DeZero (functions.py, Max) and neunet (autograd.py, max)",
    "the gradients of tied elements add up to more than the incoming one",
)
def max_tie(g, y, x, *, axis, keepdims):
    g = g if keepdims or axis is None else np.expand_dims(g, axis)
    return g * (x == x.max(axis, keepdims=True))


@published(
    vjp(ops.where, 1),
    "the VJP sets elements of the incoming gradient to zero in place",
    "SmallPebble (core/ops.py, setat)",
    "another operand that shares this gradient array finds it changed",
)
def where_in_place(g, y, condition, a, b):
    g *= condition
    return g


# ---- layers


def weight_outside(norm, g, x, weight, **settings):
    """The gradients with respect to x and the weight of norm(x) * weight, that of x wrong."""
    h, pullback = transforms.vjp(lambda x: norm(x, **settings), x)
    dx = pullback(g)[0].numpy() * (1 if weight is None else weight)
    return dx, sum_to(g * h.numpy(), np.shape(weight))


layer_norm, rms_norm = functional.layer_norm, functional.rms_norm


@published(
    function("softmax", "x"),
    "the gradient of softmax is doubled",
    "fromscratchtoml (issue 65: softmax off by a factor of two)",
    "trains, only with another learning rate; a check with all-ones cotangents sees 0 = 0",
)
def softmax_twice(g, y, x, axis=-1):
    return [2 * y * (g - (g * y).sum(axis, keepdims=True))]


@published(
    function("log_softmax", "x"),
    "the gradient of log_softmax is divided by the batch size",
    "numpy-transformer (activations.py, LogSoftmax.backward)",
    "the loss already has its 1/N: it is counted twice",
)
def log_softmax_batch(g, y, x, axis=-1):
    return [(g - np.exp(y) * g.sum(axis, keepdims=True)) / len(x)]


@published(
    function("layer_norm", "x", "weight", "bias"),
    "the weight is multiplied outside the means of the VJP",
    "numpy-transformer (layer_norm.py, backward)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def layer_norm_weight(g, y, x, weight, bias, **settings):
    return *weight_outside(layer_norm, g, x, weight, **settings), sum_to(g, np.shape(bias))


@published(
    function("rms_norm", "x", "weight"),
    "the weight is multiplied outside the mean of the VJP",
    "Tricycle (layers.py, RMSNorm.back_fn)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def rms_norm_weight(g, y, x, weight, **settings):
    return weight_outside(rms_norm, g, x, weight, **settings)


attention = functional.scaled_dot_product_attention


@published(
    replace(functional, "scaled_dot_product_attention"),
    "blocked scores are -inf, so a row with every key blocked is -inf - (-inf)",
    "numpy-transformer (self_attention.py, forward)",
    "one sequence of padding alone turns the loss into NaN",
)
def masked_row_nan(q, k, v, *args, **settings):
    totals = attention(q, k, np.ones_like(v), *args, **settings)  # 0 where all is blocked, else 1
    return np.where(totals == 0, np.nan, attention(q, k, v, *args, **settings))


last: dict[Any, Any] = {}


def remembering_relu(x):
    last[x.shape] = x
    return np.maximum(x, 0)


@published(
    vjp(ops.relu, forward=remembering_relu),
    "one ReLU object for the whole program remembers its last input",
    "numpy-transformer (activations.py, the dict of instances)",
    "two layers with the same activation differentiate the second one's input twice",
)
def activation_singleton(g, y, x):
    return g * (last[x.shape] > 0)


# ---- the sweep


@published(
    adding,
    "a gradient is assigned where it must be added",
    "micrograd's lecture, as its first version, before += is put in",
    "a + a has slope 1",
)
def gradient_overwritten(old, new):
    return new


@published(
    adding,
    "the first gradient is kept by reference and the second added to it in place",
    "neunet (autograd.py; its source marks the repair)",
    "a + b shares one gradient array, and what is added for a reaches b",
)
def gradient_aliased(old, new):
    old += new
    return old


@published(
    sweep,
    "a tensor passes its gradient on as soon as it is first reached",
    "minigrad (kennysong; its source tells of it)",
    "right for chains; a tensor used at two depths passes on half of its gradient",
)
def depth_first(give, grads, roots):
    @cache
    def visit(t):
        def give_and_visit(x, contribution):
            give(x, contribution)
            visit(x)

        if t._node is not None:
            pull_back(give_and_visit, grads, t)

    for t in roots:
        visit(t)


@published(
    sweep,
    "the order is found by recursion",
    "micrograd (engine.py, build_topo), smolgrad (core/engine.py, _tsort)",
    "RecursionError on a chain of a thousand ops",
)
def recursive(give, grads, roots):
    @cache
    def visit(t):
        for x in t._node.inputs if t._node else ():
            if tracked(x):
                visit(x)

    for t in roots:
        visit(t)
    newest_first(give, grads, roots)


kept: dict[int, Any] = {}


@published(
    sweep,
    "gradients between the leaves are kept from one backward pass to the next",
    "micrograd (issue 53)",
    "two passes over one graph give three times the gradient instead of two",
)
def second_backward_stale(give, grads, roots):
    for t in history(roots)[::-1]:
        if t not in set(roots):
            give(t, kept.get(t._node.number, 0))
            kept[t._node.number] = grads[t]
        pull_back(give, grads, t)


@published(
    replace(slopes, "of_both_signs"),
    "the gradient check weighs all results with 1",
    "most small checkers; SmallPebble sums the output, for one",
    "the results of softmax sum to 1 and those of layer norm to 0, so their gradients are checked "
    "as 0 = 0, right or wrong",
)
def checker_all_ones(c):
    return np.ones_like(c)
