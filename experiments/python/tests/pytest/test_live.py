"""Algorithms and learners in Python beside live flows: the kernel's, under BPF, and QUIC's."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import ccplane
from ccplane import results

#: Seconds within which a busy machine does whatever is waited for.
PATIENCE_S = 60
#: Seconds between two looks whether it has, which leave the processor to those who do it.
LOOK_EVERY_S = 0.01

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


@contextlib.contextmanager
def process(home, name, arguments, stdout=None):
    """A process of the command or of a script, whose log is NAME.log; it is ended in the end."""
    with (home / f"{name}.log").open("w") as log:
        started = subprocess.Popen([sys.executable, *arguments], stdout=stdout, stderr=log)
    try:
        yield started
    finally:
        # Not SIGTERM: one that was stopped would not hear of it.
        started.kill()
        started.wait()


def until(what, look):
    """What `look` finds, once that is anything."""
    end = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < end, what
        time.sleep(LOOK_EVERY_S)
    return found


def ask(*arguments):
    """The JSON that the command prints, once it answers."""
    command = [sys.executable, "-m", "ccplane", *arguments, "--json"]

    def answer():
        asked = subprocess.run(command, capture_output=True, check=False)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    return until(arguments, answer)


#: The arguments of Python with which it is the command.
COMMAND = ("-m", "ccplane")


def fetching(home, server, command=COMMAND):
    """A client that fetches for as long as it is let, and whose own flow no agent steers."""
    where = [server["address"], "endless", "-o", "-", "--fingerprint", server["fingerprint"]]
    return process(home, "get", [*command, "quic", "get", "--algorithm", "reno", *where], subprocess.DEVNULL)


@contextlib.contextmanager
def agent(home, config, command=COMMAND):
    """An agent of this home, and a server that it steers: the agent's process, and the server's first line."""
    (home / "ccplane.toml").write_text(
        f'control.socket = "{home}/control.sock"\ndatapath.ebpf.mode = "off"\n{config}'
    )
    (home / "served").mkdir()
    with (home / "served/endless").open("wb") as endless:
        endless.truncate(1 << 36)
    serve = [*command, "quic", "serve", home / "served", "--listen", "127.0.0.1:0", "--json"]
    with process(home, "agent", [*command, "agent"]) as runs:
        ask("status")
        with process(home, "serve", serve, subprocess.PIPE) as server:
            yield runs, json.loads(server.stdout.readline())


def acked(flow):
    """The bytes of a flow that have arrived, as the agent has heard."""
    return flow.get("bytes_acked") or 0


FAILS = """
import sys
import ccplane

class Flow:
    reports = 0

    def on_report(self, now_us, program, report, control):
        self.reports += 1
        if self.reports > 5:
            raise KeyError("no such luck")
        control.update(Nothing=1)

class Fails(ccplane.Algorithm):
    name = "py-fails"
    programs = {
        "rounds": '''
            (def (Report (volatile acked 0)) (rtt 10000))
            (when true
                (:= Report.acked (+ Report.acked Ack.bytes_acked))
                (:= rtt Flow.rtt_sample_us)
                (fallthrough))
            (when (> Micros rtt)
                (:= Micros 0)
                (report))
        '''
    }

    def flow(self, info, control):
        control.set_program("rounds")
        return Flow()

