//! The rows of the table `announce`: whether and how the server announces itself on its networks.
//!
//! They have no options: a server that is started by hand is known to the user who starts it.

use crate::config::row::{Field, Row, TakesEffect, field};
use crate::config::types::{Boolean, List, Optional, Text, Type};

pub(super) const MDNS: Row = field!(
    Server,
    Reload,
    "announce.mdns",
    Boolean,
    [],
    "false",
    "true",
    "Whether the server announces itself by mDNS with DNS-SD, as macOS and Linux look for servers: SMB, NFS exports, destinations of \
     Time Machine. Everybody on its networks then sees the names of exports and of these destinations.",
    |c| c.announce.mdns
);

pub(super) const WS_DISCOVERY: Row = field!(
    Server,
    Reload,
    "announce.ws_discovery",
    Boolean,
    [],
    "false",
    "true",
    "Whether the server announces itself by WS-Discovery, for the network view of Windows, which opens it on SMB port 445 only.",
    |c| c.announce.ws_discovery
);

pub(super) const NAME: Row = field!(
    Server,
    Restart,
    "announce.name",
    Optional<Text>,
    [],
    "the name of this host",
    "\"nas\"",
    "The name that the server announces; by mDNS it is reached as NAME.local. If another host has it, mDNS takes NAME-2.",
    |c| c.announce.name
);

pub(super) const WORKGROUP_ROW: Row = field!(
    Server,
    Reload,
    "announce.workgroup",
    Text,
    [],
    "\"WORKGROUP\"",
    "\"HOME\"",
    "The workgroup that WS-Discovery tells.",
    |c| c.announce.workgroup
);

pub(super) const INTERFACES: Row = field!(
    Server,
    Reload,
    "announce.interfaces",
    List<Text>,
    [],
    "[]",
    "[\"eth0\"]",
    "The network interfaces that the server announces itself on, if it listens there; an empty array means all but loopback.",
    |c| c.announce.interfaces
);
