"""The exam: right engines pass, planted mistakes are named, and a case that fails costs only itself."""

import importlib
import json
import sys
from contextlib import suppress
from itertools import combinations
from types import ModuleType

import numpy as np
import pytest
from support import EXERCISES, ROOT, changed, require, zoo

from tinygrad_attn import cli

ADAPTERS = ROOT / "examples" / "exam"
SOLUTION = (EXERCISES / "solutions" / "engine.py").read_text("utf-8")
DOCUMENTED = {"state: y = a * b, a is overwritten, backward of y"}
"""What chapter 7b says that its engine does not do."""


@pytest.fixture
def examined(marker, short_chains, tmp_path):
    """The verdicts on an engine, and the sentences, in this process; maybe up to the first bad one."""

    def run(path_or_text, only="", to_the_first=False):
        path = tmp_path / "engine.py"
        if isinstance(path_or_text, str):
            path.write_text(path_or_text, "utf-8")
        else:
            path = path_or_text
        marks = sys.modules["_marking"].Marks(path)
        assert marks.load()
        if to_the_first:
            marks.failed = ending(marks.failed)
        with suppress(Enough):
            sys.modules["_exam"].exam(only).mark(marks)
        return {line.name: line.verdict for line in marks.lines}, marks.helps

    return run


class Enough(Exception):
    """A bad verdict has been found; the other cases need not be run."""


def ending(failed):
    """Note a case that is not right, and end the exam if the verdict is bad."""

    def fail(name, verdict, *said):
        failed(name, verdict, *said)
        if verdict != "MISSING":
            raise Enough

    return fail


def bad(verdicts):
    return {name for name, verdict in verdicts.items() if verdict not in ("RIGHT", "MISSING")}


def said(capfd, *arguments, code):
    """What the command prints on stdout, after checking its exit code."""
    assert cli.main(["exam", *map(str, arguments)]) == code, capfd.readouterr()
    return capfd.readouterr().out


# ---- right engines


def test_this_package_is_right_in_every_case(capfd):
    out = said(capfd, ADAPTERS / "for_tinygrad_attn.py", code=0)
    number = int(out.split("all: ")[1].split(" of")[0])
    assert f"all: {number} of {number} right\n" in out and number >= 75


def test_torch_is_not_accused(capfd):
    require("torch")
    out = said(capfd, ADAPTERS / "for_torch.py", code=0)
    assert "WRONG" not in out and "CRASH" not in out and "LOST" not in out


def test_the_courses_own_engine_does_what_its_chapter_says(examined):
    verdicts, _ = examined(SOLUTION)
    assert bad(verdicts) == DOCUMENTED
    assert sum(verdict == "RIGHT" for verdict in verdicts.values()) >= 50


def test_each_case_has_its_own_name_and_a_group(marker):
    cases = sys.modules["_exam_cases"].CASES
    assert len({case.name for case in cases}) == len(cases) >= 75
    assert all(case.name.startswith(f"{case.group}: ") for case in cases)


def test_tensors_of_one_shape_have_different_numbers(marker):
    """Or a gradient that belongs to another operand would pass."""
    for case in sys.modules["_exam_cases"].CASES:
        tensors = [x for x in getattr(case, "tensors", {}).values() if x.ndim]
        for first, second in combinations(tensors, 2):
            assert not np.array_equal(first, second), case.name


# ---- planted mistakes

