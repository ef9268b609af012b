//! The server's side of file transfers.

use super::body::{Incoming, Moved, Outgoing};
use super::folder::{Folder, PutFile};
use super::keeper::Keeper;
use super::line::LineReader;
use super::refusal::Refused;
use super::writers::{Proof, Writers};
use super::{FAILED, FilesError, READ_FAILED, Sha256Sum};
use crate::tls::Fingerprint;
use crate::{Connection, ConnectionId, Dir, Endpoint, Event, StreamEvent, StreamId, Wire};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

type Key = (ConnectionId, StreamId);

/// Serves a folder to an endpoint's connections.
pub struct Server {
    folder: Folder,
    writers: Writers,
    transfers: BTreeMap<Key, Serving>,
    /// Transfers that may continue.
    active: VecDeque<Key>,
    served: VecDeque<Served>,
    /// Started with the first file that is put.
    keeper: Option<Keeper<Key>>,
}

/// A finished request.
#[derive(Debug)]
pub struct Served {
    /// The client's address.
    pub remote: SocketAddr,
    /// The client's request line.
    pub request: String,
    /// Length of the content, bytes; 0 if there was none.
    pub bytes: u64,
    /// Hash of the content, or the reason why there is none.
    pub outcome: Result<Sha256Sum, FilesError>,
}

/// The progress of a transfer.
enum Advanced {
    On(Moved),
    /// A file has arrived, to be kept before the client is told.
    Whole(PutFile),
    Over(Result<Sha256Sum, FilesError>),
}

struct Serving {
    state: ServingState,
    request: String,
    bytes: u64,
    queued: bool,
}

enum ServingState {
    Asked(LineReader),
    Sending(Outgoing),
    Receiving(Incoming, PutFile),
    /// All content has arrived and is being flushed to the disk.
    Keeping(Sha256Sum),
    /// The final answer, and the outcome to report after it.
    Answering(Bytes, Result<Sha256Sum, FilesError>),
    Over,
}

/// A parsed request line.
enum Request<'a> {
    Get { name: &'a str },
    Put { proof: Option<Proof>, length_bytes: u64, name: &'a str },
}

fn parse(line: &str) -> Option<Request<'_>> {
    let put = |proof, rest: &'_ str| {
        let (length, name) = rest.split_once(' ')?;
        Some((proof, length.parse().ok()?, name.len()))
    };
    let (verb, rest) = line.split_once(' ')?;
    let (proof, length_bytes, name_length) = match verb {
        "get" => return Some(Request::Get { name: rest }),
        "put" => put(None, rest)?,
        "put-with" => {
            let (proof, rest) = rest.split_once(' ')?;
            // A fingerprint is written in the same way.
            let proof: Fingerprint = proof.parse().ok()?;
            put(Some(proof.0), rest)?
        }
        _ => return None,
    };
    Some(Request::Put { proof, length_bytes, name: &line[line.len() - name_length..] })
}

impl Server {
    /// Serves `folder`; `writers` may put files into it if it is writable.
    pub fn new(folder: Folder, writers: Writers) -> Server {
        let (transfers, active, served, keeper) = Default::default();
        Server { folder, writers, transfers, active, served, keeper }
    }

