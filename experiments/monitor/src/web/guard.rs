//! Judges requests by their head alone, before anything is answered.
//!
//! The page shows what the agent does, so only the token's owner sees it. A page of another origin in the same browser has no
//! token; where its name was made to lead to this machine (DNS rebinding), the `Host` header has that name.

use ccplane_agent::control::to_hex;
use hyper::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use hyper::{HeaderMap, Method, Request};
use std::net::SocketAddr;
use subtle::ConstantTimeEq;

/// Random bytes of a token.
const TOKEN_BYTES: usize = 16;

/// A secret that opens the page.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Draws a token from the system's randomness.
    ///
    /// # Errors
    /// The system has none.
    pub fn random() -> Result<Token, getrandom::Error> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Token(to_hex(&bytes)))
    }

    /// Returns the token's digits.
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// Compares in a time that says nothing of where the texts differ.
    fn is(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

/// The answer that a request gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestVerdict {
    /// The page itself.
    Page,
    /// The data that the page shows, as JSON.
    State,
    /// The token was in the address: it becomes a cookie, and leaves the address.
    Welcome,
    /// The request names another host.
    WrongHost,
    /// The request comes from a page of another origin.
    WrongOrigin,
    NoToken,
    NotFound,
    NotAllowed,
}

/// The address that is served and the token that opens it.
#[derive(Clone)]
pub struct Guard {
    address: SocketAddr,
    token: Token,
}

impl Guard {
    /// Judges requests to a server that listens on `address`, which is of this machine alone.
    pub fn new(address: SocketAddr, token: Token) -> Guard {
        Guard { address, token }
    }

    /// Returns the address that a person opens.
    pub fn url(&self) -> String {
        format!("http://{}/?token={}", self.address, self.token.digits())
    }

    /// Returns the header that keeps the token in the browser. Cookies are of a host, whatever the port: the name has it.
    pub fn cookie(&self) -> String {
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie_name(), self.token.digits())
    }

    fn cookie_name(&self) -> String {
        format!("ccplane-{}", self.address.port())
    }

    /// Judges a request.
    pub fn judge<B>(&self, request: &Request<B>) -> RequestVerdict {
        let headers = request.headers();
        if !self.is_host(text(headers.get(HOST))) {
            return RequestVerdict::WrongHost;
        }
        if headers.get(ORIGIN).is_some_and(|origin| !self.is_origin(text(Some(origin)))) {
            return RequestVerdict::WrongOrigin;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return RequestVerdict::NotAllowed;
        }
        let path = request.uri().path();
        let in_address = request.uri().query().and_then(|query| query.strip_prefix("token="));
        if path == "/" && in_address.is_some_and(|token| self.token.is(token)) {
            return RequestVerdict::Welcome;
        }
        if !self.has_token(headers) {
            return RequestVerdict::NoToken;
        }
        match path {
            "/" => RequestVerdict::Page,
            "/state" => RequestVerdict::State,
            _ => RequestVerdict::NotFound,
        }
    }

    /// Whether a name and port are this server's.
    fn is_host(&self, host: &str) -> bool {
        host == self.address.to_string() || host == format!("localhost:{}", self.address.port())
    }

    fn is_origin(&self, origin: &str) -> bool {
        origin.strip_prefix("http://").is_some_and(|host| self.is_host(host))
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let bearer = text(headers.get(AUTHORIZATION)).strip_prefix("Bearer ");
        let name = self.cookie_name();
        let cookie = headers.get_all(COOKIE).iter().find_map(|cookies| {
            let mut pairs = text(Some(cookies)).split(';').filter_map(|pair| pair.trim().split_once('='));
            pairs.find(|(of, _)| *of == name).map(|(_, value)| value)
        });
        bearer.or(cookie).is_some_and(|token| self.token.is(token))
    }
}

/// A header's text; empty where there is none.
fn text(header: Option<&hyper::header::HeaderValue>) -> &str {
    header.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn guard() -> Guard {
        Guard::new("127.0.0.1:4280".parse().unwrap(), Token("00ff".into()))
    }

    fn judged(method: &str, uri: &str, headers: &[(&str, &str)]) -> RequestVerdict {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        guard().judge(&request.body(()).unwrap())
    }

    const HERE: (&str, &str) = ("host", "127.0.0.1:4280");
    const BEARER: (&str, &str) = ("authorization", "Bearer 00ff");

    #[test]
    fn the_token_opens_the_page_in_three_ways() {
        assert_eq!(judged("GET", "/", &[HERE, BEARER]), RequestVerdict::Page);
        assert_eq!(judged("GET", "/?token=00ff", &[HERE]), RequestVerdict::Welcome);
        let cookie = ("cookie", "other=1; ccplane-4280=00ff");
        assert_eq!(judged("HEAD", "/state", &[HERE, cookie]), RequestVerdict::State);
        let localhost = ("host", "localhost:4280");
        assert_eq!(judged("GET", "/none", &[localhost, cookie]), RequestVerdict::NotFound);
        assert_eq!(judged("POST", "/state", &[HERE, BEARER]), RequestVerdict::NotAllowed);
        assert!(guard().url().ends_with(":4280/?token=00ff"));
        assert!(guard().cookie().starts_with("ccplane-4280=00ff; "));
    }

    #[test]
    fn others_are_turned_away() {
        for headers in [
            &[HERE][..],
            &[HERE, ("authorization", "Bearer 00fe")],
            &[HERE, ("authorization", "Bearer ")],
            &[HERE, ("authorization", "Basic 00ff")],
            &[HERE, ("cookie", "ccplane-4281=00ff")],
        ] {
            assert_eq!(judged("GET", "/state", headers), RequestVerdict::NoToken, "{headers:?}");
        }
        assert_eq!(
            judged("GET", "/state?token=00ff", &[HERE]),
            RequestVerdict::NoToken,
            "only the page's address has it"
        );
        assert_eq!(judged("GET", "/?token=", &[HERE]), RequestVerdict::NoToken);
        for host in ["evil.example:4280", "127.0.0.1", "127.0.0.1:4281", "localhost", ""] {
            assert_eq!(judged("GET", "/", &[("host", host), BEARER]), RequestVerdict::WrongHost, "{host}");
        }
        assert_eq!(judged("GET", "/", &[BEARER]), RequestVerdict::WrongHost);
        let elsewhere = ("origin", "http://evil.example");
        assert_eq!(judged("GET", "/state", &[HERE, BEARER, elsewhere]), RequestVerdict::WrongOrigin);
        let own = ("origin", "http://127.0.0.1:4280");
        assert_eq!(judged("GET", "/state", &[HERE, BEARER, own]), RequestVerdict::State);
    }

    #[test]
    fn tokens_are_drawn() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.digits().len(), 2 * TOKEN_BYTES);
        assert_ne!(one.digits(), other.digits());
    }

    proptest! {
        #[test]
        fn no_other_token_opens_anything(guess in "[0-9a-f]{0,6}", way in 0..3) {
            prop_assume!(guess != "00ff");
            let bearer = format!("Bearer {guess}");
            let cookie = format!("ccplane-4280={guess}");
            let uri = format!("/?token={guess}");
            let verdict = match way {
                0 => judged("GET", "/", &[HERE, ("authorization", &bearer)]),
                1 => judged("GET", "/", &[HERE, ("cookie", &cookie)]),
                _ => judged("GET", &uri, &[HERE]),
            };
            prop_assert_eq!(verdict, RequestVerdict::NoToken);
        }
    }
}
