//! Encodes a COMPOUND and decodes its results.
//!
//! See RFC 8881 16.2. Sending is in `session`.

use weft_wire::nfs4::{CompoundHead, Op, ReplyHead, Sequence, Status, Text, Xdr};
use weft_wire::xdr::{Decoder, Encoder, Malformed};

use crate::client::Error;

/// The minor version that we speak.
pub(super) const MINOR: u32 = 1;

/// Appends COMPOUND4args.
///
/// `payload`: the last operation is a WRITE whose content, of this many bytes, travels behind the arguments.
pub(super) fn emit(sequence: Option<&Sequence>, ops: &[Op], payload: Option<u32>, e: &mut Encoder) {
    let count = ops.len().saturating_add(usize::from(sequence.is_some())) as u32;
    CompoundHead { tag: Text::default(), minor: MINOR, count }.emit(e);
    if let Some(sequence) = sequence {
        Op::Sequence(sequence.clone()).emit(e);
    }
    ops.iter().for_each(|op| op.emit(e));
    if let Some(len) = payload {
        // WRITE ends with the length of its content, which was zero until here.
        e.patch_u32(e.len().saturating_sub(4), len);
    }
}

/// Results, read in order.
pub(super) struct Results {
    d: Decoder,
    /// The status of the last operation carried out.
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

    /// The status of the next result, which must be that of `op`.
    ///
    /// # Errors
    /// The result belongs to another operation, or the compound failed before `op`.
    pub fn next(&mut self, op: u32) -> Result<Status, Error> {
        self.left = self.left.checked_sub(1).ok_or(Error::Status4(self.status))?;
        if self.d.u32()? != op {
            return Err(Malformed("RFC 8881 16.2.4: the result of another operation").into());
        }
        Ok(Status::parse(&mut self.d)?)
    }

    /// The next result, which must be a success of `op`.
    pub fn ok<T: Xdr>(&mut self, op: u32) -> Result<T, Error> {
        Ok(T::parse(self.passed(op)?)?)
    }

    /// Parses what follows a status that [`Results::next`] returned.
    pub fn result<T: Xdr>(&mut self) -> Result<T, Error> {
        Ok(T::parse(&mut self.d)?)
    }

    /// Like [`Results::ok`], for a result that is parsed by hand.
    pub fn passed(&mut self, op: u32) -> Result<&mut Decoder, Error> {
        match self.next(op)? {
            Status::OK => Ok(&mut self.d),
            status => Err(Error::Status4(status)),
        }
    }
}
