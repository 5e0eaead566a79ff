//! ECHO: is the peer there?.
//!
//! Spec: [MS-SMB2] 2.2.28, 2.2.29. Does not: carry anything beyond its header.

super::field::empty_body! {
    Request: "A request.";
    Response: "A response.";
}
