"""The course's exercises: every stub fails its marker with a helpful text, every solution passes, and usual mistakes are named."""

import ast
import importlib
import re
import runpy
import sys
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from support import EXERCISES, ROOT, changed
from wrong_answers import WRONG

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import cli

NAMES = sorted(p.stem for p in (EXERCISES / "solutions").glob("*.py"))


def mark(marker, name, path):
    return marker.mark(marker.exercises[name], path)


class Enough(Exception):
    """The help text that is shown first has been found; the other checks need not be run."""


@pytest.fixture
def once_explained(marker, short_chains, monkeypatch):
    """Sets what is done after a mistake that is known: no cause that gradcheck finds is shown before it."""
    Marks = sys.modules["_marking"].Marks
    failed = Marks.failed

    def after(act):
        def fail(self, *args, **settings):
            failed(self, *args, **settings)
            if self.lines[-1].rank >= 4:
                act()

        monkeypatch.setattr(Marks, "failed", fail)

    return after


def test_every_exercise_has_a_stub_a_solution_a_marker_and_a_chapter(marker):
    assert sorted(marker.exercises) == NAMES and len(NAMES) >= 22
    assert sorted(p.stem for p in EXERCISES.glob("*.py")) == NAMES
    chapters = [str(number) for number in range(len(NAMES) - 2)]
    assert [one.chapter for one in sorted(marker.exercises.values())] == [
        *chapters[:4],
        "3b",
        *chapters[4:8],
        "7b",
        *chapters[8:],
    ]
    for one in marker.exercises.values():
        assert marker.find(one.chapter) == marker.find(one.name) == one
        (chapter,) = (ROOT / "docs" / "course").glob(f"{one.number:02}{one.part}-*.md")
        assert f"exercise {one.name}" in chapter.read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_fails_and_says_so(marker, name):
    marks = mark(marker, name, EXERCISES / f"{name}.py")
    assert {line.verdict for line in marks.lines} == {"not written yet"}
    assert "returns None" in str(marks) and f"The task is at the top of {name}.py" in str(marks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error")
def test_the_solution_passes(marker, name):
    marks = mark(marker, name, EXERCISES / "solutions" / f"{name}.py")
    assert marks.ok and len(marks.lines) >= 2, str(marks)
    checks = [
        line.name for line in importlib.import_module("_marking").plan(marker.exercises[name]).lines
    ]
    assert checks == [line.name for line in marks.lines] and len({*checks}) == len(checks)
    points = importlib.import_module("_points").points(marks)
    assert points.total == points.most > 0 and not points.half
    assert f"{len(marks.lines)} of {len(marks.lines)} checks pass" in str(marks)


def fillings(name):
    """The stub with its functions filled thoughtlessly: with an argument, or with zeros or ones of the
    first argument's shape or of the right one.
    """
    text = (EXERCISES / f"{name}.py").read_text("utf-8")
    for fill in ("{}", "np.zeros_like({})", "np.ones_like({})", "0.0", "np.zeros(3)"):
        functions = ast.parse(text)
        for node in ast.walk(functions):
            if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return):
                if ast.unparse(node.body[-1]) == "return None":
                    first = node.args.args[0].arg if node.args.args else "0.0"
                    node.body[-1] = ast.parse(f"return {fill.format(first)}").body[0]
        yield f"import numpy as np\n{ast.unparse(functions)}"
    solution = (EXERCISES / "solutions" / f"{name}.py").read_text("utf-8")
    shaped = "class " not in text and name != "order"  # these have effects beside their results
    for like in ("np.zeros_like", "np.ones_like") if shaped else ():
        yield f"{solution}\n{AS_SHAPED.format(like=like)}"


