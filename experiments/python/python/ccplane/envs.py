"""Simulated links as Gymnasium environments.

A step is one decision of the datapath's program, about one monitor interval of a flow. An observation is what the program
shows its policy (`features` names the numbers), each in [-1, 1]. An action is the policy's: 0 keeps the rate, 1 raises it by one
step, -1 lowers it by one; its bound is `bound`. The reward is what the agent's half of the algorithm says that the interval
after the action was worth. The same seed gives the same bits as the same episode in Rust.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ccplane import _native

#: Decisions of one episode, unless asked for otherwise.
MAX_STEPS = 400


def spaces(
    algorithm: str, family: str | None, shared: bool = False
) -> tuple[gym.spaces.Box[np.float32], gym.spaces.Box[np.float32], list[str]]:
    """The observation's space, the action's, and the observation's features by name."""
    flows = _native.Flows(algorithm, family, shared)
    observation = gym.spaces.Box(-1.0, 1.0, (len(flows.features),), np.float32)
    action = gym.spaces.Box(-flows.bound, flows.bound, (1,), np.float32)
    return observation, action, flows.features


def family_text(links: Mapping[str, Any] | None) -> str | None:
    """The links as the simulator reads them: `{"family": "real", "rate_mbit": [1, 50], ...}`."""
    return None if links is None else json.dumps(dict(links))


class Env(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """One flow on one link after the other, drawn from the seed.

    Args:
        algorithm: `aurora`, `mocc`, or `aurora-published`, on the links that were published with it.
        links: which links are drawn, in place of the algorithm's own: `{"family": "real", ...}` with ranges of `rate_mbit`,
            `rtt_ms`, `queue_bdp`, `loss`, and shares of links that are `lossy`, `stepping`, `walking`, `crossed`, have
            `rivals`; or `{"family": "published", ...}`; or the league's, `{"league": ["steady", "steps"], "set": "training", "links": 64}`,
            of which each seed names one, `recorded` from the folder `"traces"`. `own` and `own-rtts` have several learning flows:
            `ccplane.multi.FlowsEnv` takes them.
        max_steps: decisions of an episode, which is then truncated. None is ever terminated.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        algorithm: str = "aurora",
        links: Mapping[str, Any] | None = None,
        max_steps: int = MAX_STEPS,
        render_mode: None = None,
    ) -> None:
        family = family_text(links)
        self.render_mode = render_mode
        self.observation_space, self.action_space, self.features = spaces(algorithm, family)
        self._native = _native.Vector(algorithm, 1, max_steps, family)
        self._observation = np.zeros((1, len(self.features)), np.float32)
        self._reward, self._truncated = np.zeros(1), np.zeros(1, np.bool_)
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts the episode of `seed`, or the next one of the last seed; returns its observation, (features) float32, no unit."""
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**63))
        self._seeded = True
        self._native.reset([seed], self._observation)
        return self._observation[0].copy(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Acts by (1,) float32; returns the observation, (features) float32, and the reward, both no unit, and whether it was truncated."""
        actions = np.asarray(action, np.float32).reshape(1)
        self._native.step(actions, self._observation, self._reward, self._truncated)
        return self._observation[0].copy(), float(self._reward[0]), False, bool(self._truncated[0]), {}


class VectorEnv(gym.vector.VectorEnv[NDArray[np.float32], NDArray[np.float32], NDArray[Any]]):
    """Many of them, stepped together on the calling thread, without the interpreter's lock.

    An environment whose episode has ended starts the next one in the step after, whose action is ignored (Gymnasium's
    `NEXT_STEP`).

    Args:
        num_envs: how many.
        algorithm, links, max_steps: as for `Env`.
        copy: whether `reset` and `step` return arrays of their own. Without, they return the same arrays each time, which the next step
            overwrites: nothing is copied.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        algorithm: str = "aurora",
        links: Mapping[str, Any] | None = None,
        max_steps: int = MAX_STEPS,
        copy: bool = True,
        render_mode: None = None,
    ) -> None:
        family = family_text(links)
        self.num_envs, self.copy, self.render_mode = num_envs, copy, render_mode
        self.single_observation_space, self.single_action_space, self.features = spaces(algorithm, family)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._native = _native.Vector(algorithm, num_envs, max_steps, family)
        self._observations = np.zeros((num_envs, len(self.features)), np.float32)
        self._rewards = np.zeros(num_envs)
        self._truncated, self._terminated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._seeded = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode in each: of `seed`, `seed + 1` ..., or of each one's own.

        Returns the observations, (num_envs, features) float32, no unit.
        """
        if seed is None and not self._seeded:
            seed = [int(s) for s in np.random.SeedSequence().generate_state(self.num_envs, np.uint64)]
        self._seeded = True
        if seed is None:
            seeds: list[int | None] = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seeds = [int(seed) + n for n in range(self.num_envs)]
        else:
            seeds = list(seed)
        self._native.reset(seeds, self._observations)
        return self._own(self._observations), {}

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Acts by (num_envs, 1) float32.

        Returns the observations, (num_envs, features) float32, and the rewards, (num_envs) float64, both no unit; then which are
        terminated and which truncated, (num_envs) bool.
        """
        flat = np.ascontiguousarray(actions, np.float32).reshape(-1)
        self._native.step(flat, self._observations, self._rewards, self._truncated)
        own = self._own
        return own(self._observations), own(self._rewards), own(self._terminated), own(self._truncated), {}

    def _own(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.copy() if self.copy else array


gym.register("ccplane/Links-v0", "ccplane.envs:Env", vector_entry_point="ccplane.envs:VectorEnv")
