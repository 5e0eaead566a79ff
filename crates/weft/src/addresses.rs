//! `--listen`: the addresses that a server listens on, each with the same ports.
//!
//! `localhost` is loopback, whatever a resolver says (RFC 6761 6.3). The caller passes the function that binds a
//! socket.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

use weft_machine::Listener;
use weft_machine::net::Interface;

/// The name that means the loopback addresses of both families.
pub(crate) const LOCALHOST: &str = "localhost";
/// How many port numbers are tried when any will do and the number that one address gave is in use at another.
const ATTEMPTS: usize = 16;

/// The addresses that a server listens on: at least one, no duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses(Vec<IpAddr>);

impl Addresses {
    /// Loopback, by IPv4 and IPv6.
    fn loopback() -> Addresses {
        Addresses(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
    }

    /// The address that stands for the server where only one can be shown.
    pub(crate) fn first(&self) -> IpAddr {
        self.0.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// All addresses.
    pub(crate) fn all(&self) -> &[IpAddr] {
        &self.0
    }

    /// The union of these. An address that another one covers is left out, because both could not be bound.
    pub(crate) fn of_each(each: &[Addresses]) -> Addresses {
        let mut all: Vec<IpAddr> = Vec::new();
        for ip in each.iter().flat_map(|addresses| &addresses.0) {
            if !all.contains(ip) {
                all.push(*ip);
            }
        }
        // On Linux, :: accepts connections of both families unless told otherwise.
        let (any_v4, any_v6) = (Ipv4Addr::UNSPECIFIED.into(), IpAddr::from(Ipv6Addr::UNSPECIFIED));
        if all.contains(&any_v6) {
            all.retain(|ip| *ip == any_v6);
        } else if all.contains(&any_v4) {
            all.retain(|ip| *ip == any_v4 || ip.is_ipv6());
        }
        if all.is_empty() { Addresses::loopback() } else { Addresses(all) }
    }

    /// The same without loopback addresses that this host, or our network namespace, lacks, as long as one address is
    /// left. The user asked for the other addresses by name or number, so a missing one is reported when it is bound.
    pub(crate) fn present(self) -> Addresses {
        let has = |ip: &IpAddr| match TcpListener::bind((*ip, 0)) {
            Err(e) if is_absent(&e) => {
                tracing::debug!("nothing listens on {ip}, which this host does not have: {e}");
                false
            }
            _ => true,
        };
        let mut present = self.0.clone();
        if present.len() > 1 {
            present.retain(|ip| !ip.is_loopback() || has(ip));
        }
        if present.is_empty() { self } else { Addresses(present) }
    }
}

impl Addresses {
    /// The addresses that this host lacks. The socket that finds out takes a free port, and is closed at once.
    pub(crate) fn absent(&self) -> impl Iterator<Item = IpAddr> {
        let lacks = |ip: &IpAddr| TcpListener::bind((*ip, 0)).is_err_and(|e| is_absent(&e));
        self.0.iter().copied().filter(lacks)
    }

    /// The addresses that this host has; all if it has none.
    pub(crate) fn without_absent(self) -> Addresses {
        let absent: Vec<IpAddr> = self.absent().collect();
        let present: Vec<IpAddr> = self.0.iter().copied().filter(|ip| !absent.contains(ip)).collect();
        if present.is_empty() { self } else { Addresses(present) }
    }
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses::loopback()
    }
}

/// An address, in URL form, at which clients reach a listener on `ip`. For a wildcard address it is one that is
/// reachable from other hosts, if there is one; IPv4 comes first, because more networks carry it.
pub(crate) fn in_hints(ip: IpAddr, found: &[Interface]) -> String {
    if !ip.is_unspecified() {
        return in_url(ip);
    }
    let mut leading = found.iter().filter(|one| !one.loopback && one.is_routable()).map(|one| one.addr);
    let reached = leading.clone().find(IpAddr::is_ipv4).or_else(|| leading.find(|_| ip.is_ipv6()));
    in_url(reached.unwrap_or(if ip.is_ipv4() {
        Ipv4Addr::LOCALHOST.into()
    } else {
        Ipv6Addr::LOCALHOST.into()
    }))
}

/// An address in URL form (RFC 3986 3.2.2).
pub(crate) fn in_url(host: IpAddr) -> String {
    match host {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    }
}

impl From<IpAddr> for Addresses {
    fn from(ip: IpAddr) -> Addresses {
        Addresses(vec![ip])
    }
}

/// Whether a bind failed because the host lacks the address or its whole family (`ipv6.disable=1`).
fn is_absent(error: &io::Error) -> bool {
    let family = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(family)
}

const ADVICE: &str = "write an address of this host (0.0.0.0 for all), its name, or localhost";

/// Why text is not an address to listen at, and what to write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(
        "link-local addresses, which are valid on one link only, are not supported: write another address of the link, or :: for all"
    )]
    LinkLocal,
    #[error(
        "link-local addresses, which are valid on one link only ({0}), are not supported: write another address of {0}, or :: for all"
    )]
    Zone(String),
    #[error("listen addresses have no port: write --listen {}, and the port as --smb-port {}", .0.ip(), .0.port())]
    Port(SocketAddr),
    #[error("one --listen takes one address: write {}", .0.join(" "))]
    Several(Vec<String>),
    #[error("no address: {ADVICE}")]
    NoAddress,
    #[error("{0}; {ADVICE}")]
    Unresolved(io::Error),
    #[error("this names an interface; write its address: {}", .0.join(" or "))]
    Interface(Vec<String>),
    #[error("the name has no address; {ADVICE}")]
    Nameless,
}

