//! Recognizes a volume's group by the mark in the volume's metadata.
//!
//! Each volume's metadata names the group, so that nobody uses the volume if the group's file is lost. The group's file
//! is written first and removed last: a group that finds its volumes without a mark marks them.

use std::collections::BTreeMap;
use std::path::Path;

use weft_store::volume::superblock::Membership;

use super::config::{Damaged, Remembered};
use super::names::GroupName;

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
    use super::super::config::{Group, Policy};
    use super::*;

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
