"""Practice without end: `python -m tinygrad_attn practice [TOPIC] [--level 1..6] [--seed N]`.

practice norms --level 3      writes a file with a function, for which you write the backward rule
practice FILE.py              marks the file; so does the command that wrote it
practice FILE.py --hint 1     gives a hint: 1 a partial derivative, 2 what is wrong, 3 the answer

No solution exists: finite differences are the judge. The same topic, level and seed give the same
function on every machine, so a student's number makes a good seed.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _language
import _practice_rules  # noqa: F401  they enter the grammar
import numpy as np
from _apart import mark_apart
from _class import results
from _compare import Line
from _marking import Exercise, Marks, Wrong
from _practice_grammar import LEVELS, TOPICS, Draw, Task, element, make, plain
from _rules import measure
from _words import about_shape

import tinygrad_attn as ta
from tinygrad_attn.errors import nearest
from tinygrad_attn.files import write_atomically

MIXED = "mixed"
EXACT = 1e-12  # relative to the largest element; differences are 1e-11 away at best
ATOL, RTOL = 1e-7, 1e-5  # a wrong term may be small
ALLOWED = ("numpy", "math", "__future__")
NAMES = ("d_{}", "d{}", "g_{}", "g{}", "grad_{}", "{}_grad", "{}_bar")
"""What learners call the gradient of an intermediate result."""
COMMAND = "python -m tinygrad_attn practice"


@_language.speaking()
def main(
    target: str | None = None,
    level: int = 1,
    seed: int | None = None,
    count: int = 1,
    hint: int | None = None,
    as_json: bool = False,
    time_limit: float = 60,
) -> int:
    """Write tasks, mark a file, or give a hint, and return the exit code: 1 if a rule is wrong."""
    if target and target.endswith(".py"):
        paths = [Path(target)]
        if not paths[0].is_file():
            raise ValueError(f"there is no file {target!r}. Make a task: {COMMAND} norms --level 2")
    else:
        seed = new_seed() if seed is None else seed
        tasks = [make(checked(target or MIXED, level), level, seed, n + 1) for n in range(count)]
        paths = [Path(file_name(task)) for task in tasks]
        for task, path in zip(tasks, paths):
            if not path.exists():
                write_atomically(_language.in_language(stub(task)), path)
                print(f"{description(task)}\n\n{instructions(path)}\n")
                paths = [other for other in paths if other != path]
    right = True
    for path in paths:
        if hint:
            print(hint_for(path, hint))
            continue
        marks = mark_apart(practice(), path, time_limit)
        right = right and marks.ok
        text = json.dumps(results(practice(), marks, names_of(marks)), indent=1)
        print(text if as_json else f"{outcome(marks)}\n\n{next_step(marks, path)}")
    return int(not right)


def new_seed() -> int:
    return secrets.randbelow(10**6)


def checked(topic: str, level: int) -> str:
    """Return the topic; raise ValueError if there is no such topic or level."""
    if topic not in (*TOPICS, MIXED):
        known = f"The topics are {', '.join(TOPICS)}; without one, they are mixed."
        raise ValueError(f"there is no topic {topic!r}.{nearest(topic, TOPICS)} {known}")
    if level not in LEVELS:
        raise ValueError(f"--level is 1 to {LEVELS[-1]}: the number of lines, got {level}.")
    return topic


def task_of(text: str) -> Task:
    """Return the task that the line TASK of a file names."""
    topic, level, seed, number = text.split()
    return make(checked(topic, int(level)), int(level), int(seed), int(number))


# ---- texts


def file_name(task: Task) -> str:
    number = f"_{task.number}" if task.number > 1 else ""
    return f"practice_{task.topic}_{task.level}_{task.seed}{number}.py"


def description(task: Task) -> str:
    """Return the function as formulas and as NumPy."""
    title = f"Practice: {task.topic}, level {task.level}, seed {task.seed}"
    title += f", number {task.number}" * (task.number > 1)
    formulas = "\n".join(f"    {plain(step.formula)}" for step in task.steps)
    return f"{title}\n\n{formulas}\n\n{task.code}"


def shapes(task: Task) -> str:
    sizes = [f"{name} {shape}" for name, shape in task.shapes.items()]
    return f"The shapes are {', '.join(sizes)} and y {task.function()(*task.inputs).shape}."


def instructions(path: Path) -> str:
    return (
        f"Write the rule in {path}. Then:\n"
        f"    {COMMAND} {path}            marks it\n"
        f"    {COMMAND} {path} --hint 1   begins the derivation (2: what is wrong; 3: the rule)"
    )


def stub(task: Task) -> str:
    """Return the file in which a learner writes the backward rule."""
    title, formulas, code = description(task).split("\n\n")
    several = len(task.shapes) > 1
    returned = (
        f"the gradients of {task.arguments}, in this order" if several else "the gradient of x"
    )
    return f'''"""{title}.

