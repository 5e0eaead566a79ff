//! The access rules of a share.
//!
//! [`Rules`]; [`Export`] is the part for protocols without a logon (NFS), modelled on exports(5). Each protocol
//! enforces them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use weft_machine::Peer;
use weft_machine::credentials::Credentials;

use crate::access::posix::Process;
use crate::rights::Rights;

/// The user and group of callers without their own identity: nobody, with the number used by most systems.
pub const NOBODY: u32 = 65_534;

/// The rules of a share, for every protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether encryption is required: a protocol that cannot encrypt does not offer the share.
    pub encrypted: bool,
    /// Whether listings hide what their user may not read, in protocols that support that.
    pub hides_unreadable: bool,
    /// Whether Macs may back up to it with Time Machine.
    pub backs_up_macs: bool,
    /// Who may use it, in protocols whose users log on.
    pub rights: Rights,
    /// As whom the files of a folder are used.
    pub acts: ActsAs,
    /// The rules of NFS.
    pub nfs: Export,
    /// Whether `nfs` was chosen for this share.
    pub nfs_is_chosen: bool,
}

impl Rules {
    /// Why NFS does not offer the share, if so. Rights of users who log on bind only those of its callers who prove who they
    /// are; others name their users themselves. So a share with rights must be meant for NFS.
    pub fn withheld_from_nfs(&self) -> Option<&'static str> {
        if self.encrypted && !self.nfs.is_encrypted() {
            Some("which does not encrypt it; shares.NAME.nfs.sec = [\"krb5p\"] does")
        } else if !self.rights.are_open() && !self.nfs_is_chosen {
            Some(
                "whose clients name their users themselves, so that the keys read and write do not bind them; \
                 shares.NAME.nfs.sec = [\"krb5p\"] admits those who prove who they are",
            )
        } else {
            None
        }
    }
}

/// As whom the kernel judges the users of a share, and who owns what they create. Only a server that is root can act for
/// others, and only where the kernel judges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ActsAs {
    /// As the server itself, which decides.
    #[default]
    Server,
    /// As the user himself.
    Caller,
    /// All users as this one.
    User(Arc<Credentials>),
}

/// How a share is exported by a protocol whose callers name themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Whether all changes are refused.
    pub read_only: bool,
    /// Whose identity is replaced; `None` leaves it to the server.
    pub squash: Option<Squash>,
    /// The replacing user and group; `None` is [`NOBODY`].
    pub anonymous: (Option<u32>, Option<u32>),
    /// The networks that may use it; empty means all.
    pub networks: Vec<Network>,
    /// The accepted ways to identify a caller; empty means those without proof.
    pub flavors: Vec<Flavor>,
    /// The required protection of the connection.
    pub protection: Protection,
    /// The required source ports; `None` leaves it to the server.
    pub ports: Option<Ports>,
    /// Whether changes of names and attributes are acknowledged before they are durable.
    pub asynchronous: bool,
}

impl Export {
    /// The export without restrictions.
    pub const PLAIN: Export = Export {
        read_only: false,
        squash: None,
        anonymous: (None, None),
        networks: Vec::new(),
        flavors: Vec::new(),
        protection: Protection::None,
        ports: None,
        asynchronous: false,
    };

    /// Whether every caller's data is encrypted.
    pub fn is_encrypted(&self) -> bool {
        !self.flavors.is_empty() && self.flavors.iter().all(|flavor| *flavor == Flavor::Krb5p)
    }

    /// Whether it has any restriction beyond the server's own.
    pub fn is_plain(&self) -> bool {
        // Asynchronous answers do not restrict callers.
        *self == Export { asynchronous: self.asynchronous, ..Export::PLAIN }
    }

    /// Whether this peer may use it; `ports` applies if the export does not choose ports.
    pub fn admits(&self, peer: Peer, ports: Ports) -> Result<(), Unadmitted> {
        self.admits_near(peer)?;
        if self.ports.unwrap_or(ports).include(peer) { Ok(()) } else { Err(Unadmitted::Port) }
    }

    /// Whether a connection of this peer with this protection may be used for the share.
    pub fn lets_in(&self, peer: Peer, ports: Ports, protection: Protection) -> bool {
        protection >= self.protection && self.admits(peer, ports).is_ok()
    }

    /// Whether this peer may use it with a ticket, which does not depend on ports (exports(5): `secure`).
    pub fn admits_near(&self, peer: Peer) -> Result<(), Unadmitted> {
        if self.networks.is_empty() || self.is_near(peer) { Ok(()) } else { Err(Unadmitted::Network) }
    }

