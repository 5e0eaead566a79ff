//! The bytes of one named stream: in an extended attribute of its file while they fit there, else in a file of their own.
//!
//! Spec: [MS-FSA] 2.1.1.4. The attribute is `user.weft.stream.NAME`; what lies beside it is [`super::depot`]'s.
//! Owns: the content of a stream that is open. A small one is a file in memory that every change brings back into the attribute; one
//! that does not fit moves out once and stays out: its file is written first, then one change of the attribute leads to it, so
//! that a crash leaves the stream as it was or as it is. From then on it is read and written as any file is.
//! Limits: [`MAX_SMALL_BYTES`] in an attribute, or what the file system keeps of them (ext4: 4 KiB of a file together);
//! [`MAX_STREAM_BYTES`] beside. Does not: see what another program writes to a small stream while it is open here.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use futures_util::lock::MutexGuard as Alone;
use weft_machine::File;

use super::depot::{self, ATTRIBUTES, Kept};
use super::object::Plain;
use super::open_stream::OpenStream;
use super::{
    Attr, Backend, Done, Error, Hold, MAX_XATTR_NAME, MAX_XATTR_VALUE, NodeId, Object, ObjectOp, Op,
    OpenFile, Outcome, SetAttr, SetXattr,
};

/// The longest stream, in bytes.
pub const MAX_STREAM_BYTES: u64 = 1 << 40;
/// The longest name of a stream, in bytes.
pub const MAX_STREAM_NAME: usize = MAX_XATTR_NAME - ATTRIBUTES.len();
/// The longest stream that is kept in an attribute.
const MAX_SMALL_BYTES: u64 = MAX_XATTR_VALUE as u64;

/// One stream that somebody looked up.
pub(super) struct Stream {
    pub(super) id: NodeId,
    /// Of which file or directory.
    pub(super) base: NodeId,
    pub(super) backend: Arc<dyn Backend>,
    name: Mutex<Vec<u8>>,
    /// Its bytes, while it is open.
    content: Mutex<Weak<Content>>,
    /// Held while a small one is changed and kept, or moves: no older bytes follow newer ones, and none are written behind its back.
    changing: futures_util::lock::Mutex<()>,
    /// It has no name any more: what is still written to it is not kept.
    removed: AtomicBool,
    /// It was made here, and nobody has been told that it is durable.
    unpromised: AtomicBool,
    /// The names that lead to its own file are durable: nothing is known of those that an earlier run has made.
    named_durably: AtomicBool,
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
    /// Its file, if it has one of its own.
    pub(super) fn large(&self) -> Option<&OpenFile> {
        match self {
            Content::Small { grown, .. } => grown.get(),
            Content::Large(file) => Some(file),
        }
    }

    /// Where its bytes are now.
    pub(super) fn object(&self) -> &dyn Object {
        match self {
            Content::Small { memory, grown } => grown.get().map_or(memory as &dyn Object, OpenFile::object),
            Content::Large(file) => file.object(),
        }
    }

    /// How many bytes.
    pub(super) async fn len(&self) -> Result<u64, Error> {
        match self.object().submit(ObjectOp::Len).await? {
            Done::Len(len) => Ok(len),
            other => unreachable!("the object answered {other:?}"),
        }
    }
}

/// How much a stream holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) size: u64,
    pub(super) allocated: u64,
}

