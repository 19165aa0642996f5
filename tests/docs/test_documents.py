"""What the documents say of the source, of versions and of measurements is compared with them."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support import each

import tinygrad_attn as ta
from tests.benchmarks.report import RESULTS, dumps, markdown, summary
from tests.benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import quotes  # noqa: E402  a script beside the pages, in no package


def test_the_table_of_benchmarks_is_made_from_the_results():
    assert summary() in (ROOT / "docs" / "benchmarks.md").read_text("utf-8"), (
        "run `python -m tests.benchmarks.report`"
    )


def test_every_benchmark_result_says_where_how_and_with_what_it_was_measured():
    files = sorted(RESULTS.glob("*.json"))
    assert files
    for file in files:
        result = json.loads(file.read_text("utf-8"))
        assert {"title", "machine", "command", "python", "libraries", "rounds"} < set(result)
        assert {"numpy", "torch"} <= set(result["libraries"]), file.name
        measured = {row["name"] for rows in result["threads"].values() for row in rows}
        no_longer = {"scalar graph"}  # was measured beside micrograd
        assert measured - no_longer <= {workload.name for workload in WORKLOADS}, file.name
        assert dumps(result) == file.read_text("utf-8"), f"{file.name}: write it with report.dumps"
        assert markdown(result)


def test_the_citation_is_of_this_version():
    stated = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {ta.__version__}\n" in stated and "\nlicense: MIT\n" in stated


def test_the_changelog_begins_with_what_is_unreleased():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.M)[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= kinds


def test_every_file_that_contributing_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = set(re.findall(r"`?((?:tinygrad_attn|tests|docs)/[\w./-]*)", text))
    examples = {"docs/course/NN-name.md", "docs/course/exercises/NAME.py"}
    examples.add("docs/course/exercises/solutions/NAME.py")
    assert len(named) > 15 and not [
        name for name in named - examples if not (ROOT / name.rstrip(".")).exists()
    ]


@each("page", quotes.pages())
def test_every_quote_is_what_the_source_says(page):
    text = page.read_text("utf-8")
    assert quotes.renewed(text) == text, "run `python docs/quotes.py --write`, and read the page"


def test_the_debugger_shows_what_the_page_of_plain_mode_shows(tmp_path):
    page = (ROOT / "docs" / "engine" / "04-plain-mode.md").read_text("utf-8")
    program = re.search(r"```python\n([^`]*breakpoint\(\)[^`]*)```", page)
    sessions = re.findall(r"```text\n(\(Pdb\) [^`]*)```", page)
    assert program and len(sessions) == 3
    (tmp_path / "look.py").write_text(program[1])
    lines = "".join(sessions).splitlines()
    commands = [line.removeprefix("(Pdb) ") for line in lines if line.startswith("(Pdb) ")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "pdb.set_trace"}
    done = subprocess.run(
        [sys.executable, "look.py"],
        input="\n".join([*commands, "quit"]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    said = done.stdout
    for line in lines:  # in this order
        if not line.startswith("(Pdb) "):
            assert line in said, f"{line!r} is missing from\n{done.stdout}"
            said = said.partition(line)[2]


def said(node):
    """The text of a string or f-string in the source, with ... for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(said, node.values))
    return node.value if isinstance(node, ast.Constant) else "..."


def test_the_package_says_the_sentences_that_the_table_of_refusals_quotes():
    page = (ROOT / "docs" / "looking-inside.md").read_text("utf-8")
    quoted = re.findall(r"^\|.*\| \"(.*)\" \|$", page, re.M)
    source = [
        said(node)
        for path in (ROOT / "tinygrad_attn").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and node.value
        if isinstance(said(node), str)
    ]
    assert len(quoted) > 5 and not [
        sentence for sentence in quoted if not any(sentence in text for text in source)
    ]
