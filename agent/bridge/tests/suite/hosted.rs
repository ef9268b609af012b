//! Algorithms of this process: whom their messages reach, who is woken, and how they end.

use crate::common::{DP, PROGRAM, calls, start, stock};
use ccplane_alg::Algorithm;
use ccplane_bridge::{Hosted, Links, Options, Wire, WireError};
use ccplane_contract::fake::FakeDatapath;
use ccplane_contract::{Datapath, FlowId};
use ccplane_core::{Catalog, Config, Core, Rules, drive};
use ccplane_testing::wait_for;
use ccplane_wire::v1::{Bytecode, ChangeProg, Field, Install, ToAgent, ToDatapath};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

const NAME: &str = "echo";
const CWND_PACKETS: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_MS: u16 = 60_000;
/// Bytes of portus's own buffer.
const BUFFER: usize = 1024;

fn say(wire: &Wire, message: &ToDatapath<'_>, to: u32) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).unwrap();
    wire.send(&bytes, to);
}

/// Steers each flow, with a window that tells which loop it is of.
fn steer(wire: &Wire) -> Result<(), WireError> {
    let program = stock(PROGRAM);
    let mut buffer = [0; BUFFER];
    loop {
        let (bytes, from) = wire.recv(&mut buffer)?;
        for message in ToAgent::parse_all(&buffer[..bytes]) {
            match message.unwrap() {
                ToAgent::Ready { .. } => {
                    let code = Bytecode::try_from(&program).unwrap();
                    say(wire, &ToDatapath::Install(Install { sid: 0, program_uid: 1, code }), from);
                }
                ToAgent::Create(create) => {
                    let fields = [(Field::Cwnd, 10_000 * u64::from(from))];
                    let change = ChangeProg { sid: create.sid, program_uid: 1, fields: (&fields[..]).into() };
                    say(wire, &ToDatapath::ChangeProg(change), from);
                }
                ToAgent::Measure(_) | ToAgent::Close { .. } => {}
            }
        }
    }
}

/// Tells how it ended.
fn echo(ended: Sender<WireError>) -> Arc<dyn Algorithm> {
    Arc::new(Hosted::new(NAME, move |wire| {
        let running = wire.running();
        let over = steer(&wire).unwrap_err();
        assert!(!running.load(std::sync::atomic::Ordering::SeqCst));
        ended.send(over).map_err(|error| error.to_string())
    }))
}

struct Loop {
    core: Core,
    fake: FakeDatapath,
    links: Links,
}

impl Loop {
    fn new(algorithm: &Arc<dyn Algorithm>) -> Loop {
        let algorithms = [Arc::clone(algorithm)];
        let catalog = Catalog::new(algorithms.to_vec(), 100).unwrap();
        let mut core = Core::new(catalog, Rules::all(NAME), Config::default()).unwrap();
        let fake = FakeDatapath::default();
        core.attach(DP, fake.capabilities(), 0).unwrap();
        let nobody = PathBuf::from("/nonexistent");
        let options = Options {
            socket: nobody.clone(),
            takes_kernel_flows: false,
            own: nobody,
            silence_us: 1_000_000,
            max_flows: 8,
        };
        Loop { core, fake, links: Links::new(options, &algorithms, || ()).unwrap() }
    }

    /// Starts a flow, and has the core hear of it.
    fn start(&mut self, flow: u64) {
        start(&mut self.fake, flow, "192.0.2.7:443", CWND_PACKETS);
        self.turn();
    }

    fn turn(&mut self) {
        drive(&mut self.core, DP, &mut self.fake, 1);
        self.links.exchange(&mut self.core, 1);
        drive(&mut self.core, DP, &mut self.fake, 1);
    }

    /// Sleeps until there is something for this loop.
    fn sleep(&self, timeout: PollTimeout) -> bool {
        let ready = self.links.ready().unwrap();
        poll(&mut [PollFd::new(ready, PollFlags::POLLIN)], timeout).unwrap() > 0
    }

    fn turn_until(&mut self, what: &str, done: impl Fn(&Loop) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            assert!(self.sleep(PollTimeout::from(PATIENCE_MS)), "{what}: nothing woke the loop");
            self.turn();
        }
    }

    fn is_steered(&self, flow: u64) -> bool {
        self.core.flow(DP, FlowId(flow)).is_some_and(|flow| flow.native().is_none())
    }
}

#[test]
fn each_loop_is_a_datapath_of_its_own_and_is_woken_by_its_answers() {
    let (ended, end) = channel();
    let algorithm = echo(ended);
    let mut loops = [Loop::new(&algorithm), Loop::new(&algorithm)];
    for each in &mut loops {
        each.start(1);
        each.turn_until("it is steered", |each| each.is_steered(1));
    }
    // The numbers of loops begin with 1; both flows have the same sid.
    let windows = [["set 1 [(Cwnd, 10000)]"], ["set 1 [(Cwnd, 20000)]"]];
    for (each, window) in loops.iter_mut().zip(windows) {
        assert_eq!(calls(&mut each.fake), window);
    }
    // Nothing is left to hear.
    for each in &mut loops {
        each.turn();
        wait_for("all is handled", || (each.links.unhandled() == 0).then_some(()));
        assert!(!each.sleep(PollTimeout::ZERO));
    }
    // One loop ends and the other goes on.
    let [first, mut second] = loops;
    drop(first);
    second.start(2);
    second.turn_until("it is steered, too", |each| each.is_steered(2));
    assert!(end.try_recv().is_err());
    // The thread ends with the last that could send to it.
    drop(second);
    drop(algorithm);
    assert_eq!(end.recv_timeout(PATIENCE), Ok(WireError::Over));
}

#[test]
fn a_loop_is_woken_when_its_algorithm_ends() {
    let algorithm: Arc<dyn Algorithm> = Arc::new(Hosted::new(NAME, |wire: Wire| {
        let mut buffer = [0; BUFFER];
        wire.recv(&mut buffer).map_err(|error| error.to_string())?;
        Err("no more".to_owned())
    }));
    let mut one = Loop::new(&algorithm);
    one.start(1);
    let reason = |one: &Loop| one.core.flow(DP, FlowId(1)).unwrap().native().map(ToString::to_string);
    one.turn_until("it ends", |one| reason(one).is_some_and(|reason| reason.contains("ended")));
    assert_eq!(reason(&one).unwrap(), "echo has ended: no more");
    assert_eq!(one.links.unhandled(), 0);
}

#[test]
fn a_buffer_that_is_too_short_is_an_error_and_not_a_message_cut_off() {
    let (found, received) = channel();
    let algorithm: Arc<dyn Algorithm> = Arc::new(Hosted::new(NAME, move |wire: Wire| {
        let mut buffer = [0; 4];
        found.send(wire.recv(&mut buffer)).map_err(|error| error.to_string())
    }));
    let mut one = Loop::new(&algorithm);
    one.turn();
    let Err(WireError::TooLong { bytes, room: 4 }) = received.recv_timeout(PATIENCE).unwrap() else {
        panic!()
    };
    assert!(bytes > 4 && bytes <= BUFFER);
}
