"""SGD, Adam and AdamW."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import is_number
from .optimizer import Array, Group, Optimizer


class SGD(Optimizer):
    """d = g + wd p;  b = momentum b + (1 - dampening) d, at first b = d;  p = p - lr b.

    With `nesterov`, p = p - lr (d + momentum b). Like `torch.optim.SGD`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        settings = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
        super().__init__(params, dict(**settings, nesterov=nesterov, maximize=maximize))

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("SGD: nesterov=True needs momentum > 0 and dampening=0.")

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _update(self, group: Group, step: int, p: Array, g: Array, *state: Array) -> None:
        momentum, decay = float(group["momentum"]), float(group["weight_decay"])
        d = -g if group["maximize"] else g
        if decay:
            d = d + decay * p
        if momentum:
            (b,) = state
            b *= momentum
            b += d if step == 1 else (1 - float(group["dampening"])) * d
            d = d + momentum * b if group["nesterov"] else b
        p -= float(group["lr"]) * d


class Adam(Optimizer):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p = p - lr m' / (sqrt(v') + eps).

    In update t, m' = m / (1 - b1^t) and v' = v / (1 - b2^t). `weight_decay` adds wd p to the
    gradient; `amsgrad` uses the largest v so far. Kingma and Ba, 2015; like `torch.optim.Adam`.
    """

    decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        settings = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, dict(**settings, amsgrad=amsgrad, maximize=maximize))

    def _check(self, group: Group) -> None:
        super()._check(group)
        betas = group["betas"]
        if not all(is_number(b) and 0 <= b < 1 for b in betas):
            raise ValueError(
                f"betas must be two numbers in [0, 1), such as (0.9, 0.999); got {betas}."
            )

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))

    def _update(self, group: Group, step: int, p: Array, g: Array, *state: Array) -> None:
        b1, b2 = map(float, group["betas"])
        lr, eps, decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
        m, v, *largest = state
        if group["maximize"]:
            g = -g
        if decay and self.decoupled:
            p *= 1 - lr * decay
        elif decay:
            g = g + decay * p
        m *= b1
        m += (1 - b1) * g
        v *= b2
        v += (1 - b2) * g * g  # in this order, because g * g would overflow sooner
        for top in largest:
            v = np.maximum(top, v, out=top)
        # Take the root before the correction, which could make a large v infinite.
        root = np.sqrt(v) / math.sqrt(1 - b2**step)
        p -= lr / (1 - b1**step) * m / (root + eps)


class AdamW(Adam):
    """Adam with decoupled weight decay: p = (1 - lr wd) p, then Adam's step.

    Loshchilov and Hutter, 2019; like `torch.optim.AdamW`.
    """

    decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
