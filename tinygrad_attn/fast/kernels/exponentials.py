"""e^x and log(1 + x) as NumPy has them fastest on this processor.

With AVX-512 NumPy takes 2^x of many float32 at once, in half the time of e^x, and log(1 + x)
likewise. With AVX2 it takes e^x and log x at once, but these two one number after the other: 2^x in
twice the time of e^x, log(1 + x) in seven times that of log x. NumPy itself says which loop it has
chosen; where it has none for any of them, it is 2^x and NumPy's own log(1 + x).
"""

import numpy as np
from numpy import ndarray
from numpy.lib import introspect

LOG2E = 1.4426950408889634


def _at_once(name: str) -> bool:
    """Does NumPy take this function of many float32 at once on this processor?"""
    found = introspect.opt_func_info(func_name=f"^{name}$", signature="float32").get(name, {})
    return any(not loop["current"].startswith("baseline") for loop in found.values())


EXP: np.ufunc = (
    np.exp if _at_once("exp") and not _at_once("exp2") else np.exp2
)  # the faster exponential of float32,
UNIT: float = LOG2E if EXP is np.exp2 else 1.0  # and the unit of its argument
LOG1P = _at_once("log1p") or not _at_once("log")  # is NumPy's the faster one?


def log1p(x: ndarray) -> ndarray:
    """log(1 + x), for x in [0, 1] and in its memory."""
    if LOG1P:
        return np.log1p(x, out=x)
    u = x + 1  # rounded: what is lost by that, x - (u - 1), is known exactly
    x -= u - 1
    x /= u
    x += np.log(u, out=u)
    return x
