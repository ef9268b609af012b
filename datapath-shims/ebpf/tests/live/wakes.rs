//! The core from which an event wakes an agent that sleeps, for the agent to follow.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Lab, wait_for, wait_until};
use ccplane_contract::{Datapath, Event, ProgramUid};
use ccplane_ebpf::probe::Probe;
use ccplane_emulator::netns::Namespace;
use ccplane_testing::wait_for as wait_for_some;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;

const REPORTS: ProgramUid = ProgramUid(1);
/// The longest sleep of the test's own thread, which an event ends before.
const LONGEST: Duration = Duration::from_millis(20);
/// Time between two events.
const GAP: Duration = Duration::from_millis(1);

/// Ends the other thread however this one ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An idle connection in a namespace of its own, whose sender has this congestion control.
fn idle(congestion: &str) -> (Namespace, TcpStream, TcpStream) {
    let namespace = Namespace::anonymous().unwrap();
    let connect = || -> std::io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let to = TcpStream::connect(listener.local_addr()?)?;
        let (from, _) = listener.accept()?;
        setsockopt(&to, sockopt::TcpCongestion, &congestion.into())?;
        Ok((to, from))
    };
    let (to, from) = namespace.run(connect).unwrap().unwrap();
    (namespace, to, from)
}

#[test]
fn the_core_that_wakes_a_sleeper_is_known() {
    let Some(lab) = Lab::new("wakes") else { return };
    let program = ccplane_program::compile(
        "(def (Report (acks 0))) (when true (:= Report.acks (+ Report.acks 1)) (report))",
    )
    .unwrap();
    let mut datapath = lab.attach();
    assert_eq!(datapath.events().waker_core(), None);
    datapath.install(REPORTS, &program).unwrap();
    let _connection = idle(&lab.options.name);
    let flow = wait_for(&mut datapath, "Created", |event| match event {
        Event::Created { flow, .. } => Some(*flow),
        _ => None,
    });
    datapath.set_program(flow, REPORTS, &[]).unwrap();
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    for core in (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap()) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = Stop(&stop);
            let (stopped, options, program) = (stop.0, &lab.options, &program);
            scope.spawn(move || {
                let mut one = CpuSet::new();
                one.set(core).unwrap();
                sched_setaffinity(Pid::from_raw(0), &one).unwrap();
                let probe = wait_for_some("the flow's program is set", || Probe::open(options, program).ok());
                while !stopped.load(Ordering::Relaxed) {
                    probe.invoke().unwrap();
                    std::thread::sleep(GAP);
                }
            });
            let mut events = Vec::new();
            wait_until("reports, and the core that they are from", || {
                datapath.wait(LONGEST).unwrap();
                datapath.heartbeat();
                datapath.poll(1000, &mut events);
                let has_reported = events.iter().any(|event| matches!(event, Event::Report { .. }));
                has_reported && datapath.events().waker_core() == Some(core)
            });
        });
    }
    datapath.detach().unwrap();
}
