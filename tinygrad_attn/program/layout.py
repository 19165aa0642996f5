"""Expressions as the lines of a function: which get a line and a name, and in which order.

What has a name of its own, or is used more than once, gets a line. What is used once is written
where it is used, as long as the line stays within a hundred columns. A name is given again when
the value that had it is not needed any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .ir import BACKWARD, Expression, inside, is_, number_in, reached
from .text import Sizes, Text, pattern
from .trace import NAMED_BY_OP, Trace, identifier

WIDTH, COMMENT_AT, INDENT = 100, 72, " " * 4
CALLED = {
    **{"sqrt": "root", "sum": "total", "mean": "mean", "max": "largest", "exp": "exponentials"},
    **{"log": "logarithm", "stack": "stacked", "concatenate": "joined", "where": "chosen"},
    **{">": "above", "@": "product", "-": "difference"},
}
"""Names for values of which nothing is known but how they were made."""


class Layout:
    """The body of the program."""

    def __init__(self, found: Trace, results: dict[str, Any], checks: Any, sizes: Sizes) -> None:
        self.results, self.inputs, self.sizes = results, found.inputs, sizes
        self.kinds = found.kinds
        self.order = reached([results, checks])
        self.uses = Counter(x.id for e in self.order for x in e.operands)
        self.uses.update(e.id for e in inside(results))
        self.bases = Counter(e.args[0].id for e in self.order if e.kind == "update")
        self.result_names = {getattr(e, "id", -1): n for n, e in reversed(results.items())}
        self.ends = {e.id for e in inside(results)}
        self.lines = {e.id for e in self.order if self.needs_a_line(e)}
        constants = [e for e in self.order if e.kind == "constant"]
        self.constants = {e.id: e for e in constants if pattern(e.value, sizes) is None}
        self.names = {e.id: e.name for e in self.order if e.kind == "input"}
        self.scopes: dict[str, set[str]] = {}  # by a wished name: the module calls that wish for it
        for e in self.order:
            if e.id in self.lines and e.id not in self.result_names and not e.nameless:
                if not (e.gradient_by and e.gradient_by.kind == "input"):
                    self.scopes.setdefault(self.wished(e), set()).add(e.scope)
        self.estimated = Text(self.estimate, sizes)

    # ---- which expressions get a line

    def needs_a_line(self, e: Expression) -> bool:
        """Whether it is computed on a line of its own, whatever its length."""
        uses = self.uses[e.id]
        if e.kind in ("update", "check"):
            return True
        if e.kind == "constant":
            spelled = e.value.size > 1 and pattern(e.value, self.sizes) is not None
            return e.id not in self.ends and spelled and uses - self.bases[e.id] > 1
        if e.kind in ("input", "number"):
            return False
        turned = e.name in ("T", "swapaxes")  # which costs nothing
        if turned and e.args[0].kind == "input" and e.id not in self.ends:
            return False
        cheap = turned and self.needs_a_line(e.args[0])
        return e.id in self.ends or named(e) or uses > 1 + cheap

    def estimate(self, e: Expression) -> str | None:
        """A name as long as the one that it will have, for what has a line."""
        if e.id in self.lines or e.id in self.constants:
            return f"{self.prefixed(self.wished(e), e)}_"
        return self.names.get(e.id)

    def cut(self, width: int) -> None:
        """Give lines of their own to parts of lines that would be wider than this."""
        ahead = [e for e in reversed(self.order) if e.id in self.lines]
        while ahead:
            e = ahead.pop()
            while len(self.longest(e)) + len(self.estimate(e) or "") + len(INDENT) > width:
                inner = [x for x in self.within(e) if self.estimate(x) is None and not short(x)]
                if not inner:
                    break
                best = max(inner, key=self.worth)
                self.lines.add(best.id)
                ahead.append(best)

    def worth(self, x: Expression) -> int:
        """How much a line of its own would help: a long one, but no longer than a line."""
        width = len(self.estimated.spelled(x)[0])
        return (width if width < COMMENT_AT else COMMENT_AT // 2) + 16 * by_row(x)

    def longest(self, e: Expression) -> str:
        """The longest line of a statement."""
        return max(self.written(e, "", self.estimated), key=len)

    def within(self, e: Expression) -> list[Expression]:
        """What the line of e spells out, and what it names."""
        found: dict[int, Expression] = {}
        anew: Any = e.args[0] if e.kind == "update" else None
        waiting = [x for x in e.operands if not (x is anew and x.kind == "constant")]
        while waiting:
            x = waiting.pop()
            if x.id not in found:
                found[x.id] = x
                if self.estimate(x) is None:
                    waiting.extend(x.operands)
        return list(found.values())

    # ---- names

    def wished(self, e: Expression) -> str:
        """The name of e if nothing else had it."""
        if e.id in self.result_names:
            return self.result_names[e.id]
        by = e.gradient_by
        if e.hint[0]:
            return e.hint[1]
        if by and not by.gradient_by and (by.id in self.names or not by.nameless):
            return f"d_{self.names.get(by.id) or self.wished(by)}"
        if e.phase == BACKWARD and not by_row(e):
            return "g"
        if is_(e, "operator", "*") and number_in(e.args[0]) is not None:
            return "scaled"
        return CALLED.get(e.name, "h")

    def give_names(self, statements: list[Expression]) -> None:
        """Name each line, with names again whose values are not needed any more."""
        end = len(statements)
        last = {x.id: i for i, e in enumerate(statements) for x in self.within(e)}
        last.update((e.id, end) for e in inside(self.results))
        taken = dict.fromkeys([*self.inputs, "np", "erf", *self.sizes.letters], end + 1)
        for e in self.constants.values():
            self.names[e.id] = name = free(e.hint[1] or "constant", taken, 0)
            taken[name] = end + 1
        for i, e in enumerate(statements):
            name = self.wished(e)
            if e.id not in self.result_names:
                name = self.prefixed(name, e)
                name = f"{name}_part" if name in self.results else name
                name = free(name, taken, i - (e.kind == "update"))
            if e.kind != "check":
                self.names[e.id] = name
                taken[name] = last.get(e.id, i)

    def prefixed(self, wish: str, e: Expression) -> str:
        """The wished name, after the module's where other modules wish for it too."""
        scopes = self.scopes.get(wish, ())
        if len(scopes) < 2 or not e.scope or wish in ("g", "h"):
            return wish
        parts = e.scope.split(".")
        bare = wish.removeprefix("d_")
        tails = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        alone = lambda tail: sum(f".{scope}".endswith(f".{tail}") for scope in scopes) == 1
        where = identifier(next((t for t in tails if alone(t) and not t[0].isdigit()), e.scope))
        if where.endswith(bare):
            bare = ""
        bare = bare.removeprefix(f"{parts[-1]}_")  # norm1_input is named after the module already
        return "d_" * (wish[:2] == "d_") + "_".join(filter(None, [where, bare]))

    # ---- text

    def written(self, e: Expression, name: str, text: Text) -> list[str]:
        """The statement that computes e."""
        if e.kind == "check":
            return self.checked(e, text)
        if e.kind != "update":
            return [f"{name} = {text.spelled(e)[0]}"]
        return text.update(e, name)

    def checked(self, e: Expression, text: Text) -> list[str]:
        """The lines that check that the package would read the same number again."""
        asked, answer = e.args
        condition = f"not {text.of(asked, 1)}" if answer is True else text.of(asked)
        if not isinstance(answer, bool):
            condition = f"{text.of(asked, 1)} != {answer!r}"
        elif answer and is_(asked, "operator", "==") and asked.id not in self.names:
            condition = " != ".join(text.of(x, 1) for x in asked.args)
        message = f"{e.name}: these numbers need another program"
        return [f"if {condition}:", f'    raise ValueError("{message}")']

    def body(self) -> list[str]:
        """All lines of the function but the first and the last.

        How long names are is known at the end; where a line is too long then, lines are cut anew.
        """
        for width in range(WIDTH, WIDTH // 2, -4):
            self.cut(width)
            statements = [e for e in self.order if e.id in self.lines]
            self.give_names(statements)
            found = self.lines_of(statements)
            if max(map(len, found), default=0) <= WIDTH:
                break
        return [part for line in found for part in broken(line)]

    def lines_of(self, statements: list[Expression]) -> list[str]:
        """The text of the statements."""
        text = self.text = Text(lambda e: self.names.get(e.id), self.sizes)
        found: list[str] = []
        phase, part = "forward", ""
        for e, parts in unpacked(statements):
            if e.phase != phase:
                found.append("# ---- backward")
                phase, part = e.phase, ""
            if e.kind != "check":
                if e.scope not in (part, ""):
                    found.append(f"# {e.scope}{self.kinds.get(e.scope, '')}")
                part = e.scope
            lines = self.written(e, self.names.get(e.id, ""), text)
            if len(parts) > 1:
                lines = [f"{', '.join(self.names[p.id] for p in parts)} = {text.of(e.args[0])}"]
            if e.ndim:  # the shape of the result, where there is room
                shape = self.sizes.shape(e.shape, times="") + " each" * (len(parts) > 1)
                whole = f"{lines[0]:<{COMMENT_AT - len(INDENT)}}  # {shape}"
                lines[0] = whole if len(whole) + len(INDENT) <= WIDTH else lines[0]
            found += lines
        return [INDENT + line for line in found]


def free(wish: str, taken: dict[str, int], now: int) -> str:
    """The wished name, or with a number the first that is not needed any more; g and h always have
    a number.
    """
    n, name = 1, wish
    while name in ("g", "h") or taken.get(name, -1) > now:
        n += name not in ("g", "h")
        name = f"{wish}_{n}" if wish[-1].isdigit() else f"{wish}{n}"
    return name


def short(e: Expression) -> bool:
    """Whether it is hardly longer than a name would be."""
    return e.kind in ("number", "constant") and e.ndim == 0 or e.name == "T" and e.ndim == 2


def by_row(e: Expression) -> bool:
    """Whether it is a mean, a sum or the like for each row, which a reader takes as one number."""
    return e.kind == "method" and bool(e.settings.get("keepdims"))


def broken(line: str) -> list[str]:
    """A line that long names alone have made too long, in brackets."""
    name, equals, rest = line.partition(" = ")
    return [f"{name}{equals}(", 2 * INDENT + rest, f"{INDENT})"] if len(line) > WIDTH else [line]


def unpacked(statements: list[Expression]) -> Iterator[tuple[Expression, list[Expression]]]:
    """The statements, those that take x[0], x[1], ... one after the other as one: `q, k, v = x`."""
    while statements:
        e, parts = statements[0], statements[:1]
        if e.kind == "item" and isinstance(e.args[1], int) and e.ndim:
            count = len(e.args[0].value)
            of = statements[:count]
            taken = [s.args[1] for s in of if s.kind == "item" and s.args[0] is e.args[0]]
            parts = of if taken == [*range(count)] and count <= 4 else parts
        yield e, parts
        statements = statements[len(parts) :]


def named(e: Expression) -> bool:
    """Whether it has a name, or is the gradient by what has one."""
    by = e.gradient_by
    if by:
        return by.kind != "input" and not by.gradient_by and named(by)
    return e.hint[0] > NAMED_BY_OP
