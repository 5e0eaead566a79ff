//! Requests in flight: how a CANCEL finds and wakes one.
//!
//! Spec: [MS-SMB2] 3.3.5.16.