GRAD = "coming[id(parent)] = coming[id(parent)] + share if id(parent) in coming else share"
ENGINES = {  # what is changed in the solution, the case that finds it, and the sentence
    "overwrites": (GRAD, "coming[id(parent)] = share", "order: x + x", "= where += belongs"),
    "does not reduce": (
        "unbroadcast(rule(g), parent.data.shape)",
        "rule(g)",
        "broadcasting: x * y, x (3, 3), y (3,)",
        "the copies that broadcasting made are not added up",
    ),
    "sends .grad": (
        "for parent, rule in zip(tensor.parents, tensor.vjps):",
        "g = tensor.grad\n            for parent, rule in zip(tensor.parents, tensor.vjps):",
        "passes: h = 2 a; backward of 3 h, then of 5 h",
        "the second pass also sends what the first one left in h.grad",
    ),
    "constant": (
        "lambda g: -g",
        "lambda g: -2 * g",
        "elementwise: -x, x (2, 3)",
        "the gradient is 2 times what it should be",
    ),
    "order of factors": (
        "g @ other.data.swapaxes(-1, -2)",
        "other.data.swapaxes(-1, -2) @ g",
        "products: matmul(x, x), x (3, 3)",
        "",
    ),
    "float64": (
        "isinstance(other, (int, float)) else None",
        "isinstance(other, str) else None",
        "state: (2 x - 0.5) / 3 + x ** 2 of float32 stays float32",
        "is float64",
    ),
    "product's uses": (
        GRAD,
        "coming[id(parent)] = share",
        "order: a = x + x; b = a * a; b + a",
        "= where += belongs",
    ),
    "factor of a number": (
        "lambda g: -g",
        "lambda g: -2 * g",
        "elementwise: 2.0 - x",
        "the gradient is 2 times what it should be",
    ),
    "operands swapped": (
        "return self._operand(other) - self",
        "return self - other",
        "elementwise: 2.0 - x",
        "the value: 1, should be -1: the operands are swapped",
    ),
    "line of an error": (
        "g @ other.data.swapaxes(-1, -2)",
        "g @ other.data",
        "products: matmul(x, y), x (2, 3), y (3, 4)",
        "in line 71 of engine.py: matmul",
    ),
    "lost in float32": (
        "return total * (total.data.size / self.data.size)",
        "return Tensor(np.float32(self.data.mean(axis, keepdims=keepdims)))",
        "state: mean(x, axis=0) of float32 stays float32",
        "the gradient is missing, and no error says so",
    ),
    "one array in place": (
        f"                {GRAD}",
        "                if id(parent) in coming:\n"
        "                    coming[id(parent)] += share\n"
        "                else:\n"
        "                    coming[id(parent)] = share if share.ndim > 1 else rule(g)",
        "state: (x + y) + x, x (3,), y (3,)",
        "a contribution that was meant for x",
    ),
    "turned": (
        "(self,), (lambda g: g.T,)",
        "(self,), (lambda g: g.reshape(self.data.shape),)",
        "shapes: reshape(transpose(x, (1, 0)), (2, 3)) * y, x (2, 3), y (2, 3)",
        "",
    ),
}


@pytest.mark.parametrize("name", ENGINES)
def test_a_planted_mistake_is_found_and_named(examined, name):
    right, wrong, case, sentence = ENGINES[name]
    verdicts, helps = examined(changed(SOLUTION, right, wrong), case.partition(":")[0])
    assert verdicts[case] in ("WRONG", "LOST", "CRASH"), verdicts[case]
    assert sentence in helps[case], helps[case]


def test_a_gradient_that_is_zero_is_lost(examined):
    text = changed(SOLUTION, "(lambda g: g * power", "(lambda g: 0 * g * power")
    verdicts, helps = examined(text, "elementwise")
    assert verdicts["elementwise: x ** 3"] == "LOST"
    assert "it is zero, and no error says so" in helps["elementwise: x ** 3"]


def test_a_wrong_sum_fails_only_the_cases_about_sums(examined):
    wrong = changed(
        SOLUTION,
        "return np.broadcast_to(g, self.data.shape)",
        "return 2 * np.broadcast_to(g, self.data.shape)",
    )
    verdicts, _ = examined(wrong)
    groups = {name.partition(":")[0] for name in bad(verdicts) - DOCUMENTED}
    assert groups == {"reductions"}, bad(verdicts)


