"""What a training loop on several ranks needs beside: seeds, means, clipping, checkpoints."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import files, optim, random
from ..engine import inplace
from ..errors import describe
from ..files import Path
from ..files.checkpoints import Progress
from ..files.checkpoints import load_checkpoint as load_here
from ..files.checkpoints import save_checkpoint as save_here
from .data_parallel import DataParallel
from .group import Group, group
from .tensor_parallel import ShardedParameter


def manual_seed(seed: int, *, same: bool = False, comm: Any = None) -> random.Generator:
    """Call `ta.manual_seed(seed + rank)`: another stream on each rank; with `same` one for all.

    Dropout masks should differ between ranks. Returns the generator.
    """
    return random.manual_seed(seed if same else seed + group(comm).rank)


def mean(values: Any, weight: float = 1.0, *, comm: Any = None) -> Any:
    """sum(weight * value) / sum(weight) over the ranks: a number, an array, or a dict of numbers.

        means = parallel.mean({"loss": loss.item(), "accuracy": right.mean()}, weight=len(right))

    A rank of weight 0 does not count, whatever its value. Computed in float64, the same on every
    rank. A collective.
    """
    array = _numbers(values).astype(np.float64)
    rows = group(comm).gather(_call("mean", values), np.append(array.reshape(-1), weight))
    weights = rows[:, -1:]
    known = np.where(weights == 0, 0, rows[:, :-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        return _as_given(values, (weights * known).sum(axis=0) / weights.sum(), array.shape)


def total(values: Any, *, comm: Any = None) -> Any:
    """The sum over the ranks: of a number, an array, or a dict of numbers. A collective."""
    array = _numbers(values)
    rows = group(comm).gather(_call("total", values), array)
    return _as_given(values, rows.sum(axis=0), array.shape)


def _numbers(values: Any) -> Any:
    """Return the values as an array. None, which NumPy takes for NaN, is refused."""
    array = np.asarray([*values.values()] if isinstance(values, Mapping) else values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"what is summed over the ranks are numbers, got {describe(values)}.")
    return array


def _call(name: str, values: Any) -> str:
    return f"{name} of {', '.join(values)}" if isinstance(values, Mapping) else f"{name}()"


def _as_given(values: Any, flat: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(values, Mapping):
        return dict(zip(values, flat.tolist(), strict=True))
    return flat.reshape(shape) if shape else flat.item()


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    comm: Any = None,
) -> float:
    """g = g min(1, max_norm / (|g| + 1e-6)), |g| the norm over all ranks; returns |g|.

    After DataParallel every rank has all gradients, and they are the same. Of a parameter that is
    divided among ranks (tensor_parallel.py) each has a part, and the parts are added up. The norm
    is rank 0's of `comm` everywhere, since processors may round a sum differently. A collective.
    Raises as optim.clip_grad_norm_.
    """
    parameters = list(parameters) if hasattr(parameters, "__next__") else parameters
    # On every rank before anything is sent: modules and wrong settings are refused.
    is_module = hasattr(parameters, "parameters")
    optim.clip_grad_norm_(parameters if is_module else [], max_norm, norm_type)
    ranks = group(comm)
    given = parameters if isinstance(parameters, (list, tuple)) else [parameters]
    owners = dict.fromkeys(getattr(p, "group", None) for p in given)
    every = [(p, p.grad._array()) for p in {id(p): p for p in given}.values() if p.grad is not None]
    norms: list[float] = []
    for owner in owners:
        grads = [g for p, g in every if getattr(p, "group", None) is owner]
        part = _norm([_norm(g, norm_type) for g in grads], norm_type)
        norms += [part] if owner is None else owner.gather("clip_grad_norm_", part)[:, 0].tolist()
    norm = float(ranks.gather("clip_grad_norm_", _norm(norms, norm_type))[0, 0])
    if error_if_nonfinite and not math.isfinite(norm):
        raise ValueError(f"the norm of the gradients over all ranks is {norm}")
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1:
        for _, g in every:
            g *= g.dtype.type(factor)
            inplace.changed(g)
    return norm


def _norm(x: Any, norm_type: float) -> float:
    array = np.asarray(x).reshape(-1)
    wide = array.astype(np.result_type(array, np.float32), copy=False)
    return float(np.linalg.norm(wide, norm_type)) if array.size else 0.0


# ---- checkpoints


def save_checkpoint(
    path: Path,
    *,
    model: Any,
    optimizer: Any = None,
    schedule: Any = None,
    step: int = 0,
    extra: Any = None,
    comm: Any = None,
) -> None:
    """Let rank 0 call `ta.save_checkpoint`, with the joined state of all; the others wait.

    The file is that of `ta.save_checkpoint`, with the generators of the other ranks beside; either
    function can load it. Where rank 0 cannot write, every rank raises. A collective.
    """
    ranks = group(comm)
    beside = {}
    for name, value in random.get_rng_state().items():
        rows = ranks.gather("save_checkpoint", value)
        for rank in range(1, ranks.size):
            beside[f"ranks.{rank}.{name}"] = rows[rank].reshape(value.shape)
    joined = None  # a ShardedAdamW's state cannot be joined by rank 0 alone
    if optimizer is not None:
        state = optimizer.state_dict()
        joined = SimpleNamespace(state_dict=lambda: state)
    error: Exception | None = None
    if ranks.rank == 0:
        settings = {"schedule": schedule, "step": step, "extra": extra, "beside": beside}
        try:
            save_here(path, model=_bare(model), optimizer=joined, **settings)
        except Exception as refused:
            error = refused
    ranks.agree("save_checkpoint", error)


def load_checkpoint(
    path: Path, *, model: Any, optimizer: Any = None, schedule: Any = None, comm: Any = None
) -> Progress:
    """Load model, optimiser, schedule and generators on every rank; return (step, extra).

    Every rank reads the file. With as many ranks as there were each gets its own generator back and
    goes on bit for bit; ranks that are new get streams drawn from rank 0's. Raises as
    `ta.load_checkpoint`, and on every rank where one fails or has read another file. A collective.
    """
    ranks, bare = group(comm), _bare(model)
    progress, error = Progress(0, None), None
    try:
        progress = load_here(path, model=bare, optimizer=optimizer, schedule=schedule)
        _restore_generator(path, ranks)
    except Exception as refused:
        error = refused
    ranks.agree("load_checkpoint", error)
    whole = [p for p in bare.parameters() if not isinstance(p, ShardedParameter)]
    digest = zlib.crc32(b"".join(p._array().tobytes() for p in whole))
    if len({*ranks.gather("load_checkpoint", digest)[:, 0].tolist()}) > 1:
        raise RuntimeError(f"load_checkpoint: the ranks have read different values from {path!r}.")
    return progress


def _bare(model: Any) -> Any:
    return model.module if isinstance(model, DataParallel) else model


def _restore_generator(path: Path, ranks: Group) -> None:
    """Restore this rank's own generator, or start a stream of its own where the file has none."""
    if ranks.rank:
        prefix = f"ranks.{ranks.rank}."
        arrays = files.load_with_metadata(path)[0]
        state = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        if state:
            random.set_rng_state(state)
        else:  # all ranks have rank 0's state here
            seed = random.default_generator().integers(0, 2**31, ())
            random.manual_seed(int(seed) + ranks.rank)
