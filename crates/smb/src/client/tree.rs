//! A share: opening, listing, renaming, removing by path.
//!
//! Spec: [MS-SMB2] 3.2.4.3 (opening), 3.2.4.17 (listing), 3.2.4.22 (leaving).
//! Owns: the tree connect; left when the last clone and file is gone. Does not: follow links or cache.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use weft_machine::random;
use weft_wire::security::{Ace, AceFlags, Control, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::{AccessMask, FileAttributes, ShareAccess};
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions, OplockLevel};
use weft_wire::smb2::create_context::{DurableFlags, RequestContext};
use weft_wire::smb2::fscc::{self, FileClass, FsClass, directory};
use weft_wire::smb2::ioctl::CtlCode;
use weft_wire::smb2::query_info::InfoType;
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::tree_connect::{self, ShareCapabilities, ShareFlags, ShareType};
use weft_wire::smb2::{Command, Filetime, NtStatus, query_directory, reparse, tree_disconnect};

use super::connections::Connection;
use super::error::Error;
use super::file::{self, File};
use super::kept::Kept;
use super::link::{Call, Protection};
use super::session::Core;

/// Entries of one directory that we keep at most: about 1 GiB of memory beside their names.
const MAX_LISTING: usize = 4 << 20;
/// And so many bytes of names: one may be as long as a page.
const MAX_NAMES_BYTES: usize = 512 << 20;
/// Buffer of one QUERY_DIRECTORY: one credit.
const LISTING_BYTES: u32 = 64 << 10;

/// What is said in place of where a link leads.
const NO_TARGET: [NtStatus; 4] = [
    NtStatus::NOT_A_REPARSE_POINT,
    NtStatus::ACCESS_DENIED,
    NtStatus::NOT_SUPPORTED,
    NtStatus::INVALID_DEVICE_REQUEST,
];

/// A tree connect, shared by its clones and files.
pub(super) struct TreeCore {
    pub core: Rc<Core>,
    pub id: u32,
    /// The share insists on encryption.
    sealed: bool,
    disk: bool,
    /// Part of a DFS namespace.
    dfs: bool,
    /// Its handles can be persistent.
    available: bool,
    /// Not to be left: other users have its id, or the server has ended it.
    kept: Cell<bool>,
    /// Who owns what is made here, where somebody has found out.
    owner: RefCell<Option<Sid>>,
}

impl TreeCore {
    pub fn protection(&self) -> Protection {
        self.core.protection(self.sealed)
    }

    /// The connection for payload, and whether that goes by RDMA.
    pub fn pick(&self) -> (Rc<Connection>, bool) {
        let connection = self.core.pick(self.sealed);
        let rdma = self.core.rdma_by(&connection, self.sealed);
        (connection, rdma)
    }

    /// See [`Core::transform`].
    pub fn transform(&self) -> Option<RdmaTransformId> {
        self.core.transform(self.sealed)
    }

    pub fn call(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        Call::new(command, self.id, self.protection(), emit)
    }
}

impl Drop for TreeCore {
    fn drop(&mut self) {
        if !self.kept.get() {
            let call = self.call(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out));
            self.core.let_go(call);
        }
    }
}

/// How to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// What the handle may do.
    pub access: AccessMask,
    /// What others may do meanwhile.
    pub share: ShareAccess,
    /// If it exists or not.
    pub disposition: CreateDisposition,
    /// Further options.
    pub options: CreateOptions,
    /// What is made is its owner's alone, where the server has descriptors; what exists stays as it is.
    pub private: bool,
}

impl OpenOptions {
    /// An existing file, for reading.
    pub fn read() -> OpenOptions {
        OpenOptions {
            access: AccessMask::FILE_GENERIC_READ,
            share: ShareAccess::ALL,
            disposition: CreateDisposition::Open,
            options: CreateOptions::NON_DIRECTORY_FILE,
            private: false,
        }
    }

    /// An existing file, for reading and writing.
    pub fn write() -> OpenOptions {
        OpenOptions { access: AccessMask::FILE_GENERIC_READ | AccessMask::FILE_GENERIC_WRITE, ..Self::read() }
    }

