//! CREATE: opens or creates a file or directory.
//!
//! Spec: [MS-SMB2] 3.3.5.9; [MS-FSA] 2.1.5.1 (open of a file), 2.1.5.1.1 (creation), 2.1.5.1.2 (existing file). The
//! open goes into the session's table. Caching rights are in [`super::granting`], durability in [`super::durability`],
//! access rights in [`super::security`].

mod again;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{FutureExt, LocalBoxFuture, poll_immediate};
use weft_machine::{recorder, rt};
use weft_store::opens::{Open as Claim, Opening, Reach, Rights};
use weft_store::rights::Right;
use weft_store::vfs::{
    Attr, Created, DirName, Dos, Error, Exists, Kind, Make, NodeId, OpenFile, SetAttr, Share, Vfs,
};
use weft_wire::smb2::access::{AccessMask, FileAttributes, ShareAccess};
use weft_wire::smb2::create::{CreateAction, CreateDisposition, CreateOptions, Request, Response};
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::fscc::ea::FullEa;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::posix;
use weft_wire::smb2::{Dialect, FileId, Filetime, NtStatus};

use super::attributes::{self, Metadata};
use super::caching::Caching;
use super::channel_sequence::ChannelSequence;
use super::granting::{self, Wanted};
use super::instances::{self, Instance};
use super::opens::{self, Open};
use super::owned_open::OwnedOpen;
use super::path::Path;
use super::recalls::{self, Interim};
use super::replay::{Begin, Begun};
use super::resolve::{self, Resolved};
use super::rights::{DATA, WRITE_DATA, reach_of, rights_of_access, rights_of_share};
use super::security::{self, Asked};
use super::{
    afp_streams, audit, durability, ea, mac, namespace, path, previous, recording, status, symlink, tunnel,
    volume,
};
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;
use crate::server::held::OPEN_BYTES;
use crate::server::limits;

/// [MS-FSA] 2.1.5.1, phase 1: no such rights exist.
const INVALID_ACCESS: AccessMask = AccessMask(0x0CE0_FE00);
/// Not defined by [MS-SMB2] 2.2.13; like Windows and Samba, options that are defined elsewhere are ignored.
const UNKNOWN_OPTIONS: CreateOptions = CreateOptions(0xFF00_0000);
/// Known but unsupported options; the first has no name in 2.2.13 (FILE_CREATE_TREE_CONNECTION).
const UNSUPPORTED_OPTIONS: CreateOptions =
    CreateOptions(0x80 | CreateOptions::OPEN_BY_FILE_ID.0 | CreateOptions::RESERVE_OPFILTER.0);
/// A volume label and a device, which no file is. Other unknown attributes are ignored ([MS-FSCC] 2.6).
const NO_ATTRIBUTES: FileAttributes = FileAttributes(0x48);
/// After this many rounds a name that keeps appearing and vanishing between look-up and creation is given up.
const MAX_ROUNDS: usize = 8;

pub(super) async fn create(cx: &OpContext) -> Answer {
    let mut request = Request::parse(cx.message())?;
    request.name = namespace::relative(cx, path::separated(cx, request.name))?;
    if cx.tree().share.as_ref().is_some_and(|share| share.snapshots.is_some()) {
        previous::take_token(&mut request);
    }
    let Some(share) = &cx.tree().share else {
        // IPC$ has pipes but no files.
        return Err(NtStatus::OBJECT_NAME_NOT_FOUND.into());
    };
    match durability::Wanted::of(&request.contexts, cx.dialect())? {
        durability::Wanted::Reconnect { file } => again::reconnect(cx, share, &request, file, None).await,
        durability::Wanted::ReconnectV2 { file, create_guid, persistent } => {
            // 3.3.5.9.12: a handle that survived a restart is also recognized by its CREATE.
            let made = cx.server().handles.preserved.made_by(create_guid).filter(|_| persistent);
            let file = made.map_or(file, |open| FileId { persistent: open.persistent, ..file });
            again::reconnect(cx, share, &request, file, Some((create_guid, persistent))).await
        }
        durable @ durability::Wanted::V2 { create_guid, persistent, .. } => {
            let replay = cx.header().flags.contains(Flags::REPLAY_OPERATION);
            // 3.3.5.9: it was carried out, but the client lost the connection or the server before the answer.
            let continuous = persistent && recording::available(cx, share);
            let made = cx.server().handles.preserved.made_by(create_guid);
            if let Some(made) = made.filter(|_| continuous) {
                if !replay {
                    return Err(NtStatus::DUPLICATE_OBJECTID.into());
                }
                return again::resume(cx, share, &request, &made, create_guid).await;
            }
            match cx.server().handles.creates.begin((cx.session().client_guid, create_guid), replay)? {
                // The client has the handle, and has used it.
                Begin::First(_)
                    if replay && continuous && recording::is_connected(cx.server(), create_guid) =>
                {
                    Err(NtStatus::FILE_NOT_AVAILABLE.into())
                }
                Begin::First(begun) => outlasting(cx, request, durable, begun).await,
                Begin::Again(open) => again::replay(cx, share, &request, &open, persistent).await,
            }
        }
        durable => first(cx, share, &request, &durable, None).await.map(|(_, reply)| reply),
    }
}

