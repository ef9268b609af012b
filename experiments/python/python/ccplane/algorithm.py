"""Congestion control algorithms as Python classes."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypedDict

from ccplane import _native
from ccplane.cluster import connect

Control = _native.Control


class FlowInfo(TypedDict):
    """What is known of a flow when it starts."""

    #: Largest segment, bytes of payload.
    mss_bytes: int
    #: Congestion window when the algorithm takes over, bytes.
    init_cwnd_bytes: int
    #: Addresses and ports.
    local: str
    remote: str
    #: Smallest round-trip time so far, microseconds, where the datapath knows.
    min_rtt_us: int | None


class Flow(Protocol):
    """The agent's half of one flow. It may have `on_close()` besides."""

    def on_report(self, now_us: int, program: str, report: dict[str, int], control: Control) -> None:
        """Called for each report: the datapath's clock in microseconds, the program that reported, its registers by name."""


class Algorithm(ABC):
    """A congestion control algorithm: fold programs, which decide on each ACK, and this class, which hears their reports.

    An exception ends its say over the flow: the flow goes on under its datapath's native algorithm, the flow's record and the
    agent's log name the exception, and `errors` keeps the traceback.
    """

    #: As plans and rules spell it: a-z, 0-9, `-`, `_`.
    name: ClassVar[str]
    #: The fold programs by name, in the fold language.
    programs: ClassVar[dict[str, str]]

    @abstractmethod
    def flow(self, info: FlowInfo, control: Control) -> Flow:
        """Called once when a flow starts: sets its first program through `control` and returns what hears its reports."""

    @property
    def errors(self) -> list[str]:
        """Tracebacks of the exceptions that its flows met, the first ones."""
        return self.hosted().errors

    def hosted(self) -> _native.Hosted:
        """The algorithm as the agent takes it."""
        hosted = self.__dict__.get("_hosted")
        if hosted is None:
            hosted = self.__dict__["_hosted"] = _native.Hosted(self)
        return hosted

    def __getstate__(self) -> dict[str, Any]:
        # Another process makes its own.
        return {name: value for name, value in self.__dict__.items() if name != "_hosted"}


def hosted(algorithms: Sequence[Algorithm]) -> list[_native.Hosted]:
    """The algorithms as the agent takes them."""
    return [algorithm.hosted() for algorithm in algorithms]


def command(arguments: Sequence[str | PathLike[str]], algorithms: Sequence[Algorithm] = ()) -> int:
    """Runs the `ccplane` command in this process, with these algorithms beside the built-in ones, and returns its exit code.

    So each of its subcommands takes them: `agent` steers live flows of the kernel, `run` runs plans on every datapath, `quic`
    transfers files. The agent confines its threads when it runs: import what your algorithms need before.
    """
    sys.stdout.flush()
    return _native.command([str(argument) for argument in arguments], hosted(algorithms))


class SimulationError(RuntimeError):
    """A run of a plan failed, and none came after it."""

    #: The figures of the runs before it, as `simulate` returns them.
    runs: list[dict[str, Any]]

    def __init__(self, message: str, runs: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.runs = runs

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.runs)


def simulate(
    plan: str | PathLike[str],
    algorithms: Sequence[Algorithm] = (),
    traces: str | PathLike[str] | None = None,
    ray: bool = False,
) -> list[dict[str, Any]]:
    """Simulates a plan in this process and returns each run's figures, as results files have them.

    Args:
        plan: the plan's text, in TOML, or the path of its file.
        algorithms: those that the plan names beside the built-in ones.
        traces: the folder of recorded traces, where the plan names some.
        ray: spread the runs over Ray: the cluster that `RAY_ADDRESS` names, or this machine. The figures are those of a local run.

    Raises:
        SimulationError: a run failed; `runs` has those before it.
    """
    text = plan if isinstance(plan, str) and "\n" in plan else Path(plan).read_text(encoding="utf-8")
    if ray:
        lines, problem = _spread(text, algorithms, traces)
    else:
        lines, problem = _native.simulate(text, hosted(algorithms), traces)
    runs = [json.loads(line) for line in lines]
    if problem is not None:
        raise SimulationError(problem, runs)
    return runs


def _spread(
    text: str, algorithms: Sequence[Algorithm], traces: str | PathLike[str] | None
) -> tuple[list[str], str | None]:
    """What `_native.simulate` returns, played by Ray: a part of the plan for each processor, each run dealt to the next part."""
    import ray

    connect(os.cpu_count() or 1)
    parts = max(int(ray.cluster_resources().get("CPU", 1)), 1)

    @ray.remote(num_cpus=1)
    def play(part: int) -> tuple[list[str], str | None]:
        return _native.simulate(text, hosted(algorithms), traces, part, parts)

    played = ray.get([play.remote(part) for part in range(parts)])
    runs = {part + parts * n: line for part, (lines, _) in enumerate(played) for n, line in enumerate(lines)}
    failed = [(part + parts * len(lines), why) for part, (lines, why) in enumerate(played) if why is not None]
    # Of those that fail the first one ends the plan, as if the runs had come one after the other.
    first, problem = min(failed, default=(len(runs), None))
    return [runs[number] for number in range(first)], problem
