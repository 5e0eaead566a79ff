//! Other servers of Weft on this host that serve the same folder, or keep their state in the same directory.
//!
//! Each has a table of opens of its own: what one's clients have locked or cached, the other's clients change. Nothing
//! forbids that, and the second server says so.
//! Owns: a mark for each folder, an abstract socket named by the server's user and the folder's device and inode, which goes with
//! the process. Nothing is written into the folder, and nobody else's lock of it is in the way.
//! Any user can make a socket of any abstract name, so a mark counts only where the kernel names its user as the one in its name,
//! and only of our own user, root and the folder's owner: others could raise a false alarm.
//! Does not: see servers of other network namespaces, or of further users.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::shares::Described;

/// The marks of this server.
pub(super) struct Marks(#[allow(dead_code, reason = "they work by being kept")] Vec<UnixListener>);

/// Marks the folders of `shares`, and warns of those that another server has marked, and of those that lie in each other.
pub(super) fn mark(shares: &[Described]) -> Marks {
    let folders: Vec<(&str, &Path)> = shares
        .iter()
        .filter(|described| described.share.vfs.kind() == "dir")
        .map(|described| (&*described.share.name, Path::new(&described.source)))
        .collect();
    let (marks, warnings) = look(&folders);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    marks
}

/// The marks of folders, by the names of their shares, and what is to be said of them.
fn look(folders: &[(&str, &Path)]) -> (Marks, Vec<String>) {
    let (mut marks, mut warnings) = (Vec::new(), Vec::new());
    let taken = |name, folder: &Path| {
        let folder = folder.display();
        format!("share {name}: {folder} is served already, by another Weft: {OTHER_SERVER}")
    };
    // All marks of others, before one of ours is there.
    for (name, folder) in folders {
        let shown = folder.display();
        if let Some(above) = folder.ancestors().skip(1).find(|above| is_marked(above)) {
            let above = above.display();
            warnings.push(format!(
                "share {name}: another Weft serves {above}, and {shown} lies in it: {OTHER_SERVER}"
            ));
        }
        if is_marked(folder) {
            warnings.push(taken(name, folder));
        }
    }
    for (n, (name, folder)) in folders.iter().enumerate() {
        let shown = folder.display();
        for (m, (other, above)) in folders.iter().enumerate() {
            let own = number(above);
            let same = own.is_some() && own == number(folder);
            // Of two shares of one folder the second one says so.
            if same && m < n {
                warnings.push(format!(
                    "share {name}: {shown} is also {other}, another share of this server: {OTHER_SHARE}"
                ));
            } else if !same && own.is_some() && folder.ancestors().skip(1).any(|above| number(above) == own) {
                warnings.push(format!(
                    "share {name}: {shown} lies in {other}, another share of this server: {OTHER_SHARE}"
                ));
            }
        }
        match make(folder) {
            Ok(mark) => marks.push(mark),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                let is_ours = folders.iter().take(n).any(|(_, other)| number(other) == number(folder));
                let warning = taken(name, folder);
                // A server that has started beside this one since the look; anybody else who took the name is of no account.
                if !is_ours && is_marked(folder) && !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
            Err(e) => tracing::debug!("share {name}: whether another Weft serves it is not known: {e}"),
        }
    }
    (Marks(marks), warnings)
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

const OTHER_SERVER: &str = "locks and caches of their clients do not know of each other, and writes can be lost; end one of the two (`weft status` lists them)";
const OTHER_SHARE: &str = "locks and caches of their clients do not know of each other, and writes can be lost; serve one of the two";

/// Whether a server whose word counts here has marked the folder.
fn is_marked(folder: &Path) -> bool {
    let Ok(found) = std::fs::metadata(folder) else { return false };
    let users = [own_uid(), 0, found.uid()];
    users.into_iter().any(|uid| owner(&name(uid, &found)).is_ok_and(|owner| owner == uid))
}

/// The user of the process that listens at an abstract name, as the kernel knows it (SO_PEERCRED).
fn owner(name: &str) -> io::Result<u32> {
    // A queue that somebody has filled keeps nobody waiting.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket_peercred(&socket)?.uid.as_raw())
}

fn make(folder: &Path) -> io::Result<UnixListener> {
    let name = name(own_uid(), &std::fs::metadata(folder)?);
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What a folder is, whatever leads to it.
fn number(folder: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(folder).ok().map(|found| (found.dev(), found.ino()))
}

/// The name of a user's mark of a folder.
fn name(uid: u32, folder: &std::fs::Metadata) -> String {
    format!("weft-serves-{uid}-{:x}-{:x}", folder.dev(), folder.ino())
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
        let mark = make(&folder).unwrap();
        assert!(is_marked(&folder) && is_marked(&link) && !is_marked(dir.path()));
        let again = make(&link);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(mark);
        assert!(!is_marked(&folder));
    }

    #[test]
    fn shares_of_one_server_are_not_said_to_be_anothers() {
        let dir = tempfile::tempdir().unwrap();
        let (srv, inner, link) = (dir.path().join("srv"), dir.path().join("srv/a"), dir.path().join("link"));
        std::fs::create_dir_all(&inner).unwrap();
        std::os::unix::fs::symlink(&srv, &link).unwrap();
        let (srv, inner) = (("srv", &*srv), ("a", &*inner));
        for folders in [[srv, inner], [inner, srv]] {
            let (_marks, warnings) = look(&folders);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains("a lies in srv, another share of this server"), "{warnings:?}");
        }
        let (_marks, warnings) = look(&[srv, ("link", &link)]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("link is also srv, another share of this server"), "{warnings:?}");
        // Another server looks at the same folders.
        let (_none, warnings) = look(&[srv]);
        assert!(warnings[0].contains("is served already, by another Weft"), "{warnings:?}");
        let (_mark, warnings) = look(&[inner]);
        assert!(warnings[0].contains("another Weft serves"), "{warnings:?}");
    }
}
