//! File handles: they name a share and a file, and prove that this server issued them.
//!
//! See RFC 1813 2.3.3 and RFC 8881 4.2 (persistent handles; opaque to clients). [`Handles`] owns the key, and caches
//! the nodes of recently seen handles. A handle does not keep its file alive: if the file or the share is gone, it is
//! stale.
//!
//! ```text
//! 0        1                  8                       32                40
//! | layout | share, 56 bits   | the store's identity  | tag, BE         |
//! | layout | share, 56 bits   | the store's identity  | name, BE        | tag, BE         |    a named attribute
//! ```
//! The share is its id, a hash of its name, and the identity is the file's own, so a handle means the same after a
//! restart if the key does. A named attribute (NFSv4) is identified by its file and a hash of its name: after a
//! rename it has another handle at the next lookup, and the old one stays valid as long as somebody has the attribute
//! open. The tag is SipHash-2-4 over all preceding bytes, so guessed identities open nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use siphasher::sip::SipHasher24;
use weft_store::{Error, NodeId, Share, ShareId, ShareKey, ShareList, Stable};
use weft_wire::nfs3::{Handle, Status};

use super::attributes::status;
use super::file_id::FileId;
use super::shard;

const NODE: u8 = 2;
const ROOT: u8 = 3;
const ATTRIBUTES: u8 = 4;
const ATTRIBUTE: u8 = 5;
const TAGGED: usize = 32;
/// Bytes of a handle that version 3 uses.
pub(super) const BYTES: usize = TAGGED + 8;
/// Bytes of a handle of a named attribute.
const LONG: usize = BYTES + 8;
/// Handles whose nodes are cached, to spare the store a lookup; about 100 bytes each.
const MAX_KNOWN: usize = 1 << 18;
const SHARDS: usize = 64;

/// A share, a file of it, and for a named attribute the hash of its name.
type Key = (ShareKey, Stable, Option<u64>);

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The directory of shares at the root of NFSv4's name space.
    Root,
    /// A node of a share, or a named attribute of one.
    Node(FileId),
    /// The directory of this node's named attributes.
    Attributes(FileId),
}

/// Makes and opens handles.
pub(super) struct Handles {
    key: [u8; 16],
    /// `None`: the file is gone, so its handle is refused without a search.
    known: [Mutex<HashMap<Key, Option<NodeId>>>; SHARDS],
}

impl Handles {
    pub fn new(key: [u8; 16]) -> Handles {
        let known = std::array::from_fn(|_| Mutex::default());
        Handles { key, known }
    }

    // A map's insert or clear leaves it usable even if it panicked.
    fn shard(&self, stable: &Stable) -> MutexGuard<'_, HashMap<Key, Option<NodeId>>> {
        let spread = stable.0[0] ^ stable.0[8] ^ stable.0[16];
        shard(&self.known, usize::from(spread)).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn know(&self, key: Key, node: NodeId) {
        let mut shard = self.shard(&key.1);
        if shard.len() >= MAX_KNOWN / SHARDS && !shard.contains_key(&key) {
            // Entries return one by one as they are used.
            shard.clear();
        }
        shard.insert(key, Some(node));
    }

    fn sealed(&self, layout: u8, share: ShareId, stable: Stable, name: Option<u64>) -> Handle {
        let mut bytes = Vec::with_capacity(LONG);
        bytes.push(layout);
        bytes.extend_from_slice(&share.to_bytes());
        bytes.extend_from_slice(&stable.0);
        bytes.extend(name.iter().flat_map(|name| name.to_be_bytes()));
        let tag = SipHasher24::new_with_key(&self.key).hash(&bytes);
        bytes.extend_from_slice(&tag.to_be_bytes());
        Handle::new(&bytes).expect("48 bytes are at most 64")
    }

    /// Makes the handle of a file of these shares.
    pub async fn make(&self, shares: &ShareList, file: FileId) -> Result<Handle, Error> {
        let FileId { share, node } = file;
        let vfs = &shares.of(share).ok_or(Error::Stale)?.vfs;
        let stable = vfs.stable(node).await?;
        let attribute = vfs.stream_of(node).map(|(_, attribute)| name_hash(&attribute));
        self.know((share, stable, attribute), node);
        let layout = if attribute.is_some() { ATTRIBUTE } else { NODE };
        Ok(self.sealed(layout, share.id, stable, attribute))
    }

