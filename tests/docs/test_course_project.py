"""The course's project, an engine of the student's own: usual mistakes in it are named, and every line of its marker can fail."""

import sys
from contextlib import suppress

import pytest
from support import EXERCISES, changed

SOLUTION = (EXERCISES / "solutions" / "engine.py").read_text("utf-8")


class Enough(Exception):
    """The help is about the first check that fails; the others need not be run."""


@pytest.fixture
def first(marker, short_chains, tmp_path, monkeypatch):
    """Marks a step of the solution with a change, up to the first check that fails."""
    Marks = sys.modules["_marking"].Marks
    failed = Marks.failed

    def fail(self, *args, **settings):
        failed(self, *args, **settings)
        raise Enough

    monkeypatch.setattr(Marks, "failed", fail)

    def run(step, right, wrong):
        path = tmp_path / "mine.py"
        path.write_text(changed(SOLUTION, right, wrong), "utf-8")
        marks = Marks(path)
        assert marks.load()
        marks.step = str(step)
        with pytest.raises(Enough):
            marker.exercises["engine"].mark(marks)
        return marks

    return run


START = "        coming = {id(self): np.ones_like(self.data) if g is None else np.asarray(g)}\n"
SHARE = "share = unbroadcast(rule(g), parent.data.shape)"
ADD = "coming[id(parent)] = coming[id(parent)] + share if id(parent) in coming else share"
GRAD = "tensor.grad = g.copy() if tensor.grad is None else tensor.grad + g"
PARENTS = "            for parent, rule in zip(tensor.parents, tensor.vjps):"
STEP = "            p.data = p.data - lr * p.grad"

