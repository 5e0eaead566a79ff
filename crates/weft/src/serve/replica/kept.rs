//! Recognizes a group's volumes, and a volume's group.
//!
//! A group's file records its volumes (their identity, which file each used, and its length), so that another volume
//! with the same name is not mistaken for one of them. Each volume's metadata names the group, so that nobody uses
//! the volume if the group's file is lost. The group's file is written first and removed last: a group that finds its
//! volumes without a mark marks them. Content is not examined; [`super::group`] decides what follows.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weft_store::volume::identity::FileIdentity;
use weft_store::volume::superblock::{Membership, Superblock};

use super::config::{Damaged, Remembered};
use super::door;
use super::names::GroupName;

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
            id: door::hex(&superblock.id),
            inode: file.map(|file| file.inode),
            born_us: file.and_then(|file| file.born_us),
            size: superblock.size,
        }
    }

    /// Why a volume with this name is not the group's volume.
    pub fn differs(&self, now: &Superblock) -> Option<String> {
        let old = self.inode.map(|inode| FileIdentity { inode, born_us: self.born_us });
        let is_same_file = |old: FileIdentity| now.file.is_some_and(|file| old.is(&file));
        if self.id != door::hex(&now.id) {
            Some(
                "it is not the group's volume: that one was removed, and this one was created in its place"
                    .into(),
            )
        } else if old.is_some_and(|old| !is_same_file(old)) {
            let path = now.path.display();
            Some(format!("{path} is not the group's file: another file was accepted in its place"))
        } else if now.size < self.size {
            Some(format!("it has shrunk: it has {} bytes and had {}", now.size, self.size))
        } else {
            None
        }
    }
}

/// Removes groups whose creation was interrupted before anything was replicated. A creation writes the list of
/// volumes, then the group's file, then makes the journal and marks the volumes; ending replication removes the list
/// before the file. So a list alone, whose volumes are open here (so no other server is creating it) and unmarked,
/// belongs to a group that never ran.
pub(super) fn take_never_begun(
    found: &mut Vec<Remembered>,
    marked: &[(String, Option<Membership>)],
) -> Vec<GroupName> {
    let is_unmarked = |volume: &String| marked.iter().any(|(name, of)| name == volume && of.is_none());
    let mut never_begun = Vec::new();
    found.retain(|group| match group {
        Remembered::Damaged(Damaged { name, volumes: Some(volumes), is_list_alone: true, .. })
            if !volumes.is_empty() && volumes.iter().all(is_unmarked) =>
        {
            never_begun.push(name.clone());
            false
        }
        _ => true,
    });
    never_begun
}

/// Completes the groups found with the metadata of the open volumes: adds volumes to groups that have lost their
/// list, and adds groups of which nothing else is left.
pub(super) fn complete(found: &mut Vec<Remembered>, marked: &[(String, Option<Membership>)], folder: &Path) {
    for group in found.iter_mut() {
        let Remembered::Damaged(damaged) = group else { continue };
        let own = marked.iter().filter_map(|(volume, of)| {
            let of = of.as_ref().filter(|of| *of.group == *damaged.name)?;
            Some((volume.clone(), of.partnership))
        });
        let (volumes, partnerships): (Vec<String>, Vec<[u8; 16]>) = own.unzip();
        damaged.partnership = partnerships.first().copied();
        if damaged.volumes.is_none() && !volumes.is_empty() {
            damaged.volumes = Some(volumes);
        }
    }
    let is_named = |volume: &String| {
        found.iter().any(|group| match group {
            Remembered::Damaged(Damaged { volumes: None, .. }) => false,
            group => group.may_have(volume),
        })
    };
    let mut lost: BTreeMap<GroupName, Damaged> = BTreeMap::new();
    for (volume, of) in marked {
        let Some(of) = of.as_ref().filter(|_| !is_named(volume)) else { continue };
        // A group of that name without this volume is a different group.
        let is_taken = found.iter().any(|group| **group.name() == *of.group);
        let name = if is_taken { format!("{}-{volume}", of.group) } else { of.group.clone() };
        // If that name is too long, the volume's name is used alone.
        let Ok(name) = name.parse::<GroupName>().or_else(|_| volume.parse()) else { continue };
        let group = lost.entry(name.clone()).or_insert_with(|| Damaged {
            name,
            volumes: Some(Vec::new()),
            partnership: Some(of.partnership),
            is_list_alone: false,
            why: format!(
                "volume {volume} is replicated in the group {}, but nothing is left of that group in {}",
                of.group,
                folder.display()
            ),
        });
        group.volumes.get_or_insert_default().push(volume.clone());
    }
    found.extend(lost.into_values().map(Remembered::Damaged));
}

