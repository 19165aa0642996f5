"""The course's exercises: every stub fails its marker with a helpful text, every solution passes, and usual mistakes are named."""

import re
import runpy
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from support import EXERCISES, ROOT, changed

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import cli
from tinygrad_attn.check import zoo

NAMES = sorted(p.stem for p in (EXERCISES / "solutions").glob("*.py"))


def mark(marker, name, path):
    return marker.mark(marker.exercises[name], path)


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
    assert f"{len(marks.lines)} of {len(marks.lines)} checks pass." in str(marks)


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
            re.findall(r"More \[questions, with answers\]\(questions\.md#(.*?)\)", text)
        )
        sections = [s for s in questions.split("\n## ")[1:] if f"[Chapter]({path.name})" in s]
        assert len(sections) == 1, f"docs/course/questions.md needs a section for {path.name}"
        title = re.sub(r"[^\w -]", "", sections[0].splitlines()[0].lower()).replace(" ", "-")
        assert title == anchor and sections[0].count("<summary>Answer</summary>") >= 3


def test_the_index_says_what_a_chapter_takes():
    course, cost = ROOT / "docs" / "course", {}
    index = (course / "index.md").read_text("utf-8")
    rows = re.findall(
        r"^\| \[.*?\]\((.*?\.md)\) \| `(\w+)`.*\| (.*?) ?\| (\d+) \| (\d+) \|$", index, re.M
    )
    assert [page for page, *_ in rows] == sorted(page.name for page in course.glob("[0-9]*.md"))
    for page, name, needs, read, write in rows:
        text = (course / page).read_text("utf-8")
        code = lines("".join(re.findall(r"```\w*\n(.*?)```", text, re.S)))
        words = re.sub(r"(?s)```.*?```|\$\$.*?\$\$|\]\(.*?\)", " ", text).split()
        assert abs(len(words) / 150 + len(code) / 6 + text.count("$$") / 2 - int(read)) < 1, page
        solution, stub = (
            Counter(lines((EXERCISES / folder / f"{name}.py").read_text("utf-8")))
            for folder in ("solutions", "")
        )
        assert (solution - stub).total() == int(write), page
        assert set(needs.split(", ")) <= {"", *cost}, page
        cost[re.match(r"0?(\d+b?)", page)[1]] = 3 * int(read) + 2 * int(write) * (int(write) <= 20)
    plan = re.findall(r"^\| \d+ \| (?:these, then )?([\d ;]+) \|$", index, re.M)
    sessions = [session.split() for row in plan for session in row.split("; ")]
    assert len(sessions) == 12 and sum(sessions, []) == [
        number for number in cost if number not in ("3b", "7b")
    ]
    assert all(sum(map(cost.get, session)) <= 90 for session in [*sessions, ["3b"], ["7b"]])


PRODUCT = "self.tangent * other.value + self.value * other.tangent)"
QUOTIENT = "(self.tangent * other.value - self.value * other.tangent) / other.value ** 2)"
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

