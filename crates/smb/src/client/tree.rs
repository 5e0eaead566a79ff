//! A share: opening, listing, renaming, removing by path.
//!
//! Spec: [MS-SMB2] 3.2.4.3 (opening), 3.2.4.17 (listing). Links are not followed, nothing is cached.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::random;
use weft_wire::security::{Ace, AceFlags, Control, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::{AccessMask, FileAttributes};
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions};
use weft_wire::smb2::create_context::{DurableFlags, RequestContext};
use weft_wire::smb2::fscc::{self, FileClass, FsClass, directory};
use weft_wire::smb2::ioctl::CtlCode;
use weft_wire::smb2::query_info::InfoType;
use weft_wire::smb2::tree_connect::{self, ShareCapabilities, ShareType};
use weft_wire::smb2::{Command, NtStatus, query_directory, reparse};

use super::core::{Core, TreeCore};
use super::description::Description;
use super::error::Error;
use super::file::{self, File};
use super::kept::Kept;
use super::link::{Call, TreeConnect};
use super::open_options::OpenOptions;
use super::path::wire_path;
use super::stat::Stat;

/// Most entries of one directory that we keep: about 1 GiB of memory besides their names.
const MAX_LISTING: usize = 4 << 20;
/// Most bytes of names: a single name may fill a page.
const MAX_NAMES_BYTES: usize = 512 << 20;
/// Buffer of one QUERY_DIRECTORY: one credit.
const LISTING_BYTES: u32 = 64 << 10;

/// Statuses that mean there is no link target.
const NO_TARGET: [NtStatus; 4] = [
    NtStatus::NOT_A_REPARSE_POINT,
    NtStatus::ACCESS_DENIED,
    NtStatus::NOT_SUPPORTED,
    NtStatus::INVALID_DEVICE_REQUEST,
];

/// One entry of a listing. Names contain no separators: a server cannot use them to escape the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Metadata.
    pub stat: Stat,
    /// File id; 0 if the server has none.
    pub id: u64,
    /// Reparse tag ([MS-FSCC] 2.1.2.1); 0 if it is not a reparse point.
    pub reparse_tag: u32,
}

impl Entry {
    /// Whether it is neither a file nor a directory: a reference to something else (a symbolic link, a junction), a
    /// socket, a pipe or a device. Other reparse points (cloud files, deduplicated files) are read like any file.
    pub fn is_special(&self) -> bool {
        use reparse::{AF_UNIX, LX_BLK, LX_CHR, LX_FIFO, NFS, SURROGATE};
        self.reparse_tag & SURROGATE != 0
            || matches!(self.reparse_tag, NFS | AF_UNIX | LX_FIFO | LX_CHR | LX_BLK)
    }
}

/// Space of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Total bytes.
    pub total: u64,
    /// Bytes available to the user.
    pub available: u64,
}

/// A connected share. Cloning shares it.
///
/// Paths are relative to the share; `/` and `\` both separate names; the empty path is the share's root.
#[derive(Clone)]
pub struct Tree(Rc<TreeCore>);

impl Tree {
    pub(super) fn new(core: Rc<Core>, connect: TreeConnect, share: &tree_connect::Response) -> Tree {
        let disk = share.share_type == ShareType::Disk;
        let dfs = share.capabilities.contains(ShareCapabilities::DFS);
        let available = share.capabilities.contains(ShareCapabilities::CONTINUOUS_AVAILABILITY);
        Tree(Rc::new(TreeCore {
            core,
            connect,
            disk,
            dfs,
            available,
            kept: Cell::new(false),
            owner: RefCell::default(),
        }))
    }

    /// Its tree connect, which from now on is valid until the session ends.
    pub(super) fn keep(&self) -> TreeConnect {
        self.0.kept.set(true);
        self.0.connect
    }

    /// Whether it may contain DFS links: see [`super::Session::referral`].
    pub fn is_dfs(&self) -> bool {
        self.0.dfs
    }

    /// Whether its handles survive a restart of the server (3.2.5.5).
    pub fn is_continuously_available(&self) -> bool {
        self.0.available
    }

    /// What was negotiated, and how the share's messages are protected.
    pub fn describe(&self) -> Description {
        self.0.core.describe(self.0.connect)
    }

    /// Sizes of the largest READ and WRITE that go out as one request, in bytes. Longer ones are split.
    pub fn io_sizes(&self) -> (usize, usize) {
        let (core, (connection, rdma)) = (&self.0.core, self.0.pick());
        let negotiated = &connection.negotiated;
        (
            core.io_bytes(&connection, negotiated.max_read, rdma),
            core.io_bytes(&connection, negotiated.max_write, rdma),
        )
    }

    /// Whether it holds files (not a pipe or printer share).
    pub fn is_disk(&self) -> bool {
        self.0.disk
    }

