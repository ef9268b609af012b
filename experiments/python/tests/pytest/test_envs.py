"""Environments: Gymnasium's own checker, Rust's bits, arrays that stay where they are."""

import re
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import ccplane
from ccplane import _native

#: Links on which an episode takes little time.
SLOW = {"family": "real", "rate_mbit": [1, 4], "rtt_ms": [20, 60]}


@pytest.mark.parametrize("algorithm", ["aurora", "aurora-published", "mocc"])
def test_gymnasiums_checker_passes(algorithm):
    check_env(ccplane.Env(algorithm, max_steps=30), skip_render_check=True)


def test_gymnasium_makes_both_by_name():
    one = gym.make("ccplane/Links-v0", links=SLOW, max_steps=20)
    observation, _ = one.reset(seed=3)
    assert one.observation_space.contains(observation)
    many = gym.make_vec("ccplane/Links-v0", num_envs=3, links=SLOW, max_steps=20)
    observations, _ = many.reset(seed=3)
    assert observations.shape == (3, 30)
    np.testing.assert_array_equal(observations[0], observation)


@pytest.mark.parametrize("algorithm", ["aurora", "aurora-published", "mocc"])
@pytest.mark.parametrize("action", [0.0, 0.5])
def test_a_seed_gives_rusts_bits(algorithm, action):
    max_steps = 40
    environment = ccplane.Env(algorithm, max_steps=max_steps)
    for seed in range(8):
        environment.reset(seed=seed)
        total, steps, truncated = 0.0, 0, False
        while not truncated:
            _, reward, terminated, truncated, _ = environment.step(np.array([action], np.float32))
            assert not terminated
            total, steps = total + reward, steps + 1
        rust_steps, _, rust_total = _native.run_in_rust(algorithm, None, [seed], max_steps, action)
        # Rust's loop decides once more, of which nothing comes.
        assert (steps, total) == (rust_steps - 1, rust_total) or (steps, total) == (rust_steps, rust_total)


def test_vector_environments_are_single_ones_side_by_side():
    max_steps, count = 25, 5
    vector = ccplane.VectorEnv(count, links=SLOW, max_steps=max_steps)
    singles = [ccplane.Env(links=SLOW, max_steps=max_steps) for _ in range(count)]
    observations, _ = vector.reset(seed=11)
    for n, single in enumerate(singles):
        np.testing.assert_array_equal(observations[n], single.reset(seed=11 + n)[0])
    np.testing.assert_array_equal(vector.reset(seed=np.int64(11))[0], observations)
    rng, over = np.random.default_rng(5), [False] * count
    ended = 0
    for _ in range(3 * max_steps):
        actions = rng.uniform(-1, 1, (count, 1)).astype(np.float32)
        observations, rewards, terminated, truncated, _ = vector.step(actions)
        assert not terminated.any()
        for n, single in enumerate(singles):
            if over[n]:
                observation, _ = single.reset()
                reward, over[n] = 0.0, False
            else:
                observation, reward, _, over[n], _ = single.step(actions[n])
                ended += over[n]
            np.testing.assert_array_equal(observations[n], observation)
            assert (rewards[n], truncated[n]) == (reward, over[n])
    assert ended >= count


def test_without_copies_the_same_arrays_are_written_to():
    vector = ccplane.VectorEnv(2, links=SLOW, copy=False)
    first, _ = vector.reset(seed=1)
    before = first.copy()
    for _ in range(5):
        observations, rewards, _, _, _ = vector.step(np.ones((2, 1), np.float32))
        assert observations is first
    assert not np.array_equal(before, first)
    assert np.isfinite(rewards).all()


def test_actions_do_what_they_say():
    links = SLOW | {"rivals": 0, "crossed": 0, "stepping": 0, "walking": 0, "lossy": 0, "cold": 1}

    def sent(action):
        environment = ccplane.Env(links=links)
        environment.reset(seed=2)
        return sum(environment.step(np.array([action], np.float32))[0][29] for _ in range(30))

    # Who raises its rate sends more than arrives.
    assert sent(1.0) > sent(-1.0)