    /// Makes the handle of a node's named attributes.
    pub async fn attributes(&self, shares: &ShareList, file: FileId) -> Result<Handle, Error> {
        let FileId { share, node } = file;
        let stable = shares.of(share).ok_or(Error::Stale)?.vfs.stable(node).await?;
        self.know((share, stable, None), node);
        Ok(self.sealed(ATTRIBUTES, share.id, stable, None))
    }

    /// The share that a handle names, without checking that the handle is genuine or that the share exists.
    pub fn share_of(handle: &[u8]) -> Option<ShareId> {
        let [NODE, share @ ..] = handle else { return None };
        Some(ShareId::from_bytes(*share.first_chunk()?))
    }

    /// The handle of the directory of shares.
    pub fn root(&self) -> Handle {
        self.sealed(ROOT, ShareId::from_bytes([0; ShareId::BYTES]), Stable([0; 24]), None)
    }

    /// Resolves a handle. One with our layout and a wrong tag was issued by another server, or forged: the client is
    /// told to look the name up again.
    pub async fn open(&self, shares: &ShareList, handle: &Handle) -> Result<Named, Status> {
        let (bytes, tag) = handle.as_bytes().split_last_chunk::<8>().ok_or(Status::BADHANDLE)?;
        let [layout, s0, s1, s2, s3, s4, s5, s6, rest @ ..] = bytes else { return Err(Status::BADHANDLE) };
        let (stable, rest) = rest.split_first_chunk::<24>().ok_or(Status::BADHANDLE)?;
        let attribute = match (*layout, rest) {
            (NODE | ROOT | ATTRIBUTES, []) => None,
            (ATTRIBUTE, rest) => Some(u64::from_be_bytes(rest.try_into().map_err(|_| Status::BADHANDLE)?)),
            _ => return Err(Status::BADHANDLE),
        };
        // A single comparison of words, so timing does not reveal where they differ.
        if u64::from_be_bytes(*tag) != SipHasher24::new_with_key(&self.key).hash(bytes) {
            return Err(Status::STALE);
        }
        if *layout == ROOT {
            return Ok(Named::Root);
        }
        let id = ShareId::from_bytes([*s0, *s1, *s2, *s3, *s4, *s5, *s6]);
        let share = shares.get(id).ok_or(Status::STALE)?;
        let stable = Stable(*stable);
        let file = |node| FileId { share: share.key(), node };
        Ok(match attribute {
            // Boxed: every call's future has the size of the largest part that it awaits, and is moved once.
            Some(attribute) => Named::Node(file(Box::pin(self.attribute(share, stable, attribute)).await?)),
            None if *layout == ATTRIBUTES => Named::Attributes(file(self.node(share, stable).await?)),
            None => Named::Node(file(self.node(share, stable).await?)),
        })
    }

    fn known(&self, key: &Key) -> Result<Option<NodeId>, Status> {
        match self.shard(&key.1).get(key) {
            Some(Some(node)) => Ok(Some(*node)),
            Some(None) => Err(Status::STALE),
            None => Ok(None),
        }
    }

    /// A file has lost its last name, and nobody has it open.
    pub fn gone(&self, share: ShareKey, stable: Stable) {
        if let Some(known) = self.shard(&stable).get_mut(&(share, stable, None)) {
            *known = None;
        }
    }

    /// Forgets the handles of these shares, which are no longer served.
    pub fn forget(&self, gone: &[ShareKey]) {
        for shard in &self.known {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|(share, ..), _| !gone.contains(share));
        }
    }

    /// The node with this identity.
    async fn node(&self, share: &Share, stable: Stable) -> Result<NodeId, Status> {
        let key = (share.key(), stable, None);
        if let Some(node) = self.known(&key)? {
            return Ok(node);
        }
        let found = share.vfs.find(stable).await.map_err(|e| status(&e))?;
        self.know(key, found.node);
        Ok(found.node)
    }

    /// The named attribute of a node whose name has this hash.
    async fn attribute(&self, share: &Share, file: Stable, name: u64) -> Result<NodeId, Status> {
        let key = (share.key(), file, Some(name));
        // The store forgets nodes that nobody holds.
        if let Some(node) = self.known(&key)?.filter(|node| share.vfs.stream_of(*node).is_some()) {
            return Ok(node);
        }
        let base = self.node(share, file).await?;
        let all = share.vfs.streams(base).await.map_err(|e| status(&e))?;
        let entry = all.iter().find(|entry| name_hash(&entry.name) == name).ok_or(Status::STALE)?;
        let found = share.vfs.stream(base, &entry.name, false).await.map_err(|e| match e {
            Error::NotFound => Status::STALE,
            e => status(&e),
        })?;
        self.know(key, found.attr.node);
        Ok(found.attr.node)
    }
}

