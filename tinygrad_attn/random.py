"""Random numbers that match PyTorch's CPU stream, drawn from NumPy's MT19937.

`np.random.RandomState(n)` and `torch.manual_seed(n)` start the same Mersenne Twister. Each draw
consumes the twister's 32-bit words as PyTorch does:

    uniform, float32      24 low bits of one word                            bit-equal to PyTorch
    uniform, float64      53 low bits of two words, the first one high       bit-equal
    bernoulli (dropout)   the float64 uniform, compared with p               bit-equal
    randint               word % range; from 2^28 on, 64 bits of two words   bit-equal
    randperm              Fisher-Yates, word % (numbers left)                bit-equal
    normal, below 16      scalar Box-Muller in float64; the spare second
                          normal is kept for the next call                   bit-equal
    normal, from 16 on    Box-Muller on blocks of 16; a partial block        float32 within 1e-6,
                          redraws the last 16                                float64 1e-15

The last row is inexact because PyTorch and NumPy round sine, cosine and logarithm differently. The
reference is PyTorch 2.13 on the CPU; builds that draw dropout masks with MKL get different masks.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .engine import context
from .engine.run import new_lock
from .tensor import Tensor, get_default_dtype
from .tensor.convert import floating_dtype

__all__ = [
    "Generator",
    "default_generator",
    "get_rng_state",
    "manual_seed",
    "rand",
    "randint",
    "randn",
    "randperm",
    "set_rng_state",
]

DEFAULT_SEED = 67280421310721  # PyTorch's default
Shape = int | Sequence[int]
Array = NDArray[Any]

_one_at_a_time = new_lock()


def _draws(method: Any) -> Any:
    """Let one thread at a time use a generator, and a checkpoint repeat what it drew."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        with _one_at_a_time:
            if context.noted_draws is not None and self is _default:
                self = context.noted_draws(self)
            return method(self, *args, **kwargs)

    return call


def noting(generators):
    """Return `noted_draws` for the first run of a checkpoint, which notes each use in a list."""
    outer = context.noted_draws  # of an enclosing checkpoint

    def use(default):
        generator = default if outer is None else outer(default)
        generators.append(copy.deepcopy(generator))
        return generator

    return use


def repeating(generators):
    """Return `noted_draws` for a second run, which draws from copies of the noted generators."""
    remaining = iter(generators)

    def use(default):
        noted = next(remaining, None)
        if noted is None:
            raise ValueError(
                "a checkpointed function must draw the same random numbers when it runs again, but "
                "it drew more of them."
            )
        return copy.deepcopy(noted)

    return use


