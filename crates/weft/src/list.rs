//! `weft ls`: the names in a folder of a server.
//!
//! Owns: nothing.

use std::process::ExitCode;

use serde_json::json;
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::Ls;
use crate::connect::Remote;
use crate::copy::CLIENT_BUFFERS;
use crate::url::Url;

/// Runs the command.
pub(crate) fn run(args: Ls) -> Result<ExitCode, Failure> {
    let url = Url::parse(&args.url)?.ok_or("name a folder: smb://HOST:PORT/SHARE/PATH or nfs://...")?;
    let entries = rt::block_on(async {
        let remote = Remote::connect(&url, &args.connect, &Pool::new(CLIENT_BUFFERS)).await?;
        let entries = remote.list(&url.path).await.map_err(|e| format!("{url}: {e}"))?;
        remote.close().await;
        Ok::<_, Failure>(entries)
    })??;
    if args.json {
        let list: Vec<_> =
            entries.iter().map(|e| json!({"name": e.name, "folder": e.folder, "size": e.size})).collect();
        println!("{}", serde_json::Value::Array(list));
    } else {
        for entry in entries {
            let slash = if entry.folder { "/" } else { "" };
            println!("{:>14}  {}{slash}", entry.size, entry.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}
