//! QUERY_DIRECTORY: lists a directory, one buffer at a time.
//!
//! Spec: [MS-SMB2] 3.3.5.18, [MS-FSA] 2.1.5.6.3. The position of a listing is in its open (see `scan`). Resuming by
//! index is not supported (it is optional), and names that SMB cannot express are left out (see `path`).
//!
//! Entries are fetched from the store in batches; those that do not fit the client's buffer are kept for its next
//! request. A pattern without wildcards takes one look-up, however large the directory is: clients ask for the
//! attributes of one file that way.

use weft_machine::rt;
use weft_store::access::Token;
use weft_store::backend::short_name;
use weft_store::vfs::{Attr, DirName, Entry, Error, Kind, Listing, NodeId, Unread, Vfs, XattrSummary};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::{AccessMask, FileAttributes};
use weft_wire::smb2::fscc::directory::{self, Writer};
use weft_wire::smb2::fscc::{self, FileClass};
use weft_wire::smb2::query_directory::{Flags, Request, Response};

use super::opens::Open;
use super::pattern::Pattern;
use super::scan::Scan;
use super::{attributes, mac, namespace, path, resolve, security, volume};
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

/// Entries per fetch from the store. One answer of 64 KiB holds about 500.
const BATCH: usize = 512;

pub(super) async fn query_directory(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let open = cx.open(request.file)?;
    if open.kind != Kind::Dir || request.output_buffer_length > cx.max_payload() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_READ_DATA)?;
    let limit = request.output_buffer_length as usize;
    let Some(mut writer) = Writer::new(request.class, limit) else {
        return Err(unlisted(request.class).into());
    };
    let room = cx.room(limit).await;
    let mut scan = open.scan.lock().await;
    if request.class == FileClass::POSIX && !cx.connection().negotiated().posix {
        return Err(NtStatus::INVALID_INFO_CLASS.into());
    }
    let first = scan.begin(&request)?;
    let volume = cx.tree().share.as_ref().map_or(0, |share| volume::id(&share.name));
    scan.device = cx.connection().negotiated().posix.then_some(volume as u32);
    if first {
        scan.links = namespace::links_in(cx, &open).await?;
    }
    scan.set_form(mac::lists(cx, request.class));
    scan.refresh(&open).await?;
    let reader = Reader { cx, who: security::hides(cx) };
    let single = request.flags.contains(Flags::RETURN_SINGLE_ENTRY);
    let filled = scan.fill(&open, reader, &mut writer, single).await;
    scan.settle(open.held());
    if let Some(too_long) = filled? {
        return cut(request.class, &too_long, limit);
    }
    if writer.is_empty() {
        return Err(if first { NtStatus::NO_SUCH_FILE } else { NtStatus::NO_MORE_FILES }.into());
    }
    Ok(Reply { room, ..reply(NtStatus::SUCCESS, writer.finish()) })
}

fn reply(status: NtStatus, buffer: Vec<u8>) -> Reply {
    let mut reply = Reply::with_capacity(buffer.len().saturating_add(8));
    reply.status = status;
    Response { buffer: buffer.into() }.emit(&mut reply.message);
    reply
}

/// 3.3.5.18: the status for unsupported listing classes, and for classes that are not listings.
fn unlisted(class: FileClass) -> NtStatus {
    // FileId64ExtdDirectoryInformation to FileIdAllExtdBothDirectoryInformation.
    if (78..=81).contains(&class.0) { NtStatus::NOT_SUPPORTED } else { NtStatus::INVALID_INFO_CLASS }
}

/// Even the first entry does not fit: returns as much of its name as fits ([MS-FSA] 2.1.5.6.3). The entry counts as
/// received.
fn cut(class: FileClass, entry: &directory::Entry, limit: usize) -> Answer {
    let whole = Writer::new(class, usize::MAX).and_then(|mut writer| {
        // `usize::MAX` bytes hold any entry.
        writer.push(entry).then(|| writer.finish())
    });
    let mut buffer = whole.ok_or(NtStatus::INFO_LENGTH_MISMATCH)?;
    let name_len = weft_wire::smb2::utf16::encoded_len(&entry.name);
    let fixed_len = buffer.len().saturating_sub(name_len);
    match fscc::truncate(&mut buffer, limit, fixed_len) {
        Some(_) => Ok(reply(NtStatus::BUFFER_OVERFLOW, buffer)),
        None => Err(NtStatus::INFO_LENGTH_MISMATCH.into()),
    }
}

