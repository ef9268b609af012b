"""Learners of your own, in a process beside a live agent.

With `mode = "outside"` in its `[learn]` section, an agent sends a process what live flows do, and has flows try what the process offers:
it makes integers of an offered policy, judges it, and pushes it to all flows only if a trial shows it to be no worse. A process
that is wrong, hung or killed costs learning; flows keep the policy that they have.

A learner has LiteFlow's three interfaces: `freeze` (the policy as it is now), `evaluate` (whether it has converged, and its
outputs), `adapt` (learn from a batch).
"""

from __future__ import annotations

import json
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccplane import policy as policies
from ccplane.policy import Policy

#: Bytes of a message's length.
LENGTH_BYTES = 4
#: Bytes of one message, at most.
MAX_MESSAGE_BYTES = (64 << 20) + 16


@dataclass(frozen=True)
class Batch:
    """Intervals of live flows, in order of time, one a row."""

    #: (rows, features) float32, each number in [-1, 1]: what the policy saw.
    observations: NDArray[np.float32]
    #: (rows) float32: what it did, exploration included.
    actions: NDArray[np.float32]
    #: (rows) float32: the worth of the interval that ended, which the flow's action before this one led to.
    rewards: NDArray[np.float32]
    #: (rows) bool: whether no row is missing between the flow's row before and this one, so that the reward is what came of that
    #: row's action. That row may be of an earlier batch, or from before this process came.
    follows: NDArray[np.bool_]
    #: (rows) bool: whether the policy that flows decide by acted, not one on trial or before it.
    current: NDArray[np.bool_]
    #: (rows) uint64: the flow's number.
    flows: NDArray[np.uint64]
    #: (rows) uint64: the datapath's clock, microseconds.
    at_us: NDArray[np.uint64]


@dataclass(frozen=True)
class Evaluation:
    """What a learner says of its policy."""

    #: Whether tuning has converged, so that the policy may be offered.
    converged: bool
    #: The measure that says so, a finite number, which the agent's decision log shows.
    stability: float
    #: (rows) float32: the policy's mean actions on the observations that were asked for. They are not sent: the agent computes what an
    #: offered policy does on the states of its flows itself.
    outputs: NDArray[np.float32]


class Learner(ABC):
    """Improves a policy from what live flows do."""

    @abstractmethod
    def begin(self, policy: Policy) -> None:
        """Takes the policy that flows decide by: at the start, and when that has changed."""

    @abstractmethod
    def freeze(self) -> Policy:
        """Returns the policy as it is now."""

    @abstractmethod
    def evaluate(self, observations: NDArray[np.float32]) -> Evaluation:
        """Says whether tuning has converged, and what the policy does on these observations: (rows, features) float32."""

    @abstractmethod
    def adapt(self, batch: Batch) -> None:
        """Learns from a batch."""

    def decided(self, verdict: str, why: str, offered: bool) -> None:
        """Hears what the agent decided on a snapshot: such as `promoted`, `rolled-back`, `refused`; whether it was this learner's.

        While an offer is on trial the next one waits. One that a later one replaces meanwhile is never decided on.
        """


def serve(
    path: str | PathLike[str], learner: Learner, until: Callable[[], bool] = lambda: False
) -> None:
    """Connects to an agent and learns until it ends, or `until` says so after a message.

    Args:
        path: the agent's socket, `policies/ALGORITHM.learner` in its run directory; of `quic serve`, in the folder of `--keep`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(str(path))
        while (message := _receive(stream)) is not None:
            _hear(stream, learner, message[:1], message[1:])
            if until():
                return


def _hear(stream: socket.socket, learner: Learner, kind: bytes, content: bytes) -> None:
    if kind == b"P":
        learner.begin(policies.from_bytes(content))
    elif kind == b"D":
        told = json.loads(content)
        learner.decided(told["verdict"], told["why"], told["offered"])
    elif kind == b"R":
        batch = _batch(json.loads(content))
        learner.adapt(batch)
        evaluation = learner.evaluate(batch.observations)
        if evaluation.converged:
            frozen = learner.freeze().to_bytes(command="ccplane.learning")
            offer = struct.pack("<d", evaluation.stability) + frozen
            stream.sendall(struct.pack("<I", len(offer) + 1) + b"O" + offer)
    else:
        raise ValueError(f"a message of kind {kind!r}: the agent is of another version")


def _batch(rows: list[dict[str, Any]]) -> Batch:
    def column(name: str, kind: Any) -> NDArray[Any]:
        return np.array([row[name] for row in rows], kind)

    return Batch(
        column("observation", np.float32),
        column("action", np.float32),
        column("reward", np.float32),
        column("follows", np.bool_),
        column("current", np.bool_),
        column("flow", np.uint64),
        column("at_us", np.uint64),
    )


def _receive(stream: socket.socket) -> bytes | None:
    head = _exactly(stream, LENGTH_BYTES)
    if head is None:
        return None
    (length,) = struct.unpack("<I", head)
    if not 1 <= length <= MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return _exactly(stream, length)


def _exactly(stream: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = stream.recv(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
