//! The interfaces and SMB Direct endpoints that the server announces to its clients ([MS-SMB2] 2.2.32.5).

use std::net::IpAddr;

use weft_machine::net::Interface;
use weft_smb::server as smb;

use crate::default_port;
use crate::ready::Ready;

/// The announced speed if the system knows none (loopback, virtual machines): 10 Gbit/s.
const LINK_SPEED_BPS: u64 = 10_000_000_000;

/// The answer to a Weft client that knows only SMB's TCP port: a line for each SMB Direct endpoint.
pub(super) fn endpoints(ready: &Ready) -> String {
    let Some(port) = ready.smbd_port else { return String::new() };
    ready.providers.iter().map(|provider| format!("{provider} {port}\n")).collect()
}

/// The answer to any client ([MS-SMB2] 2.2.32.5): the addresses that it can reach, read from the system each time.
///
/// SMB Direct is announced only if it uses the port where other clients look for it.
pub(super) fn interfaces(ready: &Ready) -> smb::Interfaces {
    let listen = ready.addresses.clone();
    let rdma = ready.smbd_port == Some(default_port::SMB_DIRECT)
        && ready.providers.iter().any(|provider| matches!(*provider, "iwarp" | "rnic"));
    smb::Interfaces::asked(move || match weft_machine::net::interfaces() {
        Ok(found) => served(&found, &listen, rdma),
        Err(e) => {
            tracing::warn!("the interfaces of this host cannot be listed: {e}");
            Vec::new()
        }
    })
}

/// The interfaces of this host, for hints: without them, hints name the listen address.
pub(super) fn found() -> Vec<Interface> {
    weft_machine::net::interfaces().unwrap_or_else(|e| {
        tracing::debug!("the interfaces of this host cannot be listed: {e}");
        Vec::new()
    })
}

/// The interfaces through which a client reaches a server that listens on `listen`: those with such an address, or
/// for wildcard addresses, those that lead out of this host. An interface with RDMA is listed twice, with and without
/// RDMA: Linux's client (6.12) opens no additional TCP connection to an interface listed with RDMA. Windows uses each
/// for both ([MS-SMB2] note 198), and RDMA first.
fn served(found: &[Interface], listen: &[IpAddr], rdma: bool) -> Vec<smb::NetworkInterface> {
    let reached_at = |interface: &Interface, listen: &IpAddr| match listen {
        listen if !listen.is_unspecified() => interface.addr == *listen,
        _ if interface.loopback || !interface.is_routable() => false,
        IpAddr::V4(_) => interface.addr.is_ipv4(),
        IpAddr::V6(_) => true,
    };
    let reaches = |interface: &&Interface| listen.iter().any(|listen| reached_at(interface, listen));
    let told = |interface: &Interface, rdma| smb::NetworkInterface {
        index: interface.index,
        addr: interface.addr,
        link_speed_bps: interface.speed_bps.unwrap_or(LINK_SPEED_BPS),
        rdma,
        rss: interface.queues > 1,
    };
    let kinds: &[bool] = if rdma { &[true, false] } else { &[false] };
    found.iter().filter(reaches).flat_map(|one| kinds.iter().map(move |&rdma| told(one, rdma))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::Addresses;

    fn interface(index: u32, addr: &str, loopback: bool) -> Interface {
        let (name, addr) = (format!("if{index}"), addr.parse().unwrap());
        Interface { index, name, addr, prefix: 24, loopback, speed_bps: None, queues: index as usize }
    }

    #[test]
    fn clients_are_told_what_they_can_reach() {
        let found = [
            interface(1, "127.0.0.1", true),
            interface(1, "::1", true),
            interface(2, "10.0.0.1", false),
            interface(2, "fe80::1", false),
            interface(3, "2001:db8::1", false),
        ];
        let told = |listen: &str| -> Vec<String> {
            let listen: Addresses = listen.parse().unwrap();
            let told = served(&found, listen.all(), false);
            told.iter().map(|interface| format!("{} {}", interface.index, interface.addr)).collect()
        };
        assert_eq!(told("127.0.0.1"), ["1 127.0.0.1"]);
        assert_eq!(told("localhost"), ["1 127.0.0.1", "1 ::1"]);
        assert_eq!(told("0.0.0.0"), ["2 10.0.0.1"]);
        assert_eq!(told("::"), ["2 10.0.0.1", "3 2001:db8::1"]);
        assert_eq!(told("10.9.9.9"), [""; 0]);
        let one = &served(&found, &["10.0.0.1".parse().unwrap()], false)[0];
        assert_eq!((one.rss, one.rdma, one.link_speed_bps), (true, false, LINK_SPEED_BPS));
    }

    #[test]
    fn an_interface_with_rdma_is_told_to_those_who_look_for_tcp_too() {
        let found = [interface(2, "10.0.0.1", false), interface(3, "10.0.1.1", false)];
        let told = served(&found, &["0.0.0.0".parse().unwrap()], true);
        let told: Vec<_> = told.iter().map(|one| (one.addr.to_string(), one.index, one.rdma)).collect();
        let each = |addr: &str, index| [(addr.to_owned(), index, true), (addr.to_owned(), index, false)];
        assert_eq!(told, [each("10.0.0.1", 2), each("10.0.1.1", 3)].concat());
    }
}