/// Who reads a listing.
#[derive(Clone, Copy)]
struct Reader<'a> {
    cx: &'a OpContext,
    /// The user, if unreadable files are hidden from him.
    who: Option<&'a Token>,
}

impl Scan {
    /// Drops entries that were fetched before the directory changed, so that the client gets the current ones.
    async fn refresh(&mut self, open: &Open) -> Result<(), Failure> {
        let Some(stamp) = self.stamp.filter(|_| !self.ready.is_empty()) else { return Ok(()) };
        let attr = open.vfs.getattr(open.node).await?;
        if (attr.mtime, attr.ctime) != stamp {
            self.drop_ahead();
        }
        Ok(())
    }

    /// Writes entries until the buffer is full, or one if `single`. `Some`: the first entry, if it does not fit.
    async fn fill(
        &mut self,
        open: &Open,
        reader: Reader<'_>,
        writer: &mut Writer,
        single: bool,
    ) -> Result<Option<directory::Entry>, Failure> {
        while let Some((cookie, entry)) = self.next(open, reader).await? {
            if !writer.push(&entry) {
                if writer.is_empty() {
                    return Ok(Some(entry));
                }
                self.ready.give_back((cookie, entry));
                break;
            }
            self.given = cookie;
            if single {
                break;
            }
        }
        Ok(None)
    }

    /// The next matching entry, and the position after it.
    async fn next(
        &mut self,
        open: &Open,
        reader: Reader<'_>,
    ) -> Result<Option<(u64, directory::Entry)>, Failure> {
        loop {
            if let Some(entry) = self.ready.pop() {
                return Ok(Some(entry));
            }
            if self.end {
                return Ok(None);
            }
            self.fetch(open, reader).await?;
        }
    }

    /// Fills `ready`, or sets `end`. Entries that the reader may not see are left out.
    async fn fetch(&mut self, open: &Open, reader: Reader<'_>) -> Result<(), Failure> {
        let who = reader.who;
        // The handle may list the directory, whatever has become of the permissions since.
        let (vfs, dir) = (&open.vfs.as_server(), open.node);
        let pattern = self.pattern.clone().unwrap_or(Pattern::All);
        if let Pattern::Exact(name) = &pattern {
            self.end = true;
            let entry = match self.link(name) {
                Some(link) => Some(link.clone()),
                None => self.exact(open, name, reader).await?,
            };
            entry.into_iter().for_each(|entry| self.ready.push((0, entry)));
            return Ok(());
        }
        if !std::mem::replace(&mut self.dots, true) {
            for name in [".", ".."] {
                if pattern.matches(name) {
                    self.ready.push((0, self.dot_entry(open, name).await?));
                }
            }
            let links = self.links.iter().filter(|link| pattern.matches(&link.name));
            let links: Vec<_> = links.map(|link| self.in_form(link.clone())).collect();
            links.into_iter().for_each(|link| self.ready.push((0, link)));
        }
        let above = match self.is_for_mac {
            true => security::from_above(reader.cx, &open.vfs, dir).await?,
            false => AccessMask::NONE,
        };
        let now = vfs.getattr(dir).await?;
        self.stamp = Some((now.mtime, now.ctime));
        let Listing { entries, is_last } = match vfs.readdir_with_xattrs(dir, self.cookie, BATCH).await {
            // A removed folder must not look empty: a client that mirrors it would empty the mirror.
            Err(Error::NotFound) if dir == NodeId::ROOT => {
                return Err(NtStatus::OBJECT_PATH_NOT_FOUND.into());
            }
            Err(Error::NotFound) => return Err(NtStatus::FILE_DELETED.into()),
            other => other?,
        };
        self.end = is_last;
        self.cookie = entries.last().map_or(self.cookie, |last| last.cookie);
        self.ready.expect(entries.len());
        for Entry { name, attr, xattrs, cookie } in entries {
            rt::yield_if_due().await;
            let shown = path::from_store(&name);
            let here = pattern.matches(&shown) && self.link(&shown).is_none();
            let attr = match attr {
                Ok(attr) => attr,
                // Where unreadable files are hidden, so is a file of which nobody knows who may read it.
                Err(unread) => {
                    let entry = unread_entry(&unread, &name, shown, self.device);
                    let entry = entry.filter(|_| here && who.is_none());
                    entry.into_iter().for_each(|entry| self.ready.push((cookie, self.in_form(entry))));
                    continue;
                }
            };
            if here && may_see(&open.vfs, &attr, who).await? {
                let entry =
                    self.entry(open, reader, above, (&attr, xattrs.unwrap_or_default(), &name, shown));
                self.ready.push((cookie, entry.await?));
            }
        }
        Ok(())
    }

