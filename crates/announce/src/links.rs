//! The links that a server is announced on: the interfaces by which other hosts reach an address that it listens on.

use std::net::IpAddr;

use weft_machine::net::Interface;

use crate::announcement::Announcement;

/// Most links.
pub const MAX_LINKS: usize = 32;

/// A link of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The number of the interface.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The addresses there that the server listens on.
    pub addresses: Vec<IpAddr>,
    /// The networks of the interface, whose hosts are answered.
    pub networks: Vec<Interface>,
}

impl Link {
    /// Whether a sender is on this link: in one of its networks, or at a link-local address.
    pub fn is_near(&self, sender: IpAddr) -> bool {
        let is_link_local = matches!(sender, IpAddr::V6(ip) if ip.is_unicast_link_local());
        is_link_local || self.networks.iter().any(|network| network.is_near(sender))
    }
}

/// The links for an announcement, of the interfaces of this host.
pub fn links(found: &[Interface], announcement: &Announcement) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for one in found {
        let is_wanted = match announcement.interfaces.is_empty() {
            true => !one.loopback,
            false => announcement.interfaces.contains(&one.name),
        };
        if !is_wanted || links.iter().any(|link| link.index == one.index) {
            continue;
        }
        let networks: Vec<Interface> =
            found.iter().filter(|other| other.index == one.index).cloned().collect();
        let served = |ip: IpAddr| announcement.listen.iter().any(|listen| is_reached(ip, *listen));
        let mut addresses: Vec<IpAddr> =
            networks.iter().map(|one| one.addr).filter(|ip| served(*ip)).collect();
        // A link-local address is used only if the interface has no other IPv6 address.
        if addresses.iter().any(|ip| ip.is_ipv6() && !is_link_local(*ip)) {
            addresses.retain(|ip| ip.is_ipv4() || !is_link_local(*ip));
        }
        addresses.dedup();
        if !addresses.is_empty() && links.len() < MAX_LINKS {
            links.push(Link { index: one.index, name: one.name.clone(), addresses, networks });
        }
    }
    links
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether a server that listens there is reached at this address. On Linux, :: accepts IPv4, too.
fn is_reached(ip: IpAddr, listen: IpAddr) -> bool {
    match listen {
        IpAddr::V4(listen) if listen.is_unspecified() => ip.is_ipv4(),
        IpAddr::V6(listen) if listen.is_unspecified() => true,
        listen => listen == ip,
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::wsd::Uuid;

    use super::*;

    fn interface(index: u32, addr: &str, prefix: u8) -> Interface {
        let (name, addr) = (format!("if{index}"), addr.parse().unwrap());
        Interface { index, name, addr, prefix, loopback: index == 1, speed_bps: None, queues: 1 }
    }

    fn found() -> Vec<Interface> {
        vec![
            interface(1, "127.0.0.1", 8),
            interface(2, "10.0.0.1", 24),
            interface(3, "10.1.0.1", 16),
            interface(1, "::1", 128),
            interface(2, "2001:db8::1", 64),
            interface(2, "fe80::1", 64),
            interface(3, "fe80::2", 64),
        ]
    }

    fn told(listen: &str, interfaces: &[&str]) -> Vec<String> {
        let announcement = Announcement {
            mdns: true,
            ws_discovery: true,
            name: "nas".into(),
            workgroup: String::new(),
            model: String::new(),
            version: String::new(),
            id: Uuid::of_random([0; 16]),
            interfaces: interfaces.iter().map(|name| (*name).into()).collect(),
            listen: listen.split(' ').map(|ip| ip.parse().unwrap()).collect(),
            smb_port: None,
            nfs_port: None,
            shares: Vec::new(),
        };
        let shown = |link: Link| {
            let addresses: Vec<String> = link.addresses.iter().map(ToString::to_string).collect();
            format!("{} {}", link.name, addresses.join(" "))
        };
        links(&found(), &announcement).into_iter().map(shown).collect()
    }

    #[test]
    fn a_server_is_announced_where_it_is_reached() {
        assert_eq!(told("0.0.0.0", &[]), ["if2 10.0.0.1", "if3 10.1.0.1"]);
        assert_eq!(told("::", &[]), ["if2 10.0.0.1 2001:db8::1", "if3 10.1.0.1 fe80::2"]);
        assert_eq!(told("10.1.0.1", &[]), ["if3 10.1.0.1"]);
        assert_eq!(told("127.0.0.1 ::1", &[]), [""; 0]);
        assert_eq!(told("0.0.0.0", &["if3"]), ["if3 10.1.0.1"]);
        assert_eq!(told("10.0.0.1", &["if3"]), [""; 0]);
        assert_eq!(told("0.0.0.0", &["if1"]), ["if1 127.0.0.1"], "only if it is named");
    }

    #[test]
    fn senders_of_other_networks_are_not_near() {
        let networks = found().into_iter().filter(|one| one.index == 2).collect();
        let link = Link { index: 2, name: "if2".into(), addresses: Vec::new(), networks };
        for near in ["10.0.0.9", "::ffff:10.0.0.9", "2001:db8::9", "fe80::9"] {
            assert!(link.is_near(near.parse().unwrap()), "{near}");
        }
        for far in ["10.0.1.9", "8.8.8.8", "2001:db8:1::9", "::1", "127.0.0.1"] {
            assert!(!link.is_near(far.parse().unwrap()), "{far}");
        }
    }
}
