"""The bug zoo: published bugs from small autograd engines, for exercises and for testing our tests.

    with bug("softmax-twice"):
        ta.gradcheck(F.softmax, x)

Inside the block, the published code replaces a VJP, a function or the backward sweep. The bugs
were found in public repositories. Later versions may have fixed them.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from tinygrad_attn import engine, functional, ops, transforms
from tinygrad_attn.check import subject
from tinygrad_attn.engine import Listener, Op, history, listening, op, sum_to, tracked


class Bug(NamedTuple):
    """One entry of the zoo."""

    name: str
    text: str  # the mistake, where it was found, and its symptom
    switched_on: Any  # the context manager that replaces the right code

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


bugs: dict[str, Bug] = {}


def list() -> tuple[Bug, ...]:
    """Return every bug. A bug prints as its name, mistake, origin and symptom."""
    return tuple(bugs.values())


@contextmanager
def bug(name: str) -> Iterator[Bug]:
    """Switch on the bug with this name, for the whole process, inside a `with` block."""
    if name not in bugs:
        raise ValueError(f"the zoo has no bug {name!r}; choose one of {', '.join(bugs)}.")
    with bugs[name].switched_on:
        yield bugs[name]


def published(change: Callable) -> Callable[..., Any]:
    """Add a function to the zoo under its own name; `change` makes it replace the right code."""

    def enter(wrong: Callable) -> Callable:
        name = wrong.__name__.replace("_", "-")
        bugs[name] = Bug(name, inspect.getdoc(wrong) or "", change(wrong))
        return wrong

    return enter


def vjp(of: Op, operand: int = 0, **more: Any) -> Callable:
    """Replace the VJP of an op for one operand."""
    before, after = of.vjps[:operand], of.vjps[operand + 1 :]
    return lambda wrong: patch.multiple(
        of, vjps=(*before, wrong, *after), kernel=None, adds_in_place=None, **more
    )


def vjp_all(of: Op) -> Callable:
    """Replace the VJPs of an op for all operands."""
    return lambda wrong: patch.multiple(of, vjps=(), joint_vjp=wrong, kernel=None)


def function(name: str, *operands: str) -> Callable:
    """Replace a function of F with an op that has a wrong VJP for these operands."""
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
    """Replace the engine's sweep, for first derivatives only."""

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
    """Call `give(input, contribution)` for each input of the op that computed t."""
    inputs = [*filter(tracked, t._node.inputs)]
    with listening(_Contributions()) as heard:
        engine.sweep([t], [np.array(grads[t])], wanted=inputs, retain_graph=True, inner=True)
    for x, contribution in heard.pairs:
        give(x, contribution)


class _Contributions(Listener):
    """Notes each contribution with the input that it is for."""

    def __init__(self) -> None:
        self.pairs: Any = []

    def pulled(
        self, y: Any, node: Any, g: Any, i: int, x: Any, contribution: Any, total: Any
    ) -> None:
        self.pairs.append((x, contribution))  # not a copy: a bug may change it


def newest_first(give, grads, roots) -> None:
    """Traverse the graph in the engine's order."""
    for t in history(roots)[::-1]:
        pull_back(give, grads, t)


adding = partial(sweep, newest_first)  # replace the sum of two contributions


# ---- single ops


@published(vjp(ops.tanh))
def tanh_zero(g, y, x):
    """The backward function is stored in an attribute that the engine never calls.
    Found in smolgrad (nn/_activations.py, tanh).
    Symptom: every layer before a tanh has a zero gradient and never learns.
    """
    return g * 0


@published(vjp(ops.sum))
def sum_axis_zero(g, y, x, *, axis, keepdims):
    """`if axis:` treats axis 0 as no axis, so the gradient of sum(axis=0) gets the wrong axis.
    Found in smolgrad (core/engine.py, sum) and SmallPebble (core/ops.py, sum).
    Symptom: axis=1 is right, but the gradient of a square matrix for axis=0 is transposed.
    """
    return np.ones_like(x) * (g if keepdims else np.expand_dims(g, axis or -1))


@published(vjp(ops.transpose))
def transpose_same_axes(g, y, x, *, axes):
    """The VJP of transpose applies the same permutation instead of its inverse.
    Found in smolgrad (core/engine.py, T).
    Symptom: the gradient is right for every swap of two axes, but not for cycles such as (1, 2, 0).
    """
    return g.transpose(axes)


