"""Gradients kept small, in place, between `backward()` and `optimizer.step()`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine import inplace
from ..errors import describe, is_number, warn
from ..functional.checks import single
from ..tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_"]

Array = NDArray[Any]


def _gradients(parameters: Any) -> list[Array]:
    """The arrays of all gradients there are; a parameter listed twice counts once."""
    if hasattr(parameters, "parameters"):
        raise TypeError(
            f"clipping takes parameters, got {type(parameters).__name__}; write model.parameters()"
        )
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    spent = isinstance(parameters, Iterator)
    parameters = list(parameters) if hasattr(parameters, "__iter__") else [parameters]
    if spent and not parameters:
        warn(
            "clipping got a generator with nothing in it, so nothing is clipped; "
            "model.parameters() can be walked through once: write list(model.parameters()) where "
            "it is used twice."
        )
    for p in parameters:
        if not isinstance(p, Tensor):
            raise TypeError(
                f"clipping takes a list of Tensors, got {describe(p)}; "
                "write list(model.parameters())"
            )
    grads = [p.grad for p in {id(p): p for p in parameters}.values() if p.grad is not None]
    if parameters and not grads:
        warn(
            "clipping changed nothing: no parameter has a gradient. Call it between "
            "loss.backward() and optimizer.step(), with the parameters, not with their gradients."
        )
    for g in grads:
        if g.dtype.kind != "f":
            raise TypeError(
                f"a gradient is {describe(g)}, which has no place for fractions; "
                "write p.grad = p.grad.astype(p.dtype)"
            )
    return [g._array() for g in grads]


def _bound(bound: Any, name: str, what: str) -> float:
    bound = single(bound)
    if not is_number(bound) or not bound >= 0:
        raise ValueError(
            f"{name} is the largest {what} allowed, a number such as 1.0; got {bound!r}"
        )
    return float(bound)


def _norm(x: Array, norm_type: float) -> float:
    """The norm of x as one vector, without an overflow that PyTorch would not have.

    The powers of float16 numbers are taken in float32, and those of a single number not at all.
    """
    x = x.reshape(-1)
    if x.size == 1 and norm_type:
        return abs(float(x[0]))
    return float(np.linalg.norm(x.astype(np.float32) if x.dtype == np.float16 else x, norm_type))


def gradients_and_norm(parameters: Any, norm_type: float) -> tuple[list[Array], float]:
    """The arrays of all gradients there are, and their norm as one vector.

    Raises TypeError for what are no parameters, ValueError for a `norm_type` that is no number.
    """
    try:
        power = math.nan if isinstance(norm_type, bool) else float(norm_type)
    except (TypeError, ValueError):
        power = math.nan
    if math.isnan(power):
        raise ValueError(f"norm_type is a number such as 2.0 or math.inf; got {norm_type!r}")
    grads = _gradients(parameters)
    norms = [_norm(g, power) for g in grads if g.size]
    return grads, _norm(np.array(norms), power) if norms else 0.0


def check_finite(total: float) -> None:
    """Raise for a norm that is NaN or infinite."""
    if not math.isfinite(total):
        raise ValueError(
            f"the norm of the gradients is {total}; ta.detect_anomaly() names the op that made it"
        )


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> float:
    """g = g min(1, max_norm / (|g| + 1e-6)); returns |g|, the norm of all gradients as one vector.

    `norm_type` may be math.inf. Raises TypeError for what are no parameters and for integer
    gradients, ValueError for a `max_norm` that is no number >= 0, a `norm_type` that is no number,
    and with `error_if_nonfinite` if the norm is NaN or infinite. As
    `torch.nn.utils.clip_grad_norm_`.
    """
    max_norm = _bound(max_norm, "max_norm", "norm")
    grads, total = gradients_and_norm(parameters, norm_type)
    if error_if_nonfinite:
        check_finite(total)
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:
        for g in grads:
            g *= g.dtype.type(factor)
            inplace.changed(g)
    return total


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """g = min(max(g, -clip_value), clip_value), element by element.

    As `torch.nn.utils.clip_grad_value_`. Raises as `clip_grad_norm_` does.
    """
    clip_value = _bound(clip_value, "clip_value", "value")
    for g in _gradients(parameters):
        np.clip(g, -clip_value, clip_value, out=g)
        inplace.changed(g)