BUGS = [bug.name for bug in zoo().list()]
ELSEWHERE = "checker-all-ones"
"""The bug that is in a checker, not in an engine."""


@pytest.mark.parametrize("name", [name for name in BUGS if name != ELSEWHERE])
def test_a_bug_of_the_zoo_is_found_by_the_cases(examined, marker, monkeypatch, name):
    long = lambda case: "10,000 times" in case.name or case.group == "memory"
    exam = sys.modules["_exam"]
    monkeypatch.setattr(exam, "CASES", sorted(exam.CASES, key=long))  # these come last
    with importlib.import_module("_bugs").bug(name):
        verdicts, _ = examined(ADAPTERS / "for_tinygrad_attn.py", to_the_first=True)
    assert bad(verdicts)


# ---- what an adapter may be


def engine(**functions):
    """The solution with other bodies of methods."""
    text = SOLUTION
    for name, body in functions.items():
        text += f"\ndef _(self):\n    {body}\nTensor.{name} = _\n"
    return f"import os, sys\n{text}"


def test_a_case_that_does_not_come_back_costs_only_itself(capfd, tmp_path):
    path = tmp_path / "engine.py"
    text = engine(log="while True: pass", exp="os._exit(3)", tanh="np.ones(10**15)")
    path.write_text(text, "utf-8")
    groups = "elementwise,large numbers"
    out = said(capfd, path, "--only", groups, "--time-limit", 1, "--json", code=1)
    tests = {test["name"]: test for test in json.loads(out)["tests"]}
    verdicts = {name: test["extra_data"]["verdict"] for name, test in tests.items()}
    assert {name for name, verdict in verdicts.items() if verdict == "CRASH"} == {
        *(f"elementwise: {name}(x), x (2, 3)" for name in ("exp", "log", "tanh")),
        "elementwise: exp(x) * tanh(x)",
        "elementwise: log(x) * x",
        "large numbers: tanh(x)",
    }
    assert "no end in 1 s" in tests["elementwise: log(x) * x"]["output"]
    assert verdicts["elementwise: x / y"] == "RIGHT"


def test_only_and_need_and_the_score(capfd, tmp_path):
    path = tmp_path / "engine.py"
    path.write_text(SOLUTION, "utf-8")
    out = said(capfd, path, "--only", "order, shapes", code=0)
    assert "order: 9 of 9 right\n" in out and "shapes: 3 of 3 right, 7 not offered" in out
    assert "all: 12 of 12 right, 7 not offered" in out and "products" not in out
    assert "MISSING stack([x, y, y], axis=1), x (2, 3), y (2, 3): stack is not offered" in out
    said(capfd, path, "--only", "shapes", "--need", "shapes", code=1)
    form = json.loads(said(capfd, path, "--only", "shapes", "--json", code=0))
    assert form["output"] == "exam shapes: 3 of 3 checks pass, 7 not offered."
    form = json.loads(said(capfd, path, "--only", "shapes", "--need", "shapes", "--json", code=1))
    assert form["output"] == "exam shapes: 3 of 10 checks pass."


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("x = 1", "neither tensor(x) nor gradients(f, xs)"),
        ("import no_such_engine", "ModuleNotFoundError in line 1"),
        ("def tensor(x:", "syntax error in line 1"),
        ("class Tensor:\n    def __init__(self, x): raise SystemExit(3)", "raises SystemExit"),
    ],
)
def test_an_adapter_that_cannot_work_is_said_at_once(capfd, tmp_path, text, sentence):
    path = tmp_path / "engine.py"
    path.write_text(text, "utf-8")
    assert sentence in said(capfd, path, code=1)


def test_an_engine_that_offers_nothing_does_not_pass(capfd):
    assert "all: 0 of 0 right" in said(capfd, EXERCISES / "engine.py", "--only", "shapes", code=1)


