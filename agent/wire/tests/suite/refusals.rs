//! Tests of refused messages and of the texts of their errors.

use crate::support::{hex, v2_frame};
use ccplane_contract::{DatapathError, Field, FlowId, ProgramUid};
use ccplane_program::ir::{HistoryDecl, Program, RegDecl, RegKind, Type, VerifyError};
use ccplane_wire::{DecodeError, EncodeError, v1, v2};

fn v1_agent(datagram: &[u8]) -> Result<v1::ToAgent<'_>, DecodeError> {
    v1::ToAgent::parse_all(datagram).next().unwrap()
}

fn v1_datapath(datagram: &[u8]) -> Result<v1::ToDatapath<'_>, DecodeError> {
    v1::ToDatapath::parse_all(datagram).next().unwrap()
}

fn v2_agent(bytes: &[u8]) -> Result<Option<v2::ToAgent<'_>>, DecodeError> {
    v2::ToAgent::parse(v2::frames(bytes).next().unwrap()?)
}

fn v2_datapath(bytes: &[u8]) -> Result<Option<v2::ToDatapath<'_>>, DecodeError> {
    v2::ToDatapath::parse(v2::frames(bytes).next().unwrap()?)
}

fn says<T: std::fmt::Debug>(result: Result<T, DecodeError>, words: &str) {
    assert_eq!(result.unwrap_err().to_string(), words);
}

#[test]
fn v1_every_prefix_of_every_message_is_an_error() {
    for golden in crate::support::v1_to_agent() {
        for len in 1..golden.len() {
            assert!(
                matches!(v1_agent(&golden[..len]), Err(DecodeError::Short { .. })),
                "{len} of {golden:?}"
            );
            // The same with a header that agrees with what is there.
            if len >= v1::HEADER_BYTES {
                let mut cut = golden[..len].to_vec();
                cut[2..4].copy_from_slice(&(len as u16).to_le_bytes());
                assert!(v1_agent(&cut).is_err(), "{len} of {golden:?}");
            }
        }
    }
    for golden in crate::support::v1_to_datapath() {
        for len in 1..golden.len() {
            let mut cut = golden[..len].to_vec();
            assert!(matches!(v1_datapath(&cut), Err(DecodeError::Short { .. })));
            if len >= v1::HEADER_BYTES {
                cut[2..4].copy_from_slice(&(len as u16).to_le_bytes());
                assert!(v1_datapath(&cut).is_err(), "{len} of {golden:?}");
            }
        }
    }
}

#[test]
fn v1_headers_are_refused_by_field() {
    says(v1_agent(&[5, 0, 7]), "len: needs 2 bytes, 1 are left");
    says(v1_agent(&hex("0500 0700 00000000 07000000")), "header: needs 8 bytes, 7 are left");
    says(v1_agent(&hex("0500 0d00 00000000 07000000")), "body: needs 5 bytes, 4 are left");
    says(v1_agent(&hex("0500 ffff 00000000 07000000")), "message bytes: 65535, at most 32678 are allowed");
    says(
        v1_agent(&hex("0500 0e00 00000000 07000000 0000")),
        "length: the header says 14 bytes, the content takes 12",
    );
    // portus 0.9 keeps one byte of the type, and takes 256 for CREATE.
    says(v1_agent(&hex("0001 0800 00000000")), "type: 256 is not known");
}

#[test]
fn v1_messages_that_go_the_other_way_are_refused() {
    for (golden, name) in
        crate::support::v1_to_datapath().iter().zip(["INSTALL", "UPDATE_FIELD", "CHANGE_PROG"])
    {
        says(v1_agent(golden), &format!("type: {name} was sent to the agent, which never receives it"));
    }
    for golden in crate::support::v1_to_agent() {
        let error = v1_datapath(&golden).unwrap_err();
        assert!(matches!(error, DecodeError::Direction { to: "a datapath", .. }), "{error}");
    }
}

