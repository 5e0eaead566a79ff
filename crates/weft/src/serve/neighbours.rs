//! Other servers of Weft on this host that serve the same folder, or keep their state in the same directory.
//!
//! Each has a table of opens of its own: what one's clients have locked or cached, the other's clients change. Nothing
//! forbids that, and the second server says so.
//! Owns: a mark for each folder, an abstract socket named by the folder's device and inode, which goes with the process. Nothing
//! is written into the folder, and nobody else's lock of it is in the way. Does not: see servers of other network namespaces.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use crate::shares::Described;

/// The marks of this server.
pub(super) struct Marks(#[allow(dead_code, reason = "they work by being kept")] Vec<UnixDatagram>);

/// Marks the folders of `shares`, and warns of those that another server has marked.
pub(super) fn mark(shares: &[Described]) -> Marks {
    let mut marks = Vec::new();
    for described in shares.iter().filter(|described| described.share.vfs.kind() == "dir") {
        let (name, folder) = (&described.share.name, Path::new(&described.source));
        // Before our own is there.
        if let Some(above) = folder.ancestors().skip(1).find(|above| is_marked(above)) {
            let (above, folder) = (above.display(), folder.display());
            tracing::warn!(
                "share {name}: another Weft serves {above}, and {folder} lies in it: {}",
                advice()
            );
        }
        match address(folder).and_then(|address| UnixDatagram::bind_addr(&address)) {
            Ok(mark) => marks.push(mark),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                let folder = folder.display();
                tracing::warn!(
                    "share {name}: {folder} is served already, by another Weft or share: {}",
                    advice()
                );
            }
            Err(e) => tracing::debug!("share {name}: whether another Weft serves it is not known: {e}"),
        }
    }
    Marks(marks)
}

/// Says which other servers keep their state in `dir`; a warning where that directory was asked for.
pub(super) fn sharing_state(dir: &Path, named: bool) {
    let own = std::process::id();
    let others: Vec<String> = match crate::admin::servers(dir) {
        Ok(servers) => servers.iter().filter(|one| one.pid != own).map(|one| one.pid.to_string()).collect(),
        Err(e) => return tracing::debug!("{e}"),
    };
    if others.is_empty() {
        return;
    }
    let (dir, others) = (dir.display(), others.join(", "));
    let text = format!(
        "the state directory {dir} is also that of process {others}, another weft serve: each keeps its own address and port \
         there, and a volume is served by one of them; --state-dir names another"
    );
    if named { tracing::warn!("{text}") } else { tracing::info!("{text}") }
}

fn advice() -> &'static str {
    "locks and caches of their clients do not know of each other, and writes can be lost; end one of the two (`weft status` lists them)"
}

fn is_marked(folder: &Path) -> bool {
    let connected = |address| UnixDatagram::unbound()?.connect_addr(&address);
    address(folder).and_then(connected).is_ok()
}

fn address(folder: &Path) -> io::Result<SocketAddr> {
    let found = std::fs::metadata(folder)?;
    SocketAddr::from_abstract_name(format!("weft-serves-{:x}-{:x}", found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_the_folder_whatever_leads_to_it_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, link) = (dir.path().join("folder"), dir.path().join("link"));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(!is_marked(&folder));
        let mark = UnixDatagram::bind_addr(&address(&folder).unwrap()).unwrap();
        assert!(is_marked(&folder) && is_marked(&link) && !is_marked(dir.path()));
        let again = UnixDatagram::bind_addr(&address(&link).unwrap());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(mark);
        assert!(!is_marked(&folder));
    }
}
