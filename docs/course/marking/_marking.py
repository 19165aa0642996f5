"""The parts of a marker: checks that never raise. Each adds a line to the report, and a help text if
it fails.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import runpy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from _compare import Comparison, Line, compare

import tinygrad_attn as ta


class NotWritten(Exception):
    """The learner has not written this part yet."""


class Wrong(Exception):
    """A check's message about a wrong result from a function that did not raise."""


class Exercise(NamedTuple):
    """An exercise, with its chapter and the function that marks it. The `part` of a project after a
    chapter is a letter.
    """

    number: int
    part: str
    name: str
    task: str
    mark: Callable[[Marks], None]
    ready_made: tuple[str, ...] = ()  # functions of the package that do the same

    @property
    def chapter(self) -> str:
        return f"{self.number}{self.part}"


exercises: dict[str, Exercise] = {}

HIDDEN = "TINYGRAD_ATTN_HIDDEN"
"""The environment variable that names a teacher's file of further checks (`--hidden FILE`)."""


def exercise(
    number: int, name: str, task: str, part: str = "", ready_made: tuple[str, ...] = ()
) -> Callable[[Callable[[Marks], None]], None]:
    """Register a marker under its name. This is a decorator."""

    def enter(mark: Callable[[Marks], None]) -> None:
        def with_hidden(marks: Marks) -> None:
            mark(marks)
            if path := os.environ.get(HIDDEN):
                runpy.run_path(path).get(name, lambda marks: None)(marks)

        exercises[name] = Exercise(number, part, name, task, with_hidden, ready_made)

    return enter


