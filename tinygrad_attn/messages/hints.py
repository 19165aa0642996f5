"""Sentences about an argument that cannot be used: what it may be, and what to write for it.

Each begins with a space, so that it can be put behind any error text, and is empty where there is
nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Set, ValuesView
from typing import Any

import numpy as np


def is_module(x: Any) -> bool:
    """Is this a module, of whatever library, and not merely its class?"""
    return hasattr(x, "named_modules") and not isinstance(x, type)


def unmade(x: Any) -> str:
    """What to do where a class stands in place of an object of it."""
    return " Make an object of the class first, with brackets." if isinstance(x, type) else ""


def several_results(x: Any) -> str:
    """What else a tuple of Tensors may be: the results of one call."""
    if not isinstance(x, tuple):
        return ""
    return (
        " If one call returned them, as nn.MultiheadAttention does, take them apart: y, weights = "
        "..."
    )


def numbers_of(x: Any) -> str:
    """How to get at the numbers in what NumPy takes for a single object, or for many objects."""
    if hasattr(x, "toarray"):
        return " Write x.toarray(), in which a sparse matrix has its zeros too."
    if isinstance(x, np.ndarray) and x.dtype.kind in "OV" and x.dtype.names is None:
        return " Write x.astype(np.float32), if these are real numbers."
    return " Write list(x)." if isinstance(x, (Iterator, Set, ValuesView)) else ""


def mask_lost(op: str) -> TypeError:
    """The error for a masked array."""
    return TypeError(
        f"{op} cannot take a masked array, whose mask would be lost. Write x.filled(0), and "
        "np.where(mask, a, b) to choose by the mask."
    )


def refuse_mask(op: str, x: Any) -> None:
    """Raise the error for a masked array in which something is masked, or for a list of such.

    A masked array in which nothing is masked passes: some readers of files return one for any data.
    """
    if x.__class__ is np.ndarray:
        return
    parts = x if isinstance(x, (list, tuple)) else (x,)
    kinds = {*map(type, parts)} - {np.ndarray}  # A long list has few types, so this is quick.
    if any(issubclass(kind, np.ndarray) for kind in kinds) and any(map(np.ma.is_masked, parts)):
        raise mask_lost(op)
