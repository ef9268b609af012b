//! Records real flows between namespaces and holds what is told against what their sockets did.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccplane_ebpf::record::{
    BurstEnd, FlowEnd, FlowEvent, Opener, RecordOptions, Recorder, Scope, program_ids,
};
use ccplane_ebpf::{EbpfError, clock_us};
use ccplane_emulator::netns::{self, Namespace};
use ccplane_emulator::veth;
use ccplane_testing::{PATIENCE, wait_until};

/// Held by each test whose flows another one could take for its own.
static ALONE: Mutex<()> = Mutex::new(());

const PORT: u16 = 7001;
/// Silences of the flows below are longer, and what they do between them is shorter by far.
const GAP_US: u64 = 150_000;
const SILENCE: Duration = Duration::from_millis(400);

/// Starts to record, or says why the test proves nothing.
fn record(test: &str, scope: Scope) -> Option<Recorder> {
    match Recorder::start(&RecordOptions { scope, burst_gap_us: GAP_US }) {
        Ok(recorder) => Some(recorder),
        Err(EbpfError::Btf(error)) => skip(test, &error),
        Err(EbpfError::Os { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => {
            skip(test, &source)
        }
        Err(error) => panic!("{error}"),
    }
}

fn skip<T>(test: &str, why: &dyn std::fmt::Display) -> Option<T> {
    ccplane_testing::skipped(test, why);
    None
}

fn inode(namespace: &Namespace) -> u32 {
    let ino = || std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino() as u32;
    namespace.run(ino).unwrap()
}

/// Waits for the ends of `count` flows; returns all that was told until then.
fn told(recorder: &Recorder, count: usize) -> (Vec<FlowEnd>, Vec<BurstEnd>) {
    let (mut ends, mut bursts) = (vec![], vec![]);
    let start = Instant::now();
    while ends.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} flows have ended", ends.len());
        recorder
            .poll(50, |event| match event {
                FlowEvent::Burst(burst) => bursts.push(burst),
                FlowEvent::End(end) => ends.push(end),
            })
            .unwrap();
    }
    (ends, bursts)
}

/// A request of two writes around a silence, and an answer.
struct Exchange {
    local: SocketAddr,
    remote: SocketAddr,
    begun_us: u64,
    done_us: u64,
}

const REQUEST: [usize; 2] = [1000, 30_000];
const ANSWER: usize = 700_000;

fn exchange(client: &Namespace, server: &Namespace, at: IpAddr) -> Exchange {
    let listener = server.run(|| TcpListener::bind((at, PORT)).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let answering = std::thread::Builder::new().name("rec-server".into());
        let served = answering.spawn_scoped(scope, move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; REQUEST.iter().sum()];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(&vec![7; ANSWER]).unwrap();
        });
        let begun_us = clock_us();
        let asking = std::thread::Builder::new().name("rec-client".into());
        let asked = asking.spawn_scoped(scope, || {
            let mut stream = client.run(|| TcpStream::connect((at, PORT)).unwrap()).unwrap();
            let (local, remote) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            stream.write_all(&vec![1; REQUEST[0]]).unwrap();
            std::thread::sleep(SILENCE);
            stream.write_all(&vec![2; REQUEST[1]]).unwrap();
            let mut answer = Vec::new();
            assert_eq!(stream.read_to_end(&mut answer).unwrap(), ANSWER);
            (local, remote)
        });
        served.unwrap().join().unwrap();
        let (local, remote) = asked.unwrap().join().unwrap();
        Exchange { local, remote, begun_us, done_us: clock_us() }
    })
}

fn comm(end: &FlowEnd) -> String {
    String::from_utf8_lossy(&end.comm).trim_end_matches('\0').to_owned()
}

/// Two namespaces with a cable between them; `None`, which is said, where there can be none.
fn cable(test: &str) -> Option<(Namespace, Namespace)> {
    if !netns::available() {
        ccplane_testing::skipped(test, "needs root to make network namespaces");
        return None;
    }
    let (client, server) = (Namespace::anonymous().unwrap(), Namespace::anonymous().unwrap());
    veth::connect(&client, &server).unwrap();
    Some((client, server))
}

