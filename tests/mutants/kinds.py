"""The kinds of change: from a node of a syntax tree to the nodes that could stand there by mistake.

A kind is a generator; it yields one replacement after the other, and nothing for a node that it does not concern. What is
never worth changing, an error text or what only chooses between two ways, is left out by `places`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

Changed = Iterator[ast.AST]
NEGATED = {"add": "subtract", "subtract": "add", "negative": "positive", "maximum": "minimum"}
# Of these the order of the arguments does not matter, or is not one of operands.
IN_ANY_ORDER = {"add", "multiply", "maximum", "minimum", "logaddexp", "vdot", "vecdot", "dot"}
IN_ANY_ORDER |= {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "zip", "max", "min"}
IN_ANY_ORDER |= {
    "swapaxes",
    "broadcast_shapes",
    "result_type",
    "fmax",
    "fmin",
    "logical_and",
    "logical_or",
}
REDUCTIONS = {"sum", "mean", "max", "min", "prod", "argmax", "any", "all", "squeeze", "var", "std"}
REARRANGED = {"swapaxes", "transpose", "moveaxis"}
TYPES = {"int", "float", "str", "Callable"}
EVEN = {"square", "abs", "absolute", "fabs"}  # of -x they are what they are of x
SMALL = 1e-3  # what is smaller is there to keep something from being 0


class Around(NamedTuple):
    """What a kind may ask about the place of a node."""

    parent: ast.AST
    operands: tuple[str, ...]  # in a rule, what it is given beside g: the result and the inputs


def called(node: ast.AST) -> str:
    """The bare name of what is called, "" for all that is no call of a name."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def of_numpy(node: ast.AST) -> bool:
    """Is this a call of a function of NumPy's?"""
    function = getattr(node, "func", None)
    return isinstance(function, ast.Attribute) and ast.unparse(function.value) == "np"


