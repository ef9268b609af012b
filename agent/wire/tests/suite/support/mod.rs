//! Exact bytes of messages: goldens for the tests, seeds for the fuzz targets.

use std::net::SocketAddr;

use ccplane_contract::{
    DatapathError, Field, FlowId, FlowInfo, FlowStats, Mode, Part, ProgramUid, SlotStats, SnapshotUid,
    TransportStats,
};
use ccplane_infer::{Bits, FlowPolicy, Level, Noise, Shape};
use ccplane_program::ir::{Clause, Dst, Hook, Inst, Op, Prim, Program, RegDecl, RegKind, Src, Type};
use ccplane_wire::v2::{
    self, ByeReason, Clock, Features, Hello, ToAgent, ToDatapath, TurnedAway, Wake, Welcome,
};

/// Parses hexadecimal digits; blanks are ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// libccp's test program `(def (Report (volatile foo 0))) (when true (:= Report.foo (+ Report.foo
/// Ack.bytes_acked)) (report))`, as libccp-rust's own test spells it: one event, five instructions.
pub const V1_CODE: &str = "
    01000000 01000000 02000000 03000000
    02 05 00000000 05 00000000 01 00000000
    01 02 00000000 02 00000000 01 01000000
    00 07 00000000 05 00000000 04 00000000
    01 05 00000000 05 00000000 07 00000000
    01 02 02000000 02 02000000 01 01000000";

/// v1, to the agent.
pub fn v1_to_agent() -> Vec<Vec<u8>> {
    vec![
        hex("0500 0c00 00000000 07000000"),
        [
            hex("0000 6000 01000000 40380000 a8050000 0a000001 00001092 0a000002 0000bb01 72656e6f"),
            vec![0; 60],
        ]
        .concat(),
        hex("0100 2000 01000000 05000000 02000000 ffffffffffffffff 0100000000000000"),
        hex("0100 1000 01000000 00000000 00000000"),
    ]
}

/// v1, to the datapath.
pub fn v1_to_datapath() -> Vec<Vec<u8>> {
    vec![
        [hex("0200 7400 00000000 05000000 01000000 05000000"), hex(V1_CODE)].concat(),
        hex("0300 1900 01000000 01000000 02 04000000 2a00000000000000"),
        hex("0400 2a00 01000000 07000000 02000000 08 03000000 0100000000000000 02 05000000 ffffffffffffffff"),
    ]
}

pub fn info(local: &str, remote: &str, cgroup: Option<u64>) -> FlowInfo {
    let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
    FlowInfo {
        mss_bytes: 1448,
        init_cwnd_bytes: 14480,
        local: addr(local),
        remote: addr(remote),
        cgroup,
        min_rtt_us: None,
    }
}

pub fn stats() -> FlowStats {
    FlowStats {
        flow: FlowId(9),
        info: FlowInfo {
            min_rtt_us: Some(9920),
            ..info("[2001:db8::1]:443", "[2001:db8::2]:5000", Some(77))
        },
        mode: Mode::NativeAgentSilent,
        program: Some(ProgramUid(3)),
        transport: TransportStats {
            snd_cwnd: 10,
            snd_ssthresh: None,
            mss_bytes: 1440,
            srtt_us: 20_000,
            min_rtt_us: 19_000,
            pacing_rate: 1_250_000,
            bytes_acked: 1 << 40,
            delivered: 12,
            lost: 1,
            unacked: 4,
            faults: 2,
            reports: 5,
        },
        policy: None,
        sampled_at_us: 6,
    }
}

/// Makes [`stats`] of a flow with a policy.
pub fn deciding() -> FlowStats {
    let policy = FlowPolicy {
        noise: Noise(0x0102),
        uid: 3,
        buffer: 4,
        level: Level::LastGood,
        level_uid: 5,
        penalty: 6,
        decisions: 7,
        saturated: 8,
        clipped: 9,
        collapsed: 10,
        trips: 11,
    };
    FlowStats { mode: Mode::NativePolicy, policy: Some(policy), ..stats() }
}

pub fn shape() -> Shape {
    Shape::new(Bits::W8, &[30, 32, 16, 1]).unwrap()
}

/// One with a canary, one that is empty.
pub fn slots() -> [SlotStats; 2] {
    let empty = SlotStats {
        slot: 3,
        shape: shape(),
        active: None,
        active_name: [0; 4],
        canary: None,
        canary_share: 0,
        last_good: None,
    };
    let tried = SlotStats {
        slot: 0,
        active: Some(SnapshotUid(7)),
        active_name: [1, 2, 3, u64::MAX],
        canary: Some(SnapshotUid(8)),
        canary_share: 0x8000,
        last_good: Some(SnapshotUid(6)),
        ..empty
    };
    [tried, empty]
}

