//! Keeps files open between requests, because NFSv3 has no OPEN and a READ must not cost one.
//!
//! [`OpenFiles`] is a bounded cache of descriptors, keyed by share and node; it closes the least recently used file.
//! READ and WRITE check share modes and attributes.
//!
//! A file whose last name is removed or replaced by this server, over any protocol, is closed at once; one that
//! another program removes is closed by the store's sweep. Until then, READ and WRITE fetch its attributes and find
//! that it is stale.
//!
//! Files of a share that is no longer served are closed, and those that a late request opens are not kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use weft_store::{Attr, Cache, CurrentShares, Error, NodeId, OpenFile, Share, ShareKey, Vfs, access};
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::access::AccessMask;

use super::caller::{Caller, READ, WRITE};
use super::file_id::FileId;
use super::{guard, shard};

/// Enough that cores rarely contend for one shard.
const SHARDS: usize = 16;

/// A security descriptor, if the file has one.
type StoredDescriptor = Option<Arc<SecurityDescriptor>>;

struct Entry {
    file: OpenFile,
    writable: bool,
    /// Its security descriptor, and the share's change count at which it was read.
    guard: Option<(u64, StoredDescriptor)>,
    /// When it was last used, counted in uses of the shard.
    used: u64,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<FileId, Entry>,
    uses: u64,
}

/// The cache.
pub(super) struct OpenFiles {
    shards: [Mutex<Shard>; SHARDS],
    per_shard: usize,
    shares: Arc<CurrentShares>,
}

impl OpenFiles {
    /// A cache of about `limit` files of these shares.
    pub fn new(limit: usize, shares: Arc<CurrentShares>) -> OpenFiles {
        OpenFiles { shards: Default::default(), per_shard: (limit / SHARDS).max(1), shares }
    }

    /// Subscribes to these shares' notifications of removed files.
    pub fn follow<'a>(self: &Arc<OpenFiles>, shares: impl IntoIterator<Item = &'a Share>) {
        for share in shares {
            let cache: Arc<dyn Cache> = self.clone();
            share.vfs.add_cache(share.id, Arc::downgrade(&cache));
        }
    }

    /// The file of a node, for a caller that its security descriptor admits. The descriptor is not read again until
    /// one of the share has changed.
    pub async fn open_as(
        &self,
        vfs: &Vfs,
        share: ShareKey,
        attr: &Attr,
        write: bool,
        caller: &Caller,
    ) -> Result<OpenFile, Error> {
        if let Some(file) = self.known_as(vfs, share, attr, write, caller)? {
            return Ok(file);
        }
        let key = FileId { share, node: attr.node };
        let wanted = wanted(write);
        let now = vfs.descriptors();
        let descriptor = access::stored(vfs, attr).await?.map(Arc::new);
        caller.admitted(descriptor.as_deref(), wanted)?;
        // Boxed, because a READ or WRITE of a known file does not come here.
        let file = Box::pin(self.open(vfs, key, write)).await?;
        self.shard(key).guard(key, (now, descriptor));
        Ok(file)
    }

    /// The same, if the file is open and its descriptor known.
    pub fn known_as(
        &self,
        vfs: &Vfs,
        share: ShareKey,
        attr: &Attr,
        write: bool,
        caller: &Caller,
    ) -> Result<Option<OpenFile>, Error> {
        may_write(vfs, write)?;
        // An open descriptor is older than this request, so the kernel would let it write.
        if write && attr.is_sealed {
            return Err(Error::NotPermitted);
        }
        let key = FileId { share, node: attr.node };
        let Some((file, Some(descriptor))) = self.shard(key).find(key, write, vfs.descriptors()) else {
            return Ok(None);
        };
        caller.admitted(descriptor.as_deref(), wanted(write))?;
        Ok(Some(file))
    }

    /// The file of a node, opened if necessary.
    pub async fn open(&self, vfs: &Vfs, key: FileId, write: bool) -> Result<OpenFile, Error> {
        may_write(vfs, write)?;
        if let Some((file, _)) = self.shard(key).find(key, write, vfs.descriptors()) {
            return Ok(file);
        }
        // A descriptor is used for every caller, each of whom is checked before.
        let file = vfs.as_server().open(key.node, write).await?;
        let evicted = {
            let mut shard = self.shard(key);
            // Checked under the lock, which `close` takes after the shares were replaced.
            if self.shares.serves(key.share) { shard.keep(key, &file, write, self.per_shard) } else { None }
        };
        // Closing a file can take time, so it is done without the lock. The caller that opens another file waits for
        // this; otherwise a slow disk would let the number of descriptors grow.
        if let Some(evicted) = evicted {
            evicted.close().await;
        }
        Ok(file)
    }

    /// Closes the files of these shares, which are no longer served.
    pub async fn close(&self, gone: &[ShareKey]) {
        for shard in &self.shards {
            let closed: Vec<_> = {
                let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard.entries.extract_if(|key, _| gone.contains(&key.share)).map(|(_, entry)| entry).collect()
            };
            for entry in closed {
                entry.close().await;
            }
        }
    }

    /// Number of open files.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().entries.len()).sum()
    }

    // A map's insert or remove leaves it usable even if it panicked.
    fn shard(&self, FileId { share, node }: FileId) -> MutexGuard<'_, Shard> {
        shard(&self.shards, (node.0 ^ share.id.number()) as usize)
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rights for reading or writing data.
fn wanted(write: bool) -> AccessMask {
    guard::data(if write { WRITE } else { READ })
}

