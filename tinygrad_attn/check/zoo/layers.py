"""Bugs of layers: softmax, normalisation, masks, and state that is kept outside the call."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import functional, nn, ops
from ...engine import op
from ...fast import fused
from .bug import Patches, joint, keep, rule

# ---- the layers of a Transformer


@keep(
    "softmax-batch",
    "the gradient of softmax is divided by the batch size",
    "numpy-transformer (activations.py, Softmax.backward)",
    "learning slows down with the batch; a check with all-ones cotangents sees 0 = 0",
)
def _() -> Patches:
    return joint(fused.softmax, lambda right, g, y, x, **_: (right[0] / x.shape[0],))


@keep(
    "log-softmax-batch",
    "the gradient of log_softmax is divided by the batch size",
    "numpy-transformer (activations.py, LogSoftmax.backward)",
    "the loss already has its 1/N: it is counted twice",
)
def _() -> Patches:
    return joint(fused.log_softmax, lambda right, g, y, x, **_: (right[0] / x.shape[0],))


@keep(
    "softmax-twice",
    "the gradient of softmax is doubled",
    "fromscratchtoml (issue 65: softmax off by a factor of two)",
    "trains, only with another learning rate; a check with all-ones cotangents sees 0 = 0",
)
def _() -> Patches:
    return joint(fused.softmax, lambda right, *_, **__: (right[0] * 2,))


@keep(
    "softmax-global-max",
    "the maximum of the whole array is subtracted instead of each row's",
    "several small NumPy engines",
    "rows far below the largest underflow to 0/0 = NaN",
)
def _() -> Patches:
    def forward(x: Any, *, axis: int = -1) -> Any:
        e = np.exp(x - x.max())
        return e / e.sum(axis=axis, keepdims=True)

    return [(fused.softmax, "forward", forward)]


@keep(
    "log-of-softmax",
    "log_softmax is computed as log(softmax(x))",
    "DeZero (functions.py, softmax_cross_entropy) and numpy-transformer (LogSoftmax)",
    "large differences between logits give log 0 = -inf, and then NaN",
)
def _() -> Patches:
    def forward(x: Any, *, axis: int = -1) -> Any:
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        with np.errstate(divide="ignore"):
            return np.log(e / e.sum(axis=axis, keepdims=True))

    return [(fused.log_softmax, "forward", forward)]


@keep(
    "layer-norm-weight",
    "the weight is multiplied outside the means of the rule",
    "numpy-transformer (layer_norm.py, backward)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def _() -> Patches:
    def change(
        right: Any,
        g: Any,
        y: Any,
        x: Any,
        weight: Any = None,
        bias: Any = None,
        *,
        ndim: int,
        eps: float,
        **_: Any,
    ) -> Any:
        axes = tuple(range(-ndim, 0))
        std = np.sqrt(x.var(axis=axes, keepdims=True) + eps)
        h = (x - x.mean(axis=axes, keepdims=True)) / std
        dx = (
            g - g.mean(axis=axes, keepdims=True) - h * (g * h).mean(axis=axes, keepdims=True)
        ) / std
        return dx if weight is None else dx * weight, *right[1:]

    return joint(fused.layer_norm, change)


@keep(
    "rms-norm-weight",
    "the weight is multiplied outside the mean of the rule",
    "Tricycle (layers.py, RMSNorm.back_fn)",
    "right for the initial weight of ones, wrong as soon as it has learned something",
)
def _() -> Patches:
    def change(
        right: Any, g: Any, y: Any, x: Any, weight: Any = None, *, ndim: int, eps: float, **_: Any
    ) -> Any:
        axes = tuple(range(-ndim, 0))
        r = 1 / np.sqrt((x * x).mean(axis=axes, keepdims=True) + eps)
        dx = r * (g - x * r * r * (x * g).mean(axis=axes, keepdims=True))
        return dx if weight is None else dx * weight, *right[1:]

    return joint(fused.rms_norm, lambda *a, **k: change(*a, **k))


@keep(
    "masked-row-nan",
    "blocked scores are -inf, so a row with every key blocked is -inf - (-inf)",
    "numpy-transformer (self_attention.py, forward)",
    "one sequence of padding alone turns the loss into NaN",
)
def _() -> Patches:
    right = fused.attention.forward

    def forward(q: Any, k: Any, v: Any, mask: Any = None, **settings: Any) -> Any:
        out, saved = right(q, k, v, mask, **settings)
        if mask is not None:
            blocked = ~mask.any(axis=-1) if mask.dtype == bool else np.isneginf(mask).all(axis=-1)
            out[np.broadcast_to(blocked, out.shape[:-1])] = np.nan
        return out, saved

    return [(fused.attention, "forward", forward)]


@keep(
    "masked-row-uniform",
    "blocked scores are set to -1e9, so a row with every key blocked looks at all of them equally",
    "many implementations (-1e9 or -1e20 for -inf)",
    "a padded query gives the mean of all values, blocked ones included",
)
def _() -> Patches:
    right = fused.attention.forward

    def forward(q: Any, k: Any, v: Any, mask: Any = None, **settings: Any) -> Any:
        if mask is not None:
            mask = (
                np.where(mask, 0, -1e9).astype(q.dtype)
                if mask.dtype == bool
                else np.maximum(mask, -1e9)
            )
        return right(q, k, v, mask, **settings)

    return [(fused.attention, "forward", forward)]


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
    right = fused.linear.forward

    def forward(x: Any, weight: Any, bias: Any = None) -> Any:
        last[id(weight)] = x
        return right(x, weight, bias)

    def change(found: Any, g: Any, y: Any, x: Any, weight: Any, bias: Any = None, **_: Any) -> Any:
        rows = last[id(weight)].reshape(-1, x.shape[-1])
        return (
            found[0],
            g.reshape(-1, g.shape[-1]).T @ rows if len(rows) == x.size // x.shape[-1] else found[1],
            found[2],
        )

    return [(fused.linear, "forward", forward), *joint(fused.linear, change)]


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
