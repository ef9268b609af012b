"""What needs torch, Stable-Baselines3 and Ray: `make trainers`."""

import numpy as np
import pytest
import ray

import ccplane
from ccplane import learning, policy, training


@pytest.fixture(scope="module")
def cluster():
    """Ray with two processes that work."""
    ray.init(num_cpus=3, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("trainer", ["ppo", "sb3", "rllib"])
def test_each_trainer_trains_what_an_agent_takes(trainer, tmp_path, cluster):
    text = f'trainer = "{trainer}"\nsteps = 16384\nout = "{tmp_path}"\n'
    (tmp_path / "recipe.toml").write_text(text)
    trained = ccplane.train(tmp_path / "recipe.toml")
    nothing = policy.Policy("aurora", [(w * 0, b * 0) for w, b in trained.actor], trained.critic)
    seeds = list(range(40))
    assert training.evaluate(trained, seeds).mean() > training.evaluate(nothing, seeds).mean()
    name = "aurora" if trainer == "ppo" else f"aurora-{trainer}"
    assert ccplane.command(["snapshot", "inspect", tmp_path / f"{name}.snapshot"]) == 0


def test_a_league_over_ray_has_the_bytes_of_a_local_one(root, tmp_path, notebook, cluster):
    players = ["reno", "cubic", notebook("reno").Reno()]
    local, spread = tmp_path / "local", tmp_path / "spread"
    ccplane.league(["steady", "loss"], players, links=3, out=local)
    ccplane.league(["steady", "loss"], players, links=3, out=spread, ray=True)
    assert local.read_bytes() == spread.read_bytes() != b""


PLAN = """
title = "Three contenders"
duration_s = 3
repeats = 2
[[link]]
rate_mbit = 12
delay_ms = 20
queue_packets = 40
[[algorithm]]
algorithm = "reno"
datapath = "sim"
[[algorithm]]
algorithm = "{}"
datapath = "sim"
[[algorithm]]
algorithm = "cubic"
datapath = "sim"
"""


def test_a_plan_over_ray_has_the_runs_of_a_local_one(notebook, cluster):
    reno = notebook("reno")
    plan = PLAN.format("py-reno")
    local = ccplane.simulate(plan, [reno.Reno()])
    assert len(local) == 6 and ccplane.simulate(plan, [reno.Reno()], ray=True) == local


def test_a_plan_over_ray_ends_at_the_run_that_fails(notebook, cluster):
    class Broken(notebook("reno").Reno):
        name = "py-broken"
        programs = {"rounds": "(def (x 1)) (when true (:= y 1))"}

    def ends(ray):
        with pytest.raises(ccplane.SimulationError) as failed:
            ccplane.simulate(PLAN.format("py-broken"), [Broken()], ray=ray)
        return str(failed.value), failed.value.runs

    assert ends(ray=True) == ends(ray=False) and len(ends(ray=False)[1]) == 1


def test_the_learner_in_torch_moves_towards_what_pays(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "experiments/python/examples")
    import learns

    shipped = policy.read(root / "algs/policies/aurora.safetensors")
    learner = learns.ActorCritic()
    learner.begin(shipped)
    rng = np.random.default_rng(1)
    count, offers = 200, 0
    for _ in range(200):
        seen = rng.uniform(-1, 1, (count, 30)).astype(np.float32)
        mean = np.array([shipped.act(row) for row in seen], np.float32)
        acted = mean + rng.normal(0, learner.deviation, count).astype(np.float32)
        # What a row brought came of the row before it: actions above the policy's pay.
        reward = np.concatenate([[0], acted[:-1] - mean[:-1]]).astype(np.float32)
        truth = np.ones(count, np.bool_)
        flows, at_us = np.ones(count, np.uint64), np.arange(count, dtype=np.uint64)
        learner.adapt(learning.Batch(seen, acted, reward, truth, truth, flows, at_us))
        offers += learner.evaluate(seen).converged
    tuned = learner.freeze()
    rows = rng.uniform(-1, 1, (50, 30)).astype(np.float32)
    assert np.mean([tuned.act(row) - shipped.act(row) for row in rows]) > 0.05
    assert offers > 0
