"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .optimizer import Array, Optimizer


class SGD(Optimizer):
    """d = g + wd p;  b = momentum b + (1 - dampening) d  (b = d at first);  p = p - lr b.

    Nesterov's form steps along d + momentum b instead of b. As `torch.optim.SGD`. Raises
    ValueError, TypeError.
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
        defaults = dict(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )
        super().__init__(params, defaults)

    def _check(self, group: Mapping[str, Any]) -> None:
        super()._check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov=True needs momentum > 0 and dampening=0")

    def _state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _counts(self, group: Mapping[str, Any]) -> bool:
        """The first step with momentum is different, however many came before it without."""
        return bool(group["momentum"])

    def _update(
        self, group: Mapping[str, Any], step: int, p: Array, g: Array, *state: Array
    ) -> None:
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        d = -g if group["maximize"] else g
        if decay:
            d = d + decay * p
        if momentum:
            (b,) = state
            b *= momentum
            b += d if step == 1 else (1 - dampening) * d
            d = d + momentum * b if group["nesterov"] else b
        p -= lr * d