#[test]
fn v1_an_unknown_message_does_not_hide_its_neighbours() {
    let ready = hex("0500 0c00 00000000 07000000");
    let datagram = [ready.clone(), hex("ff00 0900 00000000 41"), ready.clone(), vec![5]].concat();
    let all: Vec<_> = v1::ToAgent::parse_all(&datagram).collect();
    assert_eq!(
        all,
        [
            Ok(v1::ToAgent::Ready { id: 7 }),
            Err(DecodeError::UnknownType { found: 255 }),
            Ok(v1::ToAgent::Ready { id: 7 }),
            Err(DecodeError::Short { field: "type", need: 2, have: 1 }),
        ]
    );
}

#[test]
fn v1_measure_and_create_are_refused_by_field() {
    let measure = |rest: &str| [hex("0100"), hex(rest)].concat();
    says(
        v1_agent(&measure("1800 01000000 05000000 02000000 0000000000000000")),
        "value 1: value: needs 8 bytes, 0 are left",
    );
    says(v1_agent(&measure("1000 01000000 05000000 6f000000")), "values: 111, at most 110 are allowed");
    says(
        v1_agent(&measure("1800 01000000 00000000 01000000 0000000000000000")),
        "program_uid: must not be 0",
    );
    // A report without values is a report, unless it is of program 0, as libccp spells the end of a flow.
    assert!(matches!(
        v1_agent(&measure("1000 01000000 05000000 00000000")),
        Ok(v1::ToAgent::Measure(m)) if m.values.is_empty()
    ));

    let create = crate::support::v1_to_agent().remove(1);
    let name_at = create.len() - v1::CONG_ALG_BYTES;
    let with = |at: usize, bytes: &[u8]| {
        let mut create = create.clone();
        create[at..at + bytes.len()].copy_from_slice(bytes);
        create
    };
    says(v1_agent(&with(12, &[0; 4])), "mss: must not be 0");
    // portus 0.9 indexes beyond a name without a NUL, and ends its loop on one that is not UTF-8.
    says(v1_agent(&with(name_at, &[b'a'; 64])), "cong_alg: not UTF-8, or not terminated");
    says(v1_agent(&with(name_at, &[0xff])), "cong_alg: not UTF-8, or not terminated");
    let longest = with(name_at, &[b'a'; 63]);
    let Ok(v1::ToAgent::Create(c)) = v1_agent(&longest) else { panic!() };
    assert_eq!(c.cong_alg.unwrap().len(), 63);
}

/// INSTALL of `events` and `insts`, given in hexadecimal.
fn install(uid: u32, events: &str, insts: &str) -> Vec<u8> {
    let (events, insts) = (hex(events), hex(insts));
    let len = 20 + events.len() + insts.len();
    let mut bytes = [&hex("0200")[..], &(len as u16).to_le_bytes(), &[0; 4], &uid.to_le_bytes()].concat();
    bytes.extend((events.len() as u32 / 16).to_le_bytes());
    bytes.extend((insts.len() as u32 / 16).to_le_bytes());
    [bytes, events, insts].concat()
}

