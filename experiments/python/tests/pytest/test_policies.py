"""Policies of other trainers as policy files, and recipes."""

import numpy as np
import pytest

import ccplane
from ccplane import policy, training


def test_a_policy_goes_out_and_comes_back(root, tmp_path):
    shipped = policy.read(root / "algs/policies/aurora.safetensors")
    assert (shipped.algorithm, shipped.activation) == ("aurora", "tanh")
    assert [weights.shape for weights, _ in shipped.actor] == [(32, 30), (16, 32), (1, 16)]
    shipped.write(tmp_path / "again.safetensors", seed=3, steps=7, command="a test")
    again = policy.read(tmp_path / "again.safetensors")
    for one, other in zip([*shipped.actor, *shipped.critic], [*again.actor, *again.critic], strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
    observation = np.linspace(-1, 1, 30, dtype=np.float32)
    assert again.act(observation) == shipped.act(observation)
    content = (tmp_path / "again.safetensors").read_bytes()
    parsed = policy.from_bytes(content)
    assert (parsed.act(observation), parsed.log_std) == (shipped.act(observation), shipped.log_std)
    with pytest.raises(ValueError):
        policy.from_bytes(content[:-1])


def test_a_policy_that_was_trained_is_worth_more_than_none(root):
    shipped = policy.read(root / "algs/policies/aurora.safetensors")
    nothing = policy.Policy("aurora", [(w * 0, b * 0) for w, b in shipped.actor], shipped.critic)
    seeds = list(range(10))
    trained, still = training.evaluate(shipped, seeds), training.evaluate(nothing, seeds)
    assert trained.shape == (10,) and trained.mean() > still.mean()


def test_networks_that_do_not_fit_are_refused(tmp_path):
    layer = (np.zeros((1, 29), np.float32), np.zeros(1, np.float32))
    hidden = (np.zeros((4, 29), np.float32), np.zeros(4, np.float32))
    last = (np.zeros((1, 4), np.float32), np.zeros(1, np.float32))
    with pytest.raises(ValueError):
        policy.Policy("aurora", [layer], [layer]).write(tmp_path / "p")
    with pytest.raises(ValueError, match="29|30"):
        policy.Policy("aurora", [hidden, last], [hidden, last]).write(tmp_path / "p")
    with pytest.raises(ValueError, match="sigmoid"):
        policy.Policy("aurora", [hidden, last], [hidden, last], "sigmoid").write(tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_recipes_say_what_is_wrong(tmp_path):
    def refused(text):
        (tmp_path / "recipe.toml").write_text(text)
        with pytest.raises(training.RecipeError) as error:
            ccplane.train(tmp_path / "recipe.toml")
        return str(error.value)

    assert refused("speed = 1").startswith("no key speed; there are algorithm")
    assert refused("[ppo]\nrate = 1").startswith("no key ppo.rate")
    assert refused("version = 2") == "version: the recipe is of version 2, this program reads version 1"
    assert refused("version = 1\nspeed = 1").startswith("no key speed")
    assert "there are ppo, sb3, rllib" in refused('trainer = "dqn"')
    assert "links" in refused('[links]\nfamily = "real"')
    assert refused("environments = 4").startswith("environments: ")
    assert refused("[ppo]\ngamma = 0.9").startswith("ppo: ")
    assert "`ccplane train --algorithm neural`" in refused('algorithm = "neural"')


def test_our_own_trainer_trains_by_a_recipe(tmp_path):
    text = f'algorithm = "aurora-published"\nsteps = 1\nseed = 5\nout = "{tmp_path}"\n'
    (tmp_path / "recipe.toml").write_text(text)
    trained = ccplane.train(tmp_path / "recipe.toml")
    assert trained.algorithm == "aurora"
