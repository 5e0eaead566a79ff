//! Who may ask for what: methods, hosts, bodies and tokens, before a page is made.
//!
//! ```text
//!                     page for everybody   with numbers   with users and clients
//!   Unix socket       yes                  yes            yes
//!   TCP, a token      yes                  token          token
//!   certificates      yes                  yes            yes        (of clients; with a token, that, too)
//!   TCP, no token     yes                  yes            no
//! ```
//!
//! Without a token the address is loopback, which every user of this host reaches, and so does a web site in a browser
//! on this host, whose name it points here (DNS rebinding). So such a request must name loopback as its host. There
//! are no headers that let other sites read an answer (CORS), and what a browser asks for on behalf of another site is
//! refused (Fetch Metadata), because it would show a certificate of the user.

use super::places;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderName};
use hyper::{Method, Request, StatusCode, Uri};
use std::net::IpAddr;
use subtle::ConstantTimeEq;
use weft_machine::{LogLimit, rt};
use zeroize::Zeroizing;

/// W3C Fetch Metadata: who asks, and for what. Scripts cannot set these.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Longest path and query.
const MAX_TARGET_BYTES: usize = 256;

/// Who connects.
pub(crate) enum Clients {
    /// Whoever the permissions of a Unix socket admit.
    OfSocket,
    /// Whoever shows this token.
    WithToken(Zeroizing<String>),
    /// Whoever has shown a certificate: TLS admits nobody else.
    WithCertificate,
    /// Every process of this host.
    OfThisHost,
}

/// What a page requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// A token, if there is one.
    Reader,
    /// A token or the Unix socket.
    Administrator,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Method,
    Body,
    Target,
    Host,
    OtherSite,
    NoPage,
    NoToken,
    WrongToken,
    OnlyWithToken,
}

impl Refused {
    /// The answer: status, text, and headers of its own.
    pub fn told(self) -> (StatusCode, &'static str, &'static [(HeaderName, &'static str)]) {
        const ALLOW: &[(HeaderName, &str)] = &[(header::ALLOW, "GET, HEAD"), (header::CONNECTION, "close")];
        const CLOSE: &[(HeaderName, &str)] = &[(header::CONNECTION, "close")];
        const BEARER: &[(HeaderName, &str)] = &[(header::WWW_AUTHENTICATE, "Bearer realm=\"weft\"")];
        match self {
            Refused::Method => (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD", ALLOW),
            Refused::Body => (StatusCode::PAYLOAD_TOO_LARGE, "a request has no body here", CLOSE),
            Refused::Target => (StatusCode::URI_TOO_LONG, "the path is too long", CLOSE),
            Refused::Host => {
                (StatusCode::FORBIDDEN, "this host is not served: use localhost or the IP address", CLOSE)
            }
            Refused::OtherSite => {
                (StatusCode::FORBIDDEN, "another site asks for this: open the page itself", CLOSE)
            }
            Refused::NoPage => (
                StatusCode::NOT_FOUND,
                "no such page; there are /, /metrics, /api/v1/status, /api/v1/overview, /api/v1/schema, /api/v1/latency, /api/v1/latency/schema, /api/v1/slow, /api/v1/slow/schema and /healthz",
                &[],
            ),
            Refused::NoToken => (StatusCode::UNAUTHORIZED, "a bearer token is required", BEARER),
            Refused::WrongToken => (StatusCode::UNAUTHORIZED, "the bearer token is wrong", BEARER),
            Refused::OnlyWithToken => (
                StatusCode::FORBIDDEN,
                "this page names users and clients: it needs --admin-token-file, --admin-tls-clients, or --admin unix:PATH; /api/v1/overview does not",
                &[],
            ),
        }
    }
}

impl Clients {
    /// Checks a request for a page with these needs.
    pub(super) fn admit(
        &self,
        request: &Request<Incoming>,
        needs: Option<Needs>,
        peer: Option<IpAddr>,
    ) -> Result<(), Refused> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Refused::Method);
        }
        if !request.body().is_end_stream() {
            return Err(Refused::Body);
        }
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        if target.len() > MAX_TARGET_BYTES {
            return Err(Refused::Target);
        }
        let text = |name: HeaderName| text(request, name);
        let is_doubled = |name: HeaderName| request.headers().get_all(name).iter().nth(1).is_some();
        let names_host = || names_loopback(request.uri(), text(header::HOST));
        if is_doubled(header::HOST) || matches!(self, Clients::OfThisHost) && !names_host() {
            return Err(Refused::Host);
        }
        // No browser sends these twice, and a program that is none sends none.
        let is_odd = is_doubled(SEC_FETCH_SITE) || is_doubled(SEC_FETCH_MODE);
        if is_odd || is_of_other_site(text(SEC_FETCH_SITE), text(SEC_FETCH_MODE)) {
            return Err(Refused::OtherSite);
        }
        let answer = self.authorize(needs.ok_or(Refused::NoPage)?, text(header::AUTHORIZATION));
        if answer == Err(Refused::WrongToken) {
            static WRONG: LogLimit = LogLimit::new();
            if let Some(left_out) = WRONG.pass(rt::now()) {
                let peer = places::named(peer);
                tracing::warn!("the admin server refused a wrong token of {peer}{left_out}");
            }
        }
        answer
    }

    /// Whether a token is wanted.
    pub(super) fn want_token(&self) -> bool {
        matches!(self, Clients::WithToken(_))
    }

