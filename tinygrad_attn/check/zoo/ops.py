"""Bugs of single ops: wrong axes, lost uses, ties, numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from .bug import Patches, joint, keep, rule

# ---- wrong axes and shapes


@keep(
    "sum-axis-zero",
    "`if axis:` takes axis 0 for no axis, so the gradient of sum(axis=0) is not put back along "
    "axis 0",
    "smolgrad (core/engine.py, sum) and SmallPebble (core/ops.py, sum)",
    "x.sum(axis=1) is right, x.sum(axis=-1) too; an axis tuple starting elsewhere or axis=0 with "
    "square shapes is silently transposed",
)
def _() -> Patches:
    def wrong(g: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
        expanded = (
            np.expand_dims(g, axis)
            if axis and not keepdims
            else g[:, None]
            if axis == 0 and g.ndim == 1 and not keepdims
            else g
        )
        return np.ones_like(x) * expanded

    return rule(ops.sum, 0, wrong)


@keep(
    "transpose-same-axes",
    "the rule of transpose permutes with the same axes instead of the inverse ones",
    "smolgrad (core/engine.py, T)",
    "right for every swap of two axes; wrong, or a shape error, for a cycle such as (1, 2, 0)",
)
def _() -> Patches:
    return rule(ops.transpose, 0, lambda g, y, x, *, axes: g.transpose(axes))


@keep(
    "matmul-transpose-all",
    "the rule of a product transposes all axes of its operand, not the last two",
    "DeZero (functions.py, MatMul)",
    "right for matrices; batched products raise, or are silently wrong where all sizes are equal",
)
def _() -> Patches:
    return rule(ops.matmul, 0, lambda g, y, a, b: g @ b.transpose())


@keep(
    "matmul-outer",
    "matrix @ vector is differentiated with np.outer, which flattens a batch",
    "neunet (autograd.py, matmul)",
    "right for one matrix, a shape error for a batch of them",
)
def _() -> Patches:
    right = ops.matmul.vjps[0]
    return rule(
        ops.matmul,
        0,
        lambda g, y, a, b: np.outer(g, b) if a.ndim > 1 and b.ndim == 1 else right(g, y, a, b),  # type: ignore[misc]
    )


@keep(
    "mean-tuple",
    "the mean over a tuple of axes divides by the product of the axis numbers, not of their sizes",
    "smolgrad (core/engine.py, mean)",
    "value and gradient agree with each other, so no gradient check sees it; only the value is "
    "wrong",
)
def _() -> Patches:
    def count(x: Any, axis: Any) -> float:
        return (
            float(np.prod([a for a in axis])) or 1.0
            if isinstance(axis, tuple)
            else x.size
            if axis is None
            else x.shape[axis]
        )

    return [
        (
            ops.mean,
            "forward",
            lambda x, *, axis=None, keepdims=False: (
                x.sum(axis=axis, keepdims=keepdims) / count(x, axis)
            ),
        ),
        *rule(
            ops.mean,
            0,
            lambda g, y, x, *, axis, keepdims: ops.sum.vjps[0](  # type: ignore[misc]
                g / count(x, axis), y, x, axis=axis, keepdims=keepdims
            ),
        ),
    ]


# ---- lost and repeated uses


@keep(
    "getitem-zero",
    "the backward function is hung on an attribute that nobody calls",
    "smolgrad (core/engine.py, __getitem__)",
    "indexing trains nothing: the gradient is zero",
)
def _() -> Patches:
    return rule(ops.getitem, 0, lambda g, y, x, *, index: np.zeros_like(x))


@keep(
    "tanh-zero",
    "the backward function is hung on an attribute that nobody calls",
    "smolgrad (nn/_activations.py, tanh)",
    "everything below a tanh has a zero gradient and never learns",
)
def _() -> Patches:
    return rule(ops.tanh, 0, lambda g, y, x: g * 0)


@keep(
    "concatenate-zero",
    "the pieces of the gradient are cut in the forward pass, when it is still all zeros",
    "smolgrad (core/engine.py, cat)",
    "what is joined gets a zero gradient",
)
def _() -> Patches:
    return joint(
        ops.concatenate,
        lambda right, *_, **__: [None if part is None else part * 0 for part in right],
    )


@keep(
    "getitem-overwrite",
    "`grad[index] += g` adds only once where an index is repeated",
    "smolgrad (core/engine.py, __getitem__)",
    "x[[0, 0]] counts one of its two uses",
)
def _() -> Patches:
    def wrong(g: Any, y: Any, x: Any, *, index: Any) -> Any:
        out = np.zeros_like(x)
        out[index] += g
        return out

    return rule(ops.getitem, 0, wrong)


@keep(
    "embedding-overwrite",
    "`out[index] = g` overwrites where an index is repeated",
    "PyTorch 0.1 (issue 1528, indexing with duplicates)",
    "a token that occurs twice in a batch learns from one place only",
)
def _() -> Patches:
    def wrong(g: Any, y: Any, weight: Any, *, indices: Any) -> Any:
        out = np.zeros_like(weight)
        out[indices] = g
        return out

    return rule(ops.embedding, 0, wrong)


@keep(
    "minus-same-operand",
    "local gradients are kept in a dict by operand, so the second operand overwrites the first "
    "when both are one",
    "minigrad (kennysong, minigrad.py, __sub__ and __truediv__)",
    "x - x has the gradient -2 instead of 0",
)
def _() -> Patches:
    return rule(ops.subtract, 0, lambda g, y, a, b: -g if a is b else g)


@keep(
    "maximum-tie",
    "at a tie both operands of maximum get the whole gradient",
    "neunet (autograd.py, maximum: >= and <=)",
    "np.maximum(x, x) has slope 2",
)
def _() -> Patches:
    return [
        (
            ops.maximum,
            "vjps",
            (lambda g, y, a, b: g * (a >= b), lambda g, y, a, b: g * (a <= b)),
        ),
        (ops.maximum, "kernel", None),
    ]


@keep(
    "max-tie",
    "all elements that tie for the maximum get the whole gradient",
    "DeZero (functions.py, Max) and neunet (autograd.py, max)",
    "the gradients of tied elements add up to more than the incoming one",
)
def _() -> Patches:
    def wrong(g: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
        keep = lambda v: v if keepdims or axis is None else np.expand_dims(v, axis)
        return keep(g) * (x == keep(y))

    return rule(ops.max, 0, wrong)


# ---- numbers


@keep(
    "log-hidden-eps",
    "the rule of log divides by x + 1e-8",
    "Tricycle (unary.py, ULog)",
    "small probabilities learn too little, and nobody is told",
)
def _() -> Patches:
    return rule(ops.log, 0, lambda g, y, x: g / (x + 1e-8))


@keep(
    "add-float32",
    "results are made float32 whatever the operands are",
    "neunet (autograd.py, add and the other operators)",
    "float64 is accepted and silently lost, so that no gradient check can pass tightly",
)
def _() -> Patches:
    return [
        (ops.add, "forward", lambda a, b: np.asarray(a + b).astype(np.float32)),
        (ops.add, "kernel", None),
    ]


@keep(
    "sqrt-promotes",
    "a NumPy scalar such as np.sqrt(d) in a product makes float32 into float64",
    "SmallPebble (maxax), Tricycle (Embedding), and others",
    "everything after it runs in float64, at half the speed and twice the memory",
)
def _() -> Patches:
    return [
        (
            ops.divide,
            "forward",
            lambda a, b: a / (np.float64(b) if isinstance(b, (int, float)) else b),
        )
    ]


@keep(
    "where-in-place",
    "the rule sets elements of the incoming gradient to zero in place",
    "SmallPebble (core/ops.py, setat)",
    "another operand that shares this gradient array finds it changed",
)
def _() -> Patches:
    def wrong(g: Any, y: Any, condition: Any, a: Any, b: Any) -> Any:
        g = g if g.flags.writeable else g.copy()
        g[np.broadcast_to(np.logical_not(condition), g.shape)] = 0
        return g

    return rule(ops.where, 1, wrong)
