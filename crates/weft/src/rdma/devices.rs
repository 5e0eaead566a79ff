//! `weft rdma devices`: lists the providers of this host and their limits; `providers` finds them.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::Failure;
use crate::args::Devices;
use crate::providers::{Listed, listed};

/// Runs the command.
pub(crate) fn run(args: Devices) -> Result<ExitCode, Failure> {
    let mut out = crate::out::Stdout;
    if args.json {
        let all: Vec<Value> = listed().iter().map(value).collect();
        serde_json::to_writer_pretty(&mut out, &all)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    for provider in listed() {
        let Listed { name, reaches, state, devices } = &provider;
        match state {
            Ok(caps) => {
                writeln!(out, "{name:<6} available      {reaches}")?;
                writeln!(
                    out,
                    "       limits         {} sends and {} receives posted, {} regions a connection, IRD {}, ORD {}{}",
                    caps.max_send_work,
                    caps.max_recv_work,
                    caps.max_regions,
                    caps.ird,
                    caps.ord,
                    if caps.kernel_bypass { ", bypassing the kernel" } else { "" },
                )?;
            }
            Err(why) => {
                writeln!(out, "{name:<6} not available  {reaches}")?;
                writeln!(out, "       why            {why}")?;
            }
        }
        for device in devices {
            writeln!(out, "       device         {device}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn value(provider: &Listed) -> Value {
    let limits = provider.state.as_ref().ok().map(|caps| {
        json!({
            "max_send_work": caps.max_send_work, "max_recv_work": caps.max_recv_work, "max_regions": caps.max_regions,
            "ird": caps.ird, "ord": caps.ord, "kernel_bypass": caps.kernel_bypass,
        })
    });
    json!({
        "provider": provider.name, "available": provider.state.is_ok(), "reaches": provider.reaches,
        "why_not": provider.state.as_ref().err().map(ToString::to_string), "limits": limits, "devices": provider.devices,
    })
}
