//! Which group a volume is in, according to the files of a state directory: for code outside of replication that opens
//! or changes volumes, or gives advice about them.

use std::path::Path;

use super::config::{Folder, Remembered};
use super::error::Unlisted;
use crate::config::Plan;
use crate::serve::error::Unserved;

/// The group that contains a volume, according to the files of a state directory.
#[derive(Debug)]
pub(crate) struct InGroup {
    /// Its name.
    pub group: String,
    /// Whether this is certain. Otherwise a group has lost the list of its volumes, and this may be one of them.
    pub is_sure: bool,
}

/// The group of a volume of this state directory.
pub(crate) fn group_of(state: &Path, volume: &str) -> Result<Option<InGroup>, Unlisted> {
    let volume = volume.to_owned();
    let mut found = Folder::of(state).load()?;
    found.retain(|found| found.may_have(&volume));
    let in_group = found.into_iter().map(|found| {
        let is_sure = !matches!(&found, Remembered::Damaged(damaged) if damaged.volumes.is_none());
        InGroup { group: found.name().to_string(), is_sure }
    });
    Ok(in_group.max_by_key(|in_group| in_group.is_sure))
}

/// Refuses to serve grouped volumes on a server that does not replicate: writes to them would be in no log.
pub(in crate::serve) fn refuse_members(plan: &Plan) -> Result<(), Unserved> {
    let Some(state) = plan.state_dir() else { return Ok(()) };
    let names = plan.config().volumes.iter().map(|volume| &volume.name);
    for found in Folder::of(&state).load()? {
        if let Some(volume) = names.clone().find(|volume| found.may_have(volume)) {
            let (volume, group) = (volume.clone(), found.name().to_string());
            return Err(match found {
                Remembered::Group(_) => Unserved::Replicated { volume, group },
                Remembered::Damaged(damaged) => Unserved::MayBeReplicated { volume, group, why: damaged.why },
            });
        }
    }
    Ok(())
}
