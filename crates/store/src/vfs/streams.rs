//! Named streams of files and directories: bytes beside the bytes, which go where the file goes.
//!
//! Spec: [MS-FSCC] 2.1.5.3 (names), [MS-FSA] 2.1.1.4 (streams). Each has an extended attribute of its file, so that its name, and its
//! bytes while they fit, are moved and removed with the file by every program; see [`super::stream`] for where they lie.
//! Owns: the numbers of streams. Limits: names of a file's streams are its attributes', of which file systems have 64 KiB (ext4
//! without `ea_inode`: 4 KiB with all values, so some dozens); [`MAX_KNOWN`] streams that nobody holds are remembered.
//! Does not: keep two shares of one folder that have the same small stream open from overwriting each other's changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

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

/// A stream, as a list of them tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEntry {
    /// Its name, without the file's and without a type.
    pub name: Vec<u8>,
    /// Bytes.
    pub size: u64,
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
            let extent = match self.known(base, &name).filter(|stream| stream.content().is_some()) {
                Some(stream) => stream.extent().await,
                None => stream::extent(backend, base, &name).await,
            };
            match extent {
                Ok(extent) => entries.push(StreamEntry { name, size: extent.size }),
                Err(Error::NoXattr | Error::Stale) => {}
                Err(e) => return Err(e),
            }
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
        let (name, how) = match found {
            Some(found) => match self.extent(&**backend, base, &found).await {
                Ok(_) => return Ok((self.enter(backend, base, found), false)),
                // It came with a copy of its file that another program made, without its bytes.
                Err(Error::NoXattr | Error::Stale) => (found, SetXattr::Either),
                Err(e) => return Err(e),
            },
            None => (name.to_vec(), SetXattr::Create),
        };
        if !make {
            return Err(Error::NotFound);
        }
        let made = self.set(backend, base, &name, (Kept::EMPTY, how)).await;
        match made {
            // Somebody was faster.
            Err(Error::Exists) => Ok((self.enter(backend, base, name), false)),
            other => other.map(|()| (self.enter(backend, base, name), true)),
        }
    }

    async fn extent(&self, backend: &dyn Backend, base: NodeId, name: &[u8]) -> Result<(), Error> {
        match self.known(base, name) {
            Some(_) => Ok(()),
            None => stream::extent(backend, base, name).await.map(drop),
        }
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
        let stream = Arc::new(Stream::new(id, base, backend.clone(), name));
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
            Some((_, name)) => self.enter(backend, base, name).leave().await,
            None => Ok(false),
        }
    }

    /// Takes a stream away; those who have it open keep its bytes. Its number, if somebody looked it up.
    pub(super) async fn remove(
        &self,
        backend: &dyn Backend,
        base: NodeId,
        name: &[u8],
    ) -> Result<Option<NodeId>, Error> {
        let known = self.known(base, name);
        let _alone = match &known {
            Some(stream) => Some(stream.alone().await),
            None => None,
        };
        let spelled = known.as_ref().map_or_else(|| name.to_vec(), |stream| stream.name());
        let none = |e| if matches!(e, Error::NoXattr) { Error::NotFound } else { e };
        let kept = get(backend, base, &spelled).await.map_err(none)?;
        remove(backend, base, &spelled).await.map_err(none)?;
        if let Some(stream) = &known {
            stream.set_removed();
            // Looked up again, it is another one; who holds it finds it still by its number.
            lock(&self.0).ids.remove(&(base, fold(name)));
        }
        if let Kept::Beside(number) = kept
            && kept != Kept::EMPTY
            // A rename that a crash has cut short leaves two names.
            && !stream::numbers(backend, base).await?.contains(&number)
        {
            depot::remove(backend, base, number).await?;
        }
        Ok(known.as_ref().map(|stream| stream.id))
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
        let (backend, base, from) = (&stream.backend, stream.base, stream.name());
        let taken = names(&**backend, base).await?.into_iter().find(|name| fold(name) == fold(to));
        let mut replaced = None;
        if let Some(taken) = taken.filter(|taken| *taken != from) {
            if !replace && fold(&taken) != fold(&from) {
                return Err(Error::Exists);
            }
            if fold(&taken) != fold(&from) {
                replaced = self.remove(&**backend, base, &taken).await?;
            }
        }
        loop {
            let alone = stream.alone().await;
            let kept = get(&**backend, base, &from).await.map_err(gone)?;
            match set(&**backend, base, to, kept, SetXattr::Either).await {
                Ok(()) => {
                    if from != to {
                        remove(&**backend, base, &from).await?;
                    }
                    stream.set_name(to.to_vec());
                    break;
                }
                // For a while there are two of it.
                Err(e) if is_full(&e) => {
                    drop(alone);
                    if !self.make_room(backend, base).await? {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        let mut known = lock(&self.0);
        known.ids.remove(&(base, fold(&from)));
        known.ids.insert((base, fold(to)), stream.id);
        Ok(replaced)
    }

    /// A file has no name any more: what is written to its streams is kept nowhere. Their numbers.
    pub(super) fn base_is_gone(&self, base: NodeId) -> Vec<NodeId> {
        let mut known = lock(&self.0);
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
