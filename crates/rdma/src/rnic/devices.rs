//! Lists the RDMA devices of this host and their capabilities.
//!
//! [`devices`] serves `weft rdma devices`, `weft doctor`, and callers that want to know before they connect. The data
//! comes from ibv_get_device_list(3), ibv_query_device(3) and ibv_query_port(3); GIDs and network devices come from
//! sysfs.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::io;
use std::mem::zeroed;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use super::bindings::*;
use super::library::{Library, Unavailable};

/// Vendor and part of Linux's software iWARP.
const SIW: (u32, u32) = (0x0062_6d74, 1);
/// GIDs listed per port; tables of hundreds are mostly empty.
const MAX_GIDS: usize = 64;

/// One RDMA device.
#[derive(Debug)]
pub struct Device {
    /// The kernel's name, for example "mlx5_0" or "siw0".
    pub name: String,
    /// The kind of node.
    pub node: Node,
    /// The transport that it uses.
    pub transport: Transport,
    /// Details that require opening the device, or why it cannot be opened.
    pub details: io::Result<Details>,
}

/// What can be queried from an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// Firmware version.
    pub firmware: String,
    /// Node GUID.
    pub guid: u64,
    /// Vendor and part number.
    pub vendor: (u32, u32),
    /// Its limits.
    pub limits: Limits,
    /// Its ports; the first is number 1.
    pub ports: Vec<Port>,
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests in one queue.
    pub queue_depth: u32,
    /// Pieces of one Send, Write or Recv.
    pub pieces: u32,
    /// Pieces of one Read.
    pub read_pieces: u32,
    /// Entries of one completion queue.
    pub completions: u32,
    /// Memory regions.
    pub regions: u32,
    /// Bytes of one memory region.
    pub region_bytes: u64,
    /// Protection domains; a connection takes one.
    pub protection_domains: u32,
    /// Inbound RDMA Reads of one queue pair (IRD).
    pub ird: u32,
    /// Outbound RDMA Reads of one queue pair (ORD).
    pub ord: u32,
    /// Whether Send with Invalidate is supported and works.
    pub send_with_invalidate: bool,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port number, from 1.
    pub number: u8,
    /// The state of the port.
    pub state: PortState,
    /// The link layer.
    pub link: LinkLayer,
    /// Bytes of payload in one packet.
    pub mtu_bytes: u32,
    /// Bytes of the longest message.
    pub max_message_bytes: u32,
    /// The network device of an Ethernet port, for example "eth0".
    pub netdev: Option<String>,
    /// Its GIDs: index, GID, type ("RoCE v2", "IB/RoCE v1").
    pub gids: Vec<(u32, Ipv6Addr, String)>,
}

/// The kind of node of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A channel adapter: InfiniBand or RoCE.
    Ca,
    /// An iWARP adapter.
    Rnic,
    /// The number of another kind.
    Other(i32),
}

/// The transport of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand, also over Ethernet (RoCE).
    Ib,
    /// iWARP.
    Iwarp,
    /// The number of another transport.
    Other(i32),
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link that no subnet manager has configured yet.
    Initializing,
    /// Configured, not yet active.
    Armed,
    /// In use.
    Active,
    /// The number of another state.
    Other(u32),
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet,
    /// The device does not report it.
    Unspecified,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Ca => f.write_str("channel adapter"),
            Node::Rnic => f.write_str("RNIC"),
            Node::Other(number) => write!(f, "node type {number}"),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Ib => f.write_str("InfiniBand"),
            Transport::Iwarp => f.write_str("iWARP"),
            Transport::Other(number) => write!(f, "transport {number}"),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Down => f.write_str("down"),
            PortState::Initializing => f.write_str("initializing"),
            PortState::Armed => f.write_str("armed"),
            PortState::Active => f.write_str("active"),
            PortState::Other(number) => write!(f, "state {number}"),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unspecified => "unspecified",
        })
    }
}

