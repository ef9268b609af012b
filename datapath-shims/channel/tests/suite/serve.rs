//! A datapath that is served: what an agent asks is done and answered, what happens is told, and nothing is lost on the
//! way or held up by it.

use std::time::{Duration, Instant};

use crate::common::{Agent, info, programs_of, report, toy};
use ccplane_channel::{Mismatch, ServeOptions, Transport, Wake, Waker};
use ccplane_contract::fake::FakeDatapath;
use ccplane_contract::suite::images;
use ccplane_contract::{Datapath, Event, Field, FlowId, Part, ProgramUid};
use ccplane_infer::{Bits, Shape};
use ccplane_program::compile;
use ccplane_testing::{wait_until, wait_within};
use ccplane_wire::DecodeError;
use ccplane_wire::v2::{ByeReason, MAJOR, ToDatapath, TurnedAway};

const PROGRAM: &str = "(def (Report (volatile acked 0)) (gain 3)) \
                       (when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (report))";
const BOTH: [Transport; 2] = [Transport::Ring, Transport::Socket];
/// A sleep of this length means that the thread was not woken; a busy machine takes far less.
const ASLEEP: Duration = Duration::from_secs(60);
const WOKEN_WITHIN: Duration = Duration::from_secs(30);

fn install(uid: u32) -> ToDatapath<'static> {
    ToDatapath::Install { uid: ProgramUid(uid), program: compile(PROGRAM).unwrap() }
}

/// An agent that has taken a datapath on.
fn taken_on(transport: Transport) -> (Agent, FakeDatapath) {
    let (mut agent, mut toy) = (Agent::new(transport), toy());
    agent.connect(&mut toy);
    (agent, toy)
}

/// Turns until nothing more is to be done; what the agent hears.
fn settle(agent: &mut Agent, toy: &mut FakeDatapath) -> Vec<(u32, String)> {
    let mut received = Vec::new();
    for _ in 0..20 {
        agent.turn(toy);
        received.extend(agent.received());
    }
    received
}

fn starts(received: &[(u32, String)], expected: &[(u32, &str)]) {
    let same = received.len() == expected.len()
        && received.iter().zip(expected).all(|(h, e)| h.0 == e.0 && h.1.starts_with(e.1));
    assert!(same, "{received:?}, expected {expected:?}");
}

#[test]
fn commands_are_done_and_answered() {
    for transport in BOTH {
        let (mut agent, mut toy) = taken_on(transport);
        assert_eq!(agent.served.has_ring(), transport == Transport::Ring);
        toy.start(FlowId(7), info());
        agent.say(&install(1), 1);
        agent.say(&install(1), 2);
        let fields = [(Field::Cwnd, 9)];
        let set = ToDatapath::SetProgram { flow: FlowId(7), uid: ProgramUid(1), fields: (&fields).into() };
        agent.say(&set, 3);
        agent.say(&set, 0);
        agent.say(&ToDatapath::Update { flow: FlowId(7), fields: (&fields).into() }, 0);
        agent.say(&ToDatapath::Update { flow: FlowId(8), fields: (&fields).into() }, 0);
        agent.say(&ToDatapath::GetFlows, 4);
        agent.say(&ToDatapath::Heartbeat { now_us: 1 }, 0);
        agent.say(&ToDatapath::Release { flow: FlowId(7) }, 5);
        agent.say(&ToDatapath::Remove { uid: ProgramUid(1) }, 6);
        let received = settle(&mut agent, &mut toy);
        starts(
            &received,
            &[
                (1, "Installed"),
                (2, "Refused"),
                (3, "Done"),
                (0, "Refused(NoFlow"),
                (5, "Done"),
                (6, "Done"),
                (4, "FlowStats { last: true"),
                (0, "Created"),
            ],
        );
        let updates = toy.changes.iter().filter(|change| change.starts.is_none()).count();
        assert_eq!((toy.heartbeats, updates, toy.programs.iter().count()), (1, 1, 0));
    }
}