impl FromStr for Addresses {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Addresses, AddressError> {
        if text.eq_ignore_ascii_case(LOCALHOST) {
            return Ok(Addresses::loopback());
        }
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        match bare.parse() {
            Ok(IpAddr::V6(ip)) if ip.is_unicast_link_local() => {
                return Err(AddressError::LinkLocal);
            }
            Ok(ip) => return Ok(Addresses(vec![ip])),
            Err(_) => {}
        }
        if let Some((address, zone)) = bare.split_once('%')
            && address.parse::<Ipv6Addr>().is_ok()
        {
            return Err(AddressError::Zone(zone.to_owned()));
        }
        if let Ok(both) = text.parse::<SocketAddr>() {
            return Err(AddressError::Port(both));
        }
        if bare.contains(',') {
            let each = bare.split(',').map(|one| format!("--listen {}", one.trim()));
            return Err(AddressError::Several(each.collect()));
        }
        if text.is_empty() || text.contains([':', '/', ' ']) {
            return Err(AddressError::NoAddress);
        }
        let found = (text, 0).to_socket_addrs().map_err(|e| match of_interface(text) {
            own if own.is_empty() => AddressError::Unresolved(e),
            own => AddressError::Interface(own),
        })?;
        let mut all: Vec<IpAddr> = Vec::new();
        for addr in found {
            if !all.contains(&addr.ip()) {
                all.push(addr.ip());
            }
        }
        match all.is_empty() {
            true => Err(AddressError::Nameless),
            false => Ok(Addresses(all)),
        }
    }
}

/// The addresses, usable for listening, of the interface with this name.
fn of_interface(name: &str) -> Vec<String> {
    let found = weft_machine::net::interfaces().unwrap_or_default();
    let own = found.iter().filter(|one| one.name == name && one.is_routable());
    own.map(|one| one.addr.to_string()).collect()
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(IpAddr::to_string).collect();
        f.write_str(&all.join(","))
    }
}

/// Binds something at each address, all with the same port number; port 0 takes any number that is free at all of
/// them.
///
/// # Errors The first bind that failed, and its address.
pub(crate) async fn bind_each<T>(
    addresses: &Addresses,
    port: u16,
    mut bind: impl AsyncFnMut(SocketAddr) -> io::Result<T>,
    port_of: impl Fn(&T) -> u16,
) -> Result<Vec<T>, (SocketAddr, io::Error)> {
    let mut attempt = 1;
    'again: loop {
        let (mut number, mut bound) = (port, Vec::with_capacity(addresses.0.len()));
        for ip in &addresses.0 {
            let addr = SocketAddr::new(*ip, number);
            match bind(addr).await {
                Ok(one) => {
                    number = port_of(&one);
                    bound.push(one);
                }
                Err(e) if port == 0 && e.kind() == io::ErrorKind::AddrInUse && attempt < ATTEMPTS => {
                    attempt += 1;
                    continue 'again;
                }
                Err(e) => return Err((addr, e)),
            }
        }
        return Ok(bound);
    }
}

