"""`ShardedAdamW`: each rank keeps a part of AdamW's state (ZeRO, stage 1).

AdamW keeps two numbers for each parameter's number. With N ranks that do the same step from the
same gradients, N - 1 of the N copies are of no use. So each parameter is cut into N equal parts,
rank r updates the r-th with the state of that part alone, and the parts are joined on all ranks.
Rajbhandari et al., 2020. AdamW treats each number by itself, so cutting changes no bit of them.
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

    The gradients must be the same on all ranks, as DataParallel makes them, and `step()` is a
    collective. `state_dict()` is one, too: it joins the whole state, on every rank, in AdamW's own
    form, so that AdamW can load it, or a ShardedAdamW on another number of ranks. As
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
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._own: AdamW | None = None
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Train more parameters, with settings of their own. Raises as the constructor does."""
        super().add_param_group(group)
        if self._own is not None:
            self._own.add_param_group(self._group_of_parts(self.param_groups[-1]))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient, each rank its part. A collective."""
        if self._group.size == 1:
            return super().step(closure)
        loss = None if closure is None else closure()
        own = self._for_parts()
        joined = []
        for p, part in self._parts:
            part._data = self._mine(p, _contiguous(p))
            part.grad = None
            if p.grad is not None:
                part.grad = Tensor(self._mine(p, p.grad._array()))
                joined.append(p)
        if joined:
            own.step()
        requests = [self._group.begin_join(p._data, self._bounds(p)) for p in joined]
        self._group.finish("ShardedAdamW.step()", requests)
        inplace.changed(*(p._data for p in joined))
        for _, part in self._parts:
            part.grad = None
        return loss

    def state_dict(self) -> dict[str, Any]:
        """AdamW's, with the whole state. A collective."""
        if self._group.size == 1:
            return super().state_dict()
        found = self._for_parts().state_dict()
        for i, (p, _) in enumerate(self._parts):
            if i in found["state"]:
                entry = found["state"][i]
                for name in filter(entry.__contains__, STATE):
                    entry[name] = self._joined(p, entry[name])
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken, by AdamW or on any number of ranks; keep a part."""
        if self._group.size == 1:
            super().load_state_dict(state_dict)
            return
        own = self._for_parts()
        parts = {i: self._part_of(i, entry) for i, entry in state_dict["state"].items()}
        own.load_state_dict({**state_dict, "state": parts})
        for full, some in zip(self.param_groups, own.param_groups, strict=True):
            full.update({key: value for key, value in some.items() if key != "params"})

    def _part_of(self, i: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
        """This rank's part of the state of parameter i."""
        found = dict(entry)
        if str(i).isdecimal() and int(i) < len(self._parts):  # if not, AdamW says so
            p = self._parts[int(i)][0]
            for name in filter(entry.__contains__, STATE):
                value = np.asarray(entry[name])
                if value.shape != p.shape:
                    raise ValueError(
                        f"parameter {i}: {name} was saved as {value.shape}, here it is {p.shape}"
                    )
                found[name] = self._mine(p, value)
        return found

    def _mine(self, p: Tensor, array: Array) -> Array:
        """This rank's part of an array of p's shape, flat; a view where the array is contiguous."""
        start, end = self._bounds(p)[self._group.rank :][:2]
        return array.reshape(-1)[start:end]

    def _bounds(self, p: Tensor) -> list[int]:
        """Where the parts of a parameter begin and end, for all ranks."""
        size = self._group.size
        return [r * p.size // size for r in range(size + 1)]

    def _joined(self, p: Tensor, part: Array) -> Array:
        bounds, whole = self._bounds(p), np.empty(p.shape, part.dtype)
        self._mine(p, whole)[...] = part
        self._group.finish("ShardedAdamW.state_dict()", [self._group.begin_join(whole, bounds)])
        return whole

    def _for_parts(self) -> AdamW:
        """The optimiser of this rank's parts, with the settings that the groups have now."""
        if self._own is None:
            groups = [self._group_of_parts(full) for full in self.param_groups]
            self._own = AdamW(groups)
        for full, some in zip(self.param_groups, self._own.param_groups, strict=True):
            some.update({key: value for key, value in full.items() if key != "params"})
        return self._own

    def _group_of_parts(self, full: Mapping[str, Any]) -> dict[str, Any]:
        parts = []
        for p in full["params"]:
            parts.append(Tensor(self._mine(p, _contiguous(p)), requires_grad=True))
            self._parts.append((p, parts[-1]))
        return {**full, "params": parts}


def _contiguous(p: Tensor) -> Array:
    """The parameter's values, moved if need be, so that a part of them is a view."""
    if not p._array().flags.c_contiguous:
        p._data = np.ascontiguousarray(p._data)
    return p._data
