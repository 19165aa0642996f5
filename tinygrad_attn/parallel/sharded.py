"""`ShardedAdamW`: each rank keeps a part of AdamW's state (ZeRO, stage 1).

Each parameter belongs to one rank, which updates it and sends the new values to the others.
Rajbhandari et al., 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..engine import inplace
from ..optim import AdamW
from ..tensor import Tensor
from .group import group


class ShardedAdamW(AdamW):
    """AdamW with its state divided among the ranks. Arguments and results match `optim.AdamW`.

    The gradients must be the same on all ranks, as with DataParallel. `step()` and `state_dict()`
    are collectives. Like torch.distributed.optim.ZeroRedundancyOptimizer.
    """

    def __init__(self, params: Any, *settings: Any, comm: Any = None, **named: Any) -> None:
        self._group = group(comm)
        self._loads = [0] * self._group.size  # the number of elements that each rank owns
        self._owners: dict[Tensor, int] = {}
        super().__init__(params, *settings, **named)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with their own settings."""
        super().add_param_group(group)
        for p in sorted(self.param_groups[-1]["params"], key=lambda p: -p.size):
            owner = self._owners[p] = int(np.argmin(self._loads))
            self._loads[owner] += p.size

    def step(self) -> None:
        """Update every parameter that has a gradient. A collective."""
        grads = {p: p.grad for p in self._owners}
        for p, owner in self._owners.items():
            p.grad = grads[p] if owner == self._group.rank else None
        super().step()
        for p, g in grads.items():
            p.grad = g
        changed = [(p, np.ascontiguousarray(p._array())) for p, g in grads.items() if g is not None]
        new = [(array, self._owners[p]) for p, array in changed]
        self._group.broadcast("ShardedAdamW.step()", *new)
        for p, array in changed:
            p._array()[...] = array
            inplace.changed(p._data)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state on every rank, in AdamW's format. A collective."""
        found = super().state_dict()
        for i, p in enumerate(p for some in self.param_groups for p in some["params"]):
            entry = self._group.gather("ShardedAdamW.state_dict()", found["state"].get(i))
            if entry[self._owners[p]] is not None:
                found["state"][i] = entry[self._owners[p]]
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this rank's part of a state dict, saved by AdamW or by any number of ranks."""
        super().load_state_dict(state_dict)
        for p, owner in self._owners.items():
            if owner != self._group.rank:
                self.state.pop(p, None)
