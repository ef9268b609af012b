"""Aurora's network, asked in the agent: the program keeps Aurora's features, a torch module gives the rate's change.

    python asks_torch.py ../../../algs/policies/aurora.safetensors      # needs torch
"""

import sys
from collections import deque

import numpy as np
import torch

import ccplane
from ccplane import Control, FlowInfo, policy

PLAN = """
title = "Asking torch"
duration_s = 20
repeats = 1
[[link]]
rate_mbit = 20
delay_ms = 20
queue_packets = 70
[[algorithm]]
algorithm = "py-torch"
datapath = "sim"
"""

#: Ranges of inflation, latency ratio and send ratio, which go to [-1, 1], as the policy's specification has them.
RANGES = ((-0.5, 0.5), (0.0, 0.6), (-0.5, 0.5))
INTERVALS = 10
#: What an action of 1 changes the rate by.
STEP = 0.05


def module(of: policy.Policy) -> torch.nn.Sequential:
    """A policy file's actor as a torch module."""
    parts: list[torch.nn.Module] = []
    for weights, bias in of.actor:
        linear = torch.nn.Linear(weights.shape[1], weights.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(weights), torch.from_numpy(bias)
        parts += [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*parts[:-1])


class TorchFlow:
    """One flow: features of ten intervals in, a change of its rate out."""

    def __init__(self, network: torch.nn.Module, mss_bytes: int) -> None:
        self.network, self.mss, self.rate = network, mss_bytes, 250_000.0
        self.history = deque([[0.0] * 3] * INTERVALS, INTERVALS)
        self.least_us, self.before_us = 0, 0

    def on_report(self, now_us: int, program: str, report: dict[str, int], control: Control) -> None:
        rtt_us = report["rtt_sum"] / max(report["acks"], 1)
        self.least_us = min(self.least_us or rtt_us, rtt_us)
        inflation = (rtt_us - (self.before_us or rtt_us)) / max(report["took"], 1)
        sent = report["acked"] + report["lost"] * self.mss
        features = (
            inflation,
            (rtt_us - self.least_us) / (rtt_us + self.least_us),
            (sent - report["acked"]) / max(sent + report["acked"], 1),
        )
        self.before_us = rtt_us
        self.history.append([np.clip(2 * (x - lo) / (hi - lo) - 1, -1, 1) for x, (lo, hi) in zip(features, RANGES)])
        with torch.no_grad():
            observation = torch.tensor(np.array(self.history, np.float32).reshape(-1))
            action = float(self.network(observation)[0].clamp(-8, 8))
        self.rate *= 1 + STEP * action if action >= 0 else 1 / (1 - STEP * action)
        self.rate = max(self.rate, 10.0 * self.mss)
        control.update(Rate=int(self.rate), Cwnd=int(2 * self.rate * rtt_us / 1e6) + 10 * self.mss)


class AsksTorch(ccplane.Algorithm):
    """Rates by a torch module."""

    name = "py-torch"
    programs = {
        "intervals": """
            (def (Report (volatile acked 0) (volatile lost 0) (volatile acks 0) (volatile rtt_sum 0) (took 0)) (rtt 100000))
            (when true
                (:= Report.acked (+ Report.acked Ack.bytes_acked))
                (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
                (:= Report.acks (+ Report.acks 1))
                (:= rtt (if (< Flow.rtt_sample_us 1000000) Flow.rtt_sample_us))
                (:= Report.rtt_sum (+ Report.rtt_sum rtt))
                (fallthrough))
            (when (> Micros rtt)
                (:= Report.took Micros)
                (:= Micros 0)
                (report))
        """
    }

    def __init__(self, of: policy.Policy) -> None:
        self.network = module(of)

    def flow(self, info: FlowInfo, control: Control) -> TorchFlow:
        control.set_program("intervals", Rate=250_000)
        return TorchFlow(self.network, info["mss_bytes"])


def main() -> None:
    torch.set_num_threads(1)
    run = ccplane.simulate(PLAN, [AsksTorch(policy.read(sys.argv[1]))])[0]
    flow = run["flows"][0]
    print(f"{flow['throughput_bps'] / 1e6:.2f} Mb/s, mean RTT {flow['rtt_us']['mean'] / 1000:.1f} ms")


if __name__ == "__main__":
    main()
