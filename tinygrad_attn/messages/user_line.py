"""The user's own line of code: which files are not the user's, how a line is quoted, and warnings
that point at it."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import warnings

import numpy as np

_PACKAGE, _NUMPY = (
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (os.path.dirname(__file__), np.__file__)
)
INNER = (_PACKAGE, _NUMPY, contextlib.__file__)
"""How the names of the files begin whose lines are not the user's.

contextlib is among them because it calls what a context manager decorates, as in `no_grad()(f)`.
"""


def quoted(file: str, line: int) -> str:
    """A place as FILE:LINE and, where it can be read, the line's text: "train.py:7 `y = f(x)`"."""
    linecache.checkcache(file)  # The file may have been edited and loaded anew since the last time.
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}" + (f" `{text}`" if text else "")


def warn(text: str) -> None:
    """A UserWarning that names the user's line, however many calls of the package lie between."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(INNER) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
