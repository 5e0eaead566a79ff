//! Named streams of files and directories: bytes beside the bytes, which go where the file goes.
//!
//! Spec: [MS-FSCC] 2.1.5.3 (names), [MS-FSA] 2.1.1.4 (streams). A stream is the extended attribute
//! `user.weft.stream.NAME`, so that it moves, is copied and removed with its file by every program.
//! Owns: the numbers of streams, and the content of those that are open, as a file in memory that every write brings
//! back beside the file. Limits: [`MAX_STREAM_BYTES`] each, and what the file system keeps of extended attributes (ext4
//! without `ea_inode`: 4 KiB of a file together); [`MAX_KNOWN`] streams that nobody holds are remembered.
//! Does not: see what another program writes to a stream while it is open here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weft_machine::File;

use super::file::Quota;
use super::{Backend, Error, Hold, MAX_XATTR_NAME, MAX_XATTR_VALUE, NodeId, Op, OpenFile, Outcome, SetXattr};
use crate::backend::fold;

/// The longest stream, in bytes.
pub const MAX_STREAM_BYTES: u64 = MAX_XATTR_VALUE as u64;
/// The longest name of a stream, in bytes.
pub const MAX_STREAM_NAME: usize = MAX_XATTR_NAME - PREFIX.len();
/// Streams remembered that nobody holds.
const MAX_KNOWN: usize = 4096;

const PREFIX: &[u8] = b"weft.stream.";
/// Set in the numbers of streams, and of nothing else: backends count from one.
const STREAM: u64 = 1 << 63;

/// A stream, as a list of them tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEntry {
    /// Its name, without the file's and without a type.
    pub name: Vec<u8>,
    /// Bytes.
    pub size: u64,
}

/// One stream that somebody looked up.
pub(super) struct Stream {
    pub(super) id: NodeId,
    /// Of which file or directory.
    pub(super) base: NodeId,
    backend: Arc<dyn Backend>,
    name: Mutex<Vec<u8>>,
    /// Its bytes, while it is open.
    content: Mutex<Weak<Content>>,
    /// Held from the look at its bytes until they are kept, so that no older ones follow newer ones.
    saving: futures_util::lock::Mutex<()>,
    /// It has no name any more: what is still written to it is not kept.
    removed: AtomicBool,
}

struct Content(File);

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:?} of {:?})", self.id, self.base)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these guard is replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn xattr(name: &[u8]) -> Vec<u8> {
    [PREFIX, name].concat()
}