sys.exit(ccplane.command(sys.argv[1:], [Fails()]))
"""


def test_an_exception_is_shown_and_harms_no_flow(home):
    (home / "fails.py").write_text(FAILS)

    def record():
        flows = [flow for flow in ask("flows")["flows"] if "panicked" in flow.get("native_reason", "")]
        return flows[0] if flows else None

    # Each of them reads the configuration, and has to know the algorithm.
    command = [home / "fails.py"]
    with agent(home, 'default_algorithm = "py-fails"\n', command) as (runs, server):
        with fetching(home, server, command):
            shown = until("a flow whose algorithm failed", record)
            # Its datapath's own algorithm carries it on.
            until("more of it", lambda: acked(record()) > acked(shown))
        assert runs.poll() is None
    assert shown["native_reason"].startswith("the algorithm panicked: Traceback")
    assert "fails.py" in shown["native_reason"] and "KeyError: 'no such luck'" in shown["native_reason"]
    assert shown["algorithm"] == "py-fails" and shown["mode"] != "program"
    # What it asked for before, and did not get.
    assert shown["last_error"] == "program `rounds` has no control register `Nothing`"
    log = (home / "agent.log").read_text()
    assert "an algorithm's code failed: its flow goes on by the datapath's own algorithm" in log
    assert "KeyError: 'no such luck'" in log


#: What a learner says of its convergence, which the agent repeats.
STABILITY = 0.125
LEARNER = f"""
import json
import sys
import numpy as np
from ccplane import learning
from ccplane.policy import Policy

class Nudges(learning.Learner):
    seen = 0

    def begin(self, policy):
        self.policy = policy
        print(json.dumps(["begun", ""]), flush=True)

    def freeze(self):
        *hidden, (weights, bias) = self.policy.actor
        return Policy(self.policy.algorithm, [*hidden, (weights, bias + 0.5)], self.policy.critic,
                      self.policy.activation, self.policy.log_std)

    def evaluate(self, observations):
        assert observations.shape[1] == 30 and np.abs(observations).max() <= 1
        return learning.Evaluation(self.seen >= 100, {STABILITY}, np.zeros(len(observations), np.float32))

    def adapt(self, batch):
        assert np.isfinite(batch.rewards).all()
        self.seen += len(batch.rewards)

    def decided(self, verdict, why, offered):
        if offered:
            print(json.dumps([verdict, why]), flush=True)

learning.serve(sys.argv[1], Nudges())
"""


@contextlib.contextmanager
def learner(home, name, path):
    """A process that learns, and what it has said so far."""
    (home / "learner.py").write_text(LEARNER)
    with (home / f"{name}.said").open("w") as said:
        with process(home, name, [home / "learner.py", path], said) as learns:
            yield learns, lambda: [json.loads(line) for line in (home / f"{name}.said").read_text().splitlines()]


def verdicts(said):
    """The decisions that a learner has heard of. Before a loop has the slot, an offer may come back."""
    return [decision for decision in said if decision[0] not in ("begun", "not-asked")]


@pytest.fixture
def server(home):
    """A QUIC server under Aurora whose learner is a process, and how to fetch from it."""
    (home / "ccplane.toml").write_text(
        f'control.socket = "{home}/control.sock"\nlearn.mode = "outside"\nlearn.batch_ms = 100\n'
        f'learn.decision_log = "{home}/decisions.jsonl"\n'
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


#: The agent's `alpha_percent`: a push has to change so much of the actions' range, and more than rounding does.
ALPHA = 0.05


def test_a_learner_beside_live_flows(server, home):
    path, serves, fetch = server

    def logged():
        """The first decision on an offer that some loop took, as the agent's decision log has it."""
        lines = (home / "decisions.jsonl").read_text().splitlines()
        records = [record for record in map(json.loads, lines) if record["origin"] == "learned"]
        return [record for record in records if record["verdict"] != "no-slot"][:1]

    with learner(home, "learner", path) as (learns, said):
        while not verdicts(said()):
            fetch()
            assert learns.poll() is None and serves.poll() is None
        verdict, why = verdicts(said())[0]
        (decision,) = until("a line of the decision log", logged)
    # The agent judged this learner's offer: by its own measure, on the states that flows visited.
    evidence = decision["evidence"]
    assert (decision["verdict"], decision["text"]) == (verdict, why)
    assert evidence["converged"] and evidence["stability"] == STABILITY and evidence["states"] >= 100
    is_necessary = evidence["fidelity_mean"] > max(ALPHA, 2 * evidence["quantisation_error"])
    if verdict == "trial":
        assert evidence["safe"] and is_necessary
        assert decision["uid"] is not None and why.startswith("trial on "), "pushed to flows"
    elif verdict == "not-necessary":
        assert evidence["safe"] and not is_necessary
    else:
        assert verdict == "unsafe" and not evidence["safe"], (verdict, why)
    fetch()
    serves.send_signal(signal.SIGINT)
    last = json.loads(serves.communicate()[0].splitlines()[-1])
    assert serves.returncode == 0
    (record,) = last["learners"]
    assert record["algorithm"] == "aurora" and record["rows"] >= 100 and not record["failed"]


