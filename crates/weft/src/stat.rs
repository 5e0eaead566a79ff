//! `weft stat`: shows the metadata of a file or folder on a server.

use std::process::ExitCode;

use serde_json::json;
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::Stat;
use crate::connect::Remote;
use crate::transfer::CLIENT_BUFFERS;
use crate::url::{Url, UrlError};
use crate::when::When;

/// Runs the command.
pub(crate) fn run(args: Stat) -> Result<ExitCode, Failure> {
    let url = Url::parse(&args.url)?.ok_or_else(|| UrlError::no_url(&args.url, "SHARE/PATH"))?;
    let (stat, target, transport) = rt::block_on(async {
        let remote = Remote::connect(&url, &args.connect, &Pool::new(CLIENT_BUFFERS)).await?;
        let stat = remote.stat(&url.path).await.map_err(|e| format!("{url}: {e}"))?;
        let target = match &stat {
            Some(stat) if stat.special => {
                remote.target(&url.path).await.map_err(|e| format!("{url}: {e}"))?
            }
            _ => None,
        };
        let transport = remote.describe();
        remote.close().await;
        Ok::<_, Failure>((stat, target, transport))
    })??;
    let stat = stat.ok_or_else(|| format!("{url}: no such file or folder"))?;
    if args.json {
        let outcome = json!({
            "url": url.to_string(), "folder": stat.folder, "size": stat.size, "allocated": stat.allocated,
            "created": stat.created.map(When::rfc3339), "modified": stat.modified.rfc3339(),
            "accessed": stat.accessed.rfc3339(), "target": target, "connection": transport,
        });
        say!("{outcome}")?;
        return Ok(ExitCode::SUCCESS);
    }
    say!("{url}")?;
    let kind = match (&target, stat.folder) {
        (Some(_), _) => "link",
        (None, true) => "folder",
        (None, false) => "file",
    };
    say!("  {:<10} {kind}", "kind")?;
    if let Some(target) = target {
        say!("  {:<10} {}", "leads to", crate::out::name(&target))?;
    }
    say!("  {:<10} {} bytes, {} allocated", "size", stat.size, stat.allocated)?;
    if let Some(created) = stat.created {
        say!("  {:<10} {created} UTC", "created")?;
    }
    say!("  {:<10} {} UTC", "modified", stat.modified)?;
    say!("  {:<10} {} UTC", "accessed", stat.accessed)?;
    say!("  {:<10} {transport}", "by")?;
    Ok(ExitCode::SUCCESS)
}