MISTAKES = [
    (
        "slope",
        "(f(x + step) - f(x - step)) / (2 * eps)",
        "(f(x + step) - f(x)) / eps",
        "one-sided slope",
    ),
    ("slope", "/ (2 * eps)", "/ eps", "twice the slope"),
    (
        "slope",
        "(f(x + step) - f(x - step))",
        "(f(np.add(x, step, out=x)) - f(x - 2 * step))",
        "x has other values after the call",
    ),
    ("scalar", "(1 - y ** 2,)", "(1 - self.data ** 2,)", "This is 1 - x^2"),
    (
        "scalar",
        "-self.data / other.data ** 2",
        "self.data / other.data ** 2",
        "the sign is missing",
    ),
    ("scalar", "(1.0, -1.0)", "(1.0, 1.0)", "b pulls the other way"),
    ("order", "if not users[id(parent)]:", "if True:", "listed twice"),
    ("order", "found.append(node)", "found.insert(0, node)", "comes before its user"),
    ("order", "parent.grad += node.grad * slope", "parent.grad = node.grad * slope", "add them up"),
    (
        "order",
        "    users, waiting",
        """    found, seen = [last], {id(last)}
    for node in found:
        for parent in node.parents:
            if id(parent) not in seen:
                seen.add(id(parent))
                found.append(parent)
    return found
    users, waiting""",
        "a diamond, mirrored: no\n    a comes before its user b",
    ),
    (
        "order",
        "    users, waiting",
        """    found, seen, stack = [], set(), [last]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            found.append(node)
            stack += node.parents[::-1]
    return found
    users, waiting""",
        "a comes before its user b",
    ),
    (
        "order",
        "        found.append(node)",
        "        found.append(node)\n        sorted(last.parents, key=id)",
        "or all nodes are looked through again for each",
    ),
    (
        "order",
        "    last.grad = 1.0",
        """    last.grad, users = 1.0, {}
    for node in users_first(last):
        for parent in node.parents:
            users[id(parent)] = users.get(id(parent), 0) + 1

    def walk(node):
        for parent, slope in zip(node.parents, node.slopes):
            parent.grad += node.grad * slope
            users[id(parent)] -= 1
            if not users[id(parent)]:
                walk(parent)
    walk(last)
    return last.grad""",
        "of a chain of 20,000: raises RecursionError",
    ),
    (
        "scalar",
        "return Scalar(y, (self,), (1 - y ** 2,))",
        "return y",
        "returns a float; each returns a Scalar",
    ),
    ("scalar", "class Scalar:", "class Number:", "defines no class Scalar"),
    (
        "scalar",
        "class Scalar:",
        "def Scalar(data):\n    return Number(data)\n\n\nclass Number:",
        "defines no class Scalar",
    ),
    (
        "vjp",
        "return g / (1 + np.exp(-x))",
        "return 1 / (1 + np.exp(-x))",
        "incoming gradient ignored",
    ),
    ("vjp", "return g / (1 + np.exp(-x))", "return g / (1 + np.exp(x))", "mind the sign"),
    (
        "vjp",
        "np.cumsum(g[..., ::-1], axis=-1)[..., ::-1]",
        "np.cumsum(g, axis=-1)",
        "a running sum from the end",
    ),
    ("dual", "self.tangent + other.tangent)", "self.tangent)", "b's is missing"),
    (
        "dual",
        "self.value + other.value, self.tangent + other.tangent",
        "self.value + other.value, other.tangent",
        "a's is missing",
    ),
    (
        "dual",
        "Dual(-self.value, -self.tangent)",
        "Dual(-self.value, self.tangent)",
        "changes its sign with the value",
    ),
    (
        "dual",
        "return self + -constant(other)",
        "return constant(other) - self",
        "and so on without end",
    ),
    ("dual", "return self + -constant(other)", "return constant(other) + -self", "This is b - a"),
    (
        "dual",
        "return self + -constant(other)",
        "return Dual(self.value - constant(other).value, self.tangent + constant(other).tangent)",
        "b's sign is wrong",
    ),
    ("dual", PRODUCT, "self.tangent * other.value)", "The second is missing: b moves as well"),
    ("dual", PRODUCT, "self.value * other.tangent)", "The first is missing: a moves as well"),
    ("dual", PRODUCT, "self.tangent * other.tangent)", "Its place is at eps^2, which is 0"),
    (
        "dual",
        PRODUCT,
        "self.tangent * self.value + other.value * other.tangent)",
        "multiplied by the value of the other",
    ),
    ("dual", "self.value / other.value, (self", "other.value / self.value, (self", "This is b / a"),
    (
        "dual",
        "(self.tangent * other.value - self.value * other.tangent) /",
        "(self.tangent * other.value + self.value * other.tangent) /",
        "The quotient rule has a minus",
    ),
    (
        "dual",
        "(self.tangent * other.value - self.value * other.tangent) /",
        "(self.value * other.tangent - self.tangent * other.value) /",
        "and not the other way round",
    ),
    ("dual", "/ other.value ** 2", "/ other.value", "its square is missing"),
    ("dual", "/ other.value ** 2", "/ self.value ** 2", "not a^2"),
    ("dual", QUOTIENT, "self.tangent / other.value)", "Only a' / b"),
    ("dual", QUOTIENT, "self.tangent / other.tangent)", "This is a' / b'"),
    ("dual", "self.value ** (n - 1)", "self.value ** n", "the power is not taken down by one"),
    ("dual", "n * self.value ** (n - 1)", "self.value ** (n - 1)", "its factor n is missing"),
    (
        "dual",
        "(n - 1) * self.tangent",
        "(n - 1)",
        "By the chain rule it is multiplied by a's tangent",
    ),
    ("dual", "n * self.value ** (n - 1)", "2 * self.value", "This is the tangent of a^2"),
    ("dual", "y * self.tangent", "y", "By the chain rule"),
    ("dual", "y * self.tangent", "self.value * self.tangent", "e^a, the result, not a"),
    ("dual", "y * self.tangent", "np.exp(self.tangent)", "e to the tangent"),
    ("dual", "self.tangent / self.value)", "1 / self.value)", "By the chain rule"),
    (
        "dual",
        "self.tangent / self.value)",
        "self.tangent / np.log(self.value))",
        "this is 1 / log(a)",
    ),
    ("dual", "np.cos(self.value) * self.tangent", "np.cos(self.value)", "By the chain rule"),
    (
        "dual",
        "np.cos(self.value) * self.tangent",
        "-np.cos(self.value) * self.tangent",
        "with a plus",
    ),
    (
        "dual",
        "np.cos(self.value) * self.tangent",
        "np.sin(self.tangent)",
        "the sine of the tangent",
    ),
    (
        "dual",
        "np.cos(self.value) * self.tangent",
        "np.cos(self.tangent)",
        "that of the value, times the tangent",
    ),
    (
        "dual",
        "np.cos(self.value) * self.tangent",
        "np.sin(self.value) * self.tangent",
        "The slope of sin is cos.",
    ),
    ("dual", "self.tangent.sum()", "self.value.sum()", "added up like the values"),
    ("dual", "self.tangent.sum()", "self.tangent", "a tangent of shape (2, 3)"),
    (
        "dual",
        "        other = constant(other)\n        return Dual(self.value + other.value, self.tangent + other.tangent)",
        "        self.value = self.value + other.value\n        self.tangent = self.tangent + other.tangent\n        return self",
        "a + b changes an operand",
    ),
    (
        "dual",
        "return Dual(self.value + other.value, self",
        "return Dual(np.add(self.value, other.value, out=self.value), self",
        "a + b changes an operand",
    ),
    (
        "dual",
        "return Dual(-self.value, -self.tangent)",
        "return -self.value",
        "-a is a ndarray; it should be a Dual",
    ),
    *[
        (
            "dual",
            "return Dual(np.sin(self.value), np",
            "return Dual(np.sin(self), np",
            "and so on without end",
        )
    ]
    * (
        sys.version_info < (3, 12)
    ),  # later ones end Python itself so far down; the marker's own process names that
    (
        "dual",
        "return Dual(y, y * self.tangent)",
        "return Dual(self, y * self.tangent)",
        "a Dual inside a Dual",
    ),
    ("dual", "class Dual:", "class Duals:", "defines no class Dual"),
    (
        "dual",
        "else Dual(x, np.zeros(np.shape(x)))",
        "else Dual(x, np.ones(np.shape(x)))",
        "A constant has a tangent of 1 here",
    ),
    (
        "dual",
        "else Dual(x, np.zeros(np.shape(x)))",
        "else Dual(x, 0.0)",
        "an array that is constant has an array of zeros",
    ),
    (
        "dual",
        "x if isinstance(x, Dual) else Dual(x, np.zeros(np.shape(x)))",
        "x",
        "Make a Dual of an operand that is none",
    ),
    (
        "dual",
        "    def __rmul__(self, other):\n        return constant(other) * self\n\n",
        "",
        "so Python asks for __rmul__",
    ),
    (
        "dual",
        "    def __rsub__(self, other):\n        return constant(other) - self\n\n",
        "",
        "so Python asks for __rsub__",
    ),
    (
        "dual",
        "return constant(other) - self",
        "return self - constant(other)",
        "The operands have changed places",
    ),
    (
        "dual",
        "return constant(other) / self",
        "return self / constant(other)",
        "The operands have changed places",
    ),
    (
        "dual",
        "    __array_priority__ = 1 ",
        "    unused = 1 ",
        "`__array_priority__ = 1` in the class",
    ),
    (
        "dual",
        "    __array_priority__ = 1 ",
        "    __array_ufunc__ = None ",
        "only where the class does not set __array_ufunc__",
    ),
    (
        "dual",
        "    return y.value, y.tangent",
        "    return y.tangent",
        "jvp returns a ndarray; the task asks for two arrays",
    ),
    (
        "dual",
        "    return y.value, y.tangent",
        "    return y",
        "jvp returns a Dual; the task asks for two arrays",
    ),
    (
        "dual",
        "    return y.value, y.tangent",
        "    return y, y.tangent",
        "jvp returns a Dual; the task asks for two arrays",
    ),
    (
        "dual",
        "    return y.value, y.tangent",
        "    return y.tangent, y.value",
        "This is J v: f(x) comes first",
    ),
    ("dual", "np.asarray(v, float)", "np.ones(np.shape(x))", "J times ones"),
    ("dual", "np.asarray(v, float)", "np.zeros(np.shape(x))", "Nothing moves"),
    (
        "dual",
        "np.asarray(v, float)",
        "1.0",
        "what jvp gives to f has a value of shape (4,) and a tangent of shape ()",
    ),
    ("dual", "np.asarray(x, float), np.asarray(v, float)", "x, v", "make floats of x and v first"),
    (
        "dual",
        "self.value, self.tangent = value, tangent",
        "self.value, self.slope = value, tangent",
        "has no .value or no .tangent",
    ),
    (
        "dual",
        "        other = constant(other)\n        return Dual(self.value + ",
        "        if not isinstance(other, Dual):\n            return NotImplemented\n        return Dual(self.value + ",
        "'Dual' and 'float'. Make a Dual of an operand that is none",
    ),
    (
        "dual",
        "    found = np.zeros(x.shape)\n",
        "    return f(Dual(x, np.ones(x.shape)))\n",
        "gradient returns a Dual",
    ),
    (
        "dual",
        "found = np.zeros(x.shape)",
        "found = np.zeros_like(x)",
        "lost what comes after the point",
    ),
    (
        "dual",
        "        v = np.zeros(x.shape)\n        v[i] = 1",
        "        v = np.ones(x.shape)",
        "This is the sum of all slopes",
    ),
    (
        "dual",
        "    found = np.zeros(x.shape)\n",
        "    return jvp(f, x, np.ones(x.shape))[1]\n",
        "This is the sum of all slopes",
    ),
    (
        "dual",
        "    for i in np.ndindex(x.shape):\n        v = np.zeros(x.shape)",
        "    v = np.zeros(x.shape)\n    for i in np.ndindex(x.shape):",
        "v still has their ones",
    ),
    ("dual", "np.ndindex(x.shape)", "range(len(x))", "np.ndindex(x.shape)"),
    ("unbroadcast", "keepdims=True", "keepdims=False", "shape (3,), expected (3, 1)"),
    ("unbroadcast", "return g.sum(", "return g.mean(", "This is a mean"),
    ("matmul", "return g @ b.swapaxes(-1, -2)", "return g @ b", "transposed"),
    ("matmul", "return g @ b.swapaxes(-1, -2)", "return g @ b.T", "transpose"),
    (
        "matmul",
        "return a.swapaxes(-1, -2) @ g",
        "return g @ a.swapaxes(-1, -2)",
        "its rule for operand 1",
    ),
    ("softmax", "y * (g - (g * y).sum(axis=-1, keepdims=True))", "g * y * (1 - y)", "missing sum"),
    (
        "softmax",
        "y * (g - (g * y).sum(axis=-1, keepdims=True))",
        "y * (g - (g * y).sum())",
        "wrong axis",
    ),
    (
        "softmax",
        "y * (g - (g * y).sum(axis=-1, keepdims=True))",
        "g - y * g.sum(axis=-1, keepdims=True)",
        "the rule of log-softmax",
    ),
    ("softmax", " + largest[..., 0]", "", "The largest score is not added back"),
    (
        "softmax",
        "np.exp(x - x.max(axis=-1, keepdims=True))",
        "np.exp(np.subtract(x, x.max(axis=-1, keepdims=True), out=x))",
        "softmax: no\n    softmax changes an array it is given",
    ),
    (
        "softmax",
        "    largest = x.max",
        "    x *= 1.5\n    largest = x.max",
        "logsumexp: no\n    logsumexp changes an array it is given",
    ),
    (
        "layer_norm",
        "    n, h = normalized(x), g * weight",
        "    n, h = normalized(x), g * weight\n    x -= 1",
        "writes into operand 0 in place",
    ),
    (
        "pooling",
        "    mean = (tokens",
        "    tokens *= there[..., None]\n    mean = (tokens",
        "pool changes an array it is given",
    ),
    ("softmax", "np.exp(x - x.max(axis=-1, keepdims=True))", "np.exp(x - x.max())", "e^1000"),
    ("softmax", "one_hot) / len(x)", "one_hot)", "multiplied by 3, which is the size of axis 0"),
    (
        "softmax",
        "(logsumexp(x) - x[np.arange(len(x)), target]).mean()",
        "-np.log(softmax(x)[np.arange(len(x)), target]).mean()",
        "the logarithm of a softmax in two steps",
    ),
    (
        "layer_norm",
        "normalized(x), g * weight",
        "normalized(x) * weight, g * weight",
        "operand misplaced",
    ),
    (
        "layer_norm",
        "h.mean(axis=-1, keepdims=True) - n * (h * n).mean(axis=-1, keepdims=True)",
        "0",
        "missing sum",
    ),
    ("layer_norm", "return g * normalized(x)", "return g * x", "input 1"),
    ("layer_norm", "+ 1e-5)", "+ 0)", "where eps counts"),
    (
        "adam",
        "    m = beta1 * m + (1 - beta1) * g",
        "    m *= beta1\n    m += (1 - beta1) * g",
        "m *= ... and m[:] = ... change the old one",
    ),
    ("adam", "    p = p - lr", "    p -= lr", "the old arrays are left alone"),
    (
        "adam",
        "return p, m, v",
        "return p",
        "returns a ndarray; the task asks for three arrays, p, m and v",
    ),
    ("adam", "return p, m, v", "return m, v, p", "p, m and v, in this order"),
    (
        "adam",
        "(m / (1 - beta1 ** t)) / (np.sqrt(v / (1 - beta2 ** t)) + eps)",
        "m / (np.sqrt(v) + eps)",
        "bias correction is missing",
    ),
    ("adam", "* g ** 2", "* g", "The gradient is not squared"),
    ("adam", "np.sqrt(v / (1 - beta2 ** t))", "(v / (1 - beta2 ** t))", "The root of v is missing"),
    (
        "adam",
        "    p = p - lr * (m / (1 - beta1 ** t)) /",
        "    m = m / (1 - beta1 ** t)\n    p = p - lr * m /",
        "it is for p alone",
    ),
    ("attention", "math.sqrt(q.shape[-1])", "q.shape[-1]", "square root"),
    ("attention", "axis=-1)", "axis=-2)", "Normalised over the queries"),
    (
        "attention",
        "np.where(allowed, scores, -np.inf)",
        "np.where(allowed.T, scores, -np.inf)",
        "upside down",
    ),
    (
        "attention",
        "np.tri(*scores.shape[-2:], dtype=bool) if",
        "~np.tri(*scores.shape[-2:], dtype=bool) if",
        "np.tri is True where",
    ),
    (
        "attention",
        'return {"scores": scores, "weights": weights, "output": weights @ v}',
        "return scores, weights, weights @ v",
        "returns a tuple; the task asks for a dict",
    ),
    (
        "attention",
        "np.where(allowed, scores, -np.inf)",
        "np.where(allowed, scores, 0)",
        "A score of 0 still has a weight",
    ),
    (
        "attention",
        "np.where(allowed, scores, -np.inf), axis=-1)",
        "scores, axis=-1) * allowed",
        "Masked after the softmax",
    ),
    (
        "attention",
        "    weights = F",
        "    scores = np.where(allowed, scores, -np.inf)\n    weights = F",
        "These are the scores after the mask",
    ),
    (
        "attention",
        '"weights": weights',
        '"weight": weights',
        "has no 'weights', only 'scores', 'weight', 'output'",
    ),
    (
        "attention",
        '{"scores": scores, "weights": weights, "output": weights @ v}',
        "{}",
        "returns is empty",
    ),
    (
        "attention",
        "q @ k.swapaxes(-1, -2)",
        "q @ k.transpose(0, 2, 1)",
        "swapaxes(-1, -2) leaves them alone, however many there are",
    ),
    (
        "attention",
        "np.ones(scores.shape[-2:], dtype=bool)",
        "np.ones(2 * q.shape[-2:-1], dtype=bool)",
        "other keys than queries: raises ValueError",
    ),
    (
        "heads",
        "return x.reshape(batch, length, heads, size // heads).swapaxes(1, 2)",
        "return x.reshape(batch, heads, length, size // heads)",
        "A reshape alone",
    ),
    ("encoder_layer", "if norm_first:", "if not norm_first:", "pre-norm form"),
    (
        "encoder_layer",
        "    x = norm1(x + attend(x))\n    return norm2(x + feed_forward(x))",
        "    x = x + norm1(attend(x))\n    return x + norm2(feed_forward(x))",
        "of the sublayer's result alone",
    ),
    (
        "encoder_layer",
        "norm2(x + feed_forward(x))",
        "norm2(feed_forward(x))",
        "second sublayer has no residual",
    ),
    (
        "encoder_layer",
        "norm2(x + feed_forward(x))",
        "norm1(x + feed_forward(x))",
        "second sublayer's is norm2",
    ),
    (
        "encoder_layer",
        "        x = x + attend(norm1(x))",
        "        x = norm1(x)\n        x = x + attend(x)",
        "residual of the attention",
    ),
    (
        "encoder_layer",
        "feed_forward(norm2(x))",
        "feed_forward(norm1(x))",
        "second sublayer's is norm2",
    ),
    (
        "positions",
        "np.arange(0, d_model, 2) / d_model",
        "np.arange(d_model // 2) / d_model",
        "The exponent is 2i / d_model",
    ),
    (
        "positions",
        "np.arange(0, d_model, 2) / d_model",
        "2 * np.arange(0, d_model, 2) / d_model",
        "doubled twice",
    ),
    ("positions", "/ 10000 **", "* 10000 **", "later pairs turn slower"),
    (
        "positions",
        """np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)""",
        """np.arange(d_model) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2], table[:, 1::2] = np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])""",
        "have the same angle",
    ),
    ("train", "        optimizer.zero_grad()\n", "", "gradients of earlier steps are still there"),
    ("train", "        optimizer.step()\n", "", "Nothing is learned"),
    (
        "train",
        "F.cross_entropy(model(x), y)",
        "F.cross_entropy(F.softmax(model(x)), y)",
        "F.cross_entropy wants scores",
    ),
    (
        "train",
        "        optimizer.zero_grad()\n        loss.backward()\n",
        "        loss.backward()\n        optimizer.zero_grad()\n",
        "with no zero_grad() between the two",
    ),
    (
        "train",
        "append(loss.item())",
        "append(F.cross_entropy(model(x), y).item())",
        "measured after its step",
    ),
    ("train", "append(loss.item())", "append(loss)", "keeps every graph alive"),
    ("train", "append(loss.item())", "append(int(loss.item()))", "expected\n    [0.4768"),
    ("train", "return losses", "return losses[0]", "returns a float; the task asks for a list"),
    ("greedy", "[:, -1].argmax", "[:, 0].argmax", "taken from the first place"),
    ("greedy", "answers[:, :-1], 0, start", "answers[:, 1:], 2, start", "Shifted the other way"),
    (
        "greedy",
        "return np.insert(answers[:, :-1], 0, start, axis=1)",
        "answers[:, 1:] = answers[:, :-1].copy()\n    answers[:, 0] = start\n    return answers",
        "they are still the targets",
    ),
    (
        "greedy",
        "np.full((len(source), 1), start)",
        "np.zeros((len(source), 1), int)",
        "begin with START, here 10",
    ),
    (
        "sampling",
        "bound, scores / temperature",
        "bound, scores * temperature",
        "divide the scores by it",
    ),
    ("sampling", "bound, scores / temperature", "bound, scores", "temperature is not used"),
    ("sampling", "scores >= bound", "scores > bound", "with >="),
    (
        "sampling",
        "e = np.exp(kept - kept.max(axis=-1, keepdims=True))\n    return e / e.sum(axis=-1, keepdims=True)",
        "e = np.exp(kept - kept.max())\n    return e / e.sum()",
        "each row has its own",
    ),
    (
        "sampling",
        "np.exp(kept - kept.max(axis=-1, keepdims=True))",
        "np.exp(kept)",
        "e^2000 is infinite",
    ),
    (
        "pooling",
        "(tokens * there[..., None]).sum(axis=1) / there.sum(axis=1)[:, None]",
        "tokens.mean(axis=1)",
        "padding is counted",
    ),
    (
        "pooling",
        "mean / np.sqrt((mean * mean).sum(axis=-1, keepdims=True))",
        "mean / (mean * mean).sum(axis=-1, keepdims=True)",
        "its root is missing",
    ),
    (
        "pooling",
        "np.sqrt((mean * mean).sum(axis=-1, keepdims=True))",
        "np.sqrt((mean * mean).sum())",
        "One length for all sentences",
    ),
    ("hvp", ", create_graph=True", "", "create_graph"),
    (
        "hvp",
        "return ta.grad(np.sum(gradient * v), x)[0]",
        "return ta.grad(np.sum(gradient), x)[0] * v",
        "v is multiplied last",
    ),
    (
        "hvp",
        "return ta.grad(np.sum(gradient * v), x)[0]",
        "return ta.grad(np.sum(gradient * v), x)",
        "take its first",
    ),
    (
        "rotary",
        "[a * cos - b * sin, a * sin + b * cos]",
        "[a * cos + b * sin, b * cos - a * sin]",
        "Rotated the other way",
    ),
    (
        "rotary",
        "[a * cos - b * sin, a * sin + b * cos]",
        "[a * cos + b * sin, a * sin + b * cos]",
        "The minus is missing",
    ),
    (
        "rotary",
        "[a * cos - b * sin, a * sin + b * cos]",
        "[a * sin - b * cos, a * cos + b * sin]",
        "have changed places",
    ),
    (
        "rotary",
        "a, b = x[..., 0::2], x[..., 1::2]\n    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)",
        "a, b = np.split(x, 2, axis=-1)\n    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)",
        "The pairs are halves",
    ),
    ("rotary", "np.stack([", "np.concatenate([", "the results stand as two halves"),
    (
        "rotary",
        "return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)",
        """x = x.copy()
    x[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    x[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return x""",
        "made with the new first one",
    ),
    (
        "rotary",
        "return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)",
        "x[..., 0::2], x[..., 1::2] = a * cos - b * sin, a * sin + b * cos\n    return x",
        "rotate changes an array it is given",
    ),
    (
        "rotary",
        "positions[:, None] *",
        "np.ones((len(positions), 1)) *",
        "do not depend on the position",
    ),
    (
        "rotary",
        "positions[:, None]",
        "(positions[:, None] + 1)",
        "Counted from 1. The scores would be the same",
    ),
    (
        "rotary",
        "positions[:, None]",
        "np.arange(len(positions))[:, None]",
        "the positions that are given are ignored",
    ),
    (
        "rotary",
        "positions[:, None]",
        "(positions[0] + np.arange(len(positions)))[:, None]",
        "take each as it is given",
    ),
    ("rotary", "np.arange(0, size, 2)", "np.arange(size // 2)", "The exponent is -2i / D"),
    ("rotary", "(-np.arange", "(np.arange", "later pairs turn slower"),
    ("rotary", "10000.0 ** (-np.arange(0, size, 2) / size)", "np.ones(size // 2)", "equally fast"),
    (
        "rotary",
        "positions[:, None] *",
        "positions *",
        "rotate, positions 0 to 4: raises ValueError in line",
    ),
    (
        "rotary",
        "rotate(g, positions=-positions)",
        "rotate(g, positions=positions)",
        "g is rotated by the same angle as x",
    ),
    ("rotary", "rotate(g, positions=-positions)", "g", "g goes through as it came"),
    (
        "rotary",
        "rotate(g, positions=-positions)",
        "rotate(x, positions=-positions)",
        "incoming gradient ignored",
    ),
    (
        "rotary",
        "rotate(g, positions=-positions)",
        "rotate(g, positions=-np.arange(g.shape[-2]))",
        "The rule counts from 0",
    ),
    (
        "rotary",
        "return rotate(g, positions=-positions)",
        """angles = positions[:, None] * 10000.0 ** (-np.arange(0, 6, 2) / 6)
    a, b = np.split(g, 2, axis=-1)
    return np.concatenate([a * np.cos(angles) + b * np.sin(angles), b * np.cos(angles) - a * np.sin(angles)], axis=-1)""",
        "The rule pairs halves",
    ),
    (
        "rotary",
        "np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)",
        "np.cos(angles), np.sin(angles)",
        "rotate makes float64 of float32",
    ),
    (
        "rotary",
        "return rotate(g, positions=-positions)",
        "return rotate(g * np.ones(1), positions=-positions)",
        "rotate_vjp makes float64 of float32",
    ),
    (
        "rotary",
        "def rotate(x, *, positions):",
        "def rotate(x, positions):",
        "make settings keyword-only",
    ),
    ("rotary", "enable_gqa=True)", "enable_gqa=False)", "enable_gqa shares them"),
    (
        "rotary",
        "    allowed =",
        "    v = turn(v, positions=np.arange(keys))\n    allowed =",
        "The values are rotated, too",
    ),
    ("rotary", "    k = turn(k, positions=np.arange(keys))\n", "", "Only the queries are rotated"),
    (
        "rotary",
        "    q = turn(q, positions=np.arange(keys - queries, keys))\n",
        "",
        "Only the keys are rotated",
    ),
    (
        "rotary",
        "    q = turn(q, positions=np.arange(keys - queries, keys))\n    k = turn(k, positions=np.arange(keys))\n",
        "",
        "Nothing is rotated",
    ),
    ("rotary", "attn_mask=allowed, ", "", "Nothing is masked"),
    (
        "rotary",
        "    return F.scaled",
        """    k, v = (np.concatenate([one] * (q.shape[1] // one.shape[1]), axis=1) for one in (k, v))
    return F.scaled""",
        "The heads take turns",
    ),
    (
        "rotary",
        "np.arange(keys - queries, keys)",
        "np.arange(queries)",
        "The queries are counted from 0; they are the last",
    ),
    ("rotary", "attn_mask=allowed", "is_causal=True", "The mask begins at the wrong key"),
    (
        "rotary",
        "q = turn(q, positions=np.arange(keys - queries, keys))\n    k = turn(k, positions=np.arange(keys))\n"
        "    allowed = np.tri(queries, keys, keys - queries, dtype=bool)",
        "q, k = (turn(one, positions=np.arange(one.shape[2])) for one in (q, k))\n    allowed = np.tri(queries, keys, dtype=bool)",
        "Queries and mask are counted from 0",
    ),
    (
        "rotary",
        "    allowed =",
        "    q = q.numpy() if isinstance(q, ta.Tensor) else q\n    allowed =",
        "its gradient",
    ),
    (
        "online",
        "    maximum = scores.max(axis=-1, keepdims=True)",
        "    maximum = np.full((len(scores), 1), scores.max())",
        "One maximum for the whole block. Each query",
    ),
    (
        "online",
        "scores.max(axis=-1, keepdims=True)",
        "scores.max(axis=0, keepdims=True)",
        "The maximum of each key.",
    ),
    (
        "online",
        "scores.max(axis=-1, keepdims=True)",
        "scores.max(axis=-1)",
        "one number a query: keepdims=True",
    ),
    ("online", "scores - finite(maximum)", "scores", "The maximum is not subtracted"),
    (
        "online",
        "scores - finite(maximum)",
        "scores - maximum",
        "NaN where a query sees none of the keys",
    ),
    (
        "online",
        "return maximum, e.sum(axis=-1, keepdims=True), e @ v",
        "return finite(maximum), e.sum(axis=-1, keepdims=True), e @ v",
        "A query that sees none of the keys has the maximum -inf",
    ),
    (
        "online",
        "e.sum(axis=-1, keepdims=True), e @ v",
        "e.sum(axis=-1, keepdims=True), e / e.sum(axis=-1, keepdims=True) @ v",
        "an average of such averages is no softmax",
    ),
    (
        "online",
        "return maximum, e.sum(axis=-1, keepdims=True), e @ v",
        "return maximum, np.log(e.sum(axis=-1, keepdims=True)), e @ v",
        "This is the log-sum-exp",
    ),
    (
        "online",
        "return maximum, e.sum(axis=-1, keepdims=True), e @ v",
        "return e.sum(axis=-1, keepdims=True), e @ v",
        "part returns a tuple of 2; the task asks for 3 arrays",
    ),
    (
        "online",
        "a * one[1] + b * two[1], a * one[2] + b * two[2]",
        "one[1] + two[1], one[2] + two[2]",
        "Not rescaled. The sums belong",
    ),
    ("online", "a * one[2] + b * two[2]", "one[2] + two[2]", "merge: result: 9 of 12 off"),
    ("online", "a * one[1] + b * two[1]", "one[1] + two[1]", "Not rescaled. The sums belong"),
    (
        "online",
        "a * one[1] + b * two[1], a * one[2] + b * two[2]",
        "a * one[1] + two[1], a * one[2] + two[2]",
        "Only the first part is rescaled",
    ),
    (
        "online",
        "a * one[1] + b * two[1], a * one[2] + b * two[2]",
        "one[1] + b * two[1], one[2] + b * two[2]",
        "Only the second part is rescaled",
    ),
    (
        "online",
        "np.exp(one[0] - finite(maximum)), np.exp(two[0] - finite(maximum))",
        "np.exp(finite(maximum) - one[0]), np.exp(finite(maximum) - two[0])",
        "Rescaled the wrong way round",
    ),
    (
        "online",
        "np.exp(one[0] - finite(maximum)), np.exp(two[0] - finite(maximum))",
        "np.exp(one[0] - maximum), np.exp(two[0] - maximum)",
        "NaN where neither part has seen a key",
    ),
    (
        "online",
        "a * one[2] + b * two[2]",
        "(a * one[2] + b * two[2]) / (a * one[1] + b * two[1])",
        "already divided by the total",
    ),
    (
        "online",
        "a * one[2] + b * two[2]",
        "(one[2] / np.where(one[1] == 0, 1, one[1]) + two[2] / two[1]) / 2",
        "an average of averages",
    ),
    ("online", "return maximum, a *", "return one[0] + two[0], a *", "The maxima are added"),
    (
        "online",
        MERGED,
        RUNNING.replace("old * result[rows]", "result[rows]"),
        "The running result is not rescaled",
    ),
    (
        "online",
        MERGED,
        RUNNING.replace("old * total[rows]", "total[rows]"),
        "The running sum is not rescaled",
    ),
    (
        "online",
        MERGED,
        RUNNING.replace("old *", "1 *"),
        "Neither the running sum nor the running result",
    ),
    (
        "online",
        MERGED,
        RUNNING.replace(
            "np.exp(maximum[rows] - new)",
            "np.where(maximum[rows] == -np.inf, 0, np.exp(new - maximum[rows]))",
        ),
        "Rescaled with e^(new - old)",
    ),
    (
        "online",
        MERGED,
        RUNNING.replace("scores.max(axis=-1, keepdims=True)", "scores.max()"),
        "One maximum for the whole block",
    ),
    (
        "online",
        MERGED,
        RUNNING.replace("np.exp(maximum[rows] - new)", "np.exp(new - maximum[rows])"),
        "0 times that is NaN",
    ),
    (
        "online",
        MERGED,
        """        m, s, r = part(scores, v[keys])
        result[rows] += r / s / -(-len(k) // block)
        total[rows], maximum[rows] = 1, 0
""",
        "each block is normalised by itself",
    ),
    (
        "online",
        "range(0, len(k), block):",
        "range(0, len(k) // block * block, block):",
        "The last block is left out",
    ),
    ("online", "k[keys].T / math.sqrt(q.shape[-1])", "k[keys].T", "The scores are not scaled"),
    (
        "online",
        "k[keys].T / math.sqrt(q.shape[-1])",
        "k[keys].T / q.shape[-1]",
        "The scores are scaled twice",
    ),
    ("online", "lse = maximum + np.log(total)", "lse = maximum", "This is the maximum alone"),
    ("online", "lse = maximum + np.log(total)", "lse = np.log(total)", "This is log(total)"),
    ("online", "lse = maximum + np.log(total)", "lse = total", "This is the total"),
    ("online", "lse[:, 0]\n", "lse\n", "y is (T, E), lse (T,)"),
    (
        "online",
        "result / np.where(total == 0, 1, total), lse[:, 0]",
        "result / np.where(total == 0, 1, total)",
        "attention returns a ndarray; the task asks for 2 arrays, y and lse",
    ),
    ("online", "result / np.where(total == 0, 1, total)", "result / total", "here it is 0 / 0"),
    (
        "online",
        "        if causal:\n            scores =",
        "        if False:\n            scores =",
        "causal: y: ",
    ),
    (
        "online",
        "    for keys, rows, scores in blocks(q, k, block, causal):\n        before",
        "    for keys, rows, scores in blocks(q, k, block, False):\n        before",
        "Nothing is masked",
    ),
    (
        "online",
        "slice(start if causal else 0, None)",
        "slice(0, None)",
        "The mask begins anew in each block",
    ),
    ("online", " - delta[rows])", ")", "delta is forgotten"),
    ("online", " - delta[rows])", " + delta[rows])", "delta is added"),
    (
        "online",
        "(g * y).sum(axis=-1, keepdims=True)",
        "np.full((len(g), 1), (g * y).sum())",
        "delta is one number for all queries",
    ),
    (
        "online",
        "(g * y).sum(axis=-1, keepdims=True)",
        "(g * y).mean(axis=-1, keepdims=True)",
        "delta is a mean",
    ),
    (
        "online",
        "(g * y).sum(axis=-1, keepdims=True)",
        "(g * y).sum(axis=0, keepdims=True)",
        "delta has a number for each query",
    ),
    (
        "online",
        "(g * y).sum(axis=-1, keepdims=True)",
        "(g * y).sum(axis=-1)",
        "delta has a number for each query",
    ),
    (
        "online",
        "(g[rows] @ v[keys].T - delta[rows])",
        "(g[rows] @ v[keys].T - (p * (g[rows] @ v[keys].T)).sum(axis=-1, keepdims=True))",
        "over the keys of the block only",
    ),
    (
        "online",
        "(g[rows] @ v[keys].T - delta[rows])",
        "(g[rows] @ v[keys].T - (p * (g[rows] @ v[keys].T)).sum(axis=0))",
        "over the queries",
    ),
    (
        "online",
        "np.exp(scores - lse[rows, None])",
        "np.exp(scores - scores.max(axis=-1, keepdims=True))",
        "with the maximum of the block",
    ),
    (
        "online",
        "        p = np.exp(scores - lse[rows, None])",
        """        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)""",
        "the softmax of the block by itself",
    ),
    (
        "online",
        "np.exp(scores - lse[rows, None])",
        "np.exp(scores) / np.exp(lse[rows, None])",
        "scores of hundreds",
    ),
    (
        "online",
        "delta[rows]) / math.sqrt(q.shape[-1])",
        "delta[rows])",
        "The scale is forgotten in the gradient",
    ),
    (
        "online",
        "delta[rows]) / math.sqrt(q.shape[-1])",
        "delta[rows]) / q.shape[-1]",
        "The scale is applied twice",
    ),
    (
        "online",
        "dq[rows] += ds @ k[keys]",
        "dq[rows] = ds @ k[keys]",
        "dq is that of the last block of keys",
    ),
    (
        "online",
        """        dv[keys] = p.T @ g[rows]
        ds = p * (g[rows] @ v[keys].T - delta[rows]) / math.sqrt(q.shape[-1])
        dq[rows] += ds @ k[keys]
        dk[keys] = ds.T @ q[rows]
""",
        """        ds = p * (g[rows] @ v[keys].T - delta[rows]) / math.sqrt(q.shape[-1])
        dq[rows] += ds @ k[keys]
        for start in range(0, len(p), block):
            some = slice(start, start + block)
            dv[keys] = p[some].T @ g[rows][some]
            dk[keys] = ds[some].T @ q[rows][some]
""",
        "the share of the last block of queries",
    ),
    (
        "online",
        "    for keys, rows, scores in blocks(q, k, block, causal):\n        p =",
        "    for keys, rows, scores in blocks(q, k[:len(k) // block * block], block, causal):\n        p =",
        "The last block is left out",
    ),
    (
        "online",
        "    for keys, rows, scores in blocks(q, k, block, causal):\n        p =",
        "    for keys, rows, scores in blocks(q, k, block, False):\n        p =",
        "Later keys are not masked here",
    ),
    (
        "online",
        "return dq, dk, dv",
        "return dq",
        "attention_vjp returns a ndarray; the task asks for 3 arrays",
    ),
    (
        "online",
        "        p = np.exp(",
        "        g -= 0.5\n        p = np.exp(",
        "attention_vjp changes an array it is given",
    ),
    (
        "online",
        "np.full((len(q), 1), -np.inf, q.dtype)",
        "np.full((len(q), 1), -np.inf)",
        "y is float64 where q, k and v are float32",
    ),
    (
        "online",
        "np.zeros_like(q), np.zeros_like(k)",
        "np.zeros(q.shape), np.zeros_like(k)",
        "dq is float64",
    ),
    (
        "online",
        "    maximum = np.full((len(q)",
        "    every = q @ k.T\n    maximum = np.full((len(q)",
        "There is room for an array of T x S numbers",
    ),
    (
        "online",
        "    maximum = np.full((len(q)",
        "    seen = np.tri(len(q), len(k), dtype=bool)\n    maximum = np.full((len(q)",
        "Something in it grows with T x S",
    ),
    (
        "online",
        MERGED,
        "        kept = scores, locals().get('kept')\n" + MERGED,
        "no list of what the blocks gave",
    ),
    (
        "online",
        "    delta = (g",
        "    p = np.cos(q @ k.T)\n    delta = (g",
        "There is room for an array of T x S numbers",
    ),
    (
        "online",
        "    delta = (g",
        """    for start in range(0, len(q), block):
        p = np.cos(q[start:start + block] @ k.T)
    delta = (g""",
        "no scores and no mask of all keys",
    ),
    ("written", "(up - down) / (2 * eps)", "(up - down) / eps", "divided by twice the step"),
    (
        "written",
        "np.isclose(np.sum(gradients[name] * u), (up - down) / (2 * eps), rtol",
        "np.isclose(abs(np.sum(gradients[name] * u)), abs(up - down) / (2 * eps), rtol",
        "are absolute values compared?",
    ),
    (
        "written",
        "wrong.append(name)",
        "wrong.append(name) if name in ('x', 'y', 'Wq', 'Wk', 'Wv') else None",
        "the right direction and twice the length",
    ),
    (
        "written",
        "u = rng.standard_normal(array.shape)",
        "u = np.zeros(array.shape)\n        u.flat[0] = 1",
        "Its last element alone is wrong",
    ),
    (
        "written",
        "rng.standard_normal(array.shape)",
        "np.ones(array.shape)",
        "ones see the sum alone",
    ),
    ("written", "rtol=1e-5, atol=1e-7", "rtol=1e-2, atol=1e-2", "off by a thousandth"),
    (
        "written",
        "not np.isclose(np.sum(gradients[name] * u), (up - down) / (2 * eps), rtol=1e-5, atol=1e-7)",
        "abs(np.sum(gradients[name] * u) - (up - down) / (2 * eps)) > 1e-6",
        "NaN > 1e-5 is false",
    ),
    (
        "written",
        "    return wrong\n",
        "    return wrong[:1]\n",
        "wrong are x, Wq, Wk; not found: Wq, Wk",
    ),
    (
        "written",
        "    return wrong\n",
        "    return wrong or ['Wq']\n",
        "wrong are none; named, and right: Wq",
    ),
    ("written", "    return wrong\n", "    return wrong or ['W3']\n", "there is no such array"),
    ("written", "    return wrong\n", "    return ', '.join(wrong)\n", "asks for a list of names"),
    (
        "written",
        "array + step * u",
        "np.add(array, step * u, out=array)",
        "changes the array that was given",
    ),
    ("written", "    return changed, before\n", "    return changed\n", "mended returns two lines"),
    (
        "written",
        '(d_norm * normalised).mean(-1, keepdims=True)"\n    before',
        'd_norm"\n    before',
        "PROGRAM has no line 'mean = d_norm'",
    ),
    (
        "written",
        "    return changed, before\n",
        "    return 'q = x @ Wq', 'q = Wq @ x'\n",
        "the forward part is right",
    ),
    (
        "written",
        "    return changed, before\n",
        "    return 'd_norm = d_result + g1 @ W1.T', 'd_norm = g1 @ W1.T'\n",
        "If it were wrong, weight, bias would be wrong as well",
    ),
    (
        "written",
        "    return changed, before\n",
        "    return 'd_k = g1.T @ q', 'd_k = g1 @ q'\n",
        "It has nothing to do with Wq, Wv",
    ),
    (
        "written",
        "    return changed, before\n",
        "    return 'd_h1 = d_centred - d_centred.mean(-1, keepdims=True)', 'd_h1 = d_centred'\n",
        "one of the few that come into question, but it is right",
    ),
    (
        "written",
        'before = "mean = (d_normalised * normalised)',
        'before = "mean = (d_normalised * centred)',
        "the gradients by x, Wq, Wk, Wv are wrong",
    ),
    ("written", 'before = "mean =', 'before = "mean :=', "does not run: SyntaxError"),
]


