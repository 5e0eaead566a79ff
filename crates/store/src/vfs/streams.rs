//! Named streams of files and directories: additional content that moves with the file.
//!
//! [MS-FSCC] 2.1.5.3 (names), [MS-FSA] 2.1.1.4 (streams). Each stream has an extended attribute of its file, so that
//! every program moves and removes its name, and its bytes while they fit, with the file; [`super::stream`] has the
//! storage. This module owns the numbers of streams.
//! Limits: the names of a file's streams are its attributes', for which file systems have 64 KiB (ext4 without
//! `ea_inode`: 4 KiB including all values, so some dozens); [`MAX_KNOWN`] streams without users are remembered. Two
//! shares of one folder that have the same small stream open can overwrite each other's changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::lock::MutexGuard as Alone;
use weft_machine::{Pool, rt};

use super::depot::{self, Kept};
use super::flushes::Failures;
use super::stream::{self, Stream, get, gone, is_full, lock, names, remove, set};
use super::{Backend, Error, MAX_STREAM_NAME, NodeId, SetXattr};
use crate::backend::fold;

/// Maximum number of streams remembered without users.
const MAX_KNOWN: usize = 4096;
/// A bit set only in the numbers of streams: backends count from one.
const STREAM: u64 = 1 << 63;
/// Streams up to this length stay in their attributes when others need room: a reference to a file is as long.
const MIN_EVICTED_BYTES: usize = 16;
/// Number of groups of files: names of streams can change at the same time in each group.
const GROUPS: usize = 64;

/// A stream in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEntry {
    /// Its name, without the file's and without a type.
    pub name: Vec<u8>,
    /// Bytes.
    pub size: u64,
}

/// A stream with its content, if that is short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamHead {
    /// Its name, as it is stored.
    pub name: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// All of them, if they are no more than was asked for; otherwise none.
    pub content: Vec<u8>,
}

/// The streams that were looked up.
pub(super) struct Streams {
    table: Mutex<StreamTable>,
    /// Held while a name of a file's stream is looked up, created, changed or removed, by the file's group, so that
    /// no other stream takes a name in between. Acquired before a stream's own lock.
    naming: [futures_util::lock::Mutex<()>; GROUPS],
    /// Counts the failed flushes of all files.
    failures: Failures,
}

#[derive(Default)]
struct StreamTable {
    by_id: HashMap<NodeId, Arc<Stream>>,
    /// By file and folded name.
    ids: HashMap<(NodeId, Vec<u8>), NodeId>,
    last: u64,
}

impl Streams {
    /// Adds each failed flush of a stream to `failures`.
    pub(super) fn new(failures: Failures) -> Streams {
        Streams {
            table: Mutex::default(),
            naming: std::array::from_fn(|_| futures_util::lock::Mutex::default()),
            failures,
        }
    }

    /// Whether a number is that of a stream.
    pub(super) fn is_stream(node: NodeId) -> bool {
        node.0 & STREAM != 0
    }

    pub(super) fn find(&self, id: NodeId) -> Result<Arc<Stream>, Error> {
        lock(&self.table).by_id.get(&id).cloned().ok_or(Error::Stale)
    }

    /// The file of a stream; a file's base is itself.
    pub(super) fn base(&self, node: NodeId) -> Result<NodeId, Error> {
        if Streams::is_stream(node) { Ok(self.find(node)?.base) } else { Ok(node) }
    }

