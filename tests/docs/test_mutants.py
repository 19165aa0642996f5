"""The maker of mutants: it finds places of each kind in each room, changes what it says, and tells who is killed."""

import ast
import json
import random
import subprocess
import sys
from collections import Counter

import pytest

from tests.mutants import places, trial
from tests.mutants.__main__ import explanations
from tests.mutants.kinds import DECISIONS, KINDS
from tests.mutants.places import DECIDED, ROOMS, ROOT, Walk, mutants, sample

# An optimiser takes each number by itself; a transform only calls the engine, which adds up what the rules give; a file
# has no axes, and its numbers are places in it.
NONE_OF_THIS_KIND = {("optim", "axis"), ("compiling", "eps"), ("random", "eps")}
NONE_OF_THIS_KIND |= {("engine", "eps")}
NONE_OF_THIS_KIND |= {("files", kind) for kind in ("sign", "axis", "eps")}
NONE_OF_THIS_KIND |= {("transforms", kind) for kind in ("axis", "factor", "eps")}


@pytest.fixture(scope="module")
def every():
    return mutants()


def made_of(text, kind=None, file="ops/file.py"):
    """What the text becomes, one change at a time."""
    found = Walk("ops", file, text.encode()).mutants()
    return [f"{m.before} -> {m.after}" for m in found if kind in (None, m.kind)]


def test_each_kind_finds_places_in_each_room(every):
    found = Counter((m.room, m.kind) for m in every)
    missing = {(r, k) for r in ROOMS for k in KINDS} - set(found)
    assert missing == NONE_OF_THIS_KIND
    decided = {(m.file, m.kind) for m in every if m.kind in DECISIONS}
    assert decided == {(file, kind) for file, kinds in DECIDED.items() for kind in kinds}


def test_each_file_has_tests_and_each_pattern_a_file(every):
    files = {m.file for m in every}
    for file in files:
        names = trial.tests_of(file)
        assert len(set(names)) == len(names) > 0
    assert all((ROOT / name).exists() for names in trial.TESTS.values() for name in names)
    # A pattern that stands behind a wider one is never met.
    assert {trial.pattern_for(file) for file in files} == set(trial.TESTS)


def test_names_are_unique_and_the_same_at_every_look(every):
    assert len({m.name for m in every}) == len(every)
    assert mutants() == every


def test_a_mutant_is_another_program_that_compiles(every):
    for m in random.Random(0).sample(every, 40):
        assert m.source() != (ROOT / places.PACKAGE / m.file).read_text("utf-8"), m.name
        ast.parse(m.source())


def test_the_text_of_a_mutant_stays_when_lines_move():
    text = "def f(a, b):\n    return a - b\n"
    moved = Walk("ops", "ops/f.py", f"# A comment: é.\n\n{text}".encode()).mutants()
    here = list(Walk("ops", "ops/f.py", text.encode()).mutants())
    assert [(m.text, m.line) for m in moved] == [(m.text, m.line + 2) for m in here]
    assert here[0].name == "ops/f.py:2 sign" and here[0].text == "f: a - b -> (a + b)"


def test_of_several_changes_of_one_text_each_has_a_text_of_its_own(every):
    text = "def f(a):\n    b = -a\n    return x[-a]\n\n\ndef g(a):\n    return -a\n"
    found = [m for m in Walk("ops", "ops/f.py", text.encode()).mutants() if m.kind == "sign"]
    names = ["f: -a -> a (1 of 2)", "f: -a -> a (2 of 2)", "g: -a -> a"]
    assert [m.text for m in found] == names
    assert len({(m.file, m.text) for m in every}) == len(every)


DECIDING = """
def folded(a, b) -> bool:
    return a or b


def rule(a, b):
    if a and b and c:
        return b
    return [x for x in a if x or b]
"""