#[test]
fn slots_are_pushed_to_and_listed() {
    for transport in BOTH {
        let (mut agent, mut toy) = taken_on(transport);
        let shape = Shape::new(Bits::W16, &[54, 64, 60, 1]).unwrap();
        let [one, two] = [1, 2].map(|uid| images::idle(&shape, uid));
        assert!(one.len() * 8 > 30_000, "nearly the largest");
        agent.say(&ToDatapath::DefineSlot { slot: 3, shape }, 1);
        agent.say(&ToDatapath::Push { slot: 3, part: Part::Active, image: one.as_slice().into() }, 2);
        agent.say(
            &ToDatapath::Push { slot: 3, part: Part::Canary { share: 9 }, image: two.as_slice().into() },
            3,
        );
        agent.say(&ToDatapath::Push { slot: 2, part: Part::Active, image: two.as_slice().into() }, 4);
        agent.say(&ToDatapath::Share { slot: 3, share: 10 }, 5);
        agent.say(&ToDatapath::Promote { slot: 3 }, 6);
        agent.say(&ToDatapath::Promote { slot: 3 }, 7);
        agent.say(&ToDatapath::Rollback { slot: 3 }, 8);
        agent.say(&ToDatapath::GetSlots, 9);
        let received = settle(&mut agent, &mut toy);
        starts(
            &received,
            &[
                (1, "Done"),
                (2, "Done"),
                (3, "Done"),
                (4, "Refused(NoSlot(2))"),
                (5, "Done"),
                (6, "Done"),
                (7, "Refused(NoSnapshot { slot: 3, what: \"canary\" })"),
                (8, "Done"),
                (9, "Slots([SlotStats { slot: 3"),
            ],
        );
        assert_eq!(toy.slots()[0].active.unwrap().0, 1);
    }
}

/// Buffers that are still being read are waited for, and commands stay in their order.
#[test]
fn a_busy_slot_is_tried_again() {
    let (mut agent, mut toy) = (Agent::new(Transport::Ring), toy());
    agent.connect(&mut toy);
    let shape = Shape::new(Bits::W8, &[2, 1]).unwrap();
    let image = images::idle(&shape, 1);
    let push = ToDatapath::Push { slot: 0, part: Part::Canary { share: 1 }, image: image.as_slice().into() };
    toy.busy_pushes = 5;
    agent.say(&ToDatapath::DefineSlot { slot: 0, shape }, 1);
    agent.say(&push, 2);
    agent.say(&ToDatapath::Promote { slot: 0 }, 3);
    starts(&settle(&mut agent, &mut toy), &[(1, "Done"), (2, "Done"), (3, "Done")]);
    // For ever busy: refused in the end.
    toy.busy_pushes = u32::MAX;
    agent.say(&push, 4);
    agent.say(&ToDatapath::GetSlots, 5);
    let mut received = settle(&mut agent, &mut toy);
    received.extend(settle(&mut agent, &mut toy));
    starts(&received, &[(4, "Refused(SlotBusy"), (5, "Slots")]);
}

/// An agent that does not read keeps neither the datapath's thread nor its heartbeats; what it missed is still in the
/// datapath's own queue, which counts what does not fit.
#[test]
fn an_agent_that_does_not_read_holds_nobody_up() {
    for transport in BOTH {
        let (mut agent, mut toy) = taken_on(transport);
        let total = 40_000;
        toy.events = (1..=total).map(|seq| report(FlowId(1), seq)).collect();
        let start = Instant::now();
        let mut taken = 0;
        for n in 0..2000 {
            taken += agent.turn(&mut toy).events;
            if n % 100 == 0 {
                agent.say(&ToDatapath::Heartbeat { now_us: n }, 0);
                agent.say(&ToDatapath::GetFlows, 0);
                agent.say(&ToDatapath::GetSlots, 0);
            }
        }
        assert!(start.elapsed() < WOKEN_WITHIN);
        assert!(taken < total as usize, "it stopped taking: {taken}");
        assert_eq!(toy.heartbeats, 20);
        let left = toy.events.len();
        assert_eq!(taken + left, total as usize);
        // Now it reads: nothing of what was taken is lost.
        let (mut next, mut turns) = (1, 0);
        while next <= total {
            for (_, said) in agent.received() {
                while said.contains(&format!("seq: {next},")) {
                    next += 1;
                }
            }
            agent.turn(&mut toy);
            turns += 1;
            assert!(turns < 10_000, "{next} is missing");
        }
    }
}