    /// Handles an event of the endpoint; every event must be passed on.
    pub fn on_event<W: Wire>(&mut self, endpoint: &mut Endpoint<W>, id: ConnectionId, event: &Event) {
        match event {
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                let Some(mut connection) = endpoint.connection(id) else { return };
                while let Some(stream) = connection.accept(Dir::Bi) {
                    let state = ServingState::Asked(LineReader::default());
                    let serving = Serving { state, request: String::new(), bytes: 0, queued: false };
                    self.transfers.insert((id, stream), serving);
                    self.wake((id, stream));
                }
            }
            Event::Stream(
                StreamEvent::Readable { id: stream }
                | StreamEvent::Writable { id: stream }
                | StreamEvent::Stopped { id: stream, .. },
            ) => self.wake((id, *stream)),
            Event::Closed(_) => {
                self.transfers.retain(|(of, _), _| *of != id);
            }
            Event::Connected | Event::Stream(_) => {}
        }
    }

    fn wake(&mut self, key: Key) {
        if let Some(serving) = self.transfers.get_mut(&key)
            && !std::mem::replace(&mut serving.queued, true)
        {
            self.active.push_back(key);
        }
    }

    /// Advances every transfer that can continue, a little each. True if there is more to do at once.
    pub fn advance<W: Wire>(&mut self, endpoint: &mut Endpoint<W>) -> bool {
        self.take_kept(endpoint);
        for _ in 0..self.active.len() {
            let Some(key) = self.active.pop_front() else { break };
            let Some(mut serving) = self.transfers.remove(&key) else { continue };
            let Some(mut connection) = endpoint.connection(key.0) else { continue };
            serving.queued = false;
            let outcome = match serving.advance(&self.folder, &self.writers, &mut connection, key.1) {
                Ok(Advanced::On(moved)) => {
                    self.transfers.insert(key, serving);
                    if moved == Moved::Some {
                        self.wake(key);
                    }
                    continue;
                }
                Ok(Advanced::Whole(file)) => {
                    self.keep(key, &mut serving, &mut connection, file);
                    self.transfers.insert(key, serving);
                    continue;
                }
                Ok(Advanced::Over(outcome)) => outcome,
                Err(e) => {
                    let code = if matches!(e, FilesError::Read(_)) { READ_FAILED } else { FAILED };
                    // Whichever of the two directions is still open.
                    let _ = connection.reset(key.1, code);
                    let _ = connection.stop(key.1, FAILED);
                    Err(e)
                }
            };
            let Serving { request, bytes, .. } = serving;
            self.served.push_back(Served { remote: connection.remote(), request, bytes, outcome });
        }
        !self.active.is_empty()
    }

    /// Whether files are being flushed to the disk: [`advance`](Server::advance) tells their clients, and no event
    /// announces it.
    pub fn keeps(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.open() > 0)
    }

    fn keep(&mut self, key: Key, serving: &mut Serving, connection: &mut Connection<'_>, file: PutFile) {
        if self.keeper.is_none() {
            match Keeper::start() {
                Ok(keeper) => self.keeper = Some(keeper),
                Err(e) => {
                    serving.state = refuse(connection, key.1, Refused::from(e));
                    serving.queued = true;
                    self.active.push_back(key);
                }
            }
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(key, file);
        }
    }

    /// Handles files that were kept or refused since.
    fn take_kept<W: Wire>(&mut self, endpoint: &mut Endpoint<W>) {
        while let Some((key, kept)) = self.keeper.as_mut().and_then(Keeper::poll) {
            // A client that has gone is told nothing.
            let Some(mut connection) = endpoint.connection(key.0) else { continue };
            let Some(serving) = self.transfers.get_mut(&key) else { continue };
            if let ServingState::Keeping(sum) = serving.state {
                serving.state = match kept {
                    Ok(()) => ServingState::Answering("ok\n".into(), Ok(sum)),
                    Err(refused) => refuse(&mut connection, key.1, refused),
                };
                self.wake(key);
            }
        }
    }

    /// Takes the oldest finished request.
    pub fn poll(&mut self) -> Option<Served> {
        self.served.pop_front()
    }
}

