//! CB_COMPOUND: what a server asks of a client.
//!
//! Spec: RFC 8881 section 20, RFC 7530 section 17. Owns: nothing. Does not: send.

use super::{Handle, SessionId, Stateid, Status, Text, UpTo};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// Version of the program whose number the client chose.
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
        /// Of the slot.
        pub sequence: u32,
        /// Which slot.
        pub slot: u32,
    }
}

xdr_struct! {
    /// referring_call_list4.
    pub struct ReferringCalls {
        /// Which session.
        pub session: SessionId,
        /// Which of its calls.
        pub calls: UpTo<ReferringCall, 64>,
    }
}

xdr_struct! {
    /// CB_SEQUENCE4args.
    pub struct CbSequence {
        /// Which session.
        pub session: SessionId,
        /// Of the slot, one more each time.
        pub sequence: u32,
        /// Which slot.
        pub slot: u32,
        /// The highest slot in use.
        pub highest_slot: u32,
        /// Whether the reply is to be kept.
        pub cache: bool,
        /// Calls that this one is about.
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

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CbOp {
    /// Names session and slot.
    Sequence(CbSequence),
    /// Asks for a delegation back.
    Recall(CbRecall),
}

impl Xdr for CbOp {
    fn parse(d: &mut Decoder) -> Result<CbOp, Malformed> {
        match d.u32()? {
            cb_opnum::SEQUENCE => CbSequence::parse(d).map(CbOp::Sequence),
            cb_opnum::RECALL => CbRecall::parse(d).map(CbOp::Recall),
            _ => Err(Malformed("a callback that is not spoken here")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            CbOp::Sequence(args) => {
                e.u32(cb_opnum::SEQUENCE);
                args.emit(e);
            }
            CbOp::Recall(args) => {
                e.u32(cb_opnum::RECALL);
                args.emit(e);
            }
        }
    }
}

xdr_struct! {
    /// CB_COMPOUND4args.
    pub struct CbCompound {
        /// Comes back.
        pub tag: Text,
        /// 0, 1 or 2.
        pub minor: u32,
        /// From SETCLIENTID.
        pub ident: u32,
        /// What.
        pub ops: UpTo<CbOp, 16>,
    }
}

xdr_struct! {
    /// CB_COMPOUND4res before its results.
    pub struct CbReplyHead {
        /// Of the last operation.
        pub status: Status,
        /// As asked.
        pub tag: Text,
        /// How many results follow.
        pub count: u32,
    }
}
