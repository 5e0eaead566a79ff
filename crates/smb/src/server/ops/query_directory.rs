//! QUERY_DIRECTORY: a listing, a buffer at a time.
//!
//! Spec: [MS-SMB2] 3.3.5.18, [MS-FSA] 2.1.5.6.3. Owns: the position of a listing, in its open.
//! Does not: resume by index (a server may decline), nor list names that SMB cannot spell (see `path`).
//!
//! Entries are fetched from the store in batches; those that did not fit the client's buffer are kept for its next
//! request. A pattern without wildcards is one look-up, however large the directory is: that is how clients ask for
//! the attributes of one file.

use std::collections::VecDeque;

use weft_store::vfs::{Attr, Beside, Entry, Error, Kind, Timestamp};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::fscc::directory::{self, Writer};
use weft_wire::smb2::fscc::{self, FileClass};
use weft_wire::smb2::query_directory::{Flags, Request, Response};

use super::opens::{self, Open};
use super::pattern::Pattern;
use super::{attributes, path, resolve};
use crate::server::context::{Answer, Failure, OpContext, Reply};

/// Entries fetched from the store at a time. One answer of 64 KiB holds about 500.
const BATCH: usize = 512;

/// Where a listing is.
#[derive(Default)]
pub(crate) struct Scan {
    /// `None` until the first request.
    pattern: Option<Pattern>,
    /// Fetched, not yet given to the client; each with the position behind it, 0 for `.` and `..`.
    ready: VecDeque<(u64, directory::Entry)>,
    /// Position behind the last entry that the client was given.
    given: u64,
    /// Times of the directory when `ready` was fetched: what changed since is fetched again.
    stamp: Option<(Timestamp, Timestamp)>,
    /// How to go on in the store.
    cookie: u64,
    /// `.` and `..` are in `ready` or behind it.
    dots: bool,
    /// The store has no more.
    end: bool,
}

pub(super) async fn query_directory(cx: &OpContext) -> Answer {
    let request = Request::parse(&cx.message)?;
    let open = opens::find(cx, request.file)?;
    if open.kind != Kind::Dir || request.output_buffer_length > cx.max_payload() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_READ_DATA)?;
    let limit = request.output_buffer_length as usize;
    let Some(mut writer) = Writer::new(request.class, limit) else {
        return Err(unlisted(request.class).into());
    };
    let mut scan = open.scan.lock().await;
    let first = scan.begin(&request)?;
    scan.refresh(&open).await?;
    let single = request.flags.contains(Flags::RETURN_SINGLE_ENTRY);
    while let Some((cookie, entry)) = scan.next(&open).await? {
        if !writer.push(&entry) {
            if writer.is_empty() {
                return cut(request.class, &entry, limit);
            }
            scan.ready.push_front((cookie, entry));
            break;
        }
        scan.given = cookie;
        if single {
            break;
        }
    }
    if writer.is_empty() {
        return Err(if first { NtStatus::NO_SUCH_FILE } else { NtStatus::NO_MORE_FILES }.into());
    }
    Ok(reply(NtStatus::SUCCESS, writer.finish()))
}

fn reply(status: NtStatus, buffer: Vec<u8>) -> Reply {
    let mut reply = Reply::with_capacity(8 + buffer.len());
    reply.status = status;
    Response { buffer: buffer.into() }.emit(&mut reply.message);
    reply
}

/// 3.3.5.18: classes that list, but not here, and classes that do not list.
fn unlisted(class: FileClass) -> NtStatus {
    // FileId64ExtdDirectoryInformation to FileIdAllExtdBothDirectoryInformation.
    if (78..=81).contains(&class.0) { NtStatus::NOT_SUPPORTED } else { NtStatus::INVALID_INFO_CLASS }
}

/// The first entry alone does not fit: as much of its name as does ([MS-FSA] 2.1.5.6.3). It counts as given.
fn cut(class: FileClass, entry: &directory::Entry, limit: usize) -> Answer {
    let whole = Writer::new(class, usize::MAX).and_then(|mut writer| {
        // `usize::MAX` bytes hold any entry.
        writer.push(entry).then(|| writer.finish())
    });
    let mut buffer = whole.ok_or(NtStatus::INFO_LENGTH_MISMATCH)?;
    let name_len = weft_wire::smb2::utf16::encoded_len(&entry.name);
    let fixed_len = buffer.len() - name_len;
    match fscc::truncate(&mut buffer, limit, fixed_len) {
        Some(_) => Ok(reply(NtStatus::BUFFER_OVERFLOW, buffer)),
        None => Err(NtStatus::INFO_LENGTH_MISMATCH.into()),
    }
}