AS_SHAPED = """
import functools
import types
import numpy as np


def shaped(f):
    @functools.wraps(f)
    def filled(*args, **settings):
        value = f(*args, **settings)
        if isinstance(value, dict):
            return {{name: {like}(x) for name, x in value.items()}}
        if isinstance(value, (tuple, list)):
            return type(value)({like}(x) for x in value)
        return {like}(value)

    return filled


for name, value in list(vars().items()):
    if isinstance(value, types.FunctionType) and name != "shaped" and value.__module__ == __name__:
        vars()[name] = shaped(value)
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_a_stub_that_is_filled_without_thought_gets_no_points(
    marker, short_chains, explain_no_more, tmp_path, name
):
    explain_no_more()  # only verdicts count
    path = tmp_path / f"{name}.py"
    for text in fillings(name):
        path.write_text(text, "utf-8")
        marks = mark(marker, name, path)
        assert importlib.import_module("_points").points(marks).total == 0, f"{marks}\n{text}"


def lines(text):
    return [
        line
        for line in map(str.strip, text.splitlines())
        if line and not line.startswith(("#", '"""'))
    ]


def test_every_chapter_has_questions():
    """A section of its own, to which the chapter leads."""
    questions = (ROOT / "docs" / "course" / "questions.md").read_text("utf-8")
    for path in sorted((ROOT / "docs" / "course").glob("[0-9]*.md")):
        text = path.read_text("utf-8")
        (anchor,) = set(
            re.findall(r"see the \[questions with answers\]\(questions\.md#(.*?)\)", text)
        )
        sections = [s for s in questions.split("\n## ")[1:] if f"[Chapter]({path.name})" in s]
        assert len(sections) == 1, f"docs/course/questions.md needs a section for {path.name}"
        title = re.sub(r"[^\w -]", "", sections[0].splitlines()[0].lower()).replace(" ", "-")
        assert title == anchor and sections[0].count("<summary>Answer</summary>") >= 3


def test_the_index_says_what_a_chapter_takes():
    course, before = ROOT / "docs" / "course", {""}
    index = (course / "index.md").read_text("utf-8")
    rows = re.findall(
        r"^\| \[.*?\]\((.*?\.md)\) \| `(\w+)`.*\| (.*?) ?\| \d+ \| (\d+) \|$", index, re.M
    )
    assert [page for page, *_ in rows] == sorted(page.name for page in course.glob("[0-9]*.md"))
    for page, name, needs, write in rows:
        texts = [(EXERCISES / folder / f"{name}.py").read_text() for folder in ("solutions", "")]
        solution, stub = (Counter(lines(text)) for text in texts)
        assert (solution - stub).total() == int(write), page
        assert {*needs.split(", ")} <= before, page
        before.add(re.match(r"0?(\d+b?)", page)[1])


DERIVED = {  # chapters whose exercise asks for rules, and how such a rule would look in a formula
    "vjp": (r"cumsum\(g", r"g_k \+ g_\{k ?\+ ?1\}"),
    "matmul": (r"g \+ g(\.T|\.mT|\^)", r"A \+ A(\.T|\^)"),
    "softmax": (r"\\tau\^2", r"temperature ?\*\* ?2", r"sign\(x\)\)? ?\*"),
    "layer_norm": (r"\(g - y \*", r"/ \\lVert", r"groups, -1"),
    "attention": (r"tri\(.*@ v\.T", r"\* dots"),
    "encoder_layer": (r"s \* \(1 - s\)", r"@ W\.T \+"),
    "train": (r"len\(y\) / ", r"samples\)"),
}


@pytest.mark.parametrize("name", DERIVED)
def test_the_rules_that_an_exercise_asks_for_are_printed_nowhere(marker, name):
    """Not on its page, in its stub, in the derivations or in the package's functions."""
    one = marker.exercises[name]
    (page,) = (ROOT / "docs" / "course").glob(f"{one.number:02}{one.part}-*.md")
    places = [page, ROOT / "docs" / "course" / "derivations.md", EXERCISES / f"{name}.py"]
    places += (ROOT / "tinygrad_attn" / "functional").glob("*.py")
    plain = lambda text: re.sub(r"\s", "", text)
    solution, stub = (
        ast.parse((EXERCISES / folder / f"{name}.py").read_text("utf-8"))
        for folder in ("solutions", "")
    )
    given = {plain(ast.unparse(node)) for node in ast.walk(stub) if isinstance(node, ast.Return)}
    asked = [
        plain(ast.unparse(node.value))
        for function in solution.body
        if isinstance(function, ast.FunctionDef) and ("_vjp" in function.name or name == "train")
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and plain(ast.unparse(node)) not in given
    ]
    assert asked
    for place in places:
        text = place.read_text("utf-8")
        printed = [rule for rule in asked if len(rule) > 10 and rule in plain(text)]
        assert not printed, f"{place.name} prints {printed}"
        if place != places[1] and "functional" not in place.parts:
            found = [pattern for pattern in DERIVED[name] if re.search(pattern, text)]
            assert not found, f"{place.name} has {found}"


