//! ECHO ([MS-SMB2] 2.2.28, 2.2.29): checks that the peer responds. Its body is empty.

super::field::empty_body! {
    Request: "A request.";
    Response: "A response.";
}
