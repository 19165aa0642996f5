"""Helpers for all test modules. pyproject.toml puts this folder on the path, so any test can write:

    from support import ROOT, require
    torch = require("torch")

Optional libraries may be missing on a developer's machine. In CI, a missing library is an error, never a skip.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]  # the repository
EXERCISES = ROOT / "docs" / "course" / "exercises"
MARKING = ROOT / "docs" / "course" / "marking"
SEED = int(os.environ.get("TINYGRAD_ATTN_TEST_SEED", "0"))
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def require(name: str) -> ModuleType:
    """Import a module. If it is missing, skip the test or the test module, or raise ImportError in CI."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if IN_CI:
            raise ImportError(
                f"CI must have {name}: it belongs to the extra `test` ({error})"
            ) from error
        pytest.skip(f"{name} is not installed (pip install -e '.[test]')", allow_module_level=True)


def installed(*names: str) -> None:
    """Skip as `require` does, without the import, which takes a second for some libraries."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            require(name)


def begin_random_numbers() -> None:
    """Let the package's generator start at the same place."""
    if package := sys.modules.get("tinygrad_attn"):
        package.manual_seed(SEED)


def each(name: str, cases: Iterable[Any]) -> Callable[[Callable], Callable]:
    """Run a test on many small cases, which must be fast: a test of its own costs two milliseconds.

    Like pytest.mark.parametrize, but all cases are one test, which ends with the first that fails.
    """
    cases = list(cases)
    assert cases, f"there is no case of {name}"

    def joined(test: Callable) -> Callable:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            skips = []
            for case in cases:
                begin_random_numbers()
                try:
                    test(*args, **fixtures, **{name: case})
                except pytest.skip.Exception as skip:
                    skips.append(skip)
                except BaseException as error:
                    error.add_note(f"{name} = {case!r:.200}")
                    raise
            if len(skips) == len(cases):
                raise skips[-1]

        signature = inspect.signature(test)
        others = [p for p in signature.parameters.values() if p.name != name]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return joined


def zoo() -> ModuleType:
    """Return the module of published bugs that can be switched on."""
    spec = importlib.util.spec_from_file_location("_bugs", MARKING / "_bugs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unquoted(text: str) -> str:
    """Remove quoted source lines from a report, because they may contain the words that a test looks for."""
    return re.sub(r"`[^`\n]*`", "``", text)


def changed(text: str, right: str, wrong: str) -> str:
    """Replace `right` with `wrong` in a text, however a formatter has broken its lines."""
    start, end = re.match(r"\s*", right)[0], re.search(r"\s*$", right)[0]
    tokens = [(r",?\s*" if t in ")]}" else "") + re.escape(t) for t in re.findall(r"\w+|\S", right)]
    found = re.search(re.escape(start) + r"\s*".join(tokens) + re.escape(end), text)
    assert found, f"{right!r} is not in the solution"
    return text[: found.start()] + wrong + text[found.end() :]
