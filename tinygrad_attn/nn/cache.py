"""The cache of keys and values, for generating text token by token."""

import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..engine import Symbolic, array_of, context
from ..errors import describe
from ..tensor import Tensor
from .calls import enclosing, tell_change
from .module import Module


class _Room:
    """An array with space for more tokens. The first `used` are taken."""

    def __init__(self, array):
        self.array, self.used = array, 0


class _Entry(NamedTuple):
    """The keys and values of one module."""

    k: Any
    v: Any
    memory: tuple = ()  # in cross-attention, the arrays key and value that were projected
    rooms: tuple = ()  # of k and v, in self-attention


class KeyValueCache:
    """Stores the keys and values of earlier tokens, so that each step processes only new tokens.

        cache = nn.KeyValueCache()
        with ta.no_grad():
            y = encoder(embed(prompt), is_causal=True, cache=cache)        # (B, T, E)
            y = encoder(embed(next_token), is_causal=True, cache=cache)    # (B, 1, E)

    One cache serves a whole model, for one sequence or batch. New tokens start at position
    `cache.length`. A key_padding_mask covers all keys, old ones first. Cross-attention reuses the
    keys and values of its first call, and raises ValueError for a different memory, but does not
    detect in-place changes. A forward pass may call each attention module only once. If a module
    call raises an exception, the cache drops what this call has stored, so it can be repeated.
    `copy.copy(cache)` is independent; `copy.deepcopy((model, cache))` also copies the model.
    """

    def __init__(self) -> None:
        # Replaced, never changed in place, so that copies of the cache can share it.
        self._entries = {}

    def __deepcopy__(self, memo):
        """Return an independent cache. It shares the existing arrays, which never change."""
        new = copy.copy(self)
        vars(new)["_copied"] = vars(new).pop("_entries"), memo
        return new

    @cached_property
    def _entries(self) -> dict[Module, _Entry]:
        """The entries of a deep copy, made at its first use, when its modules are copied too."""
        entries, memo = vars(self).pop("_copied")
        return {memo.get(id(m), m): entry for m, entry in entries.items()}

    def __getstate__(self):
        """Return all attributes, the entries with the modules that a deep copy belongs to."""
        return vars(self) | {"_entries": self._entries}

    @property
    def length(self) -> int:
        """The number of cached tokens."""
        return self.past(self._first())

    @property
    def nbytes(self) -> int:
        """The size of the cached keys and values in bytes."""
        return sum(e.k._data.nbytes + e.v._data.nbytes for e in self._entries.values())

    def _first(self):
        """Return the first module of self-attention, or None."""
        return next((m for m, entry in self._entries.items() if not entry.memory), None)

    def past(self, module: Module | None) -> int:
        """Return the number of keys cached for this module."""
        return self._entries[module].k.shape[-2] if module in self._entries else 0

    def extend(self, module: Module, k, v) -> tuple[Any, Any]:
        """Append k (B, H, T, D) and v (B, H, T, V); return all keys and values of the module."""
        rooms = None, None
        if old := self._entries.get(module):
            if old.memory:
                raise _refusal(old.memory[0], k)
            if old.k.shape[:2] != k.shape[:2]:
                raise ValueError(
                    f"this cache has batch size {old.k.shape[0]}, but the new tokens have batch "
                    f"size {k.shape[0]}; create a new KeyValueCache() for each batch."
                )
            (k, v), rooms = zip(_joined(old.k, k, old.rooms[0]), _joined(old.v, v, old.rooms[1]))
        if self._first() not in (None, module) and k.shape[-2] != self.length:
            raise ValueError(
                f"with this call, the cache would have {k.shape[-2]} tokens for an attention "
                f"module but {self.length} for the first one. If an earlier call failed, create a "
                "new KeyValueCache(). Otherwise, the model calls a module twice."
            )
        self._store(module, _Entry(k, v, (), rooms))
        return k, v

    def memory(self, module: Module, key, value, project) -> tuple[Any, Any]:
        """Return (k, v) for cross-attention, which projects them in its first call."""
        arrays = array_of(key), array_of(value)
        if module not in self._entries:
            k, v = project()
            self._store(module, _Entry(k, v, arrays))
        k, v, memory, _ = self._entries[module]
        if not memory or not all(a is b or np.array_equal(a, b) for a, b in zip(memory, arrays)):
            raise _refusal((memory or [k])[0], key)
        return k, v

    def _store(self, module, entry):
        """Store an entry until one of the module calls that are running fails."""
        for call in enclosing(context.scope):
            if call.undo is not None:  # else the second run of a checkpoint in a call that is over
                call.undo.setdefault((self, "_entries"), self._entries)
        tell_change(self, "_entries")  # The second run of a checkpoint begins without the entry.
        self._entries = {**self._entries, module: entry}


def _joined(old, new, room):
    """Return the old and new tokens joined, and the room that they are in, or None.

    Joining copies in every step would make the generation of 128 tokens 5 % slower.
    """
    a, b = old._data, new._data
    # Copy if a gradient may flow through the tokens or the computation is traced.
    if context.recording or isinstance(b, Symbolic) or a.dtype != b.dtype:
        return ops.concatenate(old, new, axis=-2), None
    start, end = a.shape[-2], a.shape[-2] + b.shape[-2]
    # Another copy of the cache, or a call that failed, may have used the room.
    if room is None or room.used != start or room.array.shape[-2] < end:
        room = _Room(np.concatenate([a, b, a], axis=-2))  # the part after b is spare
    else:
        room.array[..., start:end, :] = b
    room.used = end
    return Tensor._of(room.array[..., :end, :]), room


def _refusal(expected, passed):
    return ValueError(
        "with a cache, pass the same object as query, key and value of self-attention, and the "
        f"same memory to cross-attention in every call. Expected {describe(expected)}, got "
        f"{describe(passed)}. For a different memory, create a new KeyValueCache()."
    )