@pytest.mark.parametrize("name, right, wrong, said", MISTAKES)
@pytest.mark.filterwarnings(r"ignore:step\(\) changed nothing", "ignore::RuntimeWarning")
def test_a_usual_mistake_is_named(marker, tmp_path, name, right, wrong, said):
    text = (EXERCISES / "solutions" / f"{name}.py").read_text("utf-8")
    path = tmp_path / f"{name}.py"
    path.write_text(changed(text, right, wrong), "utf-8")
    marks = mark(marker, name, path)
    assert not marks.ok and said in marks.help, str(marks)


@pytest.mark.parametrize(
    "right, other",
    [
        (
            "np.arange(keys - queries, keys))\n    k = turn(k, positions=np.arange(keys))",  # positions from 1
            "np.arange(keys - queries, keys) + 1)\n    k = turn(k, positions=np.arange(keys) + 1)",
        ),
        (
            "return rotate(g, positions=-positions)",
            """angles = positions[:, None] * 10000.0 ** (-np.arange(0, g.shape[-1], 2) / g.shape[-1])
    a, b = g[..., 0::2], g[..., 1::2]
    y = np.empty_like(g)
    y[..., 0::2], y[..., 1::2] = a * np.cos(angles) + b * np.sin(angles), b * np.cos(angles) - a * np.sin(angles)
    return y""",
        ),
        ("turn = ta.op(rotate).vjp(rotate_vjp)", "turn = rotate"),  # its steps have rules, too
        ("turn = ta.op(rotate).vjp(rotate_vjp)", "turn = rotate = ta.op(rotate).vjp(rotate_vjp)"),
        (
            "    angles =",
            """    z = x[..., 0::2] + 1j * x[..., 1::2]
    z = z * np.exp(1j * positions[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size))
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape).astype(x.dtype)
    angles =""",
        ),
        (
            "    return F.scaled",
            """    k, v = (np.repeat(one, q.shape[1] // one.shape[1], axis=1) for one in (k, v))
    scores = np.where(allowed, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -np.inf)
    return F.softmax(scores, axis=-1) @ v
    return F.scaled""",
        ),
    ],
)
def test_other_right_ways_to_rotate_pass(marker, tmp_path, right, other):
    """As long as queries and keys are rotated alike, their positions may be counted from anywhere: the scores are the same."""
    text = (EXERCISES / "solutions" / "rotary.py").read_text("utf-8")
    path = tmp_path / "rotary.py"
    path.write_text(changed(text, right, other), "utf-8")
    marks = mark(marker, "rotary", path)
    assert marks.ok, str(marks)


