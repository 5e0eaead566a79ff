//! The files that Ceph's library reads while a server connects: they must stay readable when the server is confined.
//!
//! Only names of keyrings are looked for in Ceph's configuration (ceph.conf(5): `keyring`, `keyfile`), because the library
//! itself cannot be asked yet: it would start threads, which would not be confined. Without such a line, keyrings are in /etc/ceph.

use std::fs;
use std::path::{Path, PathBuf};

use weft_store::volume::Client;

/// The most bytes of a configuration that are read.
const MOST_BYTES: u64 = 1 << 20;

/// The configuration, and the keyrings that it names.
pub(super) fn files(client: &Client) -> Vec<PathBuf> {
    let mut files = vec![client.conf.clone()];
    // A configuration that cannot be read is reported when the volume is opened.
    let readable = fs::metadata(&client.conf).is_ok_and(|found| found.is_file() && found.len() <= MOST_BYTES);
    if let (true, Ok(text)) = (readable, fs::read_to_string(&client.conf)) {
        files.extend(keyrings(&text, client));
    }
    files
}

/// The absolute paths of the lines that name keyrings.
fn keyrings(text: &str, client: &Client) -> Vec<PathBuf> {
    let cluster = client.conf.file_stem().and_then(|stem| stem.to_str()).unwrap_or("ceph");
    let name = format!("client.{}", client.id);
    let value = |line: &str| {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let (key, value) = line.split_once('=')?;
        // Blanks, hyphens and underscores are the same to Ceph.
        let key = key.trim().replace([' ', '_', '-'], "");
        ["keyring", "keyfile"].contains(&&*key).then(|| value.trim().to_owned())
    };
    let expanded = |path: &str| {
        let expanded = path
            .replace("$cluster", cluster)
            .replace("$name", &name)
            .replace("$type", "client")
            .replace("$id", &client.id);
        Path::new(&expanded).is_absolute().then(|| PathBuf::from(expanded))
    };
    let values: Vec<String> = text.lines().filter_map(value).collect();
    let paths = values.iter().flat_map(|value| value.split([',', ' ', '\t']));
    paths.filter_map(expanded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyrings_are_found_as_ceph_finds_them() {
        let client = Client { conf: "/srv/two.conf".into(), id: "weft".into() };
        let text = "[global]\nmon_host = 10.0.0.1\n[client]\n key ring = /a/$cluster.$name.keyring,/b/$id # of ours\n\
                    keyfile=/c/key\n;keyring = /d\nkeyring = relative\nkey = AQ==\n";
        let expected = ["/a/two.client.weft.keyring", "/b/weft", "/c/key"].map(PathBuf::from);
        assert_eq!(keyrings(text, &client), expected);
    }
}
