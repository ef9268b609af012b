//! Exact bytes, both ways. A change here is a change of protocol.

use ccplane_contract::{FlowId, ProgramUid};
use ccplane_wire::v1::{self, AddrOrder, Bytecode, Endpoint, Event, Field, Index, Inst, Op, Reg, Special};
use ccplane_wire::{EncodeError, Out, SliceOut, v2};

/// Encodes messages of v1, which have to give the golden bytes, and parses each from them.
macro_rules! v1_both_ways {
    ($direction:ident, $goldens:expr, $expected:expr) => {
        assert_eq!($goldens.len(), $expected.len());
        for (golden, msg) in $goldens.iter().zip(&$expected) {
            let mut bytes = Vec::new();
            msg.encode(&mut bytes).unwrap();
            assert_eq!(&bytes, golden, "{msg:?}");
            let parsed: Vec<_> = v1::$direction::parse_all(golden).collect();
            assert_eq!(parsed, [Ok(msg.clone())]);
        }
    };
}

#[test]
fn v1_messages_to_the_agent() {
    let goldens = crate::support::v1_to_agent();
    let create = v1::Create {
        sid: 1,
        init_cwnd_bytes: 14400,
        mss_bytes: 1448,
        local: Endpoint { ip: 0x0100_000a, port: 0x9210_0000 },
        remote: Endpoint { ip: 0x0200_000a, port: 0x01bb_0000 },
        cong_alg: Some("reno"),
    };
    let values = [u64::MAX, 1];
    let measure = v1::Measure { sid: 1, program_uid: 5, values: (&values).into() };
    let expected = [
        v1::ToAgent::Ready { id: 7 },
        v1::ToAgent::Create(create),
        v1::ToAgent::Measure(measure),
        v1::ToAgent::Close { sid: 1 },
    ];
    v1_both_ways!(ToAgent, goldens, expected);
    let datagram = goldens.concat();
    let all: Vec<_> = v1::ToAgent::parse_all(&datagram).map(Result::unwrap).collect();
    assert_eq!(all, expected, "several messages in one datagram");
}

#[test]
fn v1_messages_to_the_datapath() {
    let goldens = crate::support::v1_to_datapath();
    let (foo, tmp) = (Reg::Report { index: Index::new(0).unwrap(), volatile: true }, Index::new(0).unwrap());
    let flag = Reg::Special(Special::EventFlag);
    let report = Reg::Special(Special::ShouldReport);
    let acked = Reg::Prim(ccplane_program::ir::Prim::AckBytesAcked);
    let inst = |op, dst, left, right| Inst { op, dst, left, right };
    let insts = [
        inst(Op::Def, foo, foo, Reg::Imm(0)),
        inst(Op::Bind, flag, flag, Reg::Imm(1)),
        inst(Op::Add, Reg::Tmp(tmp), foo, acked),
        inst(Op::Bind, foo, foo, Reg::Tmp(tmp)),
        inst(Op::Bind, report, report, Reg::Imm(1)),
    ];
    let events = [Event { flag_start: 1, flag_insts: 1, body_start: 2, body_insts: 3 }];
    let code = Bytecode::new(&events, &insts).unwrap();
    let raw = crate::support::hex(crate::support::V1_CODE);
    assert_eq!(Bytecode::from_bytes(1, &raw), Ok(code.clone()));

    let set = [(Field::Cwnd, 42)];
    let change =
        [(Field::Control { index: Index::new(3).unwrap(), volatile: true }, 1), (Field::Rate, u64::MAX)];
    let expected = [
        v1::ToDatapath::Install(v1::Install { sid: 0, program_uid: 5, code }),
        v1::ToDatapath::Update(v1::Update { sid: 1, fields: (&set).into() }),
        v1::ToDatapath::ChangeProg(v1::ChangeProg { sid: 1, program_uid: 7, fields: (&change).into() }),
    ];
    v1_both_ways!(ToDatapath, goldens, expected);
}

#[test]
fn v1_addresses_in_both_orders() {
    let addr = "10.0.0.1:4242".parse().unwrap();
    for (order, ip, port) in
        [(AddrOrder::Network, 0x0100_000a, 0x9210), (AddrOrder::Host, 0x0a00_0001, 0x1092)]
    {
        let endpoint = Endpoint::from_addr(addr, order, "local").unwrap();
        assert_eq!(endpoint, Endpoint { ip, port });
        assert_eq!(std::net::SocketAddr::from(endpoint.to_addr(order).unwrap()), addr);
    }
    let mapped = Endpoint::from_addr("[::ffff:10.0.0.1]:4242".parse().unwrap(), AddrOrder::Host, "local");
    assert_eq!(mapped, Ok(Endpoint { ip: 0x0a00_0001, port: 4242 }));
}