@pytest.mark.parametrize(
    "right, other",
    [
        (MERGED, RUNNING),
        (
            "for start in range(0, len(k), block):",
            "for start in range(0, len(k), block)[::-1]:",
        ),  # in any order
        (
            "        dv[keys] = p.T @ g[rows]\n",
            """        for start in range(0, len(p), block):
            some = slice(start, start + block)
            dv[keys] += p[some].T @ g[rows][some]
""",
        ),
        (
            "slice(start if causal else 0, None)\n",
            """slice(0, None)
        mask = np.arange(start, min(start + block, len(k))) <= np.arange(len(q))[:, None]\n""",
        ),  # nothing left out
        (
            "    return maximum, a * one[1] + b * two[1], a * one[2] + b * two[2]",
            """    for part, factor in ((one, a), (two, b)):
        part[1][:], part[2][:] = part[1] * factor, part[2] * factor                                         # in place
    return [maximum, one[1] + two[1], one[2] + two[2]]""",
        ),
    ],
)
def test_other_right_ways_through_the_keys_pass(marker, tmp_path, right, other):
    text = (EXERCISES / "solutions" / "online.py").read_text("utf-8")
    path = tmp_path / "online.py"
    text = changed(text, right, other)
    path.write_text(
        text.replace("np.tri(*scores.shape, dtype=bool)", "mask") if "mask =" in text else text,
        "utf-8",
    )
    marks = mark(marker, "online", path)
    assert marks.ok, str(marks)


