"""Trains by a recipe of RLlib's, and plays a league whose links are tasks of Ray: on this machine, or on a cluster.

    python on_a_cluster.py recipe.toml league.jsonl                               # needs torch and Ray
    RAY_ADDRESS=192.0.2.1:6379 python on_a_cluster.py recipe.toml league.jsonl    # on the cluster with this head

Files are read and written where this script runs.
"""

import sys

import ccplane
from ccplane import leagues, training

#: The league: families, players, and links of each family.
FAMILIES, PLAYERS, LINKS = ["steady", "loss"], ["reno", "cubic", "bbr"], 3
#: Links that the policy was not trained on, by their seeds.
HELD_OUT = range(1_000_000, 1_000_010)


def main(recipe: str, out: str) -> None:
    """Prints what the policy is worth, and the league's table."""
    trained = ccplane.train(recipe)
    print(f"reward of a decision: {training.evaluate(trained, list(HELD_OUT)).mean():.3f}")
    cells = ccplane.league(FAMILIES, PLAYERS, links=LINKS, ray=True, out=out)
    print(leagues.ranking(cells).to_string())


if __name__ == "__main__":
    main(*sys.argv[1:])
