"""Policy files: float networks with what their numbers mean, which `ccplane snapshot build` makes integers of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccplane import _native

#: A layer: weights (outputs, inputs) and biases (outputs), float32.
Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True)
class Policy:
    """An actor and a critic of the same hidden widths, each with one linear output."""

    #: `aurora`, `aurora-published` or `mocc`.
    algorithm: str
    actor: Sequence[Layer]
    critic: Sequence[Layer]
    #: Of the hidden layers: `tanh` or `relu`.
    activation: str = "tanh"
    #: Natural logarithm of the actions' standard deviation in training.
    log_std: float = 0.0

    def act(self, observation: NDArray[np.float32]) -> float:
        """The mean action on an observation, (features) float32: unbounded."""
        return float(_forward(self.actor, self.activation, observation))

    def value(self, observation: NDArray[np.float32]) -> float:
        """What the critic says that an observation, (features) float32, is worth."""
        return float(_forward(self.critic, self.activation, observation))

    def to_bytes(self, *, seed: int = 0, steps: int = 0, command: str = "Python") -> bytes:
        """A policy file's content, with the seed, the steps and the command that it came from."""
        actor, critic = _layers(self.actor), _layers(self.critic)
        return _native.policy_to_bytes(
            self.algorithm, actor, critic, self.activation, self.log_std, seed, steps, command
        )

    def write(
        self, path: str | PathLike[str], *, seed: int = 0, steps: int = 0, command: str = "Python"
    ) -> None:
        """Writes a policy file, with the seed, the steps and the command that it came from."""
        Path(path).write_bytes(self.to_bytes(seed=seed, steps=steps, command=command))


def read(path: str | PathLike[str]) -> Policy:
    """Reads and checks a policy file."""
    actor, critic, activation, log_std, algorithm = _native.read_policy(path)
    return Policy(algorithm, actor, critic, activation, log_std)


def from_bytes(content: bytes) -> Policy:
    """Parses and checks a policy file's content."""
    actor, critic, activation, log_std, algorithm = _native.policy_from_bytes(content)
    return Policy(algorithm, actor, critic, activation, log_std)


def from_torch(
    algorithm: str, actor: Any, critic: Any, log_std: float, activation: str = "tanh"
) -> Policy:
    """A policy of two torch modules, whose linear layers are taken in their order.

    Args:
        actor, critic: modules made of `torch.nn.Linear` layers and activations alone, the last layer linear.
    """
    return Policy(algorithm, linear_layers(actor), linear_layers(critic), activation, log_std)


def linear_layers(module: Any) -> list[Layer]:
    """The weights (outputs, inputs) and biases (outputs), float32, of a torch module's linear layers, in their order."""
    linear = [part for part in module.modules() if type(part).__name__ == "Linear"]
    if not linear:
        raise ValueError("the module has no linear layers")
    return [(_numbers(part.weight), _numbers(part.bias)) for part in linear]


def _numbers(tensor: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)


def _layers(layers: Sequence[Layer]) -> list[Layer]:
    return [
        (np.ascontiguousarray(weights, np.float32), np.ascontiguousarray(bias, np.float32))
        for weights, bias in layers
    ]


def _forward(layers: Sequence[Layer], activation: str, observation: NDArray[np.float32]) -> np.float32:
    apply = np.tanh if activation == "tanh" else (lambda x: np.maximum(x, 0))
    numbers = np.asarray(observation, np.float32)
    for weights, bias in layers[:-1]:
        numbers = apply(weights @ numbers + bias)
    weights, bias = layers[-1]
    return np.float32((weights @ numbers + bias)[0])