@published(vjp(ops.matmul))
def matmul_transpose_all(g, y, a, b):
    """The VJP of a matrix product transposes all axes of its operand, not just the last two.
    Found in DeZero (functions.py, MatMul).
    Symptom: matrices are fine, but batched products fail, or are silently wrong for equal sizes.
    """
    return g @ b.transpose()


def product_of_axes(x, axis):
    """Return the divisor of the wrong mean."""
    if isinstance(axis, tuple):
        return np.prod(axis) or 1
    return x.size / np.sum(x, axis=axis).size


def wrong_mean(x, *, axis=None, keepdims=False):
    """Return the mean of the bug `mean-tuple`."""
    return np.sum(x, axis=axis, keepdims=keepdims) / product_of_axes(x, axis)


@published(vjp(ops.mean, forward=wrong_mean))
def mean_tuple(g, y, x, *, axis, keepdims):
    """The mean over a tuple of axes divides by the product of the axis numbers, not the axis sizes.
    Found in smolgrad (core/engine.py, mean).
    Symptom: a wrong value with a matching gradient, which no gradient check detects.
    """
    vjp_of_sum: Any = ops.sum.vjps[0]
    return vjp_of_sum(g / product_of_axes(x, axis), y, x, axis=axis, keepdims=keepdims)


@published(vjp(ops.getitem))
def getitem_overwrite(g, y, x, *, index):
    """`grad[index] += g` adds only once where an index is repeated.
    Found in smolgrad (core/engine.py, __getitem__).
    Symptom: x[[0, 0]] counts only one of its two uses.
    """
    out = np.zeros_like(x)
    out[index] += g
    return out


@published(vjp(ops.embedding))
def embedding_overwrite(g, y, weight, *, indices):
    """`out[index] = g` overwrites earlier gradients where an index is repeated.
    Found in PyTorch 0.1 (issue 1528, indexing with duplicates).
    Symptom: a token that occurs twice in a batch learns from only one occurrence.
    """
    out = np.zeros_like(weight)
    out[indices] = g
    return out


@published(vjp_all(ops.concatenate))
def concatenate_zero(g, y, *parts, **_):
    """The gradient is split in the forward pass, when it is still all zeros.
    Found in smolgrad (core/engine.py, cat).
    Symptom: the joined tensors get a zero gradient.
    """
    return [np.zeros_like(part) for part in parts]


@published(vjp(ops.subtract))
def minus_same_operand(g, y, a, b):
    """Local gradients are stored in a dict by operand, so in x - x the second replaces the first.
    Found in minigrad (kennysong, minigrad.py, __sub__ and __truediv__).
    Symptom: x - x has the gradient -2 instead of 0.
    """
    return -g if a is b else g


@published(vjp_all(ops.maximum))
def maximum_tie(g, y, a, b):
    """At a tie, both operands of maximum get the whole gradient.
    Found in neunet (autograd.py, maximum: >= and <=).
    Symptom: np.maximum(x, x) has slope 2.
    """
    return g * (a >= b), g * (a <= b)


@published(vjp(ops.max))
def max_tie(g, y, x, *, axis, keepdims):
    """Every element that ties for the maximum gets the whole gradient.
    Found in DeZero (functions.py, Max) and neunet (autograd.py, max).
    Symptom: the gradients of tied elements add up to more than the incoming gradient.
    """
    g = g if keepdims or axis is None else np.expand_dims(g, axis)
    return g * (x == x.max(axis, keepdims=True))


@published(vjp(ops.where, 1))
def where_in_place(g, y, condition, a, b):
    """The VJP zeroes elements of the incoming gradient in place.
    Found in SmallPebble (core/ops.py, setat).
    Symptom: the change also reaches another operand that shares this gradient array.
    """
    g *= condition
    return g


# ---- layers


def weight_outside(norm, g, x, weight, **settings):
    """Return the gradients of norm(x) * weight for x (wrong) and for the weight (right)."""
    h, pullback = transforms.vjp(lambda x: norm(x, **settings), x)
    dx = pullback(g)[0] * (1 if weight is None else weight)
    return dx, sum_to(g * h, np.shape(weight))


