"""The course's project, an engine of the student's own: usual mistakes in it are named, and every line of its marker can fail."""

import sys

import pytest
from support import EXERCISES, changed

SOLUTION = (EXERCISES / "solutions" / "engine.py").read_text("utf-8")


class Enough(Exception):
    """The help is about the first check that fails; the others need not be run."""


@pytest.fixture
def first(marker, tmp_path, monkeypatch):
    """Marks the solution with a change, up to the first check that fails; with a shorter chain, which is still too long for recursion."""
    monkeypatch.setattr(sys.modules["_marks_project"], "CHAIN", 2000)
    Marks = sys.modules["_marking"].Marks
    failed = Marks.failed

    def fail(self, *args):
        failed(self, *args)
        raise Enough

    monkeypatch.setattr(Marks, "failed", fail)

    def run(right, wrong):
        path = tmp_path / "mine.py"
        path.write_text(changed(SOLUTION, right, wrong), "utf-8")
        marks = Marks(path)
        assert marks.load()
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
        "a diamond: 1 of 1",
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
        "a diamond, mirrored: 1 of 1",
        "before all its users have contributed",
    ),
    "passes its whole .grad on at each visit": (
        """
        give(self, coming[id(self)])
        for parent, rule in zip(self.parents, self.vjps):
            parent.backward(rule(self.grad))
""",
        "a diamond: 1 of 1",
        "passes its whole .grad on each time",
    ),
    "calls itself along every path": (
        """
        give(self, coming[id(self)])
        for parent, rule in zip(self.parents, self.vjps):
            parent.backward(rule(coming[id(self)]))
""",
        "a chain of 2,000: raises RecursionError",
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
        "a chain of 2,000: raises RecursionError",
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
        "60 doublings: no",
        "it follows every path",
    ),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_wrong_walk_is_named(first, name):
    walk, *said = WALKS[name]
    give = """
        def give(t, g):
            t.grad = g if t.grad is None else t.grad + g
"""
    marks = first(START, f"{START}{give}{walk}        return\n")
    assert all(text in marks.help for text in said), str(marks)


