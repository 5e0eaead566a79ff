//! Durable handles: the server keeps the file open for a client that loses its connections.
//!
//! Spec: [MS-SMB2] 3.2.4.3.4, 3.2.4.3.5 (durable), 3.2.4.3.8 (leases), 3.2.4.4 (reconnecting a handle). See
//! [`super::Session::again`] for reconnecting.
//!
//! On a continuously available share the handle is persistent (3.2.4.3.5): it also survives a restart of the server.

use weft_machine::random;
use weft_wire::smb2::create::{self, CreateDisposition, OplockLevel};
use weft_wire::smb2::create_context::{
    DurableFlags, Lease, LeaseFlags, LeaseState, LeaseV2, RequestContext, ResponseContext,
};
use weft_wire::smb2::{Command, Dialect, Guid};

use super::error::Error;
use super::file::File;
use super::kept::Kept;
use super::open_options::OpenOptions;
use super::path::wire_path;
use super::tree::Tree;

impl Tree {
    /// Opens or creates a file and asks the server to keep the handle for a while if all connections are lost: see
    /// [`Tree::reopen`]. The server may decline; [`File::is_kept`] says whether it did.
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

    /// Reconnects a file that was opened with [`Tree::open_kept`] in a session that is lost, on the same share of the
    /// session that replaced it. It is the same handle. A server keeps one that holds
    /// byte-range locks only if it is persistent, because the lease requested here does not cache writes.
    ///
    /// # Errors
    /// [`Error::Status`] with STATUS_OBJECT_NAME_NOT_FOUND if the server no longer has the handle, because it was
    /// restarted or another client wanted the file; [`Error::Misuse`] if the handle was never durable.
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
        // A reconnect ignores the disposition, but if a server takes this for a new open it must not truncate the file.
        let response = self.create(&kept, CreateDisposition::Open, contexts).await?;
        let again = self.opened(response, Some(kept));
        again.lock_sequences().continues(lost.lock_sequences());
        Ok(again)
    }

    /// A lease with only handle caching and read caching; the former requires the latter.
    fn lease_of(&self, kept: &Kept) -> RequestContext {
        self.lease_context(kept.lease, LeaseState::READ_CACHING | LeaseState::HANDLE_CACHING)
    }

    /// The request of a lease.
    pub(super) fn lease_context(&self, key: Guid, state: LeaseState) -> RequestContext {
        let v2 = (self.dialect() >= Dialect::V3_0).then_some(LeaseV2 { parent_key: [0; 16], epoch: 0 });
        RequestContext::Lease(Lease { key, state, flags: LeaseFlags::NONE, v2 })
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
        // Entered before the request is sent, because a break may overtake the answer.
        kept.leases.enter(kept.lease, self.connect());
        let message = self.core().call(call).await?.success()?;
        Ok(create::Response::parse(&message)?)
    }
}

fn flags(persistent: bool) -> DurableFlags {
    if persistent { DurableFlags::PERSISTENT } else { DurableFlags::NONE }
}

impl File {
    /// Whether the server keeps the handle even across its own restart.
    pub fn is_persistent(&self) -> bool {
        self.kept().is_some_and(|kept| kept.persistent)
    }

    /// Whether the server keeps the handle for a while if all connections are lost.
    pub fn is_kept(&self) -> bool {
        self.kept().is_some_and(|kept| kept.durable)
    }

    /// Whether both handles refer to the same file, by the server's ids; `None` if the server sends none, or one of
    /// them was not opened with [`Tree::open_kept`].
    pub fn is_same_file(&self, other: &File) -> Option<bool> {
        let on_disk = |file: &File| file.kept().and_then(|kept| kept.on_disk);
        Some(on_disk(self)? == on_disk(other)?)
    }
}
