"""Expressions as the lines of a function: which get a line and a name, and in which order.

What has a name of its own, or is used more than once, gets a line. What is used once is written
where it is used, as long as the line stays within a hundred columns. A name is given again when
nobody needs the value any more that had it.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from .expressions import BACKWARD, Expression, reached
from .simplify import inside_of, number_in, uniform
from .text import Sizes, Text, pattern
from .tracing import identifier

BUILTINS = set(dir(builtins))
WIDTH = 100
COMMENT_AT = 72
CALLED = {
    "sqrt": "root",
    "sum": "total",
    "mean": "mean",
    "max": "largest",
    "min": "smallest",
    "exp": "exponentials",
    "log": "logarithm",
    "stack": "stacked",
    "concatenate": "joined",
    "where": "chosen",
    "maximum": "larger",
    "minimum": "smaller",
    "tanh": "tanh",
    "erf": "erf_",
    "take_along_axis": "picked",
    ">": "above",
    "<": "below",
    "==": "equal",
    "!=": "unequal",
    "@": "product",
    "-": "difference",
}
"""What a value is called of which nothing else is known than how it was made."""


class Statement:
    """A line, or two for a write in place: what is computed, or a guard that is asked."""

    def __init__(self, expression: Expression, guard: Any = None) -> None:
        self.expression, self.guard = expression, guard


class Layout:
    """The body of the program."""

    def __init__(
        self,
        results: dict[str, Any],
        guards: list[Any],
        inputs: dict[str, Expression],
        sizes: Sizes,
        kinds: dict[str, str],
    ) -> None:
        self.kinds = kinds  # by a module call: what is added to its name in a comment
        self.results, self.guards, self.inputs, self.sizes = results, guards, inputs, sizes
        self.ends = [*inside_of(results), *(g.asked for g in guards)]
        self.order = reached(self.ends)
        self.uses = Counter(o.id for e in self.order for o in e.operands)
        self.uses.update(e.id for e in self.ends)
        self.bases = Counter(e.args[0].id for e in self.order if e.kind == "update")
        self.result_names = {
            e.id: name for name, e in reversed(results.items()) if isinstance(e, Expression)
        }
        self.keys = dict(keys_of(list(results.values())))
        self.lines = {e.id for e in self.order if self.needs_a_line(e)}
        self.constants: dict[int, Expression] = {
            e.id: e for e in self.order if e.kind == "constant" and pattern(e.value, sizes) is None
        }
        self.names: dict[int, str] = {e.id: e.name for e in self.order if e.kind == "input"}
        self.scopes = self.scopes_of([e for e in self.order if e.id in self.lines])
        self.estimated = Text(self.estimate, sizes)

    # ---- which expressions get a line

    def needs_a_line(self, e: Expression) -> bool:
        """Is it to be computed on a line of its own, whatever its length?"""
        if e.kind in ("input", "number"):
            return False
        if e.kind == "update":
            return True
        if e.id in self.result_names or e.id in self.keys and not isinstance(e.value, tuple):
            return e.kind != "constant"
        if e.kind == "constant":
            spelled = e.value.size > 1 and pattern(e.value, self.sizes) is not None
            return spelled and self.uses[e.id] - self.bases[e.id] > 1
        if isinstance(e.value, (tuple, list)):
            return self.uses[e.id] > 1
        cheap = e.name in ("T", "mT", "swapaxes") and e.kind in ("attribute", "method")
        if cheap and e.args[0].kind == "input":
            return False
        if cheap and not named(e) and self.needs_a_line(e.args[0]):
            return self.uses[e.id] > 2
        return named(e) or self.uses[e.id] > 1

    def estimate(self, e: Expression) -> str | None:
        """A name as long as the one that it will have, for what has a line."""
        if e.id in self.names:
            return self.names[e.id]
        if e.id in self.lines or e.id in self.constants:
            return f"{self.prefixed(self.wished(e, {}), e)}_"
        return None

    def cut(self, width: int) -> None:
        """Give lines of their own to parts of lines that would be wider than this."""
        ahead = [e for e in reversed(self.order) if e.id in self.lines]
        for guard in self.guards:
            if guard.asked.id not in self.lines and guard.asked.kind != "input":
                ahead.append(guard.asked)
        while ahead:
            e = ahead.pop()
            while len(self.longest(e)) + len(self.estimate(e) or "") + 4 > width:
                inner = [x for x in self.inlined(e) if x.kind != "number" and x.name != "T"]
                inner = [x for x in inner if x.kind != "constant" or x.ndim]
                if not inner:
                    break
                best = max(inner, key=self.worth)
                self.lines.add(best.id)
                ahead.append(best)

    def worth(self, x: Expression) -> int:
        """How much a line of its own would help: a long one, but no longer than a line."""
        width = len(self.estimated.spelled(x)[0])
        return (width if width < 72 else 36) + 16 * by_row(x)

    def longest(self, e: Expression) -> str:
        """The longest line of a statement."""
        return max(self.written(e, "", self.estimated), key=len)

    def inlined(self, e: Expression) -> list[Expression]:
        """What is written out inside the line of e."""
        found: dict[int, Expression] = {}
        waiting = [x for x in e.operands if not (e.kind == "update" and written_anew(e, x))]
        while waiting:
            x = waiting.pop()
            if x.id not in found and self.estimate(x) is None:
                found[x.id] = x
                waiting.extend(x.operands)
        return list(found.values())

    # ---- names

    def wished(self, e: Expression, names: dict[int, str]) -> str:
        """What e would be called if nothing else were."""
        if e.id in self.result_names:
            return self.result_names[e.id]
        by = differentiated(e)
        if e.id in self.keys and not (e.hint is not None and e.hint[0] > 1):
            return self.keys[e.id]
        if e.hint is not None and by is None:
            return str(e.hint[1])
        if by is not None and differentiated(by) is None:
            if by.id in names or by.hint is not None:
                return f"d_{names.get(by.id) or self.wished(by, names)}"
        if e.phase == BACKWARD and not by_row(e):
            return "g"
        if e.is_a("operator", "*") and number_in(e.args[0]) is not None:
            return "scaled"
        return CALLED.get(e.name, "h") if isinstance(e.name, str) else "h"

    def statements(self, width: int) -> list[Statement]:
        """The lines in order, each guard behind what it asks."""
        self.cut(width)
        made: list[tuple[int, int, Statement]] = [
            (e.id, 0, Statement(e)) for e in self.order if e.id in self.lines
        ]
        for guard in self.guards:
            made.append((guard.asked.id, 1, Statement(guard.asked, guard)))
        return [s for _, _, s in sorted(made, key=lambda one: one[:2])]

    def give_names(self, statements: list[Statement]) -> None:
        """A name to each line, taken again from values that are not needed any more."""
        last: dict[int, int] = {e.id: len(statements) for e in inside_of(self.results)}
        for i, s in enumerate(statements):
            for x in self.named_in(s):
                last[x.id] = max(last.get(x.id, 0), i)
        taken: dict[str, int] = dict.fromkeys(self.inputs, len(statements) + 1)
        taken.update(dict.fromkeys(["np", "erf", *self.sizes.letters], len(statements) + 1))
        for e in self.constants.values():
            self.names[e.id] = self.free(self.constant_name(e), taken, 0, True)
            taken[self.names[e.id]] = len(statements) + 1
        reserved = set(self.result_names.values())
        for i, s in enumerate(statements):
            e = s.expression
            if s.guard is not None:
                continue
            wish = self.wished(e, self.names)
            if e.id in self.result_names:
                name = wish
            else:
                wish = self.prefixed(wish, e)
                if wish in reserved:
                    wish = f"{wish}_part"
                name = self.free(wish, taken, i - (e.kind == "update"), wish not in ("g", "h"))
                if e.kind == "update" and self.goes_on(e):
                    name = self.names[e.args[0].id]
            self.names[e.id] = name
            taken[name] = last.get(e.id, i)

    def prefixed(self, wish: str, e: Expression) -> str:
        """The wished name, after the module's where other modules wish for it too."""
        scopes = self.scopes.get(wish, set())
        if len(scopes) < 2 or not e.scope:
            return wish
        parts = e.scope.split(".")
        bare = wish.removeprefix("d_")
        for n in range(1, len(parts) + 1):
            tail = ".".join(parts[-n:])
            alone = sum(f".{scope}".endswith(f".{tail}") for scope in scopes) == 1
            if alone and not tail.split(".")[0].isdigit():
                break
        where = identifier(tail)
        last = identifier(parts[-1])
        if where.endswith(bare):
            bare = ""
        elif bare.startswith(f"{last}_"):  # norm1_input is named after the module already
            bare = bare.removeprefix(f"{last}_")
        return "d_" * (wish[:2] == "d_") + "_".join(filter(None, [where, bare]))

    def scopes_of(self, lines: list[Expression]) -> dict[str, set[str]]:
        """By a wished name, the module calls in which it is wished for."""
        found: dict[str, set[str]] = {}
        for e in lines:
            if e.id not in self.result_names and e.hint is not None:
                wish = self.wished(e, {})
                if wish not in ("g", "h") and not is_of_input(e):
                    found.setdefault(wish, set()).add(e.scope)
        return found

    def free(self, wish: str, taken: dict[str, int], now: int, bare: bool) -> str:
        """The wished name, or with a number the first that nobody needs by now."""
        n = 2 if bare else 1
        name = wish if bare else f"{wish}1"
        while name in taken and taken[name] > now:
            n += 1 if name != wish else 0
            name = f"{wish}_{n}" if wish[-1].isdigit() else f"{wish}{n}"
        return name

    def constant_name(self, e: Expression) -> str:
        """What an array is called that comes with the program."""
        return e.hint[1] if e.hint is not None and isinstance(e.hint[1], str) else "constant"

    def named_in(self, s: Statement) -> list[Expression]:
        """The named values that a line uses."""
        e = s.expression
        if s.guard is not None and e.id in self.lines:
            return [e]
        found, waiting = [], list(e.operands)
        while waiting:
            x = waiting.pop()
            if x.id in self.lines or x.id in self.names or x.id in self.constants:
                found.append(x)
            else:
                waiting.extend(x.operands)
        return found

    # ---- text

    def name_of(self, e: Expression) -> str | None:
        """The name of what has one."""
        return self.names.get(e.id)

    def written(self, e: Expression, name: str, text: Text) -> list[str]:
        """The statement that computes e."""
        if e.kind != "update":
            return [f"{name} = {text.spelled(e)[0]}"]
        base, index, *values = e.args
        if base.kind == "constant" and base.id not in self.constants:
            start = str(pattern(base.value, self.sizes, changes=True))  # made anew each time
        elif self.goes_on(e):
            start = text.of(base)
        else:
            start = f"{text.array(base)}.copy()"
        at = text.index(index)
        values = [self.as_number(v) for v in values]
        if e.name == "setitem":
            change = f"{name}[{at}] = {text.of(values[0])}"
        elif e.name == "add.at" and (basic(index) or picks_once(index, base.shape)):
            change = f"{name}[{at}] = {text.of(values[0])}"
            if not (base.kind == "constant" and not base.value.any()):
                change = f"{name}[{at}] += {text.of(values[0])}"
        else:
            parts = [name, text.of(index), *(text.of(v) for v in values)]
            change = f"np.{e.name}({', '.join(parts)})"
        return [change] if start == name else [f"{name} = {start}", change]

    def goes_on(self, e: Expression) -> bool:
        """A write into what another write has made, for this one alone?"""
        return bool(e.args[0].kind == "update" and self.uses[e.args[0].id] == 1)

    def as_number(self, v: Any) -> Any:
        """The number that a constant array repeats, for a write, which repeats it by itself."""
        if isinstance(v, Expression) and v.kind == "constant" and v.value.size:
            if (v.value == v.value.flat[0]).all():
                return v.value.flat[0].item()
        return v

    def body(self) -> list[str]:
        """All lines of the function but the first and the last.

        How long names are is known at the end; where a line is too long then, lines are cut anew.
        """
        inputs, first = dict(self.names), None
        for width in range(WIDTH, WIDTH // 2, -4):
            self.names = dict(inputs)
            statements = self.statements(width)
            self.give_names(statements)
            found = self.lines_of(statements)
            if max(map(len, found), default=0) <= WIDTH:
                return found
            first = first or (dict(self.names), found)
        self.names, found = first  # type: ignore[misc]
        return [part for line in found for part in broken(line)]

    def lines_of(self, statements: list[Statement]) -> list[str]:
        """The text of the statements."""
        text = Text(self.name_of, self.sizes)
        self.sizes.forget()
        found: list[str] = []
        phase, part = "forward", ""
        for s, parts in unpacked(statements):
            e = s.expression
            if e.phase != phase:
                found.append("    # ---- backward")
                phase, part = e.phase, ""
            here = e.scope
            if here != part and here and s.guard is None:
                found.append(f"    # {here}{self.kinds.get(here, '')}")
            part = here if s.guard is None else part
            if s.guard is not None:
                found += self.asked(s, text)
                continue
            lines = [f"    {line}" for line in self.written(e, self.names[e.id], text)]
            if len(parts) > 1:
                names = ", ".join(self.names[part.id] for part in parts)
                lines = [f"    {names} = {text.of(e.args[0])}"]
            if e.ndim:
                lines[0] = self.commented(lines[0], e, " each" if len(parts) > 1 else "")
            found += lines
        return found

    def commented(self, line: str, e: Expression, each: str) -> str:
        """The line with the shape of its result, where there is room."""
        whole = f"{line:<{COMMENT_AT}}  # {self.sizes.comment(e.value.shape)}{each}"
        return whole if len(whole) <= WIDTH else line

    def asked(self, s: Statement, text: Text) -> list[str]:
        """The lines that check that a question is answered as it was."""
        e, answer = s.expression, s.guard.answer
        condition = text.of(e, ATOM_OR_CALL)
        if isinstance(answer, bool):
            condition = text.of(e) if not answer else unlike(e, text)
        else:
            condition = f"{condition} != {answer!r}"
        return [
            f"    if {condition}:",
            f'        raise ValueError("{s.guard.function}: these numbers need another program")',
        ]


def keys_of(results: Any, key: str = "output") -> Iterator[tuple[int, str]]:
    """The results that lie in dicts, tuples and lists, and the key of the dict."""
    if isinstance(results, Expression):
        yield results.id, key
    elif isinstance(results, dict):
        for k, v in results.items():
            plain = isinstance(k, str) and k.isidentifier() and k not in BUILTINS
            yield from keys_of(v, identifier(k) if plain else key)
    elif isinstance(results, (tuple, list)):
        for v in results:
            yield from keys_of(v, key)


def by_row(e: Expression) -> bool:
    """A mean, a sum or the like for each row, which a reader takes as one number?"""
    return e.kind == "method" and bool(e.settings.get("keepdims"))


def broken(line: str) -> list[str]:
    """A line that long names alone have made too long, in brackets."""
    name, equals, rest = line.partition(" = ")
    return [line] if len(line) <= WIDTH else [f"{name}{equals}(", f"        {rest}", "    )"]


def unpacked(statements: list[Statement]) -> Iterator[tuple[Statement, list[Expression]]]:
    """The statements, those that take x[0], x[1], ... one after the other as one: `q, k, v = x`."""
    i = 0
    while i < len(statements):
        e = statements[i].expression
        parts = [e]
        if e.kind == "item" and e.args[1] == 0 and e.ndim:
            of = [s.expression for s in statements[i : i + len(e.args[0].value)] if s.guard is None]
            if all(is_part(x, e.args[0], n) for n, x in enumerate(of)):
                parts = of if len(of) == len(e.args[0].value) <= 4 else parts
        yield statements[i], parts
        i += len(parts)


def is_part(x: Expression, whole: Expression, n: int) -> bool:
    """Is this whole[n]?"""
    return x.kind == "item" and x.args[0] is whole and type(x.args[1]) is int and x.args[1] == n


def differentiated(e: Expression) -> Expression | None:
    """What e is the gradient by, where it is called after that."""
    return e.hint[1] if e.hint is not None and isinstance(e.hint[1], Expression) else None


def picks_once(index: Any, shape: tuple[int, ...]) -> bool:
    """An index as of np.take_along_axis, with one place in each row: no two places are the same."""
    if not isinstance(index, tuple) or len(index) != len(shape):
        return False
    free = 0
    for axis, part in enumerate(index):
        rows = (1,) * axis + (shape[axis],) + (1,) * (len(shape) - axis - 1)
        rows = rows[axis:] if isinstance(part, Expression) and part.kind == "constant" else rows
        if not isinstance(part, Expression):
            return False
        if part.kind == "constant" and part.shape == rows:
            if (part.value.reshape(-1) == np.arange(shape[axis])).all():
                continue
        free += 1
        if part.ndim != len(shape) or part.shape[axis] != 1:
            return False
    return free <= 1


def named(e: Expression) -> bool:
    """Has somebody called it something, or is it the gradient by what has a name?"""
    by = differentiated(e)
    if by is not None:
        return by.kind != "input" and differentiated(by) is None and named(by)
    return e.hint is not None and e.hint[0] > 1


ATOM_OR_CALL = 4
OPPOSITE = {"==": "!=", "!=": "=="}


def unlike(e: Expression, text: Text) -> str:
    """not e"""
    if e.is_a("operator", "==") and e.args[0].is_a("call", "count_nonzero"):
        true, count = e.args[0].args[0], getattr(e.args[1], "value", e.args[1])
        if true.dtype == bool and count == true.value.size:
            return f"not {text.of(true, ATOM_OR_CALL)}.all()"
    if e.kind == "operator" and e.name in OPPOSITE and text.name_of(e) is None:
        return text.spelled(e)[0].replace(f" {e.name} ", f" {OPPOSITE[e.name]} ", 1)
    return f"not {text.of(e, 1)}"


def written_anew(e: Expression, x: Expression) -> bool:
    """Is x the constant that a write changes, or one that it writes as a number?"""
    if x.kind != "constant":
        return False
    return x is e.args[0] or uniform(x) and any(x is value for value in e.args[2:])


def basic(index: Any) -> bool:
    """An index that picks no place twice, as far as its form shows."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(isinstance(p, (int, np.integer, slice)) or p is None or p is Ellipsis for p in parts)


def is_of_input(e: Expression) -> bool:
    """The gradient by an argument or a parameter?"""
    by = differentiated(e)
    return by is not None and by.kind == "input"
