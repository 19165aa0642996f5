"""Reads the texts for people out of the sources of the marker and of gradcheck's diagnoses.

A text is a string constant or an f-string. In its template, `{0}` stands for an inserted value; an
inserted choice between two texts gives two templates. Docstrings, names, code, formulas, error
texts, and what is compared rather than said are no texts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKING = ROOT / "docs" / "course" / "marking"
sys.path.insert(0, str(MARKING))

import _stubs  # noqa: E402

CHECK = ROOT / "tinygrad_attn" / "check"
DIAGNOSES = (
    "causes",
    "circumstances",
    "explain",
    "faults",
    "gradcheck",
    "report",
    "steps",
    "values",
)
NOT_SAID = {"_bugs", "_language", "_practice_proof", "_stubs", "_watch", "_wording"}
"""Modules of the marker that say nothing to a learner."""
READS = {
    *("startswith", "endswith", "split", "partition", "rpartition", "removeprefix"),
    *("removesuffix", "compile", "match", "search", "findall", "fullmatch", "getattr"),
    *("get", "einsum", "open", "encode", "strip", "rstrip", "add_argument"),
}
"""Calls whose texts are read or looked for, and not said."""
RAISED = {
    *("Wrong", "Forbidden", "NotWritten", "WrongForm", "RuntimeError"),
    *("Missing", "Crash", "Refused"),
}
"""Exceptions whose texts the marker says; any other is an error text, which stays English."""
WORDS = {
    *("ok", "no", "missing", "transposed", "name", "verdict", "passed", "RIGHT", "WRONG"),
    *(" (transposed?)", "LOST", "CRASH", "MISSING", "shape", "value", "expected", "found"),
}
"""Texts of a single word; any other single word is taken for a name."""
AMBIGUOUS = {
    "{0} in {1}",
    "{0} of {1}: {2}",
    "{0} of {1}: {2}: {3}",
    "{0}: op {1}: {2}",
    "{0} at {1}: {2}",
}
"""Templates that fit almost everything; their parts are translated instead."""
CONSTANTS = re.compile(r'^([A-Z_]+) = "(.{1,40})"$', re.M)
"""Words that texts insert by name."""
TOGETHER = ["FAILED", "operand {0}", "argument {0}", "{0} WRONG", "{0} LOST", "{0} CRASH"]
"""Texts that the sources put together from words, or from a word and a number."""
LISTED = {
    *(ast.Module, ast.Expr, ast.Name, ast.Load, ast.BoolOp, ast.And, ast.Or),
    *(ast.Tuple, ast.AnnAssign, ast.Store, ast.Compare, ast.In, ast.IsNot),
}
"""What Python takes a list of words for, such as `maximum, total and result`."""
VALUE = "\0"
PROGRAM = 20
"""The number of lines from which on a text is a program."""
MOST = 16
"""The largest number of templates of one f-string."""


def templates() -> list[str]:
    """Return the templates of all texts, in the order of the sources."""
    course = MARKING.parent / "layout.py"
    marking = [path for path in sorted(MARKING.glob("*.py")) if path.stem not in NOT_SAID]
    diagnoses = [CHECK / f"{name}.py" for name in DIAGNOSES]
    stubs = sorted((MARKING.parent / "exercises").glob("*.py"))
    return list(
        dict.fromkeys([*read([*diagnoses, *marking]), *read([course]), *TOGETHER, *tasks(stubs)])
    )


def tasks(stubs: Sequence[Path]) -> list[str]:
    """Return the paragraphs and comments of the files with which exercises begin."""
    found: list[str] = []
    for path in stubs:
        source = path.read_text("utf-8")
        for docstring, indent in _stubs.docstrings(source):
            found += _stubs.paragraphs(docstring, indent)
        found += [comment[2:] for comment in _stubs.comments(source)]
    return [text.replace("{", "{{").replace("}", "}}") for text in found if is_text(text)]


def read(paths: Sequence[Path]) -> list[str]:
    """Return the templates of some files."""
    found: list[str] = []
    folders = {path.parent for path in paths}
    sources = [path.read_text("utf-8") for folder in folders for path in folder.glob("*.py")]
    named = dict(pair for source in sources for pair in CONSTANTS.findall(source))
    for path in paths:
        texts = Texts(named)
        texts.visit(ast.parse(path.read_text("utf-8")))
        found += texts.found
        if path.parent == CHECK:  # the kind of a diagnosis is also said by itself
            kinds = (re.match(r"([a-z ]{3,25}): ", text) for text in texts.found)
            found += [kind[1] for kind in kinds if kind]
    return [text for text in found if text not in AMBIGUOUS]


class Texts(ast.NodeVisitor):
    """Collects the templates of one file."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self.named = named
        self.found: list[str] = []

    def add(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and node.value.count("\n") > PROGRAM:
            return
        values: list[ast.expr] = []
        for text in written(Named(self.named).visit(node), values):
            self.found += [numbered(part) for part in parts(text) if is_text(part)]
        for value in values:
            self.visit(value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.add(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.add(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for side in (node.left, *node.comparators):
            if not isinstance(side, (ast.Constant, ast.Tuple)):
                self.visit(side)

    def visit_Raise(self, node: ast.Raise) -> None:
        called = (one for one in ast.walk(node) if isinstance(one, ast.Call))
        if any(getattr(one.func, "id", "") in RAISED for one in called):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("sub", "replace") and len(node.args) > 1:  # what is put in is said
            self.visit(node.func)
            self.visit(node.args[int(name == "replace" or ast.unparse(node.func) == "re.sub")])
        elif name in READS:
            self.visit(node.func)
        elif name == "join" and isinstance(node.func, ast.Attribute):
            if isinstance(node.func.value, ast.Constant) and re.search(
                "[a-z]", node.func.value.value
            ):
                self.found.append(f"{{0}}{node.func.value.value}{{1}}")
            for argument in node.args:
                self.visit(argument)
        else:
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.decorator_list, *node.args.defaults, *node.body):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)


class Named(ast.NodeTransformer):
    """Puts texts in the place of their names."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self.named = named

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.named[node.id]) if node.id in self.named else node


def parts(text: str) -> list[str]:
    """Return the paragraphs of a text, and the cells of a table, which are looked up one by one."""
    found: list[str] = []
    for paragraph in re.split(r"\n{2,}", text):
        paragraph = paragraph.strip("\n")
        table = re.search(rf"\S {{2,}}\S|^{VALUE}$", paragraph, re.M)
        found += re.split(r"\n *| {2,}", paragraph) if table else [paragraph]
    return [re.sub(r"^ {2,}", "", part) for part in found]


def written(node: ast.expr, values: list[ast.expr]) -> list[str]:
    """Return the texts that an expression may give, with VALUE for each inserted value."""
    match node:
        case ast.Constant(value=str(text)):
            text = re.sub(r"\{\w*\}", VALUE, text)  # for str.format
            return [text.replace("{", "{{").replace("}", "}}")]
        case ast.JoinedStr(values=parts):
            choices = [written(part, values) for part in parts]
            texts = ["".join(one) for one in product(*choices)]
            if len(texts) <= MOST:
                return texts
            values += [part.value for part in parts if isinstance(part, ast.FormattedValue)]
            plain = [VALUE if len(one) > 1 else one[0] for one in choices]
            return ["".join(plain)]
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None) if is_choice(value):
            return written(value, values)
        case ast.IfExp(body=first, orelse=second):
            return written(first, values) + written(second, values)
        case ast.BinOp(left=text):
            return [*written(text, values), ""]
        case ast.FormattedValue(
            value=ast.BoolOp(op=ast.Or(), values=[value, ast.Constant(value=str(instead))])
        ):
            values.append(value)
            return [VALUE, instead]
        case ast.FormattedValue(value=value):
            values.append(value)
            return [VALUE]
    raise TypeError(f"{ast.unparse(node)} is no text.")


def is_choice(node: ast.expr) -> bool:
    """Return whether an expression chooses between texts."""
    match node:
        case ast.IfExp(body=first, orelse=second):
            return is_choice(first) and is_choice(second)
        case ast.BinOp(op=ast.Mult(), left=text):
            return is_choice(text)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def numbered(text: str) -> str:
    """Number the values of a template; neighbours are one value."""
    parts = re.sub(f"{VALUE}( ?{VALUE})*", VALUE, text).split(VALUE)
    return "".join(f"{part}{{{k}}}" for k, part in enumerate(parts[:-1])) + parts[-1]


def is_text(text: str) -> bool:
    """Return whether a template is something that people read, and no name, code or formula."""
    if text in WORDS or re.search("FAILED|MISSING", text):
        return True
    if re.search(r"\\[a-z(\[]", text) or "\ndef forward_backward" in text or "sys.argv" in text:
        return False
    if text.lstrip().startswith("python -m "):
        return False
    if " " not in text or not re.search(r"(?<![\w.=(\[])[A-Za-z][a-z]+(?![\w(=\[])", text):
        return False
    return '"""' in text or not is_code(text.replace(VALUE, "x").strip())


def is_code(text: str) -> bool:
    """Return whether a text is Python, and no list of words such as `maximum, total and result`."""
    for ending in ("", " pass"):
        with suppress(SyntaxError):
            nodes = {type(node) for node in ast.walk(ast.parse(text + ending))}
            return not nodes <= LISTED
    return False