/// The agent dies and another one comes: flows are announced to it, programs make room for its own.
#[test]
fn the_next_agent_finds_what_is_there() {
    for transport in BOTH {
        let (mut agent, mut toy) = taken_on(transport);
        toy.start(FlowId(7), info());
        let shape = Shape::new(Bits::W8, &[2, 1]).unwrap();
        agent.say(&ToDatapath::DefineSlot { slot: 0, shape }, 0);
        for uid in 1..=4 {
            agent.say(&install(uid), uid);
        }
        let none: &[(Field, i64)] = &[];
        let set = |uid| ToDatapath::SetProgram { flow: FlowId(7), uid: ProgramUid(uid), fields: none.into() };
        agent.say(&set(1), 0);
        assert_eq!(settle(&mut agent, &mut toy).len(), 5);
        agent.restart();
        agent.now_us += 1_000_000;
        agent.turn(&mut toy);
        assert!(!agent.turn(&mut toy).connected, "it is noticed");
        assert_eq!(programs_of(&toy), [(FlowId(7), Some(ProgramUid(1)))], "the flow goes on");
        agent.connect(&mut toy);
        starts(&settle(&mut agent, &mut toy), &[(0, "Created { flow: FlowId(7)")]);
        // The table is full of the dead agent's.
        agent.say(&install(11), 1);
        starts(&settle(&mut agent, &mut toy), &[(1, "Installed")]);
        agent.say(&set(11), 2);
        agent.say(&ToDatapath::Heartbeat { now_us: 1 }, 0);
        starts(&settle(&mut agent, &mut toy), &[(2, "Done")]);
        let left: Vec<ProgramUid> = toy.programs.iter().map(|(uid, _)| uid).collect();
        assert_eq!(left, [ProgramUid(11)]);
        // An agent of the same run asks for what it has asked for before.
        agent.say(&ToDatapath::Bye { reason: ByeReason::Protocol, text: "say HELLO first" }, 0);
        agent.connect(&mut toy);
        agent.say(&install(11), 3);
        let received = settle(&mut agent, &mut toy);
        assert!(received.contains(&(3, "Installed { uid: ProgramUid(11) }".to_owned())), "{received:?}");
        agent.say(&ToDatapath::Bye { reason: ByeReason::Stopping, text: "" }, 0);
        agent.turn(&mut toy);
        assert_eq!(
            programs_of(&toy),
            [(FlowId(7), None)],
            "an agent that stops leaves its flows to the native algorithm"
        );
    }
}

/// An agent of minor version 0 hears nothing of slots.
#[test]
fn an_older_agent_is_spoken_to_in_its_words() {
    let (mut agent, mut toy) = (Agent::new(Transport::Socket), toy());
    agent.minor = 0;
    agent.connect(&mut toy);
    let asks = compile("(def (Report (x 0))) (when true (history 3 Report.x) (policy 0))").unwrap();
    agent.say(&ToDatapath::Install { uid: ProgramUid(1), program: asks }, 1);
    starts(&settle(&mut agent, &mut toy), &[(1, "Refused(Refused { at: None")]);
}

/// A report that is alone has a message of its own since minor version 2; before, and beside others, it is in a batch.
#[test]
fn a_report_alone_is_said_as_the_agent_understands_it() {
    for (minor, alone) in
        [(2, "Report(SingleReport { flow: FlowId(1)"), (1, "Reports([Report { flow: FlowId(1)")]
    {
        let (mut agent, mut toy) = (Agent::new(Transport::Ring), toy());
        agent.minor = minor;
        agent.connect(&mut toy);
        settle(&mut agent, &mut toy);
        toy.events = vec![report(FlowId(1), 1)];
        starts(&settle(&mut agent, &mut toy), &[(0, alone)]);
        toy.events = vec![report(FlowId(1), 2), report(FlowId(2), 1), Event::Closed { flow: FlowId(2) }];
        let both = settle(&mut agent, &mut toy);
        starts(&both, &[(0, "Reports([Report { flow: FlowId(1)"), (0, "Closed")]);
        assert!(both[0].1.contains("FlowId(2)"), "{both:?}");
    }
}

