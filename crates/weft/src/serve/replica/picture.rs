//! Test failover: a writable snapshot of a copy, served over its own NBD socket, while replication continues.
//!
//! This module owns the snapshots, their differences (unnamed files in the journals' folder), and their server. They
//! do not survive the server. They are not served over TCP, because NBD has no passwords: only this server's user can
//! reach the socket, whose file is in the state directory, or in the user's runtime directory if that path is too
//! long.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft_machine::{File, rt, shm};
use weft_nbd::{Export, Server};
use weft_replica::destination::Destination;
use weft_store::block::{Block, Medium};
use weft_store::volume::plain::Plain;

use super::error::NoSnapshot;
use super::names::GroupName;
use super::{Member, Replicas};
use crate::listen::quota::Service;
use crate::listen::unix::{PathListener, SocketFile};
use crate::listen::{Acceptor, Stop};
use crate::serve::nbd;

/// The longest path of a socket that a client can use (unix(7): 108 bytes including the terminating zero).
const MOST_SOCKET_PATH: usize = 107;

/// Served snapshots; they end when this is dropped.
pub(super) struct Picture {
    /// Their NBD URIs.
    pub uris: Vec<String>,
    server: Arc<Server>,
    stop: Stop,
    /// Kept here, because the task that listens may be dropped with its core.
    _file: Option<SocketFile>,
}

impl Drop for Picture {
    fn drop(&mut self) {
        self.stop.stop();
        self.server.drain();
    }
}

/// Takes snapshots of all volumes of a copy at one moment, and serves them. `members` are the volumes of `group`.
pub(super) async fn take(
    replicas: &Replicas,
    group: &GroupName,
    members: &[Arc<Member>],
    copy: &Destination,
) -> Result<Picture, NoSnapshot> {
    let store = |size: u64| -> std::io::Result<Arc<dyn Block>> {
        let file = tempfile::tempfile_in(replicas.folder.path())?;
        file.set_len(size)?;
        Ok(Arc::new(Plain::new(File::from(OwnedFd::from(file)), None, Medium::File, size)))
    };
    let stores = copy.status().sizes.into_iter().map(store).collect::<Result<Vec<_>, _>>();
    let blocks = copy.snapshot(stores.map_err(NoSnapshot::Room)?).await?;
    let exports = members.iter().zip(blocks).map(|(member, block)| Export {
        name: member.name.clone(),
        description: "a snapshot of a copy, removed at the end of the test".into(),
        block,
        read_only: false,
    });
    let acceptor = replicas.acceptor.get().ok_or(NoSnapshot::NotListening)?;
    let server = nbd::server(exports.collect(), &replicas.pool, None);
    let folder = std::path::absolute(replicas.folder.path()).map_err(NoSnapshot::Path)?;
    let path = socket_path(&folder, group, &shm::runtime_dir())?;
    if !path.starts_with(&folder) {
        shm::secure_dir(path.parent().unwrap_or(&folder)).map_err(NoSnapshot::socket(&path))?;
    }
    let mut listener = PathListener::bind(&path).map_err(NoSnapshot::socket(&path))?;
    let stop = Stop::default();
    let uri = |member: &Arc<Member>| uri(&member.name, &path);
    let picture = Picture {
        uris: members.iter().map(uri).collect(),
        server: server.clone(),
        stop: stop.clone(),
        _file: listener.take_file(),
    };
    // The limits of all ports apply here, too.
    let acceptor = Acceptor { stop, ..acceptor.clone() };
    rt::spawn(acceptor.unix_streams(listener, Service::Nbd, nbd::service(&server))).detach();
    Ok(picture)
}

/// The socket path of a group's snapshots: in the journals' folder, or, if that path is too long for a socket, in the
/// directory for this user's sockets.
fn socket_path(folder: &Path, group: &str, runtime: &Path) -> Result<PathBuf, NoSnapshot> {
    let near = folder.join(format!("{group}.sock"));
    // Other servers of this user use that directory, too.
    let elsewhere = runtime.join(format!("picture-{}-{group}.sock", std::process::id()));
    let fits = |path: &PathBuf| path.as_os_str().len() <= MOST_SOCKET_PATH;
    let path = [near, elsewhere].into_iter().find(fits);
    path.ok_or_else(|| NoSnapshot::PathTooLong {
        most: MOST_SOCKET_PATH,
        folder: folder.to_owned(),
        runtime: runtime.to_owned(),
    })
}

/// The NBD URI of a volume at a Unix socket.
fn uri(volume: &str, socket: &Path) -> String {
    let mut uri = format!("nbd+unix:///{volume}?socket=");
    for byte in socket.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(char::from(*byte))
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_no_client_could_name_lies_elsewhere_or_is_refused() {
        let (short, long) = (PathBuf::from("/run/user/1"), PathBuf::from(format!("/{}", "s".repeat(100))));
        let near = socket_path(&short, "db", &short);
        assert_eq!(near.unwrap(), short.join("db.sock"));
        let longest = PathBuf::from(format!("/{}", "s".repeat(MOST_SOCKET_PATH - "//db.sock".len())));
        assert_eq!(socket_path(&longest, "db", &short).unwrap(), longest.join("db.sock"));
        let elsewhere = socket_path(&long, "db", &short).unwrap();
        assert!(
            elsewhere.starts_with(&short)
                && elsewhere.to_str().is_some_and(|path| path.ends_with("-db.sock"))
        );
        assert!(socket_path(&long, "db", &long).unwrap_err().to_string().contains("XDG_RUNTIME_DIR"));
    }

    #[test]
    fn a_path_that_is_no_uri_is_escaped_in_one() {
        assert_eq!(uri("vol1", Path::new("/a b/é&?")), "nbd+unix:///vol1?socket=/a%20b/%C3%A9%26%3F");
    }
}