def test_conditions_are_changed_where_they_decide_what_is_computed():
    file = "transforms/programs/simplify.py"
    parts = [
        "a or b -> b",
        "a or b -> a",
        *[f"a and b and c -> ({two})" for two in ("b and c", "a and c", "a and b")],
    ]
    assert made_of(DECIDING, "condition", file) == [*parts, "x or b -> b", "x or b -> x"]
    assert made_of(DECIDING, "never", file) == ["a and b and c -> False"]
    assert not [kind for kind in DECISIONS if made_of(DECIDING, kind)]


@pytest.mark.parametrize(
    "kind, text, becomes",
    [
        ("sign", "y = a - b", ["a - b -> (a + b)"]),
        ("sign", "y = -x", ["-x -> x"]),
        ("sign", "a -= b", ["a -= b -> a += b"]),
        ("sign", "np.add(a, b, out=c)", ["np.add(a, b, out=c) -> (np.subtract(a, b, out=c))"]),
        ("factor", "y = a * b", ["a * b -> a", "a * b -> b"]),
        ("factor", "y = a / b", ["a / b -> a"]),
        ("factor", "y = f(0.5)", ["0.5 -> 1.0"]),
        ("factor", "a *= b", ["a *= b -> pass"]),
        ("operand", "y = a @ b", ["a @ b -> (b @ a)"]),
        ("operand", "y = np.where(c, a, b)", ["np.where(c, a, b) -> (np.where(c, b, a))"]),
        ("operand", "r = lambda g, y, a, b: g * b", ["b -> y"]),
        ("operand", "r = lambda g, y, x: g * x.ndim", []),
        ("axis", "y = x.sum(axis=-1)", ["-1 -> 0"]),
        ("axis", "y = x.sum(0, keepdims=True)", ["0 -> -1", "keepdims=True -> keepdims=False"]),
        ("axis", "y = x.mT", ["x.mT -> x"]),
        ("axis", "y = x.swapaxes(-1, -2)", ["x.swapaxes(-1, -2) -> x"]),
        ("term", "y = a + b", ["a + b -> a", "a + b -> b"]),
        ("term", "a += b", ["a += b -> pass"]),
        ("eps", "y = v + eps", ["v + eps -> v", "eps -> (100 * eps)"]),
        ("eps", "def f(eps=1e-5): pass", ["1e-05 -> (100 * 1e-05)"]),
        ("off by one", "y = x[i:n]", ["n -> (n - 1)"]),
        ("off by one", "y = x[0]", ["0 -> 1"]),
        ("off by one", "y = np.where(a < b, x, 0)", ["a < b -> (a <= b)"]),
        ("stale", "a += b", ["a += b -> a = b"]),
        ("stale", "np.dot(a, b, out=c)", ["np.dot(a, b, out=c) -> pass"]),
        ("stale", "y[...] = x", ["y[...] = x -> pass"]),
        ("stale", "y = x.copy()", ["x.copy() -> x"]),
        ("stale", "y = np.array(x)", ["np.array(x) -> (np.asarray(x))"]),
        ("stale", "y = np.array([f(x) for x in xs])", []),  # of which both make a new one
    ],
)
def test_what_a_kind_changes(kind, text, becomes):
    assert made_of(text, kind) == becomes


@pytest.mark.parametrize(
    "text",
    [
        '"""y = a - b"""',
        'raise ValueError(f"{a - b}")',
        "assert a - b",
        "def fits(x) -> bool:\n    return x.ndim - 1 < 2",
        "def extra_repr(self):\n    return self.a + self.b",
        "block = 2 * tuning.BLOCK",
        'text = "a" + f"{b}"',
        "x: Tuple[2 * 3]",
        "if a - b < 0:\n    pass",
        "y = np.square(z, out=z)",
        "shape = (*lead, 1) + (2,)",
        "y = np.square(a - b)",
    ],
)
def test_what_no_test_could_see_is_left_alone(text):
    assert [m for m in made_of(text) if "a - b -> (b - a)" in m or "square" not in text] == []


def test_a_sample_is_spread_over_rooms_and_kinds_and_another_seed_takes_another(every):
    taken = sample(every, 200, seed=0)
    assert len(set(taken)) == 200 and sample(every, 200, seed=0) == taken
    groups = Counter((m.room, m.kind) for m in taken)
    assert set(groups) == {(m.room, m.kind) for m in every} and max(groups.values()) <= 6
    assert set(sample(every, 200, seed=1)) != set(taken)


