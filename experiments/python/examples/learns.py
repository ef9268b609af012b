"""A learner in torch, beside an agent whose `[learn]` section says `mode = "outside"`.

    python learns.py /run/ccplane/policies/aurora.learner      # needs torch

It is an actor-critic: what an interval brought, against what the critic expected, moves the policy towards or away from the action
before it. It offers the policy once its outputs have stopped changing, which is LiteFlow's test for convergence.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ccplane import learning, policy

GAMMA = 0.9
LEARNING_RATE = 1e-4
#: Batches that outputs are compared over, and the mean change below which they have converged, in steps of the action.
BATCHES, CONVERGED = 20, 0.01


def module(layers: Sequence[policy.Layer]) -> nn.Sequential:
    """A policy file's layers as a torch module."""
    parts: list[nn.Module] = []
    for weights, bias in layers:
        linear = nn.Linear(weights.shape[1], weights.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(weights.copy()), torch.from_numpy(bias.copy())
        parts += [linear, nn.Tanh()]
    return nn.Sequential(*parts[:-1])


class ActorCritic(learning.Learner):
    """Aurora's networks, tuned by what live flows do."""

    def begin(self, begun: policy.Policy) -> None:
        self.begun = begun
        self.changes: list[float] = []
        self.actor, self.critic = module(begun.actor), module(begun.critic)
        self.deviation = float(np.exp(begun.log_std))
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(parameters, LEARNING_RATE)

    def freeze(self) -> policy.Policy:
        return policy.from_torch(self.begun.algorithm, self.actor, self.critic, self.begun.log_std)

    def evaluate(self, observations: np.ndarray) -> learning.Evaluation:
        with torch.no_grad():
            outputs = self.actor(torch.from_numpy(observations))[:, 0].numpy()
        stability = float(np.mean(self.changes)) if self.changes else np.inf
        converged = len(self.changes) == BATCHES and stability < CONVERGED
        if converged:
            self.changes = []
        return learning.Evaluation(converged, stability, outputs)

    def adapt(self, batch: learning.Batch) -> None:
        before, after = steps(batch)
        if not len(before):
            return
        seen, next_seen = (torch.from_numpy(batch.observations[rows]) for rows in (before, after))
        done, reward = torch.from_numpy(batch.actions[before]), torch.from_numpy(batch.rewards[after])
        value, mean = self.critic(seen)[:, 0], self.actor(seen)[:, 0]
        with torch.no_grad():
            target = reward + GAMMA * self.critic(next_seen)[:, 0]
            advantage = target - value
            advantage = (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-6)
        log_likelihood = -0.5 * ((done - mean) / self.deviation) ** 2
        loss = -(log_likelihood * advantage).mean() + 0.5 * ((target - value) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            change = (self.actor(seen)[:, 0] - mean).abs().mean()
        self.changes = [*self.changes, float(change)][-BATCHES:]

    def decided(self, verdict: str, why: str, offered: bool) -> None:
        if offered:
            print(verdict, why, flush=True)


def steps(batch: learning.Batch) -> tuple[list[int], list[int]]:
    """The rows that the current policy acted in, and of each the flow's next row, which says what came of it."""
    before: list[int] = []
    after: list[int] = []
    last: dict[int, int] = {}
    for row, flow in enumerate(batch.flows):
        if batch.follows[row] and flow in last and batch.current[last[flow]]:
            before.append(last[flow])
            after.append(row)
        last[flow] = row
    return before, after


if __name__ == "__main__":
    torch.set_num_threads(1)
    learning.serve(sys.argv[1], ActorCritic())
