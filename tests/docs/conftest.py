"""The course's marker, for every test of the course."""

import sys

import pytest
from support import MARKING

from tinygrad_attn import cli


@pytest.fixture(scope="module")
def marker():
    sys.path.insert(0, str(MARKING))
    try:
        yield cli.load(MARKING / "mark.py")
    finally:
        sys.path.remove(str(MARKING))
        for name in (
            "mark",
            "_apart",
            "_bugs",
            "_class",
            "_compare",
            "_exam",
            "_exam_cases",
            "_exam_engine",
            "_marking",
            "_marks_attention",
            "_marks_dual",
            "_marks_engine",
            "_marks_layers",
            "_marks_parallel",
            "_marks_program",
            "_marks_project",
            "_points",
            "_probe",
            "_rules",
            "_watch",
            "_words",
            "_zoo",
        ):
            sys.modules.pop(name, None)