MERGED = """        before = maximum[rows], total[rows], result[rows]
        maximum[rows], total[rows], result[rows] = merge(before, part(scores, v[keys]))
"""
RUNNING = """        new = np.maximum(maximum[rows], scores.max(axis=-1, keepdims=True))
        old, e = np.exp(maximum[rows] - new), np.exp(scores - new)
        total[rows] = old * total[rows] + e.sum(axis=-1, keepdims=True)
        result[rows] = old * result[rows] + e @ v[keys]
        maximum[rows] = new
"""
"""The loop of chapter 19's solution, and the same without the two functions before it."""

OF_SOFTMAX = "y * (g - (g * y).sum(axis=-1, keepdims=True)) / temperature"
OF_UNIT = "(g - y * (g * y).sum(axis=-1, keepdims=True)) / length"

MISTAKES = [
    (
        "scalar",
        "-self.data / other.data ** 2",
        "self.data / other.data ** 2",
        "The minus sign is missing",
    ),
    ("order", "if not users[id(parent)]:", "if True:", "listed twice"),
    ("vjp", "return g / (1 + np.exp(-x))", "return g / (1 + np.exp(x))", "Check the sign"),
    ("dual", "self.tangent + other.tangent)", "self.tangent)", "The tangent of b is missing"),
    ("unbroadcast", "keepdims=True", "keepdims=False", "shape (3,), expected (3, 1)"),
    ("matmul", "a @ (g + g.mT)", "2 * a @ g.mT", "right only where g is symmetric"),
    ("matmul", "a @ (g + g.mT)", "a @ g", "one of the two uses of a"),
    ("matmul", "a @ (g + g.mT)", "a @ g.mT", "one of the two uses of a"),
    ("matmul", "g[..., None] * (x @ (A + A.T))", "2 * g[..., None] * (x @ A)", "A is symmetric"),
    ("matmul", "g[..., None] * (x @ (A + A.T))", "g[..., None] * (x @ A)", "one use of x_n"),
    ("matmul", "(g.reshape(-1, 1) * rows)", "rows", "g is missing. Each row has its own g_n"),
    ("matmul", "rows.T @ (g.reshape(-1, 1) * rows)", "g.sum() * rows.T @ rows", "multiply first"),
    ("matmul", "(g.reshape(-1, 1) * rows)", "(g.reshape(-1, 1) * rows) / g.size", "This is a mean"),
    ("softmax", OF_SOFTMAX, "g * y * (1 - y)", "is the rule of the sigmoid"),
    ("softmax", OF_SOFTMAX, OF_SOFTMAX.removesuffix(" / temperature"), "1 / temperature"),
    ("softmax", OF_SOFTMAX, OF_SOFTMAX.replace("-1", "0"), "The sum is over axis 0"),
    ("softmax", "-(by_scores * x).sum()", "(by_scores * x).sum()", "The minus sign is missing"),
    ("softmax", "temperature**2", "temperature", "The square is missing"),
    ("softmax", "-(by_scores * x).sum()", "-(g * x).sum()", "First go back through softmax"),
    ("softmax", "seen = np.where(allowed, g, 0)", "seen = g", "The sum of g covers the whole row"),
    ("softmax", "p = softmax(np.where(allowed, x, -np.inf), 1.0)", "p = np.exp(y)", "e^y is 1"),
    ("softmax", "(g - np.sign(x) *", "(g - ", "The sign of x_j is missing"),
    ("layer_norm", OF_UNIT, OF_UNIT.replace("sum", "mean"), "This is a mean, as in layer norm"),
    ("layer_norm", OF_UNIT, OF_UNIT.removesuffix(" / length"), "not divided by the length"),
    ("layer_norm", "for a in (x, g * weight))", "for a in (x, g))", "The weight is missing"),
    ("layer_norm", "+ n * (h * n).mean(axis=-1, keepdims=True)", "", "The term of the variance"),
    ("layer_norm", "h.mean(axis=-1, keepdims=True) + n", "n", "The term of the mean is missing"),
    (
        "layer_norm",
        "    deviation = np.sqrt",
        "    x -= 1\n    deviation = np.sqrt",
        "Make a new one: write x = x - 1",
    ),
    ("attention", "(by_scores * dots).sum()", "by_scores.sum()", "The dot products are missing"),
    ("attention", "(by_scores * dots).sum()", "(by_weights * dots).sum()", "softmax is missing"),
    (
        "attention",
        "return (np.tri(len(q)) * (g @ v.T)) @ k",
        "return (g @ v.T) @ k",
        "The mask is missing",
    ),
    (
        "attention",
        "return (np.tri(len(q)) * (g @ v.T)) @ k",
        "return (np.tri(len(q)).T * (g @ v.T)) @ k",
        "The mask is upside down",
    ),
    (
        "attention",
        "(np.tri(len(q)) * (g @ v.T)).T @ q",
        "(np.tri(len(q)) * (v @ g.T)) @ q",
        "The mask is upside down",
    ),
    (
        "attention",
        "(np.tri(len(q)) * (q @ k.T)).T @ g",
        "(np.tri(len(q)) * (q @ k.T)) @ g",
        "must be transposed here",
    ),
    ("encoder_layer", " + (g * s) @ V.T", "", "This is the path through the gate alone"),
    ("encoder_layer", "(g * u * s * (1 - s)) @ W.T + ", "", "This is the path through x V alone"),
    ("encoder_layer", "d = g * u * s * (1 - s)", "d = g * u * s", "The factor 1 - s is missing"),
    ("encoder_layer", "d = g * u * s * (1 - s)", "d = g * s * (1 - s)", "x V is missing"),
    ("encoder_layer", "@ (g * s).reshape", "@ g.reshape", "The gate is missing"),
    ("train", "        optimizer.zero_grad()\n", "", "earlier groups are still included"),
    ("train", "(len(y) / samples)", "(1 / len(group))", "All parts count the same here"),
    ("train", " * (len(y) / samples)", "", "sum of the parts' means"),
    (
        "train",
        "            total += loss.item()\n        optimizer.step()",
        "            total += loss.item()\n            optimizer.step()",
        "There is a step after every part",
    ),
    ("attention", "math.sqrt(q.shape[-1])", "q.shape[-1]", "square root"),
    ("attention", "axis=-1)", "axis=-2)", "normalised over the queries"),
    ("encoder_layer", "if norm_first:", "if not norm_first:", "pre-norm form"),
    (
        "encoder_layer",
        "    x = norm1(x + attend(x))\n    return norm2(x + feed_forward(x))",
        "    x = x + norm1(attend(x))\n    return x + norm2(feed_forward(x))",
        "only to the output of the sublayer",
    ),
    (
        "positions",
        "np.arange(0, d_model, 2) / d_model",
        "np.arange(d_model // 2) / d_model",
        "should be 2i / d_model",
    ),
    ("greedy", "[:, -1].argmax", "[:, 0].argmax", "take the scores at its last position"),
    (
        "sampling",
        "bound, scores / temperature",
        "bound, scores * temperature",
        "Divide them by it",
    ),
    ("hvp", ", create_graph=True", "", "create_graph"),
    (
        "rotary",
        "[a * cos - b * sin, a * sin + b * cos]",
        "[a * cos + b * sin, b * cos - a * sin]",
        "rotated in the opposite direction",
    ),
    (
        "online",
        "    maximum = scores.max(axis=-1, keepdims=True)",
        "    maximum = np.full((len(scores), 1), scores.max())",
        "The whole block has a single maximum. Each query",
    ),
    ("written", "(up - down) / (2 * eps)", "(up - down) / eps", "divided by twice the step"),
    (
        "written",
        "np.isclose(np.sum(gradients[name] * u), (up - down) / (2 * eps), rtol",
        "np.isclose(abs(np.sum(gradients[name] * u)), abs(up - down) / (2 * eps), rtol",
        "Do you compare absolute values?",
    ),
    ("opened", "log_p = F.log_softmax(", "log_p = F.softmax(", "gradient of p. Use log p"),
    (
        "opened",
        "(x.grad * x).sum(axis=-1)",
        "np.sqrt((x.grad**2).sum(axis=-1))",
        "lengths of the gradients",
    ),
    ("opened", "weights, 1 - n,", "weights, -n,", "weight of the same token, n places back"),
    ("opened", "order[[a, b]] = b, a", "order[a] = b", "head b still has its own"),
]


