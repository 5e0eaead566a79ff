//! `weft doctor`: checks step by step whether RDMA to a host works, and if not, why.
//!
//! The exit status is 0 if RDMA is used or can be used. The command changes nothing on either host.

mod clients;
mod examine;
mod report;
mod service;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use weft_machine::{Pool, rt};
use weft_rdma::shm;

use crate::Failure;
use crate::args::{Crc, Doctor};
use crate::doctor::examine::{Logon, Question};
use crate::password;

pub(crate) use report::{Report, Verdict};

/// Memory for the connections, which are tried one after the other.
const BUFFERS: usize = 64 << 20;

/// Runs the command.
pub(crate) fn run(args: Doctor) -> Result<ExitCode, Failure> {
    let logon = match args.user {
        Some(user) => {
            let password = password::for_client(&user, &args.host.name)?;
            Some(Logon { user, password, smb_port: args.smb_port })
        }
        None => None,
    };
    let question = Question {
        host: args.host,
        service: args.service,
        crc: args.crc == Crc::Always,
        limit: Duration::from_secs_f64(args.timeout),
        logon,
        shm: shm::Config::default(),
    };
    let report = rt::block_on(examine::examine(question, Pool::new(BUFFERS)))?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        crate::out::print(format_args!("{}", report.render(std::io::stdout().is_terminal())))?;
    }
    Ok(if report.verdict.rdma { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