    /// The streams of a file, ordered by name, until `each` wants no more.
    pub(super) async fn list(
        &self,
        backend: &dyn Backend,
        base: NodeId,
        mut each: impl FnMut(StreamEntry) -> bool,
    ) -> Result<(), Error> {
        for name in names(backend, base).await? {
            rt::yield_if_due().await;
            let extent = match self.by_name(base, &name).filter(|stream| stream.content().is_some()) {
                Some(stream) => stream.extent().await,
                None => stream::extent(backend, base, &name).await,
            };
            match extent {
                Ok(extent) if each(StreamEntry { name, size: extent.size }) => {}
                Ok(_) => break,
                Err(Error::NoXattr | Error::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Those streams of a file that `wanted` selects by name, with their content up to `max` bytes, read into `pool`.
    pub(super) async fn heads(
        &self,
        backend: &Arc<dyn Backend>,
        base: NodeId,
        wanted: impl Fn(&[u8]) -> bool,
        (max, pool): (usize, &Pool),
    ) -> Result<Vec<StreamHead>, Error> {
        let mut heads = Vec::new();
        for name in names(&**backend, base).await?.into_iter().filter(|name| wanted(name)) {
            // Whoever changes a small stream has stored it in its attribute before the change is answered.
            let head = match get(&**backend, base, &name).await {
                Ok(Kept::Here(content)) => {
                    let size = content.len() as u64;
                    Ok(StreamHead {
                        name,
                        size,
                        content: if content.len() > max { Vec::new() } else { content },
                    })
                }
                Ok(Kept::EMPTY) => Ok(StreamHead { name, size: 0, content: Vec::new() }),
                Ok(Kept::Beside(_)) => self.large_head(backend, base, name, (max, pool)).await,
                Err(e) => Err(e),
            };
            match head {
                Ok(head) => heads.push(head),
                // Removed meanwhile, or copied by another program without its bytes.
                Err(Error::NoXattr | Error::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(heads)
    }

    async fn large_head(
        &self,
        backend: &Arc<dyn Backend>,
        base: NodeId,
        name: Vec<u8>,
        (max, pool): (usize, &Pool),
    ) -> Result<StreamHead, Error> {
        let size = stream::extent(&**backend, base, &name).await?.size;
        let mut content = Vec::new();
        if size <= max as u64 {
            let file = self.enter(backend, base, name.clone(), false).open(false).await?;
            content = file.read_within(size, 0, max).await?.into_chain(pool).await?.concat();
        }
        Ok(StreamHead { name, size, content })
    }

    /// Whether a file has any.
    pub(super) async fn any(&self, backend: &dyn Backend, base: NodeId) -> Result<bool, Error> {
        Ok(!names(backend, base).await?.is_empty())
    }

    /// The streams of a file that were looked up.
    pub(super) fn of(&self, base: NodeId) -> Vec<NodeId> {
        lock(&self.table)
            .by_id
            .values()
            .filter(|stream| stream.base == base)
            .map(|stream| stream.id)
            .collect()
    }

    async fn naming(&self, base: NodeId) -> Alone<'_, ()> {
        let group = usize::try_from(base.0 % GROUPS as u64).unwrap_or(0);
        self.naming[group].lock().await
    }

    fn by_name(&self, base: NodeId, name: &[u8]) -> Option<Arc<Stream>> {
        let table = lock(&self.table);
        table.by_id.get(table.ids.get(&(base, fold(name)))?).cloned()
    }

    /// The stream with this name, ignoring case; created if it is missing and `make`, which is returned.
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
        let _naming = self.naming(base).await;
        let (name, how) = match named(&**backend, base, name).await? {
            Some(found) => match self.extent(&**backend, base, &found).await {
                Ok(_) => return Ok((self.enter(backend, base, found, false), false)),
                // Another program copied its file, without the stream's bytes.
                Err(Error::NoXattr | Error::Stale) => {
                    if make {
                        spare(&**backend, base, &found).await?;
                    }
                    (found, SetXattr::Either)
                }
                Err(e) => return Err(e),
            },
            None => (name.to_vec(), SetXattr::Create),
        };
        if !make {
            return Err(Error::NotFound);
        }
        let made = self.set(backend, base, &name, (Kept::EMPTY, how)).await;
        match made {
            // Another share of the folder was faster.
            Err(Error::Exists) => Ok((self.enter(backend, base, name, false), false)),
            other => other.map(|()| (self.enter(backend, base, name, true), true)),
        }
    }

    async fn extent(&self, backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<(), Error> {
        match self.by_name(base, name).filter(|stream| stream.content().is_some()) {
            Some(_) => Ok(()),
            None => stream::extent(backend, base, name).await.map(drop),
        }
    }

    /// The stream with this name; `made` if it did not exist a moment ago.
    fn enter(&self, backend: &Arc<dyn Backend>, base: NodeId, name: Vec<u8>, made: bool) -> Arc<Stream> {
        let mut table = lock(&self.table);
        let key = (base, fold(&name));
        if let Some(stream) = table.ids.get(&key).and_then(|id| table.by_id.get(id)) {
            if !made {
                return stream.clone();
            }
            // Another program has removed it, or its file, whose inode has been reused.
            stream.set_removed();
        }
        if table.by_id.len() >= MAX_KNOWN {
            // Streams in use are kept alive by their users.
            table.by_id.retain(|_, stream| Arc::strong_count(stream) > 1);
            let StreamTable { by_id, ids, .. } = &mut *table;
            ids.retain(|_, id| by_id.contains_key(id));
        }
        table.last += 1;
        let id = NodeId(STREAM | table.last);
        let stream = Arc::new(Stream::new(id, base, backend.clone(), name, made, self.failures.of_one()));
        table.ids.insert(key, id);
        table.by_id.insert(id, stream.clone());
        stream
    }

    /// Sets the attribute of a stream, moving others out if the file has no more room for attributes.
    async fn set(
        &self,
        backend: &Arc<dyn Backend>,
        base: NodeId,
        name: &[u8],
        (kept, how): (Kept, SetXattr),
    ) -> Result<(), Error> {
        loop {
            match set(&**backend, base, name, kept.clone(), how).await {
                Err(e) if is_full(&e) && self.make_room(backend, base).await? => {}
                other => return other,
            }
        }
    }

    /// Moves the longest stream in a file's attributes to a file of its own. Returns whether there was one.
    pub(super) async fn make_room(&self, backend: &Arc<dyn Backend>, base: NodeId) -> Result<bool, Error> {
        let mut longest = None;
        for name in names(&**backend, base).await? {
            match get(&**backend, base, &name).await {
                Ok(Kept::Here(value)) => longest = longest.max(Some((value.len(), name))),
                Ok(Kept::Beside(_)) | Err(Error::NoXattr) => {}
                Err(e) => return Err(e),
            }
        }
        match longest.filter(|(len, _)| *len > MIN_EVICTED_BYTES) {
            Some((_, name)) => self.enter(backend, base, name, false).leave().await,
            None => Ok(false),
        }
    }

    /// Removes a stream; clients that have it open keep its bytes. Returns its number.
    pub(super) async fn remove(
        &self,
        backend: &Arc<dyn Backend>,
        base: NodeId,
        name: &[u8],
    ) -> Result<NodeId, Error> {
        let _naming = self.naming(base).await;
        let spelled = named(&**backend, base, name).await?.ok_or(Error::NotFound)?;
        let stream = self.enter(backend, base, spelled.clone(), false);
        let alone = stream.alone().await;
        let none = |e| if matches!(e, Error::NoXattr) { Error::NotFound } else { e };
        let kept = get(&**backend, base, &spelled).await.map_err(none)?;
        remove(&**backend, base, &spelled).await.map_err(none)?;
        stream.set_removed();
        // A new look-up creates another stream; holders still find this one by its number.
        lock(&self.table).ids.remove(&(base, fold(name)));
        drop(alone);
        remove_file(&**backend, base, kept).await;
        Ok(stream.id)
    }

    /// Renames a stream; an existing one is replaced only on request, and its number returned. Nothing is replaced
    /// before it has the name: a failure leaves both unchanged.
    pub(super) async fn rename(
        &self,
        stream: &Arc<Stream>,
        to: &[u8],
        replace: bool,
    ) -> Result<Option<NodeId>, Error> {
        if to.len() > MAX_STREAM_NAME {
            return Err(Error::NameTooLong);
        }
        let (backend, base) = (&stream.backend, stream.base);
        let _naming = self.naming(base).await;
        loop {
            let from = stream.linked()?;
            let taken = match named(&**backend, base, to).await? {
                // Only the case changes.
                Some(taken) if fold(&taken) == fold(&from) => None,
                Some(_) if !replace => return Err(Error::Exists),
                other => other,
            };
            let replaced = taken.clone().map(|taken| self.enter(backend, base, taken, false));
            // No other task holds two streams of one file.
            let alone = stream.alone().await;
            let alone_too = match &replaced {
                Some(replaced) => Some(replaced.alone().await),
                None => None,
            };
            if let Some(taken) = &taken {
                spare(&**backend, base, taken).await?;
                // After a power loss, the name must not be without the bytes of either stream.
                stream.promise().await?;
            }
            match change_name(&**backend, base, (&from, to), taken).await {
                Ok((name, lost)) => {
                    self.is_called(stream, &from, name);
                    if let Some(replaced) = &replaced {
                        replaced.set_removed();
                    }
                    drop((alone, alone_too));
                    remove_file(&**backend, base, lost).await;
                    return Ok(replaced.map(|replaced| replaced.id));
                }
                // For a while the stream has two names.
                Err(e) if is_full(&e) => {
                    drop((alone, alone_too));
                    if !self.make_room(backend, base).await? {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn is_called(&self, stream: &Stream, from: &[u8], to: Vec<u8>) {
        let mut table = lock(&self.table);
        table.ids.remove(&(stream.base, fold(from)));
        table.ids.insert((stream.base, fold(&to)), stream.id);
        stream.set_name(to);
    }

    /// The file has lost its last name: writes to its streams are no longer stored. Returns their numbers.
    pub(super) fn base_is_gone(&self, base: NodeId) -> Vec<NodeId> {
        let mut table = lock(&self.table);
        table.ids.retain(|(of, _), _| *of != base);
        let streams = table.by_id.values().filter(|stream| stream.base == base);
        streams
            .map(|stream| {
                stream.set_removed();
                stream.id
            })
            .collect()
    }
}

/// Refuses to replace an attribute that refers to unreachable bytes: an earlier version stored large streams of files
/// on other devices, too.
async fn spare(backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<(), Error> {
    match get(backend, base, name).await {
        Ok(Kept::Beside(1..)) => depot::require_reach(backend, base).await,
        Ok(_) | Err(Error::NoXattr) => Ok(()),
        Err(e) => Err(e),
    }
}

/// The spelling of a file's stream with this name, if it exists.
async fn named(backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let folded = fold(name);
    Ok(names(backend, base).await?.into_iter().find(|known| fold(known) == folded))
}

/// Moves the contents of a stream's attribute from one name to another, which may be `taken` in some spelling.
/// Returns the resulting name, and what was replaced.
async fn change_name(
    backend: &dyn Backend,
    base: NodeId,
    (from, to): (&[u8], &[u8]),
    taken: Option<Vec<u8>>,
) -> Result<(Vec<u8>, Kept), Error> {
    let kept = get(backend, base, from).await.map_err(gone)?;
    let Some(spelled) = taken else {
        if from != to {
            move_name(backend, base, (from, to), kept).await?;
        }
        return Ok((to.to_vec(), Kept::EMPTY));
    };
    // A single change of the attribute that already has the name, so the name always exists.
    let lost = get(backend, base, &spelled).await.map_err(gone)?;
    set(backend, base, &spelled, kept.clone(), SetXattr::Replace).await.map_err(gone)?;
    if let Err(e) = remove(backend, base, from).await {
        undone(set(backend, base, &spelled, lost, SetXattr::Replace).await);
        return Err(e);
    }
    // In the requested spelling, if possible; the stream has its name in any case.
    if spelled != to && move_name(backend, base, (&spelled, to), kept).await.is_err() {
        return Ok((spelled, lost));
    }
    Ok((to.to_vec(), lost))
}

/// The same for an unused name.
async fn move_name(
    backend: &dyn Backend,
    base: NodeId,
    (from, to): (&[u8], &[u8]),
    kept: Kept,
) -> Result<(), Error> {
    set(backend, base, to, kept, SetXattr::Create).await?;
    if let Err(e) = remove(backend, base, from).await {
        undone(remove(backend, base, to).await);
        return Err(e);
    }
    Ok(())
}

fn undone(taken_back: Result<(), Error>) {
    if let Err(e) = taken_back {
        tracing::warn!("the rename of a stream failed, and it now has both names: {e}");
    }
}

/// Removes the file of a removed stream. The stream is gone even if this fails; the periodic check finds leftovers.
async fn remove_file(backend: &dyn Backend, base: NodeId, kept: Kept) {
    let Kept::Beside(number @ 1..) = kept else { return };
    let removed = match stream::numbers(backend, base).await {
        // A rename cut short by a crash leaves two names.
        Ok(numbers) if numbers.contains(&number) => Ok(()),
        Ok(_) => depot::remove(backend, base, number).await,
        Err(e) => Err(e),
    };
    if let Err(e) = removed {
        tracing::warn!("the file of a removed stream is still there: {e}");
    }
}
