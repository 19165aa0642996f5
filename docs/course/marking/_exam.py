"""Examines any autograd engine: `python -m tinygrad_attn exam my_engine.py`.

Each case is RIGHT, WRONG, LOST (the gradient is missing or zero, and no error says so), CRASH (an
accident, or no end) or MISSING (the engine does not offer it). Finite differences of NumPy's own
function are the judge. Each case is a check of the marker, which runs the engine in its own process.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import _language
import numpy as np
from _apart import mark_apart
from _class import results
from _compare import Line
from _exam_cases import CASES, GROUPS, Case, Formula, Procedure
from _exam_engine import ACCIDENTS, NUMBERS, Crash, Engine, Missing, Refused
from _marking import Exercise, Marks

import tinygrad_attn as ta
from tinygrad_attn.check.report import index_of_largest
from tinygrad_attn.errors import nearest

VERDICTS = ("RIGHT", "WRONG", "LOST", "CRASH", "MISSING")
Verdict = tuple[str, str]  # one of VERDICTS, and a sentence
RIGHT = "RIGHT", ""
ADAPTER = "the adapter"
SPREAD = np.array([0.7, 1.0, 1.3, 1.9])  # factors for single numbers
OBJECTS = (
    "NumPy takes the tensor for a plain object and makes an array of objects. If the class sets "
    "__array_ufunc__ = None, NumPy leaves the operation to the class."
)


@_language.speaking()
def main(
    file: str, only: str = "", need: str = "", as_json: bool = False, time_limit: float = 10
) -> int:
    """Examine an engine, print the results, and return 1 if anything is wrong, else 0.

    Cases of the groups in `need` count as wrong if they are missing. Raises ValueError for a file or
    a group that does not exist.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"there is no file {file!r}. docs/exam.md shows how to write an adapter.")
    for group in split(f"{only},{need}"):
        if group not in GROUPS:
            text = f"there is no group {group!r}.{nearest(group, GROUPS)} The groups are "
            raise ValueError(f"{text}{', '.join(GROUPS)}.")
    chosen = exam(only)
    marks = mark_apart(chosen, path, time_limit, quiet=True, attempts=len(CASES))
    text = report(marks, need)
    if as_json:
        names = [case.name for case in CASES if not only or case.group in split(only)]
        text = json.dumps(results(chosen, marks, names), indent=1)
    print(text)
    return int(not (marks.ok and any(line.ok for line in marks.lines)))


def exam(only: str = "") -> Exercise:
    """Return the exam as an exercise. Its name says which groups of cases it has, if not all."""
    groups = split(only) or GROUPS
    name, task = f"exam {only}".strip(), "the gradients of any engine"
    return Exercise(0, "", name, task, lambda marks: examine(marks, groups))


def split(names: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in names.split(",") if name.strip()]


def group_of(line: Line) -> str:
    """Return the group of a case from its name."""
    return line.name.partition(":")[0]


# ---- the report


def report(marks: Marks, need: str = "") -> str:
    """Return the number of right cases by group, and a text for each case that is not right.

    From here on, a missing case does not count, unless its group is in `need`.
    """
    rows = [line for line in marks.lines if group_of(line) in GROUPS]
    for row in rows:
        if row.verdict not in VERDICTS:
            row.verdict = "CRASH"  # it did not end, or it ended Python
        row.counts = row.verdict != "MISSING" or group_of(row) in split(need)
    if not rows:
        return marks.report()  # the file does not run, or is no adapter
    texts = []
    for group in GROUPS:
        if members := [row for row in rows if group_of(row) == group]:
            texts.append(f"{group}: {score(members)}")
            missing = {row.name: reason(marks, row) for row in members if row.verdict == "MISSING"}
            texts += [
                marks.helps[row.name] for row in members if not row.ok and row.name not in missing
            ]
            for why in dict.fromkeys(missing.values()):
                names = [name.partition(": ")[2] for name in missing if missing[name] == why]
                cases = names[0] if len(names) == 1 else f"{len(names)} cases"
                texts.append(f"    MISSING {cases}: {why}")
    return "\n".join([*texts, "", f"all: {score(rows)}"])


def reason(marks: Marks, row: Line) -> str:
    """Return the sentence about a case without its name and verdict."""
    return marks.helps[row.name].partition("\n")[2].strip()


def score(rows: Sequence[Line]) -> str:
    """Return how many cases have which verdict."""
    number = {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}
    missing = number.pop("MISSING")
    right = number.pop("RIGHT")
    bad = ", ".join(f"{n} {verdict}" for verdict, n in number.items() if n)
    return (
        f"{right} of {len(rows) - missing} right{f' ({bad})' * bool(bad)}"
        f"{f', {missing} not offered' * bool(missing)}"
    )


