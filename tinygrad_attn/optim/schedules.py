"""Learning rates that change with the step: each group's own `lr` times a factor of the step.

schedule = optim.warmup_cosine(optimizer, warmup_steps=100, total_steps=1000)
for batch in batches:
    ...
    optimizer.step()
    schedule.step()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import MissingName, describe, is_number

__all__ = ["Schedule", "noam", "warmup_cosine"]


def _initial(group: dict[str, Any]) -> float:
    """Return the rate that the factor multiplies."""
    return group.setdefault("initial_lr", float(group["lr"]))


class Schedule:
    """lr = initial_lr * factor(t), with t = 0 at the start and one more at each `step()`.

    As `torch.optim.lr_scheduler.LambdaLR`, for any object with `param_groups`. Raises TypeError if
    `factor`, a function of the step, is no function or returns no number.
    """

    get_last_lr = MissingName("get_last_lr", "schedule.lr")

    def __init__(self, optimizer: Any, factor: Callable[[int], float]) -> None:
        if not hasattr(optimizer, "param_groups") or not callable(factor):
            raise TypeError(
                "a schedule takes an optimiser and a function of the step; "
                f"got {describe(optimizer)} and {describe(factor)}."
            )
        self.optimizer, self.factor, self.step_number = optimizer, factor, 0
        self._go_to(0)

    def __repr__(self) -> str:
        return f"Schedule(step_number={self.step_number}, lr={self.lr!r})"

    def step(self) -> None:
        """Set the next step's rate; call it after `optimizer.step()`."""
        self._go_to(self.step_number + 1)

    @property
    def lr(self) -> float:
        """The present rate of the first group."""
        return self.optimizer.param_groups[0]["lr"]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the step and the initial rates."""
        rates = [_initial(group) for group in self.optimizer.param_groups]
        return {"step_number": self.step_number, "initial_lr": rates}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state; raises ValueError if the number of groups differs."""
        rates, groups = state_dict["initial_lr"], self.optimizer.param_groups
        if len(rates) != len(groups):
            raise ValueError(
                f"the schedule was saved for {len(rates)} groups, the optimiser has {len(groups)}."
            )
        self._go_to(int(state_dict["step_number"]), [float(rate) for rate in rates])

    def _go_to(self, step_number: int, rates: Iterable[float] | None = None) -> None:
        """Set the rates of this step; a factor that is refused changes nothing."""
        factor = self.factor(step_number)
        if not is_number(factor):
            raise TypeError(f"factor({step_number}) must be a number, got {describe(factor)}.")
        groups, self.step_number = self.optimizer.param_groups, step_number
        for group, rate in zip(groups, rates or [_initial(group) for group in groups]):
            group["initial_lr"], group["lr"] = rate, rate * float(factor)


def warmup_cosine(
    optimizer: Any, warmup_steps: int, total_steps: int, min_lr: float = 0.0
) -> Schedule:
    """Rise in a straight line to lr in `warmup_steps` updates, then fall by half a cosine.

    lr(t) = lr (t + 1) / warmup_steps while t < warmup_steps, then
    min_lr + (lr - min_lr) (1 + cos(pi (t - warmup_steps) / (total_steps - warmup_steps))) / 2.
    With several groups `min_lr` is that of the first, and the others' are in proportion.
    Raises ValueError unless 0 <= warmup_steps < total_steps and 0 <= min_lr <= lr.
    """
    if 0 < warmup_steps < 1 or not 0 <= warmup_steps < total_steps:
        raise ValueError(
            "warmup_steps and total_steps count updates, 0 <= warmup_steps < total_steps; "
            f"got {warmup_steps} and {total_steps}."
        )
    peak = _initial({**optimizer.param_groups[0]})
    if not is_number(min_lr) or not 0 <= min_lr <= peak:
        raise ValueError(f"min_lr must be between 0 and the optimiser's lr {peak}, got {min_lr}.")
    floor = min_lr / peak if peak else 0.0

    def factor(t: int) -> float:
        if t < warmup_steps:
            return (t + 1) / warmup_steps
        done = min(1.0, (t - warmup_steps) / (total_steps - warmup_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    return Schedule(optimizer, factor)


def noam(optimizer: Any, d_model: int, warmup_steps: int = 4000) -> Schedule:
    """lr(n) = lr d_model^-0.5 min(n^-0.5, n warmup_steps^-1.5) for update n = t + 1.

    A straight line up, then down with the root of the step; make the optimiser with lr=1.
    "Attention Is All You Need", section 5.3. Raises ValueError unless both numbers are at least 1.
    """
    if not (d_model >= 1 and warmup_steps >= 1):
        raise ValueError(
            f"need d_model >= 1 and warmup_steps >= 1, got {d_model} and {warmup_steps}."
        )
    return Schedule(
        optimizer, lambda t: d_model**-0.5 * min((t + 1) ** -0.5, (t + 1) * warmup_steps**-1.5)
    )
