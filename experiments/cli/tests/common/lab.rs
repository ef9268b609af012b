//! An agent's home with a link of its own, and live flows of the kernel's datapath on it.

use super::{Agent, Home, command, is_registered, stderr, wait_for};
use ccplane_emulator::{Emulator, LinkConfig, Queue, Shape};
use ccplane_runner::traffic::{BulkFlow, FlowConfig, TcpSample};
use ccplane_testing::killed::{Marked, Suite};
use ccplane_testing::{Mishap, STALL, WATCHED, lacks, wait_within, within_tries};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longer than any test.
pub const LONG: Duration = Duration::from_secs(600);
/// Time between two samples of a flow.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// The link: 20 Mb/s, 10 ms each way.
pub const LINK_MBIT: u32 = 20;
const DELAY_US: u64 = 10_000;
/// The default configuration of labs: times longer than a busy machine keeps an agent waiting.
const PACE: &str = "agent.heartbeat_timeout_ms = 1000\ncontrol.timeout_ms = 5000\n";
/// The directory of a home on which a test mounts a small disk.
const DISK: &str = "disk";
/// Files of such a disk grow by so much.
const PAGE_BYTES: u64 = 4096;
/// Homes of agents that pin objects in the kernel.
pub static LABS: Suite = Suite::new("ccplane-lab", clean);

pub struct Lab {
    pub home: Home,
    pub name: String,
    pub link: Emulator,
    _marked: Marked,
}

/// Takes away the congestion control that the pins in a killed test's directory keep, and its small disk.
fn clean(dir: &Path) -> Result<(), String> {
    let mut doctor = command(&["doctor", "--clean"]);
    let output = doctor.env("CCPLANE_CONFIG", dir.join("agent.toml")).output();
    let output = output.map_err(|error| error.to_string())?;
    // Most have none.
    let _ = umount2(&dir.join(DISK), MntFlags::MNT_DETACH);
    if output.status.success() { Ok(()) } else { Err(stderr(&output)) }
}

