"""The figures of the package: each is printed, beside Rust's."""

import re
import subprocess
import sys

NUMBER = r"\d+(\.\d+)?"
ENVIRONMENTS = ["aurora's links", "published links", "small links"]


def test_each_figure_is_printed_beside_rusts(root):
    command = [sys.executable, root / "experiments/python/bench.py", "--turns", "1", "--environments", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *steps, reports = done.stdout.splitlines()
    assert len(steps) == len(ENVIRONMENTS)
    for links, line in zip(ENVIRONMENTS, steps, strict=True):
        assert re.fullmatch(rf"env\.steps, {links}: {NUMBER} steps/s, {NUMBER} x Rust's {NUMBER}", line), line
    added = rf"Python adds (-?{NUMBER}) us to each"
    assert re.match(rf"algorithm\.reports: {NUMBER} reports/s, simulator included; {added}", reports), reports
    # Nobody reported where the rate is nothing.
    assert not reports.startswith("algorithm.reports: 0 ")