def test_wrong_use_is_said(capfd, tmp_path):
    assert cli.main(["exam", "nowhere.py"]) == 2
    assert "there is no file 'nowhere.py'" in capfd.readouterr().err
    path = ADAPTERS / "for_tinygrad_attn.py"
    assert cli.main(["exam", str(path), "--only", "ordre"]) == 2
    assert "no group 'ordre'. Did you mean 'order'?" in capfd.readouterr().err


def test_a_class_that_records_only_if_asked_is_asked(examined):
    text = changed(
        SOLUTION,
        "data, parents=(), rules=()):",
        "data, parents=(), rules=(), *, requires_grad=False):",
    )
    text = changed(
        text,
        "coming = {id(self)",
        "assert any(t.wanted for t in users_first(self)); coming = {id(self)",
    )
    text = changed(text, "rules, None\n", "rules, None\n        self.wanted = requires_grad\n")
    verdicts, _ = examined(text, "passes")
    assert set(verdicts.values()) == {"RIGHT"}, verdicts
    verdicts, _ = examined(f"{SOLUTION}\nTensor.__signature__ = 'as of a class in C'", "passes")
    assert set(verdicts.values()) == {"RIGHT"}, verdicts


def test_an_adapter_imports_the_engine_beside_it(capfd, tmp_path):
    """Even if the engine's name is that of an exercise of the course."""
    (tmp_path / "engine.py").write_text(SOLUTION, "utf-8")
    (tmp_path / "adapter.py").write_text("from engine import Tensor\n", "utf-8")
    assert "order: 9 of 9 right" in said(capfd, tmp_path / "adapter.py", "--only", "order", code=0)


def test_words_are_found_in_modules_and_methods_under_other_names(marker):
    Engine, Missing = sys.modules["_exam_engine"].Engine, sys.modules["_exam_engine"].Missing
    adapter, library = ModuleType("adapter"), ModuleType("library")
    library.summation = lambda x, axes: (x, axes)
    library.permute = lambda x, first, second, third: (x, (first, second, third))
    adapter.functions, adapter.gradients, adapter.exp = (library,), None, lambda x: "its own"
    found = Engine(adapter)
    assert found.word("exp")(1) == "its own"
    assert found.word("sum")(1, axis=0) == (1, 0)
    assert found.word("transpose")(1, (1, 2, 0)) == (1, (1, 2, 0))
    with pytest.raises(Missing, match="cosine is not offered"):
        found.word("cosine")(1)


NUMBERS_ONLY = """
class Number:
    def __init__(self, v, slopes=()):
        self.v, self.slopes, self.grad = v, slopes, 0.0

    def __add__(self, other):
        return Number(self.v + other.v, [(self, 1.0), (other, 1.0)])

    def __mul__(self, other):
        return Number(self.v * other.v, [(self, other.v), (other, self.v)])

    def __sub__(self, other):
        return Number(self.v - other.v, [(self, 1.0), (other, -1.0)])

    def __pow__(self, power):
        return self * self * self if power == 3 else Number(1.0)

    def __rmul__(self, number):
        return self * Number(number)

    def __rsub__(self, number):
        return Number(number) - self

    def relu(self):
        return Number(max(0.0, self.v), [(self, 1.0 * (self.v < 0))])

    def backward(self, g=1.0):
        self.grad += g
        for x, slope in self.slopes:
            x.backward(g * slope)

scalar = True
tensor = Number
value = lambda t: t.v
"""


TAPE = """
class Number:
    tape = []

    def __init__(self, data, *made):
        self.data, self.grad, self.made = data, None, made
        self.tape.append(self)

    def __mul__(self, other):
        factor = other.data if isinstance(other, Number) else other
        return Number(self.data * factor, self, factor)

    def backward(self):
        self.grad = 1.0
        for y in reversed(self.tape):
            if y.made and y.grad is not None:
                x, factor = y.made
                x.grad = (x.grad or 0.0) + y.grad * factor

scalar, tensor = True, Number
"""


