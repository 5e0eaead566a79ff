//! The bytes of one named stream: in an extended attribute of its file if they fit, otherwise in a file of their own.
//!
//! [MS-FSA] 2.1.1.4. The attribute is `user.weft.stream.NAME`; [`super::depot`] has the files. A small open stream is
//! a file in memory that every change writes back to the attribute. A stream that does not fit moves out once and
//! stays out: its file is written first, then one change of the attribute refers to it, so that a crash leaves the
//! stream either before or after the move. From then on it is read and written like any file.
//! Limits: [`MAX_SMALL_BYTES`] in an attribute, or what the file system allows (ext4: 4 KiB for all attributes of a
//! file); [`MAX_STREAM_BYTES`] in a file. Changes by another program to a small stream are not seen while it is open
//! here.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use futures_util::lock::MutexGuard as Alone;
use weft_machine::File;

use super::depot::{self, ATTRIBUTES, Kept};
use super::flushes::{Failures, Flushes};
use super::object::Plain;
use super::watch::Witness;
use super::{
    Action, Attr, Backend, Caller, Done, Error, Hold, MAX_XATTR_NAME, MAX_XATTR_VALUE, NodeId, Object,
    ObjectOp, Op, OpenFile, Outcome, SetAttr, SetXattr, What,
};

/// The longest stream, in bytes.
pub const MAX_STREAM_BYTES: u64 = 1 << 40;
/// The longest name of a stream, in bytes.
pub const MAX_STREAM_NAME: usize = MAX_XATTR_NAME - ATTRIBUTES.len();
/// The longest stream that is stored in an attribute.
const MAX_SMALL_BYTES: u64 = MAX_XATTR_VALUE as u64;

/// A stream that was looked up.
pub(super) struct Stream {
    pub(super) id: NodeId,
    /// Its file or directory.
    pub(super) base: NodeId,
    pub(super) backend: Arc<dyn Backend>,
    name: Mutex<Vec<u8>>,
    /// Its bytes, while it is open.
    content: Mutex<Weak<Content>>,
    /// Held while a small stream is changed and stored, or moved: so older bytes never overwrite newer ones, and no
    /// write is lost in a move.
    changing: futures_util::lock::Mutex<()>,
    /// Whether it has lost its name: further writes to it are not stored.
    removed: AtomicBool,
    /// Whether it was created in this run, and nobody has been told that it is durable.
    unpromised: AtomicBool,
    /// Whether the names that lead to its file are known to be durable: unknown for those of an earlier run.
    named_durably: AtomicBool,
    /// Its opens share the descriptor of its file, and the kernel reports a failed flush to one of them only.
    flushes: Flushes,
    /// The failed ones.
    failures: Failures,
}

/// The bytes of an open stream.
#[derive(Debug)]
pub(super) enum Content {
    /// In memory, until it outgrows its attribute.
    Small {
        memory: Plain,
        grown: OnceLock<OpenFile>,
    },
    Large(OpenFile),
}

impl Content {
    /// Its own file, if it has one.
    pub(super) fn large(&self) -> Option<&OpenFile> {
        match self {
            Content::Small { grown, .. } => grown.get(),
            Content::Large(file) => Some(file),
        }
    }

    /// The object that holds its bytes now.
    pub(super) fn object(&self) -> &dyn Object {
        match self {
            Content::Small { memory, grown } => grown.get().map_or(memory as &dyn Object, OpenFile::object),
            Content::Large(file) => file.object(),
        }
    }

    /// Its length in bytes.
    pub(super) async fn len(&self) -> Result<u64, Error> {
        match self.object().submit(ObjectOp::Len).await? {
            Done::Len(len) => Ok(len),
            other => unreachable!("the object answered {other:?}"),
        }
    }
}

/// The size of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) size: u64,
    pub(super) allocated: u64,
}

impl Extent {
    fn small(size: u64) -> Extent {
        // Its allocation in a file is not visible to clients.
        Extent { size, allocated: size.next_multiple_of(8) }
    }

    fn large(attr: &Attr) -> Extent {
        Extent { size: attr.size, allocated: attr.allocated }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:?} of {:?})", self.id, self.base)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values under these locks are replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn xattr(name: &[u8]) -> Vec<u8> {
    [ATTRIBUTES, name].concat()
}

/// The contents of a stream's attribute; [`Error::NoXattr`] if there is none.
pub(super) async fn get(backend: &dyn Backend, node: NodeId, name: &[u8]) -> Result<Kept, Error> {
    match backend.submit(Op::GetXattr { node, name: xattr(name) }, Caller::Server).await? {
        Outcome::Value(value) => Ok(Kept::parse(value)),
        other => unreachable!("backend answered {other:?}"),
    }
}