/// Encodes a message of v2, which has to give the golden bytes, and parses it from them.
macro_rules! both_ways {
    ($direction:ident, $msg:expr, $request:expr, $golden:expr) => {{
        let (msg, request, golden) = ($msg, $request, $golden);
        let mut bytes = Vec::new();
        msg.encode(request, &mut bytes).unwrap();
        assert_eq!(bytes, golden, "{msg:?}");
        let frame = v2::frames(&golden).next().unwrap().unwrap();
        assert_eq!(frame.request, request);
        assert_eq!(v2::$direction::parse(frame), Ok(Some(msg)));
    }};
}

#[test]
fn v2_messages_to_the_agent() {
    for (msg, request, golden) in crate::support::v2_to_agent() {
        both_ways!(ToAgent, msg, request, golden);
    }
}

#[test]
fn v2_messages_to_the_datapath() {
    for (msg, request, golden) in crate::support::v2_to_datapath() {
        both_ways!(ToDatapath, msg, request, golden);
    }
}

#[test]
fn v2_batch_of_reports() {
    let golden = crate::support::v2_frame(
        "0700 5c000000 00000000  0200
         0100000000000000 03000000 01000000 0a00000000000000 01 ffffffffffffffff
         0200000000000000 03000000 09000000 0b00000000000000 02 0000000000000080 ffffffffffffff7f",
    );
    let (one, two) = ([-1], [i64::MIN, i64::MAX]);
    let report = |flow, seq, at_us, values: &'static [i64]| v2::Report {
        flow: FlowId(flow),
        program: ProgramUid(3),
        seq,
        at_us,
        values: values.into(),
    };
    let reports = [report(1, 1, 10, Box::leak(Box::new(one))), report(2, 9, 11, Box::leak(Box::new(two)))];

    let mut bytes = Vec::new();
    let mut batch = v2::ReportBatch::start(&mut bytes).unwrap();
    for r in &reports {
        batch.push(r).unwrap();
    }
    assert_eq!(batch.len(), 2);
    assert_eq!(bytes, golden);

    let mut at_once = Vec::new();
    v2::ToAgent::Reports((&reports).into()).encode(0, &mut at_once).unwrap();
    assert_eq!(at_once, golden);

    let frame = v2::frames(&golden).next().unwrap().unwrap();
    let Ok(Some(v2::ToAgent::Reports(parsed))) = v2::ToAgent::parse(frame) else { panic!() };
    assert!(parsed.iter().eq(reports));
}

/// The datapath's own way to write the golden report of `v2_messages_to_the_agent`.
#[test]
fn a_v2_report_alone_has_the_golden_bytes() {
    let values = [1448, 0, -1, i64::MAX, i64::MIN];
    let report = v2::Report {
        flow: FlowId(1),
        program: ProgramUid(300),
        seq: 2,
        at_us: 1 << 40,
        values: (&values).into(),
    };
    let mut bytes = Vec::new();
    v2::encode_report(&report, &mut bytes).unwrap();
    let goldens = crate::support::v2_to_agent();
    let golden = goldens.iter().find(|(msg, ..)| matches!(msg, v2::ToAgent::Report(_))).unwrap();
    assert_eq!(bytes, golden.2);
}

/// A report of `ccp-reno`, after a month and on the thousandth flow, fits into a ring's line behind the mark.
#[test]
fn v2_report_alone_fits_a_cache_line() {
    const LINE_BYTES: usize = 64 - 8;
    let values = [1 << 20, 100, 1, 200_000];
    let month_us = 31 * 24 * 3600 * 1_000_000;
    let report = v2::Report {
        flow: FlowId(1000),
        program: ProgramUid(100),
        seq: 1 << 20,
        at_us: month_us,
        values: (&values).into(),
    };
    let (mut alone, mut batch) = (Vec::new(), Vec::new());
    v2::encode_report(&report, &mut alone).unwrap();
    v2::ReportBatch::start(&mut batch).unwrap().push(&report).unwrap();
    assert!(alone.len() <= LINE_BYTES && batch.len() > LINE_BYTES, "{} and {}", alone.len(), batch.len());
}

/// Messages of minor version 1 mean the same as ever.
#[test]
fn v2_of_minor_version_1() {
    let older = |mut bytes: Vec<u8>| {
        bytes[5] = 1;
        bytes
    };
    for (msg, _, golden) in crate::support::v2_to_agent() {
        let bytes = older(golden);
        assert_eq!(v2::ToAgent::parse(v2::frames(&bytes).next().unwrap().unwrap()), Ok(Some(msg)));
    }
    for (msg, _, golden) in crate::support::v2_to_datapath() {
        let bytes = older(golden);
        assert_eq!(v2::ToDatapath::parse(v2::frames(&bytes).next().unwrap().unwrap()), Ok(Some(msg)));
    }
}