@pytest.mark.parametrize(
    "right, other",
    [
        (
            "self.value, self.tangent = value, tangent",
            "self.value = np.asarray(value, float)\n"
            "        self.tangent = np.broadcast_to(np.asarray(tangent, float), self.value.shape)",
        ),
        ("else Dual(x, np.zeros(np.shape(x)))", "else Dual(np.asarray(x), np.zeros_like(x))"),
        ("return constant(other) - self", "return -self + other"),
        (
            "    def __radd__(self, other):\n        return constant(other) + self\n",
            "    __radd__ = __add__\n",
        ),
        (QUOTIENT, "(self.tangent - self.value / other.value * other.tangent) / other.value)"),
        (
            "n * self.value ** (n - 1) * self.tangent",
            "self.value ** n * n * self.tangent / self.value",
        ),
        (
            "    __array_priority__ = 1 ",
            """    def __array_ufunc__(self, ufunc, method, *inputs, **settings):
        if len(inputs) == 1:
            return getattr(self, ufunc.__name__)()
        return {"add": self.__radd__, "subtract": self.__rsub__, "multiply": self.__rmul__, "divide": self.__rtruediv__}[ufunc.__name__](
            inputs[0])

    """,
        ),
        (
            "    found = np.zeros(x.shape)\n",
            """    columns = np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([jvp(f, x, v)[1] for v in columns]).reshape(x.shape)
""",
        ),
    ],
)
def test_other_right_dual_numbers_pass(marker, tmp_path, right, other):
    text = (EXERCISES / "solutions" / "dual.py").read_text("utf-8")
    path = tmp_path / "dual.py"
    path.write_text(changed(text, right, other), "utf-8")
    marks = mark(marker, "dual", path)
    assert marks.ok, str(marks)


