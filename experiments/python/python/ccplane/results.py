"""Results files, which `ccplane run` writes, as frames.

Units are in the columns' names: `_bps` bits per second, `_us` microseconds, `_ms` milliseconds, `_ns` nanoseconds, `_ppm` millionths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from ccplane import _native

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    import polars

#: Columns that say which run a row is of.
KEYS = ("scenario", "contender", "repeat", "attempt")


@dataclass(frozen=True)
class Results:
    """A plan's runs: `header` and `runs` as the file has them, and tables made of them."""

    #: The plan, its scenarios and contenders, the machine.
    header: dict[str, Any]
    #: The runs, in the order in which they ended; `status` is `ok` or `failed`.
    runs: list[dict[str, Any]]

    def flow_rows(self) -> list[dict[str, Any]]:
        """A row for each long flow of each run that ended well, without its series."""
        return [
            _flat({**_keys(run), **{k: v for k, v in flow.items() if k not in ("series", "states")}})
            for run, flow in self._flows()
        ]

    def series_rows(self) -> list[dict[str, Any]]:
        """A row for each sample of each long flow."""
        rows = []
        for run, flow in self._flows():
            series = {name: column for name, column in flow["series"].items() if column}
            for n in range(len(series.get("t_ms", ()))):
                sample = {name: column[n] for name, column in series.items() if len(column) > n}
                rows.append({**_keys(run), "flow": flow["name"], **sample})
        return rows

    def completion_rows(self) -> list[dict[str, Any]]:
        """A row for each short flow that completed: its start, its payload, bytes, and the time that it took, both times microseconds."""
        short = ((run, run.get("completions") or {"flows": ()}) for run in self.runs)
        return [{**_keys(run), **flow} for run, of_run in short for flow in of_run["flows"]]

    def fabric_rows(self) -> list[dict[str, Any]]:
        """A row for each flow between the hosts of a fabric: its payload, bytes, its completion time, and whether it ended in its run."""
        rows = []
        for run in self.runs:
            fabric = run.get("fabric") or {"bytes": (), "fct_ns": (), "unfinished": ()}
            unfinished = set(fabric["unfinished"])
            for n, (size, fct_ns) in enumerate(zip(fabric["bytes"], fabric["fct_ns"], strict=True)):
                rows.append({**_keys(run), "bytes": size, "fct_ns": fct_ns, "ended": n not in unfinished})
        return rows

    def run_rows(self) -> list[dict[str, Any]]:
        """A row for each run: its seed, its status, and what the link carried."""
        rows = []
        for run in self.runs:
            link = run.get("link") or {}
            rows.append(_flat({**_keys(run), "status": run["status"], "seed": run["seed"], "link": link}))
        return rows

    def flows(self) -> "pandas.DataFrame":
        """`flow_rows` as a pandas frame."""
        return _pandas(self.flow_rows())

    def series(self) -> "pandas.DataFrame":
        """`series_rows` as a pandas frame."""
        return _pandas(self.series_rows())

    def table(self) -> "pandas.DataFrame":
        """`run_rows` as a pandas frame."""
        return _pandas(self.run_rows())

    def completions(self) -> "pandas.DataFrame":
        """`completion_rows` as a pandas frame."""
        return _pandas(self.completion_rows())

    def fabric(self) -> "pandas.DataFrame":
        """`fabric_rows` as a pandas frame."""
        return _pandas(self.fabric_rows())

    def flows_polars(self) -> "polars.DataFrame":
        """`flow_rows` as a Polars frame."""
        return _polars(self.flow_rows())

    def series_polars(self) -> "polars.DataFrame":
        """`series_rows` as a Polars frame."""
        return _polars(self.series_rows())

    def table_polars(self) -> "polars.DataFrame":
        """`run_rows` as a Polars frame."""
        return _polars(self.run_rows())

    def completions_polars(self) -> "polars.DataFrame":
        """`completion_rows` as a Polars frame."""
        return _polars(self.completion_rows())

    def fabric_polars(self) -> "polars.DataFrame":
        """`fabric_rows` as a Polars frame."""
        return _polars(self.fabric_rows())

    def plot(self, column: str = "throughput_bps") -> "matplotlib.axes.Axes":
        """Draws a column of the series over time, seconds, a line for each flow of the first repeat."""
        import matplotlib.pyplot as plt

        axes = plt.figure().subplots()
        samples = self.series()
        for (contender, flow), part in samples[samples["repeat"] == 0].groupby(["contender", "flow"]):
            axes.plot(part["t_ms"] / 1000, part[column], label=f"{contender}, {flow}")
        axes.set(xlabel="time (s)", ylabel=column, title=self.header["plan"]["title"])
        axes.legend()
        return axes

    def plot_completions(self) -> "matplotlib.axes.Axes":
        """Draws the share of short flows, or of a fabric's, that completed within a time, milliseconds, of all repeats together.

        A line is of one contender in one scenario. It ends below 1 where flows did not complete.
        """
        import matplotlib.pyplot as plt

        times = self._completion_times()
        if not times:
            raise ValueError("no run has short flows")
        axes = plt.figure().subplots()
        for (scenario, contender), (completed_ms, count) in times.items():
            shares = [(n + 1) / count for n in range(len(completed_ms))]
            axes.step(sorted(completed_ms), shares, where="post", label=f"{contender}, {scenario}")
        axes.set(xlabel="completion time (ms)", ylabel="share of flows", xscale="log", title=self.header["plan"]["title"])
        axes.legend()
        return axes

    def _completion_times(self) -> dict[tuple[str, str], tuple[list[float], int]]:
        """The times of flows that completed, milliseconds, and the number of all, by scenario and contender."""
        times: dict[tuple[str, str], tuple[list[float], int]] = {}
        for run in self.runs:
            if short := run.get("completions"):
                of_run = [flow["fct_us"] / 1e3 for flow in short["flows"]]
                count = len(of_run) + short["unfinished"]
            elif fabric := run.get("fabric"):
                late = set(fabric["unfinished"])
                of_run = [fct_ns / 1e6 for n, fct_ns in enumerate(fabric["fct_ns"]) if n not in late]
                count = len(fabric["fct_ns"])
            else:
                continue
            key = (run["scenario"], run["contender"])
            before, so_far = times.get(key, ([], 0))
            times[key] = (before + of_run, so_far + count)
        return times

    def _flows(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        return ((run, flow) for run in self.runs for flow in run.get("flows", ()))


def read(path: str | PathLike[str]) -> Results:
    """Reads and checks a results file."""
    header, runs = _native.read_results(path)
    return Results(json.loads(header), [json.loads(run) for run in runs])


def _keys(run: dict[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in KEYS}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Nested figures as columns of their own: `rtt_us: {mean: 1}` is `rtt_mean_us`."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, dict):
            flat[name] = value
            continue
        stem, _, unit = name.rpartition("_")
        for part, number in _flat(value).items():
            flat[f"{stem}_{part}_{unit}" if stem else f"{name}_{part}"] = number
    return flat


def _pandas(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    import pandas

    return pandas.DataFrame(rows)


def _polars(rows: list[dict[str, Any]]) -> "polars.DataFrame":
    import polars

    return polars.DataFrame(rows, infer_schema_length=None)
