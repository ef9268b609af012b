//! ccplane-wire's v1 against the real portus 0.9 and libccp 1.2, in all four directions, and one test for each
//! of their defects on the wire.
#![allow(clippy::unwrap_used)]

use std::panic::catch_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccplane_wire::v1::{
    self, Bytecode, ChangeProg, Create, Endpoint, Field, Index, Install, Measure, ToAgent, ToDatapath, Update,
};
use ccplane_wire::{DecodeError, v1::frames};
use libccp::{CongestionOps, Connection, Datapath, DatapathOps, FlowInfo, Primitives};
use portus::lang::{self, Reg, Type};
use portus::serialize as theirs;

const COUNT: &str = "
    (def (Report (volatile acked 0)) (step 3))
    (when true
        (:= Report.acked (+ Report.acked Ack.bytes_acked))
        (:= Cwnd (+ Cwnd step))
        (report)
    )";

fn to_agent(bytes: &[u8]) -> ToAgent<'_> {
    let mut all = ToAgent::parse_all(bytes);
    let msg = all.next().unwrap().unwrap();
    assert_eq!(all.next(), None);
    msg
}

fn to_datapath(bytes: &[u8]) -> ToDatapath<'_> {
    let mut all = ToDatapath::parse_all(bytes);
    let msg = all.next().unwrap().unwrap();
    assert_eq!(all.next(), None);
    msg
}

fn agent_bytes(msg: &ToAgent<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    msg.encode(&mut bytes).unwrap();
    bytes
}

fn datapath_bytes(msg: &ToDatapath<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    msg.encode(&mut bytes).unwrap();
    bytes
}

/// INSTALL as portus's agent sends it.
fn portus_install(source: &str) -> (Vec<u8>, lang::Scope) {
    let (bin, scope) = lang::compile(source.as_bytes(), &[]).unwrap();
    let msg = theirs::install::Msg {
        sid: 0,
        program_uid: scope.program_uid,
        num_events: bin.events.len() as u32,
        num_instrs: bin.instrs.len() as u32,
        instrs: bin,
    };
    (theirs::serialize(&msg).unwrap(), scope)
}

// portus -> ccplane

#[test]
fn what_portus_sends_parses_and_encodes_to_the_same_bytes() {
    let (install, scope) = portus_install(COUNT);
    let msg = to_datapath(&install);
    let ToDatapath::Install(parsed) = &msg else { panic!("{msg:?}") };
    assert_eq!(
        (parsed.program_uid, parsed.code.events().len(), parsed.code.insts().len()),
        (scope.program_uid, 1, 8)
    );
    assert_eq!(datapath_bytes(&msg), install);

    let cwnd = Reg::Implicit(4, Type::Num(None));
    let step = scope.get("step").unwrap().clone();
    let update =
        theirs::update_field::Msg { sid: 3, num_fields: 2, fields: vec![(cwnd, 42), (step.clone(), 7)] };
    let bytes = theirs::serialize(&update).unwrap();
    let step_field = Field::Control { index: Index::new(0).unwrap(), volatile: false };
    let fields = [(Field::Cwnd, 42), (step_field, 7)];
    assert_eq!(to_datapath(&bytes), ToDatapath::Update(Update { sid: 3, fields: (&fields).into() }));
    assert_eq!(datapath_bytes(&to_datapath(&bytes)), bytes);

    let rate = Reg::Implicit(5, Type::Num(None));
    let change = theirs::changeprog::Msg {
        sid: 3,
        program_uid: 9,
        num_fields: 2,
        fields: vec![(step, 1), (rate, u64::MAX)],
    };
    let bytes = theirs::serialize(&change).unwrap();
    let fields = [(step_field, 1), (Field::Rate, u64::MAX)];
    let expected = ChangeProg { sid: 3, program_uid: 9, fields: (&fields).into() };
    assert_eq!(to_datapath(&bytes), ToDatapath::ChangeProg(expected));
    assert_eq!(datapath_bytes(&to_datapath(&bytes)), bytes);
}

/// Returns one flow's message of creation, as ours and as portus's.
fn create(name: Option<&str>) -> (Create<'_>, theirs::create::Msg) {
    let ours = Create {
        sid: 15,
        init_cwnd_bytes: 14480,
        mss_bytes: 1448,
        local: Endpoint { ip: 1, port: 2 },
        remote: Endpoint { ip: 3, port: 4 },
        cong_alg: name,
    };
    let portus = theirs::create::Msg {
        sid: 15,
        init_cwnd: 14480,
        mss: 1448,
        src_ip: 1,
        src_port: 2,
        dst_ip: 3,
        dst_port: 4,
        cong_alg: name.map(str::to_owned),
    };
    (ours, portus)
}

