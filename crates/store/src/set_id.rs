//! Makes the kernel clear the set-user-id and set-group-id bits of files that are written to, so that a writer cannot
//! run code as the file's owner. The kernel does not do so for a process with CAP_FSETID, such as root, but a server
//! that writes for others must. Likewise quotas do not bind a process with CAP_SYS_RESOURCE, but must bind those for whom it
//! writes.
//!
//! capabilities(7), inode(7). Capabilities belong to a thread, and new threads inherit them.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use weft_machine::credentials;

/// What a server that writes for others lays down.
const LAID_DOWN: CapabilitySet = CapabilitySet::FSETID.union(CapabilitySet::SYS_RESOURCE);

/// From now on the kernel clears the bits for writes of this thread and of threads that it starts, and quotas of the files'
/// owners bind these writes. No effect for a process that is not root.
pub fn leave_to_the_kernel() -> std::io::Result<()> {
    let sets = capabilities(None)?;
    match sets.effective.intersects(LAID_DOWN) {
        true => Ok(set_capabilities(None, CapabilitySets { effective: sets.effective - LAID_DOWN, ..sets })?),
        false => Ok(()),
    }
}

/// Makes a call that may set the bits, even for a group that this process is not in. The kernel judges a user for whom the
/// thread acts, and drops the bit for a group that he is not in.
pub(crate) fn allowed<T>(call: impl FnOnce() -> T) -> T {
    if credentials::is_another() { call() } else { kept(call) }
}

/// Makes a call that sets bits which the file has already, also in the name of a user.
pub(crate) fn kept<T>(call: impl FnOnce() -> T) -> T {
    let _allowed = Allowed::here();
    call()
}

struct Allowed(CapabilitySets);

impl Allowed {
    /// `None` if it makes no difference: it is always or never allowed.
    fn here() -> Option<Allowed> {
        let sets = capabilities(None).ok()?;
        let may = sets.permitted.contains(CapabilitySet::FSETID);
        if !may || sets.effective.contains(CapabilitySet::FSETID) {
            return None;
        }
        let effective = sets.effective | CapabilitySet::FSETID;
        set_capabilities(None, CapabilitySets { effective, ..sets }).ok()?;
        Some(Allowed(sets))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        set_capabilities(None, without(self.0)).expect("a thread may give up what it has");
    }
}

fn without(sets: CapabilitySets) -> CapabilitySets {
    CapabilitySets { effective: sets.effective - CapabilitySet::FSETID, ..sets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_bind_a_server_that_writes_for_others() {
        let story = || {
            leave_to_the_kernel().unwrap();
            let now = || capabilities(None).unwrap().effective;
            assert!(!now().contains(CapabilitySet::SYS_RESOURCE));
            assert!(!kept(now).contains(CapabilitySet::SYS_RESOURCE), "nor while it sets bits");
        };
        std::thread::spawn(story).join().unwrap();
    }

    #[test]
    fn it_is_allowed_for_one_call() {
        // On its own thread, because capabilities are per thread.
        let look = || capabilities(None).unwrap().effective.contains(CapabilitySet::FSETID);
        let story = move || {
            let root = capabilities(None).unwrap().permitted.contains(CapabilitySet::FSETID);
            leave_to_the_kernel().unwrap();
            assert!(!look());
            assert_eq!(allowed(look), root);
            assert!(!look());
            assert!(!std::thread::spawn(look).join().unwrap(), "a child has it no more than its parent");
        };
        std::thread::spawn(story).join().unwrap();
    }
}