/// A program with a report, a control and a local register, two clauses, a temporary and a large number.
pub fn program() -> Program {
    let reg =
        |name: &str, kind, ty, volatile, init| RegDecl { name: name.to_owned(), kind, ty, volatile, init };
    let regs = vec![
        reg("Report.acked", RegKind::Report, Type::Num, true, 0),
        reg("floor", RegKind::Control, Type::Num, false, -2),
        reg("seen", RegKind::Local, Type::Bool, false, 0),
    ];
    let inst = |op, dst, a, b| Inst { op, dst, a, b };
    let insts = vec![
        inst(Op::Add, Dst::Reg(0), Src::Reg(0), Src::Prim(Prim::AckBytesAcked)),
        inst(Op::Gt, Dst::Tmp(0), Src::Micros, Src::Imm(i64::MAX)),
        inst(Op::Bind, Dst::Reg(2), Src::Bool(false), Src::Bool(true)),
        inst(Op::Max, Dst::Cwnd, Src::Cwnd, Src::Reg(1)),
        inst(Op::Bind, Dst::ShouldReport, Src::Bool(false), Src::Bool(true)),
    ];
    let clauses = vec![
        Clause { start: 0, guard_insts: 0, body_insts: 1, guard: Src::Bool(true) },
        Clause { start: 1, guard_insts: 1, body_insts: 3, guard: Src::Tmp(0) },
    ];
    Program::new(regs, insts, clauses, vec![]).unwrap()
}