def whole(node: ast.AST | None) -> int | None:
    """The whole number that is written here, which may have a minus; else None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = whole(node.operand)
        return None if number is None else -number
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return value if type(value) is int else None


def literal(node: ast.AST) -> bool:
    """Is this a text, a tuple or a list as it is written, so that + and * do not mean arithmetic?"""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.Tuple | ast.List | ast.ListComp)


def arithmetic(node: ast.AST, *signs: type) -> bool:
    """Is this a op b for one of these signs, of numbers? `int | None` is a type."""
    if not isinstance(node, ast.BinOp) or literal(node.left) or literal(node.right):
        return False
    if any(getattr(n, "id", "") in TYPES for n in ast.walk(node)):
        return False
    return isinstance(node.op, signs)


def is_eps(node: ast.AST) -> bool:
    """Is this what keeps a denominator from being 0: a name such as eps, or a tiny number?"""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < abs(node.value) < SMALL
    name = getattr(node, "attr", getattr(node, "id", ""))
    loaded = isinstance(getattr(node, "ctx", None), ast.Load)
    return loaded and (name == "tiny" or "eps" in name.split("_"))


def other(node: ast.AST, **fields: object) -> ast.AST:
    """The same node, but for these fields."""
    new = type(node)(**{**{name: getattr(node, name, None) for name in node._fields}, **fields})
    return ast.copy_location(new, node)


def scaled(node: ast.AST, factor: int) -> ast.AST:
    """factor * node"""
    return ast.BinOp(ast.Constant(factor), ast.Mult(), node)


def sign(node: ast.AST, around: Around) -> Changed:
    """a + b for a - b, x for -x, `+=` for `-=`, maximum for minimum; and each the other way round."""
    flipped = {ast.Add: ast.Sub(), ast.Sub: ast.Add()}.get(type(getattr(node, "op", None)))
    if flipped and (isinstance(node, ast.AugAssign) or arithmetic(node, ast.Add, ast.Sub)):
        yield other(node, op=flipped)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and whole(node) is None:
        yield node.operand
    if of_numpy(node) and called(node) in NEGATED:
        yield other(node, func=other(node.func, attr=NEGATED[called(node)]))


def factor(node: ast.AST, around: Around) -> Changed:
    """A factor or a divisor left out, a constant doubled."""
    if arithmetic(node, ast.Mult):
        yield node.left
        yield node.right
    elif arithmetic(node, ast.Div, ast.Pow):
        yield node.left
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult | ast.Div):
        yield ast.Pass()
    if of_numpy(node) and called(node) in ("multiply", "divide"):
        yield other(node, func=other(node.func, attr="positive"), args=node.args[:1])
    if isinstance(node, ast.Constant) and type(node.value) is float:
        if node.value and not is_eps(node):
            yield ast.Constant(2 * node.value)


def operand(node: ast.AST, around: Around) -> Changed:
    """b - a for a - b, f(b, a) for f(a, b), and in a rule one input, or the result, for another."""
    turned = arithmetic(node, ast.Sub, ast.Div, ast.MatMult, ast.Pow, ast.FloorDiv, ast.Mod)
    if turned and not (isinstance(node.op, ast.Sub) and called(around.parent) in EVEN):
        yield other(node, left=node.right, right=node.left)
    if isinstance(node, ast.Call) and called(node) not in IN_ANY_ORDER:
        first = 1 if called(node) == "where" else 0
        pair = node.args[first : first + 2]
        if len(pair) == 2 and not any(isinstance(x, ast.Constant | ast.Starred) for x in pair):
            args = [*node.args[:first], pair[1], pair[0], *node.args[first + 2 :]]
            yield other(node, args=args)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        names = around.operands
        if node.id in names and len(names) > 1 and not isinstance(around.parent, ast.Attribute):
            yield ast.Name(names[(names.index(node.id) + 1) % len(names)], ast.Load())


def axis(node: ast.AST, around: Around) -> Changed:
    """Another axis, keepdims turned round, a transpose left out."""
    of_axis = isinstance(around.parent, ast.keyword) and around.parent.arg in ("axis", "dim")
    if called(around.parent) in REDUCTIONS and node in around.parent.args[:1]:
        of_axis = not of_numpy(around.parent)
    if called(around.parent) == "expand_dims" and node in around.parent.args[1:]:
        of_axis = True
    if of_axis and whole(node) is not None:
        yield ast.Constant(-1 if whole(node) == 0 else 0)
    if isinstance(node, ast.keyword) and node.arg == "keepdims":
        if isinstance(node.value, ast.Constant):
            yield other(node, value=ast.Constant(not node.value.value))
    if isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
        yield node.value
    if called(node) in REARRANGED:
        arrays = node.args[:1] if of_numpy(node) or called(node) == "moveaxis" else []
        yield from arrays or [getattr(node.func, "value", node.func)]


def term(node: ast.AST, around: Around) -> Changed:
    """A term of a sum left out, or one of two conditions that stand for the elements of an array."""
    if arithmetic(node, ast.Add, ast.BitOr, ast.BitAnd) and not is_eps(node.right):
        yield node.left
        yield node.right
    elif arithmetic(node, ast.Sub):
        yield node.left
    if isinstance(node, ast.AugAssign) and not isinstance(node.op, ast.Mult | ast.Div):
        yield ast.Pass()


def eps(node: ast.AST, around: Around) -> Changed:
    """What keeps a denominator from being 0 made a hundred times as large, or left out."""
    if is_eps(node):
        yield scaled(node, 100)
    if arithmetic(node, ast.Add) and is_eps(node.right):
        yield node.left


def off_by_one(node: ast.AST, around: Around) -> Changed:
    """One more: in arithmetic, an index, a range. One less at the end of a slice. `<` for `<=`."""
    parent, number = around.parent, whole(node)
    if number is not None:
        ends = isinstance(parent, ast.Slice) or called(parent) in ("range", "arange")
        index = isinstance(parent, ast.Subscript) and parent.slice is node
        if ends or index or arithmetic(parent, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow):
            yield ast.Constant(number + 1)
    elif isinstance(parent, ast.Slice) and node is parent.upper:
        yield ast.BinOp(node, ast.Sub(), ast.Constant(1))
    elif called(parent) in ("range", "arange") and not literal(node):
        if node in parent.args[:2] and not isinstance(node, ast.Starred):
            yield ast.BinOp(node, ast.Sub(), ast.Constant(1))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        strict = {ast.Lt: ast.LtE(), ast.Gt: ast.GtE(), ast.LtE: ast.Lt(), ast.GtE: ast.Gt()}
        if type(node.ops[0]) in strict:
            yield other(node, ops=[strict[type(node.ops[0])]])


def stale(node: ast.AST, around: Around) -> Changed:
    """What a buffer held before: a result that is not written, a copy not made, `=` for `+=`."""
    if isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value, lineno=node.lineno)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if any(k.arg == "out" for k in node.value.keywords):
            yield ast.Pass()
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        yield ast.Pass()
    if called(node) == "copy" and isinstance(node.func, ast.Attribute) and not node.args:
        yield node.func.value
    if of_numpy(node) and called(node) == "array" and not literal(node.args[0]):
        yield other(node, func=other(node.func, attr="asarray"))


KINDS: dict[str, Callable[[ast.AST, Around], Changed]] = {
    "sign": sign,
    "factor": factor,
    "operand": operand,
    "axis": axis,
    "term": term,
    "eps": eps,
    "off by one": off_by_one,
    "stale": stale,
}


def condition(node: ast.AST, around: Around) -> Changed:
    """One of several conditions left out."""
    if isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            rest = [v for k, v in enumerate(node.values) if k != i]
            yield rest[0] if len(rest) == 1 else other(node, values=rest)


def never(node: ast.AST, around: Around) -> Changed:
    """A way that is never taken."""
    if getattr(around.parent, "test", None) is node and not isinstance(around.parent, ast.While):
        yield ast.Constant(False)


DECISIONS: dict[str, Callable[[ast.AST, Around], Changed]] = {
    "condition": condition,
    "never": never,
}
"""The kinds for the files in which an `if` decides what is computed."""
