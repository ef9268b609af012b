//! A datapath that records what it is asked, and algorithms that do as they are told.
#![allow(dead_code)] // Each test file uses its part.

pub mod learned;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, PolicySource, ProgramSource, Report};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Mode, Part, ProgramUid,
    SlotStats, SnapshotUid, TransportStats,
};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules};
use ccplane_infer::{FlowPolicy, Shape, image};
use ccplane_program::ir::{Hook, Program};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub const DP: DatapathId = DatapathId(1);

pub const PROGRAM: &str = "
(def (Report (acked 0) (volatile seen false)) (mss 1448) (armed false))
(when true (:= scratch Ack.bytes_acked) (:= Report.acked (+ Report.acked scratch)) (report))";

type OnFlow = Arc<dyn Fn(&FlowInfo, &mut Control) + Send + Sync>;
type Kept = fn() -> Vec<(&'static str, i64)>;
type OnReport = Arc<dyn Fn(&Report<'_>, &mut Control) + Send + Sync>;

/// An algorithm that does as it is told.
pub struct Told {
    pub name: &'static str,
    pub programs: Vec<ProgramSource>,
    pub on_flow: OnFlow,
    pub on_report: OnReport,
    pub on_close: fn(),
    pub kept: Kept,
    pub policies: Vec<PolicySource>,
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
            kept: Vec::new,
            policies: Vec::new(),
            log: Arc::default(),
        }
    }
}

struct ToldFlow {
    on_report: OnReport,
    on_close: fn(),
    kept: Kept,
    log: Arc<Mutex<Vec<String>>>,
}

impl Algorithm for Told {
    fn name(&self) -> &'static str {
        self.name
    }
    fn programs(&self) -> Vec<ProgramSource> {
        self.programs.clone()
    }
    fn policies(&self) -> Vec<PolicySource> {
        self.policies.clone()
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        (self.on_flow)(info, control);
        let (on_report, log) = (self.on_report.clone(), self.log.clone());
        Box::new(ToldFlow { on_report, on_close: self.on_close, kept: self.kept, log })
    }
}

impl Flow for ToldFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let line = format!("{now_us} {} {:?}={:?}", report.program, report.names, report.values);
        self.log.lock().unwrap().push(line);
        (self.on_report)(report, control);
    }
    fn on_lost_reports(&mut self, count: u32) {
        self.log.lock().unwrap().push(format!("{count} lost"));
    }
    fn kept(&self) -> Vec<(&'static str, i64)> {
        (self.kept)()
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
    Event::Report {
        flow: FlowId(flow),
        program: ProgramUid(program),
        seq,
        at_us,
        values: vec![acked, 0].into(),
    }
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
    /// Runs policies; with so many pushes refused as busy.
    pub policies: Option<usize>,
    pub slots: BTreeMap<u8, SlotStats>,
    pub refuse_slot: Option<DatapathError>,
    /// Runs stock CCP bytecode, and nothing where there is no program.
    pub is_stock: bool,
    /// The hooks whose programs it runs, where those are not the one of ACKs.
    pub hooks: Option<&'static [Hook]>,
    /// The names that flows ask for.
    pub requests: BTreeMap<u64, &'static str>,
    /// Mode and policy of flows that are listed otherwise than steered.
    pub watched: BTreeMap<u64, (Mode, FlowPolicy)>,
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
            policy: self.policies.is_some(),
            full_language: !self.is_stock,
            hooks: self.hooks.unwrap_or(ccplane_contract::ON_ACKS),
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
    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.requests.get(&flow.0).copied()
    }
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.calls.push(format!("release {}", flow.0));
        Ok(())
    }
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        self.calls.push(format!("define {slot}"));
        if let Some(error) = &self.refuse_slot {
            return Err(error.clone());
        }
        let (active, canary, last_good) = (None, None, None);
        let (shape, canary_share, active_name) = (*shape, 0, [0; 4]);
        let empty = SlotStats { slot, shape, active, active_name, canary, canary_share, last_good };
        self.slots.entry(slot).or_insert(empty);
        Ok(())
    }
    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        if let Some(busy @ 1..) = &mut self.policies {
            *busy -= 1;
            self.calls.push(format!("busy {slot}"));
            return Err(DatapathError::SlotBusy { slot });
        }
        let uid = SnapshotUid(image::u32_at(image, image::UID));
        self.calls.push(format!("push {slot} {} {part:?}", uid.0));
        let stats = self.slots.get_mut(&slot).ok_or(DatapathError::NoSlot(slot))?;
        match part {
            Part::Active => {
                stats.last_good = stats.active.replace(uid).or(stats.last_good);
                stats.canary = None;
            }
            Part::Canary { share } => {
                assert_eq!(stats.canary, None, "two canaries");
                stats.canary = Some(uid);
                stats.canary_share = share;
            }
        }
        Ok(())
    }
    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.calls.push(format!("share {slot} {share}"));
        let stats = self.slots.get_mut(&slot).ok_or(DatapathError::NoSlot(slot))?;
        stats.canary.ok_or(DatapathError::NoSnapshot { slot, what: "canary" })?;
        stats.canary_share = share;
        Ok(())
    }
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.calls.push(format!("promote {slot}"));
        let stats = self.slots.get_mut(&slot).ok_or(DatapathError::NoSlot(slot))?;
        let canary = stats.canary.take().ok_or(DatapathError::NoSnapshot { slot, what: "canary" })?;
        stats.last_good = stats.active.replace(canary).or(stats.last_good);
        Ok(())
    }
    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.calls.push(format!("rollback {slot}"));
        let stats = self.slots.get_mut(&slot).ok_or(DatapathError::NoSlot(slot))?;
        if stats.canary.take().is_none() {
            stats.active = stats.last_good.take();
        }
        Ok(())
    }
    fn slots(&mut self) -> Vec<SlotStats> {
        self.slots.values().cloned().collect()
    }
    fn heartbeat(&mut self) {
        self.heartbeats += 1;
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        let watched = self.watched.clone();
        let policy = |flow: &u64| watched.get(flow).copied();
        let stats = |(flow, info): (&u64, &FlowInfo)| FlowStats {
            flow: FlowId(*flow),
            info: info.clone(),
            mode: policy(flow).map_or(Mode::NativeNoProgram, |(mode, _)| mode),
            program: None,
            transport: TransportStats {
                snd_cwnd: 10,
                mss_bytes: info.mss_bytes,
                ..TransportStats::default()
            },
            policy: policy(flow).map(|(_, policy)| policy),
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
