//! `HOST[:PORT]` as commands take it: a name, an IPv4 address, or an IPv6 address in brackets if a port follows.
//! Other text is an error that shows how to write a host.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use weft_machine::rt;

use crate::Failure;
use crate::connect::reach;

const EXAMPLE: &str = "write HOST or HOST:PORT, for example server:7174 or [::1]:7174";

/// Why text is not a host, and how to write one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostError {
    #[error("this takes a host, not a URL: {EXAMPLE}")]
    Url,
    #[error("{0}: {EXAMPLE}")]
    Brackets(&'static str),
    #[error("{0:?} is not a port: a number from 1 to 65535")]
    Port(String),
    #[error("{EXAMPLE}")]
    Name,
}

/// A host and an optional port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Name or address, without brackets.
    pub name: String,
    /// The port, if given.
    pub port: Option<u16>,
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Host, HostError> {
        let port = |text: &str| match text.parse() {
            Ok(0) | Err(_) => Err(HostError::Port(text.to_owned())),
            Ok(port) => Ok(Some(port)),
        };
        if text.contains("://") {
            return Err(HostError::Url);
        }
        let (name, number) = match in_brackets(text).map_err(HostError::Brackets)? {
            Some(split) => split,
            None if is_ipv6(text) => (text, None),
            None => text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number))),
        };
        let port = number.map_or(Ok(None), port)?;
        if name.is_empty() || name.contains(['/', ' ']) {
            return Err(HostError::Name);
        }
        Ok(Host { name: name.to_owned(), port })
    }
}

/// Splits `[ADDRESS]` or `[ADDRESS]:PORT`; `None` for text without brackets. An error says what is wrong with them.
pub(crate) fn in_brackets(text: &str) -> Result<Option<(&str, Option<&str>)>, &'static str> {
    let Some(rest) = text.strip_prefix('[') else {
        return match text.contains(['[', ']']) {
            true => Err("the brackets do not begin where the host begins"),
            false => Ok(None),
        };
    };
    let (address, after) = rest.split_once(']').ok_or("the bracket is not closed")?;
    if !is_ipv6(address) {
        return Err("the text in the brackets is not an IPv6 address");
    }
    match after.strip_prefix(':') {
        Some(port) => Ok(Some((address, Some(port)))),
        None if after.is_empty() => Ok(Some((address, None))),
        None => Err("text other than a port follows the brackets"),
    }
}

/// Whether the text is an IPv6 address, perhaps with a zone: `fe80::1%eth0`.
pub(crate) fn is_ipv6(text: &str) -> bool {
    match text.split_once('%') {
        Some((address, zone)) => !zone.is_empty() && address.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv6Addr>().is_ok(),
    }
}

impl Host {
    /// All addresses in the order in which they are tried; `default` is the port if none was given.
    pub(crate) async fn addresses(&self, default: u16) -> Result<Vec<SocketAddr>, Failure> {
        let port = self.port.unwrap_or(default);
        Ok(reach::resolve(&self.name).await?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }

    /// Like `addresses`, but blocks: for callers with nothing else to do meanwhile.
    pub(crate) fn resolve(&self, default: u16) -> Result<Vec<SocketAddr>, Failure> {
        rt::block_on(self.addresses(default))?
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (is_ipv6(&self.name), self.port) {
            (true, Some(port)) => write!(f, "[{}]:{port}", self.name),
            (false, Some(port)) => write!(f, "{}:{port}", self.name),
            (_, None) => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_come_with_and_without_ports() {
        let parsed = |text: &str| text.parse::<Host>().map(|host| (host.name, host.port));
        assert_eq!(parsed("server"), Ok(("server".into(), None)));
        assert_eq!(parsed("server:5445"), Ok(("server".into(), Some(5445))));
        assert_eq!(parsed("10.0.2.2:1"), Ok(("10.0.2.2".into(), Some(1))));
        assert_eq!(parsed("::1"), Ok(("::1".into(), None)));
        assert_eq!(parsed("[::1]"), Ok(("::1".into(), None)));
        assert_eq!(parsed("[fe80::2]:7174"), Ok(("fe80::2".into(), Some(7174))));
        for host in ["server", "server:5445", "::1", "[::1]:7174", "fe80::1%eth0", "[fe80::1%eth0]:7174"] {
            assert_eq!(host.parse::<Host>().unwrap().to_string(), host);
        }
    }

    #[test]
    fn what_is_no_host_says_how_to_write_one() {
        for text in [
            "",
            ":5445",
            "server:",
            "server:0",
            "server:70000",
            "[::1",
            "[::1]x",
            "[host]:1",
            "[]",
            "::1]",
            "smb://server",
            "a b",
        ] {
            assert!(text.parse::<Host>().is_err(), "{text:?} was taken");
        }
    }
}
