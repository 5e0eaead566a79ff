//! `weft cat` and `weft put`: a remote file to standard output, standard input to a remote file.
//!
//! Owns: nothing. Does not: seek, verify or resume: there is nothing to read again in a pipe.

use std::io::{Read, Write};
use std::process::ExitCode;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::{Cat, Put};
use crate::connect::Remote;
use crate::transfer::{CLIENT_BUFFERS, join, partial_name};
use crate::url::Url;

/// Bytes of one operation.
const BLOCK_BYTES: u64 = 1 << 20;
/// Operations outstanding at a time.
const QUEUE_DEPTH: usize = 8;

/// Runs `weft cat`.
pub(crate) fn cat(args: Cat) -> Result<ExitCode, Failure> {
    let urls: Vec<_> = args
        .urls
        .iter()
        .map(|text| Ok(Url::parse(text)?.ok_or("name a file: smb://HOST:PORT/SHARE/PATH or nfs://...")?))
        .collect::<Result<_, Failure>>()?;
    rt::block_on(async {
        for url in &urls {
            let remote = Remote::connect(url, &args.connect, &Pool::new(CLIENT_BUFFERS)).await?;
            print(&remote, url).await.map_err(|e| format!("{url}: {e}"))?;
            remote.close().await;
        }
        Ok::<_, Failure>(())
    })??;
    Ok(ExitCode::SUCCESS)
}

async fn print(remote: &Remote, url: &Url) -> Result<(), Failure> {
    let file = remote.open(&url.path, false).await?;
    let size = file.len().await?;
    let blocks = (0..size.div_ceil(BLOCK_BYTES)).map(|i| {
        let (file, offset) = (file.clone(), i * BLOCK_BYTES);
        let len = BLOCK_BYTES.min(size - offset) as u32;
        async move { file.read(offset, len).await }
    });
    let mut blocks = stream::iter(blocks).buffered(QUEUE_DEPTH);
    while let Some(bytes) = blocks.next().await {
        let bytes: Bytes = bytes?;
        // Whoever reads the pipe may take his time; the connection is looked after meanwhile.
        match rt::blocking(move || std::io::stdout().write_all(&bytes)).await {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
    rt::blocking(|| std::io::stdout().flush()).await?;
    file.close().await
}

/// Runs `weft put`.
pub(crate) fn put(args: Put) -> Result<ExitCode, Failure> {
    let url = Url::parse(&args.url)?.ok_or("name a file: smb://HOST:PORT/SHARE/PATH or nfs://...")?;
    if url.path.is_empty() || url.folder {
        return Err(format!("{url} names no file").into());
    }
    let bytes = rt::block_on(async {
        let remote = Remote::connect(&url, &args.connect, &Pool::new(CLIENT_BUFFERS)).await?;
        if remote.is_folder(&url.path).await.map_err(|e| format!("{url}: {e}"))? {
            return Err(format!("{url} is a folder: name a file in it, {url}/NAME").into());
        }
        let (folder, name) = url.path.rsplit_once('/').unwrap_or(("", &url.path));
        let partial = join(folder, &partial_name(name, ""));
        let outcome = take(&remote, &partial, &url.path).await;
        if outcome.is_err()
            && let Err(e) = remote.remove(&partial).await
        {
            tracing::debug!("the partial file {partial} was not removed: {e}");
        }
        let bytes = outcome.map_err(|e| format!("{url}: {e}"))?;
        remote.close().await;
        Ok::<_, Failure>(bytes)
    })??;
    if args.json {
        say!("{}", serde_json::json!({"to": url.to_string(), "bytes": bytes}))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn take(remote: &Remote, partial: &str, target: &str) -> Result<u64, Failure> {
    let file = remote.create(partial).await?;
    let mut writing = FuturesUnordered::new();
    let mut offset = 0;
    loop {
        let block = rt::blocking(read_block).await?;
        if block.is_empty() {
            break;
        }
        let (file, at) = (file.clone(), offset);
        offset += block.len() as u64;
        writing.push(async move { file.write(at, block).await });
        while writing.len() >= QUEUE_DEPTH {
            writing.next().await.unwrap_or(Ok(()))?;
        }
    }
    while let Some(written) = writing.next().await {
        written?;
    }
    file.flush().await?;
    file.close().await?;
    remote.rename(partial, target).await?;
    Ok(offset)
}

/// As much of standard input as fills a block; empty at its end.
fn read_block() -> std::io::Result<Bytes> {
    let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
    std::io::stdin().lock().take(BLOCK_BYTES).read_to_end(&mut block)?;
    Ok(block.into())
}
