"""Random numbers: PyTorch's CPU stream, number for number, drawn from NumPy's MT19937.

`np.random.RandomState(n)` and `torch.manual_seed(n)` start the same Mersenne Twister, so equality
is a matter of consuming its 32-bit words exactly as PyTorch does:

    uniform, float32      24 low bits of one word                            bit-equal to PyTorch
    uniform, float64      53 low bits of two words, the first one high       bit-equal
    bernoulli (dropout)   the float64 uniform, compared with p               bit-equal
    randint               word % range; from 2^28 on, 64 bits of two words   bit-equal
    randperm              Fisher-Yates, word % (numbers left)                bit-equal
    normal, below 16      scalar Box-Muller in float64; the spare second
                          normal is kept for the next call                   bit-equal
    normal, from 16 on    Box-Muller on blocks of 16; a ragged end redraws   float32 within 1e-6,
                          the last 16                                        float64 1e-15

The last line is not bit-equal because PyTorch's and NumPy's vectorised sine, cosine and logarithm
round differently; the number of words consumed is the same, so whatever is drawn afterwards is
again equal. This is PyTorch 2.13's ordinary CPU path; builds that hand dropout masks to MKL's own
generator draw other masks.

A thread other than the main one that calls `manual_seed` gets a stream of its own, so two threads
that each seed and train draw the same numbers as they would one after the other. All other threads
share the process's generator. A forked child goes on with the stream of the thread that forked; the
fork waits for a draw that is under way.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .errors import is_integer, missing_names
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

DEFAULT_SEED = 67280421310721  # PyTorch's own: an unseeded program is repeatable too
Shape = int | Sequence[int]


def _fused_multiply_add(x: NDArray[Any], factor: float, offset: float) -> NDArray[Any]:
    """x * factor + offset with one rounding, as PyTorch's kernels are compiled.

    For float32 the product is exact in float64. float64 has no wider type to lean on; the plain
    form is within one rounding of it.
    """
    factor, offset = x.dtype.type(factor), x.dtype.type(offset)
    return (x.astype(np.float64) * np.float64(factor) + np.float64(offset)).astype(x.dtype)


class Generator:
    """One stream of random numbers. Every draw takes a lock, so that threads may share it."""

    def __init__(self, seed: int = DEFAULT_SEED) -> None:
        self._lock = threading.RLock()
        self._bits = np.random.MT19937()
        self._drawing = np.random.Generator(self._bits)
        self._spare_normal: float | None = None
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream anew; as in PyTorch only the low 32 bits of `seed` matter.

        Raises TypeError for a seed that is not an integer.
        """
        if not is_integer(seed):
            raise TypeError(
                f"manual_seed takes an integer, got {seed!r} of type {type(seed).__name__}"
            )
        legacy: Any = np.random.RandomState(int(seed) % 2**32).get_state(legacy=False)
        with self._lock:
            self._bits.state = legacy
            self._spare_normal = None
        return self

    def get_state(self) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays, ready for `ta.save`."""
        with self._lock:
            twister, spare = self._bits.state["state"], self._spare_normal
            return {
                "key": twister["key"].astype(np.uint32),
                "position": np.array(twister["pos"], dtype=np.int64),
                "spare_normal": np.array(math.nan if spare is None else spare, dtype=np.float64),
            }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state that `get_state` returned. Raises ValueError for anything else."""
        missing = {"key", "position", "spare_normal"} - set(
            state if isinstance(state, Mapping) else ()
        )
        if missing:
            raise ValueError(
                f"not a generator state: {sorted(missing)} missing; pass what get_state() returned"
            )
        try:
            key = np.asarray(state["key"], dtype=np.uint32)
            position, spare = int(state["position"]), float(state["spare_normal"])
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"not a generator state: {error}; pass what get_state() returned"
            ) from error
        if key.shape != (624,) or not 0 <= position <= 624:
            raise ValueError(
                f"not a generator state: key {key.shape} must be (624,), position {position} in "
                "0..624"
            )
        with self._lock:
            self._bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}
            self._spare_normal = None if math.isnan(spare) else spare

    def __getstate__(self) -> dict[str, NDArray[Any]]:
        """A copy, also through pickle, is a stream of its own that goes on from here."""
        return self.get_state()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.set_state(state)

    # ---- words of the twister

    def _words(self, count: int) -> NDArray[np.uint32]:
        if count < 1000:
            return self._bits.random_raw(count).astype(np.uint32)  # The same words, begun sooner.
        # Numbers of all 32 bits take one word each.
        return self._drawing.integers(2**32, size=count, dtype=np.uint32)

    def _double_words(self, count: int) -> NDArray[np.uint64]:
        words = self._words(2 * count)
        high, low = words[0::2], words[1::2]
        return (high << np.uint64(32)) | low

    def _unit(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """`count` numbers in [0, 1): as many random bits as the type's mantissa holds."""
        if dtype == np.float64:
            return (self._double_words(count) & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53
        return (self._words(count) & np.uint32(2**24 - 1)).astype(np.float32) * np.float32(2.0**-24)

    # ---- distributions, on arrays

    def uniform(
        self, shape: Shape, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """low + (high - low) u with u in [0, 1), as `torch.Tensor.uniform_`."""
        dtype = _floating(dtype)
        if not low <= high:
            raise ValueError(f"uniform needs low <= high, got low={low} and high={high}")
        with self._lock:
            u = self._unit(_size(shape), dtype)
        if (low, high) != (0.0, 1.0):
            u = _fused_multiply_add(u, u.dtype.type(high) - u.dtype.type(low), low)
        u = u.astype(dtype, copy=False)
        u[u == dtype.type(high)] = low  # Rounding may reach the open end.
        return u.reshape(shape)

    def normal(
        self, shape: Shape, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """mean + std n with n from the standard normal distribution, as `torch.Tensor.normal_`."""
        dtype = _floating(dtype)
        if not std >= 0:
            raise ValueError(f"normal needs std >= 0, got {std}")
        size = _size(shape)
        with self._lock:
            if size < 16:
                few = [self._one_normal() * std + mean for _ in range(size)]
                return np.array(few, dtype=np.float64).astype(dtype).reshape(shape)
            n = self._unit(size, dtype)
            whole = size - size % 16
            n[:whole] = _box_muller(n[:whole])
            if whole < size:
                n[-16:] = _box_muller(self._unit(16, dtype))
        if (mean, std) != (0.0, 1.0):
            n = _fused_multiply_add(n, std, mean)
        return n.astype(dtype, copy=False).reshape(shape)

    def _one_normal(self) -> float:
        if self._spare_normal is not None:
            normal, self._spare_normal = self._spare_normal, None
            return normal
        u1, u2 = self._unit(2, np.dtype(np.float64)).tolist()
        radius, angle = math.sqrt(-2.0 * math.log1p(-u2)), 2.0 * math.pi * u1
        self._spare_normal = radius * math.sin(angle)
        return radius * math.cos(angle)

    def bernoulli(self, shape: Shape, p: float) -> NDArray[np.bool_]:
        """True with probability p: [u < p], as `torch.Tensor.bernoulli_(p)`.

        For dropout p is the chance to keep.
        """
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"bernoulli needs a probability between 0 and 1, got {p}")
        # Each draw is a number k of 53 bits, 21 of one word and 32 of the next. k / 2^53 < p: True.
        high, low = divmod(math.ceil(p * 2.0**53), 2**32)
        with self._lock:
            words = self._words(2 * _size(shape))
        first = words[0::2] & np.uint32(2**21 - 1)
        keep = first < np.uint32(high)
        tie = first == np.uint32(high)
        if tie.any():  # Seldom does the second word decide.
            keep[tie] = words[1::2][tie] < low
        return keep.reshape(shape)

    def integers(self, low: int, high: int, shape: Shape) -> NDArray[np.int64]:
        """Integers with low <= i < high, as `torch.randint`. int64."""
        if not -(2**63) <= low < high <= 2**63:
            raise ValueError(
                f"randint needs low < high, within int64, got low={low} and high={high}"
            )
        spread = int(high) - int(low)
        with self._lock:
            words = (
                self._double_words(_size(shape)) if spread >= 2**28 else self._words(_size(shape))
            )
        if spread < 2**64:  # Else every word is one of the numbers.
            words = words % np.uint64(spread)
        return (words.astype(np.int64) + np.int64(low)).reshape(shape)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """0 .. n-1 in random order, as `torch.randperm`. int64, shape (n,)."""
        if n < 0:
            raise ValueError(f"randperm needs n >= 0, got {n}")
        with self._lock:
            words = self._words(max(n - 1, 0))
        steps = words % np.arange(n, 1, -1, dtype=np.uint64)
        order = list(range(n))
        for i, step in enumerate(steps.tolist()):
            order[i], order[i + step] = order[i + step], order[i]
        return np.array(order, dtype=np.int64)


def _box_muller(u: NDArray[Any]) -> NDArray[Any]:
    """Sixteen uniforms to sixteen normals, block by block: eight radii, then eight angles."""
    u = u.reshape(-1, 2, 8)
    radius = np.sqrt(-2 * np.log(1 - u[:, 0]))
    angle = u.dtype.type(2 * math.pi) * u[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)


def _size(shape: Shape) -> int:
    return math.prod(_shape((shape,)))


def _floating(dtype: DTypeLike) -> np.dtype[Any]:
    found = floating_dtype(dtype, "random real numbers (for whole ones use randint)")
    if found not in (np.float16, np.float32, np.float64):
        raise TypeError(f"random real numbers have dtype float16, float32 or float64, not {found}")
    return found


# ---- the generator in use

_of_the_process = Generator()
_of_the_thread = threading.local()


def _fork() -> None:
    """Wait until no other thread draws.

    A child would find the stream half renewed, and locks that nobody there will release.
    """
    _of_the_thread.forking = default_generator()
    _of_the_thread.forking._lock.acquire()  # NumPy's own lock is taken under this one only.


def _forked() -> None:
    _of_the_thread.forking._lock.release()


def _forked_child() -> None:
    """In a forked child the thread that forked is the main one."""
    global _of_the_process
    _forked()
    _of_the_process = default_generator()
    vars(_of_the_thread).clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_fork, after_in_parent=_forked, after_in_child=_forked_child)


def default_generator() -> Generator:
    """The generator every initialiser, dropout mask and `ta.rand` draws from in this thread."""
    return getattr(_of_the_thread, "generator", _of_the_process)


def manual_seed(seed: int) -> Generator:
    """Start the stream of random numbers anew at `seed`, as `torch.manual_seed` on the CPU.

    Called in a thread other than the main one it gives that thread a stream of its own. Returns the
    generator. Raises TypeError for a seed that is not an integer.
    """
    if threading.current_thread() is threading.main_thread():
        return _of_the_process.manual_seed(seed)
    _of_the_thread.generator = Generator(seed)
    return _of_the_thread.generator


def get_rng_state() -> dict[str, NDArray[Any]]:
    """The state of this thread's generator as named arrays."""
    return default_generator().get_state()


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put this thread's generator back into `state`, which `get_rng_state` returned."""
    default_generator().set_state(state)


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """rand(2, 3) and rand((2, 3)) mean the same."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    for n in shape:
        if not is_integer(n) or n < 0:
            raise TypeError(
                f"a shape is made of integers >= 0, got {shape}; write rand(2, 3) or rand((2, 3))"
            )
    return tuple(int(n) for n in shape)


def rand(*shape: Any, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Tensor:
    """u from the uniform distribution on [0, 1): `ta.rand(2, 3)`, as `torch.rand`.

    The default dtype unless one is given. Raises TypeError for a shape that is not made of integers
    >= 0, and for a dtype that is not floating.
    """
    dtype = get_default_dtype() if dtype is None else dtype
    return Tensor(
        default_generator().uniform(_shape(shape), dtype=dtype), requires_grad=requires_grad
    )


def randn(*shape: Any, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Tensor:
    """n from the standard normal distribution: `ta.randn(2, 3)`, as `torch.randn`.

    The default dtype unless one is given. Raises TypeError as `rand` does.
    """
    dtype = get_default_dtype() if dtype is None else dtype
    return Tensor(
        default_generator().normal(_shape(shape), dtype=dtype), requires_grad=requires_grad
    )


def randint(low: Any = ..., high: Any = ..., size: Any = None) -> Tensor:
    """Integers low <= i < high, int64: `randint(10, (2, 3))` or `randint(5, 10, size=(2, 3))`.

    As `torch.randint`. Raises TypeError for a size that is no tuple of integers >= 0 and for bounds
    that are not whole, ValueError unless low < high.
    """
    if size is None:  # randint(10, (2, 3))
        low, high, size = 0, low, None if high is ... else high
    elif low is ... or high is ...:  # randint(10, size=(2, 3)), or high=10
        low, high = 0, low if high is ... else high
    if not isinstance(size, (tuple, list)):
        raise TypeError(
            f"randint needs the shape as a tuple, got {size!r}; write randint(10, (2, 3))"
        )
    try:
        low, high = index(low), index(high)
    except TypeError:
        raise TypeError(
            f"randint takes whole numbers as low and high, got {low!r} and {high!r}"
        ) from None
    return Tensor(default_generator().integers(low, high, _shape(tuple(size))))


def randperm(n: int) -> Tensor:
    """0 .. n-1 in random order, int64, shape (n,), as `torch.randperm`.

    Raises TypeError unless n is whole, ValueError below 0.
    """
    try:
        count = index(n)
    except TypeError:
        raise TypeError(
            f"randperm takes a whole number, got {n!r}; write randperm(len(x))"
        ) from None
    return Tensor(default_generator().permutation(count))


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here
    __getattr__ = missing_names(__name__, globals())