MISTAKES = [
    # what is remembered
    ("class Tensor:", "class Array:", "defines no class Tensor"),
    (
        "lambda g: g * other.data, lambda g: g * self.data",
        "lambda g: other.data, lambda g: self.data",
        "g is forgotten",
    ),
    (
        "lambda g: g * other.data, lambda g: g * self.data",
        "lambda g: g * self.data, lambda g: g * other.data",
        "the factor of the other",
    ),
    (
        "(self, other), (lambda g: g, lambda g: g)",
        "(other, self), (lambda g: g, lambda g: g)",
        "a and b themselves, in this order",
    ),
    (
        "(self, other), (lambda g: g, lambda g: g)",
        "(self, other), (lambda g: g,)",
        "has 1 rules; it has two parents",
    ),
    (
        "return Tensor(self.data * other.data",
        "return self.data * other.data\n        return Tensor(self.data * other.data",
        "a * b is a ndarray; it should be a Tensor",
    ),
    # the walk
    ("np.ones_like(self.data) if", "np.zeros_like(self.data) if", "begin with ones"),
    (
        "np.ones_like(self.data) if",
        "np.array(1.0) if",
        "backward begins with ones, as many as there are in data",
    ),
    (" if g is None else np.asarray(g)}", "}", "The g that backward is given does not arrive"),
    (ADD, "coming[id(parent)] = share", "it gets two contributions: add them up"),
    (
        GRAD,
        f"if not tensor.parents:\n                {GRAD}",
        "results on the way: no\n    .grad of a result on the way is still None",
    ),
    (GRAD, "tensor.grad = g.copy()", "two losses: 1 of 1 off: 0.625 times as large"),
    (GRAD, "tensor.grad = g.copy()", "here it is overwritten"),
    (
        GRAD,
        f"{GRAD}\n            g = tensor.grad",
        "passes on what the first had left in .grad of the shared result",
    ),
    (
        PARENTS,
        f"            parents, tensor.parents = tensor.parents, ()\n{PARENTS.replace('tensor.parents', 'parents')}",
        "does not come beyond the shared result",
    ),
    (GRAD, GRAD.replace("g.copy()", "g"), "each .grad is its own array: no"),
    (
        GRAD,
        "tensor.grad = Tensor(g)",
        ".grad of a result on the way is a Tensor; it should be an array",
    ),
    (
        f"{SHARE}\n                {ADD}",
        """share = rule(g)
                if share.shape != parent.data.shape:
                    share = unbroadcast(share, parent.data.shape)
                if id(parent) in coming:
                    coming[id(parent)] += share
                else:
                    coming[id(parent)] = share""",
        "then one was changed in place",
    ),
    # broadcasting
    (
        SHARE,
        "share = rule(g)",
        "3 (3, 4) + (4,), gradients: no\n    .grad of operand 1 of (3, 4) + (4,) has the shape (3, 4), its data (4,)",
    ),
    (
        "g = g.sum(axis=tuple(range(g.ndim - len(shape))))",
        "g = g.mean(axis=tuple(range(g.ndim - len(shape))))",
        "a mean where a sum belongs",
    ),
    (
        "g = g.sum(axis=tuple(range(g.ndim - len(shape))))",
        "g = g.sum(axis=tuple(range(-1, len(shape) - g.ndim - 1, -1)))",
        "has the shape (3,), its data (4,)",
    ),
    ("if n == 1), keepdims=True)", "if n == 1))", "has the shape (3,), its data (3, 1)"),
    # numbers and arrays
    ("(lambda g: -g,)", "(lambda g: g,)", "the sign is missing"),
    ("self + -self._operand(other)", "self._operand(other) + -self", "This is b - a"),
    ("self * self._operand(other) ** -1.0", "self._operand(other) * self ** -1.0", "This is b / a"),
    ("self.data ** (power - 1)", "self.data ** power", "the power is not taken down by one"),
    ("g * power * self.data", "g * self.data", "its factor n is missing"),
    ("g * power * self.data", "g * 2 * self.data", "4 a ** 3, gradients"),
    ("g * power * self.data ** (power - 1)", "g * 2 * self.data", "This is the slope of a^2"),
    (
        "        other = self._operand(other)\n        return Tensor(self.data + ",
        "        return Tensor(self.data + ",
        "4 numbers as operands: raises AttributeError",
    ),
    (
        "        other = self._operand(other)\n        return Tensor(self.data + ",
        "        return Tensor(self.data + ",
        "An operand that is no Tensor, a number or an array, is made one first",
    ),
    (
        "return self._operand(other) - self",
        "return self - other",
        "The operands have changed places",
    ),
    (
        "return self._operand(other) / self",
        "return self / other",
        "The operands have changed places",
    ),
    ("def __radd__", "def radd", "2 + a raises unsupported operand"),
    ("def __rmul__", "def rmul", "Python asks for __rmul__"),
    ("def __rsub__", "def rsub", "Python asks for __rsub__"),
    ("def __rmatmul__", "def rmatmul", "Python asks for __rmatmul__"),
    (
        "    __array_ufunc__ = None",
        "    #",
        "array + a is an array of objects. NumPy took the Tensor for a mere object",
    ),
    (
        "self.data.dtype if isinstance(other, (int, float)) else None",
        "None",
        "4 float32 stays float32: no\n    a * 2 ... of a float32",
    ),
    (
        "np.ones_like(self.data) if",
        "np.ones(self.data.shape) if",
        "4 float32 stays float32: no\n    .grad of a float32",
    ),
    # functions
    (
        "def exp(self)",
        "def Exp(self)",
        "5 a.exp(): not written yet\n    a.exp(): an operation is missing",
    ),
    ("(lambda g: g * y,)", "(lambda g: y,)", "incoming gradient ignored"),
    ("(lambda g: g * y,)", "(lambda g: g * self.data,)", "The slope of e^a is e^a"),
    ("g / self.data,)", "g / np.log(self.data),)", "this is 1 / log(a)"),
    ("1 - y * y", "1 - self.data ** 2", "This is 1 - a^2"),
    ("1 - y * y", "1 - y", "1 - y^2, with the square"),
    # sums and shapes
    (
        "            if axis is not None and not keepdims:\n                g = np.expand_dims(g, axis)\n",
        "",
        "6 a.sum(axis=1), gradients: raises ValueError",
    ),
    (
        "            if axis is not None and not keepdims:\n                g = np.expand_dims(g, axis)\n",
        "",
        "put it back, with length 1",
    ),
    (
        "g = np.expand_dims(g, axis)",
        "g = np.expand_dims(g, axis if axis == 1 else 0)",
        "A square hides it",
    ),
    ("if axis is not None and not keepdims:", "if axis is not None:", "nothing is to be put back"),
    (
        "return np.broadcast_to(g, self.data.shape)",
        "return g",
        "has the shape (), its data (3, 4). sum took the axis away",
    ),
    (
        "return total * (total.data.size / self.data.size)",
        "return Tensor(total.data * (total.data.size / self.data.size), total.parents, total.vjps)",
        "only the share 1/N",
    ),
    (
        "(total.data.size / self.data.size)",
        "(1 / self.data.size)",
        "6 a.mean(axis=1): 3 of 3 off: 0.333333 times as large",
    ),
    (
        "return total * (total.data.size / self.data.size)",
        "n = np.prod(self.data.shape) / np.prod(total.data.shape)\n"
        "        return Tensor(total.data / n, (self,), (lambda g: total.vjps[0](g / n),))",
        "np.prod(shape) is a NumPy integer",
    ),
    ("lambda g: g.reshape(self.data.shape)", "lambda g: g", "give it the old one"),
    (
        "lambda g: g.T,",
        "lambda g: g,",
        "has the shape (4, 3), its data (3, 4). g is turned round as well",
    ),
    ("lambda g: g.T,", "lambda g: g.T if g.shape != self.data.shape else g,", "A square hides it"),
    # products
    ("g @ other.data.swapaxes(-1, -2)", "g @ other.data", "only so do the shapes fit"),
    (
        "g @ other.data.swapaxes(-1, -2)",
        "g @ (other.data if len(set(other.data.shape)) == 1 else other.data.swapaxes(-1, -2))",
        "the other operand is turned round",
    ),
    ("g @ other.data.swapaxes(-1, -2)", "g @ other.data.T", "only the last two axes change places"),
    (
        "self.data.swapaxes(-1, -2) @ g))",
        "self.data.T @ g))",
        "only the last two axes change places",
    ),
    (
        "self.data @ other.data",
        "np.dot(self.data, other.data)",
        "7 (2, 3, 4) @ (2, 4, 5): shape (2, 3, 2, 5), expected (2, 3, 5)",
    ),
    (
        SHARE,
        f"{SHARE} if tensor.data.ndim < 3 else rule(g)",
        "7 (2, 3, 4) @ (4, 5), gradients: no\n    .grad of operand 1",
    ),
    # the network
    ("(x @ w1 + b1).tanh()", "(x @ w1 + b1)", "The tanh is missing"),
    (
        "return (x @ w1 + b1).tanh() @ w2 + b2",
        "return ((x @ w1 + b1).tanh() @ w2 + b2).data",
        "it should be a Tensor",
    ),
    (".sum(axis=1)).mean()", ".sum(axis=1)).sum()", "This is the sum over the rows"),
    ("scores - scores.data.max(axis=1, keepdims=True)", "scores - 0.0", "e^1000 is infinite"),
    ("p.grad = None  ", "pass  ", "The gradients of earlier steps are still there"),
    (STEP, "            pass", "Nothing is learned"),
    (STEP, "            p = Tensor(p.data - lr * p.grad)", "Nothing is learned"),
    (STEP, STEP.replace("-", "+"), "Uphill"),
    ("range(steps)", "range(steps - 1)", "one step too few"),
    (
        f"        for p in parameters:\n{STEP}",
        "        parameters = [Tensor(p.data - lr * p.grad) for p in parameters]",
        "should hold the trained numbers",
    ),
    (
        "losses.append(loss.data.item())",
        "losses.append(cross_entropy(network(x, *parameters), onehot).data.item())",
        "measured after its step",
    ),
    (
        "losses.append(loss.data.item())",
        "losses.append(loss)",
        "A list of Tensors keeps every graph alive",
    ),
]


