"""Generating token by token without computing the past again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine import Symbolic, array_of
from ..errors import describe
from ..tensor import Tensor
from .module import Module


class KeyValueCache:
    """The keys and values of earlier tokens, so that generating one more token costs one token.

        cache = nn.KeyValueCache()
        with ta.no_grad():
            y = encoder(embed(prompt), is_causal=True, cache=cache)        # (B, T, E)
            y = encoder(embed(next_token), is_causal=True, cache=cache)    # (B, 1, E)

    The numbers are the same as without. One cache serves a whole model and one sequence, or batch,
    that is generated. Self-attention takes the same object as query, key and value, and appends its
    keys and values. Cross-attention keeps those of its first call, since the memory stays the same.
    Another memory raises ValueError; numbers written into the same array are not noticed. Positions
    of new tokens start at `cache.length`. A key_padding_mask covers all keys, old ones first. A
    model that calls one attention module twice in a forward pass cannot use a cache.

    `cache.reorder(rows)` selects sequences of the batch, as a beam search does. `copy.copy(cache)`
    and `copy.deepcopy(cache)` are independent caches for the same modules,
    `copy.deepcopy((model, cache))` for the copied ones.
    """

    def __init__(self) -> None:
        self._kept: dict[Module, tuple[Any, Any]] = {}
        self._memory: dict[Module, list[np.ndarray]] = {}  # what cross-attention has projected
        self._room: dict[Module, Any] = {}  # longer arrays, whose first parts are kept

    def __copy__(self) -> KeyValueCache:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValueCache:
        """Return an independent cache. The arrays kept so far never change, so both use them."""
        new = KeyValueCache()
        for ours, theirs in ((self._kept, new._kept), (self._memory, new._memory)):
            theirs.update({memo.get(id(m), m): kept for m, kept in ours.items()})
        return new

    def _first(self) -> Module | None:
        """The first module that has tokens of its own here."""
        return next((module for module in self._kept if module not in self._memory), None)

    @property
    def length(self) -> int:
        """The number of tokens so far."""
        return self.past(self._first())

    @property
    def nbytes(self) -> int:
        """The number of bytes of keys and values, without the room to grow into."""
        return sum(x._data.nbytes for kept in self._kept.values() for x in kept)

    def past(self, module: Module | None) -> int:
        """The number of keys that this module has in the cache."""
        return self._kept[module][0].shape[-2] if module in self._kept else 0

    def reorder(self, rows: Any) -> None:
        """Go on with these sequences of the batch, in this order, as a beam search does.

        `rows` are integers, of which one may come several times, or a mask. Cross-attention's
        memory is to be memory[rows] from here on. Raises IndexError for a row that the batch does
        not have.
        """
        rows = np.ravel(array_of(rows))
        kept = {module: (k[rows], v[rows]) for module, (k, v) in self._kept.items()}
        memory = {module: [x[rows] for x in given] for module, given in self._memory.items()}
        self._kept, self._memory, self._room = kept, memory, {}

    def extend(self, module: Module, k: Any, v: Any) -> tuple[Any, Any]:
        """Append k (B, H, T, D) and v (B, H, T, V), Tensors, to the module's; return all of them.

        Raises ValueError for another batch size, for a module that keeps a memory here, and for one
        that has fallen behind the first one.
        """
        past, first = self.past(module), self._first()
        if module in self._memory:
            raise _refusal(self._memory[module][0], k)
        if first not in (None, module) and past + k.shape[-2] != self.length:
            raise ValueError(
                f"the first attention module has {self.length} tokens in this cache, but another "
                f"has {past} and gets {k.shape[-2]}: an earlier call failed half way; start a "
                "fresh KeyValueCache(). (Nor can a model use it that calls one attention module "
                "twice in a forward pass.)"
            )
        if module in self._kept:
            old = self._kept[module]
            if old[0].shape[:2] != k.shape[:2]:
                raise ValueError(
                    f"this cache holds a batch of {old[0].shape[0]}, but the new tokens are a "
                    f"batch of {k.shape[0]}; start each batch with a fresh KeyValueCache()."
                )
            rooms = self._room.get(module, (None, None))
            (k, v), self._room[module] = zip(*map(_appended, old, (k, v), rooms))
        self._kept[module] = k, v
        return k, v

    def memory(self, module: Module, key: Any, value: Any, project: Callable[[], Any]) -> Any:
        """The (k, v) that cross-attention projected from this key and value at the first call.

        Raises ValueError for another key or value, and for a module with tokens of its own.
        """
        given = [array_of(key), array_of(value)]
        if module not in self._kept:
            self._kept[module], self._memory[module] = project(), given
        known = self._memory.get(module)
        if known is None or not all(map(_same, known, given)):
            raise _refusal(self._kept[module][0] if known is None else known[0], key)
        return self._kept[module]


def _appended(old: Tensor, new: Tensor, room: np.ndarray | None) -> tuple[Any, Any]:
    """Return the old tokens with the new ones behind them, and the longer array that holds them.

    The new ones are written behind the old ones where there is room. Both are copied where a
    gradient may flow, dtypes differ, the room is used up or the computation is traced.
    """
    a, b = old._data, new._data
    if old.requires_grad or new.requires_grad or isinstance(b, Symbolic) or a.dtype != b.dtype:
        return np.concatenate([old, new], axis=-2), None
    end = a.shape[-2] + b.shape[-2]
    if room is None or a.base is not room or room.shape[-2] < end:
        room = np.concatenate([a, b, a], axis=-2)  # what follows b will be written over
    else:
        room[..., a.shape[-2] : end, :] = b
    return Tensor._of(room[..., :end, :]), room


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether these are the same numbers, which nearly always is quickly seen."""
    return a is b or a.__array_interface__ == b.__array_interface__ or np.array_equal(a, b)


def _refusal(known: Any, given: Any) -> ValueError:
    return ValueError(
        "self-attention with a cache takes the same object three times (new = x[:, -1:]; "
        "attention(new, new, new, cache=cache)); cross-attention's memory must stay the same. This "
        f"cache holds for the module {describe(known)}, and the call gives it {describe(given)}. "
        "Start a fresh KeyValueCache() for another memory."
    )
