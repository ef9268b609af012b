//! An agent that is killed while it pushes snapshots without pause, again and again.
//!
//! Flows decide on, each decision by the whole of one snapshot, and the next agent goes on from what the slot holds.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Lab, assert_never_stalled, created, kernel_says, mishap, stats, wait_until};
use ccplane_contract::suite::images;
use ccplane_contract::{Datapath, DatapathError, Field, Mode, Part, ProgramUid, SnapshotUid};
use ccplane_ebpf::{EbpfDatapath, Options, read_flows};
use ccplane_infer::image::{self, map};
use ccplane_infer::{Bits, FlowPolicy, Model, Shape};
use ccplane_program::ir::Program;
use ccplane_testing::wait_for;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

const SLOT: u8 = 0;
const WATCHER: ProgramUid = ProgramUid(1);
/// Widths of Aurora's network.
const WIDTHS: [usize; 4] = [30, 32, 16, 1];
/// Number of different snapshots: not the number of a slot's buffers, or each buffer would always get the same one.
const DIFFERENT: u32 = 7;
/// The largest action that an image may have.
const BOUND_Q16: u32 = 1 << 24;
const KILLS: u32 = 16;
/// Deployment numbers reserved for one agent's pushes.
const UIDS: u32 = 1_000_000;
/// Pushes that flows decide by before their agent is killed.
const PUSHES: u32 = 100;
/// Heartbeat timeout, long enough that flows do not miss an agent between two.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Environment variables for this test's own child process: the pushing agent's options and its first number.
const RUN_DIR: &str = "CCPLANE_TEST_RUN_DIR";
const NAME: &str = "CCPLANE_TEST_NAME";
const FIRST_UID: &str = "CCPLANE_TEST_FIRST_UID";

fn shape() -> Shape {
    Shape::new(Bits::W8, &WIDTHS).unwrap()
}

/// Makes images that change nothing of a flow, with their actions on inputs of 0, which all differ.
fn different() -> Vec<(Vec<u64>, i64)> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut all: Vec<(Vec<u64>, i64)> = Vec::new();
    while all.len() < DIFFERENT as usize {
        let mut image = images::image(&mut rng, &shape(), 1);
        for (at, value) in [
            (image::MAP, map::NONE),
            (image::ACTION_BOUND_Q16, BOUND_Q16),
            (image::TRIP_LIMIT, 0),
            (image::FLAGS, 0),
            // Beyond its limit the action would be 0.
            (image::CLIP_LIMIT, WIDTHS[0] as u32),
        ] {
            image::set_u32(&mut image, at, value);
        }
        image::set_u64(&mut image, image::STEP_Q20, 1);
        image::set_u64(&mut image, image::NOISE_MULT, 0);
        let bound = i64::from(BOUND_Q16);
        let action = Model::new(&shape(), &image).unwrap().infer(&[]).action_q16.clamp(-bound, bound);
        if all.iter().all(|(_, other)| *other != action) {
            all.push((image, action));
        }
    }
    all
}

/// The image that stands for `uid`.
fn named(images: &mut [(Vec<u64>, i64)], uid: u32) -> &[u64] {
    let image = &mut images[(uid % DIFFERENT) as usize].0;
    image::set_u32(image, image::UID, uid);
    image
}

/// A program that knows the action of each snapshot by `e0` ... and counts decisions with another's action.
///
/// The counts outlive the agent; a decision that a push overtook belongs to no snapshot.
fn watcher() -> Program {
    let names: Vec<String> = (0..DIFFERENT).map(|n| format!("e{n}")).collect();
    let declared: String = names.iter().map(|e| format!("({e} 0)")).collect();
    let chosen: String =
        names.iter().enumerate().map(|(n, e)| format!("(:= want (if (== which {n}) {e}))\n")).collect();
    let source = format!(
        "(def (Report (none 0)) {declared} (want 0) (which 0) (zero 0))
         (when (< Ack.now 0) (history 30 zero))
         (when true
           (policy {SLOT})
           (:= which (- Policy.snapshot (* {DIFFERENT} (/ Policy.snapshot {DIFFERENT}))))
           {chosen}
           (fallthrough))
         (when (&& (> Policy.snapshot 0) (|| (< want Policy.action) (> want Policy.action)))
           (:= which (/ 1 zero)))"
    );
    ccplane_program::compile(&source).unwrap()
}

