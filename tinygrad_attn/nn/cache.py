"""The cache of keys and values, for generating text token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine import Symbolic, array_of
from ..errors import describe
from ..tensor import Tensor
from .module import Module


class KeyValueCache:
    """Stores the keys and values of earlier tokens, so that each step processes only new tokens.

        cache = nn.KeyValueCache()
        with ta.no_grad():
            y = encoder(embed(prompt), is_causal=True, cache=cache)        # (B, T, E)
            y = encoder(embed(next_token), is_causal=True, cache=cache)    # (B, 1, E)

    One cache serves a whole model, for one sequence or batch. New tokens start at position
    `cache.length`. A key_padding_mask covers all keys, old ones first. Cross-attention reuses the
    keys and values of its first call, and raises ValueError for a different memory, but does not
    detect in-place changes. A forward pass may call each attention module only once.
    `copy.copy(cache)` is independent; `copy.deepcopy((model, cache))` also copies the model.
    """

    def __init__(self) -> None:
        self._tokens: dict[Module, Any] = {}  # (k, v) of self-attention
        self._memory: dict[Module, Any] = {}  # (key, value, k, v) of cross-attention
        self._room: dict[Module, Any] = {}  # arrays of the tokens with spare room at the end

    def __copy__(self) -> KeyValueCache:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValueCache:
        """Return an independent cache. It shares the existing arrays, which never change."""
        new = KeyValueCache()
        for ours, theirs in ((self._tokens, new._tokens), (self._memory, new._memory)):
            theirs.update({memo.get(id(m), m): kept for m, kept in ours.items()})
        return new

    @property
    def length(self) -> int:
        """The number of cached tokens."""
        return self.past(next(iter(self._tokens), None))

    @property
    def nbytes(self) -> int:
        """The size of the cached keys and values in bytes."""
        kept = (*self._tokens.values(), *self._memory.values())
        return sum(x._data.nbytes for some in kept for x in some[-2:])

    def past(self, module: Module | None) -> int:
        """Return the number of keys cached for this module."""
        return self._tokens[module][0].shape[-2] if module in self._tokens else 0

    def extend(self, module: Module, k: Any, v: Any) -> Any:
        """Append k (B, H, T, D) and v (B, H, T, V); return all keys and values of the module."""
        if module in self._memory:
            raise _refusal(self._memory[module][0], k)
        past, length, old = self.past(module), self.length, self._tokens.get(module)
        if module is not next(iter(self._tokens), module) and past + k.shape[-2] != length:
            raise ValueError(
                f"this cache has {length} tokens for the first attention module, but {past} for "
                f"another one, to which this call adds {k.shape[-2]}. If an earlier call failed, "
                "create a new KeyValueCache(). Otherwise, the model calls a module twice."
            )
        if old is not None:
            if old[0].shape[:2] != k.shape[:2]:
                raise ValueError(
                    f"this cache has batch size {old[0].shape[0]}, but the new tokens have batch "
                    f"size {k.shape[0]}; create a new KeyValueCache() for each batch."
                )
            rooms = self._room.get(module, (None, None))
            (k, v), self._room[module] = zip(*map(_appended, old, (k, v), rooms))
        self._tokens[module] = k, v
        return k, v

    def memory(self, module: Module, key: Any, value: Any, project: Callable[[], Any]) -> Any:
        """Return (k, v) for cross-attention, which projects them in its first call."""
        given = [array_of(key), array_of(value)]
        if module in self._tokens:
            raise _refusal(self._tokens[module][0], key)
        if module not in self._memory:
            self._memory[module] = *given, *project()
        known = self._memory[module]
        if not all(a is b or np.array_equal(a, b) for a, b in zip(known, given)):
            raise _refusal(known[0], key)
        return known[2:]


def _appended(old: Tensor, new: Tensor, room: np.ndarray | None) -> tuple[Any, Any]:
    """Return the old and new tokens joined, and an array with room for more tokens, or None."""
    a, b = old._data, new._data
    # Copy both if a gradient may flow through them or the computation is traced.
    if old.requires_grad or new.requires_grad or isinstance(b, Symbolic) or a.dtype != b.dtype:
        return np.concatenate([old, new], axis=-2), None
    end = a.shape[-2] + b.shape[-2]
    if room is None or room.shape[-2] < end:
        room = np.concatenate([a, b, a], axis=-2)  # the part after b is spare room
    else:
        room[..., a.shape[-2] : end, :] = b
    return Tensor._of(room[..., :end, :]), room


def _refusal(known: Any, given: Any) -> ValueError:
    return ValueError(
        "with a cache, pass the same object as query, key and value of self-attention, and the "
        f"same memory to cross-attention in every call. Expected {describe(known)}, got "
        f"{describe(given)}. For a different memory, create a new KeyValueCache()."
    )
