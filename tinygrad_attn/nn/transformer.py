"""The Transformer of Vaswani et al., 2017: PyTorch's arguments, names, masks and initial values.

Every block is a residual step, x + f(x), and a layer norm: after the sum as in the paper
(post-norm), or before f (pre-norm, `norm_first`; Xiong et al., 2020). Shape letters: B batch, T
target positions, S source positions, E = d_model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
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

Activation = str | Callable[[Any], Any]
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": F.relu, "gelu": F.gelu}


def activation_function(activation: Activation) -> Callable[[Any], Any]:
    """ "relu", "gelu", or any function or module of one tensor."""
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation is 'relu', 'gelu' or a function such as F.silu, got {activation!r}."
        )
    return ACTIVATIONS[activation]


class FeedForward(Module):
    """y = linear2(dropout(activation(linear1(x)))), the same network at each position."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        *,
        dtype: Any = None,
    ) -> None:
        self.linear1 = Linear(d_model, d_ff, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(d_ff, d_model, dtype=dtype)
        self.activation = activation_function(activation)

    def forward(self, x: Any) -> Tensor:
        """(..., d_model) -> (..., d_model)"""
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class _Layer(Module):
    """What encoder and decoder layers share."""

    _reads_memory = False

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
        *,
        dtype: Any = None,
    ) -> None:
        attention = lambda: MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        norm = lambda: LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.self_attn = attention()
        if self._reads_memory:
            self.multihead_attn = attention()
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1, self.norm2 = norm(), norm()
        if self._reads_memory:
            self.norm3 = norm()
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        if self._reads_memory:
            self.dropout3 = Dropout(dropout)
        self.activation = activation_function(activation)

    def _residual(self, x: Any, norm: Any, dropout: Any, block: Callable[[Any], Any]) -> Any:
        """norm(x + dropout(block(x))), or with norm_first x + dropout(block(norm(x)))."""
        return x + dropout(block(norm(x))) if self.norm_first else norm(x + dropout(block(x)))

    def _feed_forward(self, x: Any) -> Any:
        """(..., E) -> (..., dim_feedforward) -> (..., E)"""
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def extra_repr(self) -> str:
        return "norm_first=True" * self.norm_first


def _attended(
    attention: Any, x: Any, memory: Any, padding: Any, mask: Any, causal: bool, cache: Any
) -> Any:
    """attention(x, memory, memory) without its weights."""
    return attention(
        x,
        memory,
        memory,
        key_padding_mask=padding,
        need_weights=False,
        attn_mask=mask,
        is_causal=causal,
        **_named(cache),
    )[0]


def _named(cache: Any) -> dict[str, Any]:
    """The argument, if there is a cache: a layer of the user's own need not take one."""
    return {} if cache is None else {"cache": cache}


