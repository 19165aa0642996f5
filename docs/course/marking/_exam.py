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
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import _language
import numpy as np
from _apart import mark_apart
from _class import results
from _compare import Line
from _exam_cases import CASES, GROUPS, Case, Formula
from _exam_engine import ACCIDENTS, NUMBERS, Crash, Engine, Missing, Refused
from _marking import Exercise, Marks
from _rules import sums_to
from _words import about_shape, in_stub_words

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
            verdict, sentence = outcome(marks, case, engine)
            if verdict == "RIGHT":
                marks.lines.append(Line(case.name, verdict))
            else:
                marks.failed(case.name, verdict, sentence)


def outcome(marks: Marks, case: Case, engine: Engine) -> Verdict:
    """Return the verdict on a case, whatever the engine raises."""
    try:
        return quietly(partial(whole, case, engine))
    except Refused:
        return RIGHT
    except Missing as error:
        return "MISSING", first_line(str(error))
    except BaseException as error:  # SystemExit and KeyboardInterrupt can only be the engine's own
        cause = error.__cause__ or error if isinstance(error, Crash) else error
        if cause is error and isinstance(error, Crash):
            return "CRASH", str(error)
        accident = isinstance(error, (Crash, *ACCIDENTS)) or not isinstance(error, Exception)
        if not accident:
            return "MISSING", first_line(f"{type(error).__name__}: {error}")
        return "CRASH", "\n".join(map(first_line, marks.explain(cause)[1].splitlines()[:3]))


def quietly(judge: Callable[[], Verdict]) -> Verdict:
    """Judge without warnings."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return judge()


def first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason is given"])[0][:200]


def whole(case: Case, engine: Engine) -> Verdict:
    """Return the verdict on the first part of a case that is not right."""
    for part, judge in parts(case, engine).items():
        verdict, sentence = judge()
        if verdict != "RIGHT":
            return verdict, ": ".join(filter(None, [part, sentence]))
    return RIGHT


def parts(case: Case, engine: Engine) -> dict[str, Callable[[], Verdict]]:
    """Return what is judged in a case: the value of a formula, and then the gradients by name."""
    if not isinstance(case, Formula):
        return {"": partial(procedure, case, engine)}
    right_y = np.asarray(in_numpy(case)(*case.tensors.values()))
    value = cache(partial(value_of, case, engine, right_y))
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(right_y.shape) if right_y.ndim else np.ones(())
    inputs = [*case.tensors.values()]
    pulled = cache(lambda: engine.pull(case.on(engine.word), inputs, weights))

    def judge(i: int) -> Verdict:
        if value() != RIGHT:
            return "WRONG", "the value is not right yet"
        return gradient(case, engine, i, pulled()[i], weights)

    names = [f"gradient of {name}" for name in case.tensors]
    return {"": value} | {name: partial(judge, i) for i, name in enumerate(names)}


def procedure(case: Any, engine: Engine) -> Verdict:
    """Compare the number that a procedure returns with the accepted ones."""
    result = case.run(engine)
    if isinstance(result, str):
        return "WRONG", result
    if result is None:
        return "LOST", "the gradient is missing, and no error says so"
    result = fitted(result, np.float64(0), engine)
    if close(result, case.right):
        return RIGHT
    said = [text for text, number in case.mistakes.items() if close(result, number)]
    return "WRONG", ": ".join([difference(result, case.right[0]), *said[:1]])


def value_of(case: Formula, engine: Engine, right_y: np.ndarray) -> Verdict:
    """Compare the value of a formula with NumPy's."""
    inputs = [*case.tensors.values()]
    if engine.scalar and any(x.ndim for x in inputs):
        raise Missing("the engine has numbers only")
    y = case.on(engine.word)(*(engine.constant(float(x) if engine.scalar else x) for x in inputs))
    if y is None:
        raise Missing("the result is None")
    if isinstance(y, np.ndarray) and y.dtype == object:
        raise Missing(OBJECTS)
    if isinstance(y, NUMBERS) and not engine.functional:
        return "LOST", f"the result is a {type(y).__name__}, not a tensor: the graph ends here"
    found = fitted(engine.value(y), right_y, engine)
    if close(found, right_y):
        return RIGHT
    texts = {said: text for said, text in case.mistakes.items() if isinstance(text, str)}
    said = [s for s, text in texts.items() if close(found, in_numpy(instead(case, text))(*inputs))]
    if found.shape != right_y.shape:
        said.append(about_shape(found.shape, right_y.shape))
    return "WRONG", ": ".join(filter(None, ["the value", difference(found, right_y), *said[:1]]))


