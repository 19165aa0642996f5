"""Generating token by token without computing the past again."""

from __future__ import annotations

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

    The numbers are the same as without. One cache serves a whole model and belongs to one sequence
    (or batch) being generated. Self-attention, which is what takes one and the same object as
    query, key and value, appends its keys and values. Cross-attention keeps those of its first
    call, since the memory stays the same: another memory is a ValueError, but other numbers written
    into the same array go unnoticed. Positions of new tokens start at `cache.length`. A
    key_padding_mask speaks of all keys, old ones first. A model that calls one attention module
    twice in a forward pass cannot use a cache.

    `cache.reorder(rows)` goes on with some sequences of the batch, as a beam search needs it.
    `copy.copy(cache)` and `copy.deepcopy(cache)` go on from here by themselves, for the same
    modules; `copy.deepcopy((model, cache))` for the copied ones.
    """

    def __init__(self) -> None:
        self._kept: dict[Module, tuple[Any, Any]] = {}
        # The key and the value that cross-attention has projected:
        self._memory: dict[Module, list[np.ndarray]] = {}
        # The arrays in which keys and values that grew lie, with room for more:
        self._room: dict[Module, list[np.ndarray]] = {}
        self._first: Module | None = None

    def __copy__(self) -> KeyValueCache:
        """A cache that grows by itself; what both have kept so far never changes and is shared."""
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValueCache:
        """The same, for the copy of the model if that is copied in the same call."""

        def named(kept: dict[Module, Any]) -> dict[Module, Any]:
            return {memo.get(id(module), module): value for module, value in kept.items()}

        new = KeyValueCache()
        new._kept, new._memory = named(self._kept), named(self._memory)
        new._first = memo.get(id(self._first), self._first)
        return new

    @property
    def length(self) -> int:
        """How many tokens are behind us."""
        return 0 if self._first is None else self._kept[self._first][0].shape[-2]

    @property
    def nbytes(self) -> int:
        """How many bytes the keys and values take, without the room to grow into."""
        return sum(x._data.nbytes for kept in self._kept.values() for x in kept)

    def reorder(self, rows: Any) -> None:
        """Go on with these sequences of the batch, in this order, as a beam search does.

        `rows` are whole numbers, of which one may come several times, or a mask. Cross-attention's
        memory is to be memory[rows] from here on. Raises IndexError for a row that the batch does
        not have, TypeError for what are no rows.
        """
        rows = np.ravel(array_of(rows))
        rows = rows if rows.size else rows.astype(np.int64)  # an empty list is a list of no rows
        if rows.dtype.kind not in "iub":
            raise TypeError(
                "reorder takes the numbers of the sequences to go on with, or a mask, got "
                f"{describe(rows)}."
            )
        kept = {module: (k[rows], v[rows]) for module, (k, v) in self._kept.items()}
        memory = {module: [x[rows] for x in given] for module, given in self._memory.items()}
        self._kept, self._memory, self._room = kept, memory, {}

    def __contains__(self, module: Module) -> bool:
        return module in self._kept

    def past(self, module: Module) -> int:
        """How many keys this module has in the cache."""
        return self._kept[module][0].shape[-2] if module in self._kept else 0

    def extend(self, module: Module, k: Any, v: Any) -> tuple[Any, Any]:
        """Append k (B, H, T, D) and v (B, H, T, V), Tensors, to the module's; return all of them.

        Raises ValueError for another batch size, for a module that keeps a memory here, and for one
        that has fallen behind the first one.
        """
        past = self.past(module)
        if module in self._memory:
            raise _refusal(self._memory[module], f"{k.shape[-2]} tokens of its own")
        if self._first not in (None, module) and past + k.shape[-2] != self.length:
            raise ValueError(
                f"the first attention module has {self.length} tokens in this cache, but another "
                f"has {past} and gets {k.shape[-2]}: an earlier call failed half way; start a "
                "fresh KeyValueCache(). (Nor can a model use it that calls one attention module "
                "twice in a forward pass.)"
            )
        if module in self._kept:
            old_k, old_v = self._kept[module]
            if old_k.shape[:2] != k.shape[:2]:
                raise ValueError(
                    f"this cache holds a batch of {old_k.shape[0]}, but the new tokens are a batch "
                    f"of {k.shape[0]}; start each batch with a fresh KeyValueCache()."
                )
            k, v = self._append(module, (old_k, old_v), (k, v))
        self._kept[module] = k, v
        if self._first is None:
            self._first = module
        return k, v

    def _append(self, module: Module, old: tuple[Any, Any], new: tuple[Any, Any]) -> list[Any]:
        """Old tokens and new ones, the new ones written behind the old ones where there is room.

        Both are copied where a gradient may flow, dtypes differ, the room is used up or the
        computation is only written down.
        """
        if any(
            x.requires_grad or x.dtype != old[0].dtype or isinstance(x._data, Symbolic)
            for x in (*old, *new)
        ):
            return [np.concatenate(pair, axis=-2) for pair in zip(old, new, strict=True)]
        start, end = old[0].shape[-2], old[0].shape[-2] + new[0].shape[-2]
        room = self._room.get(module)
        if room is None or room[0].shape[-2] < end or old[0]._data.base is not room[0]:
            room = self._room[module] = [
                np.empty((*x.shape[:-2], 2 * end, x.shape[-1]), x.dtype) for x in old
            ]
            for place, x in zip(room, old, strict=True):
                place[..., :start, :] = x._data
        for place, x in zip(room, new, strict=True):
            place[..., start:end, :] = x._data
        return [Tensor._of(place[..., :end, :]) for place in room]

    def keep(self, module: Module, k: Any, v: Any, memory: tuple[Any, Any]) -> None:
        """Store k and v, which were projected from this key and value, for `get`."""
        self._memory[module] = [array_of(x) for x in memory]
        self._kept[module] = k, v

    def get(self, module: Module, memory: tuple[Any, Any]) -> tuple[Any, Any]:
        """The module's (k, v). Raises ValueError unless projected from this key and value."""
        known = self._memory.get(module)
        if known is None or not all(_same(a, array_of(b)) for a, b in zip(known, memory)):
            raise _refusal(known, f"other numbers, {describe(array_of(memory[0]))}")
        return self._kept[module]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Are these the same numbers? Nearly always it is the same array, which is quickly seen."""
    return a is b or a.__array_interface__ == b.__array_interface__ or np.array_equal(a, b)


def _refusal(known: list[np.ndarray] | None, given: str) -> ValueError:
    held = "tokens of its own" if known is None else f"the memory {describe(known[0])}"
    return ValueError(
        "self-attention with a cache takes the same object three times (new = x[:, -1:]; "
        "attention(new, new, new, cache=cache)); cross-attention's memory must stay the same. This "
        f"cache holds for the module {held}, and the call gives it {given}. Start a fresh "
        "KeyValueCache() for another memory."
    )