{formulas}

{shapes(task)} Write the rule: `backward` returns
{returned}, for the loss L = sum(g * y). Then g = dL/dy.
If you call the gradient of a line's result d_h, for h, then hint 2 can say which one is wrong.
"""

import numpy as np

TASK = "{task}"


{code}


def backward(g, y, {task.arguments}):
    """Return {returned}."""
'''


def outcome(marks: Marks) -> str:
    """Return what is said about a file."""
    return (
        f"{marks.report()}\n\nRight: every gradient agrees with the slopes."
        if marks.ok
        else str(marks)
    )


def next_step(marks: Marks, path: Path) -> str:
    """Return the command that a learner may want next."""
    if not marks.ok:
        return f"A hint: {COMMAND} {path} --hint 1"
    task = task_of(marks_task(path))
    topic = "" if task.topic == MIXED else f" {task.topic}"
    return f"Another one: {COMMAND}{topic} --level {min(task.level + 1, LEVELS[-1])}"


def marks_task(path: Path) -> str:
    """Return the line TASK of a file, without running it."""
    found = re.search(r'^TASK = ["\'](.*)["\']', path.read_text("utf-8"), re.M)
    if not found:
        raise ValueError(
            f'{path} has no line TASK = "..."; begin with a file that practice writes.'
        )
    return found[1]


def names_of(marks: Marks) -> list[str]:
    """List the checks of a file, run or not."""
    try:
        return [check_of(name) for name in task_of(marks_task(marks.file)).shapes]
    except ValueError:
        return ["the task"]


def check_of(name: str) -> str:
    return f"the gradient of {name}"


# ---- marking


def practice() -> Exercise:
    """Return practice as an exercise; the marked file says which task it answers."""
    return Exercise(0, "", "practice", "a function that nobody has seen", examine)


def examine(marks: Marks) -> None:
    """Check the rule that a file defines for its task: one check for each input."""
    if marks.begin("the task"):
        return
    try:
        task = task_of(marks.module.TASK)
    except (AttributeError, ValueError) as error:
        text = f'{error}\nThe line TASK = "..." must be as practice wrote it.'
        return marks.failed("the task", "no task", text)
    vars(marks.module)["f"] = refused
    names = [check_of(name) for name in task.shapes]
    if known := [name for name in names if name in marks.known]:
        for name in known:
            marks.begin(name)
        return None
    marks.begin(names[0])
    try:
        foreign(marks.file)
        report, texts = checked_rule(marks.function("backward", may_change=True), task)
    except (Exception, SystemExit) as error:
        verdict, text = marks.explain(error)
        for name in names:
            marks.failed(name, verdict, text)
        return None
    entries = report.entries or [None] * len(names)
    for name, check, entry in zip(task.shapes, names, entries):
        if name not in texts and entry is not None and entry.ok and (report or report.worst):
            marks.add(Line(check, "ok", float(np.max(entry.error))))
            continue
        line = Line(check, report.diagnosis.kind.replace("VJP", "wrong numbers") or "wrong")
        measure(line, None if name in texts else entry)
        line.verdict = "no" if name in texts else line.verdict
        marks.failed(check, line, texts.get(name, named(report, task)))
    return None


def refused(*_: Any) -> None:
    raise Wrong("backward calls f. The value of f is given as y; differences of f are no rule.")


def foreign(path: Path) -> None:
    """Raise Wrong if a file imports a library that could differentiate."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.partition(".")[0] not in ALLOWED:
                text = (
                    f"Line {node.lineno} imports {name}: the rule is to be written in NumPy alone."
                )
                raise Wrong(text)