#[cfg(test)]
mod tests {
    use weft_store::block::Medium;

    use super::super::config::{Group, Policy};
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

    fn marked(volume: &str, group: &str) -> (String, Option<Membership>) {
        (volume.into(), Some(Membership { group: group.into(), partnership: [3; 16] }))
    }

    #[test]
    fn a_list_of_volumes_alone_that_bear_no_mark_is_of_a_group_that_never_was() {
        let list_of = |name: &str, volumes: &[&str], is_list_alone| {
            let volumes = Some(volumes.iter().map(|name| (*name).to_owned()).collect());
            let (name, why) = (name.parse().unwrap(), "it is lost".into());
            Remembered::Damaged(Damaged { name, volumes, partnership: None, is_list_alone, why })
        };
        let mut found = vec![
            list_of("never", &["a", "b"], true),
            list_of("journal-left", &["c"], false),
            list_of("marked", &["d", "e"], true),
            list_of("not-served", &["c", "f"], true),
        ];
        let unmarked = |volume: &str| (volume.to_owned(), None);
        let volumes = [
            unmarked("a"),
            unmarked("b"),
            unmarked("c"),
            unmarked("d"),
            marked("e", "marked"),
            unmarked("g"),
        ];
        let never: Vec<String> =
            take_never_begun(&mut found, &volumes).iter().map(ToString::to_string).collect();
        assert_eq!(never, ["never"]);
        let left: Vec<&str> = found.iter().map(|group| &**group.name()).collect();
        assert_eq!(left, ["journal-left", "marked", "not-served"]);
    }

    #[test]
    fn a_volume_whose_group_is_lost_is_in_a_group_of_which_no_more_is_known() {
        let known =
            Group::new("a".parse().unwrap(), "ab".repeat(16), vec!["a1".into()], 1 << 24, Policy::default());
        let half = Damaged {
            name: "b".parse().unwrap(),
            volumes: None,
            partnership: None,
            is_list_alone: false,
            why: "it is lost".into(),
        };
        let mut found = vec![Remembered::Group(known), Remembered::Damaged(half)];
        let volumes = [
            marked("a1", "a"),
            marked("b1", "b"),
            marked("b2", "b"),
            marked("c1", "c"),
            marked("c2", "c"),
            // Its group was restored from a time when it had other volumes.
            marked("a2", "a"),
            ("free".into(), None),
        ];
        complete(&mut found, &volumes, Path::new("/state/replica"));
        let told: Vec<_> = found
            .iter()
            .map(|group| match group {
                Remembered::Group(group) => (&*group.name, group.volumes.clone()),
                Remembered::Damaged(damaged) => {
                    assert_eq!(damaged.partnership, Some([3; 16]));
                    (&*damaged.name, damaged.volumes.clone().unwrap())
                }
            })
            .collect();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let expected = [
            ("a", names(&["a1"])),
            ("b", names(&["b1", "b2"])),
            ("a-a2", names(&["a2"])),
            ("c", names(&["c1", "c2"])),
        ];
        assert_eq!(told, expected);
        assert!(!found.iter().any(|group| group.may_have(&"free".to_owned())));
    }
}
