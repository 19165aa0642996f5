"""The package is read in import order: a module imports only from modules above it in this list.

Imports inside functions and under `if TYPE_CHECKING:` are not counted.
"""

import ast
import sys

import pytest
from support import ROOT, each

from tinygrad_attn import errors
from tinygrad_attn.program import symbol

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


@each("path", MODULES)
def test_a_module_imports_only_from_above(path):
    own = room([path.relative_to(PACKAGE).with_suffix("").parts[0]])
    for name, line in imported(path):
        assert LAYERS.index(name) <= LAYERS.index(own), f"line {line} imports {name or 'the top'}"


# ---- what no module may do


def nodes(kind):
    """All nodes of this kind in the package, with the file and line of each."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, kind):
                yield node, f"{path.relative_to(PACKAGE)}:{node.lineno}"


def is_dtype(node):
    return getattr(node, "attr", getattr(node, "id", "")) == "dtype"


def test_dtypes_are_compared_by_equality():
    """Arrays that were pickled or loaded have dtypes that are equal to NumPy's, but other objects."""
    found = []
    for node, place in nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        for i, sign in enumerate(node.ops):
            pair = sides[i : i + 2]
            nothing = any(isinstance(x, ast.Constant) and x.value is None for x in pair)
            if isinstance(sign, ast.Is | ast.IsNot) and any(map(is_dtype, pair)) and not nothing:
                found.append(place)
    assert not found, f"{found}: a dtype is compared with `is`; write =="


VALUES = {"int", "str", "bytes", "bool", "float", "np.dtype"}


def test_a_cache_is_keyed_by_values_and_not_by_objects_that_it_would_keep_alive():
    found = []
    for node, place in nodes(ast.FunctionDef):
        caches = [d for d in map(ast.unparse, node.decorator_list) if "cache" in d]
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        kinds = [ast.unparse(x.annotation) if x.annotation else x.arg for x in given]
        if caches and not {*kinds} <= VALUES and node.col_offset == 0:
            found.append(place)
    assert not found, f"{found}: a cache keeps its arguments; annotate numbers and texts as such"


@pytest.mark.parametrize(
    "file, inside", [("ops/x.py", True), ("../tinygrad_attn_user/x.py", False)]
)
def test_a_folder_whose_name_begins_with_the_packages_name_is_not_the_package(file, inside):
    """Who wrote a line decides what an error text quotes and what a traced program is called."""
    path = (PACKAGE / file).resolve()
    names = {"frame_of": lambda: sys._getframe(1), "user_frame": errors.user_frame}
    code = compile("def f(): return frame_of(), user_frame()", str(path), "exec")
    exec(code, names)
    frame, users = names["f"]()
    assert symbol.is_in(frame, symbol.PACKAGE) == inside
    assert (users.f_code.co_filename != str(path)) == inside
