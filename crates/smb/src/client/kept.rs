//! Files that are opened to be kept: the server holds them for a client whose connections are lost.
//!
//! Spec: [MS-SMB2] 3.2.4.3.4, 3.2.4.3.5 (durable), 3.2.4.3.8 (leases), 3.2.4.4 (getting one back).
//! Owns: what proves whose a handle is, and its lease. Does not: reconnect; see [`super::Session::again`].
//!
//! On a share that is continuously available the handle is persistent (3.2.4.3.5): it outlasts the server, too.

use std::rc::Rc;

use weft_machine::random;
use weft_wire::smb2::create::{self, CreateDisposition, OplockLevel};
use weft_wire::smb2::create_context::{
    DurableFlags, Lease, LeaseFlags, LeaseState, LeaseV2, RequestContext, ResponseContext,
};
use weft_wire::smb2::{Command, Dialect, Guid};

use super::error::Error;
use super::file::File;
use super::leases::Leases;
use super::tree::{OpenOptions, Tree, wire_path};

/// What a file was opened by, to be opened by again.
pub(super) struct Kept {
    name: String,
    options: OpenOptions,
    create_guid: Guid,
    lease: Guid,
    /// Whether the server keeps it.
    durable: bool,
    /// Whether it does so beyond its own end: a flag of the context, when the handle was asked for and when it is asked back.
    persistent: bool,
    /// File and volume, as the server numbers them.
    on_disk: Option<(u64, u64)>,
    leases: Rc<Leases>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.leases.leave(&self.lease);
    }
}

impl Tree {
    /// Opens or creates a file that the server is to keep for a while when all connections are lost: see [`Tree::reopen`].
    /// It need not; [`File::is_kept`] says whether it will.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub async fn open_kept(&self, path: &str, options: OpenOptions) -> Result<File, Error> {
        let mut kept = Kept {
            name: wire_path(path)?,
            options,
            create_guid: random::bytes()?,
            lease: random::bytes()?,
            durable: false,
            persistent: false,
            on_disk: None,
            leases: self.core().leases.clone(),
        };
        let durable = match self.dialect() >= Dialect::V3_0 {
            true => RequestContext::DurableV2 {
                timeout_ms: 0,
                flags: flags(self.is_continuously_available()),
                create_guid: kept.create_guid,
            },
            false => RequestContext::Durable,
        };
        let mut contexts = vec![durable, self.lease_of(&kept), RequestContext::OnDiskId];
        contexts.extend(self.privacy(options));
        let response = self.create(&kept, options.disposition, contexts).await?;
        for context in &response.contexts {
            match *context {
                ResponseContext::Durable => kept.durable = true,
                ResponseContext::DurableV2 { flags, .. } => {
                    kept.durable = true;
                    kept.persistent = flags.contains(DurableFlags::PERSISTENT);
                }
                ResponseContext::OnDiskId { file_id, volume_id } => kept.on_disk = Some((file_id, volume_id)),
                _ => {}
            }
        }
        Ok(self.opened(response, Some(kept)))
    }

    /// Gets a file back that was opened by [`Tree::open_kept`] in a session that is lost, in the same share of the session
    /// that took its place. It is the same handle: what it had locked it has locked.
    ///
    /// # Errors
    /// [`Error::Status`] with STATUS_OBJECT_NAME_NOT_FOUND when the server does not have it any more: it was restarted,
    /// or somebody else wanted the file; [`Error::Misuse`] when it was never kept.
    pub async fn reopen(&self, lost: &File) -> Result<File, Error> {
        let before = lost.kept().filter(|kept| kept.durable);
        let before = before.ok_or(Error::Misuse("the server does not keep this handle"))?;
        let kept = Kept {
            name: before.name.clone(),
            options: before.options,
            create_guid: before.create_guid,
            lease: before.lease,
            durable: true,
            persistent: before.persistent,
            on_disk: before.on_disk,
            leases: self.core().leases.clone(),
        };
        let reconnect = match self.dialect() >= Dialect::V3_0 {
            true => RequestContext::DurableReconnectV2 {
                file: lost.id(),
                create_guid: kept.create_guid,
                flags: flags(kept.persistent),
            },
            false => RequestContext::DurableReconnect(lost.id()),
        };
        let contexts = vec![reconnect, self.lease_of(&kept)];
        // The handle is not opened again, but nothing shall be emptied either where a server takes this for an open.
        let response = self.create(&kept, CreateDisposition::Open, contexts).await?;
        Ok(self.opened(response, Some(kept)))
    }

    /// A share in nothing but the right to keep the handle, and to read ahead, which goes with it.
    fn lease_of(&self, kept: &Kept) -> RequestContext {
        let v2 = (self.dialect() >= Dialect::V3_0).then_some(LeaseV2 { parent_key: [0; 16], epoch: 0 });
        let state = LeaseState::READ_CACHING | LeaseState::HANDLE_CACHING;
        RequestContext::Lease(Lease { key: kept.lease, state, flags: LeaseFlags::NONE, v2 })
    }

    fn dialect(&self) -> Dialect {
        self.core().negotiated.profile.dialect
    }

    async fn create(
        &self,
        kept: &Kept,
        disposition: CreateDisposition,
        contexts: Vec<RequestContext>,
    ) -> Result<create::Response, Error> {
        let request = create::Request {
            oplock: OplockLevel::LEASE,
            disposition,
            ..kept.options.request(kept.name.clone(), contexts)
        };
        let call = self.call(Command::Create, |out| request.emit(out));
        // Before: a break may overtake the answer.
        kept.leases.enter(kept.lease, call.tree, call.protection);
        let message = self.core().call(call).await?.success()?;
        Ok(create::Response::parse(&message)?)
    }
}

fn flags(persistent: bool) -> DurableFlags {
    if persistent { DurableFlags::PERSISTENT } else { DurableFlags::NONE }
}

impl File {
    /// Whether the server keeps it even where it is itself started again.
    pub fn is_persistent(&self) -> bool {
        self.kept().is_some_and(|kept| kept.persistent)
    }

    /// Whether the server keeps it for a while when all connections are lost.
    pub fn is_kept(&self) -> bool {
        self.kept().is_some_and(|kept| kept.durable)
    }

    /// Whether both are the same file, by the numbers that the server has for them; `None` where it tells none, or one was
    /// not opened by [`Tree::open_kept`].
    pub fn is_same_file(&self, other: &File) -> Option<bool> {
        let on_disk = |file: &File| file.kept().and_then(|kept| kept.on_disk);
        Some(on_disk(self)? == on_disk(other)?)
    }
}
