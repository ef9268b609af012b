//! A datapath that speaks CCP v1 over unix datagrams to an agent: to ours or to portus.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ccplane_wire::List;
use ccplane_wire::v1::{Create, Endpoint, Measure, ToAgent, ToDatapath};

use crate::agent::START;
use crate::error::{BenchError, context};

/// An answer that takes longer is lost.
const LOST: Duration = Duration::from_secs(1);
/// The made-up flows' segments, bytes.
const MSS: u32 = 1448;

/// A datapath that speaks CCP v1 over unix datagrams, with one flow.
pub struct V1 {
    socket: UnixDatagram,
    agent: PathBuf,
    path: PathBuf,
    program_uid: u32,
    /// Whether it polls for answers instead of sleeping.
    polls: bool,
}

impl V1 {
    /// Announces itself to the agent at `agent`; its own socket is at `path`.
    pub fn start(agent: &Path, path: PathBuf) -> Result<V1, BenchError> {
        let _ = std::fs::remove_file(&path);
        let socket = context("bind a datagram socket", UnixDatagram::bind(&path))?;
        context("set a time-out", socket.set_read_timeout(Some(LOST)))?;
        let v1 = V1 { socket, agent: agent.into(), path, program_uid: 0, polls: false };
        v1.say(&ToAgent::Ready { id: 7 })?;
        Ok(v1)
    }

    /// From now on round trips never sleep.
    pub fn poll(&mut self) -> Result<(), BenchError> {
        self.polls = true;
        context("poll a socket", self.socket.set_nonblocking(true))
    }

    /// Announces flow `sid` and waits until it has its program.
    pub fn start_flow(&mut self, sid: u32) -> Result<(), BenchError> {
        let end = |port| Endpoint { ip: u32::from_le_bytes([127, 0, 0, 1]), port };
        let create = Create {
            sid,
            init_cwnd_bytes: 10 * MSS,
            mss_bytes: MSS,
            local: end(4242),
            remote: end(4243),
            cong_alg: None,
        };
        self.say(&ToAgent::Create(create))?;
        let start = Instant::now();
        let mut buffer = [0; 4096];
        while start.elapsed() < START {
            let Ok(bytes) = self.socket.recv(&mut buffer) else { continue };
            for message in ToDatapath::parse_all(&buffer[..bytes]).flatten() {
                if let ToDatapath::ChangeProg(change) = message {
                    self.program_uid = change.program_uid;
                    return Ok(());
                }
            }
        }
        Err(BenchError::Missing(format!("{} gave the flow no program", self.agent.display())))
    }

    fn say(&self, message: &ToAgent<'_>) -> Result<(), BenchError> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).map_err(|e| BenchError::Missing(e.to_string()))?;
        context("send to the agent", self.socket.send_to(&bytes, &self.agent)).map(drop)
    }

    /// Reports `values` for flow `sid`.
    pub fn report(&self, sid: u32, values: &[u64]) -> Result<(), BenchError> {
        self.say(&ToAgent::Measure(Measure {
            sid,
            program_uid: self.program_uid,
            values: List::from(values),
        }))
    }

    /// One round trip of a flow of `ccp-reno`, nanoseconds.
    pub fn round_trip(&self, sid: u32) -> Result<u64, BenchError> {
        // acked, lost, timeout, rtt_us
        let values = [u64::from(MSS), 0, 0, 20_000];
        let mut buffer = [0; 4096];
        let start = Instant::now();
        self.report(sid, &values)?;
        loop {
            let bytes = match self.socket.recv(&mut buffer) {
                Err(e) if self.polls && e.kind() == ErrorKind::WouldBlock && start.elapsed() < LOST => {
                    std::hint::spin_loop();
                    continue;
                }
                received => context("wait for an update", received)?,
            };
            if ToDatapath::parse_all(&buffer[..bytes]).flatten().any(|m| matches!(m, ToDatapath::Update(_))) {
                return Ok(start.elapsed().as_nanos() as u64);
            }
        }
    }
}

impl Drop for V1 {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
