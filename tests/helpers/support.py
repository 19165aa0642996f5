"""What test modules share. pyproject.toml puts this folder on the path, so anywhere under tests/:

    from support import ROOT, require
    torch = require("torch")

The optional libraries may be missing on a developer's machine; in CI a missing one is a failure, never a skip.
"""

import importlib
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
    """The module of that name. Missing, it skips the test (or the whole test module), and in CI raises ImportError."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if IN_CI:
            raise ImportError(
                f"CI must have {name}: it belongs to the extra `test` ({error})"
            ) from error
        pytest.skip(f"{name} is not installed (pip install -e '.[test]')", allow_module_level=True)


def unquoted(text: str) -> str:
    """A report without the source lines that it quotes: a table's line holds the words that its test looks for."""
    return re.sub(r"`[^`\n]*`", "``", text)


def changed(text: str, right: str, wrong: str) -> str:
    """The text with `wrong` in place of `right`, in whatever way a formatter has broken the lines."""
    start, end = re.match(r"\s*", right)[0], re.search(r"\s*$", right)[0]
    tokens = [(r",?\s*" if t in ")]}" else "") + re.escape(t) for t in re.findall(r"\w+|\S", right)]
    found = re.search(re.escape(start) + r"\s*".join(tokens) + re.escape(end), text)
    assert found, f"{right!r} is not in the solution"
    return text[: found.start()] + wrong + text[found.end() :]
