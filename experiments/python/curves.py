"""Whether three trainers agree: each trains the same recipe by several seeds; the policies meet links that none trained on.

    python curves.py --algorithm aurora --steps 65536 --seeds 5      # needs torch, Stable-Baselines3 and Ray
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import ccplane
from ccplane import training

#: Seeds of links for the comparison, far from those of training.
HELD_OUT = range(1_000_000, 1_000_100)
#: Resamples of seeds for an interval.
RESAMPLES = 10_000


def worth(algorithm: str, trainer: str, steps: int, seed: int) -> np.ndarray:
    """Mean rewards of a policy that was just trained: (links)."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.toml"
        text = f'algorithm = "{algorithm}"\ntrainer = "{trainer}"\nseed = {seed}\nsteps = {steps}\nout = "{folder}"\n'
        recipe.write_text(text, encoding="utf-8")
        return training.evaluate(ccplane.train(recipe), list(HELD_OUT))


def main() -> None:
    """Prints a row for each trainer and length, and each pair's difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="aurora")
    parser.add_argument("--steps", type=int, nargs="+", default=[16_384, 65_536])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trainers", nargs="+", default=list(training.TRAINERS))
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    for steps in arguments.steps:
        of = {}
        for trainer in arguments.trainers:
            seeds = range(1, arguments.seeds + 1)
            of[trainer] = np.array([worth(arguments.algorithm, trainer, steps, seed).mean() for seed in seeds])
            mean, deviation = of[trainer].mean(), of[trainer].std(ddof=1)
            print(f"CURVE {steps} steps, {trainer}: reward {mean:.3f}, deviation over seeds {deviation:.3f}", flush=True)
        first, *others = arguments.trainers
        for other in others:
            picks = rng.integers(arguments.seeds, size=(2, RESAMPLES, arguments.seeds))
            differences = of[other][picks[0]].mean(1) - of[first][picks[1]].mean(1)
            low, high = np.percentile(differences, [2.5, 97.5])
            print(f"CURVE {steps} steps, {other} less {first}: 95 % interval [{low:.3f}, {high:.3f}]", flush=True)


if __name__ == "__main__":
    main()