    /// Opens or creates a file.
    pub fn open<'a>(
        &'a self,
        path: &'a str,
        options: OpenOptions,
    ) -> LocalBoxFuture<'a, Result<File, Error>> {
        Box::pin(async move {
            let mut contexts = self.create_guid()?;
            contexts.extend(self.privacy(options));
            let request = options.request(wire_path(path)?, contexts);
            let call = self.0.call(Command::Create, |out| request.emit(out));
            let message = self.0.core.call(call).await?.success()?;
            Ok(self.opened(create::Response::parse(&message)?, None))
        })
    }

    pub(super) fn opened(&self, response: create::Response, kept: Option<Kept>) -> File {
        File::new(self.0.clone(), response.file, response.summary.into(), kept)
    }

    /// The tree that shares this core.
    pub(super) fn of(core: Rc<TreeCore>) -> Tree {
        Tree(core)
    }

    pub(super) fn connect(&self) -> TreeConnect {
        self.0.connect
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.0.core
    }

    pub(super) fn call(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        self.0.call(command, emit)
    }

    /// Sets the owner of files created here, for servers that do not know OWNER RIGHTS: see [`OpenOptions::private`].
    pub fn name_owner(&self, owner: Sid) {
        self.0.owner.replace(Some(owner));
    }

    /// A descriptor that allows the owner everything and everyone else nothing. Nothing is inherited.
    pub(super) fn privacy(&self, options: OpenOptions) -> Option<RequestContext> {
        let owner = || self.0.owner.borrow().clone().unwrap_or_else(Sid::owner_rights);
        let descriptor = || SecurityDescriptor {
            control: Control::DACL_PROTECTED,
            dacl: Dacl::List(vec![Ace::allow(owner(), AccessMask::FILE_ALL, AceFlags::NONE)]),
            ..SecurityDescriptor::default()
        };
        options.private.then(|| RequestContext::SecurityDescriptor(descriptor().to_bytes().into()))
    }

    /// A create GUID, by which the server recognizes a CREATE that is repeated over another connection (3.2.4.3.5).
    fn create_guid(&self) -> Result<Vec<RequestContext>, Error> {
        let core = &self.0.core;
        if !core.negotiated.multichannel() {
            return Ok(Vec::new());
        }
        let create_guid = random::bytes()?;
        Ok(vec![RequestContext::DurableV2 { timeout_ms: 0, flags: DurableFlags::NONE, create_guid }])
    }

    /// Metadata of a file or directory.
    pub async fn stat(&self, path: &str) -> Result<Stat, Error> {
        let file = self.open(path, OpenOptions::anything(AccessMask::FILE_READ_ATTRIBUTES)).await?;
        let stat = file.opened_as();
        file.close().await?;
        Ok(stat)
    }

    /// The target of a link, as the server reports it; `None` if it reports none, or if this is not a link.
    pub async fn target(&self, path: &str) -> Result<Option<String>, Error> {
        let file = self.open(path, OpenOptions::anything(AccessMask::FILE_READ_ATTRIBUTES)).await?;
        let data = file.ioctl(CtlCode::GET_REPARSE_POINT, Bytes::new(), reparse::MAX_DATA as u32).await;
        file.close().await?;
        match data {
            Ok(data) => Ok(reparse::target(&data)?),
            // Not a link, or a link whose target is not for clients. A server without links does not know the request.
            Err(e) if matches!(e.status(), Some(s) if NO_TARGET.contains(&s)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Lists a directory in the server's order, without `.` and `..`.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, Error> {
        let access = AccessMask::FILE_READ_DATA | AccessMask::FILE_READ_ATTRIBUTES;
        let dir = self.open(path, OpenOptions::directory(access)).await?;
        let (mut entries, mut listed, mut names_bytes) = (Vec::new(), 0_usize, 0_usize);
        let mut flags = query_directory::Flags::RESTART_SCANS;
        loop {
            let request = query_directory::Request {
                class: FileClass::ID_BOTH_DIRECTORY,
                flags,
                file_index: 0,
                file: dir.id(),
                output_buffer_length: LISTING_BYTES.min(self.0.core.negotiated.max_transact),
                pattern: "*".into(),
            };
            flags = query_directory::Flags::NONE;
            let call = self.0.call(Command::QueryDirectory, |out| request.emit(out));
            let connections = &self.0.core.connections;
            let connection = connections.any();
            let reply = match connection.link.call(call).await {
                // The position of the listing is unknown now: restart it.
                Err(e) if connections.goes_on(&connection, &e) => {
                    entries.clear();
                    (listed, names_bytes) = (0, 0);
                    flags = query_directory::Flags::RESTART_SCANS;
                    continue;
                }
                reply => reply?,
            };
            // An empty directory may end with either status.
            if matches!(reply.header.status, NtStatus::NO_MORE_FILES | NtStatus::NO_SUCH_FILE) {
                break;
            }
            let response = query_directory::Response::parse(&reply.success()?)?;
            let page = directory::parse(request.class, &response.buffer)?;
            if page.is_empty() {
                return Err(Error::Violation("QUERY_DIRECTORY: an empty page"));
            }
            // Skipped names count too: otherwise a server could list "." forever.
            listed = listed.saturating_add(page.len());
            for entry in page {
                names_bytes = names_bytes.saturating_add(entry.name.len());
                entries.extend(checked(entry)?);
            }
            if names_bytes > MAX_NAMES_BYTES {
                return Err(Error::Misuse("the names in the folder have more than 512 MiB"));
            }
            if listed > MAX_LISTING {
                return Err(Error::Misuse("the folder has more than 4 million entries"));
            }
        }
        dir.close().await?;
        Ok(entries)
    }

    /// Removes a file or link.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        self.delete(path, CreateOptions::NON_DIRECTORY_FILE | CreateOptions::OPEN_REPARSE_POINT).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &str) -> Result<(), Error> {
        self.delete(path, CreateOptions::DIRECTORY_FILE).await
    }

    /// Sets or clears the read-only attribute of a file; returns whether that changed anything.
    pub async fn set_read_only(&self, path: &str, to: bool) -> Result<bool, Error> {
        let access = AccessMask::FILE_READ_ATTRIBUTES | AccessMask::FILE_WRITE_ATTRIBUTES;
        let file = self.open(path, OpenOptions::anything(access)).await?;
        let before = file.opened_as().attributes;
        let changes = before.contains(FileAttributes::READONLY) != to;
        let set = match changes {
            false => Ok(()),
            true => {
                let wanted = match to {
                    true => before | FileAttributes::READONLY,
                    false => before.without(FileAttributes::READONLY),
                };
                // Zero attributes would mean no change ([MS-FSA] 2.1.5.15.2).
                let attributes = match wanted {
                    FileAttributes::NONE => FileAttributes::NORMAL,
                    attributes => attributes,
                };
                let info = fscc::file::Basic { attributes, ..Default::default() };
                file.set_info(FileClass::BASIC, |out| info.emit(out)).await
            }
        };
        file.close().await?;
        set.map(|()| changes)
    }

    async fn delete(&self, path: &str, options: CreateOptions) -> Result<(), Error> {
        let access = AccessMask::DELETE | AccessMask::FILE_READ_ATTRIBUTES;
        let file = self.open(path, OpenOptions { options, ..OpenOptions::anything(access) }).await?;
        let deleted = file.remove().await;
        // Closing the handle removes the name.
        file.close().await?;
        deleted
    }

    /// Creates a directory.
    pub async fn mkdir(&self, path: &str) -> Result<(), Error> {
        let access = AccessMask::FILE_READ_ATTRIBUTES;
        let options =
            OpenOptions { disposition: CreateDisposition::Create, ..OpenOptions::directory(access) };
        self.open(path, options).await?.close().await
    }

    /// Renames or moves within the share. Without `replace` an existing target fails with
    /// STATUS_OBJECT_NAME_COLLISION.
    pub async fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), Error> {
        let access = AccessMask::DELETE | AccessMask::FILE_READ_ATTRIBUTES;
        let file = self.open(from, OpenOptions::anything(access)).await?;
        let renamed = file.rename(to, replace).await;
        file.close().await?;
        renamed
    }

    /// The share's total and available space.
    pub async fn space(&self) -> Result<Space, Error> {
        let root = self.open("", OpenOptions::anything(AccessMask::FILE_READ_ATTRIBUTES)).await?;
        let info = file::query_info(&root, InfoType::FILESYSTEM, FsClass::FULL_SIZE.0, 0).await;
        root.close().await?;
        let size = fscc::filesystem::FullSize::parse(&info?)?;
        let unit = u64::from(size.sectors_per_unit).saturating_mul(u64::from(size.bytes_per_sector));
        Ok(Space {
            total: size.total_units.saturating_mul(unit),
            available: size.caller_available_units.saturating_mul(unit),
        })
    }
}

