//! Detects other Weft servers on this host that serve the same folder, or keep state in the same directory.
//!
//! Each server has its own table of opens, so one server's clients can change files that the other's have locked or
//! cached. This is allowed, and the second server warns about it. A server marks each folder with an abstract socket
//! named by the server's user and the folder's device and inode, which disappears with the process. Nothing is
//! written into the folder, and no other lock of it interferes. Any user can create a socket with any abstract name,
//! so a mark counts only if the kernel reports the user in its name as its owner, and only for our own user, root and
//! the folder's owner: others could raise a false alarm. Servers in other network namespaces, or of other users, are
//! not detected; nor are those of folders whose file system does not answer.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use weft_machine::net::PeerCredentials;

use crate::config::{Looks, Place};
use crate::shares::Described;

/// The marks of this server.
pub(super) struct Marks(#[allow(dead_code, reason = "they work by being kept")] Vec<UnixListener>);

/// Marks the folders of `shares`, except those that `looks` has found silent. Warns about folders that another server has
/// marked, and about nested folders.
pub(super) fn mark(shares: &[Described], looks: &Looks) -> Marks {
    let folders: Vec<(&str, &Path)> = shares
        .iter()
        .filter(|described| described.share.vfs.kind() == "dir")
        .filter(|described| !described.path().is_some_and(|path| looks.is_silent(path)))
        .map(|described| (&*described.share.name, Path::new(&described.source)))
        .collect();
    let (marks, warnings) = look(&folders);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    marks
}

/// Marks folders, given by their shares' names, and returns the warnings.
fn look(folders: &[(&str, &Path)]) -> (Marks, Vec<String>) {
    let looks = Looks::at(folders.iter().flat_map(|(_, folder)| folder.ancestors()));
    let number = |folder: &Path| looks.place(folder);
    let (mut marks, mut warnings) = (Vec::new(), Vec::new());
    let taken = |name, folder: &Path| {
        let folder = folder.display();
        format!("share {name}: another Weft already serves {folder}: {OTHER_SERVER}")
    };
    // All marks of others are read before one of ours exists.
    for (name, folder) in folders {
        let shown = folder.display();
        if let Some(above) = folder.ancestors().skip(1).find(|above| is_marked(above, &looks)) {
            let above = above.display();
            warnings.push(format!(
                "share {name}: another Weft serves {above}, which contains {shown}: {OTHER_SERVER}"
            ));
        }
        if is_marked(folder, &looks) {
            warnings.push(taken(name, folder));
        }
    }
    for (n, (name, folder)) in folders.iter().enumerate() {
        let shown = folder.display();
        for (m, (other, above)) in folders.iter().enumerate() {
            let own = number(above);
            let same = own.is_some() && own == number(folder);
            // Of two shares of one folder, the second one warns.
            if same && m < n {
                warnings.push(format!(
                    "share {name}: {shown} is also the folder of {other}, another share of this server: {OTHER_SHARE}"
                ));
            } else if !same && own.is_some() && folder.ancestors().skip(1).any(|above| number(above) == own) {
                warnings.push(format!(
                    "share {name}: {shown} is inside {other}, another share of this server: {OTHER_SHARE}"
                ));
            }
        }
        let Some(place) = number(folder) else { continue };
        match make(place) {
            Ok(mark) => marks.push(mark),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                let is_ours = folders.iter().take(n).any(|(_, other)| number(other) == number(folder));
                let warning = taken(name, folder);
                // A server that has started since the check; anybody else who has taken the name does not matter.
                if !is_ours && is_marked(folder, &looks) && !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
            Err(e) => tracing::debug!("share {name}: cannot find out whether another Weft serves it: {e}"),
        }
    }
    (Marks(marks), warnings)
}

/// Reports other servers that keep state in `dir`; as a warning if that directory was named.
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
        "the state directory {dir} is also that of process {others}, another weft serve: each keeps the state of its own address and port \
         there, and only one of them can serve a volume; choose another with --state-dir"
    );
    if named { tracing::warn!("{text}") } else { tracing::info!("{text}") }
}

const OTHER_SERVER: &str = "their clients' locks and caches are not coordinated, and writes can be lost; stop one of the two (`weft status --state-dir DIR` lists those of a state directory)";
const OTHER_SHARE: &str =
    "their clients' locks and caches are not coordinated, and writes can be lost; serve only one of the two";

/// Whether a server of a relevant user has marked the folder.
fn is_marked(folder: &Path, looks: &Looks) -> bool {
    let (Some(place), Some(owner_of_folder)) = (looks.place(folder), looks.owner(folder)) else {
        return false;
    };
    let users = [own_uid(), 0, owner_of_folder];
    users.into_iter().any(|uid| owner(&name(uid, place)).is_ok_and(|owner| owner == uid))
}

/// The user of the process that listens at an abstract name, from the kernel (SO_PEERCRED).
fn owner(name: &str) -> io::Result<u32> {
    // A queue that somebody has filled does not block us.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(PeerCredentials::of(&socket)?.uid)
}

fn make(folder: Place) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(own_uid(), folder))?)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The name of a user's mark of a folder.
fn name(uid: u32, folder: Place) -> String {
    format!("weft-serves-{uid}-{:x}-{:x}", folder.device, folder.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_marked(folder: &Path) -> bool {
        super::is_marked(folder, &Looks::at([folder]))
    }

    fn make(folder: &Path) -> io::Result<UnixListener> {
        super::make(Place::of(folder).unwrap())
    }

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
            assert!(warnings[0].contains("a is inside srv, another share of this server"), "{warnings:?}");
        }
        let (_marks, warnings) = look(&[srv, ("link", &link)]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("link is also the folder of srv, another share of this server"),
            "{warnings:?}"
        );
        // Another server checks the same folders.
        let (_none, warnings) = look(&[srv]);
        assert!(warnings[0].contains("another Weft already serves"), "{warnings:?}");
        let (_mark, warnings) = look(&[inner]);
        assert!(warnings[0].contains("another Weft serves"), "{warnings:?}");
    }
}