#[test]
fn what_portus_writes_for_a_datapath_parses_and_encodes_to_the_same_bytes() {
    let ready = theirs::serialize(&theirs::ready::Msg { id: 7 }).unwrap();
    assert_eq!(to_agent(&ready), ToAgent::Ready { id: 7 });
    let (ours, portus) = create(None);
    let create = theirs::serialize(&portus).unwrap();
    assert_eq!(to_agent(&create), ToAgent::Create(ours));
    let fields = vec![0, 1, u64::MAX];
    let measure = theirs::measure::Msg { sid: 15, program_uid: 72, num_fields: 3, fields: fields.clone() };
    let measure = theirs::serialize(&measure).unwrap();
    let expected = Measure { sid: 15, program_uid: 72, values: fields.as_slice().into() };
    assert_eq!(to_agent(&measure), ToAgent::Measure(expected));
    for bytes in [ready, create, measure] {
        assert_eq!(agent_bytes(&to_agent(&bytes)), bytes);
    }
}

// ccplane -> portus

#[test]
fn what_we_send_as_a_datapath_parses_in_portus() {
    let bytes = agent_bytes(&ToAgent::Ready { id: 7 });
    assert_eq!(theirs::Msg::from_buf(&bytes).unwrap(), (theirs::Msg::Rdy(theirs::ready::Msg { id: 7 }), 12));

    let longest = "a".repeat(63);
    for name in [None, Some("reno"), Some(longest.as_str())] {
        let (ours, portus) = create(name);
        let bytes = agent_bytes(&ToAgent::Create(ours));
        assert_eq!(theirs::Msg::from_buf(&bytes).unwrap(), (theirs::Msg::Cr(portus), 96));
    }

    let most = vec![u64::MAX; usize::from(v1::MAX_REPORT_REGS)];
    let bytes =
        agent_bytes(&ToAgent::Measure(Measure { sid: 1, program_uid: 2, values: most.as_slice().into() }));
    assert!(bytes.len() <= v1::MAX_PORTUS_DATAGRAM_BYTES);
    let expected = theirs::measure::Msg { sid: 1, program_uid: 2, num_fields: 110, fields: most };
    assert_eq!(theirs::Msg::from_buf(&bytes).unwrap(), (theirs::Msg::Ms(expected), bytes.len()));

    let bytes = agent_bytes(&ToAgent::Close { sid: 1 });
    let expected = theirs::measure::Msg { sid: 1, program_uid: 0, num_fields: 0, fields: vec![] };
    assert_eq!(theirs::Msg::from_buf(&bytes).unwrap(), (theirs::Msg::Ms(expected), 16));
}

/// An in-process channel to a portus agent.
struct Pipe {
    to_datapath: Sender<Vec<u8>>,
    from_datapath: Receiver<Vec<u8>>,
}

impl portus::ipc::Ipc for Pipe {
    type Addr = ();

    fn name() -> String {
        "pipe".to_owned()
    }
    fn send(&self, msg: &[u8], (): &()) -> portus::Result<()> {
        self.to_datapath.send(msg.to_vec()).map_err(|e| portus::Error(e.to_string()))
    }
    fn recv(&self, msg: &mut [u8]) -> portus::Result<(usize, ())> {
        let bytes = self.from_datapath.recv_timeout(Duration::from_millis(10));
        let bytes = bytes.map_err(|e| portus::Error(e.to_string()))?;
        msg[..bytes.len()].copy_from_slice(&bytes);
        Ok((bytes.len(), ()))
    }
    fn close(&mut self) -> portus::Result<()> {
        Ok(())
    }
}

/// The events that a portus algorithm received.
#[derive(Debug, PartialEq)]
enum ReceivedEvent {
    Flow { sid: u32, mss: u32 },
    Acked(u64),
    Closed,
}

struct RecordingAlgorithm(Sender<ReceivedEvent>);

struct WatchedFlow {
    control: portus::Datapath<Pipe>,
    scope: lang::Scope,
    seen: Sender<ReceivedEvent>,
}

impl portus::CongAlg<Pipe> for RecordingAlgorithm {
    type Flow = WatchedFlow;

