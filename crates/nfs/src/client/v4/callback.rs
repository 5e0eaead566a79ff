//! Answers the callbacks of a server to a client that holds nothing recallable.
//!
//! See RFC 8881 20.9 (CB_SEQUENCE), 20.2 (CB_RECALL) and RFC 5531 section 9. The client holds no delegations or
//! layouts and no callback changes state, so a repeated callback gets the same reply without a reply cache.

use bytes::Bytes;
use weft_wire::nfs4::{CALLBACK_VERSION, CB_COMPOUND, CB_NULL, CbOp, CbReplyHead, Status, Text, Xdr};
use weft_wire::rpc::{Call, NotACall, Reply};
use weft_wire::xdr::{Decoder, Encoder, Malformed};

/// The callback program that CREATE_SESSION names: the first of the transient range (RFC 5531 8.3).
pub(crate) const PROGRAM: u32 = 0x4000_0000;
/// Most operations parsed in one call.
const MAX_OPS: u32 = 16;

/// The reply to a call; `None` for a reply, and for a message that is neither.
pub(crate) fn answer(message: &Bytes) -> Option<Bytes> {
    // Most messages are replies; the word after the xid tells (RFC 5531 section 9).
    if message.get(4..8)? != [0; 4] {
        return None;
    }
    let mut d = Decoder::new(message.clone());
    let mut e = Encoder::with_capacity(128);
    let call = match Call::parse(&mut d) {
        Ok(call) => call,
        Err(NotACall::RpcVersion { xid }) => {
            Reply::RpcMismatch { low: 2, high: 2 }.emit(xid, &mut e);
            return Some(e.into_bytes());
        }
        Err(NotACall::Auth { xid, stat }) => {
            Reply::AuthError(stat).emit(xid, &mut e);
            return Some(e.into_bytes());
        }
        Err(NotACall::Malformed(_)) => return None,
    };
    let refused = match (call.program, call.version, call.procedure) {
        (PROGRAM, CALLBACK_VERSION, CB_NULL) => Reply::Success,
        (PROGRAM, CALLBACK_VERSION, CB_COMPOUND) => match compound(&mut d) {
            Ok(results) => {
                Reply::Success.emit(call.xid, &mut e);
                e.raw(&results);
                return Some(e.into_bytes());
            }
            Err(_) => Reply::GarbageArgs,
        },
        (PROGRAM, CALLBACK_VERSION, _) => Reply::ProcedureUnavailable,
        (PROGRAM, ..) => Reply::ProgramMismatch { low: CALLBACK_VERSION, high: CALLBACK_VERSION },
        _ => Reply::ProgramUnavailable,
    };
    refused.emit(call.xid, &mut e);
    Some(e.into_bytes())
}

/// CB_COMPOUND4res: operations run in order until one fails, and every operation after CB_SEQUENCE fails.
fn compound(d: &mut Decoder) -> Result<Bytes, Malformed> {
    let (tag, minor, _ident, count) = (Text::parse(d)?, d.u32()?, d.u32()?, d.u32()?);
    let mut results = Encoder::with_capacity(64);
    let (mut status, mut done) = (Status::OK, 0u32);
    if minor == 0 || minor > 2 {
        status = Status::MINOR_VERS_MISMATCH;
    }
    while status == Status::OK && done < count.min(MAX_OPS) {
        let number = d.peek(4).first_chunk().map_or(0, |number| u32::from_be_bytes(*number));
        results.u32(number);
        let op = CbOp::parse(d);
        status = match &op {
            Ok(CbOp::Sequence(_)) if done > 0 => Status::SEQUENCE_POS,
            Ok(CbOp::Sequence(_)) => Status::OK,
            _ if done == 0 => Status::OP_NOT_IN_SESSION,
            // These concern requests that we have never made.
            Ok(CbOp::Recall(_) | CbOp::Offload(_)) => Status::BAD_STATEID,
            Ok(CbOp::Getattr(_)) => Status::BADHANDLE,
            Ok(CbOp::NotifyLock(_)) | Err(_) => Status::NOTSUPP,
        };
        status.emit(&mut results);
        if let (Status::OK, Ok(CbOp::Sequence(args))) = (status, &op) {
            results.fixed(&args.session);
            [args.sequence, args.slot, args.slot, args.slot].iter().for_each(|word| results.u32(*word));
        }
        done = done.saturating_add(1);
    }
    let mut e = Encoder::with_capacity(128);
    CbReplyHead { status, tag, count: done }.emit(&mut e);
    e.raw(&results.into_bytes());
    Ok(e.into_bytes())
}
