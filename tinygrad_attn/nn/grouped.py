"""Attention of today's language models: grouped queries and rotary positions.

In shapes, H is the number of query heads, G the number of key and value heads, and R = H / G; the
other letters are as in `attention.py`.
"""

import math

import numpy as np

from .. import functional as F
from ..engine import heard
from ..errors import describe
from ..functional.attention import attention
from ..tensor import Tensor
from . import inside
from .cache import KeyValueCache
from .layers import Identity, Linear, floating
from .masks import merge_masks
from .module import Module


class GroupedQueryAttention(Module):
    """y = [head_1 ... head_H] W_o^T; each key and value head serves H / G query heads.

    G is `num_kv_heads`. `rotary_base` is the base of `F.rotary`, 10000 in the first models; None
    adds no positions. `bias` adds biases to queries, keys and values. The parameters have the names
    of Llama, Mistral and Qwen2 in Hugging Face's library. Ainslie et al., 2023.
    """

    _shown = ("embed_dim", "num_heads", "num_kv_heads", "head_dim", "rotary_base")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int | None = None,
        rotary_base: float | None = None,
        bias: bool = False,
    ):
        if num_heads % num_kv_heads or (head_dim is None and embed_dim % num_heads):
            raise ValueError(
                f"num_heads={num_heads} must be a multiple of num_kv_heads={num_kv_heads}, and "
                f"embed_dim={embed_dim} a multiple of num_heads. Choose other numbers of heads, or "
                "set head_dim=."
            )
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = head_dim or embed_dim // num_heads
        self.rotary_base = rotary_base
        queries, keys = num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.q_proj = Linear(embed_dim, queries, bias)
        self.k_proj, self.v_proj = Linear(embed_dim, keys, bias), Linear(embed_dim, keys, bias)
        self.heads = Identity()  # hooks and patches of its output reach each head
        self.o_proj = Linear(queries, embed_dim, bias=False)

    def forward(
        self,
        x,
        key_padding_mask=None,
        attn_mask=None,
        is_causal: bool = True,
        *,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """(B, T, E) -> (B, T, E). With a `cache`, x contains only the new tokens.

        Masks are as in MultiheadAttention, but is_causal is True by default. `heads` returns the
        heads side by side, (B, T, H D). `ta.record_attention` records the weights (B, H, T, S).
        """
        x = floating(x, self)
        if x.ndim != 3 or x.shape[-1] != self.embed_dim:
            raise ValueError(
                f"GroupedQueryAttention takes (B, T, {self.embed_dim}), got {describe(x)}."
            )
        q, k, v = self._heads(x, cache)
        (b, g, s, d), (_, h, t, _) = k.shape, q.shape
        mask, is_causal = merge_masks(
            attn_mask, key_padding_mask, is_causal, (b, h, t, s), q.dtype, past=s - t
        )
        # The heads of a group are like heads of one batch entry, or, for a single token, like
        # tokens. So keys and values are shared without copies.
        lead, rows = ((b, g), h // g) if t == 1 else ((b * g, h // g), t)
        if t != 1:
            share = lambda y: np.broadcast_to(y.reshape(b * g, 1, s, d), (*lead, s, d))
            k, v = share(k), share(v)
        if mask is not None and mask.ndim == 4:
            mask = np.broadcast_to(mask, (b, h, t, s)).reshape(*lead, rows, s)
        attended, weights = attention(
            q.reshape(*lead, rows, d),
            k,
            v,
            mask,
            scale=1 / math.sqrt(d),
            is_causal=is_causal,
            need_weights=bool(heard("attended")),
        )
        if weights is not None:
            inside.record(weights.reshape(b, h, t, s))
        return self.o_proj(self.heads(F.merge_heads(attended.reshape(b, h, t, d))))

    def _heads(self, x, cache):
        """Return q (B, H, T, D), k and v (B, G, S, D), rotated and with all cached tokens."""
        q = F.split_heads(self.q_proj(x), self.num_heads)
        k = F.split_heads(self.k_proj(x), self.num_kv_heads)
        v = F.split_heads(self.v_proj(x), self.num_kv_heads)
        past = 0 if cache is None else cache.past(self)
        if self.rotary_base is not None:
            positions = np.arange(past, past + x.shape[1])
            q, k = (F.rotary(y, positions, self.rotary_base) for y in (q, k))
        if cache is not None:
            k, v = cache.extend(self, k, v)
        return q, k, v