@pytest.mark.parametrize(
    "answer",
    [
        (  # as it stands there, with the comment
            "    mean = (d_norm * normalised).mean(-1, keepdims=True)                  # (3, 1)",
            "mean = (normalised * d_normalised).mean(-1, keepdims=True)",
        ),
        (  # in other words
            "mean = (d_norm * normalised).mean(-1, keepdims=True)",
            "mean = np.mean(d_norm * weight * normalised, axis=-1, keepdims=True)",
        ),
    ],
)
def test_other_right_ways_to_mend_the_line_pass(marker, tmp_path, answer):
    text = (EXERCISES / "solutions" / "written.py").read_text("utf-8")
    path = tmp_path / "written.py"
    path.write_text(changed(text, "return changed, before", f"return {answer!r}"), "utf-8")
    marks = mark(marker, "written", path)
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
        np.testing.assert_allclose(named[name], gradient.numpy(), rtol=1e-10, atol=1e-13)


def test_a_rule_of_the_wrong_shape_shows_no_error_of_zero(marker, tmp_path):
    """There is nothing to subtract; 0.0e+00 beside a check that fails would read as perfect agreement."""
    path = tmp_path / "layer_norm.py"
    text = (EXERCISES / "solutions" / "layer_norm.py").read_text("utf-8")
    path.write_text(
        text.replace("return g * normalized(x)", "return (g * normalized(x)).sum(axis=-1)"), "utf-8"
    )
    (line, *_) = [
        line for line in mark(marker, "layer_norm", path).lines if line.verdict == "wrong shape"
    ]
    assert np.isinf(line.max_abs) and np.isinf(line.max_rel)


