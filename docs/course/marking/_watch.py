"""Watches which library functions an answer calls while it is marked."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

LIBRARIES = {"tinygrad_attn", "torch", "jax", "scipy", "tensorflow", "sklearn", "autograd", "keras"}
NOT_THE_ANSWER = (str(Path(__file__).resolve().parent), sysconfig.get_path("stdlib"), "<frozen")
"""How the names of files of the marker and of Python begin."""
BESIDE = ("tinygrad_attn.tensor.", "tinygrad_attn.engine.", "tinygrad_attn.errors")
"""Modules of the package whose functions run when a formula is applied to a Tensor that was given."""


@contextmanager
def library_calls(allowed: Collection[str] | None) -> Iterator[list[tuple[str, int]]]:
    """List the library functions that are called inside the block, each with the line of the call.

    Calls by the libraries themselves and by the marker do not count, nor do functions, classes and
    methods whose names are in `allowed`, nor the operators and methods of a Tensor. None allows all.
    """
    calls: list[tuple[str, int]] = []
    if allowed is None:
        yield calls
        return

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event not in ("call", "c_call"):
            return
        caller = frame if event == "c_call" else frame.f_back
        if caller is None or trusted(
            str(caller.f_globals.get("__name__")), caller.f_code.co_filename
        ):
            return
        module = module_of(function) if event == "c_call" else frame.f_globals.get("__name__") or ""
        if module.partition(".")[0] not in LIBRARIES:
            return
        name = python_name(frame, module) if event == "call" else function.__qualname__
        if name and name != "<module>" and not {*name.split(".")} & {*allowed}:  # no import
            shown = name.removesuffix(".__init__").rpartition(".")[2]
            calls.append((f"{module.partition('.')[0]}'s {shown}", caller.f_lineno))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def module_of(function: Any) -> str:
    """Return the name of the module of a function that is not written in Python."""
    own = getattr(function, "__module__", None)
    return str(own or type(getattr(function, "__self__", None)).__module__)


@functools.cache  # most calls are in a few files, and each is looked at
def trusted(module: str, file: str) -> bool:
    """Return whether a call in a module comes from Python, a library or the marker, not from an answer."""
    return module.partition(".")[0] in LIBRARIES | {"numpy"} or file.startswith(NOT_THE_ANSWER)


def python_name(frame: FrameType, module: str) -> str:
    """Return the name of the called function, or an empty string if any answer may call it."""
    name, values = frame.f_code.co_qualname, frame.f_locals
    if name == "reference.<locals>.call":  # a function of F that a kernel may replace
        return str(values["function"].__name__)
    if name == "Op.__call__":
        op = values["self"]
        return str(op.__name__) if str(op.__module__).startswith("tinygrad_attn") else ""
    if name in ("Tensor.__init__", "Tensor.backward"):
        return name
    return "" if module == "tinygrad_attn" or module.startswith(BESIDE) else name
