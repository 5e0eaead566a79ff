//! SET_INFO: times, attributes, sizes, names, deletion.
//!
//! Spec: [MS-SMB2] 3.3.5.21, [MS-FSA] 2.1.5.15, [MS-FSCC] 2.4. Access is decided in [`super::security`]. Creation and
//! change time, which Linux does not allow to be set, are kept beside the file. A link that replaces another file has a name
//! of its own first; a crash can leave it as `.weft-link-*`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_machine::{random, rt};
use weft_store::audit::{AuditedOpen, Fact, Kind as Audited, Outcome};
use weft_store::opens::{Access, Refused, Rights};
use weft_store::vfs::{Attr, Created, DirName, Dos, Error, Kind, NodeId, SetAttr, SetTime, Vfs};
use weft_wire::smb2::access::{AccessMask, FileAttributes};
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::fscc::file::{
    Allocation, Basic, Disposition, DispositionEx, DispositionFlags, EndOfFile, Mode, Position, Rename,
};
use weft_wire::smb2::fscc::{FileClass, FsClass};
use weft_wire::smb2::query_info::{InfoType, SecurityInformation};
use weft_wire::smb2::set_info::{Request, Response};
use weft_wire::smb2::{Filetime, NtStatus};

use super::afp_streams::{self, AfpStream};
use super::attributes::{self, Metadata};
use super::opens::{self, ChangeTime, Open};
use super::path::{self, Path};
use super::recalls::{self, Interim};
use super::resolve::Resolved;
use super::{ea, judged, namespace, recording, resolve, security, status, symlink};
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::audit;
use crate::server::context::OpContext;

/// The unit of a file's allocation size.
const ALLOCATION_UNIT: u64 = 4096;
/// FILE_WRITE_THROUGH and FILE_SEQUENTIAL_ONLY; the synchronous modes do not exist here.
const SETTABLE_MODE: u32 = 0x06;
/// Alignment of the position of an unbuffered handle.
const BYTES_PER_SECTOR: u64 = 512;
/// A rename is given up after this many rounds in which others made room and then blocked it again.
const MAX_ROUNDS: usize = 8;
/// Size of a RENAME or LINK without its name.
const RENAME_FIXED_LEN: usize = 20;
/// The longest new name in bytes: 32,767 UTF-16 units, as many as the length of a UNICODE_STRING can count
/// ([MS-DTYP] 2.3.10).
const MAX_NEW_NAME_BYTES: usize = 0xFFFE;

