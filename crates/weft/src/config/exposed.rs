//! Finds files of the server's own in served folders, and folders that several shares serve under different rules.
//!
//! The server runs as one user, so a user of a folder over the network may reach everything in it: keys, the
//! hashes of passwords, the configuration. And two shares of one folder give each file in it the weaker of their rules.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use weft_store::rules::Export;

use super::error::{Harm, Place};
use super::key::Key;
use super::looks::Looks;
use super::own::{OwnFile, own_files, volume_files};
use super::{ConfigError, Problem, ServeConfig, ShareConfig, ShareSource};

/// The shares of folders, by the folder's path without links.
struct Folders<'a> {
    shares: &'a [ShareConfig],
    /// Indices of `shares`.
    served: HashMap<PathBuf, Vec<usize>>,
}

impl<'a> Folders<'a> {
    /// Folders that cannot be served are left out.
    fn of(config: &'a ServeConfig, looks: &Looks) -> Folders<'a> {
        let mut served: HashMap<PathBuf, Vec<usize>> = HashMap::new();
        for (index, share) in config.shares.iter().enumerate() {
            if let ShareSource::Folder(path) = &share.source
                && let Ok(real) = looks.folder(path)
            {
                served.entry(real).or_default().push(index);
            }
        }
        Folders { shares: &config.shares, served }
    }

    /// The shares whose folders are at this path or contain it, with their folders.
    fn around<'p>(&self, path: &'p Path) -> Vec<(&'p Path, usize, &'a ShareConfig)> {
        let mut found = Vec::new();
        for above in path.ancestors() {
            for index in self.served.get(above).into_iter().flatten() {
                found.extend(self.shares.get(*index).map(|share| (above, *index, share)));
            }
        }
        found
    }
}

/// Fails if clients of a share could read the server's keys, or change what it trusts.
pub(super) fn check(config: &ServeConfig, looks: &Looks) -> Result<(), ConfigError> {
    let folders = Folders::of(config, looks);
    if folders.served.is_empty() {
        return Ok(());
    }
    for (key, path, harm) in secrets(config, looks) {
        let by_writing = matches!(harm, Harm::Authorities | Harm::Configuration | Harm::Volume);
        for place in places(&path) {
            let around = folders.around(&place);
            if let Some((folder, _, share)) =
                around.into_iter().find(|(_, _, share)| !by_writing || may_write(share))
            {
                // The configuration has no key of its own.
                let key = key.unwrap_or_else(|| share.key());
                let (share, folder) = (share.name.clone(), folder.to_owned());
                return Err(config.wrong(key, Problem::Exposed { path, share, folder, harm }));
            }
        }
    }
    Ok(())
}

/// The files that clients must not reach, each with its key.
fn secrets(config: &ServeConfig, looks: &Looks) -> Vec<(Option<Key>, PathBuf, Harm)> {
    let files = own_files(config).into_iter();
    let mut files: Vec<_> =
        files.filter_map(|OwnFile { key, path, harm }| Some((key, path, harm?))).collect();
    // A path that is missing is an error of its own; a pipe or a device keeps no content.
    let keeps = |path: &Path| path.metadata().map_or(true, |found| found.is_file() || found.is_dir());
    files.retain(|(_, path, _)| keeps(path));
    let volumes = volume_files(config, looks).into_iter().filter(|(_, path)| looks.has_answered(path));
    files.extend(volumes.map(|(key, path)| (Some(key), path, Harm::Volume)));
    files
}

/// Where a file is, and where its name is: clients who can replace a link can replace what it leads to.
fn places(path: &Path) -> Vec<PathBuf> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // Parts that do not exist yet will be where the path says.
    let named = absolute.ancestors().skip(1).find_map(|above| {
        let rest = absolute.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(rest))
    });
    absolute.canonicalize().into_iter().chain(named).collect()
}

/// Whether some client may change files of a share.
pub(super) fn may_write(share: &ShareConfig) -> bool {
    let by_smb = share.rights.are_open() || share.rights.write.as_ref().is_some_and(|list| !list.is_empty());
    let by_nfs = share.nfs.as_ref().is_some_and(|export| !export.read_only) && !share.encrypt;
    !share.read_only && (by_smb || by_nfs)
}

/// The shares whose clients bypass a rule of another share, in the order of the configuration.
pub(super) fn bypasses(config: &ServeConfig, looks: &Looks) -> Vec<ConfigError> {
    let folders = Folders::of(config, looks);
    let mut found: Vec<(usize, ConfigError)> = Vec::new();
    for (real, indices) in &folders.served {
        for (above, outer, other) in folders.around(real) {
            let inner = indices.iter().filter(|index| **index != outer);
            for (index, share) in inner.filter_map(|index| Some((*index, config.shares.get(*index)?))) {
                // Two shares of one folder are met in both orders.
                let is_same = above == real;
                let place = if is_same { Place::Same } else { Place::Inside };
                found.extend(bypass(config, (share, real), place, other).map(|warning| (index, warning)));
                if !is_same {
                    let warning = bypass(config, (other, above), Place::Around, share);
                    found.extend(warning.map(|warning| (outer, warning)));
                    let apart = counted_apart(config, (share, real), other);
                    found.extend(apart.map(|warning| (index, warning)));
                }
            }
        }
    }
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, warning)| warning).collect()
}

/// Shares of one folder have one count for their quotas; one inside another has its own.
fn counted_apart(
    config: &ServeConfig,
    (share, folder): (&ShareConfig, &Path),
    other: &ShareConfig,
) -> Option<ConfigError> {
    let (other_key, folder) = (other.key(), folder.to_owned());
    let are_both_limited = share.quota.is_some() && other.quota.is_some();
    let is_written = may_write(share) || may_write(other);
    (are_both_limited && is_written)
        .then(|| config.wrong(share.key(), Problem::CountedApart { folder, other: other_key }))
}

/// The rules of `other` that files in both folders do not have in `share`.
fn bypass(
    config: &ServeConfig,
    (share, folder): (&ShareConfig, &Path),
    place: Place,
    other: &ShareConfig,
) -> Option<ConfigError> {
    let serves_nfs = config.listeners.serve_nfs();
    let by_nfs = serves_nfs && share.rules().withheld_from_nfs().is_none();
    // Over SMB, the whole server may require encryption.
    let plain = !share.encrypt && (by_nfs || !config.smb.require_encryption);
    let differs = share.rights != other.rights;
    let narrow =
        |share: &ShareConfig| Export { asynchronous: false, ..share.nfs.clone().unwrap_or_default() };
    let rules = [
        ("encrypt", other.encrypt && plain),
        ("read_only", other.read_only && may_write(share)),
        ("quota", other.quota.is_some() && share.quota.is_none() && may_write(share)),
        ("read", other.rights.read.is_some() && differs),
        ("write", other.rights.write.is_some() && differs),
        ("nfs", by_nfs && !narrow(other).is_plain() && narrow(share) != narrow(other)),
    ];
    let rules: Vec<_> = rules.into_iter().filter(|(_, is)| *is).map(|(rule, _)| rule).collect();
    let (name, folder) = (share.name.clone(), folder.to_owned());
    (!rules.is_empty()).then(|| {
        config.wrong(share.key(), Problem::Bypass { share: name, folder, place, other: other.key(), rules })
    })
}