@pytest.mark.parametrize("name, right, wrong, said", MISTAKES)
@pytest.mark.filterwarnings(r"ignore:step\(\) changed nothing", "ignore::RuntimeWarning")
def test_a_usual_mistake_is_named(marker, once_explained, tmp_path, name, right, wrong, said):
    text = (EXERCISES / "solutions" / f"{name}.py").read_text("utf-8")
    path = tmp_path / f"{name}.py"
    path.write_text(changed(text, right, wrong), "utf-8")
    marks = sys.modules["_marking"].Marks(path)
    assert marks.load()

    def stop():
        raise Enough

    once_explained(stop)
    with suppress(Enough):
        marker.exercises[name].mark(marks)
    assert not marks.ok and said in marks.help, str(marks)


@pytest.mark.parametrize("name, wrong, said, share", WRONG)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_answer_is_explained_first_and_gets_fair_points(
    marker, once_explained, explain_no_more, tmp_path, name, wrong, said, share
):
    once_explained(explain_no_more)  # of the other checks only the verdicts count
    solution = (EXERCISES / "solutions" / f"{name}.py").read_text("utf-8")
    path = tmp_path / f"{name}.py"
    path.write_text(f"{solution}\n\n{wrong}\n", "utf-8")
    marks = mark(marker, name, path)
    points = importlib.import_module("_points").points(marks)
    assert said in " ".join(marks.help.splitlines()[:2]), str(marks)
    assert points.total <= share * points.most + 1e-9, str(marks)
    assert len(marks.help.splitlines()) <= 20, "large arrays are not printed"


