//! Creates objects with exactly the mode that they shall have, although the process has a umask.
//!
//! umask(2), unshare(2), CLONE_FS in clone(2). All threads of a process share its umask until one of them leaves them. So a thread
//! leaves them before it lifts the umask for a call: no file that another thread creates meanwhile gets more permissions. A
//! container may forbid that a thread leaves.

use std::cell::Cell;
use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::process::umask;
use rustix::thread::{UnshareFlags, unshare_unsafe};

thread_local! {
    /// Whether the umask is this thread's alone; `None` before it was tried.
    static ALONE: Cell<Option<bool>> = const { Cell::new(None) };
}

/// The umask of this process.
fn of_process() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        // An unknown one may take every bit.
        told.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o777)
    })
}

fn is_alone() -> bool {
    let alone = ALONE.get().unwrap_or_else(|| {
        // SAFETY: descriptors stay shared. The thread only gets its own umask and working directory; Weft changes the latter
        // nowhere.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.is_ok()
    });
    ALONE.set(Some(alone));
    alone
}

struct Lifted(Mode);

impl Drop for Lifted {
    fn drop(&mut self) {
        umask(self.0);
    }
}

/// Runs `create`, which creates an object with this mode, without the umask. `None` if the umask would take bits away and this
/// thread cannot lift it; then `create` did not run. It must not start threads.
pub fn lifted<T>(mode: u32, create: impl FnOnce() -> T) -> Option<T> {
    if mode & of_process() == 0 {
        return Some(create());
    }
    if !is_alone() {
        return None;
    }
    let _lifted = Lifted(umask(Mode::empty()));
    Some(create())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_lifted_umask_takes_nothing_and_is_lifted_for_one_thread_only() {
        let folder = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let path = folder.path().join(name);
            std::fs::DirBuilder::new().mode(0o777).create(&path).unwrap();
            path.metadata().unwrap().mode() & 0o777
        };
        let usual = made("before");
        assert_eq!(usual, 0o777 & !of_process());
        std::thread::scope(|scope| {
            let (inside, entered) = mpsc::channel();
            let (leave, left) = mpsc::channel::<()>();
            let other = scope.spawn(move || {
                let lifted = lifted(0o777, || {
                    inside.send(()).unwrap();
                    left.recv().unwrap();
                    made("lifted")
                });
                (lifted, made("after"))
            });
            entered.recv().unwrap();
            assert_eq!(made("meanwhile"), usual);
            leave.send(()).unwrap();
            assert_eq!(other.join().unwrap(), (Some(0o777), usual));
        });
    }
}