#[test]
fn both_ends_are_told_as_they_were() {
    const TEST: &str = "both_ends_are_told_as_they_were";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((client, server)) = cable(TEST) else { return };
    let both = Scope::Namespaces(vec![inode(&client), inode(&server)]);
    let Some(recorder) = record(TEST, both) else { return };
    let seen = exchange(&client, &server, veth::ENDS[1]);
    let (ends, bursts) = told(&recorder, 2);
    let of = |opener| ends.iter().find(|end| end.opener == opener).unwrap();
    let (asked, served) = (of(Opener::Local), of(Opener::Remote));
    let request = REQUEST.iter().sum::<usize>() as u64;
    assert_eq!((asked.bytes_sent, asked.bytes_received), (request, ANSWER as u64));
    assert_eq!((served.bytes_sent, served.bytes_received), (ANSWER as u64, request));
    assert_eq!((asked.local, asked.remote), (seen.local, seen.remote));
    assert_eq!((served.local, served.remote), (seen.remote, seen.local));
    assert_eq!((comm(asked), comm(served)), ("rec-client".into(), "rec-server".into()));
    for end in &ends {
        assert!(
            seen.begun_us <= end.start_us && end.start_us <= end.end_us && end.end_us <= seen.done_us + 1000
        );
    }
    let of_flow = |flow| bursts.iter().filter(|b| b.flow == flow).map(|b| b.bytes).collect::<Vec<_>>();
    assert_eq!(of_flow(asked.flow), REQUEST.map(|n| n as u64));
    assert_eq!(of_flow(served.flow), [ANSWER as u64]);
    let of_request: Vec<_> = bursts.iter().filter(|b| b.flow == asked.flow).collect();
    let silence_us = of_request[1].start_us - of_request[0].start_us;
    assert!(silence_us >= SILENCE.as_micros() as u64, "{silence_us}");
    assert_eq!((recorder.counts().started, recorder.counts().missed_flows), (2, 0));
    assert_eq!(recorder.counts().lost_events, 0);
}

#[test]
fn only_the_namespaces_that_are_named_are_recorded() {
    const TEST: &str = "only_the_namespaces_that_are_named_are_recorded";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((client, server)) = cable(TEST) else { return };
    let Some(recorder) = record(TEST, Scope::Namespaces(vec![inode(&server)])) else { return };
    exchange(&client, &server, veth::ENDS[1]);
    let here = Namespace::anonymous().unwrap();
    exchange(&here, &here, "::1".parse().unwrap());
    exchange(&server, &server, "::1".parse().unwrap());
    let (ends, _) = told(&recorder, 3);
    assert_eq!(recorder.counts().started, 3, "one over the cable, both ends of the one over IPv6");
    let v6: Vec<_> = ends.iter().filter(|end| end.local.is_ipv6()).collect();
    assert_eq!(v6.len(), 2);
    assert!(v6.iter().all(|end| end.local.ip().to_string() == "::1" && end.remote.ip() == end.local.ip()));
    assert!(v6.iter().any(|end| end.local.port() == PORT));
}

#[test]
fn a_cgroup_is_told_with_those_below_it() {
    const TEST: &str = "a_cgroup_is_told_with_those_below_it";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(own) = own_cgroup() else {
        return ccplane_testing::skipped(TEST, "no cgroup (v2) hierarchy in which one may be made");
    };
    let namespace = Namespace::anonymous().unwrap();
    let scope = Scope::Cgroup { id: own.id, level: own.level };
    let Some(recorder) = record(TEST, scope) else { return };
    let at = "127.0.0.1".parse().unwrap();
    // Sockets of this process's own cgroup are not below it.
    exchange(&namespace, &namespace, at);
    std::fs::write(own.inner.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    exchange(&namespace, &namespace, at);
    own.leave();
    let (ends, _) = told(&recorder, 2);
    assert_eq!((ends.len(), recorder.counts().started), (2, 2));
}

/// A cgroup below that of this process, and one in it.
struct OwnCgroup {
    id: u64,
    level: u32,
    path: std::path::PathBuf,
    inner: std::path::PathBuf,
    before: std::path::PathBuf,
}

fn own_cgroup() -> Option<OwnCgroup> {
    let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(std::path::PathBuf::from);
    let root = root.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
    let lines = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let before = root.join(lines.lines().find_map(|line| line.strip_prefix("0::/"))?);
    let path = before.join(format!("ccplane-record-{}", std::process::id()));
    let inner = path.join("inner");
    std::fs::create_dir_all(&inner).ok()?;
    let id = std::fs::metadata(&path).ok()?.ino();
    let level = path.strip_prefix(&root).ok()?.components().count() as u32;
    Some(OwnCgroup { id, level, path, inner, before })
}

impl OwnCgroup {
    fn leave(&self) {
        std::fs::write(self.before.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        let _ = std::fs::remove_dir(&self.inner);
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[test]
fn nothing_stays_in_the_kernel() {
    const TEST: &str = "nothing_stays_in_the_kernel";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let here = inode(&Namespace::current().unwrap());
    let before = program_ids().unwrap_or_default();
    let Some(recorder) = record(TEST, Scope::Namespaces(vec![here])) else { return };
    let added: Vec<u32> = program_ids().unwrap().difference(&before).copied().collect();
    assert!(added.len() >= 4, "{added:?}");
    drop(recorder);
    wait_until("the programs are gone", || program_ids().unwrap().iter().all(|id| !added.contains(id)));
}

#[test]
fn options_outside_their_limits_are_refused() {
    let refusal = |scope, burst_gap_us| {
        let refused = Recorder::start(&RecordOptions { scope, burst_gap_us });
        refused.err().map(|error| error.to_string()).unwrap()
    };
    assert_eq!(refusal(Scope::Namespaces(vec![]), 1), "namespaces = 0: 1 to 64 of them");
    assert_eq!(refusal(Scope::Namespaces(vec![1]), 0), "burst_gap_us = 0: 1 to 3600000000");
    assert_eq!(refusal(Scope::Cgroup { id: 1, level: 5000 }, 1), "cgroup level = 5000: at most 1024");
}