/// A repeatable CREATE continues if its connection is lost while it waits: the client repeats it on another channel of
/// the session, and gets this open.
async fn outlasting(cx: &OpContext, request: Request, durable: durability::Wanted, begun: Begun) -> Answer {
    let own = cx.detach();
    let result = Rc::new(RefCell::new(None));
    let done = result.clone();
    let work: LocalBoxFuture<'static, ()> = Box::pin(async move {
        let answer = match &own.tree().share {
            Some(share) => first(&own, share, &request, &durable, Some(&begun)).await,
            None => Err(NtStatus::FILE_CLOSED.into()),
        };
        let answer = answer.map(|(open, reply)| {
            begun.done(&open);
            reply
        });
        done.replace(Some((answer, own)));
    });
    let mut work = work.shared();
    if poll_immediate(&mut work).await.is_none() {
        // If nobody waits any more, the open is in the session's table or in the preserved ones, for the repeated
        // request.
        rt::spawn(recorder::carried(work.clone())).detach();
        work.await;
    }
    let (answer, own) = result.take().ok_or(NtStatus::CANCELLED)?;
    cx.adopt(&own);
    answer
}

/// Executes a CREATE that has no open yet.
async fn first(
    cx: &OpContext,
    share: &Share,
    request: &Request,
    durable: &durability::Wanted,
    begun: Option<&Begun>,
) -> Result<(Arc<Open>, Reply), Failure> {
    // Before anything is done.
    let held = cx.session().hold(OPEN_BYTES)?;
    let descriptors = cx.session().hold_descriptors(&cx.server().descriptors)?;
    let snapshot = previous::of(share, request).await?;
    let share = snapshot.as_ref().unwrap_or(share);
    let mut wish = Wish::of(request, cx.dialect(), cx.connection().negotiated().posix)?;
    wish.path.normalizes = cx.session().is_mac();
    if recording::available(cx, share) {
        // 3.3.5.9: acknowledged data must be on disk.
        wish.options |= CreateOptions::WRITE_THROUGH;
    }
    let parent = granting::parent(cx, share.vfs.opens(), &wish.caching);
    let vfs = share.vfs.in_name_of(parent);
    let (mut opened, action) =
        open(cx, &vfs, &wish).await.map_err(|failure| symlink::in_context(failure, cx.dialect()))?;
    if action != CreateAction::OPENED && Box::pin(afp_streams::fill_info(cx, &vfs, opened.attr.node)).await? {
        opened.attr = vfs.getattr(opened.attr.node).await?;
    }
    let summary = attributes::summary(&opened.attr, opened.dos, &opened.place.name);
    let (attr, dos) = (opened.attr, opened.dos);
    let open = Open::new(opens::New {
        id: cx.server().handles.number(),
        sequence: ChannelSequence::starting(cx.header()),
        vfs,
        node: attr.node,
        kind: attr.kind,
        place: opened.place,
        access: opened.access,
        options: wish.options,
        file: opened.file,
        claim: opened.claim,
        caching: opened.caching,
        action,
        hold: opened.hold,
        held,
        descriptors,
    });
    let _ = open.share.set(share.name.clone());
    if let Some(short) = opened.by_short {
        let _ = open.by_short.set((cx.server().handles.tunnel.clone(), short));
    }
    if let Some(base) = opened.base {
        // The open is new, so its base is still unset.
        let _ = open.base.set(base);
    }
    if wish.posix {
        open.set_posix();
    }
    // Before any await: if the connection is lost, the open is closed, and delete-on-close takes effect.
    let owned = OwnedOpen::new(Arc::new(open));
    if cx.config().offers.audit.is_on() {
        Box::pin(audit::opened(cx, &owned)).await;
    }
    let about = OpenedFile {
        vfs: &share.vfs,
        share: &share.name,
        metadata: Metadata { attr: &attr, dos },
        place: asks_maximal(&request.contexts).then(|| owned.last_place()),
        change_time: summary.change_time,
    };
    let mut contexts = answer_contexts(cx, &request.contexts, about).await?;
    contexts.extend(mac::answers(cx, share, &request.contexts));
    // Before it is in a table, from which it could be closed: whoever closes it must find everything that is to be
    // removed.
    if let Some(begun) = begun {
        begun.opened(&owned, &cx.session().user);
    }
    let desired = request.desired_access;
    let written = recording::begin(cx, share, &owned, wish.share, desired, durable, &wish.caching);
    if let Some(persistent) = written.await {
        durability::make_persistent(cx, &owned, durable, persistent);
    }
    let open = owned.clone();
    let file = enter(cx, owned, Err).await?;
    if let Some(instance) = wish.instance {
        cx.server().handles.instances.enter(cx, instance, &open);
    }
    // Last: from here on there may be breaks, and nothing may wait between this and the answer.
    let oplock = granting::acquire(cx, &open, &wish.caching, file, &mut contexts);
    durability::make(cx, &open, durable, &mut contexts);
    let mut reply = Reply::with_capacity(256);
    Response { oplock, flags: 0, action, summary, file, contexts }.emit(&mut reply.message);
    Ok((open, reply))
}

