//! The agent's end of the control socket.

use super::protocol::{MAX_REQUEST_BYTES, Request, Response};
use crate::qlog::{self, Filter, Subscription};
use ccplane_channel::clock;
use ccplane_channel::may_speak;
use ccplane_files::Others;
use ccplane_files::{SocketError, SocketName};
use nix::sys::socket::{Backlog, SockFlag, SockType, listen};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{Instrument, debug, debug_span, warn};

/// Pause after a failed `accept`, so that a lack of descriptors does not become a busy loop.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Handler of the requests that a server reads.
pub trait Answer: Send + Sync + 'static {
    /// Returns the response to `request`.
    fn answer(&self, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send + '_>>;

    /// Starts a stream of events, or says why there is none.
    fn events(
        &self,
        filter: Filter,
    ) -> Pin<Box<dyn Future<Output = Result<Subscription, String>> + Send + '_>>;
}

/// Limits on clients of the control socket.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Clients served at once.
    pub clients: usize,
    /// For sending a request, and for taking its response.
    pub timeout: Duration,
}

/// A bound control socket; unlinked when dropped.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    name: SocketName,
    limits: ServerLimits,
}

impl Server {
    /// Binds `path`, replacing the socket that a dead agent left: the caller holds the instance lock of its
    /// directory. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Its directory is not ours, a live process listens there, or the path cannot be bound.
    pub fn bind(path: &Path, limits: ServerLimits) -> Result<Server, SocketError> {
        let mut name = SocketName::new(path, Others::Nothing)?;
        let io = |what| move |source| SocketError::io(what, path, source);
        let socket = name.bind(SockType::Stream, SockFlag::SOCK_NONBLOCK)?;
        listen(&socket, Backlog::MAXCONN).map_err(|errno| io("listen on")(errno.into()))?;
        let listener = UnixListener::from_std(socket.into()).map_err(io("listen on"))?;
        Ok(Server { listener, name, limits })
    }

    /// Whether clients can still find it.
    pub fn is_there(&self) -> bool {
        self.name.is_there()
    }

    /// Serves clients until the future is dropped.
    pub async fn serve(&self, answer: Arc<dyn Answer>) {
        let slots = Arc::new(Semaphore::new(self.limits.clients));
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "accept on the control socket");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let client = Client { stream: BufReader::new(stream), limits: self.limits };
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                client
                    .turn_away(format!("{} clients are being served, the most allowed", self.limits.clients));
                continue;
            };
            let answer = Arc::clone(&answer);
            let session = async move {
                if let Err(error) = client.session(&*answer).await {
                    debug!(%error, "client disconnected");
                }
                drop(slot);
            };
            tokio::spawn(session.instrument(debug_span!("client")));
        }
    }
}

/// Reasons why a session ended other than by the client's leaving.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("user {uid} may not speak to this agent")]
    Forbidden { uid: u32 },
    #[error("no complete request within {0:?}")]
    TooSlow(Duration),
    #[error("a request is at most {MAX_REQUEST_BYTES} bytes, newline included")]
    TooLong,
    #[error("{0}")]
    Io(#[from] io::Error),
}

struct Client {
    stream: BufReader<UnixStream>,
    limits: ServerLimits,
}

impl Client {
    async fn session(mut self, answer: &dyn Answer) -> Result<(), SessionError> {
        let outcome = self.requests(answer).await;
        if let Err(
            error @ (SessionError::Forbidden { .. } | SessionError::TooSlow(_) | SessionError::TooLong),
        ) = &outcome
        {
            self.send(&Response::Error { message: error.to_string() }).await?;
        }
        outcome
    }

    async fn requests(&mut self, answer: &dyn Answer) -> Result<(), SessionError> {
        let uid = self.stream.get_ref().peer_cred()?.uid();
        if !may_speak(uid) {
            return Err(SessionError::Forbidden { uid });
        }
        while let Some(line) = self.line().await? {
            let response = match serde_json::from_slice::<Request>(&line) {
                Ok(Request::Qlog { filter }) => match answer.events(filter).await {
                    Ok(subscription) => return self.stream(subscription).await,
                    Err(message) => Response::Error { message },
                },
                Ok(request) => answer.answer(request).await,
                Err(error) => Response::Error { message: format!("not a request: {error}") },
            };
            self.send(&response).await?;
        }
        Ok(())
    }

    /// The next line; `None` when the client left.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, SessionError> {
        let mut line = Vec::new();
        let limit = MAX_REQUEST_BYTES as u64;
        let mut bounded = (&mut self.stream).take(limit);
        let within = self.limits.timeout;
        timeout(within, bounded.read_until(b'\n', &mut line))
            .await
            .map_err(|_| SessionError::TooSlow(within))??;
        match line.last() {
            None => Ok(None),
            Some(b'\n') => Ok(Some(line)),
            Some(_) if line.len() == MAX_REQUEST_BYTES => Err(SessionError::TooLong),
            // The client half-closed after its last request.
            Some(_) => Ok(Some(line)),
        }
    }

    /// Records until there are no more, or the client leaves or is slow.
    async fn stream(&mut self, mut subscription: Subscription) -> Result<(), SessionError> {
        let since_us = subscription.since_us;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age_us = clock::now_us().saturating_sub(since_us);
        let reference_ms = now.as_secs_f64() * 1000.0 - age_us as f64 / 1000.0;
        self.send(&Response::Qlog { reference_ms }).await?;
        let mut told = 0;
        loop {
            let record = tokio::select! {
                record = subscription.records.recv() => record,
                left = self.stream.fill_buf() => {
                    // A client that speaks while it listens is confused.
                    left?;
                    return Ok(());
                }
            };
            let dropped = subscription.dropped.load(Relaxed);
            if dropped > told {
                self.write(qlog::dropped(dropped - told, clock::now_us(), since_us).into_bytes()).await?;
                told = dropped;
            }
            match record {
                Some(record) => self.write(record.line(since_us).into_bytes()).await?,
                None => return Ok(()),
            }
        }
    }

    async fn send(&mut self, response: &Response) -> Result<(), SessionError> {
        self.write(serde_json::to_vec(response).map_err(io::Error::from)?).await
    }

    async fn write(&mut self, mut line: Vec<u8>) -> Result<(), SessionError> {
        line.push(b'\n');
        let within = self.limits.timeout;
        let write = self.stream.get_mut().write_all(&line);
        timeout(within, write).await.map_err(|_| SessionError::TooSlow(within))??;
        Ok(())
    }

    /// One attempt to say why, without waiting: the socket's buffer is empty and takes it.
    fn turn_away(self, message: String) {
        if let Ok(mut line) = serde_json::to_vec(&Response::Error { message }) {
            line.push(b'\n');
            if let Err(error) = self.stream.get_ref().try_write(&line) {
                debug!(%error, "turn a client away");
            }
        }
    }
}
