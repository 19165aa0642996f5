"""Gradient clipping and learning-rate schedules.

Clip gradients between `backward()` and `optimizer.step()`; call `schedule.step()` after both.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..engine import inplace
from ..errors import warn
from ..tensor import Tensor


def _norm(x, norm_type):
    """Return the norm of x flattened to a vector."""
    x = x.reshape(-1)
    if x.size == 1 and norm_type:
        return abs(float(x[0]))
    return float(np.linalg.norm(x, norm_type))


def gradients_and_norm(parameters, norm_type) -> tuple[list, float]:
    """Return the gradients of the distinct parameters, and the norm of all of them together."""
    norm_type = float(norm_type)  # PyTorch accepts "inf"
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    distinct = dict.fromkeys(parameters)
    gradients = [p.grad._array() for p in distinct if p.grad is not None]
    if not gradients and (distinct or not isinstance(parameters, list | tuple)):
        warn(
            "clipping changed nothing, because no parameter has a gradient. Clip gradients after "
            "loss.backward(), and to read model.parameters() twice, write list(model.parameters())."
        )
    norms = [_norm(g, norm_type) for g in gradients if g.size]
    return gradients, _norm(np.array(norms), norm_type) if norms else 0.0


def clip(gradients, norm, max_norm, error_if_nonfinite):
    """Scale gradients in place so that their common norm is at most max_norm; return the norm."""
    if not max_norm >= 0:
        raise ValueError(f"max_norm must be a number >= 0, such as 1.0; got {max_norm!r}.")
    if error_if_nonfinite and not math.isfinite(norm):
        raise ValueError(f"the norm of the gradients is {norm}; ta.detect_anomaly() finds the op.")
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1:  # NaN makes all gradients NaN, as in PyTorch
        for g in {id(g): g for g in gradients}.values():  # parameters may share a .grad
            g *= g.dtype.type(factor)
            inplace.changed(g)
    return norm


def clip_grad_norm_(
    parameters, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> float:
    """Set g = g min(1, max_norm / (|g| + 1e-6)) and return |g|, the norm of all gradients together.

    `norm_type` may be math.inf. Raises ValueError if `max_norm` is negative, or, with
    `error_if_nonfinite`, if the norm is not finite. Like `torch.nn.utils.clip_grad_norm_`.
    """
    return clip(*gradients_and_norm(parameters, norm_type), max_norm, error_if_nonfinite)


def _initial(group):
    """Return the initial learning rate of a group, which the first call stores."""
    return group.setdefault("initial_lr", float(group["lr"]))


class Schedule:
    """lr = initial_lr * factor(t), where t counts the calls to `step()`.

    Like `torch.optim.lr_scheduler.LambdaLR`, but accepts any object with `param_groups`.
    """

    def __init__(self, optimizer, factor: Callable[[int], float]):
        self.optimizer, self.factor = optimizer, factor
        self._go_to(0)

    def step(self) -> None:
        """Set the learning rate for the next update."""
        self._go_to(self.step_number + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the step number and the initial learning rates."""
        rates = [_initial(group) for group in self.optimizer.param_groups]
        return {"step_number": self.step_number, "initial_lr": rates}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a saved state. Raises ValueError if the number of groups differs."""
        groups, rates = self.optimizer.param_groups, state_dict["initial_lr"]
        for group, rate in list(zip(groups, rates, strict=True)):
            group["initial_lr"] = float(rate)
        self._go_to(int(state_dict["step_number"]))

    def _go_to(self, step_number):
        factor = float(self.factor(step_number))
        self.step_number = step_number
        for group in self.optimizer.param_groups:
            group["lr"] = _initial(group) * factor


def warmup_cosine(optimizer, warmup_steps: int, total_steps: int, min_lr: float = 0.0) -> Schedule:
    """Raise the learning rate linearly for `warmup_steps` updates, then lower it along a cosine.

    lr(t) = lr (t + 1) / warmup_steps while t < warmup_steps, then
    min_lr + (lr - min_lr) (1 + cos(pi (t - warmup_steps) / (total_steps - warmup_steps))) / 2.
    `min_lr` applies to the first group; other groups are scaled in proportion.
    Raises ValueError unless 0 <= warmup_steps < total_steps and 0 <= min_lr <= lr.
    """
    if 0 < warmup_steps < 1 or not 0 <= warmup_steps < total_steps:
        steps = f"warmup_steps={warmup_steps} and total_steps={total_steps}"
        raise ValueError(f"{steps} must be numbers of updates, 0 <= warmup_steps < total_steps.")
    peak = _initial({**optimizer.param_groups[0]})
    if not 0 <= min_lr <= peak:
        raise ValueError(f"min_lr must be between 0 and the optimiser's lr {peak}, got {min_lr}.")
    floor = min_lr / peak if peak else 0.0

    def factor(t):
        if t < warmup_steps:
            return (t + 1) / warmup_steps
        done = min(1.0, (t - warmup_steps) / (total_steps - warmup_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    return Schedule(optimizer, factor)


def noam(optimizer, d_model: int, warmup_steps: int = 4000) -> Schedule:
    """lr(n) = lr d_model^-0.5 min(n^-0.5, n warmup_steps^-1.5) for update n = t + 1.

    Create the optimiser with lr=1. Vaswani et al., 2017, section 5.3.
    """
    return Schedule(
        optimizer, lambda t: d_model**-0.5 * min((t + 1) ** -0.5, (t + 1) * warmup_steps**-1.5)
    )