CAST = """    def __array_ufunc__(self, ufunc, method, *inputs, **settings):
        if len(inputs) == 1:
            return getattr(self, ufunc.__name__)()
        reflected = {"subtract": "rsub", "divide": "rtruediv", "add": "radd", "multiply": "rmul"}
        return getattr(self, f"__{reflected[ufunc.__name__]}__")(inputs[0])

"""
ARANGE = "np.arange(keys - queries, keys)"
MENDED = (
    "mean = (d_norm * normalised).mean(-1, keepdims=True)",
    "mean = np.mean(d_norm * weight * normalised, axis=-1, keepdims=True)",
)
PARTS = """        for start in range(0, len(p), block):
            some = slice(start, start + block)
            dv[keys] += p[some].T @ g[rows][some]
"""
RIGHT = [  # other right ways
    # The scores are the same from wherever positions are counted.
    (
        "rotary",
        f"{ARANGE})\n    k = turn(k, positions=np.arange(keys))",
        f"{ARANGE} + 1)\n    k = turn(k, positions=np.arange(keys) + 1)",
    ),
    ("rotary", "turn = ta.op(rotate).vjp(rotate_vjp)", "turn = rotate"),  # its steps have rules
    ("online", MERGED, RUNNING),
    ("online", "        dv[keys] = p.T @ g[rows]\n", PARTS),
    ("dual", "return constant(other) - self", "return -self + other"),
    ("dual", "    __array_priority__ = 1 ", CAST),
    ("written", "return changed, before", f"return {MENDED!r}"),
    ("opened", "[0, -1])\n    log_p[log_p.numpy().argmax()]", "[0, -1]).max()\n    log_p"),
]


@pytest.mark.parametrize("name, right, other", RIGHT)
def test_another_right_way_passes(marker, tmp_path, name, right, other):
    text = (EXERCISES / "solutions" / f"{name}.py").read_text("utf-8")
    path = tmp_path / f"{name}.py"
    path.write_text(changed(text, right, other), "utf-8")
    marks = mark(marker, name, path)
    assert marks.ok, str(marks)