/// Whoever listens and does not serve the datapath is told apart, until an agent serves it, or nobody listens.
#[test]
fn the_reason_for_which_nobody_serves_is_known() {
    /// Turns of a millisecond: more than an agent has to answer, and until it is tried again.
    const TURNS: usize = 2500;
    let (mut agent, mut toy) = (Agent::new(Transport::Socket), toy());
    let mut mismatch = |agent: &mut Agent, answer: Option<&[u8]>| {
        agent.answer = answer.map(<[u8]>::to_vec);
        for _ in 0..TURNS {
            assert!(!agent.turn(&mut toy).connected);
            if answer.is_some() {
                agent.take_hellos();
            } else {
                agent.forget();
            }
        }
        agent.served.mismatch().cloned()
    };
    let version = TurnedAway::Version { min: 7, max: 9 };
    let mut away = Vec::new();
    ToDatapath::TurnedAway(version).encode(0, &mut away).unwrap();
    let newer = [&away[..4], &[MAJOR + 1], &away[5..]].concat();
    // An INSTALL of CCP's own protocol, as portus sends one.
    let stock = [2, 0, 24, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(mismatch(&mut agent, None), Some(Mismatch::NoAnswer));
    assert_eq!(mismatch(&mut agent, Some(&away)), Some(Mismatch::TurnedAway(version)));
    let found = DecodeError::Version { found: MAJOR + 1, supported: MAJOR };
    assert_eq!(mismatch(&mut agent, Some(&newer)), Some(Mismatch::Answer(found)));
    let magic = DecodeError::Magic { found: 0x18_0002 };
    assert_eq!(mismatch(&mut agent, Some(&stock)), Some(Mismatch::Answer(magic)));
    agent.kill();
    assert_eq!(mismatch(&mut agent, None), None);
    agent.restart();
    agent.connect(&mut toy);
    assert_eq!(agent.served.mismatch(), None);
}

/// Garbage ends the conversation, and the next one begins.
#[test]
fn garbage_ends_the_conversation() {
    for transport in BOTH {
        let (mut agent, mut toy) = taken_on(transport);
        toy.start(FlowId(7), info());
        agent.say_bytes(b"CCPL\x02\x01garbage");
        assert!(!agent.turn(&mut toy).connected);
        assert!(agent.received().iter().any(|(_, said)| said.starts_with("Bye { reason: Protocol")));
        agent.connect(&mut toy);
        assert!(settle(&mut agent, &mut toy).iter().any(|(_, said)| said.starts_with("Created")));
    }
}

/// Whether a thread of this process sleeps: the state behind its name (proc(5), `/proc/pid/stat`).
fn is_asleep(thread: nix::unistd::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.trim_start().starts_with('S')
}

/// The serving thread sleeps until an event, a command or the time wakes it.
#[test]
fn whoever_waits_is_woken() {
    let (mut agent, mut toy) = (Agent::new(Transport::Ring), toy());
    agent.connect(&mut toy);
    settle(&mut agent, &mut toy);
    let waited = |agent: &mut Agent, timeout| {
        let start = Instant::now();
        agent.served.wait(timeout).unwrap();
        start.elapsed()
    };
    assert!(waited(&mut agent, Duration::from_millis(30)) >= Duration::from_millis(29));
    agent.say(&ToDatapath::Heartbeat { now_us: 1 }, 0);
    assert!(waited(&mut agent, ASLEEP) < WOKEN_WITHIN, "a command is there already");
    settle(&mut agent, &mut toy);

    let dir = tempfile::tempdir().unwrap();
    let waker = Waker::new().unwrap();
    let options = ServeOptions { waker: waker.clone(), ..ServeOptions::new("toy").unwrap() };
    let mut served = ccplane_channel::Served::connect(&dir.path().join("nobody"), options);
    served.turn(&mut toy, 0);
    waker.wake();
    let start = Instant::now();
    served.wait(ASLEEP).unwrap();
    assert!(start.elapsed() < WOKEN_WITHIN, "called before it slept");
    served.turn(&mut toy, 0);
    let waiting = nix::unistd::gettid();
    let late = std::thread::spawn(move || {
        wait_until("the thread sleeps", || is_asleep(waiting));
        waker.wake();
    });
    served.wait(ASLEEP).unwrap();
    assert!(start.elapsed() < WOKEN_WITHIN, "called while it slept");
    late.join().unwrap();
}

/// An agent that dies: at once where nothing else happens, within a tenth of a second while frames go.
#[test]
fn an_agent_that_dies_is_missed_in_time() {
    for asleep in [true, false] {
        let (mut agent, mut toy) = (Agent::new(Transport::Ring), toy());
        agent.connect(&mut toy);
        settle(&mut agent, &mut toy);
        let start = Instant::now();
        agent.kill();
        if asleep {
            agent.served.wait(ASLEEP).unwrap();
            assert!(start.elapsed() < WOKEN_WITHIN, "it is woken");
            assert!(!agent.turn(&mut toy).connected);
        } else {
            let turns = (0..).take_while(|_| agent.turn(&mut toy).connected).count();
            assert!(turns <= 100, "{turns} ms");
        }
    }
}

/// The commands that an agent sends before it goes take effect, however soon it is found gone.
#[test]
fn an_agents_last_words_are_heard() {
    for transport in BOTH {
        let (mut agent, mut toy) = taken_on(transport);
        toy.start(FlowId(7), info()).program = Some(ProgramUid(1));
        settle(&mut agent, &mut toy);
        agent.say(&ToDatapath::Bye { reason: ByeReason::Stopping, text: "" }, 0);
        agent.kill();
        // The next sign of life, which nobody hears, is due.
        agent.now_us += 1_000_000;
        agent.served.wait(ASLEEP).unwrap();
        assert!(!agent.turn(&mut toy).connected);
        assert_eq!(programs_of(&toy), [(FlowId(7), None)], "{transport:?}");
    }
}

#[test]
fn an_event_that_cannot_be_said_is_left_out() {
    let (mut agent, mut toy) = (Agent::new(Transport::Ring), toy());
    agent.connect(&mut toy);
    let long = Event::Report {
        flow: FlowId(1),
        program: ProgramUid(1),
        seq: 1,
        at_us: 1,
        values: vec![0; ccplane_program::ir::MAX_REGS + 1].into(),
    };
    toy.events =
        vec![long, report(FlowId(1), 2), Event::Dropped { count: 3 }, Event::Closed { flow: FlowId(1) }];
    starts(
        &settle(&mut agent, &mut toy),
        &[
            (0, "Report(SingleReport { flow: FlowId(1), program: ProgramUid(1), seq: 2"),
            (0, "Dropped"),
            (0, "Closed"),
        ],
    );
}

/// On a thread of its own, in each way to wait, until it is dropped.
#[test]
fn a_thread_serves_a_datapath() {
    for wake in [Wake::Sleep, Wake::Spin { us: 100 }, Wake::Busy, Wake::Auto { cpu_percent: 10 }] {
        let (mut agent, mut toy) = (Agent::new(Transport::Ring), toy());
        toy.start(FlowId(7), info());
        let options = ServeOptions { wake: Some(wake), ..ServeOptions::new("toy").unwrap() };
        let start = Instant::now();
        let now_us = move || start.elapsed().as_micros() as u64;
        let link = ccplane_channel::spawn(&agent.path(), Box::new(toy), now_us, options).unwrap();
        let mut received = Vec::new();
        wait_within(WOKEN_WITHIN, "an answer to the request", || {
            if agent.take_hellos() {
                agent.say(&ToDatapath::GetFlows, 1);
            }
            received.extend(agent.received_in_ring());
            received.iter().any(|(request, _)| *request == 1).then_some(())
        });
        assert!(link.is_connected() && link.commands() > 0);
        drop(link);
        assert!(
            agent.received().iter().any(|(_, said)| said.starts_with("Bye { reason: Stopping")),
            "{wake:?}"
        );
    }
}