WALKS = {  # other ways to walk, in place of the solution's
    "visits once, when first reached, depth first": (
        """
        seen = {id(self)}
        def visit(t):
            for parent, rule in zip(t.parents, t.vjps):
                give(parent, rule(t.grad))
                if id(parent) not in seen:
                    seen.add(id(parent))
                    visit(parent)
        self.grad = coming[id(self)]
        visit(self)
""",
        "2 a = x + x; b = a * a; (a + b) * (b + a): WRONG",
        "before all its users have contributed",
    ),
    "visits once, when first reached, level by level": (
        """
        found, seen = [self], {id(self)}
        self.grad = coming[id(self)]
        for t in found:
            for parent, rule in zip(t.parents, t.vjps):
                give(parent, rule(t.grad))
                if id(parent) not in seen:
                    seen.add(id(parent))
                    found.append(parent)
""",
        "2 a = x + x; b = a * a; (a + b) * (b + a): WRONG",
        "before all its users have contributed",
    ),
    "passes its whole .grad on at each visit": (
        """
        give(self, coming[id(self)])
        for parent, rule in zip(self.parents, self.vjps):
            parent.backward(rule(self.grad))
""",
        "2 a = x + x; b = a * a; (a + b) * (b + a): WRONG",
        "passes its whole gradient on again with each contribution",
    ),
    "calls itself along every path": (
        """
        give(self, coming[id(self)])
        for parent, rule in zip(self.parents, self.vjps):
            parent.backward(rule(coming[id(self)]))
""",
        "2 x = x + y, 10,000 times, gradient of x: raises RecursionError",
        "a loop has no such limit",
    ),
    "sorts with a recursive function": (
        """
        order, seen = [], set()
        def visit(t):
            if id(t) not in seen:
                seen.add(id(t))
                for parent in t.parents:
                    visit(parent)
                order.append(t)
        visit(self)
        self.grad = coming[id(self)]
        for t in reversed(order):
            for parent, rule in zip(t.parents, t.vjps):
                give(parent, rule(t.grad))
""",
        "2 x = x + y, 10,000 times, gradient of x: raises RecursionError",
        "a loop has no such limit",
    ),
    "loops along every path": (
        """
        waiting = [(self, coming[id(self)])]
        while waiting:
            t, g = waiting.pop()
            give(t, g)
            waiting += [(parent, rule(g)) for parent, rule in zip(t.parents, t.vjps)]
""",
        "2 x = x + x, 60 times: WRONG",
        "backward follows every path",
    ),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_wrong_walk_is_named(first, name):
    walk, *said = WALKS[name]
    give = """
        def give(t, g):
            t.grad = g if t.grad is None else t.grad + g
"""
    marks = first(2, START, f"{START}{give}{walk}        return\n")
    assert all(text in marks.help for text in said), str(marks)


ENGINE = [  # the step that finds it, what is changed, and what is said
    # what is remembered
    (1, "class Tensor:", "class Array:", "defines no class Tensor"),
    (
        1,
        "(self, other), (lambda g: g, lambda g: g)",
        "(other, self), (lambda g: g, lambda g: g)",
        "x and y themselves, in this order",
    ),
    (2, "np.ones_like(self.data) if", "np.zeros_like(self.data) if", "the pass begins with 1"),
    (
        1,
        "(lambda g: g, lambda g: g)",
        "(lambda g: 1, lambda g: 1)",
        "shape (), should be (2, 3)\n\n    A rule takes g, the gradient of the loss",
    ),
    (2, ADD, "coming[id(parent)] = share", "one use overwrites the other: = where += belongs"),
    (
        3,
        SHARE,
        "share = rule(g)",
        "3 x * y, x (3, 3), y (3,), gradient of y: WRONG\n    shape (3, 3), should be (3,): the copies that broadcasting made are not added up",
    ),
    (
        3,
        "if n == 1), keepdims=True)",
        "if n == 1))",
        "a gradient of the shape (3,) on to a Tensor of the shape (3, 1)",
    ),
    # numbers and arrays
    (
        4,
        "self * self._operand(other) ** -1.0",
        "self._operand(other) * self ** -1.0",
        "4 x / y: WRONG\n    the value: -0.666667, should be -1.5: the operands are swapped",
    ),
    (
        4,
        "g * power * self.data",
        "g * 2 * self.data",
        "4 x ** 3: WRONG\n    gradient of x: 8, should be 12: constant factor: the gradient is 0.666667 times what it should be.",
    ),
    (
        4,
        "        other = self._operand(other)\n        return Tensor(self.data + ",
        "        return Tensor(self.data + ",
        "turn an operand that is a number or an array into a Tensor",
    ),
    (
        4,
        "def __radd__",
        "def radd",
        "for +: 'float' and 'Tensor'. The left operand does not support Tensors, so Python calls the method __radd__",
    ),
    (7, "def __rmatmul__", "def rmatmul", "Python calls the method __rmatmul__"),
    (
        2,
        "np.ones_like(self.data) if",
        "np.ones(self.data.shape) if",
        "2 .grad of float32 is float32: no\n    .grad is float64, but should be float32. Begin backward with np.ones_like",
    ),
    # functions
    (
        5,
        "(lambda g: g * y,)",
        "(lambda g: g * self.data,)",
        "x where y belongs, or a division by y where one by x belongs.\n\n    The slope of exp(x) is exp(x), the output, not x.",
    ),
    (
        5,
        "1 - y * y",
        "1 - y",
        "the gradient lacks a factor (1 + y), or is divided by (1 + y) once too often.\n\n    The slope of tanh(x) is 1 - y ** 2, where y",
    ),
    # sums and shapes
    (
        6,
        "g = np.expand_dims(g, axis)",
        "g = np.expand_dims(g, axis if axis == 1 else 0)",
        "spread along, the wrong axis",
    ),
    (
        6,
        "return total * (total.data.size / self.data.size)",
        "return Tensor(total.data * (total.data.size / self.data.size), total.parents, total.vjps)",
        "g is not divided by the number of elements of the mean\n\n    Each element contributes only 1/N",
    ),
    (6, "lambda g: g.reshape(self.data.shape)", "lambda g: g", "Reshape it to the old one"),
    (
        7,
        "g @ other.data.swapaxes(-1, -2)",
        "g @ other.data",
        "The rules are g b^T and a^T g. Swap only the last two axes",
    ),
    (
        7,
        "self.data.swapaxes(-1, -2) @ g))",
        "self.data.T @ g))",
        "the rule is right for x with its axes in the order (2, 0, 1).\n\n    The rules are g b^T and a^T g. Swap only the last two axes",
    ),
    # vectors and zeros
    (4, "power - 1 if power else 0", "power - 1", "0 times infinity, which is NaN"),
    (
        7,
        "if 1 in (self.data.ndim, other.data.ndim):",
        "if False:",
        "a matrix with one row, and on the right a matrix with one column",
    ),
]
NETWORK = [
    (8, "(x @ w1 + b1).tanh()", "(x @ w1 + b1)", "the tanh is missing"),
    (
        8,
        "scores.data.max(axis=1, keepdims=True)",
        "scores.data.max()",
        "the largest score of each row",
    ),
    (8, "losses.append(loss.data.item())", "losses.append(loss)", "a list of plain numbers"),
    (8, "scores - scores.data.max(axis=1, keepdims=True)", "scores - 0.0", "e^1000 is infinite"),
    (8, STEP, "            p = Tensor(p.data - lr * p.grad)", "Nothing is learned"),
    (
        8,
        f"        for p in parameters:\n{STEP}",
        "        parameters = [Tensor(p.data - lr * p.grad) for p in parameters]",
        "should contain the trained numbers",
    ),
]


@pytest.mark.parametrize("step, right, wrong, said", ENGINE + NETWORK)
def test_a_usual_mistake_is_named(first, step, right, wrong, said):
    marks = first(step, right, wrong)
    assert said in marks.help, str(marks)


def test_a_wrong_rule_costs_its_own_checks_alone(marker, short_chains, tmp_path):
    """The rule of products for the first factor; the network is trained with right methods."""
    path = tmp_path / "mine.py"
    path.write_text(
        changed(SOLUTION, "g @ other.data.swapaxes(-1, -2)", "g * 2 @ other.data.swapaxes(-1, -2)")
    )
    marks = marker.mark(marker.find("engine"), path)
    off = [line for line in marks.lines if not line.ok]
    assert off and all(
        line.name.startswith("7 ")
        and line.name.endswith("gradient of x")
        or line.name == "7 x @ A, x (2, 2)"
        or not line.weight
        for line in off
    )


def test_a_wrong_loss_costs_its_own_checks_alone(marker, short_chains, tmp_path):
    """The training is marked with the right loss, and the parameters without the list of losses."""
    for right, wrong, costs in (
        ("(shifted * onehot).sum(axis=1)).mean()", "(shifted * onehot).sum(axis=1)).sum()", 2),
        ("losses.append(loss.data.item())", "losses.append(loss)", 1),
    ):
        path = tmp_path / "mine.py"
        path.write_text(changed(SOLUTION, right, wrong), "utf-8")
        marks = marker.mark(marker.find("engine, step 8"), path)
        assert sum(not line.ok and line.weight > 0 for line in marks.lines) == costs, str(marks)


def test_a_step_is_marked_alone(marker, short_chains, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOLUTION.replace("y = np.exp", "y = np.exp2"))
    for step, ok in (("2", True), ("5", False)):
        marks = marker.mark(marker.find(f"engine, step {step}"), path)
        assert marks.ok is ok and {line.name[0] for line in marks.lines} == {step}, str(marks)
    with pytest.raises(ValueError, match="the steps of engine are 1, 2, 3"):
        marker.find("engine, step 9")


@pytest.fixture(scope="module")
def exam(marker, short_chains, tmp_path_factory):
    """Returns the exam's verdicts on the text of an engine, up to one that `wanted` does not have."""
    path = tmp_path_factory.mktemp("exam") / "mine.py"

    def run(text, wanted=None):
        path.write_text(text, "utf-8")
        marks = sys.modules["_marking"].Marks(path)
        assert marks.load()
        failed = marks.failed

        def fail(name, verdict, *said):
            failed(name, verdict, *said)
            if wanted and wanted.get(name, "RIGHT") == "RIGHT":
                raise Enough

        marks.failed = fail
        with suppress(Enough):
            sys.modules["_exam"].examine(marks)
        return {line.name: line.verdict for line in marks.lines}

    return run


@pytest.fixture(scope="module")
def right_verdicts(exam):
    return exam(SOLUTION)


@pytest.mark.parametrize(
    "right, wrong", [mistake[1:3] for mistake in ENGINE if "in this order" not in mistake[3]]
)
def test_the_exam_finds_the_mistake_too(exam, right_verdicts, right, wrong):
    """The order of the parents is the chapter's own convention."""
    verdicts = exam(changed(SOLUTION, right, wrong), right_verdicts)
    assert any(v != "RIGHT" == right_verdicts.get(name, v) for name, v in verdicts.items()) or (
        verdicts.keys().isdisjoint(right_verdicts)  # it is no adapter
    )


@pytest.mark.parametrize(
    "right, wrong, line",
    [
        (
            "Tensor(self.data + other.data",
            "Tensor(self.data - other.data",
            "1 x + y, x (2, 3), y (2, 3)",
        ),
        ("Tensor(-self.data", "Tensor(self.data", "4 -x, x (2, 3)"),
        ("y = np.exp", "y = np.exp2", "5 exp(x), x (2, 3)"),
        ("y = np.tanh", "y = np.sin", "5 tanh(x), x (2, 3)"),
        ("self.data.sum(axis=axis", "self.data.sum(axis=None", "6 sum(x, axis=0), x (3, 3)"),
        (
            "self.data.sum(axis=axis, keepdims=keepdims)",
            "self.data.sum(axis=axis)",
            "6 sum(x, axis=1, keepdims=True), x (2, 3)",
        ),
        (
            "self.data.reshape(*shape)",
            "self.data.reshape(shape[::-1])",
            "6 reshape(x, (3, 2)), x (2, 3)",
        ),
        (
            "self.data @ other.data",
            "self.data * other.data",
            "7 matmul(x, y), x (2, 3), y (3, 4)",
        ),
    ],
)
def test_a_wrong_value_is_its_own_line(first, right, wrong, line):
    assert first(line[0], right, wrong).lines[-1].name == line