class TransformerEncoderLayer(_Layer):
    """Self-attention, then a feed-forward network, each a residual step with its layer norm.

    Arguments, parameters and initial values as torch.nn.TransformerEncoderLayer.
    """

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
        *,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """src (S, B, E), with batch_first (B, S, E), unbatched (S, E) -> the same shape.

        Masks as in MultiheadAttention: `src_mask` (S, S) or (B*H, S, S), `src_key_padding_mask`
        (B, S), True = blocked. `is_causal` hides later positions; with a `cache`, src is only what
        is new.
        """
        masks = src_key_padding_mask, src_mask, is_causal, cache
        looks = lambda x: _attended(self.self_attn, x, x, *masks)
        x = self._residual(floating(src, self), self.norm1, self.dropout1, looks)
        return self._residual(x, self.norm2, self.dropout2, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to memory, a feed-forward network, each with its layer norm.

    Each is a residual step. Arguments, parameters and initial values as
    torch.nn.TransformerDecoderLayer.
    """

    _reads_memory = True

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """tgt (T, B, E), memory (S, B, E) -> (T, B, E).

        With batch_first (B, T, E), (B, S, E); unbatched (T, E), (S, E). Masks as in
        MultiheadAttention: `tgt_mask` (T, T), `memory_mask` (T, S), `tgt_key_padding_mask` (B, T),
        `memory_key_padding_mask` (B, S), True = blocked. With a `cache`, tgt is only what is new,
        and memory is projected once.
        """
        masks = tgt_key_padding_mask, tgt_mask, tgt_is_causal, cache
        seen = memory_key_padding_mask, memory_mask, memory_is_causal, cache
        looks = lambda x: _attended(self.self_attn, x, x, *masks)
        reads = lambda x: _attended(self.multihead_attn, x, memory, *seen)
        x = self._residual(floating(tgt, self), self.norm1, self.dropout1, looks)
        x = self._residual(x, self.norm2, self.dropout2, reads)
        return self._residual(x, self.norm3, self.dropout3, self._feed_forward)


class _Stack(Module):
    """N copies of one layer, and a norm."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None) -> None:
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def _run(self, x: Any, *memory: Any, **masks: Any) -> Any:
        """norm(layer_N(... layer_1(x, *memory), *memory))"""
        for layer in self.layers:
            x = layer(x, *memory, **masks)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """norm(layer_N(... layer_1(src))): N copies of one encoder layer.

    They start with equal weights, as in PyTorch. `enable_nested_tensor` and `mask_check` are
    accepted for PyTorch's sake and change nothing. As torch.nn.TransformerEncoder.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool | None = None,
        *,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """src (S, B, E), with batch_first (B, S, E), unbatched (S, E) -> the same shape.

        Arguments as a layer's; a causal `mask` needs no `is_causal`.
        """
        return self._run(
            src,
            src_mask=mask,
            src_key_padding_mask=src_key_padding_mask,
            is_causal=bool(is_causal),
            **_named(cache),
        )


class TransformerDecoder(_Stack):
    """norm(layer_N(... layer_1(tgt, memory), memory)): N copies of one decoder layer.

    As torch.nn.TransformerDecoder.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        *,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """tgt (T, B, E), memory (S, B, E) -> (T, B, E), or with batch_first (B, T, E) and so on.

        Arguments as a layer's; a causal `tgt_mask` needs no `tgt_is_causal`.
        """
        return self._run(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=bool(tgt_is_causal),
            memory_is_causal=memory_is_causal,
            **_named(cache),
        )


class Transformer(Module):
    """decoder(tgt, encoder(src)): the encoder-decoder of Vaswani et al., 2017.

    All matrices are drawn from Xavier's uniform distribution. Arguments, parameters and initial
    values as torch.nn.Transformer.
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
        *,
        dtype: Any = None,
    ) -> None:
        settings = (
            *(d_model, nhead, dim_feedforward, dropout, activation),
            *(layer_norm_eps, batch_first, norm_first, bias),
        )
        norm = lambda: LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        if custom_encoder is None:
            encoder_layer = TransformerEncoderLayer(*settings, dtype=dtype)
            custom_encoder = TransformerEncoder(encoder_layer, num_encoder_layers, norm())
        if custom_decoder is None:
            decoder_layer = TransformerDecoderLayer(*settings, dtype=dtype)
            custom_decoder = TransformerDecoder(decoder_layer, num_decoder_layers, norm())
        self.encoder, self.decoder = custom_encoder, custom_decoder
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """src (S, B, E), tgt (T, B, E) -> (T, B, E).

        With batch_first (B, S, E), (B, T, E); unbatched (S, E), (T, E). Masks: `src_mask` (S, S),
        `tgt_mask` (T, T), `memory_mask` (T, S), each also (B*H, ...), and the three key padding
        masks (B, S), (B, T), (B, S); True = blocked, floats are added. Causal masks need no hint
        `..._is_causal`.
        """
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, dtype: Any = None) -> Tensor:
        """The causal mask (sz, sz) as floats: 0 where a query may look, -inf at later positions."""
        dtype = get_default_dtype() if dtype is None else dtype
        return Tensor(np.where(F.causal_mask(sz), -np.inf, 0.0), dtype=dtype)
