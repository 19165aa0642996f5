"""The Tensors of a Module: parameters, buffers and the values of a state dict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import describe
from ..tensor import Tensor, get_default_dtype


class StateValue(Tensor):
    """A Tensor that shares memory with a module. `p -= x` raises TypeError."""

    __slots__ = ()

    def _assigned(self, other: Any) -> Any:
        raise TypeError(
            f"p -= x would make a new Tensor and leave {describe(self)} unchanged. Write p.data -= "
            "x.data to change the tensor, or y = p - x to make a new one."
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = _assigned
    __imatmul__ = _assigned

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let PyTorch's `load_state_dict` copy the value into a PyTorch parameter."""
        if function.__name__ != "copy_":
            return super().__torch_function__(function, types, args, kwargs)
        return args[0].copy_(args[0].new_tensor(args[1].numpy()))


class Parameter(StateValue):
    """A Tensor that is trained as part of a Module. The data is copied."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True, dtype: Any = None) -> None:
        super().__init__(data, requires_grad, dtype)

    @classmethod
    def empty(cls, *shape: int) -> Parameter:
        """Return an uninitialised parameter of the default dtype."""
        return cls._of(np.empty(shape, get_default_dtype()), True)  # type: ignore[return-value]


class Buffer(Tensor):
    """A Tensor that belongs to a Module and is not trained, such as a table of positions.

    A persistent buffer is part of the `state_dict`. A value later assigned to the attribute is
    copied into a new Buffer and detached from its graph. Like torch.nn.Buffer.
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        super().__init__(data)
        self.persistent = persistent

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = super().__deepcopy__(memo)
        new.persistent = self.persistent  # type: ignore[attr-defined]
        return new


def zero_gradients(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Set the gradients to None, or to zeros."""
    for p in parameters:
        g = p.grad
        p.grad = None if set_to_none or g is None else Tensor(np.zeros_like(g._array()))
