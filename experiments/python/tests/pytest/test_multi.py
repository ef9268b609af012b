"""Several flows on one link: PettingZoo's own test, and Rust's bits."""

import numpy as np
from pettingzoo.test import api_test, seed_test

from ccplane import multi

SLOW = multi.SHARED | {"rate_mbit": [1, 4], "rtt_ms": [20, 60]}


def test_pettingzoos_test_passes():
    api_test(multi.FlowsEnv(links=SLOW, max_steps=20), num_cycles=200)
    seed_test(lambda: multi.FlowsEnv(links=SLOW, max_steps=20), num_cycles=40)


def test_flows_join_and_each_hears_its_own_rewards():
    environment = multi.FlowsEnv(links=SLOW, max_steps=40)
    most = 0
    for seed in range(4):
        environment.reset(seed=seed)
        acted = {}
        for agent in environment.agent_iter():
            observation, reward, terminated, truncated, _ = environment.last()
            assert not terminated and np.isfinite(reward)
            assert environment.observation_space(agent).contains(observation)
            if agent not in acted and not truncated:
                assert reward == 0.0, "nothing was done yet"
            acted[agent] = acted.get(agent, 0) + 1
            environment.step(None if truncated else np.zeros(1, np.float32))
        most = max(most, len(acted))
        assert max(acted.values()) <= 42
    assert most >= 2


def test_the_leagues_links_of_several_flows():
    environment = multi.FlowsEnv(links={"league": ["own"], "links": 2}, max_steps=10)
    environment.reset(seed=1)
    acted = set()
    for agent in environment.agent_iter():
        _, _, _, truncated, _ = environment.last()
        acted.add(agent)
        environment.step(None if truncated else np.zeros(1, np.float32))
    assert acted <= set(environment.possible_agents) and len(environment.possible_agents) >= 2