/// A disk of one mebibyte in a lab's home, on which everything lies that its agent writes.
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    pub fn mount(lab: &Lab) -> SmallDisk {
        let path = lab.home.path(DISK);
        fs::create_dir(&path).unwrap();
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some("size=1m,mode=700")).unwrap();
        let config = fs::read_to_string(lab.home.config()).unwrap();
        let home = lab.home.dir().to_str().unwrap();
        fs::write(lab.home.config(), config.replace(home, path.to_str().unwrap())).unwrap();
        SmallDisk { path }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes until not one more page fits, and appends line ends to these files until so many bytes are left of their last pages.
    pub fn fill(&self, appended: &[(&Path, u64)]) {
        for (path, left) in appended {
            let mut file = fs::File::options().append(true).open(path).unwrap();
            let used = (fs::metadata(path).unwrap().len() + left) % PAGE_BYTES;
            file.write_all(&vec![b'\n'; (PAGE_BYTES - used) as usize]).unwrap();
        }
        let mut file = fs::File::create(self.path("filler")).unwrap();
        let page = vec![0; PAGE_BYTES as usize];
        let full = std::iter::repeat_with(|| file.write(&page)).find_map(Result::err);
        assert_eq!(full.unwrap().kind(), ErrorKind::StorageFull);
    }

    pub fn free(&self) {
        fs::remove_file(self.path("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = umount2(&self.path, MntFlags::MNT_DETACH);
        assert!(unmounted.is_ok() || std::thread::panicking(), "{unmounted:?}");
    }
}

impl Lab {
    /// Returns none, and reports a skip, where the machine cannot run the test.
    pub fn new(test: &str, algorithm: &str) -> Option<Lab> {
        Lab::with(test, algorithm, PACE)
    }

    /// Makes a lab as [`Lab::new`] does, with a configuration of its own.
    pub fn with(test: &str, algorithm: &str, more: &str) -> Option<Lab> {
        if lacks(test, ccplane_ebpf::missing()) || lacks(test, ccplane_runner::missing_for_links().first()) {
            return None;
        }
        let home = Home::new("");
        let _marked = LABS.mark(home.dir()).unwrap();
        let name = format!("ccd_{test}");
        let run_dir = home.dir().display();
        home.configure(&format!(
            "default_algorithm = \"{algorithm}\"\n{more}datapath.ebpf.mode = \"on\"\n\
             datapath.ebpf.name = \"{name}\"\ndatapath.ebpf.run_dir = \"{run_dir}\"\n"
        ));
        let mut link = LinkConfig::symmetric(Shape::mbit(LINK_MBIT), DELAY_US);
        link.up.queue = Queue::packets(50);
        Some(Lab { home, name, link: Emulator::start(&link).unwrap(), _marked })
    }

    pub fn flow(&self) -> BulkFlow {
        self.flow_of(&self.name)
    }

    pub fn flow_of(&self, congestion: &str) -> BulkFlow {
        self.flow_to(congestion, 0)
    }

    /// To this port of the receiver's; 0 for any.
    pub fn flow_to(&self, congestion: &str, port: u16) -> BulkFlow {
        let config = FlowConfig {
            congestion: congestion.to_owned(),
            receiver: SocketAddr::new(self.link.receiver_addresses().v4.into(), port),
            duration: LONG,
            bytes: None,
            sample_every: SAMPLE_EVERY,
        };
        BulkFlow::start(&config, self.link.sender_ns(), self.link.receiver_ns(), Instant::now()).unwrap()
    }

    /// `ccplane flows`, as JSON.
    pub fn flows(&self) -> Value {
        self.home.json(&["flows"])
    }

    pub fn wait_for_mode(&self, mode: &str) {
        wait_for(mode, || (self.flows()["flows"][0]["mode"] == mode).then_some(()));
    }

    pub fn is_registered(&self) -> bool {
        is_registered(&self.name)
    }

    /// The line that the agent logs when it has attached.
    pub fn attached(&self, flows_adopted: usize) -> String {
        let name = &self.name;
        format!("kernel datapath attached name={name:?} flows_adopted={flows_adopted} max_flows=4096")
    }

    pub fn pin_dir(&self) -> PathBuf {
        self.home.path("bpf").join(&self.name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Whatever a test that failed has left.
        let _ = self.home.run(&["doctor", "--clean"]);
    }
}

/// The newest sample of a flow.
pub fn sample(flow: &BulkFlow) -> TcpSample {
    wait_for("a sample", || flow.latest())
}

/// Waits until a flow has had four fifths of the link for half a second.
pub fn wait_until_full(flow: &BulkFlow) {
    let mut from = sample(flow);
    wait_for("the flow fills the link", || {
        let now = sample(flow);
        let took_us = now.at_us - from.at_us;
        if took_us < 500_000 {
            return None;
        }
        // The link carries LINK_MBIT / 8 bytes in a microsecond.
        let is_full = now.info.bytes_acked - from.info.bytes_acked >= took_us * u64::from(LINK_MBIT) / 10;
        from = now;
        is_full.then_some(())
    });
}

/// Bytes acknowledged during `window`, by the clock of the flow's own samples: these may be older than now.
pub fn acked(flow: &BulkFlow, window: Duration) -> u64 {
    let (before, window_us) = (sample(flow), window.as_micros() as u64);
    let after = wait_for("the end of a window", || {
        Some(sample(flow)).filter(|now| now.at_us - before.at_us >= window_us)
    });
    (after.info.bytes_acked - before.info.bytes_acked) * window_us / (after.at_us - before.at_us)
}

/// Bytes acknowledged during a `window` in which they were at least as many as are due. A machine that holds everything up for
/// a while spoils one window, and what is wrong with a flow spoils each of `tries`.
pub fn acked_at_least(check: &str, flow: &BulkFlow, window: Duration, due: u64, tries: u32) -> u64 {
    within_tries(check, tries, |_| match acked(flow, window) {
        got if got < due => Err(format!("{got} of {due} bytes in {window:?}")),
        got => Ok(got),
    })
}

/// Something is about to happen to a flow.
pub fn mishap(flow: &BulkFlow, what: impl Into<String>) -> Mishap {
    Mishap { what: what.into(), at_us: sample(flow).at_us }
}

/// Ends a flow, which from each mishap to the next, and from the last one until now, was never without progress for longer
/// than [`STALL`]. Where the last one was shortly before, it is awaited for as long as shows a stall.
pub fn assert_never_stalled(flow: BulkFlow, mishaps: &[Mishap]) {
    let last_us = mishaps.last().unwrap().at_us;
    wait_for("a stall would show", || {
        (sample(&flow).at_us > last_us + WATCHED.as_micros() as u64).then_some(())
    });
    flow.stop();
    let outcome = flow.finish().unwrap();
    assert_eq!(outcome.samples_dropped, 0);
    let acked: Vec<(u64, u64)> = outcome.samples.iter().map(|s| (s.at_us, s.info.bytes_acked)).collect();
    ccplane_testing::assert_never_stalled(&acked, mishaps, STALL);
}

/// The flow does not stall now.
pub fn assert_runs(flow: &BulkFlow, when: &str) {
    let before = sample(flow).info.bytes_acked;
    let goes_on = || (sample(flow).info.bytes_acked > before).then_some(());
    wait_within(STALL, &format!("the flow goes on {when}"), goes_on);
}

pub fn kill_9(mut agent: Agent) {
    agent.signal(Signal::SIGKILL);
    assert_eq!(agent.wait(), None);
}
