"""A congestion control plane, from Python.

* `Env`, `VectorEnv`: simulated links as Gymnasium environments; `ccplane.multi.FlowsEnv`: with several flows (PettingZoo).
* `Algorithm`: a congestion control algorithm as a class, for `simulate`, `league`, `command`.
* `simulate`, `league`, `league_polars`: plans and leagues in the simulator, in this process or spread over Ray.
* `results`: results files as pandas and Polars frames.
* `policy`: policy files from other trainers' networks; `train`: one recipe for three trainers.
* `command`: everything that the `ccplane` command does, with your algorithms beside the built-in ones.
"""

from ccplane._native import algorithms
from ccplane.algorithm import Algorithm, Control, FlowInfo, SimulationError, command, simulate
from ccplane.envs import Env, VectorEnv
from ccplane.leagues import league, league_polars
from ccplane.training import train

__all__ = [
    "Algorithm",
    "Control",
    "Env",
    "FlowInfo",
    "SimulationError",
    "VectorEnv",
    "algorithms",
    "command",
    "league",
    "league_polars",
    "simulate",
    "train",
]
