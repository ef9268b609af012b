"""Results files as frames."""

import json

import pytest

import ccplane
from ccplane import results

PLAN = """
title = "Two"
duration_s = 4
repeats = 2
[[link]]
rate_mbit = 8
delay_ms = 20
queue_packets = 40
[traffic]
flows = 2
[[algorithm]]
algorithm = "reno"
datapath = "sim"
[[algorithm]]
algorithm = "cubic"
datapath = "sim"
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    (folder / "two.toml").write_text(PLAN)
    assert ccplane.command(["run", folder / "two.toml", "--results", folder]) == 0
    (file,) = folder.glob("*.jsonl")
    return file


def test_frames_hold_what_the_file_says(file):
    read = results.read(file)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert read.header["plan"]["title"] == "Two" and len(read.runs) == len(records) - 1 == 4
    flows = read.flows()
    assert len(flows) == 8
    raw = [flow for record in records[1:] for flow in record["flows"]]
    assert list(flows["throughput_bps"]) == [flow["throughput_bps"] for flow in raw]
    assert list(flows["rtt_p95_us"]) == [flow["rtt_us"]["p95"] for flow in raw]
    series = read.series()
    assert len(series) == sum(len(flow["series"]["t_ms"]) for flow in raw)
    table = read.table()
    assert set(table["status"]) == {"ok"} and (table["link_utilisation_ppm"] > 500_000).all()
    polars = read.flows_polars()
    assert polars["throughput_bps"].to_list() == list(flows["throughput_bps"])
    assert read.series_polars().shape == series.shape
    assert read.table_polars()["link_utilisation_ppm"].to_list() == list(table["link_utilisation_ppm"])
    assert read.fabric_rows() == []


def test_flows_of_fabrics_are_rows():
    run = {"scenario": "web-search, even, 50 %", "repeat": 1, "attempt": 1, "seed": 7, "status": "ok"}
    fabric = {"bytes": [10, 20, 30], "fct_ns": [4, 5, 6], "unfinished": [1], "dropped_pkts": 0}
    failed = run | {"contender": "fifo", "status": "failed", "error": "why"}
    read = results.Results({}, [run | {"contender": "pias", "fabric": fabric}, failed])
    frame = read.fabric()
    assert list(frame["contender"]) == ["pias"] * 3 and list(frame["ended"]) == [True, False, True]
    polars = read.fabric_polars()
    assert (polars["bytes"].to_list(), polars["fct_ns"].to_list()) == ([10, 20, 30], [4, 5, 6])


def test_plots_draw_each_flow(file):
    import matplotlib

    matplotlib.use("Agg")
    axes = results.read(file).plot("srtt_us")
    assert len(axes.lines) == 4 and axes.get_ylabel() == "srtt_us"


def test_completion_times_are_rows_and_lines():
    import matplotlib

    matplotlib.use("Agg")
    header = {"plan": {"title": "Short"}}
    run = {"scenario": "12 Mb/s", "contender": "reno", "attempt": 1, "seed": 7, "status": "ok"}
    flows = [{"start_us": 5, "bytes": 10, "fct_us": 3000}, {"start_us": 6, "bytes": 20, "fct_us": 1000}]
    short = {"completions": {"distribution": "web-search", "flows": flows, "unfinished": 1}}
    late = {"completions": {"distribution": "web-search", "flows": flows[:1], "unfinished": 0}}
    read = results.Results(header, [run | short | {"repeat": 0}, run | late | {"repeat": 1}])
    assert list(read.completions()["fct_us"]) == [3000, 1000, 3000]
    assert read.completions_polars()["repeat"].to_list() == [0, 0, 1]
    (line,) = read.plot_completions().lines
    assert list(line.get_xdata()) == [1.0, 3.0, 3.0] and list(line.get_ydata()) == [0.25, 0.5, 0.75]
    fabric = {"fabric": {"bytes": [10, 20], "fct_ns": [4_000_000, 5_000_000], "unfinished": [1], "dropped_pkts": 0}}
    (line,) = results.Results(header, [run | fabric | {"repeat": 0}]).plot_completions().lines
    assert list(line.get_xdata()) == [4.0] and list(line.get_ydata()) == [0.5]
    with pytest.raises(ValueError, match="no run has short flows"):
        results.Results(header, []).plot_completions()


def test_other_files_are_refused(tmp_path):
    (tmp_path / "none.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="none.jsonl"):
        results.read(tmp_path / "none.jsonl")