# ---- the examination


def examine(marks: Marks, groups: Sequence[str] = GROUPS) -> None:
    """Run the cases of these groups on the engine that the marked file describes."""
    if marks.begin(ADAPTER):
        return  # it has failed
    try:
        engine = Engine(marks.module)
        if not engine.functional:
            engine.leaf(1.0)
        engine.choose_seed()
    except (Exception, SystemExit) as error:
        return marks.failed(ADAPTER, *marks.explain(error))
    for case in CASES:
        if case.group in groups and not marks.begin(case.name):
            verdict, sentence = outcome(case, engine)
            if verdict == "RIGHT":
                marks.lines.append(Line(case.name, verdict))
            else:
                marks.failed(case.name, verdict, sentence)


def outcome(case: Case, engine: Engine) -> Verdict:
    """Return the verdict on a case, whatever the engine raises."""
    judge: Any = formula if isinstance(case, Formula) else procedure
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return judge(case, engine)
    except Refused:
        return RIGHT
    except Crash as error:
        return "CRASH", first_line(str(error))
    except Missing as error:
        return "MISSING", first_line(str(error))
    except BaseException as error:  # SystemExit and KeyboardInterrupt can only be the engine's own
        accident = isinstance(error, ACCIDENTS) or not isinstance(error, Exception)
        return "CRASH" if accident else "MISSING", first_line(f"{type(error).__name__}: {error}")


def first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason is given"])[0][:200]


def procedure(case: Procedure, engine: Engine) -> Verdict:
    """Compare the number that a procedure returns with the accepted ones."""
    result = case.run(engine)
    if isinstance(result, str):
        return "WRONG", result
    if result is None:
        return "LOST", "the gradient is missing, and no error says so"
    result = fitted(result, np.float64(0), engine)
    if any(close(result, number) for number in case.right):
        return RIGHT
    sentences = [text for text, number in case.mistakes.items() if close(result, number)]
    return "WRONG", ": ".join([difference(result, case.right[0]), *sentences[:1]])


def formula(case: Formula, engine: Engine) -> Verdict:
    """Compare the value and the gradients of a formula with NumPy's."""
    inputs = [*case.tensors.values()]
    if engine.scalar and any(x.ndim for x in inputs):
        raise Missing("the engine has numbers only")
    f, numpy_f = case.on(engine.word), case.on(numpy_word)
    y = f(*(engine.constant(float(x) if engine.scalar else x) for x in inputs))
    right_y = np.asarray(numpy_f(*inputs))
    if y is None:
        raise Missing("the result is None")
    if isinstance(y, NUMBERS) and not engine.functional:
        if np.asarray(y).dtype == object:
            raise Missing(OBJECTS)
        return "LOST", f"the result is a {type(y).__name__}, not a tensor: the graph ends here"
    value = fitted(engine.value(y), right_y, engine)
    if not close(value, right_y):
        return "WRONG", f"the value is {difference(value, right_y)}"
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(right_y.shape) if right_y.ndim else np.ones(())
    gradients = engine.pull(f, inputs, weights)
    for name, g, right in zip(case.tensors, gradients, right_gradients(case, weights)):
        verdict, sentence = gradient(case, engine, g, right, weights)
        if verdict != "RIGHT":
            if verdict == "WRONG" and ": " not in sentence and not case.loops:
                sentence += explanation(case, engine)
            return verdict, f"gradient of {name}: {sentence}"
    return RIGHT


def gradient(case: Formula, engine: Engine, g: Any, right: np.ndarray, weights: Any) -> Verdict:
    """Compare one gradient with the right one."""
    if g is None or not np.any(g) and (abs(right) > 1e-9).any() and not case.accepts:
        what = "it is missing" if g is None else "it is zero"
        return "LOST", f"{what}, and no error says so"
    g = fitted(g, right, engine)
    if g.shape != right.shape:
        copies = g.shape == weights.shape
        text = ": the copies that broadcasting made are not added up" * copies
        return "WRONG", f"{difference(g, right)}{text}"
    if case.accepts(g, weights) if case.accepts else close(g, right):
        return RIGHT
    for text, mistake in case.mistakes.items():
        known = mistake(*case.tensors.values(), weights) if callable(mistake) else mistake
        if close(g, known):
            return "WRONG", f"{difference(g, right)}: {text}"
    return "WRONG", difference(g, right)


