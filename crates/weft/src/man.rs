//! `weft man`: writes the manual pages, from the same text as `--help`.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::Failure;
use crate::args::{Args, Man};
use crate::version;

/// Runs the command: weft.1, and a page for each subcommand.
pub(crate) fn run(args: Man) -> Result<ExitCode, Failure> {
    let dir = args.dir.display();
    std::fs::create_dir_all(&args.dir).map_err(|e| format!("cannot make the folder {dir}: {e}"))?;
    // Pages of one version are equal, whatever commit they were made from.
    let command = Args::command().version(version::NUMBER);
    clap_mangen::generate_to(command, &args.dir)
        .map_err(|e| format!("cannot write the pages to {dir}: {e}"))?;
    say!("wrote {}; read them: man -l {}/weft.1", args.dir.display(), args.dir.display())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GUIDE: &str = include_str!("../../../docs/guide.md");

    /// Options of other programs that the guide shows.
    const FOREIGN: [&str; 4] = ["map", "unix-socket", "use-kerberos", "xattrs"];

    fn options(command: &clap::Command) -> BTreeSet<String> {
        command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .filter_map(|arg| arg.get_long())
            .map(str::to_owned)
            .collect()
    }

    fn with_subcommands(command: &clap::Command) -> BTreeSet<String> {
        let hidden = command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned);
        hidden.chain(command.get_subcommands().flat_map(with_subcommands)).collect()
    }

    /// Whether the guide mentions exactly this option, not a longer one with the same beginning.
    fn in_guide(option: &str) -> bool {
        let option = format!("--{option}");
        GUIDE.match_indices(&option).any(|(at, _)| {
            !GUIDE[at + option.len()..].starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-')
        })
    }

    #[test]
    fn the_guide_has_every_option_of_a_server_and_none_that_does_not_exist() {
        let weft = Args::command();
        let serve = weft.find_subcommand("serve").unwrap();
        let missing: Vec<_> =
            options(serve).into_iter().filter(|option| option != "verbose" && !in_guide(option)).collect();
        assert!(missing.is_empty(), "docs/guide.md lacks options of weft serve: {missing:?}");
        let known = with_subcommands(&weft);
        for (at, _) in GUIDE.match_indices("--") {
            let option: String =
                GUIDE[at + 2..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            if GUIDE[..at].ends_with(['-', '|']) || !option.starts_with(|c: char| c.is_ascii_lowercase()) {
                continue;
            }
            assert!(
                known.contains(&option)
                    || FOREIGN.contains(&option.as_str())
                    || ["help", "version"].contains(&option.as_str()),
                "docs/guide.md names --{option}, which no command of weft has"
            );
        }
    }

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
        // Hidden options stay hidden.
        let bench = std::fs::read_to_string(pages.join("weft-rdma-bench.1")).unwrap();
        assert!(bench.contains("rounds") && !bench.contains("peer"));
    }
}
