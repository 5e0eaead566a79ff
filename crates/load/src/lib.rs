//! Workloads, measurement, one result and many printers.
//!
//! A [`workload`] is what to do, [`run`] does it against a [`target`], [`result`] holds the measurements, and `print`
//! shows them. RDMA and TCP are always measured with the same work in the same run, interleaved. [`verbs`] are
//! workloads on bare queue pairs. Histograms have a fixed size. This crate knows no storage protocol; other
//! crates make their clients a [`target`].
#![forbid(unsafe_code)]

pub mod compare;
pub mod cpu;
pub mod difference;
pub mod gate;
pub mod host;
pub mod job;
pub mod jobfile;
pub mod loaders;
pub mod marks;
pub mod measure;
pub mod memory;
pub mod pattern;
pub mod plan;
pub mod print;
pub mod result;
pub mod run;
pub mod target;
pub mod verbs;
pub mod workload;