def checked_rule(backward: Any, task: Task) -> tuple[Any, dict[str, str]]:
    """Return gradcheck's report on a rule, and a text for each gradient that it cannot judge."""
    g, shaped = cotangent(task), [*task.shapes.values()]
    found = gradients_of(backward, task, g)
    texts = {
        name: wrong_shape(name, np.shape(mine), shape)
        for (name, shape), mine in zip(task.shapes.items(), found)
        if np.shape(mine) != shape
    }

    def rule(*args: Any) -> tuple:
        listed = as_list(backward(*args))
        return tuple(d if np.shape(d) == shape else None for d, shape in zip(listed, shaped))

    report = ta.gradcheck(
        task.checkable(), task.inputs, atol=ATOL, rtol=RTOL, vjp=rule, raise_exception=False
    )
    report.notes = [note for note in report.notes if not note.startswith("not offered")]
    for name, mine, right in zip(task.shapes, found, right_gradients(task, g)):
        if report and np.abs(mine - right).max() > EXACT * np.abs(right).max():
            texts[name] = (
                f"The gradient of {name} is nearly right, to as many digits as a difference "
                "quotient: write the rule as a formula."
            )
    return report, texts


def as_list(found: Any) -> list[Any]:
    return [*found] if isinstance(found, (tuple, list)) else [found]


def gradients_of(backward: Any, task: Task, g: np.ndarray) -> list[Any]:
    """Return the gradients that a rule gives, one for each input."""
    inputs = [x.copy() for x in task.inputs]
    listed = as_list(backward(g.copy(), task.function()(*inputs), *inputs))
    if len(listed) != len(inputs):
        raise Wrong(
            f"backward returns {len(listed)} gradient{'s' * (len(listed) != 1)}, but f has "
            f"{len(inputs)} inputs: return a tuple, one for each of {task.arguments}."
        )
    return listed


