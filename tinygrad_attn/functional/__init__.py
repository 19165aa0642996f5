"""Functions of `torch.nn.functional` for Tensors, with `axis` instead of `dim`.

Given plain arrays, the functions return plain arrays.
"""

from typing import TYPE_CHECKING

from ..errors import missing_names
from .attention import (
    causal_mask,
    merge_heads,
    padding_mask,
    rotary,
    scaled_dot_product_attention,
    split_heads,
)
from .basic import (
    cross_entropy,
    dropout,
    embedding,
    gelu,
    layer_norm,
    linear,
    log_softmax,
    logsumexp,
    mse_loss,
    relu,
    rms_norm,
    sigmoid,
    silu,
    sinusoidal_positions,
    softmax,
    tanh,
)

__all__ = [
    "causal_mask",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "merge_heads",
    "mse_loss",
    "padding_mask",
    "relu",
    "rms_norm",
    "rotary",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "sinusoidal_positions",
    "softmax",
    "split_heads",
    "tanh",
]


if not TYPE_CHECKING:  # else a type checker would accept misspelt names
    __getattr__ = missing_names(__name__, globals())