    /// The same, if it accepts tickets at all.
    pub fn admits_tickets(&self, peer: Peer) -> bool {
        self.flavors.iter().any(|flavor| flavor.is_kerberos()) && self.admits_near(peer).is_ok()
    }

    fn is_near(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tcp(addr) | Peer::Udp(addr) | Peer::Rdma(addr) => {
                self.networks.iter().any(|network| network.contains(addr.ip()))
            }
            // The server's own user has the files without the server; other local users must use a network.
            Peer::Local { uid, .. } => uid == Process::own().uid,
        }
    }
}

/// Why a peer may not use an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unadmitted {
    /// Its address is not allowed.
    Network,
    /// Its port is not reserved.
    Port,
}

/// The source ports of callers (exports(5): `secure`, `insecure`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Any port.
    Any,
    /// Ports below [`Ports::FIRST_UNRESERVED`], which a host allows only to root: then root of the caller's host
    /// vouches for the caller's identity, not any user.
    Reserved,
}

impl Ports {
    /// IPPORT_RESERVED of Unix.
    pub const FIRST_UNRESERVED: u16 = 1024;

    /// Whether this peer has such a port. RDMA is no exception: programs of any user can make RDMA connections.
    pub fn include(self, peer: Peer) -> bool {
        match (self, peer) {
            (Ports::Any, _) => true,
            (Ports::Reserved, Peer::Tcp(addr) | Peer::Udp(addr) | Peer::Rdma(addr)) => {
                addr.port() < Ports::FIRST_UNRESERVED
            }
            // The kernel reports the peer's user. The server's own user has the files without the server.
            (Ports::Reserved, Peer::Local { uid, .. }) => uid == 0 || uid == Process::own().uid,
        }
    }
}

/// Which users become the anonymous user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// None: root stays root.
    None,
    /// Root.
    Root,
    /// All users.
    All,
}

/// The protection of the connection between a caller and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// None required.
    #[default]
    None,
    /// TLS.
    Tls,
    /// TLS with a certificate of the caller's host.
    Mutual,
}

/// How a caller is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Not at all.
    None,
    /// By unproven Unix ids.
    Sys,
    /// By a Kerberos ticket, without protection of the data.
    Krb5,
    /// By a Kerberos ticket, with integrity.
    Krb5i,
    /// By a Kerberos ticket, encrypted.
    Krb5p,
}

impl Flavor {
    /// Whether callers prove who they are.
    pub fn is_kerberos(self) -> bool {
        matches!(self, Flavor::Krb5 | Flavor::Krb5i | Flavor::Krb5p)
    }
}

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The bits after the prefix are zero.
    addr: IpAddr,
    /// At most the bits of the address.
    prefix: u8,
}

/// Why text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotANetwork {
    /// It is not an address, or the length is not a number or too long.
    #[error("write an address or a network: 192.0.2.7, 192.0.2.0/24, 2001:db8::/32")]
    Shape,
    /// The address has bits after the prefix.
    #[error("the address has bits after the prefix: write {0}")]
    Bits(Network),
}

impl Network {
    /// Whether the address is in the network. An IPv4 address written as IPv6 counts as IPv4.
    pub fn contains(&self, addr: IpAddr) -> bool {
        masked(addr.to_canonical(), self.prefix) == Some(self.addr)
    }
}

