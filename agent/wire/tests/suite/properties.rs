//! Round trips of arbitrary valid messages.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ccplane_contract::{
    DatapathError, Field, FlowId, FlowInfo, FlowStats, Mode, Part, ProgramUid, SlotStats, SnapshotUid,
    TransportStats,
};
use ccplane_infer::{Bits, FlowPolicy, Level, Noise, Shape};
use ccplane_program::ir::{
    Clause, Dst, HistoryDecl, Hook, Inst, MAX_REGS, Op, Prim, Program, RegDecl, RegKind, Src, Type,
};
use ccplane_wire::v1::{self, AddrOrder, Index};
use ccplane_wire::{v1::Reg, v2};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Writes a function for either version: a message in one direction is read as it was written.
macro_rules! round_trips {
    ($v1:ident $v2:ident $direction:ident) => {
        fn $v1(msg: &v1::$direction<'_>) {
            let mut bytes = Vec::new();
            msg.encode(&mut bytes).unwrap();
            assert_eq!(v1::$direction::parse_all(&bytes).collect::<Vec<_>>(), [Ok(msg.clone())]);
        }

        fn $v2(msg: &v2::$direction<'_>, request: u32) {
            let mut bytes = Vec::new();
            msg.encode(request, &mut bytes).unwrap();
            let frame = v2::frames(&bytes).next().unwrap().unwrap();
            assert_eq!(frame.request, request);
            assert_eq!(v2::$direction::parse(frame), Ok(Some(msg.clone())));
        }
    };
}

round_trips!(v1_agent_round_trip v2_agent_round_trip ToAgent);
round_trips!(v1_datapath_round_trip v2_datapath_round_trip ToDatapath);

fn index<const LIMIT: u8>() -> impl Strategy<Value = Index<LIMIT>> {
    (0..LIMIT).prop_map(|i| Index::new(i).unwrap())
}

fn v1_source() -> impl Strategy<Value = Reg> {
    prop_oneof![v1_target(), any::<u32>().prop_map(Reg::Imm), select(&Prim::ACK[..]).prop_map(Reg::Prim),]
}

fn v1_target() -> impl Strategy<Value = Reg> {
    prop_oneof![
        (index(), any::<bool>()).prop_map(|(index, volatile)| Reg::Control { index, volatile }),
        (index(), any::<bool>()).prop_map(|(index, volatile)| Reg::Report { index, volatile }),
        index().prop_map(Reg::Local),
        index().prop_map(Reg::Tmp),
        select(&v1::Special::ALL[..]).prop_map(Reg::Special),
    ]
}

fn v1_inst() -> impl Strategy<Value = v1::Inst> {
    (select(&v1::Op::ALL[..]), v1_target(), v1_source(), v1_source(), index(), any::<u32>()).prop_map(
        |(op, dst, left, right, index, n)| match op {
            v1::Op::Def => {
                let reg = Reg::Report { index, volatile: n % 2 == 0 };
                v1::Inst { op, dst: reg, left: reg, right: Reg::Imm(n) }
            }
            _ => v1::Inst { op, dst, left, right },
        },
    )
}

/// Instructions, and events within them.
fn v1_code() -> impl Strategy<Value = (Vec<v1::Event>, Vec<v1::Inst>)> {
    let span = |n: usize| (0..=n).prop_flat_map(move |start| (Just(start as u32), 0..=(n - start) as u32));
    vec(v1_inst(), 0..=v1::MAX_INSTS).prop_flat_map(move |insts| {
        let n = insts.len();
        let event = (span(n), span(n)).prop_map(|((flag_start, flag_insts), (body_start, body_insts))| {
            v1::Event { flag_start, flag_insts, body_start, body_insts }
        });
        (vec(event, 0..=v1::MAX_EVENTS), Just(insts))
    })
}

fn v1_fields(limit: usize) -> impl Strategy<Value = Vec<(v1::Field, u64)>> {
    let field = prop_oneof![
        (index(), any::<bool>()).prop_map(|(index, volatile)| v1::Field::Control { index, volatile }),
        Just(v1::Field::Cwnd),
        Just(v1::Field::Rate),
    ];
    vec((field, any::<u64>()), 0..=limit)
}

