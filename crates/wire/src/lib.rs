//! Every byte layout that Weft speaks, and nothing else: parse and emit. No state, no I/O, no unsafe.
//!
//! What: one module per header or message family, named as its specification names it.
//! Does not: decide; a value that parsed is well-formed, not necessarily allowed.
#![forbid(unsafe_code)]
// Nothing that a peer sent reaches an index, or a sum that could overflow.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod dcerpc;
pub mod ddp;
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
pub mod xdr;