def wrong_shape(name: str, mine: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Say what is wrong with the shape of a gradient."""
    text = f"The gradient of {name} has the shape {mine}, but {name} has {shape}."
    return f"{text} {about_shape(mine, shape)}".strip()


def named(report: Any, task: Task) -> str:
    """Return the report with the inputs' names in place of their numbers."""
    text = str(report)
    for k, name in enumerate(task.shapes):
        if report.worst and report.worst.name == f"input {k}":
            text = text.replace(" to x[", f" to {name}[")
        text = text.replace(f"input {k}", name)
    text = re.sub(r"(?<=diagnosis: )VJP: ", "", text)
    text = re.sub(r"(, called at )practice [^`:]*:\d+ (?=`)", r"\1", text)
    return re.sub(r"\b([Ii]ts|[Tt]he) VJP\b", "the rule", text)


def cotangent(task: Task) -> np.ndarray:
    """Return numbers for g that are the same everywhere."""
    return Draw("g", task).array(task.function()(*task.inputs).shape)


def right_gradients(
    task: Task, g: np.ndarray, results: bool = False, code: str | None = None
) -> list[np.ndarray]:
    """Return the gradients of the inputs, or of the results of all lines, by this package."""
    tensors = [ta.Tensor(x, requires_grad=True) for x in task.inputs]
    lines = task.intermediates(code)(*tensors)
    of = lines if results else tensors
    found = ta.grad(lines[-1], of, g, allow_unused=True)
    return [np.zeros(t.shape) if d is None else d.numpy() for t, d in zip(of, found)]


# ---- hints


def hint_for(path: Path, number: int) -> str:
    """Return hint 1, 2 or 3 on a file's task."""
    task = task_of(marks_task(path))
    texts = {1: first_hint, 2: second_hint, 3: third_hint}
    if number not in texts:
        raise ValueError(f"--hint is 1, 2 or 3, got {number}.")
    return texts[number](task, path)


def first_hint(task: Task, path: Path) -> str:
    """Say the partial derivatives of the last line."""
    step = task.steps[-1]
    text = [f"Begin with the last line, {plain(step.formula)}.", ""]
    for operand, value in step.partials.items():
        text.append(
            f"    d{plain(element('y', step.indices))} / d{plain(operand)} = {plain(value)}"
        )
    text += ["", f"Multiply by g_{step.indices}, and sum over {' and '.join(step.indices)}. "]
    text[-1] += "δ_im is 1 if i = m, else 0: it ends the sum over i. "
    text[-1] += "[...] around a condition is 1 where it holds, else 0."
    if len(task.steps) > 1:
        text.append("Do the same with the line before; contributions to one result are added.")
    return "\n".join(text)


def second_hint(task: Task, path: Path) -> str:
    """Say which gradient of an intermediate result is the first that is wrong."""
    g = cotangent(task)
    marks = Marks(path)
    if not marks.load():
        return marks.help
    try:
        found, local = with_locals(vars(marks.module)["backward"], task, g)
    except Exception as error:
        return "\n".join(marks.explain(error))
    right = dict(zip([s.name for s in task.steps], right_gradients(task, g, results=True)))
    right.pop("y")
    seen = []
    for name, value in reversed(right.items()):
        called = next((n for n in (p.format(name) for p in NAMES) if n in local), None)
        if called is None:
            continue
        if differs(local[called], value):
            earlier = f" Right so far: {', '.join(seen)}." if seen else ""
            what = left_out(task, name, local[called], g) or comparison(local[called], value)
            return f"{called} is the first that is wrong.{earlier} {what}"
        seen.append(called)
    return "\n".join(rest(task, found, g, right, seen))


def left_out(task: Task, name: str, mine: Any, g: np.ndarray) -> str:
    """Say which use of an intermediate result a gradient leaves out, if it is one."""
    lines = name not in task.shapes
    at = ([step.name for step in task.steps] if lines else [*task.shapes]).index(name)
    found = [
        step
        for step, code in task.uses(name)
        if not differs(mine, right_gradients(task, g, lines, code)[at])
    ]
    if not found:
        return ""
    uses = sum(step is found[0] for step, _ in task.uses(name))
    often = f", which has {name} {uses} times," if uses > 1 else ""
    return f"A use of {name} in the line `{found[0].name} = ...`{often} is left out."


def rest(task: Task, found: Any, g: np.ndarray, right: dict, seen: list[str]) -> Iterator[str]:
    """Say what is wrong where no local variable could be compared."""
    if seen:
        yield f"Right so far: {', '.join(seen)}."
    for name, mine, value in zip(task.shapes, as_list(found), right_gradients(task, g)):
        if differs(mine, value):
            what = left_out(task, name, mine, g) or comparison(mine, value)
            yield f"The gradient of {name} is wrong. {what}"
    if len(seen) < len(right):
        missing = [name for name in right if not any(p.format(name) in seen for p in NAMES)]
        yield (
            f"Keep the gradient of {' and of '.join(missing)} in a variable "
            f"({', '.join(f'd_{name}' for name in missing)}), and this hint compares it."
        )


def with_locals(backward: Any, task: Task, g: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Call a rule; return its result and its local variables."""
    kept: dict[str, Any] = {}

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is backward.__code__:
            kept.update(frame.f_locals)

    inputs = [x.copy() for x in task.inputs]
    y = task.function()(*inputs)
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        return backward(g.copy(), y, *inputs), kept
    finally:
        sys.setprofile(before)


def differs(mine: Any, right: np.ndarray) -> bool:
    return np.shape(mine) != right.shape or not np.allclose(mine, right, rtol=1e-6, atol=1e-9)


def comparison(mine: Any, right: np.ndarray) -> str:
    """Say where two arrays differ."""
    if mine is None:
        return "It is None."
    if np.shape(mine) != right.shape:
        return f"It has the shape {np.shape(mine)}, but should have {right.shape}."
    off = np.abs(mine - right)
    at = tuple(int(i) for i in np.unravel_index(np.argmax(off), off.shape))
    wrong = int((off > 1e-6 * np.abs(right) + 1e-9).sum())
    text = f"{wrong} of {right.size} elements are off; the element {at} is {mine[at]:.6g}"
    ratio = np.sum(mine * right) / np.sum(right * right)
    if ratio and np.allclose(mine, ratio * right):
        return f"It is {ratio:.4g} times what it should be."
    return f"{text}, but should be {right[at]:.6g} (for a g that the hint chooses)."


def third_hint(task: Task, path: Path) -> str:
    """Write the backward pass."""
    program = ta.source(task.function(), *task.inputs)
    return f"The forward and backward pass, as ta.source writes it:\n\n{program}"