def gradient(case: Formula, engine: Engine, i: int, g: Any, weights: np.ndarray) -> Verdict:
    """Compare the gradient with respect to one tensor with the right one."""
    right = right_gradients(case, weights)[i]
    if g is None:
        return "LOST", "it is missing, and no error says so"
    g = fitted(g, right, engine)
    alike = g.shape == right.shape
    if alike and (case.accepts(g, weights) if case.accepts else close(g, right)):
        return RIGHT
    said = [text for text, m in case.mistakes.items() if close(g, given_by(m, case, i, weights))]
    if not np.any(g) and not case.accepts:
        return "LOST", ": ".join(["it is zero, and no error says so", *said[:1]])
    if not alike and sums_to(g.shape, right.shape):
        said = ["the copies that broadcasting made are not added up"]
    elif alike and weights.ndim and not said and close(g, weights):
        said = ["it is the incoming gradient g, unchanged"]
    elif alike and not (said or case.loops or case.accepts):
        said = [*filter(None, [explanation(case, engine, i)])]
    return "WRONG", ": ".join([difference(g, right), *said[:1]])


def instead(case: Formula, text: str) -> Formula:
    """Return a case with another formula."""
    return replace(case, text=text, right=None)


def given_by(mistake: Any, case: Formula, i: int, weights: np.ndarray) -> Any:
    """Return the gradient, or several, that a mistake gives."""
    if isinstance(mistake, str):
        return right_gradients(instead(case, mistake), weights)[i]
    return mistake(*case.tensors.values(), weights) if callable(mistake) else mistake


def explanation(case: Formula, engine: Engine, i: int) -> str:
    """Explain a wrong gradient by gradcheck, for which the formula is one op of the package.

    A function of single numbers is applied to several, as one number makes any factor constant.
    """
    f, numpy_f = case.on(engine.word), in_numpy(case)
    inputs, numbers = [*case.tensors.values()], not any(x.ndim for x in case.tensors.values())
    if numbers:
        inputs = [x * SPREAD for x in inputs]

    def pull(g: Any, *inputs: Any) -> Any:
        with ta.enable_grad():  # for an engine that is this package
            found = engine.pull(f, inputs, np.asarray(g))[i]
        return np.zeros_like(inputs[i]) if found is None else fitted(found, inputs[i], engine) * 1.0

    def rule(g: Any, y: Any, *inputs: Any) -> Any:
        return np.vectorize(pull)(g, *inputs) if numbers else pull(g, *inputs)

    op = ta.op(lambda *inputs: np.asarray(numpy_f(*inputs)))
    op.vjp(*(rule if k == i else None for k in range(len(inputs))))
    op.__name__ = "formula"
    try:
        tensors = [ta.Tensor(x, requires_grad=k == i) for k, x in enumerate(inputs)]
        report = ta.gradcheck(op, tensors, raise_exception=False)
    except Exception:  # the sentence is extra: the verdict stands without it
        return ""
    return in_stub_words(str(report.diagnosis), [*case.tensors])


# ---- what is right


def right_gradients(case: Formula, weights: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of sum(weights * y) by differences of the fourth order."""
    inputs = [*case.tensors.values()]
    if case.right is not None:
        right = case.right(*inputs, weights) if callable(case.right) else weights * case.right
        return [np.asarray(right)]
    f, h = in_numpy(case), 1e-3
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
    largest = np.nan_to_num(np.abs(b)).max(initial=0)
    return np.allclose(a, b, tolerance, tolerance * largest + 1e-9, equal_nan=True)


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


def in_numpy(case: Formula) -> Callable[..., Any]:
    """Return the formula as a function of NumPy's arrays."""
    words = FUNCTIONS | {**case.words}
    return case.on(lambda name: words[name] if name in words else getattr(np, name))
