//! Flows under the program of `size` without a network: each alone, from its first packet to its last.
//!
//! Nothing that the program sees depends on the network. So the decisions are those that the datapath reports where no
//! two flows of one application to one destination overlap. So learning needs no packets.

use crate::fabric::Fabric;
use crate::recorder::Recorder;
use crate::thresholds::SizedFlow;
use ccplane_alg::{Algorithm, Control, Flow, Report};
use ccplane_algs::{Predictor, SizeInAgent, SizeThresholds};
use ccplane_netsim::workload::HostArrival;
use ccplane_program::ir::{MAX_REGS, PAST_SIZES, Prim, Program};
use ccplane_program::vm::{NoPolicies, ProgramState, SendPrims};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The earlier flows of an application to a destination.
#[derive(Clone, Copy, Default)]
struct Past {
    flows: i64,
    sizes: [u64; PAST_SIZES],
}

/// Runs these flows one after the other; `past`: those before them, which are not returned.
pub fn replay(
    past: &[HostArrival],
    arrivals: impl Iterator<Item = HostArrival>,
    fabric: &Fabric,
    thresholds: SizeThresholds,
    predictor: Option<Arc<dyn Predictor>>,
) -> Vec<SizedFlow> {
    let recorder = Arc::new(predictor.map_or_else(Recorder::default, Recorder::of));
    let placed = SizeInAgent::new(thresholds, Arc::clone(&recorder) as Arc<dyn Predictor>);
    let source = placed.programs().first().map_or("", |program| program.source);
    let Ok(program) = ccplane_program::compile(source) else { return Vec::new() };
    let mut pasts: BTreeMap<(usize, usize, u16), Past> = BTreeMap::new();
    let mut end = |flow: &HostArrival, run: bool| {
        let past = pasts.entry((flow.from, flow.to, flow.application)).or_default();
        if run {
            Run::new(&placed, &program, fabric, flow, past).run_to_the_end();
        }
        past.flows += 1;
        past.sizes.rotate_right(1);
        past.sizes[0] = flow.bytes;
    };
    past.iter().for_each(|flow| end(flow, false));
    arrivals.for_each(|flow| end(&flow, true));
    recorder.take()
}

/// One flow on its way.
struct Run<'a> {
    program: &'a Program,
    names: Vec<String>,
    state: ProgramState,
    code: Box<dyn Flow>,
    prims: SendPrims,
    size: u64,
    mss: u64,
    buffer: u64,
}

impl<'a> Run<'a> {
    fn new(
        placed: &SizeInAgent,
        program: &'a Program,
        fabric: &Fabric,
        flow: &HostArrival,
        past: &Past,
    ) -> Run<'a> {
        let info = ccplane_contract::FlowInfo::example(fabric.mss_bytes, 0);
        let mut control = Control::default();
        let code = placed.flow(&info, &mut control);
        placed.first(&mut control);
        let mut prims = SendPrims::default();
        prims.set(Prim::PeerFlows, past.flows);
        let sizes = [Prim::PeerSize1, Prim::PeerSize2, Prim::PeerSize3, Prim::PeerSize4];
        for (prim, bytes) in sizes.into_iter().zip(past.sizes) {
            prims.set(prim, bytes as i64);
        }
        let reported = program.regs().iter().take(program.report_len());
        let mut run = Run {
            program,
            names: reported.map(|reg| reg.name.trim_start_matches("Report.").to_owned()).collect(),
            state: ProgramState::new(program, 0, 0),
            code,
            prims,
            size: flow.bytes,
            mss: fabric.mss_bytes.max(1).into(),
            buffer: fabric.send_buffer_bytes,
        };
        run.take(&control);
        run
    }

    /// Sets the registers that the agent asks for.
    fn take(&mut self, control: &Control) {
        for (name, value) in control.requests().flat_map(|request| request.fields.iter()) {
            if let Some(at) = self.program.regs().iter().position(|reg| *reg.name == **name) {
                self.state.regs[at] = *value;
            }
        }
    }

    fn run_to_the_end(mut self) {
        let mut sent = 0;
        while sent < self.size {
            let packet = self.mss.min(self.size - sent);
            self.invoke(sent, packet, self.buffer.min(self.size - sent - packet));
            // The first packet of those from which on the program wants to be asked again.
            let next = u64::try_from(self.state.decide_at_bytes).unwrap_or(0).max(sent + 1);
            sent = next.div_ceil(self.mss).saturating_mul(self.mss);
        }
        self.invoke(self.size, 0, 0);
    }

    fn invoke(&mut self, sent: u64, packet: u64, waiting: u64) {
        self.prims
            .set(Prim::FlowBytesSent, sent as i64)
            .set(Prim::PacketBytes, packet as i64)
            .set(Prim::FlowBytesWaiting, waiting as i64);
        let mut values = [0; MAX_REGS];
        let outcome = self.state.invoke_with(self.program, &self.prims, &mut NoPolicies, &mut values);
        if !outcome.report {
            return;
        }
        let report = Report {
            program: "size-agent",
            names: &self.names,
            values: &values[..self.names.len()],
            truth: None,
        };
        let mut control = Control::default();
        self.code.on_report(0, &report, &mut control);
        self.take(&control);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::{sized, training_trial};
    use ccplane_netsim::workload::{FlowSizes, HostArrivals, Split};

    /// On a fabric so fast that no two flows overlap, the simulated datapath reports the same decisions.
    #[test]
    fn the_simulated_datapath_reports_the_same() {
        let mut trial = training_trial(&FlowSizes::web_search(), 700_000, Split::Test, 5, 150);
        trial.load_ppm = 2000;
        let mut simulated = sized(&trial, SizeThresholds::default(), None).unwrap();
        let mut arrivals = HostArrivals::new(
            &trial.sizes,
            trial.load_ppm,
            trial.fabric.edge_bit_per_s,
            trial.structure,
            (trial.split, trial.seed),
        )
        .unwrap();
        let past = arrivals.past(4);
        let flows = arrivals.take(150);
        let mut alone = replay(&past, flows, &trial.fabric, SizeThresholds::default(), None);
        let key = |flow: &SizedFlow| (flow.size_bytes, flow.decisions.len());
        simulated.sort_by_key(key);
        alone.sort_by_key(key);
        assert_eq!(alone.len(), 150);
        let differ = simulated.iter().zip(&alone).filter(|(a, b)| a != b).count();
        assert!(differ <= 3, "{differ} of {} differ", alone.len());
    }
}
