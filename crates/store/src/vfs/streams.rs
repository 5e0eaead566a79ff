//! Named streams of files and directories: bytes beside the bytes, which go where the file goes.
//!
//! Spec: [MS-FSCC] 2.1.5.3 (names), [MS-FSA] 2.1.1.4 (streams). Each has an extended attribute of its file, so that its name, and its
//! bytes while they fit, are moved and removed with the file by every program; see [`super::stream`] for where they lie.
//! Owns: the numbers of streams. Limits: names of a file's streams are its attributes', of which file systems have 64 KiB (ext4
//! without `ea_inode`: 4 KiB with all values, so some dozens); [`MAX_KNOWN`] streams that nobody holds are remembered.
//! Does not: keep two shares of one folder that have the same small stream open from overwriting each other's changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::lock::MutexGuard as Alone;
use weft_machine::rt;

use super::depot::{self, Kept};
use super::stream::{self, Stream, get, gone, is_full, lock, names, remove, set};
use super::{Backend, Error, MAX_STREAM_NAME, NodeId, SetXattr};
use crate::backend::fold;

/// Streams remembered that nobody holds.
const MAX_KNOWN: usize = 4096;
/// Set in the numbers of streams, and of nothing else: backends count from one.
const STREAM: u64 = 1 << 63;
/// Streams up to this long stay in their attributes when there is no room for others: what leads to a file is as long.
const MIN_EVICTED_BYTES: usize = 16;
/// Files whose names of streams may change at the same time, at most: one in each of so many groups.
const GROUPS: usize = 64;

/// A stream, as a list of them tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEntry {
    /// Its name, without the file's and without a type.
    pub name: Vec<u8>,
    /// Bytes.
    pub size: u64,
}

