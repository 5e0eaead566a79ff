//! SMB shares as remote folders. [`session`] connects to the server.

pub(super) mod session;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_machine::random;
use weft_rdma::Traffic;
use weft_smb::client::{Carrier, Error, Filetime, OpenOptions, Session, Stat, Tree};
use weft_store::access::{Token, granted};
use weft_wire::security::{SecurityDescriptor, Sid};
use weft_wire::smb2::access::{AccessMask, FileAttributes};
use weft_wire::smb2::create::CreateDisposition;
use weft_wire::smb2::{NtStatus, spelling};

use self::session::Entered;
use super::dial::{Dial, Medium};
use super::lasting::{Opened, Share};
use super::links::{self, Through};
use super::{
    Agreed, Answer, Behind, Partial, RemoteDraft, RemoteEntry, RemoteFile, RemoteFolder, RemoteStat,
    UNDER_WAY, note_shown,
};
use crate::Failure;
use crate::partial::partial_name;
use crate::transfer::join;
use crate::when::When;

/// Connects to the server and the share.
pub(super) async fn connect(
    dial: &Dial<'_>,
    password: &str,
) -> Result<(Box<dyn RemoteFolder>, Medium, &'static str), Failure> {
    let (entered, path) = links::follow(dial, password).await?;
    let Entered { session, tree, keeper, medium, reason } = entered;
    let share = Rc::new(Share::new(session, tree, keeper));
    Ok((Box::new(SmbShare { share, path, told: Cell::default(), owner: OnceCell::new() }), medium, reason))
}

/// The server's software. SMB has no field for it: Weft answers its own question, Samba names itself in the remark of
/// its IPC share, and Windows has another fixed remark there.
async fn software(session: &Session) -> Option<String> {
    if session.endpoints().await.is_ok() {
        return Some("Weft".to_owned());
    }
    let shares = session.shares().await.ok()?;
    let pipes = shares.into_iter().find(|share| share.name.eq_ignore_ascii_case("IPC$"))?;
    named(&pipes.remark)
}

fn named(remark: &str) -> Option<String> {
    match remark.strip_prefix("IPC Service (").and_then(|rest| rest.strip_suffix(')')) {
        Some(name) => Some(name.to_owned()),
        None => (remark == "Remote IPC").then(|| "Windows".to_owned()),
    }
}

/// A share of which the user's paths are mapped through DFS links.
struct SmbShare {
    share: Rc<Share>,
    path: Through,
    /// Whether the user was warned that partial files are not hidden on this server.
    told: Cell<bool>,
    /// The owner of files that we create, once asked; `None` if the server does not tell.
    owner: OnceCell<Option<Sid>>,
}

impl SmbShare {
    /// The path on the wire.
    fn on_wire(&self, path: &str) -> Result<String, Failure> {
        Ok(spelling::to_wire(&self.path.of(path)?).into_owned())
    }

    /// Retries after clearing the read-only attribute at `path`, like `mv -f` and `rm -f`: a user who may change the
    /// folder may replace its entries.
    async fn despite_read_only(
        &self,
        path: &str,
        done: Result<(), Failure>,
        again: impl AsyncFnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match done {
            Err(e) if refused(&e) => {
                match self.share.with(async |tree| tree.set_read_only(path, false).await).await {
                    Ok(true) => again().await,
                    // The failure had another cause.
                    Ok(false) | Err(_) => Err(e),
                }
            }
            done => done,
        }
    }
}

impl RemoteFolder for SmbShare {
    fn open<'a>(&'a self, path: &'a str, write: bool) -> Answer<'a, Rc<dyn RemoteFile>> {
        let options = if write { OpenOptions::write() } else { OpenOptions::read() };
        async move { SmbFile::opened(&self.share, &self.on_wire(path)?, options).await }.boxed_local()
    }

    fn create<'a>(&'a self, path: &'a str) -> Answer<'a, Rc<dyn RemoteFile>> {
        async move { SmbFile::opened(&self.share, &self.on_wire(path)?, OpenOptions::truncate()).await }
            .boxed_local()
    }

