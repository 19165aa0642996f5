"""Random numbers on several ranks: the same stream everywhere, or another one on each.

As in PyTorch every rank has its own generator, and seeds it itself. The same seed everywhere is
right for what has to be the same, such as values that are not copied from rank 0. Dropout masks
should differ, or every rank drops the same units of its samples.
"""

from __future__ import annotations

from typing import Any

from ..random import Generator
from ..random import manual_seed as seed_here
from .group import group


def manual_seed(seed: int, *, same: bool = False, comm: Any = None) -> Generator:
    """`ta.manual_seed(seed + rank)`: another stream on each rank; with `same` one for all.

    Returns the generator.
    """
    rank = 0 if same else group(comm).rank
    return seed_here(seed + rank if rank else seed)
