//! `weft ls`: the names in a folder of a server, or its shares.
//!
//! Owns: nothing.

use std::process::ExitCode;

use serde_json::{Value, json};
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::Ls;
use crate::connect::{self, Remote, RemoteEntry};
use crate::transfer::CLIENT_BUFFERS;
use crate::url::Url;

/// Runs the command.
pub(crate) fn run(args: Ls) -> Result<ExitCode, Failure> {
    let url = Url::parse_server(&args.url)?;
    let url = url.ok_or("name a folder: smb://HOST:PORT/SHARE/PATH or nfs://...")?;
    if url.share.is_empty() {
        return shares(&args, &url);
    }
    let mut entries = rt::block_on(async {
        let remote = Remote::connect(&url, &args.connect, &Pool::new(CLIENT_BUFFERS)).await?;
        let entries = match remote.stat(&url.path).await.map_err(|e| format!("{url}: {e}"))? {
            None => return Err(format!("{url}: no such file or folder").into()),
            Some(stat) if stat.folder => remote.list(&url.path).await.map_err(|e| format!("{url}: {e}"))?,
            Some(stat) => {
                let name = url.file_name().to_owned();
                vec![RemoteEntry {
                    name,
                    folder: false,
                    special: false,
                    size: stat.size,
                    modified: stat.modified,
                }]
            }
        };
        remote.close().await;
        Ok::<_, Failure>(entries)
    })??;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if args.json {
        let entry = |e: &RemoteEntry| json!({"name": e.name, "folder": e.folder, "size": e.size, "modified": e.modified.to_string()});
        say!("{}", Value::Array(entries.iter().map(entry).collect()))?;
    } else {
        for entry in entries {
            let slash = if entry.folder { "/" } else { "" };
            say!("{:>14}  {}  {}{slash}", entry.size, entry.modified, entry.name)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn shares(args: &Ls, url: &Url) -> Result<ExitCode, Failure> {
    let shares = rt::block_on(connect::shares(url, &args.connect, &Pool::new(CLIENT_BUFFERS)))??;
    if args.json {
        let list = shares.iter().map(|share| json!({"share": share.name, "remark": share.remark})).collect();
        say!("{}", Value::Array(list))?;
    } else {
        for share in shares {
            say!("{:<24} {}", share.name, share.remark)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
