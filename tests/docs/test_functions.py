"""A function of the package fits on a screen: at most 60 lines."""

import ast

from support import ROOT

SCREEN = 60


def lengths():
    """(where, lines) of each function, its decorators not counted."""
    for path in sorted((ROOT / "tinygrad_attn").rglob("*.py")):
        where = path.relative_to(ROOT / "tinygrad_attn")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{where} {node.name}", node.end_lineno - node.lineno + 1


def test_a_function_fits_on_a_screen():
    longer = {where: lines for where, lines in lengths() if lines > SCREEN}
    assert not longer, f"cut these into functions with names of their own: {longer}"
