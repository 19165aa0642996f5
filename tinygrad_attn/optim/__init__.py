"""Optimisers: arrays only, no graph. PyTorch's arguments, PyTorch's numbers.

Speed comes from the shape of the loops, not from the equations. A layer has many small parameters (biases, norms), and a NumPy call on
eight numbers costs as much as one on a thousand; so the small parameters of a group are gathered into one flat array, updated together and
written back. Large ones are updated where they are, in blocks that fit in the cache: each update uses the same numbers a dozen times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..engine import changes as guard
from ..engine.autograd import enable_grad
from ..fast import threads
from ..fast.kernels.memory import Scratch, contiguous
from ..functional import arguments
from ..messages.errors import missing_from, warn
from ..messages.signatures import check_flags, own_names
from ..nn.parameter import zero_gradients
from ..tensor import Tensor
from .clipping import clip_grad_norm_, clip_grad_value_
from .schedules import Schedule, noam, warmup_cosine

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "Schedule",
    "clip_grad_norm_",
    "clip_grad_value_",
    "noam",
    "warmup_cosine",
]

Array = NDArray[Any]
SMALL = 2**14  # parameters with fewer numbers share one flat array
BLOCK = 2**17  # numbers updated at a time, by one thread alone
SHARED = 2**18  # from here on a second thread pays
_scratch = Scratch(2 * BLOCK)
_ABSTRACT = "use SGD, Adam or AdamW, or subclass Optimizer and give _state_names and _update"
_NO_GRADIENT = (
    "step() changed nothing: no parameter has a gradient. Call loss.backward() before it, and zero_grad() before that, not "
    "between; the loss must depend on the parameters that the optimiser was given"
)


class _Bucket:
    """One large parameter, or all small ones of a group and dtype, with their state in flat arrays."""

    def __init__(self, params: list[Tensor], indices: list[int]) -> None:
        self.params, self.indices = params, indices
        self.shapes, self.dtypes = [p._data.shape for p in params], [p._data.dtype for p in params]
        self.bounds = np.cumsum([0, *(p._data.size for p in params)]).tolist()
        self.steps, self.state = [0] * len(params), dict[str, Array]()
        self.__setstate__({})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fresh memory for a copy too (deepcopy, pickle): copied views are arrays of their own, in which no update arrives."""
        vars(self).update(state)
        if len(self.params) > 1:
            self.values, self.grads = np.empty((2, self.bounds[-1]), self.dtypes[0])
            self.views = [self.part(self.values, i) for i in range(len(self.params))]

    def part(self, flat: Array, i: int) -> Array:
        """Where parameter i lies in a flat array, in its own shape."""
        return flat[self.bounds[i] : self.bounds[i + 1]].reshape(self.shapes[i])

    def kept(self, names: Iterable[str]) -> list[Array]:
        """The state of these names, zeros where it is new: momentum, say, may be switched on at any step."""
        self.state |= {
            name: np.zeros(self.bounds[-1], self.dtypes[0])
            for name in names
            if name not in self.state
        }
        return [self.state[name] for name in names]

    def put(self, i: int, name: str, value: Array) -> None:
        """State of parameter i that was kept elsewhere."""
        target = self.part(self.kept([name])[0], i)
        if value.shape != target.shape:
            raise ValueError(
                f"parameter {self.indices[i]}: {name} was saved as {value.shape}, here it is {target.shape}"
            )
        target[...] = value

    def pieces(
        self, state: list[Array], apart: bool
    ) -> Iterator[tuple[list[int], Array, Array, list[Array], list[tuple[Array, Array]]]]:
        """(members, numbers, gradients, state, what to copy back), the middle ones flat and to be changed in place.

        All at once if every parameter has memory of its own, a gradient and the same history, else one by one. The numbers are
        gathered anew each time, so an array that somebody has put into a parameter, or still holds of it, stays the parameter's.
        """
        arrays = [p._array() for p in self.params]
        for index, p, a, shape, dtype in zip(
            self.indices, self.params, arrays, self.shapes, self.dtypes
        ):
            if a.shape != shape or a.dtype != dtype:
                raise ValueError(
                    f"parameter {index} is now {a.shape} {a.dtype}, but the optimiser has its state for {shape} {dtype}; "
                    "make the optimiser after model.astype(...), and put new numbers in by p.data[...] = values"
                )
            if p._grad is not None and not a.flags.writeable:
                raise ValueError(
                    f"parameter {index}, {a.shape}, is read-only and cannot be updated; write p.data = p.numpy().copy()"
                )
        grads = [g._array() for p in self.params if (g := p.grad) is not None]
        if apart and len(grads) == len(arrays) > 1 and len(set(self.steps)) == 1:
            np.concatenate(arrays, axis=None, out=self.values)
            np.concatenate(grads, axis=None, out=self.grads)
            yield (
                list(range(len(arrays))),
                self.values,
                self.grads,
                state,
                list(zip(arrays, self.views)),
            )
            return
        for i, data in enumerate(arrays):
            if (grad := self.params[i].grad) is not None:
                values = data.reshape(-1)  # a view if contiguous, and then nothing is left to write
                yield (
                    [i],
                    values,
                    contiguous(grad._data).reshape(-1),
                    [self.part(s, i).reshape(-1) for s in state],
                    [] if data.flags.c_contiguous else [(data, values.reshape(data.shape))],
                )


