"""`DataParallel`: every rank has the whole model and a part of each batch; gradients are averaged.

    model = DataParallel(model)
    loss = F.cross_entropy(model(x), y)      # x, y: this rank's part of the batch
    loss.backward()                          # .grad is now the mean over all ranks
    optimizer.step()                         # the same step on every rank

The exchange is three ops that compute nothing forwards. Backwards, their rules talk to other ranks:

    parameter -> arrive -> depart -> the model's ops -> begin -> loss

The sweep undoes the newest op first. So `begin`, made last, comes first and opens the exchange.
`depart` gets the time just before the parameter's first use, so that its turn comes when all uses
have given their share and the gradient is complete: it puts the gradient into a bucket, and
full buckets leave while the sweep goes on. `finish`, made before all uses, waits for the means, and
`arrive`, the oldest, hands them to the leaves. Nothing of this is known to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..engine import Variable, context, op
from ..nn import Module
from ..nn.stateless import functional_call
from ..tensor import Tensor
from .agreement import check_same_model, copy_from_rank_0
from .buckets import Buckets
from .group import group

BUCKET_CAP_MB = 1.0
"""The size of a bucket in MiB. A larger one comes closer to full bandwidth, a smaller one leaves
sooner; `python -m tests.benchmarks.parallel` measures both. Over a network more may be better.
"""


class DataParallel(Module):
    """module(x), and backward() leaves in every `.grad` the mean over all ranks.

    The ranks begin with rank 0's parameters and buffers. `comm` is a communicator of mpi4py; None
    is all ranks of this run, or this process alone, for which nothing changes and mpi4py need not
    be installed. The mean over ranks is the mean over the batch where all ranks have as many
    samples; where not, `DistributedSampler.batches` gives the weights. A parameter that only some
    ranks use gets the mean with zeros for the others, and one that none uses keeps its `.grad`.
    Raises ValueError, on every rank, where the models differ in a name, shape or dtype. As
    torch.nn.parallel.DistributedDataParallel.
    """

    def __init__(
        self, module: Module, comm: Any = None, *, bucket_cap_mb: float = BUCKET_CAP_MB
    ) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"DataParallel takes a module, got {module!r}.")
        if not bucket_cap_mb > 0:
            raise ValueError(f"bucket_cap_mb is a size above 0, got {bucket_cap_mb!r}.")
        self.module = module
        self._group, self._bytes = group(comm), int(bucket_cap_mb * 2**20)
        self._exchange: Exchange | None = None
        self._averages, self._own_gradients = True, False
        check_same_model(module, self._group)
        copy_from_rank_0(module, self._group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        if self._group.size == 1 or not context.recording:
            return self.module(*args, **kwargs)
        if not self._averages:
            self._own_gradients = True
            return self.module(*args, **kwargs)
        exchange = self._exchange_for_now()
        if not exchange.parameters:
            return self.module(*args, **kwargs)
        stand_ins, token = exchange.stand_ins()
        others = dict(zip(exchange.names, stand_ins, strict=True))
        result = functional_call(self.module, others, args, kwargs)
        found: list[Any] = []
        _map_tensors(result, found.append)
        place_before_first_use(stand_ins, found)
        return _map_tensors(result, lambda t: begin(t, token, exchange=exchange))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, forward passes lead to gradients of this rank alone, which add up in `.grad`.

        The first backward pass after it averages what has come together. To accumulate three
        batches, compute the first two inside and the third outside.
        """
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    def _exchange_for_now(self) -> Exchange:
        """The exchange for the parameters that are trained now; they may have been frozen."""
        trained = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        known = self._exchange
        if known is None or known.differs_from(trained):
            check_same_model(self.module, self._group)
            self._exchange = known = Exchange(self, trained)
        return known