    fn list<'a>(&'a self, path: &'a str) -> Answer<'a, Vec<RemoteEntry>> {
        async move {
            let path = &self.on_wire(path)?;
            let entries = self.share.with(async |tree| tree.list(path).await).await?;
            Ok(entries
                .into_iter()
                .map(|e| RemoteEntry {
                    garbled: false,
                    folder: e.stat.is_dir,
                    special: e.is_special(),
                    size: e.stat.len,
                    modified: When::from(e.stat.modified.to_unix()),
                    name: spelling::from_wire(&e.name).into_owned(),
                })
                .collect())
        }
        .boxed_local()
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<RemoteStat>> {
        async move {
            let path = &self.on_wire(path)?;
            let found = self.share.with(async |tree| found(tree.stat(path).await)).await?;
            Ok(found.map(|stat| RemoteStat {
                folder: stat.is_dir,
                special: stat.attributes.contains(FileAttributes::REPARSE_POINT),
                size: stat.len,
                allocated: stat.allocated,
                created: Some(When::from(stat.created.to_unix())),
                modified: When::from(stat.modified.to_unix()),
                accessed: When::from(stat.accessed.to_unix()),
                mode: None,
            }))
        }
        .boxed_local()
    }

    fn target<'a>(&'a self, path: &'a str) -> Answer<'a, Option<String>> {
        async move {
            let path = &self.on_wire(path)?;
            let target = self.share.with(async |tree| tree.target(path).await).await?;
            Ok(target.map(|target| spelling::from_wire(&target).into_owned()))
        }
        .boxed_local()
    }

    fn mkdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move {
            let path = &self.on_wire(path)?;
            let made = self.share.with(async |tree| match tree.mkdir(path).await {
                Err(e) if !e.is_loss() && tree.stat(path).await.is_ok_and(|stat| stat.is_dir) => Ok(()),
                other => other,
            });
            made.await
        }
        .boxed_local()
    }

    fn rmdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move {
            let path = &self.on_wire(path)?;
            self.share.with_knowing(async |tree, again| gone(tree.rmdir(path).await, again)).await
        }
        .boxed_local()
    }

    fn remove<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move {
            let path = &self.on_wire(path)?;
            let remove = async || {
                self.share.with_knowing(async |tree, again| gone(tree.remove(path).await, again)).await
            };
            self.despite_read_only(path, remove().await, remove).await
        }
        .boxed_local()
    }

    fn remove_unfinished<'a>(&'a self, path: &'a str) -> Answer<'a, bool> {
        async move {
            let path = &self.on_wire(path)?;
            self.share.with(async |tree| removed_unless_in_use(tree, path).await).await
        }
        .boxed_local()
    }

    fn draft<'a>(
        &'a self,
        target: Behind,
        tag: Option<&'a str>,
        mode: u32,
    ) -> Answer<'a, Box<dyn RemoteDraft + 'a>> {
        async move {
            let Behind { path: target, found } = target;
            let (path, on_wire) = (beside(&target, tag), self.on_wire(&target)?);
            let private = found.is_some();
            let beginning =
                Beginning { folder: self, path: self.on_wire(&path)?, empty: tag.is_none(), private };
            let handle = Rc::new(beginning.begin().await?);
            if private {
                self.check_hidden(&handle, mode, &on_wire).await?;
            }
            let resumed = tag.is_some();
            let partial = Partial { path, target, file: handle.clone(), resumable: resumed };
            let draft = SmbDraft { folder: self, partial, resumed, private: private || resumed, handle };
            Ok(Box::new(draft) as Box<dyn RemoteDraft>)
        }
        .boxed_local()
    }

    fn respell<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move {
            let path = &self.on_wire(path)?;
            self.share.with(async |tree| tree.rename(path, path, true).await).await
        }
        .boxed_local()
    }

    fn traffic(&self) -> Traffic {
        self.share.traffic()
    }

    fn describe(&self) -> String {
        format!("{}{}", self.share.life().tree.describe(), self.path)
    }

    fn agreed(&self) -> LocalBoxFuture<'_, Agreed> {
        async move {
            let life = self.share.life();
            let agreed = life.tree.describe();
            Agreed {
                software: software(&life.session).await,
                dialect: format!("SMB {}", agreed.dialect),
                signing: agreed.signing.map(|algorithm| format!("{algorithm:?}")),
                encryption: agreed.cipher.map(|cipher| format!("{cipher:?}")),
            }
        }
        .boxed_local()
    }

    fn credits_starved(&self) -> Option<u64> {
        Some(self.share.life().session.credits_starved())
    }

    fn connections(&self) -> Vec<String> {
        let words = |carrier: Carrier| {
            let traffic = carrier.traffic;
            let rdma = traffic.written.0 + traffic.placed.0 + traffic.read.0 + traffic.served.0;
            let messages = traffic.sent.0 + traffic.received.0;
            format!("{} to {}: {rdma} bytes by RDMA, {messages} in messages", carrier.medium, carrier.peer)
        };
        self.share.life().session.carriers().into_iter().map(words).collect()
    }

    fn lost_connections(&self) -> u32 {
        self.share.lost_connections()
    }

    fn outlast(&self, patience: Duration, until: Arc<AtomicBool>) {
        self.share.outlast(patience, until);
    }

    fn losses(&self) -> u32 {
        self.share.losses()
    }

    fn close(&self) -> Answer<'_, ()> {
        async move { Ok(self.share.life().session.logoff().await?) }.boxed_local()
    }
}

