"""One recipe, three trainers: our PPO, Stable-Baselines3, RLlib on Ray.

A recipe is a TOML file::

    algorithm = "aurora"    # or aurora-published, mocc
    trainer = "sb3"         # ppo (ours), sb3, rllib
    seed = 1
    steps = 200000          # decisions to learn from
    out = "policies"        # the directory of what comes of it
    environments = 16       # sb3 and rllib: stepped together; for rllib, in each worker
    workers = 2             # rllib's processes that step environments
    version = 1             # of this format; left out, it is this one

    [links]                 # sb3 and rllib: in place of the algorithm's own, as `Env` takes them
    family = "real"
    rate_mbit = [1, 50]

    [ppo]                   # sb3 and rllib; these are the defaults, those of our PPO
    learning_rate = 7e-4
    gamma = 0.97
    gae_lambda = 0.95
    batch = 8192            # decisions for each update
    minibatch = 256
    epochs = 10
    clip = 0.2
    log_std = 0.7           # logarithm of the actions' deviation at first

Whoever trains, the result is a policy file, `NAME.safetensors`, and its integers, `NAME.snapshot`, which an agent takes:
`ccplane snapshot push`. One of MOCC by sb3 or rllib knows no preferences, so that an agent does not learn on from it. On a Ray
cluster it is the same recipe, with the cluster's address in `RAY_ADDRESS`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccplane.algorithm import command
from ccplane.cluster import connect
from ccplane.envs import Env, family_text, spaces
from ccplane.policy import Layer, Policy, linear_layers

#: Hidden widths of actor and critic, by algorithm.
HIDDEN = {"aurora": (32, 16), "aurora-published": (32, 16), "mocc": (64, 32)}
#: The version of recipes that is read.
VERSION = 1
#: Keys that our PPO, which trains by its own command, does not take.
OF_OTHERS = {"links", "ppo", "environments", "workers"}

#: Norm of a gradient, at most, as Stable-Baselines3 has it unless told otherwise.
MAX_GRADIENT = 0.5


@dataclass(frozen=True)
class Ppo:
    """Settings of PPO, as the three trainers share them."""

    learning_rate: float = 7e-4
    gamma: float = 0.97
    gae_lambda: float = 0.95
    batch: int = 8192
    minibatch: int = 256
    epochs: int = 10
    clip: float = 0.2
    log_std: float = 0.7


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, by whom."""

    algorithm: str = "aurora"
    trainer: str = "ppo"
    seed: int = 1
    steps: int = 200_000
    out: str = "policies"
    environments: int = 16
    workers: int = 2
    links: Mapping[str, Any] | None = None
    ppo: Ppo = field(default_factory=Ppo)

    @property
    def name(self) -> str:
        """The name of its files."""
        return self.algorithm if self.trainer == "ppo" else f"{self.algorithm}-{self.trainer}"

    def file(self, extension: str) -> Path:
        """The path of one of its files."""
        return Path(self.out) / f"{self.name}.{extension}"


class RecipeError(ValueError):
    """A recipe that cannot be followed."""


def recipe(path: str | PathLike[str]) -> Recipe:
    """Reads a recipe."""
    table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    if (version := table.pop("version", VERSION)) != VERSION:
        raise RecipeError(f"version: the recipe is of version {version}, this program reads version {VERSION}")
    given = set(table)
    ppo = _checked(Ppo, table.pop("ppo", {}), "ppo.")
    made = Recipe(**_checked(Recipe, table | {"ppo": Ppo(**ppo)}, ""))
    if made.trainer not in TRAINERS:
        raise RecipeError(f"trainer = {made.trainer!r}; there are {', '.join(TRAINERS)}")
    if made.algorithm == "neural":
        raise RecipeError("neural is fitted to labels, not to rewards: `ccplane train --algorithm neural` trains it")
    if made.algorithm not in HIDDEN:
        raise RecipeError(f"algorithm = {made.algorithm!r}; there are {', '.join(HIDDEN)}")
    for key in sorted(given & OF_OTHERS if made.trainer == "ppo" else ()):
        raise RecipeError(f"{key}: our PPO has the algorithm's own")
    return made


def _checked(of: type, table: dict[str, Any], prefix: str) -> dict[str, Any]:
    known = {f.name for f in fields(of)}
    unknown = sorted(set(table) - known)
    if unknown:
        raise RecipeError(f"no key {prefix}{unknown[0]}; there are {', '.join(sorted(known))}")
    return table


def train(path: str | PathLike[str]) -> Policy:
    """Trains by a recipe, writes the policy file and its snapshot, and returns the policy."""
    from ccplane import policy

    of = recipe(path)
    Path(of.out).mkdir(parents=True, exist_ok=True)
    TRAINERS[of.trainer](of)
    if of.trainer != "ppo":
        build: list[str | PathLike[str]] = ["snapshot", "build", "--policy", of.file("safetensors")]
        build += ["--out", of.file("snapshot")]
        if of.algorithm == "aurora-published":
            build += ["--config", "published"]
        if command(build) != 0:
            raise RuntimeError("the policy was written, and no snapshot could be made of it")
    return policy.read(of.file("safetensors"))


