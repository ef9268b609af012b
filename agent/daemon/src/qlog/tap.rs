//! The loop's end: sees what passes between a datapath and the core, while somebody reads.

use super::{CongestionState, Event, EventRecord, Filter, MAX_SUBSCRIBERS, Metrics, Program};
use ccplane_contract::{
    Accepted, Datapath, Event as Happened, Field, FlowId, FlowStats, Forward, Mode, ProgramUid,
    TransportStats,
};
use ccplane_core::{Core, DatapathId, Driven, NATIVE, drive};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::mpsc;

/// Least time between two looks at a datapath's figures, microseconds.
const METRICS_EVERY_US: u64 = 20_000;

/// The destination of one reader's records.
pub struct Subscriber {
    filter: Filter,
    to: mpsc::Sender<EventRecord>,
    dropped: Arc<AtomicU64>,
}

impl Subscriber {
    pub(super) fn new(filter: Filter, to: mpsc::Sender<EventRecord>, dropped: Arc<AtomicU64>) -> Subscriber {
        Subscriber { filter, to, dropped }
    }

    /// Returns another handle on the same reader, for another loop.
    pub fn share(&self) -> Subscriber {
        Subscriber { filter: self.filter.clone(), to: self.to.clone(), dropped: Arc::clone(&self.dropped) }
    }

    /// Whether it asks for this flow.
    pub fn takes(&self, datapath: &str, flow: u64) -> bool {
        self.filter.takes(datapath, flow)
    }

    /// Whether it asks for one flow.
    pub fn wants_one(&self) -> bool {
        self.filter.flow.is_some()
    }

