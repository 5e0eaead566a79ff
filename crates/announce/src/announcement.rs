//! What is announced: the caller's description of the server, without any protocol's types.

use std::net::IpAddr;

use weft_wire::wsd::Uuid;

/// The longest name of a server: that of a label of DNS.
pub const MAX_NAME: usize = 63;

/// What is announced, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Whether by Multicast DNS.
    pub mdns: bool,
    /// Whether by WS-Discovery.
    pub ws_discovery: bool,
    /// The name of the server: letters, digits and hyphens, at most [`MAX_NAME`].
    pub name: String,
    /// Its workgroup, for Windows.
    pub workgroup: String,
    /// Its model, which macOS shows as an icon.
    pub model: String,
    /// Its version.
    pub version: String,
    /// Its identity, the same in all runs.
    pub id: Uuid,
    /// The network interfaces to announce it on; if empty, all but loopback.
    pub interfaces: Vec<String>,
    /// The addresses that it listens on. It is announced where others reach one of them.
    pub listen: Vec<IpAddr>,
    /// The TCP port of SMB, if there are shares over SMB.
    pub smb_port: Option<u16>,
    /// The TCP port of NFS, if it is served.
    pub nfs_port: Option<u16>,
    /// The shares.
    pub shares: Vec<AnnouncedShare>,
}

/// A share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnnouncedShare {
    /// Its name over SMB.
    pub name: String,
    /// Whether it is a destination of Time Machine.
    pub time_machine: bool,
    /// Its path over NFS, if it is offered there.
    pub export: Option<String>,
}