#[test]
fn v1_bytecode_that_would_reach_outside_libccp_is_refused() {
    const BIND: &str = "01 02 00000000 02 00000000 01 01000000";
    for (inst, words) in [
        ("0f 02 00000000 02 00000000 01 01000000", "opcode: 15 is not a known code"),
        ("01 09 00000000 02 00000000 01 01000000", "result register: 9 is not a known code"),
        ("01 01 00000000 02 00000000 01 01000000", "result register: an immediate is not allowed here"),
        ("01 04 00000000 02 00000000 01 01000000", "result register: a primitive is not allowed here"),
        ("01 02 06000000 02 00000000 01 01000000", "result register: 6 is above the limit 5"),
        ("01 05 6e000000 02 00000000 01 01000000", "result register: 110 is above the limit 109"),
        ("01 00 6e000000 02 00000000 01 01000000", "result register: 110 is above the limit 109"),
        ("01 05 00000000 07 08000000 01 01000000", "left register: 8 is above the limit 7"),
        ("01 05 00000000 03 08000000 01 01000000", "left register: 8 is above the limit 7"),
        ("01 05 00000000 04 0f000000 01 01000000", "left register: 15 is above the limit 14"),
        ("01 05 00000000 05 00000000 08 ffffffff", "right register: 4294967295 is above the limit 109"),
        ("02 07 00000000 07 00000000 01 01000000", "defined register: a temporary is not allowed here"),
        ("02 05 00000000 05 00000000 05 01000000", "initial value: a report register is not allowed here"),
    ] {
        let bytes = install(1, "", &format!("{BIND}{inst}"));
        says(v1_datapath(&bytes), &format!("instruction 1: {words}"));
    }
    for (event, words) in [
        ("02000000 00000000 00000000 01000000", "end of condition: 2 is above the limit 1"),
        ("00000000 01000000 01000000 01000000", "end of body: 2 is above the limit 1"),
        ("ffffffff 01000000 00000000 00000000", "end of condition: 4294967296 is above the limit 1"),
    ] {
        says(v1_datapath(&install(1, event, BIND)), &format!("event 0: {words}"));
    }
    says(v1_datapath(&install(0, "", BIND)), "program_uid: must not be 0");
    assert!(v1_datapath(&install(1, "", &BIND.repeat(255))).is_ok());
    let hangs = install(1, "", &BIND.repeat(256));
    says(v1_datapath(&hangs), "instructions: 256, at most 255 are allowed");
    let event = "00000000 00000000 00000000 00000000";
    says(v1_datapath(&install(1, &event.repeat(257), BIND)), "events: 257, at most 256 are allowed");

    // The same limits for what a compiler of ours emits.
    let raw = hex(BIND);
    says(v1::Bytecode::from_bytes(0, &raw[..15]), "instruction 0: right register: needs 4 bytes, 3 are left");
    says(v1::Bytecode::from_bytes(2, &raw), "event 1: start of condition: needs 4 bytes, 0 are left");
}

#[test]
fn v1_updates_that_would_write_outside_libccp_are_refused() {
    let update = |field: &str| [hex("0300 1900 01000000 01000000"), hex(field), vec![0; 8]].concat();
    says(v1_datapath(&update("00 6e000000")), "field 0: register: 110 is above the limit 109");
    says(v1_datapath(&update("08 ffffffff")), "field 0: register: 4294967295 is above the limit 109");
    says(v1_datapath(&update("02 03000000")), "field 0: register: an implicit register is not allowed here");
    says(v1_datapath(&update("05 00000000")), "field 0: register: a report register is not allowed here");
    assert!(v1_datapath(&update("00 6d000000")).is_ok());
    says(v1_datapath(&hex("0300 0c00 01000000 80000000")), "fields: 128, at most 127 are allowed");
    says(v1_datapath(&hex("0400 1000 01000000 01000000 df000000")), "fields: 223, at most 222 are allowed");

    let fields = [(v1::Field::Cwnd, 1); 128];
    let fields = (&fields).into();
    let error = v1::ToDatapath::Update(v1::Update { sid: 1, fields }).encode(&mut Vec::new());
    assert_eq!(error, Err(EncodeError::TooMany { field: "fields", found: 128, limit: 127 }));
}

#[test]
fn v1_refuses_what_it_cannot_express() {
    let info = crate::support::info("[2001:db8::1]:1", "[2001:db8::2]:2", None);
    let error = v1::Create::from_info(1, &info, v1::AddrOrder::Network, None);
    assert_eq!(error, Err(EncodeError::Ipv6 { field: "local" }));

    let mut info = crate::support::info("10.0.0.1:1", "10.0.0.2:2", None);
    info.init_cwnd_bytes = 1 << 32;
    let error = v1::Create::from_info(1, &info, v1::AddrOrder::Network, None).unwrap_err();
    assert_eq!(error.to_string(), "init_cwnd_bytes: 4294967296 is above the limit 4294967295");

    info.init_cwnd_bytes = 1;
    let create = v1::Create::from_info(1, &info, v1::AddrOrder::Network, None).unwrap();
    let encode = |name: &str| {
        let mut out = vec![9];
        let result = v1::ToAgent::Create(v1::Create { cong_alg: Some(name), ..create }).encode(&mut out);
        assert!(result.is_ok() || out == [9], "nothing is left behind");
        result
    };
    assert_eq!(encode(&"a".repeat(63)), Ok(()));
    assert_eq!(
        encode(&"a".repeat(64)).unwrap_err().to_string(),
        "cong_alg bytes: 64, at most 63 are allowed"
    );
    assert_eq!(encode("a\0b").unwrap_err().to_string(), "cong_alg: contains a NUL");
}

