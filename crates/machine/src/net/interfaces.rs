//! The network interfaces of this host: their addresses, speeds and numbers of queues.
//!
//! See getifaddrs(3) and if_nametoindex(3); speed and queues come from /sys/class/net. Interfaces are not watched: to
//! see changes, call it again. Which services use them is not known here.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// One address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface number, the same for all its addresses; never 0.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The address.
    pub addr: IpAddr,
    /// The length of the prefix of its network, in bits: at most 32 or 128.
    pub prefix: u8,
    /// Whether it is a loopback interface.
    pub loopback: bool,
    /// Bits per second, if the driver reports it.
    pub speed_bps: Option<u64>,
    /// Receive queues, and so the number of processors that connections are spread over; at least 1.
    pub queues: usize,
}

impl Interface {
    /// Whether a peer can use the address without a zone (RFC 4007): link-local addresses need one.
    pub fn is_routable(&self) -> bool {
        match self.addr {
            IpAddr::V4(addr) => !addr.is_link_local(),
            IpAddr::V6(addr) => !addr.is_unicast_link_local(),
        }
    }

    /// Whether another address is in the network of this one.
    pub fn is_near(&self, other: IpAddr) -> bool {
        let bits = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => (u128::from(addr.to_bits()) << 96, 32),
            IpAddr::V6(addr) => (addr.to_bits(), 128),
        };
        let ((own, width), (other, other_width)) = (bits(self.addr), bits(other.to_canonical()));
        // A shift by all bits would be none.
        let host_bits = 128u32.saturating_sub(u32::from(self.prefix));
        width == other_width && own.checked_shr(host_bits) == other.checked_shr(host_bits)
    }
}

/// The addresses of every interface that is up and running, in the system's order.
///
/// # Errors
/// The error of getifaddrs. An interface that disappears meanwhile is left out.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer, to a list that is ours until freeifaddrs.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let list = List(list);
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: each node is valid until the list is freed, which `list` does at the end of this function.
    while let Some(node) = unsafe { next.as_ref() } {
        next = node.ifa_next;
        const RUNNING: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        if node.ifa_flags & RUNNING != RUNNING {
            continue;
        }
        // SAFETY: ifa_addr is null or points to a socket address as long as its family says; ifa_name is a C string.
        let (addr, name) = unsafe { (address(node.ifa_addr), CStr::from_ptr(node.ifa_name)) };
        // SAFETY: as the address.
        let mask = unsafe { address(node.ifa_netmask) };
        // SAFETY: a C string, only read.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let (Some(addr), Ok(name), 1..) = (addr, name.to_str(), index) else { continue };
        let class = Path::new("/sys/class/net").join(name);
        found.push(Interface {
            index,
            name: name.to_owned(),
            addr,
            prefix: mask.map_or_else(|| if addr.is_ipv4() { 32 } else { 128 }, prefix_of),
            loopback: node.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
            speed_bps: speed(&class),
            queues: queues(&class),
        });
    }
    Ok(found)
}

/// A list of getifaddrs, freed when dropped.
struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it came from getifaddrs and is freed once.
        unsafe { libc::freeifaddrs(self.0) }
    }
}

/// # Safety
/// `addr` is null, or points to a socket address of its family's length.
unsafe fn address(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises; every socket address starts with its family.
    let family = libc::c_int::from(unsafe { addr.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an AF_INET address is a sockaddr_in.
            let addr = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an AF_INET6 address is a sockaddr_in6.
            let addr = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(addr.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The number of bits of a network mask.
fn prefix_of(mask: IpAddr) -> u8 {
    let bits = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    u8::try_from(bits).unwrap_or(128)
}

/// Virtual interfaces report -1 or refuse.
fn speed(class: &Path) -> Option<u64> {
    let megabits: i64 = std::fs::read_to_string(class.join("speed")).ok()?.trim().parse().ok()?;
    u64::try_from(megabits)
        .ok()
        .filter(|megabits| *megabits > 0)
        .map(|megabits| megabits.saturating_mul(1_000_000))
}

fn queues(class: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(class.join("queues")) else { return 1 };
    let receiving =
        entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"rx-")).count();
    receiving.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|interface| interface.addr == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert!(loopback.loopback && loopback.index > 0 && loopback.queues >= 1);
        assert!(loopback.is_routable());
        assert_eq!(loopback.prefix, 8);
        assert!(loopback.is_near([127, 9, 9, 9].into()) && !loopback.is_near([128, 0, 0, 1].into()));
        assert!(!loopback.is_near("::1".parse().unwrap()));
        assert_eq!(loopback.speed_bps, None, "nobody knows");
    }

    #[test]
    fn link_local_addresses_need_a_zone() {
        let interface = |addr: &str| Interface {
            index: 1,
            name: "x".into(),
            addr: addr.parse().unwrap(),
            prefix: 24,
            loopback: false,
            speed_bps: None,
            queues: 1,
        };
        assert!(!interface("fe80::1").is_routable() && !interface("169.254.1.1").is_routable());
        assert!(interface("10.0.0.1").is_near([10, 0, 0, 255].into()));
        assert!(!interface("10.0.0.1").is_near([10, 0, 1, 1].into()));
        let (all, one) = (
            Interface { prefix: 0, ..interface("10.0.0.1") },
            Interface { prefix: 32, ..interface("10.0.0.1") },
        );
        assert!(
            all.is_near([1, 2, 3, 4].into())
                && one.is_near([10, 0, 0, 1].into())
                && !one.is_near([10, 0, 0, 2].into())
        );
        assert!(interface("2001:db8::1").is_routable() && interface("10.0.0.1").is_routable());
    }
}
