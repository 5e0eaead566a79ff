//! `weft man`: the manual pages, made of the same text as `--help`.
//!
//! Owns: the files that it writes. Does not: install them.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::Failure;
use crate::args::{Args, Man};

/// Runs the command: weft.1, and a page for each subcommand.
pub(crate) fn run(args: Man) -> Result<ExitCode, Failure> {
    std::fs::create_dir_all(&args.dir)?;
    clap_mangen::generate_to(Args::command(), &args.dir)?;
    say!("wrote {}: man -l {}/weft.1", args.dir.display(), args.dir.display())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let pages = dir.path().join("man");
        assert_eq!(run(Man { dir: pages.clone() }).unwrap(), ExitCode::SUCCESS);
        for name in [
            "weft",
            "weft-serve",
            "weft-doctor",
            "weft-volume",
            "weft-volume-create",
            "weft-rdma",
            "weft-rdma-ping",
            "weft-rdma-perf-client",
        ] {
            let page = std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH OPTIONS") && page.contains(".SH SYNOPSIS"), "{name}");
        }
        // What is hidden stays so.
        let bench = std::fs::read_to_string(pages.join("weft-rdma-bench.1")).unwrap();
        assert!(bench.contains("rounds") && !bench.contains("peer"));
        assert!(!pages.join("weft-man.1").exists());
    }
}
