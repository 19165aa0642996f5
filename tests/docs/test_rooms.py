"""The package is read in import order: a module imports only from modules above it in this list.

Imports inside functions and under `if TYPE_CHECKING:` are not counted.
"""

import ast

import pytest
from support import ROOT

PACKAGE = ROOT / "tinygrad_attn"
LAYERS = [
    *(
        "errors",
        "tree",
        "engine",
        "ops",
        "tensor",
        "random",
        "functional",
        "transforms",
        "nn",
        "optim",
        "files",
    ),
    *("program", "check", "viz", "parallel", "fast", "", "cli", "__main__"),
]
"""The files and folders of the package; the empty name is tinygrad_attn/__init__.py."""
MODULES = sorted(PACKAGE.rglob("*.py"))


def room(parts):
    """The file or folder of the package to which a dotted name belongs."""
    return parts[0] if parts and parts[0] in LAYERS else ""


def imported(path):
    """The rooms that a module imports when it is loaded, with the lines."""
    package = list(path.relative_to(PACKAGE).parent.parts)
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            parts = [*above, *(node.module.split(".") if node.module else [])]
            names = [[alias.name] for alias in node.names] if not parts else [parts]
            yield from ((room(name), node.lineno) for name in names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_above(path):
    own = room([path.relative_to(PACKAGE).with_suffix("").parts[0]])
    for name, line in imported(path):
        assert LAYERS.index(name) <= LAYERS.index(own), f"line {line} imports {name or 'the top'}"