class Marks:
    """The learner's file, and the results of its checks."""

    def __init__(
        self,
        file: Path,
        told: Callable[[Marks], None] = lambda marks: None,
        known: Mapping[str, tuple[Line, str]] | None = None,
    ):
        """`told` is called whenever a check begins. Checks that are `known` from an earlier,
        unfinished run are not run again.
        """
        self.file, self.told, self.running, self.known = file, told, "", known or {}
        self.lines: list[Line] = []
        self.helps: dict[str, str] = {}  # by name, for the checks that fail
        self.asked: list[str] = []  # the functions that the exercise requires
        self.references: dict[str, Callable] = {}
        self.changing: set[str] = set()  # the functions already reported for changing an argument
        self.module = ModuleType("answer")
        self.module.__file__ = str(file)

    def load(self) -> bool:
        """Run the file. A syntax error becomes a line of the report."""
        self.begin("the file runs")
        if "the file runs" in self.known:
            return False
        try:
            exec(
                compile(self.file.read_bytes(), str(self.file), "exec", dont_inherit=True),
                vars(self.module),
            )
        except (Exception, SystemExit) as error:
            self.failed("the file runs", *self.explain(error))
            return False
        return True

    @property
    def ok(self) -> bool:
        return bool(self.lines) and all(line.ok or not line.counts for line in self.lines)

    @property
    def help(self) -> str:
        """The help text for the first check that fails."""
        return next(iter(self.helps.values()), "")

    def report(self, everything: bool = False) -> str:
        """Return help with the first check that fails, or with all of them, and a line for each check."""
        passed, failing = sum(line.ok for line in self.lines), list(self.helps.values())
        table = f"{Comparison(self.lines)}\n\n{passed} of {len(self.lines)} checks pass."
        if len(failing) > 1 and not everything:
            table += f"\n\n{len(failing) - 1} more: --all explains each."
        return "\n\n".join([*(failing if everything else failing[:1]), table])

    def __str__(self) -> str:
        return self.report()

    # ---- the learner's functions

    def function(self, name: str, may_change: bool = False) -> Callable[..., Any]:
        """Return one of the learner's functions, which raises NotWritten if it is missing or returns
        None.

        It also raises Wrong the first time that it changes one of its arguments. The array is then
        restored, so that no other check fails because of it. Use `may_change` if a separate check
        tests for this. During a call, the marker's right functions replace the learner's other
        functions, so that each is judged by itself.
        """
        self.asked.append(name)
        own = getattr(self.module, name, None)
        if not callable(own):

            def missing(*_: Any, **__: Any) -> Any:
                raise NotWritten(
                    f"the file defines no function {name}; its name must be exactly that"
                )

            return missing

        @functools.wraps(own)
        def checked(*args: Any, **settings: Any) -> Any:
            arrays = [x for x in (*args, *settings.values()) if isinstance(x, np.ndarray)]
            kept = [] if may_change else [(array, array.copy()) for array in arrays]
            try:
                with self.others_right(name):
                    value = own(*args, **settings)
            finally:
                changed = [
                    (array, before) for array, before in kept if not np.array_equal(array, before)
                ]
                for array, before in changed:
                    array[...] = before
            if changed and name not in self.changing:
                self.changing.add(name)
                raise Wrong(
                    f"{name} changes an array that it is given, but other code may still use that "
                    "array. Make a new one: write x = x - 1, not x -= 1. (For the other checks, "
                    "the marker restores the array.)"
                )
            return written(value, name)

        return checked

    @contextmanager
    def others_right(self, name: str) -> Iterator[None]:
        """Replace all of the learner's functions except this one with the right ones."""
        own = vars(self.module)
        before = {other: own.get(other) for other in self.references if other != name}
        own.update({other: self.references[other] for other in before})
        try:
            yield
        finally:
            own.update({other: f for other, f in before.items() if f is not None})
            for other in (other for other, f in before.items() if f is None):
                own.pop(other, None)

    def reference(self, **functions: Callable) -> None:
        """Register the right functions by their names in the learner's file."""
        self.references.update(functions)

    def op(self, forward: str, *rules: str) -> Any:
        """Make an op from the learner's VJPs and the marker's forward function, or the learner's if
        the marker has none. The op broadcasts. The first check reports arguments that do not fit.
        """
        self.asked.append(forward)
        try:
            right = self.references.get(forward) or self.function(forward, may_change=True)
            return ta.op(_named(right, forward), broadcasts=True).vjp(
                *(self.function(rule, may_change=True) for rule in rules)
            )
        except (TypeError, ValueError) as error:
            refusal = error

        def refused(*_: Any, **__: Any) -> Any:
            raise refusal

        return refused

    # ---- checks

    def begin(self, name: str) -> bool:
        """Begin the check of this name, which may never end. Return whether its result is known."""
        self.running = name
        self.told(self)
        if name not in self.known:
            return False
        line, text = self.known[name]
        self.lines.append(line)
        if text:
            self.helps[name] = text
        return True

    def compare(
        self,
        name: str,
        mine: Callable[[], Any],
        expected: Any,
        *,
        mistakes: Mapping[str, Any] | None = None,
        hint: str = "",
        atol: float = 1e-6,
        rtol: float = 1e-5,
    ) -> None:
        """Check that |mine() - expected| is small. `mistakes` maps help texts to the values that
        common mistakes would give.
        """
        if self.begin(name):
            return None
        try:
            found = mine()
            line = compare({name: found}, {name: expected}, atol=atol, rtol=rtol).lines[0]
        except (Exception, SystemExit) as error:
            verdict, text = self.explain(error)
            return self.failed(
                name,
                verdict,
                text if isinstance(error, NotWritten) or not hint else f"{text}\n\n{hint}",
            )
        if line.ok:
            self.lines.append(line)
            return None
        with np.errstate(invalid="ignore"):  # a mistake may give infinities
            same = [
                text
                for text, wrong in (mistakes or {}).items()
                if compare(found, wrong, atol=atol, rtol=rtol)
            ]
        shown = f"expected\n{_short(expected)}\nfound\n{_short(found)}"
        return self.failed(name, line, "\n\n".join(filter(None, [*same[:1], hint, shown])))

    def gradient(
        self,
        name: str,
        f: Any,
        *inputs: np.ndarray,
        mistakes: Mapping[str, Callable] | None = None,
        **settings: Any,
    ) -> None:
        """Run gradcheck on a function, or on an op made from the learner's VJPs. `mistakes` maps help
        texts to wrong VJPs of the first input.
        """
        if self.begin(name):
            return None
        try:
            self._rules_return(f, inputs, settings)
            report = ta.gradcheck(lambda *xs: f(*xs, **settings), inputs, raise_exception=False)
        except (Exception, SystemExit) as error:
            return self.failed(name, *self.explain(error))
        worst = report.worst or max(
            report.entries, key=lambda e: float(np.max(e.error, initial=0)), default=None
        )
        line = Line(name, "ok" if report else report.diagnosis.kind or "gradient off")
        if not report.entries:  # nothing could be measured
            line.max_abs = line.max_rel = np.inf
        if worst is not None:
            with np.errstate(all="ignore"):
                relative = np.nan_to_num(worst.error / np.abs(worst.numeric), nan=0, posinf=np.inf)
            line.max_abs, line.max_rel, line.index = (
                float(np.max(worst.error)),
                float(np.max(relative)),
                worst.index,
            )
        if report:
            self.lines.append(line)
            return None
        report.place = None  # it would be a line of the marker
        return self.failed(
            name, line, f"{self._mistake(f, inputs, settings, mistakes)}\n\n{report}".lstrip()
        )

    def that(self, name: str, test: Callable[[], Any], hint: str) -> None:
        """Check that test() is true."""
        if self.begin(name):
            return None
        try:
            if test():
                self.lines.append(Line(name, "ok"))
                return None
        except (Exception, SystemExit) as error:
            return self.failed(name, *self.explain(error))
        return self.failed(name, "no", hint)

    # ---- texts

    def failed(self, name: str, verdict: str | Line, text: str) -> None:
        """Add a line and a help text for a check that did not pass."""
        line = verdict if isinstance(verdict, Line) else Line(name, verdict, np.inf, np.inf)
        self.lines.append(line)
        self.helps[name] = "\n".join(
            f"    {row}".rstrip() for row in [f"{name}: {line.verdict}", *text.splitlines()]
        )

    def own_work(self, ready_made: Sequence[str]) -> None:
        """Add a failed line if the file uses a library function that does the exercise."""
        name = "written by you"
        if self.begin(name):
            return
        with contextlib.suppress(
            SyntaxError, ValueError
        ):  # the file has run, even if it cannot be parsed here
            for line, called in borrowed(self.file.read_bytes(), {*self.asked, *ready_made}):
                return self.failed(
                    name,
                    f"calls {called}",
                    f"Line {line} of {self.file.name} calls {called}, which does the exercise for you. Please write "
                    "it yourself. If you want to compare your answer with the library, do so in "
                    "another file.",
                )

    def explain(self, error: BaseException) -> tuple[str, str]:
        """Return a verdict and a help text for an error, with the innermost line in the learner's file."""
        if isinstance(error, NotWritten):
            return "not written yet", f"{error}.\nThe task is at the top of {self.file.name}."
        if isinstance(error, Wrong):
            return "no", str(error)
        if isinstance(error, SyntaxError):
            return (
                f"syntax error in line {error.lineno}",
                f"{error.msg}: {(error.text or '').strip()}",
            )
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(self.file)
        ]
        where = f" in line {lines[-1]}" if lines else ""
        what = (
            "the recursion is too deep; a loop has no such limit"
            if isinstance(error, RecursionError)
            else str(error)
        )
        return (
            f"raises {type(error).__name__}{where}",
            f"{type(error).__name__}{where} of {self.file.name}: {what}",
        )

    @staticmethod
    def _rules_return(f: Any, inputs: tuple, settings: Mapping[str, Any]) -> None:
        """Call each VJP once on plain arrays, so that an error is reported with its line in the
        learner's file.
        """
        if isinstance(f, ta.engine.Op):
            y = f.forward(*(x.copy() for x in inputs), **settings)
            for rule in f.vjps:
                rule(np.ones_like(y), y.copy(), *(x.copy() for x in inputs), **settings)

    @staticmethod
    def _mistake(
        f: Any, inputs: tuple, settings: Mapping[str, Any], mistakes: Mapping[str, Callable] | None
    ) -> str:
        for text, wrong in (mistakes or {}).items():
            y = f.forward(*inputs, **settings)
            g = np.random.default_rng(1).standard_normal(np.shape(y))
            if compare(f.vjps[0](g, y, *inputs, **settings), wrong(g, y, *inputs, **settings)):
                return text
        return ""


