"""What the tests share."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.append(str(ROOT / "experiments/python/examples"))


@pytest.fixture
def root() -> Path:
    """The repository's root."""
    return ROOT


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Says skips where `make test` sums them up."""
    log = os.environ.get("CCPLANE_TEST_LOG")
    if report.skipped and log:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"SKIPPED: the Python package, {report.nodeid}: {reason}\n")
