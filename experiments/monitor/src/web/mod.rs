//! The page in a browser: HTTP on this machine's own addresses, for whoever has the token.

mod guard;

pub use guard::{Guard, RequestVerdict, Token};

use crate::model::Model;
use crate::source::{Source, Target};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION, REFERRER_POLICY,
    SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections served at once; browsers open six.
const MAX_CLIENTS: usize = 32;
/// Time within which a request's head has to come.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest request head, bytes; the least that hyper takes.
const MAX_HEAD_BYTES: usize = 8192;
/// Pause after a failed `accept`, so that a lack of descriptors does not become a busy loop.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The page; its script and style carry [`NONCE`].
const PAGE: &str = include_str!("page.html");
/// Stands in the page where each answer has random digits of its own.
const NONCE: &str = "{{nonce}}";

/// Reasons why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("{0} is not an address of this machine alone: give a loopback address, such as 127.0.0.1:4280")]
    NotLoopback(SocketAddr),
    #[error("{address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A listening server.
pub struct Server {
    listener: TcpListener,
    guard: Guard,
    model: Arc<Mutex<Model>>,
    _source: Source,
}

impl Server {
    /// Listens on a loopback address and starts to ask the agent. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Others than this machine could reach the address, or it cannot be listened on.
    pub async fn bind(address: SocketAddr, token: Token, target: Target) -> Result<Server, WebError> {
        if !address.ip().is_loopback() {
            return Err(WebError::NotLoopback(address));
        }
        let failed = |source| WebError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let guard = Guard::new(listener.local_addr().map_err(failed)?, token);
        let model = Arc::<Mutex<Model>>::default();
        let taken = Arc::clone(&model);
        let source = Source::start(target, move |sample| {
            let mut model = taken.lock().unwrap_or_else(PoisonError::into_inner);
            match sample {
                Ok(sample) => model.take(sample),
                Err(error) => model.fail(error.to_string()),
            }
        })?;
        Ok(Server { listener, guard, model, _source: source })
    }

    /// Returns the address that a person opens, token included.
    pub fn url(&self) -> String {
        self.guard.url()
    }

    /// Serves until `stop` resolves.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = self.accept() => {}
            () = stop => {}
        }
    }

    async fn accept(&self) {
        let slots = Arc::new(Semaphore::new(MAX_CLIENTS));
        loop {
            // The semaphore is never closed. Those beyond the limit wait in the kernel's queue.
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            };
            let (guard, model) = (self.guard.clone(), Arc::clone(&self.model));
            let service = service_fn(move |request: Request<Incoming>| {
                let response = answer(&guard, &request, &model);
                async move { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(async move {
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
                // A client that speaks no HTTP, or leaves, harms nobody but itself.
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
                drop(slot);
            });
        }
    }
}

fn answer<B>(guard: &Guard, request: &Request<B>, model: &Mutex<Model>) -> Response<Full<Bytes>> {
    let refused =
        |status: StatusCode, why: &str| response(status, "text/plain; charset=utf-8", format!("{why}\n"), "");
    match guard.judge(request) {
        RequestVerdict::Page => page(),
        RequestVerdict::State => {
            match serde_json::to_string(&*model.lock().unwrap_or_else(PoisonError::into_inner)) {
                Ok(json) => response(StatusCode::OK, "application/json", json, ""),
                Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            }
        }
        RequestVerdict::Welcome => {
            let mut response = refused(StatusCode::SEE_OTHER, "on to the page");
            response.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
            if let Ok(cookie) = HeaderValue::from_str(&guard.cookie()) {
                response.headers_mut().insert(SET_COOKIE, cookie);
            }
            response
        }
        RequestVerdict::NoToken => {
            let mut response = refused(
                StatusCode::UNAUTHORIZED,
                "open the address that `ccplane web` printed, with its token",
            );
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        RequestVerdict::WrongHost => {
            refused(StatusCode::MISDIRECTED_REQUEST, "the Host header names another server")
        }
        RequestVerdict::WrongOrigin => refused(StatusCode::FORBIDDEN, "the request is of another page"),
        RequestVerdict::NotFound => refused(StatusCode::NOT_FOUND, "no such page"),
        RequestVerdict::NotAllowed => {
            let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
    }
}

fn page() -> Response<Full<Bytes>> {
    match Token::random() {
        Ok(nonce) => {
            let body = PAGE.replace(NONCE, nonce.digits());
            response(StatusCode::OK, "text/html; charset=utf-8", body, nonce.digits())
        }
        Err(error) => {
            response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", error.to_string(), "")
        }
    }
}

/// An answer that no browser keeps, guesses about, frames or lets load anything from elsewhere. Scripts and styles need `nonce`;
/// without one there are none.
fn response(
    status: StatusCode,
    content_type: &'static str,
    body: String,
    nonce: &str,
) -> Response<Full<Bytes>> {
    let own = if nonce.is_empty() { "'none'".to_owned() } else { format!("'nonce-{nonce}'") };
    let policy = format!(
        "default-src 'none'; script-src {own}; style-src {own}; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Hexadecimal digits and what stands above: always a header's value.
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        // The name of a namespace, which is not loaded.
        let page = PAGE.replace("\"http://www.w3.org/2000/svg\"", "");
        for elsewhere in
            ["http:", "https:", "src=", "<link", "@import", "url(", "innerHTML", "onclick", "style=\""]
        {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        let tags = PAGE.matches("<script").count() + PAGE.matches("<style").count();
        assert!(tags >= 2);
        assert_eq!(PAGE.matches(&format!(" nonce=\"{NONCE}\"")).count(), tags, "each has a nonce");
    }

    #[test]
    fn two_answers_have_nonces_of_their_own() {
        let policy = |response: &Response<Full<Bytes>>| {
            response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned()
        };
        let (one, other) = (policy(&page()), policy(&page()));
        assert!(one.contains("script-src 'nonce-") && one.starts_with("default-src 'none';"), "{one}");
        assert_ne!(one, other);
        let refused = response(StatusCode::NOT_FOUND, "text/plain", String::new(), "");
        assert!(policy(&refused).contains("script-src 'none'"));
    }
}
