"""The maker of mutants: it finds places of each kind in each room, changes what it says, and tells who is killed."""

import ast
import random
from collections import Counter
from fnmatch import fnmatch

import pytest

from tests.mutants import places, trial
from tests.mutants.__main__ import explanations, report, try_all
from tests.mutants.kinds import KINDS
from tests.mutants.places import ROOMS, ROOT, Walk, mutants, sample

# An optimiser takes each number by itself; a transform only calls the engine.
NONE_OF_THIS_KIND = {("optim", "axis")}
NONE_OF_THIS_KIND |= {("transforms", kind) for kind in ("axis", "factor", "eps")}
FEW = "tests/ops/test_properties.py::test_few"


@pytest.fixture(scope="module")
def every():
    return mutants()


def made_of(text, kind=None):
    """What the text becomes, one change at a time."""
    found = Walk("ops", "ops/file.py", text.encode()).mutants()
    return [f"{m.before} -> {m.after}" for m in found if kind in (None, m.kind)]


def test_each_kind_finds_places_in_each_room(every):
    found = Counter((m.room, m.kind) for m in every)
    missing = {(r, k) for r in ROOMS for k in KINDS} - set(found)
    assert missing == NONE_OF_THIS_KIND


def test_each_file_has_tests_and_each_pattern_a_file(every):
    files = {m.file for m in every}
    for file in files:
        names = trial.tests_of(file)
        assert all((ROOT / name).is_file() for name in names)
        assert len(set(names)) == len(names) > 0
    assert all(any(fnmatch(file, pattern) for file in files) for pattern in trial.TESTS)


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


@pytest.fixture
def project(tmp_path):
    """A package of one room, with a rule that is tested, a rule that is not, and a loop that may not end."""
    root = tmp_path / "project"
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\npythonpath = ['.']\nmarkers = ['slow: slow']\nfaulthandler_timeout = 300\n",
        "tinygrad_attn/__init__.py": "",
        "tinygrad_attn/ops/__init__.py": "",
        "tinygrad_attn/ops/few.py": (
            "def tested(a, b):\n    return a - b\n\n\ndef untested(a):\n    return -a\n\n\n"
            "def loop(n):\n    while n:\n        n -= 1\n    return n\n"
        ),
        "tests/ops/test_opinfo.py": "",
        "tests/ops/test_properties.py": (
            "from tinygrad_attn.ops import few\n\n\ndef test_few():\n    assert few.tested(3, 2) == 1\n"
            "\n\ndef test_loop():\n    assert few.loop(3) == 0\n"
        ),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def copies(project, tmp_path):
    return [trial.Copy(tmp_path / str(job), project) for job in range(2)]


def test_who_is_tested_is_killed_and_who_is_not_survives(project, copies, monkeypatch, capsys):
    monkeypatch.setattr(trial, "PROCESSOR_SECONDS", 0.3)
    before = {p: p.read_bytes() for p in project.rglob("*") if p.is_file()}
    outcomes = []
    try_all(mutants(project), copies, outcomes)
    assert {p: p.read_bytes() for p in project.rglob("*") if p.is_file()} == before
    killer = {o.mutant.text: o.killer for o in outcomes}
    assert killer["tested: a - b -> (a + b)"] == killer["tested: a - b -> (b - a)"] == FEW
    assert killer["untested: -a -> a"] is None
    assert killer["loop: n -= 1 -> pass"] == "an endless test"
    assert not report(outcomes, {})
    assert "NOT EXPLAINED" in capsys.readouterr().out
    assert report(outcomes, {("ops/few.py", "untested: -a -> a"): "Nobody asks for its sign."})
    made, killed, explained, survived = map(
        int, capsys.readouterr().out.split("all")[1].split()[:4]
    )
    assert (made, killed, explained, survived) == (len(outcomes), len(outcomes) - 1, 1, 0)


def test_a_test_that_fails_without_a_mutant_kills_none(project, tmp_path, capsys):
    path = project / "tests/ops/test_properties.py"
    path.write_text(path.read_text().replace("== 1", "== 2"))
    outcomes = []
    try_all(mutants(project)[:1], [trial.Copy(tmp_path / "copy", project)], outcomes)
    assert [o.killer for o in outcomes] == [None]
    assert f"left out: {FEW}" in capsys.readouterr().out


def test_tests_that_cannot_run_are_told_and_kill_none(project, tmp_path):
    (project / "tests/ops/test_properties.py").write_text("import nothing_of_this_name")
    with pytest.raises(SystemExit, match="cannot read tests/ops/test_properties.py"):
        try_all(mutants(project)[:1], [trial.Copy(tmp_path / "copy", project)], [])
