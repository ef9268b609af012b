"""Whether three trainers agree: the program that says so, at small size."""

import re
import subprocess
import sys

STEPS, SEEDS = 8192, 2
NUMBER = r"-?\d+\.\d+"


def test_curves_has_a_row_for_each_trainer_and_an_interval_for_each_pair(root):
    arguments = ["--steps", str(STEPS), "--seeds", str(SEEDS)]
    command = [sys.executable, root / "experiments/python/curves.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The trainers print, too.
    said = [line for line in done.stdout.splitlines() if line.startswith("CURVE ")]
    row = rf"CURVE {STEPS} steps, (\w+): reward {NUMBER}, deviation over seeds {NUMBER}"
    rows = [match for line in said if (match := re.fullmatch(row, line))]
    assert [match[1] for match in rows] == ["ppo", "sb3", "rllib"], done.stdout
    pair = rf"CURVE {STEPS} steps, (\w+) less ppo: 95 % interval \[({NUMBER}), ({NUMBER})\]"
    pairs = [match for line in said if (match := re.fullmatch(pair, line))]
    assert [match[1] for match in pairs] == ["sb3", "rllib"] and len(said) == len(rows) + len(pairs)
    assert all(float(match[2]) <= float(match[3]) for match in pairs)