LIBRARIES = ("tinygrad_attn", "torch", "jax", "scipy", "tensorflow", "sklearn", "autograd")


def borrowed(source: bytes, names: set[str]) -> list[tuple[int, str]]:
    """Return (line, source text) of each use of a library function with one of these names."""
    tree, found = ast.parse(source), list[tuple[int, str]]()
    modules, functions = set[str](), set[str]()  # by the names that the imports give them
    for node in ast.walk(tree):
        for one in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            module = node.module if isinstance(node, ast.ImportFrom) else one.name
            if (module or "").split(".")[0] in LIBRARIES:
                known = one.asname or one.name.split(".")[0]
                (functions if one.name in names else modules).add(known)
                if one.name in names and known in names:  # it replaces the answer
                    found.append((node.lineno, one.name))
    for node in ast.walk(tree):
        root: Any = node
        while isinstance(root, (ast.Attribute, ast.Call)):
            root = root.value if isinstance(root, ast.Attribute) else root.func
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(root, ast.Name):
            of_a_module = root.id in modules and isinstance(node, ast.Attribute)
            if of_a_module and node.attr in names or node is root and root.id in functions:
                found.append((node.lineno, ast.unparse(node)))
    return found


def _named(f: Callable, name: str) -> Callable:
    """Return the function under the name that the learner uses."""

    @functools.wraps(f)
    def same(*args: Any, **settings: Any) -> Any:
        return f(*args, **settings)

    same.__name__ = name
    return same


def written(value: Any, name: str) -> Any:
    """Return the value; raise NotWritten if it is None."""
    if value is None:
        raise NotWritten(
            f"{name} returns None, so it is not written yet or a return statement is missing"
        )
    return value


def _short(x: Any) -> str:
    return np.array2string(
        np.asarray(getattr(x, "_data", x)),
        precision=5,
        threshold=24,
        edgeitems=2,
        suppress_small=True,
    )
