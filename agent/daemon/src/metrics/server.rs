//! `GET /metrics`, and nothing else of HTTP: bounded requests, bounded clients, a time limit, one answer a connection.

use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{debug, warn};

/// Longest request head, bytes.
const MAX_HEAD_BYTES: usize = 8192;
/// Pause after a failed `accept`, so that a lack of descriptors does not become a busy loop.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// OpenMetrics, which Prometheus reads.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The reason why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {source}")]
pub(crate) struct EndpointError {
    address: SocketAddr,
    source: io::Error,
}

/// A listening socket, and the limits of its clients.
pub(crate) struct Endpoint {
    listener: TcpListener,
    clients: usize,
    timeout: Duration,
}

impl Endpoint {
    /// Listens. Must be called within a tokio runtime.
    pub(crate) async fn bind(
        address: SocketAddr,
        clients: usize,
        timeout: Duration,
    ) -> Result<Endpoint, EndpointError> {
        let failed = |source| EndpointError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        Ok(Endpoint { listener, clients, timeout })
    }

    /// Returns the address on which the endpoint listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Makes the text that is served; `None`: it cannot be made.
pub(crate) trait Page: Send + Sync + 'static {
    /// The text as it is now.
    fn text(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>>;
}

/// Serves scrapes until the future is dropped.
pub(crate) async fn serve(endpoint: Endpoint, page: Arc<dyn Page>) {
    let slots = Arc::new(Semaphore::new(endpoint.clients));
    loop {
        let stream = match endpoint.listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "accept on the metrics endpoint");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            // One attempt, without waiting: the socket's buffer is empty and takes it.
            let _ = stream.try_write(&response(Status::Busy, "", true));
            continue;
        };
        let (page, limit) = (Arc::clone(&page), endpoint.timeout);
        tokio::spawn(async move {
            match timeout(limit, session(stream, &*page)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "metrics client disconnected"),
                Err(_) => debug!("metrics client too slow"),
            }
            drop(slot);
        });
    }
}

async fn session(mut stream: TcpStream, page: &dyn Page) -> io::Result<()> {
    let (status, with_body) = match head(&mut stream).await? {
        Ok(head) => parse(&head),
        Err(refused) => (refused, true),
    };
    let (status, body) = match status {
        Status::Ok => match page.text().await {
            Some(text) => (Status::Ok, text),
            None => (Status::Failed, String::new()),
        },
        refused => (refused, String::new()),
    };
    stream.write_all(&response(status, &body, with_body)).await?;
    stream.shutdown().await
}

/// The request's head, without its final empty line.
async fn head(stream: &mut TcpStream) -> io::Result<Result<Vec<u8>, Status>> {
    const END: &[u8] = b"\r\n\r\n";
    let mut head = Vec::new();
    loop {
        let mut chunk = [0; 1024];
        let count = stream.read(&mut chunk).await?;
        if count == 0 {
            return Ok(Err(Status::Malformed));
        }
        let from = head.len().saturating_sub(END.len() - 1);
        head.extend_from_slice(&chunk[..count]);
        if let Some(at) = head[from..].windows(END.len()).position(|w| w == END) {
            head.truncate(from + at);
            return Ok(Ok(head));
        }
        if head.len() > MAX_HEAD_BYTES {
            return Ok(Err(Status::TooLong));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Ok,
    Malformed,
    NotFound,
    NotAllowed,
    TooLong,
    Failed,
    Busy,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::Malformed => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::NotAllowed => "405 Method Not Allowed",
            Status::TooLong => "431 Request Header Fields Too Large",
            Status::Failed => "500 Internal Server Error",
            Status::Busy => "503 Service Unavailable",
        }
    }
}

/// Parses a request's head into the answer's status and whether it has a body (RFC 9110 section 9.3.2: not to HEAD).
pub(super) fn parse(head: &[u8]) -> (Status, bool) {
    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
    let parts: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let [method, target, version] = parts[..] else { return (Status::Malformed, true) };
    if !matches!(version, b"HTTP/1.0" | b"HTTP/1.1") || target.is_empty() {
        return (Status::Malformed, true);
    }
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => (Status::Ok, true),
        (b"HEAD", b"/metrics") => (Status::Ok, false),
        (b"GET", _) => (Status::NotFound, true),
        (b"HEAD", _) => (Status::NotFound, false),
        _ => (Status::NotAllowed, true),
    }
}

fn response(status: Status, body: &str, with_body: bool) -> Vec<u8> {
    let line = status.line();
    let (body, content_type) = match status {
        Status::Ok => (body.to_owned(), CONTENT_TYPE),
        _ => (format!("{line}\n"), "text/plain; charset=utf-8"),
    };
    let mut text = format!(
        "HTTP/1.1 {line}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    if status == Status::NotAllowed {
        text.push_str("Allow: GET, HEAD\r\n");
    }
    // A `String` takes whatever is written to it.
    let _ = write!(text, "\r\n{}", if with_body { &body } else { "" });
    text.into_bytes()
}