def test_a_learner_that_hangs_or_is_killed_changes_nothing(home):
    def listed():
        """The snapshots that flows decide by, and the rows that the agent has had for the learner."""
        said = ask("snapshot", "list")
        deployments = [(one["uid"], one["snapshot"]) for slot in said["slots"] for one in slot["deployments"]]
        (learner,) = [one for one in said["learners"] if one["algorithm"] == "aurora"]
        assert not learner["failed"]
        return deployments, learner["rows"]

    def arrived():
        return sum(map(acked, ask("flows")["flows"]))

    config = 'default_algorithm = "aurora"\nlearn.mode = "outside"\nlearn.batch_ms = 100\n'
    path = home / "policies/aurora.learner"
    with agent(home, config) as (runs, server), fetching(home, server):
        until("the server's slot", lambda: listed()[0])
        with learner(home, "hangs", path) as (hangs, said):
            until("it is let in", said)
            os.kill(hangs.pid, signal.SIGSTOP)
            (deployments, rows), bytes_before = listed(), arrived()
            # If it heard of them, it would offer.
            until("rows that it should learn from", lambda: listed()[1] >= rows + 150)
            assert listed()[0] == deployments and arrived() > bytes_before and verdicts(said()) == []
            os.kill(hangs.pid, signal.SIGCONT)
            until("a decision on its offer, late", lambda: verdicts(said()))
            os.kill(hangs.pid, signal.SIGKILL)
            assert hangs.wait() == -signal.SIGKILL
        bytes_before = arrived()
        until("more of the flow", lambda: arrived() > bytes_before)
        # Another one may learn.
        with learner(home, "next", path) as (_, said):
            until("the next one is let in", said)
        assert runs.poll() is None


def test_what_a_recipe_trained_decides_for_live_flows(home):
    """The whole chain: a recipe, a policy file, its integers, a push to a running agent, a QUIC flow that decides by it."""
    recipe, snapshot = home / "recipe.toml", home / "aurora.snapshot"
    recipe.write_text(f'algorithm = "aurora"\nsteps = 1\nseed = 5\nout = "{home}"\n')
    trained = ccplane.train(recipe)
    assert trained.algorithm == "aurora"
    name = ask("snapshot", "inspect", snapshot)["hash"]

    def active():
        """The deployment that flows decide by."""
        slots = ask("snapshot", "list")["slots"]
        return next((one for slot in slots for one in slot["deployments"] if one["role"] == "active"), None)

    config = 'default_algorithm = "aurora"\nlearn.mode = "off"\n'
    with agent(home, config) as (runs, server), fetching(home, server):
        shipped = until("the shipped snapshot decides", lambda: (found := active()) and found["flows"] and found)
        assert shipped["snapshot"] != name
        assert ccplane.command(["snapshot", "push", snapshot, "--force"]) == 0
        decides = until("a flow decides by the pushed one", lambda: (found := active()) and found["flows"] and found)
        assert (decides["snapshot"], decides["origin"]) == (name, "operator")
        bytes_before = sum(map(acked, ask("flows")["flows"]))
        until("more of the flow", lambda: sum(map(acked, ask("flows")["flows"])) > bytes_before)
        assert runs.poll() is None
