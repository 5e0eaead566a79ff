//! LOGOFF ([MS-SMB2] 2.2.7, 2.2.8): ends a session. Its body is empty.

super::field::empty_body! {
    Request: "A request.";
    Response: "A response.";
}
