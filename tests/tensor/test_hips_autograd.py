"""HIPS autograd's published tests, run against this package by way of the shim in tests/helpers/hips.

They come with its source distribution, which is not part of this repository:

    pip download --no-deps --no-binary :all: autograd && tar xzf autograd-*.tar.gz
    AUTOGRAD_SDIST=$PWD/autograd-1.9.1 python -m pytest tests/tensor/test_hips_autograd.py -s

HIPS_BACKEND=mygrad in the environment runs the same tests against MyGrad, HIPS_MAX_ORDER=1 without second derivatives;
docs/from-numpy.md has the results.  tests/tensor/test_interop.py covers the same functions natively.
"""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support import ROOT

HIPS = ROOT / "tests" / "helpers" / "hips"
SDIST = os.environ.get("AUTOGRAD_SDIST")


def results(folder, report, **environment):
    """Outcome by test name."""
    path = os.pathsep.join([str(HIPS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            os.devnull,
            "--rootdir",
            ".",
            "-p",
            "hips_shim",
            "-p",
            "no:cacheprovider",
            "-q",
            "-W",
            "ignore",
            "--junit-xml",
            str(report),
            ".",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    assert report.exists(), run.stdout + run.stderr
    outcome = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome[f"{case.get('classname')}::{case.get('name')}"] = (
            "skipped"
            if "skipped" in kinds
            else "failed"
            if kinds & {"failure", "error"}
            else "passed"
        )
    return outcome


@pytest.mark.slow
@pytest.mark.skipif(
    not SDIST,
    reason="AUTOGRAD_SDIST does not name an unpacked source distribution of HIPS autograd",
)
def test_the_published_tests_pass(tmp_path, capsys):
    sys.path.insert(0, str(HIPS))
    try:
        from hips_scope import NO_HOOK
    finally:
        sys.path.remove(str(HIPS))
    outcome = results(Path(SDIST) / "tests", tmp_path / "report.xml")
    counted = {name: result for name, result in outcome.items() if result != "skipped"}
    failed = [name for name, result in counted.items() if result == "failed"]
    share = 1 - len(failed) / len(counted)
    unexpected = [
        name for name in failed if re.sub(r"\[.*", "", name.rpartition("::")[2]) not in NO_HOOK
    ]
    within = len(counted) - len(
        [name for name in counted if re.sub(r"\[.*", "", name.rpartition("::")[2]) in NO_HOOK]
    )
    with capsys.disabled():
        print(
            f"\n{len(counted) - len(failed)} of {len(counted)} in scope pass ({share:.1%}); of those that NumPy lets anyone take over, "
            f"{within - len(unexpected)} of {within} ({1 - len(unexpected) / within:.1%})"
        )
    assert len(counted) > 350
    assert not unexpected
