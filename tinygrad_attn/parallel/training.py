"""Seeds, means, clipping and checkpoints for a training loop on several ranks."""

import zlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import files, random
from ..optim.training import clip, gradients_and_norm
from .data_parallel import DataParallel
from .group import barrier, group


def manual_seed(seed: int, *, same: bool = False, comm=None) -> random.Generator:
    """Call `ta.manual_seed(seed + rank)`, or `ta.manual_seed(seed)` with `same`."""
    return random.manual_seed(seed if same else seed + group(comm).rank)


def mean(values, weight: float = 1.0, *, comm=None):
    """Return the weighted mean of numbers, arrays or dicts over the ranks. A collective.

    Values with weight 0 are ignored.
    """
    rows = group(comm).gather("mean()", (values, weight))
    weights = [w for _, w in rows if w]
    return _of_ranks([v for v, w in rows if w], lambda row: np.average(row, 0, weights))


def total(values, *, comm=None) -> Any:
    """Return the sum of numbers, arrays or dicts over the ranks. A collective."""
    return _of_ranks(group(comm).gather("total()", values), lambda row: np.sum(row, 0))


def _of_ranks(rows, f):
    if isinstance(rows[0], Mapping):
        return {name: _of_ranks([row[name] for row in rows], f) for name in rows[0]}
    found = np.asarray(f(rows))
    return found if found.ndim else found.item()


def clip_grad_norm_(
    parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    comm=None,
) -> float:
    """Set g = g min(1, max_norm / (|g| + 1e-6)), and return |g|. A collective.

    The gradients must be equal on all ranks, as after DataParallel. All ranks use rank 0's norm, so
    their parameters stay equal bit for bit. Raises the same errors as `optim.clip_grad_norm_`.
    """
    gradients, norm = gradients_and_norm(parameters, norm_type)
    norm = group(comm).gather("clip_grad_norm_", norm)[0]
    return clip(gradients, norm, max_norm, error_if_nonfinite)


def save_checkpoint(path: files.Path, *, model, optimizer=None, comm=None, **more) -> None:
    """Call `ta.save_checkpoint` on rank 0 with the state of all ranks. A collective.

    `more` may contain schedule, step and extra. `ta.load_checkpoint` can also load the file.
    """
    ranks = group(comm)
    states = ranks.gather("save_checkpoint", random.get_rng_state())
    beside = {
        f"ranks.{rank}.{name}": value
        for rank, state in enumerate(states[1:], 1) for name, value in state.items()
    }  # fmt: skip
    if optimizer is not None:
        state = optimizer.state_dict()  # of a ShardedAdamW, a collective
        optimizer = SimpleNamespace(state_dict=lambda: state)
    if ranks.rank == 0:
        files.save_checkpoint(path, model=_bare(model), optimizer=optimizer, beside=beside, **more)
    barrier(comm)


def load_checkpoint(path: files.Path, *, model, comm=None, **parts) -> files.Progress:
    """Load model, optimizer, schedule and generators on every rank; return (step, extra).

    With the same number of ranks as before, the resumed run is identical bit for bit. Additional
    ranks get new random streams. Raises the same errors as `ta.load_checkpoint`, and RuntimeError
    if the ranks read different files. A collective.
    """
    ranks, bare = group(comm), _bare(model)
    progress = files.load_checkpoint(path, model=bare, **parts)
    if ranks.rank:
        if state := files.under(f"ranks.{ranks.rank}.", files.load(path)):
            random.set_rng_state(state)
        else:  # at this point, all ranks have rank 0's state
            random.manual_seed(zlib.crc32(random.rand(8).numpy().tobytes(), ranks.rank))
    digest = zlib.crc32(b"".join(p._array().tobytes() for p in bare.parameters()))
    if len({*ranks.gather("load_checkpoint", digest)}) > 1:
        raise RuntimeError(f"load_checkpoint: the ranks read different values from {path!r}.")
    return progress


def _bare(model):
    return model.module if isinstance(model, DataParallel) else model