#[test]
fn v2_every_prefix_of_every_message_is_an_error() {
    let to_agent = crate::support::v2_to_agent().into_iter().map(|(_, _, bytes)| bytes);
    let to_datapath = crate::support::v2_to_datapath().into_iter().map(|(_, _, bytes)| bytes);
    for golden in to_agent.chain(to_datapath) {
        for len in 0..golden.len() {
            assert_eq!(v2::Frame::split(&golden[..len]), Ok(None), "a stream waits for the rest");
            if len > 0 {
                assert!(matches!(v2_agent(&golden[..len]), Err(DecodeError::Short { .. })));
            }
            if len >= v2::HEADER_BYTES {
                let mut cut = golden[..len].to_vec();
                cut[8..12].copy_from_slice(&(len as u32).to_le_bytes());
                assert!(v2_agent(&cut).is_err(), "{len} of {golden:?}");
                assert!(v2_datapath(&cut).is_err(), "{len} of {golden:?}");
            }
        }
    }
}

#[test]
fn v2_headers_and_versions_are_refused_by_field() {
    let mut frame = v2_frame("0300 10000000 00000000");
    assert_eq!(v2_agent(&frame), Ok(Some(v2::ToAgent::Done)));
    frame[0] = b'X';
    says(v2_agent(&frame), "magic: 0x4c504358 is not ccplane's");
    frame[0] = b'C';
    frame[4] = 3;
    says(v2_agent(&frame), "version: 3, only 2 is spoken");

    says(v2_agent(&v2_frame("0300 0f000000 00000000")), "header: needs 16 bytes, 15 are left");
    says(v2_agent(&v2_frame("0300 01000100 00000000")), "frame bytes: 65537, at most 65536 are allowed");

    // Appended bytes: skipped in a newer minor version, an error in ours.
    let mut longer = v2_frame("0300 11000000 00000000 00");
    says(v2_agent(&longer), "length: the header says 17 bytes, the content takes 16");
    longer[5] = v2::MINOR + 1;
    assert_eq!(v2_agent(&longer), Ok(Some(v2::ToAgent::Done)));

    // An unknown type: skipped if optional, refused if required.
    let unknown = v2_frame("4001 10000000 00000000");
    says(v2_agent(&unknown), "type: 320 is not known");
    says(v2_datapath(&unknown), "type: 320 is not known");
    let optional = v2_frame("4081 12000000 00000000 ffff");
    assert_eq!((v2_agent(&optional), v2_datapath(&optional)), (Ok(None), Ok(None)));
    let after = [optional, v2_frame("0300 10000000 00000000")].concat();
    let all: Vec<_> = v2::frames(&after).map(|frame| v2::ToAgent::parse(frame.unwrap())).collect();
    assert_eq!(all, [Ok(None), Ok(Some(v2::ToAgent::Done))]);

    says(
        v2_agent(&v2_frame("4800 10000000 00000000")),
        "type: GET_FLOWS was sent to the agent, which never receives it",
    );
    says(
        v2_datapath(&v2_frame("0300 10000000 00000000")),
        "type: DONE was sent to a datapath, which never receives it",
    );
}

#[test]
fn v2_negotiation_takes_the_highest_common_version() {
    assert_eq!(v2::negotiate(&(0..=3), &(0..=0)), Ok(0));
    assert_eq!(v2::negotiate(&(1..=2), &(0..=5)), Ok(2));
    assert_eq!(v2::negotiate(&(4..=6), &(0..=3)), Err(v2::TurnedAway::Version { min: 0, max: 3 }));
}