/// A share may have become read-only since a file was opened.
fn may_write(vfs: &Vfs, write: bool) -> Result<(), Error> {
    if write && vfs.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
}

impl Entry {
    /// Once nobody has the file open, the kernel may forget that it could not write back its data. So the file is
    /// flushed, and a failure counted, before it is closed.
    async fn close(self) {
        if self.file.is_unflushed()
            && let Err(e) = self.file.sync().await
        {
            tracing::warn!("could not flush a file that a client has written: {e}");
        }
    }
}

impl Cache for OpenFiles {
    fn forget(&self, share: ShareKey, node: NodeId) {
        let key = FileId { share, node };
        let closed = self.shard(key).entries.remove(&key);
        drop(closed);
    }

    fn close(&self, share: ShareKey) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let closed: Vec<_> = shard.entries.extract_if(|key, _| key.share == share).collect();
            drop(shard);
            drop(closed);
        }
    }

    fn sweep(&self, share: ShareKey) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = |key: &FileId, entry: &mut Entry| key.share == share && entry.file.is_unlinked();
            let closed: Vec<_> = shard.entries.extract_if(|key, entry| gone(key, entry)).collect();
            drop(shard);
            drop(closed);
        }
    }
}

impl Shard {
    /// The file, and its security descriptor if the cached one is current at `now`.
    fn find(&mut self, key: FileId, write: bool, now: u64) -> Option<(OpenFile, Option<StoredDescriptor>)> {
        self.uses = self.uses.wrapping_add(1);
        let entry = self.entries.get_mut(&key).filter(|entry| entry.writable || !write)?;
        entry.used = self.uses;
        let known = entry.guard.as_ref().filter(|(then, _)| *then == now).map(|(_, known)| known.clone());
        Some((entry.file.clone(), known))
    }

    fn guard(&mut self, key: FileId, guard: (u64, StoredDescriptor)) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.guard = Some(guard);
        }
    }

    fn keep(&mut self, key: FileId, file: &OpenFile, writable: bool, limit: usize) -> Option<Entry> {
        // Another request may have opened it meanwhile; a writable file is preferred.
        if self.entries.get(&key).is_some_and(|known| known.writable && !writable) {
            return None;
        }
        let replaced =
            self.entries.insert(key, Entry { file: file.clone(), writable, guard: None, used: self.uses });
        if replaced.is_some() || self.entries.len() <= limit {
            return replaced;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key)?;
        self.entries.remove(&oldest)
    }
}