async fn get(backend: &dyn Backend, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Error> {
    match backend.submit(Op::GetXattr { node, name: xattr(name) }).await? {
        Outcome::Value(value) => Ok(value),
        other => unreachable!("backend answered {other:?}"),
    }
}

async fn set(
    backend: &dyn Backend,
    node: NodeId,
    name: &[u8],
    value: Vec<u8>,
    how: SetXattr,
) -> Result<(), Error> {
    backend.submit(Op::SetXattr { node, name: xattr(name), value, how }).await.map(drop)
}

async fn remove(backend: &dyn Backend, node: NodeId, name: &[u8]) -> Result<(), Error> {
    backend.submit(Op::RemoveXattr { node, name: xattr(name) }).await.map(drop)
}

impl Stream {
    pub(super) fn name(&self) -> Vec<u8> {
        lock(&self.name).clone()
    }

    /// Its name, while it has one: another stream may be called so by now.
    fn linked(&self) -> Result<Vec<u8>, Error> {
        if self.removed.load(Ordering::Acquire) { Err(Error::Stale) } else { Ok(self.name()) }
    }

    fn content(&self) -> Option<Arc<Content>> {
        lock(&self.content).upgrade()
    }

    /// Bytes now.
    pub(super) async fn size(&self) -> Result<u64, Error> {
        if let Some(content) = self.content() {
            return Ok(content.0.len()?);
        }
        let name = self.linked()?;
        get(&*self.backend, self.base, &name).await.map(|value| value.len() as u64).map_err(gone)
    }

    async fn load(&self) -> Result<Arc<Content>, Error> {
        if let Some(content) = self.content() {
            return Ok(content);
        }
        let name = self.linked()?;
        let value = get(&*self.backend, self.base, &name).await.map_err(gone)?;
        let file = File::in_memory("weft-stream")?;
        file.write_at(0, &[value.into()]).await?;
        let content = Arc::new(Content(file));
        let mut kept = lock(&self.content);
        // Another core was as fast: its bytes are the ones that others write to.
        if let Some(content) = kept.upgrade() {
            return Ok(content);
        }
        *kept = Arc::downgrade(&content);
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
        let limit = Arc::new(Limit { _content: content.clone() });
        let file = OpenFile::new(self.id, content.0.clone(), Some(limit)).of_stream(self.clone());
        Ok(if write { file } else { file.read_only() })
    }

    /// Truncates or extends.
    pub(super) async fn set_size(&self, size: u64) -> Result<(), Error> {
        if size > MAX_STREAM_BYTES {
            return Err(Error::NoSpace);
        }
        let content = self.load().await?;
        content.0.set_len(size)?;
        self.save().await
    }

    /// Keeps its bytes beside the file.
    pub(super) async fn save(&self) -> Result<(), Error> {
        let Some(content) = self.content().filter(|_| !self.removed.load(Ordering::Acquire)) else {
            return Ok(());
        };
        let _alone = self.saving.lock().await;
        let mut value = vec![0; usize::try_from(content.0.len()?).map_err(|_| Error::NoSpace)?];
        let mut done = 0;
        while done < value.len() {
            match rustix::io::pread(&content.0, &mut value[done..], done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        let name = self.name();
        set(&*self.backend, self.base, &name, value, SetXattr::Either).await
    }
}

/// A stream whose attribute is not there any more is as gone as a file without a name.
fn gone(e: Error) -> Error {
    if matches!(e, Error::NoXattr) { Error::Stale } else { e }
}

/// Keeps a stream within its limit, and its bytes in memory while it is open.
struct Limit {
    _content: Arc<Content>,
}

impl std::fmt::Debug for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Limit")
    }
}

impl Quota for Limit {
    fn grow(&self, _: u64, end: u64) -> Result<(), Error> {
        if end > MAX_STREAM_BYTES { Err(Error::NoSpace) } else { Ok(()) }
    }
}

/// The streams that somebody looked up.
#[derive(Default)]
pub(super) struct Streams(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_id: HashMap<NodeId, Arc<Stream>>,
    /// By file and folded name.
    ids: HashMap<(NodeId, Vec<u8>), NodeId>,
    last: u64,
}

impl Streams {
    /// Whether a number is that of a stream.
    pub(super) fn is_stream(node: NodeId) -> bool {
        node.0 & STREAM != 0
    }

    pub(super) fn find(&self, id: NodeId) -> Result<Arc<Stream>, Error> {
        lock(&self.0).by_id.get(&id).cloned().ok_or(Error::Stale)
    }

    /// Of which file a stream is; a file is its own.
    pub(super) fn base(&self, node: NodeId) -> Result<NodeId, Error> {
        if Streams::is_stream(node) { Ok(self.find(node)?.base) } else { Ok(node) }
    }

    /// All streams of a file, in the order of their names.
    pub(super) async fn list(&self, backend: &dyn Backend, base: NodeId) -> Result<Vec<StreamEntry>, Error> {
        let mut entries = Vec::new();
        for name in names(backend, base).await? {
            let known = self.known(base, &name);
            let size = match known.as_ref().and_then(|stream| stream.content()) {
                Some(content) => content.0.len()?,
                None => match get(backend, base, &name).await {
                    Ok(value) => value.len() as u64,
                    Err(Error::NoXattr) => continue,
                    Err(e) => return Err(e),
                },
            };
            entries.push(StreamEntry { name, size });
        }
        Ok(entries)
    }

    /// Whether a file has any.
    pub(super) async fn any(&self, backend: &dyn Backend, base: NodeId) -> Result<bool, Error> {
        Ok(!names(backend, base).await?.is_empty())
    }

    /// The streams of a file that somebody looked up.
    pub(super) fn of(&self, base: NodeId) -> Vec<NodeId> {
        lock(&self.0).by_id.values().filter(|stream| stream.base == base).map(|stream| stream.id).collect()
    }

    fn known(&self, base: NodeId, name: &[u8]) -> Option<Arc<Stream>> {
        let known = lock(&self.0);
        known.by_id.get(known.ids.get(&(base, fold(name)))?).cloned()
    }

    /// The stream of this name, in whatever case; made when there is none and `make`, which is told.
    pub(super) async fn look_up(
        &self,
        backend: &Arc<dyn Backend>,
        base: NodeId,
        name: &[u8],
        make: bool,
    ) -> Result<(Arc<Stream>, bool), Error> {
        if name.len() > MAX_STREAM_NAME {
            return Err(Error::NameTooLong);
        }
        let folded = fold(name);
        let found = names(&**backend, base).await?.into_iter().find(|known| fold(known) == folded);
        let made = found.is_none();
        let name = match found {
            Some(name) => name,
            None if make => {
                match set(&**backend, base, name, Vec::new(), SetXattr::Create).await {
                    // Somebody was faster.
                    Err(Error::Exists) => {}
                    other => other?,
                }
                name.to_vec()
            }
            None => return Err(Error::NotFound),
        };
        if let Some(stream) = self.known(base, &name) {
            return Ok((stream, made));
        }
        Ok((self.enter(backend, base, name), made))
    }

    fn enter(&self, backend: &Arc<dyn Backend>, base: NodeId, name: Vec<u8>) -> Arc<Stream> {
        let mut known = lock(&self.0);
        let key = (base, fold(&name));
        if let Some(stream) = known.ids.get(&key).and_then(|id| known.by_id.get(id)) {
            return stream.clone();
        }
        if known.by_id.len() >= MAX_KNOWN {
            // Whoever holds one keeps it.
            known.by_id.retain(|_, stream| Arc::strong_count(stream) > 1);
            let Known { by_id, ids, .. } = &mut *known;
            ids.retain(|_, id| by_id.contains_key(id));
        }
        known.last += 1;
        let id = NodeId(STREAM | known.last);
        let stream = Arc::new(Stream {
            id,
            base,
            backend: backend.clone(),
            name: Mutex::new(name),
            content: Mutex::default(),
            saving: futures_util::lock::Mutex::default(),
            removed: AtomicBool::new(false),
        });
        known.ids.insert(key, id);
        known.by_id.insert(id, stream.clone());
        stream
    }

    /// Takes a stream away; those who have it open keep its bytes. Its number, if somebody looked it up.
    pub(super) async fn remove(
        &self,
        backend: &dyn Backend,
        base: NodeId,
        name: &[u8],
    ) -> Result<Option<NodeId>, Error> {
        let known = self.known(base, name);
        let spelled = known.as_ref().map_or_else(|| name.to_vec(), |stream| stream.name());
        if let Some(stream) = &known {
            stream.removed.store(true, Ordering::Release);
            // Looked up again, it is another one; who holds it finds it still by its number.
            lock(&self.0).ids.remove(&(base, fold(name)));
        }
        remove(backend, base, &spelled).await.map_err(|e| match e {
            Error::NoXattr => Error::NotFound,
            e => e,
        })?;
        Ok(known.map(|stream| stream.id))
    }

    /// Gives a stream another name; one of that name is replaced only if that is wanted, and its number told.
    pub(super) async fn rename(
        &self,
        stream: &Arc<Stream>,
        to: &[u8],
        replace: bool,
    ) -> Result<Option<NodeId>, Error> {
        if to.len() > MAX_STREAM_NAME {
            return Err(Error::NameTooLong);
        }
        let (backend, base, from) = (&*stream.backend, stream.base, stream.name());
        let taken = names(backend, base).await?.into_iter().find(|name| fold(name) == fold(to));
        let mut replaced = None;
        if let Some(taken) = taken.filter(|taken| *taken != from) {
            if !replace && fold(&taken) != fold(&from) {
                return Err(Error::Exists);
            }
            if fold(&taken) != fold(&from) {
                replaced = self.remove(backend, base, &taken).await?;
            }
        }
        let value = get(backend, base, &from).await.map_err(gone)?;
        set(backend, base, to, value, SetXattr::Either).await?;
        if from != to {
            remove(backend, base, &from).await?;
        }
        *lock(&stream.name) = to.to_vec();
        let mut known = lock(&self.0);
        known.ids.remove(&(base, fold(&from)));
        known.ids.insert((base, fold(to)), stream.id);
        Ok(replaced)
    }
}

/// Names of a file's streams, in order.
async fn names(backend: &dyn Backend, node: NodeId) -> Result<Vec<Vec<u8>>, Error> {
    let names = match backend.submit(Op::ListXattrs { node }).await? {
        Outcome::Names(names) => names,
        other => unreachable!("backend answered {other:?}"),
    };
    let mut names: Vec<_> =
        names.iter().filter_map(|name| name.strip_prefix(PREFIX)).map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    Ok(names)
}
