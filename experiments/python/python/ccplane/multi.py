"""Several flows that share a link, by PettingZoo's API.

Flows decide each in its own time, on its own ACKs, so this is an AEC environment: the flow that asks is `agent_selection`. Nothing
is rounded to common steps, as the parallel API would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pettingzoo import AECEnv

from ccplane import _native
from ccplane.envs import MAX_STEPS, family_text, spaces

#: Links that are all shared by two to four flows, which differ in start and round trip.
SHARED = {"family": "real", "shared": 1.0, "flows": [2, 4]}
#: Episodes in a row in which no flow asks, at most.
MAX_SILENT = 64


class FlowsEnv(AECEnv[str, NDArray[np.float32], NDArray[np.float32] | None]):
    """The learning flows of a link: `flow_0`, `flow_1` ..., each of which joins when it first asks.

    Args:
        algorithm, max_steps: as for `Env`. The episode ends when one flow has had all its decisions.
        links: as for `Env`; `shared` is the share of links with several flows, `flows` the range of how many.
    """

    metadata = {"render_modes": [], "name": "ccplane_flows_v0", "is_parallelizable": False}

    def __init__(
        self,
        algorithm: str = "aurora",
        links: Mapping[str, Any] | None = None,
        max_steps: int = MAX_STEPS,
        render_mode: None = None,
    ) -> None:
        super().__init__()
        family = family_text(SHARED if links is None else links)
        self.render_mode, self.max_steps = render_mode, max_steps
        observation, action, self.features = spaces(algorithm, family, True)
        self._native = _native.Flows(algorithm, family, True)
        self.possible_agents = [f"flow_{n}" for n in range(self._native.agents)]
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation)
        self.action_spaces = dict.fromkeys(self.possible_agents, action)
        self._buffer = np.zeros(len(self.features), np.float32)
        self._seeds = np.random.default_rng()

    def observation_space(self, agent: str) -> gym.spaces.Space[Any]:
        """Each flow's: float32 in [-1, 1]."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.spaces.Space[Any]:
        """Each flow's: float32, shape (1,)."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts the episode of `seed`, or a next one, in which some flow asks."""
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        self.agents: list[str] = []
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, NDArray[np.float32]] = {}
        self._skip_agent_selection = None
        for _ in range(MAX_SILENT):
            seed = int(self._seeds.integers(2**63)) if seed is None else seed
            asked, seed = self._native.start(seed, self.max_steps, self._buffer), None
            if asked is not None:
                self._take(asked)
                return
        raise RuntimeError(f"in {MAX_SILENT} episodes no flow asked for an action")

    def observe(self, agent: str) -> NDArray[np.float32]:
        """What the flow saw when it last asked: (features) float32, no unit."""
        return self._seen[agent]

    def step(self, action: NDArray[np.float32] | None) -> None:
        """Gives the flow that asked its action, shape (1,); `None` once its episode has ended."""
        if self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        asked = self._native.step(float(np.asarray(action).reshape(())), self._buffer)
        if asked is None:
            self._clear_rewards()
            self._end()
        else:
            self._take(asked)

    def _take(self, asked: tuple[int, float | None, bool]) -> None:
        number, reward, last = asked
        agent = self.possible_agents[number]
        if agent not in self.agents:
            self.agents.append(agent)
            self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
            self.terminations[agent] = self.truncations[agent] = False
            self.infos[agent] = {}
        self._clear_rewards()
        self.rewards[agent] = reward or 0.0
        self._accumulate_rewards()
        self._seen[agent] = self._buffer.copy()
        self.agent_selection = agent
        if last:
            self._end()

    def _end(self) -> None:
        self.truncations = dict.fromkeys(self.agents, True)
