"""Reno whose decisions are Python's: the program reports once for each round trip, and this class sets the window.

    python reno.py      # beside the built-in Reno, whose program decides on each ACK, on a simulated link
"""

import ccplane
from ccplane import Control, FlowInfo

PLAN = """
title = "Reno in Python"
duration_s = 20
repeats = 1
[[link]]
rate_mbit = 12
delay_ms = 20
queue_packets = 40
[[algorithm]]
algorithm = "py-reno"
datapath = "sim"
[[algorithm]]
algorithm = "reno"
datapath = "sim"
"""


class RenoFlow:
    """One flow: slow start, then a segment for each round trip, half of the window at a loss."""

    def __init__(self, info: FlowInfo) -> None:
        self.mss, self.cwnd, self.ssthresh = info["mss_bytes"], info["init_cwnd_bytes"], 1 << 40

    def on_report(self, now_us: int, program: str, report: dict[str, int], control: Control) -> None:
        if report["lost"] or report["timeout"]:
            self.ssthresh = max(self.cwnd // 2, 2 * self.mss)
            self.cwnd = self.mss if report["timeout"] else self.ssthresh
        elif self.cwnd < self.ssthresh:
            self.cwnd = min(self.cwnd + report["acked"], self.ssthresh)
        else:
            self.cwnd += self.mss * report["acked"] // self.cwnd
        control.update(Cwnd=self.cwnd)


class Reno(ccplane.Algorithm):
    """Reno by reports."""

    name = "py-reno"
    programs = {
        "rounds": """
            (def (Report (volatile acked 0) (volatile lost 0) (volatile timeout 0)) (rtt 100000))
            (when true
                (:= Report.acked (+ Report.acked Ack.bytes_acked))
                (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
                (:= Report.timeout (if Flow.was_timeout 1))
                (:= rtt (if (< Flow.rtt_sample_us 1000000) Flow.rtt_sample_us))
                (fallthrough))
            (when (|| Flow.was_timeout (> Micros rtt))
                (:= Micros 0)
                (report))
        """
    }

    def flow(self, info: FlowInfo, control: Control) -> RenoFlow:
        control.set_program("rounds")
        return RenoFlow(info)


def main() -> None:
    for run in ccplane.simulate(PLAN, [Reno()]):
        flow = run["flows"][0]
        mbit, rtt_ms = flow["throughput_bps"] / 1e6, flow["rtt_us"]["mean"] / 1000
        print(f"{run['contender']}: {mbit:.2f} Mb/s, mean RTT {rtt_ms:.1f} ms")


if __name__ == "__main__":
    main()
