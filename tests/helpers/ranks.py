"""Programs on several ranks: `passes(2, path, *words)` runs one under mpiexec and wants its "ok"."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, require

TIMEOUT = 120


def mpiexec():
    """The launcher from the wheel beside this Python, or the system's."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        require("mpiexec, of mpich")
    return found


def start(ranks, *command, folder=None):
    """A run of several ranks, one thread each."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [mpiexec(), "-n", str(ranks), sys.executable, *map(str, command)],
        env={**os.environ, **threads, "PYTHONPATH": path, "TINYGRAD_ATTN_QUICK": "1"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process):
    """(exit code, output, errors); a run that hangs is ended and fails the test."""
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"the ranks hang\n{out}\n{err}", pytrace=False)
    return process.returncode, out, err


def passes(ranks, *command):
    """The output of a run whose last line is "ok"."""
    code, out, err = finished(start(ranks, *command))
    assert code == 0 and out.splitlines()[-1:] == ["ok"], out + err
    return out