class Generator:
    """A stream of random numbers. A deep copy continues independently from the same state."""

    def __init__(self, seed: int = DEFAULT_SEED):
        self._bits = np.random.MT19937()
        self.manual_seed(seed)

    @_draws
    def manual_seed(self, seed: int) -> Generator:
        """Restart the stream. Only the low 32 bits of `seed` are used, as in PyTorch."""
        legacy: Any = np.random.RandomState(index(seed) % 2**32)
        self._bits.state = legacy.get_state(legacy=False)
        self._spare_normal = math.nan  # the second normal of a pair, or NaN
        return self

    @_draws
    def get_state(self) -> dict[str, Array]:
        """Return the state as named arrays, which `ta.save` accepts."""
        twister = self._bits.state["state"]
        return {
            "key": twister["key"],
            "position": np.array(twister["pos"], np.int64),
            "spare_normal": np.array(self._spare_normal),
        }

    @_draws
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state`."""
        key, position = np.asarray(state["key"], np.uint32), int(state["position"])
        spare = float(state["spare_normal"])
        if key.shape != (624,) or not 0 <= position <= 624:
            raise ValueError("not a generator state; pass a state returned by get_state().")
        self._bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}
        self._spare_normal = spare

    def _words(self, count):
        """Return the next words of the twister, as uint32 (count,)."""
        if count < 1000:
            return self._bits.random_raw(count).astype(np.uint32)  # the same words, but faster
        return np.random.Generator(self._bits).integers(2**32, size=count, dtype=np.uint32)

    def _double_words(self, count):
        """Return numbers of 64 bits, each from two words, the first one high."""
        words = self._words(2 * count)
        return (words[0::2] << np.uint64(32)) | words[1::2]

    def _unit(self, count, dtype):
        """Return `count` uniform numbers in [0, 1) that use all bits of the mantissa."""
        if dtype.itemsize >= 8:
            return (self._double_words(count) & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53
        return (self._words(count) & np.uint32(2**24 - 1)).astype(np.float32) * np.float32(2.0**-24)

    @_draws
    def uniform(
        self, shape: Shape, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = np.float32
    ) -> Array:
        """Draw from the uniform distribution on [low, high), as `torch.Tensor.uniform_` does."""
        dtype = floating_dtype(dtype, "random numbers")
        if not low <= high:
            raise ValueError(f"uniform needs low <= high, got low={low} and high={high}.")
        u = self._unit(_size(shape), dtype)
        u = _scaled(u, u.dtype.type(high) - u.dtype.type(low), low).astype(dtype, copy=False)
        u[u == dtype.type(high)] = low  # rounding may produce `high` itself
        return u.reshape(shape)

    @_draws
    def normal(
        self, shape: Shape, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike = np.float32
    ) -> Array:
        """Draw from the normal distribution, as `torch.Tensor.normal_` does."""
        dtype = floating_dtype(dtype, "random numbers")
        if not std >= 0:
            raise ValueError(f"normal needs std >= 0, got {std}.")
        size = _size(shape)
        if size < 16:
            few = [self._one_normal() * std + mean for _ in range(size)]
            return np.array(few).astype(dtype).reshape(shape)
        n = self._unit(size, dtype)
        whole = size - size % 16
        n[:whole] = _box_muller(n[:whole])
        if whole < size:
            n[-16:] = _box_muller(self._unit(16, dtype))
        return _scaled(n, std, mean).astype(dtype, copy=False).reshape(shape)

    def _one_normal(self):
        """Return the spare normal, or the first of a new pair."""
        spare, self._spare_normal = self._spare_normal, math.nan
        if not math.isnan(spare):
            return spare
        u1, u2 = self._unit(2, np.dtype(np.float64)).tolist()
        radius, angle = math.sqrt(-2.0 * math.log1p(-u2)), 2.0 * math.pi * u1
        self._spare_normal = radius * math.sin(angle)
        return radius * math.cos(angle)

    @_draws
    def bernoulli(self, shape: Shape, p: float) -> Array:
        """Draw booleans that are True with probability p, as `torch.Tensor.bernoulli_` does."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"bernoulli needs a probability between 0 and 1, got {p}.")
        # Each draw is a 53-bit number k: 21 bits of one word, 32 of the next. True if k / 2^53 < p.
        high, low = divmod(math.ceil(p * 2.0**53), 2**32)
        words = self._words(2 * _size(shape))
        first = words[0::2] & np.uint32(2**21 - 1)
        keep = first < np.uint32(high)
        tie = first == np.uint32(high)
        if tie.any():  # rare
            keep[tie] = words[1::2][tie] < low
        return keep.reshape(shape)

    @_draws
    def integers(self, low: int, high: int, shape: Shape) -> Array:
        """Draw int64 integers from [low, high), as `torch.randint` does."""
        if not -(2**63) <= low < high < 2**63:
            raise ValueError(f"randint needs low < high in int64, got low={low} and high={high}")
        spread = high - low
        draw = self._double_words if spread >= 2**28 else self._words
        words = draw(_size(shape)) % np.uint64(spread)
        return (words.astype(np.int64) + np.int64(low)).reshape(shape)

    @_draws
    def permutation(self, n: int) -> Array:
        """Draw a random permutation of 0 .. n-1 as int64 (n,), like `torch.randperm`."""
        left = np.arange(n, 1, -1, dtype=np.uint64)
        steps, order = self._words(len(left)) % left, list(range(n))
        for i, step in enumerate(steps.tolist()):
            order[i], order[i + step] = order[i + step], order[i]
        return np.array(order, dtype=np.int64)


def _box_muller(u):
    """Turn each block of 16 uniforms, 8 for radii and 8 for angles, into 16 normals."""
    u = u.reshape(-1, 2, 8)
    radius = np.sqrt(-2 * np.log(1 - u[:, 0]))
    angle = u.dtype.type(2 * math.pi) * u[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)


def _scaled(x, factor, offset):
    """Return x * factor + offset, with a single rounding for float32."""
    rounded = [float(x.dtype.type(number)) for number in (factor, offset)]
    return (x.astype(np.float64) * rounded[0] + rounded[1]).astype(x.dtype)


def _size(shape):
    return math.prod(shape) if isinstance(shape, Sequence) else index(shape)


_default = Generator()
manual_seed = _default.manual_seed
get_rng_state = _default.get_state
set_rng_state = _default.set_state


def default_generator() -> Generator:
    """Return the generator that initialisers, dropout masks and `ta.rand` draw from."""
    return _default


def _drawn(draw, shape, dtype, requires_grad):
    lengths = shape[0] if len(shape) == 1 else shape  # rand((2, 3)) or rand(2, 3)
    array = draw(lengths, dtype=get_default_dtype() if dtype is None else dtype)
    return Tensor(array, requires_grad=requires_grad)


def rand(*shape: Any, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Tensor:
    """Draw from the uniform distribution on [0, 1), as `torch.rand` does: `ta.rand(2, 3)`."""
    return _drawn(_default.uniform, shape, dtype, requires_grad)


def randn(*shape: Any, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Tensor:
    """Draw from the standard normal distribution, as `torch.randn` does: `ta.randn(2, 3)`."""
    return _drawn(_default.normal, shape, dtype, requires_grad)


def randint(low: Any = None, high: Any = None, size: Any = None) -> Tensor:
    """Draw int64 integers from [low, high): `randint(10, (2, 3))` or `randint(5, 10, (2, 3))`.

    Raises ValueError unless low < high. Like `torch.randint`.
    """
    if size is None:  # randint(10, (2, 3))
        low, high, size = 0, low, high
    elif low is None or high is None:  # randint(10, size=(2, 3)), or high=10
        low, high = 0, low if high is None else high
    if not isinstance(size, (tuple, list)):
        raise TypeError(f"randint needs a tuple as shape, got {size!r}; write randint(10, (2, 3)).")
    return Tensor(_default.integers(index(low), index(high), size))


def randperm(n: int) -> Tensor:
    """Draw a random permutation of 0 .. n-1 as int64 (n,), like `torch.randperm`."""
    return Tensor(_default.permutation(index(n)))
