"""What the documents say of the source, of versions and of measurements is compared with them."""

import json
from pathlib import Path

from tests.benchmarks.report import RESULTS, dumps, markdown, summary
from tests.benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_benchmarks_is_made_from_the_results():
    assert summary() in (ROOT / "docs" / "benchmarks.md").read_text("utf-8"), (
        "put what `python -m tests.benchmarks.report` prints into docs/benchmarks.md"
    )


def test_every_benchmark_result_says_where_how_and_with_what_it_was_measured():
    files = sorted(RESULTS.glob("*.json"))
    assert files
    for file in files:
        result = json.loads(file.read_text("utf-8"))
        assert {"machine", "command", "python", "libraries", "rounds"} < set(result), file.name
        assert {"numpy", "torch"} <= set(result["libraries"]), file.name
        measured = {row["name"] for rows in result["threads"].values() for row in rows}
        assert measured <= {workload.name for workload in WORKLOADS}, file.name
        assert dumps(result) == file.read_text("utf-8"), f"{file.name}: write it with report.dumps"
        assert markdown(result)
