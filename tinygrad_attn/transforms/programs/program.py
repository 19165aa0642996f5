"""The program: its text, and the function that it defines."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...engine import Variable
from ...messages.errors import describe


class Program:
    """A function as one plain NumPy file, forwards and backwards, for arrays of these shapes.

    `text` is the file, which imports NumPy and nothing else. `save(path)` writes it. Called with
    arrays or Tensors in place of those it was written for, `program(*args)` runs it, with the
    parameters as they are now, and returns what the function in the file returns: the value and
    {name: gradient}, or with `backward=False` the value alone. `arrays()` are the parameters and
    the other arrays that the function in the file takes by name.
    """

    def __init__(
        self,
        text: str,
        name: str,
        arguments: Mapping[str, Any],
        held: Mapping[str, Any],
    ) -> None:
        self.text, self.name = text, name
        self._arguments = dict(arguments)  # name: (shape, dtype), None for what is no array
        self._held = dict(held)  # identifier: a parameter, or a constant array
        self._shapes = {name: (x.shape, x.dtype) for name, x in self.arrays().items()}
        self._function: Callable[..., Any] | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The function that the text defines."""
        if self._function is None:
            space: dict[str, Any] = {}
            exec(compile(self.text, f"<{self.name}, written by ta.source>", "exec"), space)
            self._function = space[self.name]
        return self._function

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters and constants by the names that the function in the file has for them."""
        return {name: x._data if isinstance(x, Variable) else x for name, x in self._held.items()}

    def __call__(self, *args: Any) -> Any:
        if len(args) != len(self._arguments):
            raise TypeError(
                f"{self.name} takes {len(self._arguments)} arguments, "
                f"{', '.join(self._arguments)}, got {len(args)}."
            )
        given = []
        for (name, expected), x in zip(self._arguments.items(), args, strict=True):
            if expected is None:
                continue
            array = np.asarray(x._data if isinstance(x, Variable) else x)
            if (array.shape, array.dtype) != expected:
                raise ValueError(
                    f"this program was written for {name} {expected[0]} {expected[1]}, got "
                    f"{describe(x)}. Write another one with ta.source for other shapes."
                )
            given.append(array)
        arrays = self.arrays()
        for name, array in arrays.items():
            if (array.shape, array.dtype) != self._shapes[name]:
                shape, dtype = self._shapes[name]
                raise ValueError(
                    f"this program was written for {name} {shape} {dtype}, which is "
                    f"{describe(array)} by now. Write another one with ta.source."
                )
        return self.function(*given, **arrays)

    def save(self, path: str | Path) -> Path:
        """Write the text to a file; returns its path."""
        path = Path(path)
        path.write_text(self.text, "utf-8")
        return path

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        lines = self.text.count("\n")
        return f"<{self.name}({', '.join(self._arguments)}), {lines} lines of NumPy>"

    def _repr_html_(self) -> str:
        """In a notebook, in colours where Pygments is there, as it is with Jupyter."""
        try:
            from pygments import highlight
            from pygments.formatters import HtmlFormatter
            from pygments.lexers import PythonLexer
        except ImportError:
            return f"<pre>{html.escape(self.text)}</pre>"
        return str(highlight(self.text, PythonLexer(), HtmlFormatter(noclasses=True)))
