//! Reads and shows the keys that are not one field of one type: tables of names that the user chooses, parts of values that
//! may be absent, the sources of a share.

use std::path::{Path, PathBuf};

use weft_smb::auth::Principals;
use weft_smb::server::dfs::Link;
use weft_store::audit::Wanted;
use weft_store::rules::Export;

use super::key::{part, quoted};
use super::mistake::{Fault, Unparsed};
use super::share::{ShareConfig, ShareSource};
use super::types::{Boolean, DfsLinks, Entry, List, PrincipalMap, Refused, Text, TomlValue, Type, all};
use super::{CAPTURE_BYTES, CaptureConfig, CertificateConfig, RdmaConfig, ServeConfig};

pub(super) fn set_volumes(share: &mut ShareConfig, given: &TomlValue) -> Result<(), Refused> {
    if !Boolean::read(given)? {
        return Err(given.refuse(Fault::NotFalse));
    }
    share.source = ShareSource::Volumes;
    Ok(())
}

pub(super) fn get_volumes(share: &ShareConfig) -> Option<String> {
    (share.source == ShareSource::Volumes).then(|| "true".into())
}

pub(super) fn set_principals(config: &mut ServeConfig, given: &TomlValue) -> Result<(), Refused> {
    let mut principals = Principals::default();
    let line = |entry: &Entry| {
        let user = Text::read(&entry.value)?;
        let mapped = principals.map(entry.key, &user);
        mapped.map_err(|e| entry.value.unparsed(entry.key, Unparsed::KerberosPrincipal(e)))
    };
    all(given.entries(PrincipalMap::name)?.iter().map(line))?;
    config.kerberos.map = principals;
    Ok(())
}

pub(super) fn get_principals(config: &ServeConfig) -> Option<String> {
    let line = |(principal, user): (&str, &str)| format!("{} = {}", part(principal), quoted(user));
    let lines: Vec<String> = config.kerberos.map.mapped().map(line).collect();
    Some(if lines.is_empty() { "{}".into() } else { format!("{{ {} }}", lines.join(", ")) })
}

pub(super) fn set_links(share: &mut ShareConfig, given: &TomlValue) -> Result<(), Refused> {
    let link = |entry: &Entry| {
        let targets = List::<Text>::read(&entry.value)?;
        let link = Link::new(&share.name, entry.key, targets.iter().map(String::as_str));
        link.map_err(|e| entry.value.unparsed(entry.key, Unparsed::Link(e)))
    };
    share.dfs_links = all(given.entries(DfsLinks::name)?.iter().map(link))?;
    Ok(())
}

pub(super) fn get_links(share: &ShareConfig) -> Option<String> {
    let link = |link: &Link| {
        let targets: Vec<String> = link.targets().map(|target| quoted(&target)).collect();
        format!("{} = [{}]", part(&link.path()), targets.join(", "))
    };
    let links: Vec<String> = share.dfs_links.iter().map(link).collect();
    Some(if links.is_empty() { "{}".into() } else { format!("{{ {} }}", links.join(", ")) })
}

/// The capture; one without a file is refused when the configuration is checked.
pub(crate) fn capture(rdma: &mut RdmaConfig) -> &mut CaptureConfig {
    let unnamed = || CaptureConfig { file: PathBuf::new(), limit_bytes: CAPTURE_BYTES };
    rdma.capture.get_or_insert_with(unnamed)
}

/// The certificate; one without its chain or key is refused when the configuration is checked.
pub(crate) fn certificate(files: &mut Option<CertificateConfig>) -> &mut CertificateConfig {
    let unnamed = || CertificateConfig { certificate: PathBuf::new(), key: PathBuf::new(), clients: None };
    files.get_or_insert_with(unnamed)
}

pub(super) fn export(share: &mut ShareConfig) -> &mut Export {
    share.nfs.get_or_insert_default()
}

pub(super) fn exported(share: &ShareConfig) -> Export {
    share.nfs.clone().unwrap_or_default()
}

pub(super) fn folder_of(share: &ShareConfig) -> Option<PathBuf> {
    share.source.folder().map(Path::to_owned)
}

pub(super) fn ram_of(share: &ShareConfig) -> Option<u64> {
    match share.source {
        ShareSource::Ram { size_bytes } => Some(size_bytes),
        ShareSource::Folder(_) | ShareSource::Volumes => None,
    }
}

/// The events that are listed one by one; `None` means all.
pub(super) fn events_of(config: &ServeConfig) -> Option<Vec<Wanted>> {
    let each = |wanted: Wanted| Wanted::each().filter(|one| wanted.contains(*one)).collect();
    config.audit.events.map(each)
}