/// The port that a listener is bound to, for [`bind_each`].
pub(crate) fn port_of(listener: &Listener) -> u16 {
    listener.local_addr().port()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn parsed(text: &str) -> Result<String, String> {
        text.parse().map(|addresses: Addresses| addresses.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn localhost_is_both_loopback_addresses_and_an_address_is_itself() {
        for name in ["localhost", "LocalHost"] {
            assert_eq!(parsed(name).unwrap(), "127.0.0.1,::1");
        }
        for (text, means) in
            [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::", "::"), ("[::1]", "::1")]
        {
            assert_eq!(parsed(text).unwrap(), means);
        }
        for wrong in ["", "10.0.0.0/8", "a b"] {
            assert!(parsed(wrong).unwrap_err().contains("localhost"), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_address_says_what_to_write() {
        for (wrong, right) in [
            ("fe80::1%eth0", "another address of eth0"),
            ("[fe80::1%eth0]", "another address of eth0"),
            ("fe80::1", "another address of the link"),
            ("lo", "write its address: 127.0.0.1"),
            ("127.0.0.1:4450", "--listen 127.0.0.1, and the port as --smb-port 4450"),
            ("[::1]:4450", "--listen ::1, and the port as --smb-port 4450"),
            ("10.0.0.1, ::1", "--listen 10.0.0.1 --listen ::1"),
        ] {
            let said = parsed(wrong).unwrap_err();
            assert!(said.contains(right), "{wrong}: {said}");
        }
    }

    #[test]
    fn addresses_are_listened_on_once() {
        let all = |each: &[&str]| {
            let each: Vec<Addresses> = each.iter().map(|text| text.parse().unwrap()).collect();
            Addresses::of_each(&each).to_string()
        };
        assert_eq!(all(&["10.0.0.1", "localhost", "127.0.0.1"]), "10.0.0.1,127.0.0.1,::1");
        assert_eq!(all(&["127.0.0.1", "0.0.0.0", "::1"]), "0.0.0.0,::1");
        assert_eq!(all(&["127.0.0.1", "::", "0.0.0.0"]), "::");
        assert_eq!(all(&[]), "127.0.0.1,::1");
    }

    #[test]
    fn hints_name_an_address_that_leads_here() {
        let interface = |addr: &str, loopback| Interface {
            index: 1,
            name: "x".into(),
            addr: addr.parse().unwrap(),
            loopback,
            speed_bps: None,
            prefix: 24,
            queues: 1,
        };
        let v6 = [
            interface("127.0.0.1", true),
            interface("::1", true),
            interface("fe80::1", false),
            interface("2001:db8::1", false),
        ];
        let both = [v6.as_slice(), &[interface("10.0.0.1", false)]].concat();
        let hint = |listen: &str, found: &[Interface]| in_hints(listen.parse().unwrap(), found);
        assert_eq!((hint("::", &both), hint("0.0.0.0", &both)), ("10.0.0.1".into(), "10.0.0.1".into()));
        assert_eq!((hint("::", &v6), hint("0.0.0.0", &v6)), ("[2001:db8::1]".into(), "127.0.0.1".into()));
        assert_eq!((hint("::", &[]), hint("0.0.0.0", &[])), ("[::1]".into(), "127.0.0.1".into()));
        assert_eq!((hint("::1", &both), hint("10.9.9.9", &[])), ("[::1]".into(), "10.9.9.9".into()));
    }

    #[test]
    fn an_address_that_the_host_does_not_have_is_missed_unless_it_is_loopback() {
        let both: Addresses = "localhost".parse().unwrap();
        assert_eq!(both.clone().present().first(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(both.all().len() == 2 && both.present().all().len() <= 2);
        // TEST-NET-1 (RFC 5737), which no host has. The user asked for it, so it is not left out.
        let elsewhere = Addresses(vec![Ipv4Addr::LOCALHOST.into(), [192, 0, 2, 1].into()]);
        assert_eq!(elsewhere.clone().present(), elsewhere);
        assert_eq!(elsewhere.absent().collect::<Vec<_>>(), [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(Addresses(vec![Ipv4Addr::LOCALHOST.into()]).absent().next(), None);
        let alone = Addresses(vec![Ipv6Addr::LOCALHOST.into()]);
        assert_eq!(alone.clone().present(), alone, "the error of binding it says more");
        assert!(is_absent(&TcpListener::bind("192.0.2.1:0").unwrap_err()));
    }

    #[test]
    fn any_port_is_one_that_is_free_at_every_address() {
        let both: Addresses = "localhost".parse().unwrap();
        // Twice, the number that the system chose for the first address is in use at the second.
        let (mut next, mut tried) = (1000, Vec::new());
        let bind = async |addr: SocketAddr| {
            tried.push(addr.to_string());
            let port = if addr.port() == 0 {
                next += 1;
                next
            } else {
                addr.port()
            };
            let taken = addr.ip().is_ipv6() && port < 1003;
            if taken { Err(io::ErrorKind::AddrInUse.into()) } else { Ok(port) }
        };
        let bound = bind_each(&both, 0, bind, |port| *port).now_or_never().unwrap().unwrap();
        assert_eq!(bound, [1003, 1003]);
        assert_eq!(
            tried,
            ["127.0.0.1:0", "[::1]:1001", "127.0.0.1:0", "[::1]:1002", "127.0.0.1:0", "[::1]:1003"]
        );
        // A port that was named is not replaced by another, and the attempts end.
        let taken = async |addr: SocketAddr| match addr.ip() {
            IpAddr::V4(_) => Ok(addr.port()),
            IpAddr::V6(_) => Err(io::ErrorKind::AddrInUse.into()),
        };
        for port in [0, 7] {
            let (at, e) = bind_each(&both, port, taken, |port| *port).now_or_never().unwrap().unwrap_err();
            assert_eq!(
                (at, e.kind()),
                (SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port), io::ErrorKind::AddrInUse)
            );
        }
    }
}