class Exchange:
    """What the rules of the ops below share: the buckets, and whose gradients are in them."""

    def __init__(self, owner: DataParallel, trained: Sequence[tuple[str, Tensor]]) -> None:
        self.owner, self.group = owner, owner._group
        self.names, self.parameters = [n for n, _ in trained], [p for _, p in trained]
        self.kept = [(p.shape, p.dtype) for p in self.parameters]
        self.buckets = Buckets(self.parameters, self.group, owner._bytes)
        self.open = False

    def differs_from(self, trained: Sequence[tuple[str, Tensor]]) -> bool:
        """Are these other parameters, or have they another shape or dtype?"""
        return (
            len(trained) != len(self.parameters)
            or any(p is not q for (_, p), q in zip(trained, self.parameters, strict=True))
            or [(p.shape, p.dtype) for p in self.parameters] != self.kept
        )

    def stand_ins(self) -> tuple[list[Tensor], Tensor]:
        """What stands for the parameters in this forward pass, and the token before `finish`."""
        arrived = [arrive(p, exchange=self, i=i) for i, p in enumerate(self.parameters)]
        token = finish(Tensor(0.0, requires_grad=True), exchange=self)
        return [depart(p, exchange=self, i=i) for i, p in enumerate(arrived)], token

    def begin(self) -> None:
        """A backward pass comes through, once for each of the model's results."""
        if not self.open:
            self.buckets.begin()
            self.open = True

    def complete(self, i: int, g: Any) -> None:
        """The gradient of parameter i is complete on this rank."""
        if not self.open:
            raise RuntimeError(
                "gradients by a DataParallel model's parameters are averaged by loss.backward() "
                "only. For ta.grad and the like use model.module, and average what they return "
                "with tinygrad_attn.parallel.mean."
            )
        self.buckets.put(i, g, self._taken(i))

    def finish(self) -> None:
        """Wait for the means, and hand out those that no op of this rank leads to."""
        missing = [i for i in range(len(self.parameters)) if not self.buckets.has(i)]
        for i in missing:
            if (before := self._taken(i)) is not None:
                self.buckets.put(i, before)
        self.buckets.finish()
        for i in missing:
            if self.buckets.has(i):
                self._add(self.parameters[i], self.buckets.get(i))
        self.open = self.owner._own_gradients = False

    def _taken(self, i: int) -> Any:
        """What `no_sync` has left in `.grad`, which goes into the mean as well, or None."""
        p = self.parameters[i]
        if not self.owner._own_gradients or p.grad is None:
            return None
        before, p.grad = p.grad.numpy(), None
        return before

    @staticmethod
    def _add(p: Tensor, mean: Any) -> None:
        mean = mean.astype(p.dtype)
        p.grad = Tensor(mean if p.grad is None else p.grad.numpy() + mean)


@op
def arrive(p: Any, *, exchange: Exchange, i: int) -> Any:
    """y = p; backwards, the mean over the ranks in place of this rank's gradient."""
    return p


arrive.vjp(lambda g, _y, p, *, exchange, i: exchange.buckets.get(i).astype(p.dtype))


@op
def depart(p: Any, *, exchange: Exchange, i: int) -> Any:
    """y = p; backwards, the gradient goes into its bucket."""
    return p


def _depart(g: Any, y: Any, p: Any, *, exchange: Exchange, i: int) -> Any:
    exchange.complete(i, g)
    return g  # in whose place `arrive` puts the mean


depart.vjp(_depart)


@op
def finish(token: Any, *, exchange: Exchange) -> Any:
    """y = token; backwards, wait until all means are there."""
    return token


def _finish(g: Any, y: Any, token: Any, *, exchange: Exchange) -> Any:
    exchange.finish()
    return g


finish.vjp(_finish)


@op
def begin(y: Any, token: Any, *, exchange: Exchange) -> Any:
    """y = y; backwards, open the exchange, and lead to `finish` whatever else is used."""
    return y


@begin.vjp_all
def _begin(g: Any, y: Any, x: Any, token: Any, *, exchange: Exchange, needs: Any) -> Any:
    if isinstance(g, Variable):
        raise TypeError(
            "DataParallel averages gradients that are not differentiated again; with "
            "create_graph=True use model.module, and average in the end."
        )
    if needs[1]:  # not so in ta.grad, which follows only what leads to its inputs
        exchange.begin()
    return g, np.zeros_like(token)


def place_before_first_use(stand_ins: list[Tensor], results: list[Tensor]) -> None:
    """Give each stand-in's record the time just before the first op that uses it.

    Times are whole numbers; between two of them is room for fractions, a different one for each.
    """
    oldest = {id(t): t for t in stand_ins}
    begun = min(t._node.number for t in stand_ins)
    first: dict[int, float] = {}
    found: list[Variable] = list(results)
    seen = {id(t) for t in results}
    for t in found:  # the list grows
        if t._node is None or id(t) in oldest or t._node.number < begun:
            continue
        for x in t._node.inputs:
            if isinstance(x, Variable) and id(x) in oldest:
                first[id(x)] = min(first.get(id(x), np.inf), t._node.number)
            if isinstance(x, Variable) and id(x) not in seen:
                seen.add(id(x))
                found.append(x)
    for number, t in enumerate(stand_ins):
        if id(t) in first:
            time = first[id(t)] - (number + 1) / (len(stand_ins) + 1)
            t._node.number = time


def _map_tensors(result: Any, f: Callable[[Tensor], Any]) -> Any:
    """The same result with f of each tensor that has a history."""
    if isinstance(result, Variable):
        return result if result._node is None else f(result)  # type: ignore[arg-type]
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_map_tensors(item, f) for item in result))
    if isinstance(result, (tuple, list)):
        return type(result)(_map_tensors(item, f) for item in result)
    if isinstance(result, dict):
        return {key: _map_tensors(item, f) for key, item in result.items()}
    return result


# None of these looks at values, so that changes in place need not be watched for.
