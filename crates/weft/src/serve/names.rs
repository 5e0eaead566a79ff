//! The names by which SMB clients may address this server, for [`weft_smb::auth::ServerNames`].
//!
//! They are the host's own names (its node name, the names next to it in /etc/hosts, and these with the search
//! domains of /etc/resolv.conf and with `.local`) and those that `--server-name` adds. DNS is not asked, because an
//! attacker could answer.

use std::net::IpAddr;
use std::sync::Arc;

use weft_smb::auth::ServerNames;

/// Maximum number of names from system files.
const MOST: usize = 64;

/// The node name of this host.
pub(super) fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "WEFT".into() } else { name }
}

/// The names of this host, whose node name is `node`, with `aliases`.
pub(super) fn of(node: &str, aliases: &[String]) -> Arc<ServerNames> {
    let file = |path| std::fs::read_to_string(path).unwrap_or_default();
    let mut names = of_files(node, &file("/etc/hosts"), &file("/etc/resolv.conf"));
    names.extend(aliases.iter().cloned());
    Arc::new(ServerNames::new(names.iter().map(String::as_str), addresses))
}

fn of_files(node: &str, hosts: &str, resolv: &str) -> Vec<String> {
    let short = node.split('.').next().unwrap_or(node).to_owned();
    let is_ours = |name: &&str| [node, &short].iter().any(|ours| name.eq_ignore_ascii_case(ours));
    let mut names = vec![node.to_owned(), short.clone(), format!("{short}.local")];
    let without_comments = |text: &str| -> Vec<Vec<String>> {
        let words = |line: &str| {
            line.split(['#', ';']).next().unwrap_or("").split_whitespace().map(str::to_owned).collect()
        };
        text.lines().map(words).collect()
    };
    for line in without_comments(hosts) {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let Some((_, on_line)) = line.split_first() else { continue };
        if on_line.iter().any(&is_ours) {
            names.extend(on_line.iter().map(|name| (*name).to_owned()));
        }
    }
    for line in without_comments(resolv) {
        let Some((keyword, domains)) = line.split_first() else { continue };
        if matches!(keyword.as_str(), "search" | "domain") {
            names.extend(domains.iter().map(|domain| format!("{short}.{}", domain.trim_end_matches('.'))));
        }
    }
    names.truncate(MOST);
    names
}

fn addresses() -> Vec<IpAddr> {
    match weft_machine::net::interfaces() {
        Ok(found) => found.into_iter().map(|interface| interface.addr).collect(),
        Err(e) => {
            tracing::warn!("the addresses of this host cannot be listed: {e}");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_knows_its_names_from_the_files_of_the_system() {
        let hosts = "127.0.0.1 localhost\n127.0.1.1 nas.home.example nas # this host\n10.0.0.9 other files\n\n#127.0.0.1 nas x\n";
        let resolv = "nameserver 10.0.0.1\nsearch lan.example. corp.example\n";
        let names = of_files("NAS", hosts, resolv);
        for ours in ["NAS", "NAS.local", "nas.home.example", "NAS.lan.example", "NAS.corp.example"] {
            assert!(names.iter().any(|name| name == ours), "{ours}: {names:?}");
        }
        for others in ["other", "files", "x", "localhost"] {
            assert!(!names.iter().any(|name| name == others), "{others}: {names:?}");
        }
        assert_eq!(of_files("a", "", "").len(), 3);
    }
}
