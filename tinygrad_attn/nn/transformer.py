"""The Transformer of Vaswani et al., 2017, with PyTorch's arguments, names and initial values.

A residual step is norm(x + f(x)) as in the paper, or x + f(norm(x)) with `norm_first` (Xiong et
al., 2020). In shapes, B is the batch size, T the target length, S the source length and E is
d_model. `**cache` accepts only `cache=`, a KeyValueCache.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import functional as F
from ..tensor import Tensor, get_default_dtype
from . import init
from .attention import MultiheadAttention
from .cache import KeyValueCache
from .containers import ModuleList
from .layers import Dropout, LayerNorm, Linear, floating
from .module import Module

Function = Callable[[Any], Any]
Activation = str | Function
ACTIVATIONS: dict[str, Function] = {"relu": F.relu, "gelu": F.gelu}


def activation_function(activation):
    """Return the function for "relu" or "gelu". A callable is returned unchanged."""
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be 'relu', 'gelu' or a function, got {activation!r}.")
    return ACTIVATIONS[activation]


class FeedForward(Module):
    """y = linear2(dropout(activation(linear1(x)))) at each position"""

    def __init__(
        self, d_model: int, d_ff: int, dropout: float = 0.0, activation: Activation = "relu"
    ):
        self.linear1 = Linear(d_model, d_ff)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(d_ff, d_model)
        self.activation = activation_function(activation)

    def forward(self, x) -> Tensor:
        """(..., d_model) -> (..., d_model)"""
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class _Layer(Module):
    """The base class of encoder and decoder layers."""

    _reads_memory = False
    _shown = ("norm_first",)

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ):
        heads = partial(MultiheadAttention, d_model, nhead, dropout, bias, batch_first=batch_first)
        norm = partial(LayerNorm, d_model, layer_norm_eps, bias=bias)
        self.self_attn = heads()
        if self._reads_memory:
            self.multihead_attn = heads()
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm_first = norm_first
        self.norm1, self.norm2 = norm(), norm()
        if self._reads_memory:
            self.norm3 = norm()
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        if self._reads_memory:
            self.dropout3 = Dropout(dropout)
        self.activation = activation_function(activation)

    def _residual(self, x, norm, dropout, block):
        return x + dropout(block(norm(x))) if self.norm_first else norm(x + dropout(block(x)))

    _feed_forward: Any = FeedForward.forward  # uses linear1, activation, dropout, linear2


def _masks(mask, padding, is_causal, cache):
    """Return the keyword arguments for an attention call."""
    masks = {"attn_mask": mask, "key_padding_mask": padding, "is_causal": is_causal}
    return {**masks, "need_weights": False, **cache}


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each with a residual connection and a layer norm.

    Arguments, parameters and initial values match torch.nn.TransformerEncoderLayer.
    """

    def forward(
        self,
        src,
        src_mask=None,
        src_key_padding_mask=None,
        is_causal: bool | None = False,
        **cache: KeyValueCache,
    ) -> Tensor:
        """src (S, B, E), or (B, S, E) with batch_first, or (S, E) -> the same shape.

        `src_mask` is (S, S) or (B*H, S, S), and `src_key_padding_mask` is (B, S). True means
        blocked. With a `cache`, src contains only the new tokens.
        """
        masks = _masks(src_mask, src_key_padding_mask, is_causal, cache)
        attend = lambda x: self.self_attn(x, x, x, **masks)[0]
        x = self._residual(floating(src, self), self.norm1, self.dropout1, attend)
        return self._residual(x, self.norm2, self.dropout2, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, cross-attention and a feed-forward network, each with a layer norm.

    Arguments, parameters and initial values match torch.nn.TransformerDecoderLayer.
    """

    _reads_memory = True

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal: bool | None = False,
        memory_is_causal: bool = False,
        **cache: KeyValueCache,
    ) -> Tensor:
        """tgt (T, B, E), memory (S, B, E) -> (T, B, E). With batch_first, B comes first.

        `tgt_mask` is (T, T), `memory_mask` (T, S), `tgt_key_padding_mask` (B, T) and
        `memory_key_padding_mask` (B, S). True means blocked. With a `cache`, tgt contains only the
        new tokens.
        """
        to_itself = _masks(tgt_mask, tgt_key_padding_mask, tgt_is_causal, cache)
        to_memory = _masks(memory_mask, memory_key_padding_mask, memory_is_causal, cache)
        attend = lambda x: self.self_attn(x, x, x, **to_itself)[0]
        read = lambda x: self.multihead_attn(x, memory, memory, **to_memory)[0]
        x = self._residual(floating(tgt, self), self.norm1, self.dropout1, attend)
        x = self._residual(x, self.norm2, self.dropout2, read)
        return self._residual(x, self.norm3, self.dropout3, self._feed_forward)


class _Stack(Module):
    """N copies of one layer, followed by a norm."""

    def __init__(self, layer, num_layers, norm):
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.num_layers, self.norm = num_layers, norm

    def _run(self, x, *args, **named):
        for layer in self.layers:
            x = layer(x, *args, **named)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """norm(layer_N(... layer_1(src))): N copies of one encoder layer.

    `enable_nested_tensor` and `mask_check` are ignored. Like torch.nn.TransformerEncoder.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ):
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src,
        mask=None,
        src_key_padding_mask=None,
        is_causal: bool | None = None,
        **cache: KeyValueCache,
    ) -> Tensor:
        """src (S, B, E), or (B, S, E) with batch_first -> same shape. Masks: see the layer."""
        masks = dict(src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return self._run(src, **masks, is_causal=is_causal, **cache)


class TransformerDecoder(_Stack):
    """norm(layer_N(... layer_1(tgt, memory), memory)). Like torch.nn.TransformerDecoder."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt, memory, *masks, **named) -> Tensor:
        """tgt (T, B, E), memory (S, B, E) -> (T, B, E). Arguments are as in the layer."""
        return self._run(tgt, memory, *masks, **named)


class Transformer(Module):
    """decoder(tgt, encoder(src)), as in Vaswani et al., 2017.

    Arguments, parameters and initial values match torch.nn.Transformer.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ):
        settings = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias,
        )  # fmt: skip
        norm = lambda: LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*settings), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*settings), num_decoder_layers, norm()
        )
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def forward(
        self,
        src,
        tgt,
        src_mask=None,
        tgt_mask=None,
        memory_mask=None,
        src_key_padding_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """src (S, B, E), tgt (T, B, E) -> (T, B, E). With batch_first, B comes first.

        `src_mask` is (S, S), `tgt_mask` (T, T) and `memory_mask` (T, S). The key padding masks of
        src, tgt and memory are (B, S), (B, T) and (B, S). True means blocked.
        """
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """Return the causal mask (sz, sz) as floats: -inf at later positions, 0 elsewhere."""
        return Tensor(np.where(F.causal_mask(sz), -np.inf, 0.0), dtype=get_default_dtype())
