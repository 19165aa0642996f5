"""A module as a function of its parameters, as differentiating through a step of training needs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..engine import Variable, Watcher, watching
from ..errors import describe, nearest
from ..tensor import Tensor
from .module import Module, replaced

_alone = threading.RLock()
"""One call at a time: it changes the module, and puts back what it has found there."""


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """module(*args, **kwargs) with these tensors in place of its parameters and buffers.

        names, weights = zip(*model.named_parameters())
        gradients = ta.grad(loss(model(x)), weights, create_graph=True)
        stepped = {name: w - 0.1 * g for name, w, g in zip(names, weights, gradients)}
        loss(ta.functional_call(model, stepped, x)).backward()       # also through the step

    The mapping gives them by their dotted names. What is not named stays the module's own, and so
    does everything once the call has ended; gradients reach the tensors that were given. Several
    mappings may stand in a tuple. `args` is a tuple, or the only argument, or None. A parameter
    that the module has under several names is replaced under all of them, unless
    `tie_weights=False`; with `strict` every parameter and buffer must be given. Calls of several
    threads wait for each other, but a plain module(x) would meanwhile see the other tensors: give
    each thread a copy.deepcopy(module). Raises ValueError for a name the module does not have or
    that comes twice, a shape that is not the parameter's, or two values for one shared parameter;
    TypeError for what is no module or no mapping. As torch.func.functional_call.
    """
    if not isinstance(module, Module):
        raise TypeError(f"functional_call takes the module first, got {describe(module)}.")
    several = isinstance(parameters_and_buffers, (tuple, list))
    mappings: Any = parameters_and_buffers if several else [parameters_and_buffers]
    if not all(isinstance(mapping, Mapping) for mapping in mappings):
        raise TypeError(
            "functional_call takes a mapping from dotted names to tensors, such as "
            f"dict(model.named_parameters()), got {describe(parameters_and_buffers)}."
        )
    if twice := [
        name
        for name, count in Counter(name for mapping in mappings for name in mapping).items()
        if count > 1
    ]:
        raise ValueError(
            f"functional_call got {', '.join(map(repr, twice))} in several mappings; leave them in "
            "one."
        )
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _alone:
        return _call(
            module,
            dict(item for mapping in mappings for item in mapping.items()),
            args,
            kwargs or {},
            tie_weights,
            strict,
        )


def _call(
    module: Module,
    others: dict[str, Any],
    args: tuple,
    kwargs: Mapping[str, Any],
    tie_weights: bool,
    strict: bool,
) -> Any:
    own = {key: (inside, name, value) for key, inside, name, value in module._places()}
    given: dict[str, Any] = {}
    for name, value in others.items():
        if name not in own:
            raise ValueError(
                f"{type(module).__name__} has no parameter or buffer {name!r}."
                f"{nearest(str(name), own)}"
            )
        given[name] = (
            value if isinstance(value, Variable) else Tensor(value, dtype=own[name][2].dtype)
        )
        if given[name].shape != own[name][2].shape:
            raise ValueError(
                f"{name!r} of {type(module).__name__} has the shape {own[name][2].shape}, but "
                f"{describe(value)} was given."
            )
    if tie_weights:
        shared: dict[int, tuple[str, Any]] = {}
        for name, value in given.items():
            known = shared.setdefault(id(own[name][2]), (name, value))
            if known[1] is not value:
                raise ValueError(
                    f"{known[0]!r} and {name!r} are one parameter, and got two values. Give one of "
                    "them, or pass tie_weights=False."
                )
        given = {
            name: shared[id(value)][1] for name, (_, _, value) in own.items() if id(value) in shared
        }
    if strict and (missing := [name for name in own if name not in given]):
        raise ValueError(
            "functional_call with strict=True takes all parameters and buffers; missing: "
            f"{', '.join(missing)}."
        )
    put = _Others([(*own[name], value) for name, value in given.items()])
    with watching(put), put.in_place():
        return module(*args, **kwargs)


class _Others(Watcher):
    """Sits among the watchers during the call, where a checkpoint inside finds it and puts them in
    place again.
    """

    def __init__(self, rows: list[tuple[Module, str, Tensor, Any]]) -> None:
        self.rows = rows

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module with the other tensors, inside the block."""
        with _alone:
            outer = set(replaced)  # those that a call around this one replaced and restores
            try:
                for module, name, own, other in self.rows:
                    replaced.setdefault((id(module), name), own)
                    module.__dict__[name] = other
                yield
            finally:
                for module, name, own, _ in self.rows:
                    module.__dict__[name] = own
                for place in set(replaced) - outer:
                    del replaced[place]
