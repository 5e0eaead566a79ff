//! The answer to a request: a reply, or a failure with its status.
//!
//! Spec: [MS-SMB2] 2.2.2 (ERROR response). Headers, signatures and encryption are added in [`super::outgoing`].

use weft_machine::{Buf, Payload};
use weft_transport::{SHORT_ANSWER, Segment, Stag};
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::{HEADER_LEN, NtStatus, error};

/// A successful answer (or a warning that carries data).
///
/// An operation emits its fixed body and its control bytes after the reserved header:
///
/// ```ignore
/// let mut reply = Reply::new();
/// response.emit(&mut reply.message);
/// ```
#[derive(Debug)]
pub(crate) struct Reply {
    /// STATUS_SUCCESS, or a warning status that still carries a body (STATUS_BUFFER_OVERFLOW).
    pub status: NtStatus,
    /// [`HEADER_LEN`] bytes that the core fills in, then the body. Offsets in the body count from byte 0 of this
    /// buffer.
    pub message: Vec<u8>,
    /// The pool buffer that holds a long `message` until the network has taken it, from the part that all answers to
    /// the client's address share. Boxed, because short answers have none.
    pub room: Option<Box<Buf>>,
    /// Payload of a READ; a file range is not read yet. It follows `message` on the wire, or goes into `segments`.
    pub payload: Option<Payload>,
    /// Segments of the client's memory that receive the payload by RDMA Write; empty: inline.
    pub segments: Vec<Segment>,
    /// The transform to apply to the payload before it goes into `segments`; `message` then reserves room to describe
    /// it.
    pub transform: Option<RdmaTransformId>,
    /// The region that the answer invalidates (SMB2_CHANNEL_RDMA_V1_INVALIDATE).
    pub invalidate: Option<Stag>,
    /// Whether the client asked for a compressed answer.
    pub compress: bool,
}

impl Reply {
    /// STATUS_SUCCESS with an empty body after the reserved header.
    pub fn new() -> Reply {
        Reply::with_capacity(64)
    }

    /// Like [`Reply::new`], with capacity for a body of `len` bytes.
    pub fn with_capacity(len: usize) -> Reply {
        let mut message = Vec::with_capacity(HEADER_LEN.saturating_add(len));
        message.resize(HEADER_LEN, 0);
        Reply {
            status: NtStatus::SUCCESS,
            message,
            room: None,
            payload: None,
            segments: Vec::new(),
            transform: None,
            invalidate: None,
            compress: false,
        }
    }

    /// Whether `message` needs a pool buffer and is not in one.
    pub(super) fn is_long(&self) -> bool {
        self.message.len() > HEADER_LEN + SHORT_ANSWER && self.payload.is_none()
    }

    /// Moves the end of `message`, as much as the buffer holds, into it.
    pub(super) fn put_into(&mut self, mut room: Buf) {
        // The core still has to write the header at the front.
        let at = self.message.len().saturating_sub(room.capacity()).max(HEADER_LEN);
        let Some((head, tail)) = self.message.split_at_checked(at) else { return };
        room.set_len(tail.len());
        room.copy_from_slice(tail);
        self.payload = Some(Payload::Chain(vec![room.freeze()]));
        // Truncating the vector would keep its memory.
        self.message = head.to_vec();
    }
}

/// An ERROR response ([MS-SMB2] 2.2.2). `?` converts a plain status into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The error status.
    pub status: NtStatus,
    /// ErrorData, for the few statuses that carry some (STATUS_BUFFER_TOO_SMALL); usually empty.
    pub data: error::Response,
    /// A region that is invalidated even though the operation failed.
    pub invalidate: Option<Stag>,
}

impl From<NtStatus> for Failure {
    fn from(status: NtStatus) -> Failure {
        Failure { status, data: error::Response::EMPTY, invalidate: None }
    }
}

/// The result of a request.
pub(crate) type Answer = Result<Reply, Failure>;
