//! TREE_DISCONNECT ([MS-SMB2] 2.2.11, 2.2.12): disconnects from a share. Its body is empty.

super::field::empty_body! {
    Request: "A request.";
    Response: "A response.";
}