@pytest.mark.parametrize("right, wrong, said", MISTAKES)
def test_a_usual_mistake_is_named(first, right, wrong, said):
    marks = first(right, wrong)
    assert said in marks.help, str(marks)


@pytest.mark.parametrize(
    "right, wrong, line",
    [
        ("Tensor(self.data + other.data", "Tensor(self.data - other.data", "1 a + b"),
        ("Tensor(self.data * other.data", "Tensor(self.data * self.data", "1 a * b"),
        ("Tensor(-self.data", "Tensor(self.data", "4 -a"),
        ("Tensor(self.data ** power", "Tensor(self.data * power", "4 a ** 3"),
        ("y = np.exp", "y = np.exp2", "5 a.exp()"),
        ("Tensor(np.log", "Tensor(np.log2", "5 a.log()"),
        ("y = np.tanh", "y = np.sin", "5 a.tanh()"),
        ("self.data.sum(", "self.data.max(", "6 a.sum()"),
        ("self.data.sum(axis=axis", "self.data.sum(axis=None", "6 a.sum(axis=0)"),
        ("self.data.sum(axis=axis", "self.data.sum(axis=axis and 0", "6 a.sum(axis=1)"),
        (
            "self.data.sum(axis=axis, keepdims=keepdims)",
            "self.data.sum(axis=axis)",
            "6 with keepdims",
        ),
        ("return total * ", "return 1 / total * ", "6 a.mean()"),
        ("self.data.reshape(*shape)", "self.data.reshape(shape[::-1])", "6 a.reshape(2, 6)"),
        ("Tensor(self.data.T", "Tensor(self.data", "6 a.T"),
        ("self.data @ other.data", "self.data * other.data", "7 (2, 3) @ (3, 4)"),
    ],
)
def test_a_wrong_value_is_its_own_line(first, right, wrong, line):
    assert first(right, wrong).lines[-1].name == line
