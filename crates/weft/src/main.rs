//! The `weft` command: serve, volumes, replicas, copy, list, demo, benchmarks, and RDMA by itself.
//!
//! This file is the table of contents: it handles arguments, logging and exit status, and each command is a module.
#![forbid(unsafe_code)]

#[macro_use]
mod out;

mod addresses;
mod admin;
mod args;
mod bench;
mod cat;
mod child;
mod compare;
mod completions;
mod config;
mod config_command;
mod connect;
mod copy;
mod default_port;
mod demo;
mod direction;
mod doctor;
mod exit_status;
mod exports;
mod fault;
mod groups;
mod hex;
mod host;
mod http;
mod list;
mod listen;
mod local;
mod logging;
mod man;
mod metrics;
mod misuse;
mod partial;
mod password;
mod providers;
mod rdma;
mod ready;
mod reload;
mod replica;
mod serve;
mod share_command;
mod shares;
mod show;
mod signals;
mod size;
mod stat;
mod state_dir;
mod state_of_command;
mod status;
mod sync;
mod system_folder;
mod transfer;
mod unknown;
mod url;
mod users;
mod version;
mod volume;
mod watch;
mod when;

use std::process::ExitCode;

use weft_machine::heap;

use crate::args::{Args, Command};

#[global_allocator]
static ALLOCATOR: heap::Allocator = heap::Allocator;

fn main() -> ExitCode {
    let args = Args::of_line(std::env::args_os()).unwrap_or_else(|error| {
        // The advice comes first, because clap ends the process.
        if let Some(advice) = unknown::advice(&error) {
            note!("weft: {advice}");
        }
        error.exit()
    });
    if let Err(e) = logging::start(args.verbose, args.command.serves()) {
        note!("weft: {e}");
        return ExitCode::from(exit_status::status_of(&e));
    }
    out::remember_state_dir(args.command.state_dir());
    // A server starts no thread before it has confined itself.
    if args.end_with_reader && !matches!(args.command, Command::Serve(_)) {
        child::end_with_reader();
    }
    if let Err(e) = signals::outlive_long_files() {
        note!("weft: a write past `ulimit -f` will end this process: {e}");
    }
    let outcome = match args.command {
        Command::Serve(serve) => serve::run(*serve, args.end_with_reader),
        Command::Volume(args) => volume::run(args),
        Command::Replica(args) => replica::run(*args),
        Command::Reload(args) => reload::run(args),
        Command::Share(args) => share_command::run(args),
        Command::User(args) => users::user(args),
        Command::Group(args) => users::group(args),
        Command::Status(args) => status::run(args),
        Command::Cp(args) => copy::run(args),
        Command::Ls(args) => list::run(args),
        Command::Cat(args) => cat::cat(args),
        Command::Put(args) => cat::put(args),
        Command::Stat(args) => stat::run(args),
        Command::Sync(args) => sync::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Config(args) => config_command::run(args),
        Command::Man(args) => man::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Rdma(args) => rdma::run(args),
    };
    signals::end(match outcome {
        Ok(code) => code,
        Err(error) if out::ended_by_reader(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            note!("weft: {error}");
            let mut said = error.to_string();
            let mut cause = error.source();
            while let Some(inner) = cause {
                let because = inner.to_string();
                // Many errors already contain their cause.
                if !said.contains(&because) {
                    note!("  because: {because}");
                }
                said = because;
                cause = inner.source();
            }
            if let Some(advice) = out::state_dir_advice(&error.to_string()) {
                note!("  {advice}");
            }
            ExitCode::from(exit_status::status_of(&*error))
        }
    })
}

/// Why a command failed: a sentence for the user.
pub(crate) type Failure = Box<dyn std::error::Error>;
