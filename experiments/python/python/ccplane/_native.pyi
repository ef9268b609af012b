"""What the extension module offers; the package's own modules wrap it."""

from os import PathLike
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Control",
    "Flows",
    "Hosted",
    "Vector",
    "algorithms",
    "command",
    "play_links",
    "policy_from_bytes",
    "policy_to_bytes",
    "read_policy",
    "read_results",
    "run_in_rust",
    "simulate",
]

_Layers: TypeAlias = list[tuple[NDArray[np.float32], NDArray[np.float32]]]

def algorithms() -> list[str]:
    """The names of the built-in algorithms."""

def command(arguments: list[str], hosted: list[Hosted]) -> int:
    """Runs the `ccplane` command in this process and returns its exit code."""

@final
class Control:
    """What a flow asks of its datapath, all applied together at its next ACK."""

    def set_program(self, name: str, **fields: int) -> None:
        """Runs program `name` from its initial state, with registers, `Cwnd` (bytes) or `Rate` (bytes per second) set."""

    def update(self, **fields: int) -> None:
        """Sets registers, `Cwnd` (bytes) or `Rate` (bytes per second) of the running program."""

@final
class Hosted:
    """An algorithm as the agent takes it."""

    def __new__(cls, object: object) -> Hosted: ...
    @staticmethod
    def echo() -> Hosted:
        """Makes `rust-echo`, which Python's algorithms are measured against."""

    @property
    def errors(self) -> list[str]:
        """The tracebacks of exceptions that flows met, the first ones."""

@final
class Flows:
    """The flows of one episode after another, each of which asks in its own time."""

    features: list[str]
    bound: float
    agents: int

    def __new__(cls, algorithm: str, family: str | None = None, shared: bool = False) -> Flows: ...
    def start(
        self, seed: int, max_steps: int, observation: NDArray[np.float32]
    ) -> tuple[int, float | None, bool] | None:
        """Starts an episode: the flow that asks first, the reward of its last action, whether it may act no more.

        `observation` (features) is written to.
        """

    def step(self, action: float, observation: NDArray[np.float32]) -> tuple[int, float | None, bool] | None:
        """Answers the flow that asked; what `start` returns, or `None` at the episode's end. `observation` (features) is written to."""

@final
class Vector:
    """Many environments, stepped together."""

    def __new__(cls, algorithm: str, count: int, max_steps: int, family: str | None = None) -> Vector: ...
    def reset(self, seeds: list[int | None], observations: NDArray[np.float32]) -> None:
        """Starts an episode in each; `observations` (environments, features) is written to."""

    def step(
        self,
        actions: NDArray[np.float32],
        observations: NDArray[np.float32],
        rewards: NDArray[np.float64],
        truncated: NDArray[np.bool_],
        last: NDArray[np.float32] | None = None,
    ) -> None:
        """Steps each by its action, `actions` (environments).

        Written to are `observations` and `last` (environments, features), `rewards` and `truncated` (environments).
        """

def run_in_rust(
    algorithm: str, family: str | None, seeds: list[int], max_steps: int, action: float = 0.0
) -> tuple[int, float, float]:
    """Runs whole episodes in Rust, with one action throughout: steps, seconds, and the sum of rewards."""

def policy_to_bytes(
    algorithm: str,
    actor: _Layers,
    critic: _Layers,
    activation: str,
    log_std: float,
    seed: int,
    steps: int,
    command: str,
) -> bytes:
    """A policy file of these networks: of each layer the weights (outputs, inputs) and biases (outputs)."""

def read_policy(
    path: str | PathLike[str],
) -> tuple[_Layers, _Layers, str, float, str]:
    """A policy file's actor, critic, activation, log of the actions' deviation, and algorithm.

    A layer is weights (outputs, inputs) and biases (outputs).
    """

def policy_from_bytes(
    content: bytes,
) -> tuple[_Layers, _Layers, str, float, str]:
    """The same of a policy file's content, layers as weights (outputs, inputs) and biases (outputs)."""

def simulate(
    plan: str,
    hosted: list[Hosted],
    trace_folder: str | PathLike[str] | None = None,
    part: int = 0,
    parts: int = 1,
) -> tuple[list[str], str | None]:
    """Simulates every `parts`th run of a plan from number `part` on: each as JSON, and why there are no more, if one failed."""

def play_links(
    links: list[str],
    names: list[str],
    hosted: list[Hosted],
    cores: int,
    trace_folder: str | PathLike[str] | None = None,
) -> list[str]:
    """Plays algorithms on drawn links; each cell as JSON."""

def read_results(path: str | PathLike[str]) -> tuple[str, list[str]]:
    """A results file's header and runs, as JSON."""