impl Transport {
    pub(super) fn of(number: c_int) -> Transport {
        match number {
            0 => Transport::Ib,
            1 => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }
}

/// The RDMA devices of this host, at least one; otherwise why there is none and what to do about it.
pub fn devices() -> Result<Vec<Device>, Unavailable> {
    let library = Library::get()?;
    let mut count = 0;
    // SAFETY: `count` receives the number of entries.
    let list = unsafe { (library.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        // ENOSYS: the kernel has no ib_uverbs. For the caller any other error means the same.
        tracing::debug!("ibv_get_device_list: {}", io::Error::last_os_error());
        return Err(Unavailable::NoDevice);
    }
    // SAFETY: the list has `count` entries and does not change until it is freed below.
    let entries = unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
    // SAFETY: each entry is a device of the list, which is freed only after its last use.
    let devices: Vec<_> = entries.iter().map(|device| unsafe { describe(library, *device) }).collect();
    // SAFETY: the list returned above, freed once.
    unsafe { (library.ibv_free_device_list)(list) };
    if devices.is_empty() { Err(Unavailable::NoDevice) } else { Ok(devices) }
}

/// # Safety
/// `device` is an entry of a list that has not been freed.
unsafe fn describe(library: &Library, device: *mut ibv_device) -> Device {
    // SAFETY: the caller guarantees the device; its names are strings that end inside their arrays.
    let entry = unsafe { &*device };
    let path = PathBuf::from(text(&entry.ibdev_path));
    Device {
        name: text(&entry.name),
        node: match entry.node_type {
            1 => Node::Ca,
            4 => Node::Rnic,
            other => Node::Other(other),
        },
        transport: Transport::of(entry.transport_type),
        // SAFETY: as promised by the caller.
        details: unsafe { details(library, device, &path) },
    }
}

/// # Safety
/// As for [`describe`].
unsafe fn details(library: &Library, device: *mut ibv_device, path: &Path) -> io::Result<Details> {
    // SAFETY: as promised by the caller.
    let context = unsafe { (library.ibv_open_device)(device) };
    if context.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the context is open until it is closed below, once.
    unsafe {
        let details = query(library, context).map(|attr| {
            let ports = 1..=attr.phys_port_cnt;
            Details {
                firmware: text(&attr.fw_ver),
                guid: u64::from_be(attr.node_guid),
                vendor: (attr.vendor_id, attr.vendor_part_id),
                limits: Limits::of(&attr),
                ports: ports.filter_map(|number| port(library, context, number, path)).collect(),
            }
        });
        (library.ibv_close_device)(context);
        details
    }
}

/// # Safety
/// `context` is open.
pub(super) unsafe fn query(library: &Library, context: *mut ibv_context) -> io::Result<ibv_device_attr> {
    // SAFETY: only numbers, for which zero is valid.
    let mut attr = unsafe { zeroed() };
    // SAFETY: as promised by the caller; `attr` has the size that the library fills (see `layout`).
    match unsafe { (library.ibv_query_device)(context, &mut attr) } {
        0 => Ok(attr),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// # Safety
/// `context` is open.
unsafe fn port(library: &Library, context: *mut ibv_context, number: u8, path: &Path) -> Option<Port> {
    // SAFETY: only numbers, for which zero is valid.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    // SAFETY: as promised by the caller; `attr` is at least as large as what the library fills (see `layout`).
    if unsafe { (library.ibv_query_port)(context, number, &mut attr) } != 0 {
        return None;
    }
    let path = path.join("ports").join(number.to_string());
    let gids = gids(&path, usize::try_from(attr.gid_tbl_len).unwrap_or(0));
    Some(Port {
        number,
        state: match attr.state {
            1 => PortState::Down,
            2 => PortState::Initializing,
            3 => PortState::Armed,
            4 => PortState::Active,
            other => PortState::Other(other),
        },
        link: match attr.link_layer {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        },
        // enum ibv_mtu: 1 is 256, and each step doubles it.
        mtu_bytes: 128u32.checked_shl(attr.active_mtu).unwrap_or(0),
        max_message_bytes: attr.max_msg_sz,
        netdev: (0..gids.len().max(1)).find_map(|index| line(&path.join(format!("gid_attrs/ndevs/{index}")))),
        gids,
    })
}

/// The non-zero GIDs of a port. Reading the type of an unused entry fails; this is how sysfs marks it.
fn gids(port: &Path, entries: usize) -> Vec<(u32, Ipv6Addr, String)> {
    (0..entries.min(MAX_GIDS))
        .filter_map(|index| {
            let gid: Ipv6Addr = line(&port.join(format!("gids/{index}")))?.parse().ok()?;
            let kind = line(&port.join(format!("gid_attrs/types/{index}"))).unwrap_or_default();
            (!gid.is_unspecified()).then_some((index as u32, gid, kind))
        })
        .collect()
}

fn line(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A C string inside an array; the whole array if no zero ends it.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(
        |_| String::from_utf8_lossy(&bytes).into_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}

impl Limits {
    pub(super) fn of(attr: &ibv_device_attr) -> Limits {
        // A negative limit counts as 0.
        let count = |limit: c_int| u32::try_from(limit).unwrap_or(0);
        let siw = (attr.vendor_id, attr.vendor_part_id) == SIW;
        Limits {
            queue_pairs: count(attr.max_qp),
            queue_depth: count(attr.max_qp_wr),
            pieces: count(attr.max_sge),
            read_pieces: count(attr.max_sge_rd),
            completions: count(attr.max_cqe),
            regions: count(attr.max_mr),
            region_bytes: attr.max_mr_size,
            protection_domains: count(attr.max_pd),
            ird: count(attr.max_qp_rd_atom),
            ord: count(attr.max_qp_init_rd_atom),
            // The siw of rdma-core 44 sends STag 0 instead of the STag to invalidate, which ends the connection.
            send_with_invalidate: attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0 && !siw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_devices_or_says_what_to_do() {
        match devices() {
            Ok(devices) => assert!(devices.iter().all(|device| !device.name.is_empty())),
            Err(e @ Unavailable::Library(_)) => {
                assert!(e.to_string().contains("apt install libibverbs1"), "{e}")
            }
            Err(e) => assert!(e.to_string().contains("rdma link add"), "{e}"),
        }
    }

    #[test]
    fn strings_end_at_their_zero_or_with_their_array() {
        assert_eq!(text(&[b'a' as c_char, b'b' as c_char, 0, b'c' as c_char]), "ab");
        assert_eq!(text(&[b'a' as c_char, b'b' as c_char]), "ab");
        assert_eq!(text(&[0]), "");
    }
}