    /// A file that is made if it does not exist, for reading and writing.
    pub fn create() -> OpenOptions {
        OpenOptions { disposition: CreateDisposition::OpenIf, ..Self::write() }
    }

    /// A file that is made, or emptied if it exists, for reading and writing.
    pub fn truncate() -> OpenOptions {
        OpenOptions { disposition: CreateDisposition::OverwriteIf, ..Self::write() }
    }

    /// A file that must not exist, for reading and writing.
    pub fn create_new() -> OpenOptions {
        OpenOptions { disposition: CreateDisposition::Create, ..Self::write() }
    }

    /// A file for new content: made where there is none, for reading, writing, renaming and deleting. Nobody else writes,
    /// renames or deletes it meanwhile.
    pub fn draft() -> OpenOptions {
        let write = Self::write();
        OpenOptions {
            access: write.access | AccessMask::DELETE,
            share: ShareAccess::READ,
            disposition: CreateDisposition::Create,
            ..write
        }
    }

    /// A new, empty file that vanishes with its handle, for a look at what the server makes of new files.
    pub fn passing() -> OpenOptions {
        let options = CreateOptions::NON_DIRECTORY_FILE | CreateOptions::DELETE_ON_CLOSE;
        OpenOptions { options, ..Self::draft() }
    }

    /// A file or link, to delete it.
    pub fn delete() -> OpenOptions {
        let options = CreateOptions::NON_DIRECTORY_FILE | CreateOptions::OPEN_REPARSE_POINT;
        Self { options, ..Self::anything(AccessMask::DELETE | AccessMask::FILE_READ_ATTRIBUTES) }
    }

    /// A file, to say who may do what with it.
    pub fn protect() -> OpenOptions {
        Self::anything(AccessMask::READ_CONTROL | AccessMask::WRITE_DAC)
    }

    /// The same, to see that.
    pub fn look() -> OpenOptions {
        Self::anything(AccessMask::READ_CONTROL)
    }

    /// A CREATE of these, with these contexts.
    pub(super) fn request(self, name: String, contexts: Vec<RequestContext>) -> create::Request {
        create::Request {
            oplock: OplockLevel::NONE,
            impersonation: 2,
            desired_access: self.access,
            attributes: FileAttributes::NORMAL,
            share_access: self.share,
            disposition: self.disposition,
            options: self.options,
            name,
            contexts,
        }
    }

    fn directory(access: AccessMask) -> OpenOptions {
        OpenOptions { access, options: CreateOptions::DIRECTORY_FILE, ..Self::read() }
    }

    fn anything(access: AccessMask) -> OpenOptions {
        OpenOptions { access, options: CreateOptions::OPEN_REPARSE_POINT, ..Self::read() }
    }
}

/// What is known of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub len: u64,
    /// Bytes that it occupies.
    pub allocated: u64,
    /// A directory.
    pub is_dir: bool,
    /// Birth.
    pub created: Filetime,
    /// Last read.
    pub accessed: Filetime,
    /// Last write.
    pub modified: Filetime,
    /// Last change of anything.
    pub changed: Filetime,
    /// Attributes.
    pub attributes: FileAttributes,
}

impl From<create::FileSummary> for Stat {
    fn from(summary: create::FileSummary) -> Stat {
        Stat {
            len: summary.end_of_file,
            allocated: summary.allocation_size,
            is_dir: summary.attributes.contains(FileAttributes::DIRECTORY),
            created: summary.creation_time,
            accessed: summary.last_access_time,
            modified: summary.last_write_time,
            changed: summary.change_time,
            attributes: summary.attributes,
        }
    }
}

/// One name of a listing. Names hold no separators: a server cannot make us leave a directory by them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// The rest.
    pub stat: Stat,
    /// File id; 0 where the server has none.
    pub id: u64,
    /// What kind of reparse point it is ([MS-FSCC] 2.1.2.1); 0 when it is none.
    pub reparse_tag: u32,
}

