//! The ports that are used where none is given: one table for `serve`, URLs, `doctor` and `replica`.

/// SMB over TCP ([MS-SMB2] 1.9). Listening on it takes a privilege.
pub(crate) const SMB: u16 = 445;
/// SMB over TCP of `weft serve`; listening on it takes no privilege. Clients try it after [`SMB`] on loopback.
pub(crate) const WEFT_SMB: u16 = 4450;
/// SMB Direct on iWARP ([MS-SMBD] 1.9); Linux's cifs tries no other port.
pub(crate) const SMB_DIRECT: u16 = weft_transport::smbd::IWARP_PORT;
/// NFS over TCP and UDP (RFC 7530 section 3.1).
pub(crate) const NFS: u16 = 2049;
/// NFS over RDMA (RFC 8267 section 6).
pub(crate) const NFS_RDMA: u16 = 20049;
/// NBD, as its clients assume.
pub(crate) const NBD: u16 = 10809;
