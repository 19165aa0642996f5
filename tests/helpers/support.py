"""Helpers for all test modules. pyproject.toml puts this folder on the path, so any test can write:

    from support import ROOT, require
    torch = require("torch")

Optional libraries may be missing on a developer's machine. In CI, a missing library is an error, never a skip.
"""

import importlib
import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]  # the repository
EXERCISES = ROOT / "docs" / "course" / "exercises"
MARKING = ROOT / "docs" / "course" / "marking"
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
