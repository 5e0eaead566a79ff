//! Partial files: how new content takes the place of a file, and what a target keeps of its owner, mode and ACL.

use std::rc::Rc;

use futures_util::{FutureExt, StreamExt, stream};
use weft_machine::random;
use weft_nfs::client::{Attributes, Error, File, SetAttributes, SetTime, Status, v4};
use weft_wire::nfs4::Status as Status4;

use super::super::{Answer, Behind, FILE_MODE, Partial, RemoteDraft, RemoteFolder, UNDER_WAY, note_shown};
use super::mount::{Mounted, either};
use super::{Export, NfsFile, made, umask};
use crate::Failure;
use crate::partial::partial_name;
use crate::transfer::join;

/// Size of one READ and WRITE in a copy from file to file.
const BLOCK_BYTES: u64 = 1 << 20;
/// READs and WRITEs outstanding at a time.
const QUEUE_DEPTH: usize = 8;

/// The mode of partial files.
const PRIVATE_MODE: u32 = 0o600;
/// The bit of a mode that lets the owner read.
const OWNER_READS: u32 = 0o400;
/// The bits that let the group and others read.
const SHOWN: u32 = 0o044;

/// A partial file for new content of `target`.
fn beside(target: &str, tag: &str) -> String {
    let (folder, name) = target.rsplit_once('/').unwrap_or(("", target));
    join(folder, &partial_name(name, tag))
}

/// The same with an unpredictable name.
fn nobody_else_s(target: &str) -> Result<String, Failure> {
    let bytes: [u8; 8] = random::bytes().map_err(|e| e.to_string())?;
    Ok(beside(target, &format!(".{:016x}", u64::from_le_bytes(bytes))))
}

/// Explains that another client has the file open.
fn in_use(e: Error) -> Failure {
    if e.is_in_use() {
        format!("{UNDER_WAY}, or was killed within the lease that the server gives its clients ({e})").into()
    } else {
        e.into()
    }
}

/// An open partial file.
///
/// Without a tag its name is random, so that nobody else finds it: version 3 has no opens that would exclude others.
/// With a tag, version 4's share reservation excludes others. Over version 3 several commands may write it, but the
/// tag identifies one version of one source, so they write the same bytes, and none truncates it.
///
/// Commands of other users choose the same name for the same tag, and may remove our file if the folder's permissions
/// allow. So the object at that name is moved or removed only while it is the file that is open.
///
/// Only its owner can access it until it is complete.
pub(super) struct NfsDraft<'a> {
    export: &'a Export,
    partial: Partial,
    /// The partial file.
    file: Rc<NfsFile>,
    /// The mode of the new file if there is no target in the end.
    mode: u32,
}

impl RemoteDraft for NfsDraft<'_> {
    fn partial(&self) -> &Partial {
        &self.partial
    }

    fn replace(&self) -> Answer<'_, ()> {
        async move {
            let Partial { path, target, file, resumable } = &self.partial;
            if *resumable {
                let replaced = async {
                    if !self.export.is_at(path, &self.file.0).await? {
                        return Err(format!("{path} was removed or replaced meanwhile").into());
                    }
                    self.export.replace(path, target, self.mode).await
                };
                let replaced = replaced.await;
                let closed = file.close().await;
                return replaced.and(closed);
            }
            // Some servers do not rename open files.
            file.close().await?;
            self.export.replace(path, target, self.mode).await
        }
        .boxed_local()
    }

    fn discard(&self) -> Answer<'_, ()> {
        async move {
            let Partial { path, file, resumable, .. } = &self.partial;
            let ours = if *resumable { self.export.is_at(path, &self.file.0).await } else { Ok(true) };
            // Closed before it is removed: the space of an open file is not freed.
            if let Err(e) = file.close().await {
                tracing::debug!("closing {path}: {e}");
            }
            if ours? { self.export.remove(path).await } else { Ok(()) }
        }
        .boxed_local()
    }
}

