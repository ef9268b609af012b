"""The page: its blocks of Python run, in order."""

import re

PLAN = """
title = "Plan"
duration_s = 5
repeats = 1
[[link]]
rate_mbit = 8
delay_ms = 10
queue_packets = 40
[[algorithm]]
algorithm = "mine"
datapath = "sim"
"""


def test_the_pages_blocks_run(root, tmp_path, monkeypatch):
    text = (root / "experiments/python/README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    made = {"__name__": "readme"}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        exec(compile(block, "README.md", "exec"), made)
    assert made["code"] == 0 and made["runs"][0]["flows"][0]["throughput_bps"] > 4e6
    assert sorted(set(made["cells"]["algorithm"])) == ["cubic", "mine", "reno"]
    assert made["observation"].shape == (30,) and made["rewards"].shape == (64,)
