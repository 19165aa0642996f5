"""A program: the text that `ta.source` writes, and how it is called."""

from functools import cached_property
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import Variable, array_of, read_only, tracked
from ..errors import describe
from ..files import write_atomically
from ..nn.module import Module
from ..tree import tree_map
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
        reader, names = attrgetter if isinstance(params, Module) else itemgetter, dict[Any, str]()
        self._parameters = [  # one entry for each name of a shared parameter
            (identifier, name, reader(name), _state(traced.tensors[identifier], name, names))
            for name, identifier in traced.parameters.items()
        ]

    @cached_property
    def function(self) -> Any:
        """The function in the file."""
        file: dict[str, Any] = {}
        exec(compile(self.text, f"<{self.name}, written by ta.source>", "exec"), file)
        return file[self.name]

    def __getstate__(self):
        """Return what copies and pickles contain: all attributes except the compiled function."""
        state = vars(self).copy()
        state.pop("function", None)
        return state

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters and constants that the function in the file takes by name.

        They are views of the current values, and read-only.
        """
        return tree_map(read_only, self._arrays())

    def _arrays(self):
        arrays: dict = {}
        names: dict = {}
        for identifier, name, read, state in self._parameters:
            p = read(self._params)
            if _state(p, name, names) != state:
                raise ValueError(
                    f"{self.name} was written when the parameter {name!r} had the shape, the "
                    f"dtype and the flag requires_grad {state[:3]}, and was shared or not as it "
                    f"was then. It is now {describe(p)}. Write another program with ta.source."
                )
            arrays[identifier] = p._data
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
        return self.function(*arrays, **self._arrays())

    def _wrong_arguments(self, args):
        wanted = [f"{name} {kind}" for name, kind in self._arguments.items()]
        shown = lambda x: kind_of(array_of(x)) or describe(x)
        got = [f"{name} {shown(x)}" for name, x in zip(self._arguments, args)]
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


def _state(p, name, names):
    """Return what a program depends on besides the values of a parameter.

    It ends with the first name of the same parameter, from `names`.
    """
    if isinstance(p, Variable):
        return p._data.shape, p._data.dtype, tracked(p), names.setdefault(p, name)
    return None


def _is_same(x, expected):
    """Return whether values are equal, also in types, signs of zeros and the order of keys."""
    known = lambda v: "nan" if isinstance(v, float) and v != v else v
    equal = type(x) is type(expected) and tree_map(known, x) == tree_map(known, expected)
    return bool(equal) and repr(x) == repr(expected)
