"""Call a module as a function of its parameters, to differentiate through a training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..engine import Variable, Watcher, watching
from ..errors import describe, nearest
from ..tensor import Tensor
from .module import Module
from .parameter import Buffer, Parameter


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call module(*args, **kwargs) with other tensors in place of its parameters and buffers.

        names, weights = zip(*model.named_parameters())
        gradients = ta.grad(loss(model(x)), weights, create_graph=True)
        stepped = {name: w - 0.1 * g for name, w, g in zip(names, weights, gradients)}
        loss(ta.functional_call(model, stepped, x)).backward()       # through the step too

    The mapping's keys are dotted names. Parameters that the mapping omits are not replaced. A
    shared parameter is replaced under all its names. `args` is a tuple or a single argument. The
    replacement is also visible to other threads, so each thread needs its own copy of the module.
    Raises ValueError for an unknown name or a wrong shape. Like torch.func.functional_call.
    """
    parts = {path: part for path, *part in module._named_parts(Parameter, Buffer, once=False)}
    values: dict[int, Any] = {}  # keyed by the id of the replaced tensor
    for path, value in parameters_and_buffers.items():
        if path not in parts:
            hint = nearest(str(path), parts)
            raise ValueError(f"the module has no parameter or buffer {path!r}.{hint}")
        own = parts[path][-1]
        tensor: Any = value if isinstance(value, Variable) else Tensor(value, dtype=own.dtype)
        if tensor.shape != own.shape:
            raise ValueError(f"{path!r} must have the shape {own.shape}, got {describe(value)}.")
        if values.setdefault(id(own), tensor) is not tensor:
            raise ValueError(f"{path!r} is a shared parameter and was given two values.")
    rows = [(vars(owner), name, p, values.get(id(p), p)) for owner, name, p in parts.values()]
    others = _Others(rows)
    args = args if isinstance(args, tuple) else () if args is None else (args,)
    with watching(others), others.in_place():
        return module(*args, **(kwargs or {}))


class _Others(Watcher):
    """Replaces a module's tensors. A checkpoint enters `in_place` again for its recomputation."""

    def __init__(self, rows: list[tuple[dict[str, Any], str, Any, Any]]) -> None:
        self.rows = rows

    @contextmanager
    def in_place(self) -> Iterator[None]:
        try:
            for attributes, name, _, other in self.rows:
                attributes[name] = other
            yield
        finally:
            for attributes, name, own, _ in self.rows:
                attributes[name] = own