@pytest.mark.parametrize(
    "start, encoding",
    [("", "utf-8-sig"), ("# -*- coding: cp1252 -*-\n# gr\u00fc\u00df Gott\n", "cp1252")],
)
def test_a_file_is_read_as_python_reads_it(marker, tmp_path, start, encoding):
    """With the mark that Windows' editors put first, or in an encoding that it names."""
    path = tmp_path / "mine.py"
    path.write_text(start + (EXERCISES / "solutions" / "slope.py").read_text("utf-8"), encoding)
    marks = mark(marker, "slope", path)
    assert marks.ok, str(marks)


@pytest.mark.parametrize(
    "text, said",
    [
        ("def softmax(:\n", "syntax error in line 1"),
        (
            "import numpy as np\n\ndef softmax(x):\n    return np.exp(y)\n",
            "raises NameError in line 4",
        ),
        ("", "the file defines no function softmax"),
        ("def softmax(x: Array):\n    return x\n", "raises NameError in line 1"),
        ("raise SystemExit\n", "raises SystemExit in line 1"),
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
        "mark that:\n    python -m tinygrad_attn exercise softmax mine.py"
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


def test_the_command_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "tinygrad_attn", "exercise", "slope"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "not written yet" in done.stdout and done.stderr == ""


# ---- the zoo


def test_the_list_needs_no_docstrings():
    """Which `python -OO` leaves out."""
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "tinygrad_attn", "exercise", "zoo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.startswith("The bug zoo as exercises:"), done.stderr


def cases(marker):
    return enumerate(sys.modules["_zoo"].CASES, 1)


def test_each_bug_shows_and_its_op_is_the_only_right_answer(marker, capsys):
    for number, case in cases(marker):
        assert case.bug in {bug.name for bug in zoo.list()}
        game = sys.modules["_zoo"]
        assert marker.main("zoo", str(number)) == 0
        shown = capsys.readouterr().out
        assert case.text in shown and case.bug not in shown
        assert any(sign in shown for sign in ("by the rules", "value is wrong", "stops before")), (
            shown
        )
        for answer in [*game.ops(case), game.SWEEP]:
            assert marker.main("zoo", str(number), answer) == (0 if answer == case.answer else 1)
            said = capsys.readouterr().out
            assert said.startswith("Yes") if answer == case.answer else case.bug not in said


def test_a_hint_does_not_name_the_op(marker, capsys):
    for number, case in cases(marker):
        assert marker.main("zoo", str(number), "hint") == 0
        out = capsys.readouterr().out
        assert "gradcheck" in out and f"'{case.answer}'" not in out and case.bug not in out


def test_the_hint_about_the_sweep_says_what_is_used_by_what(marker, capsys):
    assert marker.main("zoo", "8", "hint") == 0
    assert "the sweep through them is wrong" in (out := capsys.readouterr().out)
    assert "(input 0 is used by exp and sin; the tensor that is used most is used 2 times.)" in out


def test_the_text_of_a_bug_is_what_its_function_computes(marker):
    import tinygrad_attn.functional as F

    for _, case in cases(marker):
        names = case.f.__code__.co_varnames[: case.f.__code__.co_argcount]
        given = sys.modules["_zoo"].inputs(case)
        known = {"np": np, "F": F, **dict(zip(names, given))}
        *steps, last = case.text.split(";  ")
        for step in steps:
            exec(step, known)
        plain = (
            last.replace("x[[0, 0, 2]]", "x[np.array([0, 0, 2])]")
            .replace("F.embedding([", "F.embedding(np.array([")
            .replace("]], w)", "]]), w)")
        )
        assert np.allclose(
            np.asarray(getattr(found := eval(plain, known), "_data", found)),
            np.asarray(getattr(value := case.f(*given), "_data", value)),
        )