pub(super) async fn set_info(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let open = cx.open(request.file)?;
    if request.buffer.is_empty() || request.buffer.len() > cx.max_payload() as usize {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    // Where the file is when it is asked for. A rename looks again.
    let audited = if is_told(&request) { open.located().await } else { None };
    let done = carry_out(cx, &open, &request).await;
    if let Some(audited) = audited {
        tell(cx, (audited, &open), &request, done.as_ref());
    }
    done?;
    let mut reply = Reply::new();
    Response.emit(&mut reply.message);
    Ok(reply)
}

/// What the audit log is told of a rename or a link.
#[derive(Default)]
struct NewName {
    /// The path as the server spells it; `None` without an audit log, and for other requests.
    path: Option<Vec<u8>>,
    /// Whether another object has lost this name.
    has_replaced: bool,
    /// The audit log was told already.
    is_told: bool,
}

async fn carry_out(cx: &OpContext, open: &Arc<Open>, request: &Request) -> Result<NewName, Failure> {
    match request.info_type {
        InfoType::FILE => {
            recalls::before_set_info(cx, open, FileClass(request.class), &request.buffer).await?;
            file_info(cx, open, FileClass(request.class), &request.buffer)
                .await
                .map_err(|failure| symlink::in_context(failure, cx.dialect()))
        }
        InfoType::FILESYSTEM => Err(fs_refusal(open, FsClass(request.class)).into()),
        // 3.3.5.21.4: the status of a store without quotas.
        InfoType::QUOTA => Err(NtStatus::NOT_SUPPORTED.into()),
        InfoType::SECURITY => {
            let what = SecurityInformation(request.additional_information);
            security::set(cx, open, what, &request.buffer).await?;
            Ok(NewName::default())
        }
        _ => Err(NtStatus::INVALID_PARAMETER.into()),
    }
}

/// Whether the audit log may be told of a request.
fn is_told(request: &Request) -> bool {
    match request.info_type {
        InfoType::FILE => matches!(
            FileClass(request.class),
            FileClass::RENAME
                | FileClass::RENAME_EX
                | FileClass::LINK
                | FileClass::DISPOSITION
                | FileClass::DISPOSITION_EX
                | FileClass::END_OF_FILE
                | FileClass::ALLOCATION
        ),
        InfoType::SECURITY => true,
        _ => false,
    }
}

/// Tells the audit log. A deletion is told when the name goes, and a change of the size is a write.
fn tell(
    cx: &OpContext,
    (audited, open): (&AuditedOpen, &Open),
    request: &Request,
    done: Result<&NewName, &Failure>,
) {
    let status = done.err().map_or(NtStatus::SUCCESS, |failure| failure.status);
    let Some(outcome) = audit::outcome(status).filter(|_| !done.is_ok_and(|name| name.is_told)) else {
        return;
    };
    let name = |kind| {
        let to = match done {
            Ok(NewName { path: Some(path), .. }) => path.clone(),
            _ => asked_name(cx, open, &request.buffer).unwrap_or_default(),
        };
        let replaced = done.is_ok_and(|name| name.has_replaced).then_some(Fact::Replaced);
        audited.tell_name(kind, outcome.clone(), to, replaced.into_iter().collect());
    };
    match (request.info_type, FileClass(request.class)) {
        (InfoType::FILE, FileClass::RENAME | FileClass::RENAME_EX) => name(Audited::Rename),
        (InfoType::FILE, FileClass::LINK) => name(Audited::Link),
        (InfoType::FILE, FileClass::DISPOSITION | FileClass::DISPOSITION_EX) if done.is_err() => {
            audited.tell(Audited::Delete, outcome, Vec::new());
        }
        (InfoType::FILE, FileClass::END_OF_FILE | FileClass::ALLOCATION) if done.is_err() => {
            audited.tell(Audited::Write, outcome, Vec::new());
        }
        (InfoType::SECURITY, _) => {
            let what = SecurityInformation(request.additional_information);
            let all = [
                (SecurityInformation::OWNER, "owner"),
                (SecurityInformation::GROUP, "group"),
                (SecurityInformation::DACL, "acl"),
            ];
            let changes = all.into_iter().filter(|(part, _)| what.contains(*part)).map(|(_, name)| name);
            audited.tell(Audited::Rights, outcome, vec![Fact::Changes(changes.collect())]);
        }
        _ => {}
    }
}

/// The path that a refused rename or link asks for. The new name of a stream is in the file that has it.
fn asked_name(cx: &OpContext, open: &Open, buffer: &[u8]) -> Option<Vec<u8>> {
    let name = parse_rename(cx, buffer).ok()?.name;
    let stream = path::new_stream(&name).and_then(Result::ok);
    match (stream, open.audited.get()) {
        (Some(stream), Some(audited)) => Some(stream_path(open, audited, &stream)),
        _ => Some(name.replace('\\', "/").trim_matches('/').as_bytes().to_vec()),
    }
}

/// The path of another stream of the file that is open, whose own path is known.
fn stream_path(open: &Open, audited: &AuditedOpen, stream: &[u8]) -> Vec<u8> {
    let mut path = audited.at();
    if let Some((_, own)) = open.vfs.stream_of(open.node)
        && path.ends_with(&own)
    {
        path.truncate(path.len().saturating_sub(own.len()).saturating_sub(1));
    }
    path.push(b':');
    path.extend_from_slice(stream);
    path
}

/// 3.3.5.21.2: no file system class can be set; the status depends on the class.
fn fs_refusal(open: &Open, class: FsClass) -> NtStatus {
    match class {
        FsClass::CONTROL | FsClass::OBJECT_ID if !open.access.contains(AccessMask::FILE_WRITE_DATA) => {
            NtStatus::ACCESS_DENIED
        }
        // [MS-FSA] 2.1.5.16.6, 2.1.5.16.8: quotas and object ids are not supported.
        FsClass::CONTROL | FsClass::OBJECT_ID => status::VOLUME_NOT_UPGRADED,
        FsClass::LABEL => NtStatus::NOT_SUPPORTED,
        _ => NtStatus::INVALID_INFO_CLASS,
    }
}

/// A buffer too short for its class is a length mismatch ([MS-FSA] 2.1.5.15).
fn fixed<T>(parsed: Result<T, weft_wire::smb2::Malformed>) -> Result<T, Failure> {
    parsed.map_err(|_| NtStatus::INFO_LENGTH_MISMATCH.into())
}

/// 3.3.5.21.1.
async fn file_info(
    cx: &OpContext,
    open: &Arc<Open>,
    class: FileClass,
    buffer: &[u8],
) -> Result<NewName, Failure> {
    match class {
        FileClass::RENAME | FileClass::RENAME_EX => {
            return rename(cx, open, parse_rename(cx, buffer)?).await;
        }
        FileClass::LINK => return link(cx, open, parse_rename(cx, buffer)?).await,
        FileClass::BASIC => set_basic(open, fixed(Basic::parse(buffer))?).await,
        FileClass::DISPOSITION => {
            let delete = fixed(Disposition::parse(buffer))?.delete_pending;
            let flags = if delete { DispositionFlags::DELETE } else { DispositionFlags::NONE };
            dispose_for_good(open, flags).await
        }
        FileClass::DISPOSITION_EX => dispose_for_good(open, fixed(DispositionEx::parse(buffer))?.flags).await,
        FileClass::END_OF_FILE => set_size(cx, open, fixed(EndOfFile::parse(buffer))?.end_of_file).await,
        FileClass::ALLOCATION => allocate(cx, open, fixed(Allocation::parse(buffer))?.allocation_size).await,
        FileClass::POSITION => set_position(open, fixed(Position::parse(buffer))?.current_byte_offset),
        // All modes are served in the same way ([MS-FSA] 2.1.5.15.8).
        FileClass::MODE => match fixed(Mode::parse(buffer))?.mode & !SETTABLE_MODE {
            0 => Ok(()),
            _ => Err(NtStatus::INVALID_PARAMETER.into()),
        },
        FileClass::FULL_EA => {
            open.require(AccessMask::FILE_WRITE_EA)?;
            ea::set(&open.vfs, open.node, &ea::parse(buffer)?).await?;
            open.show_change();
            Ok(())
        }
        FileClass::PIPE | FileClass::QUOTA | FileClass::SHORT_NAME | FileClass::VALID_DATA_LENGTH => {
            Err(NtStatus::NOT_SUPPORTED.into())
        }
        _ => Err(NtStatus::INVALID_INFO_CLASS.into()),
    }?;
    Ok(NewName::default())
}

/// [MS-FSA] 2.1.5.15.2.
async fn set_basic(open: &Open, basic: Basic) -> Result<(), Failure> {
    open.require(AccessMask::FILE_WRITE_ATTRIBUTES)?;
    let times = [basic.creation_time, basic.last_access_time, basic.last_write_time, basic.change_time];
    // A time before 1601, except -1 and -2.
    if times.iter().any(|t| (1 << 63..Filetime::THAW.0).contains(&t.0)) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    // A link to a directory is shown as a directory, but this attribute cannot be set.
    let may_be_directory = matches!(open.kind, Kind::Dir | Kind::Symlink);
    if (basic.attributes.contains(FileAttributes::DIRECTORY) && !may_be_directory)
        || (basic.attributes.contains(FileAttributes::TEMPORARY) && open.kind == Kind::Dir)
    {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let before = open.vfs.getattr(open.node).await?;
    let xattrs = open.vfs.xattr_summary(open.node).await?;
    let shown = match open.change_time() {
        ChangeTime::Moves => attributes::changed(&before, xattrs.dos),
        ChangeTime::Deferred(time) | ChangeTime::Frozen(time) => time,
    };
    let to = |time: Filetime| time.to_set().map(|time| SetTime::To(attributes::timestamp(time)));
    let set =
        SetAttr { atime: to(basic.last_access_time), mtime: to(basic.last_write_time), ..SetAttr::default() };
    let sets = basic.attributes != FileAttributes::NONE || set != SetAttr::default();
    let after = if set == SetAttr::default() { before } else { judged::set_times(open, set).await? };
    let time = |time: Filetime| time.to_set().map(attributes::timestamp);
    // -1 freezes the current time, any other value the given one.
    match (basic.change_time, time(basic.change_time)) {
        (_, Some(change)) => open.set_change_time(ChangeTime::Frozen(change)),
        (Filetime::FREEZE, _) => open.set_change_time(ChangeTime::Frozen(shown)),
        (Filetime::THAW, _) => open.set_change_time(ChangeTime::Moves),
        _ => open.show_change(),
    }
    // The change here updates it, unless the client has frozen it.
    let moves = (sets || time(basic.creation_time).is_some()) && open.change_time() == ChangeTime::Moves;
    let kept = match (xattrs.dos, time(basic.change_time)) {
        (Some(dos), None) if moves && dos.changed.is_some() => Some(Dos { changed: None, ..dos }),
        (dos, _) => dos,
    };
    let times = (time(basic.creation_time), time(basic.change_time));
    match attributes::to_keep(&after, kept, &open.name(), basic.attributes, times) {
        Some(dos) => attributes::keep(&open.vfs, &after, xattrs.dos, dos).await?,
        None => match kept {
            Some(dos) if xattrs.dos != kept => attributes::keep(&open.vfs, &after, xattrs.dos, dos).await?,
            _ => {}
        },
    }
    match basic.last_write_time {
        Filetime::ZERO => {}
        Filetime::THAW => open.keep_mtime(None),
        // -1 freezes the current time, any other value the given one.
        _ => open.keep_mtime(Some(after.mtime)),
    }
    Ok(())
}

/// [MS-FSA] 2.1.5.15.10.
fn set_position(open: &Open, to: u64) -> Result<(), Failure> {
    let unbuffered = open.options.contains(CreateOptions::NO_INTERMEDIATE_BUFFERING);
    if i64::try_from(to).is_err() || (unbuffered && !to.is_multiple_of(BYTES_PER_SECTOR)) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.position.store(to, Ordering::Relaxed);
    Ok(())
}

/// [`dispose`], recorded for a persistent handle.
async fn dispose_for_good(open: &Open, flags: DispositionFlags) -> Result<(), Failure> {
    let before = open.claim.delete_pending();
    dispose(open, flags).await?;
    open.save_record().await.map_err(|status| {
        // A change that would not survive a restart is neither acknowledged nor carried out.
        open.claim.set_delete_pending(before);
        Failure::from(status)
    })
}

/// [MS-FSA] 2.1.5.15.3, 2.1.5.15.4.
async fn dispose(open: &Open, flags: DispositionFlags) -> Result<(), Failure> {
    const KNOWN: DispositionFlags = DispositionFlags(0x1F);
    if flags.without(KNOWN) != DispositionFlags::NONE {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    open.require(AccessMask::DELETE)?;
    if !flags.contains(DispositionFlags::DELETE) {
        open.claim.set_delete_pending(false);
        return Ok(());
    }
    if flags.contains(DispositionFlags::ON_CLOSE) && !open.claim.delete_pending() {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let attr = open.vfs.getattr(open.node).await?;
    let dos = open.vfs.xattr_summary(open.node).await?.dos;
    let despite = flags.contains(DispositionFlags::IGNORE_READONLY_ATTRIBUTE)
        && open.access.contains(AccessMask::FILE_WRITE_ATTRIBUTES);
    if (attributes::is_readonly(&attr, dos) && !despite) || open.node == NodeId::ROOT {
        return Err(NtStatus::CANNOT_DELETE.into());
    }
    if open.kind == Kind::Dir {
        // Who may remove a directory need not be able to list it.
        let entries = open.vfs.as_server().readdir(open.node, 0, 1).await?.entries;
        if !entries.is_empty() {
            return Err(NtStatus::DIRECTORY_NOT_EMPTY.into());
        }
    }
    may_go(open).await?;
    open.claim.set_delete_pending(true);
    // [MS-FSA] 2.1.5.15.3: watches on the directory end.
    open.vfs.end_watches(open.node);
    open.claim.set_delete_at_once(flags.contains(DispositionFlags::POSIX_SEMANTICS) || open.is_posix());
    Ok(())
}

/// The name vanishes with the last handle, which is how clients understand success; so a file that the host will not
/// delete is refused now.
async fn may_go(open: &Open) -> Result<(), Failure> {
    if open.vfs.stream_of(open.node).is_some() {
        return Ok(());
    }
    match open.place().await {
        Ok(DirName { dir, name }) => Ok(open.vfs.may_unlink(dir, &name).await?),
        // It has no name any more.
        Err(Error::NotFound | Error::Stale) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// [MS-FSA] 2.1.5.15.5.
async fn set_size(cx: &OpContext, open: &Open, size: u64) -> Result<(), Failure> {
    if open.kind != Kind::File || i64::try_from(size).is_err() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_WRITE_DATA)?;
    if AfpStream::of(cx, open) == Some(AfpStream::Info) {
        return Ok(afp_streams::checked_size(size)?);
    }
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    // The handle may write, whatever has become of the permissions since.
    open.vfs.as_server().setattr(open.node, set).await.map_err(|e| match e {
        // [MS-FSA] 2.1.5.15.5 has no maximum size, only a failure to allocate space.
        Error::TooLarge => NtStatus::DISK_FULL.into(),
        e => Failure::from(e),
    })?;
    open.resized(0).await;
    Ok(())
}

/// [MS-FSA] 2.1.5.15.1: truncates below the file size; above it, only checks that there is enough space. Nothing is
/// allocated.
async fn allocate(cx: &OpContext, open: &Open, bytes: u64) -> Result<(), Failure> {
    if open.kind != Kind::File || i64::try_from(bytes).is_err() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_WRITE_DATA)?;
    let attr = open.vfs.getattr(open.node).await?;
    let units = bytes.div_ceil(ALLOCATION_UNIT).saturating_mul(ALLOCATION_UNIT);
    if units < attr.size {
        return set_size(cx, open, units).await;
    }
    let more = bytes.saturating_sub(attr.allocated);
    if more > 0 && more > open.vfs.statfs().await?.available {
        return Err(NtStatus::DISK_FULL.into());
    }
    Ok(())
}

fn parse_rename(cx: &OpContext, buffer: &[u8]) -> Result<Rename, Failure> {
    if buffer.len() < RENAME_FIXED_LEN {
        return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
    }
    // Before it is decoded, and whether the file may be renamed or not: such a name is not told to the audit log either.
    if Rename::name_bytes(buffer)? > MAX_NEW_NAME_BYTES {
        return Err(NtStatus::OBJECT_NAME_INVALID.into());
    }
    let mut rename = Rename::parse(buffer)?;
    rename.name = path::separated(cx, rename.name);
    // Over the network names are relative to the share.
    if rename.root_directory != 0 || rename.name.is_empty() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    Ok(rename)
}

/// The new path of a file: it ends in a name, and names no stream. For a directory a trailing backslash is stripped
/// ([MS-FSA] 2.1.5.1); jcifs writes one.
fn new_path(cx: &OpContext, name: &str, kind: Kind) -> Result<Path, NtStatus> {
    let path = Path { normalizes: cx.session().is_mac(), ..Path::parse(name)? };
    if path.names.is_empty() || path.file || (path.directory && kind != Kind::Dir) || path.stream.is_some() {
        Err(NtStatus::OBJECT_NAME_INVALID)
    } else {
        Ok(path)
    }
}

/// Refuses targets that may not be replaced ([MS-FSA] 2.1.5.15.12). A directory may be replaced if it `gives_way`.
fn check_target(
    open: &Open,
    Metadata { attr: target, dos }: Metadata<'_>,
    replace: bool,
    gives_way: bool,
) -> Result<(), NtStatus> {
    if !replace {
        return Err(NtStatus::OBJECT_NAME_COLLISION);
    }
    if open.vfs.opens().delete_pending(target.node) {
        return Err(NtStatus::DELETE_PENDING);
    }
    // This applies to POSIX too: Linux opens the replaced file under its old lease; if the rename is refused, it
    // removes the file first.
    let in_use = open.vfs.opens().is_open(target.node);
    if (target.kind == Kind::Dir && !gives_way) || attributes::is_readonly(target, dos) || in_use {
        return Err(NtStatus::ACCESS_DENIED);
    }
    // A client that had it open before a restart may still reclaim it.
    open.vfs.opens().may_replace().map_err(|_| NtStatus::SHARING_VIOLATION)?;
    Ok(())
}

/// Whether a directory replaces another, as rename(2) allows if the other one is empty.
async fn gives_way(open: &Open, target: &Attr, replace: bool) -> Result<bool, Failure> {
    if !replace || !open.is_posix() || (open.kind, target.kind) != (Kind::Dir, Kind::Dir) {
        return Ok(false);
    }
    let entries = open.vfs.as_server().readdir(target.node, 0, 1).await?.entries;
    if entries.is_empty() { Ok(true) } else { Err(NtStatus::DIRECTORY_NOT_EMPTY.into()) }
}

/// [MS-FSA] 2.1.5.15.12.1: renames a stream.
async fn rename_stream(open: &Open, name: &[u8], replace: bool) -> Result<NewName, Failure> {
    let base = open.vfs.base(open.node);
    if open.claim.delete_pending() {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    let mut has_replaced = false;
    if let Ok(Created { attr: target, .. }) = open.vfs.stream(base, name, false).await
        && target.node != open.node
    {
        let dos = open.vfs.xattr_summary(base).await?.dos;
        check_target(open, Metadata { attr: &target, dos }, replace, false)?;
        has_replaced = true;
    }
    let path = open.located().await.map(|audited| stream_path(open, audited, name));
    open.vfs.rename_stream(open.node, name, replace).await?;
    Ok(NewName { path, has_replaced, is_told: false })
}

/// Clears what blocks a rename, besides what [`recalls::before_set_info`] has broken: first the sharing mode of the
/// target directory, then opens below a moved directory, then opens of the file that it replaces. Handles that clients
/// keep only for caching are recalled; returns true if this waited, because everything may have changed.
async fn make_way(cx: &OpContext, open: &Open, to: &Resolved, replace: bool) -> Result<bool, Failure> {
    let (opens, by) = (open.vfs.opens(), Some(open.claim.key()));
    if open.is_posix() {
        // With POSIX semantics a directory moves despite opens in it, and accepts names despite an open for deletion.
        opens.may(to.dir, Rights::WRITE)?;
    } else {
        if to.dir != open.node
            && let Err(refused) = opens.may_rename_in(to.dir)
        {
            // The directory is opened for this (OPEN_BREAK_H of [MS-FSA] 2.1.5.1.2).
            if refused != Refused::Sharing
                || !recalls::wait(cx, Interim::Silent, opens.clear(to.dir, by, Access::Close)).await?.1
            {
                return Err(Failure::from(refused));
            }
            return Ok(true);
        }
        if open.kind == Kind::Dir && !is_moved_by_mac(cx, open).await && vacate(cx, open).await? {
            return Ok(true);
        }
    }
    match &to.found {
        Some((target, _)) if replace && target.kind != Kind::Dir && target.node != open.node => {
            let cleared = opens.clear(target.node, by, Access::Rename);
            Ok(recalls::wait(cx, Interim::Silent, cleared).await?.1)
        }
        _ => Ok(false),
    }
}

/// Whether a Mac moves a directory in which nobody else has anything open. It follows its own files by their handles, and its
/// users move folders with open documents.
async fn is_moved_by_mac(cx: &OpContext, open: &Open) -> bool {
    if !cx.session().is_mac() {
        return false;
    }
    let (opens, own) = (open.vfs.opens(), &cx.session().opens);
    open.vfs.open_below(open.node).await.iter().all(|node| opens.count(*node) == own.count_on(opens, *node))
}

/// [MS-FSA] 2.1.4.2: an open below a directory keeps the directory in place (our opens would not mind, but clients rely
/// on the paths of their open files), except handles that are kept only for caching: those are recalled one after the
/// other. None is recalled if another open remains anyway. Returns whether any was recalled.
async fn vacate(cx: &OpContext, open: &Open) -> Result<bool, Failure> {
    let opens = open.vfs.opens();
    let mut asked = HashSet::new();
    loop {
        let below = open.vfs.open_below(open.node).await;
        // A handle that was reopened after its close, or was not closed, is in use (2.1.5.15.12, note 186).
        if below.iter().any(|node| asked.contains(node) || !opens.only_cached(*node)) {
            return Err(NtStatus::ACCESS_DENIED.into());
        }
        let Some(&first) = below.first() else { return Ok(!asked.is_empty()) };
        asked.insert(first);
        recalls::wait(cx, Interim::Silent, opens.clear(first, Some(open.claim.key()), Access::Rename))
            .await?;
    }
}

/// [MS-FSA] 2.1.5.15.12.
async fn rename(cx: &OpContext, open: &Arc<Open>, wish: Rename) -> Result<NewName, Failure> {
    open.require(AccessMask::DELETE)?;
    let to_stream = path::new_stream(&wish.name).transpose()?;
    match (open.vfs.stream_of(open.node), to_stream) {
        (None, None) => {}
        (Some(_), Some(name)) => return rename_stream(open, &name, wish.replace_if_exists).await,
        // Windows' status: the file whose stream it would become is in use, by this very open.
        (Some(_), None) if wish.name.contains(':') => return Err(NtStatus::SHARING_VIOLATION.into()),
        // A file cannot become a stream, nor a stream a file.
        _ => return Err(NtStatus::INVALID_PARAMETER.into()),
    }
    let path = new_path(cx, &wish.name, open.kind)?;
    namespace::refuse_covered(cx, &wish.name)?;
    if open.node == NodeId::ROOT || open.claim.delete_pending() {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    let vfs = &open.vfs;
    let mut rounds = 0usize;
    let (from, to) = loop {
        let from = open.place().await?;
        let to = resolve::walk(vfs, &path, open.is_posix()).await?;
        if to.at(&to.name) == from.borrow() {
            return Ok(NewName::default());
        }
        if to.dir != from.dir {
            security::may_move_to(cx, vfs, to.dir, open.kind == Kind::Dir).await?;
        }
        if !make_way(cx, open, &to, wish.replace_if_exists).await? {
            break (from, to);
        }
        rounds = rounds.saturating_add(1);
        if rounds == MAX_ROUNDS {
            return Err(NtStatus::SHARING_VIOLATION.into());
        }
    };
    let (attr, dos) = (vfs.getattr(open.node).await?, vfs.xattr_summary(open.node).await?.dos);
    let steps = match &to.found {
        None => Steps::Move,
        // Only the case changes.
        Some((target, spelled)) if target.node == open.node && to.at(spelled) == from.borrow() => Steps::Move,
        Some((target, _)) if target.node == open.node => Steps::Remove,
        Some((target, spelled)) => {
            let gives_way = gives_way(open, target, wish.replace_if_exists).await?;
            let target = Metadata { attr: target, dos: vfs.xattr_summary(target.node).await?.dos };
            check_target(open, target, wish.replace_if_exists, gives_way)?;
            security::may_delete(cx, vfs, target, to.at(spelled)).await?;
            Steps::Replace { spelled: spelled.clone() }
        }
    };
    // A rename that has begun is completed, told and recorded although its connection is lost.
    rt::to_the_end(carry_over(open.clone(), from, DirName { dir: to.dir, name: to.name }, steps)).await?;
    if open.change_time() == ChangeTime::Moves {
        open.set_change_time(ChangeTime::Deferred(attributes::changed(&attr, dos)));
    }
    Ok(NewName { is_told: true, ..NewName::default() })
}

/// How a file comes to its new name.
enum Steps {
    /// Nothing else has the name.
    Move,
    /// The name is a link to the same file: only the old name has to be removed.
    Remove,
    /// Another file loses the name, which is spelled like this.
    Replace { spelled: Vec<u8> },
}

async fn carry_over(open: Arc<Open>, from: DirName, to: DirName, steps: Steps) -> Result<(), Failure> {
    let vfs = &open.vfs;
    // Other clients may have moved the file while this one waited.
    let audited = open.located().await;
    let folder = told_folder(&vfs.as_server(), to.dir, audited).await;
    let facts = if matches!(steps, Steps::Replace { .. }) { vec![Fact::Replaced] } else { Vec::new() };
    let (place, done) = match steps {
        Steps::Move => match vfs.rename(from.borrow(), to.borrow(), false).await {
            // Samba's status: the target is in a directory that is in use, by this very open. For POSIX it is invalid.
            Err(Error::Invalid) if open.kind == Kind::Dir && !open.is_posix() => {
                return Err(NtStatus::SHARING_VIOLATION.into());
            }
            other => (to, Ok(other?)),
        },
        Steps::Remove => (to, Ok(vfs.remove(from.dir, &from.name).await?)),
        Steps::Replace { spelled } => {
            let at = DirName { dir: to.dir, name: spelled };
            vfs.rename(from.borrow(), at.borrow(), true).await?;
            respell(vfs, at, to.name).await
        }
    };
    if let Some(audited) = audited {
        let path = [&folder[..], &place.name].concat();
        audited.tell_name(Audited::Rename, Outcome::Done, path, facts);
    }
    open.set_place(place);
    recording::moved(&open).await;
    Ok(done?)
}

/// Gives a file that has replaced another one its own spelling of the name. Returns where it is: if that fails, it has the name all
/// the same, as the other one spelled it.
async fn respell(vfs: &Vfs, at: DirName, name: Vec<u8>) -> (DirName, Result<(), Error>) {
    if at.name == name {
        return (at, Ok(()));
    }
    let to = DirName { dir: at.dir, name };
    match vfs.rename(at.borrow(), to.borrow(), false).await {
        Ok(()) => (to, Ok(())),
        Err(e) => (at, Err(e)),
    }
}

/// The path of a directory with what separates it from a name, if the audit log is going to be told.
async fn told_folder(server: &Vfs, dir: NodeId, audited: Option<&AuditedOpen>) -> Vec<u8> {
    match audited {
        Some(_) => opens::path_in(server, DirName { dir, name: b"" }).await.unwrap_or_default(),
        None => Vec::new(),
    }
}

/// [MS-FSA] 2.1.5.15.7.
async fn link(cx: &OpContext, open: &Arc<Open>, wish: Rename) -> Result<NewName, Failure> {
    // smbclient's `hardlink` starts the name with a backslash, and Samba accepts that.
    let path = new_path(cx, wish.name.strip_prefix('\\').unwrap_or(&wish.name), open.kind)?;
    let vfs = &open.vfs;
    if open.kind == Kind::Dir {
        return Err(NtStatus::FILE_IS_A_DIRECTORY.into());
    }
    if open.vfs.stream_of(open.node).is_some() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if open.claim.delete_pending() {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    let to = resolve::walk(vfs, &path, open.is_posix()).await?;
    security::may_move_to(cx, vfs, to.dir, false).await?;
    let is_own = |found: &&(Attr, Vec<u8>)| found.0.node == open.node && wish.replace_if_exists;
    if let Some((target, spelled)) = to.found.as_ref().filter(|found| !is_own(found)) {
        let target = Metadata { attr: target, dos: vfs.xattr_summary(target.node).await?.dos };
        check_target(open, target, wish.replace_if_exists, false)?;
        let old = to.at(spelled);
        security::may_delete(cx, vfs, target, old).await?;
        // A lost connection drops the request, but must not leave the file under its temporary name.
        rt::to_the_end(link_over(open.clone(), old.to_owned(), to.name)).await?;
        return Ok(NewName { is_told: true, ..NewName::default() });
    }
    let path = match open.audited.get() {
        Some(_) => opens::path_in(&vfs.as_server(), to.at(&to.name)).await.ok(),
        None => None,
    };
    if to.found.is_none() {
        vfs.link(open.node, to.dir, &to.name).await?;
    }
    Ok(NewName { path, ..NewName::default() })
}

/// Links an open file to the name of another one, which loses it, and spells it `name`. The file gets a temporary name first: if
/// it cannot have one more (it has lost its last one, it has too many, the disk is full), the other one keeps its own.
async fn link_over(open: Arc<Open>, old: DirName, name: Vec<u8>) -> Result<(), Failure> {
    let (vfs, server) = (&open.vfs, open.vfs.as_server());
    let audited = open.audited.get().map(|audited| &**audited);
    let folder = told_folder(&server, old.dir, audited).await;
    let number = u64::from_ne_bytes(random::bytes()?);
    let first = DirName { dir: old.dir, name: format!(".weft-link-{number:016x}").into_bytes() };
    vfs.link(open.node, first.dir, &first.name).await?;
    let replaced = vfs.rename(first.borrow(), old.borrow(), true).await;
    // After a failure, and if the name was given to this file meanwhile: rename(2) does nothing then.
    if let Err(e) = unlink_own(&server, open.node, &first).await {
        tracing::warn!("{} stays, which a link was to replace a file by: {e}", first.name.escape_ascii());
    }
    replaced?;
    let (place, done) = respell(vfs, old, name).await;
    // Here, because the other file has lost its name even if the client is gone by now, or the name keeps its spelling.
    if let Some(audited) = audited {
        let path = [&folder[..], &place.name].concat();
        audited.tell_name(Audited::Link, Outcome::Done, path, vec![Fact::Replaced]);
    }
    Ok(done?)
}

/// Removes a name if it is this file's. With the server's rights: in a directory with the sticky bit, who may link a file to a name
/// need not be able to remove it.
async fn unlink_own(server: &Vfs, node: NodeId, at: &DirName) -> Result<(), Error> {
    match server.lookup(at.dir, &at.name, false).await {
        Ok(found) if found.node == node => server.remove(at.dir, &at.name).await,
        Ok(_) | Err(Error::NotFound) => Ok(()),
        Err(e) => Err(e),
    }
}
