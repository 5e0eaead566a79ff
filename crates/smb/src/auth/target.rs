//! Checks which server a client meant when it proved its password, so that the proof cannot be relayed to another one.
//!
//! Spec: [MS-NLMP] 2.2.2.1 (MsvAvTargetName, MsvAvChannelBindings, MsvAvFlags), 3.2.5.1.2. Owns the names of this
//! server. It never resolves names: an attacker would choose what is looked up.
//!
//! A client puts a service principal name such as `cifs/nas.example.org` into its NTLMv2 response, and the password
//! protects it. A man in the middle who relays the response to this server cannot change the name. Clients write the
//! name that their user typed: a short name, a qualified one, an address, `localhost`, or an alias that this host does
//! not know, which is why `weft serve --server-name` exists.

use std::net::{IpAddr, Ipv6Addr};

/// The longest prefix of a service principal name that is kept for the log.
const MOST_CHARS: usize = 255;
/// How Windows writes IPv6 addresses where colons are not allowed.
const IPV6_LITERAL: &str = ".ipv6-literal.net";

/// The server that the client says it logs on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The client does not say, or took the name from a source that it does not trust.
    Unstated,
    /// This server.
    Ours,
    /// Another server: the name as the client wrote it.
    Other(String),
}

/// The names by which clients may call this server.
pub struct ServerNames {
    /// In lower case.
    names: Vec<String>,
    /// The addresses of this host, queried each time because they change.
    addresses: Box<dyn Fn() -> Vec<IpAddr> + Send + Sync>,
}

impl ServerNames {
    /// These names and addresses, plus the ones that every host has for itself.
    pub fn new<'a>(
        names: impl IntoIterator<Item = &'a str>,
        addresses: impl Fn() -> Vec<IpAddr> + Send + Sync + 'static,
    ) -> ServerNames {
        let names = names.into_iter().chain(["localhost"]).map(canonical).filter(|name| !name.is_empty());
        ServerNames { names: names.collect(), addresses: Box::new(addresses) }
    }

    /// Classifies a service principal name, `class/host`, `class/host:port` or `class/host/service`.
    pub(super) fn judge(&self, name: &str) -> Target {
        let name = name.trim_end_matches('\0');
        if name.is_empty() {
            return Target::Unstated;
        }
        let other = || Target::Other(name.chars().take(MOST_CHARS).collect());
        let Some((class, rest)) = name.split_once('/') else { return other() };
        // `host` stands for every service of a host ([MS-KILE] 3.1.5.11 has the list).
        if !["cifs", "host"].iter().any(|ours| class.eq_ignore_ascii_case(ours)) {
            return other();
        }
        let host = rest.split('/').next().unwrap_or(rest);
        if self.is_ours(host) { Target::Ours } else { other() }
    }

    fn is_ours(&self, host: &str) -> bool {
        if let Some(address) = address(host) {
            let listed = || (self.addresses)().iter().any(|ours| ours.to_canonical() == address);
            let named = || self.names.iter().any(|name| self::address(name) == Some(address));
            return address.is_loopback() || named() || listed();
        }
        // Some clients append a port to the name.
        let bare = match host.split_once(':') {
            Some((bare, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => bare,
            _ => host,
        };
        let called = canonical(bare);
        // NetBIOS truncates names to 15 characters.
        self.names.iter().any(|name| *name == called || name.get(..15).is_some_and(|short| short == called))
    }
}

fn canonical(name: &str) -> String {
    name.trim().trim_end_matches('.').to_lowercase()
}

/// Parses the address of a host that is written as one: `10.0.0.1`, `10.0.0.1:445`, `fe80::1%eth0`, `[::1]`,
/// `[::1]:445` or `fe80--1s2.ipv6-literal.net`.
fn address(host: &str) -> Option<IpAddr> {
    let lower = host.to_ascii_lowercase();
    let unbracketed = lower.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(inner, _)| inner);
    let text = unbracketed.unwrap_or(&lower);
    if let Some(literal) = text.strip_suffix(IPV6_LITERAL) {
        let literal = literal.split('s').next().unwrap_or(literal).replace('-', ":");
        return literal.parse::<Ipv6Addr>().ok().map(|ip| IpAddr::V6(ip).to_canonical());
    }
    let text = text.split('%').next().unwrap_or(text);
    let parsed: Option<IpAddr> = text.parse().ok();
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|addr| addr.ip());
    parsed.or_else(with_port).map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_this_server_as_clients_write_them() {
        let addresses = || vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        let names = ["a-name-with-more-characters", "nas", "nas.example.org", "203.0.113.9"];
        let server = ServerNames::new(names, addresses);
        for ours in [
            "cifs/nas",
            "CIFS/NAS.example.org.",
            "cifs/nas:4450",
            "host/nas",
            "cifs/nas/something",
            "cifs/localhost",
            "cifs/127.0.0.1",
            "cifs/::1",
            "cifs/192.0.2.7",
            "cifs/192.0.2.7:445",
            "cifs/::ffff:192.0.2.7",
            "cifs/[2001:db8::7]",
            "cifs/[2001:db8::7]:4450",
            "cifs/2001:db8::7%eth0",
            "cifs/2001-db8--7.ipv6-literal.net",
            "cifs/2001-db8--7s4.ipv6-literal.net",
            "cifs/203.0.113.9",
            "cifs/A-NAME-WITH-MOR",
        ] {
            assert_eq!(server.judge(ours), Target::Ours, "{ours}");
        }
        for other in [
            "cifs/evil",
            "cifs/nas.evil.org",
            "cifs/192.0.2.66",
            "cifs/2001-db8--8.ipv6-literal.net",
            "http/nas",
            "nas",
            "cifs/",
            "cifs",
            "/",
            "cifs/nas:",
            "cifs/[",
        ] {
            assert_eq!(server.judge(other), Target::Other(other.into()), "{other}");
        }
        assert_eq!(server.judge(""), Target::Unstated);
        let long = format!("cifs/{}", "x".repeat(5000));
        assert!(matches!(server.judge(&long), Target::Other(kept) if kept.len() == MOST_CHARS));
    }
}
