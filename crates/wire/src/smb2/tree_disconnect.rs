//! TREE_DISCONNECT: leaves a share.
//!
//! Spec: [MS-SMB2] 2.2.11, 2.2.12. Does not: carry anything beyond its header.

super::field::empty_body! {
    Request: "A request.";
    Response: "A response.";
}