/// The child process: pushes as fast as buffers rest, until it is killed.
fn push_for_ever(options: Options, mut uid: u32) -> ! {
    set_pdeathsig(Signal::SIGKILL).unwrap();
    let (mut datapath, mut images) = (EbpfDatapath::attach(options).unwrap(), different());
    datapath.define_slot(SLOT, &shape()).unwrap();
    let mut events = Vec::new();
    loop {
        match datapath.push(SLOT, named(&mut images, uid), Part::Active) {
            Ok(()) => uid += 1,
            Err(DatapathError::SlotBusy { .. }) => {
                datapath.heartbeat();
                datapath.poll(64, &mut events);
                events.clear();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Starts this test again, as the agent that pushes.
fn pusher(options: &Options, first_uid: u32) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "killed::mishaps::an_agent_killed_in_the_midst_of_a_push_leaves_the_slot_whole",
        "--nocapture",
    ]);
    command.env(RUN_DIR, &options.run_dir).env(NAME, &options.name).env(FIRST_UID, first_uid.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// The policy state of the flow.
fn policy(options: &Options) -> FlowPolicy {
    let flows = read_flows(options).unwrap().flows;
    assert_eq!((flows[0].mode, flows[0].transport.faults), (Mode::Program, 0), "{:?}", flows[0]);
    flows[0].policy.unwrap()
}

/// Waits until the flow has decided by a snapshot from `uid` on.
fn wait_for_uid(options: &Options, uid: u32) -> FlowPolicy {
    let decided = || Some(policy(options)).filter(|policy| policy.uid >= uid);
    wait_for(&format!("a decision by {uid}"), decided)
}

fn an_agent_killed_in_the_midst_of_a_push_leaves_the_slot_whole() -> Option<()> {
    if let (Ok(run_dir), Ok(name), Ok(uid)) = (env::var(RUN_DIR), env::var(NAME), env::var(FIRST_UID)) {
        let (run_dir, uid) = (run_dir.into(), uid.parse().unwrap());
        push_for_ever(Options { run_dir, name, heartbeat_timeout: HEARTBEAT, ..Options::default() }, uid);
    }
    let mut lab = Lab::new("pushes")?;
    lab.options.heartbeat_timeout = HEARTBEAT;
    let (mut datapath, mut images, program) = (lab.attach(), different(), watcher());
    datapath.define_slot(SLOT, &shape()).unwrap();
    datapath.push(SLOT, named(&mut images, 1), Part::Active).unwrap();
    datapath.install(WATCHER, &program).unwrap();
    let traffic = lab.own_flow();
    let flow = created(&mut datapath, &traffic);
    let expected = |(n, (_, action)): (usize, &(Vec<u64>, i64))| {
        (Field::Reg(program.reg(&format!("e{n}")).unwrap()), *action)
    };
    let expected: Vec<(Field, i64)> = images.iter().enumerate().map(expected).collect();
    datapath.set_program(flow, WATCHER, &expected).unwrap();
    stats(&mut datapath, flow, true, |f| f.policy.is_some_and(|p| p.uid == 1));
    datapath.leave();

    let mut mishaps = Vec::new();
    for kill in 1..=KILLS {
        let first = kill * UIDS;
        let mut agent = pusher(&lab.options, first);
        wait_for_uid(&lab.options, first + PUSHES);
        // Each kill hits another place of the loop.
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 137));
        mishaps.push(mishap(&traffic, &format!("kill -9 number {kill}")));
        agent.kill().unwrap();
        assert_eq!(agent.wait().unwrap().signal(), Some(Signal::SIGKILL as i32), "it pushed until then");
        let left = policy(&lab.options);
        let acked = kernel_says(&traffic, "a sample", |_| true).bytes_acked;
        wait_until("it decides on", || policy(&lab.options).decisions > left.decisions);
        kernel_says(&traffic, "the flow goes on", |info| info.bytes_acked > acked);
        let later = policy(&lab.options);
        assert!(later.uid >= left.uid, "{left:?}, then {later:?}");
    }

    let mut datapath = lab.attach();
    let refused = datapath.install(WATCHER, &program).unwrap_err();
    assert_eq!(refused, DatapathError::NoSlot(SLOT), "what another agent defined is not this one's word");
    datapath.define_slot(SLOT, &shape()).unwrap();
    let held = datapath.slots()[0].clone();
    let (Some(active), Some(last_good)) = (held.active, held.last_good) else { panic!("{held:?}") };
    assert!(held.canary.is_none() && active != last_good, "{held:?}");
    stats(&mut datapath, flow, true, |f| f.policy.is_some_and(|p| p.uid == active.0));
    let next = active.0 + 1;
    datapath.push(SLOT, named(&mut images, next), Part::Active).unwrap();
    let decides = stats(&mut datapath, flow, true, |f| f.policy.is_some_and(|p| p.uid == next));
    assert_eq!(datapath.slots()[0].active, Some(SnapshotUid(next)));
    assert_eq!((decides.mode, decides.transport.faults), (Mode::Program, 0));

    // Wrong decisions would have been counted.
    datapath.install(WATCHER, &program).unwrap();
    datapath.set_program(flow, WATCHER, &[]).unwrap();
    stats(&mut datapath, flow, true, |f| f.transport.faults > 0);
    assert_never_stalled(traffic, &mishaps, || datapath.heartbeat());
    datapath.detach().unwrap();
    Some(())
}

/// Each mishap happens to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        1 an_agent_killed_in_the_midst_of_a_push_leaves_the_slot_whole,
    }
}