#[test]
fn v2_contents_are_refused_by_field() {
    says(v2_agent(&v2_frame("0700 12000000 00000000 0108")), "reports: 2049, at most 2048 are allowed");
    says(
        v2_agent(&v2_frame(
            "0700 2b000000 00000000 0100 0100000000000000 01000000 01000000 0100000000000000 61",
        )),
        "report 0: values: 97, at most 96 are allowed",
    );
    says(
        v2_datapath(&v2_frame("4600 24000000 00000000 0100000000000000 0100 0060 0000000000000000")),
        "field 0: register: 96 is above the limit 95",
    );
    says(
        v2_datapath(&v2_frame("4600 24000000 00000000 0100000000000000 0100 0101 0000000000000000")),
        "field 0: field: 1 is not a known code",
    );
    says(
        v2_datapath(&v2_frame("4600 1a000000 00000000 0100000000000000 6300")),
        "fields: 99, at most 98 are allowed",
    );
    says(
        v2_datapath(&v2_frame("4100 1d000000 00000000 00 00000000 0000000000000000")),
        "heartbeat_timeout_ms: must not be 0",
    );
    says(v2_datapath(&v2_frame("5000 11000000 00000000 03")), "hook: 3 is not a known code");

    let mut mixed = crate::support::info("10.0.0.1:1", "[::1]:2", None);
    let created = v2::ToAgent::Created { flow: FlowId(1), info: mixed.clone() };
    assert_eq!(created.encode(0, &mut Vec::new()), Err(EncodeError::MixedFamilies));
    mixed.mss_bytes = 0;
    let created = v2::ToAgent::Created { flow: FlowId(1), info: mixed };
    assert_eq!(created.encode(0, &mut Vec::new()), Err(EncodeError::Zero { field: "mss_bytes" }));
    let bad = [(Field::Reg(96), 0)];
    let update = v2::ToDatapath::Update { flow: FlowId(1), fields: (&bad).into() };
    assert!(matches!(
        update.encode(0, &mut Vec::new()),
        Err(EncodeError::TooLarge { field: "register", .. })
    ));
}

#[test]
fn v2_slots_are_refused_by_field() {
    let define = |code: &str| v2_frame(&format!("4900 19000000 00000000  02 {code}"));
    says(v2_datapath(&define("07031e2010010000")), "shape: 1168769942279 is not a known code");
    assert!(v2_datapath(&define("08031e2010010000")).is_ok());
    // An active snapshot has all flows.
    says(v2_datapath(&v2_frame("4a00 16000000 00000000  02 00 0100 0000")), "share: 1 is above the limit 0");
    says(v2_datapath(&v2_frame("4a00 16000000 00000000  02 02 0000 0000")), "part: 2 is not a known code");
    says(
        v2_datapath(&v2_frame("4a00 16000000 00000000  02 00 0000 0110")),
        "image: 4097, at most 4096 are allowed",
    );
    says(v2_agent(&v2_frame("0a00 12000000 00000000  1100")), "slots: 17, at most 16 are allowed");
    says(v2_agent(&v2_frame("0400 13000000 00000000  0b 01 03")), "what: 3 is not a known code");
    says(
        v2_datapath(&v2_frame("4100 26000000 00000000 01 01000000 0000000000000000 02 01000000 00000000")),
        "spin_us: 1 is above the limit 0",
    );
    for (wake, found) in [(v2::Wake::Dispatch, 3), (v2::Wake::Auto { cpu_percent: 10 }, 4)] {
        let welcome = v2::Welcome { minor: 1, heartbeat_timeout_ms: 1, session: 1, wake, ring_bytes: 0 };
        let error = v2::ToDatapath::Welcome(welcome).encode(0, &mut Vec::new());
        assert_eq!(
            error,
            Err(EncodeError::TooLarge { field: "wake", found, limit: 2 }),
            "not asked of a peer"
        );
    }
    let image = vec![0_u64; v2::MAX_IMAGE_WORDS + 1];
    let part = ccplane_contract::Part::Active;
    let push = |words| v2::ToDatapath::Push { slot: 0, part, image: image[..words].into() };
    assert_eq!(push(v2::MAX_IMAGE_WORDS).encode(1, &mut Vec::new()), Ok(()), "an image is one frame");
    let error = push(v2::MAX_IMAGE_WORDS + 1).encode(1, &mut Vec::new());
    assert_eq!(error, Err(EncodeError::TooMany { field: "image", found: 4097, limit: 4096 }));
}

