"""`ShardedAdamW`: each rank keeps a part of AdamW's state (ZeRO, stage 1).

AdamW keeps two numbers for each number of a parameter. With N ranks that make the same step from
the same gradients, N - 1 of the N copies are of no use. So each parameter is cut into N equal
parts. Rank r updates the r-th with the state of that part alone, and the parts are joined on all
ranks. AdamW treats each number by itself, so cutting changes no bit. Rajbhandari et al., 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine import inplace
from ..optim import AdamW
from ..tensor import Tensor
from .group import group

Array = NDArray[Any]

STATE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class ShardedAdamW(AdamW):
    """AdamW whose state is divided among the ranks; arguments and numbers as `optim.AdamW`.

    The gradients must be the same on all ranks, as DataParallel makes them. `step()` is a
    collective. So is `state_dict()`: it joins the whole state, on every rank, in AdamW's own form.
    AdamW can load it, and so can a ShardedAdamW on another number of ranks. As
    torch.distributed.optim.ZeroRedundancyOptimizer.
    """

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
        comm: Any = None,
    ) -> None:
        self._group = group(comm)
        self._parts: list[tuple[Tensor, Tensor]] = []  # parameters, and this rank's part of each
        self._own: AdamW | None = None
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Train more parameters, with settings of their own. Raises as the constructor does."""
        super().add_param_group(group)
        if self._group.size == 1:
            return
        full = self.param_groups[-1]
        parts = []
        for p in full["params"]:
            p._data = np.ascontiguousarray(p._array()).reshape(p.shape)  # so that parts are views
            parts.append(Tensor(self._mine(p, p._data), requires_grad=True))
            self._parts.append((p, parts[-1]))
        if self._own is None:
            self._own = AdamW([{**full, "params": parts}])
        else:
            self._own.add_param_group({**full, "params": parts})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, each rank its part. A collective."""
        if self._group.size == 1:
            return super().step(closure)
        loss = None if closure is None else closure()
        joined = []
        for p, part in self._parts:
            p._data = np.ascontiguousarray(p._array()).reshape(p.shape)
            part._data, part.grad = self._mine(p, p._data), None
            if p.grad is not None:
                part.grad = Tensor(self._mine(p, p.grad._array()))
                joined.append(p)
        if joined:
            self._with_settings().step()
        requests = [self._group.begin_join(p._data, self._bounds(p)) for p in joined]
        self._group.wait("ShardedAdamW.step()", requests)
        inplace.changed(*(p._data for p in joined))
        for _, part in self._parts:
            part.grad = None
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return AdamW's state dict, with the whole state. A collective."""
        if self._group.size == 1:
            return super().state_dict()
        found = self._with_settings().state_dict()
        for i, entry in found["state"].items():
            p = self._parts[i][0]
            for name in filter(entry.__contains__, STATE):
                whole = np.empty(p.shape, entry[name].dtype)
                self._mine(p, whole)[...] = entry[name]
                request = self._group.begin_join(whole, self._bounds(p))
                self._group.wait("ShardedAdamW.state_dict()", [request])
                entry[name] = whole
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, by AdamW or on any number of ranks; keep a part."""
        if self._group.size == 1:
            super().load_state_dict(state_dict)
            return
        parts = {}
        for i, entry in state_dict["state"].items():
            parts[i] = dict(entry)
            if not 0 <= int(i) < len(self._parts):
                continue  # AdamW refuses it below
            p = self._parts[int(i)][0]
            for name in filter(entry.__contains__, STATE):
                value = np.asarray(entry[name])
                if value.shape != p.shape:
                    raise ValueError(
                        f"parameter {i}: {name} was saved as {value.shape}, here it is {p.shape}"
                    )
                parts[i][name] = self._mine(p, value)
        own = self._with_settings()
        own.load_state_dict({**state_dict, "state": parts})
        for full, some in zip(self.param_groups, own.param_groups, strict=True):
            full.update({key: value for key, value in some.items() if key != "params"})

    def _mine(self, p: Tensor, array: Array) -> Array:
        """Return this rank's part of an array of p's shape, flat; a view if it is contiguous."""
        start, end = self._bounds(p)[self._group.rank :][:2]
        return array.reshape(-1)[start:end]

    def _bounds(self, p: Tensor) -> list[int]:
        """Return where the parts of a parameter begin and end, for all ranks."""
        size = self._group.size
        return [r * p.size // size for r in range(size + 1)]

    def _with_settings(self) -> AdamW:
        """Return the optimiser of this rank's parts, with the groups' present settings."""
        assert self._own is not None
        for full, some in zip(self.param_groups, self._own.param_groups, strict=True):
            some.update({key: value for key, value in full.items() if key != "params"})
        return self._own