/// Skips `.` and `..`; refuses a name that is a path.
fn checked(entry: directory::Entry) -> Result<Option<Entry>, Error> {
    if entry.name == "." || entry.name == ".." {
        return Ok(None);
    }
    if entry.name.is_empty() || entry.name.contains(['\\', '/', '\0']) {
        return Err(Error::Violation("QUERY_DIRECTORY: an invalid name"));
    }
    let stat = Stat {
        len: entry.end_of_file,
        allocated: entry.allocation_size,
        is_dir: entry.attributes.contains(FileAttributes::DIRECTORY),
        created: entry.creation_time,
        accessed: entry.last_access_time,
        modified: entry.last_write_time,
        changed: entry.change_time,
        attributes: entry.attributes,
    };
    let reparse = entry.attributes.contains(FileAttributes::REPARSE_POINT);
    let reparse_tag = if reparse { entry.ea_size } else { 0 };
    Ok(Some(Entry { name: entry.name, stat, id: entry.file_id, reparse_tag }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        let entry = |name: &str| directory::Entry { name: name.into(), ..Default::default() };
        for name in ["", "a/b", r"..\..\x", "a\0"] {
            assert!(checked(entry(name)).is_err(), "{name:?}");
        }
        assert_eq!(checked(entry("..")).unwrap(), None);
        assert_eq!(checked(entry("...")).unwrap().unwrap().name, "...");
    }
}
