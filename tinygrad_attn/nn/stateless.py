"""A module as a function of its parameters, as differentiating through a step of training needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..engine import Variable, Watcher, watching
from ..errors import describe, nearest
from ..tensor import Tensor
from .module import Module


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
    mappings may be given in a tuple. `args` is a tuple, or the only argument, or None. A parameter
    that the module has under several names is replaced under all of them, unless
    `tie_weights=False`; with `strict` every parameter and buffer must be given. Other threads that
    call the same module meanwhile see the other tensors: give each thread a copy.deepcopy(module).
    Raises ValueError for a name that the module does not have, a shape that is not the
    parameter's, or two values for one shared parameter; TypeError for what is no mapping. As
    torch.func.functional_call.
    """
    several = isinstance(parameters_and_buffers, (tuple, list))
    mappings: Any = parameters_and_buffers if several else [parameters_and_buffers]
    places = {path: (inside, name) for path, inside, name in module._places()}
    before = {path: getattr(*place) for path, place in places.items()}
    given: dict[str, Any] = {}
    for mapping in mappings:
        if not isinstance(mapping, Mapping):
            raise TypeError(
                "functional_call takes a mapping from dotted names to tensors, such as "
                f"dict(model.named_parameters()), got {describe(parameters_and_buffers)}."
            )
        if twice := given.keys() & mapping.keys():
            raise ValueError(f"functional_call got {sorted(twice)} in several mappings.")
        given |= {path: _fitting(module, path, value, before) for path, value in mapping.items()}
    if tie_weights:
        _tie(given, before)
    if strict and (missing := [path for path in places if path not in given]):
        raise ValueError(
            "functional_call with strict=True takes all parameters and buffers; missing: "
            f"{', '.join(missing)}."
        )
    rows = [(*places[path], before[path], value) for path, value in given.items()]
    with watching(_Others(rows)) as others, others.in_place():
        if not isinstance(args, tuple):
            args = () if args is None else (args,)
        return module(*args, **(kwargs or {}))


def _fitting(module: Module, path: str, value: Any, before: dict[str, Any]) -> Any:
    """Return the value as a Tensor; raise ValueError unless it fits the parameter of this name."""
    if path not in before:
        raise ValueError(
            f"{type(module).__name__} has no parameter or buffer {path!r}."
            f"{nearest(str(path), before)}"
        )
    tensor = value if isinstance(value, Variable) else Tensor(value, dtype=before[path].dtype)
    if tensor.shape != before[path].shape:  # type: ignore[attr-defined]
        raise ValueError(
            f"{path!r} of {type(module).__name__} has the shape {before[path].shape}, but "
            f"{describe(value)} was given."
        )
    return tensor


def _tie(given: dict[str, Any], before: dict[str, Any]) -> None:
    """Add to `given` the other names of shared parameters."""
    first = {id(before[path]): path for path in reversed(given)}
    for path, own in before.items():
        if id(own) not in first:
            continue
        known = first[id(own)]
        if given.setdefault(path, given[known]) is not given[known]:
            raise ValueError(
                f"{known!r} and {path!r} are one parameter, and got two values. Give one of "
                "them, or pass tie_weights=False."
            )


class _Others(Watcher):
    """Is among the watchers during the call, and replaces again for a checkpoint."""

    def __init__(self, rows: list[tuple[Module, str, Any, Any]]) -> None:
        self.rows = rows

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module with the other tensors, inside the block."""
        try:
            for module, name, _, other in self.rows:
                module.__dict__[name] = other
            yield
        finally:
            for module, name, own, _ in self.rows:
                module.__dict__[name] = own