def explanation(case: Formula, engine: Engine) -> str:
    """Explain a wrong gradient by gradcheck, for which the formula is one op of the package.

    A function of single numbers is applied to several, as one number makes any factor constant.
    """
    f, numpy_f = case.on(engine.word), case.on(numpy_word)
    inputs, numbers = [*case.tensors.values()], not any(x.ndim for x in case.tensors.values())
    if numbers:
        inputs = [x * SPREAD for x in inputs]

    def pull(i: int, g: Any, *inputs: Any) -> Any:
        with ta.enable_grad():  # for an engine that is this package
            found = engine.pull(f, inputs, np.asarray(g))[i]
        return np.zeros_like(inputs[i]) if found is None else fitted(found, inputs[i], engine) * 1.0

    def rule(i: int) -> Callable[..., Any]:
        one = partial(pull, i)
        return lambda g, y, *xs: np.vectorize(one)(g, *xs) if numbers else one(g, *xs)

    op = ta.op(lambda *inputs: np.asarray(numpy_f(*inputs)))
    op.vjp(*map(rule, range(len(case.tensors))))
    op.__name__ = "formula"
    try:
        report = ta.gradcheck(op, inputs, raise_exception=False)
    except Exception:  # the sentence is extra: the verdict stands without it
        return ""
    text = str(report.diagnosis).replace("op 'formula': ", "").partition(" Look at its VJP")[0]
    return f": {text}" * bool(text)


# ---- what is right


def right_gradients(case: Formula, weights: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of sum(weights * y) by differences of the fourth order."""
    inputs = [*case.tensors.values()]
    if case.right is not None:
        right = case.right(*inputs, weights) if callable(case.right) else weights * case.right
        return [np.asarray(right)]
    f, h = case.on(numpy_word), 1e-3
    gradients = [np.zeros(x.shape) for x in inputs]
    for i, g in enumerate(gradients):
        for k in np.ndindex(g.shape):
            for steps, factor in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
                moved = [x.astype(float) for x in inputs]
                moved[i][k] += steps * h
                g[k] += factor * np.sum(weights * f(*moved)) / (12 * h)
    return gradients


def close(a: Any, b: Any) -> Any:
    """Return whether arrays agree to the precision of `a`; `b` may be a tuple of possible numbers."""
    if isinstance(b, tuple):
        return any(close(a, number) for number in b)
    a, b = np.asarray(a), np.asarray(b, float)
    tolerance = 2e-4 if a.dtype in (np.float32, np.float16) else 1e-6
    if a.shape != b.shape or a.dtype.kind not in "fiub":
        return False
    return np.allclose(a, b, tolerance, tolerance * np.abs(b).max(initial=0) + 1e-9)


def fitted(a: Any, b: Any, engine: Engine) -> np.ndarray:
    """Return `a` with the shape of `b` if both are one number, or if the engine's adapter is `loose`
    and they differ in axes of length 1.
    """
    a = np.asarray(a)
    alike = a.size == np.size(b) == 1 or engine.loose and a.squeeze().shape == np.squeeze(b).shape
    return a.reshape(np.shape(b)) if alike else a


def difference(a: Any, b: Any) -> str:
    """Describe where two arrays differ most."""
    a, b = np.asarray(a), np.asarray(b, float)
    if a.shape != b.shape:
        return f"shape {a.shape}, should be {b.shape}"
    if a.dtype.kind not in "fiub":
        return f"an array of {a.dtype}, should be numbers"
    index = index_of_largest(np.nan_to_num(np.abs(a - b), nan=np.inf))
    return f"{a[index]:.6g}{f' at {list(index)}' * bool(index)}, should be {b[index]:.6g}"


# ---- the words in NumPy


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def logsumexp(x: Any, axis: int) -> Any:
    largest = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - largest).sum(axis=axis)) + largest.squeeze(axis)


def log_softmax(x: Any, axis: int) -> Any:
    return x - np.expand_dims(logsumexp(x, axis), axis)


def layer_norm(x: Any, w: Any) -> Any:
    return w * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(q: Any, k: Any, v: Any, seen: Any) -> Any:
    e = np.exp(q @ k.T / np.sqrt(q.shape[-1])) * seen
    return e @ v / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(x / 2)),
    "softmax": softmax,
    "logsumexp": logsumexp,
    "log_softmax": log_softmax,
    "layer_norm": layer_norm,
    "rms_norm": lambda x, w: w * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5),
    "cross_entropy": lambda x, target: -log_softmax(x, 1)[np.arange(len(x)), target].mean(),
    "embedding": lambda indices, w: w[indices],
    "attention": attention,
    "detach": np.positive,
    "no_grad": nullcontext,
}


def numpy_word(name: str) -> Callable[..., Any]:
    """Return NumPy's function for a word of the cases."""
    return FUNCTIONS[name] if name in FUNCTIONS else getattr(np, name)