    /// Whether this request shows the right token, whatever the page needs.
    pub(super) fn has_shown_token(&self, request: &Request<Incoming>) -> bool {
        self.want_token()
            && self.authorize(Needs::Administrator, text(request, header::AUTHORIZATION)).is_ok()
    }

    fn authorize(&self, needs: Needs, authorization: Option<&str>) -> Result<(), Refused> {
        match (self, needs) {
            (_, Needs::Nothing)
            | (Clients::OfSocket | Clients::WithCertificate, _)
            | (Clients::OfThisHost, Needs::Reader) => Ok(()),
            (Clients::OfThisHost, Needs::Administrator) => Err(Refused::OnlyWithToken),
            (Clients::WithToken(token), _) => {
                let shown = authorization.and_then(bearer).ok_or(Refused::NoToken)?;
                // Only the length of the token shows in the time.
                if bool::from(shown.as_bytes().ct_eq(token.as_bytes())) {
                    Ok(())
                } else {
                    Err(Refused::WrongToken)
                }
            }
        }
    }
}

/// A header's value. One that is there twice means nothing.
fn text(request: &Request<Incoming>, name: HeaderName) -> Option<&str> {
    let mut all = request.headers().get_all(name).iter();
    all.next().filter(|_| all.next().is_none()).and_then(|value| value.to_str().ok())
}

/// The token of an Authorization header (RFC 6750 2.1).
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a browser asks on behalf of another site. A link that a user follows to a page here is no such request.
fn is_of_other_site(site: Option<&str>, mode: Option<&str>) -> bool {
    matches!(site, Some("cross-site" | "same-site")) && mode != Some("navigate")
}

/// Whether the request is for a name of loopback: its target names the host (RFC 9112 3.2.2), or the Host header does.
fn names_loopback(target: &Uri, host: Option<&str>) -> bool {
    let host = match target.authority() {
        Some(authority) => Some(authority.as_str()),
        None => host,
    };
    host.and_then(without_port).is_some_and(|name| {
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    })
}

/// The name of `host [":" port]` (RFC 9110 4.2), an IPv6 address without its brackets. `None` for anything else, such
/// as a user before an `@`, whose name stands where the host is looked for.
fn without_port(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').filter(|(name, _)| name.contains(':'))?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_of_loopback() {
        let path = Uri::from_static("/metrics");
        for host in ["localhost", "LOCALHOST:9", "127.0.0.1", "127.0.0.1:9470", "[::1]:9", "[::1]"] {
            assert!(names_loopback(&path, Some(host)), "{host}");
        }
        for host in [
            "",
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com:80",
            "192.0.2.1",
            "[::2]:9",
            "[",
            ":9",
            "localhost:pw@example.com",
            "localhost@example.com",
            "user@localhost",
            "localhost:9:9",
            "localhost:x",
            "[::1].example.com:80",
            "[::1]example.com",
            "[127.0.0.1]",
            "[localhost]",
            "[::1",
        ] {
            assert!(!names_loopback(&path, Some(host)), "{host}");
        }
        assert!(!names_loopback(&path, None));
        // The target counts, not the header.
        assert!(!names_loopback(&Uri::from_static("http://example.com/metrics"), Some("localhost")));
        assert!(names_loopback(&Uri::from_static("http://localhost:1/metrics"), Some("example.com")));
        for target in
            ["http://localhost:pw@example.com/", "http://localhost@example.com/", "http://a@localhost/"]
        {
            assert!(!names_loopback(&Uri::from_static(target), Some("localhost")), "{target}");
        }
    }

    #[test]
    fn another_site_may_link_here_but_not_ask() {
        for site in ["cross-site", "same-site"] {
            assert!(is_of_other_site(Some(site), Some("no-cors")), "{site}");
            assert!(is_of_other_site(Some(site), None), "{site}");
            assert!(!is_of_other_site(Some(site), Some("navigate")), "{site}");
        }
        for site in [None, Some("same-origin"), Some("none")] {
            assert!(!is_of_other_site(site, Some("cors")), "{site:?}");
        }
    }

    #[test]
    fn a_page_shows_as_much_as_its_client_may_see() {
        use Needs::{Administrator, Nothing, Reader};
        let token = Clients::WithToken(Zeroizing::new("abcdefghijklmnop".to_owned()));
        let right = Some("bearer abcdefghijklmnop");
        for (clients, needs, shown, answer) in [
            (&Clients::OfSocket, Administrator, None, Ok(())),
            (&Clients::WithCertificate, Administrator, None, Ok(())),
            (&Clients::OfThisHost, Nothing, None, Ok(())),
            (&Clients::OfThisHost, Reader, None, Ok(())),
            (&Clients::OfThisHost, Administrator, right, Err(Refused::OnlyWithToken)),
            (&token, Nothing, None, Ok(())),
            (&token, Reader, None, Err(Refused::NoToken)),
            (&token, Reader, Some("Basic abcdefghijklmnop"), Err(Refused::NoToken)),
            (&token, Reader, Some("Bearer"), Err(Refused::NoToken)),
            (&token, Reader, Some("Bearer "), Err(Refused::WrongToken)),
            (&token, Reader, Some("Bearer abcdefghijklmno"), Err(Refused::WrongToken)),
            (&token, Administrator, Some("Bearer abcdefghijklmnox"), Err(Refused::WrongToken)),
            (&token, Administrator, right, Ok(())),
        ] {
            assert_eq!(clients.authorize(needs, shown), answer, "{needs:?} {shown:?}");
        }
    }
}