/// Whether the error means that the name exists.
fn is_there(e: &Failure) -> bool {
    e.downcast_ref::<Error>().and_then(Error::status) == Some(NtStatus::OBJECT_NAME_COLLISION)
}

fn has_status(e: &Failure) -> bool {
    e.downcast_ref::<Error>().is_some_and(|e| e.status().is_some())
}

fn refused(e: &Failure) -> bool {
    e.downcast_ref::<Error>().is_some_and(Error::is_protected)
}

/// The partial file for new content of `target`. Every command uses the same name, so the server admits one command
/// at a time, and the next one finds what a killed one has left.
fn beside(target: &str, tag: Option<&str>) -> String {
    let (folder, name) = target.rsplit_once('/').unwrap_or(("", target));
    join(folder, &partial_name(name, tag.unwrap_or_default()))
}

/// A partial file about to be opened.
struct Beginning<'a> {
    folder: &'a SmbShare,
    /// Its path on the server.
    path: String,
    /// Whether content left by an earlier command is dropped.
    empty: bool,
    /// Whether only its owner may access it, if the server has descriptors; otherwise it gets the access of any new
    /// file.
    private: bool,
}

impl Beginning<'_> {
    /// Opens it so that no other command writes to it.
    async fn begin(&self) -> Result<SmbFile, Failure> {
        let path = &self.path;
        match self.make().await {
            Err(e) if is_there(&e) => {}
            made => return made,
        }
        if !self.empty {
            match self
                .open(OpenOptions { disposition: CreateDisposition::Open, ..OpenOptions::draft() })
                .await
            {
                Ok(left) if !self.private || self.is_like_new(&left).await? => return Ok(left),
                Ok(left) => left.close().await?,
                Err(e) if refused(&e) => {}
                Err(e) => return Err(e),
            }
            tracing::debug!("{path} differs from the files that we create, and is replaced");
        }
        // It is not written to, because whoever may read it may have it open.
        let removed = self.folder.share.with(async |tree| removed_unless_in_use(tree, path).await);
        removed.await.map_err(|e| format!("{path} is in the way and cannot be removed: {e}"))?;
        match self.make().await {
            Err(e) if is_there(&e) => Err(UNDER_WAY.into()),
            made => made,
        }
    }

    /// Creates it if it is missing.
    async fn make(&self) -> Result<SmbFile, Failure> {
        if self.private
            && let Some(owner) = self.folder.owner(&self.path).await?
        {
            self.folder.share.life().tree.name_owner(owner);
            match self.open(OpenOptions { private: true, ..OpenOptions::draft() }).await {
                Err(e) if has_status(&e) && !is_there(&e) => {
                    tracing::debug!("{} cannot get a descriptor: {e}", self.path);
                }
                made => return made,
            }
        }
        self.open(OpenOptions::draft()).await
    }

    async fn open(&self, options: OpenOptions) -> Result<SmbFile, Failure> {
        match Opened::new(&self.folder.share, &self.path, options).await {
            Err(e) if e.downcast_ref::<Error>().is_some_and(Error::is_in_use) => Err(UNDER_WAY.into()),
            opened => Ok(SmbFile(RefCell::new(Some(Rc::new(opened?))))),
        }
    }

    /// Whether an existing file has the owner and descriptor that the server gives to our files.
    async fn is_like_new(&self, left: &SmbFile) -> Result<bool, Failure> {
        let new = self.folder.made_of_new(&self.path, self.folder.owner(&self.path).await?.is_some()).await?;
        Ok(left.security().await? == new)
    }
}

