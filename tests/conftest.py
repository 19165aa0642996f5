"""Settings for every test: one BLAS thread, no windows, and a known seed before each test."""

import gc
import importlib
import os
import signal
import sys

# Before NumPy is imported, for BLAS reads these once: two test processes share two cores better than two pools do.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# The tests start a hundred processes; each would compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # what a script starts with & ignores Ctrl-C, as would our processes

import pytest
from hypothesis import settings
from support import IN_CI, SEED, begin_random_numbers

settings.register_profile("local", max_examples=20, deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if IN_CI else "local")


@pytest.fixture(scope="module")
def browser():
    """Chromium, which shows the pages of `viz` and of the live site."""
    from live import started

    with started() as browser:
        yield browser


@pytest.fixture
def explain_no_more(monkeypatch):
    """From its call on, gradcheck finds mistakes without looking for their causes, which takes longest."""
    gradcheck = importlib.import_module("tinygrad_attn.check.gradcheck")
    unexplained = lambda report, *_: None if report else "wrong slope"
    return lambda: monkeypatch.setattr(gradcheck, "_explanation", unexplained)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the garbage collector what every test keeps: modules, tables and the tests themselves."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test may depend on the ones before it: the package's generator starts each one at the same place."""
    begin_random_numbers()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = (yield).get_result()
    if report.failed:
        report.sections.append(
            ("seed", f"TINYGRAD_ATTN_TEST_SEED={SEED} python -m pytest '{item.nodeid}'")
        )
