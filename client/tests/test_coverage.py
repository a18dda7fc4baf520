"""The tests of the core cover all its lines and branches, without sockets or servers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src/petstore_client"
CORE = [
    "_calls", "_errors", "_escaping", "_events", "_keys", "_messages", "_models", "_operations", "_pages",
    "_rate_limiter", "_responses", "_retries",
]  # fmt: skip


@pytest.mark.thorough
def test_the_core_has_full_line_and_branch_coverage(tmp_path: Path) -> None:
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={tmp_path / 'coverage'}"
    tests = [str(path) for path in sorted(TESTS.glob("test_core_*.py"))]
    pytest_words = ["-m", "pytest", "-q", "-p", "pytest_timeout", *tests]
    run = subprocess.run(
        [*coverage, "run", data, "--branch", f"--source={SOURCE}", *pytest_words],
        cwd=TESTS.parents[1], capture_output=True, text=True,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # tracing plugins would take most of the time
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    included = ",".join(str(SOURCE / f"{name}.py") for name in CORE)
    report = subprocess.run(
        [*coverage, "report", data, "--show-missing", "--fail-under=100", f"--include={included}"],
        cwd=TESTS.parents[1], capture_output=True, text=True,
    )  # fmt: skip
    assert report.returncode == 0, report.stdout + report.stderr
    assert all(f"{name}.py" in report.stdout for name in CORE)