pub(super) async fn set(
    backend: &dyn Backend,
    node: NodeId,
    name: &[u8],
    kept: Kept,
    how: SetXattr,
) -> Result<(), Error> {
    backend
        .submit(Op::SetXattr { node, name: xattr(name), value: kept.emit(), how }, Caller::Server)
        .await
        .map(drop)
}

pub(super) async fn remove(backend: &dyn Backend, node: NodeId, name: &[u8]) -> Result<(), Error> {
    backend.submit(Op::RemoveXattr { node, name: xattr(name) }, Caller::Server).await.map(drop)
}

/// Names of a file's streams, in order.
pub(super) async fn names(backend: &dyn Backend, node: NodeId) -> Result<Vec<Vec<u8>>, Error> {
    let names = match backend.submit(Op::ListXattrs { node }, Caller::Server).await? {
        Outcome::Names(names) => names,
        other => unreachable!("backend answered {other:?}"),
    };
    let mut names: Vec<_> =
        names.iter().filter_map(|name| name.strip_prefix(ATTRIBUTES)).map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    Ok(names)
}

/// The size of a stream that is not open. [`Error::NoXattr`] if it does not exist, or if its attribute refers to no
/// file because another program has copied the file.
pub(super) async fn extent(backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<Extent, Error> {
    match get(backend, base, name).await? {
        Kept::Here(value) => Ok(Extent::small(value.len() as u64)),
        Kept::EMPTY => Ok(Extent::small(0)),
        Kept::Beside(number) => match depot::find(backend, base, number).await? {
            Some(attr) => Ok(Extent::large(&attr)),
            None => Err(Error::NoXattr),
        },
    }
}

/// The numbers of files to which streams of `base` refer.
pub(super) async fn numbers(backend: &dyn Backend, base: NodeId) -> Result<Vec<u64>, Error> {
    let mut numbers = Vec::new();
    for name in names(backend, base).await? {
        match get(backend, base, &name).await {
            Ok(Kept::Beside(number)) => numbers.push(number),
            Ok(Kept::Here(_)) | Err(Error::NoXattr) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(numbers)
}

/// Whether a value did not fit into the attributes of a file.
pub(super) fn is_full(e: &Error) -> bool {
    matches!(e, Error::NoSpace | Error::XattrTooBig | Error::TooLarge)
}

/// A stream without an attribute counts as removed, like a file without a name.
pub(super) fn gone(e: Error) -> Error {
    if matches!(e, Error::NoXattr) { Error::Stale } else { e }
}

impl Stream {
    /// `made` if it did not exist a moment ago; `failures` counts its failed flushes.
    pub(super) fn new(
        id: NodeId,
        base: NodeId,
        backend: Arc<dyn Backend>,
        name: Vec<u8>,
        made: bool,
        failures: Failures,
    ) -> Stream {
        Stream {
            id,
            base,
            backend,
            name: Mutex::new(name),
            content: Mutex::default(),
            changing: futures_util::lock::Mutex::default(),
            removed: AtomicBool::new(false),
            unpromised: AtomicBool::new(made),
            named_durably: AtomicBool::new(false),
            flushes: Flushes::new(failures.clone()),
            failures,
        }
    }

    pub(super) fn name(&self) -> Vec<u8> {
        lock(&self.name).clone()
    }

    pub(super) fn set_name(&self, name: Vec<u8>) {
        *lock(&self.name) = name;
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Marks it as removed; clients that have it open keep its bytes.
    pub(super) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Excludes other tasks that change or move it.
    pub(super) async fn alone(&self) -> Alone<'_, ()> {
        self.changing.lock().await
    }

    /// Its name, while it has one: another stream may have that name by now.
    pub(super) fn linked(&self) -> Result<Vec<u8>, Error> {
        if self.is_removed() { Err(Error::Stale) } else { Ok(self.name()) }
    }

    pub(super) fn content(&self) -> Option<Arc<Content>> {
        lock(&self.content).upgrade()
    }

    /// Reports a change of its bytes to `witness`.
    pub(super) async fn modified(&self, witness: &Witness) {
        let what = What::STREAM_WRITTEN | What::STREAM_SIZE;
        witness.streams(self.base, &[(&self.name(), what, Action::StreamModified)]).await;
    }

    /// Its current size.
    pub(super) async fn extent(&self) -> Result<Extent, Error> {
        if let Some(content) = self.content() {
            return match content.large() {
                None => Ok(Extent::small(content.len().await?)),
                Some(file) => {
                    let size = file.len().await?;
                    let allocated = match file.object().content() {
                        Some(file) => file.links_and_allocated()?.1,
                        None => size,
                    };
                    Ok(Extent { size, allocated })
                }
            };
        }
        extent(&*self.backend, self.base, &self.linked()?).await.map_err(gone)
    }

    /// Its bytes, opened unless they are in use.
    pub(super) async fn load(&self) -> Result<Arc<Content>, Error> {
        if let Some(content) = self.content() {
            return Ok(content);
        }
        // Not during a move: the file is incomplete until the move is finished.
        let _alone = self.alone().await;
        if let Some(content) = self.content() {
            return Ok(content);
        }
        let (backend, base, name) = (&*self.backend, self.base, self.linked()?);
        let content = match get(backend, base, &name).await.map_err(gone)? {
            kept @ (Kept::Here(_) | Kept::EMPTY) => {
                let memory = File::in_memory("weft-stream")?;
                if let Kept::Here(value) = kept {
                    memory.write_at(0, &[value.into()]).await?;
                }
                Content::Small { memory: Plain(memory), grown: OnceLock::new() }
            }
            Kept::Beside(number) => {
                let found = depot::find(backend, base, number).await?.ok_or(Error::Stale)?;
                Content::Large(depot::open(&self.backend, found.node).await?)
            }
        };
        let content = Arc::new(content);
        *lock(&self.content) = Arc::downgrade(&content);
        Ok(content)
    }

    /// Keeps it and its file accessible.
    pub(super) async fn hold(self: Arc<Stream>) -> Result<Hold, Error> {
        match self.backend.submit(Op::Hold { node: self.base }, Caller::Server).await? {
            Outcome::Held(hold) => Ok(Hold::new(Arc::new((self, hold)))),
            other => unreachable!("backend answered {other:?}"),
        }
    }

    /// Truncates or extends.
    pub(super) async fn set_size(self: &Arc<Stream>, size: u64) -> Result<(), Error> {
        let content = self.load().await?;
        let _alone = self.begin(&content, size).await?;
        match content.large() {
            // The backend counts the space in use.
            Some(file) if !self.is_removed() => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                self.backend.submit(Op::Setattr { node: file.node, set }, Caller::Server).await?;
                Ok(())
            }
            Some(file) => file.object().submit(ObjectOp::Resize { size }).await.map(drop),
            None => {
                content.object().submit(ObjectOp::Resize { size }).await?;
                self.save(&content).await
            }
        }
    }

    /// Prepares a change that ends at `end`. A small stream is changed by one task at a time, which holds the result
    /// until the change is stored; a stream that outgrows its attribute is moved first.
    pub(super) async fn begin(&self, content: &Content, end: u64) -> Result<Option<Alone<'_, ()>>, Error> {
        if end > MAX_STREAM_BYTES {
            return Err(Error::NoSpace);
        }
        if content.large().is_some() {
            return Ok(None);
        }
        let alone = self.alone().await;
        if content.large().is_some() {
            return Ok(None);
        }
        if end <= MAX_SMALL_BYTES {
            return Ok(Some(alone));
        }
        // A removed stream cannot have a file that anything refers to.
        if self.is_removed() {
            return Err(Error::NoSpace);
        }
        self.move_out(content).await?;
        Ok(None)
    }

    /// After a change of a small stream: stores its bytes in the attribute, or undoes the change if that fails. The
    /// caller has exclusive access.
    pub(super) async fn save(&self, content: &Content) -> Result<(), Error> {
        if content.large().is_some() || self.is_removed() {
            return Ok(());
        }
        let saved = self.keep(content).await;
        if saved.is_err()
            && let Content::Small { memory, .. } = content
            // A caller that was told about the failure must not see the change, nor may the next change store it.
            && let Ok(Kept::Here(bytes)) =
                get(&*self.backend, self.base, &self.name()).await.map(Kept::or_no_bytes)
        {
            // In this order, concurrent readers never find it empty, and a failing write leaves no less than before.
            let len = bytes.len() as u64;
            memory.0.write_at(0, &[bytes.into()]).await?;
            memory.0.set_len(len)?;
        }
        saved
    }

    async fn keep(&self, content: &Content) -> Result<(), Error> {
        if let Content::Small { memory, .. } = content
            && let Some(kept) = Kept::here(read(&memory.0)?)
        {
            match set(&*self.backend, self.base, &self.name(), kept, SetXattr::Either).await {
                Err(e) if is_full(&e) => {}
                other => return other,
            }
        }
        self.move_out(content).await
    }

    /// Gives it its own file, whatever its size. False if that frees no space: it already has one, and another
    /// program or share of the folder has since put bytes into its attribute.
    pub(super) async fn leave(&self) -> Result<bool, Error> {
        let content = self.load().await?;
        let _alone = self.alone().await;
        if content.large().is_none() {
            return self.move_out(&content).await.map(|()| true);
        }
        let kept = get(&*self.backend, self.base, &self.linked()?).await.map_err(gone)?;
        Ok(!matches!(kept, Kept::Here(_)))
    }

    /// The caller has exclusive access.
    async fn move_out(&self, content: &Content) -> Result<(), Error> {
        let Content::Small { memory, grown } = content else { return Ok(()) };
        let (backend, base, name) = (&*self.backend, self.base, self.linked()?);
        let (number, node) = depot::make(backend, base).await?;
        // The knowledge about names refers to those of an earlier file, possibly in another folder.
        self.named_durably.store(false, Ordering::Release);
        let moved = async {
            let file = depot::open(&self.backend, node).await?;
            let bytes = read(&memory.0)?;
            let promised = !bytes.is_empty() || !self.unpromised.load(Ordering::Acquire);
            if !bytes.is_empty() {
                file.write(0, &[bytes.into()]).await?;
            }
            // Data acknowledged before must not depend on data written later.
            if promised {
                Box::pin(file.sync()).await?;
                self.sync_names().await?;
            }
            set(backend, base, &name, Kept::Beside(number), SetXattr::Either).await?;
            Ok(file)
        };
        match moved.await {
            Ok(file) => {
                // Only one task moves it at a time.
                let _ = grown.set(file);
                Ok(())
            }
            Err(e) => {
                // Nothing refers to the leftover file, so the periodic check removes it.
                let _ = depot::remove(backend, base, number).await;
                Err(e)
            }
        }
    }

    /// The number of failed flushes of its file.
    pub(super) fn failed_flushes(&self) -> u64 {
        self.failures.count()
    }

    /// Makes the names that lead to its file durable.
    async fn sync_names(&self) -> Result<(), Error> {
        if !self.named_durably.load(Ordering::Acquire) && depot::sync_names(&*self.backend, self.base).await?
        {
            self.named_durably.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Before it replaces another stream, whose bytes may have been guaranteed: makes its own bytes durable, and the
    /// names that lead to them. Bytes in its attribute move with the rename. The caller has exclusive access.
    pub(super) async fn promise(&self) -> Result<(), Error> {
        self.unpromised.store(false, Ordering::Release);
        let (backend, base) = (&*self.backend, self.base);
        let kept = get(backend, base, &self.linked()?).await.map_err(gone)?;
        let Kept::Beside(number @ 1..) = kept else { return Ok(()) };
        let found = depot::find(backend, base, number).await?.ok_or(Error::Stale)?;
        let file = depot::open(&self.backend, found.node).await?;
        Box::pin(file.sync()).await?;
        self.sync_names().await
    }

    /// Makes it durable: its bytes, the names that lead to them, and the attribute with them or with the reference to
    /// their file.
    pub(super) async fn sync(&self, content: &Content) -> Result<(), Error> {
        self.unpromised.store(false, Ordering::Release);
        if content.large().is_none() {
            // A concurrent move may not know that yet, whichever flush this is.
            drop(self.alone().await);
        }
        let large = content.large();
        if let Some(file) = large {
            let flush = |ended| file.object().submit(ObjectOp::Sync { ended });
            Box::pin(self.flushes.run(flush)).await?;
        }
        if self.is_removed() {
            return Ok(());
        }
        if large.is_some() {
            self.sync_names().await?;
        }
        let node = self.base;
        match self.backend.submit(Op::Open { node, write: false }, Caller::Server).await {
            Ok(Outcome::File(file)) => Box::pin(file.sync()).await,
            Ok(other) => unreachable!("backend answered {other:?}"),
            Err(Error::IsDir) => {
                self.backend.submit(Op::SyncDir { dir: node }, Caller::Server).await.map(drop)
            }
            Err(e) => Err(e),
        }
    }
}

/// All bytes of a small stream.
fn read(file: &File) -> Result<Vec<u8>, Error> {
    let mut value = vec![0; usize::try_from(file.len()?).map_err(|_| Error::NoSpace)?];
    let mut done = 0;
    while let Some(rest) = value.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, done as u64) {
            Ok(0) => break,
            Ok(n) => done = done.saturating_add(n),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(value)
}
