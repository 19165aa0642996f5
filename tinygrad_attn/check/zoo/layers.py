"""Bugs of layers: softmax, normalisation, masks, and state that is kept outside the call."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import functional, nn, ops
from ...engine import op
from ...functional import attention as equations
from ..records import array_of
from .bug import Patches, in_place_of, keep, rule


def _by_softmax(g: Any, y: Any, axis: int) -> Any:
    """The right gradient of softmax."""
    return y * (g - (g * y).sum(axis, keepdims=True))


def _with_rule(function: Any, rule: Any, joint: bool = False) -> Patches:
    """The same equation as an op of its own, with this rule."""
    right = getattr(equations, function.__name__)
    flawed = op(lambda *inputs, **settings: right(*inputs, **settings))
    flawed.__name__ = function.__name__
    (flawed.vjp_all if joint else flawed.vjp)(rule)
    return in_place_of(function, flawed)


def _other_attention(attention: Any) -> Patches:
    """Attention as this function has it, also where queries, keys and values come packed."""
    return [
        (equations, "attention", attention),
        (equations.packed_attention, "kernel", None),
    ]


# ---- the layers of a Transformer


@keep(
    "softmax-batch",
    "the gradient of softmax is divided by the batch size",
    "numpy-transformer (activations.py, Softmax.backward)",
    "learning slows down with the batch; a check with all-ones cotangents sees 0 = 0",
)
def _() -> Patches:
    return _with_rule(
        functional.softmax, lambda g, y, x, *, axis: _by_softmax(g, y, axis) / x.shape[0]
    )


@keep(
    "log-softmax-batch",
    "the gradient of log_softmax is divided by the batch size",
    "numpy-transformer (activations.py, LogSoftmax.backward)",
    "the loss already has its 1/N: it is counted twice",
)
def _() -> Patches:
    return _with_rule(
        functional.log_softmax,
        lambda g, y, x, *, axis: (g - np.exp(y) * g.sum(axis, keepdims=True)) / x.shape[0],
    )


@keep(
    "softmax-twice",
    "the gradient of softmax is doubled",
    "fromscratchtoml (issue 65: softmax off by a factor of two)",
    "trains, only with another learning rate; a check with all-ones cotangents sees 0 = 0",
)
def _() -> Patches:
    return _with_rule(functional.softmax, lambda g, y, x, *, axis: 2 * _by_softmax(g, y, axis))


@keep(
    "softmax-global-max",
    "the maximum of the whole array is subtracted instead of each row's",
    "several small NumPy engines",
    "rows far below the largest underflow to 0/0 = NaN",
)
def _() -> Patches:
    def softmax(x: Any, *, axis: int = -1) -> Any:
        e = ops.exp(x - array_of(x).max())
        return e / e.sum(axis=axis, keepdims=True)

    return in_place_of(functional.softmax, softmax)


@keep(
    "log-of-softmax",
    "log_softmax is computed as log(softmax(x))",
    "DeZero (functions.py, softmax_cross_entropy) and numpy-transformer (LogSoftmax)",
    "large differences between logits give log 0 = -inf, and then NaN",
)
def _() -> Patches:
    def log_softmax(x: Any, *, axis: int = -1) -> Any:
        e = ops.exp(x - array_of(x).max(axis=axis, keepdims=True))
        with np.errstate(divide="ignore"):
            return ops.log(e / e.sum(axis=axis, keepdims=True))

    return in_place_of(functional.log_softmax, log_softmax)


@keep(
    "layer-norm-weight",
    "the weight is multiplied outside the means of the rule",
    "numpy-transformer (layer_norm.py, backward)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def _() -> Patches:
    def wrong(
        g: Any, y: Any, x: Any, weight: Any = None, bias: Any = None, *, ndim: int, eps: float
    ) -> Any:
        axes, lead = tuple(range(-ndim, 0)), tuple(range(x.ndim - ndim))
        std = np.sqrt(x.var(axis=axes, keepdims=True) + eps)
        h = (x - x.mean(axis=axes, keepdims=True)) / std
        mean = g.mean(axis=axes, keepdims=True)
        dx = (g - mean - h * (g * h).mean(axis=axes, keepdims=True)) / std
        dx = dx if weight is None else dx * weight
        return (
            dx,
            None if weight is None else (g * h).sum(axis=lead),
            None if bias is None else g.sum(axis=lead),
        )

    return _with_rule(functional.layer_norm, wrong, joint=True)


@keep(
    "rms-norm-weight",
    "the weight is multiplied outside the mean of the rule",
    "Tricycle (layers.py, RMSNorm.back_fn)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def _() -> Patches:
    def wrong(g: Any, y: Any, x: Any, weight: Any = None, *, ndim: int, eps: float) -> Any:
        axes, lead = tuple(range(-ndim, 0)), tuple(range(x.ndim - ndim))
        r = 1 / np.sqrt((x * x).mean(axis=axes, keepdims=True) + eps)
        dx = r * (g - x * r * r * (x * g).mean(axis=axes, keepdims=True))
        dx = dx if weight is None else dx * weight
        return dx, None if weight is None else (g * x * r).sum(axis=lead)

    return _with_rule(functional.rms_norm, wrong, joint=True)


@keep(
    "masked-row-nan",
    "blocked scores are -inf, so a row with every key blocked is -inf - (-inf)",
    "numpy-transformer (self_attention.py, forward)",
    "one sequence of padding alone turns the loss into NaN",
)
def _() -> Patches:
    right = equations.attention

    def attention(q: Any, k: Any, v: Any, mask: Any = None, **settings: Any) -> Any:
        out = right(q, k, v, mask, **settings)
        if mask is None:
            return out
        seen = array_of(mask)
        blocked: Any = ~seen.any(axis=-1) if seen.dtype == bool else np.isneginf(seen).all(axis=-1)
        return ops.where(blocked[..., None], np.nan, out)

    return _other_attention(attention)


@keep(
    "masked-row-uniform",
    "blocked scores are set to -1e9, so a row with every key blocked looks at all of them equally",
    "many implementations (-1e9 or -1e20 for -inf)",
    "a padded query gives the mean of all values, blocked ones included",
)
def _() -> Patches:
    right = equations.attention

    def attention(q: Any, k: Any, v: Any, mask: Any = None, **settings: Any) -> Any:
        if mask is not None:
            seen = array_of(mask)
            plain = np.where(seen, 0, -1e9) if seen.dtype == bool else np.maximum(seen, -1e9)
            mask = plain.astype(q.dtype)
        return right(q, k, v, mask, **settings)

    return _other_attention(attention)


# ---- state outside the call


@keep(
    "activation-singleton",
    "one ReLU object for the whole program remembers its last input",
    "numpy-transformer (activations.py, the dict of instances)",
    "two layers with the same activation differentiate the second one's input twice",
)
def _() -> Patches:
    last: dict[str, Any] = {}

    def forward(x: Any) -> Any:
        last["x"] = x
        return np.maximum(x, 0)

    def wrong(g: Any, y: Any, x: Any) -> Any:
        return g * (last["x"] > 0) if last["x"].shape == x.shape else g * (x > 0)

    return [(ops.relu, "forward", forward), *rule(ops.relu, 0, wrong)]


@keep(
    "linear-layer-state",
    "the layer remembers its last input, not the call",
    "Tricycle (layers.py, Dense)",
    "a layer used twice before backward, as with shared weights, gets a wrong weight gradient",
)
def _() -> Patches:
    last: dict[int, Any] = {}

    @op
    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        last[id(weight)] = x
        y = x @ weight.T
        return y if bias is None else y + bias

    @linear.vjp_all
    def _wrong(g: Any, y: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        rows, other = g.reshape(-1, g.shape[-1]), last[id(weight)].reshape(-1, x.shape[-1])
        mine = x.reshape(-1, x.shape[-1])
        kept = other if len(other) == len(mine) else mine
        return g @ weight, rows.T @ kept, None if bias is None else rows.sum(axis=0)

    return in_place_of(functional.linear, linear)


@keep(
    "dropout-layer-state",
    "the mask is kept on the layer, and one Dropout serves two sublayers",
    "numpy-transformer (encoder_layer.py and dropout.py)",
    "the first sublayer's gradient is masked with the second one's mask",
)
def _() -> Patches:
    last: dict[str, Any] = {}

    def forward(x: Any, *, keep: Any, p: float) -> Any:
        last["keep"] = keep
        return x * (keep / x.dtype.type(1 - p))

    dropped = op(forward)
    dropped.vjp(
        lambda g, y, x, *, keep, p: (
            g * (last["keep"] if last["keep"].shape == g.shape else keep) / (1 - p)
        )
    )

    def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
        return dropped(x, keep=functional.draw_keep(x, p), p=p) if training and p else x

    return [(functional, "dropout", dropout)]


@keep(
    "parameters-in-a-set",
    "parameters are collected in a set",
    "DeZero (layers.py, Layer._params)",
    "their order changes from run to run, and with it files, optimiser state and every sum over "
    "them",
)
def _() -> Patches:
    right = nn.Module.parameters
    return [
        (
            nn.Module,
            "parameters",
            lambda self, recurse=True: iter(
                sorted(right(self, recurse), key=lambda p: hash((id(p) >> 4) * 2654435761 % 2**32))
            ),
        )
    ]
