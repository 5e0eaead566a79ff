//! CB_COMPOUND: a server's requests to a client (RFC 8881 section 20, RFC 7530 section 17).

use super::data::WriteResponse;
use super::{Bitmap, Handle, Owner, SessionId, Stateid, Status, Text, UpTo};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// Version of the callback program, whose number the client chooses.
pub const CALLBACK_VERSION: u32 = 1;
/// CB_NULL.
pub const CB_NULL: u32 = 0;
/// CB_COMPOUND.
pub const CB_COMPOUND: u32 = 1;

/// Numbers of operations.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod cb_opnum {
    pub const GETATTR: u32 = 3;
    pub const RECALL: u32 = 4;
    pub const SEQUENCE: u32 = 11;
    pub const NOTIFY_LOCK: u32 = 13;
    pub const OFFLOAD: u32 = 15;
}

xdr_struct! {
    /// referring_call4.
    pub struct ReferringCall {
        /// Sequence number of the slot.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
    }
}

xdr_struct! {
    /// referring_call_list4.
    pub struct ReferringCalls {
        /// The session.
        pub session: SessionId,
        /// Its calls.
        pub calls: UpTo<ReferringCall, 64>,
    }
}

xdr_struct! {
    /// CB_SEQUENCE4args.
    pub struct CbSequence {
        /// The session.
        pub session: SessionId,
        /// Sequence number of the slot, incremented by each request.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// The highest slot in use.
        pub highest_slot: u32,
        /// Whether the reply should be cached.
        pub cache: bool,
        /// Calls to which this one relates.
        pub referring: UpTo<ReferringCalls, 64>,
    }
}

xdr_struct! {
    /// CB_RECALL4args.
    pub struct CbRecall {
        /// The delegation.
        pub stateid: Stateid,
        /// Whether the file is about to be truncated.
        pub truncate: bool,
        /// The file.
        pub handle: Handle,
    }
}

xdr_struct! {
    /// CB_GETATTR4args.
    pub struct CbGetattr {
        /// The file.
        pub handle: Handle,
        /// The requested attributes.
        pub wanted: Bitmap,
    }
}

xdr_struct! {
    /// CB_NOTIFY_LOCK4args.
    pub struct CbNotifyLock {
        /// The file.
        pub handle: Handle,
        /// The owner that waits for the lock.
        pub owner: Owner,
    }
}

/// The outcome of an asynchronous copy (offload_info4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffloadEnd {
    /// The copy is complete.
    Done(WriteResponse),
    /// The copy failed with this status after so many bytes.
    Failed(Status, u64),
}

/// CB_OFFLOAD4args.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CbOffload {
    /// The destination file.
    pub handle: Handle,
    /// The copy.
    pub stateid: Stateid,
    /// The outcome.
    pub end: OffloadEnd,
}

impl Xdr for CbOffload {
    fn parse(d: &mut Decoder) -> Result<CbOffload, Malformed> {
        let (handle, stateid) = (Handle::parse(d)?, Stateid::parse(d)?);
        let end = match Status::parse(d)? {
            Status::OK => OffloadEnd::Done(WriteResponse::parse(d)?),
            status => OffloadEnd::Failed(status, d.u64()?),
        };
        Ok(CbOffload { handle, stateid, end })
    }
    fn emit(&self, e: &mut Encoder) {
        self.handle.emit(e);
        self.stateid.emit(e);
        match &self.end {
            OffloadEnd::Done(response) => {
                Status::OK.emit(e);
                response.emit(e);
            }
            OffloadEnd::Failed(status, count) => {
                status.emit(e);
                e.u64(*count);
            }
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CbOp {
    /// Selects session and slot.
    Sequence(CbSequence),
    /// Recalls a delegation.
    Recall(CbRecall),
    /// Requests the attributes that the holder of a write delegation has changed.
    Getattr(CbGetattr),
    /// A lock is available.
    NotifyLock(CbNotifyLock),
    /// A copy has ended.
    Offload(CbOffload),
}

impl CbOp {
    /// The operation's number.
    pub fn number(&self) -> u32 {
        match self {
            CbOp::Sequence(_) => cb_opnum::SEQUENCE,
            CbOp::Recall(_) => cb_opnum::RECALL,
            CbOp::Getattr(_) => cb_opnum::GETATTR,
            CbOp::NotifyLock(_) => cb_opnum::NOTIFY_LOCK,
            CbOp::Offload(_) => cb_opnum::OFFLOAD,
        }
    }
}

impl Xdr for CbOp {
    fn parse(d: &mut Decoder) -> Result<CbOp, Malformed> {
        match d.u32()? {
            cb_opnum::SEQUENCE => CbSequence::parse(d).map(CbOp::Sequence),
            cb_opnum::RECALL => CbRecall::parse(d).map(CbOp::Recall),
            cb_opnum::GETATTR => CbGetattr::parse(d).map(CbOp::Getattr),
            cb_opnum::NOTIFY_LOCK => CbNotifyLock::parse(d).map(CbOp::NotifyLock),
            cb_opnum::OFFLOAD => CbOffload::parse(d).map(CbOp::Offload),
            _ => Err(Malformed("unsupported callback operation")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(self.number());
        match self {
            CbOp::Sequence(args) => args.emit(e),
            CbOp::Recall(args) => args.emit(e),
            CbOp::Getattr(args) => args.emit(e),
            CbOp::NotifyLock(args) => args.emit(e),
            CbOp::Offload(args) => args.emit(e),
        }
    }
}

xdr_struct! {
    /// CB_COMPOUND4args.
    pub struct CbCompound {
        /// Returned with the reply.
        pub tag: Text,
        /// 0, 1 or 2.
        pub minor: u32,
        /// The callback_ident of SETCLIENTID.
        pub ident: u32,
        /// Operations, in order.
        pub ops: UpTo<CbOp, 16>,
    }
}

xdr_struct! {
    /// CB_COMPOUND4res before its results.
    pub struct CbReplyHead {
        /// Status of the last operation.
        pub status: Status,
        /// The request's tag.
        pub tag: Text,
        /// Number of results that follow.
        pub count: u32,
    }
}