/// The hash of an attribute's name, as used in handles.
pub(super) fn name_hash(name: &[u8]) -> u64 {
    SipHasher24::new().hash(name)
}

#[cfg(test)]
mod tests {
    use weft_machine::rt;
    use weft_store::backend::{Dir, Ram};
    use weft_store::{CurrentShares, Exists, Make, SetAttr, Vfs};

    use super::*;

    fn share(name: &str, vfs: Vfs) -> Share {
        Share::new(name, vfs)
    }

    #[test]
    fn no_bit_of_a_handle_can_be_changed() {
        rt::block_on(async {
            let shares = CurrentShares::new(vec![share("ram", Vfs::new(Ram::new(1 << 20)))]).now();
            let root = FileId { share: shares[0].key(), node: NodeId::ROOT };
            let handles = Handles::new([7; 16]);
            let good = handles.make(&shares, root).await.unwrap();
            assert_eq!(handles.open(&shares, &good).await, Ok(Named::Node(root)));
            assert_eq!(handles.open(&shares, &handles.root()).await, Ok(Named::Root));
            for handle in [good, handles.root()] {
                for bit in 0..BYTES * 8 {
                    let mut bytes = handle.as_bytes().to_vec();
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    let changed = Handle::new(&bytes).unwrap();
                    assert!(handles.open(&shares, &changed).await.is_err(), "bit {bit}");
                }
            }
            for len in (0..=64).filter(|len| *len != BYTES) {
                let foreign = Handle::new(&vec![2; len]).unwrap();
                assert_eq!(handles.open(&shares, &foreign).await, Err(Status::BADHANDLE));
            }
        })
        .unwrap();
    }

    #[test]
    fn a_handle_means_the_same_file_after_a_restart_if_the_key_does() {
        rt::block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let open = || Vfs::new(Dir::open(folder.path()).unwrap());
            let before =
                CurrentShares::new(vec![share("a", Vfs::new(Ram::new(1 << 20))), share("data", open())])
                    .now();
            let vfs = &before[1].vfs;
            let made = vfs
                .create(NodeId::ROOT, b"file", Make::File, Exists::Fail, SetAttr::default())
                .await
                .unwrap();
            let old = Handles::new([7; 16]);
            let handle =
                old.make(&before, FileId { share: before[1].key(), node: made.attr.node }).await.unwrap();
            let lost = old.make(&before, FileId { share: before[0].key(), node: NodeId::ROOT }).await;
            // Another run: the share is at another position, and its nodes have other numbers.
            let after =
                CurrentShares::new(vec![share("data", open()), share("a", Vfs::new(Ram::new(1 << 20)))])
                    .now();
            let handles = Handles::new([7; 16]);
            let Ok(Named::Node(file)) = handles.open(&after, &handle).await else { panic!("not found") };
            assert_eq!((file.share.id, file.share), (before[1].id, after[0].key()));
            assert_eq!(after[0].vfs.lookup(NodeId::ROOT, b"file", false).await.unwrap().node, file.node);
            assert_eq!(handles.make(&after, file).await.unwrap(), handle);
            // The in-memory share's content is gone.
            assert_eq!(handles.open(&after, &lost.unwrap()).await, Err(Status::STALE));
            assert_eq!(Handles::new([8; 16]).open(&after, &handle).await, Err(Status::STALE));
            after[0].vfs.remove(NodeId::ROOT, b"file").await.unwrap();
            let again = Handles::new([7; 16]);
            assert_eq!(again.open(&after, &handle).await, Err(Status::STALE));
        })
        .unwrap();
    }
}