def _ours(of: Recipe) -> None:
    config = ["--config", "published"] if of.algorithm == "aurora-published" else []
    algorithm = of.algorithm.removesuffix("-published")
    arguments = ["train", "--algorithm", algorithm, *config, "--seed", str(of.seed)]
    if command([*arguments, "--steps", str(of.steps), "--out", of.out]) != 0:
        raise RuntimeError("the training failed")


def _write(of: Recipe, actor: list[Layer], critic: list[Layer], log_std: float) -> None:
    made = Policy(of.algorithm, actor, critic, "tanh", log_std)
    text = f"ccplane.train, trainer {of.trainer}"
    made.write(of.file("safetensors"), seed=of.seed, steps=of.steps, command=text)


def _sb3(of: Recipe) -> None:
    import torch
    from stable_baselines3 import PPO

    from ccplane.sb3 import VecEnv

    torch.set_num_threads(1)
    ppo, widths = of.ppo, list(HIDDEN[of.algorithm])
    environment = VecEnv(of.environments, of.algorithm, of.links)
    model = PPO(
        "MlpPolicy",
        environment,
        learning_rate=ppo.learning_rate,
        n_steps=max(ppo.batch // of.environments, 2),
        batch_size=ppo.minibatch,
        n_epochs=ppo.epochs,
        gamma=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        clip_range=ppo.clip,
        policy_kwargs={
            "net_arch": {"pi": widths, "vf": widths},
            "activation_fn": torch.nn.Tanh,
            "log_std_init": ppo.log_std,
        },
        seed=of.seed,
        device="cpu",
    )
    model.learn(of.steps)
    parts = model.policy.mlp_extractor
    actor = linear_layers(parts.policy_net) + linear_layers(model.policy.action_net)
    critic = linear_layers(parts.value_net) + linear_layers(model.policy.value_net)
    _write(of, actor, critic, float(model.policy.log_std.detach()[0]))


def _rllib(of: Recipe) -> None:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    connect(of.workers + 1)
    ppo, widths = of.ppo, list(HIDDEN[of.algorithm])
    register_env("ccplane", lambda _: Env(of.algorithm, of.links))
    model = DefaultModelConfig(
        fcnet_hiddens=widths,
        fcnet_activation="tanh",
        head_fcnet_hiddens=[],
        vf_share_layers=False,
        free_log_std=True,
    )
    config = (
        PPOConfig()
        # An action is the network's own number, as the datapath takes it.
        .environment("ccplane", normalize_actions=False, clip_actions=True)
        .env_runners(num_env_runners=of.workers, num_envs_per_env_runner=of.environments)
        .rl_module(model_config=model)
        .training(
            lr=ppo.learning_rate,
            gamma=ppo.gamma,
            lambda_=ppo.gae_lambda,
            train_batch_size_per_learner=ppo.batch,
            minibatch_size=ppo.minibatch,
            num_epochs=ppo.epochs,
            clip_param=ppo.clip,
            use_kl_loss=False,
            vf_clip_param=float("inf"),
            grad_clip=MAX_GRADIENT,
        )
        .debugging(seed=of.seed)
    )
    algorithm = config.build_algo()

    def spread(learner: Any) -> None:
        for name, parameter in learner.module["default_policy"].named_parameters():
            if name.endswith("log_std"):
                parameter.data.fill_(ppo.log_std)

    algorithm.learner_group.foreach_learner(spread)
    algorithm.env_runner_group.sync_weights(
        from_worker_or_learner_group=algorithm.learner_group, inference_only=True
    )
    for _ in range(max(of.steps // ppo.batch, 1)):
        algorithm.train()
    # The runners' copies have no critic.
    learners = algorithm.learner_group.foreach_learner(lambda learner: learner.module["default_policy"])
    module = next(iter(learners)).get()
    actor = linear_layers(module.encoder.actor_encoder) + linear_layers(module.pi)
    critic = linear_layers(module.encoder.critic_encoder) + linear_layers(module.vf)
    (log_std,) = (p for name, p in module.named_parameters() if name.endswith("log_std"))
    _write(of, actor, critic, float(log_std.detach().reshape(-1)[0]))
    algorithm.stop()


TRAINERS = {"ppo": _ours, "sb3": _sb3, "rllib": _rllib}


def evaluate(policy: Policy, seeds: list[int], links: Mapping[str, Any] | None = None) -> NDArray[np.float64]:
    """The mean reward of a decision in the episode of each seed, without exploration: (seeds) float64, no unit."""
    bound = float(spaces(policy.algorithm, family_text(links))[1].high[0])
    environment, means = Env(policy.algorithm, links), []
    for seed in seeds:
        observation, _ = environment.reset(seed=seed)
        rewards, truncated = [], False
        while not truncated:
            action = np.clip(policy.act(observation), -bound, bound)
            observation, reward, _, truncated, _ = environment.step(np.array([action], np.float32))
            rewards.append(reward)
        means.append(np.mean(rewards))
    return np.array(means)