/// Removes a file unless it is open or gone; returns whether it did.
async fn removed_unless_in_use(tree: &Tree, path: &str) -> Result<bool, Error> {
    let file = match tree.open(path, OpenOptions::delete()).await {
        Err(e) if e.is_in_use() || e.is_not_found() => return Ok(false),
        opened => opened?,
    };
    let removed = file.remove().await;
    // Closing the handle removes the name.
    file.close().await?;
    removed.map(|()| true)
}

/// `None` if the server has no descriptors.
fn told(security: Result<SecurityDescriptor, Error>) -> Result<Option<SecurityDescriptor>, Error> {
    match security {
        Err(e) if e.status().is_some() => {
            tracing::debug!("no descriptor: {e}");
            Ok(None)
        }
        security => security.map(Some),
    }
}

/// Whether every logged-on user may read an object with this descriptor.
fn is_shown(descriptor: &SecurityDescriptor) -> bool {
    let nobody = Sid { authority: 0, sub_authorities: vec![0] };
    let users = Sid { authority: 5, sub_authorities: vec![32, 545] };
    let others = vec![Sid::everyone(), Sid::network(), Sid::authenticated_users(), users];
    let anybody = Token { user: nobody.clone(), group: nobody, others };
    granted(descriptor, &anybody).contains(AccessMask::FILE_READ_DATA)
}

impl SmbShare {
    /// The owner of files that we create. A Samba server that derives modes from descriptors drops one that uses
    /// OWNER RIGHTS.
    async fn owner(&self, path: &str) -> Result<Option<Sid>, Failure> {
        if let Some(known) = self.owner.get() {
            return Ok(known.clone());
        }
        let owner = self.made_of_new(path, false).await?.and_then(|found| found.owner);
        Ok(self.owner.get_or_init(|| owner).clone())
    }

    /// The descriptor of a new file beside `path`; `None` if the server does not tell, or cannot create such a file.
    async fn made_of_new(&self, path: &str, private: bool) -> Result<Option<SecurityDescriptor>, Failure> {
        let bytes: [u8; 8] = random::bytes().map_err(|e| e.to_string())?;
        // Also valid on the wire: only `path` itself can contain characters that are mapped there.
        let beside = beside(path, Some(&format!(".{:016x}", u64::from_le_bytes(bytes))));
        let made = self.share.with(async |tree| {
            let file = match tree.open(&beside, OpenOptions { private, ..OpenOptions::passing() }).await {
                Err(e) => return told(Err(e)),
                Ok(file) => file,
            };
            let made = told(file.security().await);
            file.close().await?;
            made
        });
        made.await
    }

    /// Warns if everybody can read a partial file but not its target, or its source, which has `mode`.
    async fn check_hidden(&self, partial: &SmbFile, mode: u32, target: &str) -> Result<(), Failure> {
        let is_open =
            |descriptor: Option<SecurityDescriptor>| descriptor.is_none_or(|found| is_shown(&found));
        if self.told.get() || !is_open(partial.security().await?) {
            return Ok(());
        }
        let of_target = self.share.with(async |tree| {
            let file = tree.open(target, OpenOptions::look()).await?;
            let found = told(file.security().await);
            file.close().await?;
            found
        });
        // If the target's access is unknown, it counts as open as the rest of the server.
        let is_private = mode & 0o044 == 0 || of_target.await.is_ok_and(|found| !is_open(found));
        if is_private {
            self.told.set(true);
            note_shown(target);
        }
        Ok(())
    }
}

