//! The contract between protocols and backends: enums for operations, outcomes and errors. `backend` implements it;
//! [`Vfs`] has a typed call for each operation. Both protocols map [`Error`] to their own codes.

mod caller;
mod calls;
pub(crate) mod depot;
mod dir_name;
mod dos;
pub(crate) mod error;
mod file;
mod flushes;
mod layer;
pub mod object;
mod op;
mod open_stream;
mod own;
mod share;
mod share_id;
mod share_key;
mod shares;
mod stream;
mod streams;
mod unlinked;
mod watch;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::LocalBoxFuture;
use rustix::io::Errno;

pub use self::caller::{Caller, Permissions};
pub use self::calls::{Unsettled, Vfs};
pub(crate) use self::depot::ATTRIBUTES as STREAM_XATTRS;
pub use self::dir_name::DirName;
pub(crate) use self::dos::XATTR as DOS_XATTR;
pub use self::dos::{Dos, OWN_XATTRS, XattrSummary};
pub use self::error::Error;
pub use self::file::{OpenFile, Read};
pub(crate) use self::layer::Layer;
pub use self::object::{Done, Object, ObjectOp, Quota, Submission};
pub(crate) use self::op::{Effect, Mentions};
pub use self::op::{Exists, Hold, Make, Op, Outcome, SetXattr};
pub use self::own::{NameChange, Own};
pub use self::share::Share;
pub use self::share_id::ShareId;
pub use self::share_key::{ShareKey, VfsId};
pub use self::shares::{CurrentShares, ShareList};
pub use self::stream::{MAX_STREAM_BYTES, MAX_STREAM_NAME};
pub use self::streams::{StreamEntry, StreamHead};
pub use self::unlinked::Cache;
pub use self::watch::{
    Above, Action, Change, Changes, Event, MAX_QUEUED, MAX_WATCHES, MAX_WATCHES_OF_A_DIR,
    MAX_WATCHES_OF_A_DIR_IN_ALL, Watch, Watches, What,
};

/// The longest name of an extended attribute in bytes: Linux takes 255, of which `user.` takes five.
pub const MAX_XATTR_NAME: usize = 250;
/// The longest value of an extended attribute in bytes (Linux's XATTR_SIZE_MAX). File systems may accept less: ext4
/// stores all of a file's attributes in 4 KiB unless it was made with `ea_inode`; then the result is
/// [`Error::NoSpace`].
pub const MAX_XATTR_VALUE: usize = 65_536;

/// A file or directory of one share. Stable while the share is served; 1 is the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of every share.
    pub const ROOT: NodeId = NodeId(1);
}

/// Identifies a file for as long as it lives: the same after a restart, and in every share of the same folder.
/// Opaque; a protocol that gives it to clients must prove that it comes back unchanged, and restricts its use.
///
/// Files of a `ram` share do not survive: their identities contain a number that differs between runs.
///
/// The first eight bytes are a number that is unique among the existing files of the device, little-endian; the last
/// four are zero on the device of the share's root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stable(pub [u8; 24]);

impl Stable {
    /// A 63-bit number for the file, never zero: the same after a restart, and different for a later file with the
    /// same inode.
    ///
    /// ```text
    /// bit 63   62   61 .. 40                  39 .. 0
    ///      0 | 0 | hash of birth or run | inode          where the inode has 40 bits: no two files of a share have the same
    ///      0 | 1 | hash of all of it                     on other devices, and where inodes are longer
    /// ```
    pub fn number(&self) -> u64 {
        const INODE: u32 = 40;
        const SHORT: u64 = (1 << (62 - INODE)) - 1;
        const LONG: u64 = (1 << 62) - 1;
        let [a, b, c, d, e, f, g, h, generation @ ..] = self.0;
        let inode = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let [.., w, x, y, z] = generation;
        if [w, x, y, z] == [0; 4] && inode >> INODE == 0 && inode != 0 {
            return inode | (hash(&generation) & SHORT) << INODE;
        }
        1 << 62 | hash(&self.0) & LONG
    }
}

/// FNV-1a with mixed bits. Clients store the result, so it must never change.
fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (fnv ^ fnv >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ mixed >> 33
}

