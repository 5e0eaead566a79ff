//! The values of keys that are tables whose keys a user chooses: principals, and DFS links.

use weft_smb::auth::Principals;
use weft_smb::server::dfs::Link;

use crate::config::ServeConfig;
use crate::config::key::{part, quoted};
use crate::config::mistake::Unparsed;
use crate::config::share::ShareConfig;
use crate::config::types::{DfsLinks, Entry, List, PrincipalMap, Refused, Text, TomlValue, Type, all};

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
