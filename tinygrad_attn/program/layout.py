"""Expressions as the lines of a function: which get a line and a name, and in which order.

What has a name of its own, or is used more than once, gets a line. What is used once is written
where it is used, as long as the line stays within a hundred columns. A name is given again when
the value that had it is not needed any more.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from .ir import BACKWARD, Expression, inside, number_in, reached
from .simplify import uniform
from .text import Sizes, Text, pattern
from .trace import identifier

BUILTINS = set(dir(builtins))
WIDTH = 100
COMMENT_AT = 72
CALLED = {
    **{"sqrt": "root", "sum": "total", "mean": "mean", "max": "largest", "min": "smallest"},
    **{"exp": "exponentials", "log": "logarithm", "stack": "stacked", "concatenate": "joined"},
    **{"where": "chosen", "maximum": "larger", "minimum": "smaller", "tanh": "tanh"},
    **{"erf": "erf_", "take_along_axis": "picked", ">": "above", "<": "below", "==": "equal"},
    **{"!=": "unequal", "@": "product", "-": "difference"},
}
"""Names for values of which nothing is known but how they were made."""


class Layout:
    """The body of the program."""

    def __init__(
        self,
        results: dict[str, Any],
        checks: list[Expression],
        inputs: dict[str, Expression],
        sizes: Sizes,
        kinds: dict[str, str],
    ) -> None:
        self.results, self.inputs, self.sizes = results, inputs, sizes
        self.kinds = kinds  # by a module call: what is added to its name in a comment
        self.order = reached([results, checks])
        self.uses = Counter(o.id for e in self.order for o in e.operands)
        self.uses.update(e.id for e in inside(results))
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
        """Whether it is computed on a line of its own, whatever its length."""
        if e.kind in ("input", "number", "update", "check"):
            return e.kind in ("update", "check")
        if e.id in self.result_names or e.id in self.keys and not isinstance(e.value, tuple):
            return e.kind != "constant"
        if e.kind == "constant":
            spelled = e.value.size > 1 and pattern(e.value, self.sizes) is not None
            return spelled and self.uses[e.id] - self.bases[e.id] > 1
        if isinstance(e.value, (tuple, list)):
            return self.uses[e.id] > 1
        if e.name in ("T", "swapaxes") and e.kind in ("attribute", "method"):  # costs nothing
            if e.args[0].kind == "input":
                return False
            if not named(e) and self.needs_a_line(e.args[0]):
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
        while ahead:
            e = ahead.pop()
            while len(self.longest(e)) + len(self.estimate(e) or "") + 4 > width:
                inner = [x for x in self.inlined(e) if not short(x)]
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
        """The name of e if nothing else had it."""
        if e.id in self.result_names:
            return self.result_names[e.id]
        by = differentiated(e)
        if e.id in self.keys and not e.hint[0] > 1:
            return self.keys[e.id]
        if e.hint[0]:
            return e.hint[1]
        if by is not None and differentiated(by) is None:
            if by.id in names or not by.nameless:
                return f"d_{names.get(by.id) or self.wished(by, names)}"
        if e.phase == BACKWARD and not by_row(e):
            return "g"
        if e.is_a("operator", "*") and number_in(e.args[0]) is not None:
            return "scaled"
        return CALLED.get(e.name, "h") if isinstance(e.name, str) else "h"

    def give_names(self, statements: list[Expression]) -> None:
        """Name each line, with names again whose values are not needed any more."""
        end = len(statements)
        last: dict[int, int] = {e.id: end for e in inside(self.results)}
        for i, e in enumerate(statements):
            for x in self.named_in(e):
                last[x.id] = max(last.get(x.id, 0), i)
        taken = dict.fromkeys([*self.inputs, "np", "erf", *self.sizes.letters], end + 1)
        for e in self.constants.values():
            wish = e.hint[1] or "constant"
            self.names[e.id] = free(wish, taken, 0)
            taken[self.names[e.id]] = end + 1
        reserved = set(self.result_names.values())
        for i, e in enumerate(statements):
            if e.kind == "check":
                continue
            name = self.wished(e, self.names)
            if e.kind == "update" and self.goes_on(e) and e.id not in self.result_names:
                name = self.names[e.args[0].id]
            elif e.id not in self.result_names:
                wish = self.prefixed(name, e)
                wish = f"{wish}_part" if wish in reserved else wish
                name = free(wish, taken, i - (e.kind == "update"))
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
        where, last = identifier(tail), identifier(parts[-1])
        if where.endswith(bare):
            bare = ""
        elif bare.startswith(f"{last}_"):  # norm1_input is named after the module already
            bare = bare.removeprefix(f"{last}_")
        return "d_" * (wish[:2] == "d_") + "_".join(filter(None, [where, bare]))

    def scopes_of(self, lines: list[Expression]) -> dict[str, set[str]]:
        """By a wished name, the module calls in which it is wished for."""
        found: dict[str, set[str]] = {}
        for e in lines:
            by = differentiated(e)
            if e.id not in self.result_names and not e.nameless:
                wish = self.wished(e, {})
                if wish not in ("g", "h") and not (by is not None and by.kind == "input"):
                    found.setdefault(wish, set()).add(e.scope)
        return found

    def named_in(self, e: Expression) -> list[Expression]:
        """The named values that a line uses."""
        found, waiting = [], list(e.operands)
        while waiting:
            x = waiting.pop()
            if x.id in self.lines or x.id in self.names or x.id in self.constants:
                found.append(x)
            else:
                waiting.extend(x.operands)
        return found

    # ---- text

    def written(self, e: Expression, name: str, text: Text) -> list[str]:
        """The statement that computes e."""
        if e.kind == "check":
            return self.checked(e, text)
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
        numbers = [v.value.flat[0].item() if uniform(v) else v for v in values]
        sign = "=" if base.kind == "constant" and not base.value.any() else "+="
        if e.name == "setitem":
            change = f"{name}[{at}] = {text.of(numbers[0])}"
        elif e.name == "add.at" and (basic(index) or picks_once(index, base.shape)):
            change = f"{name}[{at}] {sign} {text.of(numbers[0])}"
        else:
            parts = [name, text.of(index), *map(text.of, numbers)]
            change = f"np.{e.name}({', '.join(parts)})"
        return [change] if start == name else [f"{name} = {start}", change]

    def goes_on(self, e: Expression) -> bool:
        """Whether e writes into what another write has made, for e alone."""
        return bool(e.args[0].kind == "update" and self.uses[e.args[0].id] == 1)

    def checked(self, e: Expression, text: Text) -> list[str]:
        """The lines that check that the package would read the same number again."""
        asked, answer = e.args
        if not isinstance(answer, bool):
            condition = f"{text.of(asked, 1)} != {answer!r}"
        elif answer and asked.is_a("operator", "==") and self.name_of(asked) is None:
            condition = " != ".join(text.of(x, 1) for x in asked.args)
        else:
            condition = f"not {text.of(asked, 1)}" if answer else text.of(asked)
        message = f"{e.name}: these numbers need another program"
        return [f"if {condition}:", f'    raise ValueError("{message}")']

    def body(self) -> list[str]:
        """All lines of the function but the first and the last.

        How long names are is known at the end; where a line is too long then, lines are cut anew.
        """
        inputs, first = dict(self.names), None
        for width in range(WIDTH, WIDTH // 2, -4):
            self.names = dict(inputs)
            self.cut(width)
            statements = [e for e in self.order if e.id in self.lines]
            self.give_names(statements)
            found = self.lines_of(statements)
            if max(map(len, found), default=0) <= WIDTH:
                return found
            first = first or (dict(self.names), found)
        self.names, found = first  # type: ignore[misc]
        return [part for line in found for part in broken(line)]

    def lines_of(self, statements: list[Expression]) -> list[str]:
        """The text of the statements."""
        text = Text(self.name_of, self.sizes)
        found: list[str] = []
        phase, part = "forward", ""
        for e, parts in unpacked(statements):
            if e.phase != phase:
                found.append("    # ---- backward")
                phase, part = e.phase, ""
            if e.kind != "check":
                if e.scope not in (part, ""):
                    found.append(f"    # {e.scope}{self.kinds.get(e.scope, '')}")
                part = e.scope
            lines = [f"    {line}" for line in self.written(e, self.names.get(e.id, ""), text)]
            if len(parts) > 1:
                names = ", ".join(self.names[part.id] for part in parts)
                lines = [f"    {names} = {text.of(e.args[0])}"]
            if e.ndim:
                lines[0] = self.commented(lines[0], e, " each" if len(parts) > 1 else "")
            found += lines
        return found

    def name_of(self, e: Expression) -> str | None:
        """The name of what has one."""
        return self.names.get(e.id)

    def commented(self, line: str, e: Expression, each: str) -> str:
        """The line with the shape of its result, where there is room."""
        whole = f"{line:<{COMMENT_AT}}  # {self.sizes.shape(e.value.shape, times='')}{each}"
        return whole if len(whole) <= WIDTH else line


def free(wish: str, taken: dict[str, int], now: int) -> str:
    """The wished name, or with a number the first that is not needed any more; g and h always have
    a number.
    """
    numbered = wish in ("g", "h")
    n = 1 if numbered else 2
    name = f"{wish}1" if numbered else wish
    while name in taken and taken[name] > now:
        n += 1 if name != wish else 0
        name = f"{wish}_{n}" if wish[-1].isdigit() else f"{wish}{n}"
    return name


def keys_of(results: Any, key: str = "output") -> Iterator[tuple[int, str]]:
    """The results in dicts, tuples and lists, and the key of the dict."""
    if isinstance(results, Expression):
        yield results.id, key
    elif isinstance(results, dict):
        for k, v in results.items():
            plain = isinstance(k, str) and k.isidentifier() and k not in BUILTINS
            yield from keys_of(v, identifier(k) if plain else key)
    elif isinstance(results, (tuple, list)):
        for v in results:
            yield from keys_of(v, key)


def short(e: Expression) -> bool:
    """Whether it is hardly longer than a name would be."""
    single = e.kind in ("number", "constant") and e.ndim == 0
    return single or e.name == "T" and e.ndim == 2


def by_row(e: Expression) -> bool:
    """Whether it is a mean, a sum or the like for each row, which a reader takes as one number."""
    return e.kind == "method" and bool(e.settings.get("keepdims"))


def broken(line: str) -> list[str]:
    """A line that long names alone have made too long, in brackets."""
    name, equals, rest = line.partition(" = ")
    return [line] if len(line) <= WIDTH else [f"{name}{equals}(", f"        {rest}", "    )"]


def unpacked(statements: list[Expression]) -> Iterator[tuple[Expression, list[Expression]]]:
    """The statements, those that take x[0], x[1], ... one after the other as one: `q, k, v = x`."""
    i = 0
    while i < len(statements):
        e = statements[i]
        parts = [e]
        if e.kind == "item" and isinstance(e.args[1], int) and e.ndim:
            x, count = e.args[0], len(e.args[0].value)
            of = statements[i : i + count]
            indices = [s.args[1] for s in of if s.kind == "item" and s.args[0] is x]
            parts = of if indices == list(range(count)) and count <= 4 else parts
        yield e, parts
        i += len(parts)


def differentiated(e: Expression) -> Expression | None:
    """What e is the gradient by, where it is called after that."""
    return None if e.hint[0] else e.by


def named(e: Expression) -> bool:
    """Whether it has a name, or is the gradient by what has one."""
    by = differentiated(e)
    if by is not None:
        return by.kind != "input" and differentiated(by) is None and named(by)
    return e.hint[0] > 1


def written_anew(e: Expression, x: Expression) -> bool:
    """Whether x is the constant that a write changes, or one that it writes as a number."""
    if x.kind != "constant":
        return False
    return x is e.args[0] or uniform(x) and any(x is value for value in e.args[2:])


def basic(index: Any) -> bool:
    """Whether an index picks no place twice, as far as its form shows."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(isinstance(p, (int, np.integer, slice)) or p is None or p is Ellipsis for p in parts)


def picks_once(index: Any, shape: tuple[int, ...]) -> bool:
    """Whether an index has one place in each row, as np.take_along_axis's has: none comes twice."""
    if not isinstance(index, tuple) or len(index) != len(shape):
        return False
    free_axes = 0
    for axis, part in enumerate(index):
        if not isinstance(part, Expression):
            return False
        n = shape[axis]
        counts = part.kind == "constant" and part.value.size == n
        if counts and part.shape == (n,) + (1,) * (len(shape) - axis - 1):
            if (part.value.reshape(-1) == np.arange(n)).all():
                continue
        free_axes += 1
        if part.ndim != len(shape) or part.shape[axis] != 1:
            return False
    return free_axes <= 1