/// Unix time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970, possibly negative.
    pub secs: i64,
    /// `0 <= nanos < 1_000_000_000`.
    pub nanos: u32,
}

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link; never followed by the store.
    Symlink,
    /// Device, socket or pipe: listed, not opened.
    Special(Special),
}

/// A file that exists only as a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block device with its major and minor number.
    Block(u32, u32),
    /// A character device with its major and minor number.
    Char(u32, u32),
}

/// Attributes of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The node.
    pub node: NodeId,
    /// Its number in the file system, which survives this run if the file does. A later file may have the same
    /// number.
    pub fileid: u64,
    /// Its identity.
    pub stable: Stable,
    /// Its kind.
    pub kind: Kind,
    /// Bytes (0 for directories).
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Hard links.
    pub nlink: u32,
    /// Permission bits, 12 of them.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation time, or the earliest of the other times if the file system does not store it.
    pub btime: Timestamp,
    /// Its data may not be overwritten, not even by its owner: it is append-only or immutable (chattr(1)). Opening it for writing
    /// fails, but a descriptor that is older still writes.
    pub is_sealed: bool,
}

/// Attributes to change; `None` leaves an attribute unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Truncate or extend.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last write.
    pub mtime: Option<SetTime>,
}

/// A new timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This time.
    To(Timestamp),
}

/// Space of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes available to this user.
    pub available: u64,
    /// Files in all.
    pub files: u64,
    /// Files free.
    pub files_free: u64,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, without `/` and NUL. `.` and `..` are not listed.
    pub name: Vec<u8>,
    /// Pass this to the next [`Op::Readdir`] to continue after this entry; never 0, and stable while the directory
    /// does not change.
    pub cookie: u64,
    /// Attributes at the time of listing.
    pub attr: Result<Attr, Unread>,
    /// Summary of the file's extended attributes, if requested.
    pub xattrs: Option<XattrSummary>,
}

/// What is known of a listed object whose attributes cannot be read. Another file system may be mounted there that admits one user
/// only, or does not answer any more. The name exists all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Its number, as the directory lists it.
    pub fileid: u64,
    /// Its kind, if the directory lists it.
    pub kind: Option<Kind>,
    /// Why its attributes cannot be read.
    pub why: Errno,
}

/// Names of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// In the directory's order.
    pub entries: Vec<Entry>,
    /// Whether the directory ends with them.
    pub is_last: bool,
}

/// The result of a creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The node, new or not.
    pub attr: Attr,
    /// Whether it is new: otherwise it existed before.
    pub is_new: bool,
}

/// A backend: one function. Middleware (trace, count, delay, fail) wraps it.
pub trait Backend: Send + Sync {
    /// "dir" or "ram".
    fn kind(&self) -> &'static str;
    /// Whether it refuses all changes.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Whether other programs can change its files.
    fn changes_on_the_host(&self) -> bool {
        false
    }
    /// Examines `max` of its cached descriptors, and closes those of files that have no name any more.
    fn sweep(&self, max: usize) {
        let _ = max;
    }
    /// Removes leftovers of files that other programs have deleted. Called periodically, unless the share is
    /// read-only.
    fn tidy(&self, now: Instant) {
        let _ = now;
    }
    /// Whether it makes system calls with the rights of [`Caller::User`], so that the kernel judges him. Otherwise every
    /// caller has the server's rights.
    fn judges_callers(&self) -> bool {
        false
    }
    /// The attributes of a node, if that need not wait: no caller needs a right for them. `None`: use [`Op::Getattr`].
    fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        let _ = node;
        None
    }
    /// Carries out one operation in the name of a caller.
    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>>;
    /// Until the result is dropped, reports to `watches` what others than this server change in `dir`, or in the tree
    /// below it. Changes through [`Vfs`] are marked ([`Watches::own`]) and not reported. By default, nobody else
    /// changes anything.
    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> LocalBoxFuture<'static, Option<Box<dyn Any + Send + Sync>>> {
        let _ = (dir, recursive, watches);
        Box::pin(std::future::ready(None))
    }
}
