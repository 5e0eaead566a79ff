//! Counts the calls: by procedure or operation, share and transport. `weft_machine::meter` keeps the counters.
//!
//! A call is counted when its reply is handed to the transport. A COMPOUND counts as one operation: the first that
//! does more than choose a file handle or a session, in the share of the last file handle. Calls that are not carried
//! out (RFC 5531 section 9) are not counted. The flight recorder (`weft_machine::recorder`), which is told here what a
//! call is, follows it until the network has taken the reply.

use std::cell::Cell;

use weft_machine::meter::{self, Class, Moved, Started, Subject, What};
use weft_machine::recorder;
use weft_transport::Kind;
use weft_wire::nfs4::opnum;
use weft_wire::{nfs3, nfs4};

use super::header::Header;

/// RFC 1813 3, by number.
const PROCEDURES: &[&str] = &[
    "null",
    "getattr",
    "setattr",
    "lookup",
    "access",
    "readlink",
    "read",
    "write",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "remove",
    "rmdir",
    "rename",
    "link",
    "readdir",
    "readdirplus",
    "fsstat",
    "fsinfo",
    "pathconf",
    "commit",
];

/// RFC 7863 and RFC 8276, by number; 0 is NULL.
const OPERATIONS: &[&str] = &[
    "null",
    "",
    "",
    "access",
    "close",
    "commit",
    "create",
    "delegpurge",
    "delegreturn",
    "getattr",
    "getfh",
    "link",
    "lock",
    "lockt",
    "locku",
    "lookup",
    "lookupp",
    "nverify",
    "open",
    "openattr",
    "open_confirm",
    "open_downgrade",
    "putfh",
    "putpubfh",
    "putrootfh",
    "read",
    "readdir",
    "readlink",
    "remove",
    "rename",
    "renew",
    "restorefh",
    "savefh",
    "secinfo",
    "setattr",
    "setclientid",
    "setclientid_confirm",
    "verify",
    "write",
    "release_lockowner",
    "backchannel_ctl",
    "bind_conn_to_session",
    "exchange_id",
    "create_session",
    "destroy_session",
    "free_stateid",
    "get_dir_delegation",
    "getdeviceinfo",
    "getdevicelist",
    "layoutcommit",
    "layoutget",
    "layoutreturn",
    "secinfo_no_name",
    "sequence",
    "set_ssv",
    "test_stateid",
    "want_delegation",
    "destroy_clientid",
    "reclaim_complete",
    "allocate",
    "copy",
    "copy_notify",
    "deallocate",
    "io_advise",
    "layouterror",
    "layoutstats",
    "offload_cancel",
    "offload_status",
    "read_plus",
    "seek",
    "write_same",
    "clone",
    "getxattr",
    "setxattr",
    "listxattrs",
    "removexattr",
];

static V3_TCP: Class = Class::new("nfs3", "tcp", PROCEDURES);
static V3_UDP: Class = Class::new("nfs3", "udp", PROCEDURES);
static V3_RDMA: Class = Class::new("nfs3", "rpc-rdma", PROCEDURES);
static V4_TCP: Class = Class::new("nfs4", "tcp", OPERATIONS);
static V4_RDMA: Class = Class::new("nfs4", "rpc-rdma", OPERATIONS);

fn v3(kind: Kind) -> &'static Class {
    match kind {
        Kind::RpcRdma => &V3_RDMA,
        Kind::Datagram => &V3_UDP,
        _ => &V3_TCP,
    }
}

fn v4(kind: Kind) -> &'static Class {
    if kind == Kind::RpcRdma { &V4_RDMA } else { &V4_TCP }
}

/// What is counted of one call.
pub(super) struct CallMeter {
    started: Started,
    /// Whether the reply's payload goes into the client's memory, and the call's came from there.
    by_rdma: (bool, bool),
    /// Its class, once it was parsed.
    class: Cell<Option<&'static Class>>,
    subject: Cell<Subject>,
    operation: Cell<u32>,
    received_bytes: Cell<u64>,
}

impl CallMeter {
    /// A call that has just been taken from the connection.
    pub fn begin(sends_by_rdma: bool, received_by_rdma: bool) -> CallMeter {
        CallMeter {
            started: meter::started(),
            by_rdma: (sends_by_rdma, received_by_rdma),
            class: Cell::new(None),
            subject: Cell::new(Subject::NONE),
            operation: Cell::new(0),
            received_bytes: Cell::new(0),
        }
    }

