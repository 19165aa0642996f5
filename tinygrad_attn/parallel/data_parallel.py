"""Data parallelism: each rank has the whole model and a part of each batch.

Hooks on the tensors that the model computes from its parameters tell the backward pass to call a
function at its end, which averages all gradients. `ShardedAdamW` divides the optimiser's state
among the ranks (ZeRO, stage 1; Rajbhandari et al., 2020).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..engine import Listener, context, history, inplace, listening, tracked
from ..errors import describe
from ..nn import Module
from ..nn.calls import hides_tensors
from ..optim import AdamW
from ..random import Generator
from ..tensor import Tensor
from ..tree import tree_leaves, tree_map
from .group import group


class _Computed(Listener):
    """The tensors that ops compute from parameters."""

    def __init__(self, parameters):
        self.parameters, self.tensors = parameters, []

    def computed(self, op, inputs, settings, output):
        node = output._node  # without inputs in the first run of a checkpoint
        if node and not self.parameters.isdisjoint(filter(tracked, node.inputs)):
            self.tensors.append(output)


class DataParallel(Module):
    """A module whose gradients `backward()` averages over all ranks.

    All ranks start with rank 0's parameters and buffers. `comm` is an mpi4py communicator, which
    defaults to all ranks. If the ranks have different numbers of samples, multiply the loss by the
    weight from `DistributedSampler.batches`. Raises ValueError on every rank if the models differ.
    Like torch.nn.parallel.DistributedDataParallel.
    """

    def __init__(self, module: Module, comm=None):
        self.module = module
        self._group = group(comm)
        self._averages = True
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        _compare(tensors, self._group)
        _send(((t, 0) for t in tensors.values()), self._group, "the copy of rank 0's model")

    def forward(self, *args, **kwargs) -> Any:
        """Return the outputs of the module."""
        used = {*self._trained()}  # in a functional call, other tensors than after it
        computed, averages = _Computed(used), self._averages and self._group.size > 1
        with listening(computed) if averages else nullcontext():
            outputs = self.module(*args, **kwargs)
        if context.recording and hides_tensors(outputs):
            raise TypeError(
                f"DataParallel cannot average the gradients of {describe(outputs)}. The module "
                "must return Tensors, also in tuples, lists and dicts."
            )
        if not averages:
            return outputs
        # No hook stays on a leaf, which outlives the call.
        outputs = tree_map(lambda y: y.clone() if tracked(y) and not y._node else y, outputs)
        for y in {*computed.tensors, *filter(tracked, tree_leaves(outputs))}:
            y.register_hook(lambda _: self._average_at_end(used))
        return outputs

    def _average_at_end(self, used):
        """Let the running backward pass average at its end, or raise an error."""
        this = context.backward_pass
        if this and self._average in this.at_end:
            return
        if context.recording:
            raise TypeError(
                "DataParallel's gradients cannot be differentiated again; with create_graph=True, "
                "use model.module, and average the gradients at the end."
            )
        if this is None or self._misses(used, this.wanted):
            raise RuntimeError(
                "only loss.backward() averages a DataParallel model's gradients, and only those of "
                "its own parameters. For ta.grad, ta.vjp, ta.source and other tensors in a "
                "functional_call, use model.module, and apply tinygrad_attn.parallel.mean to the "
                "gradients."
            )
        this.at_end[self._average] = None  # in ta.grad, it is not called

    def _misses(self, used, wanted):
        """Return whether a pass computes gradients of parameters that will not be averaged."""
        own, computed = set(self._trained()), history(used)
        sources = {*used, *(x for t in computed for x in t._node.inputs if tracked(x))}
        if wanted is None:
            return any(x._node is None for x in sources - own)
        return not (sources | own).isdisjoint(wanted)

    def _trained(self):
        return [p for p in self.module.parameters() if p.requires_grad]

    def _average(self):
        average_over_ranks(self._trained(), self._group)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Switch off averaging for forward passes inside the block.

        To accumulate three batches, run the first two inside the block and the third after it.
        """
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before


def average_over_ranks(parameters, ranks):
    """Replace every `.grad` with its mean over the ranks.

    A missing gradient counts as zeros. If no rank has a gradient, `.grad` remains None.
    """
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        some = [p for p in parameters if p.dtype == dtype]
        grads = [np.zeros(p.shape, dtype) if p.grad is None else p.grad._array() for p in some]
        has_one = np.array([p.grad is not None for p in some], dtype)
        # On some ranks, a .grad that the user has set may have another dtype.
        flat = np.concatenate([*map(np.ravel, grads), has_one], dtype=dtype, casting="unsafe")
        ranks.sum("the average of the gradients in backward()", flat)
        *sums, users = np.split(flat, np.cumsum([p.size for p in some]))
        for p, total, count in zip(some, sums, users, strict=True):
            if count:
                p.grad = Tensor((total / ranks.size).reshape(p.shape))