layer_norm, rms_norm = functional.layer_norm, functional.rms_norm


@published(function("softmax", "x"))
def softmax_twice(g, y, x, axis=-1):
    """The gradient of softmax is doubled.
    Found in fromscratchtoml (issue 65: softmax off by a factor of two).
    Symptom: it acts like another learning rate. A cotangent of ones hides it, since 2 * 0 = 0.
    """
    return [2 * y * (g - (g * y).sum(axis, keepdims=True))]


@published(function("log_softmax", "x"))
def log_softmax_batch(g, y, x, axis=-1):
    """The gradient of log_softmax is divided by the batch size.
    Found in numpy-transformer (activations.py, LogSoftmax.backward).
    Symptom: the loss already divides by N, so the gradient is divided by N twice.
    """
    return [(g - np.exp(y) * g.sum(axis, keepdims=True)) / len(x)]


@published(function("layer_norm", "x", "weight", "bias"))
def layer_norm_weight(g, y, x, weight, bias, **settings):
    """The VJP averages over g before it multiplies g by the weight, not afterwards.
    Found in numpy-transformer (layer_norm.py, backward).
    Symptom: the gradient is right for the initial weight of ones, and wrong after the first update.
    """
    return *weight_outside(layer_norm, g, x, weight, **settings), sum_to(g, np.shape(bias))


@published(function("rms_norm", "x", "weight"))
def rms_norm_weight(g, y, x, weight, **settings):
    """The VJP averages over g before it multiplies g by the weight, not afterwards.
    Found in Tricycle (layers.py, RMSNorm.back_fn).
    Symptom: the gradient is right for the initial weight of ones, and wrong after the first update.
    """
    return weight_outside(rms_norm, g, x, weight, **settings)


attention = functional.scaled_dot_product_attention


@published(partial(patch.object, functional, "scaled_dot_product_attention"))
def masked_row_nan(q, k, v, *args, **settings):
    """Blocked scores are -inf, so softmax computes -inf - (-inf) in a row with all keys blocked.
    Found in numpy-transformer (self_attention.py, forward).
    Symptom: a single sequence that is all padding turns the loss into NaN.
    """
    # The weights of a row add up to 1, or to 0 if all keys are blocked.
    out, totals = (attention(q, k, x, *args, **settings) for x in (v, np.ones_like(v)))
    return np.where(totals == 0, np.nan, out)


last: dict[Any, Any] = {}


def remembering_relu(x):
    """Return max(x, 0), and keep x in a module-level variable."""
    last[x.shape] = x
    return np.maximum(x, 0)


@published(vjp(ops.relu, forward=remembering_relu))
def activation_singleton(g, y, x):
    """One ReLU object for the whole program remembers its last input.
    Found in numpy-transformer (activations.py, the dict of instances).
    Symptom: two layers that share an activation both use the input of the second one.
    """
    return g * (last.get(x.shape, x) > 0)


# ---- the sweep


@published(adding)
def gradient_overwritten(old, new):
    """A gradient is assigned where it should be added.
    Found in the first version of the code in micrograd's lecture, before += is introduced.
    Symptom: a + a has slope 1.
    """
    return new


@published(adding)
def gradient_aliased(old, new):
    """The first gradient is kept by reference, and the second is added to it in place.
    Found in neunet (autograd.py; its source marks the fix).
    Symptom: the operands of a + b share one gradient array, so an addition for a also changes b.
    """
    old += new
    return old


@published(sweep)
def depth_first(give, grads, roots):
    """A tensor passes on its gradient as soon as it is first reached.
    Found in minigrad (kennysong; its source mentions it).
    Symptom: chains are fine, but a tensor used at two depths passes on only part of its gradient.
    """

    @cache
    def visit(t):
        def give_and_visit(x, contribution):
            give(x, contribution)
            visit(x)

        if t._node is not None:
            pull_back(give_and_visit, grads, t)

    for t in roots:
        visit(t)


@published(partial(patch.object, subject, "random_like"))
def checker_all_ones(y, rng):
    """The gradient check gives every result the weight 1.
    Found in most small gradient checkers, such as SmallPebble's, which sums the output.
    Symptom: wrong gradients of softmax and layer norm pass, since their outputs have constant sums.
    """
    return np.ones_like(y)
