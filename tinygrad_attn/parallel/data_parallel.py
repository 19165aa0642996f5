"""`DataParallel`: every rank has the whole model and a part of each batch; gradients are averaged.

    model = DataParallel(model)
    loss = F.cross_entropy(model(x), y)      # x, y: this rank's part of the batch
    loss.backward()                          # .grad is now the mean over all ranks
    optimizer.step()                         # the same step on every rank

The model's outputs pass through an op that computes nothing. Its VJP runs when a backward pass
enters the model, and registers a watcher, which averages all gradients when that pass is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np

from ..engine import Variable, Watcher, context, inplace, op
from ..nn import Module
from ..tensor import Tensor
from .group import Group, group


class DataParallel(Module):
    """Call module(x); backward() leaves in every `.grad` the mean over all ranks.

    The ranks begin with rank 0's parameters and buffers. `comm` is a communicator of mpi4py; None
    is all ranks of this run, or this process alone, for which nothing changes and mpi4py need not
    be installed. The mean over ranks is the mean over the batch where all ranks have as many
    samples; where not, `DistributedSampler.batches` gives the weights. A parameter that only some
    ranks use gets the mean with zeros for the others. Raises ValueError, on every rank, where the
    models differ in a name, shape or dtype. As torch.nn.parallel.DistributedDataParallel.
    """

    def __init__(self, module: Module, comm: Any = None) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"DataParallel takes a module, got {module!r}.")
        self.module = module
        self._group = group(comm)
        self._averages = True
        self._checked = ""
        self._average = _Average(self)
        if self._group.size > 1:
            self._check_same_model()
            _copy_from_rank_0(module, self._group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        outputs = self.module(*args, **kwargs)
        if self._group.size == 1 or not (context.recording and self._averages):
            return outputs
        self._check_same_model()
        return _map_tensors(outputs, lambda y: average_gradients(y, average=self._average))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients of this rank alone in `.grad`, of forward passes inside the block.

        The first backward pass after it averages what has come together. To accumulate three
        batches, compute the first two inside and the third outside.
        """
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    def _check_same_model(self) -> None:
        """Raise ValueError on every rank where parameters or buffers differ, but for values."""
        mine = "\n".join(
            f"{name!r} {t.shape} {t.dtype}{'' if t.requires_grad else ' frozen'}"
            for name, t in _tensors(self.module)
        )
        if mine == self._checked:
            return
        first, *others = self._group.gather_text("the comparison of the models", mine)
        for rank, text in enumerate(others, 1):
            lines = zip_longest(first.split("\n"), text.split("\n"), fillvalue="nothing")
            for ours, theirs in lines:
                if ours != theirs:
                    raise ValueError(
                        f"the ranks have different models: where rank 0 has {ours}, rank {rank} "
                        f"has {theirs}. Make the same model on every rank, with the same sizes, "
                        "its layers in the same order and the same ones frozen."
                    )
        self._checked = mine


class _Average(Watcher):
    """Averages the gradients of a model when the backward pass is finished."""

    def __init__(self, owner: DataParallel) -> None:
        self.owner = owner

    def __deepcopy__(self, memo: dict[int, Any]) -> _Average:
        return _Average(memo.get(id(self.owner), self.owner))

    def finished(self, tensors: Any) -> None:
        """Average, unless this was `ta.grad`, whose results are not in `.grad`."""
        context.watchers = tuple(w for w in context.watchers if w is not self)
        trained = [p for p in self.owner.module.parameters() if p.requires_grad]
        if isinstance(tensors, dict):
            average_over_ranks(trained, self.owner._group)
        elif any(p is t for p in trained for t in tensors):
            raise RuntimeError(
                "gradients by a DataParallel model's parameters are averaged by loss.backward() "
                "only. For ta.grad and the like use model.module, and average what they return "
                "with tinygrad_attn.parallel.mean."
            )


@op
def average_gradients(y: Any, *, average: _Average) -> Any:
    """Return y; backwards, average the model's gradients at the end of the pass."""
    return y


@average_gradients.vjp
def _average_gradients(g: Any, _y: Any, _x: Any, *, average: _Average) -> Any:
    if isinstance(g, Variable):
        raise TypeError(
            "DataParallel averages gradients that are not differentiated again; with "
            "create_graph=True use model.module, and average in the end."
        )
    if average not in context.watchers:
        context.watchers = (*context.watchers, average)
    return g


def average_over_ranks(parameters: Sequence[Tensor], ranks: Group) -> None:
    """Replace every `.grad` by its mean over the ranks. A gradient that is missing counts as zeros.

    The gradients of one dtype travel in one array. Behind them is a number for each: 1 where this
    rank has one. A parameter for which no rank has a gradient keeps None.
    """
    # MPI knows no float16, and a sum of float32 loses less.
    kinds = [np.result_type(p.dtype, np.float32) for p in parameters]
    requests, arrays = [], []
    for kind in dict.fromkeys(kinds):
        some = [p for p, k in zip(parameters, kinds, strict=True) if k == kind]
        ends = np.cumsum([p.size for p in some])
        flat: Any = np.zeros(ends[-1] + len(some), kind)
        for i, (p, end) in enumerate(zip(some, ends, strict=True)):
            if p.grad is not None:
                flat[end - p.size : end] = np.ravel(p.grad._array())
                flat[ends[-1] + i] = 1
        requests.append(ranks.begin_sum(flat))
        arrays.append((some, ends, flat))
    ranks.wait("the average of the gradients in backward()", requests)
    for some, ends, flat in arrays:
        for p, end, users in zip(some, ends, flat[ends[-1] :], strict=True):
            if users:
                mean = flat[end - p.size : end] / ranks.size
                p.grad = Tensor(mean.reshape(p.shape).astype(p.dtype))


def _tensors(module: Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _copy_from_rank_0(module: Module, ranks: Group) -> None:
    """Copy the values of rank 0's parameters and buffers to every rank."""
    for name, t in _tensors(module):
        values = t._array().copy()
        ranks.broadcast(f"the copy of rank 0's {name!r}", values)
        t._array()[...] = values
        inplace.changed(t._data)


def _map_tensors(outputs: Any, f: Callable[[Any], Any]) -> Any:
    """Return the same outputs with f of each tensor that has a history."""
    if isinstance(outputs, Variable):
        return outputs if outputs._node is None else f(outputs)
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(_map_tensors(item, f) for item in outputs))
    if isinstance(outputs, (tuple, list)):
        return type(outputs)(_map_tensors(item, f) for item in outputs)
    if isinstance(outputs, dict):
        return {key: _map_tensors(item, f) for key, item in outputs.items()}
    return outputs
