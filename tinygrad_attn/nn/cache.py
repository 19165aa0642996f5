"""Generating token by token without computing the past again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tensor import Tensor
from .module import Module


class KeyValueCache:
    """What attention modules have projected for earlier tokens, so that generating one more token costs one token.

        cache = nn.KeyValueCache()
        with ta.no_grad():
            y = encoder(embed(prompt), is_causal=True, cache=cache)         # (B, T, E), all of the prompt
            y = encoder(embed(next_token), is_causal=True, cache=cache)     # (B, 1, E), the same numbers as without

    One cache serves a whole model and belongs to one sequence (or batch) being generated.  Self-attention appends its
    keys and values.  Cross-attention keeps those of its first call, since the memory stays the same.  Positions of new
    tokens start at `cache.length`.  A key_padding_mask speaks of all keys, old ones first.  A model that calls one
    attention module twice in a forward pass cannot use it.
    """

    def __init__(self) -> None:
        self._kept: dict[Module, tuple[Any, Any]] = {}
        self._room: dict[Module, list[np.ndarray]] = {}         # where those of `_kept` that grew lie, with room for more
        self._first: Module | None = None

    @property
    def length(self) -> int:
        """How many tokens are behind us."""
        return 0 if self._first is None else self._kept[self._first][0].shape[-2]

    def __contains__(self, module: Module) -> bool:
        return module in self._kept

    def past(self, module: Module) -> int:
        """How many keys this module has in the cache."""
        return self._kept[module][0].shape[-2] if module in self._kept else 0

    def extend(self, module: Module, k: Any, v: Any) -> tuple[Any, Any]:
        """Append k (B, H, T, D) and v (B, H, T, V) to the module's and return all of them."""
        if self._first is None:
            self._first = module
        if module in self._kept:
            old_k, old_v = self._kept[module]
            if old_k.shape[:2] != k.shape[:2]:
                raise ValueError(f"this cache holds a batch of {old_k.shape[0]}, but the new tokens are a batch of "
                                 f"{k.shape[0]}; start each batch with a fresh KeyValueCache().")
            k, v = self._append(module, (old_k, old_v), (k, v))
        self._kept[module] = k, v
        return k, v

    def _append(self, module: Module, old: tuple[Any, Any], new: tuple[Any, Any]) -> list[Any]:
        """Old tokens and new ones; copied together only where a gradient may flow or the room is used up."""
        if any(x.requires_grad for x in (*old, *new)):
            return [np.concatenate(pair, axis=-2) for pair in zip(old, new, strict=True)]
        start, end = old[0].shape[-2], old[0].shape[-2] + new[0].shape[-2]
        room = self._room.get(module)
        if room is None or room[0].shape[-2] < end or old[0]._data.base is not room[0]:
            room = self._room[module] = [np.empty((*x.shape[:-2], 2 * end, x.shape[-1]), x.dtype) for x in old]
            for place, x in zip(room, old, strict=True):
                place[..., :start, :] = x._data
        for place, x in zip(room, new, strict=True):
            place[..., start:end, :] = x._data
        return [Tensor._of(place[..., :end, :]) for place in room]

    def keep(self, module: Module, k: Any, v: Any) -> None:
        """Store k and v for `get`."""
        self._kept[module] = k, v

    def get(self, module: Module) -> tuple[Any, Any]:
        """The module's (k, v)."""
        return self._kept[module]
