"""Algorithms in Python on live flows: the kernel's, under BPF, and QUIC's."""

import json
import os
import signal
import subprocess
import sys

import pytest

import ccplane
from ccplane import results

PLAN = """
title = "Live"
duration_s = 4
repeats = 1
[[link]]
rate_mbit = 12
delay_ms = 5
queue_packets = 60
[[algorithm]]
algorithm = "py-reno"
datapath = "{datapath}"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A run directory of the test's own, and the names that go with it."""
    tmp_path.chmod(0o700)
    text = f"""
control.socket = "{tmp_path}/control.sock"
datapath.ebpf.name = "ccd_python"
datapath.ebpf.run_dir = "{tmp_path}"
"""
    (tmp_path / "ccplane.toml").write_text(text)
    monkeypatch.setenv("CCPLANE_CONFIG", str(tmp_path / "ccplane.toml"))
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="links between network namespaces need root")
@pytest.mark.parametrize("datapath", ["ebpf", "quic"])
def test_python_steers_live_flows(datapath, home, reno):
    heard = []

    class Hears(reno.RenoFlow):
        def on_report(self, now_us, program, report, control):
            heard.append(report["acked"])
            super().on_report(now_us, program, report, control)

    class Live(reno.Reno):
        def flow(self, info, control):
            control.set_program("rounds")
            return Hears(info)

    live = Live()
    (home / "live.toml").write_text(PLAN.format(datapath=datapath))
    assert ccplane.command(["run", home / "live.toml", "--results", home / "out"], [live]) == 0
    (run,) = results.read(home / "out/live.jsonl").runs
    assert (run["status"], live.errors) == ("ok", [])
    assert run["flows"][0]["throughput_bps"] > 1_000_000
    assert len(heard) > 20 and sum(heard) > 100_000


LEARNER = """
import sys
import numpy as np
from ccplane import learning
from ccplane.policy import Policy

class Nudges(learning.Learner):
    def begin(self, policy):
        self.policy, self.seen = policy, 0

    def freeze(self):
        *hidden, (weights, bias) = self.policy.actor
        return Policy(self.policy.algorithm, [*hidden, (weights, bias + 0.5)], self.policy.critic,
                      self.policy.activation, self.policy.log_std)

    def evaluate(self, observations):
        assert observations.shape[1] == 30 and np.abs(observations).max() <= 1
        return learning.Evaluation(self.seen >= 100, 0.0, np.zeros(len(observations), np.float32))

    def adapt(self, batch):
        assert np.isfinite(batch.rewards).all()
        self.seen += len(batch.rewards)

    def decided(self, verdict, why, offered):
        if offered:
            print(verdict, flush=True)

learning.serve(sys.argv[1], Nudges())
"""


@pytest.fixture
def server(home):
    """A QUIC server under Aurora whose learner is a process, and how to fetch from it."""
    (home / "ccplane.toml").write_text(
        f'control.socket = "{home}/control.sock"\nlearn.mode = "outside"\nlearn.batch_ms = 100\n'
    )
    (home / "served").mkdir()
    (home / "served/file").write_bytes(bytes(20_000_000))
    arguments = ["serve", home / "served", "--listen", "127.0.0.1:0", "--json", "--algorithm", "aurora"]
    arguments += ["--learn", "--keep", home / "kept"]
    process = subprocess.Popen([sys.executable, "-m", "ccplane", "quic", *arguments], stdout=subprocess.PIPE)
    first = json.loads(process.stdout.readline())

    def fetch():
        get = ["get", first["address"], "file", "-o", home / "out", "--fingerprint", first["fingerprint"]]
        subprocess.run([sys.executable, "-m", "ccplane", "quic", *get], check=True, capture_output=True)

    yield home / "kept/aurora.learner", process, fetch
    process.kill()
    process.wait()


def test_a_learner_beside_live_flows(server, home):
    path, process, fetch = server
    (home / "learner.py").write_text(LEARNER)
    said = (home / "said").open("w")
    learner = subprocess.Popen([sys.executable, home / "learner.py", path], stdout=said)
    try:
        # Before a loop has the slot, an offer may come back.
        while not set((home / "said").read_text().split()) - {"not-asked"}:
            fetch()
            assert learner.poll() is None and process.poll() is None
        # The agent judged the offer, and perhaps has flows try it.
        verdicts = {"trial", "unsafe", "not-necessary", "busy", "promoted", "rolled-back", "pushed", "not-asked"}
        assert set((home / "said").read_text().split()) <= verdicts
    finally:
        learner.kill()
        learner.wait()
    fetch()
    process.send_signal(signal.SIGINT)
    last = json.loads(process.communicate()[0].splitlines()[-1])
    assert process.returncode == 0
    (record,) = last["learners"]
    assert record["algorithm"] == "aurora" and record["rows"] >= 100 and not record["failed"]
