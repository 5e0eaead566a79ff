//! `weft ls`: the names in a folder of a server, or its shares.

use std::process::ExitCode;

use serde_json::{Value, json};
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::Ls;
use crate::connect::{self, Remote, RemoteEntry};
use crate::out::name;
use crate::transfer::CLIENT_BUFFERS;
use crate::url::{Url, UrlError};

/// Memory limit for the targets of listed links.
const MAX_TARGETS_BYTES: usize = 512 << 20;

/// Runs the command.
pub(crate) fn run(args: Ls) -> Result<ExitCode, Failure> {
    let url = Url::parse_server(&args.url)?;
    let url = url.ok_or_else(|| UrlError::no_url(&args.url, ""))?;
    if url.share.is_empty() {
        return shares(&args, &url);
    }
    let mut shown = rt::block_on(async {
        let remote = Remote::connect(&url, &args.connect, &Pool::new(CLIENT_BUFFERS)).await?;
        let stat = remote.stat(&url.path).await.map_err(|e| format!("{url}: {e}"))?;
        let folder = stat.as_ref().is_some_and(|stat| stat.folder);
        let entries = match stat {
            None => return Err(format!("{url}: no such file or folder").into()),
            Some(_) if folder => remote.list(&url.path).await.map_err(|e| format!("{url}: {e}"))?,
            Some(stat) => {
                vec![RemoteEntry {
                    name: url.file_name().to_owned(),
                    garbled: false,
                    folder: false,
                    special: stat.special,
                    size: stat.size,
                    modified: stat.modified,
                }]
            }
        };
        let (mut shown, mut targets_bytes) = (Vec::with_capacity(entries.len()), 0);
        for entry in entries {
            let target = match entry.special {
                true => target(&remote, &within(&url.path, &entry.name, folder)).await,
                false => None,
            };
            targets_bytes += target.as_ref().map_or(0, String::len);
            if targets_bytes > MAX_TARGETS_BYTES {
                return Err(format!(
                    "{url}: the targets of its links take more than 512 MiB; list a subfolder"
                )
                .into());
            }
            shown.push((entry, target));
        }
        remote.close().await;
        Ok::<_, Failure>(shown)
    })??;
    shown.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    if args.json {
        let entry = |(e, target): &(RemoteEntry, Option<String>)| {
            let (name, modified) = (&e.name, e.modified.rfc3339());
            json!({"name": name, "folder": e.folder, "size": e.size, "modified": modified, "target": target})
        };
        say!("{}", Value::Array(shown.iter().map(entry).collect()))?;
    } else {
        for (entry, target) in shown {
            let slash = if entry.folder { "/" } else { "" };
            let arrow = target.map_or(String::new(), |target| format!(" -> {}", name(&target)));
            say!("{:>14}  {} UTC  {}{slash}{arrow}", entry.size, entry.modified, name(&entry.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A link's target. A link that cannot be read, or was removed meanwhile, is listed without it.
async fn target(remote: &Remote, path: &str) -> Option<String> {
    remote.target(path).await.unwrap_or_else(|e| {
        tracing::debug!("{path}: cannot read the link's target: {e}");
        None
    })
}

/// The path of an entry in a listing of `path`.
fn within(path: &str, name: &str, folder: bool) -> String {
    match (folder, path.trim_end_matches('/')) {
        (false, _) => path.to_owned(),
        (true, "") => name.to_owned(),
        (true, path) => format!("{path}/{name}"),
    }
}

fn shares(args: &Ls, url: &Url) -> Result<ExitCode, Failure> {
    let shares = rt::block_on(connect::shares(url, &args.connect, &Pool::new(CLIENT_BUFFERS)))??;
    if args.json {
        let list = shares.iter().map(|share| json!({"share": share.name, "remark": share.remark})).collect();
        say!("{}", Value::Array(list))?;
    } else {
        for share in shares {
            say!("{:<24} {}", name(&share.name), name(&share.remark))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