impl Export {
    /// Opens a partial file for new content of `target`, which has `mode` if there is no target in the end. With a tag,
    /// the one of an earlier command.
    pub(super) async fn begin(
        &self,
        target: Behind,
        tag: Option<&str>,
        mode: u32,
    ) -> Result<NfsDraft<'_>, Failure> {
        let Behind { path: target, found } = target;
        let tagged = match tag {
            Some(tag) => self.tagged(beside(&target, tag)).await?,
            None => None,
        };
        let resumable = tagged.is_some();
        let (path, file) = match tagged {
            Some(tagged) => tagged,
            None => {
                let path = nobody_else_s(&target)?;
                let file = self.new_partial(&path).await?;
                (path, file)
            }
        };
        let mode = mode & !umask();
        self.check_hidden(&file, found.and_then(|found| found.mode).unwrap_or(mode), &target).await?;
        let file = Rc::new(NfsFile(file));
        let partial = Partial { path, target, file: file.clone(), resumable };
        Ok(NfsDraft { export: self, partial, file, mode })
    }

    /// Creates the partial file of a tag, or opens the one left by an earlier command. `None`: the name is taken by a
    /// file that does not look like ours. It stays, because its owner may be using it.
    async fn tagged(&self, path: String) -> Result<Option<(String, File)>, Failure> {
        match self.new_partial(&path).await {
            Err(e) if e.status() == Some(Status::EXIST) => {}
            // A server creates a file and then opens it, so another command may have opened it first.
            made => return Ok(Some((path, made.map_err(in_use)?))),
        }
        let left = match &self.mount {
            Mounted::V3(mount) => mount.open(&path).await,
            Mounted::V4(mount) => mount.open_alone(&path).await,
        };
        match left {
            Ok(file) => {
                if self.is_like_new(&path, &file.stat().await?).await? {
                    return Ok(Some((path, file)));
                }
                file.close().await?;
            }
            Err(e) if e.status() == Some(Status::ACCES) => {}
            Err(e) => return Err(in_use(e)),
        }
        // Its creator could read the content written to it.
        note!("weft: {path} belongs to another user, or others can read it: not resumed");
        Ok(None)
    }

    /// Whether this name refers to this file.
    async fn is_at(&self, path: &str, file: &File) -> Result<bool, Failure> {
        let gone = |e: &Error| matches!(e.status(), Some(Status::NOENT | Status::STALE));
        let named = match either!(&self.mount, mount => mount.stat(path).await) {
            Err(e) if gone(&e) => return Ok(false),
            named => named?,
        };
        match file.stat().await {
            Err(e) if gone(&e) => Ok(false),
            open => Ok(open.map(|open| (open.fsid, open.fileid) == (named.fsid, named.fileid))?),
        }
    }

    /// Creates a file that must not exist yet.
    async fn new_partial(&self, path: &str) -> Result<File, Error> {
        let set = SetAttributes { mode: Some(PRIVATE_MODE), ..SetAttributes::default() };
        match &self.mount {
            Mounted::V3(mount) => mount.create_new(path, set).await,
            Mounted::V4(mount) => mount.create_guarded(path, set).await,
        }
    }

    /// Whether a partial file has the owner and mode that the server gives to our files.
    async fn is_like_new(&self, path: &str, found: &Attributes) -> Result<bool, Failure> {
        let beside = nobody_else_s(path)?;
        let new = self.new_partial(&beside).await?;
        let made = new.stat().await;
        new.close().await?;
        self.remove(&beside).await?;
        let made = made?;
        Ok((made.uid, made.mode & 0o7777) == (found.uid, found.mode & 0o7777))
    }

    /// Warns if users who may not read the target (now or with its future `mode`) can read the partial file.
    async fn check_hidden(&self, partial: &File, mode: u32, target: &str) -> Result<(), Failure> {
        let hidden = SHOWN & !mode;
        if hidden != 0 && !self.told.get() && partial.stat().await?.mode & hidden != 0 {
            self.told.set(true);
            note_shown(target);
        }
        Ok(())
    }

    /// Moves `from` over `to`, keeping the mode and owner of `to`; a new file gets `mode`.
    async fn replace(&self, from: &str, to: &str, mode: u32) -> Result<(), Failure> {
        match either!(&self.mount, mount => mount.stat(to).await) {
            Ok(there) => {
                if let Some(why) = self.why_in_place(from, to, &there).await? {
                    note!("weft: {to} is written in place: {why}");
                    return self.overwrite_alone(from, to).await;
                }
            }
            Err(e) if e.status() == Some(Status::NOENT) => self.give_mode(from, mode).await?,
            Err(e) => return Err(e.into()),
        }
        Ok(either!(&self.mount, mount => mount.rename(from, to).await)?)
    }

    /// Why `from` cannot take the place of the target `to`, whose mode and owner it gets. Version 3 shows neither ACLs
    /// nor extended attributes.
    async fn why_in_place(
        &self,
        from: &str,
        to: &str,
        there: &Attributes,
    ) -> Result<Option<&'static str>, Failure> {
        if there.nlink > 1 {
            return Ok(Some("it has hard links"));
        }
        if !self.take_attributes(from, there).await? {
            return Ok(Some("its owner or mode cannot be kept"));
        }
        let Mounted::V4(mount) = &self.mount else { return Ok(None) };
        let (theirs, ours) = futures_util::join!(mount.extras(to), mount.extras(from));
        if let (Some(theirs), Some(ours)) = (shown(theirs)?, shown(ours)?)
            && theirs == ours
        {
            return Ok(None);
        }
        if there.mode & OWNER_READS == 0 {
            // Its content is read from it.
            self.set(from, SetAttributes { mode: Some(PRIVATE_MODE), ..SetAttributes::default() }).await?;
        }
        Ok(Some("its ACL or named attributes would be lost"))
    }

    /// Gives a partial file the mode of a new one, unless the server ignores modes.
    async fn give_mode(&self, path: &str, mode: u32) -> Result<(), Failure> {
        if mode == PRIVATE_MODE {
            return Ok(());
        }
        // Setting an equal mode would change the ACL that its folder has handed down.
        let made = either!(&self.mount, mount => mount.stat(path).await)?.mode;
        if made & 0o7777 == mode {
            return Ok(());
        }
        match self.set(path, SetAttributes { mode: Some(mode), ..SetAttributes::default() }).await {
            Err(e) if e.status().is_some() => {
                tracing::debug!("{path} cannot get its mode: {e}");
                if made & mode & SHOWN != mode & SHOWN {
                    note!("weft: the server does not let us set modes: new files have {:04o}", made & 0o7777);
                }
                Ok(())
            }
            set => Ok(set?),
        }
    }

    /// Overwrites `to` while no other command does, because two of them would mix their contents. A marker file
    /// beside it excludes others. Over version 4 the marker is open, and the server closes it if the command is
    /// killed; over version 3 it stays then.
    async fn overwrite_alone(&self, from: &str, to: &str) -> Result<(), Failure> {
        let marker = beside(to, "");
        let set = made(FILE_MODE);
        let turn = match &self.mount {
            Mounted::V3(mount) => match mount.create_new(&marker, set).await {
                Err(e) if e.status() == Some(Status::EXIST) => {
                    let left = format!("{UNDER_WAY}, or was killed: then remove {marker}");
                    return Err(left.into());
                }
                made => made?,
            },
            Mounted::V4(mount) => mount.create_alone(&marker, set).await.map_err(in_use)?,
        };
        let overwritten = self.overwrite(from, to).await;
        // The next command may come when this is closed, and creates a new marker.
        let removed = self.remove(&marker).await;
        turn.close().await?;
        overwritten.and(removed)
    }

    /// Gives a file the mode and owner of another; false if the server does not allow it.
    async fn take_attributes(&self, path: &str, of: &Attributes) -> Result<bool, Failure> {
        let ours = either!(&self.mount, mount => mount.stat(path).await)?;
        let set = SetAttributes {
            // The set-id bits certified the old content.
            mode: (ours.mode & 0o7777 != of.mode & 0o1777).then_some(of.mode & 0o1777),
            uid: (ours.uid != of.uid).then_some(of.uid),
            gid: (ours.gid != of.gid).then_some(of.gid),
            ..SetAttributes::default()
        };
        if (set.mode, set.uid, set.gid) == (None, None, None) {
            return Ok(true);
        }
        match self.set(path, set).await {
            Ok(()) => Ok(true),
            Err(e) if e.status().is_some() => {
                tracing::debug!("{path} cannot get the owner and mode of the file it replaces: {e}");
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    async fn set(&self, path: &str, set: SetAttributes) -> Result<(), Error> {
        match &self.mount {
            Mounted::V3(mount) => mount.setattr(mount.lookup(path).await?.0, set).await,
            Mounted::V4(mount) => mount.setattr(path, &set).await,
        }
    }

    /// Copies the content of one file into another, and removes the first.
    async fn overwrite(&self, from: &str, to: &str) -> Result<(), Failure> {
        let (source, target) = match &self.mount {
            Mounted::V3(mount) => (mount.open(from).await?, mount.open(to).await?),
            Mounted::V4(mount) => (mount.open(from, false).await?, mount.open(to, true).await?),
        };
        let found = source.stat().await?;
        let blocks = (0..found.size.div_ceil(BLOCK_BYTES)).map(|i| {
            let (source, target, offset) = (&source, &target, i * BLOCK_BYTES);
            async move {
                let bytes = source.read(offset, BLOCK_BYTES.min(found.size - offset) as usize).await?;
                target.write(offset, bytes).await
            }
        });
        let mut copying = stream::iter(blocks).buffer_unordered(QUEUE_DEPTH);
        while let Some(copied) = copying.next().await {
            copied?;
        }
        drop(copying);
        target.set_len(found.size).await?;
        let mtime = SetTime::Client(found.mtime);
        target.set(SetAttributes { mtime, ..SetAttributes::default() }).await?;
        target.commit().await?;
        target.close().await?;
        source.close().await?;
        Ok(either!(&self.mount, mount => mount.remove(from).await)?)
    }
}

/// What the server shows of a file's extras; `None` if it does not say.
fn shown(asked: Result<v4::Extras, Error>) -> Result<Option<v4::Extras>, Failure> {
    match asked {
        Ok(extras) => Ok(Some(extras)),
        Err(Error::Status4(Status4::NOTSUPP | Status4::ATTRNOTSUPP)) => {
            Ok(Some(v4::Extras { acl: None, named_attributes: false }))
        }
        // An ACL that is too long for us, or that we may not read.
        Err(e @ (Error::Malformed(_) | Error::Status4(_) | Error::Rpc(_))) => {
            tracing::debug!("an ACL cannot be compared: {e}");
            Ok(None)
        }
        Err(e) => Err(e.into()),
    }
}