    fn name() -> &'static str {
        "watch"
    }
    fn datapath_programs(&self) -> std::collections::HashMap<&'static str, String> {
        [("count", COUNT.to_owned())].into()
    }
    fn new_flow(&self, mut control: portus::Datapath<Pipe>, info: portus::DatapathInfo) -> WatchedFlow {
        use portus::DatapathTrait;
        self.0.send(ReceivedEvent::Flow { sid: info.sock_id, mss: info.mss }).unwrap();
        let scope = control.set_program("count", Some(&[("step", 5)])).unwrap();
        WatchedFlow { control, scope, seen: self.0.clone() }
    }
}

impl portus::Flow for WatchedFlow {
    fn on_report(&mut self, _: u32, report: portus::Report) {
        use portus::DatapathTrait;
        self.seen.send(ReceivedEvent::Acked(report.get_field("Report.acked", &self.scope).unwrap())).unwrap();
        self.control.update_field(&self.scope, &[("Cwnd", 29_000)]).unwrap();
    }
    fn close(&mut self) {
        self.seen.send(ReceivedEvent::Closed).unwrap();
    }
}

#[test]
fn a_portus_agent_serves_a_datapath_that_speaks_through_us() {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (to_agent, from_datapath) = channel();
    let (to_datapath_tx, inbox) = channel();
    let (seen_tx, seen) = channel();
    let sock = Pipe { to_datapath: to_datapath_tx, from_datapath };
    let agent = portus::RunBuilder::new(portus::ipc::BackendBuilder { sock })
        .default_alg(RecordingAlgorithm(seen_tx))
        .spawn_thread()
        .run()
        .unwrap();

    // READY and CREATE in one datagram, as a datapath that was waiting may send them.
    let create = Create {
        sid: 1,
        init_cwnd_bytes: 14480,
        mss_bytes: 1448,
        local: Endpoint::default(),
        remote: Endpoint::default(),
        cong_alg: Some("watch"),
    };
    let both = [agent_bytes(&ToAgent::Ready { id: 1 }), agent_bytes(&ToAgent::Create(create))].concat();
    to_agent.send(both).unwrap();
    let bytes = inbox.recv_timeout(PATIENCE).unwrap();
    let ToDatapath::Install(install) = to_datapath(&bytes) else { panic!() };
    let uid = install.program_uid;
    assert_eq!(seen.recv_timeout(PATIENCE), Ok(ReceivedEvent::Flow { sid: 1, mss: 1448 }));
    let bytes = inbox.recv_timeout(PATIENCE).unwrap();
    let step = [(Field::Control { index: Index::new(0).unwrap(), volatile: false }, 5)];
    let expected = ChangeProg { sid: 1, program_uid: uid, fields: (&step).into() };
    assert_eq!(to_datapath(&bytes), ToDatapath::ChangeProg(expected));

    let values = [123_456];
    let report = Measure { sid: 1, program_uid: uid, values: (&values).into() };
    to_agent.send(agent_bytes(&ToAgent::Measure(report))).unwrap();
    assert_eq!(seen.recv_timeout(PATIENCE), Ok(ReceivedEvent::Acked(123_456)));
    let bytes = inbox.recv_timeout(PATIENCE).unwrap();
    let fields = [(Field::Cwnd, 29_000)];
    assert_eq!(to_datapath(&bytes), ToDatapath::Update(Update { sid: 1, fields: (&fields).into() }));

    to_agent.send(agent_bytes(&ToAgent::Close { sid: 1 })).unwrap();
    assert_eq!(seen.recv_timeout(PATIENCE), Ok(ReceivedEvent::Closed));
    agent.kill();
    agent.wait().unwrap();
}

// libccp <-> ccplane

#[derive(Clone, Default)]
struct Outbox(Arc<Mutex<Vec<Vec<u8>>>>);

