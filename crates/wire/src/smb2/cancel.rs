//! CANCEL ([MS-SMB2] 2.2.30): cancels an earlier request, which then ends with STATUS_CANCELLED. CANCEL has no response
//! of its own.
//!
//! The header identifies the request, by AsyncId or MessageId.

super::field::empty_body! {
    Request: "A request.";
}
