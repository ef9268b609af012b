"""A script on a Ray cluster: two nodes with a worker process each, and a head that only keeps the books."""

import os
import subprocess
import sys

import pytest
from ray.cluster_utils import Cluster

import ccplane
from ccplane import policy

#: What the script plays.
LEAGUE = (["steady", "loss"], ["reno", "cubic", "bbr"])


@pytest.fixture
def cluster():
    """Its nodes are processes of this machine, each with its own count of processors."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


def test_the_same_script_runs_on_a_cluster(cluster, root, tmp_path):
    # Each worker of the recipe asks for a processor, and no node has two: both nodes work, or neither does.
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'trainer = "rllib"\nsteps = 8192\nworkers = 2\nenvironments = 4\nout = "{tmp_path}"\n')
    script, spread = root / "experiments/python/examples/on_a_cluster.py", tmp_path / "spread"
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    done = subprocess.run(
        [sys.executable, script, recipe, spread], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "reward of a decision: " in done.stdout and "cubic" in done.stdout, done.stdout
    assert policy.read(tmp_path / "aurora-rllib.safetensors").algorithm == "aurora"
    assert ccplane.command(["snapshot", "inspect", tmp_path / "aurora-rllib.snapshot"]) == 0
    families, players = LEAGUE
    ccplane.league(families, players, links=3, out=tmp_path / "local")
    assert spread.read_bytes() == (tmp_path / "local").read_bytes() != b""
