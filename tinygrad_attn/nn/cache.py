"""The cache of keys and values, for generating text token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..engine import Symbolic, array_of, context
from ..errors import describe
from ..tensor import Tensor
from .calls import Scope
from .module import Module


class _Entry(NamedTuple):
    """What a cache stores for one attention module."""

    k: Any  # (B, H, S, D)
    v: Any  # (B, H, S, V)
    memory: Any = None  # in cross-attention, the key and value that were projected to k and v
    room: Any = (None, None)  # arrays that begin with k and v and have room for more tokens


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
        self._entries: dict[Module, _Entry] = {}
        self._outermost: Scope | None = None  # the outermost module call that uses the cache, and
        self._replaced: list[tuple[Scope, Module, _Entry | None]] = []  # what it has replaced

    def __copy__(self):
        return self.__deepcopy__({})

    def __deepcopy__(self, memo):
        """Return an independent cache. It shares the existing arrays, which never change."""
        new = KeyValueCache()
        for module, entry in self._current().items():
            new._entries[memo.get(id(module), module)] = entry._replace(room=(None, None))
        return new

    @property
    def length(self) -> int:
        """The number of cached tokens."""
        tokens = (entry for entry in self._current().values() if entry.memory is None)
        return next((entry.k.shape[-2] for entry in tokens), 0)

    @property
    def nbytes(self) -> int:
        """The size of the cached keys and values in bytes."""
        return sum(x._data.nbytes for entry in self._current().values() for x in entry[:2])

    def past(self, module: Module) -> int:
        """Return the number of keys cached for this module."""
        entry = self._current().get(module)
        return 0 if entry is None or entry.memory is not None else entry.k.shape[-2]

    def extend(self, module: Module, k, v) -> Any:
        """Append k (B, H, T, D) and v (B, H, T, V); return all keys and values of the module."""
        entries = self._current()
        old, room = entries.get(module), (None, None)
        past = 0 if old is None else old.k.shape[-2]
        first = next((m for m, entry in entries.items() if entry.memory is None), module)
        if old is not None and old.memory is not None:
            raise _refusal(old.memory[0], k)
        if first is not module and past + k.shape[-2] != entries[first].k.shape[-2]:
            raise ValueError(
                f"this cache has {self.length} tokens for the first attention module, but {past} "
                f"for another one, to which this call adds {k.shape[-2]}. If an earlier call "
                "failed, create a new KeyValueCache(). Otherwise, the model calls a module twice."
            )
        if old is not None:
            if old.k.shape[:2] != k.shape[:2]:
                raise ValueError(
                    f"this cache has batch size {old.k.shape[0]}, but the new tokens have batch "
                    f"size {k.shape[0]}; create a new KeyValueCache() for each batch."
                )
            k, k_room = _joined(old.k, k, old.room[0])
            v, v_room = _joined(old.v, v, old.room[1])
            room = k_room, v_room
        self._store(module, _Entry(k, v, room=room))
        return k, v

    def memory(self, module: Module, key, value, project: Callable[[], Any]) -> Any:
        """Return (k, v) for cross-attention, which projects them in its first call."""
        arrays = array_of(key), array_of(value)
        entry = self._current().get(module)
        if entry is None:
            k, v = project()
            entry = _Entry(k, v, arrays)
            self._store(module, entry)
        elif entry.memory is None:
            raise _refusal(entry.k, key)
        elif not all(a is b or np.array_equal(a, b) for a, b in zip(entry.memory, arrays)):
            raise _refusal(entry.memory[0], key)
        return entry[:2]

    def _current(self):
        """Return the entries, after dropping what failed module calls have stored."""
        while self._replaced and _failed(self._replaced[-1][0]):
            _, module, entry = self._replaced.pop()
            if entry is None:
                del self._entries[module]
            else:  # a copy of the cache may share the room
                self._entries[module] = entry._replace(room=(None, None))
        return self._entries

    def _store(self, module, entry):
        call = outermost = context.scope
        while outermost is not None and outermost.outer is not None:
            outermost = outermost.outer
        if outermost is not self._outermost:  # the calls before have succeeded
            self._outermost, self._replaced = outermost, []
        if call is not None:
            self._replaced.append((call, module, self._entries.get(module)))
        self._entries[module] = entry


def _joined(old, new, room):
    """Return the old and new tokens joined, and an array with room for more tokens, or None.

    Joining copies in every step would make the generation of 128 tokens 5 % slower.
    """
    a, b = old._data, new._data
    # Copy if a gradient may flow through the tokens or the computation is traced.
    if old.requires_grad or new.requires_grad or isinstance(b, Symbolic) or a.dtype != b.dtype:
        return ops.concatenate(old, new, axis=-2), None
    end = a.shape[-2] + b.shape[-2]
    if room is None or room.shape[-2] < end:
        room = np.concatenate([a, b, a], axis=-2)  # the part after b is spare room
    else:
        room[..., a.shape[-2] : end, :] = b
    return Tensor._of(room[..., :end, :]), room


def _failed(call):
    """Return whether this module call or one around it has raised an exception."""
    while call is not None and not call.failed:
        call = call.outer
    return call is not None


def _refusal(expected, passed):
    return ValueError(
        "with a cache, pass the same object as query, key and value of self-attention, and the "
        f"same memory to cross-attention in every call. Expected {describe(expected)}, got "
        f"{describe(passed)}. For a different memory, create a new KeyValueCache()."
    )