/// An open partial file.
struct SmbDraft<'a> {
    folder: &'a SmbShare,
    partial: Partial,
    /// Whether its name has a tag: then other commands may write other partial files for the same target.
    resumed: bool,
    /// Whether only its owner may access it.
    private: bool,
    /// The file in `partial`.
    handle: Rc<SmbFile>,
}

impl SmbDraft<'_> {
    async fn put_in_place(&self) -> Result<(), Failure> {
        let (share, to) = (&self.folder.share, &self.folder.on_wire(&self.partial.target)?);
        if share.with(async |tree| found(tree.stat(to).await)).await?.is_none() {
            return self.rename(to).await;
        }
        match self.overwrite(to).await {
            // Nobody may write to it, but a user who may change the folder may replace it.
            Err(e) if refused(&e) => {
                note!("weft: {to} cannot be written: it is replaced, and loses its owner and permissions");
                self.rename(to).await
            }
            done => done,
        }
    }

    /// Gives access to everybody who may access new files beside it: it becomes a normal file.
    async fn reveal(&self) -> Result<(), Failure> {
        let (share, path) = (&self.folder.share, &self.folder.on_wire(&self.partial.path)?);
        let Some(of_new) = self.folder.made_of_new(path, false).await? else { return Ok(()) };
        if self.handle.security().await?.is_none_or(|found| found.dacl == of_new.dacl) {
            return Ok(());
        }
        let set = share.with(async |tree| {
            let file = tree.open(path, OpenOptions::protect()).await?;
            let set = file.set_dacl(&of_new).await;
            file.close().await?;
            set
        });
        match set.await {
            Err(e) if has_status(&e) => {
                note!("weft: {} remains accessible only to its owner: {e}", self.partial.target);
                Ok(())
            }
            set => set,
        }
    }

    async fn rename(&self, to: &str) -> Result<(), Failure> {
        let share = &self.folder.share;
        if self.private {
            self.reveal().await?;
        }
        let rename = async || {
            let losses = share.losses();
            match self.handle.file()?.with(async |file| file.rename(to, true).await).await {
                // The operation succeeded, but the connection was lost before the answer.
                Err(e) if share.losses() > losses && is_not_found(&e) => {
                    match share.with(async |tree| found(tree.stat(to).await)).await? {
                        Some(_) => Ok(()),
                        None => Err(e),
                    }
                }
                renamed => renamed,
            }
        };
        self.folder.despite_read_only(to, rename().await, rename).await
    }

    /// Copies its content into `to` on the server, so that `to` keeps its metadata, and removes the partial file.
    async fn overwrite(&self, to: &str) -> Result<(), Failure> {
        // Two commands that overwrite one file would mix their contents.
        let turn = match self.resumed {
            true => {
                let path = self.folder.on_wire(&beside(&self.partial.target, None))?;
                Some(Beginning { folder: self.folder, path, empty: true, private: true }.begin().await?)
            }
            false => None,
        };
        let copied = self.copy_into(to).await;
        if let Some(turn) = turn {
            turn.remove().await?;
        }
        copied?;
        self.handle.remove().await
    }

    async fn copy_into(&self, to: &str) -> Result<(), Failure> {
        let share = &self.folder.share;
        let copy = async || self.handle.file()?.with(async |file| file.overwrite(to).await).await;
        match copy().await {
            Err(e) if refused(&e) => {
                if !share.with(async |tree| tree.set_read_only(to, false).await).await? {
                    return Err(e);
                }
                let copied = copy().await;
                share.with(async |tree| tree.set_read_only(to, true).await).await?;
                copied
            }
            done => done,
        }
    }
}

