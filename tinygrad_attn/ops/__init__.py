"""The table of derivatives: all primitive ops, each followed by its VJPs."""

import numpy as np

from ..engine import Op
from .elementwise import *  # noqa: F403
from .linalg import *  # noqa: F403
from .products import *  # noqa: F403
from .reductions import *  # noqa: F403
from .shapes import *  # noqa: F403

UFUNCS: dict[np.ufunc, Op] = {
    getattr(np, name): op
    for name, op in list(globals().items())
    if isinstance(op, Op) and isinstance(getattr(np, name, None), np.ufunc)
}
"""Maps each NumPy ufunc to the op that computes and differentiates it."""