class Optimizer(arguments.Grouped):
    """What SGD, Adam and AdamW share: parameter groups, the walk through them, saving and loading.

    `params` is a list of parameters (`model.parameters()`), or of dicts such as {"params": [...], "lr": 1e-4}, whose
    settings replace the common ones. A parameter whose `.grad` is None is left alone, its step count too.
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self._buckets: list[list[_Bucket]] | None = (
            None  # made at the first step, so that model.astype may come before
        )
        self._walked: list[list[int]] = []  # the ids of the parameters they were made for
        for group in arguments.parameter_groups(params):
            self.add_param_group(group)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Train more parameters, with settings of their own. Raises as the constructor does."""
        unknown = arguments.keys_of(group) - set(self.defaults) - {"params", "initial_lr"}
        if unknown or "params" not in group:
            raise ValueError(
                f"a parameter group has 'params' and any of {sorted(self.defaults)}; got {sorted(group)}. "
                "Write optimizer.param_groups[i][key] = value afterwards for a key of your own"
            )
        seen = {id(p) for full in self.param_groups for p in full["params"]}
        full = {
            **self.defaults,
            **group,
            "params": arguments.parameters_of_group(group["params"], seen),
        }
        self._check(full)
        self.param_groups.append(full)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients (or fill them with zeros). Call it before each backward pass."""
        zero_gradients((p for group in self.param_groups for p in group["params"]), set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient.

        A `closure`, a function that computes the gradients and returns the loss, is called before, and its loss returned.
        Ctrl-C in the middle may leave some parameters, or only their state, updated and others not: go on from a checkpoint.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = arguments.check_closure(closure)()
        params = [p for group in self.param_groups for p in group["params"]]
        guard.take_back(params)
        work, back, touched, apart = [], [], [], guard.lie_apart(params)
        for group, buckets in zip(self.param_groups, self._made_buckets()):
            arguments.check_number(
                group.get("lr", 0.0), type(self).__name__, "lr"
            )  # it may have been set by hand
            counts = self._counts(group)
            for bucket in buckets:
                for members, values, grads, state, copies in bucket.pieces(
                    bucket.kept(self._state_names(group)), apart
                ):
                    work.append(
                        (
                            self._update(group, bucket.steps[members[0]] + 1, values.dtype),
                            values,
                            grads,
                            state,
                        )
                    )
                    touched += [(bucket, i, counts) for i in members]
                    back.append(copies)
        for bucket, i, counts in touched:  # only now that nothing was refused
            bucket.steps[i] += counts
        if not touched:
            warn(_NO_GRADIENT)
        try:
            for items, copies in (
                [(work, [*chain(*back)])]
                if apart
                else [([item], own) for item, own in zip(work, back)]
            ):
                for data, values in () if apart else copies:
                    values[...] = data  # as another parameter in the same memory may have left it
                _in_blocks(items)
                for data, values in copies:
                    data[...] = values
        finally:  # one that was broken off has changed some
            guard.changed(*[bucket.params[i]._data for bucket, i, _ in touched])
        return loss

    # ---- what an optimiser says of itself -------------------------------------------------------------------------

    def _check(self, group: Mapping[str, Any]) -> None:
        for name in filter(
            group.__contains__, ("lr", "weight_decay", "momentum", "dampening", "eps")
        ):
            arguments.check_setting(group[name], name, type(self).__name__)
        check_flags(
            type(self).__name__,
            **{name: group[name] for name in ("nesterov", "amsgrad", "maximize") if name in group},
        )

    def _state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The arrays kept beside each parameter."""
        raise TypeError(_ABSTRACT)

    def _counts(self, group: Mapping[str, Any]) -> bool:
        """Is an update with these settings one of those that `step` in `_update` numbers?"""
        return True

    def _update(
        self, group: Mapping[str, Any], step: int, dtype: np.dtype[Any]
    ) -> Callable[..., None]:
        """The equation: a function of (parameter, gradient, scratch (2, n), *state), changing parameter and state."""
        raise TypeError(_ABSTRACT)

    # ---- buckets and state ----------------------------------------------------------------------------------------

    def _made_buckets(self) -> list[list[_Bucket]]:
        """Made anew, each parameter with its history, when the groups or their lists have been changed, also by hand."""
        walked = [list(map(id, group["params"])) for group in self.param_groups]
        if self._buckets is None or walked != self._walked:
            old = {
                id(p): (b, i)
                for buckets in self._buckets or []
                for b in buckets
                for i, p in enumerate(b.params)
            }
            made, numbers = [], count()
            for group in self.param_groups:
                members: dict[
                    Any, list[tuple[Tensor, int]]
                ] = {}  # by dtype the small ones, by index each large one
                for p, index in zip(
                    group["params"], numbers
                ):  # in this order, or each group would use up one number more
                    members.setdefault(p._data.dtype if p._data.size < SMALL else index, []).append(
                        (p, index)
                    )
                made.append(
                    [_Bucket([p for p, _ in m], [i for _, i in m]) for m in members.values()]
                )
            for bucket in chain(*made):
                for i, (was, j) in [
                    (i, old[id(p)]) for i, p in enumerate(bucket.params) if id(p) in old
                ]:
                    bucket.steps[i] = was.steps[j]
                    for name, flat in was.state.items():
                        bucket.put(i, name, was.part(flat, j))
            self._buckets, self._walked = made, walked
        return self._buckets

    def _own_state(self) -> dict[Tensor, Any] | None:
        """self.state, where an optimiser with a step() of its own keeps it by parameter, as PyTorch's do; what else it keeps is its own."""
        own = vars(self).get("state") if type(self)._update is Optimizer._update else None
        return own if isinstance(own, dict) and all(isinstance(p, Tensor) for p in own) else None

    def state_dict(self) -> dict[str, Any]:
        """{"state": {index: {"step": n, name: array}}, "param_groups": [...]}, PyTorch's form. Arrays are copies."""
        own = self._own_state() or {}
        state = {
            i: deepcopy(own[p])
            for i, p in enumerate(p for group in self.param_groups for p in group["params"])
            if p in own
        }
        for group, buckets in zip(
            self.param_groups, [] if self._buckets is None else self._made_buckets()
        ):
            for bucket in buckets:
                bucket.kept(self._state_names(group))
                for i, index in enumerate(bucket.indices):
                    if bucket.steps[i]:
                        state[index] = {
                            "step": np.array(bucket.steps[i]),
                            **{
                                name: bucket.part(flat, i).copy()
                                for name, flat in bucket.state.items()
                            },
                        }
        numbers = count()
        groups = [
            {**group, "params": [next(numbers) for _ in group["params"]]}
            for group in self.param_groups
        ]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken. Raises ValueError if groups, indices, names, shapes or the kind differ."""
        arguments.check_state(state_dict)
        groups = state_dict["param_groups"]
        ours, theirs = ([len(g["params"]) for g in some] for some in (self.param_groups, groups))
        if ours != theirs:
            raise ValueError(
                f"the saved optimiser has groups of {theirs} parameters, this one of {ours}; make it from the same model"
            )
        if (
            strange := next(
                (i for i in state_dict["state"] if not str(i).isdecimal() or int(i) >= sum(ours)),
                None,
            )
        ) is not None:
            raise ValueError(
                f"the saved state is of parameter {strange!r}, but there are {sum(ours)} parameters"
            )
        if groups and not {*self.defaults} & {"betas", "momentum"} <= {*groups[0]}:
            raise ValueError(
                f"this state was saved by another kind of optimiser: {type(self).__name__} has the settings "
                f"{sorted(self.defaults)}, the state {sorted({*groups[0]} - {'params'})}; make the same kind, or start afresh"
            )
        renewed = []
        for group, saved in zip(self.param_groups, groups):
            settings = {
                k: tuple(v) if isinstance(v, list) else v
                for k, v in saved.items()
                if k in {*self.defaults, "initial_lr"}
            }
            arguments.check_decay(saved, getattr(self, "decoupled", True))
            renewed.append({**group, **settings})
            self._check(renewed[-1])
        before, settle = (self._buckets, self._walked), map(dict.update, self.param_groups, renewed)
        self._buckets = None
        try:
            self._restore({int(i): entry for i, entry in state_dict["state"].items()}, renewed)
        except BaseException:
            self._buckets, self._walked = before
            raise
        any(
            settle
        )  # in one call, so that Ctrl-C comes before it, where all is as it was, or after it

    def _restore(
        self, state: Mapping[int, Mapping[str, Any]], groups: list[dict[str, Any]]
    ) -> None:
        if (own := self._own_state()) is not None:
            loaded = {
                p: deepcopy(state[i])
                for i, p in enumerate(p for group in groups for p in group["params"])
                if i in state
            }
            own.clear()
            own.update(loaded)
            return
        places = {
            index: (bucket, i, group)
            for group, buckets in zip(groups, self._made_buckets())
            for bucket in buckets
            for i, index in enumerate(bucket.indices)
        }
        for index, entry in state.items():
            bucket, i, group = places[index]
            waiting = (
                () if entry.get("momentum_buffer") is None else ("momentum_buffer",)
            )  # for momentum, which may be off for now
            names = self._state_names(group) + waiting
            needed = (
                (*names, "step") if "exp_avg" in names else names
            )  # PyTorch's SGD saves no step
            if lacking := [name for name in needed if name not in entry]:
                raise ValueError(
                    f"the saved state of parameter {index} lacks {lacking[0]!r}; it has {sorted(entry)}"
                )
            for name in names:
                bucket.put(i, name, np.asarray(entry[name]))
            bucket.steps[i] = int(entry.get("step", 1)) if names or self._counts(group) else 0


def _in_blocks(work: list[tuple[Callable[..., None], Array, Array, list[Array]]]) -> None:
    """Do each (update, values, grads, state) in stretches that fit in the cache, on several threads if there is enough to do."""
    total, several = sum(len(values) for _, values, *_ in work), threads.get_num_threads()
    size = (
        BLOCK if several == 1 else min(max(BLOCK, -(-total // several)), 2 * BLOCK)
    )  # fewer calls queue less for Python's lock
    blocks = [(item, i) for item in work for i in range(0, len(item[1]), size)]

    def run(b: int) -> None:
        (update, values, grads, state), i = blocks[b]
        j = min(i + size, len(values))
        update(
            values[i:j], grads[i:j], _scratch.of(values.dtype)[:, : j - i], *[s[i:j] for s in state]
        )

    threads.tasks(run, len(blocks), big=total >= SHARED)


class SGD(Optimizer):
    """d = g + wd p;  b = momentum b + (1 - dampening) d  (b = d at first);  p = p - lr b.

    Nesterov's form steps along d + momentum b instead of b. As `torch.optim.SGD`. Raises ValueError, TypeError.
    """

    @own_names
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
        )

    def _check(self, group: Mapping[str, Any]) -> None:
        super()._check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov=True needs momentum > 0 and dampening=0")

    def _state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _counts(self, group: Mapping[str, Any]) -> bool:
        return bool(
            group["momentum"]
        )  # the first with momentum is different, however many came before without

    def _update(
        self, group: Mapping[str, Any], step: int, dtype: np.dtype[Any]
    ) -> Callable[..., None]:
        kind, decay, momentum = dtype.type, group["weight_decay"], group["momentum"]
        lr, mu, fresh = (
            kind(group["lr"]),
            kind(momentum),
            kind(1 if step == 1 else 1 - group["dampening"]),
        )
        sign = kind(-1 if group["maximize"] else 1)

        def update(p: Array, g: Array, scratch: Array, *state: Array) -> None:
            d, extra = np.multiply(g, sign, out=scratch[0]), scratch[1]
            if decay:
                d += np.multiply(p, kind(decay), out=extra)
            if momentum:
                (b,) = state
                b *= mu
                b += np.multiply(d, fresh, out=extra)
                d = np.add(d, np.multiply(b, mu, out=extra), out=d) if group["nesterov"] else b
            p -= np.multiply(d, lr, out=extra)

        return update


class Adam(Optimizer):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    `weight_decay` adds wd p to the gradient; `amsgrad` uses the largest v so far. Kingma and Ba, 2015; as
    `torch.optim.Adam`. Raises ValueError, TypeError.
    """

    decoupled = False

    @own_names
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                amsgrad=amsgrad,
                maximize=maximize,
            ),
        )

    def _check(self, group: Mapping[str, Any]) -> None:
        super()._check(group)
        arguments.check_betas(group["betas"])

    def _state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))

    def _update(
        self, group: Mapping[str, Any], step: int, dtype: np.dtype[Any]
    ) -> Callable[..., None]:
        (beta1, beta2), decay, lr, kind = (
            group["betas"],
            group["weight_decay"],
            float(group["lr"]),
            dtype.type,
        )
        b1, one_minus_b1, b2, ratio = map(
            kind, (beta1, 1 - beta1, beta2, (1 - beta2) / (1 - beta1))
        )
        # Both corrections are numbers, so they go into the step size and eps rather than over the arrays.
        root = math.sqrt(1 - beta2**step)
        rate, eps = kind(lr * root / (1 - beta1**step)), kind(group["eps"] * root)
        keep = kind(1 - lr * decay)

        def update(p: Array, g: Array, scratch: Array, m: Array, v: Array, *largest: Array) -> None:
            a, signed = scratch
            if group["maximize"]:
                g = np.negative(g, out=signed)
            if decay and self.decoupled:
                p *= keep
            elif decay:
                g = np.add(g, np.multiply(p, kind(decay), out=a), out=signed)
            m *= b1
            m += np.multiply(g, one_minus_b1, out=a)
            v *= b2
            a *= ratio  # before it is squared, which would overflow sooner
            a *= g  # now (1 - b2) g^2
            v += a
            for top in largest:
                v = np.maximum(top, v, out=top)
            np.sqrt(v, out=a)
            a += eps
            np.divide(m, a, out=a)
            a *= rate
            p -= a

        return update


class AdamW(Adam):
    """Adam with the decay taken from the parameter itself: p = (1 - lr wd) p, then Adam's step without it.

    Loshchilov and Hutter, 2019; as `torch.optim.AdamW`. Raises ValueError, TypeError.
    """

    decoupled = True

    @own_names
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
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


if not TYPE_CHECKING:  # a checker of types would take a misspelt name for one that is here

    def __getattr__(name: str) -> Any:
        raise missing_from("tinygrad_attn.optim", name, globals())
