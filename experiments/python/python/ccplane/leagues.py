"""Leagues: algorithms ranked on drawn links, in this process or spread over Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccplane import _native
from ccplane.algorithm import Algorithm, hosted
from ccplane.cluster import connect

if TYPE_CHECKING:
    import pandas
    import polars


def league(
    families: Sequence[str],
    players: Sequence[str | Algorithm],
    links: int = 4,
    set_name: str = "validation",
    cores: int | None = None,
    ray: bool = False,
    traces: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
) -> "pandas.DataFrame":
    """Plays algorithms on drawn links in the simulator and returns a frame with a row for each link and algorithm.

    Rates are bits per second, times microseconds, shares millionths, as the columns' names say.

    Args:
        families: such as `steady`, `loss`, `beside-cubic`; `ccplane league --help` lists them.
        players: names of built-in algorithms, or algorithms of your own.
        links: links of each family.
        set_name: `training` or `validation`.
        cores: cores of this machine to use; all unless given. A cluster has its own number.
        ray: spread the links as tasks over Ray: the cluster that `RAY_ADDRESS` names, or this machine. The rows, and the bytes of
            `out`, are those of a local run.
        traces: the folder of recorded traces.
        out: a file for the results, one line for each row, as `ccplane league` writes it.
    """
    import pandas

    return pandas.DataFrame(_rows(families, players, links, set_name, cores, ray, traces, out))


def league_polars(
    families: Sequence[str],
    players: Sequence[str | Algorithm],
    links: int = 4,
    set_name: str = "validation",
    cores: int | None = None,
    ray: bool = False,
    traces: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
) -> "polars.DataFrame":
    """`league` with the same arguments and rows, as a Polars frame."""
    import polars

    rows = _rows(families, players, links, set_name, cores, ray, traces, out)
    return polars.DataFrame(rows, infer_schema_length=None)


def _rows(
    families: Sequence[str],
    players: Sequence[str | Algorithm],
    links: int,
    set_name: str,
    cores: int | None,
    ray: bool,
    traces: str | PathLike[str] | None,
    out: str | PathLike[str] | None,
) -> list[dict[str, Any]]:
    names = [player if isinstance(player, str) else player.name for player in players]
    own = [player for player in players if not isinstance(player, str)]
    drawn = [f"{family}/{set_name}/{number}" for family in families for number in range(links)]
    if ray:
        connect(cores or os.cpu_count() or 1)
        lines = _spread(drawn, names, own, traces)
    else:
        lines = _native.play_links(drawn, names, hosted(own), cores or os.cpu_count() or 1, traces)
    if out is not None:
        Path(out).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [json.loads(line) for line in lines]


def _spread(
    links: list[str], names: list[str], own: list[Algorithm], traces: str | PathLike[str] | None
) -> list[str]:
    import ray

    @ray.remote(num_cpus=1)
    def play(link: str) -> list[str]:
        return _native.play_links([link], names, hosted(own), 1, traces)

    return [line for lines in ray.get([play.remote(link) for link in links]) for line in lines]


def ranking(cells: "pandas.DataFrame") -> "pandas.DataFrame":
    """The mean of each algorithm over all links, by its figures."""
    figures: list[Any] = [name for name in cells.columns if cells[name].dtype.kind in "if"]
    return cells.groupby("algorithm")[figures].mean()


def ranking_polars(cells: "polars.DataFrame") -> "polars.DataFrame":
    """`ranking` of a Polars frame: a row for each algorithm, by name."""
    import polars.selectors

    return cells.group_by("algorithm").agg(polars.selectors.numeric().mean()).sort("algorithm")