/// Adds an open to the session's table. If the table is full, the open is closed, unless `refused` takes it.
async fn enter(
    cx: &OpContext,
    open: OwnedOpen,
    refused: impl FnOnce(OwnedOpen) -> Result<(), OwnedOpen>,
) -> Result<FileId, Failure> {
    let file = match cx.session().opens.insert(open, cx.tree().id, cx.config().limits.opens) {
        Ok(file) => file,
        Err(open) => {
            if let Err(open) = refused(open) {
                open.close().await;
            }
            limits::reached("opens per session");
            return Err(NtStatus::TOO_MANY_OPENED_FILES.into());
        }
    };
    // The tree or the session may have ended on another core; then nobody would close the new entry.
    if !cx.session().tree(cx.tree().id).is_some_and(|tree| Arc::ptr_eq(&tree, cx.tree())) {
        if let Some(open) = cx.session().opens.remove(file, cx.tree().id) {
            // A session that ends preserves durable opens for a client that reconnects.
            let kept = if cx.session().is_ended() { open.keep() } else { Err(open) };
            if let Err(open) = kept {
                open.close().await;
            }
        }
        return Err(NtStatus::FILE_CLOSED.into());
    }
    cx.set_file_id(file);
    Ok(file)
}

/// A validated request without contradictions.
struct Wish {
    path: Path,
    access: AccessMask,
    share: Rights,
    disposition: CreateDisposition,
    options: CreateOptions,
    attributes: FileAttributes,
    /// Bytes to allocate (`AlSi`).
    allocation: u64,
    caching: Wanted,
    /// The descriptor of a new file (`SecD`).
    descriptor: Option<Bytes>,
    /// The application that the open belongs to.
    instance: Option<Instance>,
    /// Extended attributes of a file that is created or overwritten (`ExtA`).
    eas: Vec<FullEa>,
    /// Opened with POSIX semantics.
    posix: bool,
    /// Permissions of a new file.
    mode: Option<u32>,
}