/// The streams that somebody looked up.
pub(super) struct Streams {
    known: Mutex<Known>,
    /// Held while a name of a file's streams is looked up, made, changed or removed, by the group that the file is in: no other stream
    /// gets a name in between. Taken before a stream's own lock.
    naming: [futures_util::lock::Mutex<()>; GROUPS],
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            known: Mutex::default(),
            naming: std::array::from_fn(|_| futures_util::lock::Mutex::default()),
        }
    }
}

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
        lock(&self.known).by_id.get(&id).cloned().ok_or(Error::Stale)
    }

    /// Of which file a stream is; a file is its own.
    pub(super) fn base(&self, node: NodeId) -> Result<NodeId, Error> {
        if Streams::is_stream(node) { Ok(self.find(node)?.base) } else { Ok(node) }
    }

    /// The streams of a file, in the order of their names, until `each` wants no more.
    pub(super) async fn list(
        &self,
        backend: &dyn Backend,
        base: NodeId,
        mut each: impl FnMut(StreamEntry) -> bool,
    ) -> Result<(), Error> {
        for name in names(backend, base).await? {
            rt::yield_if_due().await;
            let extent = match self.known(base, &name).filter(|stream| stream.content().is_some()) {
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

    /// Whether a file has any.
    pub(super) async fn any(&self, backend: &dyn Backend, base: NodeId) -> Result<bool, Error> {
        Ok(!names(backend, base).await?.is_empty())
    }

    /// The streams of a file that somebody looked up.
    pub(super) fn of(&self, base: NodeId) -> Vec<NodeId> {
        lock(&self.known)
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

    fn known(&self, base: NodeId, name: &[u8]) -> Option<Arc<Stream>> {
        let known = lock(&self.known);
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
        let _naming = self.naming(base).await;
        let (name, how) = match named(&**backend, base, name).await? {
            Some(found) => match self.extent(&**backend, base, &found).await {
                Ok(_) => return Ok((self.enter(backend, base, found, false), false)),
                // It came with a copy of its file that another program made, without its bytes.
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
            // Somebody was faster, by another share of the folder.
            Err(Error::Exists) => Ok((self.enter(backend, base, name, false), false)),
            other => other.map(|()| (self.enter(backend, base, name, true), true)),
        }
    }

    async fn extent(&self, backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<(), Error> {
        match self.known(base, name).filter(|stream| stream.content().is_some()) {
            Some(_) => Ok(()),
            None => stream::extent(backend, base, name).await.map(drop),
        }
    }

    /// The stream of this name; `made` if it did not exist a moment ago.
    fn enter(&self, backend: &Arc<dyn Backend>, base: NodeId, name: Vec<u8>, made: bool) -> Arc<Stream> {
        let mut known = lock(&self.known);
        let key = (base, fold(&name));
        if let Some(stream) = known.ids.get(&key).and_then(|id| known.by_id.get(id)) {
            if !made {
                return stream.clone();
            }
            // Another program has taken it away, or its file, whose inode is another's by now.
            stream.set_removed();
        }
        if known.by_id.len() >= MAX_KNOWN {
            // Whoever holds one keeps it.
            known.by_id.retain(|_, stream| Arc::strong_count(stream) > 1);
            let Known { by_id, ids, .. } = &mut *known;
            ids.retain(|_, id| by_id.contains_key(id));
        }
        known.last += 1;
        let id = NodeId(STREAM | known.last);
        let stream = Arc::new(Stream::new(id, base, backend.clone(), name, made));
        known.ids.insert(key, id);
        known.by_id.insert(id, stream.clone());
        stream
    }

    /// Sets the attribute of a stream, for which others make room where the file has no more for attributes.
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

    /// Moves the longest stream that lies among the attributes of a file into a file of its own. Whether there was one.
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

    /// Takes a stream away; those who have it open keep its bytes. Its number.
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
        // Looked up again, it is another one; who holds it finds it still by its number.
        lock(&self.known).ids.remove(&(base, fold(name)));
        drop(alone);
        remove_file(&**backend, base, kept).await;
        Ok(stream.id)
    }

    /// Gives a stream another name; one of that name is replaced only if that is wanted, and its number told. Until it has the name it
    /// replaces nothing: what fails leaves both as they were.
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
                // It gets another case.
                Some(taken) if fold(&taken) == fold(&from) => None,
                Some(_) if !replace => return Err(Error::Exists),
                other => other,
            };
            let replaced = taken.clone().map(|taken| self.enter(backend, base, taken, false));
            // Of a file's streams nobody else takes two.
            let alone = stream.alone().await;
            let alone_too = match &replaced {
                Some(replaced) => Some(replaced.alone().await),
                None => None,
            };
            if let Some(taken) = &taken {
                spare(&**backend, base, taken).await?;
                // A loss of power must not leave the name without the bytes of either.
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
                // For a while there are two of it.
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
        let mut known = lock(&self.known);
        known.ids.remove(&(stream.base, fold(from)));
        known.ids.insert((stream.base, fold(&to)), stream.id);
        stream.set_name(to);
    }

    /// A file has no name any more: what is written to its streams is kept nowhere. Their numbers.
    pub(super) fn base_is_gone(&self, base: NodeId) -> Vec<NodeId> {
        let mut known = lock(&self.known);
        known.ids.retain(|(of, _), _| *of != base);
        let streams = known.by_id.values().filter(|stream| stream.base == base);
        streams
            .map(|stream| {
                stream.set_removed();
                stream.id
            })
            .collect()
    }
}

/// Refuses to replace an attribute that leads to bytes out of reach from here: an earlier version has kept large streams of files on
/// other devices, too.
async fn spare(backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<(), Error> {
    match get(backend, base, name).await {
        Ok(Kept::Beside(1..)) => depot::require_reach(backend, base).await,
        Ok(_) | Err(Error::NoXattr) => Ok(()),
        Err(e) => Err(e),
    }
}

/// How a file's stream of this name is spelled, if there is one.
async fn named(backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let folded = fold(name);
    Ok(names(backend, base).await?.into_iter().find(|known| fold(known) == folded))
}

/// Moves what the attribute of a stream says from one name to another, which is `taken` in some spelling or nobody's. The name that it
/// has now, and what was replaced.
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
    // One change, of what has the name already: at no time nobody has it.
    let lost = get(backend, base, &spelled).await.map_err(gone)?;
    set(backend, base, &spelled, kept.clone(), SetXattr::Replace).await.map_err(gone)?;
    if let Err(e) = remove(backend, base, from).await {
        undone(set(backend, base, &spelled, lost, SetXattr::Replace).await);
        return Err(e);
    }
    // As it was asked for, if that can be: it has its name in any case.
    if spelled != to && move_name(backend, base, (&spelled, to), kept).await.is_err() {
        return Ok((spelled, lost));
    }
    Ok((to.to_vec(), lost))
}

/// The same to a name that nobody has.
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
        tracing::warn!("the rename of a stream failed, and it has both names now: {e}");
    }
}

/// Removes the file of a stream that has no name any more. The stream is gone whatever becomes of it; what is left is found by who
/// looks for such files.
async fn remove_file(backend: &dyn Backend, base: NodeId, kept: Kept) {
    let Kept::Beside(number @ 1..) = kept else { return };
    let removed = match stream::numbers(backend, base).await {
        // A rename that a crash has cut short leaves two names.
        Ok(numbers) if numbers.contains(&number) => Ok(()),
        Ok(_) => depot::remove(backend, base, number).await,
        Err(e) => Err(e),
    };
    if let Err(e) = removed {
        tracing::warn!("the file of a removed stream is still there: {e}");
    }
}
