"""A program: the text that `ta.source` writes, and how it is called."""

from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import Variable, array_of, tracked
from ..errors import describe
from ..files import write_atomically
from ..nn.module import Module
from .trace import Kind, kind_of


class Program:
    """A function, usually with its backward pass, as a NumPy file: the fast way for small shapes.

    `program(*args)` runs it on arrays or Tensors of the shapes and dtypes that it was written for.
    It returns the value, and a dict from names to gradients unless `backward` was False. All of
    these are arrays. A program records no graph.

    Each call reads the current parameters from the `params` that `ta.source` got. Raises ValueError
    if a parameter has another shape, dtype or `requires_grad` than before, or is no longer shared.
    Everything else is as the text says: hooks, patches, `training` and buffers at the time of
    writing are part of the program, and later changes of these do not reach it. A call computes
    outputs and gradients only: it runs no module, so `ta.activations` and hooks hear nothing of it.
    A named tuple among the outputs is a tuple, because the file imports only NumPy.

    `text` is the content of the file, which imports only NumPy. `save(path)` writes the file.
    """

    def __init__(self, text, name, traced, params, constants):
        self.text, self.name = text, name
        self._arguments = traced.arguments
        self._constants = constants
        self._params = params
        reader = attrgetter if isinstance(params, Module) else itemgetter
        self._parameters = [  # one entry for each name of a shared parameter
            (identifier, original, reader(original), _state(traced.tensors[identifier]))
            for original, identifier in traced.parameters.items()
        ]
        file: dict[str, Any] = {}
        exec(compile(text, f"<{name}, written by ta.source>", "exec"), file)
        self.function = file[name]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters and constants that the function in the file takes by name."""
        arrays: dict[str, np.ndarray] = {}
        for identifier, original, read, state in self._parameters:
            p = read(self._params)
            if _state(p) != state or arrays.setdefault(identifier, p._data) is not p._data:
                raise ValueError(
                    f"{self.name} was written when the parameter {original!r} had the shape, the "
                    f"dtype and the flag requires_grad {state}, and was shared or not as it was "
                    f"then. It is now {describe(p)}. Write another program with ta.source."
                )
        return arrays | self._constants

    def __call__(self, *args) -> Any:
        arrays, fits = [], len(args) == len(self._arguments)
        for x, expected in zip(args, self._arguments.values()):
            if isinstance(expected, Kind):
                arrays.append(np.asarray(array_of(x)))
                fits &= kind_of(arrays[-1]) == expected
            else:  # the value is part of the program
                fits &= x is expected or _is_same(x, expected)
        if not fits:
            raise self._wrong_arguments(args)
        return self.function(*arrays, **self.arrays())

    def _wrong_arguments(self, args):
        wanted = [f"{name} {kind}" for name, kind in self._arguments.items()]
        shown = [kind_of(array_of(x)) or describe(x) for x in args]
        got = [f"{name} {x}" for name, x in zip(self._arguments, shown)]
        return ValueError(
            f"{self.name} takes {len(wanted)} arguments, {', '.join(wanted)}, got {len(args)}, "
            f"{', '.join(got)}. For others, write another program with ta.source."
        )

    def save(self, path: str | Path) -> Path:
        """Write the text to a file atomically, and return its path."""
        write_atomically(self.text, path)
        return Path(path)

    def __str__(self):
        return self.text

    def __repr__(self):
        lines = self.text.count("\n")
        return f"<{self.name}({', '.join(self._arguments)}), {lines} lines of NumPy>"


def _state(p):
    """Return what a program depends on besides the values of a parameter."""
    return (p._data.shape, p._data.dtype, tracked(p)) if isinstance(p, Variable) else None


def _is_same(x, expected):
    """Return whether values are equal, also in types, signs of zeros and the order of keys."""
    return type(x) is type(expected) and bool(x == expected) and repr(x) == repr(expected)