impl Wish {
    fn of(request: &Request, dialect: Dialect, posix: bool) -> Result<Wish, NtStatus> {
        let (options, disposition) = (request.options, request.disposition);
        if request.impersonation > 3 {
            return Err(NtStatus::BAD_IMPERSONATION_LEVEL);
        }
        if matches!(disposition, CreateDisposition::Unknown(_)) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if request.share_access.without(ShareAccess::ALL) != ShareAccess::NONE {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if options.intersects(UNKNOWN_OPTIONS) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if options.intersects(UNSUPPORTED_OPTIONS) {
            return Err(NtStatus::NOT_SUPPORTED);
        }
        let (directory, file) = (CreateOptions::DIRECTORY_FILE, CreateOptions::NON_DIRECTORY_FILE);
        if options.contains(directory | file) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let replaces = !matches!(
            disposition,
            CreateDisposition::Create | CreateDisposition::Open | CreateDisposition::OpenIf
        );
        if options.contains(directory) && replaces {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let access = requested_access(request)?;
        if request.attributes.intersects(NO_ATTRIBUTES) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let (mut allocation, mut descriptor, mut eas) = (0, None, Vec::new());
        let (mut as_posix, mut mode) = (false, None);
        for context in &request.contexts {
            match context {
                RequestContext::ExtendedAttributes(list) => eas = ea::parse(list)?,
                RequestContext::AllocationSize(bytes) => allocation = *bytes,
                RequestContext::Posix { mode: asked } if posix => {
                    (as_posix, mode) = (true, posix::wished(*asked));
                }
                RequestContext::SecurityDescriptor(bytes) => descriptor = Some(bytes.clone()),
                _ => {}
            }
        }
        let path = Path::parse(&request.name)?;
        if options.contains(file) && path.directory && !path.index {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        if path.file && options.contains(directory) {
            return Err(NtStatus::NOT_A_DIRECTORY);
        }
        Ok(Wish {
            path,
            access,
            share: rights_of_share(request.share_access),
            disposition,
            options,
            attributes: request.attributes,
            allocation,
            caching: Wanted::of(request, dialect),
            descriptor,
            instance: Instance::of(&request.contexts, dialect),
            eas,
            posix: as_posix,
            mode,
        })
    }

    fn wants_directory(&self) -> bool {
        self.options.contains(CreateOptions::DIRECTORY_FILE) || self.path.index
    }

    /// Whether an existing file is emptied: SUPERSEDE, OVERWRITE and OVERWRITE_IF.
    fn truncates(&self) -> bool {
        matches!(
            self.disposition,
            CreateDisposition::Supersede | CreateDisposition::Overwrite | CreateDisposition::OverwriteIf
        )
    }

    /// [MS-FSA] 2.1.5.1.2: the rights that emptying or replacing a file requires in addition.
    fn implied(&self) -> AccessMask {
        match self.disposition {
            // The content is replaced too, so the right to delete, which the directory may grant, is not enough.
            CreateDisposition::Supersede => AccessMask::DELETE | AccessMask::FILE_WRITE_DATA,
            CreateDisposition::Overwrite | CreateDisposition::OverwriteIf => {
                AccessMask::FILE_WRITE_DATA | AccessMask::FILE_WRITE_EA | AccessMask::FILE_WRITE_ATTRIBUTES
            }
            _ => AccessMask::NONE,
        }
    }

    /// The initial attributes of a new file. `guarded`: a descriptor follows and brings the permissions of group and
    /// others. A local user who opened the file before that would keep it open.
    fn birth(&self, guarded: bool) -> SetAttr {
        let directory = self.wants_directory();
        let mode = self.mode.map(|mode| attributes::settable_mode(mode, directory));
        let mode = match guarded {
            true => Some(mode.unwrap_or(if directory { 0o700 } else { 0o600 }) & !0o077),
            false => mode,
        };
        SetAttr { mode, ..SetAttr::default() }
    }

    fn creates(&self) -> bool {
        !matches!(self.disposition, CreateDisposition::Open | CreateDisposition::Overwrite)
    }
}

/// DesiredAccess with its generic bits expanded, except MAXIMUM_ALLOWED.
fn requested_access(request: &Request) -> Result<AccessMask, NtStatus> {
    let mut access = request.desired_access.expand_generic();
    // Auditing needs a privilege that nobody has here.
    if access.contains(AccessMask::ACCESS_SYSTEM_SECURITY) {
        return Err(NtStatus::PRIVILEGE_NOT_HELD);
    }
    if access == AccessMask::NONE || access.intersects(INVALID_ACCESS) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    if request.options.contains(CreateOptions::NO_INTERMEDIATE_BUFFERING) {
        access = access.without(AccessMask::FILE_APPEND_DATA);
    }
    let may_delete = access.intersects(AccessMask::DELETE | AccessMask::MAXIMUM_ALLOWED);
    if request.options.contains(CreateOptions::DELETE_ON_CLOSE) && !may_delete {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(access)
}

/// An open that is not in the table yet.
struct Opened {
    attr: Attr,
    dos: Option<Dos>,
    place: DirName,
    access: AccessMask,
    file: Option<OpenFile>,
    claim: Claim,
    /// For a stream: the claim on its file.
    base: Option<Claim>,
    /// The 8.3 name by which it was opened.
    by_short: Option<String>,
    caching: Caching,
    hold: weft_store::vfs::Hold,
}

async fn open(cx: &OpContext, vfs: &Vfs, wish: &Wish) -> Result<(Opened, CreateAction), Failure> {
    for _ in 0..MAX_ROUNDS {
        let resolved = resolve::walk(vfs, &wish.path, wish.posix).await?;
        let outcome = match &resolved.found {
            _ if wish.path.stream.is_some() => stream(cx, vfs, wish, &resolved).await,
            Some((attr, name)) => {
                let attempt = existing(cx, vfs, wish, attr, resolved.at(name).to_owned()).await;
                attempt.map(|done| {
                    let by_short = tunnel::asked_short(&resolved.name, name);
                    done.map(|(opened, action)| (Opened { by_short, ..opened }, action))
                })
            }
            None => new(cx, vfs, wish, &resolved).await,
        };
        match outcome {
            // Another client created or removed the name first.
            Ok(None) => tracing::debug!("{}: a name changed under CREATE", cx.channel().peer()),
            Ok(Some(done)) => return Ok(done),
            Err(failure) => return Err(failure),
        }
    }
    Err(NtStatus::SHARING_VIOLATION.into())
}

type Attempt = Result<Option<(Opened, CreateAction)>, Failure>;

/// The name does not exist.
async fn new(cx: &OpContext, vfs: &Vfs, wish: &Wish, resolved: &Resolved) -> Attempt {
    if !wish.creates() {
        return Err(NtStatus::OBJECT_NAME_NOT_FOUND.into());
    }
    // [MS-FSA] 2.1.5.1.1.
    if wish.wants_directory() && wish.attributes.contains(FileAttributes::TEMPORARY) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    // "name\" means a directory, and only DIRECTORY_FILE creates one.
    if wish.path.directory && !wish.wants_directory() {
        return Err(NtStatus::OBJECT_NAME_INVALID.into());
    }
    let readonly = wish.attributes.contains(FileAttributes::READONLY) && !wish.wants_directory();
    if readonly && wish.options.contains(CreateOptions::DELETE_ON_CLOSE) {
        return Err(NtStatus::CANNOT_DELETE.into());
    }
    if let Wanted::Lease(lease) = &wish.caching {
        cx.server().handles.leases.check_new(granting::claimant(cx), lease.key)?;
    }
    let descriptor =
        security::birth(cx, vfs, resolved.dir, wish.descriptor.as_deref(), wish.wants_directory()).await?;
    reserve(vfs, wish.allocation).await?;
    let make = if wish.wants_directory() { Make::Dir } else { Make::File };
    let here = (vfs.opens(), resolved.dir);
    let tunnelled = cx.server().handles.tunnel.take(here, &resolved.name, rt::now());
    let name = tunnelled.as_deref().unwrap_or(&resolved.name);
    let made = vfs.create(resolved.dir, name, make, Exists::Fail, wish.birth(descriptor.is_some())).await;
    let Created { attr, .. } = match made {
        Err(Error::Exists) => return Ok(None),
        // The directory was removed since it was found.
        Err(Error::NotFound | Error::Stale) => return Err(NtStatus::OBJECT_PATH_NOT_FOUND.into()),
        other => other?,
    };
    let place = resolved.at(name).to_owned();
    // The creator may write even a read-only file, so READONLY is applied last.
    let access = match wish.access.contains(AccessMask::MAXIMUM_ALLOWED) {
        true => AccessMask::FILE_ALL,
        false => wish.access,
    };
    let kept = match &descriptor {
        Some(descriptor) => weft_store::access::keep(vfs, attr.node, descriptor).await.map_err(Failure::from),
        None => Ok(()),
    };
    let taken = match kept {
        Ok(()) => take(cx, vfs, wish, Metadata { attr: &attr, dos: None }, place, access, true).await,
        Err(failure) => Err(failure),
    };
    let mut opened = match taken {
        Ok(Some(opened)) => opened,
        Ok(None) => return Ok(None),
        Err(failure) => {
            // A failed CREATE leaves nothing behind; whether the clean-up succeeds changes nothing for the client.
            let _ = match attr.kind {
                Kind::Dir => vfs.rmdir(resolved.dir, name).await,
                _ => vfs.remove(resolved.dir, name).await,
            };
            return Err(failure);
        }
    };
    opened.keep_attributes(vfs, wish).await?;
    opened.set_aside(vfs, wish.allocation).await?;
    Ok(Some((opened, CreateAction::CREATED)))
}

/// The name is a stream's ([MS-FSA] 2.1.5.1.1): the file is created if it does not exist.
async fn stream(cx: &OpContext, vfs: &Vfs, wish: &Wish, resolved: &Resolved) -> Attempt {
    let Some(name) = &wish.path.stream else { return Ok(None) };
    if wish.wants_directory() {
        return Err(NtStatus::NOT_A_DIRECTORY.into());
    }
    let (base, place) = match &resolved.found {
        Some((attr, _)) if attr.kind == Kind::Symlink => {
            return Err(symlink::stopped(vfs, attr.node, &[], wish.posix).await);
        }
        Some((attr, spelled)) => (attr.clone(), resolved.at(spelled).to_owned()),
        None if !wish.creates() => return Err(NtStatus::OBJECT_NAME_NOT_FOUND.into()),
        None => {
            let descriptor =
                security::birth(cx, vfs, resolved.dir, wish.descriptor.as_deref(), false).await?;
            let birth = wish.birth(descriptor.is_some());
            let made = vfs.create(resolved.dir, &resolved.name, Make::File, Exists::Fail, birth).await;
            let attr = match made {
                Err(Error::Exists) => return Ok(None),
                Err(Error::NotFound | Error::Stale) => return Err(NtStatus::OBJECT_PATH_NOT_FOUND.into()),
                other => other?.attr,
            };
            if let Some(descriptor) = &descriptor {
                weft_store::access::keep(vfs, attr.node, descriptor).await?;
            }
            (attr, resolved.at(&resolved.name).to_owned())
        }
    };
    if vfs.opens().delete_pending(base.node) {
        return Err(NtStatus::DELETE_PENDING.into());
    }
    let mut void = false;
    match vfs.stream(base.node, name, false).await {
        Ok(Created { attr, .. }) if afp_streams::is_missing(cx, vfs, base.node, name).await? => {
            if !wish.creates() {
                return Err(NtStatus::OBJECT_NAME_NOT_FOUND.into());
            }
            if vfs.opens().is_open(attr.node) {
                return existing(cx, vfs, wish, &attr, place).await;
            }
            void = true;
        }
        Ok(Created { attr, .. }) => return existing(cx, vfs, wish, &attr, place).await,
        Err(Error::NotFound) if wish.creates() => {}
        Err(Error::NotFound) => return Err(NtStatus::OBJECT_NAME_NOT_FOUND.into()),
        Err(e) => return Err(e.into()),
    }
    // Creating a stream means writing to the file.
    let asked = Asked { desired: wish.access, implied: AccessMask::FILE_WRITE_DATA };
    let dos = vfs.xattr_summary(base.node).await?.dos;
    let metadata = Metadata { attr: &base, dos };
    let access = security::granted(cx, vfs, asked, metadata, place.borrow()).await?;
    if void {
        vfs.remove_stream(base.node, name).await?;
    }
    let Created { attr, is_new } = vfs.stream(base.node, name, true).await?;
    if !is_new {
        return Ok(None);
    }
    let opened = match take(cx, vfs, wish, Metadata { attr: &attr, dos }, place, access, true).await {
        Ok(Some(opened)) => opened,
        Ok(None) => return Ok(None),
        Err(failure) => {
            // A failed CREATE leaves no stream behind.
            let _ = vfs.remove_stream(base.node, name).await;
            return Err(failure);
        }
    };
    Ok(Some((opened, CreateAction::CREATED)))
}

/// The name exists.
async fn existing(cx: &OpContext, vfs: &Vfs, wish: &Wish, attr: &Attr, place: DirName) -> Attempt {
    if let Some(instance) = wish.instance {
        instances::take_over(cx, instance, vfs, attr, place.borrow()).await?;
    }
    // 3.3.5.9: the file is reserved for a client that may come back.
    let reserved = || cx.server().handles.preserved.reserves(attr.node, vfs.opens());
    if cx.config().offers.journal.is_some() && reserved() {
        return Err(NtStatus::FILE_NOT_AVAILABLE.into());
    }
    if vfs.opens().delete_pending(attr.node) {
        return Err(NtStatus::DELETE_PENDING.into());
    }
    check_kind(vfs, wish, attr).await?;
    let delete = wish.options.contains(CreateOptions::DELETE_ON_CLOSE);
    // A share's root cannot be deleted.
    let dos = vfs.xattr_summary(attr.node).await?.dos;
    let kept = attributes::is_readonly(attr, dos) || vfs.is_read_only();
    if delete && cx.tree().right < Right::Write {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if delete && (kept || attr.node == NodeId::ROOT) {
        return Err(NtStatus::CANNOT_DELETE.into());
    }
    let metadata = Metadata { attr, dos };
    let asked = Asked { desired: wish.access, implied: wish.implied() };
    let access = security::granted(cx, vfs, asked, metadata, place.borrow()).await?;
    if delete && vfs.stream_of(attr.node).is_none() {
        vfs.may_unlink(place.dir, &place.name).await?;
    }
    if !wish.truncates() {
        let opened = take(cx, vfs, wish, metadata, place, access, false).await?;
        return Ok(opened.map(|opened| (opened, CreateAction::OPENED)));
    }
    // [MS-FSA] 2.1.5.1.2.1: overwriting a hidden or system file requires these attributes in the request. HIDDEN is not
    // required if only the file's name hides it.
    let shy = match attributes::is_hidden_by_name(&place.name) {
        true => FileAttributes::SYSTEM,
        false => FileAttributes::HIDDEN | FileAttributes::SYSTEM,
    };
    let kept = attributes::attributes(attr, dos, &place.name) & shy;
    if attributes::refuses_writes(attr, dos) || kept.without(wish.attributes) != FileAttributes::NONE {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    reserve(vfs, wish.allocation).await?;
    let taken = take(cx, vfs, wish, metadata, place, access, false).await?;
    let Some(mut opened) = taken else { return Ok(None) };
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    opened.attr = vfs.setattr(attr.node, empty).await?;
    if vfs.stream_of(attr.node).is_none() {
        // Overwriting a file removes its streams, one by one.
        for stream in vfs.streams(attr.node).await? {
            match vfs.remove_stream(attr.node, &stream.name).await {
                Err(Error::NotFound) => {}
                other => other?,
            }
        }
        opened.keep_attributes(vfs, wish).await?;
    }
    opened.set_aside(vfs, wish.allocation).await?;
    let superseded = wish.disposition == CreateDisposition::Supersede;
    Ok(Some((opened, if superseded { CreateAction::SUPERSEDED } else { CreateAction::OVERWRITTEN })))
}

/// Whether the existing file is of the requested kind ([MS-FSA] 2.1.5.1, phase 7).
async fn check_kind(vfs: &Vfs, wish: &Wish, attr: &Attr) -> Result<(), Failure> {
    // Whatever is done with the name: it is a link ([MS-SMB2] 3.3.5.9, [MS-FSA] 2.1.5.1.2).
    if attr.kind == Kind::Symlink && !wish.options.contains(CreateOptions::OPEN_REPARSE_POINT) {
        return Err(symlink::stopped(vfs, attr.node, &[], wish.posix).await);
    }
    if wish.disposition == CreateDisposition::Create {
        return Err(NtStatus::OBJECT_NAME_COLLISION.into());
    }
    let status = match attr.kind {
        Kind::Dir if wish.options.contains(CreateOptions::NON_DIRECTORY_FILE) || wish.path.file => {
            NtStatus::FILE_IS_A_DIRECTORY
        }
        Kind::Dir if wish.truncates() => NtStatus::OBJECT_NAME_COLLISION,
        Kind::Dir => return Ok(()),
        Kind::Symlink if symlink::is_to_directory(vfs, attr.node).await? => {
            if wish.options.contains(CreateOptions::NON_DIRECTORY_FILE) || wish.path.file {
                NtStatus::FILE_IS_A_DIRECTORY
            } else if wish.truncates() {
                NtStatus::OBJECT_NAME_COLLISION
            } else {
                return Ok(());
            }
        }
        _ if wish.wants_directory() || wish.path.directory => NtStatus::NOT_A_DIRECTORY,
        Kind::File => return Ok(()),
        // Links and devices have no data; their attributes and names are accessible.
        Kind::Symlink | Kind::Special(_) if wish.truncates() => NtStatus::ACCESS_DENIED,
        Kind::Symlink | Kind::Special(_) => return Ok(()),
    };
    Err(status.into())
}

/// Enters the table of opens and opens the data; `None` if the file is gone by now.
async fn take(
    cx: &OpContext,
    vfs: &Vfs,
    wish: &Wish,
    Metadata { attr, dos }: Metadata<'_>,
    place: DirName,
    access: AccessMask,
    new: bool,
) -> Result<Option<Opened>, Failure> {
    let caching = granting::prepare(cx, vfs, attr, &wish.caching)?;
    let opening = Opening {
        reach: reach_of(wish.access),
        overwrites: wish.truncates() && !new,
        past_grace: new,
        ..Opening::new(rights_of_access(access), wish.share, caching.key(vfs))
    };
    let (claim, waited) = recalls::wait(cx, Interim::Told, vfs.opens().open(attr.node, &opening)).await?;
    check_streams(vfs, attr.node, &opening)?;
    claim.set_parent(vfs.in_whose_name());
    if waited && cx.session().is_ended() {
        return Err(NtStatus::USER_SESSION_DELETED.into());
    }
    // The holder of the broken cache may have written the file, moved it, or closed and thereby deleted it.
    let (attr, dos, place) = match waited {
        true if attr.node != NodeId::ROOT => match still_there(vfs, attr.node, place).await? {
            Some((attr, place)) => {
                let dos = vfs.xattr_summary(attr.node).await?.dos;
                (attr, dos, place)
            }
            None => return Ok(None),
        },
        _ => (attr.clone(), dos, place),
    };
    let attr = &attr;
    let hold = match vfs.hold(attr.node).await {
        Err(Error::Stale) => return Ok(None),
        other => other?,
    };
    let file = match attr.kind {
        Kind::File if access.intersects(DATA) => {
            let write = access.intersects(WRITE_DATA);
            // The creator of a file has it open, whatever its permissions.
            let creator = (new && vfs.is_judged()).then(|| vfs.as_server());
            let by = creator.as_ref().unwrap_or(vfs);
            match by.open(attr.node, write).await {
                // MAXIMUM_ALLOWED is content with what the file system grants.
                Err(Error::Access) if write && wish.access.contains(AccessMask::MAXIMUM_ALLOWED) => {
                    Some(by.open(attr.node, false).await?)
                }
                Err(Error::Stale) => return Ok(None),
                other => Some(other?),
            }
        }
        _ => None,
    };
    let base = match vfs.stream_of(attr.node) {
        // Keeps the file from being deleted before its stream, without excluding anybody.
        Some((base, _)) => {
            let here = Opening {
                reach: Reach::Attributes,
                ..Opening::new(Rights::NONE, Rights::ALL, vfs.opens().key())
            };
            Some(vfs.opens().open(base, &here).await?)
        }
        None => None,
    };
    if wish.options.contains(CreateOptions::DELETE_ON_CLOSE) {
        claim.set_delete_on_close();
    }
    Ok(Some(Opened {
        attr: attr.clone(),
        dos,
        place,
        access,
        file,
        claim,
        base,
        by_short: None,
        caching,
        hold,
    }))
}

/// [MS-FSA] 2.1.5.1.2.1: deleting a file deletes its streams, so an open for deletion and an open of a stream must
/// share with each other. Checked once the open is in the table: of two simultaneous ones, at least one sees the other.
fn check_streams(vfs: &Vfs, node: NodeId, opening: &Opening) -> Result<(), Failure> {
    match vfs.stream_of(node) {
        Some((base, _)) => vfs.opens().may_open_stream(base, opening.access, opening.share)?,
        None if opening.access.delete => vfs.may_remove_with_streams(node)?,
        None => {}
    }
    Ok(())
}

impl Opened {
    /// 3.3.5.9.3: allocates space for a new file, if the file system supports that.
    async fn set_aside(&mut self, vfs: &Vfs, bytes: u64) -> Result<(), Failure> {
        let Some(file) = self.file.as_ref().filter(|_| bytes > 0) else { return Ok(()) };
        match file.allocate(0, bytes, true).await {
            // Without write access, or without support: the file grows as it is written.
            Err(Error::Access | Error::NotSupported) => return Ok(()),
            other => other?,
        }
        self.attr = vfs.getattr(self.attr.node).await?;
        Ok(())
    }

    /// [MS-FSA] 2.1.5.1.1: a new or overwritten file is ARCHIVE besides what the client wants.
    async fn keep_attributes(&mut self, vfs: &Vfs, wish: &Wish) -> Result<(), Failure> {
        ea::set(vfs, self.attr.node, &wish.eas).await?;
        let archive =
            if self.attr.kind == Kind::File { FileAttributes::ARCHIVE } else { FileAttributes::NONE };
        let mut wanted = wish.attributes | archive;
        if attributes::is_hidden_by_name(&self.place.name) {
            let shown = attributes::attributes(&self.attr, self.dos, &self.place.name);
            wanted |= shown & FileAttributes::HIDDEN;
        }
        if let Some(dos) = attributes::to_keep(&self.attr, self.dos, &self.place.name, wanted, (None, None)) {
            attributes::keep(vfs, &self.attr, self.dos, dos).await?;
            self.dos = Some(dos);
        }
        Ok(())
    }
}

/// A node's attributes and place after a wait; `None` if it has no name any more.
async fn still_there(vfs: &Vfs, node: NodeId, place: DirName) -> Result<Option<(Attr, DirName)>, Error> {
    match vfs.lookup(place.dir, &place.name, false).await {
        Ok(attr) if attr.node == node => return Ok(Some((attr, place))),
        Ok(base) if base.node == vfs.base(node) => return Ok(Some((vfs.getattr(node).await?, place))),
        Ok(_) | Err(Error::NotFound | Error::Stale) => {}
        Err(e) => return Err(e),
    }
    match (vfs.place(node).await, vfs.getattr(node).await) {
        (Ok(place), Ok(attr)) if attr.nlink > 0 => Ok(Some((attr, place))),
        (Ok(_), Ok(_))
        | (Err(Error::NotFound | Error::Stale), _)
        | (_, Err(Error::NotFound | Error::Stale)) => Ok(None),
        (Err(e), _) | (_, Err(e)) => Err(e),
    }
}

/// 3.3.5.9.3: a file that could not grow to this size is not created. No space is reserved: files grow as they are
/// written.
async fn reserve(vfs: &Vfs, bytes: u64) -> Result<(), Failure> {
    if bytes > 0 && bytes > vfs.statfs().await?.available {
        return Err(NtStatus::DISK_FULL.into());
    }
    Ok(())
}

/// The file that the contexts of an answer describe.
struct OpenedFile<'a> {
    vfs: &'a Vfs,
    /// The share's name.
    share: &'a str,
    metadata: Metadata<'a>,
    /// Where it is, if its maximal access is asked for.
    place: Option<DirName>,
    /// As its client sees it.
    change_time: Filetime,
}

/// Whether a client asks what it may do with the file at most.
fn asks_maximal(contexts: &[RequestContext]) -> bool {
    contexts.iter().any(|context| matches!(context, RequestContext::MaximalAccess(_)))
}

async fn answer_contexts(
    cx: &OpContext,
    asked: &[RequestContext],
    about: OpenedFile<'_>,
) -> Result<Vec<ResponseContext>, Failure> {
    let OpenedFile { vfs, share, metadata, place, change_time } = about;
    let maximal = match place {
        Some(place) => security::maximal(cx, vfs, metadata, place.borrow()).await?,
        None => AccessMask::NONE,
    };
    let answer = |context: &RequestContext| match context {
        // 3.3.5.9.5: unchanged since the client last asked.
        RequestContext::MaximalAccess(Some(since)) if *since == change_time => {
            Some(ResponseContext::MaximalAccess { status: status::NONE_MAPPED, access: 0 })
        }
        RequestContext::MaximalAccess(_) => {
            Some(ResponseContext::MaximalAccess { status: NtStatus::SUCCESS, access: maximal.0 })
        }
        RequestContext::OnDiskId => {
            let file_id = attributes::number(metadata.attr, cx.connection().negotiated().posix);
            Some(ResponseContext::OnDiskId { file_id, volume_id: volume::id(share) })
        }
        RequestContext::Posix { .. } if cx.connection().negotiated().posix => {
            Some(ResponseContext::Posix(attributes::posix_of(metadata.attr)))
        }
        _ => None,
    };
    Ok(asked.iter().filter_map(answer).collect())
}
