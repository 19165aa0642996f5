"""Arrange expressions as the lines of a function, and name them.

An expression gets its own line if it has its own name, is used more than once, or would make
another line longer than 100 columns. A name is reused when its value is no longer needed.
"""

import re
from collections import Counter

from .ir import Expression, expressions_in, reached
from .names import deserves_a_line, identifier, name_giver, name_of, shortened
from .simplify import uniform
from .text import Text, pattern

WIDTH, COMMENT_AT, INDENT = 100, 72, " " * 4
MARGIN = 2 * len(INDENT)  # of the lines that continue a statement
DEEPEST = 20  # operations inside each other, on one line


class Layout:
    """The body of the function that a program contains."""

    def __init__(self, traced, results, checks, sizes):
        self.results, self.traced, self.sizes = results, traced, sizes
        self.order = reached([results, checks])
        self.ends = {*expressions_in(results)}
        self.uses = Counter(x for e in self.order for x in spelled_in(e))
        outputs = reversed(results.items())
        self.result_names = {e: name for name, e in outputs if isinstance(e, Expression)}
        anew = lambda e: pattern(e.value, sizes) is not None  # created where it is used
        self.constants = [e for e in self.order if e.kind == "constant" and not anew(e)]
        inputs = {e: e.name for e in self.order if e.kind == "input"}
        self.names = self.result_names | inputs
        self.named = {*inputs, *self.constants}  # values that have a name but need no line
        self.lines: set[Expression] = set()
        depths: dict[Expression, int] = {}
        for e in self.order:
            depths[e] = 1 + max((depths[x] for x in e.operands), default=0)
            if self.needs_a_line(e) or depths[e] > DEEPEST:
                self.lines.add(e)
                depths[e] = 0
        self.scopes: dict[str, set[str]] = {}  # by name: the scopes that want it
        for e in map(name_giver, self.statements()):
            self.scopes.setdefault(name_of(e), set()).add(e.scope)
        self.text = Text(self.name, sizes)

    def has_name(self, e):
        """Return whether other lines refer to e by name."""
        return e in self.lines or e in self.named

    def name(self, e):
        """Return e's name, if any. Before `give_names`, return a placeholder of similar length."""
        return self.names.get(e) or f"{self.wished(e)}_" if self.has_name(e) else None

    # ---- which expressions get a line

    def needs_a_line(self, e):
        """Return whether e gets its own line regardless of its length."""
        if e in self.named or e.kind == "constant" and self.uses[e] < 2:
            return False
        statement = e.kind in ("update", "check") or e in self.ends
        return statement or deserves_a_line(e) or self.uses[e] > 1

    def statements(self):
        """Return the expressions that have a line, in order."""
        return [e for e in self.order if e in self.lines]

    def cut(self):
        """Split lines that are too long, and return whether there are new lines."""
        before = len(self.lines)
        ahead = self.statements()[::-1]
        while ahead:
            e = ahead.pop()
            while max(map(len, self.written(e))) > WIDTH:
                inner = [x for x in self.within(e) if not self.has_name(x) and x.name != "T"]
                if not inner:
                    break
                # Statistics of rows are good lines; otherwise, the longer the better.
                worth = lambda x: ("keepdims" in x.settings, len(self.text.spelled(x)[0]))
                best = max(inner, key=worth)
                self.lines.add(best)
                ahead.append(best)
        return len(self.lines) > before

    def within(self, e):
        """Return the expressions that appear in e's line, written out or by name."""
        found: dict[Expression, None] = {}
        waiting = spelled_in(e)
        while waiting:
            x = waiting.pop()
            if x not in found and not self.has_name(x):
                waiting.extend(x.operands)
            found[x] = None
        return list(found)

    # ---- names

    def wished(self, e):
        """Return the name that e should have, with the module's name if several modules use it.

        A gradient is named after its value.
        """
        giver = name_giver(e)
        if giver is not e and (giver.names or giver.by is None and giver in self.names):
            return f"d_{self.names.get(giver) or self.wished(giver)}"
        name, where, tail = name_of(e), "", e.scope
        scopes = self.scopes.get(name, ())
        if not (e.names and e.scope) or len(scopes) < 2:
            return name
        alone = lambda tail: sum(scope.endswith(tail) for scope in scopes) == 1
        while not where or alone(tail) and not tail[0].isdigit():
            where, tail = tail, tail.partition(".")[2]
        where = identifier(where)
        return where if where.endswith(name) else f"{where}_{name}"

    def give_names(self):
        statements = self.statements()
        end = len(statements)
        last = {x: i for i, e in enumerate(statements) for x in self.within(e)}
        last |= dict.fromkeys(self.ends, end)
        reserved = *self.traced.inputs, *self.results, *self.sizes.letters, "np", "erf"
        taken = dict.fromkeys(reserved, end)
        for e in self.constants:
            self.names[e] = name = free(name_of(e) if e.names else "constant", taken, -1)
            taken[name] = end
        for i, e in enumerate(statements):
            if e not in self.result_names:
                name = free(self.wished(e), taken, i - (e.kind == "update"))
                self.names[e], taken[name] = name, last.get(e, i)

    # ---- text

    def written(self, e):
        """Return the lines that compute e."""
        name, of = str(self.name(e)), self.text.of
        if e.kind == "update":
            lines = self.text.update(e, name)
        elif e.kind != "check":
            lines = [f"{name} = {self.text.spelled(e)[0]}"]
        else:
            asked, answer = e.args
            condition = f"not {of(asked, 1)}" if answer is True else of(asked)
            if not isinstance(answer, bool):
                condition = f"{of(asked, 1)} != {answer!r}"
            error = f'    raise ValueError("{e.name}: these numbers need another program")'
            lines = [f"if {condition}:", error]
        return [INDENT + line for line in lines]

    def body(self):
        """Return the lines of the function between its header and its return statement."""
        self.cut()
        self.give_names()
        while self.cut():  # a name turned out longer than expected
            self.give_names()
        found: list[str] = []
        backward, part = False, ""
        for e in self.statements():
            if e.backward != backward:
                found.append(f"{INDENT}# ---- backward")
                backward, part = e.backward, ""
            if e.scope not in (part, ""):
                kind = self.traced.names.kinds.get(e.scope, "")
                found.append(f"{INDENT}# {shortened(e.scope)}{kind}")
            part = e.scope
            first, *rest = self.written(e)
            if e.ndim:  # the shape of the result, if there is room
                shape = self.sizes.shape(e.shape).replace("3*E", "3E")
                whole = f"{first:<{COMMENT_AT}}  # {shape}"
                first = whole if len(whole) <= WIDTH else first
            for line in (first, *rest):
                name, equals, value = line.partition(" = ")
                if equals and len(line) > WIDTH:  # its names alone are too long
                    inside = fitted(2 * INDENT + value, depth=1)
                    found += [*fitted(f"{name} = ("), *inside, f"{INDENT})"]
                else:
                    found += fitted(line)
        return found


