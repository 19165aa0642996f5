"""A decoding step with a key/value cache: one program for all lengths.

While the step is traced a `TracedCache` stands in for the cache that was given. What an attention
module appends to it, or finds in it, becomes an expression that asks the cache of each call, and
`cache.length` is an input of the program. How many tokens there are is seen by attention alone. The
program is written for two numbers of them, neither of which is the true one, and is used only if
its text and its constants are the same for both.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from ...engine import tensor_of
from ...nn.attention import MultiheadAttention
from ...nn.cache import KeyValueCache
from ...nn.module import Module
from ...transforms.programs.symbol import Symbol
from ...transforms.programs.tracing import Trace, input_symbol
from .lowering import LENGTHS
from .outside import Refusal


def kind_of(cache: KeyValueCache) -> tuple:
    """What has to be the same of a cache: all but how many tokens of its own it has."""
    found = []
    for module, (k, v) in cache._kept.items():
        sizes = k.shape if module in cache._memory else (*k.shape[:-2], k.shape[-1])
        found.append((id(module), sizes, v.shape[-1], k.dtype, v.dtype))
    return KeyValueCache, tuple(found)


class Extend(NamedTuple):
    """Appends keys and values of new tokens to a module's; returns all of them."""

    module: Module

    def __call__(self, cache: KeyValueCache, k: Any, v: Any) -> list[Any]:
        return [x._data for x in cache.extend(self.module, tensor_of(k), tensor_of(v))]


class Get(NamedTuple):
    """The keys and values that a module has projected from this memory."""

    module: Module

    def __call__(self, cache: KeyValueCache, *memory: Any) -> list[Any]:
        return [x._data for x in cache.get(self.module, memory)]


class TracedCache(KeyValueCache):
    """Stands for a cache while a step is traced; attention sees LENGTHS[which] tokens in it."""

    def __init__(self, found: Trace, cache: KeyValueCache, number: int, which: int) -> None:
        name = f"cache{number}"
        expression = found.listing.make("input", name, (), {}, None, ("input", name))
        found.inputs[name] = expression
        self.cache, self.past_keys = cache, LENGTHS[which] - 1
        self.symbol = Symbol(expression, None, found.listing)
        self.tokens: Any = input_symbol(found, f"length{number}", name, np.array(cache.length))
        self.extended: list[Module] = []

    def __getattr__(self, name: str) -> Any:
        raise self.refused(f"it uses {name.strip('_')} of a cache, which cannot be written down")

    def refused(self, reason: str) -> Exception:
        """A refusal, also if the function catches it."""
        return self.symbol.listing.refusing(Refusal(reason))

    @property
    def length(self) -> Any:
        """How many tokens are behind us, an input."""
        return self.tokens

    def __contains__(self, module: Module) -> bool:
        return module in self.cache

    def past(self, module: Module) -> int:
        """How many keys attention is told that there are."""
        self.asked_by_attention()
        return self.past_keys

    def extend(self, module: Module, k: Any, v: Any) -> tuple[Any, Any]:
        """The keys and values that the cache will return, of which here only the shape matters."""
        self.asked_by_attention()
        if module in self.extended or module not in self.cache:
            raise self.refused(
                "it calls an attention module twice, or one that the cache does not know"
            )
        if not self.extended:
            self.tokens = self.tokens + k.shape[-2]
        self.extended.append(module)
        values = []
        for old, new in zip(self.cache._kept[module], (k, v), strict=True):
            sizes = (*old.shape[:-2], self.past_keys + new.shape[-2], old.shape[-1])
            dtype = np.result_type(old.dtype, new.dtype)
            values.append(np.broadcast_to(old._data[..., :1, :].astype(dtype), sizes))
        return self.asked(Extend(module), (k, v), values)

    def get(self, module: Module, memory: tuple[Any, Any]) -> tuple[Any, Any]:
        """The keys and values of a memory."""
        return self.asked(Get(module), memory, [x._data for x in self.cache._kept[module]])

    def asked_by_attention(self) -> None:
        """Raise unless MultiheadAttention asks, and returns no weights, which would show how many
        keys it got: what others do may depend on that.
        """
        asks = sys._getframe(2)
        if asks.f_code is not MultiheadAttention._attend.__code__ or asks.f_locals["wanted"]:
            raise self.refused(
                "it asks a cache for its keys itself, or attention for weights of them"
            )

    def asked(self, what: Any, tensors: Any, values: list[Any]) -> tuple[Any, Any]:
        """The two results of a call of the cache's."""
        arrays = [x._data for x in tensors]
        k, v = self.symbol._emit("state", what, (self.symbol, *arrays), {}, values)
        return tensor_of(k), tensor_of(v)


__all__ = ["KeyValueCache", "TracedCache", "kind_of"]
