"""Practice: tasks are sound and the same everywhere; what a learner is told."""

import hashlib
import json
import sys

import pytest
from support import ROOT

from tinygrad_attn import cli

MARKING = ROOT / "docs/course/marking"
BROADCAST = ["practice", "broadcasting", "--level", "2", "--seed", "5"]
RIGHT = """
    s = 0.6 * (x + w) - 1.4
    h = 0.4 * np.cos(s)
    d_t = 0.6 * g * y
    d_A = d_t.T @ h
    d_h = d_t @ A
    d_x = -0.24 * np.sin(s) * d_h
    return d_x, d_x.sum(0), d_A
"""


@pytest.fixture(scope="module")
def proof():
    sys.path.insert(0, str(MARKING))
    import _practice_proof

    yield _practice_proof
    sys.path.remove(str(MARKING))


def test_every_task_is_sound_and_no_two_students_have_the_same(proof):
    """A sample; `python docs/course/marking/_practice_proof.py` takes 500 seeds a level."""
    topics = ("mixed", *proof.TOPICS)
    for number, topic in enumerate(topics):
        level = number % 6 + 1
        task = proof.make(topic, level, number)
        assert len(task.steps) == level and len(proof.mistakes(task)) == 8
        assert number % 4 or not proof.faults(task)  # gradcheck takes a second for the nine rules
        assert not proof.alike(topic, (number + 2) % 6 + 1, proof.STUDENTS[::8])


def test_a_seed_gives_the_same_task_everywhere(proof):
    """A changed digest means that every student's task changes: say so in the changelog."""
    topics = ("mixed", *proof.TOPICS)
    tasks = [proof.make(topic, level, 7, 2) for topic in topics for level in proof.LEVELS]
    text = "".join(f"{task}{task.code}{[x.tolist() for x in task.inputs]}" for task in tasks)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "f196992fc68b463c"


def run(capsys, *arguments, code):
    assert cli.main([*map(str, arguments)]) == code
    return "".join(capsys.readouterr())


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """A function that writes a rule into the file of a task, and returns its name."""
    monkeypatch.chdir(tmp_path)
    shown = run(capsys, *BROADCAST, code=0)
    path = tmp_path / "practice_broadcasting_2_5.py"
    assert "y_ij = 2.25 exp(0.6 (sum_k h_ik A_jk) + 0.6)" in shown and path.name in shown
    text = path.read_text("utf-8")

    def write(rule):
        path.write_text(text + rule, "utf-8")
        return path.name

    return write


DIFFERENCES = """
    def of(k):
        found = np.zeros_like(inputs[k])
        for at in np.ndindex(found.shape):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in inputs]
                moved[k][at] += sign * 1e-5
                x, w, A = moved
                h = 0.4 * np.cos(0.6 * (x + w) - 1.4)
                ends.append((g * 2.25 * np.exp(0.6 * (h @ A.T) + 0.6)).sum())
            found[at] = (ends[0] - ends[1]) / 2e-5
        return found

    inputs = x, w, A
    return of(0), of(1), of(2)
"""
WRONG = {  # a rule: what is said first, and the checks that it passes
    "": ("backward returns None", 0),
    "    return g": ("backward returns 1 gradient, but f has 3 inputs", 0),
    "    import torch": ("imports torch: the rule is to be written in NumPy alone", 0),
    "    f(x, w, A)": ("backward calls f", 0),
    "    return 1 / 0": ("ZeroDivisionError in line 24", 0),
    RIGHT.replace(".sum(0)", ""): ("The gradient of w has the shape (4, 2), but w has (2,).", 2),
    RIGHT.replace("d_x.sum", "2 * d_x.sum"): ("constant factor: the gradient is 2 times", 2),
    RIGHT.replace("    d_A", "    g *= 2\n    d_A"): ("chang", 0),
    DIFFERENCES: ("nearly right, to as many digits as a difference quotient", 0),
}


def test_what_a_learner_is_told(answer, capsys):
    assert "Right: every gradient agrees" in run(capsys, "practice", answer(RIGHT), code=0)
    assert "3 of 3 checks pass" in run(capsys, *BROADCAST, code=0)  # the same command, again
    import _apart
    from _practice import practice

    for rule, (said, passed) in WRONG.items():
        marks = _apart.mark_here(practice(), _apart.Path(answer(rule)), lambda _: None, "")
        assert said in " ".join(marks.helps.values()), (rule, marks.helps)
        assert sum(line.ok for line in marks.lines) == passed, (rule, marks)
    results = json.loads(run(capsys, "practice", answer(RIGHT), "--json", code=0))
    assert [test["score"] for test in results["tests"]] == [1, 1, 1]


def test_hints(answer, capsys):
    hint = lambda number: run(capsys, "practice", answer(wrong), "--hint", number, code=0)
    wrong = RIGHT.replace("d_t @ A", "d_t @ A.T")
    assert "dy_ij / dh_mn = δ_im A_jn * 1.35 exp(0.6 (sum_k h_ik A_jk) + 0.6)" in hint(1)
    assert "d_h is the first that is wrong." in hint(2)
    assert "d_x" in hint(3) and "# ---- backward" in hint(3)
    wrong = RIGHT.replace("d_h", "other")
    assert "Keep the gradient of h in a variable (d_h)" in hint(2)


def test_mistakes_of_the_command_line(answer, capsys):
    assert "did you mean 'norms'" in run(capsys, "practice", "norm", code=2).lower()
    assert "--level is 1 to 6" in run(capsys, "practice", "norms", "--level", 7, code=2)
    assert "there is no file 'none.py'" in run(capsys, "practice", "none.py", code=2)
    assert "--hint is 1, 2 or 3" in run(capsys, "practice", answer(""), "--hint", 4, code=2)


def test_a_use_that_is_left_out_is_named(proof):
    import _practice as practice

    task = practice.make("norms", 3, 7106)
    g = practice.cotangent(task)
    (first, code), (second, _) = task.uses("h")
    assert (first.name, second.name) == ("p", "y")
    mine = practice.right_gradients(task, g, True, code)[0]
    assert practice.left_out(task, "h", mine, g) == "A use of h in the line `p = ...` is left out."
    assert not practice.left_out(task, "h", 2 * mine, g)


def test_a_small_wrong_term_is_seen(proof):
    """Its part of the gradient is below the usual tolerance of gradcheck."""
    task = proof.make("mixed", 3, 20)
    right = proof.rule_of(task)
    assert proof.passes(task, right)
    assert not proof.passes(task, lambda *args: tuple(d * (1 + 1e-4) for d in right(*args)))


def test_the_formulas_of_slopes_are_right(proof):
    import re

    import numpy as np
    from _practice_grammar import FUNCTIONS, Inner, plain

    for phi in FUNCTIONS:
        inner = Inner(phi, "0.7", "-0.4", "1.3")
        text = plain(inner.slope("u"))
        text = re.sub(r"tanh\^2\((.*?)\)", r"tanh(\1)^2", text).replace("^", "**")
        text = re.sub(r"(?<=[\d)]) (?=[(\w])", " * ", text)
        names = {name: getattr(np, name) for name in ["tanh", "sin", "cos", "exp", "cosh", "sinh"]}
        f = lambda u: eval(inner.code("u"), {"np": np, "u": u})
        for u in (-1.1, 0.3, 1.7):
            measured = (f(u + 1e-6) - f(u - 1e-6)) / 2e-6
            assert abs(eval(text, names | {"u": u}) - measured) < 1e-6, (phi, text)
