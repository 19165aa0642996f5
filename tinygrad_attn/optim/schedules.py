"""Learning rates that change with the step: each group's own `lr` times a factor of the step.

    schedule = optim.warmup_cosine(optimizer, warmup_steps=100, total_steps=1000)
    for batch in batches:
        ...
        optimizer.step()
        schedule.step()

Any optimiser will do that has `param_groups`, a subclass of your own too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import MissingName, describe

__all__ = ["Schedule", "noam", "warmup_cosine"]


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"a schedule steers an optimiser, got {type(optimizer).__name__}; the optimiser comes "
            "first, as in Schedule(optimizer, factor)"
        )
    return optimizer.param_groups


def _number(value: Any, name: str) -> Any:
    """The value, or TypeError unless it is one number.

    A function without a return gives None, and a command line gives texts.
    """
    if (
        isinstance(value, (str, bool))
        or not hasattr(value, "__float__")
        or getattr(value, "shape", ()) != ()
    ):
        raise TypeError(f"{name} is a number, got {describe(value)}")
    return value


def _initial(group: dict[str, Any]) -> float:
    """The rate that the factor multiplies; a group may be added while a schedule is under way."""
    return group.setdefault("initial_lr", float(group["lr"]))


class Schedule:
    """lr = initial_lr * factor(t), with t = 0 from the start and one more at each `step()`.

    As `torch.optim.lr_scheduler.LambdaLR`. `factor` is any function of the step. The initial rates
    are the groups' `lr` when the schedule first sees them, or their `initial_lr` where an earlier
    schedule or a checkpoint left one. Raises TypeError unless it is given an optimiser and a
    function, and where the function returns no number; then the step and the rates stay as they
    were.
    """

    get_last_lr = MissingName(
        "get_last_lr", "schedule.lr, or [group['lr'] for group in optimizer.param_groups]"
    )

    def __init__(self, optimizer: Any, factor: Callable[[int], float]) -> None:
        _groups(optimizer)
        if not callable(factor):
            raise TypeError(
                "a schedule takes one function of the step, which all groups follow, each from its "
                f"own rate; got {describe(factor)}"
            )
        self.optimizer, self.factor, self.step_number = optimizer, factor, 0
        self._go_to(0)

    def step(self) -> None:
        """Go on to the next step's rate; call it after `optimizer.step()`."""
        self._go_to(self.step_number + 1)

    @property
    def lr(self) -> float:
        """The rate of the first group now."""
        return self.optimizer.param_groups[0]["lr"]

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on: the number of the step and the initial rates."""
        return {
            "step_number": self.step_number,
            "initial_lr": [_initial(g) for g in self.optimizer.param_groups],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises ValueError if it is no schedule's or the number of groups differs.
        """
        if not isinstance(state_dict, Mapping) or not {"step_number", "initial_lr"} <= {
            *state_dict
        }:
            found = sorted(state_dict) if isinstance(state_dict, Mapping) else describe(state_dict)
            raise ValueError(
                f"this is no schedule's state: it has {found} where 'initial_lr' and 'step_number' "
                "belong. Give it what schedule.state_dict() returned"
            )
        rates, groups = state_dict["initial_lr"], self.optimizer.param_groups
        if len(rates) != len(groups):
            raise ValueError(
                f"the schedule was saved for {len(rates)} groups, the optimiser has {len(groups)}"
            )
        self._go_to(
            int(_number(state_dict["step_number"], "step_number")),
            [_number(rate, "initial_lr") for rate in rates],
        )

    def _go_to(self, step_number: int, rates: Iterable[float] | None = None) -> None:
        """Set the rates of this step, from these initial ones if given.

        If the factor is refused, everything stays as it was.
        """
        before, self.step_number = self.step_number, step_number  # the factor may look at it
        try:
            factor = float(_number(self.factor(step_number), f"factor({step_number})"))
        except BaseException:
            self.step_number = before
            raise
        groups = self.optimizer.param_groups
        for group, rate in zip(groups, map(_initial, groups) if rates is None else rates):
            group["initial_lr"], group["lr"] = rate, rate * factor


def warmup_cosine(
    optimizer: Any, warmup_steps: int, total_steps: int, min_lr: float = 0.0
) -> Schedule:
    """A straight line up to lr in `warmup_steps` updates, then half a cosine down to `min_lr`.

    lr(t) = lr (t + 1) / warmup_steps while t < warmup_steps, then
    min_lr + (lr - min_lr) (1 + cos(pi (t - warmup_steps) / (total_steps - warmup_steps))) / 2.
    With several groups `min_lr` is that of the first, the others' in proportion. Raises ValueError,
    and TypeError for what is no optimiser or no number.
    """
    for value, name in (
        (warmup_steps, "warmup_steps"),
        (total_steps, "total_steps"),
        (min_lr, "min_lr"),
    ):
        _number(value, name)
    if 0 < warmup_steps < 1:
        raise ValueError(
            f"warmup_steps counts updates, got {warmup_steps}; a share of them is "
            f"int({warmup_steps} * total_steps)"
        )
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"need 0 <= warmup_steps < total_steps, got {warmup_steps} and {total_steps}"
        )
    first = _groups(optimizer)[0]
    peak = first.get("initial_lr", first["lr"])
    if not 0 <= min_lr <= peak:
        raise ValueError(f"min_lr must lie between 0 and the optimiser's lr {peak}, got {min_lr}")
    floor = min_lr / peak if peak else 0.0

    def factor(t: int) -> float:
        if t < warmup_steps:
            return (t + 1) / warmup_steps
        done = min(1.0, (t - warmup_steps) / (total_steps - warmup_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    return Schedule(optimizer, factor)


def noam(optimizer: Any, d_model: int, warmup_steps: int = 4000) -> Schedule:
    """lr(n) = lr d_model^-0.5 min(n^-0.5, n warmup_steps^-1.5) for update n = t + 1.

    A straight line up, then falling with the root of the step; make the optimiser with lr=1.
    "Attention Is All You Need", section 5.3. Raises ValueError, and TypeError for what is no
    optimiser or no number.
    """
    if not _number(d_model, "d_model") >= 1 or not _number(warmup_steps, "warmup_steps") >= 1:
        raise ValueError(
            f"need d_model >= 1 and warmup_steps >= 1, got {d_model} and {warmup_steps}"
        )
    return Schedule(
        optimizer, lambda t: d_model**-0.5 * min((t + 1) ** -0.5, (t + 1) * warmup_steps**-1.5)
    )