fn v4() -> impl Strategy<Value = SocketAddr> {
    any::<([u8; 4], u16)>().prop_map(|(ip, port)| SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
}

fn v6() -> impl Strategy<Value = SocketAddr> {
    any::<([u8; 16], u16, u32, u32)>().prop_map(|(ip, port, flowinfo, scope)| {
        SocketAddrV6::new(Ipv6Addr::from(ip), port, flowinfo, scope).into()
    })
}

fn info() -> impl Strategy<Value = FlowInfo> {
    let ends = prop_oneof![(v4(), v4()), (v6(), v6())];
    (ends, 1_u32.., any::<u64>(), option::of(any::<u64>()), option::of(1_u32..)).prop_map(
        |((local, remote), mss_bytes, init_cwnd_bytes, cgroup, min_rtt_us)| FlowInfo {
            mss_bytes,
            init_cwnd_bytes,
            local,
            remote,
            cgroup,
            min_rtt_us,
        },
    )
}

prop_compose! {
    fn policy()(
        noise: u64,
        level in select(&[Level::Chosen, Level::LastGood, Level::Native][..]),
        rest: [u32; 9],
    ) -> FlowPolicy {
        let [uid, buffer, level_uid, penalty, decisions, saturated, clipped, collapsed, trips] = rest;
        let noise = Noise(noise);
        FlowPolicy {
            noise, uid, buffer, level, level_uid, penalty, decisions, saturated, clipped, collapsed, trips,
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    (select(&[Bits::W8, Bits::W16][..]), vec(1..=16_usize, 1..=4)).prop_map(|(bits, mut widths)| {
        widths.push(1);
        Shape::new(bits, &widths).unwrap()
    })
}

prop_compose! {
    fn slot()(
        slot: u8,
        shape in shape(),
        parts in [option::of(any::<u32>()), option::of(any::<u32>()), option::of(any::<u32>())],
        active_name: [u64; 4],
        canary_share: u16,
    ) -> SlotStats {
        let [active, canary, last_good] = parts.map(|uid| uid.map(SnapshotUid));
        SlotStats { slot, shape, active, active_name, canary, canary_share, last_good }
    }
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![Just(Part::Active), any::<u16>().prop_map(|share| Part::Canary { share })]
}

prop_compose! {
    fn stats()(
        info in info(),
        mode in select(&[Mode::Program, Mode::NativeNoProgram, Mode::NativeAgentSilent, Mode::NativePolicy][..]),
        program in option::of(any::<u32>().prop_map(ProgramUid)),
        small in any::<[u32; 6]>(),
        large in any::<[u64; 8]>(),
        policy in option::of(policy()),
    ) -> FlowStats {
        let [snd_cwnd, snd_ssthresh, mss_bytes, srtt_us, min_rtt_us, unacked] = small;
        let [flow, pacing_rate, bytes_acked, delivered, lost, faults, reports, sampled_at_us] = large;
        FlowStats {
            flow: FlowId(flow), info, mode, program, policy, sampled_at_us,
            transport: TransportStats {
                snd_cwnd, snd_ssthresh: Some(snd_ssthresh).filter(|n| *n != u32::MAX), mss_bytes, srtt_us, min_rtt_us,
                pacing_rate, bytes_acked, delivered, lost, unacked, faults, reports,
            },
        }
    }
}

fn v2_fields() -> impl Strategy<Value = Vec<(Field, i64)>> {
    let field = prop_oneof![(0..MAX_REGS as u8).prop_map(Field::Reg), Just(Field::Cwnd), Just(Field::Rate),];
    vec((field, any::<i64>()), 0..=v2::MAX_FIELDS)
}

fn error() -> impl Strategy<Value = DatapathError> {
    let text = || "\\PC{0,200}";
    let count = || any::<u32>().prop_map(|n| n as usize);
    let uid = || any::<u32>().prop_map(ProgramUid);
    prop_oneof![
        text().prop_map(|feature| DatapathError::Unsupported { feature }),
        count().prop_map(|limit| DatapathError::ProgramsFull { limit }),
        uid().prop_map(DatapathError::NoProgram),
        (uid(), count()).prop_map(|(uid, flows)| DatapathError::ProgramInUse { uid, flows }),
        any::<u64>().prop_map(|flow| DatapathError::NoFlow(FlowId(flow))),
        select(&[Field::Reg(63), Field::Cwnd, Field::Rate][..]).prop_map(DatapathError::BadField),
        (option::of(0..1024_usize), text()).prop_map(|(at, reason)| DatapathError::Refused { at, reason }),
        (text(), select(&[std::io::ErrorKind::PermissionDenied, std::io::ErrorKind::Other][..]))
            .prop_map(|(what, errno)| DatapathError::Os { what, errno }),
        any::<u8>().prop_map(DatapathError::NoSlot),
        any::<u8>().prop_map(|slot| DatapathError::OtherShape { slot }),
        (any::<u8>(), select(&["snapshot", "canary", "last good snapshot"][..]))
            .prop_map(|(slot, what)| DatapathError::NoSnapshot { slot, what }),
        any::<u8>().prop_map(|slot| DatapathError::SlotBusy { slot }),
        text().prop_map(|reason| DatapathError::BadImage { reason }),
    ]
}

fn num() -> impl Strategy<Value = Src> {
    prop_oneof![
        any::<i64>().prop_map(Src::Imm),
        (-70..70_i64).prop_map(Src::Imm),
        select(vec![Src::Cwnd, Src::Rate, Src::Micros, Src::Reg(0), Src::Reg(2), Src::Prim(Prim::AckNow)]),
        select(vec![Src::PolicyAction, Src::PolicySnapshot]),
    ]
}

fn boolean() -> impl Strategy<Value = Src> {
    select(vec![Src::Bool(true), Src::Bool(false), Src::Reg(1), Src::Reg(3), Src::Prim(Prim::FlowWasTimeout)])
}

/// Instructions over the registers that [`program`] declares first: 0 and 2 are numbers, 1 and 3 truth
/// values.
fn inst() -> impl Strategy<Value = Inst> {
    let num_dst = || select(vec![Dst::Reg(0), Dst::Reg(2), Dst::Cwnd, Dst::Rate, Dst::Micros, Dst::Tmp(15)]);
    let kept = || select(vec![Dst::Reg(0), Dst::Reg(2), Dst::Cwnd, Dst::Rate]);
    let bool_dst =
        || select(vec![Dst::Reg(1), Dst::Reg(3), Dst::ShouldReport, Dst::ShouldContinue, Dst::Tmp(0)]);
    let make = |(op, dst, a, b)| Inst { op, dst, a, b };
    let arith = select(vec![Op::Bind, Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Min, Op::Max, Op::MaxWrap]);
    let compare = select(vec![Op::Eq, Op::Lt, Op::Gt, Op::Le, Op::Ge]);
    let logic = select(vec![Op::And, Op::Or]);
    prop_oneof![
        (arith, num_dst(), num(), num()).prop_map(make),
        (compare, bool_dst(), num(), num()).prop_map(make),
        (logic, bool_dst(), boolean(), boolean()).prop_map(make),
        (select(vec![Op::If, Op::NotIf]), kept(), boolean(), num()).prop_map(make),
        (Just(Op::Ewma), kept(), num(), num()).prop_map(make),
        (select(vec![Op::History, Op::Policy]), any::<u8>().prop_map(Dst::Tmp), Just(Src::Imm(0)), num())
            .prop_map(make),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let names = vec("\\PC{0,20}", 4..=MAX_REGS);
    let clauses = vec((boolean(), vec(inst(), 0..4), vec(inst(), 0..8)), 0..12);
    (names, clauses, any::<i64>(), 1..=32_u8).prop_map(|(names, clauses, init, depth)| {
        let kinds = [RegKind::Report, RegKind::Report, RegKind::Control, RegKind::Control];
        let regs = names.into_iter().enumerate().map(|(n, name)| RegDecl {
            name,
            kind: kinds.get(n).copied().unwrap_or(RegKind::Local),
            ty: if n % 2 == 1 { Type::Bool } else { Type::Num },
            volatile: n % 3 == 0,
            init: if n % 2 == 0 && n < kinds.len() { init } else { i64::from(n < kinds.len()) },
        });
        let (mut insts, mut spans) = (Vec::new(), Vec::new());
        for (guard, mut condition, mut body) in clauses {
            let start = insts.len() as u16;
            let (guard_insts, body_insts) = (condition.len() as u16, body.len() as u16);
            spans.push(Clause { start, guard_insts, body_insts, guard });
            insts.append(&mut condition);
            insts.append(&mut body);
        }
        let history = HistoryDecl { depth, regs: vec![0, 2] };
        Program::new(regs.collect(), insts, spans, vec![history]).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn v1_create_is_read_as_written(
        sid: u32, cwnd: u32, mss in 1_u32.., ip: (u32, u32), port: (u32, u32), name in option::of("[a-z]{1,63}"),
    ) {
        v1_agent_round_trip(&v1::ToAgent::Create(v1::Create {
            sid,
            init_cwnd_bytes: cwnd,
            mss_bytes: mss,
            local: v1::Endpoint { ip: ip.0, port: port.0 },
            remote: v1::Endpoint { ip: ip.1, port: port.1 },
            cong_alg: name.as_deref(),
        }));
    }

    #[test]
    fn v1_measure_close_and_ready_are_read_as_written(sid: u32, program_uid in 1_u32.., values in vec(any::<u64>(), 0..=110)) {
        let values = values.as_slice().into();
        v1_agent_round_trip(&v1::ToAgent::Measure(v1::Measure { sid, program_uid, values }));
        v1_agent_round_trip(&v1::ToAgent::Close { sid });
        v1_agent_round_trip(&v1::ToAgent::Ready { id: sid });
    }

    #[test]
    fn v1_install_is_read_as_written(sid: u32, program_uid in 1_u32.., code in v1_code()) {
        let code = v1::Bytecode::new(&code.0, &code.1).unwrap();
        v1_datapath_round_trip(&v1::ToDatapath::Install(v1::Install { sid, program_uid, code }));
    }

    #[test]
    fn v1_update_and_change_are_read_as_written(
        sid: u32,
        program_uid in 1_u32..,
        few in v1_fields(v1::MAX_UPDATE_FIELDS),
        many in v1_fields(v1::MAX_CHANGE_FIELDS),
    ) {
        v1_datapath_round_trip(&v1::ToDatapath::Update(v1::Update { sid, fields: few.as_slice().into() }));
        let fields = many.as_slice().into();
        v1_datapath_round_trip(&v1::ToDatapath::ChangeProg(v1::ChangeProg { sid, program_uid, fields }));
    }

    #[test]
    fn v1_carries_ipv4_flows_exactly_and_refuses_ipv6(info in info(), sid: u32) {
        let mut info = info;
        (info.init_cwnd_bytes, info.cgroup) = (info.init_cwnd_bytes % (1 << 32), None);
        info.min_rtt_us = None;
        for order in [AddrOrder::Network, AddrOrder::Host] {
            match v1::Create::from_info(sid, &info, order, None) {
                Ok(create) => {
                    v1_agent_round_trip(&v1::ToAgent::Create(create));
                    prop_assert_eq!(create.to_info(order), Ok(info.clone()));
                }
                Err(e) => {
                    prop_assert!(info.local.is_ipv6());
                    prop_assert_eq!(e, ccplane_wire::EncodeError::Ipv6 { field: "local" });
                }
            }
        }
    }

    #[test]
    fn v2_hello_is_read_as_written(
        minors: (u8, u8), features: u32, now_us: u64, max: (u32, u32), kind in "[a-z-]{0,31}", name in "\\PC{0,15}",
        slots in vec(slot(), 0..=16),
    ) {
        let hello = v2::Hello {
            minors: minors.0.min(minors.1)..=minors.0.max(minors.1),
            clock: v2::Clock::Virtual,
            features: v2::Features(features),
            now_us,
            max_programs: max.0,
            max_flows: max.1,
            kind: &kind,
            name: &name,
            slots: slots.as_slice().into(),
        };
        v2_agent_round_trip(&v2::ToAgent::Hello(hello), 0);
    }

    #[test]
    fn v2_negotiation_finds_the_highest_common_version(a: (u8, u8), b: (u8, u8)) {
        let (a, b) = (a.0.min(a.1)..=a.0.max(a.1), b.0.min(b.1)..=b.0.max(b.1));
        let highest = (0..=u8::MAX).rev().find(|v| a.contains(v) && b.contains(v));
        prop_assert_eq!(v2::negotiate(&a, &b).ok(), highest);
    }

    #[test]
    fn v2_programs_are_read_as_written(program in program(), uid: u32, request: u32) {
        let mut bytes = Vec::new();
        v2::encode_program(&program, &mut bytes).unwrap();
        prop_assert_eq!(v2::decode_program(&bytes), Ok(program.clone()));
        v2_datapath_round_trip(&v2::ToDatapath::Install { uid: ProgramUid(uid), program }, request);
    }

    #[test]
    fn v2_commands_are_read_as_written(flow: u64, uid: u32, request: u32, fields in v2_fields()) {
        let (flow, uid, fields) = (FlowId(flow), ProgramUid(uid), fields.as_slice());
        v2_datapath_round_trip(&v2::ToDatapath::SetProgram { flow, uid, fields: fields.into() }, request);
        v2_datapath_round_trip(&v2::ToDatapath::Update { flow, fields: fields.into() }, request);
        v2_datapath_round_trip(&v2::ToDatapath::Release { flow }, request);
        v2_datapath_round_trip(&v2::ToDatapath::Remove { uid }, request);
        v2_datapath_round_trip(&v2::ToDatapath::SetFirst { uid, fields: fields.into() }, request);
        v2_datapath_round_trip(&v2::ToDatapath::EnsureProgram { flow, uid, fields: fields.into() }, request);
        for hook in Hook::ALL {
            v2_datapath_round_trip(&v2::ToDatapath::ClearFirst { hook }, request);
        }
    }

    #[test]
    fn v2_slots_are_read_as_written(
        slots in vec(slot(), 0..=16), shape in shape(), part in part(), image in vec(any::<u64>(), 0..300),
        slot: u8, share: u16, request: u32,
    ) {
        v2_agent_round_trip(&v2::ToAgent::Slots(slots.as_slice().into()), request);
        v2_datapath_round_trip(&v2::ToDatapath::DefineSlot { slot, shape }, request);
        v2_datapath_round_trip(&v2::ToDatapath::Push { slot, part, image: image.as_slice().into() }, request);
        v2_datapath_round_trip(&v2::ToDatapath::Share { slot, share }, request);
        v2_datapath_round_trip(&v2::ToDatapath::Promote { slot }, request);
        v2_datapath_round_trip(&v2::ToDatapath::Rollback { slot }, request);
        v2_datapath_round_trip(&v2::ToDatapath::GetSlots, request);
    }

    #[test]
    fn v2_welcome_is_read_as_written(
        minor: u8, heartbeat_timeout_ms in 1_u32.., session: u64, ring_bytes: u32,
        wake in prop_oneof![
            Just(v2::Wake::Sleep), Just(v2::Wake::Busy), any::<u32>().prop_map(|us| v2::Wake::Spin { us }),
        ],
    ) {
        let welcome = v2::Welcome { minor, heartbeat_timeout_ms, session, wake, ring_bytes };
        v2_datapath_round_trip(&v2::ToDatapath::Welcome(welcome), 0);
    }

    #[test]
    fn v2_refusals_are_read_as_written(error in error(), request: u32) {
        v2_agent_round_trip(&v2::ToAgent::Refused(error), request);
    }

    #[test]
    fn v2_flows_are_read_as_written(flow: u64, info in info(), stats in vec(stats(), 0..20), last: bool) {
        v2_agent_round_trip(&v2::ToAgent::Created { flow: FlowId(flow), info }, 0);
        v2_agent_round_trip(&v2::ToAgent::FlowStats { last, flows: stats.as_slice().into() }, 1);
    }

    #[test]
    fn v2_reports_are_read_as_written(all in vec((any::<(u64, u32, u32, u64)>(), vec(any::<i64>(), 0..=MAX_REGS)), 0..40)) {
        let reports: Vec<v2::Report<'_>> = all
            .iter()
            .map(|((flow, program, seq, at_us), values)| v2::Report {
                flow: FlowId(*flow),
                program: ProgramUid(*program),
                seq: *seq,
                at_us: *at_us,
                values: values.as_slice().into(),
            })
            .collect();
        let msg = v2::ToAgent::Reports(reports.as_slice().into());
        v2_agent_round_trip(&msg, 0);

        let mut at_once = Vec::new();
        msg.encode(0, &mut at_once).unwrap();
        let mut one_by_one = Vec::new();
        let mut batch = v2::ReportBatch::start(&mut one_by_one).unwrap();
        for report in &reports {
            batch.push(report).unwrap();
        }
        prop_assert_eq!(one_by_one, at_once);

        for report in &reports {
            let values: Vec<v2::Varint> = report.values.iter().map(v2::Varint).collect();
            let v2::Report { flow, program, seq, at_us, .. } = *report;
            let values = values.as_slice().into();
            let alone = v2::ToAgent::Report(v2::SingleReport { flow, program, seq, at_us, values });
            v2_agent_round_trip(&alone, 0);
            let (mut as_message, mut as_report) = (Vec::new(), Vec::new());
            alone.encode(0, &mut as_message).unwrap();
            v2::encode_report(report, &mut as_report).unwrap();
            prop_assert_eq!(as_report, as_message);
        }
    }
}