    fn send(&self, record: &EventRecord) {
        if self.filter.takes(record.datapath, record.flow)
            && let Err(mpsc::error::TrySendError::Full(_)) = self.to.try_send(record.clone())
        {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Message between a datapath and the core in one turn.
enum Passed {
    Event(Happened),
    SetProgram { flow: FlowId, uid: ProgramUid, fields: Vec<(Field, i64)> },
    Update { flow: FlowId, fields: Vec<(Field, i64)> },
    Release { flow: FlowId },
}

/// Figures of a flow in its last record.
struct Logged {
    program: Option<ProgramUid>,
    mode: Mode,
    metrics: Option<Metrics>,
    state: Option<CongestionState>,
    lost: u64,
}

/// The readers of one loop.
#[derive(Default)]
pub struct Taps {
    subscribers: Vec<Subscriber>,
    logged: HashMap<(DatapathId, FlowId), Logged>,
    programs: HashMap<ProgramUid, Arc<Program>>,
    observed_us: HashMap<DatapathId, u64>,
}

impl Taps {
    /// Takes a reader in; false if there are too many. Flows that run are told of as they are looked at next.
    pub fn subscribe(&mut self, subscriber: Subscriber) -> bool {
        self.prune();
        if self.subscribers.len() >= MAX_SUBSCRIBERS {
            return false;
        }
        self.subscribers.push(subscriber);
        self.logged.clear();
        self.observed_us.clear();
        true
    }

    fn prune(&mut self) {
        self.subscribers.retain(|s| !s.to.is_closed());
        if self.subscribers.is_empty() {
            self.logged.clear();
        }
    }

    /// [`drive`], watched while there are readers.
    pub fn drive(
        &mut self,
        core: &mut Core,
        id: DatapathId,
        datapath: &mut dyn Datapath,
        now_us: u64,
    ) -> Driven {
        if self.subscribers.is_empty() {
            return drive(core, id, datapath, now_us);
        }
        self.prune();
        let kind = datapath.capabilities().kind;
        let mut tap = Tap { inner: datapath, passed: Vec::new() };
        let driven = drive(core, id, &mut tap, now_us);
        let Tap { inner, passed } = tap;
        if self.programs.is_empty() || !passed.is_empty() {
            self.learn_programs(core);
        }
        let to = At { id, kind, now_us };
        // First what is there, so that no report comes before its flow has.
        let due = self.observed_us.get(&id).is_none_or(|at| now_us - at >= METRICS_EVERY_US);
        if due || passed.iter().any(|p| matches!(p, Passed::Event(Happened::Created { .. }))) {
            self.observed_us.insert(id, now_us);
            let told =
                |flow| passed.iter().any(|p| matches!(p, Passed::SetProgram { flow: f, .. } if *f == flow));
            for stats in inner.flows() {
                let program = stats.program.filter(|_| !told(stats.flow));
                self.observe(&to, core, &stats, program);
            }
        }
        for passed in passed {
            self.pass(&to, passed);
        }
        driven
    }

    fn learn_programs(&mut self, core: &Core) {
        for install in core.installs() {
            self.programs.entry(install.program.uid()).or_insert_with(|| {
                let program = install.program;
                Arc::new(Program {
                    name: program.name().to_owned(),
                    reports: program.report_names().to_vec(),
                    registers: program.program().regs().iter().map(|r| r.name.clone()).collect(),
                })
            });
        }
    }

    fn program(&self, uid: ProgramUid) -> Arc<Program> {
        self.programs.get(&uid).cloned().unwrap_or_else(|| {
            Arc::new(Program { name: format!("#{}", uid.0), reports: Vec::new(), registers: Vec::new() })
        })
    }

    fn send_event(&self, at: &At, flow: FlowId, event: Event) {
        let record = EventRecord { at_us: at.now_us, datapath: at.kind, flow: flow.0, event };
        self.subscribers.iter().for_each(|s| s.send(&record));
    }

    /// Records the changes of a flow since the last call. `program` is the flow's program, or `None` if
    /// another event tells it.
    fn observe(&mut self, at: &At, core: &Core, stats: &FlowStats, program: Option<ProgramUid>) {
        let key = (at.id, stats.flow);
        // Every statistic is named, so that a new one is told or left out here.
        let TransportStats {
            snd_cwnd,
            snd_ssthresh,
            mss_bytes,
            srtt_us,
            min_rtt_us,
            pacing_rate: pacing_bytes_per_s,
            lost,
            unacked,
            bytes_acked: _,
            delivered: _,
            faults: _,
            reports: _,
        } = stats.transport;
        if !self.logged.contains_key(&key) {
            let (local, remote) = (stats.info.local, stats.info.remote);
            let algorithm = core.flow(at.id, stats.flow).map_or(NATIVE, |f| f.algorithm());
            self.send_event(at, stats.flow, Event::FlowStarted { local, remote, mss_bytes, algorithm });
            if let Some(uid) = program {
                let changed = Event::ProgramChanged { program: self.program(uid), fields: Vec::new() };
                self.send_event(at, stats.flow, changed);
            }
        }
        let logged = self.logged.remove(&key).unwrap_or(Logged {
            program: stats.program,
            mode: stats.mode,
            metrics: None,
            state: None,
            lost,
        });
        if logged.mode != stats.mode {
            let changed = Event::ModeChanged { old: logged.mode.into(), new: stats.mode.into() };
            self.send_event(at, stats.flow, changed);
        }
        let in_bytes = |packets: u32| u64::from(packets) * u64::from(mss_bytes);
        let metrics = Metrics {
            cwnd_bytes: in_bytes(snd_cwnd),
            in_flight_bytes: in_bytes(unacked),
            in_flight_packets: unacked,
            srtt_us,
            min_rtt_us,
            ssthresh_bytes: snd_ssthresh.map(in_bytes),
            pacing_bytes_per_s,
        };
        if logged.metrics != Some(metrics) {
            self.send_event(at, stats.flow, Event::MetricsUpdated(metrics));
        }
        let state = if lost > logged.lost {
            CongestionState::Recovery
        } else if snd_ssthresh.is_some_and(|threshold| snd_cwnd >= threshold) {
            CongestionState::CongestionAvoidance
        } else if snd_ssthresh.is_none() && lost > 0 {
            // Programs keep their threshold to themselves: after a loss a flow is taken to be past it.
            CongestionState::CongestionAvoidance
        } else {
            CongestionState::SlowStart
        };
        if logged.state != Some(state) {
            self.send_event(at, stats.flow, Event::StateUpdated { old: logged.state, new: state });
        }
        let logged = Logged {
            program: stats.program.or(logged.program),
            mode: stats.mode,
            metrics: Some(metrics),
            state: Some(state),
            lost,
        };
        self.logged.insert(key, logged);
    }

    /// Emits the records of one message.
    fn pass(&mut self, at: &At, passed: Passed) {
        match passed {
            Passed::Event(Happened::Report { flow, program, seq, at_us, values }) => {
                let program = self.program(program);
                self.send_event(at, flow, Event::Report { program, seq, at_us, values: values.into_vec() });
            }
            Passed::Event(Happened::Closed { flow }) => {
                self.send_event(at, flow, Event::FlowEnded);
                self.logged.remove(&(at.id, flow));
                // Who asked for this flow alone has all there is.
                let done = |s: &Subscriber| s.filter.flow == Some(flow.0) && s.filter.takes(at.kind, flow.0);
                self.subscribers.retain(|s| !done(s));
            }
            Passed::Event(Happened::Created { .. } | Happened::Dropped { .. }) => {}
            Passed::SetProgram { flow, uid, fields } => {
                let program = self.program(uid);
                if let Some(logged) = self.logged.get_mut(&(at.id, flow)) {
                    logged.program = Some(uid);
                }
                let fields = name(&program, &fields);
                self.send_event(at, flow, Event::ProgramChanged { program, fields });
            }
            Passed::Update { flow, fields } => {
                let uid = self.logged.get(&(at.id, flow)).and_then(|s| s.program);
                let program = self.program(uid.unwrap_or(ProgramUid(0)));
                self.send_event(at, flow, Event::FieldsUpdated { fields: name(&program, &fields) });
            }
            Passed::Release { flow } => self.send_event(at, flow, Event::Released),
        }
    }
}

/// Datapath and time of a message.
struct At {
    id: DatapathId,
    kind: &'static str,
    now_us: u64,
}

fn name(program: &Program, fields: &[(Field, i64)]) -> Vec<(String, i64)> {
    let of = |field: Field| match field {
        Field::Cwnd => "Cwnd".to_owned(),
        Field::Rate => "Rate".to_owned(),
        Field::Reg(r) => program.registers.get(usize::from(r)).cloned().unwrap_or_else(|| format!("#{r}")),
    };
    fields.iter().map(|(field, value)| (of(*field), *value)).collect()
}

/// A datapath whose accepted commands and events are traced.
struct Tap<'a> {
    inner: &'a mut dyn Datapath,
    passed: Vec<Passed>,
}

impl Forward for Tap<'_> {
    fn inner(&self) -> &dyn Datapath {
        self.inner
    }
    fn inner_mut(&mut self) -> &mut dyn Datapath {
        self.inner
    }
    fn note_accepted(&mut self, command: Accepted<'_>) {
        self.passed.push(match command {
            Accepted::SetProgram { flow, uid, fields } => {
                Passed::SetProgram { flow, uid, fields: fields.to_vec() }
            }
            Accepted::Update { flow, fields } => Passed::Update { flow, fields: fields.to_vec() },
            Accepted::Release { flow } => Passed::Release { flow },
        });
    }
    fn forward_poll(&mut self, max: usize, events: &mut Vec<Happened>) -> usize {
        let from = events.len();
        let count = self.inner.poll(max, events);
        self.passed.extend(events[from..].iter().cloned().map(Passed::Event));
        count
    }
}