def _compare(tensors, ranks):
    """Raise ValueError if the names, shapes or dtypes differ between the ranks."""
    mine = [
        f"{name!r} {t.shape} {t.dtype}{'' if t.requires_grad else ' frozen'}"
        for name, t in tensors.items()
    ]
    first, *others = ranks.gather("the comparison of the models", mine)
    for rank, lines in enumerate(others, 1):
        for ours, theirs in zip_longest(first, lines, fillvalue="nothing"):
            if ours != theirs:
                raise ValueError(
                    f"the ranks have different models: where rank 0 has {ours}, rank {rank} "
                    f"has {theirs}. Create the same model on every rank, in the same order."
                )


def _send(owned, ranks, call):
    """Copy each tensor's values from the rank that owns it to all ranks."""
    if ranks.size == 1:
        return
    values = [(t, np.ascontiguousarray(t._array()), owner) for t, owner in owned]
    octets = [(array.reshape(-1).view(np.uint8), owner) for _, array, owner in values]
    ranks.wait(call, *(ranks.comm.Ibcast(array, owner) for array, owner in octets))
    for t, array, _ in values:
        t._array()[...] = array
        inplace.changed(t._data)


class Batch(NamedTuple):
    """This rank's part of a batch.

    Averaged over the ranks, `weight` times the mean loss is the mean loss of the whole batch. A
    rank without samples gets a sample of another rank, with weight 0 and `samples` 0.
    """

    indices: np.ndarray
    weight: float
    samples: int


class DistributedSampler:
    """Selects samples r, r + N, r + 2 N, ... of a shuffled order for rank r of N.

    `size` is a number of samples or a dataset. All ranks draw the same order from `seed` and the
    epoch. Unlike torch.utils.data.DistributedSampler, no sample is repeated. With `drop_last`, all
    ranks get the same number of samples.
    """

    def __init__(
        self,
        size,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        comm=None,
    ):
        self.size = len(size) if hasattr(size, "__len__") else size
        self.num_replicas = group(comm).size if num_replicas is None else num_replicas
        self.rank = group(comm).rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank {self.rank} is not one of {self.num_replicas} ranks.")
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order. Call it on every rank."""
        self.epoch = epoch

    def order(self) -> np.ndarray:
        """Return the sample indices of all ranks in the order of this epoch."""
        generator, n = Generator(self.seed + self.epoch), self.size
        every = generator.permutation(n) if self.shuffle else np.arange(n)
        dropped = n % self.num_replicas if self.drop_last else 0
        return every[: n - dropped]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.rank :: self.num_replicas].tolist())

    def __len__(self):
        return len(self.order()[self.rank :: self.num_replicas])

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's part of each batch. The whole batch has `batch_size` samples.

        With `drop_last`, a smaller last batch is dropped.
        """
        every = self.order()
        stop = len(every) // batch_size * batch_size if self.drop_last else len(every)
        for start in range(0, stop, batch_size):
            batch = every[start : start + batch_size]
            mine = batch[self.rank :: self.num_replicas]
            weight = self.num_replicas * len(mine) / len(batch)
            yield Batch(mine if len(mine) else batch[:1], weight, len(mine))


class ShardedAdamW(AdamW):
    """AdamW with its state divided among the ranks. Arguments and results match `optim.AdamW`.

    Each parameter belongs to one rank, which updates it and sends the new values to the others. The
    gradients must be the same on all ranks, as with DataParallel. `step()` and `state_dict()` are
    collectives. Like torch.distributed.optim.ZeroRedundancyOptimizer.
    """

    def __init__(self, params, *settings, comm=None, **named) -> None:
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
        grads = {p: p.grad for p in self._owners if p.grad is not None}
        for p in grads:
            if self._owners[p] != self._group.rank:
                p.grad = None
        if not grads or self._group.rank in map(self._owners.get, grads):
            super().step()
        for p, g in grads.items():
            p.grad = g
        _send(((p, self._owners[p]) for p in grads), self._group, "ShardedAdamW.step()")

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state on every rank, in AdamW's format. A collective."""
        found = super().state_dict()
        for i, p in enumerate(self._parameters()):
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
