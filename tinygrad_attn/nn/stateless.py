"""A module as a function of its parameters, as differentiating through a step of training needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..engine import Variable, Watcher, watching
from ..errors import describe, nearest
from ..tensor import Tensor
from .module import Module


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """module(*args, **kwargs) with these tensors in place of its parameters and buffers.

        names, weights = zip(*model.named_parameters())
        gradients = ta.grad(loss(model(x)), weights, create_graph=True)
        stepped = {name: w - 0.1 * g for name, w, g in zip(names, weights, gradients)}
        loss(ta.functional_call(model, stepped, x)).backward()       # also through the step

    The mapping gives them by their dotted names. What is not named stays the module's own, and so
    does everything once the call has ended; gradients reach the tensors that were given. `args` is
    a tuple, or the only argument, or None. A parameter that the module has under several names is
    replaced under all of them. Other threads that call the module meanwhile see the other tensors:
    give each thread a copy.deepcopy(module). Raises ValueError for a name that the module does not
    have, a shape that is not the parameter's, or two values for one shared parameter. As
    torch.func.functional_call.
    """
    owned, modules = module._state(), dict(module.named_modules(remove_duplicate=False))
    values: dict[int, Any] = {}  # by the id of the tensor that is replaced
    for path, value in parameters_and_buffers.items():
        if path not in owned:
            raise ValueError(
                f"{type(module).__name__} has no parameter or buffer {path!r}."
                f"{nearest(str(path), owned)}"
            )
        own = owned[path]
        tensor: Any = value if isinstance(value, Variable) else Tensor(value, dtype=own.dtype)
        if tensor.shape != own.shape:
            raise ValueError(
                f"{path!r} of {type(module).__name__} has the shape {own.shape}, but "
                f"{describe(value)} was given."
            )
        if values.setdefault(id(own), tensor) is not tensor:
            raise ValueError(f"{path!r} is a shared parameter, and got two values.")
    rows = []
    for path, own in owned.items():
        inside, _, name = path.rpartition(".")
        rows.append((vars(modules[inside]), name, own, values.get(id(own), own)))
    others = _Others(rows)
    if not isinstance(args, tuple):
        args = () if args is None else (args,)
    with watching(others), others.in_place():
        return module(*args, **(kwargs or {}))


class _Others(Watcher):
    """Is among the watchers during the call, and replaces again for a checkpoint."""

    def __init__(self, rows: list[tuple[dict[str, Any], str, Any, Any]]) -> None:
        self.rows = rows

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module with the other tensors, inside the block."""
        try:
            for attributes, name, _, other in self.rows:
                attributes[name] = other
            yield
        finally:
            for attributes, name, own, _ in self.rows:
                attributes[name] = own