    /// The single file that a pattern without wildcards names.
    async fn exact(
        &self,
        open: &Open,
        name: &str,
        reader: Reader<'_>,
    ) -> Result<Option<directory::Entry>, Failure> {
        let (vfs, dir) = (&open.vfs.as_server(), open.node);
        if name == "." || name == ".." {
            return Ok(Some(self.dot_entry(open, name).await?));
        }
        let stored = path::to_store(name)?;
        let Some((attr, spelled)) = resolve::find(vfs, dir, &stored, reader.cx.session().is_mac()).await?
        else {
            return Ok(None);
        };
        if !may_see(&open.vfs, &attr, reader.who).await? {
            return Ok(None);
        }
        let xattrs = vfs.xattr_summary(attr.node).await.unwrap_or_default();
        let above = match self.is_for_mac {
            true => security::from_above(reader.cx, &open.vfs, dir).await?,
            false => AccessMask::NONE,
        };
        let shown = path::from_store(&spelled);
        self.entry(open, reader, above, (&attr, xattrs, &spelled, shown)).await.map(Some)
    }

    /// The directory itself, or the one above it.
    async fn dot_entry(&self, open: &Open, name: &str) -> Result<directory::Entry, Failure> {
        let attr = open.vfs.as_server().lookup(open.node, name.as_bytes(), false).await?;
        let none = XattrSummary::default();
        Ok(self.in_form(entry_of(&attr, &none, name.as_bytes(), name.to_owned(), self.device)))
    }

    /// A file on which the directory gives the reader the rights `above`.
    async fn entry(
        &self,
        open: &Open,
        reader: Reader<'_>,
        above: AccessMask,
        (attr, xattrs, name, shown): (&Attr, XattrSummary, &[u8], String),
    ) -> Result<directory::Entry, Failure> {
        let entry = entry_of(attr, &xattrs, name, shown, self.device);
        if !self.is_for_mac {
            return Ok(entry);
        }
        let place = DirName { dir: open.node, name };
        // Boxed: few listings are for Macs.
        let told = Box::pin(mac::entry(reader.cx, &open.vfs, (attr, &xattrs), place, above)).await?;
        Ok(directory::Entry { mac: Some(Box::new(told)), ..entry })
    }

    /// An entry of which a Mac is told nothing more.
    fn in_form(&self, entry: directory::Entry) -> directory::Entry {
        directory::Entry { mac: self.is_for_mac.then(Box::default), ..entry }
    }
}

/// 3.3.5.18: on a share that hides unreadable files, they are not listed.
async fn may_see(vfs: &Vfs, attr: &Attr, who: Option<&Token>) -> Result<bool, Failure> {
    let Some(token) = who else { return Ok(true) };
    match security::is_readable(vfs, attr, token).await {
        // Removed since it was listed.
        Err(Error::Stale | Error::NotFound) => Ok(false),
        other => Ok(other?),
    }
}

/// What is shown of a file whose attributes cannot be read; `None` where the POSIX ones are asked for.
fn unread_entry(
    unread: &Unread,
    name: &[u8],
    shown: String,
    device: Option<u32>,
) -> Option<directory::Entry> {
    let attributes = match unread.kind {
        Some(Kind::Dir) => FileAttributes::DIRECTORY,
        _ => FileAttributes::NORMAL,
    };
    device.is_none().then(|| directory::Entry {
        attributes,
        file_id: unread.fileid,
        short_name: short_name(name).unwrap_or_default(),
        name: shown,
        ..directory::Entry::default()
    })
}

fn entry_of(
    attr: &Attr,
    xattrs: &XattrSummary,
    name: &[u8],
    shown: String,
    device: Option<u32>,
) -> directory::Entry {
    let summary = attributes::summary(attr, xattrs.dos, name);
    directory::Entry {
        file_index: 0,
        creation_time: summary.creation_time,
        last_access_time: summary.last_access_time,
        last_write_time: summary.last_write_time,
        change_time: summary.change_time,
        end_of_file: summary.end_of_file,
        allocation_size: summary.allocation_size,
        attributes: summary.attributes,
        ea_size: attributes::ea_size(attr, xattrs),
        file_id: if device.is_some() { attr.fileid } else { attr.stable.number() },
        short_name: short_name(name).unwrap_or_default(),
        posix: device.map(|device| Box::new(attributes::information(attr, &summary, &shown, device))),
        mac: None,
        name: shown,
    }
}
