"""The package is read in import order: a module imports only from modules above it in this list.

Read from the text with `ast`, so an import inside a function counts as well, unless its line says `# lazy: <why>`.
Imports under `if TYPE_CHECKING:` never run and are not counted. `nn.*` is `nn` and all in it, which may import each
other, but not in a circle.
"""

import ast
import graphlib
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = "tinygrad_attn"
LAYERS = [
    "errors",
    "messages.*",  # may be imported by all, and imports nothing of ours
    "engine.*",
    "ops.*",
    "tensor.*",
    "random",
    "functional.*",
    "transforms.*",
    "nn.*",
    "program.*",
    "optim.*",
    "fast.*",  # imports what it replaces, and is imported by the package's own __init__ alone
    "files.*",
    "check.*",
    "viz.*",
    "parallel.*",
    "",  # the package itself, tinygrad_attn/__init__.py: it gathers everything above
    "cli.*",
    "__main__",
]


def layer(module: str) -> int | None:
    """The place of a module in LAYERS, by its name without the package's; None when it has none."""
    for place, pattern in enumerate(LAYERS):
        if fnmatch(module, pattern) or (pattern.endswith(".*") and module == pattern[:-2]):
            return place
    return None


class Imports(ast.NodeVisitor):
    """Collects (line, module) for each import of one of the package's own modules that counts."""

    def __init__(self, module: str, is_package: bool, text: str, known: set[str]):
        self.parts = [PACKAGE, *module.split(".")] if module else [PACKAGE]
        self.is_package, self.lines, self.known = is_package, text.splitlines(), known
        self.in_function = False
        self.found: list[tuple[int, str]] = []
        self.visit(ast.parse(text))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self.in_function = self.in_function, True
        self.generic_visit(node)
        self.in_function = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        typing_only = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in node.orelse if typing_only else ast.iter_child_nodes(node):
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        up = node.level - 1 if self.is_package else node.level
        base = self.parts[: len(self.parts) - up] if node.level else []
        for alias in node.names:
            self.add(node, ".".join([*base, *([node.module] if node.module else []), alias.name]))

    def add(self, node: ast.stmt, name: str) -> None:
        top, _, inside = name.partition(".")
        lazy = self.in_function and any(
            "# lazy: " in line for line in self.lines[node.lineno - 1 : node.end_lineno]
        )
        if top != PACKAGE or lazy:
            return
        while inside not in self.known:  # what is imported may be a name inside a module
            inside = inside.rpartition(".")[0]
        self.found.append((node.lineno, inside))


def read(package: Path) -> dict[str, Path]:
    """Every module's name inside the package ("" is the package itself) and its file."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def complaints(package: Path) -> list[str]:
    """One line for each module with no place and each import that points down or round in a circle."""
    modules, found = read(package), []
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        here = path.relative_to(package.parent)
        place = layer(module)
        if place is None:
            found.append(
                f"{here}: no place in the import order; put {module!r} into LAYERS in tests/docs/test_rooms.py"
            )
            continue
        imports = Imports(
            module, path.name == "__init__.py", path.read_text("utf-8"), set(modules) | {""}
        )
        graph[module] = {target for _, target in imports.found if target != module}
        for line, target in imports.found:
            below = layer(target)
            if below is not None and below > place:
                what = f"{PACKAGE}.{target}".rstrip(".")
                found.append(
                    f"{here}:{line}: imports {what}, which comes after it; move the code, or inside a "
                    "function mark the line `# lazy: <why>`"
                )
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(
            "imports in a circle: "
            + " <- ".join(f"{PACKAGE}.{name}".rstrip(".") for name in error.args[1])
        )
    return found


def test_the_house_has_no_more_rooms_than_the_design_says():
    names = {p.name for p in (ROOT / PACKAGE).iterdir() if p.name != "__pycache__"}
    rooms = names - {"__init__.py", "__main__.py", "py.typed"}
    assert rooms <= {pattern.split(".")[0] + end for pattern in LAYERS for end in ("", ".py")}
    assert len(rooms - {"parallel"}) <= 14


def test_nobody_imports_the_room_that_can_be_deleted():
    modules = read(ROOT / PACKAGE)
    known = set(modules) | {""}
    found = [
        f"{path.relative_to(ROOT)}:{line}: imports {target}"
        for module, path in modules.items()
        if module and not module.startswith("fast")
        for line, target in Imports(
            module, path.name == "__init__.py", path.read_text("utf-8"), known
        ).found
        if target.partition(".")[0] == "fast"
    ]
    assert not found, "\n".join(found)


def test_modules_import_only_from_those_above_them():
    assert layer("engine.sweep") is not None and "engine" in read(ROOT / PACKAGE)
    found = complaints(ROOT / PACKAGE)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"engine.py": "from .ops import add"}, "engine.py:1: imports tinygrad_attn.ops"),
        (
            {"engine.py": "def f():\n    from . import ops"},
            "engine.py:2: imports tinygrad_attn.ops",
        ),
        ({"ops.py": "import tinygrad_attn.nn.layers as L"}, "imports tinygrad_attn.nn.layers"),
        ({"nn/layers.py": "from ..optim import SGD"}, "imports tinygrad_attn.optim"),
        ({"nn/layers.py": "from .. import Tensor"}, "imports tinygrad_attn,"),
        (
            {"nn/__init__.py": "from . import layers", "nn/layers.py": "from . import Linear"},
            "in a circle",
        ),
        ({"surprise.py": ""}, "put 'surprise' into LAYERS"),
        ({"engine.py": "def f():\n    from . import ops  # lazy: it is only for repr"}, None),
        (
            {
                "engine.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import ops"
            },
            None,
        ),
        (
            {"engine.py": "from .ops import add  # lazy: but it is not, at module level"},
            "imports tinygrad_attn.ops",
        ),
        (
            {"nn/layers.py": "import numpy\nfrom ..functional import relu\nfrom . import module"},
            None,
        ),
    ],
)
def test_the_reader_of_imports_sees(tmp_path, files, expected):
    package = tmp_path / PACKAGE
    empty = dict.fromkeys(
        [
            "__init__.py",
            "engine.py",
            "ops.py",
            "functional.py",
            "optim.py",
            "nn/__init__.py",
            "nn/layers.py",
            "nn/module.py",
        ],
        "",
    )
    for name, text in (empty | files).items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    found = complaints(package)
    assert (expected in "\n".join(found)) if expected else not found, found


def test_the_page_of_ops_names_each_of_its_files():
    page = (ROOT / "docs" / "engine" / "02-ops.md").read_text("utf-8")
    told = page.split("They lie in files by kind:")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", told)) == {
        file.stem for file in (ROOT / PACKAGE / "ops").glob("*.py")
    } - {"__init__"}
