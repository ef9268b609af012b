"""The learner in torch beside live flows of a QUIC server."""

import json
import signal
import subprocess
import sys
import time

#: Seconds within which a busy machine does whatever is waited for.
PATIENCE_S = 180
#: Steps of the learner that are waited for.
STEPS = 5
COMMAND = [sys.executable, "-m", "ccplane", "quic"]
#: The example's learner, which says of each batch whether a step came of it.
LEARNER = """
import sys
sys.path.insert(0, sys.argv[2])
import learns
from ccplane import learning

class Tells(learns.ActorCritic):
    def adapt(self, batch):
        before = self.actor[-1].weight.detach().clone()
        super().adapt(batch)
        print(int(not before.equal(self.actor[-1].weight)), flush=True)

learning.serve(sys.argv[1], Tells())
"""


def test_the_learner_in_torch_learns_from_live_flows(root, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    config, served, kept = tmp_path / "ccplane.toml", tmp_path / "served", tmp_path / "kept"
    config.write_text(f'control.socket = "{tmp_path}/control.sock"\nlearn.mode = "outside"\nlearn.batch_ms = 100\n')
    monkeypatch.setenv("CCPLANE_CONFIG", str(config))
    served.mkdir()
    (served / "file").write_bytes(bytes(20_000_000))
    (tmp_path / "tells.py").write_text(LEARNER)
    serve = ["serve", served, "--listen", "127.0.0.1:0", "--json", "--algorithm", "aurora", "--learn", "--keep", kept]
    processes = [subprocess.Popen([*COMMAND, *serve], stdout=subprocess.PIPE)]
    try:
        server = json.loads(processes[0].stdout.readline())
        learner = [sys.executable, tmp_path / "tells.py", kept / "aurora.learner", root / "experiments/python/examples"]
        with (tmp_path / "told").open("w") as told:
            processes.append(subprocess.Popen(learner, stdout=told))
        get = ["get", server["address"], "file", "-o", tmp_path / "out", "--fingerprint", server["fingerprint"]]
        end = time.monotonic() + PATIENCE_S
        while (tmp_path / "told").read_text().split().count("1") < STEPS:
            assert time.monotonic() < end and processes[1].poll() is None
            subprocess.run([*COMMAND, *get], check=True, capture_output=True)
        processes[0].send_signal(signal.SIGINT)
        last = json.loads(processes[0].communicate(timeout=PATIENCE_S)[0].splitlines()[-1])
        (record,) = last["learners"]
        assert record["algorithm"] == "aurora" and record["rows"] > 0 and not record["failed"]
    finally:
        for process in processes:
            process.kill()
            process.wait()
