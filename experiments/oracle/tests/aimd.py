import inspect
inspect.getargspec = inspect.getfullargspec
import pyportus

class AimdFlow():
    def __init__(self, datapath, info):
        self.datapath, self.mss, self.cwnd = datapath, info.mss, info.init_cwnd
        self.datapath.set_program("measure", [])

    def on_report(self, report):
        if report.lost > 0:
            self.cwnd = max(self.cwnd // 2, 2 * self.mss)
        else:
            self.cwnd += self.mss
        self.datapath.update_field("Cwnd", self.cwnd)

class Aimd(pyportus.AlgBase):
    def datapath_programs(self):
        return {"measure": """
(def (Report (volatile acked 0) (volatile lost 0)))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (fallthrough))
(when (> Micros Flow.rtt_sample_us)
    (report)
    (:= Micros 0))
"""}

    def new_flow(self, datapath, datapath_info):
        return AimdFlow(datapath, datapath_info)

pyportus.start("unix", Aimd())
