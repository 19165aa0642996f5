"""Does a rule look at this value? Only then does a change of it matter: the rule of a sum, say,
looks at shapes alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .graph import Node, array_of, tracked


class _Looked(Exception):
    """Somebody wanted the numbers."""


class _Unseen:
    """Stands for an array whose shape and dtype a rule may know, and tells when it looks at the
    numbers.
    """

    def __init__(self, array: Any) -> None:
        self.shape, self.dtype, self.ndim, self.size = (
            array.shape,
            array.dtype,
            array.ndim,
            array.size,
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        of_shapes = (
            np.zeros_like,
            np.ones_like,
            np.empty_like,
            np.full_like,
            np.shape,
            np.ndim,
            np.size,
        )
        if function not in of_shapes:
            raise _Looked
        plain = [np.broadcast_to(np.zeros((), a.dtype), a.shape) if a is self else a for a in args]
        return function(*plain, **kwargs)

    def __getattr__(self, name: str) -> Any:
        raise _Looked

    def _look(self, *_: Any, **__: Any) -> Any:
        raise _Looked

    __array__ = __array_ufunc__ = __getitem__ = __iter__ = _look
    __bool__ = __float__ = __int__ = __index__ = _look
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = __abs__ = _look
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _look
    )
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __mod__ = __rmod__ = _look
    __floordiv__ = __rfloordiv__ = _look


def reads(record: Node, g: Any, y: Any, which: int) -> bool:
    """Does the op's rule look at its result (0), or at this input (counted from 1)?"""
    if record.op.saves:  # what it has saved may be the array itself
        return True
    values = [y, *map(array_of, record.inputs)]
    values[which] = _Unseen(values[which])
    needs = [tracked(x) for x in record.inputs]
    try:
        with np.errstate(all="ignore"):
            shares = record.op.pull(g, values[0], record, values[1:], needs)
    except Exception:  # it looked, or could not do without
        return True
    return any(isinstance(share, _Unseen) for share in shares.values())
