"""What the tests share."""

import json
import os
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "experiments/python/examples"


@pytest.fixture
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture
def notebook():
    """What the cells of a notebook that are tagged `definition` define, as a module."""

    def defined(name: str) -> types.ModuleType:
        cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        module = types.ModuleType(name)
        for cell in cells:
            if "definition" in cell["metadata"].get("tags", ()):
                exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), module.__dict__)
        return module

    return defined


@pytest.fixture
def reno(notebook) -> types.ModuleType:
    """The notebook's Reno, and its race."""
    return notebook("reno")


@pytest.fixture
def bandit(notebook) -> types.ModuleType:
    """The notebook's bandit, and its link."""
    return notebook("bandit")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Says skips where `make test` sums them up."""
    log = os.environ.get("CCPLANE_TEST_LOG")
    if report.skipped and log:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"SKIPPED: the Python package, {report.nodeid}: {reason}\n")
