"""Data parallelism: each rank has the whole model and a part of each batch.

The model's outputs pass through an identity op. The VJP of this op registers a watcher, which
averages all gradients at the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np

from ..engine import Variable, Watcher, context, inplace, op, tracked
from ..nn import Module
from ..program.ir import replaced
from ..tensor import Tensor
from .group import Group, group


class DataParallel(Module):
    """A module whose gradients `backward()` averages over all ranks.

    All ranks start with rank 0's parameters and buffers. `comm` is an mpi4py communicator, which
    defaults to all ranks. If the ranks have different numbers of samples, multiply the loss by the
    weight from `DistributedSampler.batches`. Raises ValueError on every rank if the models differ.
    Like torch.nn.parallel.DistributedDataParallel.
    """

    def __init__(self, module: Module, comm: Any = None) -> None:
        self.module = module
        self._group = group(comm)
        self._averages = True
        self._average = _Average(module, self._group)
        _copy_from_rank_0(module, self._group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the module."""
        outputs = self.module(*args, **kwargs)
        if self._group.size == 1 or not self._averages:
            return outputs
        enter = lambda y: average_gradients(y, average=self._average) if tracked(y) else y
        return replaced(outputs, enter)

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


class _Average(Watcher):
    """Averages the gradients of a model at the end of the backward pass."""

    def __init__(self, module: Module, ranks: Group) -> None:
        self.module, self.ranks = module, ranks

    def finished(self, tensors: Any) -> None:
        context.watchers = tuple(w for w in context.watchers if w is not self)
        trained = [p for p in self.module.parameters() if p.requires_grad]
        if isinstance(tensors, dict):
            average_over_ranks(trained, self.ranks)
        elif any(p is t for p in trained for t in tensors):
            raise RuntimeError(
                "only loss.backward() averages a DataParallel model's gradients. With ta.grad, use "
                "model.module, and apply tinygrad_attn.parallel.mean to the gradients."
            )


@op
def average_gradients(y: Any, *, average: _Average) -> Any:
    """Return y. The VJP averages the model's gradients at the end of the backward pass."""
    return y


@average_gradients.vjp
def _average_gradients(g: Any, _y: Any, _x: Any, *, average: _Average) -> Any:
    if isinstance(g, Variable):
        raise TypeError(
            "DataParallel's gradients cannot be differentiated again; with create_graph=True, use "
            "model.module, and average the gradients at the end."
        )
    if average not in context.watchers:
        context.watchers = (*context.watchers, average)
    return g


def average_over_ranks(parameters: Sequence[Tensor], ranks: Group) -> None:
    """Replace every `.grad` with its mean over the ranks.

    A missing gradient counts as zeros. If no rank has a gradient, `.grad` remains None.
    """
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        some = [p for p in parameters if p.dtype == dtype]
        grads = [np.zeros(p.shape, dtype) if p.grad is None else p.grad._array() for p in some]
        has_one = np.array([p.grad is not None for p in some], dtype)
        flat = np.concatenate([*map(np.ravel, grads), has_one])
        flat = flat.astype(np.result_type(dtype, np.float32), copy=False)  # MPI has no float16
        ranks.sum("the average of the gradients in backward()", flat)
        *sums, users = np.split(flat, np.cumsum([p.size for p in some]))
        for p, total, count in zip(some, sums, users, strict=True):
            if count:
                p.grad = Tensor((total / ranks.size).reshape(p.shape).astype(dtype))


def _copy_from_rank_0(module: Module, ranks: Group) -> None:
    """Copy rank 0's parameters and buffers to all ranks. Raises ValueError if the models differ."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    mine = [
        f"{name!r} {t.shape} {t.dtype}{'' if t.requires_grad else ' frozen'}" for name, t in tensors
    ]
    first, *others = ranks.gather("the comparison of the models", mine)
    for rank, lines in enumerate(others, 1):
        for ours, theirs in zip_longest(first, lines, fillvalue="nothing"):
            if ours != theirs:
                raise ValueError(
                    f"the ranks have different models: where rank 0 has {ours}, rank {rank} "
                    f"has {theirs}. Create the same model on every rank, in the same order."
                )
    for name, t in tensors:
        values = t._array().copy()
        ranks.broadcast(f"the copy of rank 0's {name!r}", (values, 0))
        t._array()[...] = values
        inplace.changed(t._data)