impl Entry {
    /// Whether it is neither a file nor a directory: it names something else (a symbolic link, a junction), or is a socket, a
    /// pipe or a device. Other reparse points (files in the cloud, deduplicated ones) are read like any file.
    pub fn is_special(&self) -> bool {
        use reparse::{AF_UNIX, LX_BLK, LX_CHR, LX_FIFO, NFS, SURROGATE};
        self.reparse_tag & SURROGATE != 0
            || matches!(self.reparse_tag, NFS | AF_UNIX | LX_FIFO | LX_CHR | LX_BLK)
    }
}

/// Space of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free to the user.
    pub available: u64,
}

/// A share that was entered. Cloning shares it.
///
/// Paths are relative to the share; `/` and `\` both separate names; the empty path is the share's root.
#[derive(Clone)]
pub struct Tree(Rc<TreeCore>);

impl Tree {
    pub(super) fn new(core: Rc<Core>, id: u32, share: &tree_connect::Response) -> Tree {
        let sealed = share.flags.contains(ShareFlags::ENCRYPT_DATA);
        let disk = share.share_type == ShareType::Disk;
        let dfs = share.capabilities.contains(ShareCapabilities::DFS);
        let available = share.capabilities.contains(ShareCapabilities::CONTINUOUS_AVAILABILITY);
        Tree(Rc::new(TreeCore {
            core,
            id,
            sealed,
            disk,
            dfs,
            available,
            kept: Cell::new(false),
            owner: RefCell::default(),
        }))
    }

    /// Its id, from now on valid until the session ends.
    pub(super) fn keep(&self) -> u32 {
        self.0.kept.set(true);
        self.0.id
    }

    /// Whether links in it may lead elsewhere: see [`super::Session::referral`].
    pub fn is_dfs(&self) -> bool {
        self.0.dfs
    }

    /// Whether handles on it outlast the server (3.2.5.5).
    pub fn is_continuously_available(&self) -> bool {
        self.0.available
    }

    /// Whether it holds files (not pipes, not a printer).
    pub fn is_disk(&self) -> bool {
        self.0.disk
    }

    /// Opens or creates a file.
    pub async fn open(&self, path: &str, options: OpenOptions) -> Result<File, Error> {
        let mut contexts = self.create_guid()?;
        contexts.extend(self.privacy(options));
        let request = options.request(wire_path(path)?, contexts);
        let call = self.0.call(Command::Create, |out| request.emit(out));
        let message = self.0.core.call(call).await?.success()?;
        Ok(self.opened(create::Response::parse(&message)?, None))
    }

    pub(super) fn opened(&self, response: create::Response, kept: Option<Kept>) -> File {
        File::new(self.0.clone(), response.file, response.summary.into(), kept)
    }

    /// The share that a file is in.
    pub(super) fn of(core: Rc<TreeCore>) -> Tree {
        Tree(core)
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.0.core
    }

    pub(super) fn call(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        self.0.call(command, emit)
    }

    /// Names the owner of what is made here, for servers that do not know OWNER RIGHTS: see [`OpenOptions::private`].
    pub fn name_owner(&self, owner: Sid) {
        self.0.owner.replace(Some(owner));
    }

    /// What lets the owner do everything, and nobody else anything. Nothing is inherited.
    pub(super) fn privacy(&self, options: OpenOptions) -> Option<RequestContext> {
        let owner = || self.0.owner.borrow().clone().unwrap_or_else(Sid::owner_rights);
        let descriptor = || SecurityDescriptor {
            control: Control::DACL_PROTECTED,
            dacl: Dacl::List(vec![Ace::allow(owner(), AccessMask::FILE_ALL, AceFlags::NONE)]),
            ..SecurityDescriptor::default()
        };
        options.private.then(|| RequestContext::SecurityDescriptor(descriptor().to_bytes().into()))
    }

