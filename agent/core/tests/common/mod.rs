//! A datapath that records what it is asked, and algorithms that do as they are told.
#![allow(dead_code)] // Each test file uses its part.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Mode, ProgramUid,
};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules};
use ccplane_program::ir::Program;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub const DP: DatapathId = DatapathId(1);

pub const PROGRAM: &str = "
(def (Report (acked 0) (volatile seen false)) (mss 1448) (armed false))
(when true (:= scratch Ack.bytes_acked) (:= Report.acked (+ Report.acked scratch)) (report))";

type OnFlow = Arc<dyn Fn(&FlowInfo, &mut Control) + Send + Sync>;
type OnReport = Arc<dyn Fn(&Report<'_>, &mut Control) + Send + Sync>;

/// An algorithm that does as it is told.
pub struct Told {
    pub name: &'static str,
    pub programs: Vec<ProgramSource>,
    pub on_flow: OnFlow,
    pub on_report: OnReport,
    pub on_close: fn(),
    /// What was called.
    pub log: Arc<Mutex<Vec<String>>>,
}

impl Told {
    pub fn new(name: &'static str) -> Told {
        Told {
            name,
            programs: vec![
                ProgramSource { name: "main", source: PROGRAM },
                ProgramSource { name: "other", source: PROGRAM },
            ],
            on_flow: Arc::new(|info, control| {
                control.set_program("main", &[("mss", i64::from(info.mss_bytes))])
            }),
            on_report: Arc::new(|_, _| {}),
            on_close: || {},
            log: Arc::default(),
        }
    }
}

struct ToldFlow {
    on_report: OnReport,
    on_close: fn(),
    log: Arc<Mutex<Vec<String>>>,
}

impl Algorithm for Told {
    fn name(&self) -> &'static str {
        self.name
    }
    fn programs(&self) -> Vec<ProgramSource> {
        self.programs.clone()
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        (self.on_flow)(info, control);
        let (on_report, log) = (self.on_report.clone(), self.log.clone());
        Box::new(ToldFlow { on_report, on_close: self.on_close, log })
    }
}

impl Flow for ToldFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let line = format!("{now_us} {} {:?}={:?}", report.program, report.names, report.values);
        self.log.lock().unwrap().push(line);
        (self.on_report)(report, control);
    }
    fn on_close(&mut self) {
        self.log.lock().unwrap().push("close".to_owned());
        (self.on_close)();
    }
}

pub fn info(remote_port: u16) -> FlowInfo {
    FlowInfo {
        mss_bytes: 1400,
        init_cwnd_bytes: 14_000,
        local: ([10, 0, 0, 1], 40_000).into(),
        remote: ([10, 0, 0, 2], remote_port).into(),
        cgroup: None,
        min_rtt_us: None,
    }
}

pub fn created(flow: u64) -> Event {
    Event::Created { flow: FlowId(flow), info: info(443) }
}

pub fn report(flow: u64, program: u32, seq: u32, acked: i64) -> Event {
    let at_us = 1000 * u64::from(seq);
    Event::Report { flow: FlowId(flow), program: ProgramUid(program), seq, at_us, values: vec![acked, 0] }
}

/// A core whose first algorithm steers every flow; its programs have uids 10, 11 ...
pub fn core_with(algorithms: Vec<Told>) -> Core {
    let rules = Rules::all(algorithms[0].name);
    let algorithms = algorithms.into_iter().map(|a| Arc::new(a) as Arc<dyn Algorithm>).collect();
    Core::new(Catalog::new(algorithms, 10).unwrap(), rules, Config::default()).unwrap()
}

/// Records calls; refuses what it is told to refuse.
#[derive(Default)]
pub struct Fake {
    pub events: Vec<Event>,
    pub calls: Vec<String>,
    pub heartbeats: usize,
    pub listed: BTreeMap<u64, FlowInfo>,
    pub refuse_install: Option<(u32, DatapathError)>,
    pub refuse_set: Option<DatapathError>,
    pub refuse_update: Option<DatapathError>,
}

impl Fake {
    pub fn take_calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }
}

impl Datapath for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "fake",
            max_programs: 64,
            max_flows: 1 << 20,
            policy: false,
            full_language: true,
        }
    }
    fn install(&mut self, uid: ProgramUid, _program: &Program) -> Result<(), DatapathError> {
        self.calls.push(format!("install {}", uid.0));
        match &self.refuse_install {
            Some((refused, error)) if *refused == uid.0 => Err(error.clone()),
            _ => Ok(()),
        }
    }
    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        Err(DatapathError::NoProgram(uid))
    }
    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        self.calls.push(format!("set {} {} {fields:?}", flow.0, uid.0));
        self.refuse_set.clone().map_or(Ok(()), Err)
    }
    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        self.calls.push(format!("update {} {fields:?}", flow.0));
        self.refuse_update.clone().map_or(Ok(()), Err)
    }
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.calls.push(format!("release {}", flow.0));
        Ok(())
    }
    fn heartbeat(&mut self) {
        self.heartbeats += 1;
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        let stats = |(flow, info): (&u64, &FlowInfo)| FlowStats {
            flow: FlowId(*flow),
            info: info.clone(),
            mode: Mode::NativeNoProgram,
            program: None,
            snd_cwnd: 10,
            snd_ssthresh: u32::MAX,
            mss_bytes: info.mss_bytes,
            srtt_us: 0,
            min_rtt_us: 0,
            pacing_rate: 0,
            bytes_acked: 0,
            delivered: 0,
            lost: 0,
            unacked: 0,
            faults: 0,
            reports: 0,
            policy: None,
            sampled_at_us: 0,
        };
        self.listed.iter().map(stats).collect()
    }
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let n = max.min(self.events.len());
        events.extend(self.events.drain(..n));
        n
    }
}
