"""Leftover names; they go with their last users."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_module(x: Any) -> bool:
    """Whether this is a module, of whatever library, and not its class."""
    return hasattr(x, "named_modules") and not isinstance(x, type)


def unmade(x: Any) -> str:
    """Return what to do where a class stands in place of an object of it."""
    return " Make an object of the class first, with brackets." if isinstance(x, type) else ""


def refuse_mask(op: str, x: Any) -> None:
    """Raise the error for a masked array in which something is masked."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise TypeError(f"{op} cannot take a masked array, whose mask would be lost.")