#[test]
fn v2_flow_statistics() {
    let golden = crate::support::v2_frame(
        "0800 bf000000 05000000  01 0100
         0900000000000000 a8050000 9038000000000000 06
         bb01 20010db8000000000000000000000001 00000000 00000000
         8813 20010db8000000000000000000000002 00000000 00000000
         01 4d00000000000000  c0260000  02  01 03000000
         0a000000 ffffffff a0050000 204e0000 384a0000
         d012130000000000 0000000000010000 0c00000000000000 0100000000000000 04000000
         0200000000000000 0500000000000000 0600000000000000",
    );
    let flows = [crate::support::stats()];
    let msg = v2::ToAgent::FlowStats { last: true, flows: (&flows).into() };
    both_ways!(ToAgent, msg, 5, golden);
}

#[test]
fn v2_flow_statistics_with_a_policy() {
    let golden = crate::support::v2_frame(
        "0800 ef000000 05000000  01 0100
         0900000000000000 a8050000 9038000000000000 06
         bb01 20010db8000000000000000000000001 00000000 00000000
         8813 20010db8000000000000000000000002 00000000 00000000
         01 4d00000000000000  c0260000  83  01 03000000
         0a000000 ffffffff a0050000 204e0000 384a0000
         d012130000000000 0000000000010000 0c00000000000000 0100000000000000 04000000
         0200000000000000 0500000000000000 0600000000000000
         0201000000000000 03000000 04000000 01000000 05000000 06000000 07000000 08000000 09000000 0a000000
         0b000000",
    );
    let flows = [crate::support::deciding()];
    let msg = v2::ToAgent::FlowStats { last: true, flows: (&flows).into() };
    both_ways!(ToAgent, msg, 5, golden);
}

/// Messages of minor version 0 are understood, and lack the fields that it does not know.
#[test]
fn v2_of_minor_version_0() {
    let (hello, _, bytes) = crate::support::v2_to_agent().remove(0);
    let mut older = bytes[..0x30].to_vec();
    (older[5], older[8]) = (0, 0x30);
    let v2::ToAgent::Hello(hello) = hello else { panic!() };
    let without = v2::Hello { slots: (&[]).into(), ..hello };
    let parse = |bytes| v2::ToAgent::parse(v2::frames(bytes).next().unwrap().unwrap());
    assert_eq!(parse(&older), Ok(Some(v2::ToAgent::Hello(without))));

    let (welcome, _, bytes) = crate::support::v2_to_datapath().remove(0);
    let mut older = bytes[..0x1d].to_vec();
    (older[5], older[8]) = (0, 0x1d);
    let v2::ToDatapath::Welcome(welcome) = welcome else { panic!() };
    let without = v2::Welcome { wake: v2::Wake::Sleep, ring_bytes: 0, ..welcome };
    let parsed = v2::ToDatapath::parse(v2::frames(&older).next().unwrap().unwrap());
    assert_eq!(parsed, Ok(Some(v2::ToDatapath::Welcome(without))));
}

#[test]
fn a_full_buffer_keeps_what_it_had() {
    let msg = v1::ToAgent::Ready { id: 7 };
    let mut buf = [0xee; 20];
    let mut out = SliceOut::new(&mut buf);
    msg.encode(&mut out).unwrap();
    let before = out.as_bytes().to_vec();
    assert_eq!(msg.encode(&mut out), Err(EncodeError::Full { need: 4, room: 0 }));
    assert_eq!(out.as_bytes(), before);
    assert_eq!(out.written(), 12);

    // A batch in a buffer that holds one report of one value: the second does not fit and changes nothing.
    let report =
        v2::Report { flow: FlowId(1), program: ProgramUid(1), seq: 1, at_us: 1, values: (&[5_i64]).into() };
    let mut buf = [0; 18 + 33 + 32];
    let mut out = SliceOut::new(&mut buf);
    let mut batch = v2::ReportBatch::start(&mut out).unwrap();
    batch.push(&report).unwrap();
    assert_eq!(batch.push(&report), Err(EncodeError::Full { need: 8, room: 7 }));
    assert_eq!(batch.len(), 1);
    let frame = v2::frames(out.as_bytes()).next().unwrap().unwrap();
    let Ok(Some(v2::ToAgent::Reports(parsed))) = v2::ToAgent::parse(frame) else { panic!() };
    assert!(parsed.iter().eq([report]));
}