/// The address without the bits after the prefix; `None` if the prefix is longer than the address.
fn masked(addr: IpAddr, prefix: u8) -> Option<IpAddr> {
    let prefix = u32::from(prefix);
    match addr {
        IpAddr::V4(addr) => {
            let keep = u32::MAX.checked_shl(32_u32.checked_sub(prefix)?).unwrap_or(0);
            Some(IpAddr::V4((addr.to_bits() & keep).into()))
        }
        IpAddr::V6(addr) => {
            let keep = u128::MAX.checked_shl(128_u32.checked_sub(prefix)?).unwrap_or(0);
            Some(IpAddr::V6((addr.to_bits() & keep).into()))
        }
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Network, NotANetwork> {
        let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, len)| (addr, Some(len)));
        let addr: IpAddr = addr.parse().map_err(|_| NotANetwork::Shape)?;
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(whole), str::parse).map_err(|_| NotANetwork::Shape)?;
        let network = masked(addr, prefix).ok_or(NotANetwork::Shape)?;
        let parsed = Network { addr: network, prefix };
        if network == addr { Ok(parsed) } else { Err(NotANetwork::Bits(parsed)) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.addr.is_ipv4() { 32 } else { 128 };
        if self.prefix == whole { self.addr.fmt(f) } else { write!(f, "{}/{}", self.addr, self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn networks_contain_what_begins_like_them() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::1", "::1", "::2"),
            ("10.0.0.0/9", "10.127.255.255", "10.128.0.0"),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.to_string(), network);
            assert!(parsed.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!parsed.contains(outside.parse().unwrap()), "{network} {outside}");
        }
        let mapped: IpAddr = "::ffff:192.0.2.7".parse().unwrap();
        assert!("192.0.2.0/24".parse::<Network>().unwrap().contains(mapped));
    }

    #[test]
    fn what_is_no_network_is_told_how_to_be_one() {
        for text in ["", "host", "192.0.2", "192.0.2.0/33", "::/129", "192.0.2.0/", "192.0.2.0/-1", "/8"] {
            assert_eq!(text.parse::<Network>(), Err(NotANetwork::Shape), "{text}");
        }
        let error = "192.0.2.7/24".parse::<Network>().unwrap_err();
        assert_eq!(error.to_string(), "the address has bits after the prefix: write 192.0.2.0/24");
    }

    #[test]
    fn an_export_without_networks_is_open_and_one_with_them_is_not() {
        let mut export = Export::default();
        let addr = |text: &str| Peer::Tcp(SocketAddr::new(text.parse().unwrap(), 700));
        let admits = |export: &Export, peer| match export.admits(peer, Ports::Any) {
            Ok(()) => true,
            Err(refused) => {
                assert_eq!(refused, Unadmitted::Network);
                false
            }
        };
        assert!(export.is_plain() && admits(&export, addr("203.0.113.1")));
        export.networks = vec!["192.0.2.0/24".parse().unwrap(), "::1".parse().unwrap()];
        assert!(!export.is_plain());
        assert!(admits(&export, addr("192.0.2.1")) && admits(&export, addr("::1")));
        for by in [Peer::Tcp, Peer::Udp, Peer::Rdma] {
            assert!(admits(&export, by(([192, 0, 2, 1], 700).into())));
            assert!(!admits(&export, by(([203, 0, 113, 1], 700).into())));
        }
        let own = Process::own().uid;
        assert!(admits(&export, Peer::Local { uid: own, pid: Some(1) }));
        assert!(!admits(&export, Peer::Local { uid: own + 1, pid: Some(1) }));
        assert!(admits(&Export::default(), Peer::Local { uid: own + 1, pid: Some(1) }));
    }

    #[test]
    fn an_export_that_asks_for_reserved_ports_asks_every_transport() {
        let own = Process::own().uid;
        let (plain, said) = (Export::default(), |ports| Export { ports: Some(ports), ..Export::default() });
        let reserved = |peer| {
            // The export's rule overrides the server's.
            assert_eq!(said(Ports::Any).admits(peer, Ports::Reserved), Ok(()));
            assert_eq!(plain.admits(peer, Ports::Any), Ok(()));
            let admitted = said(Ports::Reserved).admits(peer, Ports::Any);
            assert_eq!(plain.admits(peer, Ports::Reserved), admitted);
            admitted.is_ok()
        };
        for by in [Peer::Tcp, Peer::Udp, Peer::Rdma] {
            for (addr, is) in [
                ("192.0.2.1:1", true),
                ("192.0.2.1:1023", true),
                ("192.0.2.1:1024", false),
                ("[::1]:665", true),
                ("[::1]:40000", false),
                ("127.0.0.1:40000", false),
                ("[::ffff:127.0.0.1]:40000", false),
            ] {
                assert_eq!(reserved(by(addr.parse().unwrap())), is, "{addr}");
            }
        }
        assert!(
            reserved(Peer::Local { uid: own, pid: Some(1) })
                && reserved(Peer::Local { uid: 0, pid: Some(1) })
        );
        assert!(!reserved(Peer::Local { uid: own + 1, pid: Some(1) }));
        // An address that is not allowed is reported as such, whatever its port.
        let near = Export { networks: vec!["192.0.2.0/24".parse().unwrap()], ..said(Ports::Reserved) };
        let from = |text: &str| near.admits(Peer::Tcp(text.parse().unwrap()), Ports::Any);
        assert_eq!(from("203.0.113.1:40000"), Err(Unadmitted::Network));
        assert_eq!(from("192.0.2.1:40000"), Err(Unadmitted::Port));
        assert_eq!(from("192.0.2.1:700"), Ok(()));
    }
}