def test_the_program_of_the_exercise_is_the_marker_s_and_one_line_away_from_ours(marker):
    """The exercise's text is the marker's; before the change, its gradients are the package's."""
    module = sys.modules["_marks_program"]
    for folder in ("", "solutions"):
        written = runpy.run_path(str(EXERCISES / folder / "written.py"))
        assert written["PROGRAM"] == module.PROGRAM
    pairs = list(zip(module.RIGHT.splitlines(), module.PROGRAM.splitlines(), strict=True))
    assert sum(one != other for one, other in pairs) == 1
    assert module.wrong_in(module.PROGRAM) == ["x", "Wq", "Wk", "Wv"]

    def loss(x, y, Wq, Wk, Wv, weight, bias, W1, W2):
        h = x + F.softmax(x @ Wq @ (x @ Wk).T / 2) @ (x @ Wv)
        norm = F.layer_norm(h, 4, weight, bias)
        return np.mean((norm + F.relu(norm @ W1) @ W2 - y) ** 2)

    given = module.arrays()
    value, gradients = ta.value_and_grad(loss, argnums=tuple(range(9)))(*given.values())
    found, named = module.run(module.RIGHT)(**given)
    assert np.isclose(found, value.item(), rtol=1e-12)
    for name, gradient in zip(given, gradients, strict=True):
        np.testing.assert_allclose(named[name], gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    "text, said",
    [
        ("def softmax(:\n", "syntax error in line 1"),
        (
            "import numpy as np\n\ndef softmax(x, temperature):\n    return np.exp(y)\n",
            "raises NameError in line 4",
        ),
        ("", "the file defines no function softmax"),
    ],
)
def test_a_file_that_does_not_run_is_a_line_of_the_report(capsys, tmp_path, text, said):
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert cli.main(["exercise", "softmax", str(path)]) == 1
    out = capsys.readouterr().out
    assert said in out and "Traceback" not in out


def test_the_command_line_lists_marks_and_explains(capsys, tmp_path):
    assert cli.main(["exercise"]) == 0
    out = capsys.readouterr().out
    assert all(f" {name} " in out for name in [*NAMES, "zoo"])
    assert cli.main(["exercise", "5", str(EXERCISES / "solutions" / "matmul.py")]) == 0
    assert "exercise 5, matmul" in capsys.readouterr().out
    assert cli.main(["exercise", "softmax"]) == 1
    assert (
        "mark the file:\n    python -m tinygrad_attn exercise softmax mine.py"
        in capsys.readouterr().out
    )
    none = str(tmp_path / "none.py")
    for words, said in [
        (["sofmax"], "softmax"),
        (["softmax", none], "copy of the stub"),
        (["zoo", "99"], "from 1 to"),
    ]:
        assert cli.main(["exercise", *words]) == 2
        assert said in capsys.readouterr().err


# ---- the zoo


@pytest.fixture(scope="module")
def zoo(marker):
    """The zoo, which checks each bug once."""
    game, reports = importlib.import_module("_zoo"), {}
    check = game.check

    def known(case):
        if case.text not in reports:
            reports[case.text] = check(case)
        return reports[case.text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(game, "check", known)
        yield game


def test_each_bug_shows_and_its_op_is_the_only_right_answer(marker, zoo, capsys):
    for number, case in enumerate(zoo.CASES, 1):
        assert case.bug in {bug.name for bug in importlib.import_module("_bugs").list()}
        assert marker.main("zoo", str(number)) == 0
        shown = capsys.readouterr().out
        assert case.text in shown and case.bug not in shown
        assert any(sign in shown for sign in ("by the VJPs", "value is wrong", "stops before")), (
            shown
        )
        answers = [*zoo.ops(case), zoo.SWEEP]
        assert case.answer in answers, case.text
        for answer in answers:
            assert marker.main("zoo", str(number), answer) == (0 if answer == case.answer else 1)
            said = capsys.readouterr().out
            assert said.startswith("Yes") if answer == case.answer else case.bug not in said


def test_a_hint_does_not_name_the_op(marker, zoo, capsys):
    for number, case in enumerate(zoo.CASES, 1):
        assert marker.main("zoo", str(number), "hint") == 0
        out = capsys.readouterr().out
        assert "gradcheck" in out and f"'{case.answer}'" not in out and case.bug not in out