impl RemoteDraft for SmbDraft<'_> {
    fn partial(&self) -> &Partial {
        &self.partial
    }

    fn replace(&self) -> Answer<'_, ()> {
        async move {
            let replaced = self.put_in_place().await;
            // Its data has been durable since the flush.
            if let Err(e) = self.partial.file.close().await {
                tracing::debug!("closing {}: {e}", self.partial.path);
            }
            replaced
        }
        .boxed_local()
    }

    fn discard(&self) -> Answer<'_, ()> {
        self.handle.remove().boxed_local()
    }
}

fn is_not_found(e: &Failure) -> bool {
    e.downcast_ref::<Error>().is_some_and(Error::is_not_found)
}

/// `None` if nothing exists there.
fn found(stat: Result<Stat, Error>) -> Result<Option<Stat>, Error> {
    match stat {
        Err(e) if e.is_not_found() => Ok(None),
        stat => stat.map(Some),
    }
}

/// A missing file counts as removed if it may have been removed by an earlier attempt.
fn gone(removed: Result<(), Error>, again: bool) -> Result<(), Error> {
    removed.or_else(|e| if again && e.is_not_found() { Ok(()) } else { Err(e) })
}

/// A file that is open until it is closed.
struct SmbFile(RefCell<Option<Rc<Opened>>>);

impl SmbFile {
    async fn opened(
        share: &Rc<Share>,
        path: &str,
        options: OpenOptions,
    ) -> Result<Rc<dyn RemoteFile>, Failure> {
        let opened = Opened::new(share, path, options).await?;
        Ok(Rc::new(SmbFile(RefCell::new(Some(Rc::new(opened))))))
    }

    /// Removes and closes it through its handle, because its name may belong to another file by now.
    async fn remove(&self) -> Result<(), Failure> {
        let Some(opened) = self.0.borrow_mut().take() else { return Ok(()) };
        let removed = opened.with(async |file| file.remove().await).await;
        // Closing the handle removes the name.
        let closed = opened.with(async |file| file.close().await).await;
        match removed.and(closed) {
            // After a lost connection.
            Err(e) if is_not_found(&e) => Ok(()),
            removed => removed,
        }
    }

    /// Its owner and access rules; `None` if the server has none.
    async fn security(&self) -> Result<Option<SecurityDescriptor>, Failure> {
        self.file()?.with(async |file| told(file.security().await)).await
    }

    fn file(&self) -> Result<Rc<Opened>, Failure> {
        self.0.borrow().clone().ok_or_else(|| "the file was closed".into())
    }
}

impl RemoteFile for SmbFile {
    fn len(&self) -> Answer<'_, u64> {
        async move { Ok(self.file()?.with(async |file| file.stat().await).await?.len) }.boxed_local()
    }

    fn read(&self, offset: u64, len: u32) -> Answer<'_, Bytes> {
        async move { self.file()?.with(async |file| file.read(offset, len as usize).await).await }
            .boxed_local()
    }

    fn write(&self, offset: u64, data: Bytes) -> Answer<'_, ()> {
        async move { self.file()?.with(async |file| file.write(offset, data.clone()).await).await }
            .boxed_local()
    }

    fn set_modified(&self, at: When) -> Answer<'_, bool> {
        async move {
            let time = Filetime::from_unix(at.secs, at.nanos);
            self.file()?.with(async |file| file.set_times(None, Some(time)).await).await?;
            Ok(true)
        }
        .boxed_local()
    }

    fn flush(&self) -> Answer<'_, ()> {
        async move { self.file()?.with(async |file| file.flush().await).await }.boxed_local()
    }

    fn set_len(&self, len: u64) -> Answer<'_, ()> {
        async move { self.file()?.with(async |file| file.set_len(len).await).await }.boxed_local()
    }

    fn is_anew(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(|opened| opened.is_anew())
    }

    fn close(&self) -> Answer<'_, ()> {
        let opened = self.0.borrow_mut().take();
        async move {
            match opened {
                Some(opened) => opened.with(async |file| file.close().await).await,
                None => Ok(()),
            }
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests;
