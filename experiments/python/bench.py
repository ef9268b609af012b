"""Figures of the Python package, each beside Rust's, in turn; one processor, so run it under `taskset -c 1`.

    python bench.py
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

import ccplane
from ccplane import _native
from ccplane.envs import family_text

#: Decisions of an episode.
MAX_STEPS = 400
#: Links on which little happens between two decisions, so that what the interface costs shows.
SMALL = {"family": "published", "bandwidth_pps": [100, 200], "delay_s": [0.05, 0.1], "loss": [0.0, 0.01]}


def vector(algorithm: str, links: dict[str, Any] | None, count: int, copy: bool) -> float:
    """Steps per second of a vector environment, action 0."""
    environment = ccplane.VectorEnv(count, algorithm, links, MAX_STEPS, copy)
    environment.reset(seed=1)
    actions = np.zeros((count, 1), np.float32)
    began, calls = time.perf_counter(), MAX_STEPS
    for _ in range(calls):
        environment.step(actions)
    return count * calls / (time.perf_counter() - began)


def rust(algorithm: str, links: dict[str, Any] | None, count: int) -> float:
    """Steps per second of Rust's own loop over the same episodes."""
    steps, seconds, _ = _native.run_in_rust(algorithm, family_text(links), list(range(1, count + 1)), MAX_STEPS)
    return steps / seconds


def environments(turns: int, count: int) -> None:
    """Prints steps per second and the ratio to Rust's loop."""
    for name, algorithm, links in [
        ("aurora's links", "aurora", None),
        ("published links", "aurora-published", None),
        ("small links", "aurora-published", SMALL),
    ]:
        ratios, python, native = [], [], []
        for _ in range(turns):
            native.append(rust(algorithm, links, count))
            python.append(vector(algorithm, links, count, copy=False))
            ratios.append(python[-1] / native[-1])
        median = statistics.median
        print(f"env.steps, {name}: {median(python):.0f} steps/s, {median(ratios):.2f} x Rust's {median(native):.0f}")


class Echo(ccplane.Algorithm):
    """Reports on each ACK; the agent's half updates one register. `rust-echo` is the same in Rust."""

    name = "py-echo"
    programs = {
        "echo": "(def (Report (acked 0)) (x 0)) (when true (:= Report.acked Ack.bytes_acked) (:= Cwnd 100000) (report))"
    }

    def __init__(self) -> None:
        self.reports = 0

    def flow(self, info: ccplane.FlowInfo, control: ccplane.Control) -> "Echo":
        control.set_program("echo")
        return self

    def on_report(self, now_us: int, program: str, report: dict[str, int], control: ccplane.Control) -> None:
        control.update(x=self.reports)
        self.reports += 1


ECHO_PLAN = """
title = "Reports"
duration_s = 20
repeats = 1
[[link]]
rate_mbit = 100
delay_ms = 10
queue_packets = 100
[[algorithm]]
algorithm = "{}"
datapath = "sim"
"""


def reports(turns: int) -> None:
    """Prints reports per second, and what Python adds to one."""
    rates, added = [], []
    for _ in range(turns):
        echo = Echo()
        began = time.perf_counter()
        _, problem = _native.simulate(ECHO_PLAN.format("rust-echo"), [_native.Hosted.echo()])
        assert problem is None, problem
        between = time.perf_counter()
        ccplane.simulate(ECHO_PLAN.format("py-echo"), [echo])
        in_rust, in_python = between - began, time.perf_counter() - between
        rates.append(echo.reports / in_python)
        added.append((in_python - in_rust) / echo.reports * 1e6)
    median = statistics.median
    print(
        f"algorithm.reports: {median(rates):.0f} reports/s, simulator included; Python adds {median(added):.2f} us"
        f" to each ({min(added):.2f} to {max(added):.2f})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--environments", type=int, default=64)
    arguments = parser.parse_args()
    environments(arguments.turns, arguments.environments)
    reports(arguments.turns)
