//! LOGOFF: ends a session.
//!
//! Spec: [MS-SMB2] 2.2.7, 2.2.8. Does not: carry anything beyond its header.

super::field::empty_body! {
    Request: "A request.";
    Response: "A response.";
}
