//! NLM version 4: byte-range locks and share modes for NFSv3.
//!
//! Arguments and results of the procedures follow RFC 1813 appendix II (6), and X/Open XNFS for the procedures that it
//! takes over; `_MSG` and `_RES` carry the same structures. The server decides who gets a lock.

use bytes::Bytes;

use crate::nfs3::Handle;
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// The program number.
pub const PROGRAM: u32 = 100_021;
/// The version with 64-bit ranges.
pub const VERSION: u32 = 4;
/// Longest cookie, owner and name, in bytes (`LM_MAXSTRLEN`, `MAXNETOBJ_SZ`).
pub const MAX_OBJECT: usize = 1024;

/// Procedure numbers (RFC 1813 6.3).
#[allow(missing_docs, reason = "the RFC's names")]
pub mod procedure {
    pub const NULL: u32 = 0;
    pub const TEST: u32 = 1;
    pub const LOCK: u32 = 2;
    pub const CANCEL: u32 = 3;
    pub const UNLOCK: u32 = 4;
    pub const GRANTED: u32 = 5;
    pub const TEST_MSG: u32 = 6;
    pub const LOCK_MSG: u32 = 7;
    pub const CANCEL_MSG: u32 = 8;
    pub const UNLOCK_MSG: u32 = 9;
    pub const GRANTED_MSG: u32 = 10;
    pub const TEST_RES: u32 = 11;
    pub const LOCK_RES: u32 = 12;
    pub const CANCEL_RES: u32 = 13;
    pub const UNLOCK_RES: u32 = 14;
    pub const GRANTED_RES: u32 = 15;
    pub const SHARE: u32 = 20;
    pub const UNSHARE: u32 = 21;
    pub const NM_LOCK: u32 = 22;
    pub const FREE_ALL: u32 = 23;
}

/// nlm4_stats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

#[allow(missing_docs, reason = "the RFC's names")]
impl Status {
    pub const GRANTED: Status = Status(0);
    pub const DENIED: Status = Status(1);
    pub const DENIED_NOLOCKS: Status = Status(2);
    pub const BLOCKED: Status = Status(3);
    pub const DENIED_GRACE_PERIOD: Status = Status(4);
    pub const DEADLCK: Status = Status(5);
    pub const ROFS: Status = Status(6);
    pub const STALE_FH: Status = Status(7);
    pub const FBIG: Status = Status(8);
    pub const FAILED: Status = Status(9);
}

impl Xdr for Status {
    fn parse(d: &mut Decoder) -> Result<Status, Malformed> {
        d.u32().map(Status)
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(self.0);
    }
}

/// netobj, or a name: opaque bytes that only the client interprets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Object(pub Bytes);

impl Xdr for Object {
    fn parse(d: &mut Decoder) -> Result<Object, Malformed> {
        d.opaque(MAX_OBJECT).map(Object)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

xdr_struct! {
    /// nlm4_lock: the range to lock, and its owner.
    pub struct Lock {
        /// The client's name, which identifies it to its status monitor.
        pub caller: Object,
        /// File.
        pub file: Handle,
        /// Together with `svid`, identifies the owner within its client.
        pub owner: Object,
        /// The owner's process.
        pub svid: u32,
        /// First byte.
        pub offset: u64,
        /// Length in bytes; 0 reaches to the end of the file, however it grows.
        pub length: u64,
    }
}

xdr_struct! {
    /// nlm4_holder: a conflicting lock.
    pub struct Holder {
        /// Whether the lock is exclusive.
        pub exclusive: bool,
        /// Process.
        pub svid: u32,
        /// Owner.
        pub owner: Object,
        /// First byte.
        pub offset: u64,
        /// Length in bytes; 0 reaches to the end.
        pub length: u64,
    }
}

xdr_struct! {
    /// nlm4_lockargs.
    pub struct LockArgs {
        /// Returned with the answer.
        pub cookie: Object,
        /// Whether to wait.
        pub block: bool,
        /// Whether the lock is exclusive.
        pub exclusive: bool,
        /// The range and its owner.
        pub lock: Lock,
        /// Whether it was held before the server restarted.
        pub reclaim: bool,
        /// The state number of the client's status monitor.
        pub state: u32,
    }
}

xdr_struct! {
    /// nlm4_cancargs.
    pub struct CancelArgs {
        /// Returned with the answer.
        pub cookie: Object,
        /// As in the lock request.
        pub block: bool,
        /// As in the lock request.
        pub exclusive: bool,
        /// The range and its owner.
        pub lock: Lock,
    }
}

xdr_struct! {
    /// nlm4_testargs, also the arguments of GRANTED.
    pub struct TestArgs {
        /// Returned with the answer.
        pub cookie: Object,
        /// Whether the lock is exclusive.
        pub exclusive: bool,
        /// The range and its owner.
        pub lock: Lock,
    }
}

xdr_struct! {
    /// nlm4_unlockargs.
    pub struct UnlockArgs {
        /// Returned with the answer.
        pub cookie: Object,
        /// The range and its owner.
        pub lock: Lock,
    }
}

xdr_struct! {
    /// nlm4_res.
    pub struct Answer {
        /// The request's cookie.
        pub cookie: Object,
        /// The outcome.
        pub status: Status,
    }
}

/// nlm4_testres.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestAnswer {
    /// The request's cookie.
    pub cookie: Object,
    /// Whether the range could be locked; DENIED comes with the conflicting lock.
    pub outcome: Result<Status, Holder>,
}

impl Xdr for TestAnswer {
    fn parse(d: &mut Decoder) -> Result<TestAnswer, Malformed> {
        let cookie = Object::parse(d)?;
        let outcome = match Status::parse(d)? {
            Status::DENIED => Err(Holder::parse(d)?),
            status => Ok(status),
        };
        Ok(TestAnswer { cookie, outcome })
    }
    fn emit(&self, e: &mut Encoder) {
        self.cookie.emit(e);
        match &self.outcome {
            Ok(status) => status.emit(e),
            Err(holder) => {
                Status::DENIED.emit(e);
                holder.emit(e);
            }
        }
    }
}

xdr_struct! {
    /// nlm4_share: the access of a DOS client's open, and the access that it denies to others.
    pub struct Share {
        /// The client's name.
        pub caller: Object,
        /// File.
        pub file: Handle,
        /// Owner.
        pub owner: Object,
        /// fsh4_mode: access denied to others. Bit 0 reading, bit 1 writing.
        pub deny: u32,
        /// fsh4_access: access of this open. Bit 0 reading, bit 1 writing.
        pub access: u32,
    }
}

xdr_struct! {
    /// nlm4_shareargs.
    pub struct ShareArgs {
        /// Returned with the answer.
        pub cookie: Object,
        /// The file, the owner and the share modes.
        pub share: Share,
        /// Whether it was held before the server restarted.
        pub reclaim: bool,
    }
}

xdr_struct! {
    /// nlm4_shareres.
    pub struct ShareAnswer {
        /// The request's cookie.
        pub cookie: Object,
        /// The outcome.
        pub status: Status,
        /// Unused.
        pub sequence: u32,
    }
}

xdr_struct! {
    /// nlm4_notify: the argument of FREE_ALL.
    pub struct Notify {
        /// The client's name.
        pub name: Object,
        /// State number.
        pub state: u32,
    }
}

#[cfg(test)]
mod tests;