/// One of each message to the agent, with its request number and its exact bytes.
pub fn v2_to_agent() -> Vec<(ToAgent<'static>, u32, Vec<u8>)> {
    const REPORTS: &[v2::Report<'static>] = &[];
    const VALUES: &[v2::Varint] =
        &[v2::Varint(1448), v2::Varint(0), v2::Varint(-1), v2::Varint(i64::MAX), v2::Varint(i64::MIN)];
    let slots: &'static [SlotStats; 2] = Box::leak(Box::new(slots()));
    let hello = Hello {
        minors: 0..=3,
        clock: Clock::Monotonic,
        features: Features::POLICY.with(Features::FULL_LANGUAGE),
        now_us: 5,
        max_programs: 64,
        max_flows: 1024,
        kind: "quic",
        name: "a",
        slots: slots[1..].into(),
    };
    let refused = DatapathError::Refused { at: Some(3), reason: "no".to_owned() };
    let all: Vec<(ToAgent<'static>, u32, &str)> = vec![
        (
            ToAgent::Hello(hello),
            0,
            "0100 60000000 00000000  00 03 01 03000000 0500000000000000 40000000 00040000
             0400 71756963 0100 61
             0100  03 08031e2010010000 00 0000000000000000 0000000000000000 0000000000000000 0000000000000000 00 0000 00",
        ),
        (ToAgent::Installed { uid: ProgramUid(3) }, 8, "0200 14000000 08000000 03000000"),
        (ToAgent::Done, 9, "0300 10000000 09000000"),
        (ToAgent::Refused(refused), 10, "0400 19000000 0a000000  07 03000000 0200 6e6f"),
        (
            ToAgent::Created { flow: FlowId(1), info: info("10.0.0.1:4242", "10.0.0.2:443", None) },
            0,
            "0500 36000000 00000000  0100000000000000 a8050000 9038000000000000 04
             9210 0a000001 bb01 0a000002 00 00000000",
        ),
        (ToAgent::Closed { flow: FlowId(1) }, 0, "0600 18000000 00000000  0100000000000000"),
        (
            ToAgent::Requested { flow: FlowId(1), name: "vegas" },
            0,
            "0b80 1f000000 00000000  0100000000000000 0500 7665676173",
        ),
        (
            ToAgent::Report(v2::SingleReport {
                flow: FlowId(1),
                program: ProgramUid(300),
                seq: 2,
                at_us: 1 << 40,
                values: VALUES.into(),
            }),
            0,
            "0c00 33000000 00000000  01 ac02 02 808080808020 05 d016 00 01 feffffffffffffffff01 ffffffffffffffffff01",
        ),
        (ToAgent::Reports(REPORTS.into()), 0, "0700 12000000 00000000  0000"),
        (ToAgent::Dropped { count: 4 }, 0, "0900 18000000 00000000  0400000000000000"),
        (
            ToAgent::Slots(slots.into()),
            11,
            "0a00 7a000000 0b000000  0200
             00 08031e2010010000 01 07000000 0100000000000000 0200000000000000 0300000000000000 ffffffffffffffff
             01 08000000 0080 01 06000000
             03 08031e2010010000 00 0000000000000000 0000000000000000 0000000000000000 0000000000000000 00 0000 00",
        ),
        (ToAgent::Heartbeat { now_us: 7 }, 0, "8100 18000000 00000000  0700000000000000"),
        (
            ToAgent::Bye { reason: ByeReason::Stopping, text: "bye" },
            0,
            "8200 16000000 00000000  00 0300 627965",
        ),
    ];
    all.into_iter().map(|(msg, request, bytes)| (msg, request, v2_frame(bytes))).collect()
}

/// One of each message to the datapath, with its request number and its exact bytes.
pub fn v2_to_datapath() -> Vec<(ToDatapath<'static>, u32, Vec<u8>)> {
    const FIELDS: &[(Field, i64)] = &[(Field::Reg(1), -1), (Field::Cwnd, 2), (Field::Rate, 3)];
    const IMAGE: &[u64] = &[1, u64::MAX];
    let wake = Wake::Spin { us: 50 };
    let welcome = Welcome { minor: 1, heartbeat_timeout_ms: 500, session: 6, wake, ring_bytes: 1 << 18 };
    let all: Vec<(ToDatapath<'static>, u32, &str)> = vec![
        (
            ToDatapath::Welcome(welcome),
            0,
            "4100 26000000 00000000  01 f4010000 0600000000000000 01 32000000 00000400",
        ),
        (
            ToDatapath::TurnedAway(TurnedAway::Version { min: 0, max: 2 }),
            0,
            "4200 19000000 00000000  01 00000000 02000000",
        ),
        (
            ToDatapath::Install { uid: ProgramUid(3), program: program() },
            1,
            "4300 69000000 01000000  03000000  03 00 02 0500
             0c00 5265706f72742e61636b6564 08 00   0500 666c6f6f72 01 03   0400 7365656e 06 00
             0000 0100 02   0100 0300 04 00
             01 00 00 03 00 05 00          07 01 00 08 00 feffffffffffffffff01
             00 00 02 01 02                0b 02 06 03 01          00 05 01 02",
        ),
        (ToDatapath::Remove { uid: ProgramUid(3) }, 2, "4400 14000000 02000000  03000000"),
        (
            ToDatapath::SetProgram { flow: FlowId(1), uid: ProgramUid(3), fields: FIELDS.into() },
            3,
            "4500 3c000000 03000000  0100000000000000 03000000 0300
             0001 ffffffffffffffff 0100 0200000000000000 0200 0300000000000000",
        ),
        (
            ToDatapath::Update { flow: FlowId(1), fields: FIELDS[..1].into() },
            0,
            "4600 24000000 00000000  0100000000000000 0100 0001 ffffffffffffffff",
        ),
        (ToDatapath::Release { flow: FlowId(1) }, 4, "4700 18000000 04000000  0100000000000000"),
        (ToDatapath::GetFlows, 5, "4800 10000000 05000000"),
        (
            ToDatapath::DefineSlot { slot: 2, shape: shape() },
            6,
            "4900 19000000 06000000  02 08031e2010010000",
        ),
        (
            ToDatapath::Push { slot: 2, part: Part::Canary { share: 0x8000 }, image: IMAGE.into() },
            7,
            "4a00 26000000 07000000  02 01 0080 0200 0100000000000000 ffffffffffffffff",
        ),
        (
            ToDatapath::Push { slot: 2, part: Part::Active, image: IMAGE[..1].into() },
            0,
            "4a00 1e000000 00000000  02 00 0000 0100 0100000000000000",
        ),
        (ToDatapath::Share { slot: 2, share: 3 }, 8, "4b00 13000000 08000000  02 0300"),
        (ToDatapath::Promote { slot: 2 }, 9, "4c00 11000000 09000000  02"),
        (ToDatapath::Rollback { slot: 2 }, 10, "4d00 11000000 0a000000  02"),
        (ToDatapath::GetSlots, 11, "4e00 10000000 0b000000"),
        (
            ToDatapath::SetFirst { uid: ProgramUid(3), fields: FIELDS[..1].into() },
            12,
            "4f00 20000000 0c000000  03000000 0100 0001 ffffffffffffffff",
        ),
        (ToDatapath::ClearFirst { hook: Hook::Connect }, 13, "5000 11000000 0d000000  02"),
        (
            ToDatapath::EnsureProgram { flow: FlowId(1), uid: ProgramUid(3), fields: FIELDS[1..2].into() },
            14,
            "5100 28000000 0e000000  0100000000000000 03000000 0100 0100 0200000000000000",
        ),
        (ToDatapath::Heartbeat { now_us: 7 }, 0, "8100 18000000 00000000  0700000000000000"),
        (ToDatapath::Bye { reason: ByeReason::Protocol, text: "" }, 0, "8200 13000000 00000000  01 0000"),
    ];
    all.into_iter().map(|(msg, request, bytes)| (msg, request, v2_frame(bytes))).collect()
}

/// A frame from its type onwards.
pub fn v2_frame(from_type: &str) -> Vec<u8> {
    [b"CCPL".to_vec(), vec![2, v2::MINOR], hex(from_type)].concat()
}