impl Serving {
    /// Advances one transfer as far as the connection allows.
    fn advance(
        &mut self,
        folder: &Folder,
        writers: &Writers,
        connection: &mut Connection<'_>,
        stream: StreamId,
    ) -> Result<Advanced, FilesError> {
        loop {
            match std::mem::replace(&mut self.state, ServingState::Over) {
                ServingState::Asked(mut line) => match line.read(connection, stream)? {
                    None => return Ok(self.blocked(ServingState::Asked(line), Moved::Blocked)),
                    Some((line, first)) => {
                        self.state = match self.begin(folder, writers, connection, &line, first) {
                            Ok(state) => state,
                            Err(refused) => refuse(connection, stream, refused),
                        };
                        if matches!(self.state, ServingState::Sending(_)) {
                            // The client wants nothing more; if all was sent, there is nothing to stop.
                            let _ = connection.stop(stream, FAILED);
                        }
                        self.request = line;
                    }
                },
                ServingState::Sending(mut content) => match content.send(connection, stream)? {
                    Moved::All(sum) => return Ok(Advanced::Over(Ok(sum))),
                    moved => return Ok(self.blocked(ServingState::Sending(content), moved)),
                },
                ServingState::Receiving(mut content, mut file) => {
                    match content.receive(connection, stream, &mut file) {
                        Ok(Moved::All(sum)) => {
                            self.state = ServingState::Keeping(sum);
                            return Ok(Advanced::Whole(file));
                        }
                        Ok(moved) => return Ok(self.blocked(ServingState::Receiving(content, file), moved)),
                        // The client is told: its disk has room, ours has not.
                        Err(FilesError::Write(e)) => {
                            drop(file);
                            self.state = refuse(connection, stream, Refused::from(e));
                        }
                        Err(e) => return Err(e),
                    }
                }
                ServingState::Keeping(sum) => {
                    return Ok(self.blocked(ServingState::Keeping(sum), Moved::Blocked));
                }
                ServingState::Answering(mut answer, outcome) => {
                    connection.write_bytes(stream, &mut answer)?;
                    if !answer.is_empty() {
                        return Ok(self.blocked(ServingState::Answering(answer, outcome), Moved::Blocked));
                    }
                    connection.finish(stream)?;
                    return Ok(Advanced::Over(outcome));
                }
                ServingState::Over => {
                    return Ok(Advanced::Over(Err(FilesError::Protocol { what: "it asked twice" })));
                }
            }
        }
    }

    fn blocked(&mut self, state: ServingState, moved: Moved) -> Advanced {
        self.state = state;
        Advanced::On(moved)
    }

    fn begin(
        &mut self,
        folder: &Folder,
        writers: &Writers,
        connection: &Connection<'_>,
        line: &str,
        first: Bytes,
    ) -> Result<ServingState, Refused> {
        match parse(line).ok_or(Refused::Request)? {
            Request::Get { name } => {
                let (file, length_bytes) = folder.read(name)?;
                self.bytes = length_bytes;
                Ok(ServingState::Sending(Outgoing::new(
                    format!("ok {length_bytes}\n"),
                    Box::new(file),
                    length_bytes,
                )))
            }
            Request::Put { proof, length_bytes, name } => {
                self.bytes = length_bytes;
                if folder.is_writable() {
                    writers.admit(connection, proof.as_ref())?;
                }
                let file = folder.create(name, length_bytes)?;
                Ok(ServingState::Receiving(Incoming::new(length_bytes, first), file))
            }
        }
    }
}

/// Refuses a request: the client is told why, and need not send on.
fn refuse(connection: &mut Connection<'_>, stream: StreamId, refused: Refused) -> ServingState {
    let reason = refused.to_string();
    // If the client has sent all, there is nothing to stop.
    let _ = connection.stop(stream, FAILED);
    ServingState::Answering(format!("no {reason}\n").into(), Err(FilesError::Refused { reason }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_testing::fuzz::Fuzz;

    #[test]
    fn a_request_says_what_its_line_said() {
        let proof = "put-with 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff 3 name";
        let seeds = ["get a/b", "put 3 name", proof, "put 18446744073709551615 x", "get "];
        let tokens = [
            "get ",
            "put ",
            "put-with ",
            " ",
            "/",
            "..",
            "0",
            "18446744073709551616",
            "-1",
            "\0",
            "\u{1b}[2J",
        ];
        let target = Fuzz::new("quic-file-line", env!("CARGO_MANIFEST_DIR")).seeds(seeds).tokens(tokens);
        target.max_bytes(128).run(|bytes| match parse(&String::from_utf8_lossy(bytes)) {
            None => 0,
            // It is what was said, and nothing else.
            Some(Request::Get { name }) => {
                assert_eq!(String::from_utf8_lossy(bytes), format!("get {name}"));
                1
            }
            Some(Request::Put { length_bytes, name, proof }) => {
                assert!(String::from_utf8_lossy(bytes).ends_with(&format!(" {name}")));
                2 + u64::from(length_bytes > u64::from(u32::MAX)) + 2 * u64::from(proof.is_some())
            }
        });
    }
}
