//! Workloads on bare verbs, without a storage protocol: data checks and measurements between two queue pairs.
//!
//! The caller chooses the provider and passes a queue pair or a listener.

pub mod bench;
pub mod end;
mod pace;
pub mod patience;
pub mod perf;
pub mod ping;
pub mod server;
pub mod times;
