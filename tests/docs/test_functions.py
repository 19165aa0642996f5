"""A function of the package fits on a screen: at most 60 lines, but for those that give a reason."""

import ast

from support import ROOT

SCREEN = 60
LONGER = {
    # The loop of the quick sweep calls nothing, since a call costs more than what it would do.
    "fast/engine.py _undo_all",
}


def lengths():
    """(where, lines) of each function, its decorators not counted."""
    for path in sorted((ROOT / "tinygrad_attn").rglob("*.py")):
        where = path.relative_to(ROOT / "tinygrad_attn")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{where} {node.name}", node.end_lineno - node.lineno + 1


def test_a_function_fits_on_a_screen():
    longer = {where: lines for where, lines in lengths() if lines > SCREEN}
    unargued = {where: lines for where, lines in longer.items() if where not in LONGER}
    assert not unargued, f"cut these into functions with names of their own: {unargued}"
    assert not LONGER - longer.keys(), "these fit by now; take them out of LONGER"