#: Families of the league whose links have one learning flow, and those that have several.
FAMILIES = [
    "steady", "steps", "shallow", "deep", "loss", "burst", "policer", "cellular", "jitter", "wifi", "slow-return",
    "lumpy-return", "lossy-return", "handover", "beside-cubic", "beside-reno", "beside-bbr", "unresponsive",
    "short-flows", "recorded",
]
SEVERAL = ["own", "own-rtts"]


@pytest.fixture
def drives(tmp_path):
    """A folder of drives in place of the recorded ones: 12 Mb/s for three seconds, then half of that."""
    times = [*range(1, 3001), *range(3002, 6001, 2)]
    for drive in ["Verizon-LTE-driving", "TMobile-UMTS-driving"]:
        for direction in ["up", "down"]:
            (tmp_path / f"{drive}.{direction}").write_text("".join(f"{ms}\n" for ms in times))
    return str(tmp_path)


def test_the_leagues_links_are_environments(drives):
    environment = ccplane.Env(links={"league": FAMILIES, "links": 2, "traces": drives}, max_steps=15)
    count = 2 * len(FAMILIES)
    first = [environment.reset(seed=seed)[0] for seed in range(count)]
    for _ in range(10):
        _, reward, _, _, _ = environment.step(np.zeros(1, np.float32))
        assert np.isfinite(reward)
    # As many links as asked for: then they come again.
    np.testing.assert_array_equal(environment.reset(seed=count)[0], first[0])
    assert len({row.tobytes() for row in first}) > count // 3
    with pytest.raises(ValueError) as refused:
        ccplane.Env(links={"league": ["none"]})
    known = re.findall(r"[a-z]+(?:-[a-z]+)*", str(refused.value).partition("there are")[2])
    assert sorted(known) == sorted(FAMILIES + SEVERAL), str(refused.value)


def test_each_episode_of_a_link_has_the_same_short_flows_and_other_links_have_others():
    environment = ccplane.Env(links={"league": ["short-flows"], "links": 2}, max_steps=40)

    def seen(seed):
        environment.reset(seed=seed)
        return np.array([environment.step(np.zeros(1, np.float32))[0] for _ in range(40)])

    # Nothing else on these links is random.
    np.testing.assert_array_equal(seen(2), seen(0))
    assert not np.array_equal(seen(1), seen(0))


def test_families_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="several learning flows"):
        ccplane.Env(links={"league": ["own"]})
    with pytest.raises(ValueError, match="no family is called `none`"):
        ccplane.Env(links={"league": ["none"]})
    with pytest.raises(ValueError, match="No such file"):
        ccplane.Env(links={"league": ["recorded"], "traces": str(tmp_path)})


def test_what_is_wrong_is_refused():
    with pytest.raises(ValueError, match="nothing is learned for `reno`"):
        ccplane.Env("reno")
    with pytest.raises(ValueError, match="neural is fitted to labels, not to rewards"):
        ccplane.Env("neural")
    with pytest.raises(ValueError, match="rate_mbit"):
        ccplane.Env(links={"family": "real", "rate_mbit": [5, 1]})
    with pytest.raises(ValueError, match="unknown field"):
        ccplane.Env(links={"family": "real", "speed": 1})
    native = _native.Vector("aurora", 2, 10)
    with pytest.raises(ValueError, match="needed"):
        native.reset([None], np.zeros((2, 30), np.float32))
    with pytest.raises(TypeError):
        native.reset([None, None], np.zeros((2, 30), np.float64))


def test_steps_let_other_threads_run():
    vector = ccplane.VectorEnv(64, copy=False)
    vector.reset(seed=1)
    actions, count, done = np.zeros((64, 1), np.float32), [0], threading.Event()

    def counts():
        while not done.is_set():
            count[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=counts)
    thread.start()
    # The interpreter itself gives the other thread no turn now.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        before = count[0]
        turns = next((n for n in range(1000) if vector.step(actions) and count[0] > before), None)
        assert turns is not None
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()