def test_a_second_pass_that_runs_the_first_again_is_named(examined):
    verdicts, helps = examined(TAPE, "passes")
    for name in ("backward of 3 a, then of 5 a", "h = 2 a; backward of 3 h, then of 5 h"):
        assert verdicts[f"passes: {name}"] == "WRONG"
        assert "runs the first one again" in helps[f"passes: {name}"], helps


FUNCTIONS_OF_OBJECTS = """
class Node:
    def __init__(self, x): self.x = x
    def __radd__(self, number): return Node(number + self.x)
    def __mul__(self, other): return Node(self.x * other.x)
    def sum(self): return Node(self.x.sum())
gradients = lambda f, xs: [x * 0 + 1 for x in xs if f(*map(Node, xs))]
constant, value = Node, lambda node: node.x
"""


def test_an_array_of_objects_is_not_offered_whatever_the_engine_is(examined):
    verdicts, helps = examined(FUNCTIONS_OF_OBJECTS, "numpy")
    assert verdicts["numpy: A + x, x (3,)"] == "MISSING", helps


def test_a_gradient_may_be_a_plain_number_whatever_a_value_is(examined):
    verdicts, _ = examined(NUMBERS_ONLY, "elementwise")  # it follows every path
    assert verdicts["elementwise: x ** 3"] == "RIGHT", verdicts
    upside_down = "elementwise: relu(x) - 3.0 * relu(2.0 - x)"
    assert verdicts[upside_down] == "WRONG", verdicts


def test_a_sum_that_adds_up_one_axis_by_default_can_weight_results(examined):
    along_one = changed(SOLUTION, "def sum(self, axis=None", "def sum(self, axis=-1")
    verdicts, _ = examined(along_one, "broadcasting,products")
    assert not bad(verdicts), bad(verdicts)


def test_a_librarys_word_with_another_meaning_is_no_mistake(marker):
    """Its cross_entropy may take probabilities, and its dot of stacks may be NumPy's."""
    Engine, Missing = sys.modules["_exam_engine"].Engine, sys.modules["_exam_engine"].Missing
    adapter, library = ModuleType("adapter"), ModuleType("library")
    library.cross_entropy, library.dot = (lambda x, target: -1.0), np.dot
    adapter.functions, adapter.gradients = (library,), None
    found, stack = Engine(adapter), np.ones((2, 2, 2)).view(NoProduct)
    with pytest.raises(Missing, match="cross_entropy is not offered"):
        found.word("cross_entropy")(np.ones((2, 3)), [0, 1])
    with pytest.raises(Missing, match="matmul"):
        found.word("matmul")(stack, stack)
    assert (found.word("matmul")(stack[0], stack[0]) == 2).all()
    adapter.cross_entropy = lambda x, target: "its own"
    assert Engine(adapter).word("cross_entropy")(1, 2) == "its own"


class NoProduct(np.ndarray):
    """An array without the operator @."""

    def __matmul__(self, other):
        return NotImplemented

    __rmatmul__ = __matmul__


def test_the_sites_editor_marks_an_engine_with_the_same_words(
    capfd, marker, short_chains, tmp_path
):
    """A page marks in one process, and is told which case was running when it had to be stopped."""
    path = tmp_path / "exam.py"
    path.write_text(SOLUTION, "utf-8")
    groups, told = "order,shapes,state", []  # right, wrong, and not offered
    chosen = marker.find(f"exam {groups}")._replace(name="exam")
    marks = sys.modules["_apart"].mark_here(chosen, path, told.append, "")
    assert marker.outcome(chosen, marks, path) + "\n" == said(capfd, path, "--only", groups, code=1)
    stopped = next(text for text in told if "order: x - x" in text)
    marks = sys.modules["_apart"].mark_here(chosen, path, told.append, stopped, 10)
    assert marks.lines[2].verdict == "no end in 10 s"
    assert "order: 8 of 9 right (1 CRASH)" in marker.outcome(chosen, marks, path)
