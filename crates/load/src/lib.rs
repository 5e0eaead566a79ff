//! Workloads, measurement, one result and many printers.
//!
//! What: [`workload`] says what to do, [`run`] does it against a [`target`], [`result`] holds what was seen, `print`
//! shows it. RDMA and TCP are always measured on the same work in the same run, interleaved.
//! Owns: histograms of fixed size. Does not: know a wire protocol; it uses the public clients of `smb` and `nfs`.
#![forbid(unsafe_code)]

pub mod cpu;
pub mod gate;
pub mod print;
pub mod result;
pub mod run;
pub mod target;
pub mod workload;
