//! CANCEL: gives up an earlier request, which then answers STATUS_CANCELLED. Has no response of its own.
//!
//! Spec: [MS-SMB2] 2.2.30. Does not: name the request; its header does, by AsyncId or MessageId.

super::field::empty_body! {
    Request: "A request.";
}
