//! Runs system calls of this thread with the file rights of another user.
//!
//! setfsuid(2), setfsgid(2), setgroups(2), capabilities(7) ("Effect of user ID changes on capabilities"). The kernel
//! keeps these identities for each thread. The calls are made directly: libc's setgroups would change all threads.
//!
//! - A change is complete or the thread ends up as it was: half an identity could own files of one user in a group of
//!   another. Both file ids are read back, because setfsuid and setfsgid report no errors.
//! - The thread is itself again when the function returns or panics. If the kernel refuses that, the process aborts:
//!   no request may be served with the rights of the last one.
//! - A thread that is started inherits the identity of its creator, so nothing here may wait, and the function must not
//!   start threads.
//! - With user 0 the kernel returns all capabilities for files that the thread may have, including one that it has
//!   laid down (CAP_FSETID, see `weft_store::set_id`). So the effective set is restored as well.
//! - Each change makes the process undumpable, as for any program that changes its user: no core dump is written.

use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{Access, AtFlags, CWD, Gid};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};

/// What the kernel takes from a thread whose file user changes from 0 to another, and returns when it is 0 again
/// (CAP_FS_SET in Linux).
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// The id that means "unchanged" to the kernel.
const NO_ID: u32 = u32::MAX;

/// A user, the group of what he creates, and his other groups.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Credentials {
    uid: u32,
    gid: u32,
    groups: Box<[Gid]>,
}

impl Credentials {
    /// `None` if one of the ids is no id.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Option<Credentials> {
        let are_ids = uid != NO_ID && gid != NO_ID && !groups.contains(&NO_ID);
        let groups = || groups.iter().copied().map(Gid::from_raw).collect();
        are_ids.then(|| Credentials { uid, gid, groups: groups() })
    }

    /// The user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group of what he creates.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// His other groups.
    pub fn groups(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().map(|gid| gid.as_raw())
    }
}

/// What a thread is when it acts for nobody.
struct Own {
    uid: u32,
    gid: u32,
    groups: Vec<Gid>,
    /// The capabilities to set after the user is itself again, if the kernel returns more.
    laid_down: Option<CapabilitySets>,
}

thread_local! {
    static OWN: OnceCell<Own> = const { OnceCell::new() };
    /// The user for whom the thread acts.
    static ACTING: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Own {
    fn of_this_thread() -> io::Result<Own> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let sets = capabilities(None)?;
        let returned = sets.permitted & OF_FILES;
        let laid_down = (uid == 0 && !sets.effective.contains(returned)).then_some(sets);
        Ok(Own { uid, gid, groups: rustix::process::getgroups()?, laid_down })
    }

    fn with<T>(act: impl FnOnce(&Own) -> T) -> io::Result<T> {
        OWN.with(|cell| {
            if cell.get().is_none() {
                let _ = cell.set(Own::of_this_thread()?);
            }
            cell.get().map(act).ok_or_else(refused)
        })
    }

    fn take_back_user(&self) -> io::Result<()> {
        set_user(self.uid)?;
        match self.laid_down {
            Some(sets) => Ok(set_capabilities(None, sets)?),
            None => Ok(()),
        }
    }

    fn take_back(&self, user: u32) -> io::Result<()> {
        if user != self.uid {
            self.take_back_user()?;
        }
        set_group(self.gid)?;
        Ok(set_thread_groups(&self.groups)?)
    }
}

/// The file user of this thread.
fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: both calls change nothing but an id of this thread. The second one only reads it, as it is no id.
    let now = unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(NO_ID)
    };
    if now.cast_unsigned() == uid { Ok(()) } else { Err(refused()) }
}

/// The file group of this thread.
fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: see `set_user`.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(NO_ID)
    };
    if now.cast_unsigned() == gid { Ok(()) } else { Err(refused()) }
}

fn refused() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

/// Nothing may go on with an identity that is not the thread's own.
fn must(done: io::Result<()>) {
    if let Err(e) = done {
        tracing::error!("a thread could not change its user back: {e}");
        std::process::abort();
    }
}

/// While it lives, the thread acts for a user.
struct Acting(u32);

impl Acting {
    fn begin(user: &Credentials) -> io::Result<Acting> {
        assert!(ACTING.get().is_none(), "a thread acts for one user at a time");
        let own = Own::with(|own| own.uid)?;
        // If this fails, nothing has changed.
        set_thread_groups(&user.groups)?;
        let acting = Acting(user.uid);
        set_group(user.gid)?;
        if user.uid != own {
            set_user(user.uid)?;
        }
        ACTING.set(Some(user.uid));
        Ok(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        ACTING.set(None);
        must(Own::with(|own| own.take_back(self.0)).flatten());
    }
}

/// Runs `act` with the file rights of `user`; what it creates belongs to him.
///
/// # Errors
/// The kernel refuses the identity: the process is not root, or its user namespace does not have these ids.
pub fn as_user<T>(user: &Credentials, act: impl FnOnce() -> T) -> io::Result<T> {
    let _acting = Acting::begin(user)?;
    Ok(act())
}

/// While it lives, a thread that acts for a user looks with its own rights.
struct Pause(u32);

impl Drop for Pause {
    fn drop(&mut self) {
        must(set_user(self.0));
        ACTING.set(Some(self.0));
    }
}

/// Runs `look` with the thread's own rights, also within [`as_user`]. It must create nothing: groups are not changed.
pub fn as_server<T>(look: impl FnOnce() -> T) -> T {
    let Some(user) = ACTING.get() else { return look() };
    if !is_another() {
        return look();
    }
    let _pause = Pause(user);
    must(Own::with(Own::take_back_user).flatten());
    ACTING.set(None);
    look()
}

/// Whether this thread acts for another user than its own.
pub fn is_another() -> bool {
    ACTING.get().is_some_and(|user| Own::with(|own| own.uid != user).unwrap_or(true))
}

/// Whether threads of this process can act for other users, and can ask the kernel what these may do.
///
/// # Errors
/// Why not.
pub fn check() -> io::Result<()> {
    /// Any user that is not the own one, and its group.
    const OTHER: u32 = 65_534;
    let Some(other) = Credentials::new(OTHER, OTHER, &[]) else { return Err(refused()) };
    if !rustix::process::geteuid().is_root() {
        return Err(refused());
    }
    let (of_root, _writer) = rustix::pipe::pipe()?;
    let of_root = format!("/proc/self/fd/{}", of_root.as_raw_fd());
    as_user(&other, || {
        let may_override = capabilities(None)?.effective.intersects(OF_FILES);
        if may_override {
            return Err(refused());
        }
        // Asking what a user may do needs faccessat2. Without it, rustix asks faccessat, which answers for the real user.
        match rustix::fs::accessat(CWD, of_root, Access::READ_OK, AtFlags::EACCESS) {
            Err(Errno::ACCESS) => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, NO_FACCESSAT2)),
        }
    })
    .flatten()
}

const NO_FACCESSAT2: &str =
    "needs the system call faccessat2 (Linux 5.8; a container's seccomp profile may forbid it)";

#[cfg(test)]
mod tests;
