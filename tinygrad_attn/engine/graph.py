"""The graph: what a tensor remembers of how it was made.

The result of an op has a **record**: which op made it, of which inputs, with which settings, and
when. Records point back at the inputs and never at the result, so a graph has no cycles, and it
goes away with the last reference to its final result.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

clock = count(1).__next__
"""`clock()` is the next whole number, a record's time: results are newer than their inputs."""


@dataclass(slots=True, eq=False)
class Node:
    """How a tensor was made."""

    number: int
    op: Any
    inputs: tuple  # the tracked ones as tensors, of all others the plain values
    settings: dict[str, Any]
    saved: Any  # what the op has kept for its rule
    scope: Any  # the module call it happened in
    retained: bool = False  # does the user want .grad here although this is not a leaf?


class Variable:
    """The part of a Tensor that the engine knows: an array, its gradient, and how it was made."""

    __slots__ = ("_data", "_grad", "_node", "_tracked", "name", "__weakref__")
    _kind: type[Any]  # the class of what ops return: Tensor
    _data: Any  # an ndarray, or for a single number a NumPy scalar
    _grad: Any  # the sum of what backward() has found here, or None
    _record: Any  # a Node, or None for a leaf, which no op has made
    _tracked: bool  # may a gradient by this tensor be asked for?
    name: str | None


def tensor_of(array: Any, record: Node | None = None) -> Any:
    """A tensor around this array; with a record it is part of a graph, without one a constant."""
    t = object.__new__(Variable._kind)
    t._data, t._grad, t._node, t.name = array, None, record, None
    t._tracked = record is not None
    return t


def tracked(x: Any) -> bool:
    """Is this a tensor by which a gradient may be asked for?"""
    return isinstance(x, Variable) and x._tracked


def array_of(x: Any) -> Any:
    """The plain values of an input. A masked array has a `_data` too, so the class is asked for."""
    return x._data if isinstance(x, Variable) else x
