//! Byte layouts: this crate parses and emits every structure that Weft sends, receives or stores, and does nothing
//! else. It has no state, no I/O and no unsafe code.
//!
//! Each header or message family has one module, named as its specification names it. A value that parses is
//! well-formed, but not necessarily allowed: callers decide that.
#![forbid(unsafe_code)]
// Bytes from a peer can cause neither an index out of range nor an overflow.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod dcerpc;
pub mod ddp;
pub mod dns;
pub mod mount;
pub mod mpa;
pub mod nbd;
pub mod nbss;
pub mod nfs;
pub mod nfs3;
pub mod nfs4;
pub mod nlm;
pub mod nsm;
pub mod ntlm;
pub mod octets;
pub mod perf;
pub mod rdmap;
pub mod repl;
pub mod rpc;
pub mod rpcbind;
pub mod rpcrdma;
pub mod rping;
pub mod security;
pub mod smb2;
pub mod smbd;
pub mod spnego;
pub mod wsd;
pub mod xdr;
pub mod xml;
