//! The rows of the table `tls`: the certificates of the servers that can use TLS.

use crate::config::entries::certificate;
use crate::config::row::{Field, Row, TakesEffect, converted};
use crate::config::types::{FilePath, Optional, Type};

pub(super) const NFS_CERTIFICATE: Row = converted!(
    Server,
    Restart,
    "tls.nfs.certificate",
    Optional<FilePath>,
    ["--nfs-tls-cert"],
    "no TLS",
    "\"/etc/weft/nfs.pem\"",
    "Certificate chain for NFS, in PEM: clients may use TLS (RFC 9289).",
    set | c,
    file | certificate(&mut c.tls.nfs).certificate = file.unwrap_or_default(),
    get | c | c.tls.nfs.as_ref().map(|files| files.certificate.clone())
);

pub(super) const NFS_KEY: Row = converted!(
    Server,
    Restart,
    "tls.nfs.key",
    Optional<FilePath>,
    ["--nfs-tls-key"],
    "no TLS",
    "\"/etc/weft/nfs.key\"",
    "Private key of the certificate for NFS, in PEM.",
    set | c,
    file | certificate(&mut c.tls.nfs).key = file.unwrap_or_default(),
    get | c | c.tls.nfs.as_ref().map(|files| files.key.clone())
);

pub(super) const NFS_CLIENTS: Row = converted!(
    Server,
    Restart,
    "tls.nfs.clients",
    Optional<FilePath>,
    ["--nfs-tls-clients"],
    "no client certificates",
    "\"/etc/weft/clients.pem\"",
    "Authorities that sign certificates of NFS clients, in PEM. Clients without a certificate are refused only by shares with \
     nfs.xprtsec = \"mtls\".",
    set | c,
    file | certificate(&mut c.tls.nfs).clients = file,
    get | c | c.tls.nfs.as_ref().and_then(|files| files.clients.clone())
);

pub(super) const NBD_CERTIFICATE: Row = converted!(
    Server,
    Restart,
    "tls.nbd.certificate",
    Optional<FilePath>,
    ["--nbd-tls-cert"],
    "no TLS",
    "\"/etc/weft/nbd.pem\"",
    "Certificate chain for NBD, in PEM; NBD then requires TLS.",
    set | c,
    file | certificate(&mut c.tls.nbd).certificate = file.unwrap_or_default(),
    get | c | c.tls.nbd.as_ref().map(|files| files.certificate.clone())
);

pub(super) const NBD_KEY: Row = converted!(
    Server,
    Restart,
    "tls.nbd.key",
    Optional<FilePath>,
    ["--nbd-tls-key"],
    "no TLS",
    "\"/etc/weft/nbd.key\"",
    "Private key of the certificate for NBD, in PEM.",
    set | c,
    file | certificate(&mut c.tls.nbd).key = file.unwrap_or_default(),
    get | c | c.tls.nbd.as_ref().map(|files| files.key.clone())
);

pub(super) const NBD_CLIENTS: Row = converted!(
    Server,
    Restart,
    "tls.nbd.clients",
    Optional<FilePath>,
    ["--nbd-tls-clients"],
    "every client is admitted",
    "\"/etc/weft/clients.pem\"",
    "Authorities that sign certificates of NBD clients, in PEM; clients without one are refused.",
    set | c,
    file | certificate(&mut c.tls.nbd).clients = file,
    get | c | c.tls.nbd.as_ref().and_then(|files| files.clients.clone())
);

pub(super) const ADMIN_CERTIFICATE: Row = converted!(
    Server,
    Restart,
    "tls.admin.certificate",
    Optional<FilePath>,
    ["--admin-tls-cert"],
    "no TLS",
    "\"/etc/weft/admin.pem\"",
    "Certificate chain for the admin server, in PEM; it then serves HTTPS.",
    set | c,
    file | certificate(&mut c.tls.admin).certificate = file.unwrap_or_default(),
    get | c | c.tls.admin.as_ref().map(|files| files.certificate.clone())
);

pub(super) const ADMIN_KEY: Row = converted!(
    Server,
    Restart,
    "tls.admin.key",
    Optional<FilePath>,
    ["--admin-tls-key"],
    "no TLS",
    "\"/etc/weft/admin.key\"",
    "Private key of the certificate for the admin server, in PEM.",
    set | c,
    file | certificate(&mut c.tls.admin).key = file.unwrap_or_default(),
    get | c | c.tls.admin.as_ref().map(|files| files.key.clone())
);

pub(super) const ADMIN_CLIENTS: Row = converted!(
    Server,
    Restart,
    "tls.admin.clients",
    Optional<FilePath>,
    ["--admin-tls-clients"],
    "no client certificates",
    "\"/etc/weft/clients.pem\"",
    "Authorities that sign certificates of administrators and scrapers, in PEM; clients without one are refused. It can take the \
     place of admin_token_file; with both, both are required.",
    set | c,
    file | certificate(&mut c.tls.admin).clients = file,
    get | c | c.tls.admin.as_ref().and_then(|files| files.clients.clone())
);
