//! A COMPOUND put together, and its results taken apart.
//!
//! Spec: RFC 8881 16.2. Does not: send; know a session.

use weft_wire::nfs4::{CompoundHead, Op, ReplyHead, Sequence, Status, Text, Xdr};
use weft_wire::xdr::{Decoder, Encoder, Malformed};

use crate::client::Error;

/// The minor version that we speak.
pub(super) const MINOR: u32 = 1;

/// Appends COMPOUND4args.
///
/// `payload`: the last operation is a WRITE whose content, of so many bytes, travels behind the arguments.
pub(super) fn emit(sequence: Option<&Sequence>, ops: &[Op], payload: Option<u32>, e: &mut Encoder) {
    let count = ops.len().saturating_add(usize::from(sequence.is_some())) as u32;
    CompoundHead { tag: Text::default(), minor: MINOR, count }.emit(e);
    if let Some(sequence) = sequence {
        Op::Sequence(sequence.clone()).emit(e);
    }
    ops.iter().for_each(|op| op.emit(e));
    if let Some(len) = payload {
        // WRITE ends with the length of its content, which was empty until here.
        e.patch_u32(e.len().saturating_sub(4), len);
    }
}

/// Results, to be read in order.
pub(super) struct Results {
    d: Decoder,
    /// Of the last operation that was carried out.
    pub status: Status,
    left: u32,
}

impl Results {
    pub fn parse(mut d: Decoder) -> Result<Results, Error> {
        let ReplyHead { status, count, .. } = ReplyHead::parse(&mut d)?;
        if count == 0 && status == Status::OK {
            return Err(Malformed("RFC 8881 16.2.4: success without a result").into());
        }
        Ok(Results { d, status, left: count })
    }

    /// The status of the next result, which is that of `op`.
    ///
    /// # Errors
    /// A result of something else; the compound's own failure, where it did not come that far.
    pub fn next(&mut self, op: u32) -> Result<Status, Error> {
        self.left = self.left.checked_sub(1).ok_or(Error::Status4(self.status))?;
        if self.d.u32()? != op {
            return Err(Malformed("RFC 8881 16.2.4: the result of another operation").into());
        }
        Ok(Status::parse(&mut self.d)?)
    }

    /// The next result is that of `op`, which has to have succeeded.
    pub fn ok<T: Xdr>(&mut self, op: u32) -> Result<T, Error> {
        Ok(T::parse(self.passed(op)?)?)
    }

    /// What follows a status that [`Results::next`] gave.
    pub fn result<T: Xdr>(&mut self) -> Result<T, Error> {
        Ok(T::parse(&mut self.d)?)
    }

    /// As [`Results::ok`], for a result that is parsed by hand.
    pub fn passed(&mut self, op: u32) -> Result<&mut Decoder, Error> {
        match self.next(op)? {
            Status::OK => Ok(&mut self.d),
            status => Err(Error::Status4(status)),
        }
    }
}
