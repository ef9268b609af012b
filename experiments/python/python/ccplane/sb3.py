"""The vector environment as Stable-Baselines3 takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv as Base

from ccplane import _native
from ccplane.envs import MAX_STEPS, family_text, spaces


class VecEnv(Base):
    """Environments stepped together, which start anew within the step that ends an episode.

    Args:
        num_envs, algorithm, links, max_steps: as for `ccplane.VectorEnv`.
    """

    def __init__(
        self,
        num_envs: int = 16,
        algorithm: str = "aurora",
        links: Mapping[str, Any] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        family = family_text(links)
        observation, action, self.features = spaces(algorithm, family)
        super().__init__(num_envs, observation, action)
        self._native = _native.Vector(algorithm, num_envs, max_steps, family)
        shape = (num_envs, len(self.features))
        self._observations, self._last = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._rewards, self._done = np.zeros(num_envs), np.zeros(num_envs, np.bool_)
        self._actions = np.zeros(num_envs, np.float32)
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._seeded = False

    def reset(self) -> NDArray[np.float32]:
        """Starts an episode in each, of the seeds that `seed` set, or each one's next.

        Returns the observations, (num_envs, features) float32, no unit.
        """
        seeds: list[int | None] = list(self._seeds)
        if not self._seeded and all(seed is None for seed in seeds):
            seeds = [int(s) for s in np.random.SeedSequence().generate_state(self.num_envs, np.uint64)]
        self._seeded = True
        self._native.reset(seeds, self._observations)
        self._reset_seeds()
        self._returns[:] = 0
        self._lengths[:] = 0
        return self._observations.copy()

    def step_async(self, actions: NDArray[np.float32]) -> None:
        """Notes the actions: (num_envs, 1) float32."""
        self._actions = np.ascontiguousarray(actions, np.float32).reshape(-1)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.bool_], list[dict[str, Any]]]:
        """Acts; `terminal_observation` of an `info` is what an ended episode saw last.

        Returns the observations, (num_envs, features) float32, and the rewards, (num_envs) float64, both no unit; then which have ended,
        (num_envs) bool.
        """
        self._native.step(self._actions, self._observations, self._rewards, self._done, self._last)
        self._returns += self._rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for n in np.flatnonzero(self._done):
            episode = {"r": float(self._returns[n]), "l": int(self._lengths[n])}
            infos[n] = {
                "terminal_observation": self._last[n].copy(),
                "TimeLimit.truncated": True,
                "episode": episode,
            }
            self._returns[n] = self._lengths[n] = 0
        return self._observations.copy(), self._rewards.copy(), self._done.copy(), infos

    def close(self) -> None:
        """There is nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The vector's attribute, for each."""
        return [getattr(self, attr_name, None)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Environments have no attributes of their own."""
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Environments have no methods of their own."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> Sequence[bool]:
        """None is."""
        return [False] * len(list(self._get_indices(indices)))