impl Extent {
    fn small(size: u64) -> Extent {
        // Beside the file it takes what it takes, in units that nobody sees.
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
    // What these guard is replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn xattr(name: &[u8]) -> Vec<u8> {
    [ATTRIBUTES, name].concat()
}

/// What the attribute of a stream says; [`Error::NoXattr`] where there is none.
pub(super) async fn get(backend: &dyn Backend, node: NodeId, name: &[u8]) -> Result<Kept, Error> {
    match backend.submit(Op::GetXattr { node, name: xattr(name) }).await? {
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
    backend.submit(Op::SetXattr { node, name: xattr(name), value: kept.emit(), how }).await.map(drop)
}

pub(super) async fn remove(backend: &dyn Backend, node: NodeId, name: &[u8]) -> Result<(), Error> {
    backend.submit(Op::RemoveXattr { node, name: xattr(name) }).await.map(drop)
}

/// Names of a file's streams, in order.
pub(super) async fn names(backend: &dyn Backend, node: NodeId) -> Result<Vec<Vec<u8>>, Error> {
    let names = match backend.submit(Op::ListXattrs { node }).await? {
        Outcome::Names(names) => names,
        other => unreachable!("backend answered {other:?}"),
    };
    let mut names: Vec<_> =
        names.iter().filter_map(|name| name.strip_prefix(ATTRIBUTES)).map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    Ok(names)
}

/// How much a stream that nobody has open holds. [`Error::NoXattr`] where there is none, and where its attribute leads to no
/// file: it came with a copy that another program made of a file.
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

/// The numbers of files that streams of `base` lead to.
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

/// Whether a value did not fit among the attributes of a file.
pub(super) fn is_full(e: &Error) -> bool {
    matches!(e, Error::NoSpace | Error::XattrTooBig | Error::TooLarge)
}

/// A stream whose attribute is not there any more is as gone as a file without a name.
pub(super) fn gone(e: Error) -> Error {
    if matches!(e, Error::NoXattr) { Error::Stale } else { e }
}

impl Stream {
    /// `made` if it did not exist a moment ago.
    pub(super) fn new(
        id: NodeId,
        base: NodeId,
        backend: Arc<dyn Backend>,
        name: Vec<u8>,
        made: bool,
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

    /// Its name is gone; whoever has it open keeps its bytes.
    pub(super) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Nobody else changes it, or where it lies.
    pub(super) async fn alone(&self) -> Alone<'_, ()> {
        self.changing.lock().await
    }

    /// Its name, while it has one: another stream may be called so by now.
    pub(super) fn linked(&self) -> Result<Vec<u8>, Error> {
        if self.is_removed() { Err(Error::Stale) } else { Ok(self.name()) }
    }

    pub(super) fn content(&self) -> Option<Arc<Content>> {
        lock(&self.content).upgrade()
    }

    /// How much it holds now.
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

    async fn load(&self) -> Result<Arc<Content>, Error> {
        if let Some(content) = self.content() {
            return Ok(content);
        }
        // Not while it moves: the file would be taken for the whole of it before it is.
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

    /// Keeps it, and its file, within reach.
    pub(super) async fn hold(self: Arc<Stream>) -> Result<Hold, Error> {
        match self.backend.submit(Op::Hold { node: self.base }).await? {
            Outcome::Held(hold) => Ok(Hold::new(Arc::new((self, hold)))),
            other => unreachable!("backend answered {other:?}"),
        }
    }

    /// Opens its bytes.
    pub(super) async fn open(self: &Arc<Stream>, write: bool) -> Result<OpenFile, Error> {
        let content = self.load().await?;
        if write && content.large().is_some_and(|file| file.object().is_read_only()) {
            return Err(Error::Access);
        }
        let file = OpenFile::new(self.id, Arc::new(OpenStream::new(self.clone(), content)));
        Ok(if write { file } else { file.read_only() })
    }

    /// Truncates or extends.
    pub(super) async fn set_size(self: &Arc<Stream>, size: u64) -> Result<(), Error> {
        let content = self.load().await?;
        let _alone = self.begin(&content, size).await?;
        match content.large() {
            // The backend counts what is in use.
            Some(file) if !self.is_removed() => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                self.backend.submit(Op::Setattr { node: file.node, set }).await?;
                Ok(())
            }
            Some(file) => file.object().submit(ObjectOp::Resize { size }).await.map(drop),
            None => {
                content.object().submit(ObjectOp::Resize { size }).await?;
                self.save(&content).await
            }
        }
    }

    /// Before a change that ends at `end`. A small stream is changed by one at a time, who holds the answer until it is kept; one that
    /// outgrows its attribute moves first.
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
        // There is nothing that could lead to a file of its own.
        if self.is_removed() {
            return Err(Error::NoSpace);
        }
        self.move_out(content).await?;
        Ok(None)
    }

    /// After a change of a small stream: brings its bytes back beside the file, or takes the change back where that cannot be done.
    /// Whoever calls has it to himself.
    pub(super) async fn save(&self, content: &Content) -> Result<(), Error> {
        if content.large().is_some() || self.is_removed() {
            return Ok(());
        }
        let saved = self.keep(content).await;
        if saved.is_err()
            && let Content::Small { memory, .. } = content
            // Who was told that it failed must not see it, nor have it kept with the next change.
            && let Ok(Kept::Here(bytes)) =
                get(&*self.backend, self.base, &self.name()).await.map(Kept::or_no_bytes)
        {
            // In this order: whoever reads meanwhile never finds it empty, and a write that fails leaves no less than there was.
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

    /// Gives it a file of its own, whatever its size. False where that gives no room back: it has one, and somebody else has put
    /// bytes into its attribute since (the host, or another share of the folder).
    pub(super) async fn leave(&self) -> Result<bool, Error> {
        let content = self.load().await?;
        let _alone = self.alone().await;
        if content.large().is_none() {
            return self.move_out(&content).await.map(|()| true);
        }
        let kept = get(&*self.backend, self.base, &self.linked()?).await.map_err(gone)?;
        Ok(!matches!(kept, Kept::Here(_)))
    }

    /// Whoever calls has it to himself.
    async fn move_out(&self, content: &Content) -> Result<(), Error> {
        let Content::Small { memory, grown } = content else { return Ok(()) };
        let (backend, base, name) = (&*self.backend, self.base, self.linked()?);
        let (number, node) = depot::make(backend, base).await?;
        // What is known of names is known of those of an earlier file, in another folder perhaps.
        self.named_durably.store(false, Ordering::Release);
        let moved = async {
            let file = depot::open(&self.backend, node).await?;
            let bytes = read(&memory.0)?;
            let promised = !bytes.is_empty() || !self.unpromised.load(Ordering::Acquire);
            if !bytes.is_empty() {
                file.write(0, &[bytes.into()]).await?;
            }
            // What was acknowledged before must not depend on what is written after it.
            if promised {
                Box::pin(file.sync()).await?;
                self.sync_names().await?;
            }
            set(backend, base, &name, Kept::Beside(number), SetXattr::Either).await?;
            Ok(file)
        };
        match moved.await {
            Ok(file) => {
                // There is one mover at a time.
                let _ = grown.set(file);
                Ok(())
            }
            Err(e) => {
                // Nothing leads to what stays: who looks for such files removes it.
                let _ = depot::remove(backend, base, number).await;
                Err(e)
            }
        }
    }

    /// Makes the names durable that lead to its file.
    async fn sync_names(&self) -> Result<(), Error> {
        if !self.named_durably.load(Ordering::Acquire) && depot::sync_names(&*self.backend, self.base).await?
        {
            self.named_durably.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Before it takes the place of another, whose bytes were promised perhaps: makes its own durable, and the names that lead to them.
    /// What lies in its attribute moves with that. Whoever calls has it to himself.
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

    /// Makes it durable: its bytes, the names that lead to them, and the attribute that holds them or tells where they are.
    pub(super) async fn sync(&self, content: &Content) -> Result<(), Error> {
        self.unpromised.store(false, Ordering::Release);
        if content.large().is_none() {
            // Whoever moves it at the moment may not know that yet, whichever flush this is.
            drop(self.alone().await);
        }
        let large = content.large();
        if let Some(file) = large {
            Box::pin(file.sync()).await?;
        }
        if self.is_removed() {
            return Ok(());
        }
        if large.is_some() {
            self.sync_names().await?;
        }
        let node = self.base;
        match self.backend.submit(Op::Open { node, write: false }).await {
            Ok(Outcome::File(file)) => Box::pin(file.sync()).await,
            Ok(other) => unreachable!("backend answered {other:?}"),
            Err(Error::IsDir) => self.backend.submit(Op::SyncDir { dir: node }).await.map(drop),
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
