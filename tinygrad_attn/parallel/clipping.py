"""The gradients' norm over all ranks, and one factor for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine import inplace
from ..optim import clip_grad_norm_ as clip_here
from ..optim.clipping import check_finite, gradients_and_norm
from ..tensor import Tensor
from .group import group
from .tensor_parallel import ShardedParameter


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
    is rank 0's of `comm` everywhere: processors of different kinds may round a sum differently, and
    ranks that scale their gradients differently would drift apart. A collective. Raises as
    optim.clip_grad_norm_.
    """
    a_module = hasattr(parameters, "parameters")
    # On every rank before anything is sent: a module and wrong settings are refused.
    clip_here(parameters if a_module else [], max_norm, norm_type, error_if_nonfinite)
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    whole = [p for p in given if not isinstance(p, ShardedParameter)]
    parts: dict[Any, list[Any]] = {}
    for p in given:
        if isinstance(p, ShardedParameter):
            parts.setdefault(p.group, []).append(p)
    norms = [gradients_and_norm(whole, norm_type)[1]]
    for owners, some in parts.items():
        _, mine = gradients_and_norm(some, norm_type)
        norms += owners.gather("clip_grad_norm_", [mine])[:, 0].tolist()
    total = float(np.linalg.norm(np.array(norms), norm_type))
    total = float(group(comm).gather("clip_grad_norm_", [total])[0, 0])
    if error_if_nonfinite:
        check_finite(total)
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:
        for gradient in {id(p): p.grad for p in given if p.grad is not None}.values():
            g = gradient._array()
            g *= g.dtype.type(factor)
            inplace.changed(g)
    return total