    /// A call of this version and procedure, or operation, that is known without being parsed.
    pub fn known(
        kind: Kind,
        (version, operation): (u32, u32),
        subject: Subject,
        sends_by_rdma: bool,
    ) -> CallMeter {
        let meter = CallMeter::begin(sends_by_rdma, false);
        meter.class.set(Some(if version == nfs3::VERSION { v3(kind) } else { v4(kind) }));
        meter.operation.set(operation);
        meter.subject.set(subject);
        meter
    }

    /// What it is, for the flight recorder.
    pub fn what(&self) -> Option<What> {
        Some(self.class.get()?.what(self.operation.get() as usize, self.subject.get()))
    }

    /// It is this call.
    pub fn parsed(&self, kind: Kind, call: &Header) {
        let (class, operation) = match (call.program, call.version, kind) {
            (nfs3::PROGRAM, nfs3::VERSION, _) => (v3(kind), call.procedure),
            (nfs4::PROGRAM, nfs4::VERSION, _) => (v4(kind), nfs4::NULL),
            _ => return,
        };
        self.class.set(Some(class));
        self.operation.set(operation);
        self.tell(operation);
    }

    /// Tells the flight recorder what is carried out.
    fn tell(&self, operation: u32) {
        if let Some(class) = self.class.get() {
            recorder::is(class.what(operation as usize, self.subject.get()));
        }
    }

    /// It concerns this share.
    pub fn concerns(&self, subject: Subject) {
        self.subject.set(subject);
        self.tell(self.operation.get());
    }

    /// It has written this payload.
    pub fn wrote(&self, bytes: usize) {
        self.received_bytes.set(self.received_bytes.get().saturating_add(bytes as u64));
    }

    /// Its compound carries out this operation.
    pub fn carries_out(&self, number: u32) {
        if is_preparation(self.operation.get()) {
            self.operation.set(number);
        }
        if !is_preparation(number) {
            self.tell(number);
        }
    }

    /// It is answered, with so much payload.
    pub fn answered(&self, sent_bytes: u64) {
        let Some(class) = self.class.get() else { return };
        let received_bytes = self.received_bytes.get();
        let (sends, received) = self.by_rdma;
        let by_rdma = sends && sent_bytes > 0 || received && received_bytes > 0;
        let moved = Moved { received_bytes, sent_bytes, by_rdma };
        class.answered(self.subject.get(), self.operation.get() as usize, self.started, moved);
        recorder::moves(received_bytes.saturating_add(sent_bytes));
    }
}

/// Whether an operation only prepares others.
fn is_preparation(number: u32) -> bool {
    matches!(
        number,
        nfs4::NULL
            | opnum::SEQUENCE
            | opnum::PUTFH
            | opnum::PUTROOTFH
            | opnum::PUTPUBFH
            | opnum::GETFH
            | opnum::SAVEFH
            | opnum::RESTOREFH
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_at_its_number() {
        let of = |number: u32| OPERATIONS[number as usize];
        for (number, name) in [
            (opnum::ACCESS, "access"),
            (opnum::READ, "read"),
            (opnum::WRITE, "write"),
            (opnum::BACKCHANNEL_CTL, "backchannel_ctl"),
            (opnum::SEQUENCE, "sequence"),
            (opnum::RECLAIM_COMPLETE, "reclaim_complete"),
            (opnum::CLONE, "clone"),
            (opnum::REMOVEXATTR, "removexattr"),
        ] {
            assert_eq!(of(number), name);
        }
        use weft_wire::nfs3::procedure as nfs;
        assert_eq!([nfs::READ, nfs::COMMIT].map(|n| PROCEDURES[n as usize]), ["read", "commit"]);
    }

    #[test]
    fn a_compound_counts_as_its_first_operation_that_is_no_preparation() {
        let lead = |numbers: &[u32]| {
            let meter = CallMeter::begin(false, false);
            numbers.iter().for_each(|number| meter.carries_out(*number));
            OPERATIONS[meter.operation.get() as usize]
        };
        assert_eq!(lead(&[opnum::SEQUENCE, opnum::PUTFH, opnum::READ, opnum::GETATTR]), "read");
        assert_eq!(lead(&[opnum::PUTROOTFH, opnum::LOOKUP, opnum::GETFH, opnum::GETATTR]), "lookup");
        assert_eq!(lead(&[opnum::SEQUENCE]), "sequence");
        assert_eq!(lead(&[]), "null");
    }
}