    /// A name for the open, by which the server knows a CREATE that comes again over another connection (3.2.4.3.5).
    fn create_guid(&self) -> Result<Vec<RequestContext>, Error> {
        let core = &self.0.core;
        if !core.negotiated.multichannel() {
            return Ok(Vec::new());
        }
        let create_guid = random::bytes()?;
        Ok(vec![RequestContext::DurableV2 { timeout_ms: 0, flags: DurableFlags::NONE, create_guid }])
    }

    /// What is known of a file or directory.
    pub async fn stat(&self, path: &str) -> Result<Stat, Error> {
        let file = self.open(path, OpenOptions::anything(AccessMask::FILE_READ_ATTRIBUTES)).await?;
        let stat = file.opened_as();
        file.close().await?;
        Ok(stat)
    }

    /// Where a link leads, as its server says it; `None` where it does not say, or there is no link.
    pub async fn target(&self, path: &str) -> Result<Option<String>, Error> {
        let file = self.open(path, OpenOptions::anything(AccessMask::FILE_READ_ATTRIBUTES)).await?;
        let data = file.ioctl(CtlCode::GET_REPARSE_POINT, Bytes::new(), reparse::MAX_DATA as u32).await;
        file.close().await?;
        match data {
            Ok(data) => Ok(reparse::target(&data)?),
            // No link, or one that leads to what is not for clients; a server without any knows no such question.
            Err(e) if matches!(e.status(), Some(s) if NO_TARGET.contains(&s)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Lists a directory, without `.` and `..`, in the server's order.
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
                // Nobody knows how far the listing is now: from the beginning.
                Err(e) if connections.goes_on(&connection, &e) => {
                    entries.clear();
                    (listed, names_bytes) = (0, 0);
                    flags = query_directory::Flags::RESTART_SCANS;
                    continue;
                }
                reply => reply?,
            };
            // An empty directory may end with either.
            if matches!(reply.header.status, NtStatus::NO_MORE_FILES | NtStatus::NO_SUCH_FILE) {
                break;
            }
            let response = query_directory::Response::parse(&reply.success()?)?;
            let page = directory::parse(request.class, &response.buffer)?;
            if page.is_empty() {
                return Err(Error::Violation("QUERY_DIRECTORY: an empty page"));
            }
            // Names that are left out count: a server may list "." for ever.
            listed = listed.saturating_add(page.len());
            for entry in page {
                names_bytes = names_bytes.saturating_add(entry.name.len());
                entries.extend(checked(entry)?);
            }
            if names_bytes > MAX_NAMES_BYTES {
                return Err(Error::Misuse("the names in the directory have more than 512 MiB"));
            }
            if listed > MAX_LISTING {
                return Err(Error::Misuse("the directory has more than 4 million entries"));
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

    /// Sets or clears the read-only attribute of a file; whether that changed anything.
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
                // No attributes at all would leave them as they are ([MS-FSA] 2.1.5.15.2).
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
        // The name goes with the handle.
        file.close().await?;
        deleted
    }

    /// Makes a directory.
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

    /// How much space there is.
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

/// A path as the wire has it: `\` between names, none at either end.
pub(super) fn wire_path(path: &str) -> Result<String, Error> {
    if path.contains('\0') {
        return Err(Error::Misuse("a path holds no NUL"));
    }
    Ok(path.replace('/', "\\").trim_matches('\\').to_owned())
}

/// `.` and `..` are left out; a name that is a path is a trick.
fn checked(entry: directory::Entry) -> Result<Option<Entry>, Error> {
    if entry.name == "." || entry.name == ".." {
        return Ok(None);
    }
    if entry.name.is_empty() || entry.name.contains(['\\', '/', '\0']) {
        return Err(Error::Violation("QUERY_DIRECTORY: a name that is no name"));
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
    fn paths_become_wire_paths() {
        assert_eq!(wire_path("/a/b\\c/").unwrap(), r"a\b\c");
        assert_eq!(wire_path("").unwrap(), "");
        assert_eq!(wire_path("../x").unwrap(), r"..\x", "the server refuses it, not we");
        assert!(wire_path("a\0b").is_err());
    }

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
