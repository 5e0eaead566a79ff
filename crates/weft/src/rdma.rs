//! `weft rdma`: RDMA without a storage protocol.
//!
//! Owns: nothing; each command is a module. Does not: measure or check (see `weft_load::verbs`).

mod ping;
mod server;

use std::process::ExitCode;

use crate::Failure;
use crate::args::Rdma;

/// Runs the command.
pub(crate) fn run(args: Rdma) -> Result<ExitCode, Failure> {
    match args {
        Rdma::Ping(args) => ping::run(args),
    }
}
