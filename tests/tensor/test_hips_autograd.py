"""HIPS autograd's published tests, run against this package by way of the shim in tests/helpers/hips.

They come with its source distribution, which is not part of this repository:

    pip download --no-deps --no-binary :all: autograd && tar xzf autograd-*.tar.gz
    AUTOGRAD_SDIST=$PWD/autograd-1.9.1 python -m pytest tests/tensor/test_hips_autograd.py -s

docs/from-numpy.md has the results.  tests/tensor/test_numpy.py covers the same functions natively.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support import ROOT

HIPS = ROOT / "tests" / "helpers" / "hips"
SDIST = os.environ.get("AUTOGRAD_SDIST")


def results(folder, report):
    """Which tests pass, by name."""
    path = os.pathsep.join([str(HIPS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = f"-c {os.devnull} --rootdir . -p hips_shim -p no:cacheprovider -q -W ignore".split()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--junit-xml", str(report), "."],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert report.exists(), done.stdout + done.stderr
    outcome = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if "skipped" not in kinds:
            name = case.get("name")
            outcome[name.partition("[")[0], name, case.get("classname")] = not kinds
    return outcome


@pytest.mark.slow
@pytest.mark.skipif(not SDIST, reason="AUTOGRAD_SDIST does not name HIPS autograd's sources")
def test_the_published_tests_pass(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(HIPS)
    from hips_scope import NO_HOOK

    outcome = results(Path(SDIST) / "tests", tmp_path / "report.xml")
    within = {case: passes for case, passes in outcome.items() if case[0] not in NO_HOOK}
    with capsys.disabled():
        print(f"\n{sum(outcome.values())} of {len(outcome)} in scope pass; of those that NumPy")
        print(f"lets anyone take over, {sum(within.values())} of {len(within)}")
    assert len(outcome) > 350
    assert all(within.values()), [case for case, passes in within.items() if not passes]
