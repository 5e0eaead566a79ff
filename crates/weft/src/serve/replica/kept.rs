//! Recognizes a group's volumes.
//!
//! A group's file records its volumes (their identity, which file each used, and its length), so that another volume
//! with the same name is not mistaken for one of them. Content is not examined; [`super::group`] decides what follows.

use serde::{Deserialize, Serialize};
use weft_store::volume::identity::FileIdentity;
use weft_store::volume::superblock::Superblock;

use crate::hex::hex;

/// The last known properties of a group's volume.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// 32 hexadecimal digits: the identity that the volume got when it was created.
    id: String,
    /// The number of its file, if the file system has stable numbers.
    #[serde(default)]
    inode: Option<u64>,
    /// The creation time of that file in microseconds of Unix time, if the file system reports it.
    #[serde(default)]
    born_us: Option<i64>,
    /// Bytes. In a group it never shrinks.
    size: u64,
}

impl Kept {
    /// The properties of a volume now.
    pub fn of(superblock: &Superblock) -> Kept {
        let file = superblock.file;
        Kept {
            id: hex(superblock.id),
            inode: file.map(|file| file.inode),
            born_us: file.and_then(|file| file.born_us),
            size: superblock.size,
        }
    }

    /// Why a volume with this name is not the group's volume.
    pub fn differs(&self, now: &Superblock) -> Option<String> {
        let old = self.inode.map(|inode| FileIdentity { inode, born_us: self.born_us });
        let is_same_file = |old: FileIdentity| now.file.is_some_and(|file| old.is(&file));
        if self.id != hex(now.id) {
            Some(
                "it is not the group's volume: that one was removed, and this one was created in its place"
                    .into(),
            )
        } else if old.is_some_and(|old| !is_same_file(old)) {
            let path = now.storage();
            Some(format!("{path} is not the group's file: another file was accepted in its place"))
        } else if now.size < self.size {
            Some(format!("it has shrunk: it has {} bytes and had {}", now.size, self.size))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_store::block::Medium;

    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            generation: 2,
            id: [7; 16],
            size: 64 << 20,
            medium: Medium::File,
            direct: false,
            taken: false,
            created: 1_790_000_000,
            path: "/srv/vol1.img".into(),
            image: None,
            file: Some(FileIdentity { inode: 11, born_us: Some(5) }),
            membership: None,
        }
    }

    #[test]
    fn another_volume_of_the_same_name_is_not_the_groups() {
        let kept = Kept::of(&superblock());
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<Kept>(&text).unwrap(), kept);
        let why = |now: Superblock| kept.differs(&now);
        assert_eq!(why(superblock()), None);
        assert_eq!(why(Superblock { size: 128 << 20, generation: 9, ..superblock() }), None);
        let made_anew = Superblock { id: [8; 16], ..superblock() };
        assert!(why(made_anew).is_some_and(|why| why.contains("not the group's volume")));
        let on_another =
            Superblock { file: Some(FileIdentity { inode: 12, born_us: Some(6) }), ..superblock() };
        assert!(why(on_another).is_some_and(|why| why.contains("vol1.img is not the group's file")));
        let in_memory = Superblock { file: None, medium: Medium::Ram, ..superblock() };
        assert!(why(in_memory).is_some());
        let smaller = Superblock { size: 8 << 20, ..superblock() };
        assert!(why(smaller).is_some_and(|why| why.contains("it has shrunk")));
        // If files had no identity, the current one is recorded.
        let unknown = Kept::of(&Superblock { file: None, ..superblock() });
        assert_eq!(unknown.differs(&superblock()), None);
    }
}
