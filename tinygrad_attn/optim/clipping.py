"""In-place gradient clipping, for use between `backward()` and `optimizer.step()`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..engine import inplace
from ..errors import warn
from ..tensor import Tensor
from .optimizer import Array

__all__ = ["clip_grad_norm_"]


def _norm(x: Array, norm_type: float) -> float:
    """Return the norm of x flattened to a vector, computed in float32 if x is float16."""
    x = x.reshape(-1)
    if x.size == 1 and norm_type:
        return abs(float(x[0]))
    return float(np.linalg.norm(x.astype(np.float32) if x.dtype == np.float16 else x, norm_type))


def gradients_and_norm(parameters: Any, norm_type: float) -> tuple[list[Array], float]:
    """Return the gradients of the distinct parameters, and the norm of all as one vector."""
    norm_type = float(norm_type)  # PyTorch accepts "inf"
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    distinct = {id(p): p for p in parameters}.values()
    gradients = [p.grad._array() for p in distinct if p.grad is not None]
    if not gradients and (distinct or not isinstance(parameters, list | tuple)):
        warn(
            "clipping changed nothing, because no parameter has a gradient. Clip gradients after "
            "loss.backward(), and to read model.parameters() twice, write list(model.parameters())."
        )
    norms = [_norm(g, norm_type) for g in gradients if g.size]
    return gradients, _norm(np.array(norms), norm_type) if norms else 0.0


def check_finite(total: float) -> None:
    """Raise ValueError if the norm is NaN or infinite."""
    if not math.isfinite(total):
        raise ValueError(f"the norm of the gradients is {total}; ta.detect_anomaly() finds the op.")


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> float:
    """Set g = g min(1, max_norm / (|g| + 1e-6)) and return |g|, the norm of all gradients together.

    `norm_type` may be math.inf. Raises ValueError if `max_norm` is negative, or, with
    `error_if_nonfinite`, if the norm is not finite. Like `torch.nn.utils.clip_grad_norm_`.
    """
    if not max_norm >= 0:
        raise ValueError(f"max_norm must be a number >= 0, such as 1.0; got {max_norm!r}.")
    gradients, total = gradients_and_norm(parameters, norm_type)
    if error_if_nonfinite:
        check_finite(total)
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:  # NaN makes all gradients NaN, as in PyTorch
        for g in gradients:
            g *= g.dtype.type(factor)
            inplace.changed(g)
    return total