/// An agent of minor version 0 hears of slots in words, and nothing of policies.
#[test]
fn v2_to_an_older_agent() {
    let error = DatapathError::NoSlot(3);
    let words = DatapathError::Refused { at: None, reason: error.to_string() };
    assert_eq!(v2::refusal_for(0, error.clone()), words);
    assert_eq!(v2::refusal_for(1, error.clone()), error);
    let other = DatapathError::NoFlow(FlowId(1));
    assert_eq!(v2::refusal_for(0, other.clone()), other);
    let stats = crate::support::deciding();
    assert_eq!(v2::stats_for(1, stats.clone()), stats);
    assert_eq!(v2::stats_for(0, stats).policy, None);
}

#[test]
fn v2_programs_that_do_not_verify_are_refused() {
    let mut bytes = Vec::new();
    v2::encode_program(&crate::support::program(), &mut bytes).unwrap();
    let last = bytes.len();
    says(
        v2::decode_program(&[&bytes[..], &[0]].concat()),
        &format!("length: the header says {} bytes, the content takes {last}", last + 1),
    );
    says(v2::decode_program(&[97, 0, 0, 0, 0]), "registers: 97, at most 96 are allowed");
    says(v2::decode_program(&[0, 0, 0, 1, 4]), "instructions: 1025, at most 1024 are allowed");
    // One clause without a condition that sets register 200.
    let program = hex("00 00 01 0100  0000 0100 02  00 00c8 02 02");
    assert_eq!(v2::decode_program(&program), Err(DecodeError::Program(VerifyError::BadIndex { inst: 0 })));
    // A clause that is longer than the program.
    let program = hex("00 00 01 0000  0000 0100 02");
    assert_eq!(v2::decode_program(&program), Err(DecodeError::Program(VerifyError::BadClause { clause: 0 })));
    // Two clauses whose lengths overflow the index of an instruction.
    let program = hex("00 00 02 0000  ffff ffff 02  ffff ffff 02");
    says(v2::decode_program(&program), "clause 0: instructions: 131070, at most 1024 are allowed");
}

#[test]
fn v2_programs_that_do_not_fit_are_refused() {
    let encode = |name: String, kept: usize| {
        let init = 0;
        let reg = RegDecl { name, kind: RegKind::Control, ty: Type::Num, volatile: false, init };
        let history = HistoryDecl { depth: 1, regs: vec![0; kept] };
        let program = Program::new(vec![reg], vec![], vec![], vec![history]).map_err(|e| e.to_string())?;
        let mut out = vec![9];
        let result = v2::encode_program(&program, &mut out);
        assert!(result.is_ok() || out == [9], "nothing is left behind");
        result.map_err(|e| e.to_string())
    };
    assert_eq!(encode("a".repeat(255), 64), Ok(()));
    assert_eq!(encode("a".repeat(256), 64).unwrap_err(), "register name: 256, at most 255 are allowed");
    assert_eq!(
        encode(String::new(), 65).unwrap_err(),
        "65 history cells, at most 64 are allowed",
        "by the IR"
    );
}

#[test]
fn v2_a_verbose_refusal_is_cut_between_characters() {
    let reason = "é".repeat(2000);
    let msg = v2::ToAgent::Refused(DatapathError::Refused { at: None, reason });
    let mut bytes = Vec::new();
    msg.encode(1, &mut bytes).unwrap();
    let cut = DatapathError::Refused { at: None, reason: "é".repeat(v2::MAX_REASON_BYTES / 2) };
    assert_eq!(v2_agent(&bytes), Ok(Some(v2::ToAgent::Refused(cut))));

    let uid = ProgramUid(1);
    let msg = v2::ToAgent::Refused(DatapathError::ProgramInUse { uid, flows: usize::MAX });
    bytes.clear();
    msg.encode(1, &mut bytes).unwrap();
    let clamped = DatapathError::ProgramInUse { uid, flows: u32::MAX as usize };
    assert_eq!(v2_agent(&bytes), Ok(Some(v2::ToAgent::Refused(clamped))));
}