def spelled_in(e):
    """Return the operands in e's line, without constants that an update creates or writes out."""
    if e.kind != "update":
        return [*e.operands]
    base, index, *values = e.args
    copied = [base] if base.kind != "constant" else []
    return expressions_in((copied, index, [x for x in values if not uniform(x)]))


def fitted(line, margin=MARGIN, depth=0):
    """Break a statement that is too long after commas in its outer brackets.

    Where this is not enough, break it after any space or opening bracket inside brackets, with the
    usual margin. `depth` is the number of brackets around the line.
    """
    lines = [line]
    for everywhere in (False, True):
        if max(map(len, lines)) > WIDTH:
            first, *others = parts(line, depth, everywhere)
            lines = [first]
            for part in others:
                if len(lines[-1] + part.rstrip()) > WIDTH:
                    lines.append(" " * (MARGIN if everywhere else margin))
                lines[-1] += part
            lines = [line.rstrip() for line in lines]
    return lines


def parts(line, depth, everywhere):
    """Split a statement at the places where a line may end."""
    found = [""]
    for token in re.findall(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|. ?""", line):
        found[-1] += token
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth and (everywhere and token[-1] in " ([{" or depth == 1 and token == ", "):
            found.append("")
    return found


def free(wish, taken, now):
    """Return the preferred name, numbered if it is taken; g and h always get a number."""
    n, name = 1, wish
    while name in ("g", "h") or taken.get(name, -1) > now:
        n += name not in ("g", "h")
        name = f"{wish}_{n}" if wish[-1].isdigit() else f"{wish}{n}"
    return name
