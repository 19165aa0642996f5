"""The graph: how each tensor was computed.

The output of an op has a **node**, which stores the op, its inputs and settings, and a sequence
number. Nodes point backwards, from an output to its inputs. So the graph has no cycles, and it is
freed together with the last reference to its final output.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy import ndarray

next_number = count(1).__next__
"""Returns the next sequence number. An output is always newer than its inputs."""


@dataclass(slots=True, eq=False)
class Node:
    """A record of how a tensor was computed."""

    number: int
    op: Any
    inputs: Any  # tensors where a gradient is wanted, else plain values
    settings: Any
    saved: Any  # values that the op saves for its VJP
    scope: Any  # the call of a module or a reference function that ran the op
    checksums: Any = None  # of memory that the user can write to; see inplace.py


class Hooks:
    """The value of `_tracked` for a tensor whose gradient is kept, or passed to functions."""

    def __init__(self):
        self.functions = []
        self.wanted = True  # False while the tensor is frozen
        self.retains = False  # whether the output of an op keeps its .grad
        self.others = []  # tensors of the first run of a checkpoint that keep it

    def __bool__(self):
        return self.wanted


class Variable:
    """The part of a Tensor that the engine needs: values, gradient and node."""

    __slots__ = ("_data", "_grad", "_node", "_tracked", "_replaced", "name", "__weakref__")
    _kind: type[Any]  # the class of outputs: Tensor
    _data: Any  # an ndarray, or a NumPy scalar for a single number
    _grad: Any  # a Tensor, or None
    _node: Any  # a Node, or None for a leaf
    _tracked: bool | Hooks  # whether gradients flow to this tensor; Hooks if hooks see them
    _replaced: tuple[int, int]  # events: another array, of another shape or dtype; see inplace.py
    name: str | None


class Symbolic:
    """A stand-in for an array while `ta.source` traces a computation.

    It has a shape and a dtype and supports NumPy's functions, but it has no memory.
    """

    __slots__ = ("lent",)
    lent: bool  # whether the user has access to it as the array of a Tensor
    as_it_is: Any  # a method that returns the current values, independent of later writes


_new = object.__new__


def tensor_of(array, node=None):
    """Wrap an array in a tensor: part of a graph if a node is given, otherwise a constant."""
    t = _new(Variable._kind)
    t._data = array
    t._grad = t.name = None
    t._node = node
    t._tracked = node is not None
    return t


class Parts(dict):
    """The gradient of a bundle of tensors: {position: gradient}, see bundle.py."""

    def __add__(self, other):
        return Parts(self | {i: self[i] + g if i in self else g for i, g in other.items()})


def tracked(x):
    """Return whether x is a tensor to which gradients flow."""
    return isinstance(x, Variable) and bool(x._tracked)


def array_of(x):
    """Return the plain values of an input."""
    return x._data if isinstance(x, Variable) else x


def is_masked(x):
    """Return whether x is an array with masked elements. Only a `mask` imports numpy.ma."""
    return hasattr(x, "mask") and np.ma.is_masked(x)


def read_only(array):
    """Return a view that cannot be written to. Return anything but an ndarray as it is."""
    if type(array) is ndarray:
        array = array.view()
        array.flags.writeable = False
    return array


def history(roots, ends=()):
    """Return all computed tensors that the roots depend on, including the roots, oldest first.

    This is a topological order because inputs are older than outputs. The traversal stops at the
    tensors in `ends` and omits them. It is not recursive, so chains of a million ops are fine.
    """
    seen, found, pending = set(ends), [], list(roots)
    while pending:
        t = pending.pop()
        if t._node and t not in seen:
            seen.add(t)
            found.append(t)
            for x in t._node.inputs:
                if isinstance(x, Variable):
                    pending.append(x)
    return sorted(found, key=lambda t: t._node.number)
