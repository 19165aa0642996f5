"""The parts of a marker: checks that never raise. Each adds a line to the report, and a help text if
it fails.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import runpy
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from _compare import Line, compare
from _points import points, table
from _rules import VAGUE, Rule, WrongForm, explanation, line_of, names_of, numbers
from _watch import library_calls
from _words import (
    about_shape,
    about_shapes,
    cut_off,
    differing,
    misplaced,
    plain,
    scaled,
    unchanged,
)

import tinygrad_attn as ta


class NotWritten(Exception):
    """The learner has not written this part yet."""


class Wrong(Exception):
    """A check's message about a wrong result from a function that did not raise."""

    rank = 3


class Forbidden(Wrong):
    """A check's verdict and message about how an answer works, which matters more than its results."""

    rank = 5

    def __init__(self, verdict: str, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict


class Idea(NamedTuple):
    """An idea that an exercise is about, with its points. An answer without a `main` idea gets at most
    half of all points. With `each`, each check counts by itself.
    """

    points: float
    main: bool
    each: bool


class Exercise(NamedTuple):
    """An exercise, with its chapter and the function that marks it. The `part` of a project after a
    chapter is a letter.
    """

    number: int
    part: str
    name: str
    task: str
    mark: Callable[[Marks], None]

    @property
    def title(self) -> str:
        """The chapter and the name, or the file's name if the exercise is a teacher's own."""
        return Path(self.name).stem if self.number < 0 else f"{self.chapter}, {self.name}"

    @property
    def chapter(self) -> str:
        return f"{self.number}{self.part}"


exercises: dict[str, Exercise] = {}

HIDDEN = "TINYGRAD_ATTN_HIDDEN"
"""The environment variable that names a teacher's file of further checks (`--hidden FILE`)."""


def exercise(
    number: int, name: str, task: str, part: str = "", allowed: tuple[str, ...] | None = ()
) -> Callable[[Callable[[Marks], None]], None]:
    """Register a marker under its name. This is a decorator.

    An answer may call no function of a library but NumPy's and those whose names are `allowed`, or
    any if that is None.
    """

    def enter(mark: Callable[[Marks], None]) -> None:
        def with_hidden(marks: Marks) -> None:
            marks.allowed = allowed
            mark(marks)
            if path := os.environ.get(HIDDEN):
                marks.idea("")
                runpy.run_path(path).get(name, lambda marks: None)(marks)

        exercises[name] = Exercise(number, part, name, task, with_hidden)

    return enter


NAN = (
    "NaN comes from 0 / 0, from 0 * inf, from inf - inf, or from the root or the logarithm of a negative number; "
    "Inf from x / 0 or from e^x for a large x."
)


def plan(chosen: Exercise) -> Marks:
    """Return the marks of an empty file, which name all checks and ideas of an exercise."""
    empty = Marks(Path(f"{chosen.name}.py"))
    chosen.mark(empty)
    return empty


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
        self.weight, self.of = 1.0, ""  # of the check that is running
        self.last_call: tuple[str, Any, Callable[[], dict[str, Any]]] | None = (
            None  # name, result, arguments
        )
        self.lines: list[Line] = []
        self.ideas: dict[str, Idea] = {}
        self.about = ""  # the idea of the checks that follow
        self.helps: dict[str, str] = {}  # by name, for the checks that fail
        self.step = ""  # if not empty, the only step that is marked
        self.allowed: tuple[str, ...] | None = ()  # library functions that the answer may call
        self.references: dict[str, Callable] = {}
        self.changing: set[str] = set()  # the functions already reported for changing an argument
        self.module = ModuleType("answer")
        self.module.__file__ = str(file)

    def load(self) -> bool:
        """Run the file. A syntax error becomes a line of the report."""
        linecache.checkcache(str(self.file))
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
    def failing(self) -> list[str]:
        """The names of the checks that fail, those whose help texts explain most first."""
        lines = [line for line in self.lines if line.name in self.helps]
        return [line.name for line in sorted(lines, key=lambda line: -line.rank)]

    @property
    def help(self) -> str:
        """The help text that explains most."""
        return next((self.helps[name] for name in self.failing), "")

    def report(self, everything: bool = False) -> str:
        """Return the help text that explains most, a line for each check, and perhaps all other
        help texts.
        """
        others = [self.helps[name] for name in self.failing[1:]] if everything else []
        return "\n\n".join(filter(None, [self.help, table(self.lines, points(self)), *others]))

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
                with self.others_right(name), self.watching(name):
                    value = own(*args, **settings)
            except ValueError as error:
                error.add_note(shapes_of(own, args, settings))
                raise
            finally:
                changed = [(array, before) for array, before in kept if not same(array, before)]
                for array, before in changed:
                    array[...] = before
            if changed and name not in self.changing:
                self.changing.add(name)
                raise Forbidden(
                    "changes an argument",
                    f"{name} changes an array that it is given, but other code may still use that "
                    "array. Make a new one: write x = x - 1, not x -= 1. (For the other checks, "
                    "the marker restores the array.)",
                )
            self.last_call = name, value, lambda: arguments_of(own, args, settings)
            return written(value, name)

        return checked

    @contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Raise Forbidden at the end if the learner's code has called a library function inside."""
        with library_calls(self.allowed) as calls:
            yield
        if calls:
            called, line = calls[0]
            raise Forbidden(
                f"calls {called}",
                f"{name} calls {called} in line {line}, which does the exercise for you, so this "
                "part gets no points. Write it yourself.",
            )

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

    def op(self, forward: str, *rules: str, broadcasts: bool = True) -> Any:
        """Make an op from the learner's rules and the marker's forward function, or the learner's if
        the marker has none. The first check reports arguments that do not fit.
        """
        try:
            right = self.references.get(forward) or self.function(forward, may_change=True)
            return ta.op(_named(right, forward), broadcasts=broadcasts).vjp(
                *map(self.function, rules)
            )
        except (TypeError, ValueError) as error:
            refusal = error

        def refused(*_: Any, **__: Any) -> Any:
            raise refusal

        return refused

    # ---- checks

    def idea(self, name: str, points: float = 1, main: bool = False, each: bool = False) -> None:
        """Begin an idea of the exercise. The checks that follow share its points by their weights.

        The first check of an idea, or of each part that it judges, shows it in its plainest form. The
        others count only if that one passes, or with `each`, each by itself. An answer that gets no
        points for a `main` idea gets at most half of all points.
        """
        self.about = name
        if name:
            self.ideas[name] = Idea(points, main, each)

    def begin(self, name: str, weight: float = 1, of: str = "") -> bool:
        """Begin the check of this name, which may never end. Return whether it is not to be run,
        because its result is known, or because it belongs to another step.
        """
        if self.step and name not in ("", "the file runs", f"{self.step} {name.partition(' ')[2]}"):
            return True
        self.running, self.weight, self.of = name, weight, of
        self.told(self)
        if name not in self.known:
            return False
        line, text = self.known[name]
        self.add(line)
        if text:
            self.helps[name] = text
        return True

    def add(self, line: Line) -> None:
        """Add the result of the check that is running."""
        line.idea, line.weight, line.of = self.about, self.weight, self.of
        self.lines.append(line)

    def compare(
        self,
        name: str,
        mine: Callable[[], Any],
        expected: Any,
        *,
        mistakes: Mapping[str, Any] | None = None,
        about: Callable[[Any, Any], str] = lambda found, expected: "",
        hint: str = "",
        atol: float = 1e-6,
        rtol: float = 1e-5,
        weight: float = 1,
        of: str = "",
    ) -> None:
        """Check that |mine() - expected| is small. `mistakes` maps help texts to the values that
        common mistakes would give, and `about(found, expected)` explains others. `of` names the part of the answer that is judged.
        """
        if self.begin(name, weight, of):
            return None
        self.last_call = None
        try:
            found = mine()
            line = compare({name: found}, {name: expected}, atol=atol, rtol=rtol).lines[0]
        except (Exception, SystemExit) as error:
            return self.failed_by(name, error, hint)
        if line.ok:
            return self.add(line)
        with np.errstate(invalid="ignore"):  # a mistake may give infinities
            listed = [
                text
                for text, wrong in (mistakes or {}).items()
                if compare(found, wrong, atol=atol, rtol=rtol)
            ]
        said = listed[0] if listed else ""
        if self.last_call and not listed:
            called, value, arguments = self.last_call
            said = unchanged(called, value, arguments())
        general = (say(found, expected) for say in (cut_off, about, misplaced, scaled))
        said = said or next(filter(None, general), "")
        hint = hint or (NAN if "NaN" in line.verdict and not said else "")
        shapes = [np.shape(getattr(x, "_data", x)) for x in (found, expected)]
        alike = shapes[0] == shapes[1]
        numbers = differing(found, expected) if alike else ""
        of_shape = (
            ""
            if alike
            else f"The shape is {shapes[0]}, but it should be {shapes[1]}. {about_shape(*shapes)}"
        )
        line.rank = 4 if said else 3 if of_shape or ": " in line.verdict else 1
        return self.failed(name, line, "\n\n".join(filter(None, [said, of_shape, hint, numbers])))

    def gradient(
        self,
        name: str,
        f: Any,
        *inputs: np.ndarray,
        mistakes: Mapping[str, Any] | None = None,
        weight: float = 1,
        names: tuple[str, ...] = (),
        hint: str = "",
        **settings: Any,
    ) -> None:
        """Run gradcheck on a function, or on an op made from the learner's rules. `mistakes` maps
        help texts to wrong rules, or the name of an input to such a mapping; `names` are those of the inputs, and `hint` helps with errors.

        Each rule of an op is a check of its own, in which the others have no part. A function that
        the learner wrote is compared only with itself, so give it the weight 0.
        """
        rules = [
            Rule(f, k, inputs, settings, names or names_of(f, inputs))
            for k, rule in enumerate(getattr(f, "vjps", ()))
            if rule is not None
        ]
        for rule in rules:
            ending = f": {rule.names[rule.which]}" * (len(rules) > 1)
            own = (mistakes or {}).get(rule.names[rule.which], mistakes or {})
            self.rule(name + ending, rule, own, weight, hint)
        if rules or self.begin(name, weight):
            return None
        try:
            report = ta.gradcheck(lambda *xs: f(*xs, **settings), inputs, raise_exception=False)
        except (Exception, SystemExit) as error:
            return self.failed_by(name, error)
        return self.judge(line_of(name, report), report, [])

    def rule(
        self,
        name: str,
        rule: Rule,
        mistakes: Mapping[str, Callable],
        weight: float,
        hint: str,
    ) -> None:
        """Check one backward rule."""
        if self.begin(name, weight, rule.names[rule.which]):
            return None
        inputs = [ta.Tensor(x, requires_grad=k == rule.which) for k, x in enumerate(rule.inputs)]
        try:
            rule.check_form()
            alone = rule.alone
            report = ta.gradcheck(
                lambda *xs: alone(*xs, **rule.settings), inputs, raise_exception=False
            )
            said = "" if report else rule.mistake(mistakes) or rule.power(report)
        except (Exception, SystemExit) as error:
            return self.failed_by(name, error, hint)
        names = list(rule.names)
        return self.judge(line_of(name, report), report, names, said, names[rule.which])

    def judge(
        self, line: Line, report: Any, names: list[str], said: str = "", argument: str = "x"
    ) -> None:
        """Add the line of a gradcheck report, with a help text if a gradient is wrong."""
        if report:
            return self.add(line)
        line.rank = 4 if said else 1 if report.diagnosis.kind in VAGUE else 3
        texts = said or explanation(report, names, argument), numbers(report, names)
        return self.failed(line.name, line, "\n".join(filter(None, texts)))

    def that(self, name: str, test: Callable[[], Any], hint: str, weight: float = 1) -> None:
        """Check that test() is true."""
        if self.begin(name, weight):
            return None
        try:
            if test():
                return self.add(Line(name, "ok"))
        except (Exception, SystemExit) as error:
            return self.failed_by(name, error)
        return self.failed(name, "no", hint, rank=2)

    def single(
        self, name: str, made: Callable[[], Mapping[str, Any]], why: str, weight: float = 1
    ) -> None:
        """Check that what is made of float32 is float32. `made()` maps names to arrays."""

        def test() -> bool:
            for called, value in made().items():
                if (dtype := plain(value).dtype) != np.float32:
                    raise Wrong(f"{called} is {dtype}, but should be float32. {why}")
            return True

        self.that(name, test, "", weight)

    # ---- texts

    def failed(self, name: str, verdict: str | Line, text: str, rank: int | None = None) -> None:
        """Add a line and a help text for a check that did not pass. A higher rank is shown first."""
        line = verdict if isinstance(verdict, Line) else Line(name, verdict, np.inf, np.inf)
        line.rank = line.rank if rank is None else rank
        self.add(line)
        self.helps[name] = "\n".join(
            f"    {row}".rstrip() for row in [f"{name}: {line.verdict}", *text.splitlines()]
        )

    def failed_by(self, name: str, error: BaseException, hint: str = "") -> None:
        """Add a line and a help text for a check that ends in an error."""
        verdict, text = self.explain(error)
        if isinstance(error, NotWritten):
            return self.failed(name, verdict, text, rank=0)
        needed = hint not in text and not isinstance(error, Wrong)  # which says it all
        text = "\n\n".join(filter(None, [text, hint * needed]))
        return self.failed(name, verdict, text, rank=getattr(error, "rank", 3))

    def explain(self, error: BaseException) -> tuple[str, str]:
        """Return a verdict and a help text for an error, with the innermost line in the learner's file."""
        if isinstance(error, NotWritten):
            return "not written yet", f"{error}.\nThe task is at the top of {self.file.name}."
        if isinstance(error, (Wrong, WrongForm)):
            return getattr(error, "verdict", "no"), str(error)
        if isinstance(error, SyntaxError):
            return (
                f"syntax error in line {error.lineno}",
                f"{error.msg}: {(error.text or '').strip()}",
            )
        frames = [
            (line, frame.f_code)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename == str(self.file)
        ]
        lines = [line for line, _ in frames]
        where = f" in line {lines[-1]}" if lines else ""
        what = (
            "the recursion is too deep; a loop has no such limit"
            if isinstance(error, RecursionError)
            else str(error)
        )
        notes = list(filter(None, dict.fromkeys(getattr(error, "__notes__", ()))))
        line = linecache.getline(str(self.file), lines[-1]) if lines else ""
        source = inspect.getsource(frames[-1][1]) if line else ""
        text = f"{type(error).__name__}{f' in line {lines[-1]} of {self.file.name}' if lines else ''}: {what}"
        said = filter(None, [about_shapes(what, line, source, " ".join(notes)), text, *notes])
        return f"raises {type(error).__name__}{where}", "\n".join(said)


def several(found: Any, name: str, count: int, what: str) -> Any:
    """Return what a function has returned; raise Wrong unless it is a tuple or list of this length."""
    if isinstance(found, (tuple, list)) and len(found) == count:
        return found
    many = f" of {len(found)}" if isinstance(found, (tuple, list)) else ""
    raise Wrong(
        f"{name} returns a {type(found).__name__}{many}, but it should return {count} arrays, {what}."
    )


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays are equal, NaN included."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def arguments_of(f: Callable, args: tuple, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names, or nothing if they do not fit."""
    try:
        return dict(inspect.signature(f).bind(*args, **settings).arguments)
    except (TypeError, ValueError):
        return {}


def shapes_of(f: Callable, args: tuple, settings: Mapping[str, Any]) -> str:
    """Write the names and shapes of the arguments of a call."""
    given = arguments_of(f, args, settings)
    shapes = [f"{name} {np.shape(x)}" for name, x in given.items() if isinstance(x, np.ndarray)]
    return f"The arguments are {', '.join(shapes)}." if shapes else ""


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
