//! `weft cat` and `weft put`: a remote file to standard output, standard input to a remote file.
//!
//! Neither seeks, verifies or resumes, because a pipe cannot be read again.

use std::io::{self, Read, Write};
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::{Cat, Put};
use crate::connect::{FILE_MODE, Remote, RemoteFile, password_for};
use crate::fault::Fault;
use crate::out::FileToStdout;
use crate::signals::{stop_on_signals, unless_stopped, until_stopped};
use crate::transfer::{CLIENT_BUFFERS, take_place};
use crate::url::Url;

/// Bytes of one operation.
const BLOCK_BYTES: u64 = 1 << 20;
/// Operations outstanding at a time.
const QUEUE_DEPTH: usize = 8;

/// Runs `weft cat`.
pub(crate) fn cat(args: Cat) -> Result<ExitCode, Failure> {
    let urls: Vec<_> = args.urls.iter().map(|text| Url::of_file(text)).collect::<Result<_, Failure>>()?;
    rt::block_on(async {
        for url in &urls {
            let remote = Remote::connect(url, &args.connect, &Pool::new(CLIENT_BUFFERS)).await?;
            print(&remote, &url.path, (Box::new(FileToStdout), "standard output"))
                .await
                .map_err(|e| e.told(url))?;
            remote.close().await;
        }
        Ok::<_, Failure>(())
    })??;
    Ok(ExitCode::SUCCESS)
}

/// Writes a remote file to `out`, in order; returns its length in bytes.
pub(crate) async fn print(
    remote: &Remote,
    path: &str,
    (mut out, name): (Box<dyn Write + Send>, &str),
) -> Result<u64, Fault> {
    let here = |e: io::Error| match crate::out::ended_by_reader(&e) {
        // A closed pipe keeps its error kind: it is not reported to the user.
        true => Fault::Here(e.into()),
        // The other end of the pipe is unknown here, so there is no advice about a folder.
        false => Fault::Here(format!("{name}: {e}").into()),
    };
    let file = remote.open(path, false).await.map_err(Fault::There)?;
    let size = file.len().await.map_err(Fault::There)?;
    let blocks = (0..size.div_ceil(BLOCK_BYTES)).map(|i| {
        let (file, offset) = (file.clone(), i * BLOCK_BYTES);
        let len = BLOCK_BYTES.min(size - offset) as u32;
        async move { Ok::<_, Fault>((file.read(offset, len).await.map_err(Fault::There)?, len)) }
    });
    let mut blocks = stream::iter(blocks).buffered(QUEUE_DEPTH);
    let mut copied = 0;
    while let Some(bytes) = blocks.next().await {
        let (bytes, len): (Bytes, u32) = bytes?;
        copied += bytes.len() as u64;
        let short = bytes.len() < len as usize;
        // The reader of the pipe may be slow; the connection is kept alive meanwhile.
        let written;
        (out, written) = rt::blocking(move || {
            let written = out.write_all(&bytes);
            (out, written)
        })
        .await;
        written.map_err(here)?;
        // Bytes after a gap would be at the wrong offset.
        if short {
            break;
        }
    }
    rt::blocking(move || out.flush()).await.map_err(here)?;
    file.close().await.map_err(Fault::There)?;
    match copied == size {
        true => Ok(size),
        false => {
            let shorter = format!("the file became shorter while it was copied (at offset {copied})");
            Err(Fault::There(shorter.into()))
        }
    }
}

/// Runs `weft put`.
pub(crate) fn put(args: Put) -> Result<ExitCode, Failure> {
    let url = Url::of_file(&args.url)?;
    let password = password_for(&url, &args.connect)?;
    let stopped = stop_on_signals()?;
    let work = async {
        let pool = Pool::new(CLIENT_BUFFERS);
        let remote = Remote::connect_as(&url, &args.connect, &pool, &password, None).await?;
        if remote.is_folder(&url.path).await.map_err(|e| format!("{url}: {e}"))? {
            return Err(format!("{url} is a folder: name a file in it, {}", url.join("NAME")).into());
        }
        let taken = take(&remote, &url.path, &stopped).await;
        // Also after a failure: otherwise the server keeps the file open, and its space in use.
        remote.close().await;
        taken.map_err(|e| e.told(&url))
    };
    let bytes = rt::block_on(until_stopped(&stopped, work))??;
    if args.json {
        say!("{}", serde_json::json!({"to": url.to_string(), "bytes": bytes}))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes standard input to a remote file, which is replaced at the end; returns its length in bytes.
pub(crate) async fn take(remote: &Remote, target: &str, stopped: &AtomicBool) -> Result<u64, Fault> {
    let draft = remote.draft(target, None, FILE_MODE).await.map_err(Fault::There)?;
    let blocks = async || rt::blocking(read_block).await;
    let taking = pin!(async { Ok(take_into(&draft.partial().file, blocks).await) });
    let taken = unless_stopped(stopped, taking).await.unwrap_or_else(|e| Err(Fault::Between(e)));
    take_place(remote, &*draft, taken, false).await
}

/// `next_block` reads standard input.
pub(crate) async fn take_into(
    file: &Rc<dyn RemoteFile>,
    mut next_block: impl AsyncFnMut() -> io::Result<Bytes>,
) -> Result<u64, Fault> {
    let mut writing = FuturesUnordered::new();
    let mut offset = 0;
    loop {
        let block = next_block().await;
        let block = block.map_err(|e| Fault::here(Path::new("standard input"), &e))?;
        if block.is_empty() {
            break;
        }
        // On a terminal, reading past the end would require a second Ctrl-D.
        let is_last = (block.len() as u64) < BLOCK_BYTES;
        let (file, at) = (file.clone(), offset);
        offset += block.len() as u64;
        writing.push(async move { file.write(at, block).await });
        while writing.len() >= QUEUE_DEPTH {
            writing.next().await.unwrap_or(Ok(())).map_err(Fault::There)?;
        }
        if is_last {
            break;
        }
    }
    while let Some(written) = writing.next().await {
        written.map_err(Fault::There)?;
    }
    file.flush().await.map_err(Fault::There)?;
    // The server may have lost bytes that were not durable, and standard input cannot be read again to compare.
    if file.is_anew() {
        let lost = "the server restarted during the copy and may have lost a part; standard input cannot be read again: repeat the command";
        return Err(Fault::There(lost.into()));
    }
    Ok(offset)
}

/// Reads standard input until a block is full; empty at the end of input.
fn read_block() -> std::io::Result<Bytes> {
    let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
    std::io::stdin().lock().take(BLOCK_BYTES).read_to_end(&mut block)?;
    Ok(block.into())
}
