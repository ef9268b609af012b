//! A process that takes classifiers back once the agent has gone, however that ended: what is attached by traffic control's
//! requests, unlike a link, belongs to no descriptor.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::unistd::{pipe2, read, write};

use super::netlink::{Request, TrafficControl, ask, remove_classifier, remove_qdisc_if_empty};
use super::options::MAX_DEVICES;
use ccplane_bpf::detached_process;

/// The requests that take a device's classifier back.
#[derive(Clone, Copy)]
struct Duty {
    ifindex: u32,
    classifier: Request,
    /// Whether the qdisc is ours, too.
    qdisc: bool,
}

/// The guard, as its agent has it. Dropped, it does its work, and the agent waits until that is done.
pub struct Guard {
    /// The end that tells the guard, by being closed, that its time has come.
    alive: Option<OwnedFd>,
    done: std::fs::File,
    duties: [Option<Duty>; MAX_DEVICES],
    control: TrafficControl,
}

impl Guard {
    /// Starts a guard for these devices, each with whether its qdisc is ours.
    pub fn start(control: TrafficControl, devices: &[(u32, bool)]) -> io::Result<Guard> {
        let mut duties = [None; MAX_DEVICES];
        for (duty, (ifindex, qdisc)) in duties.iter_mut().zip(devices) {
            let classifier = remove_classifier(*ifindex);
            *duty = Some(Duty { ifindex: *ifindex, classifier, qdisc: *qdisc });
        }
        let (alive_end, alive) = pipe2(OFlag::O_CLOEXEC)?;
        let (done, done_end) = pipe2(OFlag::O_CLOEXEC)?;
        let mut keep = [alive_end.as_raw_fd(), done_end.as_raw_fd(), control.fd()];
        keep.sort_unstable();
        let socket = control.fd();
        detached_process(&keep, || {
            let mut nothing = [0; 1];
            // Nobody writes: this returns when the agent's end is closed.
            while matches!(read(&alive_end, &mut nothing), Err(nix::errno::Errno::EINTR)) {}
            let left = fulfil(socket, &duties);
            let _ = write(&done_end, &[u8::from(left)]);
        })?;
        Ok(Guard { alive: Some(alive), done: done.into(), duties, control })
    }
}

/// Takes everything back; whether something is left.
fn fulfil(socket: i32, duties: &[Option<Duty>; MAX_DEVICES]) -> bool {
    let mut left = false;
    for duty in duties.iter().flatten() {
        left |= ask(socket, &duty.classifier).is_err();
        left |= duty.qdisc && remove_qdisc_if_empty(socket, duty.ifindex).is_err();
    }
    left
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.alive = None;
        let mut answer = Vec::new();
        let answered = self.done.read_to_end(&mut answer).is_ok() && !answer.is_empty();
        if !answered {
            // Somebody has ended the guard. A device that has gone has taken its classifiers along.
            let _ = fulfil(self.control.fd(), &self.duties);
        }
    }
}
