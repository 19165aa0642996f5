"""Checkpoints of several ranks: rank 0 writes one file, and all go on from it.

The file is that of `ta.save_checkpoint`, and either can be read by the other: weights as the module
has them, the optimiser's whole state, rank 0's generator. Beside them stand the generators of the
other ranks. So a run goes on with another number of ranks, or with one process, too.
"""

from __future__ import annotations

from typing import Any

from ..files import Path, load_with_metadata
from ..files.checkpoints import Progress
from ..files.checkpoints import load_checkpoint as load_here
from ..files.checkpoints import save_checkpoint as save_here
from ..random import default_generator, get_rng_state, manual_seed, set_rng_state
from .agreement import check_same_values
from .data_parallel import DataParallel
from .group import Group, group

PREFIX = "ranks."


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
    """`ta.save_checkpoint` by rank 0, with the joined state of all; the others wait for it.

    The file is written atomically. A collective. Where rank 0 cannot write, every rank raises.
    """
    ranks = group(comm)
    beside = _generators(ranks)
    joined = None if optimizer is None else _Joined(optimizer.state_dict())
    error: BaseException | None = None
    if ranks.rank == 0:
        try:
            save_here(
                path,
                model=_bare(model),
                optimizer=joined,
                schedule=schedule,
                step=step,
                extra=extra,
                beside=beside,
            )
        except Exception as refused:
            error = refused
    ranks.agree("save_checkpoint", error)


def load_checkpoint(
    path: Path,
    *,
    model: Any,
    optimizer: Any = None,
    schedule: Any = None,
    comm: Any = None,
) -> Progress:
    """Put model, optimiser, schedule and generators back on every rank; returns (step, extra).

    Every rank reads the file, so it lies where all can see it. With as many ranks as there were
    each gets its own generator back and goes on bit for bit. Ranks that are new get streams that
    are drawn from rank 0's seed. Raises as `ta.load_checkpoint`, and on every rank where one fails
    or has read another file. A collective.
    """
    ranks = group(comm)
    error: BaseException | None = None
    progress = Progress(0, None)
    try:
        progress = load_here(path, model=_bare(model), optimizer=optimizer, schedule=schedule)
        _restore_generator(path, ranks)
    except Exception as refused:
        error = refused
    ranks.agree("load_checkpoint", error)
    check_same_values(_bare(model), ranks, "load_checkpoint")
    return progress


class _Joined:
    """An optimiser's state that has been joined already: rank 0 cannot do that alone."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state


def _bare(model: Any) -> Any:
    return model.module if isinstance(model, DataParallel) else model


def _generators(ranks: Group) -> dict[str, Any]:
    """The states of the other ranks' generators by name."""
    found = {}
    for name, value in get_rng_state().items():
        every = ranks.gather("save_checkpoint", value)
        for rank in range(1, ranks.size):
            found[f"{PREFIX}{rank}.{name}"] = every[rank].reshape(value.shape)
    return found


def _restore_generator(path: Path, ranks: Group) -> None:
    """This rank's own state, or where the file has none for it a stream of its own."""
    if ranks.rank == 0:
        return
    prefix = f"{PREFIX}{ranks.rank}."
    arrays = load_with_metadata(path)[0]
    state = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
    if state:
        set_rng_state(state)
    else:  # all ranks have rank 0's state here; from it each draws a seed of its own
        manual_seed(int(default_generator().integers(0, 2**31, ())) + ranks.rank)