#[test]
fn v2_a_batch_ends_at_its_limits() {
    let values = [0_i64; 64];
    let report = |values: &'static [i64]| v2::Report {
        flow: FlowId(1),
        program: ProgramUid(1),
        seq: 1,
        at_us: 1,
        values: values.into(),
    };
    let values: &'static [i64; 64] = Box::leak(Box::new(values));
    let mut out = Vec::new();
    let mut batch = v2::ReportBatch::start(&mut out).unwrap();
    let error = loop {
        if let Err(e) = batch.push(&report(values)) {
            break e;
        }
    };
    assert!(matches!(error, EncodeError::TooMany { field: "frame bytes", limit: v2::MAX_FRAME_BYTES, .. }));
    assert_eq!(batch.len(), (v2::MAX_FRAME_BYTES - 18) / (25 + 8 * 64));
    assert!(matches!(v2_agent(&out), Ok(Some(v2::ToAgent::Reports(r))) if r.len() == 122));

    out.clear();
    let mut batch = v2::ReportBatch::start(&mut out).unwrap();
    while batch.push(&report(&[])).is_ok() {}
    assert_eq!(batch.len(), v2::MAX_REPORTS);
    assert!(matches!(v2_agent(&out), Ok(Some(v2::ToAgent::Reports(r))) if r.len() == v2::MAX_REPORTS));

    let too_many: &'static [i64] = &[0; 97];
    let mut batch = v2::ReportBatch::start(&mut out).unwrap();
    assert_eq!(
        batch.push(&report(too_many)),
        Err(EncodeError::TooMany { field: "values", found: 97, limit: 96 })
    );
}

#[test]
fn v2_numbers_of_variable_length() {
    // uid, seq and at_us are 1, and there are no values.
    let report = |flow: &str| {
        let body = hex(&format!("{flow} 01 01 01 00"));
        let mut frame = v2_frame("0c00 00000000 00000000");
        frame.extend(&body);
        let len = frame.len() as u32;
        frame[8..12].copy_from_slice(&len.to_le_bytes());
        frame
    };
    let flow = |bytes: &[u8]| match v2_agent(bytes) {
        Ok(Some(v2::ToAgent::Report(report))) => report.flow.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(flow(&report("00")), 0);
    assert_eq!(flow(&report("ff01")), 255);
    assert_eq!(flow(&report("ffffffffffffffffff01")), u64::MAX);
    let too_long = "flow: a number in too many bytes is not allowed here";
    // A zero behind, a bit too many, and bytes without end.
    for long in ["8000", "ff8000", "ffffffffffffffffff02", "8080808080808080808000"] {
        says(v2_agent(&report(long)), too_long);
    }
    says(v2_agent(&v2_frame("0c00 12000000 00000000 ffff")), "flow: needs 3 bytes, 2 are left");
    says(
        v2_agent(&v2_frame("0c00 19000000 00000000 01 8080808010 01 01 00")),
        "uid: 4294967296 is above the limit 4294967295",
    );
    says(v2_agent(&v2_frame("0c00 15000000 00000000 01 01 01 01 61")), "values: 97, at most 96 are allowed");
    says(
        v2_agent(&v2_frame("0c00 16000000 00000000 01 01 01 01 01 80")),
        "value 0: value: needs 2 bytes, 1 are left",
    );
    says(v2_datapath(&report("01")), "type: REPORT was sent to a datapath, which never receives it");
    let values = [0; 97];
    let too_many =
        v2::Report { flow: FlowId(1), program: ProgramUid(1), seq: 1, at_us: 1, values: (&values).into() };
    let mut out = Vec::new();
    assert_eq!(
        v2::encode_report(&too_many, &mut out),
        Err(EncodeError::TooMany { field: "values", found: 97, limit: 96 })
    );
    assert!(out.is_empty());
}
