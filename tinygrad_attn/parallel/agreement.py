"""Do all ranks have the same model? Asked at the start; later a difference would be a hang."""

from __future__ import annotations

import zlib
from itertools import zip_longest
from typing import Any

from ..engine import inplace
from .group import Group


def check_same_model(module: Any, group: Group) -> None:
    """Raise ValueError on every rank, with the name, where parameters or buffers differ.

    Compared are names, order, shapes, dtypes, and whether they are trained; not the values.
    """
    if group.size == 1:
        return
    mine = describe(module)
    digests = group.gather("the comparison of the models", [zlib.crc32("\n".join(mine).encode())])
    if (digests == digests[0]).all():
        return
    every = group.gather_text("the comparison of the models", "\n".join(mine))
    first = every[0].split("\n")
    for rank, text in enumerate(every):
        for ours, theirs in zip_longest(first, text.split("\n"), fillvalue="nothing"):
            if ours != theirs:
                raise ValueError(
                    f"the ranks have different models: where rank 0 has {ours}, rank {rank} has "
                    f"{theirs}. Make the same model on every rank, with the same sizes, its layers "
                    "in the same order and the same ones frozen."
                )


def describe(module: Any) -> list[str]:
    """A line for each parameter and buffer."""
    parameters = [
        f"{name!r} {p.shape} {p.dtype}{'' if p.requires_grad else ' frozen'}"
        for name, p in module.named_parameters()
    ]
    buffers = [f"buffer {name!r} {b.shape} {b.dtype}" for name, b in module.named_buffers()]
    return parameters + buffers


def copy_from_rank_0(module: Any, group: Group) -> None:
    """Every rank gets the values of rank 0's parameters and buffers."""
    if group.size == 1:
        return
    for name, t in [*module.named_parameters(), *module.named_buffers()]:
        values = t._array().copy()
        group.broadcast(f"the copy of rank 0's {name!r}", values)
        t._array()[...] = values
        inplace.changed(t._data)


def check_same_values(module: Any, group: Group, call: str) -> None:
    """Raise RuntimeError, on every rank and with the name, where values differ in a single bit."""
    names = [name for name, _ in module.named_parameters()]
    digests = [zlib.crc32(p._array().tobytes()) for p in module.parameters()]
    every = group.gather(call, digests or [0])
    for i, name in enumerate(names):
        for rank in range(group.size):
            if every[rank, i] != every[0, i]:
                raise RuntimeError(f"{call}: rank {rank} has other values in {name!r} than rank 0.")
