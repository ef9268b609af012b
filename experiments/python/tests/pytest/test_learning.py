"""Learners in a process of their own: what they are told, and what they offer, by the agent's messages."""

import json
import socket
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

from ccplane import learning, policy

LEARNER = """
import sys
import numpy as np
from ccplane import learning

class Nudges(learning.Learner):
    def begin(self, policy):
        self.policy, self.seen = policy, 0

    def freeze(self):
        return self.policy

    def evaluate(self, observations):
        outputs = np.array([self.policy.act(row) for row in observations], np.float32)
        return learning.Evaluation(self.seen >= 8, 0.5, outputs)

    def adapt(self, batch):
        self.seen += len(batch.rewards)
        self.policy.actor[-1][1][:] += batch.rewards.mean()

learning.serve(sys.argv[1], Nudges())
"""


def send(stream, kind, content):
    stream.sendall(struct.pack("<I", len(content) + 1) + kind + content)


def receive(stream):
    (length,) = struct.unpack("<I", stream.recv(4, socket.MSG_WAITALL))
    message = stream.recv(length, socket.MSG_WAITALL)
    return message[:1], message[1:]


def rows(count, reward):
    row = {"flow": 1, "at_us": 5, "observation": [0.1] * 30, "action": 0.5, "reward": reward}
    return json.dumps([row | {"follows": True, "current": True}] * count).encode()


@pytest.fixture
def agent(tmp_path, root):
    """The agent's end: listens, and starts a learning process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "aurora.learner"))
        listener.listen()
        (tmp_path / "learner.py").write_text(LEARNER)
        process = subprocess.Popen([sys.executable, tmp_path / "learner.py", tmp_path / "aurora.learner"])
        stream, _ = listener.accept()
        send(stream, b"P", (root / "algs/policies/aurora.safetensors").read_bytes())
        yield stream, process
        stream.close()
        process.kill()
        process.wait()


def test_a_process_adapts_and_offers_when_it_has_converged(agent, root, tmp_path):
    stream, process = agent
    send(stream, b"R", rows(5, 0.25))
    send(stream, b"R", rows(5, 0.25))
    kind, content = receive(stream)
    assert kind == b"O" and struct.unpack("<d", content[:8]) == (0.5,)
    (tmp_path / "offered").write_bytes(content[8:])
    offered, shipped = policy.read(tmp_path / "offered"), policy.read(root / "algs/policies/aurora.safetensors")
    np.testing.assert_allclose(offered.actor[-1][1], shipped.actor[-1][1] + 0.5, rtol=1e-6)
    send(stream, b"D", json.dumps({"verdict": "promoted", "why": "", "offered": True}).encode())
    stream.shutdown(socket.SHUT_WR)
    assert process.wait(60) == 0, "the agent has ended, and so does it"


def test_batches_have_the_shapes_that_they_say(tmp_path):
    heard = []

    class Hears(learning.Learner):
        def begin(self, policy):
            raise AssertionError

        def freeze(self):
            raise AssertionError

        def evaluate(self, observations):
            return learning.Evaluation(False, 0.0, np.zeros(len(observations), np.float32))

        def adapt(self, batch):
            heard.append(batch)

        def decided(self, verdict, why, offered):
            heard.append((verdict, why, offered))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        thread = threading.Thread(target=learning.serve, args=(tmp_path / "s", Hears(), lambda: len(heard) == 2))
        thread.start()
        stream, _ = listener.accept()
        send(stream, b"R", rows(3, -1.5))
        send(stream, b"D", json.dumps({"verdict": "unsafe", "why": "so", "offered": True}).encode())
        thread.join()
    batch = heard[0]
    assert batch.observations.shape == (3, 30) and batch.observations.dtype == np.float32
    assert batch.rewards.tolist() == [-1.5] * 3 and batch.flows.dtype == np.uint64
    assert heard[1] == ("unsafe", "so", True)