def test_every_explanation_is_a_sentence_about_a_mutant_that_there_is(every):
    there = {(m.file, m.text) for m in every}
    for key, why in explanations().items():
        assert key in there, f"{key} is no mutant any more: take its explanation out"
        assert why[0].isupper() and why.endswith(".") and len(why.split()) > 4, key


FILES = {
    "pyproject.toml": """
[tool.pytest.ini_options]
addopts = "--import-mode=importlib"
pythonpath = ["."]
markers = ["slow: slow"]
faulthandler_timeout = 300
""",
    "tinygrad_attn/__init__.py": "",
    "tinygrad_attn/ops/__init__.py": "",
    "tinygrad_attn/ops/few.py": """
def tested(a, b):
    return a - b


def untested(a):
    return -a


def loop(n):
    while n:
        n -= 1
    return n
""",
    "tests/ops/test_opinfo.py": "",
    "tests/ops/test_properties.py": """
from tinygrad_attn.ops import few


def test_few():
    assert few.tested(3, 2) == 1


def test_loop():
    assert few.loop(3) == 0
""",
}
CODE = """
import json, sys
from pathlib import Path
from tests.mutants import trial
from tests.mutants.__main__ import report, try_all
from tests.mutants.places import mutants
project, size, WHY = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
trial.IMPORTED[:] = ["pytest", "hypothesis"]
trial.PROCESSOR_SECONDS = 0.3
trial.prepare()
outcomes = []
try_all(mutants(project)[:size], [trial.Copy(project.parent / str(job), project) for job in range(2)], outcomes)
well = [report(outcomes, {}), report(outcomes, {("ops/few.py", text): why for text, why in WHY.items()})]
print(json.dumps([well, {o.mutant.text: o.killer for o in outcomes}]))
"""
WHY = {"untested: -a -> a": "Nobody asks for its sign."}
FEW = "tests/ops/test_properties.py::test_few"


@pytest.fixture
def project(tmp_path):
    """A package of one room, with a function that is tested, one that is not, and a loop that may not end."""
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def tried(project, size=99):
    """What a process of its own says of the project's first mutants: (is it well without and with explanations, who
    killed whom), and its text.
    """
    command = [sys.executable, "-c", CODE, str(project), str(size), json.dumps(WHY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    found = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else (None, None)
    return *found, done.stdout + done.stderr


def test_who_is_tested_is_killed_and_who_is_not_survives(project):
    well, killer, text = tried(project)
    assert killer["tested: a - b -> (a + b)"] == killer["tested: a - b -> (b - a)"] == FEW
    assert killer["untested: -a -> a"] is None
    assert killer["loop: n -= 1 -> pass"] == "an endless test"
    assert {name: (project / name).read_text() for name in FILES} == FILES
    assert well == [False, True]
    without, explained = text.split("mutants killed.")[:2]
    assert "NOT EXPLAINED" in without and WHY["untested: -a -> a"] not in without
    assert "NOT EXPLAINED" not in explained and WHY["untested: -a -> a"] in explained
    made = len(killer)
    for columns, report in (([made, made - 1, 0, 1], without), ([made, made - 1, 1, 0], explained)):
        assert list(map(int, report.split("\nall")[1].split()[:4])) == columns


def test_a_test_that_fails_without_a_mutant_kills_none(project):
    path = project / "tests/ops/test_properties.py"
    path.write_text(path.read_text().replace("== 1", "== 2"))
    well, killer, text = tried(project, 1)
    assert killer == {"tested: a - b -> (a + b)": None} and f"left out: {FEW}" in text


def test_tests_that_cannot_run_are_told_and_kill_none(project):
    (project / "tests/ops/test_properties.py").write_text("import nothing_of_this_name")
    assert "cannot read tests/ops/test_properties.py, without any mutant" in tried(project, 1)[2]