impl Outbox {
    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl DatapathOps for Outbox {
    fn send_msg(&mut self, msg: &[u8]) {
        self.0.lock().unwrap().push(msg.to_vec());
    }
}

#[derive(Clone, Default)]
struct Window(Arc<Mutex<(u32, u32)>>);

impl CongestionOps for Window {
    fn set_cwnd(&mut self, cwnd: u32) {
        self.0.lock().unwrap().0 = cwnd;
    }
    fn set_rate_abs(&mut self, rate: u32) {
        self.0.lock().unwrap().1 = rate;
    }
}

fn datapath() -> (Datapath, Outbox) {
    let outbox = Outbox::default();
    let datapath = ccplane_oracle::libccp::datapath(outbox.clone(), 57).unwrap();
    (datapath, outbox)
}

fn flow(datapath: &Datapath) -> (Connection<'_, Window>, Window) {
    let window = Window::default();
    let info = FlowInfo::default()
        .with_init_cwnd(14480)
        .with_mss(1448)
        .with_four_tuple(0x0100_000a, 0x9210, 0x0200_000a, 0xbb01)
        .with_cong_alg("reno")
        .unwrap();
    (Connection::start(datapath, window.clone(), info).unwrap(), window)
}

#[test]
fn libccp_runs_what_we_send_and_we_parse_what_it_answers() {
    let (dp, outbox) = datapath();
    assert_eq!(to_agent(&outbox.take().remove(0)), ToAgent::Ready { id: 57 });

    let (mut conn, window) = flow(&dp);
    let create = Create {
        sid: 1,
        init_cwnd_bytes: 14480,
        mss_bytes: 1448,
        local: Endpoint { ip: 0x0100_000a, port: 0x9210 },
        remote: Endpoint { ip: 0x0200_000a, port: 0xbb01 },
        cong_alg: Some("reno"),
    };
    let bytes = outbox.take().remove(0);
    assert_eq!(to_agent(&bytes), ToAgent::Create(create));
    assert_eq!(agent_bytes(&to_agent(&bytes)), bytes);
    let info = create.to_info(v1::AddrOrder::Network).unwrap();
    assert_eq!(
        (info.local.to_string(), info.remote.to_string()),
        ("10.0.0.1:4242".into(), "10.0.0.2:443".into())
    );

    // The program is rebuilt from its typed parts.
    let (bytes, _) = portus_install(COUNT);
    let ToDatapath::Install(parsed) = to_datapath(&bytes) else { panic!() };
    let (events, insts): (Vec<_>, Vec<_>) =
        (parsed.code.events().iter().collect(), parsed.code.insts().iter().collect());
    let code = Bytecode::new(&events, &insts).unwrap();
    let install = ToDatapath::Install(Install { sid: 0, program_uid: 5, code });
    dp.recv_msg(&mut datapath_bytes(&install)).unwrap();
    let step = Field::Control { index: Index::new(0).unwrap(), volatile: false };
    let fields = [(step, 10), (Field::Rate, 99)];
    let change = ToDatapath::ChangeProg(ChangeProg { sid: 1, program_uid: 5, fields: (&fields).into() });
    dp.recv_msg(&mut datapath_bytes(&change)).unwrap();

    let ack = || Primitives::default().with_bytes_acked(1448).with_rtt_sample_us(100).with_snd_cwnd(14480);
    conn.load_primitives(ack());
    conn.invoke().unwrap();
    assert_eq!(*window.0.lock().unwrap(), (14490, 99));
    let values = [1448];
    let report = ToAgent::Measure(Measure { sid: 1, program_uid: 5, values: (&values).into() });
    let bytes = outbox.take().remove(0);
    assert_eq!(to_agent(&bytes), report);
    assert_eq!(agent_bytes(&report), bytes);

    let fields = [(Field::Cwnd, 20_000), (step, 1)];
    let update = ToDatapath::Update(Update { sid: 1, fields: (&fields).into() });
    dp.recv_msg(&mut datapath_bytes(&update)).unwrap();
    conn.load_primitives(ack());
    conn.invoke().unwrap();
    assert_eq!(window.0.lock().unwrap().0, 20_001);

    outbox.take();
    drop(conn);
    let bytes = outbox.take().remove(0);
    assert_eq!(to_agent(&bytes), ToAgent::Close { sid: 1 });
    assert_eq!(agent_bytes(&ToAgent::Close { sid: 1 }), bytes);
}

#[test]
fn libccp_runs_what_our_compiler_lowers() {
    let program = ccplane_program::lang::compile(COUNT).unwrap();
    let stock = ccplane_program::stock::lower(&program).unwrap();
    let step = stock.update_reg(program.reg("step").unwrap()).unwrap();
    let fields = [(Field::try_from(step).unwrap(), 7)];

    let (dp, outbox) = datapath();
    let (mut conn, window) = flow(&dp);
    let code = Bytecode::try_from(&stock).unwrap();
    let install = ToDatapath::Install(Install { sid: 0, program_uid: 1, code });
    dp.recv_msg(&mut datapath_bytes(&install)).unwrap();
    let change = ToDatapath::ChangeProg(ChangeProg { sid: 1, program_uid: 1, fields: (&fields).into() });
    dp.recv_msg(&mut datapath_bytes(&change)).unwrap();
    outbox.take();
    conn.load_primitives(Primitives::default().with_bytes_acked(99).with_snd_cwnd(1000));
    conn.invoke().unwrap();
    assert_eq!(window.0.lock().unwrap().0, 1007);
    let values = [99];
    let report = ToAgent::Measure(Measure { sid: 1, program_uid: 1, values: (&values).into() });
    assert_eq!(to_agent(&outbox.take().remove(0)), report);
}

#[test]
fn our_largest_messages_are_within_what_libccp_reads() {
    let (dp, _) = datapath();
    let (_conn, _) = flow(&dp);
    let code_of = |insts: usize| {
        let flag = v1::Reg::Special(v1::Special::EventFlag);
        vec![v1::Inst { op: v1::Op::Bind, dst: flag, left: flag, right: v1::Reg::Imm(1) }; insts]
    };
    let events = [v1::Event { flag_start: 0, flag_insts: 1, body_start: 1, body_insts: 1 }; v1::MAX_EVENTS];
    let insts = code_of(v1::MAX_INSTS);
    let code = Bytecode::new(&events, &insts).unwrap();
    let install = ToDatapath::Install(Install { sid: 0, program_uid: 1, code });
    dp.recv_msg(&mut datapath_bytes(&install)).unwrap();

    let field = (Field::Control { index: Index::new(v1::MAX_CONTROL_REGS - 1).unwrap(), volatile: true }, 1);
    let fields = [field; v1::MAX_UPDATE_FIELDS];
    dp.recv_msg(&mut datapath_bytes(&ToDatapath::Update(Update { sid: 1, fields: (&fields).into() })))
        .unwrap();
    let fields = [field; v1::MAX_CHANGE_FIELDS];
    let change = ChangeProg { sid: 1, program_uid: 1, fields: (&fields).into() };
    dp.recv_msg(&mut datapath_bytes(&ToDatapath::ChangeProg(change))).unwrap();
}

// Defects of theirs, which ours do not have.

/// Whether portus panics on these bytes.
fn portus_panics(bytes: &[u8]) -> bool {
    catch_unwind(|| theirs::Msg::from_buf(bytes).map(|_| ())).is_err()
}

#[test]
fn short_messages_panic_in_portus_and_are_errors_here() {
    let short = [0x01, 0, 12, 0, 1, 0, 0, 0, 5, 0, 0, 0]; // MEASURE that ends after its program's uid
    assert!(portus_panics(&short));
    assert_eq!(
        ToAgent::parse_all(&short).next(),
        Some(Err(DecodeError::Short { field: "values", need: 4, have: 0 }))
    );
    let mut unterminated = agent_bytes(&ToAgent::Create(Create {
        sid: 1,
        init_cwnd_bytes: 1,
        mss_bytes: 1,
        local: Endpoint::default(),
        remote: Endpoint::default(),
        cong_alg: None,
    }));
    unterminated[32..].fill(b'a');
    assert!(portus_panics(&unterminated));
    assert_eq!(ToAgent::parse_all(&unterminated).next(), Some(Err(DecodeError::Text { field: "cong_alg" })));
}

#[test]
fn messages_for_a_datapath_kill_a_portus_agent_and_are_errors_here() {
    let (install, _) = portus_install(COUNT);
    let update = datapath_bytes(&ToDatapath::Update(Update { sid: 1, fields: (&[]).into() }));
    for (bytes, name) in [(install, "INSTALL"), (update, "UPDATE_FIELD")] {
        assert!(portus_panics(&bytes));
        assert_eq!(
            ToAgent::parse_all(&bytes).next(),
            Some(Err(DecodeError::Direction { name, to: "the agent" }))
        );
    }
}

#[test]
fn a_type_above_one_byte_is_not_taken_for_another() {
    let mut bytes = agent_bytes(&ToAgent::Ready { id: 7 });
    bytes[1] = 1;
    assert!(matches!(theirs::Msg::from_buf(&bytes), Ok((theirs::Msg::Rdy(_), 12))));
    assert_eq!(ToAgent::parse_all(&bytes).next(), Some(Err(DecodeError::UnknownType { found: 0x105 })));
}

#[test]
fn an_algorithm_name_panics_in_portus_and_is_written_here() {
    // portus copies the name as if it filled all 64 bytes, which it refuses for lack of a NUL.
    let create = theirs::create::Msg {
        sid: 1,
        init_cwnd: 1,
        mss: 1,
        src_ip: 0,
        src_port: 0,
        dst_ip: 0,
        dst_port: 0,
        cong_alg: Some("reno".to_owned()),
    };
    assert!(catch_unwind(|| theirs::serialize(&create).map(|_| ())).is_err());
    let end = Endpoint::default();
    let name = Some("reno");
    let ours = Create { sid: 1, init_cwnd_bytes: 1, mss_bytes: 1, local: end, remote: end, cong_alg: name };
    let bytes = agent_bytes(&ToAgent::Create(ours));
    assert_eq!(theirs::Msg::from_buf(&bytes).unwrap(), (theirs::Msg::Cr(create), 96));
}

#[test]
fn unaligned_messages_parse_the_same() {
    // portus reinterprets the bytes as u32, wherever they lie.
    let values = [1, u64::MAX, 3];
    let measure =
        agent_bytes(&ToAgent::Measure(Measure { sid: 1, program_uid: 2, values: (&values).into() }));
    let (install, _) = portus_install(COUNT);
    for offset in 0..16 {
        let shift = |bytes: &[u8]| [&vec![0; offset][..], bytes].concat();
        let (measure_at, install_at) = (shift(&measure), shift(&install));
        assert_eq!(to_agent(&measure_at[offset..]), to_agent(&measure));
        assert_eq!(to_datapath(&install_at[offset..]), to_datapath(&install));
    }
}

#[test]
fn an_update_outside_the_registers_is_written_by_libccp_and_refused_here() {
    let (dp, _) = datapath();
    let (_conn, _) = flow(&dp);
    // The first register beyond the last: what libccp overwrites there are flags, with what they hold.
    let mut bytes = vec![3, 0, 25, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, v1::MAX_CONTROL_REGS, 0, 0, 0];
    bytes.extend([0; 8]);
    assert!(dp.recv_msg(&mut bytes).is_ok());
    let error = ToDatapath::parse(frames(&bytes).next().unwrap().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "field 0: register: 110 is above the limit 109");
}

#[test]
fn a_program_that_hangs_libccp_is_installed_there_and_refused_here() {
    let (dp, _) = datapath();
    let mut bytes = vec![2, 0, 20, 16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    for _ in 0..256 {
        bytes.extend([1, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 1, 0, 0, 0]);
    }
    assert!(dp.recv_msg(&mut bytes.clone()).is_ok());
    let error = ToDatapath::parse(frames(&bytes).next().unwrap().unwrap()).unwrap_err();
    assert_eq!(error, DecodeError::TooMany { field: "instructions", found: 256, limit: v1::MAX_INSTS });
}

#[test]
fn an_expression_beyond_the_temporaries_is_sent_by_portus_and_refused_here() {
    let deep = (0..5).fold("Ack.now".to_owned(), |e, _| format!("(+ (+ Ack.now 1) {e})"));
    let (bytes, _) = portus_install(&format!("(def (Report (x 0))) (when true (:= Report.x {deep}))"));
    let error = ToDatapath::parse(frames(&bytes).next().unwrap().unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("result register: 8 is above the limit 7"), "{error}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn libccp_misreads_more_fields_than_we_allow() {
    // It reads the count's first byte as a signed char: 128 is refused, and 256 are none.
    let (dp, _) = datapath();
    let (_conn, _) = flow(&dp);
    let update = |n: u32| {
        let len = (12 + 13 * n) as u16;
        let mut bytes = [&[3, 0][..], &len.to_le_bytes(), &[1, 0, 0, 0], &n.to_le_bytes()].concat();
        bytes.extend([0; 13].repeat(n as usize));
        bytes
    };
    assert!(dp.recv_msg(&mut update(128)).is_err());
    assert!(dp.recv_msg(&mut update(256)).is_ok());
    for n in [128, 256] {
        let error = ToDatapath::parse_all(&update(n)).next().unwrap().unwrap_err();
        let found = n as usize;
        assert_eq!(error, DecodeError::TooMany { field: "fields", found, limit: v1::MAX_UPDATE_FIELDS });
    }
}
