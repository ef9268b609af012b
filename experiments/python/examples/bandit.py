"""A bandit that chooses, each second, which of three rates carries most at the least delay (UCB1, Auer et al., 2002).

    python bandit.py
"""

import math

import ccplane
from ccplane import Control, FlowInfo

PLAN = """
title = "A bandit over rates"
duration_s = 60
repeats = 1
[[link]]
rate_mbit = 8
delay_ms = 20
queue_packets = 100
[[algorithm]]
algorithm = "py-bandit"
datapath = "sim"
"""

#: Rates to choose from, megabits per second.
ARMS_MBIT = (2.0, 6.0, 16.0)


class BanditFlow:
    """One flow: an arm for each report, worth its throughput less what its queue costs."""

    def __init__(self) -> None:
        self.pulls, self.worth, self.arm = [0] * len(ARMS_MBIT), [0.0] * len(ARMS_MBIT), 0
        self.least_us = 0

    def on_report(self, now_us: int, program: str, report: dict[str, int], control: Control) -> None:
        rtt_us = report["rtt"]
        self.least_us = min(self.least_us or rtt_us, rtt_us)
        mbit = report["acked"] * 8 / max(report["took"], 1)
        worth = mbit / max(ARMS_MBIT) - max(rtt_us / max(self.least_us, 1) - 2, 0) * 0.2
        self.pulls[self.arm] += 1
        self.worth[self.arm] += (worth - self.worth[self.arm]) / self.pulls[self.arm]
        self.arm = max(range(len(ARMS_MBIT)), key=self._index)
        control.update(Rate=rate(self.arm))

    def _index(self, arm: int) -> float:
        if not self.pulls[arm]:
            return math.inf
        return self.worth[arm] + 0.3 * math.sqrt(2 * math.log(sum(self.pulls)) / self.pulls[arm])


def rate(arm: int) -> int:
    """An arm's rate, bytes per second."""
    return int(ARMS_MBIT[arm] * 125_000)


class Bandit(ccplane.Algorithm):
    """Rates, chosen by what they bring."""

    name = "py-bandit"
    programs = {
        "seconds": """
            (def (Report (volatile acked 0) (rtt 0) (took 0)))
            (when true
                (:= Report.acked (+ Report.acked Ack.bytes_acked))
                (:= Report.rtt (if (< Flow.rtt_sample_us 1000000) Flow.rtt_sample_us))
                (fallthrough))
            (when (> Micros 1000000)
                (:= Report.took Micros)
                (:= Micros 0)
                (report))
        """
    }

    def __init__(self) -> None:
        self.flows: list[BanditFlow] = []

    def flow(self, info: FlowInfo, control: Control) -> BanditFlow:
        control.set_program("seconds", Cwnd=1 << 20, Rate=rate(0))
        self.flows.append(BanditFlow())
        return self.flows[-1]


def main() -> None:
    bandit = Bandit()
    ccplane.simulate(PLAN, [bandit])
    for mbit, pulls, worth in zip(ARMS_MBIT, bandit.flows[0].pulls, bandit.flows[0].worth, strict=True):
        print(f"{mbit} Mb/s: chosen {pulls} times, worth {worth:.2f}")


if __name__ == "__main__":
    main()
