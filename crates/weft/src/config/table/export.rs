//! The rows of the table `nfs` of a share: how it is exported, in the terms of exports(5).

use weft_store::rules::{Flavor, Ports, Protection, Squash};

use crate::config::entries::{export, exported};
use crate::config::row::{Field, Row, TakesEffect, converted};
use crate::config::types::{Boolean, ClientNetwork, List, OneOf, Optional, Type, UnixId};

pub(super) const READ_ONLY: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.read_only",
    Boolean,
    ["--export"],
    "false",
    "true",
    "Whether changes over NFS are refused (ro or rw).",
    set | s,
    value | export(s).read_only = value,
    get | s | exported(s).read_only
);

pub(super) const ASYNC: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.async",
    Boolean,
    ["--export"],
    "false",
    "true",
    "Whether changes of names and attributes are acknowledged before they are durable (async or sync).",
    set | s,
    value | export(s).asynchronous = value,
    get | s | exported(s).asynchronous
);

pub(super) const SECURE: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.secure",
    Optional<Boolean>,
    ["--export"],
    "true if this server runs as root",
    "true",
    "Whether clients must use a source port below 1024 (secure or insecure).",
    set | s,
    value | export(s).ports = value.map(|secure| if secure { Ports::Reserved } else { Ports::Any }),
    get | s | exported(s).ports.map(|ports| ports == Ports::Reserved)
);

pub(super) const SQUASH: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.squash",
    Optional<OneOf<Squash>>,
    ["--export"],
    "that of nfs.root_squash",
    "\"all_squash\"",
    "Users who are mapped to the anonymous user: root, none or all.",
    set | s,
    value | export(s).squash = value,
    get | s | exported(s).squash
);

pub(super) const ANONUID: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.anonuid",
    Optional<UnixId>,
    ["--export"],
    "65534",
    "1000",
    "User ID of the anonymous user.",
    set | s,
    value | export(s).anonymous.0 = value,
    get | s | exported(s).anonymous.0
);

pub(super) const ANONGID: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.anongid",
    Optional<UnixId>,
    ["--export"],
    "65534",
    "100",
    "Group ID of the anonymous user.",
    set | s,
    value | export(s).anonymous.1 = value,
    get | s | exported(s).anonymous.1
);

pub(super) const NET: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.net",
    List<ClientNetwork>,
    ["--export"],
    "[]",
    "[\"192.0.2.0/24\"]",
    "Networks whose clients may use the share over NFS; an empty array admits all.",
    set | s,
    value | export(s).networks = value,
    get | s | exported(s).networks
);

pub(super) const SEC: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.sec",
    List<OneOf<Flavor>>,
    ["--export"],
    "[]",
    "[\"krb5p\"]",
    "Accepted authentication flavors: sys, none, krb5, krb5i, krb5p. The last three need smb.keytab. An empty array accepts sys and none.",
    set | s,
    value | export(s).flavors = value,
    get | s | exported(s).flavors
);

pub(super) const XPRTSEC: Row = converted!(
    Share,
    Reload,
    "shares.*.nfs.xprtsec",
    OneOf<Protection>,
    ["--export"],
    "\"none\"",
    "\"tls\"",
    "Required protection of the connection: none, TLS, or TLS with a client certificate.",
    set | s,
    value | export(s).protection = value,
    get | s | exported(s).protection
);