impl Scan {
    /// Starts over where the request says so, and says whether this is a first query.
    fn begin(&mut self, request: &Request) -> Result<bool, NtStatus> {
        let restart = request.flags.intersects(Flags::RESTART_SCANS | Flags::REOPEN);
        let first = self.pattern.is_none();
        if first || (restart && !request.pattern.is_empty()) {
            self.pattern = Some(Pattern::parse(&request.pattern)?);
        }
        if first || restart {
            *self = Scan { pattern: self.pattern.take(), ..Scan::default() };
        }
        Ok(first || restart)
    }

    /// Drops what was fetched before the directory changed: who asks again wants what is there now.
    async fn refresh(&mut self, open: &Open) -> Result<(), Failure> {
        let Some(stamp) = self.stamp.filter(|_| !self.ready.is_empty()) else { return Ok(()) };
        let attr = open.vfs.getattr(open.node).await?;
        if (attr.mtime, attr.ctime) != stamp {
            self.ready.retain(|(cookie, _)| *cookie == 0);
            (self.cookie, self.end) = (self.given, false);
        }
        Ok(())
    }

    /// The next entry that matches, and the position behind it.
    async fn next(&mut self, open: &Open) -> Result<Option<(u64, directory::Entry)>, Failure> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(Some(entry));
            }
            if self.end {
                return Ok(None);
            }
            self.fetch(open).await?;
        }
    }

    /// Fills `ready`, or ends.
    async fn fetch(&mut self, open: &Open) -> Result<(), Failure> {
        let (vfs, dir) = (&open.vfs, open.node);
        let pattern = self.pattern.clone().unwrap_or(Pattern::All);
        if let Pattern::Exact(name) = &pattern {
            self.end = true;
            let entry = exact(open, name).await?;
            self.ready.extend(entry.map(|entry| (0, entry)));
            return Ok(());
        }
        if !std::mem::replace(&mut self.dots, true) {
            for name in [".", ".."] {
                if pattern.matches(name) {
                    let attr = vfs.lookup(dir, name.as_bytes(), false).await?;
                    let entry = entry_of(&attr, &Beside::default(), name.as_bytes(), name.to_owned());
                    self.ready.push_back((0, entry));
                }
            }
        }
        let now = vfs.getattr(dir).await?;
        self.stamp = Some((now.mtime, now.ctime));
        let (entries, end) = match vfs.readdir_beside(dir, self.cookie, BATCH).await {
            // Removed while it was open: nothing is in it any more.
            Err(Error::NotFound) => (Vec::new(), true),
            other => other?,
        };
        self.end = end;
        self.cookie = entries.last().map_or(self.cookie, |last| last.cookie);
        for Entry { name, attr, beside, cookie } in entries {
            let Some(shown) = path::from_store(&name) else { continue };
            if pattern.matches(&shown) {
                self.ready.push_back((cookie, entry_of(&attr, &beside.unwrap_or_default(), &name, shown)));
            }
        }
        Ok(())
    }
}

/// The one file that a pattern without wildcards names.
async fn exact(open: &Open, name: &str) -> Result<Option<directory::Entry>, Failure> {
    let (vfs, dir) = (&open.vfs, open.node);
    if name == "." || name == ".." {
        let attr = vfs.lookup(dir, name.as_bytes(), false).await?;
        return Ok(Some(entry_of(&attr, &Beside::default(), name.as_bytes(), name.to_owned())));
    }
    let Some((attr, spelled)) = resolve::find(vfs, dir, &path::to_store(name)?).await? else {
        return Ok(None);
    };
    let beside = vfs.beside(attr.node).await.unwrap_or_default();
    Ok(path::from_store(&spelled).map(|shown| entry_of(&attr, &beside, &spelled, shown)))
}

fn entry_of(attr: &Attr, beside: &Beside, name: &[u8], shown: String) -> directory::Entry {
    let summary = attributes::summary(attr, beside.dos, name);
    directory::Entry {
        file_index: 0,
        creation_time: summary.creation_time,
        last_access_time: summary.last_access_time,
        last_write_time: summary.last_write_time,
        change_time: summary.change_time,
        end_of_file: summary.end_of_file,
        allocation_size: summary.allocation_size,
        attributes: summary.attributes,
        ea_size: attributes::ea_size(attr, beside),
        file_id: attr.node.0,
        name: shown,
    }
}
